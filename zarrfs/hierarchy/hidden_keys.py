"""Keys below a node that no view shows: no document, no chunk, and not of a node there.

A program that removes a folder, or renames another over it, has seen it empty; keys that it was not shown must not be erased.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping

from zarrfs.dialects.base import Layout
from zarrfs.errors import MetadataError
from zarrfs.keys import Key, NodePath, Prefix
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
                is_hidden = prefix.child(name) not in own and await _holds_any(store, prefix.child(name))
            else:
                is_hidden = prefix.key(name) not in own
            if is_hidden:
                found.append(name)
    return found


def require_own(layout: Layout, path: NodePath, documents: dict[Key, bytes]) -> dict[Key, bytes]:
    """Return ``documents``. Raise `MetadataError` if a document of ``path`` would replace one of them that is none of the layout."""
    for key in sorted(foreign([layout], path, documents)):
        raise MetadataError(f"{key}: not a document of {layout.dialect.name}, and not replaced by one", key=key)
    return documents


def described_by(layouts: Collection[Layout], path: NodePath, shared: set[Key]) -> set[Key]:
    """Return the keys that documents of the node at ``path`` have in ``layouts``. ``shared``: those of `Layout.shared_keys` that exist.

    A layout of whose documents one may be another file has none there without it: in v1, ``attrs`` is a plain file without ``meta``.
    """
    found = set[Key]()
    for each in layouts:
        documents = each.document_keys(path)
        doubtful = [key for key in each.shared_keys(path) if key in documents]
        if not doubtful or not shared.isdisjoint(doubtful):
            found.update(documents)
    return found


def foreign(layouts: Collection[Layout], path: NodePath, documents: Mapping[Key, bytes]) -> set[Key]:
    """Return the keys of ``documents`` that ``layouts`` have for the node at ``path``, but that hold a document of none of them."""
    found: dict[Key, bool] = {}
    for layout in layouts:
        for key in layout.shared_keys(path):
            if key in documents:
                found[key] = found.get(key, False) or _is_own(layout, path, key, documents[key])
    return {key for key, is_own in found.items() if not is_own}


def _is_own(layout: Layout, path: NodePath, key: Key, value: bytes) -> bool:
    try:
        return layout.is_own(path, key, value)
    except MetadataError:
        # That of an unsupported node.
        return True


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


async def _holds_any(store: Store, prefix: Prefix) -> bool:
    """Return True if a key exists below ``prefix``, not only folders."""
    async for _ in store.list_prefix(prefix):
        return True
    return False
