"""Another program removes a node and creates it again, and opens what it has created at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import mounted
from tests.support.waiting import until

zarr = pytest.importorskip("zarr")
pytest.importorskip("inotify_simple")
pytestmark = pytest.mark.fuse


@pytest.mark.parametrize("looks", [False, True], ids=["at-once", "looked-for-between"])
def test_an_array_that_was_removed_and_created_again_is_there(looks: bool, tmp_path: Path) -> None:
    """It was ENOENT or ESTALE for some milliseconds, in each tenth run: its absence, or its old folder, was known until the report."""
    store, other = tmp_path / "store", tmp_path / "other"
    zarr.create_group(str(store), zarr_format=3)
    zarr.create_array(str(other), shape=(8, 8), chunks=(4, 4), dtype="<i4", zarr_format=3)[...] = np.ones((8, 8))
    shutil.copytree(other, store / "a")
    with mounted(store) as mount:
        until(lambda: mount.stats()["watched"])
        chunk = mount.path / "chunks/a/0.0"
        for _ in range(40):
            assert chunk.read_bytes() == np.ones((4, 4), "<i4").tobytes()
            shutil.rmtree(store / "a")
            if looks:
                chunk.exists()
            shutil.copytree(other, store / "a")
