"""Benchmark of many small chunks, each a file of its own: a pass over them as one .npy, against zarr-python.

    python benchmarks/small_chunks.py [--repetitions 3] [--count 300000]

Chunks of one element of 4 bytes, uncompressed and with Blosc, and chunks of 4 KiB. Programs are measured in turn (`rounds`). Each uses a
fresh mount and a new process, on files in the page cache.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import zarr
from common import mounted, scratch, seconds, shell, table, touch_memory
from rounds import in_rounds

CASES = {"4 bytes": (1, None), "4 bytes, blosc": (1, "auto"), "4 KiB": (1024, None)}
"""Elements of a chunk, and compressors."""
LIMIT = 5.0
"""Seconds for 300,000 chunks of 4 bytes."""
_PEER = 'import sys, zarr; zarr.open_array(sys.argv[1], mode="r")[...]'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each measurement")
    parser.add_argument("--count", type=int, default=300_000, help="number of chunks; a tenth of it of 4 KiB")
    parser.add_argument("--directory", default=None, help="folder for the stores; default: the temporary folder")
    asked = parser.parse_args()
    touch_memory()
    rows = []
    with scratch(asked.directory) as folder, in_rounds() as rounds:
        for name, (elements, compressors) in CASES.items():
            count = asked.count if elements == 1 else asked.count // 10
            array = make(folder / f"{len(rows)}.zarr", count, elements, compressors)
            # A virtual machine may drop files from the page cache that are not in use for some seconds.
            warm = shell(f"tar -C {array.parent} -cf - a | cat")
            for _ in rounds.each(asked.repetitions):
                warm()
                with mounted(array.parent) as mountpoint:
                    rounds.note(name, "zarrfs", seconds(shell(f"cat {mountpoint}/npy/a.npy")))
                warm()
                rounds.note(name, "zarr", seconds(shell(f"{sys.executable} -c '{_PEER}' {array}")))
            texts = [rounds.text(name, program, digits=2) for program in ("zarrfs", "zarr")]
            to_reach = f"{LIMIT * count / 300_000:.1f} s, below 1" if elements == 1 else "below 1"
            rows.append([name, f"{count}", *texts, rounds.ratio(name, "zarrfs", "zarr"), to_reach])
    table("a pass over one .npy (s, median and least)", ["chunks of", "number", "zarrfs", "zarr-python", "/zarr", "to reach"], rows)


def make(store: Path, count: int, elements: int, compressors: str | None) -> Path:
    """Create an array of equal chunks; return its folder."""
    group = zarr.create_group(store, zarr_format=2)
    array = group.create_array("a", shape=(count * elements,), chunks=(elements,), dtype="i4", compressors=compressors)
    array[:elements] = np.arange(1, elements + 1)
    value = (store / "a/0").read_bytes()
    for number in range(1, count):
        (store / f"a/{number}").write_bytes(value)
    return store / "a"


if __name__ == "__main__":
    main()
