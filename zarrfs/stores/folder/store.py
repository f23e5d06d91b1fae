"""A folder of files: each key is a path below it. A plain path, or ``file:``.

Source: v2 "Storage" and the final v3's file system store: the value of the key ``a/b`` is the content of the file ``a/b``.

Where to wait. On a file system of this machine a lookup and a read from the page cache are answered inline, in about 20 microseconds; a
read that would wait for the disk, a read of more than `INLINE_NBYTES`, and every write run in a thread (a rename may wait for the file
system's journal as long as another program's fsync takes). On any other file system every operation runs in a thread that is abandoned
when the caller is cancelled: a write may then still take effect, and `zarrfs.transformers.deadline` fences it.

``set`` and ``erase`` with a generation are atomic between mounts, and ``set`` with `ABSENT` (create) against other programs, too.
`exclusive` excludes other mounts: a read-modify-write of a value holds it.
A folder without files still exists, and is listed: `erase` leaves the folders of what it removes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from typing import TypeVar

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, KeyConflict, KeyUnusable
from zarrfs.keys import WHOLE, ByteRange, Filled, Key, Prefix
from zarrfs.memory.spill import Buffers
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Held, Store
from zarrfs.stores.capabilities import Capabilities
from zarrfs.stores.change import Change
from zarrfs.stores.folder.anchors import Anchors
from zarrfs.stores.folder.changes import FolderChanges
from zarrfs.stores.folder.held import HeldFiles
from zarrfs.stores.folder.inline import InlineTree
from zarrfs.stores.folder.lock import FolderLocks
from zarrfs.stores.folder.mountpoints import Mountpoints
from zarrfs.stores.folder.names import NAME_MAX, Parts, key_stat, parts_of
from zarrfs.stores.folder.removal import remove_folder, remove_tree, remove_values
from zarrfs.stores.folder.rights import Owner
from zarrfs.stores.folder.several import read_several
from zarrfs.stores.folder.syncing import sync_targets
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.locks import LockTable
from zarrfs.stores.os_errors import translated
from zarrfs.stores.values import Answer, DirEntry, Expected, Generation, KeyStat, answer

T = TypeVar("T")

INLINE_NBYTES = 1 << 20
"""Bytes whose copy from the page cache takes as long as a hop to a thread."""

_INLINE_VALUES = 32
"""Names whose lookup takes about 1 ms."""
_FIRST_PORTION = 256
_PORTION = 2048
"""Names listed inline, and then in each hop to a thread: well below 1 ms, and 5 ms."""


class FolderStore(Store):
    """The files below the folder ``path``. Raises `OSError` if it cannot be opened."""

    capabilities = Capabilities(hierarchical=True, rename=True, exchange=True, empty_prefixes=True, times=True)

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        self._tree = FolderTree(path, read_only=read_only)
        self._inline = InlineTree(self._tree)
        self._held = HeldFiles(self._inline)
        self._mountpoints = Mountpoints()
        self.url, self.left_out = self._tree.path, self._tree.left_out.known
        self.capabilities = replace(self.capabilities, write=self._tree.writable, watch=self._tree.local, name_nbytes=NAME_MAX)
        # A set that checks the generation must observe every other set of its key end.
        self._writing = LockTable()
        self._folder_locks = FolderLocks(self._tree)
        self._changes = FolderChanges(self._tree, self._inline)
        self.has_changes_now = self._changes.are_waiting  # type: ignore[method-assign]
        self._anchors, self._spare_anchors = Anchors(self._tree, part=8), Anchors(self._tree, part=16)

    # --- readable -----------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Buffer | None:
        return (await self.get_partial_values([(key, WHOLE)]))[0]

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """Return parts; those of one value are of one generation. Several values are read in one thread."""
        try:
            return self.get_partial_values_now(key_ranges, if_generation=if_generation)
        except WouldWait:
            return await self._wait([key for key, _ in key_ranges], self._read, key_ranges, if_generation, None)

    def get_partial_values_now(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        if len(key_ranges) > _INLINE_VALUES:
            raise WouldWait
        return self._read(key_ranges, if_generation, INLINE_NBYTES // max(1, len(key_ranges)))

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        try:
            return self.get_with_stat_now(key, byte_range)
        except WouldWait:
            return await self._wait([key], self._read_with_stat, key, byte_range, None)

    def get_with_stat_now(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return self._read_with_stat(key, byte_range, INLINE_NBYTES)

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        """Return parts of several values, read in one thread."""
        try:
            return self.get_many_now(key_ranges)
        except WouldWait:
            return await self._wait(
                [key for key, _ in key_ranges], lambda: [answer(self._read_with_stat, *each, None) for each in key_ranges]
            )

    async def hold(self, key: Key) -> Held | None:
        return None if (parts := _parts_if_usable(key)) is None else self._held.hold(parts)

    async def data_from(self, key: Key, offset: int) -> int:
        parts = _parts_if_usable(key)
        with translated("reading", key):
            # The kernel may have to search many blocks.
            return offset if parts is None else await self._wait([key], self._tree.data_from, parts, offset)

    async def stat(self, key: Key) -> KeyStat | None:
        try:
            return self.stat_now(key)
        except WouldWait:
            parts = _parts_if_usable(key) or ()
            if parts in self._tree.mounts.now():
                return await self._mountpoints.ask(parts, lambda _: self._stat(key, self._tree.stat), None)
            return await self._wait([key], self._stat, key, self._tree.stat)

    def stat_now(self, key: Key) -> KeyStat | None:
        return self._stat(key, self._inline.stat)

    # --- writable -----------------------------------------------------------------------------------------------------------

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        parts = self._parts_to_write(key)
        async with self._writing.hold(key):
            with translated("writing", key), self._changes.own(parts) as own:
                generation = await self._change([parts], self._tree.replace, parts, value, expect)
                own.left[parts] = generation
                return generation

    async def erase(self, key: Key, *, expect: Generation | None = None) -> None:
        parts = self._parts_to_write(key)
        async with self._writing.hold(key):
            with translated("removing", key), self._changes.own(parts) as own:
                await self._change([parts], self._tree.remove, parts, expect)
                own.left[parts] = ""

    async def erase_if(self, key: Key, generation: Generation) -> None:
        await self.erase(key, expect=generation)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        erased = sorted(set(keys))
        parts = [self._parts_to_write(key) for key in erased]
        async with AsyncExitStack() as stack:
            # In sorted order, so that two callers never wait for each other's locks.
            for key in erased:
                await stack.enter_async_context(self._writing.hold(key))
            with translated("removing", erased[0] if erased else ""), self._changes.own(*parts) as own:
                await self._change(parts, remove_values, self._tree, parts)
                own.left.update(dict.fromkeys(parts, ""))

    async def erase_prefix(self, prefix: Prefix) -> None:
        parts = self._parts_to_write(prefix)
        with translated("removing", prefix), self._changes.own(below=(parts,)):
            await self._change([parts], remove_tree, self._tree, parts)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        synced = list(targets)
        if synced:
            self._require_writable(synced[0])
            with translated("syncing", synced[0]):
                # There may be many: if none can hang, their names are parsed in the thread only.
                await self._change(map(parts_of, synced), sync_targets, self._tree, synced)

    async def sync_all(self) -> None:
        with translated("syncing", self.url):
            await self._change((), self._tree.sync_all)

    @asynccontextmanager
    async def exclusive(self, key: Key) -> AsyncIterator[None]:
        """Lock a key; between processes all keys of one folder share a flock(2) on the folder, which is created if missing."""
        parts = self._parts_to_write(key)
        key_lock, folder_lock = super().exclusive(key), self._folder_locks.hold(parts[:-1])
        await key_lock.__aenter__()
        try:
            with translated("locking the folder of", key):
                await folder_lock.__aenter__()
            try:
                yield
            finally:
                # Not by ``async with``: trio ends a lock that is held until the end of the process in any order of these generators.
                await folder_lock.__aexit__(None, None, None)
        finally:
            await key_lock.__aexit__(None, None, None)

    # --- file system operations ---------------------------------------------------------------------------------------------

    async def rename(self, old: Key, new: Key) -> bool:
        old_parts, new_parts = self._parts_to_write(old), self._parts_to_write(new)
        with translated(f"renaming {old!r} to", new), self._changes.own(old_parts, new_parts, moved_to=new_parts) as own:
            generation = await self._change([old_parts, new_parts], self._tree.rename, old_parts, new_parts)
            own.took_effect = generation is not None
            own.left.update({old_parts: "", new_parts: generation or ""})
            return own.took_effect

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        old_parts, new_parts = self._parts_to_write(old), self._parts_to_write(new)
        if old_parts != new_parts and new_parts[: len(old_parts)] == old_parts:
            raise KeyConflict(f"renaming {old!r} to {new!r}: one lies below the other", key=old)
        with translated(f"renaming {old!r} to", new), self._changes.own(below=(old_parts,), moved_to=new_parts) as own:
            own.took_effect = await self._change([old_parts, new_parts], self._tree.rename_folder, old_parts, new_parts)
        return own.took_effect

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        both = self._parts_to_write(one), self._parts_to_write(other)
        if one.startswith(other) or other.startswith(one):
            raise KeyConflict(f"exchanging {one!r} and {other!r}: one lies below the other", key=one)
        with translated(f"exchanging {one!r} and", other), self._changes.own(*both, below=both) as own:
            try:
                await self._change(both, self._tree.exchange_folders, *both)
                own.left.update(dict.fromkeys(both, "/"))
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise self._unsupported("exchange prefixes") from error
                raise

    async def make_prefix(self, prefix: Prefix) -> None:
        parts = self._parts_to_write(prefix)
        with translated("making", prefix), self._changes.own(parts) as own:
            await self._change([parts], self._tree.make_folder, parts)
            own.left[parts] = "/"

    async def remove_prefix(self, prefix: Prefix) -> None:
        parts = self._parts_to_write(prefix)
        if not parts:
            raise KeyUnusable("the store's own folder cannot be removed", key=prefix)
        with translated("removing", prefix), self._changes.own(below=(parts,)):
            await self._change([parts], remove_folder, self._tree, parts, isinstance(prefix, Filled))

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        parts = self._parts_to_write(key)
        with translated("setting the time of", key), self._changes.own(parts, of_times=True) as own:
            found = await self._change([parts], self._tree.set_mtime, parts, mtime_ns)
            own.left[parts] = found or ""
            return found is not None

    # --- listable -----------------------------------------------------------------------------------------------------------

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        parts = _parts_if_usable(prefix)
        if parts is None:
            return
        with translated("listing", prefix):
            try:
                scan = self._inline.scan(parts)
            except WouldWait:
                for entry in await self._wait([prefix], self._tree.list_folder, parts):
                    yield entry
                return
            if scan is None:
                return
            try:
                portion = scan.portion(_FIRST_PORTION)
                while portion is not None:
                    for entry in portion:
                        yield entry
                    portion = None if scan.is_over else await threads.io(scan.portion, _PORTION)
            finally:
                scan.close()

    def list_dir_now(self, prefix: Prefix) -> Sequence[DirEntry]:
        with translated("listing", prefix):
            scan = self._inline.scan(parts) if (parts := _parts_if_usable(prefix)) is not None else None
            if scan is None:
                return ()
            with closing(scan):
                found = scan.portion(_FIRST_PORTION) or ()
            if not scan.is_over:
                raise WouldWait
            return found

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        parts = _parts_if_usable(prefix)
        if parts is None:
            return None
        with translated("listing", prefix):
            try:
                scan = self._inline.scan(parts)
            except WouldWait:
                return await super().peek(prefix, most)
            if scan is None:
                return None
            with closing(scan):
                found = (scan.portion(most) if most <= _FIRST_PORTION else await threads.io(scan.portion, most)) or []
                # Not every name is that of an entry.
                while len(found) < most and not scan.is_over:
                    more = await threads.io(scan.portion, _PORTION)
                    found += more or ()
                return found[:most]

    async def prefix_exists(self, prefix: Prefix) -> bool:
        return await self.prefix_mtime_ns(prefix) is not None

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        try:
            return self.prefix_mtime_ns_now(prefix)
        except WouldWait:
            parts = parts_of(prefix)
            with translated("looking up", prefix):
                if parts in self._tree.mounts.now():
                    return await self._mountpoints.ask(parts, self._tree.folder_mtime_ns, self._inline.folder_mtime_ns(parts[:-1]))
                return await self._wait([prefix], self._tree.folder_mtime_ns, parts)

    def prefix_mtime_ns_now(self, prefix: Prefix) -> int | None:
        parts = _parts_if_usable(prefix)
        with translated("looking up", prefix):
            return None if parts is None else self._inline.folder_mtime_ns(parts)

    def anchor(self, prefix: Prefix, *, spare: bool = False) -> Anchor | None:
        parts = _parts_if_usable(prefix)
        return (self._spare_anchors if spare else self._anchors).hold(parts) if parts else None

    def part_of(self, target: Key | Prefix) -> str:
        """Return the mountpoint in the folder that ``target`` is below, if it may wait for a server while the folder does not."""
        parts = _parts_if_usable(target) or ()
        mount = self._tree.mounts.over(parts)
        return "" if mount is None or mount == parts else "/".join(mount)

    # --- change -------------------------------------------------------------------------------------------------------------

    async def watch(self, on_changes: Callable[[Sequence[Change]], None]) -> None:
        """Report changes through inotify, if the library is installed and the file system is of this machine."""
        await self._changes.watch(on_changes)

    # --- lifetime -----------------------------------------------------------------------------------------------------------

    def set_owner(self, uid: int | None, gid: int | None) -> None:
        # Without root the kernel would refuse each file.
        if os.geteuid() == 0 and (uid, gid) != (None, None):
            self._tree.owner, self._tree.trusted = Owner(uid, gid), self._tree.trusted | {uid}

    def destine(self, prefix: Prefix, *places: Prefix) -> None:
        self._tree.new_folders.destine(parts_of(prefix), *filter(None, map(_parts_if_usable, places)))

    async def free_space(self) -> tuple[int, int]:
        with translated("measuring", self.url):
            return self._tree.free_space() if self._tree.local else await self._wait((), self._tree.free_space)

    async def aclose(self) -> None:
        self._anchors.close()
        self._spare_anchors.close()
        self._tree.close()

    # --- waiting ------------------------------------------------------------------------------------------------------------

    def _read(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], if_generation: Generation | None, at_once: int | None
    ) -> list[Buffer | None]:
        """Read parts inline, up to ``at_once`` bytes a value (`InlineTree.read_with_stat`); with None, in a thread."""
        if len(key_ranges) == 1:
            alone = self._read_value(key_ranges[0][0], (key_ranges[0][1],), if_generation, at_once)
            return [None if alone is None else alone[0]]
        indices: dict[Key, list[int]] = {}
        for index, (key, _) in enumerate(key_ranges):
            indices.setdefault(key, []).append(index)
        if at_once is None and if_generation is None and len(indices) == len(key_ranges):
            return read_several(self._tree, key_ranges)
        buffers = Buffers()
        parts: list[Buffer | None] = [None] * len(key_ranges)
        for key, wanted in indices.items():
            found = self._read_value(key, [key_ranges[index][1] for index in wanted], if_generation, at_once, buffers)
            for index, value in zip(wanted, found or (), strict=found is not None):
                parts[index] = value
        return parts

    def _read_value(
        self,
        key: Key,
        ranges: Sequence[ByteRange],
        if_generation: Generation | None,
        at_once: int | None,
        buffers: Buffers | None = None,
    ) -> Sequence[Buffer] | None:
        found = self._found(key, ranges, if_generation, at_once, buffers)
        if found is None and if_generation is not None:
            raise GenerationMismatch(f"{key!r} was removed concurrently", key=key)
        return None if found is None else found[0]

    def _found(
        self,
        key: Key,
        ranges: Sequence[ByteRange],
        if_generation: Generation | None,
        at_once: int | None,
        buffers: Buffers | None = None,
    ) -> tuple[list[Buffer], os.stat_result] | None:
        parts = _parts_if_usable(key)
        if parts is None:
            return None
        with translated("reading", key):
            if at_once is None:
                return self._tree.read_with_stat(parts, ranges, if_generation, buffers)
            return self._inline.read_with_stat(parts, ranges, if_generation, at_once)

    def _read_with_stat(self, key: Key, byte_range: ByteRange, at_once: int | None) -> tuple[Buffer, KeyStat] | None:
        found = self._found(key, (byte_range,), None, at_once)
        return None if found is None else (found[0][0], key_stat(found[1], self._tree.trusted))

    def _stat(self, key: Key, look: Callable[[Parts], os.stat_result | None]) -> KeyStat | None:
        parts = _parts_if_usable(key)
        with translated("looking up", key):
            found = look(parts) if parts is not None else None
        return None if found is None else key_stat(found, self._tree.trusted)

    async def _wait(self, targets: Iterable[Key | Prefix], function: Callable[..., T], *args: object) -> T:
        """Run ``function``, which concerns ``targets``, in a thread."""
        mounts = self._tree.mounts
        apart = bool(mounts.now()) and any(mounts.over(_parts_if_usable(target) or ()) for target in targets)
        return await threads.io(function, *args, abandon_on_cancel=True, apart=apart)

    async def _change(self, paths: Iterable[Parts], function: Callable[..., T], *args: object) -> T:
        """Run ``function``, which changes ``paths`` and all below them, in a thread."""
        # Also beside a mount that may hang: a renamed folder may have moved it there.
        hangs = not self._tree.local or bool(self._tree.mounts.now())
        apart = hangs and any(self._tree.mounts.meet(parts) for parts in paths)
        return await threads.io(function, *args, abandon_on_cancel=hangs, apart=apart)

    def _parts_to_write(self, target: Key | Prefix) -> Parts:
        self._require_writable(target)
        return parts_of(target)


def _parts_if_usable(target: Key | Prefix) -> Parts | None:
    """Return the parts; None if no file can have this name, so that it is absent."""
    try:
        return parts_of(target)
    except KeyUnusable:
        return None
