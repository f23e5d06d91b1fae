"""Read-only stores that are one file (or a few) written by another program: zip, SQLite, LMDB, DBM.

A backend implements `Archive`: plain functions that run in threads, with names as bytes, in byte order. `ArchiveStore` adapts one to a
`Store`. Names are decoded to keys as UTF-8 (invalid bytes as surrogate escapes, as in file names), so that every name has one key. A
name that ends with a slash is not a key: it marks its prefix as existing, if nothing else is below it (folders of a zip file). The
empty name is neither, and is skipped.
"""

from __future__ import annotations

import abc
import bisect
import logging
from array import array
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import TypeVar

import trio

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, NameInvalid, StoreError, StoreNotFound, StoreReadOnly, UsageError
from zarrfs.keys import WHOLE, ByteRange, Key, NodePath, Prefix
from zarrfs.memory.spill import Buffers
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Store, StorePlugin
from zarrfs.stores.capabilities import Capabilities
from zarrfs.stores.locks import LockTable
from zarrfs.stores.values import DirEntry, Expected, Generation, KeyStat

log = logging.getLogger(__name__)

T = TypeVar("T")

Entry = tuple[bytes, int, int | None]
"""Name, size of its value in bytes, mtime_ns or None."""

Wanted = tuple[bytes, Sequence[ByteRange]]
Found = tuple[KeyStat, list[Buffer]] | None
"""Arguments and result of `Archive.read`."""

_MAX_INNER = 4
"""Nesting limit: a compressed inner archive is decompressed whole."""

_CLOSE_S = 2.0
"""Seconds that the end of a mount waits for an archive to be closed."""

_PORTION = 2048
"""Names read in one call to a thread: a few milliseconds."""


class Archive(abc.ABC):
    """Values by name. Thread-safe; all methods raise `zarrfs.errors.StoreError` or a subclass."""

    path: str
    at_hand: bool = False
    """True if `find` never waits."""
    damage: Sequence[str] = ()
    """See `Store.damage`."""

    @abc.abstractmethod
    def find(self, name: bytes) -> KeyStat | None:
        """Return size, time and generation of a value; None if absent."""

    def check(self, name: bytes) -> None:
        """Raise `StoreError` if the archive was changed since its names were read: ``name`` was absent then, and may exist now.

        Does nothing for a kind whose names are read each time.
        """

    @abc.abstractmethod
    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        """Return parts of one value, and the `find` of that very value; None if absent."""

    def read_several(self, wanted: Sequence[Wanted], keep: Callable[[Buffer], Buffer]) -> list[Found]:
        """Return the result of `read` for each value of ``wanted``, with the results of ``keep`` instead of the parts."""
        return [kept(self.read(name, ranges), keep) for name, ranges in wanted]

    def is_slow(self, name: bytes) -> bool:
        """Return True if a `read` of a value may take very long, and others wait for it: without waiting."""
        return False

    @abc.abstractmethod
    def entries(self, start: bytes) -> Generator[Entry]:
        """Return names in byte order, from the first not less than ``start``. The caller closes it, in the same thread."""

    def inner(self, name: bytes) -> Archive:
        """Return the archive of the same kind that a value is. Raises `StoreNotFound`, and `UsageError` for kinds without."""
        raise UsageError(f"{self.path}: a database inside of this kind of archive cannot be opened")

    @abc.abstractmethod
    def close(self) -> None:
        """Release files; a call in progress in another thread may still succeed."""


def kept(found: Found, keep: Callable[[Buffer], Buffer]) -> Found:
    """Return what was found, with the results of ``keep`` instead of the parts."""
    return found and (found[0], [keep(part) for part in found[1]])


class ArchiveStore(Store):
    """The keys of ``archive`` below the prefix ``inside`` (empty: all of it)."""

    capabilities = Capabilities(write=False)

    def __init__(self, archive: Archive, inside: str) -> None:
        self._archive = archive
        self._inside = Prefix(inside.strip("/") + "/" if inside.strip("/") else "")
        self.url = archive.path + (f"|{self._inside}" if self._inside else "")
        self.damage = archive.damage
        self._turns = LockTable()

    # --- readable -----------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Buffer | None:
        return (await self.get_partial_values([(key, WHOLE)]))[0]

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """Return parts that are, for each value, of one generation. Several values are read in one thread."""
        slow = next((key for key, _ in key_ranges if self._is_slow(key)), None)
        return await self._wait_in_turn(slow, self._read, key_ranges, if_generation)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        name = self._name(key)
        slow = key if self._is_slow(key) else None
        found = None if name is None else await self._wait_in_turn(slow, self._read_one, name, byte_range)
        return None if found is None else (found[1][0], found[0])

    async def stat(self, key: Key) -> KeyStat | None:
        with suppress(WouldWait):
            return self.stat_now(key)
        name = self._name(key)
        return None if name is None else await self._wait(self._find, name)

    def stat_now(self, key: Key) -> KeyStat | None:
        name = self._name(key)
        if name is None:
            return None
        found = self._archive.find(name) if self._archive.at_hand else None
        if found is None:
            raise WouldWait
        return found

    # --- writable -----------------------------------------------------------------------------------------------------------

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        raise self._read_only(key)

    async def erase(self, key: Key) -> None:
        raise self._read_only(key)

    async def erase_prefix(self, prefix: Prefix) -> None:
        raise self._read_only(prefix)

    # --- listable -----------------------------------------------------------------------------------------------------------

    async def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        name = self._name(prefix)
        start = name
        while name is not None and start is not None:
            keys, start = await self._wait(self._keys, name, start)
            for key in keys:
                yield key

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        name = self._name(prefix)
        start = name
        while name is not None and start is not None:
            entries, start = await self._wait(self._below, name, start)
            for entry in entries:
                yield entry

    async def prefix_exists(self, prefix: Prefix) -> bool:
        name = self._name(prefix)
        return name is not None and await self._wait(self._any_under, name)

    # --- lifetime -----------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        # Nothing is lost without it, and it may wait for a hung file system.
        with trio.move_on_after(_CLOSE_S):
            await self._wait(self._archive.close)

    # --- in a thread --------------------------------------------------------------------------------------------------------

    def _find(self, name: bytes) -> KeyStat | None:
        found = self._archive.find(name)
        if found is None:
            self._archive.check(name)
        return found

    def _read_one(self, name: bytes, byte_range: ByteRange) -> tuple[KeyStat, list[Buffer]] | None:
        found = self._archive.read(name, [byte_range])
        if found is None:
            self._archive.check(name)
        return found

    def _read(self, key_ranges: Sequence[tuple[Key, ByteRange]], if_generation: Generation | None) -> list[Buffer | None]:
        indices: dict[Key, list[int]] = {}
        for index, (key, _) in enumerate(key_ranges):
            indices.setdefault(key, []).append(index)
        parts: list[Buffer | None] = [None] * len(key_ranges)
        buffers = Buffers()
        # A key that cannot be a name is absent.
        names = {key: name for key in indices if (name := self._name(key)) is not None}
        wanted = [(name, [key_ranges[index][1] for index in indices[key]]) for key, name in names.items()]
        read = dict(zip(names, self._archive.read_several(wanted, buffers.kept), strict=True))
        absent: bytes | None = None
        for key, at in indices.items():
            found = read.get(key)
            if if_generation is not None and (found is None or found[0].generation != if_generation):
                raise GenerationMismatch(f"{key!r} was changed concurrently", key=key)
            if found is None:
                absent = absent or names.get(key)
                continue
            for index, part in zip(at, found[1], strict=True):
                parts[index] = part
        if absent:
            self._archive.check(absent)
        return parts

    def _below(self, prefix: bytes, start: bytes) -> tuple[list[DirEntry], bytes | None]:
        """Return entries directly below ``prefix``, from ``start``, and the start of the next portion. Deeper names are skipped."""
        self._archive.check(prefix)
        found: list[DirEntry] = []
        next_start: bytes | None = start
        while next_start is not None and len(found) < _PORTION:
            start, next_start = next_start, None
            with closing(self._archive.entries(start)) as entries:
                for name, size, mtime_ns in self._in_order(entries, start):
                    if not name.startswith(prefix):
                        break
                    child, slash, _ = name[len(prefix) :].partition(b"/")
                    if slash:
                        found.append((_text(child), True, 0, None))
                        # The first name after the child's prefix: "0" follows "/".
                        next_start = prefix + child + b"0"
                        break
                    if child:
                        found.append((_text(child), False, size, mtime_ns))
                    if len(found) >= _PORTION:
                        next_start = name + b"\0"
                        break
        return found, next_start

    def _keys(self, prefix: bytes, start: bytes) -> tuple[list[Key], bytes | None]:
        """Return keys that begin with ``prefix``, from ``start``, and the start of the next portion."""
        self._archive.check(prefix)
        found: list[Key] = []
        inside = len(self._inside)
        seen = 0
        with closing(self._archive.entries(start)) as entries:
            for name, _, _ in self._in_order(entries, start):
                if not name.startswith(prefix):
                    break
                if name and not name.endswith(b"/"):
                    found.append(Key(_text(name)[inside:]))
                seen += 1
                if seen >= _PORTION:
                    return found, name + b"\0"
        return found, None

    def _in_order(self, entries: Generator[Entry], start: bytes) -> Generator[Entry]:
        """Return ``entries``, each name once. Raises `StoreError` for one out of order, so that no damaged archive is listed for ever."""
        last: bytes | None = None
        for entry in entries:
            name = entry[0]
            if name == last:
                threads.go_on()
                continue
            if name < (start if last is None else last):
                raise StoreError(
                    f"listing {self.url}: {_text(name)!r} is not where it belongs: the archive is damaged", key=_text(name)
                )
            last = name
            yield entry

    def _any_under(self, prefix: bytes) -> bool:
        with closing(self._archive.entries(prefix)) as entries:
            exists = any(name.startswith(prefix) and name for name in _first(entries))
        if not exists:
            self._archive.check(prefix)
        return exists

    async def _wait(self, function: Callable[..., T], *args: object, apart: bool = False) -> T:
        # A caller that gives up on a hung disk is released: the thread changes nothing.
        return await threads.io(function, *args, abandon_on_cancel=True, apart=apart)

    async def _wait_in_turn(self, slow: Key | None, function: Callable[..., T], *args: object) -> T:
        """Run `_wait`. Readers of one slow value, however many, take one of the threads that are set apart, and no others."""
        if slow is None:
            return await self._wait(function, *args)
        async with self._turns.hold(slow):
            return await self._wait(function, *args, apart=True)

    def _is_slow(self, key: Key) -> bool:
        """Return `Archive.is_slow`."""
        name = self._name(key)
        return name is not None and self._archive.is_slow(name)

    def _name(self, target: Key | Prefix) -> bytes | None:
        """Return the name of a key or prefix; None if it cannot be a name of an archive and is therefore absent."""
        try:
            return (self._inside + target).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return None

    def _read_only(self, key: str) -> StoreReadOnly:
        return StoreReadOnly(f"{self.url} is read-only: archives are not written", key=key)


def archive_plugin(
    name: str, make: Callable[[str], Archive], claims: Callable[[str], bool], *, priority: int, suffixes: tuple[str, ...]
) -> StorePlugin:
    """Return the plug-in of archives that ``make(path)`` opens in a thread.

    A prefix may begin with the names of nested archives, each followed by ``|`` and the scheme.
    """

    async def open_inside(path: str, prefix: str, read_only: bool) -> Store:
        *names, prefix = prefix.split(f"|{name}:")
        if len(names) > _MAX_INNER:
            raise UsageError(f"{path}: archives are opened up to {_MAX_INNER} deep inside of one another")
        archive = await threads.io(make, path, abandon_on_cancel=True)
        for each in names:
            archive = await threads.io(archive.inner, each.encode("utf-8", "surrogateescape"), abandon_on_cancel=True)
        store = ArchiveStore(archive, prefix)
        if not prefix.strip("/") or await store.prefix_exists(Prefix("")):
            return store
        # Archives have arbitrary names; this one may be the name of a node, as a user writes it.
        with suppress(NameInvalid):
            store = ArchiveStore(archive, NodePath.normalized(prefix).prefix)
            if await store.prefix_exists(Prefix("")):
                return store
        await store.aclose()
        raise StoreNotFound(f"there is nothing under {prefix} in {path}", key=path)

    async def open_whole(path: str, read_only: bool) -> Store:
        return await open_inside(path, "", read_only)

    return StorePlugin(name, (name,), open_whole, claims=claims, priority=priority, open_inside=open_inside, suffixes=suffixes)


class NameIndex:
    """Names in byte order, each with its row number in a table: an index for archives that keep no order.

    It takes the size of the names and 16 bytes for each. Of equal names the last counts.
    """

    def __init__(self, rows: dict[bytes, int], path: str) -> None:
        if rows.pop(b"", None) is not None:
            warn_of_nameless(path)
        self.names = sorted(rows)
        self.rows = array("Q", map(rows.__getitem__, self.names))

    def find(self, name: bytes) -> int | None:
        """Return the row of ``name``; None if absent."""
        index = bisect.bisect_left(self.names, name)
        return self.rows[index] if index < len(self.names) and self.names[index] == name else None

    def after(self, start: bytes) -> Generator[tuple[bytes, int]]:
        """Return names and rows, from the first name not less than ``start``."""
        for index in range(bisect.bisect_left(self.names, start), len(self.names)):
            yield self.names[index], self.rows[index]


def is_key(name: bytes) -> bool:
    """Return True if ``name`` can have a value."""
    return bool(name) and not name.endswith(b"/")


def warn_of_nameless(path: str) -> None:
    """Log that the archive has a value that no key can represent."""
    log.warning("%s holds a value without a name: it is skipped", path)


def _first(entries: Generator[Entry]) -> list[bytes]:
    found = next(entries, None)
    # The empty name sorts before all others.
    if found is not None and not found[0]:
        found = next(entries, None)
    return [] if found is None else [found[0]]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
