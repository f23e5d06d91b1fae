"""Notices blocked by a lock in the kernel are bypassed: other notices are delayed only for a moment."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from zarrfs.fuse import notice_queue
from zarrfs.fuse.inode import Inode
from zarrfs.fuse.notifier import Notifier
from zarrfs.fuse.past_the_end import PastTheEnd
from zarrfs.fuse.unheard import Unheard


class Kernel:
    """Each folder and each inode has a lock: a notice that needs one in ``locked`` waits."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.locked: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.asked = 0

    def lock(self, number: int) -> None:
        self.locked[number].clear()

    def unlock(self, number: int) -> None:
        self.locked[number].set()

    def invalidate_entry(self, parent: int, name: str) -> None:
        self._tell(parent, parent, name)

    def expire_entry(self, parent: int, name: str) -> None:
        self._tell(parent, parent, name)

    def invalidate_inode(self, ino: int, attributes_only: bool) -> None:
        self._tell(ino, ino, attributes_only)

    def store(self, ino: int, offset: int, data: bytes) -> None:
        self._tell(ino, ino, offset, data)

    def _tell(self, needs: int, *what: object) -> None:
        self.asked += 1
        if needs in self.locked:
            self.locked[needs].wait()
        self.told.append(what)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    for number in list(kernel.locked):
        kernel.unlock(number)


async def told(kernel: Kernel, count: int) -> None:
    """Wait until the kernel has received ``count`` notices."""
    with trio.fail_after(60):
        while len(kernel.told) < count:
            await trio.lowlevel.checkpoint()


def test_others_are_told_and_what_needs_the_same_lock_is_told_in_order(kernel: Kernel) -> None:
    kernel.lock(1)

    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        notifier.start()
        for name in "ab":
            notifier.entry(1, name)
            notifier.inode(ord(name))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notifier.drained)
            await told(kernel, 2)
            assert kernel.told == [(ord("a"), False), (ord("b"), False)]
            assert len(notifier) >= 2
            notifier.entry(1, "c")
            notifier.inode(3)
            await told(kernel, 3)
            kernel.unlock(1)
        # A wait for all notices includes the blocked ones.
        assert kernel.told[3:5] == [(1, "a"), (1, "b")]
        await notifier.drained()
        assert kernel.told[5:] == [(1, "c")]
        with trio.fail_after(60):
            # Of a notice that was overtaken its thread tells a moment later.
            while len(notifier):
                await trio.lowlevel.checkpoint()
        notifier.stop()
        assert notifier.has_stopped(60)

    main()


def test_nobody_waits_for_a_lock_that_was_waited_for_long_enough(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice_queue, "PATIENCE", 0.0)
    kernel.lock(1)

    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        notifier.start()
        notifier.entry(1, "a")
        with trio.fail_after(60):
            for number in range(10):
                notifier.inode(number + 2)
                notifier.entry(1, str(number))
                await notifier.drained()
        assert kernel.told == [(number + 2, False) for number in range(10)]
        kernel.unlock(1)
        await told(kernel, 21)
        assert kernel.told[10:] == [(1, "a"), *((1, str(number)) for number in range(10))]
        notifier.stop()

    main()


def test_so_many_threads_and_not_more(kernel: Kernel) -> None:
    for number in range(100):
        kernel.lock(number)

    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        notifier.start()
        for number in range(100):
            notifier.entry(number, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notifier.drained)
            with trio.fail_after(60):
                while kernel.asked <= notice_queue._MAX_BLOCKED:
                    await trio.lowlevel.checkpoint()
            assert kernel.told == []
            assert len(notifier) >= 100
            for number in reversed(range(100)):
                kernel.unlock(number)
        assert {number for number, _ in kernel.told} == set(range(100))
        assert kernel.asked == 100
        notifier.stop()
        assert notifier.has_stopped(60)

    main()


def test_zeros_for_a_gap_are_not_sent_after_its_write_was_answered(kernel: Kernel) -> None:
    """Bytes may have been written into the gap since then: the kernel's page would lose them, and a mapping would store that."""
    kernel.lock(7)

    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        notifier.start()
        past_the_end = PastTheEnd(notifier, Unheard(None, None))
        notifier.store(7, 0, b"\0")
        with trio.fail_after(60):
            while not kernel.asked:
                await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(past_the_end.grown, Inode(7, None, "f"), 5000, 9000)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        kernel.unlock(7)
        await notifier.stored()
        notifier.stop()

    main()
    assert kernel.told == [(7, 0, b"\0")]


def test_without_another_thread_all_wait_for_the_one(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    kernel.lock(1)

    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        notifier.start()
        monkeypatch.setattr(threading.Thread, "start", refused)
        notifier.entry(1, "a")
        notifier.inode(2)
        with trio.move_on_after(0.3) as scope:
            await notifier.drained()
        assert scope.cancelled_caught and kernel.told == []
        kernel.unlock(1)
        await notifier.drained()
        assert kernel.told == [(1, "a"), (2, False)]
        notifier.stop()
        assert notifier.has_stopped(60)

    main()


def test_the_end_does_not_wait_for_what_was_passed_by(kernel: Kernel) -> None:
    kernel.lock(1)

    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        notifier.start()
        notifier.entry(1, "a")
        notifier.inode(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notifier.drained)
            await told(kernel, 1)
            notifier.entry(1, "b")
            notifier.stop()
        assert not notifier.has_stopped(0)
        kernel.unlock(1)
        assert notifier.has_stopped(60)
        assert kernel.told == [(2, False), (1, "a")]

    main()
