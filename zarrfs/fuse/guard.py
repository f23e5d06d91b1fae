"""Guard between a handler and the kernel, which turns every exception into an errno.

A `ZarrfsError` becomes its errno, lack of memory ENOMEM, any other error EIO with a traceback in the log. Each is reported; if even that
fails, the request is still answered: an unanswered request leaves its program beyond SIGKILL.

After the end of the mount no process waits for an answer: a handler that only reads is cancelled at any point; one that changes or
releases something is not.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3
import trio

from zarrfs.errors import ZarrfsError, is_want_of_memory
from zarrfs.fuse.errno import LOGGED, QUIET, errno_of
from zarrfs.in_flight import InFlight
from zarrfs.memory.reserve import RESERVE

log = logging.getLogger(__name__)

# On ESTALE the kernel looks the name up again by itself, and opens what it finds: the program does not see the error.
_TRIED_AGAIN = {("open", errno.ESTALE)}

# ENOENT is not an error of read(2), write(2), fsync(2) and close(2): it means that the open file has lost its node.
_OF_OPEN_FILES = frozenset({"flush", "fsync", "read", "write"})

# If an inode is gone, the path that led to it may lead to another one. On ESTALE the kernel looks every name on it up again; ENOENT would
# be the program's answer, even after a rename to that path, until the kernel has the notice.
_OF_INODES = frozenset({"access", "getattr", "getxattr", "listxattr", "opendir", "removexattr", "setattr", "setxattr"})

_ONLY_LOOKS = frozenset({"access", "getattr", "getxattr", "listxattr", "lookup", "open", "opendir", "read", "readdir", "statfs"})

P = ParamSpec("P")
R = TypeVar("R")


class Reporting(Protocol):
    """Owner of handlers. ``requests``: requests in progress, as the handler's name and its arguments."""

    requests: InFlight

    def report(self, where: str, error: BaseException) -> None:
        """Record an error that a user may want to look up later; ``where`` is the handler's name."""


S = TypeVar("S", bound=Reporting)


def guarded(handler: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Wrap ``handler`` so that it raises only an errno: another exception would end the mount for everyone."""
    name = handler.__name__
    only_looks = name in _ONLY_LOOKS

    async def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        begun: int | None = None
        try:
            # The reserve was lent while the request was taken (`zarrfs.fuse.workers`).
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
            elif number not in QUIET or isinstance(error, LOGGED):
                _report(self, name, error, errno.errorcode[number])
            if number == errno.ENOENT and name in _OF_INODES:
                number = errno.ESTALE
            raise pyfuse3.FUSEError(number) from error
        except Exception as error:
            if is_want_of_memory(error):
                RESERVE.release()
                _report(self, name, error, "out of memory")
                raise pyfuse3.FUSEError(errno.ENOMEM) from None
            _report(self, name, error, None)
            raise pyfuse3.FUSEError(errno.EIO) from error
        finally:
            if begun is not None:
                self.requests.end(begun)

    functools.update_wrapper(guarded, handler)
    return guarded


def _report(reporter: Reporting, name: str, error: Exception, what: str | None) -> None:
    """Log and report an error; ``what``: its short name, None for an unforeseen error, which is logged with its traceback."""
    try:
        if what is not None:
            log.warning("%s: %s (%s)", name, error, what, extra=_about(name, error))
        else:
            log.exception("%s: unforeseen error", name, extra=_about(name, error))
        reporter.report(name, error)
    except Exception:  # noqa: BLE001 (there is no memory for the report, and the request must be answered)
        RESERVE.release()


def _about(name: str, error: Exception) -> dict[str, object]:
    """Return the kind and key by which the log limits lines (`zarrfs.options.log_lines`)."""
    key = error.key if isinstance(error, ZarrfsError) else None
    return {"kind": (name, type(error).__name__), "key": key if key is not None else str(error)}
