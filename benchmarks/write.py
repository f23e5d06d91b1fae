"""Write benchmark: an array as ``.npy`` against zarr-python; 10,000 keys against ext4 and ``rclone mount --vfs-cache-mode writes``.

    python benchmarks/write.py [--repetitions 15] [--edge 8192] [--keys 10000]

Programs are measured in turn (`rounds`). Each writes into an empty store through a fresh mount, and each writer runs in a process of its
own, after `touch_memory`. The source is in the page cache. A copy ends when ``cp`` does: then all data is in the store.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import arguments, mounted, rclone_mounted, scratch, seconds, shell, table, touch_memory
from rounds import Rounds, in_rounds

# A program that writes an array in memory into a new store and prints the duration, without imports.
ZARR = """
import sys, time, numpy, zarr
elements = numpy.load(sys.argv[1])
begin = time.perf_counter()
array = zarr.create_array(sys.argv[2], name="a", shape=elements.shape, dtype=elements.dtype, chunks=(512, 512),
                          compressors={codec})
array[...] = elements
print(time.perf_counter() - begin)
"""
CODECS = {
    "lz4": ("zarr.codecs.BloscCodec(cname='lz4', clevel=5)", "blosc:cname=lz4:clevel=5:shuffle=shuffle"),
    "zstd": ("zarr.codecs.ZstdCodec(level=0)", "zstd:level=0"),
    "gzip": ("zarr.codecs.GzipCodec(level=5)", "gzip:level=5"),
}
# Upper limits on an idle machine: time of ``cp`` relative to zarr-python, and of ``cp -r`` to rclone.
LIMIT = {"lz4": 0.9, "zstd": 1.0, "gzip": 0.7}
LIMIT_KEYS = 0.5


def main() -> None:
    asked = arguments(__doc__)
    with scratch(asked.directory) as folder, in_rounds() as rounds:
        arrays(rounds, folder, asked.edge, asked.repetitions)
        keys(rounds, folder, asked.keys, asked.repetitions)


def arrays(rounds: Rounds, folder: Path, edge: int, repetitions: int) -> None:
    """Measure ``cp`` of an array into ``npy/``, and zarr-python writing it, with the same chunks and codecs."""
    source = folder / "source.npy"
    # Smooth with noise, like measurements: neither constant nor incompressible.
    rows = np.linspace(0, 100, edge, dtype="<f4")[:, None] + np.linspace(0, 10, edge, dtype="<f4")
    np.save(source, np.round(rows + np.random.default_rng(0).normal(size=(edge, edge)).astype("<f4"), 1))
    store = folder / "store.zarr"
    for _ in rounds.each(repetitions):
        for name, (codec, option) in CODECS.items():
            store.mkdir()
            touch_memory()
            with mounted(store, "--new-chunks", "512x512", "--new-codecs", option) as mountpoint:
                rounds.note(name, "zarrfs", seconds(shell(f"cp {source} {mountpoint}/npy/a.npy")))
            shutil.rmtree(store)
            touch_memory()
            program = [sys.executable, "-c", ZARR.replace("{codec}", codec), str(source), str(store)]
            rounds.note(name, "zarr", float(subprocess.run(program, check=True, capture_output=True, text=True).stdout))
            shutil.rmtree(store)
    table(
        f"writing a {edge} x {edge} float32 array, chunks 512 x 512 (seconds, median and least of {repetitions})",
        ["codec", "cp into npy/", "zarr-python", "/zarr", "to reach"],
        [
            [name, rounds.text(name, "zarrfs"), rounds.text(name, "zarr"), rounds.ratio(name, "zarrfs", "zarr"), f"{LIMIT[name]}"]
            for name in CODECS
        ],
    )


def keys(rounds: Rounds, folder: Path, count: int, repetitions: int) -> None:
    """Measure ``cp -r`` of many small files into ``raw/``, into a folder on ext4, and through rclone."""
    source = folder / "source"
    source.mkdir()
    for number in range(count):
        (source / f"{number}").write_bytes(os.urandom(4096))
    target = folder / "target"
    for _ in rounds.each(repetitions):
        for writer in ("zarrfs", "folder", "rclone"):
            target.mkdir()
            touch_memory()
            if writer == "zarrfs":
                with mounted(target) as mountpoint:
                    rounds.note("cp -r", writer, seconds(shell(f"cp -r {source} {mountpoint}/raw/copy")))
            elif writer == "rclone":
                # A new cache, since the cache of the last target is useless.
                cache = tempfile.mkdtemp(dir=folder)
                with rclone_mounted(target, "--vfs-cache-mode", "writes", "--cache-dir", cache) as mountpoint:
                    rounds.note("cp -r", writer, seconds(shell(f"cp -r {source} {mountpoint}/copy")))
            else:
                rounds.note("cp -r", writer, seconds(shell(f"cp -r {source} {target}/copy")))
            shutil.rmtree(target)
    texts = [rounds.text("cp -r", writer) for writer in ("zarrfs", "folder", "rclone")]
    ratios = [rounds.ratio("cp -r", "zarrfs", peer) for peer in ("folder", "rclone")]
    table(
        f"cp -r of {count} files of 4 KiB (seconds, median and least of {repetitions})",
        ["zarrfs", "folder", "rclone mount", "/folder", "/rclone", "to reach"],
        [[*texts, *ratios, f"{LIMIT_KEYS} x rclone"]],
    )


if __name__ == "__main__":
    main()
