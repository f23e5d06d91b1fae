"""The nodes of a store, the number of times their documents are read, and the expiry of cached nodes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.support.arrays import Example, Reading, reading
from tests.support.cases import Case, cases
from tests.support.small_stores import array_document
from tests.support.stores import FailingStore, HangingStore, WaitingStore, fill
from zarrfs.errors import StoreTimeout
from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.keys import ROOT, ByteRange, Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Answer
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore

GROUP = b'{"zarr_format":2}'
V3_GROUP = b'{"zarr_format": 3, "node_type": "group"}'
V3_ARRAY = json.dumps(
    {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
).encode()
ARRAY = array_document((4,), (2,), "<i2")


class Unlistable(ForwardingStore):
    """A store like a web server: values are found by key, and names are not listed."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, list=False)

    def list_dir(self, prefix: Prefix) -> None:  # type: ignore[override]
        raise AssertionError(f"{prefix!r} was listed")


async def made(values: dict[str, bytes], ttl: float = 10) -> tuple[Reading, ObservedStore]:
    """Return a hierarchy over these values, notified of changes as in a mount, and its store, which counts operations."""
    store = ObservedStore(MemoryStore())
    await fill(store, values)
    r = reading(store, ttl=ttl)
    store.subscribe(lambda change: r.hierarchy.changed(change.target, is_prefix=change.is_prefix) and None)
    return r, store


async def names(r: Reading, path: str = "/") -> dict[str, str]:
    """Return the children of a group: name, and kind of node."""
    return {name: type(node).__name__ async for name, node in r.hierarchy.children(NodePath(path))}


async def kind(r: Reading, path: str) -> str:
    return type(await r.hierarchy.node(NodePath(path))).__name__


# --- existing nodes -----------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_bad_node_does_not_hide_its_neighbours() -> None:
    r, _ = await made({".zgroup": GROUP, "a/.zarray": ARRAY, "b/.zarray": b"{", "c/.zgroup": GROUP, "d/e/.zarray": ARRAY})
    assert await names(r) == {"a": "ArrayNode", "b": "UnsupportedNode", "c": "GroupNode", "d": "GroupNode"}
    bad = await r.hierarchy.node(NodePath("/b"))
    assert isinstance(bad, UnsupportedNode) and "b/.zarray" in bad.reason
    assert await r.hierarchy.array(NodePath("/b")) is None
    assert await r.hierarchy.array(NodePath("/c")) is None


@trio_test
async def test_nodes_of_v2_and_v3_lie_side_by_side() -> None:
    r, _ = await made(
        {
            ".zgroup": GROUP,
            "old/.zarray": ARRAY,
            "new/zarr.json": V3_ARRAY,
            "mixed/zarr.json": V3_GROUP,
            "mixed/old/.zarray": ARRAY,
            "mixed/new/zarr.json": V3_ARRAY,
        }
    )
    assert await names(r) == {"mixed": "GroupNode", "new": "ArrayNode", "old": "ArrayNode"}
    assert await names(r, "/mixed") == {"new": "ArrayNode", "old": "ArrayNode"}
    dialects = {}
    for path in ("/", "/old", "/new", "/mixed", "/mixed/old", "/mixed/new"):
        node = await r.hierarchy.node(NodePath(path))
        assert node is not None
        dialects[path] = node.dialect
    assert dialects == {"/": "v2", "/old": "v2", "/new": "v3", "/mixed": "v3", "/mixed/old": "v2", "/mixed/new": "v3"}


@trio_test
async def test_a_folder_whose_name_is_reserved_is_no_group() -> None:
    """v3, "Node names": a name must not start with ``__``; in a v2 group it may."""
    below = {"__x/data": b"1", "__x/zarr.json": V3_GROUP, "y/data": b"1"}
    values = {"three/zarr.json": V3_GROUP, "two/.zgroup": GROUP}
    r, _ = await made(values | {f"{group}/{key}": value for group in ("three", "two") for key, value in below.items()})
    for group, expected in ("three", ["y"]), ("two", ["__x", "y"]):
        assert [name async for name, _ in r.hierarchy.children(NodePath(f"/{group}"))] == expected
        r.hierarchy.forget_all()
        assert (await r.hierarchy.node(NodePath(f"/{group}/__x")) is None) is (expected == ["y"])


@trio_test
async def test_an_empty_store_is_a_group_without_children() -> None:
    r, _ = await made({})
    assert await kind(r, "/") == "GroupNode"
    assert await names(r) == {}


@trio_test
async def test_plain_files_are_no_nodes() -> None:
    r, _ = await made({"readme.txt": b"hello", "data/x.bin": b"1"})
    assert await names(r) == {"data": "GroupNode"}
    assert await kind(r, "/readme.txt") == "NoneType"


@trio_test
async def test_a_store_that_fails_for_one_child_shows_the_others() -> None:
    store = MemoryStore()
    await fill(store, {".zgroup": GROUP, "a/.zarray": ARRAY, "b/.zarray": ARRAY})

    class Failing(FailingStore):
        async def interrupt(self, operation: str, target: str) -> None:
            if target.startswith("b/"):
                await super().interrupt(operation, target)

    r = reading(Failing(store, {"get_partial_values": StoreTimeout("no answer about b")}))
    assert await names(r) == {"a": "ArrayNode", "b": "UnsupportedNode"}
    with pytest.raises(StoreTimeout):
        await r.hierarchy.node(NodePath("/b"))


# --- number of reads -----------------------------------------------------------------------------------------------------------


@trio_test
async def test_concurrent_lookups_read_documents_once() -> None:
    inner = MemoryStore()
    await fill(inner, {".zgroup": GROUP, "a/.zarray": ARRAY})
    store = WaitingStore(inner, "get_partial_values")
    counted = ObservedStore(store)
    r = reading(counted)
    kinds: list[str] = []

    async def look() -> None:
        kinds.append(await kind(r, "/a"))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(look)
        await wait_all_tasks_blocked()
        assert len(store.waiting) == 1
        store.let_go()
    assert kinds == ["ArrayNode"] * 8
    alone = ObservedStore(inner)
    await reading(alone).hierarchy.node(NodePath("/a"))
    assert counted.counters == alone.counters
    assert r.counters.nodes_parsed == 1


@trio_test
async def test_what_is_known_costs_nothing() -> None:
    r, store = await made({".zgroup": GROUP, "a/.zarray": ARRAY})
    await r.array("a")
    before = str(store.counters)
    for _ in range(3):
        assert await r.array("a") is await r.array("a")
        assert await kind(r, "/a") == "ArrayNode"
    assert str(store.counters) == before


@trio_test
async def test_a_huge_document_is_not_read_whole() -> None:
    r, store = await made({".zgroup": GROUP, "a/.zarray": b"[" + b" " * (64 << 20) + b"]"})
    before = store.counters.bytes_read
    assert await kind(r, "/a") == "UnsupportedNode"
    assert store.counters.bytes_read - before < 40 << 20


# --- change --------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_document_written_through_the_mount_counts_at_once() -> None:
    r, store = await made({".zgroup": GROUP, "a/.zarray": ARRAY})
    before = await r.array("a")
    await store.set(Key("a/.zarray"), array_document((6,), (2,), "<i2"))
    after = await r.array("a")
    assert after.array.metadata.shape == (6,)
    assert before.superseded and not after.superseded
    await store.erase(Key("a/.zarray"))
    assert await kind(r, "/a") == "NoneType"
    assert after.superseded


@trio_test
async def test_the_same_document_written_again_supersedes_nothing() -> None:
    r, store = await made({".zgroup": GROUP, "a/.zarray": ARRAY})
    before = await r.array("a")
    await store.set(Key("a/.zarray"), ARRAY)
    assert await r.array("a") is before
    assert not before.superseded


@trio_test
async def test_attributes_written_through_the_mount_count_at_once() -> None:
    r, store = await made({".zgroup": GROUP, "a/.zarray": ARRAY})
    await r.hierarchy.node(NodePath("/a"))
    await store.set(Key("a/.zattrs"), b'{"units": "K"}')
    node = await r.hierarchy.node(NodePath("/a"))
    assert isinstance(node, ArrayNode) and node.attributes == {"units": "K"}


@pytest.mark.parametrize("key", ["p/q/r/.zarray", "p/q/r/0", "p/x"])
@trio_test
async def test_the_first_key_below_a_folder_makes_it_a_group_at_once(key: str) -> None:
    r, store = await made({".zgroup": GROUP})
    assert await kind(r, "/p") == "NoneType"
    await store.set(Key(key), ARRAY)
    assert await kind(r, "/p") == "GroupNode"
    await store.erase(Key(key))
    assert await kind(r, "/p") == "NoneType"


@trio_test
async def test_erasing_a_prefix_forgets_everything_below() -> None:
    r, store = await made({".zgroup": GROUP, "g/.zgroup": GROUP, "g/a/.zarray": ARRAY, "b/.zarray": ARRAY})
    opened = await r.array("g/a")
    other = await r.array("b")
    await store.erase_prefix(Prefix("g/"))
    assert await names(r) == {"b": "ArrayNode"}
    assert await kind(r, "/g/a") == "NoneType"
    assert opened.superseded and not other.superseded


class WaitingAfterReading(WaitingStore):
    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        answers = await self.inner.get_many(key_ranges)
        await self.interrupt("get_many", str(key_ranges[-1][0]))
        return answers


@trio_test
async def test_a_change_while_documents_are_read_is_not_missed() -> None:
    inner = MemoryStore()
    await fill(inner, {".zgroup": GROUP, "a/.zarray": ARRAY})
    store = WaitingAfterReading(inner, "get_many")
    r = reading(store)
    results: list[object] = []

    async def look() -> None:
        results.append(await r.hierarchy.node(NodePath("/a")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        # The documents have been read, and the answer has not arrived.
        assert store.waiting
        await inner.set(Key("a/.zarray"), array_document((6,), (2,), "<i2"))
        r.hierarchy.changed("a/.zarray", is_prefix=False)
        store.let_go()
    node = await r.hierarchy.node(NodePath("/a"))
    assert isinstance(node, ArrayNode) and node.metadata.shape == (6,)


@trio_test
async def test_what_a_key_means_for_the_nodes() -> None:
    r, _ = await made({".zgroup": GROUP, "a/.zarray": ARRAY, "n/zarr.json": V3_ARRAY})
    await r.array("a")
    await r.array("n")
    a, n = NodePath("/a"), NodePath("/n")

    def changed(key: str) -> list[NodeChange]:
        return list(r.hierarchy.changed(key, is_prefix=False))

    assert changed("a/1") == [NodeChange(a, (1,))]
    assert changed("n/c/1") == [NodeChange(n, (1,))]
    assert NodeChange(a) in changed("a/.zattrs")
    assert NodeChange(n) in changed("n/zarr.json")
    assert changed("a/01") == changed("a/1.1") == changed("somewhere/else") == []
    assert {change.path for change in r.hierarchy.changed("a/", is_prefix=True)} >= {a}


def on_a_clock(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        trio.run(test, clock=MockClock(autojump_threshold=0))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_a_clock
async def test_changes_behind_the_mount_are_seen_after_the_ttl() -> None:
    r, store = await made({".zgroup": GROUP, "a/.zarray": ARRAY}, ttl=10)
    before = await r.array("a")
    await store.inner.set(Key("a/.zarray"), array_document((6,), (2,), "<i2"))
    await store.inner.set(Key("b/.zarray"), ARRAY)
    await trio.sleep(9)
    assert await r.array("a") is before
    await trio.sleep(2)
    assert (await r.array("a")).array.metadata.shape == (6,)
    assert before.superseded
    assert await names(r) == {"a": "ArrayNode", "b": "ArrayNode"}


@on_a_clock
async def test_without_a_ttl_every_lookup_asks_the_store() -> None:
    r, store = await made({".zgroup": GROUP, "a/.zarray": ARRAY}, ttl=0)
    before = await r.array("a")
    assert await r.array("a") is before
    await store.inner.set(Key("a/.zarray"), array_document((6,), (2,), "<i2"))
    assert (await r.array("a")).array.metadata.shape == (6,)


@on_a_clock
async def test_forgetting_everything_is_as_if_the_ttl_were_over() -> None:
    r, store = await made({".zgroup": GROUP, "a/.zarray": ARRAY})
    await r.array("a")
    await store.inner.erase(Key("a/.zarray"))
    r.hierarchy.forget_all()
    assert await names(r) == {}


# --- consolidated metadata -----------------------------------------------------------------------------------------------------


def consolidated(metadata: dict[str, bytes]) -> bytes:
    copy = {key: json.loads(value) for key, value in metadata.items()}
    return json.dumps({"zarr_consolidated_format": 1, "metadata": copy}).encode()


@trio_test
async def test_a_consolidated_copy_serves_a_store_that_cannot_list() -> None:
    inner = MemoryStore()
    documents = {".zgroup": GROUP, "a/.zarray": ARRAY, "g/.zgroup": GROUP, "g/b/.zarray": ARRAY}
    await fill(inner, {".zmetadata": consolidated(documents), **Example((4,), (2,)).values("a")})
    store = Unlistable(inner)
    r = reading(store)
    assert await names(r) == {"a": "ArrayNode", "g": "GroupNode"}
    assert await names(r, "/g") == {"b": "ArrayNode"}
    assert (await r.array("a")).array.metadata.shape == (4,)
    before = await r.array("g/b")
    copy = consolidated({**documents, "g/b/.zarray": array_document((8,), (2,), "<i2")})
    await inner.set(Key(".zmetadata"), copy)
    r.hierarchy.changed(".zmetadata", is_prefix=False)
    assert (await r.array("g/b")).array.metadata.shape == (8,)
    assert before.superseded


@trio_test
async def test_where_the_store_can_list_the_nodes_own_documents_count() -> None:
    copy = consolidated({".zgroup": GROUP, "a/.zarray": array_document((8,), (2,), "<i2"), "gone/.zarray": ARRAY})
    r, _ = await made({".zmetadata": copy, ".zgroup": GROUP, "a/.zarray": ARRAY})
    assert await names(r) == {"a": "ArrayNode"}
    assert (await r.array("a")).array.metadata.shape == (4,)
    assert await kind(r, "/gone") == "NoneType"


@trio_test
async def test_a_node_without_documents_that_has_keys_is_read_from_the_copy_and_told_of() -> None:
    copy = consolidated({".zgroup": GROUP, "a/.zarray": ARRAY, "g/b/.zarray": ARRAY, "gone/.zarray": ARRAY})
    r, store = await made({".zmetadata": copy, ".zgroup": GROUP, "a/0": bytes(4), "g/b/1": bytes(4)})
    assert await names(r) == {"a": "ArrayNode", "g": "GroupNode"}
    node = await r.hierarchy.node(NodePath("/g/b"))
    assert isinstance(node, ArrayNode) and "consolidated copy" in node.quirks[0]
    other = consolidated({".zgroup": GROUP, "a/.zarray": array_document((8,), (2,), "<i2")})
    await store.set(Key(".zmetadata"), other)
    assert (await r.array("a")).array.metadata.shape == (8,)


@trio_test
async def test_a_store_that_has_only_a_consolidated_copy_has_all_its_nodes() -> None:
    copy = consolidated({".zgroup": GROUP, "a/.zarray": ARRAY, "g/b/.zarray": ARRAY})
    r, store = await made({".zmetadata": copy})
    assert await names(r) == {"a": "ArrayNode", "g": "GroupNode"}
    assert await names(r, "/g") == {"b": "ArrayNode"}
    root = await r.hierarchy.node(ROOT)
    assert isinstance(root, GroupNode) and root.explicit and "consolidated copy" in root.quirks[0]
    await store.set(Key(".zgroup"), GROUP)
    assert await names(r) == {}


@trio_test
async def test_a_consolidated_copy_of_v3_describes_an_array_whose_document_is_lost() -> None:
    copy = {"kind": "inline", "must_understand": False, "metadata": {"a": json.loads(V3_ARRAY), "b": json.loads(V3_ARRAY)}}
    root = json.dumps({**json.loads(V3_GROUP), "consolidated_metadata": copy}).encode()
    r, _ = await made({"zarr.json": root, "a/c/0": bytes(4)})
    assert await names(r) == {"a": "ArrayNode"}


CONSOLIDATED = [
    pytest.param(case, id=case.name) for layout in ("v2", "v3_final") for case in cases(layout) if "consol" in case.name
]


@pytest.mark.parametrize("case", CONSOLIDATED)
@trio_test
async def test_consolidated_stores_of_others_without_a_listing(case: Case) -> None:
    inner = MemoryStore()
    await fill(inner, case.values)
    r = reading(Unlistable(inner))
    for node in case.nodes():
        found = await r.hierarchy.node(NodePath(node["path"]))
        assert isinstance(found, ArrayNode if node["kind"] == "array" else GroupNode)
        assert dict(found.attributes) == node["attributes"]
        if node["path"] != "/":
            parent = NodePath(node["path"]).parent
            assert NodePath(node["path"]).name in {name async for name, _ in r.hierarchy.children(parent)}
    assert isinstance(await r.hierarchy.node(ROOT), GroupNode)


@trio_test
async def test_other_attributes_make_no_other_array_and_another_shape_does() -> None:
    r, store = await made({"zarr.json": V3_GROUP, "a/zarr.json": V3_ARRAY})
    opened = await r.array()
    document = json.loads(V3_ARRAY) | {"attributes": {"units": "m"}}
    await store.set(Key("a/zarr.json"), json.dumps(document).encode())
    node = await r.hierarchy.node(NodePath("/a"))
    assert isinstance(node, ArrayNode) and node.attributes == {"units": "m"}
    assert await r.array() is opened and not opened.superseded
    await store.set(Key("a/zarr.json"), json.dumps(document | {"shape": [6]}).encode())
    assert await r.array() is not opened
    assert opened.superseded


@trio_test
async def test_an_array_that_is_stored_again_while_its_folder_is_looked_for_is_found() -> None:
    inner = MemoryStore()
    await fill(inner, {".zgroup": GROUP, "a/.zarray": ARRAY})
    store = HangingStore(inner)
    r = reading(store, ttl=1000)
    held = await r.array("a")
    await inner.erase(Key("a/.zarray"))
    r.hierarchy.changed(Key("a/.zarray"), is_prefix=False)
    store.hang("a/", "prefix_exists")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(r.hierarchy.node, NodePath("/a"))
        await wait_all_tasks_blocked()
        assert store.hanging
        await inner.set(Key("a/.zarray"), ARRAY)
        r.hierarchy.changed(Key("a/.zarray"), is_prefix=False)
        store.answer()
    assert await r.hierarchy.node(NodePath("/a")) == held.array.node
