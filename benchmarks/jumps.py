"""Jump benchmark: parts of an ``.npy`` through a mapping and by pread(2), and chunks that are not stored, against zarr-python.

    python benchmarks/jumps.py [--repetitions 15] [--edge 8192]

Programs are measured in turn (`rounds`). Each uses a fresh mount, and each reader runs in a process of its own, after `touch_memory`. The
store's files are in the page cache for all readers. Prints also the chunks that the mount decoded, and its READs.
(Not named ``random.py``: the folder of a script precedes the standard library, whose module `random` others import.)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import zarr
from common import arguments, median, mounted, scratch, seconds, shell, table, touch_memory
from rounds import Rounds, in_rounds

# Bodies of programs with `array` (a mapped .npy, or a zarr.Array), `fd` (of the .npy) and `places`, 200 pairs (row, column).
_RUNS = "for row, column in places: numpy.array(array[row, column : column + 256])"
_PREADS = "for row, column in places: os.pread(fd, 1024, start + (row * edge + column) * 4)"
_BOX = "numpy.array(array[edge // 3 : edge // 3 + 600, edge // 3 : edge // 3 + 600])"
_COLUMN = "numpy.array(array[:, edge // 3])"
JOBS = {
    "200 runs of 256, mapped": (_RUNS, _RUNS),
    "box of 600 x 600, mapped": (_BOX, _BOX),
    "one column, mapped": (_COLUMN, _COLUMN),
    "200 pread of 1 KiB": (_PREADS, _RUNS),
}
_PROGRAM = """
import os, sys, time, numpy
path = sys.argv[1]
if {mapped}:
    array = numpy.load(path, mmap_mode="r")
    fd = os.open(path, os.O_RDONLY)
    start = array.offset
else:
    import zarr
    array = zarr.open_array(path, mode="r")
edge = array.shape[0]
places = numpy.random.default_rng(1).integers(0, [edge, edge - 256], (200, 2)).tolist()
begin = time.perf_counter()
{body}
print(time.perf_counter() - begin)
"""
_LOAD = """
import sys, time, numpy
begin = time.perf_counter()
numpy.load(sys.argv[1])
print(time.perf_counter() - begin)
"""
_ZARR = """
import sys, time, zarr
array = zarr.open_array(sys.argv[1], mode="r")
begin = time.perf_counter()
array[:]
print(time.perf_counter() - begin)
"""
# Upper limits on an idle machine, relative to zarr-python: the first time, and again, in a mount where nothing has changed.
LIMIT = {
    "200 runs of 256, mapped": ("1.2", "0.2"),
    "box of 600 x 600, mapped": ("1.5", ""),
    "one column, mapped": ("3", ""),
    "200 pread of 1 KiB": ("1.0", "0.2"),
}


def main() -> None:
    asked = arguments(__doc__)
    with scratch(asked.directory) as folder, in_rounds() as rounds:
        jumps(rounds, folder, asked.edge, asked.repetitions)
        absent(rounds, folder, asked.edge, asked.repetitions)


def jumps(rounds: Rounds, folder: Path, edge: int, repetitions: int) -> None:
    """Measure parts of an array of zstd chunks of 1 MiB."""
    values = np.random.default_rng(0).normal(size=(edge, edge)).astype("f4").cumsum(axis=1).round(2)
    path = folder / "a.zarr"
    made = zarr.create_array(path, shape=values.shape, chunks=(512, 512), dtype="f4", compressors=zarr.codecs.ZstdCodec(level=3))
    made[:] = values
    counts: dict[tuple[str, str], list[int]] = {}
    for _ in rounds.each(repetitions):
        for job, (ours, theirs) in JOBS.items():
            program, file = _PROGRAM.format(mapped=True, body=ours), "npy/a.npy"
            with mounted(path, "--read-only") as mountpoint:
                before = stats(mountpoint)
                rounds.note(job, "first", timed(program, mountpoint / file))
                after = stats(mountpoint)
                rounds.note(job, "again", timed(program, mountpoint / file))
            for counter in ("chunks_decoded", "read_requests"):
                counts.setdefault((job, counter), []).append(after[counter] - before[counter])
            rounds.note(job, "zarr", timed(_PROGRAM.format(mapped=False, body=theirs), path))
    table(
        f"parts of a {edge} x {edge} float32 array, zstd, chunks 512 x 512 (ms, median and least of {repetitions})",
        ["job", "first", "again", "zarr-python", "/zarr", "to reach", "again /zarr", "to reach", "decoded", "READs"],
        [
            [
                job,
                *(rounds.text(job, which, 1e-3, 0) for which in ("first", "again", "zarr")),
                rounds.ratio(job, "first", "zarr"),
                LIMIT[job][0],
                rounds.ratio(job, "again", "zarr"),
                LIMIT[job][1],
                *(f"{median(counts[job, counter]):.0f}" for counter in ("chunks_decoded", "read_requests")),
            ]
            for job in JOBS
        ],
    )


def absent(rounds: Rounds, folder: Path, edge: int, repetitions: int) -> None:
    """Measure ``np.load`` and ``tail`` of an array of 8 kB chunks of which none is stored."""
    path = folder / "none.zarr"
    zarr.create_array(path, shape=(edge, edge), chunks=(32, 64), dtype="f4", fill_value=1)
    load, tail = f"np.load of {edge * edge * 4 / 1e6:.0f} MB", "tail -c 8"
    for _ in rounds.each(repetitions):
        with mounted(path, "--read-only") as mountpoint:
            touch_memory()
            rounds.note(tail, "zarrfs", seconds(shell(f"tail -c 8 {mountpoint}/npy/none.npy")))
        with mounted(path, "--read-only") as mountpoint:
            rounds.note(load, "zarrfs", timed(_LOAD, mountpoint / "npy/none.npy"))
        rounds.note(load, "zarr", timed(_ZARR, path))
    table(
        f"a {edge} x {edge} float32 array, chunks 32 x 64, none stored (ms, median and least of {repetitions})",
        ["job", "zarrfs", "zarr-python", "to reach"],
        [
            [
                load,
                rounds.text(load, "zarrfs", 1e-3, 0),
                rounds.text(load, "zarr", 1e-3, 0),
                f"{edge * edge * 4 / 1e6:.0f}: 1 GB/s",
            ],
            [tail, rounds.text(tail, "zarrfs", 1e-3, 0), "", "50"],
        ],
    )


def stats(mountpoint: Path) -> dict[str, int]:
    """Return the counters of a mount."""
    counters: dict[str, int] = json.loads((mountpoint / ".zarrfs" / "stats.json").read_bytes())
    return counters


def timed(program: str, path: Path) -> float:
    """Return the seconds that a program prints, in a new process, so that no reader pays for another's memory."""
    touch_memory()
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
