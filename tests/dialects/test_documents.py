"""Documents that `zarrfs.dialects.documents` accepts, refuses and leaves unchanged."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from zarrfs.dialects import documents, json_text
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.model.unparsed import Unparsed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=5)


@unhurried
@given(OBJECTS, st.sampled_from([2, 4]))
def test_what_is_dumped_is_parsed_again(value: dict[str, Any], indent: int) -> None:
    assert documents.parse_object("k", documents.dump(value, indent=indent)) == value


@unhurried
@given(st.binary(max_size=64) | st.text(alphabet='{}[]",:0 1eE.-\\utNaIf', max_size=40).map(str.encode))
def test_junk_raises_metadata_error_alone(data: bytes) -> None:
    with contextlib.suppress(MetadataError):
        documents.parse_object("some/key", data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"[1]", "a list"),
        (b"null", "null"),
        (b"3", "a number"),
        (b'{"a": 1', "not JSON"),
        (b'{"a": 1} x', "not JSON"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        (b'{"a": 1, "a": 2}', "duplicate member"),
        (b'{"x": [{"a": 1, "b": 0, "a": 1}]}', "duplicate member"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300"),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "nested"),
        (b"[" * 50_000 + b"]" * 50_000, "nested"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested"),
        (b'{"a": "' + b" " * json_text.MAX_NBYTES + b'"}', "exceeds the limit"),
    ],
)
def test_refused(data: bytes, why: str) -> None:
    with pytest.raises(MetadataError, match=why) as caught:
        documents.parse_object("a/.zarray", data)
    assert caught.value.key == "a/.zarray"
    assert len(str(caught.value)) < 300


def test_the_deepest_document_that_is_read() -> None:
    data = b'{"a": ' + b"[" * 63 + b"]" * 63 + b"}"
    assert documents.dump(documents.parse_object("k", data), indent=4)


def test_bare_tokens_are_floats() -> None:
    value = documents.parse_object("k", b'{"a": NaN, "b": Infinity, "c": -Infinity, "d": 1e400}')
    assert math.isnan(value["a"])
    assert [value[name] for name in "bcd"] == [math.inf, -math.inf, math.inf]
    assert documents.dump(value, indent=2).count(b"Infinity") == 2


def test_a_number_too_large_for_a_float_keeps_its_text() -> None:
    """It is legal JSON, and not infinity."""
    data = b'{"a": 1e999, "b": [-1e400, {"c": 1E+310}], "d": Infinity, "e": "Infinity", "f": 1e-999}'
    value = documents.parse_object("k", data)
    assert documents.dump(value) == data.replace(b"1e-999", b"0.0")
    assert documents.patched("k", b'{"x": 1}', ["x"], value["b"]) == b'{"x": [-1e400, {"c": 1E+310}]}'


def test_escapes() -> None:
    value = documents.parse_object("k", rb'{"a\/b": "\u00e9\udcff", "c": "' + "é".encode() + b'"}')
    assert value == {"a/b": "é\udcff", "c": "é"}
    assert documents.parse_object("k", documents.dump(value, indent=2)) == value


@pytest.mark.parametrize(
    ("escaped", "expected"),
    [
        (rb'{"a": "\u00b0C", "l\u00e4nge": ["\u4e2d\u6587"]}', '{"a": "°C", "länge": ["中文"]}'),
        (rb'"\ud83d\ude00\uD83D\uDE00"', '"😀😀"'),
        # Backslashes, quotes and control characters.
        (rb'"\\u00e9 \\\u00e9 \n\u00e9 \"\u00e9"', r'"\\u00e9 \\é \né \"é"'),
        (rb'"\u0022 \u005c \u0041 \u0000 \u001b \u009b"', r'"\u0022 \u005c \u0041 \u0000 \u001b \u009b"'),
        # Lone surrogates.
        (rb'"\udcff \ud83d \ude00\ud83d \ud83d\u00e9"', r'"\udcff \ud83d \ude00\ud83d \ud83dé"'),
    ],
)
def test_characters_in_place_of_their_escapes(escaped: bytes, expected: str) -> None:
    assert documents.in_characters(escaped) == expected.encode()
    assert json.loads(documents.in_characters(escaped)) == json.loads(escaped)


@unhurried
@given(st.text(st.characters() | st.sampled_from('\\"u0\u00e9\ud83d\ude00'), max_size=12))
def test_text_with_characters_in_place_of_escapes_is_the_same_text(text: str) -> None:
    shown = documents.in_characters(json.dumps(text).encode())
    # Two escapes, of a high and of a low surrogate, are one character in JSON.
    assert json.loads(shown) == json.loads(json.dumps(text))
    assert documents.in_characters(shown) == shown


def test_the_form_zarr_python_writes() -> None:
    value = {"shape": [2, 3], "a": {}, "fill_value": math.nan}
    expected = json.dumps(value, indent=4, sort_keys=True, ensure_ascii=True, separators=(",", ": "))
    assert documents.dump(value, indent=4, sort_keys=True) == expected.encode()
    assert documents.dump(value, indent=2) == json.dumps(value, indent=2).encode()


ORIGINAL = b"""{
    "b": 1.50e3, "zz": {"inner" : [ 1 ]},
    "shape": [
        2,
        3
    ],
    "x\\/y": 0.10000000000000000000001
}
"""


def test_a_patch_leaves_every_other_byte() -> None:
    patched = documents.patched("k", ORIGINAL, ["shape"], [5, 3])
    assert patched == ORIGINAL.replace(b"2,", b"5,")


def test_a_patch_reaches_into_inner_objects() -> None:
    assert documents.patched("k", ORIGINAL, ["zz", "inner"], {}) == ORIGINAL.replace(b"[ 1 ]", b"{}")


def test_a_patch_adds_what_is_missing_at_the_end() -> None:
    assert documents.patched("k", ORIGINAL, ["new"], {"a": 1}) == ORIGINAL.replace(
        b"0001\n", b'0001,\n    "new": {\n        "a": 1\n    }\n'
    )
    assert documents.patched("k", b'{"a":1}', ["b"], [1, 2]) == b'{"a":1, "b": [1, 2]}'
    assert documents.patched("k", b"{}", ["b"], 1) == b'{"b": 1}'
    assert documents.patched("k", b'{\n  "m": {}\n}', ["m", "b"], 1) == b'{\n  "m": {\n    "b": 1\n  }\n}'


@unhurried
@given(OBJECTS, st.text(max_size=5), JSON, st.sampled_from([None, 2, "\t"]))
def test_a_patch_changes_the_member_alone(value: dict[str, Any], name: str, new: Any, indent: Any) -> None:
    patched = documents.patched("k", json.dumps(value, indent=indent).encode(), [name], new)
    assert documents.parse_object("k", patched) == {**value, name: new}


@unhurried
@given(st.dictionaries(st.text(max_size=3), OBJECTS, min_size=1, max_size=3), st.data(), JSON)
def test_a_patch_two_levels_down(value: dict[str, dict[str, Any]], data: st.DataObject, new: Any) -> None:
    outer = data.draw(st.sampled_from(sorted(value)))
    inner = data.draw(st.text(max_size=5))
    patched = documents.patched("k", documents.dump(value, indent=4), [outer, inner], new)
    assert documents.parse_object("k", patched) == {**value, outer: {**value[outer], inner: new}}


@pytest.mark.parametrize("path", [["absent", "x"], ["b", "x"], ["shape", "x"]])
def test_a_patch_inside_what_is_no_object_is_refused(path: list[str]) -> None:
    with pytest.raises(MetadataError) as caught:
        documents.patched("k", ORIGINAL, path, 1)
    assert caught.value.key == "k"


@pytest.mark.parametrize("value", [True, 1.0, -1, 2**63, "1", None, [1], 10**4000])
def test_no_length(value: Any) -> None:
    with pytest.raises(MetadataError, match="shape"):
        documents.integers([value], "shape")


def test_lengths() -> None:
    assert documents.integers([0, 2**63 - 1], "shape") == (0, 2**63 - 1)
    assert documents.shape([1] * 32, "shape") == (1,) * 32
    with pytest.raises(MetadataUnsupported, match="33 dimensions"):
        documents.shape([1] * 33, "shape")
    with pytest.raises(MetadataError, match="a list of integers"):
        documents.shape("4", "shape")


def test_members_of_the_right_kind() -> None:
    document = {"s": "x", "l": [1], "o": {}}
    assert documents.string(documents.member(document, "s"), "s") == "x"
    assert documents.array(document["l"], "l") == [1]
    assert documents.mapping(document["o"], "o") == {}
    with pytest.raises(MetadataError, match="t is missing"):
        documents.member(document, "t")
    for helper in (documents.string, documents.array, documents.mapping):
        with pytest.raises(MetadataError, match="what"):
            helper(7, "what")


def test_the_key_is_named_once() -> None:
    with pytest.raises(MetadataUnsupported, match="outer: why") as caught, documents.naming("outer"):
        raise MetadataUnsupported("why")
    assert caught.value.key == "outer"
    with pytest.raises(MetadataError, match=r"^inner: why$"), documents.naming("outer"):
        raise MetadataError("inner: why", key="inner")


def test_a_hostile_value_is_never_quoted_at_length() -> None:
    for value in (10**4000, ["x"] * 1000, "x" * 1000, [["x" * 1000]], {"a": "x" * 1000}):
        assert len(documents.shortened(value)) <= 84


def test_depth_is_counted_before_anything_is_parsed() -> None:
    """The parser recurses in C: on a small stack a deep document ended the process."""
    deep = b'{"a":' + b"[" * json_text.MAX_DEPTH + b"]" * json_text.MAX_DEPTH + b"}"
    with pytest.raises(MetadataError, match="nested deeper"):
        documents.parse_object("k", deep)
    flat = b'{"a": "' + b"[{" * 100 + b'\\"[", "b": [' + b"[]," * 200 + b"[]]}"
    assert len(documents.parse_object("k", flat)["b"]) == 201


# --- several members at once ------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d,e", "}"])


@unhurried
@given(
    members=st.dictionaries(NAMES, st.integers() | st.text('{,}"', max_size=3) | st.just({"x": [1, {}]}), max_size=4),
    changes=st.dictionaries(NAMES, st.integers() | st.just({"y": 1}), max_size=3),
    gone=st.sets(NAMES, max_size=3),
    indent=st.sampled_from([None, 2, 4]),
    inner=st.booleans(),
)
def test_merging_is_patching_many_members_in_one_pass(
    members: dict[str, Any], changes: dict[str, Any], gone: set[str], indent: int | None, inner: bool
) -> None:
    gone -= changes.keys()
    outer: dict[str, Any] = {"before": 1e400, "inner": members, "after": [1]}
    document = outer if inner else members
    data = json.dumps(document, indent=indent).encode()
    changed = documents.merged("k", data, ["inner"] if inner else [], changes, gone)
    expected = {name: value for name, value in members.items() if name not in gone} | changes
    found = json.loads(changed)
    assert found == ({**document, "inner": expected} if inner else expected)
    # New members come last, the others keep their position, and the whole is formatted as if written at once.
    assert list(found["inner"] if inner else found) == list(expected)
    # An empty document does not show its indentation.
    if indent is not None and document and expected:
        assert changed == json.dumps(found, indent=indent).encode()


def test_merging_keeps_every_byte_of_what_is_not_meant() -> None:
    data = b'{\n\t"x" : {"keep":1.50,   "old" :\t[ 1 ] , "far": "\\u00e9" }\n}\n'
    assert (
        documents.merged("k", data, ["x"], {"new": 1}, ["old"])
        == b'{\n\t"x" : {"keep":1.50, "far": "\\u00e9",\n\t\t"new": 1 }\n}\n'
    )
    assert documents.merged("k", data, ["x"], {}, []) == data


@pytest.mark.parametrize("path", [["missing"], ["n"], ["x", "keep"]])
def test_merging_needs_an_object(path: list[str]) -> None:
    with pytest.raises(MetadataError, match="is not an object"):
        documents.merged("k", b'{"x": {"keep": 1}, "n": [1]}', path, {"a": 1})


@pytest.mark.parametrize("length", [10, 300, 3000, 5000])
@pytest.mark.parametrize("behind", [True, False])
def test_copies_and_attributes_of_any_number_and_length_take_no_room_from_the_rest(length: int, behind: bool) -> None:
    """Consolidated copies of thousands of arrays are the rule in large stores."""
    copies = {f"a{n}": {"text": "x" * length, "values": [1, 2, 3]} for n in range(8_000_000 // (length + 100))}
    rest = {"shape": [1, 2], "codecs": [{"name": "bytes"}] * 100}
    members = rest | {"copy": copies} if behind else {"copy": copies} | rest
    read = documents.parse_object("k", json.dumps(members).encode(), frozenset({("copy",)}))
    assert {name: read[name] for name in rest} == rest
    assert read["copy"].keys() == copies.keys()
    for name in ("a0", "a1", list(copies)[-1]):
        found = read["copy"][name]
        assert (json.loads(found.data) if isinstance(found, Unparsed) else found) == copies[name]
