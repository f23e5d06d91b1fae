"""Keys below a node that no view shows: no document, no chunk, and not of a node there.

A program that removes a folder, or renames another over it, has seen it empty; keys that it was not shown must not be erased.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable

from zarrfs.hierarchy.probe import first_below
from zarrfs.keys import Prefix
from zarrfs.model.metadata import ArrayNode, Node
from zarrfs.stores.base import Store


async def hidden_keys(store: Store, node: Node, prefixes: Iterable[Prefix], own: Collection[str], lock_suffix: str) -> list[str]:
    """Return the names of such keys and prefixes in ``prefixes``, the folders of ``node``; at least one if any exists.

    ``own``: keys and prefixes that belong to the node, as its chunks do, and the locks beside them (`Dialect.lock_suffix`).
    """
    found: list[str] = []
    for prefix in prefixes:
        if isinstance(node, ArrayNode):
            found += [key async for key in _apart_from_chunks(store, prefix, node, own, lock_suffix)]
            continue
        async for name, is_prefix, _, _ in store.list_dir(prefix):
            if is_prefix:
                is_hidden = prefix.child(name) not in own and await first_below(store, prefix.child(name)) is not None
            else:
                is_hidden = prefix.key(name) not in own
            if is_hidden:
                found.append(name)
    return found


async def _apart_from_chunks(
    store: Store, prefix: Prefix, node: ArrayNode, own: Collection[str], lock_suffix: str
) -> AsyncIterator[str]:
    keys, ndim = node.metadata.chunk_key_encoding, node.metadata.ndim
    async for key in store.list_prefix(prefix):
        locked = key.removesuffix(lock_suffix)
        is_chunk = locked.startswith(node.chunk_prefix) and keys.decode(locked[len(node.chunk_prefix) :], ndim) is not None
        if locked not in own and not is_chunk:
            yield key[len(prefix) :]
            return
