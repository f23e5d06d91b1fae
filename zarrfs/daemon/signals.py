"""Which signals a daemon hears, and which it ignores: by default most of them would leave a dead mount and lose what is not stored.

What somebody else of this process has a handler for (a library, or the program that has zarrfs in it), and what whoever started it has it
ignore, stays as it is.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

# They end a process, or stop it, whatever it does; or tell of its own faults, which it cannot go on after; or do nothing by default.
_LEFT_ALONE = frozenset(
    getattr(signal, f"SIG{name}") for name in "KILL STOP TSTP TTIN TTOU CONT CHLD WINCH URG ILL TRAP ABRT BUS FPE SEGV SYS".split()
)


def heard(in_background: bool) -> list[signal.Signals]:
    """Return the signals that mean something to a daemon, as `zarrfs.daemon.shutdown.Shutdown.on_signal` says what.

    Not those that it was started to ignore, as by nohup(1), or by a shell for what it runs in the background. In the background SIGHUP
    ends nothing, and is heard whatever the terminal was.
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
    """Meanwhile no signal ends this process but those that are ``heard``, SIGKILL, and those that tell of a fault."""
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
