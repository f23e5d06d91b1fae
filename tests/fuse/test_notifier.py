"""The queue of invalidations for the kernel: bounded by its cache, in order, and not waited for at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio
from trio.testing import trio_test

from zarrfs.fuse import notice_queue
from zarrfs.fuse import notifier as module
from zarrfs.fuse.notifier import Notifier


class Kernel:
    """Takes notices, one at a time; while it is ``closed`` it takes none."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.asked = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def invalidate_entry(self, parent: int, name: str) -> None:
        self.asked.set()
        self.open.wait()
        self.told.append((parent, name))

    def expire_entry(self, parent: int, name: str) -> None:
        self.told.append((parent, name, "expired"))

    def invalidate_inode(self, ino: int, attributes_only: bool) -> None:
        self.asked.set()
        self.open.wait()
        self.told.append((ino, attributes_only))

    def store(self, ino: int, offset: int, data: bytes) -> None:
        self.told.append((ino, offset, data))


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.open.set()


def test_notices_are_given_in_order(kernel: Kernel) -> None:
    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        notifier.start()
        # When pages are invalidated, the name has been invalidated before.
        for number in range(100):
            notifier.entry(number, "a")
            notifier.inode(number, attributes_only=bool(number % 2))
        await notifier.drained()
        notifier.stop()

    main()
    assert kernel.told == [each for number in range(100) for each in ((number, "a"), (number, bool(number % 2)))]


def test_a_notice_that_waits_stands_for_later_ones(kernel: Kernel) -> None:
    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        kernel.open.clear()
        notifier.start()
        for _ in range(10_000):
            for number in range(3):
                notifier.entry(number, "a")
                notifier.inode(number)
        # Six are different: they are queued, being delivered, or follow one that takes long.
        assert len(notifier) <= 18
        kernel.open.set()
        await notifier.drained()
        notifier.stop()

    main()
    assert set(kernel.told) == {each for number in range(3) for each in ((number, "a"), (number, False))}


def test_who_has_many_waits_for_room(kernel: Kernel) -> None:
    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        kernel.open.clear()
        notifier.start()
        with trio.move_on_after(0) as scope:
            await notifier.room()
        assert not scope.cancelled_caught
        for number in range(module._MANY + 100):
            notifier.inode(number)
        with trio.move_on_after(0) as scope:
            await notifier.room()
        assert scope.cancelled_caught
        kernel.open.set()
        await notifier.room()
        assert len(notifier) <= module._MANY
        notifier.stop()

    main()


def test_who_holds_a_lock_of_the_kernels_waits_for_a_moment_and_for_pages(kernel: Kernel) -> None:
    """Another request may hold the lock of the folder meanwhile, and wait for that of the file."""
    kernel.open.clear()

    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        notifier.start()
        notifier.entry(1, "a")
        notifier.inode(2)
        notifier.store(3, 10, b"zeros")
        with trio.fail_after(60):
            await notifier.stored()
            assert kernel.told == [(3, 10, b"zeros")]
            await notifier.drained(has_locked=True)
        assert kernel.told == [(3, 10, b"zeros")]
        kernel.open.set()
        await notifier.drained()
        # Each may have waited for its own lock.
        assert set(kernel.told) == {(3, 10, b"zeros"), (1, "a"), (2, False)}
        notifier.stop()

    main()


def test_notices_of_some_inodes_only_are_told_from_others(kernel: Kernel) -> None:
    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        assert notifier.is_only_of([])
        kernel.open.clear()
        notifier.start()
        notifier.inode(2)
        assert kernel.asked.wait(60), "the kernel has not taken it"
        assert notifier.is_only_of([2]) and not notifier.is_only_of([]) and not notifier.is_only_of([3])
        notifier.inode(3)
        assert notifier.is_only_of([2, 3]) and not notifier.is_only_of([2])
        # An entry of a folder is another's.
        notifier.entry(1, "a")
        assert not notifier.is_only_of([2, 3])
        kernel.open.set()
        await notifier.drained()
        assert notifier.is_only_of([])
        notifier.stop()

    main()


def test_at_the_end_nobody_waits_for_what_is_left(kernel: Kernel) -> None:
    @trio_test
    async def main() -> None:
        notifier = Notifier(kernel)
        kernel.open.clear()
        notifier.start()
        for number in range(module._MANY + 100):
            notifier.inode(number)
        assert kernel.asked.wait(60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notifier.room)
            nursery.start_soon(notifier.drained)
            await trio.testing.wait_all_tasks_blocked()
            notifier.stop()
        await notifier.drained()
        await notifier.room()
        assert not notifier.has_stopped(0), "the kernel keeps the one notice"
        kernel.open.set()
        assert notifier.has_stopped(60)

    main()
    assert len(kernel.told) <= 1 + notice_queue._MAX_BLOCKED


@pytest.mark.logs("notice to the kernel failed")
def test_an_error_costs_no_other_notice(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Kernel):
        def invalidate_entry(self, parent: int, name: str) -> None:
            raise MemoryError

    failing = Failing()

    @trio_test
    async def main() -> None:
        notifier = Notifier(failing)
        notifier.start()
        notifier.entry(1, "a")
        notifier.inode(2)
        await notifier.drained()
        notifier.stop()

    main()
    assert failing.told == [(2, False)]
    assert "notice to the kernel failed" in caplog.text
