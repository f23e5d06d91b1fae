"""Documents in pieces give the same result as Python's parser for the whole.

With every limit set low, all branches of a piecewise reader occur in documents of a few hundred characters.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given
from hypothesis import strategies as st

from tests.support.length import tries
from zarrfs.dialects import documents, json_text
from zarrfs.dialects.json_text import JsonText
from zarrfs.errors import MetadataError
from zarrfs.model.unparsed import Unparsed

LOOSE = frozenset({(), ("attributes",), ("metadata", "copy")})
names = st.sampled_from(["attributes", "metadata", "copy", "a", "b", '"', "\\", "é", "{", ","]) | st.text(max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(names, inner, max_size=8),
    max_leaves=60,
)
objects = st.dictionaries(names, values, max_size=12)


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "SMALL_NBYTES", 16)
    monkeypatch.setattr(json_text, "_PIECE_NBYTES", 40)
    monkeypatch.setattr(json_text, "_SHORT", 12)


def whole(value: Any) -> Any:
    """Return ``value`` with its unparsed parts parsed."""
    if isinstance(value, Unparsed):
        return json.loads(value.data)
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    return value


def accepts(text: str) -> bool:
    """Return True if Python's parser accepts it, with duplicate members refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        json.loads(text, object_pairs_hook=unique)
    except ValueError:
        return False
    return True


many = tries(60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@many
@given(objects, st.sampled_from([None, 0, 2]), st.sampled_from([(), LOOSE]))
def test_a_document_says_what_it_says_as_a_whole(value: dict[str, Any], indent: int | None, loose: Any) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    assume(not any(0xD800 <= ord(each) < 0xE000 for each in text))
    assert whole(JsonText(text.encode()).whole(loose)) == value


@many
@given(
    objects,
    st.integers(0, 2000),
    st.sampled_from(["", ",", "]", "}", "[", "{", '"', ":", "1", "\\", " ", '"a":1,', ",,"]),
    st.booleans(),
)
@example({"a": [1] * 30}, 61, ",", False)
@example({"a": [[1]] * 30, "b": {}}, 90, ",,", False)
@example({"a": {"b": 1234567890123456789}, "c": 1}, 31, "]", True)
def test_what_is_no_json_is_refused_and_what_is_is_not(value: dict[str, Any], at: int, put_in: str, replaces: bool) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assume(not any(0xD800 <= ord(each) < 0xE000 for each in text))
    at %= len(text) + 1
    changed = text[:at] + put_in + text[at + replaces :]
    try:
        JsonText(changed.encode()).whole(LOOSE)
        accepted = True
    except ValueError:
        accepted = False
    assert accepted == accepts(changed), changed


@many
@given(objects, values)
def test_a_member_is_set_and_every_other_byte_stays(value: dict[str, Any], new: Any) -> None:
    text = json.dumps(value | {"attributes": {"kept": [1.50, {"x": []}]}}, indent=1)
    changed = documents.patched("k", text.encode(), ["attributes", "new"], new).decode()
    assert json.loads(changed)["attributes"] == {"kept": [1.50, {"x": []}], "new": new}
    assert json.loads(changed) == json.loads(text) | {"attributes": {"kept": [1.50, {"x": []}], "new": new}}


@many
@given(objects)
def test_what_was_not_parsed_is_written_as_it_was_read(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    read = documents.parse_object("k", text.encode(), LOOSE)
    assert json.loads(documents.dump(read, indent=2)) == value


def test_two_members_of_one_name_are_refused_wherever_they_lie() -> None:
    inner = ", ".join(f'"k{n}": [{n}]' for n in range(50))
    for text in (f'{{"a": {{{inner}, "k3": 1}}}}', f'{{{inner}, "k49": 1}}', f'{{"a": [[{{{inner}, "k0": []}}], 1]}}'):
        with pytest.raises(MetadataError, match="duplicate member"):
            documents.parse_object("k", text.encode(), LOOSE)


def test_a_document_of_too_many_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_VALUES", 100)
    text = '{"a": ["' + "," * 200 + '"]}'
    assert documents.parse_object("k", text.encode())
    for item in ("1", "{}", "[]", '""'):
        with pytest.raises(MetadataError, match="more than 100 values"):
            documents.parse_object("k", f'{{"a": [{", ".join([item] * 101)}]}}'.encode(), LOOSE)


def test_an_object_of_too_many_members_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_MEMBERS", 100)
    for count in (100, 101):
        members = {str(each): {"list": [0] * 101, "text": ",{" * 101} for each in range(count)}
        for value in (members, {"metadata": {"copy": members}}):
            if count == 100:
                assert whole(documents.parse_object("k", json.dumps(value).encode(), LOOSE)) == value
                continue
            with pytest.raises(MetadataError, match="more than 100 members in one object"):
                documents.parse_object("k", json.dumps(value).encode(), LOOSE)


def test_members_that_somebody_looks_into_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_MAX_PARSED", 100)
    text = json.dumps({"codecs": [{}] * 200, "attributes": {"a": [{}] * 200}})
    with pytest.raises(MetadataError, match="outside attributes"):
        documents.parse_object("k", text.encode(), documents.ATTRIBUTES)
    text = json.dumps({"codecs": [], "attributes": {"a": [{}] * 200}})
    assert isinstance(documents.parse_object("k", text.encode(), documents.ATTRIBUTES)["attributes"]["a"], Unparsed)


@given(objects, objects)
def test_a_document_that_is_measured_once_says_the_same_to_every_reader(value: dict[str, Any], other: dict[str, Any]) -> None:
    data = json_text.LargeDocument(json.dumps({**value, "attributes": other}).encode())
    assume(json.loads(data) == json.loads(data))
    first = documents.parse_object("key", data, LOOSE)
    assert documents.parse_object("key", data) == json.loads(data)
    assert whole(documents.parse_object("key", data, LOOSE)) == whole(first) == json.loads(data)
    assert documents.patched("key", data, ["attributes"], 1) == documents.patched("key", bytes(data), ["attributes"], 1)
