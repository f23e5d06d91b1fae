"""Nodes with large documents are evicted when there are too many; they are read again on request, and kept while in use."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
from trio.testing import trio_test

from tests.support.arrays import Example, Reading, reading, store_of
from zarrfs.hierarchy import known_nodes
from zarrfs.hierarchy.known_nodes import KnownNode, KnownNodes
from zarrfs.keys import Key, NodePath
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


@trio_test
async def test_of_many_arrays_that_were_opened_few_are_kept_ready_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took 10 KB, as long as its documents were known."""
    monkeypatch.setattr(known_nodes, "MAX_OPEN_ARRAYS", 2)
    found = reading(await store_of(*[A] * 6), ttl=1e9)
    used = await found.array("a")
    generation = used.reader.generation()
    ready = {name: weakref.ref(await found.array(name)) for name in "bcdef"}
    gc.collect()
    assert [name for name, array in ready.items() if array() is not None] == ["e", "f"]
    assert await found.array("a") is used and used.reader.generation() == generation
    # The use of an array puts it behind the others.
    gc.collect()
    assert [name for name, array in ready.items() if array() is not None] == ["f"]
    assert await (await found.array("b")).array.read_chunk((0,)) is not None
