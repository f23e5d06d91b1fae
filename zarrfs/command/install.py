"""Installation of the helpers of mount(8): links in /sbin to the commands of this package, and their removal.

Links, so that an upgrade of the package needs no second step. Only a link to a command of the same name, of any installation of zarrfs,
is ever replaced or removed.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import sysconfig
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from zarrfs.errors import RootNeeded, ZarrfsError

FOLDER = Path("/sbin")
"""Folder in which mount(8) and umount(8) look for the helper of a file system type."""

LINKS = {"mount.zarrfs": "mount.zarrfs", "mount.fuse.zarrfs": "mount.zarrfs", "umount.fuse.zarrfs": "umount.zarrfs"}
"""Command of each helper's name."""

# A path with more parts, those of the targets of links included, has a loop of links, which the kernel refuses.
_LONGEST_WAY = 1000


@dataclass(frozen=True, slots=True)
class Step:
    """One change of ``link``: created or replaced, to lead to ``target``; removed if that is None."""

    link: Path
    target: Path | None

    def __str__(self) -> str:
        """Return the equivalent shell command."""
        if self.target is None:
            return f"rm {shlex.quote(str(self.link))}"
        return f"ln -sfn {shlex.quote(str(self.target))} {shlex.quote(str(self.link))}"

    def do(self) -> None:
        """Apply the change; a replaced link exists at every moment. Raises OSError."""
        if self.target is None:
            self.link.unlink()
            return
        new = self.link.with_name(f".{self.link.name}.{os.getpid()}")
        new.symlink_to(self.target)
        try:
            new.replace(self.link)
        except OSError:
            new.unlink()
            raise


def to_install(commands: Path, folder: Path = FOLDER) -> list[Step]:
    """Return the changes that install the helpers in the folder ``commands``; none if they are installed.

    Raises `ZarrfsError` if one of the names is in use for something else.
    """
    found = {name: _leads_to(folder / name, command) for name, command in LINKS.items()}
    return [Step(folder / name, commands / command) for name, command in LINKS.items() if found[name] != commands / command]


def to_uninstall(folder: Path = FOLDER) -> list[Step]:
    """Return the changes that remove the helpers. Raises `ZarrfsError` if one of the names is in use for something else."""
    return [Step(folder / name, None) for name, command in LINKS.items() if _leads_to(folder / name, command) is not None]


def do(steps: list[Step], again: str) -> None:
    """Apply ``steps``. Raises `RootNeeded`, with ``again`` as the command line to run with sudo, and `ZarrfsError`."""
    for step in steps:
        # Checked before the first step, so that no part is applied alone.
        if not os.access(step.link.parent, os.W_OK):
            why = f"{step.link.parent}: owned by root" if os.geteuid() else f"{step.link.parent}: not writable"
            raise RootNeeded(f"{why} (run `sudo {again}`)" if os.geteuid() else why, key=str(step.link.parent))
    for step in steps:
        try:
            step.do()
        except OSError as error:
            raise ZarrfsError(f"{step}: {(error.strerror or str(error)).lower()}", key=str(step.link)) from error


def others_who_decide(commands: Path) -> Path | None:
    """Return the file, folder or link that users other than root can change, of all that lead to the commands; None if there is none.

    Such users would choose what root runs. The same holds for the interpreter, and for this package, which may lie elsewhere.
    """
    programs = (*(commands / command for command in sorted(set(LINKS.values()))), Path(sys.executable), Path(__file__))
    for program in programs:
        for path in reversed(_on_the_way(program)):
            status = path.lstat()
            is_link = stat.S_ISLNK(status.st_mode)
            shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX and not is_link
            if status.st_uid != 0 or shared:
                return path
    return None


def _on_the_way(path: Path) -> list[Path]:
    """Return all folders and links through which the kernel reaches ``path``, and its target."""
    root = Path("/")
    at, found, names = root, [root], deque(path.absolute().parts[1:])
    while names:
        name = names.popleft()
        if name == "..":
            at = at.parent
            continue
        found.append(at / name)
        if not found[-1].is_symlink():
            at = found[-1]
        elif len(found) < _LONGEST_WAY:
            target = found[-1].readlink()
            at = root if target.is_absolute() else at
            names.extendleft(reversed([part for part in target.parts if part != "/"]))
    return found


def commands() -> Path:
    """Return the folder with the commands of the running package. Raises `ZarrfsError` if there is none."""
    wanted = sorted({"zarrfs", *LINKS.values()})
    folders = [Path(sysconfig.get_path("scripts")), Path(os.path.abspath(sys.argv[0])).parent]
    for folder in folders:
        # Never the links themselves, which may lie beside a zarrfs in /usr/sbin.
        if all(os.access(folder / name, os.X_OK) for name in wanted) and not os.path.samefile(folder, FOLDER):
            return folder
    raise ZarrfsError(
        f"{', '.join(wanted)}: not all in {' or '.join(dict.fromkeys(map(str, folders)))}: install the package "
        "(`pip install zarrfs`), and run its zarrfs"
    )


def _leads_to(link: Path, command: str) -> Path | None:
    """Return the target of ``link``, existing or not; None if ``link`` is absent. Raises `ZarrfsError` for anything else."""
    try:
        target = Path(os.readlink(link))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_ours(link, "not a link") from error
    if target.name != command:
        raise _not_ours(link, f"link to {target}")
    return link.parent / target


def _not_ours(link: Path, what: str) -> ZarrfsError:
    return ZarrfsError(
        f"{link}: {what}, so not created by `zarrfs install`: see its owner (`ls -l {shlex.quote(str(link))}`), "
        "and move it away if it is not needed",
        key=str(link),
    )
