"""zarr-python rewrites documents without a byte order where elements have none: these are the same codecs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse


def in_chunks(mount: Mounted, dtype: str) -> None:
    os.mkdir(mount.path / "chunks/a")
    document = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": dtype, "fill_value": 0, "order": "C"}
    (mount.path / "chunks/a/.zarray").write_text(json.dumps(document | {"compressor": None, "filters": None}))


def in_npy(mount: Mounted, dtype: str) -> None:
    np.save(mount.path / "npy/a.npy", np.zeros(4, dtype))


def with_a_byte_order(mount: Mounted, dtype: str) -> None:
    """Write the document in the form of other programs, and of former versions of zarrfs."""
    in_npy(mount, dtype)
    path = mount.path / "raw/a/zarr.json"
    document = json.loads(path.read_text())
    document["codecs"][0] = {"name": "bytes", "configuration": {"endian": "little"}}
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("made", [in_chunks, in_npy, with_a_byte_order])
@pytest.mark.parametrize("dtype", ["|u1", "|i1", "|b1", "<i2"])
def test_zarr_python_edits_an_array_through_zarr3(tmp_path: Path, dtype: str, made: object) -> None:
    store = tmp_path / "store"
    zarr.create_group(str(store), zarr_format=3)
    with mounted(store) as mount:
        made(mount, dtype)  # type: ignore[operator]
        array = zarr.open_array(str(mount.path / "zarr3/a"), mode="r+")
        array.attrs.update({"x": 1})
        array.resize((8,))
        array[:] = 1
    array = zarr.open_array(str(store / "a"), mode="r")
    assert array.shape == (8,) and array.attrs["x"] == 1 and (array[:] == 1).all()
