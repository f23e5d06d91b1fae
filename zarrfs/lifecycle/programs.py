"""Where the programs are that zarrfs runs, whatever PATH says: a mount helper is called without one."""

from __future__ import annotations

import os
import shutil

_ALWAYS = ("/usr/bin", "/bin", "/usr/local/bin")


def find(name: str) -> str | None:
    """The path of a program; None where it is not installed."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_ALWAYS)).strip(os.pathsep))
