"""Benchmark of sharded arrays, against zarr-python and tensorstore: whole arrays as ``.npy``, and inner chunks as files.

    python benchmarks/sharding.py [--repetitions 3] [--rows 8192] [--files 2000] [--codecs lz4 zstd]

Measures reading and writing of whole arrays, and reading of inner chunks. The array is ROWS x 16384 float32 in inner chunks of 128 x 128
(64 KiB), in shards of 4096 x 4096 (64 MiB). Programs are measured in turn (`rounds`). Each uses a fresh mount, and runs in a process of
its own, after `touch_memory`. The store's files and the source are in the page cache for all. A copy ends when ``cp`` does: then all
data is in the store.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from common import mounted, scratch, seconds, shell, table, touch_memory
from rounds import Rounds, in_rounds

COLUMNS = 16384
INNER = (128, 128)
SHARDS = (4096, 4096)
CODECS: dict[str, Any] = {
    "lz4": zarr.codecs.BloscCodec(cname="lz4", clevel=5),
    "zstd": zarr.codecs.ZstdCodec(level=0),
}

_TENSORSTORE = """
import sys, time, random, numpy, tensorstore
kvstore = {"driver": "file", "path": sys.argv[1]}
array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, read=True, write=True, open=True).result()
"""
_ZARR = """
import sys, time, random, numpy, zarr
array = zarr.open_array(sys.argv[1], mode="r+")
"""
# The same selection and order of inner chunks for all programs.
_CHOSEN = """
rows, columns = array_shape[0] // 128, array_shape[1] // 128
chosen = random.Random(0).sample([(row, column) for row in range(rows) for column in range(columns)], int(sys.argv[2]))
begin = time.perf_counter()
for row, column in chosen:
    READ
print(time.perf_counter() - begin)
"""
_PLACE = "row * 128 : row * 128 + 128, column * 128 : column * 128 + 128"
# Programs that print the duration of one action, without imports and opening. The first argument is the array.
READ_WHOLE = {
    "zarrfs": """
import sys, time, numpy
begin = time.perf_counter()
numpy.load(sys.argv[1])
print(time.perf_counter() - begin)
""",
    "zarr": _ZARR + "begin = time.perf_counter()\narray[:]\nprint(time.perf_counter() - begin)\n",
    "tensorstore": _TENSORSTORE + "begin = time.perf_counter()\narray.read().result()\nprint(time.perf_counter() - begin)\n",
}
READ_INNER = {
    "zarrfs": """
import sys, time, random, json
array_shape = json.load(open(sys.argv[1] + "/.zarray"))["shape"]
"""
    + _CHOSEN.replace("READ", 'open(f"{sys.argv[1]}/{row}.{column}", "rb", buffering=0).read()'),
    "zarr": _ZARR + "array_shape = array.shape" + _CHOSEN.replace("READ", f"array[{_PLACE}]"),
    "tensorstore": _TENSORSTORE + "array_shape = array.shape" + _CHOSEN.replace("READ", f"array[{_PLACE}].read().result()"),
}
_WRITE = """
elements = numpy.load(sys.argv[2], mmap_mode="r")
begin = time.perf_counter()
STORE
print(time.perf_counter() - begin)
"""
WRITE_WHOLE = {
    "zarr": _ZARR + _WRITE.replace("STORE", "array[...] = elements"),
    "tensorstore": _TENSORSTORE + _WRITE.replace("STORE", "array.write(elements).result()"),
}
READ_LIMIT, WRITE_LIMIT = 1.3, 1.5
PEERS = ("zarr", "tensorstore")


def main() -> None:
    asked = _arguments()
    with scratch(asked.directory) as folder, in_rounds() as rounds:
        source = folder / "source.npy"
        np.save(source, _values(asked.rows, seed=1))
        for name in asked.codecs:
            stores = {}
            for who in ("zarrfs", *PEERS):
                stores[who] = folder / f"{name}-{who}.zarr"
            _make(stores["zarrfs"], asked.rows, CODECS[name])
            for who in PEERS:
                shutil.copytree(stores["zarrfs"], stores[who])
            _measure(rounds, name, stores, source, asked)
            for store in stores.values():
                shutil.rmtree(store)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8192, help="rows of the array; 8192: 512 MiB")
    parser.add_argument("--files", type=int, default=2000, help="number of inner chunks to read as files")
    parser.add_argument("--codecs", nargs="+", choices=list(CODECS), default=list(CODECS))
    parser.add_argument("--directory", default=None, help="folder for the stores; default: the temporary folder")
    return parser.parse_args()


def _values(rows: int, *, seed: int) -> np.ndarray[Any, Any]:
    """Return smooth values with noise, like measurements: neither constant nor incompressible."""
    steps = np.random.default_rng(seed).standard_normal((rows, COLUMNS), np.float32)
    return np.round(np.cumsum(steps, axis=1, out=steps), 2, out=steps)


def _make(store: Path, rows: int, codec: Any) -> None:
    made = zarr.create_array(store, shape=(rows, COLUMNS), chunks=INNER, shards=SHARDS, dtype="f4", compressors=codec)
    made[:] = _values(rows, seed=0)


def _measure(rounds: Rounds, name: str, stores: dict[str, Path], source: Path, asked: argparse.Namespace) -> None:
    mebibytes = asked.rows * COLUMNS * 4 >> 20
    read, files, write = (
        f"{name}: {what}"
        for what in (
            f"np.load of {mebibytes} MiB",
            f"{asked.files} inner chunks in random order",
            f"cp of {mebibytes} MiB onto the array",
        )
    )
    limits = {read: READ_LIMIT, files: READ_LIMIT, write: WRITE_LIMIT}
    node = stores["zarrfs"].stem
    for _ in rounds.each(asked.repetitions):
        with mounted(stores["zarrfs"], "--read-only") as mountpoint:
            rounds.note(read, "zarrfs", _run(READ_WHOLE["zarrfs"], mountpoint / "npy" / f"{node}.npy"))
        for who in PEERS:
            rounds.note(read, who, _run(READ_WHOLE[who], stores[who]))
        with mounted(stores["zarrfs"], "--read-only") as mountpoint:
            rounds.note(files, "zarrfs", _run(READ_INNER["zarrfs"], mountpoint / "chunks", asked.files))
        for who in PEERS:
            rounds.note(files, who, _run(READ_INNER[who], stores[who], asked.files))
        touch_memory()
        with mounted(stores["zarrfs"]) as mountpoint:
            rounds.note(write, "zarrfs", seconds(shell(f"cp {source} {mountpoint}/npy/{node}.npy")))
        for who in PEERS:
            rounds.note(write, who, _run(WRITE_WHOLE[who], stores[who], source))
    table(
        f"inner chunks of 64 KiB in shards of 64 MiB (seconds, median and least of {asked.repetitions})",
        ["action", "zarrfs", "zarr-python", "tensorstore", "/zarr", "/tensorstore", "to reach, of /zarr"],
        [
            [
                job,
                *(rounds.text(job, who) for who in ("zarrfs", *PEERS)),
                *(rounds.ratio(job, "zarrfs", who) for who in PEERS),
                f"{limit}",
            ]
            for job, limit in limits.items()
        ],
    )


def _run(program: str, *arguments: object) -> float:
    """Return the seconds that a program prints, in a new process, so that no program pays for another's memory."""
    touch_memory()
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


if __name__ == "__main__":
    main()
