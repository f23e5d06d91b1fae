"""Whole arrays read by real programs with little memory: the kernel's readahead requests data early, out of order and repeatedly."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.support.arrays import WIDE, Example
from tests.support.mounting import mounted
from tests.support.small_stores import write

pytestmark = pytest.mark.fuse


def digest_of_cat(path: Path, skip: int) -> str:
    """Return the SHA-256 of the output of ``cat``, without its first bytes."""
    digest = hashlib.sha256()
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(skip)
        while part := process.stdout.read(1 << 20):
            digest.update(part)
    assert process.returncode == 0
    return digest.hexdigest()


def test_cat_decodes_each_chunk_once_where_one_row_of_chunks_exceeds_the_memory(tmp_path: Path) -> None:
    store = write(tmp_path / "store", WIDE.values("a"))
    expected = hashlib.sha256()
    for _ in range(WIDE.extent // 128):
        expected.update(WIDE.row * 128)
    cache = tmp_path / "cache"
    with mounted(store, "-o", f"memory_limit=64MiB,cache_dir={cache}") as mount:
        assert digest_of_cat(mount.path / "npy" / "a.npy", 128) == expected.hexdigest()
        stats = mount.stats()
        assert stats["chunks_decoded"] == WIDE.count
        assert stats["cache_bytes"] + stats["slab_bytes"] <= 64 << 20
        assert list(cache.iterdir()) == []


def test_two_programs_at_once_decode_each_chunk_once_each_at_most(tmp_path: Path) -> None:
    example = Example((4096, 1024), (512, 256), "<f8")
    store = write(tmp_path / "store", example.values("a") | example.values("b"))
    expected = hashlib.sha256(example.elements.tobytes()).hexdigest()
    with mounted(store, "-o", f"memory_limit=16MiB,cache_dir={tmp_path / 'cache'}") as mount:
        paths = [mount.path / "npy" / f"{name}.npy" for name in "ab"]
        with subprocess.Popen(["cat", *map(str, paths)], stdout=subprocess.DEVNULL) as other:
            for path in reversed(paths):
                assert digest_of_cat(path, 128) == expected
        assert other.returncode == 0
        count = len(example.grid)
        assert 2 * count <= mount.stats()["chunks_decoded"] <= 4 * count
