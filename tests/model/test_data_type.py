"""Data types: names, NumPy types, and refused ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model import data_type
from zarrfs.model.data_type import DataType, from_name, from_numpy

CORE = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
SMALL = "bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu float6_e2m3fn float4_e2m1fn int2 int4 uint2 uint4".split()


@pytest.mark.parametrize("name", CORE)
def test_a_core_type_is_numpys_type_of_that_name(name: str) -> None:
    assert from_name(name).dtype == np.dtype(name).newbyteorder("<")
    assert from_numpy(np.dtype(name).newbyteorder(">")) == from_name(name)
    assert from_name(name).v3_name == name


@pytest.mark.parametrize("name", SMALL)
def test_types_that_numpy_lacks_are_those_of_ml_dtypes(name: str) -> None:
    found = from_name(name)
    assert found.dtype == np.dtype(getattr(ml_dtypes, name))
    assert from_numpy(found.dtype) == found
    assert found.npy_dtype == np.dtype(f"|V{found.itemsize}")


@pytest.mark.parametrize(
    "dtype",
    [
        "V5",
        "S7",
        "U3",
        "M8[ns]",
        "m8[25us]",
        "M8",
        [("a", ">i4"), ("b", [("c", "<f2"), ("d", ">U2")])],
        [("a", "i1"), ("b", ">f8", (2, 3))],
        [("a", ml_dtypes.bfloat16)],
    ],
)
def test_a_numpy_type_and_its_name_are_translated_both_ways(dtype: Any) -> None:
    found = from_numpy(np.dtype(dtype))
    assert found.dtype == np.dtype(dtype).newbyteorder("<")
    assert from_name(found.name, found.configuration) == found
    assert found.v3_name == {"name": found.name, "configuration": found.configuration}


def test_raw_types_say_their_width_in_bits() -> None:
    assert from_name("r24") == DataType("r24", np.dtype("V3"))


def test_aliases_that_are_registered_mean_the_core_type() -> None:
    assert from_name("complex_float32") == from_name("complex64")
    assert from_name("complex_float64") == from_name("complex128")


@pytest.mark.parametrize("unit", ["us", "μs", "µs"])
def test_microseconds_have_several_spellings(unit: str) -> None:
    assert from_name("numpy.datetime64", {"unit": unit, "scale_factor": 10}).dtype == np.dtype("<M8[10us]")


def test_fields_are_pairs_or_objects() -> None:
    pairs = from_name(
        "structured", {"fields": [["a", "int16"], ["b", {"name": "raw_bytes", "configuration": {"length_bytes": 3}}]]}
    )
    inner = {"name": "struct", "configuration": {"fields": [{"name": "x", "data_type": "uint8"}]}}
    objects = from_name("struct", {"fields": [{"name": "a", "data_type": {"name": "int16"}}, {"name": "b", "data_type": inner}]})
    assert pairs.dtype == np.dtype([("a", "<i2"), ("b", "V3")])
    assert objects.dtype == np.dtype([("a", "<i2"), ("b", [("x", "u1")])])


def test_one_type_has_two_spellings() -> None:
    pairs = from_name("structured", {"fields": [["a", "int16"], ["b", "uint8"]]})
    objects = from_name("struct", {"fields": [{"name": "a", "data_type": "int16"}, {"name": "b", "data_type": "uint8"}]})
    assert pairs == objects and hash(pairs) == hash(objects)
    for other in ([["a", "int16"], ["b", "int8"]], [["a", "int16"], ["c", "uint8"]], [["b", "uint8"], ["a", "int16"]]):
        assert pairs != from_name("structured", {"fields": other})
    assert from_name("numpy.datetime64", {"unit": "s", "scale_factor": 1}) != from_name("int64") != "int64"


def test_what_npy_files_lack_is_void_also_inside_fields() -> None:
    dtype = np.dtype([("a", ml_dtypes.bfloat16), ("b", [("c", ml_dtypes.int4, (2,)), ("d", "<f8")])])
    assert from_numpy(dtype).npy_dtype == np.dtype([("a", "V2"), ("b", [("c", "V1", (2,)), ("d", "<f8")])])
    assert from_name("float8_e5m2").npy_dtype == np.dtype("V1")


@pytest.mark.parametrize(
    ("name", "configuration"),
    [
        ("r0", None),
        ("r7", None),
        ("r08", None),
        ("r99999999999999999999", None),
        (f"r{8 * (data_type.MAX_ITEMSIZE + 1)}", None),
        (3, None),
        (None, None),
        ("structured", None),
        ("structured", {"fields": []}),
        ("structured", {"fields": {}}),
        ("structured", {"fields": ["a"]}),
        ("structured", {"fields": [["", "int8"]]}),
        ("structured", {"fields": [["a", "int8"], ["a", "int8"]]}),
        ("structured", {"fields": [["a", "int8", [0]]]}),
        ("structured", {"fields": [["a", "int8", [2**24, 2**24]]]}),
        ("structured", {"fields": [["a", {"name": "structured", "configuration": "fields"}]]}),
        ("structured", {"fields": [["a", {"name": "raw_bytes", "configuration": ["length_bytes"]}]]}),
        ("raw_bytes", {"length_bytes": 0}),
        ("raw_bytes", {"length_bytes": True}),
        ("raw_bytes", {"length_bytes": data_type.MAX_ITEMSIZE + 1}),
        ("raw_bytes", {}),
        ("fixed_length_utf32", {"length_bytes": 6}),
        ("numpy.datetime64", {"unit": "fortnight", "scale_factor": 1}),
        ("numpy.datetime64", {"unit": "s", "scale_factor": 0}),
        ("numpy.datetime64", {"unit": "s", "scale_factor": 2**31}),
        ("int32", ["x"]),
    ],
)
def test_a_type_that_is_wrong_is_refused(name: object, configuration: Any) -> None:
    with pytest.raises(MetadataError):
        from_name(name, configuration)


@pytest.mark.parametrize(
    ("name", "configuration"),
    [("int128", None), ("object", None), ("string", {"x": 1}), ("int32", {"x": 1}), ("r8", {"x": 1}), ("", None)],
)
def test_a_type_that_is_not_known_is_unsupported(name: str, configuration: Any) -> None:
    with pytest.raises(MetadataUnsupported):
        from_name(name, configuration)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([["a", "int8"], ["text", "string"]], "field 'text' has no fixed size"),
        ([[f"f{number}", "int8"] for number in range(data_type.MAX_FIELDS + 1)], "fields exceed the limit"),
        ([{"name": "a", "data_type": "int8", "offset": 4}], "field of data type structured: unknown member 'offset'"),
        ([["a", {"name": "int16", "endian": "big"}]], "data type of field 'a': unknown member 'endian'"),
        ([["a", {"name": "struct", "configuration": {"fields": [["b", "int8"]]}, "size": 8}]], "unknown member 'size'"),
    ],
    ids=["text", "many", "member of a field", "member of a type", "member of a nested type"],
)
def test_fields_that_cannot_be_read_are_unsupported_and_said_to_be(fields: Any, why: str) -> None:
    with pytest.raises(MetadataUnsupported, match=why):
        from_name("structured", {"fields": fields})


def test_members_of_fields_that_may_be_ignored_are() -> None:
    ignored = {"must_understand": False}
    fields = [{"name": "a", "data_type": {"name": "int16", "x": ignored, "must_understand": True}, "y": ignored}]
    assert from_name("struct", {"fields": fields}).dtype == np.dtype([("a", "<i2")])


def test_nesting_ends_somewhere() -> None:
    nested: Any = "int8"
    for _ in range(40):
        nested = {"name": "structured", "configuration": {"fields": [["a", nested]]}}
    with pytest.raises(MetadataError):
        from_name(nested["name"], nested["configuration"])


def test_no_message_is_as_long_as_a_hostile_document() -> None:
    with pytest.raises(MetadataUnsupported) as caught:
        from_name("x" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("O"),
        np.dtype("g"),
        np.dtype("G"),
        np.dtype("V0"),
        np.dtype([("a", "O")]),
        np.dtype([("a", "i1"), ("b", "i4")], align=True),
        np.dtype(("i4", 2)),
    ],
)
def test_elements_that_no_layout_can_say_are_unsupported(dtype: np.dtype[Any]) -> None:
    with pytest.raises(MetadataUnsupported):
        from_numpy(dtype)


@pytest.mark.parametrize(
    ("dtype", "why"),
    [
        (np.dtype([("a", "i1"), ("b", "i4")], align=True), "gaps between their fields"),
        (np.dtype([(("title", "a"), "i4")]), "titles of fields"),
    ],
    ids=["gaps", "titles"],
)
def test_the_reason_against_fields_is_the_true_one(dtype: np.dtype[Any], why: str) -> None:
    with pytest.raises(MetadataUnsupported, match=f"have {why}, which no Zarr layout can represent"):
        from_numpy(dtype)


def test_object_elements_have_no_place_among_plain_ones() -> None:
    data_type.require_plain(from_name("int8"), "npy")
    with pytest.raises(NotRepresentable):
        data_type.require_plain(DataType("string", np.dtype("O")), "npy")
