"""What the daemon has to say when it is gone: a small file in the runtime folder, which ``zarrfs umount`` reads.

The daemon creates the file at its birth with the words of a sudden death in it, replaces them when something could not be
stored, and removes the file when it ends well. So a missing file means success, and even ``kill -9`` leaves a word. From time to time
it adds what is not stored yet, which those who wait for it may read.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from zarrfs.terminal import counted, printable, size

_LIMIT = 1 << 20


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


def begin() -> Path:
    """Create this process's file; call `write` or `end` with its path before the process ends. Raises OSError."""
    path = runtime_folder() / f"{os.getpid()}.last-words.json"
    path.unlink(missing_ok=True)
    write(path, SUDDEN_DEATH)
    return path


def write(path: Path, outcome: Outcome) -> None:
    """Replace the words in ``path``, whole."""
    _replace(path, outcome._asdict())


def tell(path: Path, left: Left) -> None:
    """Replace the words in ``path`` by those of a sudden death that loses what is ``left``."""
    words = SUDDEN_DEATH
    if left.files:
        more = ", ..." if left.files > len(left.names) else ""
        words = Outcome(words.exit_code, f"{words.message}: at last count {left} ({', '.join(left.names)}{more})")
    _replace(path, words._asdict() | {"files": left.files, "nbytes": left.nbytes})


def end(path: Path) -> None:
    """All is well: there is nothing to say."""
    path.unlink(missing_ok=True)


def collect(path: str) -> Outcome | None:
    """Read and remove the words in ``path``; None when there are none.

    The path comes from a mount, which may be somebody else's: only a file of ours that says what `write` says is read or removed.
    """
    try:
        outcome = outcome_in(_read(path))
        if outcome is not None:
            os.unlink(path)
    except OSError:
        return None
    return outcome


def left(path: str) -> Left | None:
    """What is not stored yet, without the names; None where that was not told. ``path`` as for `collect`."""
    try:
        return left_in(_read(path))
    except OSError:
        return None


def outcome_in(text: bytes) -> Outcome | None:
    """How a daemon ended, `printable`, of the ``text`` of its file; None when that says something else."""
    try:
        said = json.loads(text)
        return Outcome(int(said["exit_code"]), printable(str(said["message"])))
    except (ValueError, TypeError, KeyError):
        return None


def left_in(text: bytes) -> Left | None:
    """What is not stored yet, of the ``text`` of a daemon's file; None where that was not told."""
    try:
        said = json.loads(text)
        return Left(int(said["files"]), int(said["nbytes"]))
    except (ValueError, TypeError, KeyError):
        return None


def _replace(path: Path, said: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w", encoding="utf-8") as file:
        json.dump(said, file)
    new.replace(path)


def _read(path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a file of ours")
        return file.read(_LIMIT)


def runtime_folder() -> Path:
    """Our folder for files that do not outlive the machine's session, private to this user. Raises OSError."""
    session = os.environ.get("XDG_RUNTIME_DIR")
    # Those who became somebody else (su, setpriv) may have brought it with them.
    if session and _is_ours(Path(session)):
        folder = Path(session) / "zarrfs"
    elif os.geteuid() == 0:
        folder = Path("/run/zarrfs")
    else:
        folder = Path(tempfile.gettempdir()) / f"zarrfs-{os.geteuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # /tmp belongs to everybody: somebody else may have made the folder first.
    if not _is_ours(folder):
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def _is_ours(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
