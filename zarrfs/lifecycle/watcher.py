"""What outlives a daemon and ends its connection to the kernel, however the daemon ended: docs/design/021-when-the-daemon-dies.md.

A process ends when all of its threads have, and one that waits in the kernel for an answer that nobody gives any more never does. It
holds the connection, the kernel goes on to wait for answers, and so do the programs, beyond SIGKILL. Aborting the connection frees all.

The watcher is a shell that waits for a pipe to end: a process of its own, since it has to live on; a shell, since that takes a third of a
megabyte. It holds nothing but the pipe and ``/sys/fs/fuse/connections/N/abort``, opened while the connection is certainly that of this
mount; once that is gone, writing there does nothing, whoever has the number by then. The pipe does not end either while a thread is left,
so the kernel signals the watcher, too, when the daemon's main thread ends (``PR_SET_PDEATHSIG``). A crash ends it only when all threads
stand still, so as to dump core, and one that waits does not: so the handler of faults (`faulthandler`) writes a line to the pipe.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import subprocess
from contextlib import suppress

from zarrfs.lifecycle import programs

log = logging.getLogger(__name__)

_CONNECTIONS = "/sys/fs/fuse/connections"
# The signal that is trapped interrupts `read`; that it does nothing else is the point. (A shell that does not let it interrupt `read`
# loses nothing but the case of a thread that is left.)
_SCRIPT = "trap : USR1; read -r _; echo 1"
_DEATH = signal.SIGUSR1
# A service manager that ends a service, a terminal that goes: that is not the end of the daemon.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
_PATIENCE = 1.0

# <linux/prctl.h>. Looked up before there is a new process, which may wait for no lock.
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


def abort_file(device: str) -> str:
    """What aborts the connection of the mount with this ``device`` number (``0:52``) when something is written to it."""
    return f"{_CONNECTIONS}/{device.partition(':')[2]}/abort"


def how_to_abort(device: str) -> str:
    """A command that does it, for who may."""
    command = f"echo 1 > {abort_file(device)}"
    if not os.path.isdir(_CONNECTIONS) or not os.listdir(_CONNECTIONS):
        command = f"mount -t fusectl none {_CONNECTIONS}; {command}"
    return f"`{command}` (as root)"


class Watcher:
    """Of the mount with this ``device`` number, whose daemon this process is. Begun by the main thread, which lives as long as the
    process. Where there can be none, the log says what to do instead."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._abort: int | None = None
        self._pipe: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._hears_of_faults = False
        try:
            self._abort = os.open(abort_file(device), os.O_WRONLY | os.O_CLOEXEC)
            self._start(self._abort)
        except (OSError, subprocess.SubprocessError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            log.warning(
                "the connection to the kernel cannot be watched over (%s): should this daemon die while a program waits for it, and the "
                "program not end, %s ends that",
                reason,
                how_to_abort(device),
            )

    @property
    def pid(self) -> int | None:
        """Its process."""
        return self._process.pid if self._process is not None else None

    def abort(self) -> None:
        """End the connection now, whatever waits for it."""
        if self._abort is None:
            log.warning("the connection to the kernel cannot be aborted by us: %s does it", how_to_abort(self._device))
            return
        with suppress(OSError):
            os.write(self._abort, b"1")

    def end(self) -> None:
        """The connection is gone: nothing is left to watch over."""
        if self._hears_of_faults:
            faulthandler.disable()
        abort, self._abort = self._abort, None
        pipe, self._pipe = self._pipe, None
        for descriptor in (abort, pipe):
            if descriptor is not None:
                os.close(descriptor)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)

    def _start(self, abort: int) -> None:
        reader, writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["sh", "-c", _SCRIPT, "zarrfs-watcher"],
                executable=programs.find("sh") or "/bin/sh",
                stdin=reader,
                stdout=abort,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
                preexec_fn=_in_watcher,
            )
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        self._pipe = writer
        if not faulthandler.is_enabled():
            # Else somebody wants to see where it crashed.
            faulthandler.enable(writer, all_threads=False)
            self._hears_of_faults = True


def _in_watcher() -> None:
    """In the new process, before it is a shell: what is ignored stays ignored, and the signal that is to wake it is heard."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(_DEATH, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _prctl(_PR_SET_PDEATHSIG, _DEATH)
