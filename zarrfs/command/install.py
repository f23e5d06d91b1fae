"""Where mount(8) finds us: links in /sbin to the commands of this package, put there and taken away again.

They are links, so that an upgrade of the package needs no second step. Only a link that leads to a command of that name, of whatever
installation of zarrfs, is ever replaced or removed.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from zarrfs.errors import RootNeeded, ZarrfsError

FOLDER = Path("/sbin")
"""Where mount(8) and umount(8) look for the helper of a type."""

LINKS = {"mount.zarrfs": "mount.zarrfs", "mount.fuse.zarrfs": "mount.zarrfs", "umount.fuse.zarrfs": "umount.zarrfs"}
"""The names that they look for, and the command that each leads to."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change of ``link``: made, or replaced, to lead to ``target``; removed where that is None."""

    link: Path
    target: Path | None

    def __str__(self) -> str:
        """The command that does it, for a shell."""
        if self.target is None:
            return f"rm {shlex.quote(str(self.link))}"
        return f"ln -sfn {shlex.quote(str(self.target))} {shlex.quote(str(self.link))}"

    def do(self) -> None:
        """Do it; a link that is replaced is there at each moment. Raises OSError."""
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
    """What has to be done so that mount(8) finds the helpers in the folder ``commands``; nothing when that is done already.

    Raises `ZarrfsError` where something else has one of the names.
    """
    found = {name: _leads_to(folder / name, command) for name, command in LINKS.items()}
    return [Step(folder / name, commands / command) for name, command in LINKS.items() if found[name] != commands / command]


def to_uninstall(folder: Path = FOLDER) -> list[Step]:
    """What has to be done so that nothing of it is left. Raises `ZarrfsError` where something else has one of the names."""
    return [Step(folder / name, None) for name, command in LINKS.items() if _leads_to(folder / name, command) is not None]


def do(steps: list[Step], again: str) -> None:
    """Do ``steps``. Raises `RootNeeded`, which says that ``again`` (a command line) does it with sudo, and `ZarrfsError`."""
    for step in steps:
        # Before it is tried: half of it is worse than nothing.
        if not os.access(step.link.parent, os.W_OK):
            why = f"{step.link.parent} is root's" if os.geteuid() else f"{step.link.parent} cannot be written"
            raise RootNeeded(f"{why}: `sudo {again}`" if os.geteuid() else why, key=str(step.link.parent))
    for step in steps:
        try:
            step.do()
        except OSError as error:
            raise ZarrfsError(f"{step}: {(error.strerror or str(error)).lower()}", key=str(step.link)) from error


def others_who_decide(commands: Path) -> Path | None:
    """What of the way to the commands can be changed by others than root, who would choose what root runs; None where nothing can."""
    command = (commands / "mount.zarrfs").resolve()
    for place in (command, *command.parents):
        status = place.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or shared:
            return place
    return None


def commands() -> Path:
    """The folder with the commands of the package that runs. Raises `ZarrfsError` where it has none."""
    wanted = sorted({"zarrfs", *LINKS.values()})
    places = [Path(sysconfig.get_path("scripts")), Path(os.path.abspath(sys.argv[0])).parent]
    for place in places:
        # Never the links themselves, which are beside a zarrfs that lies in /usr/sbin.
        if all(os.access(place / name, os.X_OK) for name in wanted) and not os.path.samefile(place, FOLDER):
            return place
    raise ZarrfsError(
        f"{', '.join(wanted)} are not all in {' or '.join(dict.fromkeys(map(str, places)))}: install the package "
        "(`pip install zarrfs`), and run the zarrfs that comes with it"
    )


def _leads_to(link: Path, command: str) -> Path | None:
    """Where ``link`` leads, be it there or not; None when nothing is at that name."""
    try:
        target = Path(os.readlink(link))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_ours(link, "is not a link") from error
    if target.name != command:
        raise _not_ours(link, f"leads to {target}")
    return link.parent / target


def _not_ours(link: Path, what: str) -> ZarrfsError:
    return ZarrfsError(
        f"{link} {what}, so `zarrfs install` has not made it: see whose it is (`ls -l {shlex.quote(str(link))}`), "
        "and move it away if it is not needed",
        key=str(link),
    )
