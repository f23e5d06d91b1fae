"""Entry into worker threads, in this module only, and the rules for it.

``io`` is wide: its threads wait for disks and servers. Calls to a store may be abandoned when it hangs; they have a limit for awaited
threads and one for abandoned threads, and so never delay other calls. Calls to a part of a store that may hang separately (a folder on a
server, in a local store) have both limits ``apart``. ``cpu`` is as wide as the number of cores: its threads decode and encode in
libraries that release the GIL. A hop costs 40 to 110 microseconds, so:

* answers from memory are computed inline, without a hop;
* a call that would block only on the page cache may run inline first and come here when it would have to wait (a folder store
  reads with RWF_NOWAIT);
* codec work below `INLINE_NBYTES` runs inline; above it, one hop a chunk, never one a read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar, cast

import trio

T = TypeVar("T")

IO_THREADS = 64
ABANDONED_THREADS = 64
"""Limit of abandoned threads, beyond `IO_THREADS`. When so many hang, further calls wait for a thread until they are abandoned too."""
APART_THREADS = 16
"""Limit of awaited threads, and of abandoned ones, for parts of a store that may hang separately."""
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
    """Return ``function(*args)`` from a thread that may wait for a device or a server.

    With ``abandon_on_cancel`` a cancelled caller continues at once and the thread finishes by itself: only for calls whose late
    effect is harmless, or fenced by the caller. With ``apart`` other calls do not wait for this one, should it hang.
    """
    if not abandon_on_cancel:
        return await _run(function, args, _limiter(_io_limiter, IO_THREADS))
    # The cancelled caller releases the outer limit, the thread the inner one.
    awaited = _limiter(_awaited_apart_limiter, APART_THREADS) if apart else _limiter(_awaited_limiter, IO_THREADS)
    async with awaited:
        threads = (
            _limiter(_apart_limiter, 2 * APART_THREADS) if apart else _limiter(_abandonable_limiter, IO_THREADS + ABANDONED_THREADS)
        )
        return await _run(function, args, threads, abandon_on_cancel=True)


async def cpu(nbytes: int, function: Callable[..., T], *args: object) -> T:
    """Return ``function(*args)``, which computes over ``nbytes`` bytes: inline if that costs less than a thread hop."""
    if nbytes <= INLINE_NBYTES:
        return function(*args)
    return await _run(function, args, _limiter(_cpu_limiter, CPU_THREADS))


def go_on() -> None:
    """End a long-running thread whose caller was cancelled; called by its function now and then.

    Raises an exception that no ``except Exception`` catches. Without effect elsewhere.
    """
    try:
        trio.from_thread.check_cancelled()
    except RuntimeError:
        # Not one of trio's threads: its work cannot be cancelled.
        return


async def _run(
    function: Callable[..., T], args: tuple[object, ...], limiter: trio.CapacityLimiter, *, abandon_on_cancel: bool = False
) -> T:
    """Return ``function(*args)`` from a thread.

    Its error does not pass through trio, which keeps it in a variable of a function that it went through. That is a cycle: all that these
    functions hold, such as a document or a chunk, would live until a garbage collection.
    """
    errors: list[Exception] = []

    def call() -> T | None:
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
            return None

    result = await trio.to_thread.run_sync(call, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
    if errors:
        raise errors.pop()
    return cast("T", result)


def _limiter(var: trio.lowlevel.RunVar[trio.CapacityLimiter], width: int) -> trio.CapacityLimiter:
    try:
        return var.get()
    except LookupError:
        limiter = trio.CapacityLimiter(width)
        var.set(limiter)
        return limiter
