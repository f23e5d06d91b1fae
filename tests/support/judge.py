"""Read a folder with one Zarr library; run as a program by a Python that has the library.

Each line of its input is a JSON list, and it prints the answer as a line of JSON (null if nothing is asked):

    ["xarray", PATH, open_zarr's options as JSON]     variables as xarray decodes them
    ["zarr", PATH]                                    elements of every array
    ["write", PATH, to_zarr's options as JSON]        xarray stores `dataset` there
    ["create", PATH]                                  zarr 2 creates arrays there, some chunks of which are missing

Imports nothing of this repository: the Python may be an old one.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np


def said(values: Any) -> Any:
    """Return elements as exact JSON, independent of the unit of times and the type of strings."""
    values = np.asarray(values)
    if values.dtype.kind == "M":
        # Versions choose different units.
        values = values.astype("M8[ns]").astype(str)
    elif values.dtype.kind in "OTUS":
        text = [each.decode() if isinstance(each, bytes) else str(each) for each in values.ravel().tolist()]
        values = np.array(text).reshape(values.shape)
    elif values.dtype.kind in "fc":
        values = np.array([repr(each) for each in values.ravel().tolist()], object).reshape(values.shape)
    return values.tolist()


def attributes(found: Any) -> Any:
    """Return attributes as JSON."""
    return json.loads(json.dumps(dict(found), default=lambda each: np.asarray(each).tolist()))


def of_xarray(path: str, options: dict[str, Any]) -> dict[str, Any]:
    import xarray as xr

    data = xr.open_zarr(path, chunks=None, **options).load()
    return {
        "attributes": attributes(data.attrs),
        "coordinates": sorted(map(str, data.coords)),
        "variables": {
            str(name): {
                "dims": list(each.dims),
                "kind": "text" if each.dtype.kind in "OTUS" else each.dtype.kind,
                "values": said(each.values),
                "attributes": attributes(each.attrs),
            }
            for name, each in data.variables.items()
        },
    }


def of_zarr(path: str) -> dict[str, Any]:
    import zarr

    found: dict[str, Any] = {}

    def walk(group: Any, prefix: str) -> None:
        for name in sorted(group):
            node = group[name]
            if hasattr(node, "shape"):
                found[prefix + name] = said(node[...])
            else:
                walk(node, f"{prefix}{name}/")

    walk(zarr.open_group(path, mode="r"), "")
    return found


def dataset() -> Any:
    """Return a dataset with zeros, NaN, marked values, scaled integers, scalars, bool, text and times."""
    import xarray as xr

    data = xr.Dataset(
        {
            "f": (("x", "y"), np.array([[0, 1.5, np.nan], [2, -9999, 0]], "f4"), {"units": "K"}),
            "marked": (("x", "y"), np.array([[0, 1.5, np.nan], [2, 5, 0]])),
            "scaled": (("x",), np.array([0.0, np.nan])),
            "integers": (("x",), np.array([0, 7], "i4")),
            "masked": (("x",), np.array([np.nan, 0.0])),
            "flags": (("x",), np.array([True, False])),
            "text": (("x",), np.array(["", "ab"])),
            "times": (("x",), np.array(["2000-01-01", "NaT"], "M8[ns]")),
            "scalar": ((), np.int16(0)),
        },
        coords={"x": [0, 1], "y": [0.0, 1, 2]},
        attrs={"title": "judged"},
    )
    data["marked"].encoding = {"_FillValue": -9999.0}
    data["scaled"].encoding = {"scale_factor": 0.1, "dtype": "i2", "_FillValue": np.int16(-1)}
    data["masked"].encoding = {"dtype": "i4", "_FillValue": np.int32(-9999)}
    return data


FILLS: list[tuple[str, str, Any, Any]] = [
    ("f4", "<f4", 7, 0),
    ("nan", "<f8", float("nan"), 0),
    ("i4", "<i4", -9999, 0),
    ("zero", "<i8", 0, 5),
    ("null", "<i2", None, 5),
    ("flag", "|b1", True, False),
    ("u1", "|u1", 255, 0),
    ("complex", "<c16", 1 + 2j, 0),
    ("fixed", "<U3", "", "abc"),
    ("text", "text", "", "ab"),
]


def create(path: str) -> None:
    """Create arrays of six elements in chunks of two; only the middle chunk is written."""
    import numcodecs
    import zarr

    group = zarr.open_group(path, mode="a")
    for name, dtype, fill_value, value in FILLS:
        how = {"dtype": object, "object_codec": numcodecs.VLenUTF8()} if dtype == "text" else {"dtype": dtype}
        array = group.create_dataset(name, shape=(6,), chunks=(2,), compressor=None, fill_value=fill_value, **how)
        array[2:4] = value
    scalar = group.create_dataset("scalar", shape=(), dtype="<i2", compressor=None, fill_value=3)
    assert scalar[()] == 3


def answer(what: str, path: str, options: str = "{}") -> Any:
    """Do what one line of the input asks for."""
    if what == "create":
        return create(path)
    if what == "write":
        data = dataset()
        import zarr

        plain = {"compressor": None} if zarr.__version__.startswith("2") else {"compressors": None}
        data.to_zarr(path, mode="a", encoding=dict.fromkeys(data.variables, plain), **json.loads(options))
        return None
    return of_xarray(path, json.loads(options)) if what == "xarray" else of_zarr(path)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
