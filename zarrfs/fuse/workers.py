"""pyfuse3's workers, which let no error end the mount.

A worker takes a request from the kernel, has its handler called, and takes the next one. An error in a worker (MemoryError, anywhere)
would end `pyfuse3.main` and with it the mount for everyone; here it is logged, and the worker goes on. And no request is taken where
there is no memory to call its handler, since one that is taken and not answered leaves its program beyond SIGKILL: see
`zarrfs.memory.reserve`.

pyfuse3 has no setting for either, so two functions of its module are wrapped. Where a version lacks them, it is as it was without this.
"""

from __future__ import annotations

import errno
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pyfuse3
import trio

from zarrfs.memory.reserve import RESERVE

log = logging.getLogger(__name__)

_PAUSE = 0.05
_SHORT_OF_MEMORY = 1.0
"""Seconds for which requests stay with the kernel, where they can be killed, while there is no memory to take one. Not longer: they may
be what frees some."""

_Loop = Callable[..., Coroutine[Any, Any, None]]
_Ready = Callable[[], Coroutine[Any, Any, bool]]


@contextmanager
def kept_going(is_over: Callable[[], bool]) -> Iterator[None]:
    """Around `pyfuse3.main`. ``is_over()``: whether the connection is gone, so that errors end the workers."""
    loop: _Loop | None = getattr(pyfuse3, "_session_loop", None)
    ready: _Ready | None = getattr(pyfuse3, "_wait_fuse_readable", None)
    if loop is None or ready is None:
        log.debug("this version of pyfuse3 has other workers: an error in one ends the mount")
        yield
        return
    RESERVE.take()
    module = vars(pyfuse3)
    module |= {"_session_loop": _kept_going(loop, is_over), "_wait_fuse_readable": _with_memory(ready)}
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
                # umount -f, and whoever else aborts a connection.
                if (isinstance(error, OSError) and error.errno == errno.ECONNABORTED) or is_over():
                    raise
                RESERVE.release()
                _tell(error)
            await trio.sleep(_PAUSE)

    return worker


def _with_memory(ready: _Ready) -> _Ready:
    async def wait_readable() -> bool:
        if not RESERVE.take():
            await _memory()
        is_ready = await ready()
        # Nothing else runs between this and the handler, which takes it back (`zarrfs.fuse.guard`).
        RESERVE.lend()
        return is_ready

    return wait_readable


async def _memory() -> None:
    """Return when the reserve is held again, or after a while."""
    gc.collect()
    with trio.move_on_after(_SHORT_OF_MEMORY):
        while not RESERVE.take():  # noqa: ASYNC110 (nobody tells when memory is free)
            await trio.sleep(_PAUSE)


def _tell(error: BaseException) -> None:
    try:
        log.error("a worker failed, and goes on: %s: %s", type(error).__name__, error)
    except Exception:  # noqa: BLE001 (there is no memory for that either)
        return
