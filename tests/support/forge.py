"""Commands of zarrfs, run by a process that has imported everything and forks: see ``zarrfs_forge.py``.

Tests whose subject is how processes begin (what they import, inherit and show of themselves) are marked ``real_exec`` and have none of
this; with ZARRFS_REAL_EXEC=1 no test has.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_SCRIPT = Path(__file__).with_name("zarrfs_forge.py")

in_use = os.environ.get("ZARRFS_REAL_EXEC") != "1"
"""Set for each test (``tests/conftest.py``)."""


@cache
def _forge(namespace: str) -> socket.socket:
    """The end here of the socket of the one that sees the mounts of ``namespace``, this thread's; it ends with this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), str(there.fileno())], pass_fds=[there.fileno()], start_new_session=True
        )
    return here


def run(arguments: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` of ``python -P -m zarrfs`` with ``arguments``, whose output is captured."""
    asked = {"arguments": list(arguments), "environment": dict(env), "cwd": cwd}
    here, there = socket.socketpair()
    with here, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as null:
        with there:
            socket.send_fds(
                _forge(os.readlink("/proc/thread-self/ns/mnt")), [b"."], [each.fileno() for each in (there, null, out, err)]
            )
        here.settimeout(timeout)
        here.sendall(json.dumps(asked).encode() + b"\n")
        with here.makefile("r") as lines:
            pid = int(lines.readline())
            try:
                code = int(lines.readline())
            except TimeoutError as error:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout) from error
        for file in out, err:
            file.seek(0)
        return subprocess.CompletedProcess(["zarrfs", *arguments], code, out.read(), err.read())
