"""Giving up files without a name, in a thread of its own.

The last to close such a file frees its pages, and waits for those that are just being written to the disk: up to a second for some
hundred megabytes. That must not be the event loop, nor hold the interpreter.
"""

from __future__ import annotations

import mmap
import os
import queue
import sys
import threading
from contextlib import suppress

_PIECE_NBYTES = 16 << 20

_given_up: queue.SimpleQueue[int | mmap.mmap] = queue.SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def close(descriptor: int) -> None:
    """Close ``descriptor`` soon."""
    if _is_running():
        _given_up.put(descriptor)
    else:
        os.close(descriptor)


class DisposedMapping(mmap.mmap):
    """A mapped file that is given up so when nobody refers to it any more. ``descriptor`` keeps the file until then."""

    descriptor = -1

    def __del__(self) -> None:
        # The finalizer may keep the object (PEP 442): it is called once.
        if self.descriptor < 0:
            return
        if _is_running():
            _given_up.put(self)
        else:
            os.close(self.descriptor)


def _is_running() -> bool:
    """Whether the thread runs, which is started where it can be: not when the interpreter ends, where starting one waits for ever."""
    global _thread
    if sys.is_finalizing():
        return False
    if _thread is None:
        with _starting:
            if _thread is None:
                thread = threading.Thread(target=_run, name="disposal", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                _thread = thread
    return True


def _run() -> None:
    while True:
        given_up = _given_up.get()
        if isinstance(given_up, DisposedMapping):
            # In pieces: whoever unmaps holds the interpreter.
            for start in range(0, len(given_up), _PIECE_NBYTES):
                given_up.madvise(mmap.MADV_DONTNEED, start, min(_PIECE_NBYTES, len(given_up) - start))
            # Whoever still looks at it has it unmapped when he lets go.
            with suppress(BufferError):
                given_up.close()
            os.close(given_up.descriptor)
        elif isinstance(given_up, int):
            os.close(given_up)
