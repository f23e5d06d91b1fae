"""An open that fails after the file was opened leaves nothing open: the kernel sends no RELEASE, and the last one publishes."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pyfuse3
import pytest
import trio

from tests.support.callers import CALLER
from tests.support.drivers import RecordingNotifier
from zarrfs.buffers import Buffer
from zarrfs.errors import EntryExists, StaleEntry, StoreError
from zarrfs.fuse.operations import Operations
from zarrfs.fuse.session import Session
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Handle, OpenFlags, VfsNode


class UnknownHandle(Handle):
    def __init__(self, file: ChangingFile) -> None:
        self._file = file

    async def attributes(self) -> Attributes:
        raise StoreError("the store is broken")

    async def read(self, offset: int, size: int) -> Buffer:
        return b""

    async def release(self) -> None:
        self._file.nopen -= 1


class ChangingFile(File):
    """A file that the store has under its name; its next opens are too late for ``nreplaced`` values."""

    ident = "raw/a"

    def __init__(self) -> None:
        self.nopen = 0
        self.nreplaced = 0

    async def attributes(self) -> Attributes:
        return Attributes(False, 1)

    async def open(self, flags: OpenFlags) -> Handle:
        if self.nreplaced:
            self.nreplaced -= 1
            raise StaleEntry("was replaced")
        self.nopen += 1
        return UnknownHandle(self)


class Folder(Directory):
    def __init__(self, file: ChangingFile) -> None:
        self._file = file

    async def attributes(self) -> Attributes:
        return Attributes(True)

    async def lookup(self, name: str) -> VfsNode:
        return self._file

    async def entries(self) -> AsyncIterator[Entry]:
        yield "a", False, 1, None, True

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        raise EntryExists("another program has created it")


async def _open(handlers: Operations) -> None:
    ino = (await handlers.lookup(pyfuse3.ROOT_INODE, b"a", CALLER)).st_ino
    await handlers.open(ino, pyfuse3.FlagT(os.O_WRONLY), CALLER)


async def _create(handlers: Operations) -> None:
    await handlers.create(pyfuse3.ROOT_INODE, pyfuse3.FileNameT(b"a"), pyfuse3.ModeT(0o644), pyfuse3.FlagT(os.O_WRONLY), CALLER)


@pytest.mark.logs("the store is broken")
@pytest.mark.parametrize(("request_of", "nreplaced"), [(_open, 0), (_open, 2), (_create, 0)])
def test_an_open_without_attributes_is_an_error_and_leaves_nothing_open(
    request_of: Callable[[Operations], Awaitable[None]], nreplaced: int
) -> None:
    async def free_space() -> None:
        pass

    async def main() -> None:
        file = ChangingFile()
        notifier = RecordingNotifier()
        session = Session(Folder(file), notifier, timeout=1, writable=True, free_space=free_space)  # type: ignore[arg-type]
        handlers = Operations(session)
        file.nreplaced = nreplaced
        for _ in range(nreplaced - 1):
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await request_of(handlers)
            assert caught.value.errno == errno.ESTALE
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await request_of(handlers)
        assert caught.value.errno == errno.EIO
        assert (file.nopen, session.open_handles) == (0, 0)

    trio.run(main)
