"""Stores designed to take time and memory: under any requests, others are served, memory is bounded, and the mount ends on request.

Two bounds hold for all of them. A daemon holds no more than its ``--memory-limit`` and `BEYOND_LIMIT`, all its processes together; no
other user waits longer than `LONGEST_WAIT_S` for an answer that needs no store. A wait is measured from outside, on a machine with
other load: the best of `TRIES` counts. (Other modules measure single faults from inside.)
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hostile_stores import REFUSED, STORES, Hostile, provoke
from tests.support.judged_mount import MEMORY_LIMIT, check, judged
from tests.support.mounting import mountpoint, zarrfs

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(240)]

BEYOND_LIMIT = 150 * 10**6
"""Allowance for Python, the libraries and everything whose size no store chooses."""

PEAK = MEMORY_LIMIT + BEYOND_LIMIT

LONGEST_WAIT_S = 0.25 if os.environ.get("ZARRFS_QUIET") == "1" else 1.5
"""On an idle machine: five steps of the event loop, each as long as permitted (50 ms).

Beside other tests the daemon, its threads and the watcher wait for a processor; ``test_event_loop.py`` measures the steps themselves.
"""

TRIES = 3

REFUSAL_S = 10.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is emptied at once: some stores are of 10^5 files, or too deep for pytest to remove."""
    folder = tmp_path / "stores"
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


ALWAYS = {
    "readers that are killed",
    "2^40 chunks",
    "60 GiB of holes",
    "headers that lie",
    "overlapping inner chunks",
    "deep documents",
    "many keys",
    "a zip bomb",
}
"""One of each kind, for ``make test``."""


@pytest.mark.parametrize(
    "hostile",
    [pytest.param(each, id=name, marks=[] if name in ALWAYS else pytest.mark.full_length) for name, each in STORES.items()],
)
def test_nobody_else_waits_and_memory_is_bounded(hostile: Hostile, folder: Path, tmp_path: Path) -> None:
    store = hostile.make(folder)
    for tries_left in reversed(range(TRIES)):
        with judged(store, *hostile.options, "--cache-dir", str(tmp_path / "cache")) as verdict:
            provoke(verdict.mount.path, hostile.asks)
        if tries_left and not verdict.faults and verdict.peak <= PEAK and verdict.longest_wait > LONGEST_WAIT_S:
            continue
        check(verdict, longest_wait=LONGEST_WAIT_S, peak=PEAK)
        break


@pytest.mark.parametrize("make", [pytest.param(each, id=name) for name, each in REFUSED.items()])
def test_what_cannot_be_mounted_is_refused_soon(make, folder: Path) -> None:  # type: ignore[no-untyped-def]
    store = make(folder)
    with mountpoint() as path:
        begin = time.monotonic()
        done = zarrfs("mount", str(store), str(path))
        assert done.returncode not in (0, 8), done.stderr
        assert "Traceback" not in done.stderr and "defect" not in done.stderr
        assert time.monotonic() - begin < REFUSAL_S
