"""What stands between a handler and the kernel: an error of our tree becomes its errno, anything else EIO with a traceback in the log.

When the mount has ended nobody waits for an answer: a handler that only looks is cancelled, wherever it is; one that changes something,
or lets go of it, is not.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3
import trio

from zarrfs.errors import ZarrfsError
from zarrfs.fuse.errno import QUIET, TOLD, errno_of
from zarrfs.in_flight import InFlight

log = logging.getLogger(__name__)

# On ESTALE the kernel looks the name up again by itself, and opens what it finds: the program learns nothing of it.
_TRIED_AGAIN = {("open", errno.ESTALE)}

_ONLY_LOOKS = frozenset({"access", "getattr", "getxattr", "listxattr", "lookup", "open", "opendir", "read", "readdir", "statfs"})

P = ParamSpec("P")
R = TypeVar("R")


class Reporting(Protocol):
    """Who has handlers. ``requests``: those that are being answered, as the handler's name and its arguments."""

    requests: InFlight

    def report(self, where: str, error: BaseException) -> None:
        """Called with the handler's name and every error that a user may want to look up later."""


S = TypeVar("S", bound=Reporting)


def guarded(handler: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """``handler``, which lets nothing but an errno out: another exception would end the mount for everyone."""
    name = handler.__name__
    only_looks = name in _ONLY_LOOKS

    async def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        begun = self.requests.begin(name, *args, *kwargs.values())
        try:
            if only_looks:
                return await handler(self, *args, **kwargs)
            with trio.CancelScope(shield=True):
                result = await handler(self, *args, **kwargs)
            return result
        except pyfuse3.FUSEError:
            raise
        except ZarrfsError as error:
            number = errno_of(error)
            if (name, number) in _TRIED_AGAIN:
                log.debug("%s: %s: the kernel looks it up again", name, error)
            elif number not in QUIET or isinstance(error, TOLD):
                log.warning("%s: %s (%s)", name, error, errno.errorcode[number], extra=_about(name, error))
                self.report(name, error)
            raise pyfuse3.FUSEError(number) from error
        except Exception as error:
            log.exception("%s failed in a way that zarrfs does not know", name, extra=_about(name, error))
            self.report(name, error)
            raise pyfuse3.FUSEError(errno.EIO) from error
        finally:
            self.requests.end(begun)

    functools.update_wrapper(guarded, handler)
    return guarded


def _about(name: str, error: Exception) -> dict[str, object]:
    """By what the log tells lines of errors apart, of which there may be any number (`zarrfs.options.log_lines`)."""
    key = error.key if isinstance(error, ZarrfsError) else None
    return {"kind": (name, type(error).__name__), "key": key if key is not None else str(error)}
