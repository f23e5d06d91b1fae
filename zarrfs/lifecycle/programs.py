"""Where the programs are that zarrfs runs, whatever PATH says: a mount helper is called without one.

Root runs none but those in the system's own folders. Its PATH may name folders that others can write to (sudo and su can be told to keep
a user's), and a program there would be run with root's rights.
"""

from __future__ import annotations

import os
import shutil

_ALWAYS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin")
# NixOS and Guix have nothing in the folders above.
_OF_THE_SYSTEM = (*_ALWAYS, "/run/wrappers/bin", "/run/current-system/sw/bin", "/run/current-system/profile/bin")


def find(name: str) -> str | None:
    """Return the path of a program; None where it is not installed."""
    folders = _OF_THE_SYSTEM if os.geteuid() == 0 else (*os.environ.get("PATH", "").split(os.pathsep), *_ALWAYS)
    # A relative folder is another one wherever the program is started from.
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if os.path.isabs(folder)))
