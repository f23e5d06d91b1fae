"""Documents of nodes in a store, and the names of children."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import trio

from zarrfs import threads
from zarrfs.dialects.base import Layout
from zarrfs.dialects.json_text import MAX_NBYTES, SMALL_NBYTES
from zarrfs.dialects.json_text import LargeDocument as Large
from zarrfs.errors import StoreAccessDenied
from zarrfs.hierarchy.foreign_documents import foreign
from zarrfs.hierarchy.listed_times import ListedTimes
from zarrfs.hierarchy.probe import Document, GetDocuments, Probe
from zarrfs.keys import ROOT, ByteRange, Key, NodePath, Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Store
from zarrfs.stores.values import Denied, DirEntry, Got

# What is read of a document, and of a small one. One byte more: one that is too long is refused by its reader, and never read whole.
_DOCUMENT, _SMALL = ByteRange(0, MAX_NBYTES + 1), ByteRange(0, SMALL_NBYTES + 1)
# Weight of a name in `threads.cpu`: a dialect processes a thousand of them within a millisecond.
_NAME_NBYTES = 16
# Limit of the large documents that are kept. With their measurements they take two to five times as much memory.
_MEASURED_NBYTES = 4 << 20
# Entries that are looked at to determine an encoding of chunk keys: more than an array has that are no chunks.
_PEEKED = 64


IsOther = Callable[[str], bool]
"""Returns True for a name that is no node's."""


class LargeDocument(Exception):
    """A document has more than `SMALL_NBYTES`: to read it whole, wait for `StoredDocuments.turn`."""


class StoredDocuments:
    """Reads ``store``, without a cache.

    For any number of concurrent lookups, only one holds and parses large documents: the holder of ``turn``, which waits for the store
    only.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.turn = trio.Lock()
        # The large documents read last: a consolidated copy is read several times for each edit, and measured once.
        self._measured: OrderedDict[Key, Large] = OrderedDict()

    async def get(self, keys: tuple[Key, ...]) -> dict[Key, Document | StoreAccessDenied]:
        """Return the values of ``keys``, without absent ones; of a value too long for a document, one byte more than allowed."""
        found = await self._get(keys, _DOCUMENT)
        for key, each in found.items():
            if isinstance(each, Document) and len(each.content) > SMALL_NBYTES:
                found[key] = Document(self._measured_once(key, each.content), each.stat)
        return found

    async def get_small(self, keys: tuple[Key, ...]) -> dict[Key, Document | StoreAccessDenied]:
        """Return `get`; raises `LargeDocument` if one is large."""
        found = await self._get(keys, _SMALL)
        if any(isinstance(each, Document) and len(each.content) > SMALL_NBYTES for each in found.values()):
            raise LargeDocument
        return found

    async def _get(self, keys: tuple[Key, ...], part: ByteRange) -> dict[Key, Document | StoreAccessDenied]:
        answers = await self._store.get_many([(key, part) for key in keys])
        found: dict[Key, Document | StoreAccessDenied] = {}
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Got):
                found[key] = Document(bytes(answer.value), answer.stat)
            elif isinstance(answer, Denied):
                found[key] = answer.error
        return found

    def _measured_once(self, key: Key, content: bytes) -> Large:
        document = self._measured.pop(key, None)
        if document is None or document != content:
            document = Large(content)
        self._measured[key] = document
        while sum(map(len, self._measured.values())) > _MEASURED_NBYTES:
            self._measured.popitem(last=False)
        return document

    def probe(self, path: NodePath, layouts: Sequence[Layout], expected: str | None, get: GetDocuments) -> Probe:
        """Return a `Probe` at ``path``. ``get``: `get_small`, or, for the holder of `turn`, `get`."""
        return Probe(self._store, path, layouts, expected, get)

    async def describing(self, probe: Probe) -> list[str]:
        """Return the dialects of the layouts of a probe (with `get_small`) that have a node at its path, valid or bad."""
        try:
            return await self._describing(probe)
        except LargeDocument:
            async with self.turn:
                return await self._describing(probe.requesting(self.get))

    async def _describing(self, probe: Probe) -> list[str]:
        path = probe.path
        found: list[str] = []
        if not await probe.may_find():
            return found
        async for layout, found_there in probe.by_layout():
            documents = contents(found_there)
            try:
                if documents and await threads.cpu(weight(documents), layout.parse, path, documents) is not None:
                    found.append(layout.dialect.name)
            except Exception:  # noqa: BLE001 - bad documents describe a node too
                if not foreign([layout], path, documents):
                    found.append(layout.dialect.name)
        return found

    async def child_names(
        self, path: NodePath, layouts: Iterable[Layout], times: ListedTimes | None = None, is_other: IsOther | None = None
    ) -> set[str]:
        """Return the names of possible children of the group at ``path``. ``times``: receives those of their folders.

        ``is_other``: for names to leave out.
        """
        names: set[str] = set()
        listed: dict[Prefix, tuple[list[str], list[str]]] = {}
        for layout in layouts:
            copied = layout.consolidated_names(path) or set()
            if layout.copy_only or not self._store.capabilities.list:
                names |= copied
            if not self._store.capabilities.list:
                continue
            for prefix in layout.listing_prefixes(path):
                keys, prefixes = await self._listed(prefix, listed, times)
                if is_other is not None:
                    prefixes = [name for name in prefixes if not is_other(name)]
                if is_other is not None and not prefixes and layout.document_names:
                    continue  # Its nodes are folders.
                names |= await threads.cpu(_NAME_NBYTES * (len(keys) + len(prefixes)), layout.child_names, path, keys, prefixes)
            if copied and not layout.per_node:
                # Arrays of the copy that have chunks, which lie elsewhere (see `copy_counts`).
                names |= copied.intersection((await self._listed(layout.chunk_prefix(path), listed))[1])
        return names if is_other is None else {name for name in names if not is_other(name)}

    async def _listed(
        self, prefix: Prefix, listed: dict[Prefix, tuple[list[str], list[str]]], times: ListedTimes | None = None
    ) -> tuple[list[str], list[str]]:
        """Return the names of keys and of prefixes directly below ``prefix``, listed once. ``times``: receives those of prefixes."""
        if prefix not in listed:
            keys, prefixes = listed[prefix] = [], []
            for name, is_prefix, _, mtime_ns in await self._entries(prefix):
                (prefixes if is_prefix else keys).append(name)
                if is_prefix and times is not None:
                    times.add(self._store, prefix.child(name), mtime_ns)
        return listed[prefix]

    async def _entries(self, prefix: Prefix) -> Sequence[DirEntry]:
        try:
            return self._store.list_dir_now(prefix)
        except WouldWait:
            return [entry async for entry in self._store.list_dir(prefix)]

    async def copy_counts(self, path: NodePath, layout: Layout) -> bool:
        """Return True if the consolidated copy of ``layout`` describes the node at ``path``, which has no documents of its own.

        If the store can list, the copy may contain erased nodes: then it is valid for nodes with keys below them, and for all if it is
        the only document of the hierarchy.
        """
        if not self._store.capabilities.list or layout.copy_only:
            return True
        if path == ROOT or not layout.holds(path.parent) or path.name not in (layout.consolidated_names(path.parent) or ()):
            return False
        prefixes = dict.fromkeys((*layout.listing_prefixes(path), layout.chunk_prefix(path)))
        return any([await self._store.prefix_exists(prefix) for prefix in prefixes])


def contents(found: Mapping[Key, Document | StoreAccessDenied | None]) -> dict[Key, bytes]:
    """Return the contents of the documents ``found``. Raises `StoreAccessDenied` if one is unreadable."""
    documents: dict[Key, bytes] = {}
    for key, each in found.items():
        if isinstance(each, StoreAccessDenied):
            raise each
        if each is not None:
            documents[key] = each.content
    return documents


def weight(documents: Mapping[Key, bytes | None]) -> int:
    """Return the number of bytes to parse, for `threads.cpu`."""
    return sum(len(value) for value in documents.values() if value is not None)


async def with_stored_keys(
    store: Store, node: ArrayNode, encodings: Sequence[ChunkKeyEncoding], before: ArrayMetadata | None
) -> ArrayNode:
    """Return ``node`` with the first of ``encodings`` by which a chunk is stored (`Layout.chunk_key_encodings`), else with the first.

    ``before``: the array as it was known there: its encoding stays, unless only chunks by another one are stored."""
    ndim = node.metadata.ndim
    if ndim == 0:
        used = [each for each in encodings if await store.stat(each.key(node.chunk_prefix, ())) is not None]
    else:
        entries: Sequence[DirEntry] = ()
        # A folder that must not be listed may have readable chunks.
        with suppress(StoreAccessDenied):
            entries = (await store.peek(node.chunk_prefix, _PEEKED) or ()) if store.capabilities.list else ()
        used = [each for each in encodings if any(_may_be_of(each, ndim, name, is_prefix) for name, is_prefix, *_ in entries)]
    possible = used or encodings
    # An array that has lost its last chunk is still the same one.
    known = before.chunk_key_encoding if before is not None else None
    chosen = known if known is not None and known in possible else possible[0]
    if chosen == encodings[0]:
        return node
    quirk = f"chunks have keys like {chosen.encode((0,) * ndim)!r}, as no document says"
    metadata = replace(node.metadata, chunk_key_encoding=chosen)
    return replace(node, metadata=metadata, quirks=(*node.quirks, quirk) if ndim else node.quirks)


def _may_be_of(encoding: ChunkKeyEncoding, ndim: int, name: str, is_prefix: bool) -> bool:
    """Return True if ``name``, directly below the chunk prefix, is that of a chunk, or of a folder of chunks."""
    return encoding.may_begin(name, ndim) if is_prefix else encoding.decode(name, ndim) is not None


async def are_stored(store: Store, documents: Mapping[Key, bytes]) -> bool:
    """Return True if the store has exactly these documents at their keys."""
    for key, value in documents.items():
        stored = await store.get(key)
        if stored is None or bytes(stored) != value:
            return False
    return True
