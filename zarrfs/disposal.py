"""Giving up files without a name, in a thread of its own.

The last to close such a file frees its pages, and waits for those that are just being written to the disk: up to a second for some
hundred megabytes. That must not be the event loop, nor hold the interpreter.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading

_PIECE_NBYTES = 16 << 20

_given_up: queue.SimpleQueue[int | mmap.mmap] = queue.SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def close(descriptor: int) -> None:
    """Close ``descriptor`` soon."""
    _begin()
    _given_up.put(descriptor)


class DisposedMapping(mmap.mmap):
    """A mapped file that is given up so when nobody refers to it any more. ``descriptor`` keeps the file until then."""

    descriptor = -1

    def __del__(self) -> None:
        # The finalizer may keep the object (PEP 442): it is called once.
        if self.descriptor >= 0:
            _begin()
            _given_up.put(self)


def _begin() -> None:
    global _thread
    if _thread is None:
        with _starting:
            if _thread is None:
                _thread = threading.Thread(target=_run, name="disposal", daemon=True)
                _thread.start()


def _run() -> None:
    while True:
        given_up = _given_up.get()
        if isinstance(given_up, DisposedMapping):
            # In pieces: whoever unmaps holds the interpreter.
            for start in range(0, len(given_up), _PIECE_NBYTES):
                given_up.madvise(mmap.MADV_DONTNEED, start, min(_PIECE_NBYTES, len(given_up) - start))
            given_up.close()
            os.close(given_up.descriptor)
        elif isinstance(given_up, int):
            os.close(given_up)
