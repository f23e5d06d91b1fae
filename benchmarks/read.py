"""Read benchmark: a whole array as ``.npy`` against zarr-python and tensorstore, and again against a plain ``.npy``; 10,000 keys
against ext4 and ``rclone mount``.

    python benchmarks/read.py [--repetitions 15] [--edge 8192] [--keys 10000]

Programs are measured in turn (`rounds`). Each uses a fresh mount, and each reader runs in a process of its own, after `touch_memory`. The
store's files are in the page cache for all readers, and read just before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from common import arguments, mounted, rclone_mounted, scratch, seconds, shell, table, touch_memory
from rounds import Rounds, in_rounds

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
# Upper limits on an idle machine: time of np.load relative to zarr-python, and to tensorstore.
LIMIT = {"lz4": (0.8, 1.25), "zstd": (1.15, 1.45), "gzip": (0.45, 1.2)}
# The same of a second np.load, in a mount where nothing has changed, relative to a plain .npy.
LIMIT_AGAIN = 1.3
# The peer by which a command on many keys is judged, and the upper limit.
LIMIT_KEYS = {"ls -l": ("ext4", 2.0), "cat": ("rclone", 0.45)}


def main() -> None:
    asked = arguments(__doc__)
    with scratch(asked.directory) as folder, in_rounds() as rounds:
        arrays(rounds, folder, asked.edge, asked.repetitions)
        keys(rounds, folder, asked.keys, asked.repetitions)


def arrays(rounds: Rounds, folder: Path, edge: int, repetitions: int) -> None:
    """Measure ``np.load`` through the mount, ``z[:]`` and tensorstore, on the same chunks."""
    values = np.random.default_rng(0).normal(size=(edge, edge)).astype("f4").cumsum(axis=1).round(2)
    for name, codec in CODECS.items():
        made = zarr.create_array(folder / f"{name}.zarr", shape=values.shape, chunks=(512, 512), dtype="f4", compressors=codec)
        made[:] = values
    plain = folder / "plain.npy"
    np.save(plain, values)
    for _ in rounds.each(repetitions):
        for name in CODECS:
            path = folder / f"{name}.zarr"
            with mounted(path, "--read-only") as mountpoint:
                file = mountpoint / "npy" / f"{name}.npy"
                rounds.note(name, "zarrfs", read_by("numpy", file, path))
                rounds.note(name, "again", read_by("numpy", file, file))
            rounds.note(name, "plain", read_by("numpy", plain, plain))
            for reader in ("zarr", "tensorstore"):
                rounds.note(name, reader, read_by(reader, path, path))
    table(
        f"np.load of a {edge} x {edge} float32 array, chunks 512 x 512 (seconds, median and least of {repetitions})",
        ["codec", "zarrfs", "zarr-python", "tensorstore", "/zarr", "to reach", "/tensorstore", "to reach"],
        [
            [
                name,
                *(rounds.text(name, program) for program in ("zarrfs", "zarr", "tensorstore")),
                rounds.ratio(name, "zarrfs", "zarr"),
                f"{LIMIT[name][0]}",
                rounds.ratio(name, "zarrfs", "tensorstore"),
                f"{LIMIT[name][1]}",
            ]
            for name in CODECS
        ],
    )
    table(
        "the same file again (seconds)",
        ["codec", "zarrfs", "plain .npy", "/plain", "to reach"],
        [
            [name, rounds.text(name, "again"), rounds.text(name, "plain"), rounds.ratio(name, "again", "plain"), f"{LIMIT_AGAIN}"]
            for name in CODECS
        ],
    )


def read_by(reader: str, path: Path, warm: Path) -> float:
    """Return the seconds in which a reader reads the whole array, in a new process, so that no reader pays for another's memory.

    ``warm`` is read just before: a virtual machine may drop files from the page cache that are not in use for some seconds.
    """
    touch_memory()
    shell(f"find {warm} -type f -exec cat {{}} +")()
    done = subprocess.run([sys.executable, "-c", READERS[reader], str(path)], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def keys(rounds: Rounds, folder: Path, count: int, repetitions: int) -> None:
    """Measure ``ls -l`` and ``cat`` of many small values."""
    store = folder / "keys"
    (store / "k").mkdir(parents=True)
    for index in range(count):
        (store / "k" / f"{index:06d}").write_bytes(os.urandom(4096))
    commands = {"ls -l": "ls -l {}", "cat": "cat {}/*"}
    for _ in rounds.each(repetitions):
        for command, pattern in commands.items():
            rounds.note(command, "ext4", seconds(shell(pattern.format(store / "k"))))
            with mounted(store, "--read-only") as mountpoint:
                rounds.note(command, "zarrfs", seconds(shell(pattern.format(mountpoint / "raw" / "k"))))
            with rclone_mounted(store, "--read-only") as mountpoint:
                rounds.note(command, "rclone", seconds(shell(pattern.format(mountpoint / "k"))))
    rows = []
    for command in commands:
        judge, limit = LIMIT_KEYS[command]
        texts = [rounds.text(command, program) for program in ("zarrfs", "ext4", "rclone")]
        ratios = [rounds.ratio(command, "zarrfs", peer) for peer in ("ext4", "rclone")]
        rows.append([command, *texts, *ratios, f"{limit} x {judge}"])
    table(
        f"{count} keys of 4 KiB (seconds, median and least of {repetitions})",
        ["command", "zarrfs", "folder", "rclone mount", "/folder", "/rclone", "to reach"],
        rows,
    )


if __name__ == "__main__":
    main()
