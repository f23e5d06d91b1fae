"""Two drivers of one file system: through the kernel, and by the requests that the kernel would send.

`KernelDriver` calls ``os``. `DirectDriver` calls the handlers of `zarrfs.fuse.operations.Operations` in the kernel's order: LOOKUP for
each part of a path, OPEN or CREATE, READ, WRITE, FLUSH at each close, RELEASE at the last, FORGET at the end. It caches nothing, so
that every call reaches the handlers. Both raise OSError.

Each driver has a playground: a group of its own below ``raw`` and ``chunks`` (`tests.support.small_stores.SMALL`), whose keys begin
with ``prefix``.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import itertools
import os
import stat
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyfuse3
import trio

from tests.support.callers import CALLER
from tests.support.mounting import Mounted
from tests.support.small_stores import SMALL, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.fuse.operations import Operations
from zarrfs.fuse.session import Session
from zarrfs.keys import Key
from zarrfs.options.config import MountConfig
from zarrfs.stores.base import Store

_PLAYGROUNDS = itertools.count(1)


class Driver(abc.ABC):
    """The interface of both drivers (see the module). Paths are relative to the mount."""

    prefix: str
    through_kernel: bool
    hierarchical: bool

    def __init__(self) -> None:
        self.prefix = f"t{next(_PLAYGROUNDS)}/"

    @property
    def raw(self) -> str:
        return f"raw/{self.prefix[:-1]}"

    @property
    def chunks(self) -> str:
        return f"chunks/{self.prefix[:-1]}"

    @property
    def zarr3(self) -> str:
        """The folder of the store's root in ``zarr3/``."""
        return f"zarr3/{self.prefix[:-1]}"

    # --- external changes ---------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def stored(self, key: str) -> bytes | None:
        """Return the value of a key of the playground in the store."""

    @abc.abstractmethod
    async def put(self, key: str, value: bytes) -> None:
        """Set a value as an external change."""

    @abc.abstractmethod
    def operations(self) -> dict[str, int]:
        """Return the counters of store operations."""

    # --- system calls -------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def open(self, path: str, flags: int) -> int: ...

    @abc.abstractmethod
    async def dup(self, fd: int) -> int: ...

    @abc.abstractmethod
    async def close(self, fd: int) -> None: ...

    @abc.abstractmethod
    async def pread(self, fd: int, size: int, offset: int) -> bytes: ...

    @abc.abstractmethod
    async def pwrite(self, fd: int, data: bytes, offset: int) -> None: ...

    @abc.abstractmethod
    async def append(self, fd: int, data: bytes) -> None: ...

    @abc.abstractmethod
    async def ftruncate(self, fd: int, size: int) -> None: ...

    @abc.abstractmethod
    async def fsync(self, fd: int) -> None: ...

    @abc.abstractmethod
    async def fstat(self, fd: int) -> Any: ...

    @abc.abstractmethod
    async def futime(self, fd: int, mtime_ns: int) -> None: ...

    @abc.abstractmethod
    async def truncate(self, path: str, size: int) -> None: ...

    @abc.abstractmethod
    async def stat(self, path: str) -> Any: ...

    @abc.abstractmethod
    async def utime(self, path: str, mtime_ns: int) -> None: ...

    @abc.abstractmethod
    async def listdir(self, path: str) -> list[str]: ...

    @abc.abstractmethod
    async def mkdir(self, path: str) -> None: ...

    @abc.abstractmethod
    async def rmdir(self, path: str) -> None: ...

    @abc.abstractmethod
    async def unlink(self, path: str) -> None: ...

    @abc.abstractmethod
    async def rename(self, old: str, new: str, *, replace: bool = True) -> None: ...

    @abc.abstractmethod
    async def link(self, old: str, new: str) -> None: ...

    @abc.abstractmethod
    async def mknod(self, path: str, mode: int) -> None: ...

    @abc.abstractmethod
    async def statvfs(self, path: str) -> Any: ...

    @abc.abstractmethod
    async def getxattr(self, path: str, name: str) -> bytes: ...

    @abc.abstractmethod
    async def listxattr(self, path: str) -> list[str]: ...

    @abc.abstractmethod
    async def setxattr(self, path: str, name: str, value: bytes) -> None: ...

    @abc.abstractmethod
    async def removexattr(self, path: str, name: str) -> None: ...

    # --- shorthands ---------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self, path: str, flags: int = os.O_RDONLY) -> AsyncIterator[int]:
        fd = await self.open(path, flags)
        try:
            yield fd
        finally:
            await self.close(fd)

    async def read(self, path: str) -> bytes:
        async with self.opened(path) as fd:
            size = (await self.fstat(fd)).st_size
            return await self.pread(fd, size + 1, 0)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file as ``cp`` does."""
        async with self.opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            await self.pwrite(fd, data, 0)

    async def becomes(self, key: str, value: bytes | None) -> None:
        """Wait until the store has ``value``: RELEASE comes some time after the last close(2)."""
        with trio.fail_after(30):
            while await self.stored(key) != value:
                await trio.lowlevel.checkpoint()

    async def vanishes(self, path: str) -> None:
        """Wait until ``path`` is gone. UNLINK holds a kernel lock and cannot wait until other names are invalidated."""
        with trio.fail_after(30):
            while await self.exists(path):
                await trio.lowlevel.checkpoint()

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """Yield the store operations of the body; the dict is filled at exit."""
        before, cost = self.operations(), dict[str, int]()
        yield cost
        cost.update((name, count - before[name]) for name, count in self.operations().items() if count != before[name])


class KernelDriver(Driver):
    """A driver through the kernel."""

    through_kernel = True
    hierarchical = True

    def __init__(self, mount: Mounted) -> None:
        super().__init__()
        self.mount = mount
        # Through the mount: notification of external files may arrive after the first lookup, and changes the inode of every file.
        write(mount.path / "raw" / self.prefix, SMALL)

    def at(self, path: str) -> Path:
        return self.mount.path / path

    async def stored(self, key: str) -> bytes | None:
        path = self.mount.store / self.prefix / key
        return path.read_bytes() if path.is_file() else None

    async def put(self, key: str, value: bytes) -> None:
        path = self.mount.store / self.prefix / key
        path.parent.mkdir(parents=True, exist_ok=True)
        # As other software does: a new file under the old name.
        temporary = path.with_name(path.name + ".partial")
        temporary.write_bytes(value)
        temporary.rename(path)

    def operations(self) -> dict[str, int]:
        return self.mount.operations()

    async def open(self, path: str, flags: int) -> int:
        return os.open(self.at(path), flags, 0o644)

    async def dup(self, fd: int) -> int:
        return os.dup(fd)

    async def close(self, fd: int) -> None:
        os.close(fd)

    async def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    async def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        assert os.pwrite(fd, data, offset) == len(data)

    async def append(self, fd: int, data: bytes) -> None:
        assert os.write(fd, data) == len(data)

    async def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    async def fsync(self, fd: int) -> None:
        os.fsync(fd)

    async def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    async def futime(self, fd: int, mtime_ns: int) -> None:
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    async def truncate(self, path: str, size: int) -> None:
        os.truncate(self.at(path), size)

    async def stat(self, path: str) -> os.stat_result:
        return os.stat(self.at(path))

    async def utime(self, path: str, mtime_ns: int) -> None:
        os.utime(self.at(path), ns=(mtime_ns, mtime_ns))

    async def listdir(self, path: str) -> list[str]:
        return os.listdir(self.at(path))

    async def mkdir(self, path: str) -> None:
        self.at(path).mkdir()

    async def rmdir(self, path: str) -> None:
        self.at(path).rmdir()

    async def unlink(self, path: str) -> None:
        self.at(path).unlink()

    async def rename(self, old: str, new: str, *, replace: bool = True) -> None:
        if replace:
            self.at(old).rename(self.at(new))
        else:
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            if libc.renameat2(-100, os.fsencode(self.at(old)), -100, os.fsencode(self.at(new)), pyfuse3.RENAME_NOREPLACE):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    async def link(self, old: str, new: str) -> None:
        os.link(self.at(old), self.at(new))

    async def mknod(self, path: str, mode: int) -> None:
        os.mknod(self.at(path), mode)

    async def statvfs(self, path: str) -> os.statvfs_result:
        return os.statvfs(self.at(path))

    async def getxattr(self, path: str, name: str) -> bytes:
        return os.getxattr(self.at(path), name)

    async def listxattr(self, path: str) -> list[str]:
        return os.listxattr(self.at(path))

    async def setxattr(self, path: str, name: str, value: bytes) -> None:
        os.setxattr(self.at(path), name, value)

    async def removexattr(self, path: str, name: str) -> None:
        os.removexattr(self.at(path), name)


class RecordingNotifier:
    """Replaces the notifier thread and records the notifications for the kernel."""

    def __init__(self) -> None:
        self.inodes: list[tuple[int, bool]] = []
        self.entries: list[tuple[int, str]] = []

    def inode(self, ino: int, *, attributes_only: bool = False) -> None:
        self.inodes.append((ino, attributes_only))

    def entry(self, parent: int, name: str, *, may_stay: bool = False) -> None:
        self.entries.append((parent, name))

    @contextlib.contextmanager
    def locked(self, *names: tuple[int, str], also: Iterable[int] = ()) -> Iterator[None]:
        yield

    def store(self, ino: int, offset: int, data: bytes) -> None:
        """Nothing is cached."""

    def withdraw(self, ino: int, offset: int, data: bytes) -> None:
        """Nothing is cached."""

    def is_only_of(self, inodes: Container[int]) -> bool:
        return False

    async def drained(self, *, has_locked: bool = False) -> None:
        await trio.lowlevel.checkpoint()

    async def stored(self) -> None:
        await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class _OpenFile:
    fh: int
    ino: int
    descriptors: int = 1


class DirectDriver(Driver):
    """A driver by requests. ``store`` is the store of the tree; ``tree`` is everything except the kernel."""

    through_kernel = False

    def __init__(self, store: Store, tree: MountTree) -> None:
        super().__init__()
        self.store = store
        self.tree = tree
        self.hierarchical = store.capabilities.hierarchical
        self.notifier = RecordingNotifier()
        self.session = Session(
            tree.root,
            self.notifier,  # type: ignore[arg-type]
            hidden={".zarrfs": tree.control()},
            timeout=10,
            is_watched=lambda: tree.watched,
            changes_reported=tree.changes.slices.done,
            writable=tree.store.capabilities.write,
            free_space=tree.store.free_space,
            on_error=tree.report,
        )
        self.handlers = Operations(self.session)
        tree.changes.on_affected, tree.changes.on_forgotten = self.session.kernel_cache.changed, self.session.kernel_cache.forgotten
        tree.changes.on_moved = self.session.kernel_cache.moved
        self.lookups: dict[int, int] = {}
        self._descriptors: dict[int, _OpenFile] = {}
        self._next_fd = itertools.count(3)

    async def fill(self, values: Mapping[str, bytes] = SMALL) -> None:
        """Put values into the playground as external changes."""
        for key, value in values.items():
            await self.put(key, value)

    async def stored(self, key: str) -> bytes | None:
        value = await self.store.get(Key(self.prefix + key))
        return None if value is None else bytes(value)

    async def put(self, key: str, value: bytes) -> None:
        await self.store.set(Key(self.prefix + key), value)

    def operations(self) -> dict[str, int]:
        return dict(self.tree.stats()["store_operations"])  # type: ignore[call-overload]

    async def forget_all(self) -> None:
        """Forget all inodes, as the kernel does under memory pressure or at unmount."""
        forgotten, self.lookups = list(self.lookups.items()), {}
        await self.handlers.forget(forgotten)

    async def open(self, path: str, flags: int) -> int:
        folder, _, name = path.rpartition("/")
        try:
            entry = await self._entry(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            with _as_os_errors():
                info, entry = await self.handlers.create(await self._ino(folder), os.fsencode(name), 0o644, flags, CALLER)
            self._refer(entry)
        else:
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, path)
            if stat.S_ISDIR(entry.st_mode):
                raise IsADirectoryError(errno.EISDIR, path)
            with _as_os_errors():
                info = await self.handlers.open(entry.st_ino, flags & ~(os.O_CREAT | os.O_EXCL), CALLER)
        fd = next(self._next_fd)
        self._descriptors[fd] = _OpenFile(info.fh, entry.st_ino)
        return fd

    async def dup(self, fd: int) -> int:
        new = next(self._next_fd)
        self._descriptors[new] = self._descriptors[fd]
        self._descriptors[fd].descriptors += 1
        return new

    async def close(self, fd: int) -> None:
        opened = self._descriptors.pop(fd)
        opened.descriptors -= 1
        try:
            with _as_os_errors():
                await self.handlers.flush(opened.fh)
        finally:
            if not opened.descriptors:
                await self.handlers.release(opened.fh)

    async def pread(self, fd: int, size: int, offset: int) -> bytes:
        with _as_os_errors():
            return bytes(await self.handlers.read(self._descriptors[fd].fh, offset, size))

    async def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        with _as_os_errors():
            assert await self.handlers.write(self._descriptors[fd].fh, offset, data) == len(data)

    async def append(self, fd: int, data: bytes) -> None:
        await self.pwrite(fd, data, (await self.fstat(fd)).st_size)

    async def ftruncate(self, fd: int, size: int) -> None:
        opened = self._descriptors[fd]
        await self._setattr(opened.ino, size=size, fh=opened.fh)

    async def fsync(self, fd: int) -> None:
        with _as_os_errors():
            await self.handlers.fsync(self._descriptors[fd].fh, False)

    async def fstat(self, fd: int) -> pyfuse3.EntryAttributes:
        with _as_os_errors():
            return await self.handlers.getattr(self._descriptors[fd].ino, None)

    async def futime(self, fd: int, mtime_ns: int) -> None:
        await self._setattr(self._descriptors[fd].ino, mtime_ns=mtime_ns)

    async def truncate(self, path: str, size: int) -> None:
        await self._setattr(await self._ino(path), size=size)

    async def stat(self, path: str) -> pyfuse3.EntryAttributes:
        ino = await self._ino(path)
        with _as_os_errors():
            return await self.handlers.getattr(ino, None)

    async def utime(self, path: str, mtime_ns: int) -> None:
        await self._setattr(await self._ino(path), mtime_ns=mtime_ns)

    async def listdir(self, path: str) -> list[str]:
        ino = await self._ino(path)
        with _as_os_errors(), self._readdir_reply() as listed:
            fh = await self.handlers.opendir(ino, None)
            try:
                offset, reply = 0, _Reply(room=64, next_id=1)
                while reply.next_id:
                    reply = _Reply(room=64)
                    await self.handlers.readdir(fh, offset, reply)  # type: ignore[arg-type]
                    offset = reply.next_id
            finally:
                await self.handlers.releasedir(fh)
        return [os.fsdecode(name) for name, _ in listed]

    async def mkdir(self, path: str) -> None:
        folder, name = await self._place(path)
        with _as_os_errors():
            self._refer(await self.handlers.mkdir(folder, name, 0o755, None))

    async def rmdir(self, path: str) -> None:
        folder, name = await self._place(path)
        with _as_os_errors():
            await self.handlers.rmdir(folder, name, None)

    async def unlink(self, path: str) -> None:
        folder, name = await self._place(path)
        with _as_os_errors():
            await self.handlers.unlink(folder, name, None)

    async def rename(self, old: str, new: str, *, replace: bool = True) -> None:
        old_folder, old_name = await self._place(old)
        new_folder, new_name = await self._place(new)
        with contextlib.suppress(FileNotFoundError):
            # The kernel looks up both names before the request.
            target = await self._entry(new)
            source = await self._entry(old)
            if stat.S_ISDIR(target.st_mode) != stat.S_ISDIR(source.st_mode):
                raise OSError(errno.EISDIR if stat.S_ISDIR(target.st_mode) else errno.ENOTDIR, new)
        with _as_os_errors():
            flags = 0 if replace else pyfuse3.RENAME_NOREPLACE
            await self.handlers.rename(old_folder, old_name, new_folder, new_name, flags, None)

    async def link(self, old: str, new: str) -> None:
        entry = await self._entry(old)
        folder, name = await self._place(new)
        if await self.exists(new):
            raise FileExistsError(errno.EEXIST, new)  # as the kernel does without a request
        with _as_os_errors():
            self._refer(await self.handlers.link(entry.st_ino, folder, name, None))

    async def mknod(self, path: str, mode: int) -> None:
        folder, name = await self._place(path)
        if await self.exists(path):
            raise FileExistsError(errno.EEXIST, path)  # as the kernel does without a request
        with _as_os_errors():
            self._refer(await self.handlers.mknod(folder, name, mode, 0, None))

    async def statvfs(self, path: str) -> pyfuse3.StatvfsData:
        with _as_os_errors():
            return await self.handlers.statfs(None)

    async def getxattr(self, path: str, name: str) -> bytes:
        ino = await self._ino(path)
        with _as_os_errors():
            return await self.handlers.getxattr(ino, pyfuse3.XAttrNameT(os.fsencode(name)), None)

    async def listxattr(self, path: str) -> list[str]:
        ino = await self._ino(path)
        with _as_os_errors():
            return [os.fsdecode(name) for name in await self.handlers.listxattr(ino, None)]

    async def setxattr(self, path: str, name: str, value: bytes) -> None:
        ino = await self._ino(path)
        with _as_os_errors():
            await self.handlers.setxattr(ino, pyfuse3.XAttrNameT(os.fsencode(name)), value, None)

    async def removexattr(self, path: str, name: str) -> None:
        ino = await self._ino(path)
        with _as_os_errors():
            await self.handlers.removexattr(ino, pyfuse3.XAttrNameT(os.fsencode(name)), None)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    async def _entry(self, path: str) -> pyfuse3.EntryAttributes:
        with _as_os_errors():
            entry = await self.handlers.getattr(pyfuse3.ROOT_INODE, None)
            for part in path.split("/") if path else []:
                if not stat.S_ISDIR(entry.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, path)
                entry = await self.handlers.lookup(entry.st_ino, os.fsencode(part), None)
                self._refer(entry)
            return entry

    async def _ino(self, path: str) -> pyfuse3.InodeT:
        return (await self._entry(path)).st_ino

    async def _place(self, path: str) -> tuple[pyfuse3.InodeT, pyfuse3.FileNameT]:
        folder, _, name = path.rpartition("/")
        return await self._ino(folder), pyfuse3.FileNameT(os.fsencode(name))

    def _refer(self, entry: pyfuse3.EntryAttributes) -> None:
        self.lookups[entry.st_ino] = self.lookups.get(entry.st_ino, 0) + 1

    async def _setattr(self, ino: int, *, size: int | None = None, mtime_ns: int | None = None, fh: int | None = None) -> None:
        attributes = pyfuse3.EntryAttributes()
        if size is not None:
            attributes.st_size = size
        if mtime_ns is not None:
            attributes.st_mtime_ns = mtime_ns
        fields = Fields(update_size=size is not None, update_mtime=mtime_ns is not None)
        with _as_os_errors():
            await self.handlers.setattr(ino, attributes, fields, fh, None)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def _readdir_reply(self) -> Iterator[list[tuple[bytes, pyfuse3.EntryAttributes]]]:
        """Collects the entries that `readdir` returns."""
        listed: list[tuple[bytes, pyfuse3.EntryAttributes]] = []

        def reply(token: _Reply, name: bytes, attributes: pyfuse3.EntryAttributes, next_id: int) -> bool:
            if not token.room:
                return False
            token.room -= 1
            token.next_id = next_id
            if name not in (b".", b".."):
                listed.append((name, attributes))
                self._refer(attributes)
            return True

        real, pyfuse3.readdir_reply = pyfuse3.readdir_reply, reply
        try:
            yield listed
        finally:
            pyfuse3.readdir_reply = real


@dataclass(slots=True)
class _Reply:
    """Replaces `pyfuse3.ReaddirToken`: accepts a number of entries; ``next_id`` is that of the last, or 0."""

    room: int
    next_id: int = 0


@dataclass(frozen=True, slots=True)
class Fields:
    """Replaces `pyfuse3.SetattrFields`, which only the kernel can fill in."""

    update_size: bool = False
    update_mtime: bool = False


@asynccontextmanager
async def direct(store: Store, **options: Any) -> AsyncIterator[DirectDriver]:
    """Yield a driver over ``store`` with a filled playground; ``options`` are mount options. At exit nothing is open or unpublished."""
    config = MountConfig(store="memory:", mountpoint="/nowhere", **options)
    async with trio.open_nursery() as nursery:
        tree = MountTree(config, store, nursery)
        driver = DirectDriver(store, tree)
        if store.capabilities.write:
            await driver.fill()
        yield driver
        nursery.cancel_scope.cancel()


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except pyfuse3.FUSEError as error:
        raise OSError(error.errno, os.strerror(error.errno)) from error
