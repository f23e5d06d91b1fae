"""A hierarchy without a mount: the base of commands that only read a store (info, check)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import trio

from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import HierarchyCounters
from zarrfs.arrays.layers import ShardLayers
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.errors import NoSuchEntry, ZarrfsError
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.roots import dialects
from zarrfs.hierarchy.sharded_arrays import ShardedArrays
from zarrfs.hierarchy.unforeseen import reason_of, unusable
from zarrfs.keys import NodePath
from zarrfs.memory.budget import MemoryBudget
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.stores.urls import parse
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.unsharded import UnshardedStore

# Deeper hierarchies are mistakes, or traps.
_MAX_DEPTH = 64
# Children of an unreadable node may be an array's chunks, in a folder each; beyond this number no nodes are searched there.
_FEW = 1000


@asynccontextmanager
async def open_offline(config: MountConfig, *, read_only: bool = True) -> AsyncIterator[Store]:
    """Open ``config.store`` for the body. Raises any error of opening the store."""
    store = await open_store(config.store, read_only=read_only)
    try:
        if parse(config.store).unsharded:
            store = UnshardedStore(store, ShardedArrays(store, ttl=math.inf, dialects=dialects(config.dialect_choices)))
        async with trio.open_nursery() as nursery:
            yield DeadlineStore(store, config.timeout, nursery)
            nursery.cancel_scope.cancel()
    finally:
        await store.aclose()


def hierarchy_of(config: MountConfig, store: Store) -> Hierarchy:
    """Return the hierarchy of ``store``, with an unlimited cache time."""
    counters = HierarchyCounters()
    readers = ReaderPool(ChunkCache(0), SlabPool(0, counters), ttl=0)
    layers = ShardLayers(counters, MemoryBudget(config.memory_limit))
    return Hierarchy(store, readers, counters, ttl=math.inf, layers=layers, dialects=dialects(config.dialect_choices))


async def walk(hierarchy: Hierarchy, config: MountConfig, path: str) -> AsyncIterator[Node]:
    """Yield the node at ``path`` and all below it, parents first, by name.

    A backslash may be part of a name (final v3): if there is no such node, the path is `NodePath.normalized`. An unreadable node is an
    `UnsupportedNode`, and nodes with documents below it are still yielded. Raises `NoSuchEntry` if there is no node at ``path``, and
    the store's error if that is unknown.
    """
    start = NodePath("/" + "/".join(filter(None, path.split("/"))))
    try:
        node = await hierarchy.node(start)
        normalized = NodePath.normalized(path) if node is None else start
        if normalized != start:
            start, node = normalized, await hierarchy.node(normalized)
    except ZarrfsError:
        raise
    except Exception as error:  # noqa: BLE001 - nodes below may be valid
        node = unusable(start, "", error)
    if node is None:
        raise NoSuchEntry(f"{start}: no such node in {public_url(config.store)}", key=start)
    async for each in _below(hierarchy, node, 0, False):
        yield each


async def below_array(hierarchy: Hierarchy, node: ArrayNode) -> list[NodePath]:
    """Return nodes with documents below an array, which has no members, so that no view shows them. Not all if there are many."""
    keys = node.metadata.chunk_key_encoding
    names = sorted(name for name in await hierarchy.child_names(node.path) if not keys.may_begin(name, node.metadata.ndim))
    found: list[NodePath] = []
    for name in names[:_FEW]:
        child = await hierarchy.node(node.path.child(name))
        if child is not None:
            found += [each.path async for each in _below(hierarchy, child, 1, True)]
    return found


async def _below(hierarchy: Hierarchy, node: Node, depth: int, below_bad: bool) -> AsyncIterator[Node]:
    """Yield ``node`` and all below it. Nodes still to come are not held."""
    is_bad = isinstance(node, UnsupportedNode)
    if not (below_bad and isinstance(node, GroupNode) and not node.explicit):
        yield node
    path, dialect = node.path, node.dialect
    if isinstance(node, ArrayNode):
        return
    if depth == _MAX_DEPTH:
        reason = f"nodes below are more than {_MAX_DEPTH} groups deep: not read"
        yield UnsupportedNode(path=path, dialect=dialect, reason=reason)
        return
    try:
        if (is_bad or below_bad) and len(await hierarchy.child_names(path)) > _FEW:
            return
        async with aclosing(hierarchy.children(path)) as children:
            async for _, child in children:
                async for each in _below(hierarchy, child, depth + 1, is_bad or below_bad):
                    yield each
    except Exception as error:  # noqa: BLE001 - a failure here must not hide the rest
        if not is_bad:
            reason = f"nodes below not listed: {reason_of(path, error)}"
            yield UnsupportedNode(path=path, dialect=dialect, reason=reason, bad=True)
