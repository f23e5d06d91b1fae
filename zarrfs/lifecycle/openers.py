"""Check by /proc whether a process waits for a READ: pyfuse3 does not pass the kernel's INTERRUPT on.

A process that is killed while it waits for an answer of the daemon stays until the answer comes: only its pending SIGKILL shows.
Readahead for a process outlives it: then no process has the file open.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from zarrfs.lifecycle import open_by

_KILLED = 1 << (signal.SIGKILL - 1)


def is_abandoned(opener: int, path: str) -> bool:
    """Return True if the thread ``opener``, which opened a file, is being killed, or is gone and no other process has the file open.

    ``path``: from the root of the mount. False if unknown. Takes milliseconds, more with many processes.
    """
    fields = _status(Path("/proc", str(opener)))
    if _has_ended(fields):
        return opener > 0 and not _is_open(path)
    return any(int(fields.get(name, b"0"), 16) & _KILLED for name in (b"SigPnd", b"ShdPnd"))


def has_mapped(opener: int, path: str) -> bool:
    """Return True if the process of thread ``opener`` has a writable mapping of the file at ``path``. May wait for that process."""
    # A nameless file has a mark in its path.
    end = f"/{path}".replace("\0", "")
    with contextlib.suppress(OSError):
        for line in os.fsdecode(Path("/proc", str(opener), "maps").read_bytes()).split("\n"):
            # address, permissions (rw-s), offset, device, inode, path
            fields = line.split(maxsplit=5)
            if (
                len(fields) == 6
                and fields[1].endswith("s")
                and "w" in fields[1]
                and fields[5].removesuffix(" (deleted)").endswith(end)
            ):
                return True
    return False


def _is_open(path: str) -> bool:
    """Return True if a process may have a file open or mapped whose path ends so: positions in other namespaces are unknown."""
    end = f"/{path}"
    for name in os.listdir("/proc"):
        process = Path("/proc", name)
        if not name.isdecimal():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if any(link.removesuffix(" (deleted)").endswith(end) for link in open_by.paths(process)):
                return True
            # Of a process that has ended, and waits to be collected, the descriptors are closed, and only root may list them.
            is_hidden = not os.access(process / "fd", os.R_OK) and os.geteuid() in (0, process.stat().st_uid)
            if is_hidden and not _has_ended(_status(process)):
                return True
    return False


def _status(process: Path) -> dict[bytes, bytes]:
    """Return the fields of a process or thread in /proc; none if it is gone."""
    try:
        lines = (process / "status").read_bytes().splitlines()
    except OSError:
        return {}
    return dict(line.split(b":\t", 1) for line in lines if b":\t" in line)


def _has_ended(fields: Mapping[bytes, bytes]) -> bool:
    return not fields or fields.get(b"State", b"").startswith((b"Z", b"X"))
