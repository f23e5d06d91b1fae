"""Background tasks of a mount, none of which can end it.

An exception of a task would end the nursery that it runs in, and the mount of all users with it, because one chunk could not be read
ahead. So it is logged, and the others continue. Tasks pass errors on themselves to those that wait for them.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from zarrfs.memory.reserve import RESERVE

log = logging.getLogger(__name__)

_PAUSE = 1.0


class Tasks:
    """Starts tasks in ``nursery``, which the caller keeps open and then cancels."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, function: Callable[..., Awaitable[Any]], /, *args: Any, name: object = None) -> None:
        """Run ``function(*args)`` once, as part of the caller's work: the caller may wait for it, and shares its context and locks."""
        self._nursery.start_soon(_run, function, *args, name=name or _name_of(function))

    def start_apart(self, function: Callable[..., Awaitable[Any]], /, *args: Any) -> None:
        """Run ``function(*args)`` once, independent of the caller: it shares neither context nor locks."""
        contextvars.Context().run(self.start_soon, function, *args)

    def keep(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run ``function(*args)`` until it returns; after a failure it restarts a second later."""
        start_soon = partial(self._nursery.start_soon, name=_name_of(function))
        contextvars.Context().run(start_soon, _keep, function, *args)


async def _run(function: Callable[..., Awaitable[object]], *args: object) -> bool:
    try:
        await function(*args)
    except Exception as error:  # noqa: BLE001 (logged by `_log`)
        RESERVE.release()
        _log(function, error)
        return False
    return True


async def _keep(function: Callable[..., Awaitable[object]], *args: object) -> None:
    while not await _run(function, *args):  # noqa: ASYNC110 (a pause after a failure)
        await trio.sleep(_PAUSE)


def _log(function: object, error: Exception) -> None:
    try:
        log.error("background task %s failed: %s: %s", _name_of(function), type(error).__name__, error, exc_info=error)
    except Exception:  # noqa: BLE001 (no memory for the log either)
        return


def _name_of(function: object) -> str:
    # The name that trio gives it.
    name = getattr(function, "__qualname__", None)
    return f"{getattr(function, '__module__', '')}.{name}" if name else repr(function)
