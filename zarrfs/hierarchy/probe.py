"""Search for a node at a path: its documents in each layout, with as few requests as decide.

    round 1   all documents in the dialect of the group above, and the deciding ones of dialects that precede it
    round 2   if none of these exists: the first names below the path. A third round requests what they leave open.

Layouts are tried in a fixed order, whatever lies above: which of several nodes at one path is valid does not depend on the way it was
reached (docs/design/010-layouts.md, 027-the-store-interface.md).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from zarrfs.dialects.base import Layout
from zarrfs.dialects.documents import MAX_NDIM
from zarrfs.errors import StoreAccessDenied
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.values import DirEntry, KeyStat


class Document(NamedTuple):
    """Value of a document's key in a store, with its metadata."""

    content: bytes
    stat: KeyStat


GetDocuments = Callable[[tuple[Key, ...]], Awaitable[Mapping[Key, Document | StoreAccessDenied]]]
"""Returns the values of keys, without absent ones; an error for a key without read permission."""

# Number of names requested below a path; folders with more are distinguished from nodes by documents only.
_MAX_NAMES = 256

# Chunk keys, relative to the array's folder, in any layout; and names of folders on the way to them. No array has more dimensions.
_MORE = MAX_NDIM - 1
_CHUNK_KEY = re.compile(rf"c|(?:c[/.]?)?\d+(?:[./]\d+){{,{_MORE}}}|__zdata__/\d+(?:\.\d+){{,{_MORE}}}(?:\.\w+)?")
_PART_OF_CHUNK_KEY = re.compile(rf"c|__zdata__|(?:c/?)?\d+(?:/\d+){{,{_MORE}}}")
_MAX_KEYS = 10_000


class Probe:
    """Search at ``path``. ``expected``: the dialect of the group above; ``read``: documents, None for absent ones."""

    def __init__(self, store: Store, path: NodePath, layouts: Sequence[Layout], expected: str | None, get: GetDocuments) -> None:
        self.path = path
        self.read: dict[Key, Document | None] = {}
        self._denied: dict[Key, StoreAccessDenied] = {}
        self._store = store
        self._layouts = layouts
        self._expected = expected
        self._get = get
        self._peeked: dict[Prefix, Sequence[DirEntry] | None] = {}
        self._keys_of: dict[int, tuple[tuple[Key, ...], tuple[Key, ...]]] = {}

    def requesting(self, get: GetDocuments) -> Probe:
        """Return the same search with another ``get``; names that are known stay so."""
        other = Probe(self._store, self.path, self._layouts, self._expected, get)
        other._peeked = self._peeked
        return other

    async def may_find(self) -> bool:
        """Return False if the names in the folder show that no layout has documents; the others are requested by `by_layout`."""
        # Of all layouts: `by_layout` requests what the names leave open of those that have a deciding document, and of no other.
        return bool(await self.may_have_documents()) and bool(await self._open_questions(self._layouts))

    async def may_have_documents(self) -> Sequence[Layout]:
        """Return the layouts without those whose documents the names in the folder exclude; no key is computed for that."""
        if self.path == ROOT or not self._store.capabilities.list or (names := await self._all_names(self.path.prefix)) is None:
            return self._layouts
        return [each for each in self._layouts if not each.document_names or not each.document_names.isdisjoint(names)]

    async def possible(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of ``keys`` that may exist, by the names in the folder if they are known."""
        folder = self.path.prefix
        names = await self._all_names(folder) if self.path != ROOT and self._store.capabilities.list else None
        return [key for key in keys if names is None or not _is_in(folder, key) or key.name in names]

    async def by_layout(self) -> AsyncGenerator[tuple[Layout, dict[Key, Document]]]:
        """Yield each layout with its documents. Raises `StoreAccessDenied` at the first with an unreadable document."""
        last = next((n for n, layout in enumerate(self._layouts) if layout.dialect.name == self._expected), 0)
        if self._expected is None and self.path != ROOT:
            # Nothing is expected: the names tell more than the documents of any layout.
            await self._ask(await self._open_questions(self._layouts))
        await self._ask([*(key for each in self._layouts[:last] for key in self._keys(each)[1]), *self._all(last)])
        for n, layout in enumerate(self._layouts):
            if n == last + 1:
                await self._ask(await self._open_questions(self._layouts[n:]))
            keys = self._keys(layout)[0]
            if any(self.read.get(key) is not None for key in self._keys(layout)[1]):
                await self._ask(keys)
            if denied := next((error for key in keys if (error := self._denied.get(key)) is not None), None):
                raise denied
            yield layout, {key: found for key in keys if (found := self.read.get(key)) is not None}

    def _keys(self, layout: Layout) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """Return the keys of the documents in a layout, and of those that decide; computed once."""
        keys = self._keys_of.get(id(layout))
        if keys is None:
            every = _keys_of(layout, self.path)
            keys = self._keys_of[id(layout)] = every, layout.deciding(every)
        return keys

    def _all(self, n: int) -> tuple[Key, ...]:
        return self._keys(self._layouts[n])[0] if n < len(self._layouts) else ()

    async def _ask(self, keys: Iterable[Key]) -> None:
        wanted = tuple(key for key in dict.fromkeys(keys) if key not in self.read and key not in self._denied)
        if not wanted:
            return
        found = await self._get(wanted)
        for key in wanted:
            each = found.get(key)
            if isinstance(each, StoreAccessDenied):
                self._denied[key] = each
            else:
                self.read[key] = each

    async def _open_questions(self, layouts: Sequence[Layout]) -> list[Key]:
        """Return the deciding keys of ``layouts``; if the names in the folder are known, all keys that may exist."""
        deciding = [key for layout in layouts for key in self._keys(layout)[1] if key not in self.read]
        folder = self.path.prefix
        if self.path == ROOT or not self._store.capabilities.list or not any(_is_in(folder, key) for key in deciding):
            return deciding
        names = await self._all_names(folder)
        if names is None:
            return deciding
        keys = [key for layout in layouts for key in self._keys(layout)[0] if key not in self.read]
        self.read.update((key, None) for key in keys if _is_in(folder, key) and key.name not in names)
        return [key for key in keys if key not in self.read]

    async def _all_names(self, prefix: Prefix) -> set[str] | None:
        """Return the names that keys in ``prefix`` may have; None if there are more than `_MAX_NAMES`."""
        try:
            found = await self.peek(prefix) or ()
        except StoreAccessDenied:
            # Without permission to list, keys may still be readable.
            return None
        names = {name for name, is_prefix, _, _ in found if not is_prefix} if len(found) < _MAX_NAMES else None
        if names is not None and (left_out := self._store.left_out):
            # A document behind a link is not absent: access to it is refused. (Threads that list folders add to them.)
            names.update(key[len(prefix) :] for key in tuple(left_out) if key.startswith(prefix))
        return names

    async def peek(self, prefix: Prefix) -> Sequence[DirEntry] | None:
        """Return the first names in ``prefix``, None if the prefix is absent; requested once."""
        if prefix not in self._peeked:
            self._peeked[prefix] = await self._store.peek(prefix, _MAX_NAMES)
        return self._peeked[prefix]

    async def implied_by(self) -> Layout | None:
        """Return the layout with content below the path; of several that of the expected dialect, or the first.

        None if no member of the group above, which is of that dialect, can have such a name (v3, "Node names": ``__x`` is reserved).
        """
        if not self._store.capabilities.list:
            return None
        for layout in sorted(self._layouts, key=lambda layout: layout.dialect.name != self._expected):
            if (
                self.path != ROOT
                and layout.dialect.name == self._expected
                and not layout.child_names(self.path.parent, (), (self.path.name,))
            ):
                return None
            for prefix in layout.listing_prefixes(self.path):
                if await self.peek(prefix) is not None and not await holds_only_chunks(self._store, prefix, self._peeked[prefix]):
                    return layout
        return None


async def holds_only_chunks(
    store: Store, prefix: Prefix, first: Sequence[DirEntry] | None = None, *, most: float = _MAX_KEYS
) -> bool:
    """Return True if keys lie below ``prefix``, and all of them could be chunks; False if these, or folders, are more than ``most``.

    Without a document they are left of an array that was erased or never complete, and form no group. ``first``: known names there.
    """
    if not store.capabilities.list:
        return False
    # Chunks of v0 are recognized by their folder.
    start = len(prefix) - (len("__zdata__/") if prefix.endswith("/__zdata__/") else 0)
    if first is not None and not (
        first and all(may_be_of_chunk(prefix[start:] + name, is_prefix) for name, is_prefix, _, _ in first)
    ):
        return False
    keys = folders = 0
    pending = [prefix]
    while pending:
        here = pending.pop()
        async for name, is_prefix, _, _ in store.list_dir(here):
            if not may_be_of_chunk(here[start:] + name, is_prefix):
                return False
            if is_prefix:
                pending.append(here.child(name))
                folders += 1
            else:
                keys += 1
            if max(keys, folders) > most:
                # There may be a document among further keys.
                return False
    return keys > 0


async def first_below(store: Store, prefix: Prefix) -> Key | None:
    """Return a key that exists below ``prefix``, None if there are only folders."""
    async for key in store.list_prefix(prefix):
        return key
    return None


def _is_in(folder: Prefix, key: Key) -> bool:
    """Return True if ``key`` is directly in ``folder``."""
    return key.startswith(folder) and key.find("/", len(folder)) < 0


def may_be_of_chunk(name: str, is_prefix: bool) -> bool:
    """Return True if an array of any layout may have a chunk of this name, relative to its folder, or a folder of chunks."""
    return (_PART_OF_CHUNK_KEY if is_prefix else _CHUNK_KEY).fullmatch(name) is not None


def _keys_of(layout: Layout, path: NodePath) -> tuple[Key, ...]:
    try:
        return layout.document_keys(path)
    except Exception as error:  # noqa: BLE001 - other layouts may have a node there
        reason_of(f"{path}: {layout.dialect.name}", error)
        return ()
