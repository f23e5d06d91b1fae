"""Costs of editing a root document with a consolidated copy: the nodes that are read again, and the number of times it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_amending import ARRAY3
from tests.support.arrays import Reading, reading
from tests.support.stores import fill
from tests.support.trees import read, tree_over, write
from zarrfs.dialects import json_text
from zarrfs.dialects.json_text import SMALL_NBYTES
from zarrfs.keys import ROOT, Key, NodePath
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.observed import ObservedStore

NAMES = [f"a{number:03}" for number in range(300)]
PATHS = [ROOT, *(NodePath(f"/{name}") for name in NAMES)]


def group(members: dict[str, Any], **attributes: Any) -> bytes:
    copy = {"kind": "inline", "must_understand": False, "metadata": members}
    return json.dumps(
        {"zarr_format": 3, "node_type": "group", "attributes": attributes, "consolidated_metadata": copy}, indent=2
    ).encode()


VALUES = {"zarr.json": group(dict.fromkeys(NAMES, ARRAY3)), **{f"{name}/zarr.json": json.dumps(ARRAY3).encode() for name in NAMES}}


async def made(values: dict[str, bytes]) -> tuple[Reading, ObservedStore]:
    """Return a hierarchy over these values in which all nodes are known, and its store."""
    store = ObservedStore(MemoryStore())
    await fill(store, values)
    r = reading(store)
    store.subscribe(lambda change: r.hierarchy.changed(change.target, is_prefix=change.is_prefix) and None)
    await look(r)
    return r, store


async def look(r: Reading) -> tuple[int, int]:
    """Look up all nodes; return the number of parsed documents and of requests."""
    assert isinstance(r.store, ObservedStore)
    parsed, counters = r.counters.nodes_parsed, r.store.counters
    before = counters.get_partial_values
    for path in PATHS:
        assert await r.hierarchy.node(path) is not None
    return r.counters.nodes_parsed - parsed, counters.get_partial_values - before


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the large documents that were measured, which takes a second for ten megabytes."""
    lengths = []

    class Measured(json_text.JsonText):
        def __init__(self, data: bytes) -> None:
            if len(data) > SMALL_NBYTES:
                lengths.append(len(data))
            super().__init__(data)

    monkeypatch.setattr(json_text, "JsonText", Measured)
    return lengths


def test_an_edit_of_the_root_forgets_no_node_that_has_its_own_document(measured: list[int]) -> None:
    async def test() -> None:
        r, store = await made(VALUES)
        measured.clear()
        await store.set(Key("zarr.json"), group(dict.fromkeys(NAMES, ARRAY3), title="new"))
        parsed, requests = await look(r)
        assert parsed == 1
        # The root is read twice, to find the layouts and as a node, and measured once.
        assert requests < 10
        assert len(measured) == 1
        root = await r.hierarchy.node(ROOT)
        assert root is not None and root.attributes == {"title": "new"}

    trio.run(test)


def test_after_the_ttl_no_document_that_is_the_same_is_parsed_again(measured: list[int]) -> None:
    async def test() -> None:
        r, _ = await made(VALUES)
        measured.clear()
        await trio.sleep(11)
        parsed, _ = await look(r)
        assert parsed == 0
        assert measured == []

    trio.run(test, clock=MockClock(autojump_threshold=0))


def test_a_large_root_is_measured_once_for_all_dialects(measured: list[int]) -> None:
    async def test() -> None:
        store = MemoryStore()
        await fill(store, VALUES)
        r = reading(store)
        await r.hierarchy.layouts(NodePath("/a001"))
        assert await r.hierarchy.node(ROOT) is not None
        assert len(measured) == 1

    trio.run(test)


LOST = {"zarr.json": group(dict.fromkeys(NAMES, ARRAY3)), **{f"{name}/c/0": bytes(2) for name in NAMES}}


@trio_test
async def test_of_nodes_that_are_read_from_the_copy_those_are_forgotten_of_which_it_says_something_else() -> None:
    r, store = await made(LOST)
    other = ARRAY3 | {"shape": [6]}
    await store.set(Key("zarr.json"), group({**dict.fromkeys(NAMES, ARRAY3), "a007": other}))
    parsed, _ = await look(r)
    assert parsed == 2
    node = await r.hierarchy.node(NodePath("/a007"))
    assert isinstance(node, ArrayNode) and node.metadata.shape == (6,)


@trio_test
async def test_a_node_comes_with_the_copy_and_goes_with_it() -> None:
    r, store = await made(LOST)
    path = NodePath("/late")
    await store.set(Key("late/c/0"), bytes(2))
    assert await r.hierarchy.node(path) is None
    members = dict.fromkeys(NAMES, ARRAY3)
    await store.set(Key("zarr.json"), group({**members, "late": ARRAY3}))
    assert isinstance(await r.hierarchy.node(path), ArrayNode)
    await store.set(Key("zarr.json"), group(members))
    assert await r.hierarchy.node(path) is None


@trio_test
async def test_documents_of_another_layout_win_over_a_copy_that_is_outdated() -> None:
    r, store = await made(LOST)
    # A program of v2 puts its array in the place of one that the copy of v3 still has, and later removes it.
    path = NodePath("/a007")
    array = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "<i4", "compressor": None, "fill_value": 0, "order": "C"}
    await store.set(Key("a007/.zarray"), json.dumps(array | {"filters": None}).encode())
    await store.set(Key("a007/0"), bytes(12))
    node = await r.hierarchy.node(path)
    assert isinstance(node, ArrayNode) and (node.dialect, node.metadata.shape) == ("v2", (3,))
    await store.erase(Key("a007/.zarray"))
    node = await r.hierarchy.node(path)
    assert isinstance(node, ArrayNode) and node.dialect == "v3"


@pytest.mark.parametrize(
    "root", [b'{"zarr_format": 3}', b'{"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0"}'], ids=["bad", "2019"]
)
@trio_test
async def test_a_root_of_another_layout_ends_or_keeps_nodes_as_a_new_mount_sees_them(root: bytes) -> None:
    r, store = await made(VALUES)
    await store.set(Key("zarr.json"), root)
    fresh = reading(store.inner)
    for path in PATHS[:3]:
        assert await r.hierarchy.node(path) == await fresh.hierarchy.node(path)


def test_attributes_that_are_written_cost_the_root_and_one_array(measured: list[int]) -> None:
    async def test() -> None:
        store = MemoryStore()
        await fill(store, VALUES)
        async with tree_over(store) as tree:
            for name in NAMES:
                await read(tree, f"chunks/{name}/.zattrs")
            before = tree.counters.nodes_parsed
            measured.clear()
            await write(tree, "chunks/a003/.zattrs", b'{"units": "new"}')
            for name in NAMES:
                await read(tree, f"chunks/{name}/.zattrs")
            assert tree.counters.nodes_parsed - before <= 3
            # As the new document: to find the layouts, and as the root node. The one that is changed was measured before.
            assert len(measured) == 1
            await write(tree, "chunks/a003/.zattrs", b'{"units": "newer"}')
            await read(tree, "chunks/a003/.zattrs")
            assert len(measured) == 2

    trio.run(test)
