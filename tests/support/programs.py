"""Programs of the system that tests run as a user would."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

_PATIENCE = 20


def demand(*programs: str) -> None:
    """Skip the test if one of them is missing; with ZARRFS_REQUIRE_FUSE=1, fail."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        cannot(f"not installed (scripts/setup.sh installs it where it is demanded): {', '.join(missing)}")


def cannot(reason: str) -> NoReturn:
    """Skip the test, which cannot run here; with ZARRFS_REQUIRE_FUSE=1, fail."""
    if os.environ.get("ZARRFS_REQUIRE_FUSE") == "1":
        pytest.fail(f"ZARRFS_REQUIRE_FUSE=1 demands this test: {reason}", pytrace=False)
    pytest.skip(reason)


def zarr2_python() -> Path:
    """Return a Python with zarr 2.18 and a matching xarray (the dependency group "zarr2").

    scripts/setup.sh creates it with ZARRFS_REQUIRE_FUSE=1.
    """
    python = Path(__file__).parents[2] / ".venv-zarr2/bin/python"
    if not python.exists():
        cannot("no virtual environment with zarr 2 (ZARRFS_REQUIRE_FUSE=1 scripts/setup.sh makes .venv-zarr2)")
    return python


def type_into(command: Sequence[str | Path], keys: bytes, *, ready: bytes, environment: Mapping[str, str] | None = None) -> str:
    """Run a program on a terminal of its own, type ``keys`` once it shows ``ready``, and return its output.

    The exit code has to be 0.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(str(command[0]), [str(word) for word in command], {**os.environ, "TERM": "xterm", **(environment or {})})
    killer = threading.Timer(_PATIENCE, os.kill, (pid, signal.SIGKILL))
    killer.start()
    shown = bytearray()
    typed = False
    try:
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # EIO: the other end is closed everywhere.
                break
            if not part:
                break
            shown += part
            if not typed and ready in shown:
                os.write(terminal, keys)
                typed = True
    finally:
        _, status = os.waitpid(pid, 0)
        killer.cancel()
        os.close(terminal)
    text = shown.decode("utf-8", "replace")
    assert typed, f"{command[0]} never showed {ready!r}: {text}"
    assert os.waitstatus_to_exitcode(status) == 0, text
    return text
