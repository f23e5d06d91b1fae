"""Serving the kernel's requests, without ever waiting for one in a system call.

pyfuse3 asks for a request with read(2) when the descriptor is readable, and holds everything meanwhile: the event loop, the lock of the
interpreter. The kernel takes a request back when the process that made it is killed, and when that happens between the two, read(2)
waits for the next request: deadlines, publishing and every other request that is under way wait with it, for as long as nobody asks for
anything (measured: 3 times in 523 rounds in which eight readers were killed). pyfuse3 cannot do with a descriptor that does not wait, so
a timer interrupts it.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pyfuse3

log = logging.getLogger(__name__)

_SECONDS = 0.5


async def serve() -> None:
    """Answer requests until the connection is gone, or pyfuse3 is told to end."""
    with _interrupted():
        try:
            await pyfuse3.main()
        except* ConnectionAbortedError:
            log.info("the connection was aborted")


@contextmanager
def _interrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _nothing)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


def _nothing(number: int, frame: object) -> None:
    """A signal that is ignored interrupts nothing."""
