"""A store in the memory of this process: ``memory:``.

A tree of dictionaries, one for each prefix, so that the cost of a listing depends on its entries, not on the keys of the store. Keys
and prefixes are separate in it: ``a`` and ``a/b`` may both have values, as on an object store. Every operation is one step between
two awaits, so none needs a lock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import trio

from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, KeyConflict, PrefixNotEmpty, StoreNotFound, UsageError
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Store, StorePlugin
from zarrfs.stores.capabilities import Capabilities
from zarrfs.stores.values import ABSENT, DirEntry, Expected, Generation, KeyStat

_PORTION = 4096
"""Entries of a listing between two checkpoints: a few milliseconds."""


class MemoryStore(Store):
    """Values are kept as bytes; a generation is a counter; times are those of the last ``set``."""

    url = "memory:"
    capabilities = Capabilities(copy=True, rename=True, exchange=True)

    def __init__(self, *, read_only: bool = False) -> None:
        self.capabilities = replace(self.capabilities, write=not read_only)
        self._root = _Folder()
        self._generations = itertools.count(1)

    async def get(self, key: Key) -> Buffer | None:
        found = self._find(key)
        return None if found is None else found.content

    async def stat(self, key: Key) -> KeyStat | None:
        return self.stat_now(key)

    def stat_now(self, key: Key) -> KeyStat | None:
        found = self._find(key)
        return None if found is None else KeyStat(len(found.content), found.mtime_ns, found.generation)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        self._require_writable(key)
        if expect is not None:
            found = self._find(key)
            if (found.generation if found else ABSENT) != expect:
                raise GenerationMismatch(f"{key!r} was changed concurrently", key=key)
        now = time.time_ns()
        generation = str(next(self._generations))
        self._put(key, _Value(bytes(value), now, generation), now)
        return generation

    async def copy(self, old: Key, new: Key) -> bool:
        found = self._find(old)
        if found is not None:
            await self.set(new, found.content)
        return found is not None

    async def erase(self, key: Key) -> None:
        self._require_writable(key)
        self._take(key)

    async def erase_prefix(self, prefix: Prefix) -> None:
        self._require_writable(prefix)
        self._detach(prefix)

    async def rename(self, old: Key, new: Key) -> bool:
        self._require_writable(old)
        found = self._find(old)
        if found is None:
            return False
        if old != new:
            self._take(old)
            self._put(new, found, time.time_ns())
        return True

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        self._require_writable(old)
        if self._folder(old) is None:
            return False
        if old == new:
            return True
        if new.startswith(old) or old.startswith(new):
            raise KeyConflict(f"renaming {old!r} to {new!r}: one lies below the other", key=old)
        if self._folder(new) is not None:
            raise PrefixNotEmpty(f"renaming {old!r} to {new!r}: there are keys under {new!r}", key=new)
        moved = self._detach(old)
        assert moved is not None
        *above, name = new[:-1].split("/")
        self._ensure_folder(above).enter(name, moved, time.time_ns())
        return True

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        self._require_writable(one)
        if one.startswith(other) or other.startswith(one):
            raise KeyConflict(f"exchanging {one!r} and {other!r}: one lies below the other", key=one)
        for prefix in (one, other):
            if self._folder(prefix) is None:
                raise StoreNotFound(f"exchanging {one!r} and {other!r}: there is nothing under {prefix!r}", key=prefix)
        first, second = self._detach(one), self._detach(other)
        assert first is not None
        assert second is not None
        for prefix, folder in ((one, second), (other, first)):
            *above, name = prefix[:-1].split("/")
            self._ensure_folder(above).enter(name, folder, time.time_ns())

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        folder = self._folder(prefix)
        if folder is None:
            return
        entries: list[DirEntry] = [(name, False, len(value.content), value.mtime_ns) for name, value in folder.values.items()]
        entries.extend((name, True, 0, below.mtime_ns) for name, below in folder.folders.items())
        for start in range(0, len(entries), _PORTION):
            for entry in entries[start : start + _PORTION]:
                yield entry
            await trio.lowlevel.checkpoint()

    async def prefix_exists(self, prefix: Prefix) -> bool:
        return self._folder(prefix) is not None

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        folder = self._folder(prefix)
        return None if folder is None else folder.mtime_ns

    def _find(self, key: Key) -> _Value | None:
        *above, name = key.split("/")
        folder = self._root
        for part in above:
            below = folder.folders.get(part)
            if below is None:
                return None
            folder = below
        return folder.values.get(name)

    def _put(self, key: Key, value: _Value, now: int) -> None:
        *above, name = key.split("/")
        folder = self._ensure_folder(above)
        if name not in folder.values:
            folder.mtime_ns = now
        folder.values[name] = value

    def _take(self, key: Key) -> None:
        *above, name = key.split("/")
        line = self._line(above)
        if line is not None and line[-1].values.pop(name, None) is not None:
            line[-1].mtime_ns = time.time_ns()
            _prune(line, above)

    def _folder(self, prefix: Prefix) -> _Folder | None:
        line = self._line(prefix.split("/")[:-1])
        return None if line is None else line[-1]

    def _detach(self, prefix: Prefix) -> _Folder | None:
        """Remove everything below ``prefix`` from the tree, and return it."""
        if not prefix:
            whole, self._root = self._root, _Folder()
            return whole
        *above, name = prefix[:-1].split("/")
        line = self._line(above)
        if line is None or name not in line[-1].folders:
            return None
        detached = line[-1].folders.pop(name)
        line[-1].mtime_ns = time.time_ns()
        _prune(line, above)
        return detached

    def _line(self, parts: list[str]) -> list[_Folder] | None:
        """Return the folders from the root down to ``parts``."""
        line = [self._root]
        for part in parts:
            below = line[-1].folders.get(part)
            if below is None:
                return None
            line.append(below)
        return line

    def _ensure_folder(self, parts: list[str]) -> _Folder:
        folder = self._root
        for part in parts:
            below = folder.folders.get(part)
            if below is None:
                below = _Folder()
                folder.enter(part, below, below.mtime_ns)
            folder = below
        return folder


class _Value(NamedTuple):
    content: bytes
    mtime_ns: int
    generation: Generation


@dataclass(slots=True)
class _Folder:
    """Keys and prefixes directly below one prefix. Apart from the root, an empty one is not in the tree."""

    values: dict[str, _Value] = field(default_factory=dict)
    folders: dict[str, _Folder] = field(default_factory=dict)
    mtime_ns: int = field(default_factory=time.time_ns)

    def enter(self, name: str, folder: _Folder, now: int) -> None:
        self.folders[name] = folder
        self.mtime_ns = now


def _prune(line: list[_Folder], parts: list[str]) -> None:
    """Remove the last folders of ``line`` (whose names are ``parts``) from the tree as far as they are empty."""
    for above, folder, name in zip(line[-2::-1], line[:0:-1], reversed(parts), strict=True):
        if folder.values or folder.folders:
            return
        del above.folders[name]
        above.mtime_ns = time.time_ns()


async def _open(location: str, read_only: bool) -> Store:
    if location:
        raise UsageError(f"a store in memory has no name: memory:{location}")
    return MemoryStore(read_only=read_only)


PLUGIN = StorePlugin("memory", ("memory",), _open, example=lambda folder: "memory:")
