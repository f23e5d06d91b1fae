"""Calls in a process of their own, which is abandoned if it does not answer.

A request that the server of a FUSE mount has read cannot be withdrawn, not even by SIGKILL, and a process ends when its last thread has
left the kernel. So a command that uses a path of which the file system may hang does that in a child, and itself remains able to
report that, and to end by a signal. A child that hangs ends when the file system answers, or is aborted.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from zarrfs import errors
from zarrfs.errors import ZarrfsError
from zarrfs.lifecycle import as_owner, interrupts
from zarrfs.lifecycle.mount_table import mounts_around

T = TypeVar("T")

_PORTION = 1 << 16
# Seconds for a child to act on a signal (`interrupts.run` allows two), and to end after its result.
_GRACE = 2.5
_END = 1.0


def call(function: Callable[[], T], patience: float) -> T:
    """Return ``function()``, called in a forked child; the result is what JSON can hold. Its errors are raised here.

    Raises TimeoutError after ``patience`` seconds. A signal that ends this process ends the child too. It prints nothing. Call it before
    threads start.
    """
    with _Child(lambda: _outcome_of(function), signal.SIGKILL) as child:
        output = child.output(time.monotonic() + patience)
    if not output:
        raise ZarrfsError("a child process was killed")
    error, result = json.loads(output)
    if error is not None:
        raise _error(*error)
    return cast("T", result)


def command(run: Callable[[], int]) -> int:
    """Return the exit code of ``run()``, called in a forked child, which prints what there is to print.

    A signal is passed to the child; if it does not end by it within seconds, this process does. Call it before threads start.
    """
    with _Child(lambda: str(run()).encode(), signal.SIGTERM) as child:
        with interrupts.heard() as signals:
            if not signals.before(child.reader):
                assert signals.first is not None
                child.send(signals.first)
            try:
                output = child.output(None if signals.first is None else time.monotonic() + _GRACE)
            except TimeoutError:
                output = b""
        ended_by = child.ended_by(_END)
    if output:
        return int(output)
    if (number := ended_by or signals.first) is not None:
        interrupts.end_by(number)
    return 1


def is_needed(path: str) -> bool:
    """Return True if a process that uses ``path`` (real) may be impossible to end: a FUSE mount is on it, around it, or below it."""
    # The kernel's own network file systems let SIGKILL end those who wait for them.
    return any(mount.fstype.partition(".")[0] in ("fuse", "fuseblk", "virtiofs") for mount in mounts_around(path))


def look(path: str) -> None:
    """Read a little of a folder, to see whether its file system answers; ignore errors."""
    with contextlib.suppress(OSError, ValueError), os.scandir(path) as entries:
        next(entries, None)


class _Child:
    """A forked child that sends the result of ``work`` through a pipe; it gets the signal ``with_us`` when this process ends."""

    def __init__(self, work: Callable[[], bytes], with_us: int) -> None:
        for stream in sys.stdout, sys.stderr:
            if stream is not None:
                stream.flush()
        self.reader, writer = os.pipe()
        ours = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _work(work, writer, ours, with_us)
        os.close(writer)
        self._pidfd: int | None = None
        # Where SIGCHLD is ignored, it may be gone.
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(self._pid)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        """End the child, and do not wait for one that hangs."""
        self.send(signal.SIGKILL)
        self.ended_by(0.1)
        os.close(self.reader)
        if self._pidfd is not None:
            os.close(self._pidfd)

    def output(self, end: float | None) -> bytes:
        """Return all that it sends. Raises TimeoutError at ``end``, of the monotonic clock."""
        output = bytearray()
        while _is_readable(self.reader, None if end is None else max(0, end - time.monotonic())):
            portion = os.read(self.reader, _PORTION)
            if not portion:
                return bytes(output)
            output += portion
        raise TimeoutError

    def send(self, number: int) -> None:
        """Send a signal to the child."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def ended_by(self, patience: float) -> int | None:
        """Wait for its end, for ``patience`` seconds; return the signal that ended it, if one did, at the first call."""
        if self._pidfd is not None and _is_readable(self._pidfd, patience):
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(self._pid, os.WNOHANG)
                return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return None


def _work(work: Callable[[], bytes], writer: int, parent: int, with_us: int) -> NoReturn:
    """In the child: send the result of ``work``, and end, with the threads that hang."""
    try:
        as_owner.end_with_us(with_us)
        if os.getppid() == parent:
            left = memoryview(work())
            _let_go_of_output()
            while left:
                left = left[os.write(writer, left) :]
    except BaseException:  # noqa: BLE001 - printed as the interpreter does
        sys.excepthook(*sys.exc_info())
    finally:
        # Not left to its end, which a thread may delay.
        os.close(writer)
        os._exit(1)


def _let_go_of_output() -> None:
    """Close what a reader of the command's output waits for, who must not wait for a child that hangs."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in range(3):
        os.dup2(null, descriptor)


def _outcome_of(function: Callable[[], object]) -> bytes:
    """Return the result of ``function``, or its error, as JSON: what others wrote may be in it, so it is not pickled."""
    _let_go_of_output()
    try:
        outcome: tuple[object, object] = (None, function())
    except ZarrfsError as error:
        known = next(each.__name__ for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each)
        outcome = ((known, str(error), error.key), None)
    except OSError as error:
        outcome = ((None, error.errno, error.strerror or str(error), error.filename), None)
    except Exception as error:  # noqa: BLE001 - raised in the parent
        outcome = (("", f"{type(error).__name__}: {error}"), None)
    return json.dumps(outcome).encode()


def _error(kind: str | None, *words: Any) -> Exception:
    """Return the error that `_outcome_of` describes."""
    if kind is None:
        return OSError(*words)
    if not kind:
        return RuntimeError(*words)
    message, key = words
    return cast("Exception", getattr(errors, kind)(message, key=key))


def _is_readable(descriptor: int, patience: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if patience is None else patience * 1000))
