"""The Python of each process of zarrfs: names of files in UTF-8, and the modules of the process that starts another.

Keys, documents and archives hold text; names of files, and what the kernel sends, are bytes. They match in UTF-8, which is what all
programs of Zarr write. Python translates names as the locale demands: with ``LANG=en_US``, which is ISO 8859-1, an array ``käse`` of a
zip file would have no file of that name, and one called ``日本`` none at all.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


def use_utf8() -> None:
    """Start this program again in Python's UTF-8 mode, where the locale has another encoding. Called before threads start.

    Output keeps the locale's encoding: the terminal expects it.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode or not sys.executable:
        return
    environment = dict(os.environ)
    if sys.stdout is not None:
        environment.setdefault("PYTHONIOENCODING", sys.stdout.encoding)
    os.execve(sys.executable, [sys.orig_argv[0], "-X", "utf8", *sys.orig_argv[1:]], environment)


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of zarrfs, of the installation of this process. Its environment is `environment`."""
    flags = sys.flags
    kept = {"-I": flags.isolated, "-E": flags.ignore_environment, "-s": flags.no_user_site, "-S": flags.no_site}
    # -P: the process may run in a folder that must not be searched for imports.
    return [sys.executable, *(option for option, is_on in kept.items() if is_on), "-P", "-X", "utf8", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return the environment for `command`, for any working directory."""
    changed = dict(os.environ)
    searched = os.environ.get("PYTHONPATH", "")
    # Without a working directory, Python has found nothing there either.
    with contextlib.suppress(FileNotFoundError):
        folders = [os.path.abspath(folder) for folder in searched.split(os.pathsep)] if searched else []
        # `python -m zarrfs` in a clone: -P excludes that folder, and another installation would be found, or none.
        if (ours := str(Path(__file__).parents[2])) in sys.path[:1] and ours not in folders:
            folders.insert(0, ours)
        if folders:
            changed["PYTHONPATH"] = os.pathsep.join(folders)
    return changed
