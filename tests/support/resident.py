"""Peak memory of a daemon during an operation: anonymous pages, which are neither shared nor backed by a file.

with sampled(mount.pid) as peak:
    (mount.path / "raw" / "k").read_bytes()
assert peak.nbytes < ...
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EVERY_S = 0.005


class Peak:
    """The highest value; ``before`` is the initial value."""

    def __init__(self, nbytes: int) -> None:
        self.before = nbytes
        self.nbytes = nbytes


@contextmanager
def sampled(pid: int) -> Iterator[Peak]:
    """Sample a process and its children every few milliseconds while the body runs."""
    peak = Peak(anonymous(pid))
    over = threading.Event()

    def look() -> None:
        while not over.wait(_EVERY_S):
            peak.nbytes = max(peak.nbytes, anonymous(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak.nbytes = max(peak.nbytes, anonymous(pid))


def anonymous(pid: int) -> int:
    """Return the bytes of anonymous pages of a process and its descendants; 0 if it has ended."""
    total, pending = 0, [pid]
    while pending:
        folder = Path(f"/proc/{pending.pop()}")
        try:
            status = (folder / "status").read_text()
            pending += [int(word) for task in (folder / "task").iterdir() for word in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon:")), 0)
    return total
