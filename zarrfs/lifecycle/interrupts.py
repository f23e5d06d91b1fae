"""Signals that end a command before it is done.

Python raises KeyboardInterrupt anywhere, even within an import, and prints a traceback. Here SIGINT ends a process as it ends any other
program, at once and silently. Code that must clean up first handles the signals itself meanwhile: `run` for code in an event loop,
`heard` for code that waits for a process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_GRACE_SECONDS = 2.0
_ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal ended the command, after cleanup. Not a KeyboardInterrupt, which the parser of arguments would catch."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number

    @property
    def exit_code(self) -> int:
        """The code by which a shell reports a process that this signal has ended."""
        return 128 + self.number


def are_quiet() -> None:
    """Let SIGINT end this process from now on, unless it was started to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def are_as_usual() -> None:
    """Undo what this process has inherited: an ignored SIGCHLD, and blocked signals.

    Where SIGCHLD is ignored, the kernel forgets how a child has ended: each of them would seem to have succeeded. A program may block
    signals in the thread that runs zarrfs, and a daemon that SIGTERM cannot reach is killed when the machine goes down.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run `trio.run`; SIGINT cancels ``function``. Raises `Interrupted` if that ended it."""
    import trio

    async def heard() -> T:
        with trio.CancelScope() as scope, _interrupted(partial(trio.lowlevel.current_trio_token().run_sync_soon, scope.cancel)):
            return await function()
        raise Interrupted

    return trio.run(heard)


@contextmanager
def _interrupted(cancel: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT call ``cancel`` during the body, and end this process if it still runs some seconds later.

    The event loop may be blocked by an import, or wait for a thread that cannot be cancelled.
    """

    def handle(number: int, frame: object) -> None:
        cancel()
        signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, handle), signal.signal(signal.SIGALRM, lambda number, frame: end_by(signal.SIGINT))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip((signal.SIGINT, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def end_by(number: int) -> NoReturn:
    """End this process by the default action of a signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    # The kernel does not do that to the first process of a container.
    os._exit(128 + number)


class Heard:
    """Signals received so far."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.first: int | None = None

    def before(self, fd: int) -> bool:
        """Wait until ``fd`` is readable; return False if a signal came first."""
        poll = select.poll()
        for each in (fd, self._fd):
            poll.register(each, select.POLLIN)
        while not self.came():
            if fd in {each for each, _ in poll.poll()}:
                return not self.came()
        return False

    def came(self) -> bool:
        """Return True if one was received."""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._fd, 64)
            # Python writes all signal numbers, including those of other handlers.
            self.first = next((number for number in numbers if number in _ENDING), None) if self.first is None else self.first
        return self.first is not None


@contextmanager
def heard() -> Iterator[Heard]:
    """Record SIGINT, SIGTERM and SIGHUP during the body, without their usual effect, unless ignored since the start.

    Only in the main thread; in others they keep their effect.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    wakeup: int | None = None
    before: dict[int, Any] = {}
    try:
        with contextlib.suppress(ValueError):
            wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            for number in _ENDING:
                if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                    before[number] = handler
                    signal.signal(number, lambda number, frame: None)
        yield Heard(reader)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if wakeup is not None:
            signal.set_wakeup_fd(wakeup)
        os.close(writer)
        os.close(reader)
