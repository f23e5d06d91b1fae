"""The daemon process of a mount, for those that wait for its end.

Its number is read from ``.zarrfs/config.json`` in the mount. Another user's file may contain any number, so a process is accepted only if
the kernel confirms it: it belongs to the owner, it existed before the request, and it has the mount's FUSE connection open, as only the
daemon has. Before Linux 6.17 the kernel does not show which connection that is, and to processes without the right to trace (root in a
container) not even that there is one; there the command line decides, which anyone can choose. A wrong process then costs no more than
time, which is bounded (`zarrfs.lifecycle.unmounting`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import time
from pathlib import Path
from typing import NamedTuple, Self

from zarrfs.lifecycle import as_owner, exit_report, runtime_folder, untrusted
from zarrfs.lifecycle.dead_mounts import PATIENCE
from zarrfs.lifecycle.exit_report import Outcome
from zarrfs.lifecycle.mount_table import Mount

_PID_MAX = 2**22
_PATH_MAX = 4096
# A daemon opens its connection early; the descriptors of a process are listed in order.
_DESCRIPTORS = 4096
_LONGEST_TIMEOUT = 600.0
_LOOK_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


class About(NamedTuple):
    """Content of a mount's ``config.json``.

    ``report``: path of its exit report, if any; ``timeout``: deadline of one store operation in seconds, 0 if unknown; ``read_only``:
    True if the mount has nothing to store.
    """

    pid: int
    report: str | None
    timeout: float
    read_only: bool = False

    @classmethod
    def of(cls, text: bytes) -> Self:
        """Parse ``config.json``. Raises ValueError for any unexpected content."""
        members = untrusted.document(text)
        report = members.get("result")
        pid = untrusted.number(members.get("pid"), 2, _PID_MAX)
        # Daemons of earlier versions do not have it.
        timeout = untrusted.seconds(members["timeout"], _LONGEST_TIMEOUT) if "timeout" in members else 0.0
        report = None if report is None else untrusted.text(report, _PATH_MAX)
        return cls(pid, report, timeout, members.get("read_only") is True)


class Daemon:
    """The daemon process of a mount of this user; its ``pidfd`` is closed at the end of the ``with`` block."""

    def __init__(self, about: About, pidfd: int) -> None:
        self.pid = about.pid
        self.timeout = about.timeout
        self._report = about.report
        self.reports = about.read_only or self.has_report()
        """True if the lack of an exit report, at the end, means that everything is stored."""
        # A pidfd refers to the process even if its number is reused.
        self._pidfd = pidfd
        self._held = contextlib.ExitStack()

    def left(self) -> exit_report.Left | None:
        """Return what is not stored yet, if reported."""
        return exit_report.left(self._report) if self._report else None

    def has_report(self) -> bool:
        """Return True if there is an exit report, whatever it holds."""
        return self._report is not None and os.path.lexists(self._report)

    def outcome(self) -> Outcome | None:
        """Return its exit report, once."""
        return exit_report.collect(self._report) if self._report else None

    def ended_within(self, seconds: float) -> bool:
        """Return True if it has ended, or does within ``seconds``."""
        until = time.monotonic() + seconds
        while not _ended_within(self._pidfd, max(0.0, min(_LOOK_SECONDS, until - time.monotonic()))):
            if _runs_no_more(self.pid):
                return True
            if time.monotonic() >= until:
                return False
        return True

    def __enter__(self) -> Self:
        self._held.callback(os.close, self._pidfd)
        if self._report:
            self._held.enter_context(exit_report.awaited(self._report))
        return self

    def __exit__(self, *exc: object) -> None:
        self._held.close()


class ForeignDaemon(Daemon):
    """The daemon process of another user's mount, whose files are read in that user's name."""

    def __init__(self, about: About, pidfd: int, mounted: Mount) -> None:
        self._mounted = mounted
        super().__init__(about, pidfd)

    def left(self) -> exit_report.Left | None:
        text = self._text()
        return exit_report.left_in(text) if text is not None else None

    def outcome(self) -> Outcome | None:
        text = self._text()
        outcome = exit_report.outcome_in(text) if text is not None else None
        if outcome is not None and self._report:
            with contextlib.suppress(OSError):
                as_owner.run(self._mounted, "rm", "-f", "--", self._report, patience=PATIENCE)
                folder = os.path.dirname(self._report)
                if self._mounted.owner is not None and runtime_folder.is_of_one_process(folder, self._mounted.owner.uid):
                    as_owner.run(self._mounted, "rmdir", "--", folder, patience=PATIENCE)
        return outcome

    def __enter__(self) -> Self:
        self._held.callback(os.close, self._pidfd)
        return self

    def has_report(self) -> bool:
        return self._text() is not None

    def _text(self) -> bytes | None:
        try:
            return as_owner.read(self._mounted, self._report, PATIENCE) if self._report else None
        except OSError:
            return None


def find(mounted: Mount) -> Daemon | None:
    """Return the daemon of a mount; None if it gives no information, or false one. Raises TimeoutError."""
    asked = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        about = About.of(as_owner.read(mounted, f"{mounted.mountpoint}/.zarrfs/config.json", PATIENCE))
        # Opened before the checks: their results then hold as long as it lives.
        pidfd = os.pidfd_open(about.pid)
    except TimeoutError:
        raise
    except (OSError, ValueError):
        return None
    try:
        if _serves(about.pid, mounted, asked) and not _ended_within(pidfd, 0):
            foreign = as_owner.is_somebody_else(mounted)
            kept, pidfd = pidfd, -1
            return ForeignDaemon(about, kept, mounted) if foreign else Daemon(about, kept)
    except (OSError, ValueError):
        return None
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return None


def _ended_within(pidfd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _runs_no_more(pid: int) -> bool:
    """Return True if a process has exited, even if a thread of it hangs in the kernel, beyond SIGKILL."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return False


def _serves(pid: int, mounted: Mount, asked: float) -> bool:
    """Return True if the process is the mount's daemon. Raises OSError and ValueError if it is gone."""
    uid = os.geteuid() if mounted.owner is None else mounted.owner.uid
    if pid == os.getpid() or _users_of(pid) != {uid} or _began(pid) > asked:
        return False
    holds = _holds_connection(pid, mounted)
    return _names_us(pid, mounted) if holds is None else holds


def _users_of(pid: int) -> set[int]:
    """Return its real, effective and saved user: they differ for a program with the set-user-ID bit."""
    line = re.search(rb"^Uid:\s(.*)$", Path(f"/proc/{pid}/status").read_bytes(), re.MULTILINE)
    return set(map(int, line[1].split())) if line else set()


def _began(pid: int) -> float:
    """Return its start time, in seconds since the machine's (proc(5), /proc/pid/stat, field 22)."""
    # Its name, which may contain anything, is in parentheses.
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]) / _TICKS


def _holds_connection(pid: int, mounted: Mount) -> bool | None:
    """Return True if it has the FUSE connection of ``mounted`` open; None if the kernel does not show that."""
    mine = mounted.device.partition(":")[2].encode()
    unknown = False
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            for descriptor in itertools.islice(descriptors, _DESCRIPTORS):
                with contextlib.suppress(FileNotFoundError):
                    which = re.search(rb"^fuse_connection:\s*(\d+)$", _about_descriptor(pid, descriptor.name), re.MULTILINE)
                    if which is not None and which[1] == mine:
                        return True
                    # Not stat(2), which would be a request to the file's file system.
                    unknown |= which is None and os.readlink(descriptor.path).endswith("/fuse")
    except PermissionError:
        return None
    return None if unknown else False


def _about_descriptor(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/fdinfo/{name}").read_bytes()


def _names_us(pid: int, mounted: Mount) -> bool:
    """Return True if its command line is zarrfs's, or contains the mountpoint."""
    # In the owner's name, with a deadline: a process can make a read of its arguments block.
    arguments = as_owner.read(mounted, f"/proc/{pid}/cmdline", PATIENCE).split(b"\0")
    mountpoint = os.fsencode(mounted.mountpoint)
    return any(mountpoint in argument or os.path.basename(argument).startswith(b"zarrfs") for argument in arguments)
