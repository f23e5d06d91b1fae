"""Requests about a file that is being changed, renamed or removed at that moment."""

from __future__ import annotations

import errno
import os

import pyfuse3
import pytest
import trio
import trio.testing

from tests.fuse.test_one_file import Opened
from tests.support.callers import CALLER


@pytest.mark.parametrize("call", ["write", "setattr", "flush", "fsync", "release"])
def test_the_kernel_does_not_keep_attributes_requested_during_a_change(call: str) -> None:
    """The notice of a publish can come before the staged bytes are dropped: their time was shown for minutes after close(2)."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        await known.close_all()
        inode = pyfuse3.InodeT(known.ino)

        async def timeouts() -> list[float]:
            found = await known.handlers.lookup(pyfuse3.ROOT_INODE, b"a.npy", CALLER)
            got = await known.handlers.getattr(inode, CALLER)
            return [found.attr_timeout, got.attr_timeout]

        known.file.grows = trio.Event()
        number = (await known.open(known.ino)).fh
        known.session.files[number].written = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.change, call, number)
            await trio.testing.wait_all_tasks_blocked()
            assert await timeouts() == [0, 0]
            known.session.inodes.listed(known.session.inodes.root, "a.npy", stamp=1)
            assert not known.session.inodes.is_settled(known.ino)
            known.file.grows.set()
        assert min(await timeouts()) > 0
        known.session.inodes.listed(known.session.inodes.root, "a.npy", stamp=1)
        assert known.session.inodes.is_settled(known.ino)

    trio.run(main)


@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_TRUNC, os.O_RDWR])
def test_a_name_that_becomes_another_file_s_while_it_is_opened_is_looked_up_again(flags: int) -> None:
    """Emptied at open, too: the new file would have two inodes, and programs that append to it would write at the same offset."""

    async def main() -> None:
        known = Opened()
        await known.begin()
        await known.close_all()
        known.file.moved = moved = trio.Event()
        refused: list[int] = []

        async def open_it() -> None:
            with pytest.raises(pyfuse3.FUSEError) as error:
                await known.open(known.ino, flags)
            refused.append(error.value.errno)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            await trio.testing.wait_all_tasks_blocked()
            known.file.now = object()
            known.session.vanished(known.session.inodes.root, "a.npy")
            moved.set()
        assert refused == [errno.ESTALE]
        assert not known.session.files

    trio.run(main)
