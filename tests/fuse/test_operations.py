"""Each handler, on a tree that raises: the errno is right, and only FUSEError leaves a handler."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pyfuse3
import pytest
import trio
import trio.testing

from tests.support.callers import CALLER
from tests.support.drivers import DirectDriver, Fields, RecordingNotifier, direct
from tests.support.stores import FailingStore, WaitingStore
from zarrfs.buffers import Buffer
from zarrfs.errors import NotPermitted, StoreError, StoreFull, StoreTimeout
from zarrfs.fuse.operations import Operations
from zarrfs.fuse.session import Session
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.changed_entry import ChangedEntry
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Handle, OpenFlags, VfsNode

# Created for each test: an error collects the frames that it passed through.
ERRORS: dict[str, tuple[Callable[[], Exception], int]] = {
    "StoreError": (lambda: StoreError("the store is broken", key="k"), errno.EIO),
    "StoreTimeout": (lambda: StoreTimeout("the store does not answer", key="k"), errno.ETIMEDOUT),
    "StoreFull": (lambda: StoreFull("the store is full", key="k"), errno.ENOSPC),
    "a defect": (lambda: ZeroDivisionError("a defect"), errno.EIO),
    "KeyError": (lambda: KeyError("a defect"), errno.EIO),
    "OSError": (lambda: OSError(errno.EMFILE, "nobody translated this"), errno.EIO),
    "ExceptionGroup": (lambda: ExceptionGroup("several", [ValueError("a defect")]), errno.EIO),
}


class Raising:
    """Raises ``error`` on every access, once it is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self) -> None:
        if self.error is not None:
            raise self.error


class RaisingHandle(Handle):
    def __init__(self, raising: Raising) -> None:
        self._raising = raising

    async def attributes(self) -> Attributes:
        self._raising()
        return Attributes(False)

    async def read(self, offset: int, size: int) -> Buffer:
        self._raising()
        return b""

    async def write(self, offset: int, data: Buffer) -> int:
        self._raising()
        return len(data)

    async def truncate(self, size: int) -> None:
        self._raising()

    async def flush(self) -> None:
        self._raising()

    async def fsync(self) -> None:
        self._raising()

    async def release(self) -> None:
        self._raising()

    async def set_mtime(self, mtime_ns: int) -> None:
        self._raising()


class RaisingFile(File):
    ident = "file"

    def __init__(self, raising: Raising) -> None:
        self._raising = raising

    async def attributes(self) -> Attributes:
        self._raising()
        return Attributes(False)

    async def open(self, flags: OpenFlags) -> Handle:
        self._raising()
        return RaisingHandle(self._raising)

    async def truncate(self, size: int) -> None:
        self._raising()

    async def set_mtime(self, mtime_ns: int) -> None:
        self._raising()


class RaisingDirectory(Directory):
    def __init__(self, raising: Raising) -> None:
        self._raising = raising

    async def attributes(self) -> Attributes:
        self._raising()
        return Attributes(True)

    async def lookup(self, name: str) -> VfsNode:
        self._raising()
        return RaisingFile(self._raising) if name.startswith("file") else RaisingDirectory(self._raising)

    async def entries(self) -> AsyncIterator[Entry]:
        self._raising()
        yield "file", False, 0, None, True

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        self._raising()
        return RaisingFile(self._raising), RaisingHandle(self._raising)

    async def mkdir(self, name: str) -> Directory:
        self._raising()
        return RaisingDirectory(self._raising)

    async def unlink(self, name: str) -> None:
        self._raising()

    async def rmdir(self, name: str) -> None:
        self._raising()

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        self._raising()

    async def link(self, file: File, new_name: str) -> File:
        self._raising()
        return file

    async def sync(self) -> None:
        self._raising()

    async def extended_attributes(self) -> ExtendedAttributes | None:
        self._raising()
        return ExtendedAttributes()

    async def extended_attributes_of(self, name: str) -> ExtendedAttributes | None:
        self._raising()
        return ExtendedAttributes()


class Known:
    """Handlers over a raising tree, with a folder and a file that are known to the kernel and open."""

    def __init__(self) -> None:
        self.raising = Raising()
        self.reported: list[tuple[str, BaseException]] = []

        async def free_space() -> None:
            self.raising()

        self.session = Session(
            RaisingDirectory(self.raising),
            RecordingNotifier(),  # type: ignore[arg-type]
            timeout=1,
            writable=True,
            free_space=free_space,
            on_error=lambda where, error: self.reported.append((where, error)),
        )
        self.handlers = Operations(self.session)

    async def begin(self) -> None:
        self.folder = (await self.handlers.lookup(pyfuse3.ROOT_INODE, b"folder", None)).st_ino
        self.file = (await self.handlers.lookup(self.folder, b"file", None)).st_ino
        self.closed = (await self.handlers.lookup(self.folder, b"file closed", None)).st_ino
        self.fh = (await self.handlers.open(self.file, os.O_RDWR, CALLER)).fh
        self.directory_fh = await self.handlers.opendir(self.folder, None)


def _attributes() -> pyfuse3.EntryAttributes:
    attributes = pyfuse3.EntryAttributes()
    attributes.st_size = 1
    return attributes


HANDLERS: dict[str, Callable[[Known], Awaitable[object]]] = {
    "lookup": lambda k: k.handlers.lookup(k.folder, b"other", None),
    "getattr": lambda k: k.handlers.getattr(k.closed, None),
    "getattr of an open file": lambda k: k.handlers.getattr(k.file, None),
    "setattr size": lambda k: k.handlers.setattr(k.closed, _attributes(), Fields(update_size=True), None, None),
    "setattr size by handle": lambda k: k.handlers.setattr(k.file, _attributes(), Fields(update_size=True), k.fh, None),
    "setattr mtime": lambda k: k.handlers.setattr(k.closed, _attributes(), Fields(update_mtime=True), None, None),
    "setattr mtime of an open file": lambda k: k.handlers.setattr(k.file, _attributes(), Fields(update_mtime=True), None, None),
    "setattr nothing": lambda k: k.handlers.setattr(k.closed, _attributes(), Fields(), None, None),
    "mkdir": lambda k: k.handlers.mkdir(k.folder, b"new", 0o755, None),
    "unlink": lambda k: k.handlers.unlink(k.folder, b"file", None),
    "rmdir": lambda k: k.handlers.rmdir(k.folder, b"folder", None),
    "rename": lambda k: k.handlers.rename(k.folder, b"file", k.folder, b"file2", 0, None),
    "link": lambda k: k.handlers.link(k.file, k.folder, b"file2", None),
    "mknod": lambda k: k.handlers.mknod(k.folder, b"file new", stat.S_IFREG | 0o644, 0, None),
    "readdir": lambda k: k.handlers.readdir(k.directory_fh, 2, None),
    "fsyncdir": lambda k: k.handlers.fsyncdir(k.directory_fh, False),
    "open": lambda k: k.handlers.open(k.closed, os.O_RDONLY, CALLER),
    "create": lambda k: k.handlers.create(k.folder, b"file new", 0o644, os.O_WRONLY, CALLER),
    "read": lambda k: k.handlers.read(k.fh, 0, 10),
    "write": lambda k: k.handlers.write(k.fh, 0, b"x"),
    "flush": lambda k: k.handlers.flush(k.fh),
    "fsync": lambda k: k.handlers.fsync(k.fh, False),
    "release": lambda k: k.handlers.release(k.fh),
    "statfs": lambda k: k.handlers.statfs(None),
    "access": lambda k: k.handlers.access(k.closed, os.W_OK, None),
    "getxattr": lambda k: k.handlers.getxattr(k.closed, b"user.zarr.shape", None),
    "getxattr of a folder": lambda k: k.handlers.getxattr(k.folder, b"user.zarr.shape", None),
    "listxattr": lambda k: k.handlers.listxattr(k.closed, None),
    "setxattr": lambda k: k.handlers.setxattr(k.closed, b"user.zarr.shape", b"[1]", None),
    "removexattr": lambda k: k.handlers.removexattr(k.closed, b"user.zarr.shape", None),
}
NEVER_FAIL = {"forget", "releasedir", "opendir"}
REFUSED = {"symlink"}


def test_every_handler_is_tried() -> None:
    # Includes those of its base classes, up to the library's own.
    every = {
        name: value for base in Operations.__mro__ if base.__module__.startswith("zarrfs.") for name, value in vars(base).items()
    }
    ours = {name for name, value in every.items() if hasattr(pyfuse3.Operations, name) and callable(value)}
    ours -= {"__init__", "init"}
    assert ours == {name.split(" ")[0] for name in HANDLERS} | NEVER_FAIL | REFUSED


@pytest.mark.logs(".")
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("name", HANDLERS)
def test_a_handler_on_a_tree_that_raises(name: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        known = Known()
        await known.begin()
        make, number = ERRORS[kind]
        known.raising.error = error = make()
        caplog.set_level(logging.WARNING, "zarrfs")
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await HANDLERS[name](known)
        assert caught.value.errno == number
        assert [each for _, each in known.reported] == [error]
        (record,) = caplog.records
        # An unexpected exception is a defect: the log has its traceback.
        assert (record.exc_info is not None) == (not isinstance(error, StoreError))
        # The next request is served.
        known.raising.error = None
        if name != "release":
            await known.handlers.getattr(known.file, None)
            await known.handlers.release(known.fh)
        await known.handlers.releasedir(known.directory_fh)
        assert known.session.open_handles == 0

    trio.run(main)


def test_handlers_that_have_no_way_to_fail_do_not() -> None:
    async def main() -> None:
        known = Known()
        await known.begin()
        known.raising.error = ZeroDivisionError("a defect")
        await known.handlers.forget([(known.closed, 1), (12345, 7)])
        await known.handlers.releasedir(known.directory_fh)
        await known.handlers.opendir(known.folder, None)

    trio.run(main)


@pytest.mark.logs("not supported")
def test_what_a_store_has_not_is_refused() -> None:
    async def main() -> None:
        known = Known()
        await known.begin()
        for refused in (
            known.handlers.symlink(known.folder, b"link", b"target", None),
            known.handlers.mknod(known.folder, b"fifo", stat.S_IFIFO | 0o644, 0, None),
        ):
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await refused
            assert caught.value.errno == errno.EPERM
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await known.handlers.rename(known.folder, b"a", known.folder, b"b", pyfuse3.RENAME_EXCHANGE, None)
        assert caught.value.errno == errno.EINVAL

    trio.run(main, strict_exception_groups=True)


@pytest.mark.logs(".")
def test_requests_about_what_nobody_knows_are_eio() -> None:
    async def main() -> None:
        known = Known()
        for request in (
            known.handlers.getattr(12345, None),
            known.handlers.lookup(12345, b"x", None),
            known.handlers.read(12345, 0, 1),
            known.handlers.release(12345),
            known.handlers.releasedir(12345),
        ):
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await request
            assert caught.value.errno == errno.EIO

    trio.run(main)


# --- on the real tree, over a store that raises -----------------------------------------------------------------------------------


def on_failing_store(body: Callable[[DirectDriver, FailingStore], Awaitable[None]], tmp_path: Path) -> None:
    async def main() -> None:
        store = FailingStore(MemoryStore(), {})
        async with direct(store, cache_dir=str(tmp_path), metadata_ttl=0) as driver:
            await body(driver, store)
            store.errors.clear()

    trio.run(main)


@pytest.mark.logs(".")
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("view", ["raw", "chunks"])
def test_a_store_that_raises_is_an_errno_and_no_more(view: str, kind: str, tmp_path: Path) -> None:
    async def body(driver: DirectDriver, store: FailingStore) -> None:
        folder = f"{view}/{driver.prefix}a"
        fd = await driver.open(f"{folder}/0.0", os.O_RDWR)

        async def read() -> None:
            if view == "raw":
                await driver.pread(fd, 10, 0)
            else:
                # A chunk opened for writing is read at open.
                await driver.close(await driver.open(f"{folder}/0.0", os.O_RDWR))

        requests: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("stat", lambda: driver.stat(f"{folder}/0.1")),
            ("list_dir", lambda: driver.listdir(folder)),
            ("get get_partial_values", read),
            ("get get_partial_values stat", lambda: driver.pwrite(fd, b"x", 3)),
            ("set", lambda: driver.truncate(f"{folder}/1.0", 24)),
            ("erase", lambda: driver.unlink(f"{folder}/1.1")),
        ]
        for operations, request in requests:
            make, number = ERRORS[kind]
            store.errors.update(dict.fromkeys(operations.split(), make()))
            with pytest.raises(OSError) as caught:  # noqa: PT011
                await request()
            assert caught.value.errno == number, operations
            store.errors.clear()
            await request()
        await driver.close(fd)

    on_failing_store(body, tmp_path)


def test_a_listing_that_fails_half_way_is_an_error_each_time_until_it_is_begun_anew(tmp_path: Path) -> None:
    class HalfWay(RaisingDirectory):
        async def entries(self) -> AsyncIterator[Entry]:
            for number in range(10):
                if number == 5:
                    self._raising()
                yield f"file {number}", False, 0, None, True

    async def main() -> None:
        known = Known()
        known.handlers.inodes.root.node = HalfWay(known.raising)
        listed: list[bytes] = []

        def reply(token: object, name: bytes, attributes: pyfuse3.EntryAttributes, next_id: int) -> bool:
            if name not in (b".", b".."):
                listed.append(name)
            return True

        real, pyfuse3.readdir_reply = pyfuse3.readdir_reply, reply
        try:
            fh = await known.handlers.opendir(pyfuse3.ROOT_INODE, None)
            known.raising.error = NotPermitted("no")
            await known.handlers.readdir(fh, 0, None)
            assert len(listed) == 5
            for _ in range(2):
                with pytest.raises(pyfuse3.FUSEError) as caught:
                    await known.handlers.readdir(fh, 7, None)
                assert caught.value.errno == errno.EPERM
            known.raising.error = None
            listed.clear()
            await known.handlers.readdir(fh, 0, None)
            assert len(listed) == 10
            listed.clear()
            await known.handlers.readdir(fh, 9, None)
            assert listed == [b"file 7", b"file 8", b"file 9"]
            # A position that this handle has never reached.
            again = await known.handlers.opendir(pyfuse3.ROOT_INODE, None)
            listed.clear()
            await known.handlers.readdir(again, 10, None)
            assert listed == [b"file 8", b"file 9"]
            await known.handlers.releasedir(fh)
            await known.handlers.releasedir(again)
        finally:
            pyfuse3.readdir_reply = real

    trio.run(main)


@pytest.mark.logs("did not answer|given up by its caller")
def test_a_store_that_does_not_answer_is_etimedout_and_the_written_bytes_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        store = WaitingStore(MemoryStore())
        async with direct(store, cache_dir=str(tmp_path), timeout=60) as driver:
            fd = await driver.open(f"{driver.raw}/k", os.O_RDWR | os.O_CREAT)
            await driver.pwrite(fd, b"value", 0)
            store.waits.add("set")
            with pytest.raises(OSError) as caught:  # noqa: PT011
                await driver.fsync(fd)
            assert caught.value.errno == errno.ETIMEDOUT
            assert await driver.pread(fd, 10, 0) == b"value"
            await driver.pwrite(fd, b"VALUE, longer", 0)
            store.let_go()
            await driver.close(fd)
            assert await driver.stored("k") == b"VALUE, longer"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# --- invalidations in the kernel --------------------------------------------------------------------------------------------------


def test_changes_are_told_to_the_other_views_and_to_the_own_one_as_far_as_needed(tmp_path: Path) -> None:
    async def body(driver: DirectDriver, store: FailingStore) -> None:
        numbers = {view: (await driver.stat(f"{view}/{driver.prefix}a/0.0")).st_ino for view in ("raw", "chunks")}
        await driver.read(f"{driver.chunks}/a/0.0")
        told = driver.notifier.inodes
        told.clear()
        await driver.write(f"{driver.raw}/a/0.0", bytes(24))
        # After a WRITE the kernel requests the attributes by itself.
        assert numbers["raw"] not in [number for number, _ in told]
        assert (numbers["chunks"], False) in told
        told.clear()
        fd = await driver.open(f"{driver.raw}/a/0.0", os.O_WRONLY)
        await driver.pwrite(fd, b"byte", 0)
        await driver.stat(f"{driver.raw}/a/0.0")
        await driver.close(fd)
        # It may have those of before the publish again.
        assert (numbers["raw"], True) in told and (numbers["raw"], False) not in told
        told.clear()
        await driver.write(f"{driver.chunks}/a/0.0", bytes(24))
        assert (numbers["raw"], False) in told
        # A codec may round, and padding is replaced: the writer's pages differ from the stored value.
        assert (numbers["chunks"], False) in told

    on_failing_store(body, tmp_path)


def test_a_file_that_is_renamed_or_removed_needs_no_notice_of_its_own(tmp_path: Path) -> None:
    async def body(driver: DirectDriver, store: FailingStore) -> None:
        await driver.read(f"{driver.raw}/a/0.0")
        of_raw = (await driver.stat(f"{driver.raw}/a/0.0")).st_ino
        of_chunks = await driver.stat(f"{driver.chunks}/a/0.0")
        told = driver.notifier
        told.inodes.clear()
        told.entries.clear()
        await driver.rename(f"{driver.raw}/a/0.0", f"{driver.raw}/a/moved")
        assert of_raw not in [number for number, _ in told.inodes]
        assert of_chunks.st_ino in [number for number, _ in told.inodes] and "0.0" in [name for _, name in told.entries]
        assert await driver.read(f"{driver.raw}/a/moved")
        told.inodes.clear()
        await driver.unlink(f"{driver.raw}/a/moved")
        assert told.inodes == []
        # Nor does a new file, from its creation to its removal under another name. That it changes its folder the kernel knows.
        await driver.write(f"{driver.raw}/a/new", b"new")
        await driver.rename(f"{driver.raw}/a/new", f"{driver.raw}/a/newer")
        await driver.unlink(f"{driver.raw}/a/newer")
        assert told.inodes == []

    on_failing_store(body, tmp_path)


def test_the_attributes_of_a_folder_are_invalidated_once_if_values_in_it_are_replaced(tmp_path: Path) -> None:
    async def body(driver: DirectDriver, store: FailingStore) -> None:
        for _ in range(2):
            files = [await driver.open(f"{driver.raw}/a/{name}", os.O_WRONLY) for name in ("0.0", "0.1")]
            folder = (await driver.stat(f"{driver.raw}/a")).st_ino
            driver.notifier.inodes.clear()
            for fd in files:
                await driver.pwrite(fd, bytes(24), 0)
                await driver.close(fd)
            assert driver.notifier.inodes.count((folder, True)) == 1

    on_failing_store(body, tmp_path)


def test_a_file_that_keeps_its_name_gets_the_notice(tmp_path: Path) -> None:
    async def body(driver: DirectDriver, store: FailingStore) -> None:
        path = f"{driver.raw}/a/0.0"
        await driver.read(path)
        inode = driver.session.inodes.find(path)
        assert inode is not None
        cache, told = driver.session.kernel_cache, driver.notifier

        def fail_late(of_move: bool) -> None:
            with cache.leaving(inode, of_move=of_move):
                for _ in cache.changed([ChangedEntry(path=path, gone=True, of_move=of_move)]):
                    pass
                assert told.inodes == []
                raise StoreFull("after the change")

        for of_move in (True, False):
            told.inodes.clear()
            with pytest.raises(StoreFull):
                fail_late(of_move)
            assert (inode.ino, False) in told.inodes
        # Two requests may have one path, if a folder on the way was replaced.
        with cache.leaving(inode, of_move=True):
            with cache.leaving(inode, of_move=True) as other:
                list(cache.changed([ChangedEntry(path=path, gone=True, of_move=True)]))
            assert not other.entries
        # Another program's change, and one that leaves the name, are notified at once.
        for entry, external in ((ChangedEntry(path=path, gone=True), True), (ChangedEntry(path=path), False)):
            told.inodes.clear()
            with cache.leaving(inode, of_move=False):
                for _ in cache.changed([entry], external=external):
                    pass
                assert told.inodes or told.entries

    on_failing_store(body, tmp_path)


@pytest.mark.logs("is full|write failed, data lost")
def test_pages_of_what_could_not_be_stored_are_forgotten(tmp_path: Path) -> None:
    async def body(driver: DirectDriver, store: FailingStore) -> None:
        for path in (f"{driver.raw}/a/0.0", f"{driver.chunks}/a/0.1"):
            number = (await driver.stat(path)).st_ino
            store.errors["set"] = StoreFull("is full")
            driver.notifier.inodes.clear()
            driver.notifier.entries.clear()
            with pytest.raises(OSError):  # noqa: PT011
                await driver.write(path, bytes(24))
            assert (number, False) in driver.notifier.inodes
            assert path.rpartition("/")[2] in [name for _, name in driver.notifier.entries]
            assert driver.tree.losses.failures
            store.errors.clear()

    on_failing_store(body, tmp_path)
