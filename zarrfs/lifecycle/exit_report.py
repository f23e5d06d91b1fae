"""Exit report of a daemon: a small file in a runtime folder, read by ``zarrfs umount``.

The daemon creates the file at its start with the report of an abnormal end, replaces it if data could not be stored, and removes it
after success. A missing file thus means success if it was there before the end, and ``kill -9`` leaves a report. While processes wait
for the daemon, it adds from time to time what is not stored yet.

Reports that no process waits for are removed by the next ``zarrfs umount`` (`clear`). Two locks (flock(2)) identify them: a daemon holds
one on its file as long as it lives, and waiting processes hold one on the folder. A daemon of an earlier version holds none, but has its
number in the file's name.

A report may be another user's, with any content. It is read up to a size, and accepted only in the form of `write`; shown parts are
escaped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from zarrfs.lifecycle import runtime_folder, untrusted
from zarrfs.printable import counted, printable, size

log = logging.getLogger(__name__)

_LIMIT = 64 << 10
_SUFFIX = ".last-words.json"
_MAX_INTEGER = 2**63 - 1
# In JSON, a character takes up to 12 bytes.
_MESSAGE_LENGTH = 4000
_CUT = " ..."

# Reports of this process, by path, and the descriptors that hold their locks.
_locked: dict[Path, int] = {}


class Outcome(NamedTuple):
    """End of a command or daemon: its exit code (DESIGN: command line) and a message for people, empty on success."""

    exit_code: int
    message: str = ""


class Left(NamedTuple):
    """Staged data that is not stored: number of files, their staged bytes, and the names of some."""

    files: int = 0
    nbytes: int = 0
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it as ``3 files, 12.0 MiB left``."""
        return f"{counted(self.files, 'file')}, {size(self.nbytes)} left"


SUDDEN_DEATH = Outcome(7, "daemon died, unstored data lost")


# --- the daemon -----------------------------------------------------------------------------------------------------------------


def begin() -> Path:
    """Create this process's report; call `write` or `end` with its path before the process ends. Raises OSError."""
    failure: OSError | None = None
    for folder in runtime_folder.for_this_process():
        path: Path | None = None
        try:
            path = _new(folder)
            _replace(path, SUDDEN_DEATH._asdict())
        except OSError as error:
            failure = error
            if path is not None:
                path.unlink(missing_ok=True)
            runtime_folder.leave(folder)
        else:
            return path
    assert failure is not None
    raise failure


def _new(folder: Path) -> Path:
    """Create an empty file for a report of this process. Raises OSError."""
    # Containers may share the folder: processes of the same number then live at once, and neither may end the other's report.
    for name in (f"{os.getpid()}", f"{os.getpid()}-{secrets.token_hex(4)}"):
        path = folder / f"{name}{_SUFFIX}"
        with contextlib.suppress(FileExistsError):
            os.close(_created(path))
            return path
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def write(path: Path, outcome: Outcome) -> None:
    """Replace the report at ``path``, atomically."""
    try:
        _replace(path, _members(outcome))
    except OSError as error:
        # The session's folder may have been removed, with the one that it is in.
        log.warning("exit report for umount not written: %s", error)


def update(path: Path, left: Left) -> None:
    """Replace the report at ``path`` by that of a sudden death that loses what is ``left``. Raises OSError."""
    outcome = SUDDEN_DEATH
    if left.files:
        more = ", ..." if left.files > len(left.names) else ""
        outcome = Outcome(outcome.exit_code, f"{outcome.message}: at last count {left} ({', '.join(left.names)}{more})")
    _replace(path, _members(outcome) | {"files": left.files, "nbytes": left.nbytes})


def is_there(path: Path) -> bool:
    """Return True if the report can be found."""
    # Not its method, which raises the errors of a folder that fails.
    return os.path.exists(path)


def end(path: Path) -> None:
    """Remove the report: success."""
    path.unlink(missing_ok=True)
    if (descriptor := _locked.pop(path, None)) is not None:
        os.close(descriptor)
    runtime_folder.leave(path.parent)


# --- waiting processes ----------------------------------------------------------------------------------------------------------


@contextmanager
def awaited(path: str) -> Iterator[None]:
    """Prevent others from removing the report at ``path`` during the body."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, ValueError):
            held.enter_context(_folder_locked(Path(path).parent, fcntl.LOCK_SH))
        yield


def collect(path: str) -> Outcome | None:
    """Read and remove the report at ``path``; None if there is none.

    The path comes from a mount, which may be another user's: only a file of this user in the form of `write` is read or removed.
    """
    try:
        outcome = outcome_in(_read(path))
        if outcome is not None:
            end(Path(path))
    except (OSError, ValueError):
        return None
    return outcome


def left(path: str) -> Left | None:
    """Return what is not stored yet, without names; None if not reported. ``path`` as for `collect`."""
    try:
        return left_in(_read(path))
    except (OSError, ValueError):
        return None


def outcome_in(text: bytes) -> Outcome | None:
    """Return the end of a daemon from the ``text`` of its report, `printable`; None for other content."""
    try:
        members = untrusted.document(text)
        message = printable(untrusted.text(members["message"], _LIMIT))
        return Outcome(untrusted.number(members["exit_code"], 0, 255), message[:_MESSAGE_LENGTH])
    except (ValueError, KeyError):
        return None


def left_in(text: bytes) -> Left | None:
    """Return what is not stored yet from the ``text`` of a report; None if not reported."""
    try:
        members = untrusted.document(text)
        return Left(untrusted.number(members["files"], 0, _MAX_INTEGER), untrusted.number(members["nbytes"], 0, _MAX_INTEGER))
    except (ValueError, KeyError):
        return None


def clear() -> None:
    """Remove reports of this user's dead daemons that no process waits for."""
    for folder in runtime_folder.existing():
        with contextlib.suppress(OSError), _folder_locked(folder, fcntl.LOCK_EX):
            for name in os.listdir(folder):
                if name.endswith(_SUFFIX) and _is_abandoned(folder / name):
                    (folder / name).with_suffix(".new").unlink(missing_ok=True)
                    end(folder / name)


def _is_abandoned(path: Path) -> bool:
    pid = path.name.removesuffix(_SUFFIX).partition("-")[0]
    if not pid.isdecimal() or Path("/proc", pid).exists():
        return False
    # The process may be in a container, without an entry in /proc.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Else it was replaced meanwhile, by a live process.
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _members(outcome: Outcome) -> dict[str, Any]:
    """Return the content of a report. Of a longer one only a part would be read, which is no report."""
    message = printable(outcome.message)
    if len(message) > _MESSAGE_LENGTH:
        message = f"{message[: _MESSAGE_LENGTH - len(_CUT)]}{_CUT}"
    return outcome._replace(message=message)._asdict()


@contextmanager
def _folder_locked(folder: Path, how: int) -> Iterator[None]:
    """Lock a folder during the body. Raises OSError if another process has it locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, members: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    try:
        descriptor = _created(new)
    except FileNotFoundError:
        runtime_folder.restore(path.parent)
        descriptor = _created(new)
    try:
        # Without support for locks the name alone shows that the daemon lives.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            json.dump(members, file)
        new.replace(path)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    before, _locked[path] = _locked.get(path), descriptor
    if before is not None:
        os.close(before)


def _created(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _read(path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{path}: not a regular file of this user")
        return file.read(_LIMIT)
