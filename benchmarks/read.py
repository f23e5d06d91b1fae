"""Read benchmark: a whole array as ``.npy`` against zarr-python and tensorstore, and again against a plain ``.npy``; 10,000 keys
against ext4 and ``rclone mount``.

    python benchmarks/read.py [--repetitions 5] [--edge 8192] [--keys 10000]

Repetitions are interleaved. Each uses a fresh mount, and each reader runs in a process of its own, after `touch_memory`. The store's
files are in the page cache for all readers, and read just before. Prints medians and minima, and their ratios to the peers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from common import arguments, median, mounted, rclone_mounted, scratch, seconds, shell, table, touch_memory

CODECS: dict[str, Any] = {
    "lz4": zarr.codecs.BloscCodec(cname="lz4", clevel=5),
    "zstd": zarr.codecs.ZstdCodec(level=3),
    "gzip": zarr.codecs.GzipCodec(level=5),
}
# Programs that open an array, read it whole and print the duration of the read, without imports and opening.
READERS = {
    "numpy": """
import sys, time, numpy
begin = time.perf_counter()
numpy.load(sys.argv[1])
print(time.perf_counter() - begin)
""",
    "zarr": """
import sys, time, zarr
array = zarr.open_array(sys.argv[1], mode="r")
begin = time.perf_counter()
array[:]
print(time.perf_counter() - begin)
""",
    "tensorstore": """
import sys, time, tensorstore
array = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": sys.argv[1]}}, read=True, open=True).result()
begin = time.perf_counter()
array.read().result()
print(time.perf_counter() - begin)
""",
}
# Upper limits on an idle machine: time of np.load relative to zarr-python.
LIMIT = {"lz4": 1.3, "zstd": 1.3, "gzip": 0.7}
# The same of a second np.load, in a mount where nothing has changed, relative to a plain .npy.
LIMIT_AGAIN = 1.3


def main() -> None:
    asked = arguments(__doc__)
    with scratch(asked.directory) as folder:
        arrays(folder, asked.edge, asked.repetitions)
        keys(folder, asked.keys, asked.repetitions)


def arrays(folder: Path, edge: int, repetitions: int) -> None:
    """Measure ``np.load`` through the mount, ``z[:]`` and tensorstore, on the same chunks."""
    values = np.random.default_rng(0).normal(size=(edge, edge)).astype("f4").cumsum(axis=1).round(2)
    for name, codec in CODECS.items():
        made = zarr.create_array(folder / f"{name}.zarr", shape=values.shape, chunks=(512, 512), dtype="f4", compressors=codec)
        made[:] = values
    np.save(folder / "plain.npy", values)
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(repetitions):
        for name in CODECS:
            path = folder / f"{name}.zarr"
            with mounted(path, "--read-only") as mountpoint:
                file = mountpoint / "npy" / f"{name}.npy"
                times.setdefault((name, "zarrfs"), []).append(read_by("numpy", file, path))
                times.setdefault((name, "again"), []).append(read_by("numpy", file, file))
            plain = folder / "plain.npy"
            times.setdefault((name, "plain"), []).append(read_by("numpy", plain, plain))
            for reader in ("zarr", "tensorstore"):
                times.setdefault((name, reader), []).append(read_by(reader, path, path))
    rows = []
    for name in CODECS:
        ours, theirs, native = (times[name, who] for who in ("zarrfs", "zarr", "tensorstore"))
        rows.append(
            [
                name,
                *(f"{median(each):.3f} ({min(each):.3f})" for each in (ours, theirs, native)),
                *(f"{median(ours) / median(each):.2f} ({min(ours) / min(each):.2f})" for each in (theirs, native)),
                f"{LIMIT[name]}",
            ]
        )
    table(
        f"np.load of a {edge} x {edge} float32 array, chunks 512 x 512 (seconds, median and minimum of {repetitions})",
        ["codec", "zarrfs", "zarr-python", "tensorstore", "/zarr", "/tensorstore", "/zarr limit"],
        rows,
    )
    again = []
    for name in CODECS:
        ours, plain = times[name, "again"], times[name, "plain"]
        again.append(
            [
                name,
                *(f"{median(each):.3f} ({min(each):.3f})" for each in (ours, plain)),
                f"{median(ours) / median(plain):.2f} ({min(ours) / min(plain):.2f})",
                f"{LIMIT_AGAIN}",
            ]
        )
    table("the same file again (seconds)", ["codec", "zarrfs", "plain .npy", "/plain", "/plain limit"], again)


def read_by(reader: str, path: Path, warm: Path) -> float:
    """Return the seconds in which a reader reads the whole array, in a new process, so that no reader pays for another's memory.

    ``warm`` is read just before: a virtual machine may drop files from the page cache that are not in use for some seconds.
    """
    touch_memory()
    shell(f"find {warm} -type f -exec cat {{}} +")()
    done = subprocess.run([sys.executable, "-c", READERS[reader], str(path)], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def keys(folder: Path, count: int, repetitions: int) -> None:
    """Measure ``ls -l`` and ``cat`` of many small values."""
    store = folder / "keys"
    (store / "k").mkdir(parents=True)
    for index in range(count):
        (store / "k" / f"{index:06d}").write_bytes(os.urandom(4096))
    commands = {"ls -l": "ls -l {}", "cat": "cat {}/*"}
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(repetitions):
        for command, pattern in commands.items():
            times.setdefault((command, "ext4"), []).append(seconds(shell(pattern.format(store / "k"))))
            with mounted(store, "--read-only") as mountpoint:
                times.setdefault((command, "zarrfs"), []).append(seconds(shell(pattern.format(mountpoint / "raw" / "k"))))
            with rclone_mounted(store, "--read-only") as mountpoint:
                times.setdefault((command, "rclone"), []).append(seconds(shell(pattern.format(mountpoint / "k"))))
    rows = []
    for command in commands:
        ours, native, rclone = (median(times[command, who]) for who in ("zarrfs", "ext4", "rclone"))
        limit = "5 x ext4" if command == "ls -l" else "0.6 x rclone"
        rows.append(
            [command, f"{ours:.3f}", f"{native:.3f}", f"{rclone:.3f}", f"{ours / native:.2f}", f"{ours / rclone:.2f}", limit]
        )
    table(
        f"{count} keys of 4 KiB (seconds, median of {repetitions})",
        ["command", "zarrfs", "folder", "rclone mount", "/folder", "/rclone", "limit"],
        rows,
    )


if __name__ == "__main__":
    main()
