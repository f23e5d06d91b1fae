"""What stands between a handler and the kernel: an error of our tree becomes its errno, want of memory ENOMEM, anything else EIO with a
traceback in the log. Each is told; where even that fails, the request is answered all the same: a request without an answer leaves its
program beyond SIGKILL.

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
from zarrfs.memory.reserve import RESERVE

log = logging.getLogger(__name__)

# On ESTALE the kernel looks the name up again by itself, and opens what it finds: the program learns nothing of it.
_TRIED_AGAIN = {("open", errno.ESTALE)}

# ENOENT is nothing that read(2), write(2), fsync(2) and close(2) say: what is open is no more where it was.
_OF_OPEN_FILES = frozenset({"flush", "fsync", "read", "write"})

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
        begun: int | None = None
        try:
            # Lent while the request was taken (`zarrfs.fuse.workers`).
            RESERVE.take()
            begun = self.requests.begin(name, *args, *kwargs.values())
            if only_looks:
                return await handler(self, *args, **kwargs)
            with trio.CancelScope(shield=True):
                result = await handler(self, *args, **kwargs)
            return result
        except pyfuse3.FUSEError:
            raise
        except ZarrfsError as error:
            number = errno_of(error)
            if number == errno.ENOENT and name in _OF_OPEN_FILES:
                number = errno.ESTALE
            if (name, number) in _TRIED_AGAIN:
                log.debug("%s: %s: the kernel looks it up again", name, error)
            elif number not in QUIET or isinstance(error, TOLD):
                _tell(self, name, error, errno.errorcode[number])
            raise pyfuse3.FUSEError(number) from error
        except Exception as error:
            if _is_want_of_memory(error):
                RESERVE.release()
                _tell(self, name, error, "out of memory")
                raise pyfuse3.FUSEError(errno.ENOMEM) from None
            _tell(self, name, error, None)
            raise pyfuse3.FUSEError(errno.EIO) from error
        finally:
            if begun is not None:
                self.requests.end(begun)

    functools.update_wrapper(guarded, handler)
    return guarded


def _tell(whose: Reporting, name: str, error: Exception, what: str | None) -> None:
    """``what``: in a word; None for what zarrfs does not know, whose traceback is logged."""
    try:
        if what is not None:
            log.warning("%s: %s (%s)", name, error, what, extra=_about(name, error))
        else:
            log.exception("%s failed in a way that zarrfs does not know", name, extra=_about(name, error))
        whose.report(name, error)
    except Exception:  # noqa: BLE001 (there is no memory to tell it, and the request has to be answered)
        RESERVE.release()


def _is_want_of_memory(error: BaseException) -> bool:
    """Also where a thread cannot be started: its stack has no room."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_want_of_memory, error.exceptions))
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def _about(name: str, error: Exception) -> dict[str, object]:
    """By what the log tells lines of errors apart, of which there may be any number (`zarrfs.options.log_lines`)."""
    key = error.key if isinstance(error, ZarrfsError) else None
    return {"kind": (name, type(error).__name__), "key": key if key is not None else str(error)}
