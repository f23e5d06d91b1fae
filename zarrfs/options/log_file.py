"""Where the log goes: stderr in the foreground, a file for each mountpoint in the background.

Not syslog: a container has none, and an ordinary user may not read it. The file lies where rotation tools and people look; it is
opened for appending and opened again when it was moved away, or on SIGHUP, so that any rotation will do.

A log names what is in a store, which others may not be allowed to look into. So root's is for root and the group adm, whose members read
logs, and everybody else's is their own; so are the folders that are made for it. It may lie in a folder of somebody else's, who could put
a link there: a log is a file of one name, or a device.
"""

from __future__ import annotations

import atexit
import contextlib
import grp
import logging
import os
import stat
import sys
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import BinaryIO

from zarrfs import own_files
from zarrfs.errors import UsageError
from zarrfs.options.log_lines import Formatter, Limiter, log_dropped

log = logging.getLogger("zarrfs")

_READERS = "adm"
# For the group, where there is one that reads logs.
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750


class _Handler(WatchedFileHandler):
    """Creates its file as every log is created."""

    def _open(self) -> TextIOWrapper:
        return open(_opened(self.baseFilename), "a", encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        # A log that was moved away and cannot be created again is no reason for whoever logs to fail. In the background stderr is the
        # file that was there at the beginning.
        try:
            super().emit(record)
        except OSError:
            with contextlib.suppress(OSError):
                print(self.format(record), file=sys.stderr, flush=True)


def configure(level: str, file: str | None) -> None:
    """Send records of zarrfs of ``level`` and worse to ``file``, or to stderr. For the main program alone, once. Raises
    `UsageError` for an unusable file."""
    try:
        handler = _Handler(file) if file else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise UsageError(f"log file {file}: {error.strerror or error}: choose another with --log-file") from error
    handler.setFormatter(Formatter())
    handler.addFilter(Limiter(handler))
    atexit.register(log_dropped)
    if logging.lastResort is not None:
        # Of the libraries' loggers.
        logging.lastResort.setFormatter(Formatter())
    log.addHandler(handler)
    log.setLevel(level.upper())


def reopen() -> None:
    """Open the log file again, under its name; what libraries print (stdout, stderr) goes there, too, if it went to the log before."""
    for handler in log.handlers:
        if isinstance(handler, _Handler) and handler.stream is not None:
            before = os.fstat(handler.stream.fileno())
            try:
                stream = handler._open()
            except OSError as error:
                log.error("log file %s: not opened again: %s", handler.baseFilename, error)
                continue
            for descriptor in (1, 2):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(descriptor), before):
                        os.dup2(stream.fileno(), descriptor)
            if (old := handler.setStream(stream)) is not None:
                old.close()
            handler._statstream()


def default_file(mountpoint: str) -> str:
    """The log file of a background mount that names none: ``/var/log/zarrfs/mnt-z.log`` for ``/mnt/z``."""
    # As systemd-escape --path does, so that two mountpoints never share a file.
    name = mountpoint.strip("/").replace("-", r"\x2d").replace("/", "-")
    return str(_default_folder() / f"{name[-200:]}.log")


def open_to_append(file: str) -> BinaryIO:
    """``file``, created with its folder where they are missing. Raises `UsageError`."""
    try:
        _make_folder(Path(file).parent)
        return open(_opened(file), "ab", buffering=0)
    except OSError as error:
        raise UsageError(f"log file {file}: {error.strerror or error}: choose another with --log-file") from error


def open_to_read(file: str) -> BinaryIO:
    """The log file that `open_to_append` opened. Raises OSError."""
    return open(own_files.open_file(file, os.O_RDONLY | os.O_NONBLOCK), "rb")


def _default_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path("/var/log" if os.geteuid() == 0 else state) / "zarrfs"


def _opened(file: str) -> int:
    """A descriptor of the log ``file``, for appending. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
    try:
        descriptor = own_files.open_file(file, flags | os.O_CREAT | os.O_EXCL, 0o600)
        _let_readers_in(descriptor, _FILE_MODE)
    except FileExistsError:
        # /dev/stderr is a link.
        descriptor = own_files.open_file(file, flags | os.O_CREAT, 0o600)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            if status.st_nlink > 1:
                raise OSError("has another name, too")
            if os.geteuid() == 0 and status.st_uid != 0:
                raise OSError("belongs to another user")
        elif not stat.S_ISCHR(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
            raise OSError("is not a file")
        os.set_blocking(descriptor, True)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _make_folder(folder: Path) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    own_files.make_folder(str(folder), 0o700)
    # One that an earlier version made was everybody's to look into.
    for each in {*missing, folder} if folder == _default_folder() else missing:
        descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid == os.geteuid() and (each in missing or status.st_mode & 0o027):
                _let_readers_in(descriptor, _FOLDER_MODE)
        finally:
            os.close(descriptor)


def _let_readers_in(descriptor: int, mode: int) -> None:
    """Give root's file or folder to those who read logs, with ``mode``; without the group's bits where there are no such readers."""
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError, OSError):
            os.fchown(descriptor, -1, grp.getgrnam(_READERS).gr_gid)
            os.fchmod(descriptor, mode)
            return
    os.fchmod(descriptor, mode & 0o700)
