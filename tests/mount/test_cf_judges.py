"""Missing data of final v3 arrays as other programs find it in `chunks/`: the numbers and masks of the store itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import mounted

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

pytestmark = [pytest.mark.fuse, pytest.mark.filterwarnings("ignore")]


def dataset() -> Any:
    """Return real zeros, NaN, marked values, scaled integers, scalars, bool, text, times, complex numbers."""
    two = xr.Dataset(
        {
            "f": (("x", "y"), np.array([[0, 1.5, np.nan], [2, -9999, 0]], "f4"), {"units": "K"}),
            "marked": (("x", "y"), np.array([[0, 1.5, np.nan], [2, 5, 0]])),
            "scaled": (("x",), np.array([0.0, np.nan])),
            "integers": (("x",), np.array([0, 7], "i4")),
            "flags": (("x",), np.array([True, False])),
            "text": (("x",), np.array(["", "ab"])),
            "times": (("x",), np.array(["2000-01-01", "NaT"], "M8[ns]")),
            "scalar": ((), np.int16(0)),
            "complex": (("x",), np.array([0, 1 + 2j])),
        },
        coords={"x": [0, 1], "y": [0.0, 1, 2]},
    )
    two["marked"].encoding = {"_FillValue": -9999.0}
    two["scaled"].encoding = {"scale_factor": 0.1, "dtype": "i2", "_FillValue": np.int16(-1)}
    two["integers"].encoding = {"_FillValue": np.int32(-9999)}
    return two


def opened(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xr.open_zarr(str(path), consolidated=False, chunks=None).load()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    dataset().to_zarr(str(path), zarr_format=3, consolidated=False)
    array = zarr.create_array(str(path), name="sparse", shape=(6,), chunks=(2,), dtype="f4", dimension_names=["w"], fill_value=7)
    array[2:4] = 0
    return path


def test_xarray_finds_what_the_store_holds(store: Path, tmp_path: Path) -> None:
    expected = opened(store)
    assert np.isnan(expected["f"].values[0, 2]) and expected["f"].values[0, 0] == 0
    with mounted(store) as mount:
        xr.testing.assert_identical(opened(mount.path / "chunks"), expected)
        shutil.copytree(mount.path / "chunks", tmp_path / "copy")
        assert (mount.path / "chunks/sparse/0").stat().st_blocks
    xr.testing.assert_identical(opened(tmp_path / "copy"), expected)


def test_what_xarray_writes_is_found_in_all_views(store: Path) -> None:
    data = dataset()
    plain = {name: {"compressors": None} for name in data.variables}
    with mounted(store) as mount:
        data.to_zarr(str(mount.path / "chunks/new"), zarr_format=2, consolidated=False, mode="a", encoding=plain)
        for view in ("chunks", "zarr3", "raw"):
            xr.testing.assert_equal(opened(mount.path / view / "new"), data)
        assert mount.errors() == []
    xr.testing.assert_equal(opened(store / "new"), data)
    with mounted(store) as mount:
        xr.testing.assert_equal(opened(mount.path / "chunks/new"), data)


@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022", "v3_2022:text"])
def test_zeros_in_drafts_of_v3_are_no_missing_data(dialect: str, tmp_path: Path) -> None:
    data = xr.Dataset({"i": (("x",), np.array([0, 1, 2], "i4")), "f": (("x",), np.array([0, 1.5, -2]))}, coords={"x": [0, 1, 2]})
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", dialect) as mount:
        gzip = {name: {"compressors": (zarr.codecs.GzipCodec(),)} for name in data.variables}
        data.to_zarr(str(mount.path / "zarr3"), mode="a", consolidated=False, encoding=gzip)
        plain = {name: {"compressors": None} for name in data.variables}
        data.to_zarr(str(mount.path / "chunks/s"), zarr_format=2, mode="a", consolidated=False, encoding=plain)
        for path in ("zarr3", "chunks", "zarr3/s", "chunks/s"):
            xr.testing.assert_equal(opened(mount.path / path), data)
        assert mount.errors() == []
    with mounted(tmp_path / "store") as mount:
        for path in ("zarr3", "chunks", "zarr3/s", "chunks/s"):
            xr.testing.assert_equal(opened(mount.path / path), data)


@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022", "v3_2022:text"])
def test_missing_data_that_zarr3_states_for_drafts_of_v3_is_missing_in_chunks(dialect: str, tmp_path: Path) -> None:
    """xarray writes NaN as the fill value of floating-point numbers, and ``_FillValue`` beside it."""
    some = np.array([np.nan, 1.5, -2, 0])
    data = xr.Dataset({"f": (("x",), some), "marked": (("x",), some), "i": (("x",), np.trunc(some))}, coords={"x": range(4)})
    data["marked"].encoding["_FillValue"], data["i"].encoding = -9999.0, {"dtype": "i4", "_FillValue": -1}
    (tmp_path / "store").mkdir()
    for options in (("--new-dialect", dialect), ()):
        with mounted(tmp_path / "store", *options) as mount:
            if options:
                for variable in data.variables.values():
                    variable.encoding["compressors"] = [zarr.codecs.GzipCodec()]
                data.to_zarr(str(mount.path / "zarr3"), mode="a", consolidated=False)
            for view in ("zarr3", "chunks"):
                xr.testing.assert_equal(opened(mount.path / view), data)
            assert json.loads((mount.path / "chunks/marked/.zattrs").read_bytes())["_FillValue"] == -9999
            assert mount.errors() == []


@pytest.mark.parametrize("dialect", ["v2", "v3", "v3_2022"])
def test_xarray_writes_a_missing_value_of_nan(dialect: str, tmp_path: Path) -> None:
    """netCDF files have it as an attribute. zarr-python writes a bare NaN for it, and xarray failed."""
    data = xr.Dataset({"f": (("x",), np.array([np.nan, 1.5, -2]), {"units": "m"})})
    data["f"].encoding = {"_FillValue": np.nan, "missing_value": np.nan, "compressors": [zarr.codecs.GzipCodec()]}
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", dialect) as mount:
        data.to_zarr(str(mount.path / "zarr3"), mode="a", consolidated=False)
        for view in ("zarr3", "chunks"):
            xr.testing.assert_identical(opened(mount.path / view), data)
        assert mount.errors() == []


NETCDF = """
import json, sys, netCDF4
with netCDF4.Dataset(f"file://{sys.argv[1]}#mode=zarr,file") as file:
    read = {name: file[name][...] for name in sys.argv[2:]}
    print(json.dumps({name: [data.filled(12345).tolist(), data.mask.tolist()] for name, data in read.items()}))
"""


def test_netcdf_masks_what_is_missing_and_no_zeros(store: Path) -> None:
    pytest.importorskip("netCDF4")
    # NCZarr supports neither complex numbers nor text, and cannot open a group with any.
    for name in ("complex", "text", "flags"):
        shutil.rmtree(store / name)
    with mounted(store) as mount:
        command = [sys.executable, "-c", NETCDF, str(mount.path / "chunks"), "marked", "integers", "scaled"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "NetCDF: Attempt to use feature that was not turned on" in done.stderr or "Unknown file format" in done.stderr:
            pytest.skip("this netCDF-C was built without Zarr")
        assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert read["marked"] == [[[0, 1.5, 12345], [2, 5, 0]], [[False, False, True], [False, False, False]]]
    assert read["integers"][0] == [0, 7]
    assert read["scaled"] == [[0, 12345], [False, True]]


def test_tensorstore_reads_missing_chunks(store: Path) -> None:
    ts = pytest.importorskip("tensorstore")
    with mounted(store) as mount:
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(mount.path / "chunks/sparse")}}
        assert ts.open(spec).result().read().result().tolist() == [7, 7, 0, 0, 7, 7]
