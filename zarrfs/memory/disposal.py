"""Closing of unnamed files, in a separate thread.

The last close of such a file frees its pages, and waits for those being written to the disk: up to a second for some hundred megabytes.
This must not block the event loop, nor hold the interpreter.
"""

from __future__ import annotations

import mmap
import os
import queue
import sys
import threading
from contextlib import suppress

from zarrfs.memory.written_out import WrittenOut

_PIECE_NBYTES = 16 << 20

_given_up: queue.SimpleQueue[int | mmap.mmap] = queue.SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def close(descriptor: int) -> None:
    """Close ``descriptor`` soon."""
    if _is_running():
        _given_up.put(descriptor)
    else:
        _close(descriptor)


class DisposedMapping(mmap.mmap):
    """A mapped file that is closed in that thread after its last reference is gone. ``descriptor`` keeps the file until then."""

    descriptor = -1
    written_out: WrittenOut

    def __del__(self) -> None:
        # The finalizer may resurrect the object (PEP 442): it is called once.
        if self.descriptor < 0:
            return
        if _is_running():
            _given_up.put(self)
        else:
            _close(self.descriptor)


def _is_running() -> bool:
    """Return True if the thread runs, and start it if possible: not at interpreter exit, when a start would block forever."""
    global _thread
    if sys.is_finalizing():
        return False
    # Where another call is starting it, this one does not wait: it may be a finalizer, run during that call in the same thread.
    if _thread is None and _starting.acquire(blocking=False):
        try:
            if _thread is None:
                thread = threading.Thread(target=_run, name="disposal", daemon=True)
                thread.start()
                _thread = thread
        except RuntimeError:
            return False
        finally:
            _starting.release()
    return True


def _run() -> None:
    while True:
        given_up = _given_up.get()
        if isinstance(given_up, DisposedMapping):
            # In pieces: an unmap holds the interpreter.
            for start in range(0, len(given_up), _PIECE_NBYTES):
                given_up.madvise(mmap.MADV_DONTNEED, start, min(_PIECE_NBYTES, len(given_up) - start))
            # A remaining view keeps it mapped until its release.
            with suppress(BufferError):
                given_up.close()
            _close(given_up.descriptor)
        elif isinstance(given_up, int):
            _close(given_up)


def _close(descriptor: int) -> None:
    # File systems of servers report what they could not write. The descriptor is closed nevertheless, and nobody wants these bytes.
    with suppress(OSError):
        os.close(descriptor)
