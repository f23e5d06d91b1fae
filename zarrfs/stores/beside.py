"""Files that a library keeps beside a data file: locks, journals, shared memory.

A library opens, creates, writes and, as root, even gives them away by name. Whoever may write to the folder chooses what lies under
those names: a link to a file of the victim's, or a hard link. Looking before the library opens it does not help where that user can
exchange the file in between. So: what lies in a folder that nobody else may write to is safe to hand to a library, if it is a plain
file; in any other folder the library has to be kept from these files.

There is another reason to keep root from the lock of somebody else: such files are memory that both processes trust. A mutex in it
that its owner damages can hang the process, or have it write to an address of the owner's choice.
"""

from __future__ import annotations

import os
import stat as st


def is_ours_alone(folder: os.stat_result) -> bool:
    """Whether only this process's user, and root, may create and exchange files in ``folder``. An ACL shows in the group's bits."""
    return folder.st_uid in (0, os.geteuid()) and not folder.st_mode & (st.S_IWGRP | st.S_IWOTH)


def is_safe_path(folder: str) -> bool:
    """Whether nobody else may exchange ``folder`` (without symbolic links in it), or anything in it. Raises `OSError`."""
    if not is_ours_alone(os.stat(folder)):
        return False
    while folder != "/":
        folder = os.path.dirname(folder)
        above = os.stat(folder)
        # In a sticky folder everybody may create, and only owners exchange.
        if not (is_ours_alone(above) or (above.st_uid in (0, os.geteuid()) and above.st_mode & st.S_ISVTX)):
            return False
    return True


def is_plain(file: os.stat_result, owner: int) -> bool:
    """Whether it is a regular file of ``owner``, and no other name leads to it."""
    return st.S_ISREG(file.st_mode) and file.st_uid == owner and file.st_nlink == 1


def look(path: str) -> os.stat_result | None:
    """What lies at ``path``, not what a link there leads to; None when nothing does. Raises `OSError`."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
