"""The connection of a mount, with a pipe in its place."""

from __future__ import annotations

import os

import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from zarrfs.fuse.connection import Connection


@trio_test
async def test_what_is_opened_after_it_was_closed_can_be_waited_for() -> None:
    """The new file has the same number. Once, waiters of the connection waited for it, and a mount failed on a signal during startup."""
    reader, writer = os.pipe()
    connection = Connection(reader)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.gone)
        await wait_all_tasks_blocked()
        number = connection._epoll.fileno()
        connection.close()
        again = os.dup2(reader, number)
        os.write(writer, b"x")
        await trio.lowlevel.wait_readable(again)
        nursery.cancel_scope.cancel()
    for each in (reader, writer, again):
        os.close(each)


@trio_test
async def test_its_end_is_told() -> None:
    reader, writer = os.pipe()
    connection = Connection(reader)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.gone)
        await wait_all_tasks_blocked()
        assert not connection.is_gone
        os.close(writer)
    assert connection.is_gone
    connection.close()
    os.close(reader)
