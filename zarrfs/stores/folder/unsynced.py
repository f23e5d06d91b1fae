"""Folders whose names may be lost in a power cut, and files of which a part is lost already."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from zarrfs.stores.folder.calls import Closing
from zarrfs.stores.folder.names import Parts
from zarrfs.stores.os_errors import ABSENT

_MOST = 10_000
# Beyond this number, one sync of the file system is faster.
_MOST_ONE_BY_ONE = 256


class UnsyncedFolders:
    """The folders in which a name was created, moved or removed since they were last synced.

    At most `_MOST` are known: beyond that, any folder may be one (`overflowed`). Threads may call the methods concurrently.
    """

    def __init__(self) -> None:
        self._folders: set[Parts] = set()
        self.overflowed = False

    def add(self, parts: Parts) -> None:
        """Record a change of names in a folder."""
        if len(self._folders) < _MOST:
            self._folders.add(parts)
        elif parts not in self._folders:
            self.overflowed = True

    @contextmanager
    def all_synced(self) -> Iterator[None]:
        """Forget all folders, unless the body, which syncs everything, fails."""
        self._folders.clear()
        self.overflowed = False
        try:
            yield
        except BaseException:
            self.overflowed = True
            raise

    def renamed(self, old: Parts, new: Parts) -> None:
        """Record that a folder, with all folders below it, has another path now."""
        self.add(old[:-1])
        self.add(new[:-1])
        for parts in self._folders.copy():
            if parts[: len(old)] == old:
                self.add(new + parts[len(old) :])

    def below(self, folders: Iterable[Parts]) -> set[Parts] | None:
        """Return ``folders`` and the changed ones below them; None if these are too many, or unknown."""
        found = set(folders)
        if not found:
            return found
        known = self._folders.copy()
        found.update(parts for folder in found.copy() for parts in known if parts[: len(folder)] == folder)
        return None if self.overflowed or len(found) > _MOST_ONE_BY_ONE else found

    def sync(self, folders: set[Parts], opened: Callable[[Parts], Closing]) -> None:
        """Sync the names in ``folders``, and in those that lead to them and may have changed; of an absent one, in the folder above."""
        pending = folders.copy()
        for parts in folders:
            above = (parts[:depth] for depth in range(len(parts)))
            pending.update(path for path in above if self.overflowed or path in self._folders)
        while pending:
            parts = max(pending, key=len)
            pending.remove(parts)
            # fsync does not cover what is created while it runs: forgotten before, and recorded again if it fails.
            self._folders.discard(parts)
            try:
                with opened(parts) as folder:
                    os.fsync(folder)
            except OSError as error:
                if error.errno in ABSENT and parts:
                    pending.add(parts[:-1])
                elif error.errno != errno.EINVAL:  # fsync(2): the file system has no such operation for folders.
                    self.add(parts)
                    raise


class FailedSyncs:
    """The files whose fsync(2) failed. Linux reports such a failure once; the next fsync(2) succeeds although the data is lost.

    At most `_MOST` are known. Threads may call the methods concurrently.
    """

    def __init__(self) -> None:
        # By device and inode number, as a file may be renamed, alone or with a folder above it.
        self._errors: dict[tuple[int, int], int] = {}

    def sync(self, fd: int) -> None:
        """Run fsync(2) of a value. Raises the error of an earlier one of the same file again."""
        file = _file_of(os.fstat(fd))
        failed = self._errors.get(file)
        if failed is not None:
            raise OSError(failed, f"{os.strerror(failed)} in an earlier fsync: write the value again")
        try:
            os.fsync(fd)
        except OSError as error:
            if len(self._errors) < _MOST:
                self._errors[file] = error.errno or errno.EIO
            raise

    def forget(self, status: os.stat_result) -> None:
        """Forget a file that is new, or removed: another one may get its number."""
        self._errors.pop(_file_of(status), None)


def _file_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
