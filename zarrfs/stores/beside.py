"""Files that a library keeps beside a data file: locks, journals, shared memory.

A library opens, creates, writes and, as root, even changes the owner of these files by name. Any user with write access to the folder
chooses what lies under those names: a link to a file of the victim, or a hard link. A check before the library opens them does not
help where that user can exchange the file in between. Therefore a plain file in a folder that no other user can write to is safe for a
library; in any other folder the library must not touch these files.

A second reason keeps root from another user's lock file: both processes trust its memory. A mutex in it that its owner damages can
hang the process, or make it write to an address of the owner's choice.
"""

from __future__ import annotations

import os
import stat as st
from collections.abc import Iterator
from contextlib import contextmanager

from zarrfs.stores.owners import is_ours, is_ours_alone


def is_safe_path(folder: str) -> bool:
    """Return True if no other user can exchange ``folder`` (without symbolic links in it), or anything in it. Raises `OSError`."""
    with _folder(folder) as fd:
        if not is_ours_alone(fd):
            return False
    while folder != "/":
        folder = os.path.dirname(folder)
        with _folder(folder) as fd:
            # In a sticky folder every user can create files, but only owners can exchange them.
            if not (is_ours_alone(fd) or (is_ours(fd) and os.fstat(fd).st_mode & st.S_ISVTX)):
                return False
    return True


@contextmanager
def _folder(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def is_plain(file: os.stat_result, owner: int) -> bool:
    """Return True if it is a regular file of ``owner`` without another hard link."""
    return st.S_ISREG(file.st_mode) and file.st_uid == owner and file.st_nlink == 1


def look(path: str) -> os.stat_result | None:
    """Return the status of ``path`` itself, symbolic links not followed; None if absent. Raises `OSError`."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
