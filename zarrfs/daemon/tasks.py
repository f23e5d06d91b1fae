"""Tasks in the background of a mount, none of which ends it.

What a task raises would end the nursery that it runs in, and everything with it: the mount of all users, because one chunk could not be
read ahead. So it is logged, and the others go on. Errors that somebody waits for are handed on by the tasks themselves.
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
    """Begins tasks in ``nursery``, which the caller keeps open and then cancels."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, function: Callable[..., Awaitable[Any]], /, *args: Any, name: object = None) -> None:
        """Run ``function(*args)``, once, as a part of what the caller does, who may wait for it: what he holds is the task's as well."""
        self._nursery.start_soon(_run, function, *args, name=name or _name_of(function))

    def start_apart(self, function: Callable[..., Awaitable[Any]], /, *args: Any) -> None:
        """Run ``function(*args)``, once. It goes on when the caller has let go of what he holds: none of that is the task's."""
        contextvars.Context().run(self.start_soon, function, *args)

    def keep(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run ``function(*args)`` until it returns: where it fails it begins anew a second later."""
        start_soon = partial(self._nursery.start_soon, name=_name_of(function))
        contextvars.Context().run(start_soon, _keep, function, *args)


async def _run(function: Callable[..., Awaitable[object]], *args: object) -> bool:
    try:
        await function(*args)
    except Exception as error:  # noqa: BLE001 (told there)
        RESERVE.release()
        _tell(function, error)
        return False
    return True


async def _keep(function: Callable[..., Awaitable[object]], *args: object) -> None:
    while not await _run(function, *args):  # noqa: ASYNC110 (a pause after a failure)
        await trio.sleep(_PAUSE)


def _tell(function: object, error: Exception) -> None:
    try:
        log.error("%s failed in the background: %s: %s", _name_of(function), type(error).__name__, error, exc_info=error)
    except Exception:  # noqa: BLE001 (there is no memory for that either)
        return


def _name_of(function: object) -> str:
    # As trio names it.
    name = getattr(function, "__qualname__", None)
    return f"{getattr(function, '__module__', '')}.{name}" if name else repr(function)
