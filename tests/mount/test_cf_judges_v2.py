"""Missing data of stores with one fill value for two meanings (Zarr v2), as other programs find it in `zarr3/`.

They find the numbers and masks of the store itself. The mirror of `tests/mount/test_cf_judges.py`.

Judges: current xarray and that of 2024 (on zarr 2), zarr-python 3 and 2.18, tensorstore, GDAL's programs, netCDF-C.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mount.test_cf_judges import NETCDF, dataset
from tests.mount.test_judges import as_gdal, by_zarr2, gdal_arrays
from tests.support import judge
from tests.support.mounting import Mounted, mounted, run
from tests.support.programs import demand

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

pytestmark = [pytest.mark.fuse, pytest.mark.filterwarnings("ignore")]

FILLS: list[tuple[str, str, Any, Any]] = [
    # name, type, fill value, the element in the middle
    ("f4", "f4", 7, 0),
    ("zero", "i8", 0, 5),
    ("null", "i2", None, 0),
    ("nan", "f8", np.nan, 0),
    ("infinity", "f8", np.inf, np.inf),
    ("negative", "i4", -9999, -9999),
    ("flag", "bool", True, False),
    ("unset", "bool", False, True),
    ("two_parts", "c8", 1 + 2j, 0),
    ("u1", "u1", 255, 0),
    ("big", ">i2", -1, -1),
]
"""Arrays of which two of six elements are stored."""
ATTRIBUTES: list[tuple[str, str, Any]] = [
    ("marked_f4", "f4", -9999.0),
    ("marked_i4", "i4", -9999),
    ("marked_flag", "bool", True),
    ("marked_complex", "c8", 5.0),
    ("marked_far", "f4", 1e300),
    ("marked_rough", "f4", 0.1),
    ("marked_text", "f4", "NaN"),
    ("unread", "f4", "Infinity"),
    ("bare_infinity", "f4", np.inf),
    ("bare_nan", "f4", np.nan),
]
"""Arrays with a null fill value, and with the attribute instead."""


def v2_store(path: Path) -> None:
    """Write a dataset with xarray, and arrays with fill values of all kinds."""
    dataset().to_zarr(str(path), zarr_format=2, consolidated=False)
    root = zarr.open_group(str(path), mode="a", use_consolidated=False)
    for name, dtype, fill_value, value in FILLS:
        array = root.create_array(name, shape=(6,), chunks=(2,), dtype=dtype, fill_value=fill_value)
        array.attrs["_ARRAY_DIMENSIONS"] = ["w"]
        array[2:3] = value
    for name, dtype, value in ATTRIBUTES:
        array = root.create_array(name, shape=(6,), chunks=(2,), dtype=dtype, fill_value=None)
        array.attrs.update({"_ARRAY_DIMENSIONS": ["w"], "_FillValue": value})
        array[2:4] = np.array([1, np.inf if isinstance(value, str) or abs(value) > 1e38 else value], dtype)
    array = root.create_array("scaled_by_hand", shape=(3,), chunks=(3,), dtype="i2", fill_value=-1)
    array.attrs.update({"_ARRAY_DIMENSIONS": ["v"], "scale_factor": 0.5, "add_offset": 1.0})
    array[...] = [-1, 0, 2]
    scalar = root.create_array("marked_scalar", shape=(), chunks=(), dtype="i2", fill_value=3)
    scalar.attrs["_ARRAY_DIMENSIONS"] = []


def opened(path: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xr.open_zarr(str(path), chunks=None, **{"consolidated": False, **options}).load()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "consolidated"])
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    store = tmp_path_factory.mktemp("judged") / "store"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        v2_store(store)
        if request.param:
            zarr.consolidate_metadata(str(store))
    with mounted(store) as mount:
        yield mount


# --- read -----------------------------------------------------------------------------------------------------------------------


def test_xarray_finds_what_the_store_holds(mount: Mounted, tmp_path: Path) -> None:
    expected = opened(mount.store)
    assert np.isnan(expected["zero"].values).tolist() == [True, True, False, True, True, True]
    assert expected["null"].dtype == "int16" and expected["infinity"].isnull().all()
    run("cp", "-r", mount.path / "zarr3", tmp_path / "copy")
    for path in (mount.path / "zarr3", tmp_path / "copy"):
        for consolidated in (None, False):
            found = opened(path, consolidated=consolidated)
            xr.testing.assert_identical(found, expected)
            assert {name: each.dtype for name, each in found.variables.items()} == {
                name: each.dtype for name, each in expected.variables.items()
            }


def test_other_views_show_what_the_store_says(mount: Mounted) -> None:
    for name, *_ in [*FILLS, *ATTRIBUTES]:
        for document in (".zarray", ".zattrs"):
            shown, own = (json.loads((root / name / document).read_text()) for root in (mount.path / "chunks", mount.store))
            assert (shown if document == ".zattrs" else shown["fill_value"]) == (
                own if document == ".zattrs" else own["fill_value"]
            )


def test_libraries_read_the_same_numbers(mount: Mounted) -> None:
    expected = judge.of_zarr(str(mount.store))
    assert judge.of_zarr(str(mount.path / "zarr3")) == expected
    ts = pytest.importorskip("tensorstore")
    for name in expected.keys() - {"text"}:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(mount.path / "zarr3" / name)}}
        assert judge.said(ts.open(spec).result().read().result()) == expected[name], name


# --- written --------------------------------------------------------------------------------------------------------------------


def by_hand() -> Any:
    """Return cases not in `dataset`: chunks that are missing because they are all zeros or all missing data; text of any length."""
    data = xr.Dataset(
        {
            "zeros": (("w",), np.zeros(6, "i4")),
            "halves": (("w",), np.array([0, 0, 0, 1, 2, -9999], "f4")),
            "absent": (("w",), np.array([np.nan, np.nan, 0, 1, np.nan, np.nan])),
            "coded": (("w",), np.array([np.nan, np.nan, 0, 1, np.nan, np.nan])),
            "packed": (("w",), np.array([0, 0, np.nan, 1, 0, 0])),
            "words": (("w",), np.array(["", "a", "longer", "", "", ""], np.dtypes.StringDType())),
            "never": (("w",), np.zeros(6, "?")),
            "flags": (("w",), np.array([True] * 6)),
            "when": (("w",), np.array(["2000-01-01", "NaT"] * 3, "M8[ns]")),
            "length": (("w",), np.array([0, "NaT"] * 3, "m8[ns]")),
            "plain": (("w",), np.array([0, 7, 0, 0, 0, 0], "u1")),
            "missing_zero": (("w",), np.array([np.nan, 1] * 3)),
        },
        coords={"w": np.arange(6)},
    )
    chunks = {"chunks": (2,)}
    for name in data.variables:
        data[name].encoding = dict(chunks) if name != "w" else {}
    data["absent"].encoding |= {"_FillValue": -9999.0}
    data["coded"].encoding |= {"_FillValue": 1e20, "dtype": "f4"}
    data["packed"].encoding |= {"_FillValue": np.int16(-1), "dtype": "i2", "scale_factor": 0.5}
    data["plain"].encoding |= {"_FillValue": np.uint8(255)}
    data["missing_zero"].encoding |= {"_FillValue": np.int16(0), "dtype": "i2"}
    return data


DATA = pytest.mark.parametrize("make", [dataset, by_hand], ids=["dataset", "by hand"])


def new_store(folder: Path) -> Path:
    zarr.create_group(str(folder / "store"), zarr_format=2)
    return folder / "store"


def fills(mount: Mounted) -> dict[str, Any]:
    """Return `fill_value` and `_FillValue` of all arrays in `zarr3/`."""
    root = mount.path / "zarr3"
    documents = {str(path.parent.relative_to(root)): json.loads(path.read_text()) for path in root.rglob("zarr.json")}
    return {
        path: (each["fill_value"], each["attributes"].get("_FillValue"))
        for path, each in documents.items()
        if each["node_type"] == "array"
    }


@DATA
@pytest.mark.parametrize("consolidated", [False, True])
def test_what_xarray_writes_is_found_in_all_views(make: Callable[[], Any], consolidated: bool, tmp_path: Path) -> None:
    store = new_store(tmp_path)
    make().to_zarr(str(tmp_path / "alone"), zarr_format=3)
    expected = opened(tmp_path / "alone")
    with mounted(store) as mount:
        make().to_zarr(str(mount.path / "zarr3/new"), mode="a", zarr_format=3, consolidated=consolidated)
        for view in ("chunks", "zarr3", "raw"):
            xr.testing.assert_identical(opened(mount.path / view / "new"), expected)
        # Write the data back as it was read.
        again = opened(mount.path / "zarr3/new")
        again.to_zarr(str(mount.path / "zarr3/again"), mode="a", zarr_format=3)
        assert mount.errors() == []
        shown = fills(mount)
        assert shown["new/marked" if make is dataset else "new/absent"] == (-9999, "AAAAAICHw8A=")
    for name in ("new", "again"):
        xr.testing.assert_identical(opened(store / name), expected)
        # No bare NaN, and nothing that programs of v2 misread.
        for path in (store / name).rglob(".zattrs"):
            attributes = json.loads(path.read_text(), parse_constant=pytest.fail)
            assert not isinstance(attributes.get("_FillValue"), str)
    with mounted(store) as mount:
        assert fills(mount) == shown
        for name in ("new", "again"):
            for view in ("chunks", "zarr3", "raw"):
                xr.testing.assert_identical(opened(mount.path / view / name), expected)


def test_xarray_of_2024_reads_it_from_the_store(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    judge.dataset().to_zarr(str(tmp_path / "alone"), zarr_format=2)
    expected = judge.of_xarray(str(tmp_path / "alone"), {})
    with mounted(store) as mount:
        # With every chunk stored: for a missing chunk with a null fill value, zarr 2 returns uninitialized memory.
        judge.dataset().to_zarr(str(mount.path / "zarr3/new"), mode="a", zarr_format=3, write_empty_chunks=True)
        assert by_zarr2("xarray", mount.path / "chunks/new") == expected
    assert by_zarr2("xarray", store / "new") == expected
    assert by_zarr2("zarr", store / "new") == by_zarr2("zarr", tmp_path / "alone")


def test_it_is_appended_to(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    data = by_hand()
    more = data.assign_coords(w=data["w"] + 6)
    for path in (tmp_path / "alone",):
        data.to_zarr(str(path), zarr_format=3)
        more.to_zarr(str(path), append_dim="w")
    expected = opened(tmp_path / "alone")
    with mounted(store) as mount:
        data.to_zarr(str(mount.path / "zarr3/new"), mode="a", zarr_format=3)
    with mounted(store) as mount:
        more.to_zarr(str(mount.path / "zarr3/new"), append_dim="w")
        extra = xr.Dataset({"extra": (("w",), np.zeros(12)), "zeros": (("w",), np.ones(12, "i4"))})
        extra.to_zarr(str(mount.path / "zarr3/new"), mode="a")
        zarr.open_array(str(mount.path / "zarr3/new/coded"), mode="r+").attrs["units"] = "m"
        assert mount.errors() == []
    expected = expected.assign(extra=extra["extra"], zeros=extra["zeros"])
    expected["coded"].attrs["units"] = "m"
    xr.testing.assert_identical(opened(store / "new"), expected)
    with mounted(store) as mount:
        xr.testing.assert_identical(opened(mount.path / "zarr3/new"), expected)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A v2 store that xarray wrote through `zarr3/`, without the types that netCDF-C cannot represent."""
    store = new_store(tmp_path)
    with mounted(store) as mount:
        dataset().drop_vars(["complex", "text", "flags"]).to_zarr(str(mount.path / "zarr3/new"), mode="a", zarr_format=3)
        by_hand()[["zeros", "absent", "packed"]].to_zarr(str(mount.path / "zarr3/more"), mode="a", zarr_format=3)
    return store


def test_netcdf_masks_what_is_missing_and_no_zeros(filled: Path) -> None:
    pytest.importorskip("netCDF4")
    with mounted(filled) as mount:
        for root in (filled, mount.path / "chunks"):
            read = {}
            for group, names in (("new", ["f", "marked", "integers", "scaled"]), ("more", ["zeros", "absent", "packed"])):
                command = [sys.executable, "-c", NETCDF, str(root / group), *names]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if "NetCDF: Attempt to use feature that was not turned on" in done.stderr or "Unknown file format" in done.stderr:
                    pytest.skip("this netCDF-C was built without Zarr")
                assert done.returncode == 0, done.stderr
                read |= json.loads(done.stdout)
            assert read["f"][0][0][0] == 0
            assert read["marked"] == [[[0, 1.5, 12345], [2, 5, 0]], [[False, False, True], [False, False, False]]]
            assert read["integers"][0] == [0, 7]
            assert read["scaled"] == [[0, 12345], [False, True]]
            assert read["zeros"][0] == [0] * 6
            assert read["absent"] == [[12345, 12345, 0, 1, 12345, 12345], [True, True, False, False, True, True]]
            assert read["packed"] == [[0, 0, 12345, 1, 0, 0], [False, False, True, False, False, False]]


def test_gdal_takes_no_zeros_for_missing_data(filled: Path) -> None:
    demand("gdalmdiminfo")
    numbers = judge.of_zarr(str(filled))
    for group in ("new", "more"):
        found = gdal_arrays(filled / group)
        masks = {name: as_gdal(each["nodata_value"]) for name, each in found.items() if "nodata_value" in each}
        assert 0 not in masks.values()
        assert masks.get("absent", -9999) == masks.get("marked", -9999) == -9999
        for name, each in found.items():
            assert as_gdal(each["values"]) == as_gdal(numbers[f"{group}/{name}"]), name


def test_a_fill_value_of_nan_is_replaced_under_open_files(tmp_path: Path) -> None:
    """As xarray writes: a document without attributes, perhaps chunks, then the document with them, by a program that expects NaN."""
    store = new_store(tmp_path)
    with mounted(store) as mount:
        group = zarr.open_group(str(mount.path / "zarr3"), mode="a")
        array = group.create_array("a", shape=(4,), chunks=(2,), dtype="f4", fill_value=np.nan, dimension_names=["x"])
        array[:2] = [1, np.nan]
        whole, chunk = mount.path / "npy/a.npy", mount.path / "chunks/a/0"
        with whole.open("rb") as before, chunk.open("rb") as part:
            assert np.isnan(np.load(whole)).tolist() == [False, True, True, True]
            array.attrs["_FillValue"] = "AAAAAICHw8A="
            assert np.load(whole)[2:].tolist() == [-9999, -9999]
            assert len(before.read()) == whole.stat().st_size
            assert np.frombuffer(part.read(), "<f4")[0] == 1
        # The program continues with NaN as its fill value.
        array[3] = 6
        array.resize((6,))
        assert json.loads((mount.path / "zarr3/a/zarr.json").read_text())["fill_value"] == -9999
        assert np.nan_to_num(np.load(whole), nan=-1).tolist() == [1, -1, -1, 6, -9999, -9999]
        expected = opened(store)["a"]
        assert np.nan_to_num(expected.values, nan=-1).tolist() == [1, -1, -1, 6, -1, -1]
        xr.testing.assert_identical(opened(mount.path / "zarr3")["a"], expected)
        assert mount.errors() == []


def test_a_document_that_v2_cannot_say_is_refused_with_the_reason(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with mounted(store, ends_with=None) as mount:
        group = zarr.open_group(str(mount.path / "zarr3"), mode="a")
        array = group.create_array("a", shape=(4,), chunks=(2,), dtype="i4", fill_value=7, dimension_names=["x"])
        with pytest.raises(OSError, match="Invalid argument"):
            array.attrs["_FillValue"] = -1
        assert "elements that equal fill_value are missing data" in str(mount.errors())
    assert json.loads((store / "a/.zarray").read_text())["fill_value"] == 7
    shutil.rmtree(store)
