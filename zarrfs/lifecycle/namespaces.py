"""Mounts that are detached in this mount namespace, but present in another.

A process with a mount namespace of its own (a container, a service, an ``unshare``) has a copy of every mount that existed at its start,
and an umount outside may not reach it.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

from zarrfs.lifecycle.open_by import Holder, name_of


class MountTable:
    """The mount table of this process, read again only after a change."""

    def __init__(self) -> None:
        self._file = open("/proc/self/mountinfo", "rb")  # noqa: SIM115 (closed by `close`)
        self._poll = select.poll()
        # proc_pid_mounts(5): poll(2) reports a change of the table as an exceptional condition.
        self._poll.register(self._file, select.POLLPRI | select.POLLERR)
        self._devices: set[bytes] | None = None

    def lists(self, device: str) -> bool:
        """Return True if the file system with this device number is mounted anywhere."""
        if self._devices is None or self._poll.poll(0):
            self._file.seek(0)
            self._devices = _devices(self._file.read())
        return os.fsencode(device) in self._devices

    def close(self) -> None:
        """Close the table."""
        self._file.close()


def holding(device: str) -> list[Holder]:
    """Return a process of each visible mount namespace in which the file system with this device number is mounted."""
    seen: set[str] = set()
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        process = Path("/proc", str(pid))
        with suppress(OSError):
            namespace = os.readlink(process / "ns/mnt")
            if namespace not in seen:
                seen.add(namespace)
                if os.fsencode(device) in _devices((process / "mountinfo").read_bytes()):
                    found.append(Holder(pid, name_of(process), namespace))
    return found


def keeps(pid: int, device: str) -> bool:
    """Return True if a process is in another mount namespace, in which the file system with this device number is mounted."""
    process = Path("/proc", str(pid))
    with suppress(OSError):
        is_elsewhere = os.readlink(process / "ns/mnt") != os.readlink("/proc/self/ns/mnt")
        return is_elsewhere and os.fsencode(device) in _devices((process / "mountinfo").read_bytes())
    return False


def _devices(table: bytes) -> set[bytes]:
    return {fields[2] for line in table.split(b"\n") if len(fields := line.split(b" ", 3)) == 4}
