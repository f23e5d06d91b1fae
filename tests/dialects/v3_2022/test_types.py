"""Data types and fill values of the core draft of 2022, in both of its generations and with its extensions."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.data_types import data_types, elements
from tests.support.length import unhurried
from zarrfs.dialects.v2.types import Stored
from zarrfs.dialects.v3_2022.dialect import PLUGIN, V3Draft2022Layout
from zarrfs.dialects.v3_2022.entry_point import EntryPoint
from zarrfs.dialects.v3_2022.fill_values import format_fill, parse_fill
from zarrfs.dialects.v3_2022.types import format_type, parse_type, plain_type
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.metadata import ArrayNode

DATETIME = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"
STRING = "https://purl.org/zarr/spec/extensions/data-types/string/1.0"
STRUCT = "https://purl.org/zarr/spec/extensions/data-types/struct/1.0"
NAN_WITH_PAYLOAD = bytes.fromhex("0100c07f")


def stored(value: Any) -> Stored:
    warnings: list[str] = []
    found = parse_type(value, fallbacks=True, warnings=warnings)
    assert not warnings
    return found


def array(dialect: Any = PLUGIN, *, software: bool = False, **members: Any) -> ArrayNode:
    document = {
        "shape": [5],
        "data_type": "int32",
        "chunk_grid": {"type": "regular", "chunk_shape": [2], "separator": "/"},
        "chunk_memory_layout": "C",
        "fill_value": 0,
        "extensions": [],
        "attributes": {},
    } | members
    layout = V3Draft2022Layout(dialect, Prefix(""), EntryPoint(software=software))
    path = NodePath("/a")
    node = layout.parse(path, {layout.document_keys(path)[0]: json.dumps(document).encode()})
    assert isinstance(node, ArrayNode)
    return node


# --- data types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bool", "|b1"),
        *((f"int{bits}", f"<i{bits // 8}") for bits in (8, 16, 32, 64)),
        *((f"uint{bits}", f"<u{bits // 8}") for bits in (8, 16, 32, 64)),
        *((f"float{bits}", f"<f{bits // 8}") for bits in (16, 32, 64)),
        *((f"complex{bits}", f"<c{bits // 8}") for bits in (64, 128)),
        ("r8", "|V1"),
        ("r16", "|V2"),
        ("r24", "|V3"),
        ("r1024", "|V128"),
    ],
)
def test_core_data_types(name: str, dtype: str) -> None:
    """Table 1."""
    assert stored(name) == np.dtype(dtype)
    assert format_type(np.dtype(dtype), software=False) == name
    assert stored({"extension": STRUCT, "type": name}) == np.dtype(dtype)


@pytest.mark.parametrize("name", ["i1", "u1", "|i1", "|b1", "<i2", ">i2", "<u8", ">u8", "<f2", ">f4", "<f8", "<c8", ">c16"])
def test_core_data_types_as_software_writes_them(name: str) -> None:
    assert stored(name) == np.dtype(name)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("|b1", "bool"), ("|i1", "i1"), ("|u1", "u1"), ("<i2", "<i2"), (">u4", ">u4"), ("<f8", "<f8"), (">f2", ">f2")],
)
def test_what_the_software_writes_for_core_data_types(dtype: str, name: str) -> None:
    assert format_type(np.dtype(dtype), software=True) == name


@pytest.mark.parametrize(
    "name",
    [
        "int4",
        "i4",
        "f8",
        "float8",
        "r12",
        "r0",
        "r",
        "r08",
        "f16",
        "<f16",
        "<i3",
        "",
        "string",
        "M8",
        "<M8",
        ">M8[x]",
        "<M8[generic]",
    ],
)
def test_types_that_are_not_known_are_refused(name: str) -> None:
    with pytest.raises(MetadataError):
        stored(name)


@pytest.mark.parametrize("value", [None, 7, [], {}, {"extension": DATETIME}, {"type": None}, [["a"]], [["a", 7]], [[1, "<i4"]]])
def test_what_is_no_type_is_refused(value: Any) -> None:
    with pytest.raises(MetadataError):
        stored(value)


@pytest.mark.parametrize("name", ["r99999999999", "r800000000", "S99999999", "<U9999999"])
def test_types_that_are_too_large_are_refused(name: str) -> None:
    with pytest.raises(MetadataError):
        stored(name)


@pytest.mark.parametrize(
    ("uri", "named", "dtype"),
    [
        (DATETIME, "<M8[ns]", "<M8[ns]"),
        (DATETIME, ">m8[D]", ">m8[D]"),
        (DATETIME, "<m8[as]", "<m8[as]"),
        (STRING, "S4", "|S4"),
        (STRING, "|S4", "|S4"),
        (STRING, "<U4", "<U4"),
        (STRING, ">U4", ">U4"),
        (STRUCT, [["name", "<U10"], ["age", "<i4"], ["weight", "<f4"]], [("name", "<U10"), ("age", "<i4"), ("weight", "<f4")]),
        (STRUCT, [["a", "int32"], ["b", "r16"], ["c", "bool"]], [("a", "<i4"), ("b", "|V2"), ("c", "|b1")]),
        (STRUCT, [["a", ">i4"], ["b", [["c", "S2"]]]], [("a", ">i4"), ("b", [("c", "S2")])]),
        (STRUCT, [["a", "<f4", [2, 3]]], [("a", "<f4", (2, 3))]),
        ("TODO: structured array protocol URL", [["", "|V6"]], "|V6"),
        ("TODO: bytestring array protocol URL", "|S4", "|S4"),
        ("", "<c8", "<c8"),
    ],
)
def test_extension_types_count_by_their_type(uri: str, named: Any, dtype: Any) -> None:
    for value in ({"extension": uri, "type": named}, {"type": named, "fallback": None}):
        assert stored(value) == np.dtype(dtype)


FOREIGN = "http://example.org/x"


@pytest.mark.parametrize(
    "named",
    [">i4", "int32", "<M8[s]", "|S4", 7, 1.5, None, True, {"bits": 12}, {"type": "<i4"}, ["int32"], [["a", ">i4"]], [], "", {}],
)
def test_what_a_type_means_is_its_extension_s_to_say_and_the_fallback_is_read(named: Any) -> None:
    for uri in (FOREIGN, "https://purl.org/zarr/spec/extensions/data-types/datetime/2.0", "https://example.org/string/1.0", 7, {}):
        node = array(data_type={"extension": uri, "type": named, "fallback": "uint32"}, fill_value=0)
        assert node.metadata.data_type.dtype == np.dtype("<u4")
        assert node.metadata.codecs[0].configuration == {"endian": "little"}
        assert any("fallback" in warning for warning in node.warnings)
        with pytest.raises(MetadataUnsupported, match="unknown"):
            stored({"extension": uri, "type": named})


@pytest.mark.parametrize("named", [7, None, {"bits": 12}, [["a"]], [["a", 7]], [["a", {"extension": FOREIGN, "type": "<i4"}]], ""])
def test_what_is_no_type_of_a_known_extension_has_its_fallback_read(named: Any) -> None:
    for value in ({"extension": STRUCT, "type": named}, {"type": named}):
        warnings: list[str] = []
        fallback = ["nothing", {"extension": FOREIGN, "type": ">i2"}, "r32"]
        assert parse_type({**value, "fallback": fallback}, fallbacks=True, warnings=warnings) == np.dtype("|V4")
        assert len(warnings) == 1


def test_an_extension_type_with_other_members_is_refused() -> None:
    with pytest.raises(MetadataUnsupported, match="endian"):
        array(data_type={"extension": STRING, "type": "<U4", "fallback": "r128", "endian": "big"})


def test_a_field_whose_type_has_other_members_makes_its_struct_unknown() -> None:
    field = {"extension": DATETIME, "type": "<M8[s]", "fallback": "int64"}
    named = {"extension": STRUCT, "type": [["a", "int16"], ["b", field]], "fallback": "r80"}
    assert stored(named) == np.dtype([("a", "<i2"), ("b", "<M8[s]")])
    field["epoch"] = "2000-01-01"
    warnings: list[str] = []
    assert parse_type(named, fallbacks=True, warnings=warnings) == np.dtype("|V10")
    assert len(warnings) == 1


def test_a_big_endian_datetime_needs_no_codec() -> None:
    metadata = array(data_type={"extension": DATETIME, "type": ">m8[D]"}).metadata
    assert metadata.data_type.dtype == np.dtype("<m8[D]")
    assert metadata.codecs[0].configuration == {"endian": "big"}


@pytest.mark.parametrize(
    ("fallback", "dtype"), [("uint16", "<u2"), ("r16", "|V2"), (["strange32", "int32", "r32"], "<i4"), ("<i8", "<i8")]
)
def test_the_first_fallback_that_is_known_is_used_and_told(fallback: Any, dtype: str) -> None:
    """ "data_type": may proceed using the first known fallback; should not be silent about it."""
    quux = {"extension": "http://example.org/zarr/dtypes/quux/1.0", "type": "quux16", "fallback": fallback}
    node = array(data_type=quux)
    assert node.metadata.data_type.dtype == np.dtype(dtype)
    assert any("quux16" in warning and "fallback" in warning for warning in node.warnings)
    assert set(node.warnings) <= set(node.quirks)


@pytest.mark.parametrize("fallback", [None, "foo", [], ["foo", "bar"], "|O", 7, {"type": "foo"}])
def test_without_a_fallback_that_is_known_a_type_is_refused(fallback: Any) -> None:
    with pytest.raises(MetadataUnsupported, match="quux"):
        array(data_type={"extension": "x", "type": "quux", "fallback": fallback})


def test_fallbacks_can_be_refused() -> None:
    """ "data_type": consider options to deactivate fallback behavior."""
    refusing = PLUGIN.choosing({"fallback": "refuse"})
    with pytest.raises(MetadataUnsupported, match="quux"):
        array(refusing, data_type={"extension": "x", "type": "quux", "fallback": "uint16"})
    assert (
        array(refusing, data_type={"extension": STRING, "type": "S4", "fallback": "r32"}, fill_value="").metadata.data_type.itemsize
        == 4
    )
    assert PLUGIN.choosing({"fallback": "use"}).fallbacks


def test_a_known_type_is_not_read_as_its_fallback() -> None:
    node = array(data_type={"extension": DATETIME, "type": "<M8[s]", "fallback": "int64"})
    assert node.metadata.data_type.dtype == np.dtype("<M8[s]")
    assert node.quirks == node.warnings == ()


def test_a_fill_value_that_only_the_extension_could_read_is_undefined() -> None:
    node = array(data_type={"extension": "x", "type": "quux", "fallback": "r32"}, fill_value={"x": 1})
    assert node.metadata.fill_value is None
    assert any("fill_value" in quirk for quirk in node.quirks)


@pytest.mark.parametrize(
    ("dtype", "text", "software"),
    [
        ("<M8[ns]", {"extension": DATETIME, "type": "<M8[ns]", "fallback": "int64"}, "datetime"),
        (">m8[D]", {"extension": DATETIME, "type": ">m8[D]", "fallback": "int64"}, "datetime"),
        ("|S4", {"extension": STRING, "type": "S4", "fallback": "r32"}, "bytestring"),
        ("<U4", {"extension": STRING, "type": "<U4", "fallback": "r128"}, "unicode"),
        (
            [("a", "<i4"), ("b", ">f8")],
            {"extension": STRUCT, "type": [["a", "<i4"], ["b", ">f8"]], "fallback": "r96"},
            "structured",
        ),
    ],
)
def test_how_extension_types_are_written(dtype: Any, text: Any, software: str) -> None:
    assert format_type(np.dtype(dtype), software=False) == text
    said = format_type(np.dtype(dtype), software=True)
    assert software in said["extension"]
    assert said["fallback"] is None
    assert stored(said) == np.dtype(dtype)
    assert format_type(np.dtype("<c8"), software=True)["type"] == "<c8"


@unhurried
@given(data_type=data_types(), big=st.booleans(), software=st.booleans())
def test_types_are_read_as_they_were_written(data_type: Any, big: bool, software: bool) -> None:
    try:
        wanted = plain_type(data_type, big_endian=big)
    except NotRepresentable:
        assume(False)
    try:
        said = json.loads(json.dumps(format_type(wanted, software=software)))
    except NotRepresentable as error:
        assume("multiples of a unit" not in str(error))
        raise
    if not software and isinstance(said, str):
        # The byte order is a codec there.
        wanted = wanted.newbyteorder("<")
    assert stored(said) == wanted


# --- fill values ----------------------------------------------------------------------------------------------------------


def fill(value: Any, dtype: Any, *, as_text: bool = False) -> bytes | None:
    return parse_fill(value, np.dtype(dtype), as_text=as_text)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("|b1", True, b"\1"),
        ("|b1", False, b"\0"),
        ("|b1", "0x01", b"\1"),
        ("<i4", -1, b"\xff\xff\xff\xff"),
        (">i4", 1, b"\1\0\0\0"),
        ("<u8", 2**64 - 1, b"\xff" * 8),
        ("<i2", "0xfffe", struct.pack("<h", -2)),
        ("<u2", "0x0102", b"\2\1"),
        (">u2", "0x0102", b"\2\1"),
        ("|u1", "0b10100101", b"\xa5"),
        ("<u2", "0b0000000100000010", b"\2\1"),
        ("<f4", "NaN", struct.pack("<f", float("nan"))),
        ("<f4", "+Infinity", struct.pack("<f", float("inf"))),
        ("<f4", "Infinity", struct.pack("<f", float("inf"))),
        ("<f8", "-Infinity", struct.pack("<d", float("-inf"))),
        ("<f8", 3, struct.pack("<d", 3)),
        ("<f4", "0x7fc00001", NAN_WITH_PAYLOAD),
        ("<f8", "0x3ff0000000000000", struct.pack("<d", 1)),
        ("<f2", "0b0011110000000000", np.float16(1).tobytes()),
        ("<c8", [3.0, "NaN"], struct.pack("<ff", 3, float("nan"))),
        ("<c8", ["0x7fc00001", "+Infinity"], NAN_WITH_PAYLOAD + struct.pack("<f", float("inf"))),
        ("<c8", "0x3f80000040000000", struct.pack("<ff", 1, 2)),
        ("<c16", 2, struct.pack("<dd", 2, 0)),
        ("|V3", "0x010203", b"\1\2\3"),
        ("|V2", "0b0000000100000010", b"\1\2"),
        ("|V3", "AQID", b"\1\2\3"),
        ("<M8[ns]", 5, b"\5" + bytes(7)),
        (">m8[D]", -1, b"\xff" * 8),
        ("<M8[ns]", "NaT", bytes(7) + b"\x80"),
        ("|S4", "ZmY=", b"ff\0\0"),
        ("|S4", "", b"\0\0\0\0"),
        ("|S4", "0x61620000", b"ab\0\0"),
        ("|S4", 0, b"0\0\0\0"),
        ("<U2", "?", "?".encode("utf-32-le") + bytes(4)),
        ("<U4", "0xab", "0xab".encode("utf-32-le")),
        ([("a", "<i2"), ("b", ">i2")], "AQAAAg==", b"\1\0\2\0"),
        ([("a", "<i2"), ("b", ">i2")], "0x01000002", b"\1\0\2\0"),
        ([("a", "<i2"), ("b", ">i2")], 0, bytes(4)),
    ],
)
def test_fill_values(dtype: Any, value: Any, expected: bytes) -> None:
    assert fill(value, dtype) == expected


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("|b1", 1),
        ("|b1", "true"),
        ("|b1", "0x02"),
        ("<i4", 3.0),
        ("<i4", 3.5),
        ("<i4", 1e2),
        ("<i4", True),
        ("|i1", 128),
        ("|u1", -1),
        ("<i4", "7"),
        ("<i2", "0xfe"),
        ("<i2", "0x0fffe"),
        ("<i2", "0x00fffe"),
        ("<i2", "0xFFFG"),
        ("<i2", "0b1"),
        ("<i2", "0x"),
        ("<i2", "fffe"),
        ("<f4", "0x7fc001"),
        ("<f4", "nan"),
        ("<f4", True),
        ("<f4", None.__class__.__name__),
        ("<c8", [1]),
        ("<c8", [1, 2, 3]),
        ("<c8", ["0x00", 1]),
        ("|V3", "0x0102"),
        ("|V3", "0x01"),
        ("|V9", "0b00000001"),
        ("|S3", "0x01"),
        ([("a", "|V3")], "0x01"),
        ([("a", "<i2"), ("b", "<i4")], "0x010203"),
        ("|V3", "AQI="),
        ("|V3", [1, 2, 3]),
        ("|S2", "YWJj"),
        ("|S2", "?"),
        ("<U1", "ab"),
        ("<M8[ns]", 1.5),
        ([("a", "<i2")], {"a": 1}),
        ([("a", "<i2")], 1),
    ],
)
def test_fill_values_that_are_none_of_the_type(dtype: Any, value: Any) -> None:
    with pytest.raises(MetadataError):
        fill(value, dtype)


def test_fill_values_of_the_text_s_strings_are_text() -> None:
    assert fill("ZmY=", "|S4", as_text=True) == b"ZmY="
    assert fill("ab", "|S4", as_text=True) == b"ab\0\0"
    assert fill("0x61620000", "|S4", as_text=True) == b"ab\0\0"
    with pytest.raises(MetadataError):
        fill("abcde", "|S4", as_text=True)
    assert array(data_type={"extension": STRING, "type": "S4"}, fill_value="ZmY=").metadata.fill_value == b"ZmY="
    assert array(data_type={"extension": STRING, "type": "|S4"}, fill_value="ZmY=").metadata.fill_value == b"ff\0\0"


def test_a_text_longer_than_its_type_is_cut_as_by_the_software_that_wrote_it() -> None:
    node = array(data_type={"extension": "TODO: unicode array protocol URL", "type": ">U3", "fallback": None}, fill_value="none")
    assert node.metadata.fill_value == "non".encode("utf-32-le")
    assert node.quirks == ('fill_value "none" is longer than 3 characters',)


def test_fill_value_null_is_undefined_and_written_by_the_software_alone() -> None:
    assert fill(None, "<i4") is None
    assert format_fill(None, np.dtype("<i4"), software=True) is None
    assert format_fill(None, np.dtype("<i4"), software=False) == 0


@pytest.mark.parametrize("dtype", ["|V3", "|S3", [("a", "|V3")]])
def test_an_element_whose_base64_looks_like_digits_is_not_written(dtype: Any) -> None:
    """It would be read back as another element."""
    element = base64.b64decode("0x01")
    with pytest.raises(NotRepresentable, match="digits"):
        format_fill(element, np.dtype(dtype), software=True)
    assert fill(format_fill(element, np.dtype(dtype), software=False), dtype) == element


@pytest.mark.parametrize(
    ("dtype", "element", "text", "software"),
    [
        ("<f4", struct.pack("<f", float("inf")), "+Infinity", "Infinity"),
        ("<f4", NAN_WITH_PAYLOAD, "0x7fc00001", "NaN"),
        ("<f4", struct.pack("<f", float("nan")), "NaN", "NaN"),
        ("<c8", struct.pack("<ff", 1, float("-inf")), [1.0, "-Infinity"], [1.0, "-Infinity"]),
        ("|V3", b"\1\2\3", "0x010203", "AQID"),
        ("|S4", b"ff\0\0", "0x66660000", "ZmY="),
        ("|S4", bytes(4), "", ""),
        ([("a", "<i2"), ("b", ">i2")], b"\1\0\2\0", "0x01000002", "AQAAAg=="),
    ],
)
def test_how_fill_values_are_written(dtype: Any, element: bytes, text: Any, software: Any) -> None:
    assert format_fill(element, np.dtype(dtype), software=False) == text
    assert format_fill(element, np.dtype(dtype), software=True) == software


@unhurried
@given(data=st.data(), data_type=data_types(), big=st.booleans())
def test_fill_values_are_read_as_they_were_written(data: st.DataObject, data_type: Any, big: bool) -> None:
    try:
        wanted = plain_type(data_type, big_endian=big)
        element = data.draw(elements(data_type))
        said = json.loads(json.dumps(format_fill(element, wanted, software=False)))
    except NotRepresentable:
        assume(False)
    assert parse_fill(said, wanted, as_text=True) == element


# --- multiples of a unit of time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("text", ["<M8[25s]", ">m8[10ms]"])
def test_new_arrays_have_no_multiples_of_a_unit_which_no_reader_of_the_draft_knows(text: str, software: bool) -> None:
    with pytest.raises(NotRepresentable, match=r"no multiples of a unit of time"):
        format_type(np.dtype(text), software=software)
    # One that exists is read.
    assert stored({"extension": DATETIME, "type": text, "fallback": None}) == np.dtype(text)


@pytest.mark.parametrize("fields", [[("t", "<M8[25s]")], [("a", [("t", "<m8[3D]", (2,))])]])
def test_the_software_reads_them_in_fields(fields: Any) -> None:
    with pytest.raises(NotRepresentable, match="no multiples"):
        format_type(np.dtype(fields), software=False)
    assert stored(format_type(np.dtype(fields), software=True)) == np.dtype(fields)
