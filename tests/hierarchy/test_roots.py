"""Hierarchies of several dialects in one store.

Each is found at its path, after any requests; two layouts share one path; entry points appear and disappear; nodes are created and
erased in each.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.arrays import Reading, reading
from tests.support.length import tries, unhurried
from tests.support.small_stores import array_document
from tests.support.stores import contents, fill
from zarrfs.arrays.position import Position
from zarrfs.dialects.base import Edit
from zarrfs.errors import AcrossViews, EntryExists, NameInvalid, ZarrfsError
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.observed import ObservedStore

PROTOCOL = "https://purl.org/zarr/spec/protocol/core/3.0"
ENTRY_2019 = json.dumps({"zarr_format": PROTOCOL, "metadata_encoding": "application/json", "extensions": []}).encode()
ENTRY_2022 = json.dumps(
    {"zarr_format": PROTOCOL, "metadata_encoding": PROTOCOL, "metadata_key_suffix": ".json", "extensions": []}
).encode()
DEMANDING = json.dumps(
    {
        "zarr_format": PROTOCOL,
        "metadata_encoding": "application/json",
        "extensions": [{"extension": "http://example.org/x", "must_understand": True}],
    }
).encode()
DRAFT_ARRAY = json.dumps(
    {
        "shape": [4],
        "data_type": "<i2",
        "chunk_grid": {"type": "regular", "chunk_shape": [2]},
        "chunk_memory_layout": "C",
        "compressor": None,
        "fill_value": 7,
        "extensions": [],
        "attributes": {},
    }
).encode()
ARRAY_2022 = json.dumps(
    {
        "shape": [4],
        "data_type": "<i2",
        "chunk_grid": {"type": "regular", "chunk_shape": [2], "separator": "/"},
        "chunk_memory_layout": "C",
        "fill_value": 7,
        "extensions": [],
        "attributes": {},
    }
).encode()
DRAFT_GROUP = b'{"extensions": [], "attributes": {}}'
V2_ARRAY = array_document((4,), (2,), "<i2")
V2_GROUP = b'{"zarr_format": 2}'
V3_GROUP = b'{"zarr_format": 3, "node_type": "group"}'


def element(number: int) -> bytes:
    """Return a chunk whose elements identify it."""
    return np.array([number, number + 1], "<i2").tobytes()


def draft_2019(prefix: str, *arrays: str) -> dict[str, bytes]:
    """Return a hierarchy of 2019 at ``prefix``, with arrays that have their first chunk."""
    values = {f"{prefix}zarr.json": ENTRY_2019}
    for number, name in enumerate(arrays):
        values[f"{prefix}meta/root/{name}.array"] = DRAFT_ARRAY
        values[f"{prefix}data/{name}/0"] = element(19 + number)
    return values


# A v2 root array in a, a hierarchy of 2019 in b, a final v3 group in c/d, a hierarchy of 2022 in e.
MIXED: dict[str, bytes] = {
    "a/.zarray": V2_ARRAY,
    "a/0": element(2),
    **draft_2019("b/", "x", "deep/er/y"),
    "b/meta/root/g.group": DRAFT_GROUP,
    "c/d/zarr.json": V3_GROUP,
    "c/d/z/.zarray": V2_ARRAY,
    "c/d/z/0": element(3),
    "e/zarr.json": ENTRY_2022,
    "e/meta/root/w.array.json": ARRAY_2022,
    "e/data/root/w/c0": element(22),
}
KINDS = {
    "/": "GroupNode",
    "/a": "v2",
    "/b": "GroupNode",
    "/b/x": "v3_2019",
    "/b/g": "GroupNode",
    "/b/deep": "GroupNode",
    "/b/deep/er": "GroupNode",
    "/b/deep/er/y": "v3_2019",
    "/c": "GroupNode",
    "/c/d": "GroupNode",
    "/c/d/z": "v2",
    "/e": "GroupNode",
    "/e/w": "v3_2022",
}
FIRST = {"/a": 2, "/b/x": 19, "/b/deep/er/y": 20, "/c/d/z": 3, "/e/w": 22}


@dataclass
class Store:
    """A store with a hierarchy and an editor over it, which are notified of its changes."""

    inner: ObservedStore
    reading: Reading
    editor: NodeEditor

    async def kind(self, path: str) -> str:
        """Return the dialect of an array; otherwise the kind of node."""
        node = await self.reading.hierarchy.node(NodePath(path))
        return node.dialect if isinstance(node, ArrayNode) else type(node).__name__

    async def names(self, path: str = "/") -> set[str]:
        return {name async for name, _ in self.reading.hierarchy.children(NodePath(path))}

    async def first(self, path: str) -> int:
        """Return the first element of an array."""
        opened = await self.reading.hierarchy.array(NodePath(path))
        assert opened is not None, path
        return int(np.frombuffer(await opened.reader.read(0, 2, Position()), "<i2")[0])

    async def walk(self, path: str = "/") -> dict[str, str]:
        """Return every node from ``path`` down, by listing."""
        found = {path: await self.kind(path)}
        if found[path] == "GroupNode":
            for name in await self.names(path):
                found |= await self.walk(NodePath(path).child(name))
        return found

    async def set(self, **values: bytes) -> None:
        await fill(self.inner, values)

    async def array(self, path: str) -> ArrayNode:
        """Create an array of int16, of one chunk."""
        at = NodePath(path)
        layout = await self.editor.layout_for(at)
        node = NewArrays(codecs="none").node(at, layout, shape=(4,), data_type=from_name("int16"))
        await self.editor.create(node)
        return node

    async def group(self, path: str) -> None:
        at = NodePath(path)
        await self.editor.create(GroupNode(path=at, dialect=(await self.editor.layout_for(at)).dialect.name))

    async def keys(self, prefix: str = "") -> set[str]:
        return set(await contents(self.inner, prefix))


@asynccontextmanager
async def over(values: Mapping[str, bytes], *, new: str = "v3") -> AsyncIterator[Store]:
    inner = MemoryStore()
    await fill(inner, values)
    store = ObservedStore(inner)
    made = reading(store, ttl=1e9)
    store.subscribe(lambda change: made.hierarchy.changed(change.target, is_prefix=change.is_prefix) and None)
    yield Store(store, made, NodeEditor(made.hierarchy, store, Intents(store), new_dialect=new))


# --- finding nodes --------------------------------------------------------------------------------------------------------------


@trio_test
async def test_each_hierarchy_is_found_where_it_lies() -> None:
    async with over(MIXED) as store:
        assert await store.walk() == KINDS
        for path, number in FIRST.items():
            assert await store.first(path) == number, path


@pytest.mark.parametrize("path", [path for path in KINDS if path != "/"])
@trio_test
async def test_a_deep_path_is_found_without_a_look_at_those_above(path: str) -> None:
    async with over(MIXED) as store:
        assert await store.kind(path) == KINDS[path]
        assert await store.walk() == KINDS


@trio_test
async def test_a_deep_path_is_found_below_a_group_with_documents() -> None:
    async with over({**MIXED, ".zgroup": V2_GROUP}) as store:
        assert await store.kind("/b/deep/er/y") == "v3_2019"


@unhurried
@given(paths=st.lists(st.sampled_from([*KINDS, "/b/nothing", "/b/meta", "/b/data/x", "/e/meta/root", "/no/where"]), max_size=8))
def test_what_is_found_does_not_depend_on_what_was_asked_before(paths: list[str]) -> None:
    @trio_test
    async def ask() -> None:
        async with over(MIXED) as store:
            for path in paths:
                assert await store.kind(path) == KINDS.get(path, "NoneType")
            assert await store.walk() == KINDS

    ask()


@trio_test
async def test_folders_of_a_hierarchy_are_no_groups() -> None:
    async with over(MIXED) as store:
        assert await store.names("/b") == {"x", "g", "deep"}
        for path in ("/b/meta", "/b/data", "/b/data/x", "/b/meta/root", "/b/root", "/e/data"):
            assert await store.kind(path) == "NoneType"


@trio_test
async def test_2019_at_the_root_beside_a_v2_root_group() -> None:
    values = {
        **draft_2019("", "x", "g/y"),
        ".zgroup": V2_GROUP,
        ".zattrs": b'{"of": "v2"}',
        "old/.zarray": V2_ARRAY,
        "old/0": element(2),
    }
    async with over(values) as store:
        walked = await store.walk()
        assert walked == {"/": "GroupNode", "/x": "v3_2019", "/g": "GroupNode", "/g/y": "v3_2019", "/old": "v2"}
        root = await store.reading.hierarchy.node(ROOT)
        assert isinstance(root, GroupNode)
        assert (root.dialect, root.attributes) == ("v2", {"of": "v2"})
        assert [await store.first(path) for path in ("/x", "/g/y", "/old")] == [19, 20, 2]


@trio_test
async def test_a_root_array_of_2019_below_a_group() -> None:
    values = {"b/zarr.json": ENTRY_2019, "b/meta/root.array": DRAFT_ARRAY, "b/data/0": element(5), ".zgroup": V2_GROUP}
    async with over(values) as store:
        assert await store.walk() == {"/": "GroupNode", "/b": "v3_2019"}
        assert await store.first("/b") == 5


@trio_test
async def test_arrays_by_the_formula_of_the_text_are_listed() -> None:
    values = {
        "zarr.json": ENTRY_2019,
        "meta/foo/baz.array": DRAFT_ARRAY,
        "meta/q.array": DRAFT_ARRAY,
        "meta/root/r.array": DRAFT_ARRAY,
    }
    async with over({**values, "data/foo/baz/0": element(8)}) as store:
        expected = {"/": "GroupNode", "/foo": "GroupNode", "/foo/baz": "v3_2019", "/q": "v3_2019", "/r": "v3_2019"}
        assert await store.walk() == expected
        assert await store.first("/foo/baz") == 8
        await store.editor.erase(NodePath("/foo"))
        assert await store.walk() == {path: kind for path, kind in expected.items() if not path.startswith("/foo")}
        assert not await store.keys("meta/foo/") | await store.keys("data/foo/")


@trio_test
async def test_a_hierarchy_that_may_not_be_read_is_told_of_and_hides_no_neighbour() -> None:
    async with over({**MIXED, "b/zarr.json": DEMANDING}) as store:
        bad = await store.reading.hierarchy.node(NodePath("/b"))
        assert isinstance(bad, UnsupportedNode)
        assert "http://example.org/x" in bad.reason and not bad.bad
        assert await store.kind("/b/x") == "UnsupportedNode"
        expected = {path: kind for path, kind in KINDS.items() if not path.startswith("/b")}
        assert await store.walk() == {**expected, "/b": "UnsupportedNode"}


@trio_test
async def test_the_root_of_a_store_that_may_not_be_read_is_told_of() -> None:
    async with over({**draft_2019("", "x"), "zarr.json": DEMANDING}) as store:
        assert await store.kind("/") == "UnsupportedNode"


# --- two layouts at one path ----------------------------------------------------------------------------------------------------

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
AT_ONE_PATH = {
    "v3": {"g/n/zarr.json": V3_ARRAY, "g/n/c/0": element(30)},
    "v2": {"g/n/.zarray": V2_ARRAY, "g/n/0": element(20)},
    "v3_2019": {"zarr.json": ENTRY_2019, "meta/root/g/n.array": DRAFT_ARRAY, "data/g/n/0": element(19)},
}
PARENTS: dict[str, dict[str, bytes]] = {"v3": {"g/zarr.json": V3_GROUP}, "v2": {"g/.zgroup": V2_GROUP}, "none": {}}


@pytest.mark.parametrize("dialects", [each for n in (1, 2, 3) for each in itertools.combinations(AT_ONE_PATH, n)])
@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("way", ["straight", "from above"])
@trio_test
async def test_of_several_layouts_at_one_path_the_first_counts_whatever_lies_above(
    dialects: tuple[str, ...], parent: str, way: str
) -> None:
    values = dict(PARENTS[parent])
    for dialect in dialects:
        values |= AT_ONE_PATH[dialect]
    async with over(values) as store:
        if way == "from above":
            assert (await store.walk())["/g/n"] == dialects[0]
        assert await store.kind("/g/n") == dialects[0]
        assert await store.first("/g/n") == {"v3": 30, "v2": 20, "v3_2019": 19}[dialects[0]]
        assert await store.reading.hierarchy.others_at(NodePath("/g/n")) == list(dialects[1:])


@trio_test
async def test_nothing_is_told_of_others_where_there_are_none() -> None:
    async with over(MIXED) as store:
        for path in [*KINDS, "/nothing"]:
            assert await store.reading.hierarchy.others_at(NodePath(path)) == [], path


@trio_test
async def test_an_entry_point_in_the_folder_of_another_node_counts_for_nothing_and_is_told_of() -> None:
    async with over({**draft_2019("b/", "x"), "b/.zarray": V2_ARRAY}) as store:
        assert await store.kind("/b") == "v2"
        assert await store.kind("/b/x") == "NoneType"
        assert await store.reading.hierarchy.others_at(NodePath("/b")) == ["v3_2019"]


@trio_test
async def test_bad_documents_beside_others_are_told_of() -> None:
    async with over({"n/zarr.json": V3_ARRAY, "n/.zarray": b"{"}) as store:
        assert await store.kind("/n") == "v3"
        assert await store.reading.hierarchy.others_at(NodePath("/n")) == ["v2"]


# --- changes of entry points ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "b/", "b/c/"])
@trio_test
async def test_an_entry_point_comes_and_goes(prefix: str) -> None:
    path = "/" + prefix.rstrip("/")
    child = NodePath(path).child("x")
    values = draft_2019(prefix, "x")
    entry = values.pop(f"{prefix}zarr.json")
    async with over(values) as store:
        before = await store.walk()
        assert child not in before and NodePath(path).child("data") in before
        for _ in range(2):
            await store.set(**{f"{prefix}zarr.json": entry})
            after = await store.walk()
            assert after[child] == "v3_2019"
            assert NodePath(path).child("data") not in after
            assert await store.first(child) == 19
            await store.inner.erase(Key(f"{prefix}zarr.json"))
            assert await store.walk() == before


@pytest.mark.parametrize("prefix", ["", "b/"])
@trio_test
async def test_an_entry_point_that_says_something_else(prefix: str) -> None:
    path = "/" + prefix.rstrip("/")
    async with over(draft_2019(prefix, "x")) as store:
        assert await store.kind(NodePath(path).child("x")) == "v3_2019"
        await store.set(**{f"{prefix}zarr.json": DEMANDING})
        assert await store.kind(path) == "UnsupportedNode"
        await store.set(**{f"{prefix}zarr.json": V3_GROUP})
        assert await store.kind(path) == "GroupNode"
        assert await store.kind(NodePath(path).child("x")) == "NoneType"
        await store.set(**{f"{prefix}zarr.json": ENTRY_2019})
        assert (await store.walk())[NodePath(path).child("x")] == "v3_2019"


@trio_test
async def test_a_folder_that_is_a_hierarchy_becomes_a_node_of_another() -> None:
    values = {**draft_2019("b/", "x"), "meta/root/b.array": DRAFT_ARRAY}
    async with over(values) as store:
        assert await store.kind("/b/x") == "v3_2019"
        await store.set(**{"zarr.json": ENTRY_2019})
        assert await store.walk() == {"/": "GroupNode", "/b": "v3_2019"}
        await store.inner.erase(Key("zarr.json"))
        assert (await store.walk())["/b/x"] == "v3_2019"
        await store.set(**{"b/.zarray": V2_ARRAY})
        assert (await store.walk())["/b"] == "v2"
        await store.inner.erase(Key("b/.zarray"))
        assert (await store.walk())["/b/x"] == "v3_2019"


@pytest.mark.parametrize("prefix", ["", "b/"])
@trio_test
async def test_nodes_come_and_go_behind(prefix: str) -> None:
    top = NodePath("/" + prefix.rstrip("/"))
    async with over(draft_2019(prefix, "x")) as store:
        assert await store.kind(top.child("g")) == "NoneType"
        assert await store.names(top) == {"x"}
        await store.set(**{f"{prefix}meta/root/g/h/n.array": DRAFT_ARRAY})
        assert await store.kind(top.child("g")) == "GroupNode"
        assert await store.kind(top.child("g").child("h")) == "GroupNode"
        assert await store.names(top) == {"x", "g"}
        await store.inner.erase_prefix(Prefix(f"{prefix}meta/root/g/"))
        assert await store.kind(top.child("g").child("h").child("n")) == "NoneType"
        assert await store.kind(top.child("g")) == "NoneType"
        assert await store.first(top.child("x")) == 19
        await store.set(**{f"{prefix}data/x/0": element(77)})
        assert await store.first(top.child("x")) == 77
        await store.inner.erase_prefix(Prefix(f"{prefix}data/"))
        assert await store.first(top.child("x")) == 7


@trio_test
async def test_the_chunk_of_a_scalar_comes_and_goes_behind() -> None:
    scalar = json.dumps({**json.loads(DRAFT_ARRAY), "shape": [], "chunk_grid": {"type": "regular", "chunk_shape": []}}).encode()
    values = {"zarr.json": ENTRY_2019, "meta/root/g/s.array": scalar, "meta/root/g/t.array": scalar}
    async with over({**values, "data/g/s": b"\5\0", "data/g/t": b"\6\0"}) as store:
        assert [await store.first(path) for path in ("/g/s", "/g/t")] == [5, 6]
        await store.set(**{"data/g/s": b"\x08\0"})
        assert [await store.first(path) for path in ("/g/s", "/g/t")] == [8, 6]
        opened = await store.reading.hierarchy.array(NodePath("/g/s"))
        assert opened is not None
        assert [chunk[:2] async for chunk in opened.array.chunks.list()] == [((), 2)]
        await store.inner.erase(Key("data/g/s"))
        assert [await store.first(path) for path in ("/g/s", "/g/t")] == [7, 6]
        assert [chunk async for chunk in opened.array.chunks.list()] == []
        await store.editor.erase(NodePath("/g/t"))
        assert await store.keys("data/") == set()


# --- edits ----------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_nodes_are_made_where_they_belong() -> None:
    async with over(MIXED) as store:
        before = await store.keys()
        assert (await store.array("/b/new")).dialect == "v3_2019"
        await store.group("/b/g/h")
        assert (await store.array("/b/g/h/n")).dialect == "v3_2019"
        assert (await store.array("/c/d/new")).dialect == "v3"
        assert (await store.array("/e/new")).dialect == "v3_2022"
        # Final v3 needs a document for each group above.
        made = {key for key in await store.keys() - before if "/data/" not in key} - {
            "zarr.json",
            "c/zarr.json",
            "c/d/new/zarr.json",
        }
        assert made == {
            "b/meta/root/new.array",
            "b/meta/root/g/h.group",
            "b/meta/root/g/h/n.array",
            "e/meta/root/new.array.json",
        }
        walked = await store.walk()
        assert {path: kind for path, kind in walked.items() if path in KINDS} == KINDS


@trio_test
async def test_the_entry_point_at_the_root_of_a_store_is_never_written_over() -> None:
    values = {**draft_2019("", "x"), "c/d/zarr.json": V3_GROUP, "q/.zgroup": V2_GROUP}
    async with over(values) as store:
        assert (await store.array("/c/d/new")).dialect == "v3"
        assert (await store.array("/q/new")).dialect == "v2"
        await store.editor.amend(NodePath("/c"), Edit(attributes={"of": "c"}))
        kept = await contents(store.inner)
        assert {key: kept[key] for key in values} == values
        walked = await store.walk()
        assert [walked[path] for path in ("/x", "/c/d/new", "/q/new")] == ["v3_2019", "v3", "v2"]
        assert (await store.array("/y")).dialect == "v3_2019"


@trio_test
async def test_attributes_are_written_where_the_hierarchy_has_them() -> None:
    async with over(MIXED) as store:
        for path in ("/b/x", "/b/g", "/b/deep", "/b", "/e/w"):
            await store.editor.amend(NodePath(path), Edit(attributes={"of": path}))
            node = await store.reading.hierarchy.node(NodePath(path))
            assert isinstance(node, ArrayNode | GroupNode)
            assert node.attributes == {"of": path}
        written = await contents(store.inner, "b/meta/")
        assert json.loads(written["b/meta/root.group"]) == {"extensions": [], "attributes": {"of": "/b"}}
        assert json.loads(written["b/meta/root/deep.group"]) == {"extensions": [], "attributes": {"of": "/b/deep"}}
        assert json.loads(written["b/meta/root/x.array"]) == {**json.loads(DRAFT_ARRAY), "attributes": {"of": "/b/x"}}


@pytest.mark.parametrize("path", ["/a", "/b/x", "/b/deep", "/b/g", "/c/d/z", "/e/w", "/b", "/e", "/c"])
@trio_test
async def test_a_node_is_erased_with_all_below_it_and_nothing_else(path: str) -> None:
    places = {
        "/b/x": ("b/meta/root/x.", "b/data/x/"),
        "/b/deep": ("b/meta/root/deep/", "b/data/deep/"),
        "/b/g": ("b/meta/root/g.",),
        "/e/w": ("e/meta/root/w.", "e/data/root/w/"),
    }.get(path, (f"{path[1:]}/",))
    async with over(MIXED) as store:
        await store.walk()
        await store.editor.erase(NodePath(path))
        left = {key for key in MIXED if not key.startswith(places)}
        assert left <= await store.keys()
        assert not any(key.startswith(places) for key in await store.keys())
        walked = await store.walk()
        assert walked == {each: kind for each, kind in KINDS.items() if each != path and not each.startswith(f"{path}/")}


@trio_test
async def test_a_folder_that_holds_a_hierarchy_is_erased_and_may_be_anything_again() -> None:
    async with over({**draft_2019("f/b/", "x"), ".zgroup": V2_GROUP, "f/.zgroup": V2_GROUP}) as store:
        assert await store.kind("/f/b/x") == "v3_2019"
        await store.editor.erase(NodePath("/f"))
        assert await store.keys() == {".zgroup"}
        assert await store.kind("/f/b/x") == "NoneType"
        await store.group("/f")
        assert (await store.array("/f/b")).dialect == "v2"


@trio_test
async def test_a_node_is_renamed_within_its_hierarchy_alone() -> None:
    async with over(MIXED) as store:
        before = await contents(store.inner)
        for old, new in (("/b/x", "/x"), ("/a", "/b/a")):
            with pytest.raises(AcrossViews):
                await store.editor.rename(NodePath(old), NodePath(new))
        assert await contents(store.inner) == before
        for old, new in (("/b/x", "/b/y"), ("/b/g", "/b/h"), ("/b", "/q")):
            kind = await store.kind(old)
            await store.editor.rename(NodePath(old), NodePath(new))
            assert (await store.kind(old), await store.kind(new)) == ("NoneType", kind)
            await store.editor.rename(NodePath(new), NodePath(old))
        assert await contents(store.inner) == before


@trio_test
async def test_a_folder_that_holds_a_hierarchy_is_renamed_with_it() -> None:
    async with over({**draft_2019("f/b/", "x"), ".zgroup": V2_GROUP, "f/.zgroup": V2_GROUP}) as store:
        assert await store.first("/f/b/x") == 19
        await store.editor.rename(NodePath("/f"), NodePath("/g"))
        assert await store.kind("/f/b/x") == "NoneType"
        assert await store.first("/g/b/x") == 19


@pytest.mark.parametrize("path", ["/b/X", "/b/DEEP", "/b/Deep/z", "/b/deep/ER/z", "/b/G"])
@trio_test
async def test_siblings_of_2019_differ_in_more_than_case(path: str) -> None:
    async with over(MIXED) as store:
        before = await store.keys()
        with pytest.raises(EntryExists, match="case"):
            await store.array(path)
        with pytest.raises(EntryExists, match="case"):
            await store.group(path)
        assert await store.keys() == before


@trio_test
async def test_names_of_2019_are_those_of_its_text() -> None:
    async with over(MIXED) as store:
        for name in ("a b", "é", "...", "x" * 256):
            with pytest.raises(NameInvalid):
                await store.array(f"/b/{name}")
        assert (await store.array("/c/d/Z")).dialect == "v3"


@trio_test
async def test_an_empty_store_becomes_a_hierarchy_of_2019() -> None:
    async with over({}, new="v3_2019") as store:
        node = await store.array("/g/n")
        assert await store.keys() == {"zarr.json", "meta/root/g/n.array"}
        assert (await contents(store.inner))["zarr.json"] == json.dumps(json.loads(ENTRY_2019), indent=4).encode()
        assert node.chunk_prefix == "data/g/n/"
        assert await store.walk() == {"/": "GroupNode", "/g": "GroupNode", "/g/n": "v3_2019"}
        await store.editor.erase(NodePath("/g/n"))
        # The group above stays.
        assert await store.keys() == {"zarr.json", "meta/root/g.group"}


# --- random changes -------------------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "root", "n")
NODE_PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda names: NodePath("/" + "/".join(names)))
TOPS = st.sampled_from(["", "b/", "a/b/"])
DOCUMENTS = {
    "array": ("meta/root{}.array", DRAFT_ARRAY),
    "formula": ("meta{}.array", DRAFT_ARRAY),
    "group": ("meta/root{}.group", DRAFT_GROUP),
    "v2 array": ("{}/.zarray", V2_ARRAY),
    "v2 group": ("{}/.zgroup", V2_GROUP),
    "v3 group": ("{}/zarr.json", V3_GROUP),
}
BEHIND = st.tuples(st.sampled_from(["set", "erase"]), TOPS, st.sampled_from([*DOCUMENTS, "entry"]), NODE_PATHS)
BEHIND |= st.tuples(st.just("prefix"), TOPS, st.sampled_from(["", "meta", "meta/root", "data"]), NODE_PATHS)
EDITS = st.tuples(st.sampled_from(["make array", "make group", "remove", "attributes"]), NODE_PATHS)


async def change(store: Store, step: Any) -> None:
    """Do one step, if possible: through the editor, or on a key of the store."""
    what, *rest = step
    if len(rest) == 1:
        path = rest[0]
        with contextlib.suppress(ZarrfsError):
            match what:
                case "make array":
                    await store.array(path)
                case "make group":
                    await store.group(path)
                case "remove":
                    await store.editor.erase(path)
                case "attributes":
                    await store.editor.amend(path, Edit(attributes={"of": path}))
        return
    top, kind, path = rest
    if what == "prefix":
        await store.inner.erase_prefix(Prefix(f"{top}{kind}{path}/".removeprefix("/")))
        return
    if kind == "entry":
        key, value = "zarr.json", ENTRY_2019
    else:
        form, value = DOCUMENTS[kind]
        key = form.format(path).removeprefix("/")
    if what == "set":
        await store.inner.set(Key(top + key), value)
    else:
        await store.inner.erase(Key(top + key))


@tries(150)
@given(
    batches=st.lists(st.lists(BEHIND | EDITS, min_size=1, max_size=3), max_size=6), dialect=st.sampled_from(["v2", "v3", "v3_2019"])
)
def test_what_is_remembered_is_what_is_there(batches: list[list[Any]], dialect: str) -> None:
    """After any changes the nodes equal those of a new hierarchy."""

    @trio_test
    async def compare() -> None:
        async with over(draft_2019("b/", "x"), new=dialect) as store:
            await store.walk()
            for batch in batches:
                for step in batch:
                    await change(store, step)
                seen = await store.walk()
                async with over(await contents(store.inner)) as fresh:
                    assert seen == await fresh.walk(), batch

    compare()
