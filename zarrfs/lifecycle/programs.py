"""Paths of the programs that zarrfs runs, independent of PATH: a mount helper is called without one.

Root runs only programs in the system's own folders. Its PATH may contain folders writable by others (sudo and su can keep a user's), and
a program there would be run with root's rights.
"""

from __future__ import annotations

import os
import shutil

_ALWAYS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin")
# On NixOS and Guix the folders above are empty.
_OF_THE_SYSTEM = (*_ALWAYS, "/run/wrappers/bin", "/run/current-system/sw/bin", "/run/current-system/profile/bin")


def find(name: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    folders = _OF_THE_SYSTEM if os.geteuid() == 0 else (*os.environ.get("PATH", "").split(os.pathsep), *_ALWAYS)
    # A relative folder depends on the working folder.
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if os.path.isabs(folder)))
