"""The only place that enters threads, and the rule of what does.

``io`` is wide: its threads wait for disks and servers. Calls that may be abandoned, those to a store, never keep the others waiting:
they have a limit of their own, and another one for the threads that nobody waits for any more, which a store that hangs does not give
back. Those to a part of a store that may hang by itself (a folder on a server, in a store that is here) have both ``apart``. ``cpu`` is
as wide as the machine has cores: its threads decode and encode in libraries that release the GIL. A hop costs 40 to 110 microseconds, so:

* what is in memory is answered inline, without a hop;
* a call that would block only on the page cache may run inline first and come here when it would have to wait (a folder store
  reads with RWF_NOWAIT);
* codec work below `INLINE_NBYTES` runs inline; above it, one hop a chunk, never one a read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

IO_THREADS = 64
ABANDONED_THREADS = 64
"""Beyond `IO_THREADS` that are waited for. When so many hang, further calls wait for a thread until they are abandoned too."""
APART_THREADS = 16
"""That are waited for, and as many that nobody waits for any more, for parts of a store that may hang by themselves."""
CPU_THREADS = max(1, len(os.sched_getaffinity(0)))

# Decoding 16 KiB takes about as long as a hop (lz4: 10 us, gzip: 50 us).
INLINE_NBYTES = 16 * 1024

_io_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("zarrfs_io_limiter")
_awaited_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("zarrfs_awaited_limiter")
_abandonable_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("zarrfs_abandonable_limiter")
_awaited_apart_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("zarrfs_awaited_apart_limiter")
_apart_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("zarrfs_apart_limiter")
_cpu_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("zarrfs_cpu_limiter")


async def io(function: Callable[..., T], *args: object, abandon_on_cancel: bool = False, apart: bool = False) -> T:
    """``function(*args)`` in a thread that may wait for a device or a server.

    With ``abandon_on_cancel`` a cancelled caller goes on at once and the thread finishes by itself: only for calls whose late
    effect does no harm, or is fenced by the caller. With ``apart`` other calls do not wait for this one, should it hang.
    """
    if not abandon_on_cancel:
        return await trio.to_thread.run_sync(function, *args, limiter=_limiter(_io_limiter, IO_THREADS))
    # The outer limit is given back by the caller who goes on, the inner one by the thread.
    awaited = _limiter(_awaited_apart_limiter, APART_THREADS) if apart else _limiter(_awaited_limiter, IO_THREADS)
    async with awaited:
        threads = (
            _limiter(_apart_limiter, 2 * APART_THREADS) if apart else _limiter(_abandonable_limiter, IO_THREADS + ABANDONED_THREADS)
        )
        return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=threads)


async def cpu(nbytes: int, function: Callable[..., T], *args: object) -> T:
    """``function(*args)``, which computes over ``nbytes`` bytes: inline when that is less than a thread hop costs."""
    if nbytes <= INLINE_NBYTES:
        return function(*args)
    return await trio.to_thread.run_sync(function, *args, limiter=_limiter(_cpu_limiter, CPU_THREADS))


def go_on() -> None:
    """Called now and then by what takes long in a thread: ends it, with what no ``except Exception`` takes for an error, when its caller
    was cancelled. Nothing elsewhere."""
    try:
        trio.from_thread.check_cancelled()
    except RuntimeError:
        # Not one of trio's threads: nobody can give up what it does.
        return


def _limiter(var: trio.lowlevel.RunVar[trio.CapacityLimiter], width: int) -> trio.CapacityLimiter:
    try:
        return var.get()
    except LookupError:
        limiter = trio.CapacityLimiter(width)
        var.set(limiter)
        return limiter
