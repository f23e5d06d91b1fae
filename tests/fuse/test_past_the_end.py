"""Zeros for the rest of a file's last page, which the kernel may have locked."""

from __future__ import annotations

import threading

import trio
import trio.testing

from zarrfs.fuse.inode import Inode
from zarrfs.fuse.notice_queue import PATIENCE
from zarrfs.fuse.notifier import Notifier
from zarrfs.fuse.past_the_end import PastTheEnd
from zarrfs.fuse.unheard import Unheard


class LockedPage:
    """A kernel that has the page locked until the request is answered."""

    def __init__(self) -> None:
        self.is_answered = threading.Event()

    def invalidate_entry(self, parent: int, name: str) -> None:
        raise AssertionError

    def expire_entry(self, parent: int, name: str) -> None:
        raise AssertionError

    def invalidate_inode(self, ino: int, attributes_only: bool) -> None:
        raise AssertionError

    def store(self, ino: int, offset: int, data: bytes) -> None:
        self.is_answered.wait()


def test_a_page_that_is_written_back_after_the_answer_only_is_not_waited_for() -> None:
    async def main() -> None:
        kernel = LockedPage()
        notifier = Notifier(kernel)
        notifier.start()
        try:
            with trio.move_on_after(PATIENCE / 2) as waits:
                await PastTheEnd(notifier, Unheard(None, None)).grown(Inode(2, None, "k"), 100, 300)
            assert not waits.cancelled_caught
        finally:
            kernel.is_answered.set()
            notifier.stop()
            assert notifier.has_stopped(10)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
