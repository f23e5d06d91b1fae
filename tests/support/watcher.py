"""Measurements of a mount from outside: the waiting time of other users, and the memory of the daemon.

    python watcher.py waits PATH PID      # until stdin ends; prints JSON: the longest wait of another user of the mount, in seconds
    python watcher.py memory PID          # until stdin ends; prints JSON: the peak of RssAnon of the process and all below it, in bytes

They are separate processes, since threads of a test share its interpreter lock with the rest of the test.

A wait is the duration of ``statvfs``, which is always a request, and whose answer needs no store. The noise of a busy machine is
subtracted: the time in which the watcher and the daemon's main thread were runnable without a free processor
(Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat").
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

EVERY_WAIT_S = 0.001
EVERY_SAMPLE_S = 0.004


def main(what: str, *arguments: str) -> None:
    print("watching", flush=True)
    print(json.dumps(waits(arguments[0], int(arguments[1])) if what == "waits" else memory(int(arguments[0]))), flush=True)


def waits(path: str, pid: int) -> dict[str, float]:
    """Return the longest wait, without and with the noise of the machine, and the number of waits."""
    longest = raw = 0.0
    count = 0
    while not _ended(EVERY_WAIT_S):
        delayed, begin = _delayed(pid), time.perf_counter()
        os.statvfs(path)
        elapsed = time.perf_counter() - begin
        longest = max(longest, elapsed - (_delayed(pid) - delayed))
        raw = max(raw, elapsed)
        count += 1
    return {"longest": longest, "with_noise": raw, "count": count}


def memory(pid: int) -> dict[str, int]:
    """Return the peak, and the number of processes at that time."""
    peak = processes = 0
    while not _ended(EVERY_SAMPLE_S):
        family = _family(pid)
        nbytes = sum(_anonymous(each) for each in family)
        if nbytes > peak:
            peak, processes = nbytes, len(family)
    return {"peak": peak, "processes": processes}


def _ended(seconds: float) -> bool:
    return bool(select.select([0], [], [], seconds)[0])


def _delayed(pid: int) -> float:
    """Return the total seconds for which this process and ``pid`` waited for a processor; 0 without kernel support."""
    try:
        return sum(int(Path(f"/proc/{each}/schedstat").read_bytes().split()[1]) for each in ("self", pid)) / 1e9
    except OSError:
        return 0.0


def _family(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        each = pending.pop()
        found.append(each)
        try:
            for task in os.listdir(f"/proc/{each}/task"):
                pending.extend(map(int, Path(f"/proc/{each}/task/{task}/children").read_bytes().split()))
        except OSError:
            continue  # The process has ended meanwhile.
    return found


def _anonymous(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
