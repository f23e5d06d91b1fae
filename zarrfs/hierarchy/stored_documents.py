"""What a store holds of nodes: the documents at a path, in each layout that a node there may have, and the names of children.

Layouts are asked in their order, whatever lies above: which of several nodes at one path counts does not depend on how it was come to
(docs/design/010-layouts.md).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import trio

from zarrfs import threads
from zarrfs.dialects.base import Layout
from zarrfs.dialects.json_text import MAX_NBYTES, SMALL_NBYTES
from zarrfs.errors import GenerationMismatch
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.keys import ROOT, ByteRange, Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, Node
from zarrfs.stores.base import Generation, KeyStat, Store

GetDocuments = Callable[[tuple[Key, ...]], Awaitable[dict[Key, bytes]]]


# The keys of chunks, from the array's folder on, in whatever layout; and what folders on the way to them are called.
_CHUNK_KEY = re.compile(r"c|(?:c[/.]?)?\d+(?:[./]\d+)*|__zdata__/\d+(?:\.\d+)*(?:\.\w+)?")
_PART_OF_CHUNK_KEY = re.compile(r"c|__zdata__|(?:c/?)?\d+(?:/\d+)*")
_MOST_LOOKED_AT = 10_000
# A document is compared with what is there by then in pieces of this size.
_COMPARED_NBYTES = 1 << 20

# What a name counts in `threads.cpu`: a dialect looks at a thousand of them within a millisecond.
_NAME_NBYTES = 16


class LargeDocument(Exception):
    """A document has more than `SMALL_NBYTES`: who wants it whole waits for `StoredDocuments.turn`."""


class StoredDocuments:
    """Reads ``store``; remembers nothing.

    However many nodes are looked up at once, the large documents of one alone are in memory and being parsed: of those whose turn it
    is. Who has the turn waits for nobody but the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.turn = trio.Lock()

    async def get(self, keys: tuple[Key, ...]) -> dict[Key, bytes]:
        """What the store holds under ``keys``, without those that hold nothing; of what is too long to be a document, as much as shows
        that."""
        # One byte more than may be: a document that is too long is refused by its reader, and never read whole.
        return await self._get(keys, MAX_NBYTES + 1)

    async def get_small(self, keys: tuple[Key, ...]) -> dict[Key, bytes]:
        """As `get`; raises `LargeDocument` where one is large."""
        found = await self._get(keys, SMALL_NBYTES + 1)
        if any(len(value) > SMALL_NBYTES for value in found.values()):
            raise LargeDocument
        return found

    async def stat_of(self, key: Key, document: bytes) -> tuple[KeyStat | None, Generation | None]:
        """What is known of the value of ``key``, and its generation where it is this ``document``: since that was read another may have
        come to its place."""
        found = await self._store.get_with_stat(key, ByteRange(0, _COMPARED_NBYTES))
        if found is None:
            return None, None
        part, stat = found
        is_that = stat.size == len(document) and part == document[:_COMPARED_NBYTES]
        for start in range(_COMPARED_NBYTES, len(document), _COMPARED_NBYTES):
            if not is_that:
                break
            try:
                asked = [(key, ByteRange(start, _COMPARED_NBYTES))]
                is_that = (await self._store.get_partial_values(asked, if_generation=stat.generation))[0] == document[
                    start : start + _COMPARED_NBYTES
                ]
            except GenerationMismatch:
                is_that = False
        return stat, stat.generation if is_that else None

    async def _get(self, keys: tuple[Key, ...], most: int) -> dict[Key, bytes]:
        values = await self._store.get_partial_values([(key, ByteRange(0, most)) for key in keys])
        return {key: bytes(value) for key, value in zip(keys, values, strict=True) if value is not None}

    async def by_layout(
        self,
        path: NodePath,
        layouts: Sequence[Layout],
        read: dict[Key, bytes | None],
        expected: str | None,
        get: GetDocuments | None = None,
    ) -> AsyncIterator[tuple[Layout, dict[Key, bytes]]]:
        """Each layout with its documents at ``path``. ``read`` gets what was found, None for nothing. ``get``: `get_small`, or `get`
        for who has the `turn`.

        Down to the layout of the dialect ``expected``, all are asked for at once.
        """
        get = get or self.get_small
        last = next((n for n, layout in enumerate(layouts) if layout.dialect.name == expected), 0)
        for n, layout in enumerate(layouts):
            keys = _keys_of(layout, path)
            wanted = dict.fromkeys(key for each in layouts[n : max(n, last) + 1] for key in _keys_of(each, path) if key not in read)
            found = await get(tuple(wanted))
            read |= {key: found.get(key) for key in wanted}
            yield layout, {key: value for key in keys if (value := read[key]) is not None}

    async def describing(self, path: NodePath, layouts: Sequence[Layout]) -> list[str]:
        """The dialects of ``layouts`` in which there is a node at ``path``, a bad one too."""
        try:
            return await self._describing(path, layouts, self.get_small)
        except LargeDocument:
            async with self.turn:
                return await self._describing(path, layouts, self.get)

    async def _describing(self, path: NodePath, layouts: Sequence[Layout], get: GetDocuments) -> list[str]:
        found = []
        async for layout, documents in self.by_layout(path, layouts, {}, None, get):
            try:
                if documents and await threads.cpu(weight(documents), layout.parse, path, documents) is not None:
                    found.append(layout.dialect.name)
            except Exception:  # noqa: BLE001 - bad documents describe a node, too
                found.append(layout.dialect.name)
        return found

    async def child_names(self, path: NodePath, layouts: Iterable[Layout]) -> set[str]:
        """Names of what may be children of the group at ``path``."""
        names: set[str] = set()
        listed: dict[Prefix, tuple[list[str], list[str]]] = {}
        for layout in layouts:
            if layout.copy_only or not self._store.listable:
                names |= layout.consolidated_names(path) or set()
            if not self._store.listable:
                continue
            for prefix in layout.listing_prefixes(path):
                if prefix not in listed:
                    keys, prefixes = listed[prefix] = [], []
                    async for name, is_prefix, _, _ in self._store.list_dir(prefix):
                        (prefixes if is_prefix else keys).append(name)
                keys, prefixes = listed[prefix]
                names |= await threads.cpu(_NAME_NBYTES * (len(keys) + len(prefixes)), layout.child_names, path, keys, prefixes)
        return names

    async def copy_counts(self, path: NodePath, layout: Layout) -> bool:
        """Whether the consolidated copy of ``layout`` describes the node at ``path``, which has no documents of its own.

        Where the store can list, the copy may know nodes that are gone: there it counts for the nodes that have keys below them, and
        for all where it is the only document of the hierarchy.
        """
        if not self._store.listable or layout.copy_only:
            return True
        if path == ROOT or not layout.holds(path.parent) or path.name not in (layout.consolidated_names(path.parent) or ()):
            return False
        places = dict.fromkeys((*layout.listing_prefixes(path), layout.chunk_prefix(path)))
        return any([await self._store.prefix_exists(prefix) for prefix in places])

    async def implied_by(self, path: NodePath, layouts: Iterable[Layout], expected: str | None) -> Layout | None:
        """The layout in which something lies below ``path``; of several that of the dialect ``expected``, or the first. None where no
        member of the group above, which is of that dialect, can have such a name (v3, "Node names": ``__x`` is reserved)."""
        for layout in sorted(layouts, key=lambda layout: layout.dialect.name != expected) if self._store.listable else ():
            if path != ROOT and layout.dialect.name == expected and not layout.child_names(path.parent, (), (path.name,)):
                return None
            for prefix in layout.listing_prefixes(path):
                if await self._store.prefix_exists(prefix) and not await holds_only_chunks(self._store, prefix):
                    return layout
        return None


async def holds_only_chunks(store: Store, prefix: Prefix) -> bool:
    """Whether keys lie below ``prefix``, and all of them could be those of chunks: without a document beside them they are left of
    an array that is no more, or was never whole, and make no group."""
    if not store.listable:
        return False
    keys = 0
    # The chunks of v0 are told by their folder.
    start = len(prefix) - (len("__zdata__/") if prefix.endswith("/__zdata__/") else 0)
    pending = [prefix]
    while pending:
        here = pending.pop()
        async for name, is_prefix, _, _ in store.list_dir(here):
            if not (_PART_OF_CHUNK_KEY if is_prefix else _CHUNK_KEY).fullmatch(here[start:] + name):
                return False
            if is_prefix:
                pending.append(here.child(name))
                continue
            keys += 1
            if keys > _MOST_LOOKED_AT:
                # A document may come after so many.
                return False
    return keys > 0


def weight(documents: Mapping[Key, bytes | None]) -> int:
    """Bytes that are parsed, for `threads.cpu`."""
    return sum(len(value) for value in documents.values() if value is not None)


def _keys_of(layout: Layout, path: NodePath) -> tuple[Key, ...]:
    try:
        return layout.document_keys(path)
    except Exception as error:  # noqa: BLE001 - other layouts may have a node there
        reason_of(f"{path}: {layout.dialect.name}", error)
        return ()


async def with_stored_scalar(store: Store, layout: Layout, node: Node) -> Node:
    """``node`` with the name that its only chunk is stored under, where the layout leaves several (`Layout.scalar_names`)."""
    if not isinstance(node, ArrayNode) or node.metadata.shape:
        return node
    names = layout.scalar_names(node)
    if len(names) > 1:
        for name in names:
            if await store.stat(node.chunk_prefix.key(name)) is not None:
                encoding = replace(node.metadata.chunk_key_encoding, scalar=name)
                return replace(node, metadata=replace(node.metadata, chunk_key_encoding=encoding))
    return node
