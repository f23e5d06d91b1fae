"""All handles of one inode are of one file: the kernel shows them the same pages."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing

from tests.support.callers import CALLER
from tests.support.drivers import Fields, RecordingNotifier
from zarrfs.buffers import Buffer
from zarrfs.errors import ContentInvalid, EntryExists, StaleEntry
from zarrfs.fuse.operations import Operations
from zarrfs.fuse.session import Session
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Handle, OpenFlags, VfsNode


class OneHandle(Handle):
    """``released``: an event that its RELEASE waits for; ``known``: one that its attributes wait for."""

    def __init__(self, of: object, released: trio.Event | None = None, known: trio.Event | None = None) -> None:
        self.of = of
        self.released = released
        self.known = known

    async def attributes(self) -> Attributes:
        if self.known is not None:
            await self.known.wait()
        return Attributes(False, 1)

    async def read(self, offset: int, size: int) -> Buffer:
        return b""

    async def flush(self) -> None:
        raise ContentInvalid("it is not whole")

    async def release(self) -> None:
        if self.released is not None:
            await self.released.wait()


class GrowingHandle(OneHandle):
    """Each change waits for ``grows``, and makes the file longer. `attributes` returns the length when it was requested."""

    def __init__(self, file: Name, grows: trio.Event) -> None:
        super().__init__(file.now)
        self.file = file
        self.grows = grows

    async def attributes(self) -> Attributes:
        return Attributes(False, self.file.nbytes)

    async def read(self, offset: int, size: int) -> Buffer:
        return bytes(self.file.nbytes)

    async def write(self, offset: int, data: Buffer) -> int:
        await self.grow()
        return len(data)

    async def truncate(self, size: int) -> None:
        await self.grow()

    async def flush(self) -> None:
        await self.grow()

    async def fsync(self) -> None:
        await self.grow()

    async def release(self) -> None:
        await self.grow()

    async def grow(self) -> None:
        await self.grows.wait()
        self.file.nbytes += 1


class Name(File):
    """``now``: the value under the name. ``found``: a new value that the next open finds; that open then fails.

    ``known``: an event that attributes of handles opened from now on wait for. ``replaced_while_opened``: a new value that the next open
    gets. ``grows``: an event that changes through handles opened from now on wait for. ``moved``: an event that a rename over the name
    waits for.
    """

    ident = "npy/a.npy"

    def __init__(self) -> None:
        self.now: object = object()
        self.found: object = None
        self.known: trio.Event | None = None
        self.replaced_while_opened: object = None
        self.mtime_ns: int | None = None
        self.is_whole_array = False
        self.nbytes = 1
        self.grows: trio.Event | None = None
        self.moved: trio.Event | None = None

    @property
    def of(self) -> object:
        return self.now

    @property
    def in_parts(self) -> bool:
        return self.is_whole_array

    async def attributes(self) -> Attributes:
        return Attributes(False, self.nbytes, self.mtime_ns)

    async def until_moved(self) -> bool:
        moved, self.moved = self.moved, None
        if moved is not None:
            await moved.wait()
        return moved is not None

    async def open(self, flags: OpenFlags) -> Handle:
        if self.found is not None:
            self.now, self.found = self.found, None
            raise StaleEntry("found to be another")
        if self.replaced_while_opened is not None:
            self.now, self.replaced_while_opened = self.replaced_while_opened, None
        return OneHandle(self.now, known=self.known) if self.grows is None else GrowingHandle(self, self.grows)


class Folder(Directory):
    def __init__(self, file: Name, *, is_there: bool = True) -> None:
        self.file = file
        self.is_there = is_there
        self.is_stale = False

    async def attributes(self) -> Attributes:
        return Attributes(True)

    async def lookup(self, name: str) -> VfsNode:
        if self.is_stale:
            raise StaleEntry("another program has replaced the folder")
        return self.file

    async def entries(self) -> AsyncIterator[Entry]:
        yield "a.npy", False, 1, None, True

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        if self.is_there:
            raise EntryExists("it is there")
        return self.file, OneHandle(self.file.now)


class Opened:
    """A file that is known to the kernel and open."""

    async def begin(self, *, is_there: bool = True) -> None:
        async def free_space() -> None:
            pass

        self.file = Name()
        root = self.folder = Folder(self.file, is_there=is_there)
        self.notifier = RecordingNotifier()
        self.session = Session(root, self.notifier, timeout=1, writable=True, free_space=free_space)  # type: ignore[arg-type]
        self.handlers = Operations(self.session)
        self.ino = await self.look_up()
        await self.open(self.ino)

    async def look_up(self) -> int:
        return int((await self.handlers.lookup(pyfuse3.ROOT_INODE, b"a.npy", CALLER)).st_ino)

    async def open(self, ino: int, flags: int = os.O_RDWR) -> pyfuse3.FileInfo:
        return await self.handlers.open(pyfuse3.InodeT(ino), pyfuse3.FlagT(flags), CALLER)

    async def change(self, call: str, number: pyfuse3.FileHandleT) -> None:
        if call == "write":
            await self.handlers.write(number, 0, b"x")
        elif call == "setattr":
            attributes = pyfuse3.EntryAttributes()
            attributes.st_size = 2
            fields: Any = Fields(update_size=True)
            await self.handlers.setattr(pyfuse3.InodeT(self.ino), attributes, fields, number, CALLER)
        elif call == "fsync":
            await self.handlers.fsync(number, datasync=False)
        else:
            await getattr(self.handlers, call)(number)

    async def close_all(self) -> None:
        for number in list(self.session.files):
            await self.handlers.release(pyfuse3.FileHandleT(number))


@pytest.mark.parametrize("when", ["before it is opened", "while it is opened"])
def test_another_file_of_that_name_is_another_inode(when: str) -> None:
    async def main() -> None:
        known = Opened()
        await known.begin()
        await known.open(known.ino)
        setattr(known.file, "now" if when == "before it is opened" else "found", object())
        with pytest.raises(pyfuse3.FUSEError) as refused:
            await known.open(known.ino)
        assert refused.value.errno == errno.ESTALE
        # The kernel then repeats the lookup, once.
        another = await known.look_up()
        assert another != known.ino
        await known.open(another)

    trio.run(main)


def test_a_file_that_is_replaced_between_two_opens_is_another_inode_each_time() -> None:
    """If an earlier open(2) counted as the first try of this one, the new file would have the size of the previous, and no mappings."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        numbers = [known.ino]
        for _ in range(3):
            known.file.now = object()
            with pytest.raises(pyfuse3.FUSEError) as refused:
                await known.open(numbers[-1])
            assert refused.value.errno == errno.ESTALE
            numbers.append(await known.look_up())
            assert not (await known.open(numbers[-1])).direct_io
        assert len(set(numbers)) == 4

    trio.run(main)


@pytest.mark.parametrize("change", ["another size", "another file"])
@pytest.mark.parametrize("is_whole_array", [True, False], ids=["whole array", "one value"])
def test_an_open_file_in_parts_loses_its_pages_with_its_name(is_whole_array: bool, change: str) -> None:
    """What others change is reported by name, and the name is that of the other file: pages of elements that are gone would stay."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        known.file.is_whole_array = is_whole_array
        known.notifier.inodes.clear()
        if change == "another size":
            known.file.nbytes += 1
        else:
            known.file.now = object()
        assert await known.look_up() != known.ino
        assert ((known.ino, False) in known.notifier.inodes) == is_whole_array
        await known.close_all()

    trio.run(main)


@pytest.mark.logs("another program has replaced the folder")
def test_a_file_that_is_replaced_in_both_attempts_of_the_kernel_is_opened() -> None:
    """The first attempt may end before the file is opened, at the lookup of its name in a folder that another one replaced."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        known.folder.is_stale = True
        with pytest.raises(pyfuse3.FUSEError) as refused:
            await known.look_up()
        assert refused.value.errno == errno.ESTALE
        known.folder.is_stale = False
        number = await known.look_up()
        known.file.now = object()
        opened = await known.open(number)
        assert known.session.files[opened.fh].handle.of is known.file.now

    trio.run(main)


def test_two_opens_at_once_of_a_name_whose_file_changes_do_not_share_an_inode() -> None:
    async def main() -> None:
        known = Opened()
        await known.begin()
        await known.close_all()
        known.file.known = trio.Event()
        refused: list[int] = []

        async def open_the_first() -> None:
            with pytest.raises(pyfuse3.FUSEError) as error:
                await known.open(known.ino)
            refused.append(error.value.errno)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_the_first)
            await trio.testing.wait_all_tasks_blocked()
            first, known.file.known = known.file.known, None
            known.file.now = object()
            await known.open(known.ino)
            first.set()
        assert refused == [errno.ESTALE]
        assert {each.handle.of for each in known.session.files.values()} == {known.file.now}

    trio.run(main)


@pytest.mark.parametrize("asked", ["open", "lookup", "getattr"])
@pytest.mark.parametrize("call", ["write", "setattr", "flush", "fsync", "release"])
def test_a_file_whose_attributes_are_requested_while_it_is_changed_is_the_same_inode(call: str, asked: str) -> None:
    """With two inodes of one file, each has a size and pages of its own in the kernel: of two programs that append, one overwrites."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        await known.close_all()
        known.file.grows = trio.Event()
        number = (await known.open(known.ino)).fh
        known.session.files[number].written = True
        await known.open(known.ino)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.change, call, number)
            await trio.testing.wait_all_tasks_blocked()
            if asked == "open":
                await known.open(known.ino)
            elif asked == "lookup":
                assert await known.look_up() == known.ino
            else:
                await known.handlers.getattr(pyfuse3.InodeT(known.ino), CALLER)
            known.file.grows.set()
        await known.open(known.ino)
        assert await known.look_up() == known.ino

    trio.run(main)


def test_a_read_during_a_write_of_its_bytes_returns_those_of_after() -> None:
    """The kernel keeps what it reads: a mapping of it would otherwise undo the write."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        await known.close_all()
        known.file.grows = trio.Event()
        number = (await known.open(known.ino)).fh
        got: list[Buffer] = []

        async def read() -> None:
            got.append(await known.handlers.read(number, 0, 10))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.change, "write", number)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            known.file.grows.set()
        assert got == [bytes(2)]

    trio.run(main)


def test_a_file_that_is_emptied_at_open_shares_no_pages_with_another() -> None:
    async def main() -> None:
        known = Opened()
        await known.begin()
        await known.close_all()
        emptied = await known.open(known.ino, os.O_RDWR | os.O_TRUNC)
        assert not emptied.direct_io
        known.file.replaced_while_opened = object()
        emptied = await known.open(known.ino, os.O_RDWR | os.O_TRUNC)
        assert emptied.direct_io

    trio.run(main)


@pytest.mark.parametrize("is_whole_array", [True, False], ids=["whole array", "one value"])
def test_an_array_of_which_elements_change_is_the_same_inode_while_it_is_open(is_whole_array: bool) -> None:
    """This holds for an answer that was computed before the change and is sent after it. Another value is another file."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        known.file.is_whole_array = is_whole_array
        found = []
        for mtime_ns in (1, 2, 1):
            known.file.mtime_ns = mtime_ns
            found.append(await known.look_up())
        assert (len(set(found)) == 1) == is_whole_array
        if is_whole_array:
            assert found[0] == known.ino
            known.file.found = object()
            with pytest.raises(pyfuse3.FUSEError):
                await known.open(known.ino)
            known.file.mtime_ns = 3
            assert await known.look_up() != known.ino

    trio.run(main)


@pytest.mark.parametrize("call", ["create", "create where it is there", "mknod"])
def test_a_file_that_is_made_where_another_is_open_is_another_inode(call: str) -> None:
    async def main() -> None:
        known = Opened()
        await known.begin(is_there=call == "create where it is there")

        async def make() -> int:
            if call == "mknod":
                entry = await known.handlers.mknod(pyfuse3.ROOT_INODE, b"a.npy", pyfuse3.ModeT(0o100644), 0, CALLER)
            else:
                flags = pyfuse3.FlagT(os.O_RDWR)
                _, entry = await known.handlers.create(pyfuse3.ROOT_INODE, b"a.npy", pyfuse3.ModeT(0o644), flags, CALLER)
            return int(entry.st_ino)

        same = await make()
        known.file.now = object()
        another = await make()
        assert same == known.ino != another
        # Each answered lookup counts, since the kernel forgets as many.
        assert known.session.inodes[another].lookups == 1 and known.session.inodes[known.ino].lookups == 2

    trio.run(main)


@pytest.mark.logs("it is not whole")
@pytest.mark.parametrize("how", ["lookup", "opendir"])
def test_a_name_whose_file_is_being_released_is_looked_up_and_listed_afterwards(how: str) -> None:
    """After close(2) has returned the refusal of a new file, it cannot be found: by a cached name, a fast lookup, or `rm -r`."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        released, found = trio.Event(), trio.Event()
        number = known.session.add_file(known.session.inodes[known.ino], OneHandle(known.file.now, released), writes=True)

        async def look_up() -> None:
            await (known.look_up() if how == "lookup" else known.handlers.opendir(pyfuse3.ROOT_INODE, CALLER))
            found.set()

        with pytest.raises(pyfuse3.FUSEError):
            await known.handlers.flush(pyfuse3.FileHandleT(number))
        assert (pyfuse3.ROOT_INODE, "a.npy") in known.notifier.entries
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.handlers.release, number)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(look_up)
            await trio.testing.wait_all_tasks_blocked()
            assert not found.is_set()
            released.set()
        assert found.is_set()

    trio.run(main, clock=trio.testing.MockClock())


def test_who_looks_up_a_name_does_not_wait_long_for_a_release() -> None:
    async def main() -> None:
        known = Opened()
        await known.begin()
        released = trio.Event()
        number = known.session.add_file(known.session.inodes[known.ino], OneHandle(known.file.now, released))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.handlers.release, number)
            await trio.testing.wait_all_tasks_blocked()
            assert await known.look_up() == known.ino
            released.set()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
