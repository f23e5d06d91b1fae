"""Destination of the log: stderr in the foreground, one file for each mountpoint in the background.

Not syslog: containers have none, and ordinary users may not read it. The file lies in the standard place for rotation tools and people.
It is opened for appending, and opened again after it was moved away or on SIGHUP, so that any rotation works.

A log names the content of a store, which others may not be allowed to read. Root's log is therefore readable by root and the group adm,
whose members read logs; any other is readable by its owner only. The same holds for folders created for it. The log may lie in a folder
of another user, who could put a link there: only a regular file with one name, or a device, is accepted.
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

from zarrfs.errors import UsageError
from zarrfs.options import user_folders
from zarrfs.options.log_lines import Formatter, Limiter, log_dropped
from zarrfs.stores import own_files

log = logging.getLogger("zarrfs")

_READERS = "adm"
_ROOTS = Path("/var/log/zarrfs")
# For the group of log readers, if it exists.
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750
# Of a mountpoint in the name of its log.
_NAME_NBYTES = 200


class _Handler(WatchedFileHandler):
    """Creates its file by `_open_fd`, with the checks and modes of every log."""

    def _open(self) -> TextIOWrapper:
        return open(_open_fd(self.baseFilename), "a", encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        # Before Python 3.14 an error of opening reaches the caller.
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Print a line that the file cannot take on stderr: no space, or the log was moved away and cannot be created again."""
        if isinstance(sys.exception(), OSError):
            # In the background stderr is the original file.
            with contextlib.suppress(OSError):
                print(self.format(record), file=sys.stderr, flush=True)
        else:
            super().handleError(record)


def configure(level: str, file: str | None) -> None:
    """Send log records of zarrfs of at least ``level`` to ``file``, or to stderr.

    Called once, by the main program. Raises `UsageError` for an unusable file.
    """
    try:
        handler = _Handler(file) if file else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise UsageError(f"log file {file}: {error.strerror or error}: choose another with --log-file") from error
    handler.setFormatter(Formatter())
    handler.addFilter(Limiter(handler))
    atexit.register(log_dropped)
    if logging.lastResort is not None:
        # Records of libraries.
        logging.lastResort.setFormatter(Formatter())
    log.addHandler(handler)
    log.setLevel(level.upper())


def reopen() -> None:
    """Open the log file again by its name; redirect stdout and stderr too if they went to the log, since libraries print there."""
    for handler in log.handlers:
        if isinstance(handler, _Handler) and handler.stream is not None:
            before = os.fstat(handler.stream.fileno())
            try:
                stream = handler._open()
            except OSError as error:
                log.error("log file %s: reopen failed: %s", handler.baseFilename, error)
                continue
            for descriptor in (1, 2):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(descriptor), before):
                        os.dup2(stream.fileno(), descriptor)
            if (old := handler.setStream(stream)) is not None:
                old.close()
            handler._statstream()


def default_file(mountpoint: str) -> str:
    """Return the default log file of a background mount: ``/var/log/zarrfs/mnt-z.log`` for ``/mnt/z``."""
    # Escaped as by systemd-escape --path, so that two mountpoints never share a file.
    name = mountpoint.strip("/").replace("\\", r"\x5c").replace("-", r"\x2d").replace("/", "-")
    encoded = os.fsencode(name)
    if len(encoded) > _NAME_NBYTES:
        # No file has a name of more than 255 bytes.
        import hashlib

        end = encoded[-_NAME_NBYTES:].decode(errors="ignore")
        name = f"{hashlib.sha256(encoded).hexdigest()[:16]}-{end}"
    return str(_default_folder() / f"{name}.log")


def open_to_append(file: str) -> BinaryIO:
    """Open ``file`` for appending; create it and its folder if missing. Raises `UsageError`."""
    try:
        _make_folder(Path(file).parent)
        return open(_open_fd(file), "ab", buffering=0)
    except OSError as error:
        raise UsageError(f"log file {file}: {error.strerror or error}: choose another with --log-file") from error


def open_to_read(file: str) -> BinaryIO:
    """Open the log file of `open_to_append` for reading. Raises OSError."""
    return open(own_files.open_file(file, os.O_RDONLY | os.O_NONBLOCK), "rb")


def _default_folder() -> Path:
    # An ordinary user may be root in a user namespace of their own (`unshare -r`), without access to the machine's log.
    if os.geteuid() == 0 and any(os.access(folder, os.W_OK) for folder in (_ROOTS, _ROOTS.parent)):
        return _ROOTS
    return Path(user_folders.state()) / "zarrfs"


def _open_fd(file: str) -> int:
    """Return a descriptor of the log ``file``, for appending. Raises OSError."""
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
                raise OSError("has more than one link")
            if os.geteuid() == 0 and status.st_uid != 0:
                raise OSError("belongs to another user")
        elif not stat.S_ISCHR(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
            raise OSError("not a regular file or device")
        os.set_blocking(descriptor, True)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _make_folder(folder: Path) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    own_files.make_folder(str(folder))
    # Earlier versions created the folder readable for everyone.
    for each in {*missing, folder} if folder == _default_folder() else missing:
        # It may be exchanged for a link by now, and so may any folder on the way to it.
        found = own_files.open_folder(str(each))
        try:
            descriptor = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(found)
        try:
            status = os.fstat(descriptor)
            if status.st_uid == os.geteuid() and (each in missing or status.st_mode & 0o027):
                _let_readers_in(descriptor, _FOLDER_MODE)
        finally:
            os.close(descriptor)


def _let_readers_in(descriptor: int, mode: int) -> None:
    """Give root's file or folder ``mode`` and the group of log readers; without that group, remove the group's bits."""
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError, OSError):
            os.fchown(descriptor, -1, grp.getgrnam(_READERS).gr_gid)
            os.fchmod(descriptor, mode)
            return
    os.fchmod(descriptor, mode & 0o700)
