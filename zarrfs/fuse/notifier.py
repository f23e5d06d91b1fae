"""Telling the kernel that what it has cached is no longer so.

`invalidate_inode` and `invalidate_entry` wait for locks that the kernel holds while it waits for us: called from a request handler
with a READ of that inode in flight they deadlock the whole process beyond kill -9. So one thread of its own makes all of these calls,
in order, and nothing that the kernel may wait for waits for this thread. FLUSH and FSYNC do (a change must be seen everywhere when
close(2) returns), after letting go of every lock. LOOKUP, CREATE, UNLINK, RENAME and the like hold the kernel's lock of their folder
and never do.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import pyfuse3
import trio

log = logging.getLogger(__name__)

# A kernel that does not answer by then is waiting for something else of ours; the change is then seen after the timeout of its caches.
_PATIENCE = 5.0


class Notifier:
    """The thread and its queue. Start it once the file system is mounted; `stop` before it is closed."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending = 0
        self._lock = threading.Lock()
        # A daemon thread: a kernel call that never returns must not keep the process.
        self._thread = threading.Thread(target=self._run, name="zarrfs-notifier", daemon=True)

    def start(self) -> None:
        """Begin to serve the queue."""
        self._thread.start()

    def stop(self) -> None:
        """Serve what is queued, then end; does not wait."""
        self._queue.put(None)

    def inode(self, ino: int, *, attributes_only: bool = False) -> None:
        """Have the kernel forget the pages (and attributes) of an inode."""
        self._put(lambda: pyfuse3.invalidate_inode(pyfuse3.InodeT(ino), attr_only=attributes_only))

    def entry(self, parent: int, name: str) -> None:
        """Have the kernel forget a name in a folder."""
        encoded = name.encode("utf-8", "surrogateescape")
        self._put(lambda: pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), pyfuse3.FileNameT(encoded)))

    async def drained(self) -> None:
        """Return when everything queued so far was told, or after a while. The caller holds no lock that a handler may need."""
        with self._lock:
            if not self._pending:
                return
        told = trio.Event()
        token = trio.lowlevel.current_trio_token()
        self._put(lambda: token.run_sync_soon(told.set))
        with trio.move_on_after(_PATIENCE) as scope:
            await told.wait()
        if scope.cancelled_caught:
            log.warning("the kernel has not taken a change notice for %g s", _PATIENCE)

    def _put(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._pending += 1
        self._queue.put(call)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            except (OSError, trio.RunFinishedError):
                # The kernel has already forgotten it, which is as good.
                pass
            except Exception:
                log.exception("telling the kernel of a change failed")
            finally:
                with self._lock:
                    self._pending -= 1
