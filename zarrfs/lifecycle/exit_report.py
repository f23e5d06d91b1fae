"""What the daemon has to say when it is gone: a small file in a runtime folder, which ``zarrfs umount`` reads.

The daemon creates the file at its birth with the words of a sudden death in it, replaces them when something could not be
stored, and removes the file when it ends well. So a missing file means success, and even ``kill -9`` leaves a word. From time to time
it adds what is not stored yet, which those who wait for it may read.

Words that nobody waits for are cleared by the next ``zarrfs umount`` (`clear`). Two locks (flock(2)) say what those are: a daemon holds
one on its file for as long as it lives, and those who wait hold one on the folder. A daemon of an earlier version holds none, but has its
number in the file's name.

Words may be another user's, who may have written anything there. They are read up to a size, and count only where they are what `write`
writes; what is shown of them is escaped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
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
_MOST = 2**63 - 1
_MESSAGE_LENGTH = 4000

# The files of this process whose lock it holds.
_locked: dict[Path, int] = {}


class Outcome(NamedTuple):
    """How a command or a daemon ended: its exit code (DESIGN: command line) and a message for people, empty when all is well."""

    exit_code: int
    message: str = ""


class Left(NamedTuple):
    """What is staged and not stored: how many files, the bytes staged of them, and the names of some."""

    files: int = 0
    nbytes: int = 0
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """``3 files, 12.0 MiB left``."""
        return f"{counted(self.files, 'file')}, {size(self.nbytes)} left"


SUDDEN_DEATH = Outcome(7, "the daemon died: what it had not stored yet is lost")


# --- the daemon -----------------------------------------------------------------------------------------------------------------


def begin() -> Path:
    """Create this process's file; call `write` or `end` with its path before the process ends. Raises OSError."""
    path = runtime_folder.for_this_process() / f"{os.getpid()}{_SUFFIX}"
    path.unlink(missing_ok=True)
    _replace(path, SUDDEN_DEATH._asdict())
    return path


def write(path: Path, outcome: Outcome) -> None:
    """Replace the words in ``path``, whole."""
    try:
        _replace(path, outcome._asdict())
    except OSError as error:
        # The session's folder may have ended before.
        log.warning("umount will not learn how this mount ended: %s", error)


def update(path: Path, left: Left) -> None:
    """Replace the words in ``path`` by those of a sudden death that loses what is ``left``. Raises OSError."""
    words = SUDDEN_DEATH
    if left.files:
        more = ", ..." if left.files > len(left.names) else ""
        words = Outcome(words.exit_code, f"{words.message}: at last count {left} ({', '.join(left.names)}{more})")
    _replace(path, words._asdict() | {"files": left.files, "nbytes": left.nbytes})


def end(path: Path) -> None:
    """All is well: there is nothing to say."""
    path.unlink(missing_ok=True)
    if (descriptor := _locked.pop(path, None)) is not None:
        os.close(descriptor)
    runtime_folder.leave(path.parent)


# --- those who wait -------------------------------------------------------------------------------------------------------------


@contextmanager
def awaited(path: str) -> Iterator[None]:
    """Meanwhile nobody but the caller clears the words in ``path``."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, ValueError):
            held.enter_context(_folder_locked(Path(path).parent, fcntl.LOCK_SH))
        yield


def collect(path: str) -> Outcome | None:
    """Read and remove the words in ``path``; None when there are none.

    The path comes from a mount, which may be somebody else's: only a file of ours that says what `write` says is read or removed.
    """
    try:
        outcome = outcome_in(_read(path))
        if outcome is not None:
            end(Path(path))
    except (OSError, ValueError):
        return None
    return outcome


def left(path: str) -> Left | None:
    """What is not stored yet, without the names; None where that was not told. ``path`` as for `collect`."""
    try:
        return left_in(_read(path))
    except (OSError, ValueError):
        return None


def outcome_in(text: bytes) -> Outcome | None:
    """How a daemon ended, `printable`, of the ``text`` of its file; None when that says something else."""
    try:
        said = untrusted.document(text)
        message = printable(untrusted.text(said["message"], _LIMIT))
        return Outcome(untrusted.number(said["exit_code"], 0, 255), message[:_MESSAGE_LENGTH])
    except (ValueError, KeyError):
        return None


def left_in(text: bytes) -> Left | None:
    """What is not stored yet, of the ``text`` of a daemon's file; None where that was not told."""
    try:
        said = untrusted.document(text)
        return Left(untrusted.number(said["files"], 0, _MOST), untrusted.number(said["nbytes"], 0, _MOST))
    except (ValueError, KeyError):
        return None


def clear() -> None:
    """Remove the words of daemons of this user that are dead and that nobody waits for."""
    for folder in runtime_folder.existing():
        with contextlib.suppress(OSError), _folder_locked(folder, fcntl.LOCK_EX):
            for name in os.listdir(folder):
                if name.endswith(_SUFFIX) and _is_abandoned(folder / name):
                    (folder / name).with_suffix(".new").unlink(missing_ok=True)
                    end(folder / name)


def _is_abandoned(path: Path) -> bool:
    pid = path.name.removesuffix(_SUFFIX)
    if not pid.isdecimal() or Path("/proc", pid).exists():
        return False
    # Such a process may be in a container.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Else it was replaced meanwhile, by a process that lives.
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _folder_locked(folder: Path, how: int) -> Iterator[None]:
    """Raises OSError where it is locked by another process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, said: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Where locks are not to be had the name alone tells that the daemon lives.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            json.dump(said, file)
        new.replace(path)
    except BaseException:
        os.close(descriptor)
        raise
    before, _locked[path] = _locked.get(path), descriptor
    if before is not None:
        os.close(before)


def _read(path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a file of ours")
        return file.read(_LIMIT)
