"""Commands of zarrfs, run by a preloaded process that forks: see ``zarrfs_forge.py``.

Tests of process startup (imports, inheritance, visibility) are marked ``real_exec`` and do not use it; with ZARRFS_REAL_EXEC=1 no test
does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Self

_SCRIPT = Path(__file__).with_name("zarrfs_forge.py")

in_use = os.environ.get("ZARRFS_REAL_EXEC") != "1"
"""Set for each test (``tests/conftest.py``)."""


@cache
def _forge(namespace: str) -> socket.socket:
    """Return this end of the socket to the forge of ``namespace``, for this thread; the forge ends with this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), str(there.fileno())], pass_fds=[there.fileno()], start_new_session=True
        )
    return here


class Process:
    """A forked program with the interface of `subprocess.Popen` as far as it is used.

    ``stdin``, ``stdout`` and ``stderr`` are the other ends of pipes, if pipes were requested.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        script: Path | None = None,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
    ) -> None:
        asked = {
            "script": None if script is None else str(script),
            "arguments": list(arguments),
            "environment": dict(os.environ if env is None else env),
            "cwd": cwd,
        }
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._stream, there = socket.socketpair()
        with contextlib.ExitStack() as theirs:
            theirs.enter_context(there)
            if stdin is None:
                stdin, self.stdin = self._pipe(theirs, ours_writes=True)
            if stdout is None:
                stdout, self.stdout = self._pipe(theirs)
            if stderr is None:
                stderr, self.stderr = self._pipe(theirs)
            descriptors = [each.fileno() for each in (there, stdin, stdout, stderr)]
            socket.send_fds(_forge(os.readlink("/proc/thread-self/ns/mnt")), [b"."], descriptors)
        self._stream.sendall(json.dumps(asked).encode() + b"\n")
        self._lines = self._stream.makefile("r")
        self.pid = int(self._lines.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._stream], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._lines.readline())
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; does nothing after the end of the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM; see `send_signal`."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL; see `send_signal`."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.stdin, self.stdout, self.stderr):
            if each is not None:
                with contextlib.suppress(BrokenPipeError):
                    each.close()
        self.wait()
        self._lines.close()
        self._stream.close()

    def _pipe(self, theirs: contextlib.ExitStack, *, ours_writes: bool = False) -> tuple[IO[bytes], IO[bytes]]:
        reader, writer = os.pipe()
        read, write = open(reader, "rb"), open(writer, "wb")  # noqa: SIM115
        here, there = (write, read) if ours_writes else (read, write)
        return theirs.enter_context(there), here


def run(arguments: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Run ``python -P -m zarrfs`` with ``arguments`` and captured output, like `subprocess.run`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as null:
        with Process(arguments, stdin=null, stdout=out, stderr=err, cwd=cwd, env=env) as process:
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        for file in out, err:
            file.seek(0)
        return subprocess.CompletedProcess(["zarrfs", *arguments], code, out.read(), err.read())
