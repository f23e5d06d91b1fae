"""One look for a node at a path: its documents in each layout, in as few requests as tell what is there.

    round 1   all documents in the dialect of the group above, and those of dialects asked before it without which they have no node
    round 2   where none of these is there: the first names below the path. What they leave open is asked for in a third round.

Layouts are asked in their order whatever lies above: which of several nodes at one path counts does not depend on how it was come to
(docs/design/010-layouts.md, 027-the-store-interface.md).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from zarrfs.dialects.base import Layout
from zarrfs.errors import StoreAccessDenied
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.values import DirEntry, KeyStat


class Document(NamedTuple):
    """What a store holds under the key of a document, and what is known of it."""

    content: bytes
    stat: KeyStat


GetDocuments = Callable[[tuple[Key, ...]], Awaitable[Mapping[Key, Document | StoreAccessDenied]]]
"""Returns what the store holds under keys, without those that hold nothing. An error is that of a key that may not be read."""

# Names that one look below a path returns; folders of so many are told from nodes by their documents alone.
_MOST_NAMES = 256

# The keys of chunks, from the array's folder on, in whatever layout; and what folders on the way to them are called.
_CHUNK_KEY = re.compile(r"c|(?:c[/.]?)?\d+(?:[./]\d+)*|__zdata__/\d+(?:\.\d+)*(?:\.\w+)?")
_PART_OF_CHUNK_KEY = re.compile(r"c|__zdata__|(?:c/?)?\d+(?:/\d+)*")
_MOST_LOOKED_AT = 10_000


class Probe:
    """One look at ``path``. ``expected``: the dialect of the group above; ``read``: documents, and None where there is nothing."""

    def __init__(self, store: Store, path: NodePath, layouts: Sequence[Layout], expected: str | None, get: GetDocuments) -> None:
        self.path = path
        self.read: dict[Key, Document | None] = {}
        self._denied: dict[Key, StoreAccessDenied] = {}
        self._store = store
        self._layouts = layouts
        self._expected = expected
        self._get = get
        self._peeked: dict[Prefix, Sequence[DirEntry] | None] = {}

    async def by_layout(self) -> AsyncIterator[tuple[Layout, dict[Key, Document]]]:
        """Each layout with its documents. Raises `StoreAccessDenied` at the first of which one may not be read."""
        last = next((n for n, layout in enumerate(self._layouts) if layout.dialect.name == self._expected), 0)
        await self._ask([*(key for each in self._layouts[:last] for key in _deciding(each, self.path)), *self._all(last)])
        for n, layout in enumerate(self._layouts):
            if n == last + 1:
                await self._ask(await self._open_questions(self._layouts[n:]))
            keys = _keys_of(layout, self.path)
            if any(self.read.get(key) is not None for key in _deciding(layout, self.path)):
                await self._ask(keys)
            if denied := next((error for key in keys if (error := self._denied.get(key)) is not None), None):
                raise denied
            yield layout, {key: found for key in keys if (found := self.read.get(key)) is not None}

    def _all(self, n: int) -> tuple[Key, ...]:
        return _keys_of(self._layouts[n], self.path) if n < len(self._layouts) else ()

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
        """The keys that decide for ``layouts``; where the names in the folder are known, all keys that may be there."""
        deciding = [key for layout in layouts for key in _deciding(layout, self.path) if key not in self.read]
        folder = self.path.prefix
        if self.path == ROOT or not self._store.capabilities.list or not any(key.parent == folder for key in deciding):
            return deciding
        names = await self._all_names(folder)
        if names is None:
            return deciding
        keys = [key for layout in layouts for key in _keys_of(layout, self.path) if key not in self.read]
        self.read.update((key, None) for key in keys if key.parent == folder and key.name not in names)
        return [key for key in keys if key not in self.read]

    async def _all_names(self, prefix: Prefix) -> set[str] | None:
        """The names of keys in ``prefix``; None where these are more than one look returns."""
        try:
            found = await self.peek(prefix) or ()
        except StoreAccessDenied:
            # Whoever may not list may yet read.
            return None
        return {name for name, is_prefix, _, _ in found if not is_prefix} if len(found) < _MOST_NAMES else None

    async def peek(self, prefix: Prefix) -> Sequence[DirEntry] | None:
        """The first names in ``prefix``, None where there is no such prefix; asked for once."""
        if prefix not in self._peeked:
            self._peeked[prefix] = await self._store.peek(prefix, _MOST_NAMES)
        return self._peeked[prefix]

    async def implied_by(self) -> Layout | None:
        """The layout in which something lies below the path; of several that of the dialect expected, or the first. None where no
        member of the group above, which is of that dialect, can have such a name (v3, "Node names": ``__x`` is reserved)."""
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


async def holds_only_chunks(store: Store, prefix: Prefix, first: Sequence[DirEntry] | None = None) -> bool:
    """Whether keys lie below ``prefix``, and all of them could be those of chunks: without a document beside them they are left of
    an array that is no more, or was never whole, and make no group. ``first``: names there that are known already."""
    if not store.capabilities.list:
        return False
    # The chunks of v0 are told by their folder.
    start = len(prefix) - (len("__zdata__/") if prefix.endswith("/__zdata__/") else 0)
    if first is not None and not (
        first and all(_may_be_of_chunk(prefix[start:] + name, is_prefix) for name, is_prefix, _, _ in first)
    ):
        return False
    keys = 0
    pending = [prefix]
    while pending:
        here = pending.pop()
        async for name, is_prefix, _, _ in store.list_dir(here):
            if not _may_be_of_chunk(here[start:] + name, is_prefix):
                return False
            if is_prefix:
                pending.append(here.child(name))
                continue
            keys += 1
            if keys > _MOST_LOOKED_AT:
                # A document may come after so many.
                return False
    return keys > 0


def _may_be_of_chunk(name: str, is_prefix: bool) -> bool:
    return (_PART_OF_CHUNK_KEY if is_prefix else _CHUNK_KEY).fullmatch(name) is not None


def _keys_of(layout: Layout, path: NodePath) -> tuple[Key, ...]:
    try:
        return layout.document_keys(path)
    except Exception as error:  # noqa: BLE001 - other layouts may have a node there
        reason_of(f"{path}: {layout.dialect.name}", error)
        return ()


def _deciding(layout: Layout, path: NodePath) -> tuple[Key, ...]:
    keys = _keys_of(layout, path)
    return layout.deciding_keys(path) if keys else keys
