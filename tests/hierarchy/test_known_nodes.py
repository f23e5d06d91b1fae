"""Nodes with large documents are evicted when there are too many; they are read again on request, and kept while in use."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import pytest
from trio.testing import trio_test

from tests.support.arrays import Example, Reading, reading, store_of
from zarrfs.hierarchy import known_nodes
from zarrfs.hierarchy.known_nodes import KnownNode, KnownNodes
from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode

A = Example((4,), (2,))
LARGE = {"units": "m", "history": ["something was done"] * 2000}
ATTRIBUTES = json.dumps(LARGE).encode()


async def with_large_attributes() -> Reading:
    """Return the arrays ``/a`` and ``/b`` and the groups ``/g`` and ``/h``, each with large attributes."""
    store = await store_of(A, A)
    for name in "gh":
        await store.set(Key(f"{name}/.zgroup"), b'{"zarr_format":2}')
    for name in "abgh":
        await store.set(Key(f"{name}/.zattrs"), ATTRIBUTES)
    return reading(store, ttl=1e9)


@pytest.mark.parametrize("limit", [1, 1 << 30], ids=["one", "all"])
@trio_test
async def test_what_was_forgotten_is_read_again_and_is_the_same(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_nodes, "MAX_NBYTES", limit)
    found = await with_large_attributes()
    for _ in range(2):
        for name, kind in (("a", ArrayNode), ("g", GroupNode), ("b", ArrayNode), ("h", GroupNode)):
            node = await found.hierarchy.node(NodePath(f"/{name}"))
            assert isinstance(node, kind)
            assert dict(node.attributes) == LARGE


@trio_test
async def test_an_array_that_somebody_holds_is_the_same_when_its_documents_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_nodes, "MAX_NBYTES", 1)
    found = await with_large_attributes()
    opened = await found.array("a")
    for name in "bgh":
        await found.hierarchy.node(NodePath(f"/{name}"))
    assert await found.array("a") is opened and await opened.array.read_chunk((0,)) is not None
    # Only its users keep it.
    for name in "bgh":
        await found.hierarchy.node(NodePath(f"/{name}"))
    live = found.hierarchy.live
    del opened
    gc.collect()
    assert live.at(NodePath("/a")) is None


@trio_test
async def test_a_change_of_a_chunk_is_one_of_its_array_also_when_its_documents_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel was not told, and showed the earlier size and time of the chunk for up to five minutes."""
    monkeypatch.setattr(known_nodes, "MAX_NBYTES", 1)
    found = await with_large_attributes()
    # A folder that the kernel holds in chunks/ has it.
    live = (await found.array("a")).live
    for name in "bgh":
        await found.hierarchy.node(NodePath(f"/{name}"))
    gc.collect()
    assert live.open_array is None
    change = NodeChange(NodePath("/a"), (0,))
    assert list(found.hierarchy.changed("a/0", is_prefix=False)) == [change]
    assert list(found.hierarchy.chunks_changed(Prefix("a/"), [(0,)])) == [change]


def test_what_cannot_be_used_is_forgotten_with_why() -> None:
    node = UnsupportedNode(path=NodePath("/a"), dialect="v2", reason="no such codec")
    known = KnownNode(node, b"digest", 1e9)
    known.fade()
    assert (known.node, known.open_array, known.digest) == (node, None, b"") and known.expires < 0


def test_the_first_of_too_many_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_nodes, "MAX_NODES", 2)
    nodes = KnownNodes()
    paths = [NodePath(f"/{name}") for name in "abc"]
    for path in paths:
        nodes.put(path, KnownNode(GroupNode(path=path, dialect="v2"), b"", 1e9))
    assert [path in nodes for path in paths] == [False, True, True]


@pytest.mark.parametrize("is_evicted", [False, True])
@trio_test
async def test_nothing_is_kept_of_an_array_that_was_removed(is_evicted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the layouts of 2019 and 2022 its chunks were, for good: after 64 of these a change of a folder there invalidated all nodes."""
    nodes, path, chunks = KnownNodes(), NodePath("/a"), Prefix("data/a/")
    array = await reading(await store_of(A)).hierarchy.node(NodePath("/a"))
    assert isinstance(array, ArrayNode)
    nodes.put(path, KnownNode(replace(array, chunk_prefix=chunks), b"", 1e9))
    assert list(nodes.index.with_chunks_at(Prefix("data/"))) == [path]
    nodes.put(path, KnownNode(None, b"", 1e9))
    if is_evicted:
        monkeypatch.setattr(known_nodes, "MAX_NODES", 1)
        nodes.put(NodePath("/b"), KnownNode(None, b"", 1e9))
    assert list(nodes.index.with_chunks_at(Prefix("data/"))) == []
