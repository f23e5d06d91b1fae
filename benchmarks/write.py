"""Write benchmark: an array as ``.npy`` against zarr-python; 10,000 keys against ext4 and ``rclone mount --vfs-cache-mode writes``.

    python benchmarks/write.py [--repetitions 5] [--edge 8192] [--keys 10000]

Repetitions are interleaved. Each writes into an empty store through a fresh mount, and each writer runs in a process of its own, after
`touch_memory`. The source is in the page cache. A copy ends when ``cp`` does: then all data is in the store. Prints medians, and
ratios to the peers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import arguments, median, mounted, rclone_mounted, scratch, seconds, shell, table, touch_memory

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
LIMIT = 1.5


def main() -> None:
    asked = arguments(__doc__)
    with scratch(asked.directory) as folder:
        arrays(folder, asked.edge, asked.repetitions)
        keys(folder, asked.keys, asked.repetitions)


def arrays(folder: Path, edge: int, repetitions: int) -> None:
    """Measure ``cp`` of an array into ``npy/``, and zarr-python writing it, with the same chunks and codecs."""
    source = folder / "source.npy"
    # Smooth with noise, like measurements: neither constant nor incompressible.
    rows = np.linspace(0, 100, edge, dtype="<f4")[:, None] + np.linspace(0, 10, edge, dtype="<f4")
    np.save(source, np.round(rows + np.random.default_rng(0).normal(size=(edge, edge)).astype("<f4"), 1))
    lines = []
    for name, (codec, option) in CODECS.items():
        through_mount, by_zarr = [], []
        for _ in range(repetitions):
            store = folder / "store.zarr"
            store.mkdir()
            touch_memory()
            with mounted(store, "--new-chunks", "512x512", "--new-codecs", option) as mountpoint:
                through_mount.append(seconds(shell(f"cp {source} {mountpoint}/npy/a.npy")))
            shutil.rmtree(store)
            touch_memory()
            program = ZARR.replace("{codec}", codec)
            done = subprocess.run(
                [sys.executable, "-c", program, str(source), str(store)], check=True, capture_output=True, text=True
            )
            by_zarr.append(float(done.stdout))
            shutil.rmtree(store)
        ours, theirs = median(through_mount), median(by_zarr)
        lines.append((name, f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.2f}", f"{LIMIT}"))
    columns = ("codec", "cp into npy/", "zarr-python", "/zarr", "limit")
    table(f"writing a {edge} x {edge} float32 array, chunks 512 x 512 (seconds, median of {repetitions})", columns, lines)


def keys(folder: Path, count: int, repetitions: int) -> None:
    """Measure ``cp -r`` of many small files into ``raw/``, into a folder on ext4, and through rclone."""
    source = folder / "source"
    source.mkdir()
    for number in range(count):
        (source / f"{number}").write_bytes(os.urandom(4096))
    times: dict[str, list[float]] = {"zarrfs": [], "folder": [], "rclone": []}
    for _ in range(repetitions):
        for writer, found in times.items():
            target = folder / "target"
            target.mkdir()
            touch_memory()
            if writer == "zarrfs":
                with mounted(target) as mountpoint:
                    found.append(seconds(shell(f"cp -r {source} {mountpoint}/raw/copy")))
            elif writer == "rclone":
                # A new cache, since the cache of the last target is useless.
                cache = tempfile.mkdtemp(dir=folder)
                with rclone_mounted(target, "--vfs-cache-mode", "writes", "--cache-dir", cache) as mountpoint:
                    found.append(seconds(shell(f"cp -r {source} {mountpoint}/copy")))
            else:
                found.append(seconds(shell(f"cp -r {source} {target}/copy")))
            shutil.rmtree(target)
    ours, theirs, rclone = (median(times[writer]) for writer in ("zarrfs", "folder", "rclone"))
    line = (f"{ours:.3f}", f"{theirs:.3f}", f"{rclone:.3f}", f"{ours / theirs:.2f}", f"{ours / rclone:.2f}", "1.0 x rclone")
    columns = ("zarrfs", "folder", "rclone mount", "/folder", "/rclone", "limit")
    table(f"cp -r of {count} files of 4 KiB (seconds, median of {repetitions})", columns, [line])


if __name__ == "__main__":
    main()
