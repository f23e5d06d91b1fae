"""Benchmark of small operations in ``raw/``, and of names among many arrays, against ext4, rclone and a bare pyfuse3 file system.

    python benchmarks/small.py [--repetitions 5] [--count 400] [--arrays 1500]

File systems are measured in turn (`rounds`), each in a fresh mount of a folder with the same files. ``bare`` (`bare.py`) passes requests
on and does nothing else, in place and with one thread hop for what changes the folder: a file system in Python cannot be faster. The
ratio is to the one by which an operation is judged. rclone runs with ``--vfs-cache-mode writes``.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import zarr
from common import bare, median, mounted, rclone_mounted, scratch, seconds, table
from rounds import Rounds, in_rounds

# Upper limits, relative to a peer: operations that change the folder to the one with a thread hop.
LIMIT = {
    "create, write, close": (1.5, "bare, hop"),
    "open, read, close": (1.2, "bare"),
    "stat, not cached": (1.3, "bare"),
    "rename": (1.5, "bare, hop"),
    "mkdir": (1.5, "bare, hop"),
    "unlink": (1.5, "bare, hop"),
}
# Upper limits in milliseconds, among many arrays.
LIMIT_MS = {
    "missing name in raw/": 0.2,
    "missing name in chunks/": 0.5,
    "missing name in zarr3/": 0.5,
    "missing name in npy/": 0.5,
    "mkdir in chunks/": 1.0,
}
_VALUE = b"v" * 100
_LOOKS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="runs of each measurement")
    parser.add_argument("--count", type=int, default=400, help="operations of each kind")
    parser.add_argument("--arrays", type=int, default=1500, help="number of arrays beside the missing name")
    parser.add_argument("--directory", default=None, help="folder for the stores; default: the temporary folder")
    asked = parser.parse_args()
    with scratch(asked.directory) as folder, in_rounds() as rounds:
        operations(rounds, folder, asked.repetitions, asked.count)
        names(folder, asked.repetitions, asked.arrays)


def operations(rounds: Rounds, folder: Path, repetitions: int, count: int) -> None:
    """Measure small operations, and print the table."""
    store = folder / "store"
    for _ in rounds.each(repetitions):
        for peer, mount in PEERS.items():
            (store / "many").mkdir(parents=True)
            for number in range(2 * count):
                (store / f"many/{number}").write_bytes(_VALUE)
            with mount(store) as root:
                for name, duration in timed(root / "many", count):
                    rounds.note(name, peer, duration / count)
            shutil.rmtree(store)
    table(
        f"small operations (us, median and least of {repetitions})",
        ["operation", *PEERS, "ratio", "to reach"],
        [
            [
                name,
                *(rounds.text(name, peer, 1e-6, 0) for peer in PEERS),
                rounds.ratio(name, "zarrfs", judge),
                f"{limit} x {judge}",
            ]
            for name, (limit, judge) in LIMIT.items()
        ],
    )


def timed(folder: Path, count: int) -> Iterator[tuple[str, float]]:
    """Yield the name and the duration of ``count`` operations of each kind."""
    yield "open, read, close", seconds(lambda: [(folder / f"{number}").read_bytes() for number in range(count)])
    yield "stat, not cached", seconds(lambda: [os.stat(folder / f"{number}") for number in range(count, 2 * count)])
    yield "create, write, close", seconds(lambda: [(folder / f"new{number}").write_bytes(_VALUE) for number in range(count)])
    yield "rename", seconds(lambda: [os.rename(folder / f"new{number}", folder / f"other{number}") for number in range(count)])
    yield "unlink", seconds(lambda: [os.unlink(folder / f"other{number}") for number in range(count)])
    yield "mkdir", seconds(lambda: [os.mkdir(folder / f"folder{number}") for number in range(count)])


def names(folder: Path, repetitions: int, arrays: int) -> None:
    """Measure names that are missing, and new ones, among many arrays; print the table."""
    store = folder / "arrays"
    group = zarr.create_group(store, zarr_format=2)
    group.create_array("x0", shape=(8,), chunks=(4,), dtype="i4")[:] = 1
    for number in range(1, arrays):
        shutil.copytree(store / "x0", store / f"x{number}")
    found: dict[str, list[float]] = {}
    for _ in range(repetitions):
        with mounted(store) as mountpoint:
            for view, suffix in (("raw", ""), ("chunks", ""), ("zarr3", ""), ("npy", ".npy")):
                os.listdir(mountpoint / view)
                paths = [mountpoint / view / f"missing{number}{suffix}" for number in range(_LOOKS)]
                found.setdefault(f"missing name in {view}/", []).append(
                    seconds(lambda paths=paths: [look(path) for path in paths]) / _LOOKS
                )  # type: ignore[misc]
            new = [mountpoint / "chunks" / f"new{number}" for number in range(_LOOKS)]
            found.setdefault("mkdir in chunks/", []).append(seconds(lambda new=new: [path.mkdir() for path in new]) / _LOOKS)  # type: ignore[misc]
            for path in new:
                path.rmdir()
    rows = [[name, f"{min(times) * 1e3:.2f}", f"{median(times) * 1e3:.2f}", f"{LIMIT_MS[name]}"] for name, times in found.items()]
    table(f"names among {arrays} arrays (ms, of {repetitions})", ["job", "minimum", "median", "to reach"], rows)


def look(path: Path) -> None:
    """Look for a file that is missing."""
    with suppress(FileNotFoundError):
        path.stat()


@contextmanager
def zarrfs(store: Path) -> Iterator[Path]:
    """Mount with zarrfs; yield ``raw/``."""
    with mounted(store) as mountpoint:
        yield mountpoint / "raw"


PEERS: dict[str, Callable[[Path], AbstractContextManager[Path]]] = {
    "zarrfs": zarrfs,
    "ext4": nullcontext,
    "rclone": lambda store: rclone_mounted(store, "--vfs-cache-mode", "writes"),
    "bare": bare(),
    "bare, hop": bare("hop"),
}


if __name__ == "__main__":
    main()
