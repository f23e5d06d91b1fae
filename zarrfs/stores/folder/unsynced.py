"""Folders and values that may be lost in a power cut, and files of which a part is lost already."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from zarrfs.keys.path_set import PathDict, PathSet
from zarrfs.stores.folder.calls import Closing
from zarrfs.stores.folder.names import Parts
from zarrfs.stores.os_errors import ABSENT

_MAX_KNOWN = 10_000
# Beyond this number, one sync of the file system is faster.
_MAX_ONE_BY_ONE = 256


class Unsynced:
    """Folders with names created, moved or removed since their last sync, and values set since their last sync.

    Each set is limited to `_MAX_KNOWN` members; beyond that, `overflowed` is true and any folder or value may be unsynced. Threads may
    call the methods concurrently. A folder or value counts as unsynced until its sync has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders = PathSet(_above)
        self._overflowed = False
        # A new object for each set: a value that was set again during its sync stays unsynced.
        self._values = PathDict[Parts, object](_above)
        self._values_overflowed: object | None = None
        self._in_progress: dict[object, tuple[PathSet[Parts], bool]] = {}
        """The folders of each sync in progress, and whether the sync began after an overflow."""

    @property
    def overflowed(self) -> bool:
        """True if unknown folders may be unsynced."""
        return self._overflowed or any(was_overflowed for _, was_overflowed in tuple(self._in_progress.values()))

    def add(self, parts: Parts) -> None:
        """Record a change of names in a folder."""
        with self._lock:
            self._add(parts)

    def _add(self, parts: Parts) -> None:
        if len(self._folders) < _MAX_KNOWN:
            self._folders.add(parts)
        elif parts not in self._folders:
            self._overflowed = True

    def value_set(self, parts: Parts, *, is_synced: bool) -> None:
        """Record that a value was set, under a new name; ``is_synced``: its bytes are durable."""
        with self._lock:
            self._add(parts[:-1])
            if is_synced:
                self._values.take(parts)
            else:
                self._add_value(parts)

    def value_moved(self, old: Parts, new: Parts) -> None:
        """Record that a value has another path now."""
        with self._lock:
            self._add(old[:-1])
            self._add(new[:-1])
            if self._values.take(old) is not None:
                self._add_value(new)
            else:
                self._values.take(new)

    def value_erased(self, parts: Parts) -> None:
        """Record that a value is no longer there."""
        with self._lock:
            self._add(parts[:-1])
            self._values.take(parts)

    @contextmanager
    def erasing(self, parts: Parts) -> Iterator[None]:
        """Record that the body removes a folder with all values that are below it now."""
        with self._lock:
            self._add(parts[:-1])
            values = {each: self._values[each] for each in self._values.at_and_below(parts)}
        yield
        self._forget(values)

    def _forget(self, values: Mapping[Parts, object]) -> None:
        with self._lock:
            for parts, version in values.items():
                if self._values.get(parts) is version:
                    self._values.take(parts)

    def _add_value(self, parts: Parts) -> None:
        if parts in self._values or len(self._values) < _MAX_KNOWN:
            self._values[parts] = object()
        else:
            self._values_overflowed = object()

    @contextmanager
    def value_synced(self, parts: Parts) -> Iterator[bool]:
        """Forget a value that the body syncs, unless it fails, or the value was set meanwhile. The body gets whether it was known."""
        version = self._values.get(parts)
        yield version is not None
        self._forget({parts: version})

    def may_have(self, parts: Parts) -> bool:
        """Return True if a value was set since its last sync, or may have been."""
        return parts in self._values or self._values_overflowed is not None

    def may_be_renamed(self, parts: Parts) -> bool:
        """Return True if names on the way to a value were changed since their last sync, or may have been: it got its name, with its
        bytes on the disk already, or was moved."""
        return self.overflowed or any(parts[:depth] in each for each in self._known() for depth in range(len(parts)))

    def values_below(self, folders: Iterable[Parts]) -> set[Parts] | None:
        """Return the values set below ``folders``; None if they are unknown."""
        within = tuple(folders)
        if not within:
            return set()
        with self._lock:
            if self._values_overflowed is not None:
                return None
            return {parts for folder in within for parts in self._values.at_and_below(folder)}

    @contextmanager
    def all_synced(self) -> Iterator[None]:
        """Forget all folders and values, unless the body, which syncs everything, fails."""
        sync = object()
        with self._lock:
            self._in_progress[sync] = self._folders, self.overflowed
            self._folders, self._overflowed = PathSet(_above), False
            values, values_overflowed = dict(self._values), self._values_overflowed
        try:
            yield
        except BaseException:
            self._overflowed = True
            raise
        finally:
            del self._in_progress[sync]
        self._forget(values)
        with self._lock:
            if self._values_overflowed is values_overflowed:
                self._values_overflowed = None

    def _known(self) -> tuple[PathSet[Parts], ...]:
        return self._folders, *(folders for folders, _ in tuple(self._in_progress.values()))

    def renamed(self, old: Parts, new: Parts) -> None:
        """Record that a folder, with all below it, has another path now."""
        self._moved({old: new})

    def exchanged(self, one: Parts, other: Parts) -> None:
        """Record that two folders have exchanged their paths."""
        self._moved({one: other, other: one})

    def _moved(self, moves: Mapping[Parts, Parts]) -> None:
        with self._lock:
            moved = {old: self._values.take_below(old) for old in moves}
            for old, new in moves.items():
                for parts, version in moved[old].items():
                    self._values[new + parts[len(old) :]] = version
            changed = [(old, parts) for old in moves for each in self._known() for parts in each.at_and_below(old)]
            for old, new in moves.items():
                self._add(old[:-1])
                self._add(new[:-1])
            for old, parts in changed:
                self._add(moves[old] + parts[len(old) :])

    def below(self, folders: Iterable[Parts]) -> set[Parts] | None:
        """Return ``folders`` and the changed ones below them; None if these are too many, or unknown."""
        found = set(folders)
        if not found:
            return found
        with self._lock:
            for folder in found.copy():
                for known in self._known():
                    found.update(known.at_and_below(folder))
        return None if self.overflowed or len(found) > _MAX_ONE_BY_ONE else found

    def sync(self, folders: set[Parts], opened: Callable[[Parts], Closing]) -> None:
        """Sync the names in ``folders``, and in those that lead to them and may have changed; of an absent one, in the folder above."""
        pending = folders.copy()
        known, all_above = self._known(), self.overflowed
        for parts in folders:
            above = (parts[:depth] for depth in range(len(parts)))
            pending.update(path for path in above if all_above or any(path in each for each in known))
        while pending:
            parts = max(pending, key=len)
            pending.remove(parts)
            # fsync does not cover what is created while it runs: forgotten before, and recorded again if it fails.
            sync = object()
            with self._lock:
                self._in_progress[sync] = PathSet(_above, [parts]), False
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
            finally:
                del self._in_progress[sync]


class FailedSyncs:
    """The files whose fsync(2) failed. Linux reports such a failure once; the next fsync(2) succeeds although the data is lost.

    At most `_MAX_KNOWN` are known. Threads may call the methods concurrently.
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
            if len(self._errors) < _MAX_KNOWN:
                self._errors[file] = error.errno or errno.EIO
            raise

    def forget(self, status: os.stat_result) -> None:
        """Forget a file that is new, or removed: another one may get its number."""
        self._errors.pop(_file_of(status), None)


def _file_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _above(parts: Parts) -> Parts | None:
    return parts[:-1] if parts else None
