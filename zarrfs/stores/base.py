"""The abstract store interface.

Source: Zarr v3 core (draft of 2022), section "Abstract store interface", under its names: ``get``, ``get_partial_values``, ``set``,
``set_partial_values``, ``erase``, ``erase_values``, ``erase_prefix``, ``list``, ``list_prefix``, ``list_dir``, in three sets of
capabilities (readable, writable, listable). Added, because a file system needs them: ``stat``, ``sync``, ``exclusive``, a generation
for each value, and sizes and times in ``list_dir``.

A backend implements `get`, `get_partial_values`, `stat`, `set`, `erase`, `list_dir` as far as it has the capability and inherits the
rest; it overrides what it can do better. Operations that file systems have and most backends lack (`rename`, `make_prefix`,
`set_times`, ...) raise `StoreUnsupported` unless overridden; callers then fall back. A backend is one file: a subclass of `Store`, and
a module constant ``PLUGIN``, a `StorePlugin`, by which `zarrfs.stores.opening.open_store` finds it. A store translates every exception
of its library into `zarrfs.errors.StoreError` or a subclass, naming the key.

Any operation may be called concurrently with any other. ``set`` replaces the whole value: a concurrent ``get`` of that key returns the
old or the new value, never a mix; the same holds for readers of the backend after a crash.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

import trio

from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, RangesOverlap, StoreAccessDenied, StoreReadOnly, StoreUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.answers_now import AnswersNow
from zarrfs.stores.capabilities import Capabilities
from zarrfs.stores.change import Change
from zarrfs.stores.locks import LockTable
from zarrfs.stores.values import MISSING, Answer, Denied, DirEntry, Expected, Generation, Got, KeyStat

T = TypeVar("T")

# Attempts to read a value that is replaced between each two requests.
_TRIES = 8


class Held(abc.ABC):
    """A value that stays readable when its key changes: see `Store.hold`. ``stat`` is its `Store.stat`."""

    stat: KeyStat

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """Return at most ``size`` bytes from ``offset``. Raises `GenerationMismatch` if the value itself was overwritten in place."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the value."""


class Store(AnswersNow, abc.ABC):
    """A backend. ``url`` names it in messages, without secrets."""

    url: str = ""
    capabilities: Capabilities = Capabilities()
    damage: Sequence[str] = ()
    """Damage of the whole store, found when it was opened, that hides keys: readers take them for absent."""
    left_out: Collection[str] = ()
    """The last entries that listings have not shown, as they are neither values nor prefixes, and access to them is refused."""

    # --- readable -----------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def get(self, key: Key) -> Buffer | None:
        """Return the value of ``key``; None if absent."""

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """Return parts of values, in the order requested; None for each absent key. A key may occur several times.

        A range past the end is cut at the end (empty bytes if it starts past the end). With ``if_generation`` (only for ranges of one
        key) `GenerationMismatch` is raised if the value is of another generation, or absent. This fallback gets whole values, each key
        once.
        """
        values: dict[Key, Buffer | None] = {}
        parts: list[Buffer | None] = []
        for key, byte_range in key_ranges:
            if if_generation is not None:
                await self.check_generation(key, if_generation)
            if key not in values:
                values[key] = await self.get(key)
            value = values[key]
            if value is None:
                parts.append(None)
            else:
                start, stop = byte_range.resolve(len(value))
                parts.append(memoryview(value)[start:stop])
        if if_generation is not None:
            for key in values:
                await self.check_generation(key, if_generation)
        return parts

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        """Return a part of a value, and the `stat` of that very value; None if absent.

        Backends that return both in one response need one request; this fallback sends two.
        """
        for left in reversed(range(_TRIES)):
            stat = await self.stat(key)
            if stat is None:
                return None
            asked = byte_range if self.capabilities.suffix_ranges else _resolved(byte_range, stat.size)
            try:
                part = (await self.get_partial_values([(key, asked)], if_generation=stat.generation))[0]
            except GenerationMismatch:
                if not left:
                    raise
            else:
                assert part is not None
                return part, stat
        raise AssertionError("unreachable")

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        """Return parts of values, each with the `stat` of that very value, in the order requested and in one batch.

        A missing key and an unreadable one are answers. Raises the first other `StoreError`, after all requests have ended. This fallback
        sends one request for each key, `Capabilities.width` of them concurrently.
        """
        if len(key_ranges) == 1:
            return [await self._answer(*key_ranges[0])]
        answers: dict[int, Answer] = {}
        errors: dict[int, Exception] = {}
        in_flight = trio.Semaphore(self.capabilities.width)

        async def ask(number: int, key: Key, byte_range: ByteRange) -> None:
            async with in_flight:
                try:
                    answers[number] = await self._answer(key, byte_range)
                except Exception as error:  # noqa: BLE001 - raised below, when the others have ended
                    errors[number] = error

        async with trio.open_nursery() as nursery:
            for number, (key, byte_range) in enumerate(key_ranges):
                nursery.start_soon(ask, number, key, byte_range)
        if errors:
            raise errors[min(errors)]
        return [answers[number] for number in range(len(key_ranges))]

    async def _answer(self, key: Key, byte_range: ByteRange) -> Answer:
        try:
            found = await self.get_with_stat(key, byte_range)
        except StoreAccessDenied as error:
            return Denied(error)
        return MISSING if found is None else Got(*found)

    async def hold(self, key: Key) -> Held | None:
        """Return the value of ``key``, readable after it is replaced; None if absent or unsupported. The caller closes it."""
        return None

    async def data_from(self, key: Key, offset: int) -> int:
        """Return the first offset at or after ``offset`` in the value of ``key`` that is not in a hole.

        Bytes between the two are zeros; if the result is the size of the value, so are all remaining bytes. Returns ``offset`` itself if
        the backend keeps no holes, or the value is absent.
        """
        return offset

    @abc.abstractmethod
    async def stat(self, key: Key) -> KeyStat | None:
        """Return size, time and generation of a value, without reading it; None if absent."""

    async def check_generation(self, key: Key, generation: Generation) -> None:
        """Raise `GenerationMismatch` unless ``key`` has a value of ``generation`` now."""
        stat = await self.stat(key)
        if stat is None or stat.generation != generation:
            raise GenerationMismatch(f"{key!r} was changed concurrently", key=key)

    # --- writable -----------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        """Store the whole ``value`` under ``key``, visible to all readers on return, durable only after `sync`; return its generation.

        With ``expect`` the value is stored only if the key has that generation now, or no value (`ABSENT`); else `GenerationMismatch` is
        raised. See `Capabilities.match` and `Capabilities.create_only`.
        """

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        """Store values at byte offsets of keys; the rest of each value stays.

        A gap past the old end is filled with zeros. An absent key gets a value; apart from this an empty value changes nothing. Raises
        `RangesOverlap`, before anything is stored, if two ranges of one key overlap. This fallback gets and sets each key once, under
        `exclusive`.
        """
        pieces: dict[Key, list[tuple[int, Buffer]]] = {}
        for key, start, value in key_start_values:
            if start < 0:
                raise ValueError(f"negative offset {start} for key {key!r}")
            of_key = pieces.setdefault(key, [])
            if len(value):
                of_key.append((start, value))
        for key, parts in pieces.items():
            parts.sort(key=lambda part: part[0])
            for (start, value), (following, _) in zip(parts, parts[1:], strict=False):
                if start + len(value) > following:
                    raise RangesOverlap(f"overlapping ranges for {key!r} at byte {following}", key=key)
        for key, parts in pieces.items():
            async with self.exclusive(key):
                whole = bytearray(await self.get(key) or b"")
                for start, value in parts:
                    if start > len(whole):
                        whole.extend(bytes(start - len(whole)))
                    whole[start : start + len(value)] = value
                await self.set(key, whole)

    @abc.abstractmethod
    async def erase(self, key: Key) -> None:
        """Remove ``key`` and its value; an absent key is no error."""

    async def erase_if(self, key: Key, generation: Generation) -> None:
        """Run `erase` if ``key`` has a value of ``generation`` now; else raise `GenerationMismatch`. This fallback checks it before."""
        await self.check_generation(key, generation)
        await self.erase(key)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        """Remove several keys."""
        for key in keys:
            await self.erase(key)

    async def erase_prefix(self, prefix: Prefix) -> None:
        """Remove all keys that begin with ``prefix`` (the empty prefix: all keys)."""
        await self.erase_values([key async for key in self.list_prefix(prefix)])

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        """Return when these keys, set or erased, survive a power cut; for a prefix, all names below it; for `Contents`, all values too.
        For `IfUnsynced`, only what was set or moved through this store.

        Backends whose changes are durable at once inherit this.
        """

    async def sync_all(self) -> None:
        """Run `sync` for all changes made through this store. Backends whose changes are durable at once inherit this."""

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        """Lock ``key`` against other holders of its lock: in this process, and beyond it if the backend can.

        For read-modify-write of one value. This fallback locks within the process.
        """
        return _locks_of(self).hold(key)

    async def copy(self, old: Key, new: Key) -> bool:
        """Store the value of ``old`` under ``new`` as well. Return False, with nothing changed, if ``old`` has no value.

        This fallback gets and sets it."""
        value = await self.get(old)
        if value is not None:
            await self.set(new, value)
        return value is not None

    # --- file system operations ----------------------------------------------------------------------------------------------

    async def rename(self, old: Key, new: Key) -> bool:
        """Move the value of ``old`` to ``new``, replacing any value there, in one step; its mtime stays.

        Return False, with nothing changed, if ``old`` has no value.
        """
        raise self._unsupported("rename keys")

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        """Move all keys that begin with ``old`` to ``new``, in one step; their mtimes stay.

        Return False, with nothing changed, if ``old`` is empty. Raises `PrefixNotEmpty` if ``new`` is not empty, `KeyConflict` if ``new``
        lies below ``old``.
        """
        raise self._unsupported("rename prefixes")

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        """Exchange all keys below ``one`` and ``other``, in one step; mtimes stay.

        Raises `StoreNotFound` if one of them is empty, `KeyConflict` if one lies below the other.
        """
        raise self._unsupported("exchange prefixes")

    async def make_prefix(self, prefix: Prefix) -> None:
        """Create ``prefix``, listed although no key begins with it; it may exist."""
        raise self._unsupported("hold empty prefixes")

    async def remove_prefix(self, prefix: Prefix) -> None:
        """Remove a prefix without keys; an absent one is no error. Raises `PrefixNotEmpty` if it has keys (and see `Filled`)."""
        raise self._unsupported("hold empty prefixes")

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        """Set the mtime that `stat` and `list_dir` return, which may change the generation. Return False if ``key`` has no value."""
        raise self._unsupported("set times")

    # --- listable -----------------------------------------------------------------------------------------------------------

    def list(self) -> AsyncIterator[Key]:
        """Return all keys of the store, in no particular order."""
        return self.list_prefix(Prefix(""))

    async def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        """Return all keys that begin with ``prefix``. The constructor of `Prefix` rejects a string without trailing slash."""
        pending = [prefix]
        while pending:
            here = pending.pop()
            async for name, is_prefix, _, _ in self.list_dir(here):
                if is_prefix:
                    pending.append(here.child(name))
                else:
                    yield here.key(name)

    @abc.abstractmethod
    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        """Return keys and prefixes directly below ``prefix``, each once; nothing if there are none."""

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        """Return the first ``most`` entries of ``prefix``, or all if fewer; None if `prefix_exists` is False.

        One request where the backend can; this fallback lists, and looks up a prefix whose listing is empty.
        """
        entries = await first_of(self.list_dir(prefix), most)
        return entries if entries or await self.prefix_exists(prefix) else None

    async def prefix_exists(self, prefix: Prefix) -> bool:
        """Return True if the parent of ``prefix`` lists it: a key begins with it, or the store keeps it empty."""
        return bool(await first_of(self.list_dir(prefix), 1))

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        """Return the time at which the names directly below ``prefix`` last changed, in ns; None if the backend has none."""
        return None

    def anchor(self, prefix: Prefix, *, spare: bool = False) -> Anchor | None:
        """Return the identity of the folder ``prefix``, which distinguishes it from a later one of its name; `AbsentFolder` if absent.

        None where the backend has no folders, or would have to wait, as in this fallback. A ``spare`` anchor is never held at the cost of
        one that is not. `AbsentFolder` is in `zarrfs.stores.anchor`.
        """
        return None

    def part_of(self, target: Key | Prefix) -> str:
        """Return the part of the store that ``target`` is in, if that part can hang by itself: its prefix, without slash.

        "" is the store itself. Called often; does not wait.
        """
        del target
        return ""

    # --- change -------------------------------------------------------------------------------------------------------------

    async def watch(self, on_changes: Callable[[Sequence[Change]], None]) -> None:
        """Report changes by other programs for as long as the backend does; runs once, as a task.

        The first call of ``on_changes``, with no changes, marks the start: from then on every change is reported soon after it. A change
        of the empty prefix means that more changed than could be reported. Changes made through this store are left out, as far as they
        can be distinguished. Returns, after a log message, if the backend does not report, or no longer; this fallback returns at once.
        """

    # --- lifetime -----------------------------------------------------------------------------------------------------------

    def set_owner(self, uid: int | None, gid: int | None) -> None:
        """Set the owner of what is created from now on (None: the process's own user or group).

        Effective if the backend keeps owners and the process has the right. Called before the first write.
        """
        del uid, gid

    def destine(self, prefix: Prefix, *places: Prefix) -> None:
        """Announce that ``prefix`` will be renamed to the place, or holds parts of several for a time; without places: no longer.

        Keys set there get the rights of the place, if the backend keeps rights. Called before ``prefix`` exists, and at the end.
        """
        del prefix, places

    async def free_space(self) -> tuple[int, int] | None:
        """Return the ``(total, free)`` bytes of the underlying storage; None if unknown."""
        return None

    async def aclose(self) -> None:
        """Release files, connections and threads. No method is called afterwards."""

    def _require_writable(self, key: str) -> None:
        if not self.capabilities.write:
            raise StoreReadOnly(f"{self.url or type(self).__name__} is read-only", key=key)

    def _unsupported(self, operation: str) -> StoreUnsupported:
        return StoreUnsupported(f"{self.url or type(self).__name__} cannot {operation}")


async def first_of(listed: AsyncIterator[T], most: float) -> list[T]:
    """Return the first ``most`` items of a listing, or all, and end it."""
    found: list[T] = []
    try:
        while len(found) < most and (each := await anext(listed, None)) is not None:
            found.append(each)
    finally:
        if isinstance(listed, AsyncGenerator):
            await listed.aclose()
    return found


def _resolved(byte_range: ByteRange, size: int) -> ByteRange:
    start, stop = byte_range.resolve(size)
    return ByteRange(start, stop - start)


@dataclass(frozen=True, slots=True)
class StorePlugin:
    """Describes how a backend is recognised and opened.

    ``schemes``: URL schemes of its own (``"memory"``, ``"s3"``). A plain path belongs to the first plug-in whose ``claims`` returns True,
    in order of ``priority`` (low first). ``open(location, read_only)``, where location is the path or what follows ``scheme:``, returns
    the store; it raises `StoreNotFound`, `StoreAccessDenied`. ``example(folder)`` returns the URL of a new, empty, writable store with
    all its files below ``folder``; the conformance suite runs over every plug-in that has one. ``open_inside(path, prefix, read_only)``
    opens what is below a prefix of it (``x.zip|zip:prefix``); only archives, whose locations are paths, have it. ``suffixes``: endings
    of file names of such stores, in lower case and without the dot, which are not part of the store's name.
    """

    name: str
    schemes: tuple[str, ...]
    open: Callable[[str, bool], Awaitable[Store]]
    claims: Callable[[str], bool] | None = None
    priority: int = 100
    example: Callable[[str], str] | None = None
    open_inside: Callable[[str, str, bool], Awaitable[Store]] | None = None
    suffixes: tuple[str, ...] = ()


def check_plugin(offered: object) -> None:
    """Raise TypeError if ``offered`` is no usable plug-in of this package: other distributions may offer any object."""
    if not isinstance(offered, StorePlugin):
        raise TypeError(f"a {type(offered).__name__} is no StorePlugin")
    names = (offered.name, *offered.schemes, *offered.suffixes)
    if not all(isinstance(word, str) for word in names) or not isinstance(offered.priority, int):
        raise TypeError("its name, schemes and suffixes have to be strings, and its priority an integer")
    if not callable(offered.open) or not all(each is None or callable(each) for each in (offered.claims, offered.open_inside)):
        raise TypeError("its open, claims and open_inside have to be callable")


def _locks_of(store: Store) -> LockTable:
    # Created on first use, so that a backend need not call an __init__ of the interface.
    table: LockTable | None = store.__dict__.get("_exclusive_locks")
    if table is None:
        table = store.__dict__["_exclusive_locks"] = LockTable()
    return table
