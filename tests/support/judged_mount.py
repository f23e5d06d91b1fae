"""Real mounts of malicious stores, watched from outside: the daemon lives, others are served, memory is bounded, the mount ends.

    with judged(store) as verdict:
        ...                                # an attacker's actions at ``verdict.mount.path``
    assert verdict.longest_wait < 0.25

``tests/support/loop_steps.py`` measures the same from inside: the longest step of the event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.mounting import Mounted, mounted

_WATCHER = Path(__file__).with_name("watcher.py")
_PATIENCE_S = 30
"""Time after which a waiting watcher counts as waiting forever."""

_AGAIN_S = 0.3

ANSWERED_S = 60.0
"""Limit for the answer to the last request of a killed program, whatever the load of this machine."""

MEMORY_LIMIT = 192 << 20
"""The ``--memory-limit`` of such mounts: the default follows the machine."""

UMOUNT_S = 10.0
"""Limit for the end of an unused mount with nothing to store."""

FORBIDDEN = ("Traceback", "defect of zarrfs", "Fatal Python error", "Segmentation fault")
"""Texts that no store may cause in a log."""


@dataclass
class Verdict:
    """The measurements; times in seconds, sizes in bytes. Complete when the context ends."""

    mount: Mounted
    longest_wait: float = 0.0
    """Longest wait of another user of the mount for an answer that needs no store, less the noise of the machine."""
    peak: int = 0
    """Peak RssAnon of the daemon and all its descendants."""
    umount: float = 0.0
    log: str = field(default="", repr=False)
    faults: list[str] = field(default_factory=list)
    """Forbidden events: death of the daemon, a traceback, an end with a non-zero exit code or too late."""


@contextmanager
def judged(store: Path | str, *options: str, umount_s: float = UMOUNT_S) -> Iterator[Verdict]:
    """Mount ``store`` with ``options``, watch it while the body runs, and unmount it. Asserts nothing: `check` does."""
    with mounted(store, "--memory-limit", str(MEMORY_LIMIT), *options, ends_with=None) as mount:
        verdict = Verdict(mount)
        with _watching("memory", str(mount.pid)) as memory, _watching("waits", str(mount.path), str(mount.pid)) as waits:
            yield verdict
        verdict.peak = int(memory.get("peak", 0))
        verdict.longest_wait = float(waits.get("longest", "inf"))
        if not _is_alive(mount.pid):
            verdict.faults.append("the daemon is dead")
        faults, verdict.umount = _umount(mount)
        verdict.faults.extend(faults)
        if verdict.umount > umount_s:
            verdict.faults.append(f"umount took {verdict.umount:.1f} s")
        verdict.log = mount.log()
        for word in FORBIDDEN:
            if word in verdict.log:
                begins = max(0, verdict.log.index(word) - 200)
                verdict.faults.append(f"the log has {word!r}: {verdict.log[begins : begins + 3000]}")


def _umount(mount: Mounted) -> tuple[list[str], float]:
    """Return the faults of unmounting, and its duration in seconds.

    First waits for the last request of a killed program, which uses the mount until it is answered.
    """
    until = time.monotonic() + ANSWERED_S
    while True:
        begin = time.monotonic()
        try:
            ended = mount.umount()
        except subprocess.TimeoutExpired:
            return ["umount did not end"], time.monotonic() - begin
        if ended.returncode == 1 and "in use" in ended.stderr and begin < until:
            time.sleep(_AGAIN_S)
            continue
        faults = [f"umount: {word}" for word in FORBIDDEN if word in ended.stderr]
        if ended.returncode:
            faults.append(f"umount exited with {ended.returncode}: {ended.stderr}")
        return faults, time.monotonic() - begin


def check(verdict: Verdict, *, longest_wait: float, peak: int) -> None:
    """Raise AssertionError for every measurement beyond its limit."""
    faults = list(verdict.faults)
    if verdict.longest_wait > longest_wait:
        faults.append(f"another user of the mount waited {verdict.longest_wait:.3f} s, may wait {longest_wait:g} s")
    if verdict.peak > peak:
        faults.append(f"the daemon had {verdict.peak >> 20} MiB, may have {peak >> 20} MiB")
    assert not faults, "\n".join(faults)


@contextmanager
def _watching(*arguments: str) -> Iterator[dict[str, Any]]:
    """Yield a dict that receives a watcher's results at exit; it stays empty if the watcher got no answer."""
    command = [sys.executable, "-I", "-S", str(_WATCHER), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"watching\n"
        seen: dict[str, Any] = {}
        yield seen
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            seen.update(json.loads(process.communicate(timeout=_PATIENCE_S)[0]))
    finally:
        process.kill()
        # A program that waits for the daemon in the kernel ends only with the mount: do not wait for it here.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def shape_of_log(log: str) -> tuple[int, int]:
    """Return lines and bytes of a log."""
    return log.count("\n"), len(os.fsencode(log))
