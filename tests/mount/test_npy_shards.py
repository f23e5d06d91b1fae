"""Whole arrays over shards that are larger than the memory that zarrfs may take, written and read by programs through a real mount."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

SHAPE = (8192, 4096)
"""Two shards of 64 MiB."""

MEMORY = 400_000_000
"""Of the daemon: its program, what `--memory-limit` allows (192 MiB), and one shard in the making."""


def peak_nbytes(mount: Mounted) -> int:
    """The most memory that the daemon has had."""
    status = Path(f"/proc/{mount.pid}/status").read_text()
    return max(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.full_length
def test_shards_of_64_mib_are_written_with_little_more_memory_than_one_takes_twice(tmp_path: Path) -> None:
    # Nothing compresses it, so that what is encoded is as large as what is not: 64 MiB of chunks, and as much again as one value.
    elements = np.random.default_rng(0).integers(0, 2**32, SHAPE, np.uint32)
    np.save(tmp_path / "source.npy", elements)
    store = tmp_path / "store.zarr"
    zarr.create_group(store).create_array("a", shape=SHAPE, chunks=(128, 128), shards=(4096, 4096), dtype="u4")
    with mounted(store) as mount:
        target = mount.path / "npy" / "a.npy"
        subprocess.run(["cp", tmp_path / "source.npy", target], check=True)
        assert mount.operations()["set"] == 2
        np.testing.assert_array_equal(zarr.open_array(store / "a", mode="r")[...], elements)
        assert peak_nbytes(mount) < MEMORY
        # In place, too: there shards are stored while others are being written.
        np.save(tmp_path / "source.npy", ~elements)
        command = ["dd", f"if={tmp_path / 'source.npy'}", f"of={target}", "bs=1M", "conv=notrunc", "status=none"]
        subprocess.run(command, check=True)
        assert mount.operations()["set"] == 4
        # Documents, and nothing of the shards.
        assert mount.stats()["bytes_read"] < 100_000
        np.testing.assert_array_equal(zarr.open_array(store / "a", mode="r")[...], ~elements)
        assert peak_nbytes(mount) < MEMORY
        assert subprocess.run(["cmp", tmp_path / "source.npy", target], check=False).returncode == 0
