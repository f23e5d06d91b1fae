"""The workers that take requests: an error in one of them ends no mount, and none is taken while there is no memory for it."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import pyfuse3
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from zarrfs.fuse import workers
from zarrfs.memory.reserve import Reserve


class Scarce(Reserve):
    """Memory is missing ``without`` times, and available afterwards."""

    def __init__(self, without: int) -> None:
        super().__init__()
        self.without = without

    def take(self) -> bool:
        if self.without:
            self.without -= 1
            return False
        return super().take()


def worked(loop: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, *, is_over: bool = False) -> None:
    """Run a worker with ``loop`` in place of pyfuse3's."""

    async def _session_loop() -> None:
        await loop()

    async def main() -> None:
        with workers.kept_going(lambda: is_over):
            await pyfuse3._session_loop()
        assert pyfuse3._session_loop is _session_loop

    monkeypatch.setattr(pyfuse3, "_session_loop", _session_loop)
    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.logs("a worker failed and continues")
def test_an_error_in_a_worker_is_told_and_it_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = [MemoryError(), OSError(errno.EIO, "a request that cannot be read"), ValueError("what")]

    async def loop() -> None:
        if errors:
            raise errors.pop()

    worked(loop, monkeypatch)
    assert [text.partition(": ")[2].partition(":")[0] for text in caplog.messages] == ["ValueError", "OSError", "MemoryError"]


@pytest.mark.logs("a worker failed and continues")
def test_an_error_that_cannot_even_be_told_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untold(Exception):
        """An exception whose text cannot be formatted, as without memory."""

        def __str__(self) -> str:
            raise MemoryError

    left = [Untold()]

    async def loop() -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr("logging.raiseExceptions", False)
    worked(loop, monkeypatch)
    assert not left


@pytest.mark.parametrize(
    ("error", "is_over"), [(OSError(errno.ECONNABORTED, "aborted"), False), (ValueError("too late"), True)], ids=["aborted", "over"]
)
def test_a_worker_ends_with_its_connection(error: Exception, is_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def loop() -> None:
        raise error

    with pytest.raises(type(error), match=str(error.args[-1])):
        worked(loop, monkeypatch, is_over=is_over)


def test_a_version_with_other_workers_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pyfuse3, "_session_loop")
    ready = pyfuse3._wait_fuse_readable
    with workers.kept_going(lambda: False):
        assert pyfuse3._wait_fuse_readable is ready and not hasattr(pyfuse3, "_session_loop")


@pytest.mark.parametrize(("without", "seconds"), [(0, 0.0), (3, 0.1), (1000, 1.0)], ids=["enough", "soon", "not soon"])
def test_no_request_is_taken_while_there_is_no_memory_for_it_but_not_for_ever(
    without: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request may free memory."""
    scarce = Scarce(0)
    taken_at: list[float] = []

    async def _wait_fuse_readable() -> bool:
        taken_at.append(trio.current_time())
        return True

    async def main() -> None:
        with workers.kept_going(lambda: False):
            scarce.without = without
            began = trio.current_time()
            assert await pyfuse3._wait_fuse_readable()
            assert taken_at[0] - began == pytest.approx(seconds, abs=0.06)

    monkeypatch.setattr(workers, "RESERVE", scarce)
    monkeypatch.setattr(pyfuse3, "_wait_fuse_readable", _wait_fuse_readable)
    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert not scarce.is_held


def test_a_wait_for_memory_in_vain_is_not_repeated_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon at its limit for good would answer one request a second, and not end on SIGTERM."""
    scarce = Scarce(0)

    async def _wait_fuse_readable() -> bool:
        return True

    async def main() -> None:
        async def waited(requests: int) -> float:
            began = trio.current_time()
            for _ in range(requests):
                assert await pyfuse3._wait_fuse_readable()
            return trio.current_time() - began

        with workers.kept_going(lambda: False):
            scarce.without = 1_000_000
            assert await waited(1) == pytest.approx(1.0, abs=0.06)
            assert await waited(20) == pytest.approx(1.0, abs=0.06)
            scarce.without = 0
            assert await waited(20) == 0
            scarce.without = 1_000_000
            assert await waited(1) == pytest.approx(1.0, abs=0.06)

    monkeypatch.setattr(workers, "RESERVE", scarce)
    monkeypatch.setattr(pyfuse3, "_wait_fuse_readable", _wait_fuse_readable)
    trio.run(main, clock=MockClock(autojump_threshold=0))


class Requests:
    """The requests of a connection: ``waiting`` of them are there. ``ready`` is pyfuse3's wait for one, through the event loop."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.waits = 0
        self.arrived = trio.Event()
        self.changes = False

    def are_there(self) -> bool:
        return self.waiting > 0

    async def ready(self) -> bool:
        self.waits += 1
        await trio.lowlevel.checkpoint()
        if not self.waiting:
            await self.arrived.wait()
        return True


def waited(
    requests: Requests, main: Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run ``main`` with the wait of a worker."""

    async def run() -> None:
        with workers.kept_going(lambda: False, requests.are_there, lambda: requests.changes):
            await main(pyfuse3._wait_fuse_readable)

    monkeypatch.setattr(pyfuse3, "_wait_fuse_readable", requests.ready)
    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_requests_that_are_waiting_are_taken_without_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_TURN", 3600)
    requests = Requests(100)

    async def main(wait: Callable[[], Awaitable[bool]]) -> None:
        while requests.waiting:
            assert await wait()
            requests.waiting -= 1
        assert requests.waits == 1

    waited(requests, main, monkeypatch)


def test_changes_of_the_store_come_before_later_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_TURN", 3600)
    requests = Requests(100)

    async def main(wait: Callable[[], Awaitable[bool]]) -> None:
        for number in range(100):
            requests.changes = number % 10 == 5
            assert await wait()
        assert requests.waits == 1 + 10

    waited(requests, main, monkeypatch)


def test_other_tasks_run_after_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: next(now) * workers._TURN / 4)
    requests = Requests(100)

    async def main(wait: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(100):
            assert await wait()
        assert 20 <= requests.waits <= 50

    waited(requests, main, monkeypatch)


def test_a_request_that_another_worker_has_taken_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of it would wait for the next request, and with it everything else."""
    requests = Requests(1)

    async def main(wait: Callable[[], Awaitable[bool]]) -> None:
        async def worker() -> None:
            assert await wait()
            assert requests.waiting, "read(2) waits"
            requests.waiting -= 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker)
            nursery.start_soon(worker)
            await trio.testing.wait_all_tasks_blocked()
            assert requests.waiting == 0
            requests.waiting = 1
            requests.arrived.set()

    waited(requests, main, monkeypatch)
