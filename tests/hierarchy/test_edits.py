"""Nodes are created, changed, renamed and erased: the values in the store, their order, and the results of other programs."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.support.arrays import Reading, reading
from tests.support.comparing import in_memory
from tests.support.small_stores import array_document
from tests.support.stores import FailingStore, InterruptedStore, contents, fill
from zarrfs.buffers import Buffer
from zarrfs.dialects.base import Edit
from zarrfs.dialects.json_text import MAX_NBYTES
from zarrfs.errors import (
    AcrossViews,
    ContentInvalid,
    EntryExists,
    MetadataError,
    NameInvalid,
    NoSuchEntry,
    NotADirectory,
    NotPermitted,
    StoreAccessDenied,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnsupported,
)
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.keys import APART, ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store
from zarrfs.transformers.observed import ObservedStore

zarr = pytest.importorskip("zarr")

GROUP = b'{"zarr_format":2}'
V3_GROUP = b'{"zarr_format": 3, "node_type": "group"}'
ARRAY = array_document((4,), (2,), "<i2")
DIALECTS = pytest.mark.parametrize("dialect", ["v2", "v3"])


@dataclass
class Editing:
    """An editor over a store; ``changes`` are its changes in order."""

    editor: NodeEditor
    reading: Reading
    store: Store
    changes: list[Change]

    async def group(self, path: str, **attributes: Any) -> None:
        """Create a group."""
        at = NodePath(path)
        dialect = (await self.editor.layout_for(at)).dialect.name
        await self.editor.create(GroupNode(path=at, dialect=dialect, attributes=attributes))

    async def array(self, path: str, shape: tuple[int, ...] = (4,), chunks: tuple[int, ...] = (2,), **attributes: Any) -> ArrayNode:
        """Create an array of int16."""
        node = await self.node(path, shape, chunks, **attributes)
        await self.editor.create(node)
        return node

    async def node(self, path: str, shape: tuple[int, ...] = (4,), chunks: tuple[int, ...] = (2,), **attributes: Any) -> ArrayNode:
        """Return a new array of int16 that is not created yet."""
        at = NodePath(path)
        layout = await self.editor.layout_for(at)
        metadata = ArrayMetadata(
            shape=shape,
            data_type=from_name("int16"),
            chunk_grid=RegularGrid(chunks),
            chunk_key_encoding=chunk_key.v2(".") if layout.dialect.name == "v2" else chunk_key.default("/"),
            fill_value=b"\0\0",
            codecs=(CodecSpec("bytes", {"endian": "little"}),),
        )
        prefix = layout.chunk_prefix(at)
        return ArrayNode(path=at, dialect=layout.dialect.name, metadata=metadata, chunk_prefix=prefix, attributes=attributes)

    async def keys(self) -> set[str]:
        return set(await contents(self.store))

    async def kinds(self, path: str = "/") -> dict[str, str]:
        return {name: type(node).__name__ async for name, node in self.reading.hierarchy.children(NodePath(path))}

    async def zarr(self, **how: Any) -> Any:
        """Return the hierarchy as zarr-python opens it."""
        return opened(await contents(self.store), **how)


def opened(values: dict[str, bytes], **how: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open_group(in_memory(values), mode="r", **how)


@asynccontextmanager
async def editing(
    values: dict[str, bytes] | None = None, *, new: str = "v3", folder: Path | None = None, inner: Store | None = None
) -> AsyncIterator[Editing]:
    inner = inner or (await open_store(str(folder)) if folder else MemoryStore())
    await fill(inner, values or {})
    store = ObservedStore(inner)
    changes: list[Change] = []
    made = reading(store)
    store.subscribe(changes.append)
    store.subscribe(lambda change: made.hierarchy.changed(change.target, is_prefix=change.is_prefix) and None)
    yield Editing(NodeEditor(made.hierarchy, store, Intents(store), new_dialect=new), made, store, changes)
    await inner.aclose()


def document(value: bytes) -> Any:
    return json.loads(value)


def consolidated(values: dict[str, bytes], path: str = "") -> dict[str, bytes]:
    """Return ``values`` with a consolidated copy by zarr-python."""
    store = in_memory(values).with_read_only(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store, path=path or None)
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


def copied(values: dict[str, bytes]) -> set[str]:
    """Return paths of the nodes in the consolidated copy of the root."""
    if ".zmetadata" in values:
        names = document(values[".zmetadata"])["metadata"]
        return {name.rpartition("/")[0] for name in names if name.endswith((".zarray", ".zgroup"))} - {""}
    return set(document(values["zarr.json"])["consolidated_metadata"]["metadata"])


# --- choice of the dialect ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "path", "dialect"),
    [
        ({}, "/a", "v3"),
        ({"readme.txt": b"", "data/x.bin": b""}, "/data/a", "v3"),
        ({".zgroup": GROUP}, "/a", "v2"),
        ({".zgroup": GROUP}, "/", "v2"),
        ({".zgroup": GROUP, "g/zarr.json": V3_GROUP}, "/g/a", "v3"),
        ({".zgroup": GROUP, "g/zarr.json": V3_GROUP, "g/h/x": b""}, "/g/h/a", "v3"),
        ({".zgroup": GROUP, "g/zarr.json": V3_GROUP}, "/h", "v2"),
        # As tensorstore writes it, without groups.
        ({"deep/er/a/.zarray": ARRAY}, "/b", "v2"),
        ({"deep/er/a/.zarray": ARRAY}, "/deep/b", "v2"),
    ],
)
@trio_test
async def test_a_new_node_is_of_the_dialect_of_what_is_above_it_or_beside_it(
    values: dict[str, bytes], path: str, dialect: str
) -> None:
    async with editing(values) as e:
        assert (await e.editor.layout_for(NodePath(path))).dialect.name == dialect


class Unreadable(InterruptedStore):
    """A store in which the documents of the array ``a`` cannot be read until ``fails`` times it was tried."""

    def __init__(self, inner: Store, error: StoreError, fails: float) -> None:
        super().__init__(inner)
        self.error, self.fails = error, fails

    async def interrupt(self, operation: str, target: str) -> None:
        if target.startswith("a/.z") and operation == "get_partial_values" and self.fails:
            self.fails -= 1
            raise self.error


@pytest.mark.parametrize("error", [StoreError("broken"), StoreAccessDenied("not readable")])
@trio_test
async def test_a_node_that_cannot_be_read_does_not_make_a_store_one_of_another_dialect(error: StoreError) -> None:
    """The only array of a store without groups could not be read for a moment: the next one was of v3, with a v3 document at the root."""
    values = {"a/.zarray": ARRAY, "a/0": bytes(4)}
    async with editing(values, inner=Unreadable(MemoryStore(), error, math.inf)) as e:
        for path in ("/b", "/g/b"):
            with pytest.raises(type(error)):
                await e.array(path)
        assert await e.keys() == {*values}
        # Another node tells as much.
        await fill(e.store, {"c/.zarray": ARRAY})
        await e.array("/b")
        assert await e.keys() == {*values, "b/.zarray", "c/.zarray", ".zgroup"}
    async with editing(values, inner=Unreadable(MemoryStore(), error, 1)) as e:
        assert (await e.editor.layout_for(NodePath("/b"))).dialect.name == "v2"


# --- creating -------------------------------------------------------------------------------------------------------------------


@DIALECTS
@trio_test
async def test_what_is_made_in_an_empty_store_opens(dialect: str) -> None:
    async with editing(new=dialect) as e:
        await e.array("/a/b/x", units="m")
        await e.group("/a/c", title="t")
        root = await e.zarr(zarr_format=int(dialect[1]))
        assert dict(root["a/b/x"].attrs) == {"units": "m"}
        assert dict(root["a/c"].attrs) == {"title": "t"}
        assert {name for name, _ in root.members(max_depth=None)} == {"a", "a/b", "a/b/x", "a/c"}
        # The groups above come first, and the document that makes the array visible comes last.
        own = [str(change.target) for change in e.changes if change.kind == "set"]
        if dialect == "v2":
            assert own[:5] == [".zgroup", "a/.zgroup", "a/b/.zgroup", "a/b/x/.zattrs", "a/b/x/.zarray"]
        else:
            assert own[:4] == ["zarr.json", "a/zarr.json", "a/b/zarr.json", "a/b/x/zarr.json"]
        assert await e.kinds("/a") == {"b": "GroupNode", "c": "GroupNode"}


@DIALECTS
@trio_test
async def test_what_is_there_is_not_made_again(dialect: str) -> None:
    async with editing(new=dialect) as e:
        await e.array("/a")
        await e.group("/g")
        before = await contents(e.store)
        for path in ("/a", "/g"):
            with pytest.raises(EntryExists):
                await e.array(path)
            with pytest.raises(EntryExists):
                await e.group(path)
        with pytest.raises(NotADirectory):
            await e.group("/a/below")
        assert await contents(e.store) == before


@trio_test
async def test_what_came_behind_the_mount_is_not_overwritten() -> None:
    inner = MemoryStore()
    async with editing({".zgroup": GROUP}, inner=inner) as e:
        assert await e.kinds() == {}
        assert await e.reading.hierarchy.node(NodePath("/a")) is None
        await inner.set(Key("a/.zarray"), ARRAY)
        with pytest.raises(EntryExists):
            await e.group("/a")


@pytest.mark.parametrize(
    ("dialect", "name"), [("v2", "\u00e9"), ("v2", ".zarray"), ("v2", "a\\b"), ("v3", "__a"), ("v3", "..."), ("v3", "zarr.json")]
)
@trio_test
async def test_names_are_those_that_the_text_allows(dialect: str, name: str) -> None:
    async with editing(new=dialect) as e:
        with pytest.raises(NameInvalid):
            await e.group(f"/{name}")
        with pytest.raises(NameInvalid):
            await e.group(f"/{name}/below")
        assert await e.keys() == set()


@trio_test
async def test_an_implicit_group_becomes_a_node() -> None:
    async with editing({"g/a/.zarray": ARRAY, "e/chunk": b"x"}) as e:
        await e.group("/g", x=1)
        assert {"g/.zgroup", "g/.zattrs", ".zgroup"} <= await e.keys()
        await e.array("/e")
        assert await e.kinds() == {"e": "ArrayNode", "g": "GroupNode"}
        with pytest.raises(EntryExists):
            await e.array("/g")


@trio_test
async def test_attributes_that_nobody_owns_are_not_taken_over() -> None:
    async with editing({".zgroup": GROUP, "a/.zattrs": b'{"old": 1}'}) as e:
        await e.array("/a")
        assert await e.keys() == {".zgroup", "a/.zarray"}
        first = next(change for change in e.changes)
        assert (str(first.target), first.kind) == ("a/.zattrs", "erase")


@DIALECTS
@trio_test
async def test_an_empty_group_turns_into_an_array(dialect: str) -> None:
    async with editing(new=dialect) as e:
        await e.group("/a", units="m")
        await e.editor.turn_into_array(await e.node("/a", units="m"))
        assert await e.kinds() == {"a": "ArrayNode"}
        assert "a/.zgroup" not in await e.keys()
        assert dict((await e.zarr())["a"].attrs) == {"units": "m"}
        with pytest.raises(EntryExists):
            await e.editor.turn_into_array(await e.node("/a"))
        await e.group("/g/h")
        with pytest.raises(ContentInvalid):
            await e.editor.turn_into_array(await e.node("/g"))


# --- changing -------------------------------------------------------------------------------------------------------------------


@DIALECTS
@trio_test
async def test_an_edit_is_written_once_and_not_at_all_if_it_changes_nothing(dialect: str) -> None:
    async with editing(new=dialect) as e:
        await e.array("/a", units="m")
        e.changes.clear()
        await e.editor.amend(NodePath("/a"), Edit(attributes={"units": "m"}))
        assert e.changes == []
        await e.editor.amend(NodePath("/a"), Edit(attributes={"units": "km", "n": [1]}))
        assert len(e.changes) == 1
        assert dict((await e.zarr())["a"].attrs) == {"units": "km", "n": [1]}


@trio_test
async def test_an_implicit_group_gets_attributes() -> None:
    async with editing({"g/a/.zarray": ARRAY}) as e:
        await e.editor.amend(NodePath("/g"), Edit(attributes={}))
        assert await e.keys() == {"g/a/.zarray"}
        await e.editor.amend(NodePath("/g"), Edit(attributes={"x": 1}))
        assert dict((await e.zarr())["g"].attrs) == {"x": 1}
        with pytest.raises(NoSuchEntry):
            await e.editor.amend(NodePath("/h"), Edit(attributes={"x": 1}))
        with pytest.raises(MetadataError):
            await e.editor.amend(NodePath("/g"), Edit(shape=(1,)))


@DIALECTS
@trio_test
async def test_resizing(dialect: str) -> None:
    async with editing(new=dialect) as e:
        await e.array("/a", (4, 6), (2, 2))
        path = NodePath("/a")
        separator = "a/c/" if dialect == "v3" else "a/"
        joint = "/" if dialect == "v3" else "."
        for row, column in ((0, 0), (1, 0), (1, 2)):
            await e.store.set(Key(f"{separator}{row}{joint}{column}"), bytes(8))
        before = await contents(e.store)
        with pytest.raises(ContentInvalid, match=r"chunk \(1, 2\) is stored outside of the new shape \(3, 4\)"):
            await e.editor.resize(path, (3, 4), erase_outside=False)
        with pytest.raises(ContentInvalid, match=r"dimensions \(2\) cannot change"):
            await e.editor.resize(path, (3,), erase_outside=False)
        assert await contents(e.store) == before
        # No stored chunk is completely outside.
        await e.editor.resize(path, (3, 5), erase_outside=False)
        assert (await e.zarr())["a"].shape == (3, 5)
        e.changes.clear()
        await e.editor.resize(path, (3, 4), erase_outside=True)
        assert [change.kind for change in e.changes] == ["set", "erase"]
        assert set(before) - await e.keys() == {f"{separator}1{joint}2"}
        await e.editor.resize(path, (9, 9), erase_outside=False)
        assert (await e.zarr())["a"].shape == (9, 9)


# --- erasing --------------------------------------------------------------------------------------------------------------------


@DIALECTS
@trio_test
async def test_what_is_erased_is_gone_with_all_below_it_and_nothing_else(dialect: str) -> None:
    async with editing(new=dialect) as e:
        for path in ("/a", "/g/h/b", "/g/c", "/gh"):
            await e.array(path)
            await e.store.set(Key(f"{path[1:]}/{'c/0' if dialect == 'v3' else '0'}"), bytes(4))
        await e.store.set(Key("g/notes.txt"), b"x")
        kept = {key for key in await e.keys() if not key.startswith("g/")}
        e.changes.clear()
        await e.editor.erase(NodePath("/g"))
        assert await e.keys() == kept
        # The node disappears in one step.
        assert next(change.target for change in e.changes if not change.target.startswith(APART)) == "g/"
        with pytest.raises(NoSuchEntry):
            await e.editor.erase(NodePath("/g"))
        with pytest.raises(NotPermitted):
            await e.editor.erase(ROOT)


@trio_test
async def test_an_implicit_group_does_not_vanish_with_its_last_member() -> None:
    async with editing({"g/h/a/.zarray": ARRAY, "g/h/b/.zarray": ARRAY}) as e:
        await e.editor.erase(NodePath("/g/h/a"))
        assert await e.keys() == {"g/h/b/.zarray"}
        await e.editor.erase(NodePath("/g/h/b"))
        assert await e.keys() == {".zgroup", "g/.zgroup", "g/h/.zgroup"}
        assert await e.kinds("/g") == {"h": "GroupNode"}


@DIALECTS
@trio_test
async def test_of_an_array_at_the_root_only_what_is_its_own_is_erased(dialect: str) -> None:
    async with editing({"readme.txt": b"x", "7.txt": b"y"}, new=dialect) as e:
        await e.editor.create(await e.node("/"))
        await e.store.set(Key("c/0" if dialect == "v3" else "0"), bytes(4))
        await e.editor.erase(ROOT)
        assert await e.keys() == {"readme.txt", "7.txt"}


@trio_test
async def test_of_an_array_at_the_root_what_lies_among_its_chunks_stays(tmp_path: Path) -> None:
    # v0 keeps the folder of chunks, also of an array without chunks.
    for path, kept in ((tmp_path / "empty", set[str]()), (tmp_path / "used", {"__zdata__/notes.txt"})):
        path.mkdir()
        async with editing(dict.fromkeys(kept, b"x"), new="v0", folder=path) as e:
            node = await e.node("/")
            dialect = (await e.editor.layout_for(ROOT)).dialect
            encoding, codecs = dialect.chunk_key_encoding, (*node.metadata.codecs, *dialect.new_codecs)
            await e.editor.create(replace(node, metadata=replace(node.metadata, chunk_key_encoding=encoding, codecs=codecs)))
            await e.store.set(Key("__zdata__/0.blosc"), bytes(4))
            await e.editor.erase(ROOT)
            assert await e.keys() == kept
            assert (path / "__zdata__").exists() == bool(kept)


class Slow(FailingStore):
    """A store that cannot rename, and erases no more than a thousand keys within its deadline."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), {})
        self.capabilities = replace(self.capabilities, rename=False)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        several = list(keys)
        self._require_few(len(several))
        await super().erase_values(several)

    async def erase_prefix(self, prefix: Prefix) -> None:
        self._require_few(len([key async for key in self.list_prefix(prefix)]))
        await super().erase_prefix(prefix)

    def _require_few(self, count: int) -> None:
        if count > 1000:
            raise StoreTimeout("erasing takes too long")


@DIALECTS
@trio_test
async def test_many_chunks_are_erased_in_steps_that_each_end_in_time(dialect: str) -> None:
    async with editing(new=dialect, inner=Slow()) as e:
        await e.array("/a", shape=(5000,))
        for number in range(2500):
            await e.store.set(Key(f"a/c/{number}" if dialect == "v3" else f"a/{number}"), bytes(4))
        await e.editor.erase(NodePath("/a"))
        assert not any(key.startswith("a/") for key in await e.keys())


# --- renaming -------------------------------------------------------------------------------------------------------------------


@DIALECTS
@pytest.mark.parametrize("kind", ["memory", "folder"])
@trio_test
async def test_a_node_is_renamed_with_all_below_it(dialect: str, kind: str, tmp_path: Path) -> None:
    async with editing(new=dialect, folder=tmp_path if kind == "folder" else None) as e:
        await e.array("/g/h/a", units="m")
        await e.group("/other")
        await e.editor.rename(NodePath("/g/h"), NodePath("/other/i"))
        assert await e.kinds("/g") == {}
        assert dict((await e.zarr())["other/i/a"].attrs) == {"units": "m"}
        await e.editor.rename(NodePath("/other/i"), NodePath("/new/deep"))
        assert "new" in await e.kinds()
        assert dict((await e.zarr())["new/deep/a"].attrs) == {"units": "m"}
        for old, new, error in (
            ("/new", "/new/deep/x", NameInvalid),
            ("/new", "/other", EntryExists),
            ("/no", "/other/x", NoSuchEntry),
            ("/new", "/a\\b" if dialect == "v2" else "/__b", NameInvalid),
        ):
            with pytest.raises(error):
                await e.editor.rename(NodePath(old), NodePath(new))


@trio_test
async def test_a_node_is_not_renamed_into_a_hierarchy_of_another_dialect() -> None:
    async with editing({".zgroup": GROUP, "a/.zarray": ARRAY, "new/zarr.json": V3_GROUP}) as e:
        with pytest.raises(AcrossViews):
            await e.editor.rename(NodePath("/a"), NodePath("/new/a"))


@trio_test
async def test_an_edit_that_waited_for_others_has_the_layout_of_after_them() -> None:
    """The first node of a store decides its layout: the edit would give it two, or an entry point that is none."""
    async with editing(new="v3_2022") as e:
        async with trio.open_nursery() as nursery:
            async with e.editor.several():
                nursery.start_soon(e.group, "/g")
                await wait_all_tasks_blocked()
                await e.store.set(Key("zarr.json"), V3_GROUP)
        assert await e.keys() == {"zarr.json", "g/zarr.json"}


# --- consolidated copies --------------------------------------------------------------------------------------------------------


async def copy_is_right(e: Editing) -> None:
    """Assert that the copy has all nodes, and that zarr-python reads the same from it as from the nodes' own documents."""
    values = await contents(e.store)
    alone, copy = opened(values, use_consolidated=False), opened(values, use_consolidated=True)
    expected = {name: (type(node), dict(node.attrs), getattr(node, "shape", None)) for name, node in alone.members(max_depth=None)}
    assert copied(values) == set(expected)
    found = {name: (type(node), dict(node.attrs), getattr(node, "shape", None)) for name, node in copy.members(max_depth=None)}
    assert found == expected


@DIALECTS
@trio_test
async def test_a_copy_has_the_nodes_of_a_group_one_after_the_other(dialect: str) -> None:
    """A new node came last. After those of another group zarr-python 3 forgot all earlier ones of its group, and found no root if a group
    was among these."""
    async with editing(new=dialect) as e:
        for path in ("/g/a", "/g/k/b", "/h/c", "/h/k/d"):
            await e.array(path)
        await fill(e.store, consolidated(await contents(e.store)))
        for path in ("/g/n", "/h/n", "/g/k/n", "/i/n", "/n"):
            await e.array(path)
            await copy_is_right(e)
        await e.editor.amend(NodePath("/h/c"), Edit(attributes={"by": "us"}))
        await e.editor.rename(NodePath("/g"), NodePath("/h/g"))
        await copy_is_right(e)
        await e.editor.erase(NodePath("/h/k/d"))
        await e.array("/h/k/e")
        await copy_is_right(e)


@DIALECTS
@trio_test
async def test_a_copy_in_which_zarr_python_does_not_find_all_nodes_is_put_in_order(dialect: str) -> None:
    async with editing(new=dialect) as e:
        for path in ("/g/k/b", "/h/c", "/g/a"):
            await e.array(path)
        values = consolidated(await contents(e.store))
        name = ".zmetadata" if dialect == "v2" else "zarr.json"
        root = document(values[name])
        holder = root if dialect == "v2" else root["consolidated_metadata"]
        nodes = ["", "g", "h", "g/a", "h/c", "g/k", "g/k/b"]
        mixed = sorted(holder["metadata"], key=lambda name: nodes.index(name.rpartition("/")[0] if dialect == "v2" else name))
        holder["metadata"] = {member: holder["metadata"][member] for member in mixed}
        await fill(e.store, {**values, name: json.dumps(root).encode()})
        await e.array("/n")
        await copy_is_right(e)


def without(values: dict[str, bytes], *paths: str) -> dict[str, bytes]:
    """Return ``values`` with a copy in the root that lacks the nodes at ``paths``, as one from a time before these."""
    name = ".zmetadata" if ".zmetadata" in values else "zarr.json"
    root = document(values[name])
    holder = root if name == ".zmetadata" else root["consolidated_metadata"]
    nodes = {each: each.rpartition("/")[0] if name == ".zmetadata" else each for each in holder["metadata"]}
    holder["metadata"] = {each: value for each, value in holder["metadata"].items() if nodes[each] not in paths}
    return {**values, name: json.dumps(root).encode()}


@pytest.mark.parametrize("is_implicit", [False, True])
@DIALECTS
@trio_test
async def test_a_copy_gets_the_groups_above_a_node_that_it_lacks(dialect: str, is_implicit: bool) -> None:
    """Another program had created the group. Without it in the copy zarr-python 3 did not open the root."""
    async with editing(new=dialect) as e:
        for path in ("/g/h/a", "/k/b"):
            await e.array(path)
        await e.editor.amend(NodePath("/g"), Edit(attributes={"by": "them"}))
        values = without(consolidated(await contents(e.store)), "g", "g/h", "g/h/a")
    if is_implicit:
        del values["g/h/.zgroup" if dialect == "v2" else "g/h/zarr.json"]
    async with editing(values, new=dialect) as e:
        if is_implicit:
            await e.editor.amend(NodePath("/g/h"), Edit(attributes={"by": "us"}))
        await e.editor.rename(NodePath("/k/b"), NodePath("/g/h/b"))
        await e.array("/g/h/n")
        assert copied(await contents(e.store)) == {"g", "g/h", "g/h/b", "g/h/n", "k"}
        await e.editor.erase(NodePath("/g/h/a"))
        await copy_is_right(e)


def encoded_by_them(values: dict[str, bytes], path: str) -> dict[str, bytes]:
    """Return ``values``, with a copy in the root, where the array at ``path`` has a codec that only its owner's programs know."""
    change = {"compressor": {"id": "theirs"}}
    key, copy, member = f"{path}/.zarray", ".zmetadata", f"{path}/.zarray"
    if key not in values:
        change = {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "theirs"}]}
        key, copy, member = f"{path}/zarr.json", "zarr.json", path
    root = document(values[copy])
    holder = root if copy == ".zmetadata" else root["consolidated_metadata"]
    holder["metadata"][member] |= change
    return {**values, key: json.dumps(document(values[key]) | change).encode(), copy: json.dumps(root).encode()}


@DIALECTS
@trio_test
async def test_a_copy_keeps_nodes_with_codecs_of_others_when_their_group_is_renamed(dialect: str) -> None:
    """Their programs, which find nodes in the copy alone, found the array no more."""
    async with editing(new=dialect) as e:
        for path in ("/g/a", "/g/b", "/k/c"):
            await e.array(path)
        values = encoded_by_them(consolidated(await contents(e.store)), "g/a")
    async with editing(values, new=dialect) as e:
        await e.editor.rename(NodePath("/g"), NodePath("/k/g"))
        assert copied(await contents(e.store)) == {"k", "k/c", "k/g", "k/g/a", "k/g/b"}
        await e.editor.rename(NodePath("/k/g/a"), NodePath("/a"))
        assert copied(await contents(e.store)) == {"a", "k", "k/c", "k/g", "k/g/b"}
    # zarr-python without the codec opens nothing of a copy that has the array: it stays out of one that has it not.
    async with editing(without(values, "g/a"), new=dialect) as e:
        await e.editor.rename(NodePath("/g"), NodePath("/k/g"))
        assert copied(await contents(e.store)) == {"k", "k/c", "k/g", "k/g/b"}


@trio_test
async def test_a_node_with_a_codec_of_others_that_only_the_copy_describes_stays_a_node_when_it_is_renamed() -> None:
    """Its chunks were moved, and its description was lost."""
    async with editing(new="v2") as e:
        await e.array("/g/a")
        await fill(e.store, {"g/a/0": b"1234"})
        values = encoded_by_them(consolidated(await contents(e.store)), "g/a")
    described = document(values[".zmetadata"])["metadata"]["g/a/.zarray"]
    values = {key: value for key, value in values.items() if not key.startswith("g/") or key == "g/a/0"}
    async with editing(values, new="v2") as e:
        await e.editor.rename(NodePath("/g"), NodePath("/h"))
        found = await contents(e.store)
        assert document(found["h/a/.zarray"]) == described
        assert found["h/a/0"] == b"1234"
        assert copied(found) == {"h", "h/a"}


@DIALECTS
@trio_test
async def test_a_copy_in_a_group_whose_members_have_no_groups_has_these(dialect: str) -> None:
    """tensorstore writes no documents of groups above an array."""
    async with editing(new=dialect) as e:
        await e.array("/g/h/a")
        values = await contents(e.store)
    for group in ("g", "g/h"):
        del values[f"{group}/.zgroup" if dialect == "v2" else f"{group}/zarr.json"]
    async with editing(values, new=dialect) as e:
        await e.editor.consolidate(ROOT)
        assert copied(await contents(e.store)) == {"g", "g/h", "g/h/a"}
        assert set(dict((await e.zarr(use_consolidated=True)).members(max_depth=None))) == {"g", "g/h", "g/h/a"}


@DIALECTS
@trio_test
async def test_a_new_array_in_the_place_of_a_group_has_no_nodes_below_it_in_the_copy(dialect: str) -> None:
    """Another program has removed the group. With its nodes below an array in the copy zarr-python 3 did not open the root."""
    async with editing(new=dialect) as e:
        for path in ("/g/k/a/x/y", "/g/k/b"):
            await e.array(path)
        values = {key: each for key, each in consolidated(await contents(e.store)).items() if not key.startswith("g/k/a/")}
    async with editing(values, new=dialect) as e:
        await e.array("/g/k/a")
        await copy_is_right(e)


@DIALECTS
@trio_test
async def test_a_group_in_the_place_of_an_array_is_one_in_the_copy_when_a_node_is_created_in_it(dialect: str) -> None:
    """Another program has replaced the array. With a node below an array in the copy zarr-python 3 did not open the root."""
    async with editing(new=dialect) as e:
        for path in ("/g/a", "/g/b"):
            await e.array(path)
        before = consolidated(await contents(e.store))
        values = {key: each for key, each in before.items() if not key.startswith("g/a/")}
        name = ".zgroup" if dialect == "v2" else "zarr.json"
        values[f"g/a/{name}"] = values[f"g/{name}"]
    async with editing(values, new=dialect) as e:
        await e.array("/g/a/h/n")
        await copy_is_right(e)


@pytest.mark.parametrize("edit", ["amend", "erase", "rename"])
@DIALECTS
@trio_test
async def test_a_group_that_only_a_copy_describes_stays_with_its_attributes(dialect: str, edit: str) -> None:
    """It vanished with its last member, without which it is no node, and in v3 its attributes could not be changed."""
    async with editing(new=dialect) as e:
        await e.group("/g", by="them")
        await e.array("/g/h/a")
        values = consolidated(await contents(e.store))
    for name in (".zgroup", ".zattrs") if dialect == "v2" else ("zarr.json",):
        for group in ("g", "g/h"):
            values.pop(f"{group}/{name}", None)
    async with editing(values, new=dialect) as e:
        match edit:
            case "amend":
                await e.editor.amend(NodePath("/g/h"), Edit(attributes={"by": "us"}))
            case "erase":
                await e.editor.erase(NodePath("/g/h"))
            case "rename":
                await e.editor.rename(NodePath("/g/h"), NodePath("/h"))
        e.reading.hierarchy.forget_all()
        kept = await e.reading.hierarchy.node(NodePath("/g"))
        assert kept is not None and kept.attributes == {"by": "them"}
        found = dict((await e.zarr(use_consolidated=True)).members(max_depth=None))
        assert dict(found["g/h" if edit == "amend" else "g"].attrs) == {"by": "us" if edit == "amend" else "them"}


@pytest.mark.logs("outdated")
@trio_test
async def test_a_copy_that_is_too_large_to_be_updated_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It stayed as it was without a word: zarr-python showed old attributes, and arrays that were erased."""
    async with editing(new="v2") as e:
        await e.array("/a")
        values = consolidated(await contents(e.store))
    values[".zmetadata"] += b" " * MAX_NBYTES
    async with editing(values) as e:
        await e.editor.amend(NodePath("/a"), Edit(attributes={"by": "us"}))
        await e.editor.erase(NodePath("/a"))
        await e.array("/b")
        assert (await contents(e.store))[".zmetadata"] == values[".zmetadata"]
    assert [each.getMessage() for each in caplog.records if "outdated" in each.message] == [
        f".zmetadata: consolidated copy outdated from here on, as it is larger than {MAX_NBYTES} bytes: consolidate again"
    ]


@trio_test
async def test_nodes_of_which_only_the_copy_is_left_stay_when_it_is_written_again() -> None:
    """Those without chunks were lost: with the root's documents, which came first, they were no nodes any more."""
    async with editing(new="v2") as e:
        for path in ("/g/a", "/g/empty", "/k"):
            await e.array(path)
        await e.group("/h", by="them")
        copy = consolidated(await contents(e.store))[".zmetadata"]
    async with editing({".zmetadata": copy, "g/a/0": bytes(4)}) as e:
        assert await e.editor.consolidate(ROOT)
        assert copied(await contents(e.store)) == {"g", "g/a", "g/empty", "h", "k"}
        await copy_is_right(e)
        assert dict((await e.zarr())["h"].attrs) == {"by": "them"}


@trio_test
async def test_the_root_gets_its_documents_after_the_nodes_that_only_its_copy_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in between would leave these nodes without keys, and the root with documents: they would be none any more."""
    async with editing(new="v2") as e:
        for path in ("/g/a", "/k"):
            await e.array(path)
        copy = consolidated(await contents(e.store))[".zmetadata"]
    async with editing({".zmetadata": copy}) as e:
        order: list[Key] = []
        store = e.store.set

        async def recorded(key: Key, value: Buffer, **options: Any) -> Any:
            order.append(key)
            return await store(key, value, **options)

        monkeypatch.setattr(e.store, "set", recorded)
        assert await e.editor.consolidate(ROOT)
    assert {"g/.zgroup", "g/a/.zarray", "k/.zarray"} < set(order[: order.index(Key(".zgroup"))])


@DIALECTS
@trio_test
async def test_the_documents_of_a_group_that_only_a_copy_describes_hold_no_copy(dialect: str) -> None:
    """zarr-python 3 gives each group in a copy an empty one, and found no node in a group with such a document."""
    async with editing(new=dialect) as e:
        for path in ("/g/h/a", "/k"):
            await e.array(path)
        values = consolidated(await contents(e.store))
    for group in ("g", "g/h"):
        values.pop(f"{group}/.zgroup" if dialect == "v2" else f"{group}/zarr.json")
    async with editing(values) as e:
        await e.editor.rename(NodePath("/g"), NodePath("/i"))
        await copy_is_right(e)
        assert copied(await contents(e.store)) == {"i", "i/h", "i/h/a", "k"}
        assert set((await e.zarr(path="i")).group_keys()) == {"h"}


@DIALECTS
@trio_test
async def test_consolidated_copies_follow_every_edit(dialect: str) -> None:
    async with editing(new=dialect) as e:
        await e.array("/g/a", units="m")
        await e.group("/g/h", title="t")
        await e.array("/x")
        await fill(e.store, consolidated(await contents(e.store)))
        await copy_is_right(e)
        await e.array("/g/h/b", (3, 3), (2, 2), units="K")
        await copy_is_right(e)
        await e.group("/new/deep")
        await copy_is_right(e)
        await e.editor.amend(NodePath("/g/a"), Edit(attributes={"units": "km"}, shape=(9,)))
        await copy_is_right(e)
        await e.editor.turn_into_array(await e.node("/new/deep"))
        await copy_is_right(e)
        await e.editor.rename(NodePath("/g/h"), NodePath("/new/h"))
        await copy_is_right(e)
        await e.editor.erase(NodePath("/x"))
        await copy_is_right(e)
        e.changes.clear()
        await e.editor.erase(NodePath("/new"))
        await copy_is_right(e)
        # It is removed from the copy before it is erased.
        first = next(change.target for change in e.changes if not change.target.startswith(APART))
        assert first == (".zmetadata" if dialect == "v2" else "zarr.json")


@trio_test
async def test_each_group_above_may_have_a_copy() -> None:
    async with editing() as e:
        await e.array("/g/h/a")
        await e.group("/i")
        for path in ("g", ""):
            values = consolidated(await contents(e.store), path)
            await fill(e.store, values)
        await e.array("/g/h/b")
        await e.editor.rename(NodePath("/g/h/a"), NodePath("/i/a"))
        values = await contents(e.store)
        assert copied(values) == {"g", "g/h", "g/h/b", "i", "i/a"}
        of_group = document(values["g/zarr.json"])["consolidated_metadata"]["metadata"]
        assert set(of_group) == {"h", "h/b"}
        # A copy describes a group without the copy in that group.
        assert "consolidated_metadata" in document(values["zarr.json"])["consolidated_metadata"]["metadata"]["g"]
        await e.editor.rename(NodePath("/g"), NodePath("/k"))
        values = await contents(e.store)
        assert copied(values) == {"k", "k/h", "k/h/b", "i", "i/a"}
        assert "consolidated_metadata" not in document(values["zarr.json"])["consolidated_metadata"]["metadata"]["k"]


class Unmoving(FailingStore):
    """A store that raises for renames, too."""

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        raise self.errors["rename_prefix"]


@pytest.mark.parametrize(("error", "raised"), [(StoreUnsupported("no"), AcrossViews), (StoreFull("full"), StoreFull)])
@DIALECTS
@trio_test
async def test_a_rename_that_fails_changes_nothing(dialect: str, error: Exception, raised: type[Exception]) -> None:
    async with editing(new=dialect, inner=Unmoving(MemoryStore(), {"rename_prefix": error})) as e:
        await e.array("/g/a")
        await fill(e.store, consolidated(await contents(e.store)))
        with pytest.raises(raised):
            await e.editor.rename(NodePath("/g/a"), NodePath("/g/b"))
        await copy_is_right(e)
        assert await e.kinds("/g") == {"a": "ArrayNode"}


@pytest.mark.parametrize("text", [b"{", b"[]"])
@DIALECTS
@trio_test
async def test_a_group_with_an_invalid_document_that_the_copy_lists_is_renamed(dialect: str, text: bytes) -> None:
    async with editing(new=dialect) as e:
        for path in ("/g/a", "/g/b", "/k/c"):
            await e.array(path)
        values = consolidated(await contents(e.store))
    values["g/a/.zarray" if dialect == "v2" else "g/a/zarr.json"] = text
    async with editing(values, new=dialect) as e:
        await e.editor.rename(NodePath("/g"), NodePath("/k/g"))
        assert copied(await contents(e.store)) == {"k", "k/c", "k/g", "k/g/b"}


@DIALECTS
@trio_test
async def test_a_copy_keeps_nodes_with_codecs_of_others_when_a_rename_fails(dialect: str) -> None:
    async with editing(new=dialect) as e:
        for path in ("/g/a", "/k/c"):
            await e.array(path)
        values = encoded_by_them(consolidated(await contents(e.store)), "g/a")
    inner = Unmoving(MemoryStore(), {"rename_prefix": StoreFull("no space left")})
    async with editing(values, new=dialect, inner=inner) as e:
        with pytest.raises(StoreFull):
            await e.editor.rename(NodePath("/g"), NodePath("/k/g"))
        assert copied(await contents(inner.inner)) == {"g", "g/a", "k", "k/c"}


class Secret(InterruptedStore):
    """A store that denies access to the documents of a node ``s``, wherever it is."""

    async def interrupt(self, operation: str, target: str) -> None:
        if "/s/" in target and operation in ("get", "get_partial_values"):
            raise StoreAccessDenied(f"not readable: {target}", key=target)


@pytest.mark.parametrize("copy", ["", "/", "/g", "/k"])
@DIALECTS
@trio_test
async def test_a_group_above_an_unreadable_node_is_renamed_or_stays(dialect: str, copy: str) -> None:
    """A copy would lose the node, so that the rename is refused before anything is moved; without copies nothing is read."""
    async with editing(new=dialect) as plain:
        for path in ("/g/s", "/g/a", "/k/b"):
            await plain.array(path)
        values = await contents(plain.store)
    if copy:
        values |= consolidated(values, copy[1:])
    async with editing(values, new=dialect, inner=Secret(MemoryStore())) as e:
        if not copy:
            await e.editor.rename(NodePath("/g"), NodePath("/k/g"))
            assert await contents(e.store.inner.inner) == {
                (f"k/{key}" if key.startswith("g/") else key): value for key, value in values.items()
            }
            return
        if copy == "/g" and dialect == "v3":
            # The copy of a group of v3 is in its own document, and moves with it.
            await e.editor.rename(NodePath("/g"), NodePath("/k/g"))
            return
        with pytest.raises(StoreAccessDenied):
            await e.editor.rename(NodePath("/g"), NodePath("/k/g"))
        assert await contents(e.store.inner.inner) == values


@pytest.mark.logs("outdated")
@trio_test
async def test_a_copy_that_cannot_be_read_is_left_alone() -> None:
    for junk in (b"{", b'{"zarr_consolidated_format": 2, "metadata": {}}'):
        async with editing({".zgroup": GROUP, ".zmetadata": junk, "a/.zarray": ARRAY}) as e:
            await e.group("/g")
            await e.editor.rename(NodePath("/a"), NodePath("/b"))
            await e.editor.erase(NodePath("/b"))
            assert (await contents(e.store))[".zmetadata"] == junk
