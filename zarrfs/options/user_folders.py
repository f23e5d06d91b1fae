"""Folders of a user by the XDG Base Directory Specification 0.8: absolute, since the daemon runs in another working directory.

"All paths set in these environment variables must be absolute. If an implementation encounters a relative path in any of these variables
it should consider the path invalid and ignore it."
"""

from __future__ import annotations

import os
import pwd


def state() -> str:
    """Return the folder for logs."""
    return _folder("XDG_STATE_HOME", ".local/state")


def cache() -> str:
    """Return the folder for data that may be lost."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, below_home: str) -> str:
    given = os.environ.get(variable, "")
    return given if os.path.isabs(given) else os.path.join(_home(), below_home)


def _home() -> str:
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return "/"
    return home
