"""Users of a mount: processes with an open or mapped file or a folder in it. Read from /proc; sends the mount no request.

Open files of other users' processes are visible to root only, and of processes in other mount namespaces the location is not visible.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zarrfs.printable import printable


class Holder(NamedTuple):
    """A process, and one path below the mountpoint that it uses (``.`` for the mountpoint itself)."""

    pid: int
    name: str
    path: str


def of(mountpoint: str) -> list[Holder]:
    """Return the processes that use the mount on ``mountpoint`` (absolute, without symlinks), by number.

    Not those that only unmount it: their folder and descriptors are those of the program that started them. They are named if alone.
    """
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        process = Path("/proc", str(pid))
        relative = next((relative for path in paths(process) if (relative := _below(mountpoint, path)) is not None), None)
        if relative is not None:
            found.append(Holder(pid, name_of(process), printable(relative)))
    unmounting = {os.getpid()} | ({os.getppid()} if name_of(Path("/proc", str(os.getppid()))) == "umount" else set())
    return [holder for holder in found if holder.pid not in unmounting] or found


def paths(process: Path) -> Iterator[str]:
    """Yield all visible paths that a process uses: descriptors first, as the most informative."""
    links = [process / "cwd", process / "root", process / "exe"]
    with contextlib.suppress(OSError):
        links = [*(process / "fd").iterdir(), *links]
    for link in links:
        with contextlib.suppress(OSError):
            yield os.readlink(link)
    # Not map_files, whose links only root may read.
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_bytes().split(b"\n"):
            fields = line.split(None, 5)
            if len(fields) == 6:
                yield os.fsdecode(fields[5].replace(b"\\012", b"\n"))


def _below(mountpoint: str, path: str) -> str | None:
    if path == mountpoint:
        return "."
    inner = path.removeprefix(mountpoint.rstrip("/") + "/")
    return inner if inner != path else None


def name_of(process: Path) -> str:
    """Return the name of a process, for people."""
    try:
        return printable((process / "comm").read_text(errors="backslashreplace").rstrip("\n"))
    except OSError:
        return "?"
