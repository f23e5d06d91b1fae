"""Programs that remove a chunk instead of writing it, if all its elements are the fill value that `chunks/` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import mounted

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse


def by_zarr_python(folder: Path, value: float) -> None:
    zarr.open_array(folder, mode="r+")[:] = value


def by_tensorstore(folder: Path, value: float) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder)}}
    tensorstore.open(spec, open=True).result().write(value).result()


@pytest.mark.parametrize("program", [by_zarr_python, by_tensorstore])
@pytest.mark.parametrize("shards", [None, (4,)])
def test_the_value_that_it_wrote_is_in_the_store(tmp_path: Path, program: Callable[..., None], shards: Any) -> None:
    store = tmp_path / "store"
    group = zarr.open_group(store, mode="w")
    cases = {
        "mask": ("i4", 0, {"_FillValue": -9}, -9),
        "nan": ("f4", 0, {"_FillValue": "AAAAAAAA+H8="}, np.nan),
    }
    for name, (dtype, own, attributes, _) in cases.items():
        array = group.create_array(name, shape=(7,), chunks=(2,), shards=shards, dtype=dtype, fill_value=own, attributes=attributes)
        array[2:4] = 1
    with mounted(store) as mount:
        for name, (*_, value) in cases.items():
            program(mount.path / "chunks" / name, value)
    for name, (*_, value) in cases.items():
        np.testing.assert_array_equal(zarr.open_array(store / name, mode="r")[:], np.full(7, value), err_msg=name)
