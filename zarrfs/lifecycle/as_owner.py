"""Asking in the name of who has mounted: without ``allow_other`` nobody else may look into a FUSE mount, not even root.

So root has another process ask, which is that user's: nothing that the user says, of a mount or of files, gets root's permissions. And
since a daemon that hangs does not answer, and a request that it has read cannot be given up, that process is left behind if it has to be.

A process of theirs is theirs: they may stop it, trace it, and make it do what they like (ptrace(2)). So it gets nothing of root's. It
runs in a session of its own, else it could type into root's terminal (TIOCSTI); it has no descriptors but its pipes, no environment, and
no limits that are wider than a user's. What it says is read as it comes, up to a size and until a time, and not to its end: another
process may hold the pipe open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import time
from typing import IO, Any

from zarrfs.lifecycle import programs
from zarrfs.lifecycle.mount_table import Mount

_LIMIT = 64 << 10
_PORTION = 16 << 10
# <linux/prctl.h>. Looked up before there is a new process, which may wait for no lock.
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


def is_somebody_else(mount: Mount) -> bool:
    """Whether this process may look into ``mount`` in its owner's name, and only so."""
    return os.geteuid() == 0 and mount.owner is not None and mount.owner.uid != 0


def run(mount: Mount, program: str, *arguments: str, patience: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program as who made ``mount`` where that is for this process to choose, else as this user.

    Raises OSError when that is not possible or it says more than 64 KiB, TimeoutError after ``patience`` seconds.
    """
    path = programs.find(program)
    if path is None:
        raise FileNotFoundError(program)
    whose: dict[str, Any] = {"preexec_fn": _end_with_us}
    if is_somebody_else(mount):
        assert mount.owner is not None
        whose = {"user": mount.owner.uid, "group": mount.owner.gid, "extra_groups": (), "umask": 0o077}
        # Our own stay in our process group: automount(8) lets none but that come to the mountpoint (`Parent.ready`).
        whose |= {"start_new_session": True, "preexec_fn": lambda: _limit(patience)}
    try:
        asking = subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"LC_ALL": "C"},
            **whose,
        )
    except (ValueError, subprocess.SubprocessError) as error:  # a path with NUL in it, or one that no encoding holds
        raise OSError(f"{program}: {error}") from error
    assert asking.stdout is not None and asking.stderr is not None
    with asking.stdout, asking.stderr:
        try:
            said = _said(asking, asking.stdout, asking.stderr, time.monotonic() + patience)
        except TimeoutError as error:
            raise TimeoutError(f"{program}: no answer within {patience:g} s") from error
        finally:
            _end(asking, group="start_new_session" in whose)
        return subprocess.CompletedProcess(asking.args, asking.returncode, *said)


def read(mount: Mount, path: str, patience: float) -> bytes:
    """Return the first 64 KiB of a file, read as by `run`. Raises OSError."""
    done = run(mount, "head", "-c", str(_LIMIT), "--", path, patience=patience)
    if done.returncode != 0:
        raise OSError(done.stderr.decode(errors="replace").strip())
    return done.stdout


def _end_with_us() -> None:
    """In the new process: whoever asks may be ended by any signal, and the answer then is nobody's."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(patience: float) -> None:
    """The same, and, while nobody may trace it as it is no other program yet: take back what root may and a user may not."""
    _end_with_us()
    for limit, most in (
        (resource.RLIMIT_CPU, int(patience) + 1),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))


def _said(asking: subprocess.Popen[bytes], stdout: IO[bytes], stderr: IO[bytes], end: float) -> tuple[bytes, bytes]:
    """What a process has written to both by its own end, which is before ``end``. Raises TimeoutError, and OSError for too much."""
    said = {pipe.fileno(): bytearray() for pipe in (stdout, stderr)}
    pidfd = os.pidfd_open(asking.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for pipe in said:
            os.set_blocking(pipe, False)
            poll.register(pipe, select.POLLIN)
        has_ended = False
        while not has_ended:
            ready = {descriptor for descriptor, _ in poll.poll(max(0, end - time.monotonic()) * 1000)}
            if not ready:
                raise TimeoutError
            has_ended = pidfd in ready
            # What it said last is in the pipes; who else holds them is not waited for.
            for pipe in said if has_ended else ready:
                if not _take(pipe, said[pipe]) and not has_ended:
                    poll.unregister(pipe)
    finally:
        os.close(pidfd)
    return bytes(said[stdout.fileno()]), bytes(said[stderr.fileno()])


def _take(pipe: int, said: bytearray) -> bool:
    """Append what is in ``pipe``; False at its end."""
    with contextlib.suppress(BlockingIOError):
        while portion := os.read(pipe, _PORTION):
            said += portion
            if len(said) > _LIMIT:
                raise OSError(f"more than {_LIMIT} bytes of output")
        return False
    return True


def _end(asking: subprocess.Popen[bytes], group: bool) -> None:
    # Before it is waited for: until then its number is nobody else's.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(asking.pid, signal.SIGKILL)
    # If it does not end it will when the daemon does.
    with contextlib.suppress(subprocess.TimeoutExpired):
        asking.wait(0.1)
