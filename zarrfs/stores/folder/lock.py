"""flock(2) on folders: a lock between processes.

The folder is locked, not the file: a lock on a file would stay on the inode that a set replaces. Within this process all keys of a folder
share the lock, and each key has a lock of its own as well, so writers of two shards do not wait for each other. Other processes do not
starve: a folder locked for `_SHARE_SECONDS` is released, and stays unlocked for a moment before it is locked for another key.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from zarrfs import threads
from zarrfs.errors import LockHeld
from zarrfs.stores.folder.names import Parts
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.locks import LockTable, patience

_SHARE_SECONDS = 1.0
_POLL_SECONDS = (0.001, 0.032)
"""First and longest pause between attempts. A wait in the kernel would need a thread that cannot be interrupted."""

_TRIES = 16
"""Attempts to create parent folders that other programs remove."""

_NO_SUCH_LOCKS = frozenset({errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class FolderLocks:
    """The folders of one tree that this process has locked."""

    def __init__(self, tree: FolderTree) -> None:
        self._tree = tree
        self._held: dict[Parts, _Held] = {}
        self._turns = LockTable()

    @asynccontextmanager
    async def hold(self, folder: Parts) -> AsyncIterator[None]:
        """Lock this folder against other processes; it is created if missing, and removed again if it is still empty at the end.

        Raises `OSError`, `LockHeld`."""
        async with self._turns.hold("/".join(folder)):
            held = self._held.get(folder)
            if held is not None and trio.current_time() - held.since > _SHARE_SECONDS:
                await held.let_go.wait()
                await trio.sleep(2 * _POLL_SECONDS[1])
                held = None
            if held is None:
                fd, created = await self._acquire(folder)
                held = self._held[folder] = _Held(fd, trio.current_time(), created)
            held.users += 1
        try:
            yield
            # (Not where the generator is only closed. An error of the body is not passed to it.)
            if held.users == 1 and held.created:
                # From here on nobody shares the lock, and while it is held, no other process relies on what is removed.
                self._held.pop(folder, None)
                with trio.CancelScope(shield=True):
                    await self._remove(held.created)
        finally:
            held.users -= 1
            if not held.users:
                if self._held.get(folder) is held:
                    del self._held[folder]
                os.close(held.fd)
                held.let_go.set()

    async def _remove(self, created: list[Parts]) -> None:
        apart = any(self._tree.mounts.over(folder) is not None for folder in created)
        await threads.io(self._tree.remove_created, created, abandon_on_cancel=True, apart=apart)

    async def _acquire(self, folder: Parts) -> tuple[int, list[Parts]]:
        """Return a descriptor that holds the lock, and the folders created for it."""
        created: list[Parts] = []
        pause, longest = _POLL_SECONDS
        tries, held_since = _TRIES, math.inf
        while True:
            attempt = _Attempt()
            apart = self._tree.mounts.over(folder) is not None
            try:
                await threads.io(attempt.run, self._tree, folder, abandon_on_cancel=True, apart=apart)
            except trio.Cancelled:
                attempt.abandon()
                raise
            except FileNotFoundError:
                # Another program has just removed an empty parent folder.
                tries -= 1
                if not tries:
                    raise
            created += attempt.created
            if attempt.fd is not None:
                return attempt.fd, created
            held_since = min(held_since, trio.current_time())
            if trio.current_time() - held_since >= patience():
                raise LockHeld(f"{'/'.join(folder)}: locked by another process", key="/".join(folder))
            await trio.sleep(pause)
            pause = min(2 * pause, longest)


@dataclass(slots=True)
class _Held:
    fd: int
    since: float
    created: list[Parts]
    users: int = 0
    let_go: trio.Event = field(default_factory=trio.Event)


class _Attempt:
    """One attempt to lock a folder, in a thread that may be abandoned: the thread then undoes it."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self.created: list[Parts] = []
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self, tree: FolderTree, folder: Parts) -> None:
        created = self.created
        fd, failed = None, True
        try:
            fd = _try_lock(tree, folder, created)
            failed = False
        finally:
            with self._lock:
                wanted = not self._abandoned
                self.fd = fd if wanted else None
            # Not inside: `abandon`, in the event loop, would wait for the file system.
            if not wanted:
                if fd is not None or failed:
                    # Its caller may have removed them before they appeared. Removed while locked, no other process relies on them.
                    tree.remove_created(created)
                if fd is not None:
                    os.close(fd)

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            if self.fd is not None:
                os.close(self.fd)
                self.fd = None


def _try_lock(tree: FolderTree, folder: Parts, created: list[Parts]) -> int | None:
    """Return a descriptor that holds the lock; None if another process holds it. Folders that it creates are appended to ``created``."""
    fd = tree.open_folder(folder, os.O_RDONLY, create=True, created=created)
    locked = False
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_SUCH_LOCKS:
                raise
            tree.warn_once("no locks", "folders cannot be locked here: let no other mount or machine write to this store")
            locked = True
            return fd
        with tree.folder(folder, create=True, created=created) as now:
            # If the folder was removed and created again between open and flock, others lock the new one.
            locked = os.path.samestat(os.fstat(fd), os.fstat(now))
        return fd if locked else None
    finally:
        if not locked:
            os.close(fd)
