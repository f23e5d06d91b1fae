"""Commands of zarrfs in processes forked from a preloaded one: a mount costs a tenth of the time.

    python zarrfs_forge.py FD    # a Unix socket of packets

A packet brings four descriptors: a stream, and stdin, stdout and stderr of the command. The stream carries one line of JSON (the
arguments, the environment, the working directory, and a script if it is not zarrfs itself), and receives two: the process, and after
its end its exit code. The daemon of ``zarrfs mount`` is also forked, instead of started as a program; all else is the command's own
code. The forge ends when the other end of the socket is closed.

It is named like the program, which identifies a daemon where the kernel does not reveal the owner of a connection.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# This file is run as a script from any directory, so the checkout is not on the path. OpenBLAS would start a thread for each core.
sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import zarrfs.__main__ as program
from zarrfs import registry
from zarrfs.daemon import serve  # noqa: F401 - imported for those that are forked
from zarrfs.lifecycle import background, unmounting  # noqa: F401
from zarrfs.reports import check, info  # noqa: F401

_PACKAGES = ("zarrfs.stores", "zarrfs.codecs", "zarrfs.dialects", "zarrfs.dialects.v3.grids", "zarrfs.containers", "zarrfs.views")


class ForkedProcess:
    """The daemon, forked, with the interface of ``subprocess.Popen`` that `zarrfs.lifecycle.background` uses."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: Any,
        stderr: Any,
        cwd: str,
        pass_fds: Sequence[int],
        env: Mapping[str, str],
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in (null, 0), (stdout.fileno(), 1), (stderr.fileno(), 2):
                os.dup2(source, target)
            kept = sorted(pass_fds)
            for first, last in zip([2, *kept], [*kept, 1 << 16], strict=True):
                os.closerange(first + 1, last)
            os.chdir(cwd)
            # "python -P -m zarrfs ..."
            _run(None, command[command.index("zarrfs") + 1 :], env)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                if not select.select([pidfd], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("zarrfs", timeout or 0)
            finally:
                os.close(pidfd)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _run(script: str | None, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the command, or a script, with these arguments in this process; does not return."""
    code: object = 1
    # As a program starts.
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [script or "zarrfs", *arguments]
        if script is None:
            program.main()
        else:
            runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - told as the interpreter tells it
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        for stream in sys.stdout, sys.stderr:
            stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _answer(stream: socket.socket, descriptors: Sequence[int]) -> None:
    """Fork the requested command, and report its end."""
    with stream.makefile("r") as lines:
        asked = json.loads(lines.readline())
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for source, target in zip(descriptors, range(3), strict=True):
            os.dup2(source, target)
        os.closerange(3, 1 << 16)
        os.chdir(asked["cwd"])
        _run(asked["script"], asked["arguments"], asked["environment"])
    for descriptor in descriptors:
        os.close(descriptor)
    stream.sendall(f"{pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    stream.sendall(f"{code}\n".encode())


def main(fd: int) -> None:
    """Serve until the other end is closed."""
    for package in _PACKAGES:
        registry.plugins(package)
    for library in sorted({library for codec in registry.plugins("zarrfs.codecs") for library in codec.libraries}):
        importlib.import_module(library)
    # Click imports more when it first parses a command line.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(SystemExit):
        sys.argv = ["zarrfs", "mount", "--help"]
        program.main()
    background.subprocess = SimpleNamespace(
        Popen=ForkedProcess, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    # No process waits for the answering one, which waits for its child.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=fd) as packets:
        while True:
            packet, descriptors, _, _ = socket.recv_fds(packets, 1, 4)
            if not packet:
                return
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                packets.close()
                with socket.socket(fileno=descriptors[0]) as stream:
                    _answer(stream, descriptors[1:])
                os._exit(0)
            for descriptor in descriptors:
                os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]))
