"""A store in ``raw/`` of another mount."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import mounted
from tests.support.small_stores import SMALL, write

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]


def test_values_written_through_both_are_in_the_store(tmp_path: Path) -> None:
    store = write(tmp_path / "s.zarr", SMALL)
    with mounted(store) as outer, mounted(outer.path / "raw") as inner:
        (inner.path / "raw" / "key").write_bytes(b"value")
        (inner.path / "chunks" / "a" / "2.1").write_bytes(np.arange(6, dtype="<i4").tobytes())
        (inner.path / "chunks" / "a").rename(inner.path / "chunks" / "b")
        assert np.load(outer.path / "npy" / "b.npy")[4:, 3:].tolist() == [[0, 1], [3, 4]]
    assert (store / "key").read_bytes() == b"value"
    assert np.fromfile(store / "b" / "2.1", "<i4")[[0, 1, 3, 4]].tolist() == [0, 1, 3, 4]
    assert sorted(path.name for path in store.iterdir()) == [".zgroup", "b", "key", "z"]
