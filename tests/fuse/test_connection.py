"""The connection of a mount, with a pipe in its place."""

from __future__ import annotations

import logging
import os

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from zarrfs.fuse.connection import Connection
from zarrfs.fuse.kernel import _failed_answers_logged


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


@pytest.mark.logs("failed with")
def test_an_answer_that_fails_is_logged_only_while_somebody_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    with _failed_answers_logged(Connection(reader)):
        log = logging.getLogger("pyfuse3")
        log.error("fuse_read(): fuse_reply_* failed with No such file or directory")
        os.close(writer)
        log.error("fuse_release(): fuse_reply_* failed with No such file or directory")
        log.error("something else failed with it")
    assert [record.getMessage().partition("(")[0] for record in caplog.records] == ["fuse_read", "something else failed with it"]
    os.close(reader)
