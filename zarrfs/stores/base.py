"""The abstract store interface.

Source: Zarr v3 core (draft of 2022), section "Abstract store interface", under its names: ``get``, ``get_partial_values``, ``set``,
``set_partial_values``, ``erase``, ``erase_values``, ``erase_prefix``, ``list``, ``list_prefix``, ``list_dir``, in three sets of
capabilities (readable, writable, listable). Added, because a file system needs them: ``stat``, ``sync``, ``exclusive``, a generation
for each value, and sizes and times in ``list_dir``.

A backend implements `get`, `get_partial_values`, `stat`, `set`, `erase`, `list_dir` as far as it has the capability and inherits the
rest; it overrides whatever it can do better. What a file system can do and most backends cannot (`rename`, `make_prefix`,
`set_times`, ...) raises `StoreUnsupported` unless it is overridden, and the caller finds another way. One file a backend: a subclass
of `Store`, and a module constant ``PLUGIN`` that is a `StorePlugin`, by which `zarrfs.stores.opening.open_store` finds it. Stores
translate every exception of their library into `zarrfs.errors.StoreError` and its kin, naming the key.

Any operation may be called concurrently with any other. ``set`` replaces the whole value: a concurrent ``get`` sees the old or the
new value of that key, never a mix, and so does whoever looks at the backend after a crash.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio

from zarrfs.errors import GenerationMismatch, RangesOverlap, StoreAccessDenied, StoreReadOnly, StoreUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.capabilities import Capabilities
from zarrfs.stores.change import Change
from zarrfs.stores.locks import LockTable
from zarrfs.stores.values import MISSING, Answer, Buffer, Denied, DirEntry, Expected, Generation, Got, KeyStat, answer

# How often a value is asked for that is replaced each time between two requests.
_TRIES = 8

# Looking up so many names takes about 1 ms where that needs no waiting.
_ANSWERS_NOW = 32


class WouldWait(Exception):
    """The answer is not at hand: ask the form of the operation that can wait."""


class Held(abc.ABC):
    """A value that can be read whatever becomes of its key: see `Store.hold`. ``stat``: what `Store.stat` tells of it."""

    stat: KeyStat

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """At most ``size`` bytes from ``offset``. Raises `GenerationMismatch` where somebody has written into the value itself."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of it."""


class Store(abc.ABC):
    """A backend. ``url`` names it for people, without secrets."""

    url: str = ""
    capabilities: Capabilities = Capabilities()

    # --- readable -----------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def get(self, key: Key) -> Buffer | None:
        """The value of ``key``; None when there is none."""

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """Parts of values, in the order asked for; a key may occur several times; None for each missing key.

        A range that reaches past the end gives what there is (empty bytes where it begins past the end). With ``if_generation``
        (only for ranges of one key) `GenerationMismatch` is raised when the value is not that generation, also when it is gone.
        This fallback gets whole values, each key once.
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
        """A part of a value, and what `stat` tells of that very value; None when there is none.

        Backends whose answer to a request tells both need one request for it; this fallback asks twice.
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

    def get_partial_values_now(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """`get_partial_values` of what is at hand (in memory, in the page cache); else `WouldWait`, and nothing was done.

        For callers that would else pay more for waiting than for the answer. A transformer has to forward it by itself.
        """
        raise WouldWait

    def get_with_stat_now(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        """`get_with_stat` where the answer is at hand; else `WouldWait`."""
        raise WouldWait

    def stat_now(self, key: Key) -> KeyStat | None:
        """`stat` where the answer is at hand; else `WouldWait`."""
        raise WouldWait

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        """Parts of values, each with what `stat` returns for that very value, in the order asked for and in one batch.

        A key that is missing and one that may not be read are answers. Raises the first other `StoreError`, when all have ended.
        This fallback sends one request for each key, `Capabilities.width` of them at once.
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

    def get_many_now(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        """`get_many` where all answers are at hand; else `WouldWait`."""
        if len(key_ranges) > _ANSWERS_NOW:
            raise WouldWait
        return [answer(self.get_with_stat_now, *each) for each in key_ranges]

    async def hold(self, key: Key) -> Held | None:
        """The value of ``key``, to be read also when it was replaced, for the caller to close; None where there is none, or the backend
        cannot hold it."""
        return None

    async def data_from(self, key: Key, offset: int) -> int:
        """Where in the value of ``key`` data begins, at ``offset`` or behind it: what lies before that is zeros, or, where it is the size
        of the value, all of the rest. ``offset`` itself where the backend keeps no holes, or there is no such value."""
        return offset

    @abc.abstractmethod
    async def stat(self, key: Key) -> KeyStat | None:
        """Size, time and generation of a value, without reading it; None when there is none."""

    async def check_generation(self, key: Key, generation: Generation) -> None:
        """Raise `GenerationMismatch` unless ``key`` holds a value of ``generation`` now."""
        stat = await self.stat(key)
        if stat is None or stat.generation != generation:
            raise GenerationMismatch(f"{key!r} was changed by someone else", key=key)

    # --- writable -----------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        """Store ``value`` under ``key``, whole: visible to everyone when this returns, durable only after `sync`.

        With ``expect`` the value is stored only if the key holds that generation now, or nothing (`ABSENT`), else `GenerationMismatch` is
        raised; see `Capabilities.match` and `Capabilities.create_only`. Returns the generation of what was stored.
        """

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        """Store values at byte offsets of keys; the rest of each value stays. A gap past the old end is zeros;
        a key that held nothing holds a value afterwards, and an empty value changes nothing else.

        Raises `RangesOverlap`, before anything is stored, when two ranges of one key overlap. This fallback gets and sets each key
        once, under `exclusive`.
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
        """Remove ``key`` and its value; a key that is not there is no error."""

    async def erase_values(self, keys: Iterable[Key]) -> None:
        """Remove several keys."""
        for key in keys:
            await self.erase(key)

    async def erase_prefix(self, prefix: Prefix) -> None:
        """Remove every key that begins with ``prefix`` (the empty prefix: all keys)."""
        await self.erase_values([key async for key in self.list_prefix(prefix)])

    async def sync(self, places: Iterable[Key | Prefix]) -> None:
        """Return when what was set under (or erased at) these keys survives a power cut, and, for a prefix, which names there are
        directly below it. Backends that are durable at once inherit."""

    async def sync_all(self) -> None:
        """`sync` of all that was changed through this store. Backends that are durable at once inherit."""

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        """While held, no other holder of the same key's lock exists: in this process, and beyond it where the backend can.

        For read-modify-write of one value. This fallback locks within the process.
        """
        return _locks_of(self).hold(key)

    async def copy(self, old: Key, new: Key) -> bool:
        """Store the value of ``old`` under ``new`` as well. False, with nothing changed, when ``old`` has no value.

        This fallback gets and sets it."""
        value = await self.get(old)
        if value is not None:
            await self.set(new, value)
        return value is not None

    # --- what a file system can do -------------------------------------------------------------------------------------------

    async def rename(self, old: Key, new: Key) -> bool:
        """Give the value of ``old`` the key ``new``, replacing what is there, in one step; its mtime stays.

        False, with nothing changed, when ``old`` has no value.
        """
        raise self._unsupported("rename keys")

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        """Move every key that begins with ``old`` to ``new``, in one step; their mtimes stay.

        False, with nothing changed, when there is nothing under ``old``. Raises `PrefixNotEmpty` when something is under ``new``,
        `KeyConflict` when ``new`` lies below ``old``.
        """
        raise self._unsupported("rename prefixes")

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        """Let what lies under ``one`` lie under ``other``, and the reverse, in one step; mtimes stay. Raises `StoreNotFound` where there
        is nothing under one of them, `KeyConflict` when one lies below the other."""
        raise self._unsupported("exchange prefixes")

    async def make_prefix(self, prefix: Prefix) -> None:
        """Let ``prefix`` be listed although no key begins with it; it may be there already."""
        raise self._unsupported("hold empty prefixes")

    async def remove_prefix(self, prefix: Prefix) -> None:
        """Undo `make_prefix`; a prefix that is not there is no error. Raises `PrefixNotEmpty` when something is under it."""
        raise self._unsupported("hold empty prefixes")

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        """Set the mtime that `stat` and `list_dir` tell; this may change the generation. False when ``key`` has no value."""
        raise self._unsupported("set times")

    # --- listable -----------------------------------------------------------------------------------------------------------

    def list(self) -> AsyncIterator[Key]:
        """Every key of the store, in no particular order."""
        return self.list_prefix(Prefix(""))

    async def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        """Every key that begins with ``prefix``. A string that is not a `Prefix` (no trailing slash) is refused when it is made."""
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
        """Keys and prefixes directly below ``prefix``, each once; nothing when there are none."""

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        """The first ``most`` entries of ``prefix``, all where there are fewer; None where `prefix_exists` is False.

        One request where the backend can; this fallback lists, and asks for a prefix in which nothing is listed.
        """
        entries = await _first(self.list_dir(prefix), most)
        return entries if entries or await self.prefix_exists(prefix) else None

    async def prefix_exists(self, prefix: Prefix) -> bool:
        """Whether ``prefix`` would be listed in its parent: some key begins with it, or the store keeps it empty."""
        return bool(await _first(self.list_dir(prefix), 1))

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        """When the set of names directly below ``prefix`` last changed, where the backend knows; else None."""
        return None

    def anchor(self, prefix: Prefix, *, spare: bool = False) -> Anchor | None:
        """What tells the folder ``prefix`` from one that comes to be in its place, where the backend has folders, and can do that at
        once; `zarrfs.stores.anchor.Nowhere` for one that is not there. One that is ``spare`` is never held at the cost of one that is
        not. This fallback has none."""
        return None

    def part_of(self, place: Key | Prefix) -> str:
        """The prefix, without its slash, of the part of the store that ``place`` is in, where that may hang while the rest answers; ""
        for the store itself. Called often; does not wait."""
        del place
        return ""

    # --- change -------------------------------------------------------------------------------------------------------------

    async def watch(self, told: Callable[[Sequence[Change]], None]) -> None:
        """Tell of changes that others make, for as long as the backend does; to be run once, as a task.

        The first call of ``told``, with nothing, says that from now on every change is told, soon after it was made; one of the empty
        prefix that more happened than could be told. Changes made through this store are left out, as far as they can be told apart.
        Returns, after a line in the log, where the backend does not tell, or no longer: this fallback returns at once.
        """

    # --- life ---------------------------------------------------------------------------------------------------------------

    def set_owner(self, uid: int | None, gid: int | None) -> None:
        """Give what is created from now on to this user and group (None: the process's own), where the backend keeps owners and the
        process may do that. Called before anything is written."""
        del uid, gid

    async def free_space(self) -> tuple[int, int] | None:
        """``(total, free)`` bytes of what the store lives on, where that is known; else None."""
        return None

    async def aclose(self) -> None:
        """Let go of files, connections and threads. Nothing is called afterwards."""

    def _demand_writable(self, place: str) -> None:
        if not self.capabilities.write:
            raise StoreReadOnly(f"{self.url or type(self).__name__} is read-only", key=place)

    def _unsupported(self, operation: str) -> StoreUnsupported:
        return StoreUnsupported(f"{self.url or type(self).__name__} cannot {operation}")


async def _first(entries: AsyncIterator[DirEntry], most: int) -> list[DirEntry]:
    found: list[DirEntry] = []
    try:
        while len(found) < most and (entry := await anext(entries, None)) is not None:
            found.append(entry)
    finally:
        if isinstance(entries, AsyncGenerator):
            await entries.aclose()
    return found


def _resolved(byte_range: ByteRange, size: int) -> ByteRange:
    start, stop = byte_range.resolve(size)
    return ByteRange(start, stop - start)


@dataclass(frozen=True, slots=True)
class StorePlugin:
    """How a backend is recognised and opened.

    ``schemes``: URL schemes that are its own (``"memory"``, ``"s3"``). A plain path belongs to the first plug-in whose ``claims``
    says so, in order of ``priority`` (low first). ``open(location, read_only)``, where location is the path or what follows
    ``scheme:``, gives the store; it raises `StoreNotFound`, `StoreAccessDenied`. ``example(folder)`` gives the URL of a new, empty,
    writable store that keeps what it keeps below ``folder``: the conformance suite runs over every plug-in that has one.
    ``open_inside(path, prefix, read_only)`` gives what lies under a prefix of it (``x.zip|zip:prefix``): of archives, whose locations
    are paths. ``suffixes``: what names of such stores end with, in lower case and without the dot; no part of the store's name.
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
    """Raise TypeError for what is no plug-in of this package, or none that can be used: another distribution may offer anything."""
    if not isinstance(offered, StorePlugin):
        raise TypeError(f"a {type(offered).__name__} is no StorePlugin")
    words = (offered.name, *offered.schemes, *offered.suffixes)
    if not all(isinstance(word, str) for word in words) or not isinstance(offered.priority, int):
        raise TypeError("its name, schemes and suffixes have to be strings, and its priority an integer")
    if not callable(offered.open) or not all(each is None or callable(each) for each in (offered.claims, offered.open_inside)):
        raise TypeError("what opens stores, or claims them, has to be callable")


def _locks_of(store: Store) -> LockTable:
    # Made on first use, so that a backend need not call an __init__ of the interface.
    table: LockTable | None = store.__dict__.get("_exclusive_locks")
    if table is None:
        table = store.__dict__["_exclusive_locks"] = LockTable()
    return table
