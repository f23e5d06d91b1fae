"""Watcher that outlives a daemon and ends its connection to the kernel, in any case: docs/design/021-when-the-daemon-dies.md.

A process ends when all of its threads have, and a thread that waits in the kernel for an answer that will not come never does. It holds
the connection, the kernel continues to wait for answers, and so do the programs, beyond SIGKILL. Aborting the connection frees all.

The watcher is a shell that waits for the end of a pipe: a separate process, since it must survive; a shell, since that takes a third of a
megabyte. It holds only the pipe and ``/sys/fs/fuse/connections/N/abort``, opened while the connection is certainly that of this mount;
once that is gone, a write there has no effect, even if the number is reused. The pipe does not end either while a thread is left, so the
kernel also signals the watcher when the daemon's main thread ends (``PR_SET_PDEATHSIG``). A crash ends that only when all threads have
stopped for the core dump, which a waiting one does not: so the fault handler (`faulthandler`) writes a line to the pipe.
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
# The trapped signal interrupts `read`, and has no other effect. (With a shell in which it does not interrupt `read`, only the case of
# a remaining thread is lost.)
_SCRIPT = "trap : USR1; read -r _; echo 1"
_DEATH = signal.SIGUSR1
# A service manager that stops a service, a terminal that closes: not the end of the daemon.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
_PATIENCE = 1.0

# <linux/prctl.h>. Resolved before a fork, after which no lock may be waited for.
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


def abort_file(device: str) -> str:
    """Return the file that aborts the connection of the mount with this ``device`` number (``0:52``) when written to."""
    return f"{_CONNECTIONS}/{device.partition(':')[2]}/abort"


def how_to_abort(device: str) -> str:
    """Return the command that aborts it, for root."""
    command = f"echo 1 > {abort_file(device)}"
    if not os.path.isdir(_CONNECTIONS) or not os.listdir(_CONNECTIONS):
        command = f"mount -t fusectl none {_CONNECTIONS}; {command}"
    return f"`{command}` (as root)"


class Watcher:
    """Watcher of the mount with this ``device`` number, for the daemon's process.

    Created by the main thread, which lives as long as the process. If it cannot be started, the log states what to do instead.
    """

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
                "connection to the kernel not watched (%s): if this daemon dies and a program that waits for it does not end, %s ends it",
                reason,
                how_to_abort(device),
            )

    @property
    def pid(self) -> int | None:
        """Process number of the watcher."""
        return self._process.pid if self._process is not None else None

    def abort(self) -> None:
        """Abort the connection now, regardless of requests in progress."""
        if self._abort is None:
            log.warning("connection to the kernel not aborted: %s aborts it", how_to_abort(self._device))
            return
        with suppress(OSError):
            os.write(self._abort, b"1")

    def end(self) -> None:
        """End the watcher: the connection is gone."""
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
            # Else another handler, with a report for people, is in use.
            faulthandler.enable(writer, all_threads=False)
            self._hears_of_faults = True


def _in_watcher() -> None:
    """In the child, before exec: keep ignored signals ignored, and let the waking signal through."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(_DEATH, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _prctl(_PR_SET_PDEATHSIG, _DEATH)
