"""Memory of the machine: how much a mount may use of it, and whether it runs short. Sync; reads files of the kernel.

Within a cgroup the smallest limit of it and of those above it is the machine's memory (cgroup v2 ``memory.max``, v1
``memory.limit_in_bytes``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PART = 10
_MAX_NBYTES = 4 << 30
# The limit of a small machine, up to a quarter of its memory.
_MIN_NBYTES, _MIN_PART = 192 << 20, 4
# Memory is short below this part of it, or if all tasks waited for it this part of the last 10 seconds, in percent.
_SHORT_PART = 20
_STALLED = 1.0


def default_limit(root: Path = Path("/")) -> int:
    """Return the default of ``--memory-limit``: a tenth of the memory, at most 4 GiB. ``root``: where /proc and /sys are."""
    total = total_nbytes(root)
    return min(_MAX_NBYTES, max(total // _PART, min(_MIN_NBYTES, total // _MIN_PART)))


def total_nbytes(root: Path) -> int:
    """Return the memory in bytes that this process may use: the machine's, or the limit of its cgroup."""
    total = _meminfo(root).get("MemTotal", _MIN_NBYTES * _PART)
    return min([total, *(limit for folder in _cgroups(root) if (limit := _limit(folder)) is not None)])


def is_short(root: Path = Path("/")) -> bool:
    """Return True if the machine, or the cgroup of this process, runs short of memory."""
    info = _meminfo(root)
    if "MemAvailable" in info and info["MemAvailable"] < info["MemTotal"] // _SHORT_PART:
        return True
    pressures = [root / "proc/pressure/memory", *(folder / "memory.pressure" for folder in _cgroups(root))]
    return any(_stalled(each) > _STALLED for each in pressures)


def _meminfo(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = value.split()
        if number and number[0].isdecimal():
            found[name] = int(number[0]) * 1024
    return found


def _cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of the cgroups for memory that contain this process, those above included."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        folder = top / path.lstrip("/")
        yield folder
        while folder != top and top in folder.parents:
            folder = folder.parent
            yield folder


def _limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        if (text := _text(folder / name).strip()).isdecimal():
            return int(text)
    return None


def _stalled(pressure: Path) -> float:
    """Return the percentage of the last ten seconds in which all tasks waited for memory (``full avg10=``)."""
    for line in _text(pressure).splitlines():
        words = line.split()
        if words and words[0] == "full" and len(words) > 1:
            return float(words[1].removeprefix("avg10="))
    return 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
