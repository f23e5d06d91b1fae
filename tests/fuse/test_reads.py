"""READs whose callers no longer wait."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreTimeout
from zarrfs.fuse.handles import OpenFile
from zarrfs.fuse.inode import Inode
from zarrfs.fuse.reads import Reads
from zarrfs.vfs.loading import loading
from zarrfs.vfs.node import Handle


class Endless:
    """A handle whose reads do not end by themselves."""

    def __init__(self) -> None:
        self.begun = 0

    async def read(self, offset: int, size: int) -> Buffer:
        self.begun += 1
        await trio.sleep_forever()
        raise AssertionError("unreachable")


def opened(opener: int) -> OpenFile:
    return OpenFile(Inode(2, Inode(1, None, ""), "file"), cast("Handle", Endless()), opener)


@trio_test
async def test_a_read_ends_by_its_deadline(autojump_clock: MockClock) -> None:
    reads = Reads(30, None)
    with pytest.raises(StoreTimeout, match=r"file: read of 10 bytes at 5 cancelled after 30\.0 s"):
        await reads.read(opened(1), 5, 10)


@trio_test
async def test_what_a_killed_reader_asked_for_ends_and_what_others_did_goes_on(autojump_clock: MockClock) -> None:
    asked: list[tuple[int, str]] = []

    async def is_abandoned(opener: int, path: str) -> bool:
        asked.append((opener, path))
        return opener == 7

    reads = Reads(30, is_abandoned)
    ended: dict[int, float] = {}

    async def read(file: OpenFile) -> None:
        with pytest.raises(StoreTimeout):
            await reads.read(file, 0, 10)
        ended[file.opener] = trio.current_time()

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads.watch)
        async with trio.open_nursery() as readers:
            killed = opened(7)
            for file in (killed, killed, opened(8)):
                readers.start_soon(read, file)
        nursery.cancel_scope.cancel()
    assert ended[7] - began <= 2
    assert ended[8] - began == 30
    assert sorted(asked[:2]) == [(7, "file"), (8, "file")], "each open file is asked for once"


@trio_test
async def test_what_a_killed_writer_would_load_ends(autojump_clock: MockClock) -> None:
    async def is_abandoned(opener: int, path: str) -> bool:
        return opener == 7

    reads = Reads(30, is_abandoned)
    ended: list[int] = []

    async def write(opener: int) -> None:
        with trio.CancelScope(shield=True), reads.changing(opened(opener).inode, opener), pytest.raises(StoreTimeout):
            with loading("file"):
                await trio.sleep_forever()
        ended.append(opener)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads.watch)
        async with trio.open_nursery() as writers:
            for opener in (7, 8):
                writers.start_soon(write, opener)
            await trio.sleep(10)
            assert ended == [7]
            # The mount has ended.
            reads.end()
        nursery.cancel_scope.cancel()
    assert ended == [7, 8]


@trio_test
async def test_a_read_waits_for_changes_of_its_bytes_that_began_before() -> None:
    """The kernel requests pages again that it dropped during a WRITE: with bytes of before, a mapping would undo the WRITE."""

    class Bytes:
        async def read(self, offset: int, size: int) -> Buffer:
            return value[offset : offset + size]

    value = b"beforeafter"
    reads = Reads(30, None)
    file = OpenFile(Inode(2, Inode(1, None, ""), "file"), cast("Handle", Bytes()), 1)
    got: list[Buffer] = []

    async def read() -> None:
        got.append(await reads.read(file, 4, 2))

    async with trio.open_nursery() as nursery:
        with reads.changing(file.inode, 1, 0, 5):
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert not got
            assert await reads.read(file, 5, 2) == b"ea"
            # Another file's.
            with reads.changing(Inode(3, None, "other"), 1):
                assert await reads.read(file, 6, 2) == b"af"
            value = b"BEFOREafter"
    assert got == [b"RE"]
    assert await reads.read(file, 0, 2) == b"BE"
