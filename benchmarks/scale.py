"""Scale benchmark: each job for three sizes of the store, and what one more chunk, array or reader costs (``docs/SCALE.md``).

    python benchmarks/scale.py [--repetitions 3] [--largest 100000]

The sizes are a hundredth, a tenth and the whole of ``--largest`` chunks (of 4 KiB, zstd), a tenth of that number of arrays, and 1, 10
and 100 readers. Each job runs in a fresh mount. Prints for each job the minimum of the times at each size; the cost of one more, from
the smaller two sizes and from the larger two: equal, if the job is linear, and near zero, if it does not depend on the size; and the
store operations and decoded chunks at each size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import zarr
from common import mounted, resident, scratch, seconds, shell, table, touch_memory

ELEMENTS = 1024
"""Elements of a chunk, of 4 bytes."""
HEADER = 128
READ_NBYTES = 64 << 20
MIB = 1 << 20
Job = Callable[[Path], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each measurement; the minimum is printed")
    parser.add_argument("--largest", type=int, default=100_000, help="largest number of chunks")
    parser.add_argument("--directory", default=None, help="folder for the stores; default: the temporary folder")
    asked = parser.parse_args()
    sizes = [asked.largest // 100, asked.largest // 10, asked.largest]
    with scratch(asked.directory) as folder:
        measure("chunks", sizes, lambda count: chunks(folder, count), chunk_jobs, asked.repetitions)
        measure("arrays", [size // 10 for size in sizes], lambda count: arrays(folder, count), array_jobs, asked.repetitions)
        measure("readers", [1, 10, 100], lambda _: one_array(folder), reader_jobs, asked.repetitions)


def chunks(folder: Path, count: int) -> Path:
    """Create an array of ``count`` chunks."""
    store = folder / f"chunks{count}.zarr"
    array = zarr.create_group(store).create_array("a", shape=(count * ELEMENTS,), chunks=(ELEMENTS,), dtype="i4")
    array[:ELEMENTS] = np.arange(ELEMENTS)
    value = (store / "a/c/0").read_bytes()
    for number in range(1, count):
        (store / f"a/c/{number}").write_bytes(value)
    return store


def chunk_jobs(count: int) -> dict[str, Job]:
    """The jobs on an array of ``count`` chunks."""
    middle = HEADER + count // 2 * ELEMENTS * 4
    return {
        "ls raw/a/c": shell_in("ls -U {}/raw/a/c"),
        "stat of a chunk": lambda path: (path / f"chunks/a/{count // 2}").stat(),
        "a pass over npy/a.npy": shell_in("cat {}/npy/a.npy"),
        "pread in the middle": lambda path: pread(path / "npy/a.npy", 100, middle),
        "cp of a chunk": lambda path: (path / f"chunks/a/{count // 2}").write_bytes(bytes(ELEMENTS * 4)),
    }


def arrays(folder: Path, count: int) -> Path:
    """Create a group of ``count`` arrays."""
    store = folder / f"arrays{count}.zarr"
    zarr.create_group(store).create_array("a", shape=(ELEMENTS,), chunks=(ELEMENTS,), dtype="i4")[:] = np.arange(ELEMENTS)
    document, chunk = ((store / key).read_bytes() for key in ("a/zarr.json", "a/c/0"))
    shutil.rmtree(store / "a")
    for number in range(count):
        (store / f"x{number}/c").mkdir(parents=True)
        (store / f"x{number}/zarr.json").write_bytes(document)
        (store / f"x{number}/c/0").write_bytes(chunk)
    return store


def array_jobs(count: int) -> dict[str, Job]:
    """The jobs on a group of ``count`` arrays."""
    return {
        "stat of an array": lambda path: (path / f"npy/x{count // 2}.npy").stat(),
        "a missing name": lambda path: os.path.lexists(path / "npy/missing.npy"),
        "ls -l npy": shell_in("ls -l {}/npy"),
        "ls zarr3": shell_in("ls {}/zarr3"),
        "find chunks": shell_in("find {}/chunks"),
    }


def one_array(folder: Path) -> Path:
    """Create an array of `READ_NBYTES` in chunks of 1 MiB."""
    store = folder / "readers.zarr"
    if not store.exists():
        values = np.random.default_rng(0).integers(0, 100, READ_NBYTES // 4, "i4")
        zarr.create_group(store).create_array("a", shape=values.shape, chunks=(MIB // 4,), dtype="i4")[:] = values
    return store


def reader_jobs(count: int) -> dict[str, Job]:
    """The jobs of ``count`` readers."""
    return {
        "cat npy/a.npy, all at once": shell_in(f"for _ in $(seq {count}); do cat {{}}/npy/a.npy & done; wait"),
        "open npy/a.npy, all at once": lambda path: opened(path / "npy/a.npy", count),
    }


def shell_in(command: str) -> Job:
    """Return a job that runs the shell ``command``, with the mountpoint for ``{}``."""
    return lambda path: shell(command.format(path))()


def pread(path: Path, nbytes: int, offset: int) -> bytes:
    """Read a part of a file."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), nbytes, offset)


def opened(path: Path, count: int) -> None:
    """Have the file open ``count`` times at once, and read some bytes through each."""
    with ExitStack() as stack:
        for file in [stack.enter_context(path.open("rb", buffering=0)) for _ in range(count)]:
            file.read(1000)


def measure(
    what: str, sizes: Sequence[int], create: Callable[[int], Path], jobs: Callable[[int], dict[str, Job]], repetitions: int
) -> None:
    """Measure the jobs at each size, and the mount itself, and print the table."""
    found: dict[str, list[tuple[float, int, int]]] = {}
    memory: list[int] = []
    for size in sizes:
        store = create(size)
        touch_memory(1 << 30)
        for name, job in jobs(size).items():
            found.setdefault(name, []).append(min(timed(store, job) for _ in range(repetitions)))
        with ExitStack() as stack:
            mountpoint = Path(stack.enter_context(mounted(store)))
            for job in jobs(size).values():
                job(mountpoint)
            memory.append(resident(mountpoint))
            found.setdefault("unmount, after all", []).append((seconds(stack.close), 0, 0))
        mount = [sys.executable, "-m", "zarrfs", "info", str(store)]
        found.setdefault("zarrfs info", []).append((seconds(lambda mount=mount: subprocess.check_output(mount)), 0, 0))  # type: ignore[misc]
    rows = []
    for name, costs in found.items():
        times = [cost[0] for cost in costs]
        counts = [f"{operations}/{decoded}" if operations else "" for _, operations, decoded in costs]
        rows.append(
            [name, *(f"{each * 1e3:.1f}" for each in times), *(f"{each * 1e6:.1f}" for each in slopes(sizes, times)), *counts]
        )
    rows.append(
        [
            "memory, after all (MiB, KiB)",
            *(f"{each / MIB:.0f}" for each in memory),
            *(f"{each / 1024:.2f}" for each in slopes(sizes, memory)),
        ]
    )
    one_more = [f"one more (us), {sizes[0]}-{sizes[1]}", f"{sizes[1]}-{sizes[2]}"]
    names = ["job", *(f"{size} (ms)" for size in sizes), *one_more, *(f"ops/decoded, {size}" for size in sizes)]
    table(
        f"{what}: {', '.join(map(str, sizes))} (minimum of {repetitions})",
        names,
        [row + [""] * (len(names) - len(row)) for row in rows],
    )


def timed(store: Path, job: Job) -> tuple[float, int, int]:
    """Run a job in a fresh mount; return seconds, store operations and decoded chunks."""
    with mounted(store) as mountpoint:
        before = counters(mountpoint)
        duration = seconds(lambda: job(mountpoint))
        after = counters(mountpoint)
    return duration, after[0] - before[0], after[1] - before[1]


def counters(mountpoint: Path) -> tuple[int, int]:
    """Return the numbers of store operations and of decoded chunks of a mount."""
    stats = json.loads((mountpoint / ".zarrfs" / "stats.json").read_bytes())
    return sum(stats["store_operations"].values()), stats["chunks_decoded"]


def slopes(sizes: Sequence[int], values: Sequence[float]) -> list[float]:
    """Return the increase of a value for one more, between neighbouring sizes."""
    return [(values[i + 1] - values[i]) / (sizes[i + 1] - sizes[i]) for i in range(len(sizes) - 1)]


if __name__ == "__main__":
    main()
