"""Workers of pyfuse3 that survive errors.

A worker takes a request from the kernel, calls its handler, and takes the next one. An error in a worker (MemoryError, anywhere) would
end `pyfuse3.main` and with it the mount for everyone; here it is logged, and the worker continues. And no request is taken without memory
to call its handler, since a request that is taken and not answered leaves its program beyond SIGKILL: see `zarrfs.memory.reserve`.

A worker that has answered takes the next request at once, if one is waiting: pyfuse3's way through a lock and the event loop costs more
than most handlers (docs/design/036-requests.md).

pyfuse3 has no setting for these, so two functions of its module are wrapped. In a version without them, its own behaviour stays.
"""

from __future__ import annotations

import errno
import gc
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pyfuse3
import trio

from zarrfs.memory.reserve import RESERVE

log = logging.getLogger(__name__)

_PAUSE = 0.05
_SHORT_OF_MEMORY = 1.0
"""Seconds for which requests stay with the kernel, where they can be killed, while there is no memory to take one.

Not longer: a request may be what frees memory. And only once, until there is memory again: a daemon may be at its limit for good, and has
to answer there too, if only with ENOMEM. Further requests wait for `_PAUSE`.
"""

_TURN = 0.001
"""Seconds for which workers take requests that are waiting before other tasks of the event loop run."""

_Loop = Callable[..., Coroutine[Any, Any, None]]
_Ready = Callable[[], Coroutine[Any, Any, bool]]


@contextmanager
def kept_going(
    is_over: Callable[[], bool], has_request: Callable[[], bool] | None = None, has_changes: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Wrap the workers of `pyfuse3.main` during the body.

    ``is_over()``: the connection has ended, so that errors end the workers. ``has_request()``: a request is waiting; None if unknown.
    ``has_changes()``: changes of the store are waiting, which come before later requests.
    """
    loop: _Loop | None = getattr(pyfuse3, "_session_loop", None)
    ready: _Ready | None = getattr(pyfuse3, "_wait_fuse_readable", None)
    if loop is None or ready is None:
        log.debug("this version of pyfuse3 has other workers, in which an error ends the mount")
        yield
        return
    RESERVE.take()
    module = vars(pyfuse3)
    module |= {
        "_session_loop": _kept_going(loop, is_over),
        "_wait_fuse_readable": _with_memory(_in_turns(ready, has_request, has_changes) if has_request is not None else ready),
    }
    try:
        yield
    finally:
        module |= {"_session_loop": loop, "_wait_fuse_readable": ready}
        RESERVE.release()


def _kept_going(loop: _Loop, is_over: Callable[[], bool]) -> _Loop:
    async def worker(*args: Any) -> None:
        while True:
            try:
                await loop(*args)
                return
            except Exception as error:
                # umount -f, or another abort of the connection.
                if (isinstance(error, OSError) and error.errno == errno.ECONNABORTED) or is_over():
                    raise
                RESERVE.release()
                _log(error)
            await trio.sleep(_PAUSE)

    return worker


def _with_memory(ready: _Ready) -> _Ready:
    in_vain = False

    async def wait_readable() -> bool:
        nonlocal in_vain
        in_vain = not RESERVE.take() and not await _memory(_PAUSE if in_vain else _SHORT_OF_MEMORY)
        is_ready = await ready()
        # Nothing else runs between this and the handler, which takes it back (`zarrfs.fuse.guard`).
        RESERVE.lend()
        return is_ready

    return wait_readable


def _in_turns(ready: _Ready, has_request: Callable[[], bool], has_changes: Callable[[], bool]) -> _Ready:
    began = -math.inf

    async def wait_readable() -> bool:
        nonlocal began
        if time.monotonic() - began < _TURN and not has_changes() and has_request():
            return True
        while await ready():
            began = time.monotonic()
            # Another worker may have taken the request since the event loop reported it: then read(2) would wait, and everything with it.
            if has_request():
                return True
        return False

    return wait_readable


async def _memory(seconds: float) -> bool:
    """Wait until the reserve is held again, and return True, or ``seconds`` are over."""
    if seconds >= _SHORT_OF_MEMORY:
        gc.collect()
    with trio.move_on_after(seconds) as scope:
        while not RESERVE.take():  # noqa: ASYNC110 (there is no event for free memory)
            await trio.sleep(_PAUSE)
    return not scope.cancelled_caught


def _log(error: BaseException) -> None:
    try:
        log.error("a worker failed and continues: %s: %s", type(error).__name__, error)
    except Exception:  # noqa: BLE001 (no memory for the log either)
        return
