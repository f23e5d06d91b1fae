"""Listing of a folder, one portion at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from zarrfs.stores.folder.names import TEMPORARY, size_of
from zarrfs.stores.values import DirEntry


class Scan:
    """A listing in progress of the folder of the descriptor ``folder``, which it closes; for one caller at a time.

    ``sweeps``: remove temporary files of dead writers (not where locks of other machines may be invisible). ``leave_out(folder, name)``
    is called with links and special files. ``remote()`` returns the names of folders that are not looked up, since that may wait for a
    server; they are listed with the time of this folder.
    """

    def __init__(
        self, folder: int, *, sweeps: bool, leave_out: Callable[[int, str], object], remote: Callable[[], frozenset[str]]
    ) -> None:
        self._folder = folder
        self._sweeps = sweeps
        self._leave_out = leave_out
        self._remote = remote
        self.is_over = False
        """True once `portion` has returned the last entries."""
        try:
            self._entries = os.scandir(folder)
        except BaseException:
            os.close(folder)
            raise

    def portion(self, most: int | None) -> list[DirEntry] | None:
        """Return the entries among the next ``most`` names (None: of all); None at the end."""
        entries = list(islice(self._entries, most))
        self.is_over = most is None or len(entries) < most
        if not entries:
            return None
        found: list[DirEntry] = []
        remote = self._remote()
        for entry in entries:
            try:
                if entry.is_file(follow_symlinks=False):
                    if entry.name[0] == "." and TEMPORARY.fullmatch(entry.name):
                        self._sweep(entry.name)
                        continue
                    stat = entry.stat(follow_symlinks=False)
                    found.append((entry.name, False, size_of(stat), stat.st_mtime_ns))
                elif entry.is_dir(follow_symlinks=False):
                    if entry.name in remote:
                        found.append((entry.name, True, 0, os.fstat(self._folder).st_mtime_ns))
                        continue
                    found.append((entry.name, True, 0, entry.stat(follow_symlinks=False).st_mtime_ns))
                else:
                    self._leave_out(self._folder, entry.name)
            except FileNotFoundError:
                continue
        return found

    def close(self) -> None:
        """Close the folder, at the end or before."""
        self._entries.close()
        os.close(self._folder)

    def _sweep(self, name: str) -> None:
        if not self._sweeps:
            return
        with suppress(OSError):
            fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=self._folder)
            finally:
                os.close(fd)
