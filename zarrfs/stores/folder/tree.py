"""File operations confined to one folder: no name and no symbolic link leads out of it.

A name is looked up one part at a time, each below the descriptor of the one before and with O_NOFOLLOW: a folder concurrently exchanged
for a symbolic link is refused, not followed. Symbolic links, fifos, sockets and devices are not listed, with one warning, and looking up
or reading one is refused: if it counted as absent, a chunk behind it would read as fill value.

Values are replaced, never written in place: a temporary file beside the target is written and renamed over it, so that holders of the
old value keep it whole. No key may have the temporary name. Its writer holds a flock on it: one without a lock was left behind by a
dead writer, and is removed when its folder is listed.

All functions wait for the disk where they must, may be called from any thread, and raise `OSError` besides their documented errors.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat as st
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress

from zarrfs import durability
from zarrfs.buffers import Buffer
from zarrfs.errors import KeyConflict
from zarrfs.keys import ByteRange
from zarrfs.memory.spill import Buffers
from zarrfs.stores import own_files, owners
from zarrfs.stores.folder import names, rights
from zarrfs.stores.folder.calls import (
    VALUE,
    Closing,
    exchange,
    first_link,
    lstat,
    next_data,
    nothing_if_absent,
    pread,
    sync_file_system,
    write,
)
from zarrfs.stores.folder.file_systems import RemoteMounts, is_local, local_below
from zarrfs.stores.folder.left_out import LeftOut
from zarrfs.stores.folder.names import Parts, as_expected, as_room, changed, generation_of, not_followed, require_real_owner
from zarrfs.stores.folder.new_folders import NewFolders
from zarrfs.stores.folder.presupposed import held_on_the_way, require_not_erased, require_presupposed
from zarrfs.stores.folder.scan import Scan
from zarrfs.stores.folder.turns import Turn, move, take_place
from zarrfs.stores.folder.unsynced import FailedSyncs, Unsynced
from zarrfs.stores.folder.writable import is_writable
from zarrfs.stores.values import Absent, DirEntry, Expected, Generation

log = logging.getLogger(__name__)

Ranges = Sequence[ByteRange]

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 16
"""Attempts of a step when other programs remove what it has just created, or fill what it has just emptied."""


class FolderTree:
    """The files below the folder ``path``, which may itself be reached through symbolic links."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        self.path = os.path.abspath(path)
        self.root = own_files.open_store(path, os.O_RDONLY | os.O_DIRECTORY)
        self.local = is_local(self.root)
        self.mounts = RemoteMounts(self.root if self.local else None)
        self.writable = not read_only and is_writable(self.root, self.mounts)
        # See `KeyStat.by_stranger`. On some file systems all files have the owner of the folder.
        self.trusted: frozenset[int | None] = owners.trusted_below(self.root)
        # Owner of new files and folders; None: the kernel's default.
        self.owner: rights.Owner | None = None
        self.new_folders = NewFolders(self.folder, self.mounts)
        self._warned: set[str] = set()
        self.left_out = LeftOut(self.path)
        self.unsynced = Unsynced()
        self._failed_syncs = FailedSyncs()

    def close(self) -> None:
        """Close the root folder; no method is called afterwards."""
        self.mounts.close()
        os.close(self.root)

    def check_root(self) -> None:
        """Raise ENOENT if the root folder was removed: lookups below it can only return absence."""
        if os.fstat(self.root).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the store's folder was removed", self.path)

    def free_space(self) -> tuple[int, int]:
        """Return ``(total, free for this user)`` in bytes."""
        found = os.fstatvfs(self.root)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    # --- looking up ---------------------------------------------------------------------------------------------------------

    def folder(self, parts: Parts, flags: int = os.O_PATH, *, create: bool = False, created: list[Parts] | None = None) -> Closing:
        """Return a descriptor of the folder ``parts`` for a ``with`` block.

        With ``create``, missing folders on the way are created, and appended to ``created``."""
        return Closing(self.open_folder(parts, flags, create=create, created=created))

    def open_folder(self, parts: Parts, flags: int = os.O_PATH, *, create: bool = False, created: list[Parts] | None = None) -> int:
        """Return a descriptor as `folder` does, which the caller closes."""
        fd, first = held_on_the_way(self, parts) or (self.root, 0)
        if first == len(parts):
            try:
                return os.open(".", flags | _FOLDER, dir_fd=fd)
            finally:
                if fd != self.root:
                    os.close(fd)
        for depth in range(first, len(parts)):
            above = fd
            try:
                fd = self._step(above, parts, depth, (flags if depth == len(parts) - 1 else os.O_PATH) | _FOLDER, create, created)
            finally:
                if above != self.root:
                    os.close(above)
        return fd

    def _step(self, above: int, parts: Parts, depth: int, flags: int, create: bool, created: list[Parts] | None) -> int:
        name = parts[depth]
        try:
            fd = os.open(name, flags, dir_fd=above)
            return self.new_folders.made(fd, parts[: depth + 1]) if create else fd
        except FileNotFoundError as error:
            if not create:
                raise
            require_presupposed(parts, depth, error)
            require_not_erased(parts, error)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP) and self.left_out.is_at(above, name) and create:
                raise not_followed(parts, name) from error
            raise
        with suppress(FileExistsError):
            self.new_folders.make(above, parts[: depth + 1], self.owner)
            if created is not None:
                created.append(parts[: depth + 1])
            self.unsynced.add(parts[:depth])
        return os.open(name, flags, dir_fd=above)

    def stat(self, parts: Parts) -> os.stat_result | None:
        """Return the status of a value; None if absent. Raises `StoreAccessDenied` as `require_no_link` does."""
        with nothing_if_absent:
            with self.folder(parts[:-1]) as folder:
                found = self._value(folder, parts[-1])
                if found is not None:
                    return found
        self.require_no_link(parts)
        return None

    def folder_mtime_ns(self, parts: Parts) -> int | None:
        """Return the time at which names in a folder last changed, in ns; None if it is absent."""
        with nothing_if_absent:
            with self.folder(parts) as folder:
                return os.fstat(folder).st_mtime_ns
        return None

    def _value(self, folder: int, name: str) -> os.stat_result | None:
        return self._as_value(lstat(folder, name), folder, name)

    def _as_value(self, found: os.stat_result | None, folder: int, name: str) -> os.stat_result | None:
        if found is None or st.S_ISDIR(found.st_mode):
            return None
        if not st.S_ISREG(found.st_mode):
            self.left_out.is_at(folder, name)
            return None
        return found

    def _room(self, folder: int, parts: Parts) -> os.stat_result | None:
        """Return the status of the value to be replaced, or None. Raises as `as_room`."""
        return as_room(lstat(folder, parts[-1]), parts)

    def warn_once(self, topic: str, message: str) -> None:
        """Log ``message``, unless a message about ``topic`` was logged before."""
        if topic not in self._warned:
            self._warned.add(topic)
            log.warning("%s: %s", self.path, message)

    # --- reading ------------------------------------------------------------------------------------------------------------

    def read_with_stat(
        self, parts: Parts, ranges: Ranges, if_generation: Generation | None, buffers: Buffers | None = None
    ) -> tuple[list[Buffer], os.stat_result] | None:
        """Return parts of one value, all of the same generation, and its stat; None if absent.

        ``buffers``: receives parts that the caller holds together with others. Raises `GenerationMismatch`, and `StoreError` if the
        file is truncated meanwhile."""
        value_fd = self._open_value(parts)
        if value_fd is None:
            self.require_no_link(parts)
            return None
        try:
            stat = os.fstat(value_fd)
            if not st.S_ISREG(stat.st_mode):
                raise not_followed(parts, parts[-1])
            if names.is_apart(parts):
                require_real_owner(value_fd, self.root, parts)
            if if_generation is not None and generation_of(stat) != if_generation:
                raise changed(parts)
            spans = [byte_range.resolve(stat.st_size) for byte_range in ranges]
            shared = buffers or Buffers()
            return [pread(value_fd, start, stop, parts, shared) for start, stop in spans], stat
        finally:
            os.close(value_fd)

    def data_from(self, parts: Parts, offset: int) -> int:
        """Return the result of `Store.data_from`."""
        value_fd = self._open_value(parts)
        if value_fd is None:
            return offset
        with Closing(value_fd) as fd:
            return next_data(fd, offset)

    def _open_value(self, parts: Parts) -> int | None:
        # Checked before it is opened: opening a device has side effects.
        with nothing_if_absent:
            with self.folder(parts[:-1]) as folder:
                if self._value(folder, parts[-1]) is None:
                    return None
                return os.open(parts[-1], VALUE, dir_fd=folder)
        return None

    def require_no_link(self, parts: Parts) -> None:
        """Raise `StoreAccessDenied` if a value seems absent only because a link or special file on the way to it is not followed.

        As an absent chunk it would read as fill value, which would be invented data."""
        folder, first = held_on_the_way(self, parts) or (os.dup(self.root), 0)
        with Closing(folder):
            found = first_link(folder, parts[first:])
        if found is not None:
            self.left_out.tell(found)
            raise not_followed(parts, found)

    # --- writing ------------------------------------------------------------------------------------------------------------

    def replace(self, parts: Parts, value: Buffer, expect: Expected) -> Generation:
        """Store a whole value and return its generation; parents are created. Not durable yet.

        After a failure the old value is still there, whole, and parents created for the new one are removed. With ``expect`` `ABSENT`
        the file is created or `GenerationMismatch` raised, in one step even against other programs. With a generation it is checked and
        replaced in one `Turn`: what a program other than zarrfs puts there in these microseconds is replaced.
        """
        content = memoryview(value).cast("B")
        created: list[Parts] = []
        try:
            return self._replace_at_last(parts, content, expect, created)
        except BaseException:
            self.remove_created(created)
            raise

    def remove_created(self, created: list[Parts]) -> None:
        """Remove these folders, unless another program has put entries into them."""
        for parts in reversed(created):
            with suppress(OSError), self.folder(parts[:-1]) as above:
                os.rmdir(parts[-1], dir_fd=above)

    def _replace_at_last(self, parts: Parts, content: memoryview, expect: Expected, created: list[Parts]) -> Generation:
        for left in reversed(range(_TRIES)):
            try:
                return self._replace(parts, content, expect, created, last=not left)
            except FileExistsError as error:
                if expect is Absent.ABSENT:
                    raise changed(parts) from error
            except FileNotFoundError as error:
                # Another program removed the folder meanwhile, or took the new file for a leftover.
                self.check_root()
                require_not_erased(parts, error)
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _replace(self, parts: Parts, content: memoryview, expect: Expected, created: list[Parts], *, last: bool) -> Generation:
        """Attempt to replace a value. Raises `FileExistsError` if it has just appeared; in the last attempt only with `ABSENT`."""
        with self.folder(parts[:-1], create=True, created=created) as folder:
            old = as_expected(self._room(folder, parts), expect, parts)
            temporary = f".zarrfs-{uuid.uuid4().hex}.partial"
            fd = rights.create(folder, temporary, private=bool(old or self.owner or names.is_record(parts)))
            try:
                with ExitStack() as writer:
                    writer.callback(os.close, fd)
                    with suppress(OSError):
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    write(fd, content)
                    generation = self._complete(fd, folder, parts)

                    def give_away(found: os.stat_result | None) -> None:
                        nonlocal generation
                        if rights.are_new(found, old):
                            generation = self._complete(fd, folder, parts)
                        # As late as this, because without its lock the file counts as left behind.
                        writer.close()

                    replaced = take_place(folder, temporary, parts, expect, give_away, locks=self.mounts.local_at(parts), over=last)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
        self.unsynced.value_set(parts, is_synced=durability.is_demanded())
        if replaced is not None:
            self._failed_syncs.forget(replaced)
        return generation

    def _complete(self, fd: int, folder: int, parts: Parts) -> Generation:
        """Run `rights.complete`, and fsync(2) if that is demanded; return the generation."""
        rights.complete(fd, folder, parts[-1], self.owner, 0o644 if names.is_record(parts) else 0o666)
        status = os.fstat(fd)
        self._failed_syncs.forget(status)
        if durability.is_demanded():
            os.fsync(fd)
        return generation_of(status)

    def set_mtime(self, parts: Parts, mtime_ns: int) -> Generation | None:
        """Set the time of a value; return the generation that results, None if it is absent."""
        with nothing_if_absent:
            with self.folder(parts[:-1]) as folder:
                found = self._value(folder, parts[-1])
                if found is not None:
                    os.utime(parts[-1], ns=(mtime_ns, mtime_ns), dir_fd=folder, follow_symlinks=False)
                    return generation_of(found, mtime_ns)
        return None

    def make_folder(self, parts: Parts) -> None:
        """Create a folder and its parents, like mkdir -p."""
        with self.folder(parts, create=True):
            pass

    # --- removing -----------------------------------------------------------------------------------------------------------

    def remove(self, parts: Parts, expect: Expected = None) -> None:
        """Remove a value; its folder stays, since an empty folder may be intended. Raises `StoreAccessDenied` as `stat` does, and
        `GenerationMismatch` as `replace` does, if there is a generation to ``expect``."""
        with nothing_if_absent:
            with self.folder(parts[:-1]) as folder, Turn(folder, parts[-1], locks=self.mounts.local_at(parts)) as there:
                found = as_expected(self._as_value(there, folder, parts[-1]), expect, parts)
                if found is not None:
                    os.unlink(parts[-1], dir_fd=folder)
                    self.unsynced.value_erased(parts)
                    self._failed_syncs.forget(found)
                    return
        as_expected(None, expect, parts)
        self.require_no_link(parts)

    # --- moving -------------------------------------------------------------------------------------------------------------

    def rename(self, old: Parts, new: Parts) -> Generation | None:
        """Move a value, replacing any value there; return its generation, None if ``old`` is absent."""
        found: Closing | None = None
        with nothing_if_absent:
            found = self.folder(old[:-1])
        if found is None:
            self.require_no_link(old)
            return None
        with found as source:
            if self._value(source, old[-1]) is None:
                self.require_no_link(old)
                return None
            with nullcontext(source) if old[:-1] == new[:-1] else self.folder(new[:-1], create=True) as target:
                both = move(source, old, target, new, locks=self.mounts.local_at(old, new))
        if both is None:
            return None
        moved, replaced = both
        self.unsynced.value_moved(old, new)
        if replaced is not None and not os.path.samestat(replaced, moved):
            self._failed_syncs.forget(replaced)
        return generation_of(moved)

    def rename_folder(self, old: Parts, new: Parts) -> bool:
        """Move a folder to an absent or empty one; return False if ``old`` is absent. Raises ENOTEMPTY."""
        if self.folder_mtime_ns(old) is None:
            self.require_no_link(old)
            return False
        with self.folder(old[:-1]) as source, self.folder(new[:-1], create=True) as target:
            os.rename(old[-1], new[-1], src_dir_fd=source, dst_dir_fd=target)
        self.unsynced.renamed(old, new)
        return True

    def exchange_folders(self, one: Parts, other: Parts) -> None:
        """Exchange two folders. Raises EINVAL or ENOSYS if the file system cannot."""
        with self.folder(one[:-1]) as folder, self.folder(other[:-1]) as other_folder:
            exchange(folder, one[-1], other_folder, other[-1])
        self.unsynced.exchanged(one, other)

    # --- making durable -----------------------------------------------------------------------------------------------------

    def sync_all(self) -> None:
        """Return when all writes to the file system of the folder, and to those of this machine mounted in it, survive a power cut."""
        with self.unsynced.all_synced():
            for parts in ((), *local_below(self.root)):
                # By the mount table of a moment ago.
                with (
                    suppress(FileNotFoundError, NotADirectoryError, KeyConflict),
                    Closing(self.open_folder(parts, os.O_RDONLY)) as folder,
                ):
                    sync_file_system(folder)

    def sync(self, values: Iterable[Parts], folders: Sequence[Parts] = (), contents: Sequence[Parts] = ()) -> None:
        """Return when values and their names (or their absence) survive a power cut; for ``folders``, all names below them; for
        ``contents``, also all values below them that were set here."""
        within, synced = self.unsynced.values_below(contents), self.unsynced.below((*folders, *contents))
        above: set[Parts] = set()
        for parts in dict.fromkeys((*values, *(within or ()))):
            with self.unsynced.value_synced(parts) as was_set:
                try:
                    fd = self._open_value(parts)
                except PermissionError:
                    # fsync(2) needs a value that may be read. Others have names of documents, too.
                    fd = within = None
                if fd is not None:
                    with Closing(fd):
                        self._failed_syncs.sync(fd)
                elif was_set:  # It has been moved.
                    within = None
            above.add(parts[:-1])
        if synced is None or within is None:
            self.sync_all()
            return
        try:
            self.unsynced.sync(synced | above, lambda parts: self.folder(parts, os.O_RDONLY))
        except PermissionError:
            # fsync(2) needs a folder that may be read; names can be changed in others, too.
            self.sync_all()

    # --- listing ------------------------------------------------------------------------------------------------------------

    def scan(self, parts: Parts) -> Scan | None:
        """Return a listing of the values and folders in a folder; None if it is absent."""
        with nothing_if_absent:
            return self.scan_of(self.open_folder(parts, os.O_RDONLY), parts)
        return None

    def scan_of(self, folder: int, parts: Parts) -> Scan:
        """Return the listing of the folder ``parts``, opened as ``folder``."""
        sweeps = self.writable and self.mounts.local_at(parts)

        def leave_out(folder: int, name: str) -> None:
            self.left_out.listed(folder, (*parts, name))

        return Scan(folder, sweeps=sweeps, leave_out=leave_out, remote=lambda: self.mounts.names_in(parts))

    def list_folder(self, parts: Parts) -> list[DirEntry]:
        """Return the whole listing of a folder at once."""
        scan = self.scan(parts)
        if scan is None:
            return []
        with closing(scan):
            return scan.portion(None) or []
