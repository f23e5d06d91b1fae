"""Mountpoints within a folder whose file systems may wait for a server, as entries of the folder.

The kernel looks up the names of a folder one after the other, so a mountpoint that hangs would block the others. Each mountpoint gets
`GRACE_SECONDS` to answer and is then listed as a folder of unknown time. It has at most one request in flight, and thus occupies at most
one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from zarrfs import threads
from zarrfs.stores.folder.names import Parts

T = TypeVar("T")

GRACE_SECONDS = 0.25


class Mountpoints:
    """The mountpoints of one folder store."""

    def __init__(self) -> None:
        self._asked: dict[Parts, float] = {}

    async def ask(self, parts: Parts, function: Callable[[Parts], T], otherwise: T) -> T:
        """Return ``function(parts)``, run in a thread; ``otherwise`` if the file system mounted there does not answer."""
        while (since := self._asked.get(parts)) is not None:
            if trio.current_time() >= since + GRACE_SECONDS:
                return otherwise
            await trio.sleep(GRACE_SECONDS / 10)
        self._asked[parts] = trio.current_time()
        has_begun = False

        def run() -> T:
            nonlocal has_begun
            has_begun = True
            try:
                return function(parts)
            finally:
                del self._asked[parts]

        try:
            with trio.move_on_after(GRACE_SECONDS):
                return await threads.io(run, abandon_on_cancel=True, apart=True)
        finally:
            if not has_begun:
                del self._asked[parts]
        return otherwise
