"""Signals that a daemon handles, and those it ignores: by default most of them would leave a dead mount and lose unstored data.

Signals with a handler of other code in this process (a library, or a program that embeds zarrfs), and those ignored since its start, are
left unchanged.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

# These end or stop a process unconditionally, report a fault after which it cannot continue, or do nothing by default.
_LEFT_ALONE = frozenset(
    getattr(signal, f"SIG{name}") for name in "KILL STOP TSTP TTIN TTOU CONT CHLD WINCH URG ILL TRAP ABRT BUS FPE SEGV SYS".split()
)


def heard(in_background: bool) -> list[signal.Signals]:
    """Return the signals that a daemon handles; for their effects see `zarrfs.daemon.shutdown.Shutdown.on_signal`.

    Not those ignored since its start, as by nohup(1), or by a shell for background jobs. In the background SIGHUP does not end the
    daemon, and is handled for any terminal.
    """
    found = [signal.SIGTERM]
    found += [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    if in_background and signal.SIGHUP not in found:
        found.append(signal.SIGHUP)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        found.append(signal.SIGUSR1)
    return found


@contextmanager
def others_ignored(heard: Collection[int]) -> Iterator[None]:
    """Ignore during the body all signals that would end this process, except ``heard``, SIGKILL and those of faults."""
    ignored = [
        number
        for number in signal.valid_signals() - _LEFT_ALONE - set(heard)
        if signal.getsignal(number) is signal.SIG_DFL  # not None: a handler that is not Python's
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
