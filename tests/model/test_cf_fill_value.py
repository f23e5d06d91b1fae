"""The CF attribute `_FillValue` in the forms that xarray and other software write."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import tries
from zarrfs.model import cf_fill_value as cf
from zarrfs.model.data_type import STRING, VARIABLE_LENGTH_BYTES, DataType, from_name, from_numpy
from zarrfs.model.unparsed import Unparsed

FLOAT = from_numpy(np.dtype("<f4"))


def of(dtype: str) -> DataType:
    return from_numpy(np.dtype(dtype))


def as_xarray(number: float) -> str:
    return base64.standard_b64encode(struct.pack("<d", number)).decode()


@pytest.mark.parametrize(
    ("data_type", "value", "element"),
    [
        (of("<f4"), as_xarray(-9999.0), np.float32(-9999).tobytes()),
        (of("<f8"), "AAAAAAAA+H8=", np.float64("nan").tobytes()),
        (of("<f4"), -9999, np.float32(-9999).tobytes()),
        (of("<f4"), 1e20, np.float32(1e20).tobytes()),
        (of("<f8"), "NaN", np.float64("nan").tobytes()),
        (of("<f2"), "-Infinity", np.float16("-inf").tobytes()),
        (of("<c8"), [as_xarray(1.0), as_xarray(-2.0)], np.complex64(1 - 2j).tobytes()),
        (of("<c16"), 3, np.complex128(3).tobytes()),
        (of("<i2"), -1, np.int16(-1).tobytes()),
        (of("<i2"), -1.0, np.int16(-1).tobytes()),
        (of("<u8"), 2**64 - 1, np.uint64(2**64 - 1).tobytes()),
        (of("|b1"), True, b"\1"),
        (of("|b1"), 0, b"\0"),
        (of("|S3"), "YWI=", b"ab\0"),
        (of("<U2"), "é", "é\0".encode("utf-32-le")),
        (STRING, "", b""),
        (VARIABLE_LENGTH_BYTES, "AAE=", b"\0\1"),
        (of("<i2"), Unparsed(b"7"), np.int16(7).tobytes()),
    ],
    ids=repr,
)
def test_forms_that_are_read(data_type: DataType, value: Any, element: bytes) -> None:
    assert cf.decode(data_type, value) == element


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (of("<i2"), 70000),
        (of("<u1"), -1),
        (of("<i2"), 1.5),
        (of("<i2"), "7"),
        (of("<i2"), True),
        (of("<i2"), None),
        (of("<f4"), 1e300),
        (of("<f4"), 10**400),
        (of("<f4"), True),
        (of("<f4"), "no base64"),
        (of("<f4"), base64.standard_b64encode(b"short").decode()),
        (of("<c8"), [1, 2, 3]),
        (of("|S1"), "YWI="),
        (of("<U1"), "ab"),
        (of("|b1"), 2),
        (STRING, 0),
        (of("<M8[s]"), 0),
        (from_numpy(np.dtype([("a", "<i4")])), "AAAAAA=="),
        (from_name("bfloat16"), 0),
        (of("<i2"), Unparsed(b'"' + b"x" * (2 << 20) + b'"')),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_the_type_cannot_hold_is_none(data_type: DataType, value: Any) -> None:
    assert cf.decode(data_type, value) is None


@tries(200)
@given(
    st.sampled_from(["<f2", "<f4", "<f8", "<c8", "<c16", "<i1", "<i8", "<u2", "<u8", "|S5"]), st.binary(min_size=16, max_size=16)
)
def test_what_is_encoded_is_decoded(dtype: str, data: bytes) -> None:
    data_type = of(dtype)
    element = data[: data_type.itemsize]
    encoded = json.loads(json.dumps(cf.encode(data_type, element), allow_nan=False))
    decoded = cf.decode(data_type, encoded)
    assert decoded is not None and cf.are_equal(data_type, element, decoded)
    if not cf.is_nan(data_type, element):
        assert decoded == element


def test_nan_is_nan_whatever_its_payload() -> None:
    one, other = np.float32("nan").tobytes(), np.array(0x7FC00001, "<u4").tobytes()
    assert one != other and cf.are_equal(FLOAT, one, other)
    assert not cf.are_equal(FLOAT, one, np.float32(0).tobytes()) and not cf.are_equal(FLOAT, None, one)


def test_xarray_reads_what_is_encoded() -> None:
    coder = pytest.importorskip("xarray.backends.zarr").FillValueCoder
    for dtype, value in (("<f4", -9999.5), ("<f8", float("inf")), ("<i4", -9999), ("|b1", True)):
        element = np.array(value, dtype)
        assert cf.is_read_back(of(dtype))
        assert coder.decode(cf.encode(of(dtype), element.tobytes()), dtype) == value
    for data_type, dtype in ((of("<U3"), np.dtype("<U3")), (of("|S3"), np.dtype("|S3")), (STRING, np.dtypes.StringDType())):
        assert not cf.is_read_back(data_type)
        with pytest.raises(ValueError, match="Unsupported dtype"):
            coder.decode("abc", dtype)
