"""Where the log goes: stderr in the foreground, a file for each mountpoint in the background.

Not syslog: a container has none, and an ordinary user may not read it. The file lies where rotation tools and people look; it is
opened for appending and opened again when it was moved away, so that any rotation will do. Each time it is opened as `own_files` does:
nobody else's link sends the log into another file.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import BinaryIO

from zarrfs import own_files
from zarrfs.errors import UsageError
from zarrfs.log_lines import Formatter, Limiter, tell_left_out

log = logging.getLogger("zarrfs")

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def configure(level: str, file: str | None) -> None:
    """Send records of zarrfs of ``level`` and worse to ``file``, or to stderr. For the main program alone, once."""
    handler = _LogFile(file) if file else logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    handler.addFilter(Limiter(handler))
    atexit.register(tell_left_out)
    if logging.lastResort is not None:
        # Of the libraries' loggers.
        logging.lastResort.setFormatter(Formatter())
    log.addHandler(handler)
    log.setLevel(level.upper())


def default_file(mountpoint: str) -> str:
    """The log file of a background mount that names none: ``/var/log/zarrfs/mnt-z.log`` for ``/mnt/z``."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = Path("/var/log" if os.geteuid() == 0 else state)
    # As systemd-escape --path does, so that two mountpoints never share a file.
    name = mountpoint.strip("/").replace("-", r"\x2d").replace("/", "-")
    return str(folder / "zarrfs" / f"{name[-200:]}.log")


def open_to_append(file: str) -> BinaryIO:
    """``file``, created with its folder where they are missing. Raises `UsageError`."""
    try:
        return open(own_files.open_file(file, _APPEND, make_folders=True), "ab", buffering=0)
    except OSError as error:
        raise UsageError(f"log file {file}: {error.strerror}: choose another with --log-file") from error


def open_to_read(file: str) -> BinaryIO:
    """The log file that `open_to_append` opened. Raises OSError."""
    return open(own_files.open_file(file, os.O_RDONLY), "rb")


class _LogFile(WatchedFileHandler):
    """Records go to the file of that name. Where it cannot be opened again they go to stderr: in the background that is the file which
    was there at the beginning."""

    def __init__(self, file: str) -> None:
        try:
            super().__init__(file)
        except OSError as error:
            raise UsageError(f"log file {file}: {error.strerror}: choose another with --log-file") from error

    def _open(self) -> TextIOWrapper:
        return open(own_files.open_file(self.baseFilename, _APPEND), "a", encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            with contextlib.suppress(OSError):
                print(self.format(record), file=sys.stderr, flush=True)
