"""Whole arrays over shards that are larger than the memory limit of zarrfs, written and read by programs through a real mount."""

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
"""Limit for the daemon: its program, `--memory-limit` (192 MiB), and one shard being encoded."""


def peak_nbytes(mount: Mounted) -> int:
    """Return the peak memory of the daemon."""
    status = Path(f"/proc/{mount.pid}/status").read_text()
    return max(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.full_length
def test_shards_of_64_mib_are_written_with_little_more_memory_than_one_takes_twice(tmp_path: Path) -> None:
    # Incompressible elements: 64 MiB of chunks encode to a value of 64 MiB.
    elements = np.random.default_rng(0).integers(0, 2**32, SHAPE, np.uint32)
    np.save(tmp_path / "source.npy", elements)
    store = tmp_path / "store.zarr"
    zarr.create_group(store).create_array("a", shape=SHAPE, chunks=(128, 128), shards=(4096, 4096), dtype="u4")
    with mounted(store, "--memory-limit", "192MiB") as mount:
        target = mount.path / "npy" / "a.npy"
        subprocess.run(["cp", tmp_path / "source.npy", target], check=True)
        assert mount.operations()["set"] == 2
        np.testing.assert_array_equal(zarr.open_array(store / "a", mode="r")[...], elements)
        assert peak_nbytes(mount) < MEMORY
        # In place as well: shards are stored while others are being written.
        np.save(tmp_path / "source.npy", ~elements)
        command = ["dd", f"if={tmp_path / 'source.npy'}", f"of={target}", "bs=1M", "conv=notrunc", "status=none"]
        subprocess.run(command, check=True)
        assert mount.operations()["set"] == 4
        # Documents are read, and no shards.
        assert mount.stats()["bytes_read"] < 100_000
        np.testing.assert_array_equal(zarr.open_array(store / "a", mode="r")[...], ~elements)
        assert peak_nbytes(mount) < MEMORY
        assert subprocess.run(["cmp", tmp_path / "source.npy", target], check=False).returncode == 0
