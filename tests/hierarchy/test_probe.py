"""Costs of looking up a node, in rounds of requests and in requests: below a known group at most two and six."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from trio.testing import trio_test

from tests.hierarchy.test_edits import editing
from tests.hierarchy.test_roots import V2_ARRAY, V2_GROUP, V3_ARRAY, V3_GROUP
from tests.support.arrays import reading
from tests.support.small_shards import UnlistableStore
from tests.support.stores import contents, fill
from zarrfs.errors import StoreAccessDenied
from zarrfs.hierarchy.probe import holds_only_chunks
from zarrfs.keys import ByteRange, Key, NodePath, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store
from zarrfs.stores.values import Answer, Denied, DirEntry
from zarrfs.transformers.intercepting import InterceptingStore, Operation

T = TypeVar("T")

V1_META = b"""{"shape": [4], "chunks": [2], "dtype": "<i4", "compression": null, "compression_opts": null, "fill_value": 0,
 "order": "C", "zarr_format": 1}"""
V2 = {".zgroup": V2_GROUP, "g/.zgroup": V2_GROUP}
V3 = {"zarr.json": V3_GROUP, "g/zarr.json": V3_GROUP}


class Rounds(InterceptingStore):
    """Records the number of requests of each call."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.requests: list[int] = []

    async def intercept(self, operation: Operation, begin: Awaitable[T]) -> T:  # type: ignore[override]
        self.requests.append(len(operation.targets))
        return await super().intercept(operation, begin)  # type: ignore[arg-type]

    def get_many_now(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        return Store.get_many_now(self, key_ranges)

    def list_dir(self, prefix: Prefix) -> object:  # type: ignore[override]
        self.requests.append(1)
        return super().list_dir(prefix)


@pytest.mark.parametrize(
    ("group", "below", "kind", "most"),
    [
        (V2, {"g/x/.zarray": V2_ARRAY}, "ArrayNode", [4]),
        (V2, {"g/x/.zarray": V2_ARRAY, "g/x/.zattrs": b"{}", "g/x/0": b"1"}, "ArrayNode", [4]),
        (V2, {"g/x/.zgroup": V2_GROUP}, "GroupNode", [4]),
        (V2, {}, "NoneType", [4, 1]),
        (V2, {"g/x/y/.zgroup": V2_GROUP}, "GroupNode", [4, 1]),
        (V2, {"g/x/zarr.json": V3_ARRAY}, "ArrayNode", [4]),
        (V3, {"g/x/zarr.json": V3_ARRAY}, "ArrayNode", [1]),
        (V3, {}, "NoneType", [1, 1]),
        (V3, {"g/x/y/zarr.json": V3_GROUP}, "GroupNode", [1, 1]),
        # Of another dialect than the group above: listing gives the names, and then the documents are requested.
        (V3, {"g/x/.zarray": V2_ARRAY}, "ArrayNode", [1, 1, 1]),
        (V2, {"g/x/meta": V1_META}, "ArrayNode", [4, 1, 1]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
@trio_test
async def test_a_cold_lookup(group: dict[str, bytes], below: dict[str, bytes], kind: str, most: list[int]) -> None:
    inner = MemoryStore()
    await fill(inner, group | below)
    store = Rounds(inner)
    hierarchy = reading(store).hierarchy
    for known in ("/", "/g"):
        await hierarchy.node(NodePath(known))
    store.requests.clear()
    assert type(await hierarchy.node(NodePath("/g/x"))).__name__ == kind
    assert store.requests == most
    store.requests.clear()
    await hierarchy.node(NodePath("/g/x"))
    assert store.requests == []


@pytest.mark.parametrize("group", [V2, V3], ids=["v2", "v3"])
@trio_test
async def test_the_root_of_a_store(group: dict[str, bytes]) -> None:
    inner = MemoryStore()
    await fill(inner, group)
    store = Rounds(inner)
    assert await reading(store).hierarchy.node(NodePath("/")) is not None
    # First the dialects with a hierarchy there, then the node.
    assert len(store.requests) == 2


@pytest.mark.parametrize(("group", "most"), [(V2, [4, 2]), (V3, [1, 4])], ids=["v2", "v3"])
@trio_test
async def test_a_store_that_cannot_list_is_asked_for_what_decides(group: dict[str, bytes], most: list[int]) -> None:
    inner = MemoryStore()
    await fill(inner, group)
    store = Rounds(UnlistableStore(inner))
    hierarchy = reading(store).hierarchy
    for known in ("/", "/g"):
        await hierarchy.node(NodePath(known))
    store.requests.clear()
    assert await hierarchy.node(NodePath("/g/x")) is None
    assert store.requests == most


class Private(Rounds):
    """A store with one key that may not be read."""

    key = ""

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        answers = await super().get_many(key_ranges)
        for number, (key, _) in enumerate(key_ranges):
            if key == self.key:
                answers[number] = Denied(StoreAccessDenied("permission denied", key=key))
        return answers


@pytest.mark.parametrize(("key", "kind"), [("g/x/.zattrs", "ArrayNode"), ("g/x/zarr.json", None), ("g/x/.zarray", "ArrayNode")])
@trio_test
async def test_a_document_that_may_not_be_read_hides_only_what_it_decides(key: str, kind: str | None) -> None:
    inner = MemoryStore()
    await fill(inner, V2 | {"g/x/zarr.json": V3_ARRAY, "g/x/.zarray": V2_ARRAY, "g/x/.zattrs": b"{}"})
    store = Private(inner)
    store.key = key
    hierarchy = reading(store).hierarchy
    for known in ("/", "/g"):
        await hierarchy.node(NodePath(known))
    if kind is None:
        with pytest.raises(StoreAccessDenied):
            await hierarchy.node(NodePath("/g/x"))
    else:
        node = await hierarchy.node(NodePath("/g/x"))
        assert node is not None and (type(node).__name__, node.dialect) == (kind, "v3")


@pytest.mark.parametrize("key", [".zarray", ".zgroup", ".zattrs", "meta", "attrs", "__zmeta__", "__zattr__"])
@trio_test
async def test_a_file_at_the_root_that_may_not_be_read_hides_nothing_if_the_root_has_an_earlier_layout(key: str) -> None:
    """A private file of such a name, as of notes, made the whole store unreadable."""
    inner = MemoryStore()
    await fill(inner, {"zarr.json": V3_GROUP, "a/zarr.json": V3_ARRAY, "b/.zarray": V2_ARRAY, key: b"{}"})
    store = Private(inner)
    store.key = key
    hierarchy = reading(store).hierarchy
    found = {path: await hierarchy.node(NodePath(path)) for path in ("/a", "/b", "/")}
    assert {path: node and node.dialect for path, node in found.items()} == {"/a": "v3", "/b": "v2", "/": "v3"}
    async with editing(inner=store, new="v2") as e:
        await e.array("/c")
        assert (await e.node("/c")).dialect == "v3"


@pytest.mark.parametrize("key", [".zgroup", ".zattrs"])
@trio_test
async def test_nothing_is_created_at_a_root_whose_documents_may_not_be_read(key: str) -> None:
    inner = MemoryStore()
    await fill(inner, {".zgroup": V2_GROUP, ".zattrs": b"{}", "a/.zarray": V2_ARRAY})
    store = Private(inner)
    store.key = key
    before = await contents(inner)
    async with editing(inner=store, new="v3") as e:
        with pytest.raises(StoreAccessDenied):
            await e.node("/")
        # It would get the layout of the root.
        with pytest.raises(StoreAccessDenied):
            await e.array("/b")
    assert await contents(inner) == before


@pytest.mark.parametrize("key", [".zmetadata", "zarr.json"])
@trio_test
async def test_a_document_at_the_root_that_decides_on_all_nodes_and_may_not_be_read_hides_them(key: str) -> None:
    inner = MemoryStore()
    await fill(inner, {".zgroup": V2_GROUP, "a/.zarray": V2_ARRAY, key: b"{}"})
    store = Private(inner)
    store.key = key
    with pytest.raises(StoreAccessDenied):
        await reading(store).hierarchy.node(NodePath("/a"))


class ClosedFolder(Rounds):
    """A store in which folders may not be listed, but keys may be read."""

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        raise StoreAccessDenied("permission denied", key=prefix)


@trio_test
async def test_a_folder_that_may_not_be_listed_is_asked_for_what_decides() -> None:
    inner = MemoryStore()
    await fill(inner, V3 | {"g/x/.zarray": V2_ARRAY})
    hierarchy = reading(ClosedFolder(inner)).hierarchy
    for known in ("/", "/g"):
        await hierarchy.node(NodePath(known))
    assert type(await hierarchy.node(NodePath("/g/x"))).__name__ == "ArrayNode"


@pytest.mark.parametrize(("parts", "is_group"), [(33, False), (34, True), (2000, True)])
@trio_test
async def test_folders_deeper_than_any_chunk_are_no_remains_of_one(parts: int, is_group: bool) -> None:
    """Each was listed, down to the deepest: in a zip with a name of 32,000 parts for half a minute."""
    store = Rounds(MemoryStore())
    await fill(store, {"zarr.json": V3_GROUP, "/".join("7" * parts): b"x"})
    hierarchy = reading(store).hierarchy
    assert await hierarchy.node(NodePath("/")) is not None
    store.requests.clear()
    assert (await hierarchy.node(NodePath("/7")) is not None) == is_group
    assert sum(store.requests) < 200


@trio_test
async def test_empty_folders_count_as_keys_do(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / "c" / str(number)).mkdir(parents=True)
    (tmp_path / "c/0/0").write_bytes(b"x")
    store = Rounds(await open_store(str(tmp_path)))
    assert not await holds_only_chunks(store, Prefix("c/"), most=5)
    assert len(store.requests) < 5
    assert await holds_only_chunks(store, Prefix("c/"))
    await store.aclose()
