"""Real mounts of hostile stores, judged from outside: the daemon lives, others are served meanwhile, memory is bounded, the end comes.

with judged(store) as verdict:
    ...                                # whatever an attacker does at ``verdict.mount.path``
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
"""Time after which a watcher that is still waiting is taken for one that waits for ever."""

_AGAIN_S = 0.3

ANSWERED_S = 60.0
"""Within this time the last request of a program that was killed is answered, however many others are at work on this machine."""

UMOUNT_S = 10.0
"""Within this time a mount ends that nobody uses, when nothing is to be stored."""

FORBIDDEN = ("Traceback", "defect of zarrfs", "Fatal Python error", "Segmentation fault")
"""What no store may bring into a log."""


@dataclass
class Verdict:
    """What was measured; times in seconds, sizes in bytes. Complete when the context ends."""

    mount: Mounted
    longest_wait: float = 0.0
    """How long another user of the mount waited for an answer that needs no store, less the noise of the machine."""
    peak: int = 0
    """RssAnon of the daemon and all processes below it, at its highest."""
    umount: float = 0.0
    log: str = field(default="", repr=False)
    faults: list[str] = field(default_factory=list)
    """What must never be: a daemon that died, a traceback, an end with another exit code than 0 or too late."""


@contextmanager
def judged(store: Path | str, *options: str, umount_s: float = UMOUNT_S) -> Iterator[Verdict]:
    """``store`` mounted with ``options`` and watched while the body runs, then unmounted. Asserts nothing: `check` does."""
    with mounted(store, *options, ends_with=None) as mount:
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
    """Faults of unmounting, and the seconds that it took. A program that was killed uses the mount until its last request is answered:
    that is waited for before."""
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
    """Raise AssertionError for everything that is worse than it may be."""
    faults = list(verdict.faults)
    if verdict.longest_wait > longest_wait:
        faults.append(f"another user of the mount waited {verdict.longest_wait:.3f} s, may wait {longest_wait:g} s")
    if verdict.peak > peak:
        faults.append(f"the daemon had {verdict.peak >> 20} MiB, may have {peak >> 20} MiB")
    assert not faults, "\n".join(faults)


@contextmanager
def _watching(*arguments: str) -> Iterator[dict[str, Any]]:
    """A watcher at work while the body runs; what it saw is in the dict afterwards, nothing where it got no answer any more."""
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
        # One that waits for the daemon in the kernel ends when the mount does, and not before: nobody waits for it here.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def shape_of_log(log: str) -> tuple[int, int]:
    """Lines and bytes of a log."""
    return log.count("\n"), len(os.fsencode(log))
