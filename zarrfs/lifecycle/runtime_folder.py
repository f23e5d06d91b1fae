"""Folders for files that do not outlive the machine's session, private to this user.

There is one for all mounts of a user, in ``$XDG_RUNTIME_DIR``, or root's /run/zarrfs. Where neither exists, each daemon has a folder of
its own in the temporary folder, with an unpredictable name: another user could create a predictable one first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zarrfs.stores import own_files

_NAME = "zarrfs"


def for_this_process() -> Iterator[Path]:
    """Yield folders for files of this process, created if missing, the best first: one may be full. Raises OSError."""
    for folder in _shared():
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        if _is_private(folder):
            yield folder
    yield Path(tempfile.mkdtemp(prefix=_prefix(os.geteuid())))


def restore(folder: Path) -> None:
    """Create again a folder that `for_this_process` has yielded: that of a session is removed when its user logs out. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(errno.EPERM, "belongs to another user, or others may write to it", str(folder))


def existing() -> list[Path]:
    """Return all folders that `for_this_process` may have yielded to any process of this user."""
    try:
        temporary = Path(tempfile.gettempdir())
        own = [temporary / name for name in os.listdir(temporary) if name.startswith(_prefix(os.geteuid()))]
    except OSError:
        own = []
    return [folder for folder in dict.fromkeys((*_shared(), *own)) if _is_private(folder)]


def is_of_one_process(folder: str, uid: int) -> bool:
    """Return True if ``folder`` has the name of a temporary folder of one process of the user ``uid``."""
    return os.path.basename(folder).startswith(_prefix(uid))


def leave(folder: Path) -> None:
    """Remove ``folder`` if it belongs to one process only, and is empty."""
    if is_of_one_process(str(folder), os.geteuid()):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _prefix(uid: int) -> str:
    return f"{_NAME}-{uid}-"


def _shared() -> list[Path]:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    # After a change of user (su, setpriv) the variable may be another user's.
    found = [Path(given) / _NAME] if os.path.isabs(given) and _is_private(Path(given)) else []
    return [*found, Path("/run") / _NAME] if os.geteuid() == 0 else found


def _is_private(folder: Path) -> bool:
    """Return True if it belongs to this user, and no other may write to it."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return own_files.is_private(fd)
        finally:
            os.close(fd)
    return False
