"""The process behind a mount, for those who wait for its end.

Its number is what ``.zarrfs/config.json`` in the mount tells. Another user's file may tell any number, so a process counts only where
the kernel confirms it: it is the owner's, it was there before it was asked for, and it has the mount's FUSE connection open, as nobody
but the daemon has. Before Linux 6.17 the kernel does not tell which connection that is, and to those who may not trace the process (root
in a container) not even that there is one; there the command line decides, which is anybody's to choose. It then costs no more than the
time that one waits, which has an end (`zarrfs.lifecycle.unmounting`).
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
# A daemon opens its connection early; the file descriptors of a process are listed in order.
_DESCRIPTORS = 4096
_LONGEST_TIMEOUT = 600.0
_LOOK_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


class About(NamedTuple):
    """What a mount tells of its daemon. ``words``: where that leaves its last words, if it does; ``timeout``: the seconds that one
    operation of its store may take, 0 where that is not told."""

    pid: int
    words: str | None
    timeout: float

    @classmethod
    def of(cls, text: bytes) -> Self:
        """What ``config.json`` says. Raises ValueError for everything that it does not say."""
        said = untrusted.document(text)
        words = said.get("result")
        pid = untrusted.number(said.get("pid"), 2, _PID_MAX)
        # Daemons of earlier versions do not tell.
        timeout = untrusted.seconds(said["timeout"], _LONGEST_TIMEOUT) if "timeout" in said else 0.0
        return cls(pid, None if words is None else untrusted.text(words, _PATH_MAX), timeout)


class Daemon:
    """The process behind a mount of this user; ``pidfd`` is closed with it."""

    def __init__(self, about: About, pidfd: int) -> None:
        self.pid = about.pid
        self.timeout = about.timeout
        self._words = about.words
        # It names the process even if its number is given to another one later.
        self._pidfd = pidfd
        self._held = contextlib.ExitStack()

    def left(self) -> exit_report.Left | None:
        """What it has not stored yet, if it tells."""
        return exit_report.left(self._words) if self._words else None

    def outcome(self) -> Outcome | None:
        """Its last words, once."""
        return exit_report.collect(self._words) if self._words else None

    def ended_within(self, seconds: float) -> bool:
        """Whether it has ended, or does within ``seconds``."""
        until = time.monotonic() + seconds
        while not _ended_within(self._pidfd, max(0.0, min(_LOOK_SECONDS, until - time.monotonic()))):
            if _runs_no_more(self.pid):
                return True
            if time.monotonic() >= until:
                return False
        return True

    def __enter__(self) -> Self:
        self._held.callback(os.close, self._pidfd)
        if self._words:
            self._held.enter_context(exit_report.awaited(self._words))
        return self

    def __exit__(self, *exc: object) -> None:
        self._held.close()


class ForeignDaemon(Daemon):
    """The process behind another user's mount, whose files are read in that user's name."""

    def __init__(self, about: About, pidfd: int, mounted: Mount) -> None:
        super().__init__(about, pidfd)
        self._mounted = mounted

    def left(self) -> exit_report.Left | None:
        text = self._text()
        return exit_report.left_in(text) if text is not None else None

    def outcome(self) -> Outcome | None:
        text = self._text()
        outcome = exit_report.outcome_in(text) if text is not None else None
        if outcome is not None and self._words:
            with contextlib.suppress(OSError):
                as_owner.run(self._mounted, "rm", "-f", "--", self._words, patience=PATIENCE)
                folder = os.path.dirname(self._words)
                if self._mounted.owner is not None and runtime_folder.is_of_one_process(folder, self._mounted.owner.uid):
                    as_owner.run(self._mounted, "rmdir", "--", folder, patience=PATIENCE)
        return outcome

    def __enter__(self) -> Self:
        self._held.callback(os.close, self._pidfd)
        return self

    def _text(self) -> bytes | None:
        try:
            return as_owner.read(self._mounted, self._words, PATIENCE) if self._words else None
        except OSError:
            return None


def behind(mounted: Mount) -> Daemon | None:
    """Return the daemon behind a mount; None when it does not tell, or what it tells is not so. Raises TimeoutError."""
    asked = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        about = About.of(as_owner.read(mounted, f"{mounted.mountpoint}/.zarrfs/config.json", PATIENCE))
        # Opened before it is looked at: what is seen is of this process as long as it lives.
        pidfd = os.pidfd_open(about.pid)
    except TimeoutError:
        raise
    except (OSError, ValueError):
        return None
    try:
        if _is_behind(about.pid, mounted, asked) and not _ended_within(pidfd, 0):
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
    """Whether a process has exited, though a thread of it waits in the kernel for a file system that does not answer, beyond SIGKILL."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return False


def _is_behind(pid: int, mounted: Mount, asked: float) -> bool:
    """Raises OSError and ValueError where it is gone."""
    uid = os.geteuid() if mounted.owner is None else mounted.owner.uid
    if pid == os.getpid() or _users_of(pid) != {uid} or _began(pid) > asked:
        return False
    holds = _holds_connection(pid, mounted)
    return _names_us(pid, mounted) if holds is None else holds


def _users_of(pid: int) -> set[int]:
    """Its real, effective and saved user: several are of a program with the set-user-ID bit."""
    line = re.search(rb"^Uid:\s(.*)$", Path(f"/proc/{pid}/status").read_bytes(), re.MULTILINE)
    return set(map(int, line[1].split())) if line else set()


def _began(pid: int) -> float:
    """When it was started, in seconds since the machine was (proc(5), /proc/pid/stat, field 22)."""
    # Its name, which may hold anything, is in parentheses.
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]) / _TICKS


def _holds_connection(pid: int, mounted: Mount) -> bool | None:
    """Whether it has the FUSE connection of ``mounted`` open; None where the kernel does not tell."""
    mine = mounted.device.partition(":")[2].encode()
    unknown = False
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            for descriptor in itertools.islice(descriptors, _DESCRIPTORS):
                with contextlib.suppress(FileNotFoundError):
                    which = re.search(rb"^fuse_connection:\s*(\d+)$", _about_descriptor(pid, descriptor.name), re.MULTILINE)
                    if which is not None and which[1] == mine:
                        return True
                    # Not stat(2), which would ask the file system that the file is in.
                    unknown |= which is None and os.readlink(descriptor.path).endswith("/fuse")
    except PermissionError:
        return None
    return None if unknown else False


def _about_descriptor(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/fdinfo/{name}").read_bytes()


def _names_us(pid: int, mounted: Mount) -> bool:
    """Whether its command line is one of ours, or names the mountpoint."""
    # In the owner's name, and for some time only: a process may put its arguments where reading them waits for it.
    arguments = as_owner.read(mounted, f"/proc/{pid}/cmdline", PATIENCE).split(b"\0")
    place = os.fsencode(mounted.mountpoint)
    return any(place in argument or os.path.basename(argument).startswith(b"zarrfs") for argument in arguments)
