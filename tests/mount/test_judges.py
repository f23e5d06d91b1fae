"""Results of libraries and programs in `chunks/` and `zarr3/` of a final v3 store: the numbers and masks of the store itself.

Judges: current xarray and that of 2024 (on zarr 2), zarr-python 3 and 2.18, tensorstore, GDAL's programs, netCDF-C.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import judge
from tests.support.mounting import Mounted, mounted, run
from tests.support.programs import demand, zarr2_python

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

pytestmark = [pytest.mark.fuse, pytest.mark.filterwarnings("ignore")]

SPARSE: list[tuple[str, str, Any, Any]] = [
    ("f4", "f4", 7, 0),
    ("nan", "f8", np.nan, 0),
    ("i4", "i4", -9999, 0),
    ("flag", "bool", True, False),
    ("u1", "u1", 255, 0),
    ("complex", "c16", 1 + 2j, 0),
    ("zero", "i8", 0, 5),
    ("f2", "f2", -1.5, 0),
    ("text", "str", "none", "ab"),
    ("time", "M8[ns]", np.datetime64("2001-01-01", "ns"), np.datetime64("2002-01-01", "ns")),
]
NO_V2_NUMBERS = {"text", "sparse/text", "sparse/time"}
"""Arrays whose type tensorstore and GDAL cannot represent in Zarr v2."""


@cache
def zarr2_judge() -> subprocess.Popen[str]:
    """Return judge.py with zarr 2 and the xarray of 2024, whose import takes seconds; it ends with this process."""
    command = [str(zarr2_python()), str(judge.__file__)]
    return subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def by_zarr2(*arguments: str | Path) -> Any:
    """Return what judge.py says with zarr 2 and the xarray of 2024."""
    process = zarr2_judge()
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps([str(each) for each in arguments]), file=process.stdin, flush=True)
    said = process.stdout.readline()
    if not said:
        zarr2_judge.cache_clear()
        pytest.fail(f"judge.py ended with {process.wait()}, its error is above: {arguments}")
    return json.loads(said)


def by_xarray(path: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge.of_xarray(str(path), options)


def example(path: Path, consolidated: bool) -> None:
    """Write a dataset, and a group of arrays with missing chunks: of six elements the two in the middle are stored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judge.dataset().to_zarr(str(path), zarr_format=3, consolidated=False)
        sparse = zarr.open_group(str(path), mode="a", use_consolidated=False).create_group("sparse")
        for name, data_type, fill_value, value in SPARSE:
            array = sparse.create_array(
                name, shape=(6,), chunks=(2,), dtype=data_type, fill_value=fill_value, dimension_names=["w"]
            )
            array[2:4] = value
        edge = sparse.create_array("edge", shape=(3, 5), chunks=(2, 2), dtype="i2", fill_value=3, dimension_names=["v", "u"])
        edge[:2, :2] = [[0, 1], [2, 3]]
        sparse.create_array("scalar", shape=(), chunks=(), dtype="i2", fill_value=3)
        sharded = sparse.create_array(
            "sharded", shape=(8,), chunks=(2,), shards=(4,), dtype="i4", fill_value=-1, dimension_names=["s"]
        )
        sharded[2:4] = 0
        if consolidated:
            zarr.consolidate_metadata(str(path))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "consolidated"])
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    store = tmp_path_factory.mktemp("judged") / "store"
    example(store, request.param)
    with mounted(store) as mount:
        yield mount


@pytest.fixture(scope="module")
def copy(mount: Mounted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("copied") / "copy"
    run("cp", "-r", mount.path / "chunks", copy)
    return copy


@pytest.fixture(scope="module")
def numbers(mount: Mounted) -> dict[str, Any]:
    """The elements of the store itself, read by zarr-python 3."""
    found = judge.of_zarr(str(mount.store))
    assert len(found) == len(judge.dataset().variables) + len(SPARSE) + 3
    assert found["sparse/f4"] == ["7.0", "7.0", "0.0", "0.0", "7.0", "7.0"]
    return found


# --- the same numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
def test_zarr_3(view: str, mount: Mounted, numbers: dict[str, Any]) -> None:
    assert judge.of_zarr(str(mount.path / view)) == numbers


def test_zarr_2(mount: Mounted, copy: Path, numbers: dict[str, Any]) -> None:
    assert by_zarr2("zarr", mount.path / "chunks") == numbers
    assert by_zarr2("zarr", copy) == numbers


@pytest.mark.parametrize(("view", "driver"), [("chunks", "zarr"), ("zarr3", "zarr3")])
def test_tensorstore(view: str, driver: str, mount: Mounted, numbers: dict[str, Any]) -> None:
    ts = pytest.importorskip("tensorstore")
    for name in numbers.keys() - NO_V2_NUMBERS:
        store = {"driver": "file", "path": str(mount.path / view / name)}
        found = ts.open({"driver": driver, "kvstore": store}).result().read().result()
        assert judge.said(found) == numbers[name], name


def test_gdal(mount: Mounted, numbers: dict[str, Any]) -> None:
    demand("gdalmdiminfo", "gdal_translate")
    root = gdal_arrays(mount.path / "chunks")
    assert numbers.keys() - root.keys() <= NO_V2_NUMBERS
    for name, found in root.items():
        assert as_gdal(found["values"]) == as_gdal(numbers[name]), name
    masks = {name: as_gdal(each["nodata_value"]) for name, each in root.items() if "nodata_value" in each}
    # NaN is missing data without a declaration.
    assert {name: value for name, value in masks.items() if value != "nan"} == {"marked": -9999, "masked": -9999, "scaled": -1}
    assert root["scaled"]["scale"] == 0.1


def test_gdal_translates_a_raster(mount: Mounted, tmp_path: Path) -> None:
    demand("gdal_translate")
    run("gdal_translate", "-q", "-of", "AAIGrid", f'ZARR:"{mount.path}/chunks":/marked', tmp_path / "marked.asc")
    text = (tmp_path / "marked.asc").read_text().split()
    assert float(text[text.index("NODATA_value") + 1]) == -9999
    # North is up.
    assert [float(each) for each in text[-6:]] == [2, 5, 0, 0, 1.5, -9999]


def gdal_arrays(path: Path) -> dict[str, Any]:
    """Return each array that GDAL can open, as ``gdalmdiminfo`` describes it."""
    group = json.loads(run("gdalmdiminfo", "-detailed", f'ZARR:"{path}"').stdout)
    arrays = dict(group["arrays"])
    for name, below in group.get("groups", {}).items():
        arrays |= {f"{name}/{each}": array for each, array in below["arrays"].items()}
    return arrays


def as_gdal(value: Any) -> Any:
    """Return numbers in the common form of GDAL and judge.py: floats are floats, booleans are 0 and 1, text is text."""
    match value:
        case list():
            return [as_gdal(each) for each in value]
        case {"real": real, "imag": imaginary}:
            return [float(real), float(imaginary)]
        case bool():
            return float(value)
        case str():
            try:
                number = complex(value)
            except ValueError:
                return value
            return [number.real, number.imag] if "j" in value else "nan" if number != number else number.real
        case None:
            return None
    return float(value)


NETCDF = """
import json, sys, netCDF4
with netCDF4.Dataset(f"file://{sys.argv[1]}#mode=zarr,file") as file:
    read = {name: file[name] for name in sys.argv[2:]}
    for each in read.values():
        each.set_auto_maskandscale(False)
    print(json.dumps({name: [repr(number) for number in each[...].ravel().tolist()] for name, each in read.items()}))
"""


def test_netcdf(mount: Mounted, tmp_path: Path, numbers: dict[str, Any]) -> None:
    pytest.importorskip("netCDF4")
    copy = tmp_path / "copy"
    run("cp", "-r", mount.path / "chunks", copy)
    names = ["f4", "nan", "i4", "u1", "zero", "edge", "sharded"]
    for name in (each.name for each in (copy / "sparse").iterdir() if each.is_dir() and each.name not in names):
        # NCZarr fails on groups with an unsupported type, and on scalars.
        shutil.rmtree(copy / "sparse" / name)
    (copy / ".zmetadata").unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-c", NETCDF, str(copy / "sparse"), *names], capture_output=True, text=True, check=False)
    if "NetCDF: Attempt to use feature that was not turned on" in done.stderr or "Unknown file format" in done.stderr:
        pytest.skip("this netCDF-C was built without Zarr")
    assert done.returncode == 0, done.stderr
    for name, found in json.loads(done.stdout).items():
        assert found == [str(each) for each in np.array(numbers[f"sparse/{name}"]).ravel().tolist()], name


def test_what_nccopy_writes_in_its_default_format_is_stored(tmp_path: Path) -> None:
    """Its documents have members of its own. It ignores the error of a refused one: the array was lost, with exit code 0."""
    demand("ncgen", "nccopy", "ncdump")
    text = 'netcdf copy {\ndimensions:\n\tx = 4 ;\nvariables:\n\tfloat v(x) ;\n\t\tv:units = "m" ;\ndata:\n\n v = 1, 2, 3, 4 ;\n}\n'
    (tmp_path / "copy.cdl").write_text(text)
    run("ncgen", "-o", tmp_path / "copy.nc", tmp_path / "copy.cdl")
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store") as mount:
        run("nccopy", tmp_path / "copy.nc", f"file://{mount.path}/chunks/copy#mode=nczarr,file")
        assert not mount.errors()
    array = zarr.open_group(str(tmp_path / "store"), mode="r")["copy/v"]
    assert isinstance(array, zarr.Array) and array.metadata.zarr_format == 3 and np.array(array[:]).tolist() == [1, 2, 3, 4]
    with mounted(tmp_path / "store") as mount:
        for mode in ("nczarr", "zarr"):
            assert run("ncdump", f"file://{mount.path}/chunks/copy#mode={mode},file").stdout.decode() == text


@pytest.mark.parametrize("fill_value", ["NaN", "-999.5"])
@pytest.mark.parametrize("mode", ["zarr", "nczarr"])
def test_attributes_beside_a_fill_value_are_copied_by_nccopy(mode: str, fill_value: str, tmp_path: Path) -> None:
    """It writes a bare NaN, and ignores the error of close(2): units and names of dimensions were lost."""
    demand("ncgen", "nccopy", "ncdump")
    head = "netcdf copy {\ndimensions:\n\tx = 3 ;\nvariables:\n\tdouble v(x) ;\n"
    marks = f"\t\tv:_FillValue = {fill_value} ;\n\t\tv:missing_value = {fill_value} ;\n"
    tail = '\t\tv:units = "m" ;\ndata:\n\n v = 1, _, 3 ;\n}\n'
    (tmp_path / "copy.cdl").write_text(head + marks + tail)
    run("ncgen", "-4", "-o", tmp_path / "copy.nc", tmp_path / "copy.cdl")
    (tmp_path / "store").mkdir()
    expected = head + tail.replace("_", "NaN") if fill_value == "NaN" else head + marks + tail
    with mounted(tmp_path / "store") as mount:
        run("nccopy", tmp_path / "copy.nc", f"file://{mount.path}/chunks/copy#mode={mode},file")
        assert not mount.errors()
        assert run("ncdump", f"file://{mount.path}/chunks/copy#mode={mode},file").stdout.decode() == expected
    array = zarr.open_group(str(tmp_path / "store"), mode="r")["copy/v"]
    assert isinstance(array, zarr.Array)
    assert array.attrs["units"] == "m" and ("_FillValue" in array.attrs) == ("missing_value" in array.attrs) == (
        fill_value != "NaN"
    )
    np.testing.assert_array_equal(array[:], [1, float(fill_value), 3])


def test_netcdf_reads_text_outside_of_ascii(tmp_path: Path) -> None:
    demand("ncdump")
    group = zarr.open_group(str(tmp_path / "store"), mode="w", attributes={"title": "Müller"})
    group.create_array("v", shape=(2,), dtype="f4", dimension_names=["länge"], attributes={"units": "°C"})
    with mounted(tmp_path / "store") as mount:
        text = run("ncdump", "-h", f"file://{mount.path}/chunks#mode=zarr,file").stdout.decode()
    assert all(each in text for each in ('title = "Müller"', "float v(länge)", 'v:units = "°C"'))


# --- the same datasets ------------------------------------------------------------------------------------------------------------


def test_xarray(mount: Mounted, copy: Path) -> None:
    expected = by_xarray(mount.store)
    assert expected["variables"]["masked"]["values"] == ["nan", "0.0"]
    assert expected["variables"]["times"]["values"][1] == "NaT"
    for path in (mount.path / "chunks", mount.path / "zarr3", copy):
        for consolidated in (None, False):
            assert by_xarray(path, consolidated=consolidated) == expected, path


def test_xarray_of_2024(mount: Mounted, copy: Path) -> None:
    expected = by_xarray(mount.store)
    for path in (mount.path / "chunks", copy):
        for options in ("{}", '{"consolidated": false}'):
            assert by_zarr2("xarray", path, options) == expected, path


# --- written ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_xarray_of_2024_writes_is_found_in_all_views(zarr_format: int, tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "store"), zarr_format=zarr_format)
    by_zarr2("write", tmp_path / "alone")
    expected = by_xarray(tmp_path / "alone")
    with mounted(tmp_path / "store") as mount:
        by_zarr2("write", mount.path / "chunks/new")
        assert by_zarr2("xarray", mount.path / "chunks/new") == expected
        for view in ("chunks", "zarr3", "raw"):
            assert by_xarray(mount.path / view / "new") == expected, view
        assert mount.errors() == []
    assert by_xarray(tmp_path / "store/new") == expected
    with mounted(tmp_path / "store") as mount:
        assert by_zarr2("xarray", mount.path / "chunks/new") == expected


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_zarr_2_creates_is_found_in_all_views(zarr_format: int, tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "store"), zarr_format=zarr_format)
    by_zarr2("create", tmp_path / "alone")
    expected = judge.of_zarr(str(tmp_path / "alone"))
    # Missing chunks without a fill value: zarr 2 leaves uninitialized memory, zarr 3 has zeros.
    assert expected["null"] == [0, 0, 5, 5, 0, 0]
    with mounted(tmp_path / "store") as mount:
        by_zarr2("create", mount.path / "chunks/new")
        for view in ("chunks", "zarr3", "raw"):
            assert judge.of_zarr(str(mount.path / view / "new")) == expected, view
        for name, dtype, *_ in judge.FILLS:
            if dtype != "text":
                assert judge.said(np.load(mount.path / f"npy/new/{name}.npy")) == expected[name]
        again = by_zarr2("zarr", mount.path / "chunks/new")
        assert {**again, "null": expected["null"]} == expected and again["null"][2:4] == [5, 5]
        assert mount.errors() == []
    with mounted(tmp_path / "store") as mount:
        assert judge.of_zarr(str(mount.path / "chunks/new")) == expected
