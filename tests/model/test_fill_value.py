"""Fill values: every element has a JSON form that reproduces its exact bits.

Source of the forms: v3 final "Permitted fill values"; zarr-extensions data-types.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_types import data_types, elements, variable_types
from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.model import variable_fill
from zarrfs.model.data_type import OBJECT, STRING, VARIABLE_LENGTH_BYTES, DataType, from_name
from zarrfs.model.fill_value import NAT, from_json, to_json, undefined

F2, F4, F8, C8, I8 = (from_name(name) for name in ("float16", "float32", "float64", "complex64", "int64"))


@given(st.data())
def test_an_element_survives_json_bit_for_bit(data: st.DataObject) -> None:
    data_type = data.draw(data_types() | variable_types())
    element = data.draw(elements(data_type))
    try:
        said = to_json(data_type, element)
    except NotRepresentable:
        assert data_type == OBJECT and (b"NaN" in element or b"Infinity" in element)
        return
    assert from_json(data_type, json.loads(json.dumps(said, allow_nan=False))) == element


@pytest.mark.parametrize(
    ("data_type", "said", "element"),
    [
        (STRING, "é", "é"),
        (STRING, "", ""),
        (VARIABLE_LENGTH_BYTES, "AP8=", b"\0\xff"),
        (from_name("bytes"), [0, 255], b"\0\xff"),
        (from_name("binary"), "", b""),
        (OBJECT, {"a": [None, 1.5]}, {"a": [None, 1.5]}),
        (OBJECT, None, None),
    ],
)
def test_elements_of_no_fixed_size(data_type: DataType, said: Any, element: Any) -> None:
    stored = from_json(data_type, said)
    assert variable_fill.element(data_type, stored) == element
    assert variable_fill.element_bytes(data_type, element) == stored
    assert variable_fill.element(data_type, variable_fill.empty(data_type)) in ("", b"", None)


@pytest.mark.parametrize(
    ("data_type", "said"),
    [
        (STRING, 0),
        (STRING, None),
        (STRING, "\ud800"),
        (STRING, ["a"]),
        (VARIABLE_LENGTH_BYTES, "?"),
        (VARIABLE_LENGTH_BYTES, [256]),
        (VARIABLE_LENGTH_BYTES, [True]),
        (VARIABLE_LENGTH_BYTES, 0),
    ],
)
def test_what_no_element_of_no_fixed_size_is(data_type: DataType, said: Any) -> None:
    with pytest.raises(MetadataError, match="fill_value"):
        from_json(data_type, said)


@pytest.mark.parametrize(
    "name", ["float16", "bfloat16", "int16", "uint16", "float8_e4m3fn", "float8_e3m4", "float8_e8m0fnu", "int8"]
)
def test_every_element_of_a_short_type_survives(name: str) -> None:
    data_type = from_name(name)
    for number in range(256**data_type.itemsize):
        element = number.to_bytes(data_type.itemsize, "little")
        assert from_json(data_type, to_json(data_type, element)) == element


@pytest.mark.parametrize(
    ("data_type", "said", "bits"),
    [
        (F4, "NaN", "7fc00000"),
        (F4, "Infinity", "7f800000"),
        (F4, "-Infinity", "ff800000"),
        (F4, "0x7fc00001", "7fc00001"),
        (F4, "0xFFC00000", "ffc00000"),
        (F4, 0.1, "3dcccccd"),
        (F4, 3, "40400000"),
        (F4, -0.0, "80000000"),
        (F4, 16777217, "4b800000"),
        (F4, 16777219, "4b800002"),
        (F8, "NaN", "7ff8000000000000"),
        (F2, "NaN", "7e00"),
        (F2, "0x3c00", "3c00"),
        (from_name("bfloat16"), "NaN", "7fc0"),
        (from_name("float8_e3m4"), "NaN", "78"),
        (from_name("float8_e5m2"), "NaN", "7e"),
        (from_name("float8_e8m0fnu"), "NaN", "ff"),
        (from_name("int4"), -8, "08"),
        (from_name("uint4"), 15, "0f"),
    ],
)
def test_the_forms_mean_these_bits(data_type: DataType, said: Any, bits: str) -> None:
    assert from_json(data_type, said)[::-1].hex() == bits


def test_a_complex_element_is_two_floats_of_any_form() -> None:
    assert from_json(C8, ["-Infinity", "0x7fc00001"]) == struct.pack("<f", float("-inf")) + bytes.fromhex("0100c07f")
    assert to_json(C8, struct.pack("<ff", -0.0, float("nan"))) == [-0.0, "NaN"]


def test_raw_bits_are_a_list_and_raw_bytes_are_base64() -> None:
    assert from_json(from_name("r24"), [1, 2, 255]) == b"\1\2\xff"
    assert to_json(from_name("r24"), b"\1\2\xff") == [1, 2, 255]
    raw = from_name("raw_bytes", {"length_bytes": 3})
    assert to_json(raw, b"abc") == "YWJj" and from_json(raw, "YWJj") == b"abc"


@pytest.mark.parametrize("digits", ["0x01", "0x010203", "0xabcdefABCDEF01", "0x"])
def test_digits_are_no_base64_of_raw_bits_and_of_fields(digits: str) -> None:
    """As base64 they are three or six bytes, but where the text defines another form, this is hardly their meaning."""
    for nbytes in (1, 3, 6, 12):
        fields = {"fields": [[f"f{number}", "uint8"] for number in range(nbytes)]}
        for data_type in (from_name(f"r{8 * nbytes}"), from_name("struct", fields)):
            with pytest.raises(MetadataError):
                from_json(data_type, digits)
    assert from_json(from_name("raw_bytes", {"length_bytes": 3}), "0x01") == base64.b64decode("0x01")


def test_padding_of_strings_is_not_written() -> None:
    null_terminated = from_name("null_terminated_bytes", {"length_bytes": 4})
    assert to_json(null_terminated, b"zz\0\0") == "eno="
    assert to_json(from_name("fixed_length_utf32", {"length_bytes": 12}), "é".encode("utf-32-le") + bytes(8)) == "é"


def test_a_string_that_is_not_unicode_has_no_json_form() -> None:
    with pytest.raises(NotRepresentable):
        to_json(from_name("fixed_length_utf32", {"length_bytes": 4}), b"\0\xd8\0\0")


def test_not_a_time_is_the_least_integer() -> None:
    data_type = from_name("numpy.datetime64", {"unit": "s", "scale_factor": 1})
    assert from_json(data_type, "NaT") == from_json(data_type, NAT) == np.array("NaT", "<M8[s]").tobytes()


@pytest.mark.parametrize(
    ("name", "unit", "value"),
    [
        ("numpy.datetime64", "generic", "NaT"),
        ("numpy.datetime64", "s", NAT),
        ("numpy.timedelta64", "generic", NAT),
        ("numpy.timedelta64", "s", NAT),
    ],
)
def test_not_a_time_is_an_integer_except_of_dates_without_a_unit_which_numpy_has_no_integers_for(
    name: str, unit: str, value: Any
) -> None:
    data_type = from_name(name, {"unit": unit, "scale_factor": 1})
    element = undefined(data_type)
    assert to_json(data_type, element) == value and from_json(data_type, value) == element
    assert to_json(data_type, bytes(8)) == 0


@pytest.mark.parametrize("name", ["numpy.datetime64", "numpy.timedelta64"])
def test_where_the_fill_value_of_times_is_undefined_no_time_is_read_and_not_1970(name: str) -> None:
    data_type = from_name(name, {"unit": "s", "scale_factor": 1})
    assert np.isnat(np.frombuffer(undefined(data_type), data_type.dtype)[0])
    assert undefined(from_name("float32")) == bytes(4)


def test_fields_are_an_object_or_base64() -> None:
    data_type = from_name("struct", {"fields": [["a", "int16"], ["b", "float32"], ["c", "bool"]]})
    element = struct.pack("<hf?", -2, 1.5, True)
    assert from_json(data_type, {"c": True, "a": -2, "b": 1.5}) == element
    assert from_json(data_type, base64.b64encode(element).decode()) == element
    assert to_json(data_type, element) == {"a": -2, "b": 1.5, "c": True}
    assert to_json(from_name("structured", data_type.configuration), element) == base64.b64encode(element).decode()


@pytest.mark.parametrize(
    ("data_type", "said"),
    [
        (from_name("bool"), 1),
        (from_name("bool"), None),
        (from_name("int8"), 128),
        (from_name("int8"), -129),
        (from_name("uint8"), -1),
        (from_name("int8"), True),
        (from_name("int8"), 1.0),
        (from_name("int8"), "1"),
        (from_name("uint64"), 2**64),
        (from_name("int4"), 8),
        (from_name("uint2"), 4),
        (F4, "0x7fc0"),
        (F4, "0x7fc0000000"),
        (F4, "0x7f c0 00"),
        (F4, "0x7fc0000g"),
        (F4, "nan"),
        (F4, "+Infinity"),
        (F4, None),
        (F4, True),
        (F4, [1]),
        (F8, 10**400),
        (C8, [1]),
        (C8, 1),
        (C8, [1, None]),
        (from_name("float6_e2m3fn"), "NaN"),
        (from_name("float4_e2m1fn"), "Infinity"),
        (from_name("float8_e4m3fn"), "Infinity"),
        (from_name("float8_e5m2fnuz"), "-Infinity"),
        (from_name("r16"), [1]),
        (from_name("r16"), [1, 256]),
        (from_name("r16"), [1, True]),
        (from_name("raw_bytes", {"length_bytes": 3}), "YWJ"),
        (from_name("raw_bytes", {"length_bytes": 3}), "YWI="),
        (from_name("raw_bytes", {"length_bytes": 3}), "ÿWJj"),
        (from_name("null_terminated_bytes", {"length_bytes": 2}), "YWJj"),
        (from_name("fixed_length_utf32", {"length_bytes": 4}), "ab"),
        (from_name("fixed_length_utf32", {"length_bytes": 4}), "\udc80"),
        (from_name("fixed_length_utf32", {"length_bytes": 4}), 1),
        (from_name("numpy.timedelta64", {"unit": "s", "scale_factor": 1}), "nat"),
        (from_name("struct", {"fields": [["a", "int8"]]}), {}),
        (from_name("struct", {"fields": [["a", "int8"]]}), {"a": 1, "b": 2}),
        (from_name("struct", {"fields": [["a", "int8"]]}), {"a": 1.5}),
        (from_name("struct", {"fields": [["a", "int8", [2]]]}), {"a": 1}),
    ],
)
def test_what_is_none_of_the_type_is_refused(data_type: DataType, said: Any) -> None:
    with pytest.raises(MetadataError):
        from_json(data_type, said)
