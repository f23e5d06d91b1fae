"""Any exception of a handler becomes an errno, whether or not there is memory to log it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pyfuse3
import pytest
import trio

from zarrfs.errors import NoSuchEntry
from zarrfs.fuse.guard import guarded
from zarrfs.in_flight import InFlight


class Handlers:
    def __init__(self, error: Exception, telling: Exception | None = None) -> None:
        self.requests = InFlight()
        self.reported: list[BaseException] = []
        self._error = error
        self._telling = telling

    def report(self, where: str, error: BaseException) -> None:
        if self._telling is not None:
            raise self._telling
        self.reported.append(error)

    @guarded
    async def write(self, size: int) -> int:
        raise self._error

    @guarded
    async def getattr(self, ino: int) -> int:
        raise self._error

    @guarded
    async def lookup(self, ino: int) -> int:
        raise self._error


def errno_of(handler: Callable[[int], Coroutine[Any, Any, int]]) -> int:
    """Return the errno with which a handler fails."""

    async def main() -> int:
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await handler(1)
        return raised.value.errno

    return trio.run(main)


@pytest.mark.logs("out of memory")
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ExceptionGroup("of a nursery", [MemoryError(), ExceptionGroup("inner", [MemoryError()])]),
    ],
)
def test_want_of_memory_is_enomem(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    handlers = Handlers(error)
    assert errno_of(handlers.write) == errno.ENOMEM
    assert handlers.reported == [error]
    assert not len(handlers.requests)
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


@pytest.mark.logs("out of memory", "unforeseen error")
@pytest.mark.parametrize(("error", "number"), [(MemoryError(), errno.ENOMEM), (KeyError("k"), errno.EIO)])
def test_who_waits_is_answered_though_nothing_can_be_told(error: Exception, number: int) -> None:
    handlers = Handlers(error, telling=MemoryError())
    assert errno_of(handlers.write) == number
    assert not len(handlers.requests)


@pytest.mark.logs("no such node")
def test_what_is_open_and_gone_is_stale_and_not_missing() -> None:
    """ENOENT is not an error that a program expects of write(2)."""
    assert errno_of(Handlers(NoSuchEntry("/a: no such node", key="a")).write) == errno.ESTALE


def test_an_inode_that_is_gone_is_stale_so_that_the_kernel_looks_its_path_up_again() -> None:
    """Another file may have been renamed to the path, and the notice of that may be late."""
    handlers = Handlers(NoSuchEntry("/a: no such node", key="a"))
    assert errno_of(handlers.getattr) == errno.ESTALE
    assert errno_of(handlers.lookup) == errno.ENOENT
    assert not handlers.reported
