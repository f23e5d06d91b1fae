"""Access to a mount in its owner's name: without ``allow_other`` no other user may look into a FUSE mount, not even root.

So root uses a separate process of that user: names and contents chosen by the user are never accessed with root's permissions. And since
a daemon that hangs does not answer, and a request that it has read cannot be cancelled, that process is abandoned if necessary.

A process of a user is under the user's control, who may stop it, trace it, and make it do anything (ptrace(2)). So it gets nothing of
root's. It runs in a session of its own, else it could type into root's terminal (TIOCSTI); it has no descriptors but its pipes, no
environment, no limits and priority wider than a user's, and not root's keys: a session keyring is kept on a change of user, and who
possesses a key may read it (session-keyring(7)). Its output is read as it comes, up to a size and a deadline, and not to its end:
another process may hold the pipe open.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import IO, Any

from zarrfs.lifecycle import programs
from zarrfs.lifecycle.mount_table import Mount

_LIMIT = 64 << 10
_PORTION = 16 << 10
# <linux/prctl.h>. Resolved before a fork, after which no lock may be waited for.
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_prctl, _syscall = _libc.prctl, _libc.syscall
# keyctl(2), which the C library does not have; <linux/keyctl.h>.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "loongarch64": 219, "ppc64le": 271, "s390x": 280}.get(os.uname().machine)
_KEYCTL_JOIN_SESSION_KEYRING = 1


def is_somebody_else(mount: Mount) -> bool:
    """Return True if this process must, and may, access ``mount`` in its owner's name."""
    return os.geteuid() == 0 and mount.owner is not None and mount.owner.uid != 0


def run(mount: Mount, program: str, *arguments: str, patience: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program as the owner of ``mount`` if this process may choose, else as this user.

    Raises OSError if that is impossible or the output exceeds 64 KiB, TimeoutError after ``patience`` seconds.
    """
    path = programs.find(program)
    if path is None:
        raise FileNotFoundError(program)
    whose: dict[str, Any] = {"preexec_fn": end_with_us}
    if is_somebody_else(mount):
        assert mount.owner is not None
        whose = {"user": mount.owner.uid, "group": mount.owner.gid, "extra_groups": (), "umask": 0o077}
        # A child of the same user stays in the process group: automount(8) lets only that access the mountpoint (`Parent.ready`).
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
            output = _output(asking, asking.stdout, asking.stderr, time.monotonic() + patience)
        except TimeoutError as error:
            raise TimeoutError(f"{program}: no answer within {patience:g} s") from error
        finally:
            _end(asking, group="start_new_session" in whose)
        return subprocess.CompletedProcess(asking.args, asking.returncode, *output)


def read(mount: Mount, path: str, patience: float) -> bytes:
    """Return the first 64 KiB of a file, read by `run`. Raises OSError."""
    done = run(mount, "head", "-c", str(_LIMIT), "--", path, patience=patience)
    if done.returncode != 0:
        raise OSError(done.stderr.decode(errors="replace").strip())
    return done.stdout


def end_with_us(number: int = signal.SIGKILL) -> None:
    """In a child: get a signal when the parent ends, which any signal may end, after which the result is useless."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _limit(patience: float) -> None:
    """In the child: end with the parent, and drop limits beyond a user's, while it is not traceable, before exec."""
    end_with_us()
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
    os.nice(max(0, -os.nice(0)))
    _leave_keys()


def _leave_keys() -> None:
    """In the child: replace the session keyring by an empty one. Raises OSError, as if the user's quota of keys is exceeded."""
    # A program of 32 bits has other numbers.
    if _KEYCTL is not None and sys.maxsize > 2**32 and _syscall(_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
        number = ctypes.get_errno()
        # A kernel without keys, or a container in which no process may use them.
        if number not in (errno.ENOSYS, errno.EPERM):
            raise OSError(number, os.strerror(number))


def _output(asking: subprocess.Popen[bytes], stdout: IO[bytes], stderr: IO[bytes], end: float) -> tuple[bytes, bytes]:
    """Return the output of a process up to its end, which must come before ``end``. Raises TimeoutError, OSError for too much."""
    output = {pipe.fileno(): bytearray() for pipe in (stdout, stderr)}
    pidfd = os.pidfd_open(asking.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for pipe in output:
            os.set_blocking(pipe, False)
            poll.register(pipe, select.POLLIN)
        has_ended = False
        while not has_ended:
            ready = {descriptor for descriptor, _ in poll.poll(max(0, end - time.monotonic()) * 1000)}
            if not ready:
                raise TimeoutError
            has_ended = pidfd in ready
            # The last output is in the pipes; other holders of them are not waited for.
            for pipe in output if has_ended else ready:
                if not _take(pipe, output[pipe]) and not has_ended:
                    poll.unregister(pipe)
    finally:
        os.close(pidfd)
    return bytes(output[stdout.fileno()]), bytes(output[stderr.fileno()])


def _take(pipe: int, output: bytearray) -> bool:
    """Append the content of ``pipe``; return False at its end."""
    with contextlib.suppress(BlockingIOError):
        while portion := os.read(pipe, _PORTION):
            output += portion
            if len(output) > _LIMIT:
                raise OSError(f"more than {_LIMIT} bytes of output")
        return False
    return True


def _end(asking: subprocess.Popen[bytes], group: bool) -> None:
    # Before the wait: until then its number cannot be reused.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(asking.pid, signal.SIGKILL)
    # If it does not end now, it will when the daemon does.
    with contextlib.suppress(subprocess.TimeoutExpired):
        asking.wait(0.1)
