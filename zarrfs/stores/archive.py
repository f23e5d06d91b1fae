"""Stores that are one file (or a few) which another program wrote: zip, SQLite, LMDB, DBM. They are read, never written.

An `Archive` is what a backend implements: plain functions that run in threads, with names as bytes, in byte order. `ArchiveStore`
makes a `Store` of one. Names are keys by UTF-8 (what is not UTF-8 by surrogate escapes, as in file names), so that every name has
one key. A name that ends with a slash is no key: it says that its prefix is there, if nothing else is under it (folders of a zip
file). The empty name is neither, and is skipped.
"""

from __future__ import annotations

import abc
import bisect
import logging
from array import array
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import TypeVar

from zarrfs import threads
from zarrfs.errors import GenerationMismatch, NameInvalid, StoreNotFound, StoreReadOnly, UsageError
from zarrfs.keys import WHOLE, ByteRange, Key, NodePath, Prefix
from zarrfs.memory.spill import Buffers
from zarrfs.stores.base import Store, StorePlugin, WouldWait
from zarrfs.stores.capabilities import Capabilities
from zarrfs.stores.values import Buffer, DirEntry, Expected, Generation, KeyStat

log = logging.getLogger(__name__)

T = TypeVar("T")

Entry = tuple[bytes, int, int | None]
"""A name, the size of its value in bytes, its mtime_ns or None."""

_MAX_INNER = 4
"""Archives inside of one another: a compressed one is decompressed whole."""

_PORTION = 2048
"""Names looked at in one hop to a thread: a few milliseconds."""


class Archive(abc.ABC):
    """Values under names. Any thread may call any method at any time; all raise `zarrfs.errors.StoreError` and its kin."""

    path: str
    at_hand: bool = False
    """Whether `find` never waits."""

    @abc.abstractmethod
    def find(self, name: bytes) -> KeyStat | None:
        """Size, time and generation of a value; None when there is none."""

    @abc.abstractmethod
    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        """Parts of one value, and what `find` tells of that very value; None when there is none."""

    @abc.abstractmethod
    def entries(self, start: bytes) -> Generator[Entry]:
        """Names in byte order, from the first that is not less than ``start``. It is closed by who asked, in the same thread."""

    def inner(self, name: bytes) -> Archive:
        """The archive of the same kind that a value is. Raises `StoreNotFound`, and `UsageError` for kinds that have none."""
        raise UsageError(f"{self.path}: a database inside of this kind of archive cannot be opened")

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of files; a call that is under way in another thread may still end well."""


class ArchiveStore(Store):
    """What lies in ``archive``, below ``inside`` (a prefix; empty: all of it)."""

    capabilities = Capabilities(write=False)

    def __init__(self, archive: Archive, inside: str = "") -> None:
        self._archive = archive
        self._inside = Prefix(inside.strip("/") + "/" if inside.strip("/") else "")
        self.url = archive.path + (f"|{self._inside}" if self._inside else "")

    # --- readable -----------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Buffer | None:
        return (await self.get_partial_values([(key, WHOLE)]))[0]

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """All parts of a value are of one generation. Several values are read in one thread."""
        return await self._wait(self._read, key_ranges, if_generation)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        name = self._name(key)
        found = None if name is None else await self._wait(self._archive.read, name, [byte_range])
        return None if found is None else (found[1][0], found[0])

    async def stat(self, key: Key) -> KeyStat | None:
        if self._archive.at_hand:
            return self.stat_now(key)
        name = self._name(key)
        return None if name is None else await self._wait(self._archive.find, name)

    def stat_now(self, key: Key) -> KeyStat | None:
        if not self._archive.at_hand:
            raise WouldWait
        name = self._name(key)
        return None if name is None else self._archive.find(name)

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

    # --- life ---------------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        await self._wait(self._archive.close)

    # --- in a thread --------------------------------------------------------------------------------------------------------

    def _read(self, key_ranges: Sequence[tuple[Key, ByteRange]], if_generation: Generation | None) -> list[Buffer | None]:
        places: dict[Key, list[int]] = {}
        for place, (key, _) in enumerate(key_ranges):
            places.setdefault(key, []).append(place)
        parts: list[Buffer | None] = [None] * len(key_ranges)
        buffers = Buffers()
        for key, wanted in places.items():
            name = self._name(key)
            found = None if name is None else self._archive.read(name, [key_ranges[place][1] for place in wanted])
            if if_generation is not None and (found is None or found[0].generation != if_generation):
                raise GenerationMismatch(f"{key!r} was changed by someone else", key=key)
            if found is not None:
                for place, part in zip(wanted, found[1], strict=True):
                    parts[place] = buffers.kept(part)
        return parts

    def _below(self, prefix: bytes, start: bytes) -> tuple[list[DirEntry], bytes | None]:
        """Entries directly below ``prefix``, from ``start`` on, and where the next portion starts. What lies deeper is leapt over."""
        found: list[DirEntry] = []
        next_start: bytes | None = start
        while next_start is not None and len(found) < _PORTION:
            start, next_start = next_start, None
            with closing(self._archive.entries(start)) as entries:
                for name, size, mtime_ns in entries:
                    if not name.startswith(prefix):
                        break
                    child, slash, _ = name[len(prefix) :].partition(b"/")
                    if slash:
                        found.append((_text(child), True, 0, None))
                        # The first name that does not begin with the child's prefix: "0" follows "/".
                        next_start = prefix + child + b"0"
                        break
                    if child:
                        found.append((_text(child), False, size, mtime_ns))
                    if len(found) >= _PORTION:
                        next_start = name + b"\0"
                        break
        return found, next_start

    def _keys(self, prefix: bytes, start: bytes) -> tuple[list[Key], bytes | None]:
        """Keys that begin with ``prefix``, from ``start`` on, and where the next portion starts."""
        found: list[Key] = []
        inside = len(self._inside)
        seen = 0
        with closing(self._archive.entries(start)) as entries:
            for name, _, _ in entries:
                if not name.startswith(prefix):
                    break
                if name and not name.endswith(b"/"):
                    found.append(Key(_text(name)[inside:]))
                seen += 1
                if seen >= _PORTION:
                    return found, name + b"\0"
        return found, None

    def _any_under(self, prefix: bytes) -> bool:
        with closing(self._archive.entries(prefix)) as entries:
            return any(name.startswith(prefix) and name for name in _first(entries))

    async def _wait(self, function: Callable[..., T], *args: object) -> T:
        # Whoever gives up waiting for a disk that does not answer is let go: the thread changes nothing.
        return await threads.io(function, *args, abandon_on_cancel=True)

    def _name(self, place: Key | Prefix) -> bytes | None:
        """None where no archive can have this name, so that nothing is there."""
        try:
            return (self._inside + place).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return None

    def _read_only(self, place: str) -> StoreReadOnly:
        return StoreReadOnly(f"{self.url} is read-only: archives are not written", key=place)


def archive_plugin(
    name: str, make: Callable[[str], Archive], claims: Callable[[str], bool], *, priority: int, suffixes: tuple[str, ...]
) -> StorePlugin:
    """The plug-in of archives that ``make(path)`` opens, which runs in a thread. A prefix may begin with the names of archives inside of
    it, each followed by ``|`` and the scheme."""

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
        # Archives have any names; this one may be a node's, written as a person does.
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
    """Names in byte order, each with the number of its row in a table: what an archive has that keeps no order itself.

    It takes the space of the names and 16 bytes for each. Of equal names the last counts.
    """

    def __init__(self, rows: dict[bytes, int], path: str) -> None:
        if rows.pop(b"", None) is not None:
            warn_of_nameless(path)
        self.names = sorted(rows)
        self.rows = array("Q", map(rows.__getitem__, self.names))

    def find(self, name: bytes) -> int | None:
        """The row of ``name``; None when it is not there."""
        place = bisect.bisect_left(self.names, name)
        return self.rows[place] if place < len(self.names) and self.names[place] == name else None

    def after(self, start: bytes) -> Generator[tuple[bytes, int]]:
        """Names and rows, from the first name that is not less than ``start``."""
        for place in range(bisect.bisect_left(self.names, start), len(self.names)):
            yield self.names[place], self.rows[place]


def is_key(name: bytes) -> bool:
    """Whether a value can be under ``name``."""
    return bool(name) and not name.endswith(b"/")


def warn_of_nameless(path: str) -> None:
    """Say that the archive has a value that no key can stand for."""
    log.warning("%s holds a value without a name: it is skipped", path)


def _first(entries: Generator[Entry]) -> list[bytes]:
    found = next(entries, None)
    # The empty name is before all others.
    if found is not None and not found[0]:
        found = next(entries, None)
    return [] if found is None else [found[0]]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
