"""A hierarchy without a mount: the base of commands that only read a store (info, check)."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import trio

from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.errors import NoSuchEntry, ZarrfsError
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.roots import dialects
from zarrfs.hierarchy.sharded_arrays import ShardedArrays
from zarrfs.hierarchy.unforeseen import reason_of, unusable
from zarrfs.keys import NodePath
from zarrfs.memory import indexes
from zarrfs.memory.budget import MemoryBudget
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.stores.base import Store
from zarrfs.stores.opening import in_time, is_unsharded, open_store
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.unsharded import UnshardedStore

# Deeper hierarchies are mistakes, or traps.
_MAX_DEPTH = 64
# Children of an unreadable node may be an array's chunks, in a folder each; beyond this number no nodes are searched there.
_FEW = 1000


class Placed(NamedTuple):
    """A node in the tree below the first one.

    ``followed``: for each level, down to that of the node, whether another node of the same parent follows. ``has_nodes``: nodes below it
    follow.
    """

    node: Node
    followed: tuple[bool, ...]
    has_nodes: bool


@asynccontextmanager
async def open_offline(config: MountConfig, *, read_only: bool = True) -> AsyncIterator[Store]:
    """Open ``config.store`` for the body. Raises any error of opening the store."""
    indexes.configure(config.memory_limit)
    store = await in_time(config.timeout, config.store, lambda: open_store(config.store, read_only=read_only))
    try:
        if await in_time(config.timeout, config.store, lambda: is_unsharded(config.store)):
            store = UnshardedStore(store, ShardedArrays(store, ttl=math.inf, dialects=dialects(config.dialect_choices)))
        async with trio.open_nursery() as nursery:
            yield DeadlineStore(store, config.timeout, nursery)
            nursery.cancel_scope.cancel()
    finally:
        await store.aclose()


def hierarchy_of(config: MountConfig, store: Store) -> Hierarchy:
    """Return the hierarchy of ``store``, with an unlimited cache time."""
    counters = WorkCounters()
    readers = ReaderPool(ChunkCache(0), SlabPool(0, counters), ttl=0)
    layers = ShardLayers(counters, MemoryBudget(config.memory_limit))
    return Hierarchy(store, readers, counters, ttl=math.inf, layers=layers, dialects=dialects(config.dialect_choices))


async def walk(hierarchy: Hierarchy, config: MountConfig, path: str) -> AsyncGenerator[Node]:
    """Yield the node at ``path`` and all below it, parents first, by name.

    A backslash may be part of a name (final v3): if there is no such node, the path is `NodePath.normalized`. An unreadable node is an
    `UnsupportedNode`, and nodes with documents below it are still yielded. Raises `NoSuchEntry` if there is no node at ``path``, and
    the store's error if that is unknown.
    """
    async with aclosing(walk_tree(hierarchy, config, path)) as found:
        async for each in found:
            yield each.node


async def walk_tree(hierarchy: Hierarchy, config: MountConfig, path: str) -> AsyncGenerator[Placed]:
    """Yield what `walk` yields, with its place in the tree: one node is read ahead at each level."""
    async with aclosing(_placed(hierarchy, await _first(hierarchy, config, path), 0, (False,))) as found:
        async for each in found:
            yield each


async def _first(hierarchy: Hierarchy, config: MountConfig, path: str) -> Node:
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
    return node


async def _placed(
    hierarchy: Hierarchy, node: Node, depth: int, followed: tuple[bool, ...], *, below_bad: bool = False
) -> AsyncGenerator[Placed]:
    """Yield ``node`` and all below it; nodes still to come are not held, but for one at each level.

    ``below_bad``: it is below an unreadable node, or an array. What has no documents is not a node there, and not yielded.
    """
    is_bad = isinstance(node, UnsupportedNode)
    is_shown = not (below_bad and isinstance(node, GroupNode) and not node.explicit)

    def place(is_followed: bool) -> tuple[bool, ...]:
        """Return the place of a child: below the node, or instead of it."""
        return (*followed, is_followed) if is_shown else (*followed[:-1], followed[-1] or is_followed)

    if isinstance(node, ArrayNode):
        yield Placed(node, followed, False)
        return
    if depth == _MAX_DEPTH:
        if is_shown:
            yield Placed(node, followed, True)
        reason = f"nodes below are more than {_MAX_DEPTH} groups deep: not read"
        yield Placed(UnsupportedNode(path=node.path, dialect=node.dialect, reason=reason), place(False), False)
        return
    async with aclosing(_children(hierarchy, node.path, only_few=is_bad or below_bad)) as children:
        child, failure = await _next(children)
        if is_shown:
            yield Placed(node, followed, child is not None or (failure is not None and not is_bad))
        while child is not None:
            following, failure = await _next(children)
            here = place(following is not None or (failure is not None and not is_bad))
            if isinstance(child, ArrayNode):
                yield Placed(child, here, False)
            else:
                below = _placed(hierarchy, child, depth + 1, here, below_bad=is_bad or below_bad)
                async with aclosing(below):
                    async for each in below:
                        yield each
            child = following
    if failure is not None and not is_bad:
        reason = f"nodes below not listed: {reason_of(node.path, failure)}"
        yield Placed(UnsupportedNode(path=node.path, dialect=node.dialect, reason=reason, bad=True), place(False), False)


async def _children(hierarchy: Hierarchy, path: NodePath, *, only_few: bool) -> AsyncGenerator[Node]:
    """Yield the nodes directly below ``path``; with ``only_few``, none if there may be many."""
    if only_few and len(await hierarchy.child_names(path)) > _FEW:
        return
    async with aclosing(hierarchy.children(path)) as children:
        async for _, child in children:
            yield child


async def _next(children: AsyncGenerator[Node]) -> tuple[Node | None, Exception | None]:
    """Return the next child, or None and the failure of the listing, if there is one."""
    try:
        return await anext(children), None
    except StopAsyncIteration:
        return None, None
    except Exception as error:  # noqa: BLE001 - a failure here must not hide the rest
        return None, error


async def below_array(hierarchy: Hierarchy, node: ArrayNode) -> list[NodePath]:
    """Return nodes below an array, which no view shows since an array has no members. Incomplete if there are many."""
    keys, ndim = node.metadata.chunk_key_encoding, node.metadata.ndim
    names = await hierarchy.child_names(node.path, is_other=lambda name: keys.may_begin(name, ndim))
    found: list[NodePath] = []
    for name in sorted(names)[:_FEW]:
        child = await hierarchy.node(node.path.child(name))
        if child is not None:
            found += [each.node.path async for each in _placed(hierarchy, child, 1, (False,), below_bad=True)]
    return found
