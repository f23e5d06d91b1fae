"""Documents and nodes that a dialect refuses: each error states the defect in terms of the document."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from zarrfs.dialects import documents, json_text
from zarrfs.dialects.json_text import JsonText
from zarrfs.dialects.v0 import PLUGIN as V0
from zarrfs.dialects.v1 import PLUGIN as V1
from zarrfs.dialects.v2.objects import object_filters
from zarrfs.dialects.v2.types import dtype_from_json, dtype_to_json
from zarrfs.dialects.v3_2022.types import format_type
from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import OBJECT, STRING
from zarrfs.model.metadata import GroupNode

# --- text in pieces -----------------------------------------------------------------------------------------------------------------

NUMBERS = ", ".join(["12"] * 30)
BROKEN = {
    "two commas": (f'{{"a": [{NUMBERS}, , {NUMBERS}]}}', "Expecting value"),
    "a comma at the end": (f'{{"a": [{NUMBERS}, ]}}', "Expecting value"),
    "no comma": (f'{{"a": [{NUMBERS} [1] {NUMBERS}]}}', "Expecting ',' delimiter"),
    "no name": (f'{{"a": {{"b": [{NUMBERS}], 3: [{NUMBERS}]}}}}', "Expecting property name"),
    "no colon": (f'{{"a": {{"b": [{NUMBERS}], "c" [{NUMBERS}]}}}}', "Expecting ':' delimiter"),
    "one name twice": (f'{{"a": {{"b": [{NUMBERS}], "b": [{NUMBERS}]}}}}', 'duplicate member "b"'),
    "one name twice, of small values": (
        f'{{"a": {{{", ".join(f"{chr(34)}k{number}{chr(34)}: {number}" for number in range(30))}, "k3": 1}}}}',
        'duplicate member "k3"',
    ),
    "no end of a text": ('{"a": "' + "b" * 100, "Unterminated string"),
    "another bracket": (f'{{"a": [{NUMBERS}}}}}', "Expecting ']'"),
    "no end": (f'{{"a": [{NUMBERS}, [{NUMBERS}', "Unterminated array or object"),
    "something behind": (f'{{"a": [{NUMBERS}]}} {{}}', "Extra data"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_with_a_large_document_is_told_as_of_a_small_one(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "SMALL_NBYTES", 16)
    monkeypatch.setattr(json_text, "_PIECE_NBYTES", 40)
    monkeypatch.setattr(json_text, "_SHORT", 12)
    with pytest.raises(ValueError, match=reason):
        JsonText(text.encode()).whole({()})
    with pytest.raises(MetadataError, match=r"^k: "):
        documents.parse_object(Key("k"), text.encode(), {()})


def test_a_member_is_set_only_where_its_object_is() -> None:
    data = json.dumps({"a": {"b": 1}, "c": 2}).encode()
    assert json.loads(documents.patched("k", data, ["a", "new"], 3)) == {"a": {"b": 1, "new": 3}, "c": 2}
    with pytest.raises(MetadataError, match="k: c is not an object"):
        documents.patched("k", data, ["c", "new"], 3)
    with pytest.raises(MetadataError, match="k: a/x is missing"):
        documents.patched("k", data, ["a", "x", "new"], 3)
    with pytest.raises(ValueError, match="must not be empty"):
        documents.patched("k", data, [], 3)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()], ids=["bytes", "set", "object"])
def test_what_json_has_no_words_for_is_not_written(value: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(value).__name__} is not JSON"):
        documents.dump({"a": [value]})


# --- types --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["<M8[0ns]", "<m8[99999999999999999999s]", "<M8[2147483648D]"])
def test_a_time_that_numpy_does_not_have_is_refused_in_the_words_of_the_document(value: str) -> None:
    with pytest.raises(MetadataError, match=r"^dtype '?\"?<[mM]8"):
        dtype_from_json(value)


def test_a_layout_of_memory_that_only_numpy_has_is_not_written() -> None:
    padded = np.dtype([("a", "i1"), ("b", "<i4")], align=True)
    assert dtype_to_json(np.dtype([("a", "i1"), ("b", "<i4", (2,))])) == [["a", "|i1"], ["b", "<i4", [2]]]
    with pytest.raises(NotRepresentable, match="cannot represent the memory layout"):
        dtype_to_json(padded)
    with pytest.raises(NotRepresentable, match="cannot represent"):
        format_type(padded, software=False)


# --- variable-length elements in v2 ---------------------------------------------------------------------------------------------------

LABELS = CodecSpec("numcodecs.categorize", {"labels": ["a"], "dtype": "|O", "astype": "|u1"})


@pytest.mark.parametrize(
    ("specs", "data_type", "reason"),
    [
        ((), STRING, "needs a filter for elements of type string"),
        ((LABELS,), STRING, "can represent categories only in the form of its own filter"),
        ((LABELS, CodecSpec("gzip", {"level": 1})), STRING, "can represent categories only in the form of its own filter"),
        ((CodecSpec("vlen-utf8"),), OBJECT, "cannot store elements of type object with codec 'vlen-utf8'"),
        ((CodecSpec("numcodecs.json2"),), STRING, r"cannot store elements of type string with codec 'numcodecs\.json2'"),
        ((CodecSpec("gzip", {"level": 1}),), STRING, "cannot store elements of type string with codec 'gzip'"),
    ],
    ids=["nothing", "labels alone", "labels compressed", "text of objects", "objects of text", "no filter"],
)
def test_a_chain_that_v2_has_no_filters_for_is_not_written(specs: tuple[CodecSpec, ...], data_type: Any, reason: str) -> None:
    with pytest.raises(NotRepresentable, match=reason):
        object_filters(specs, data_type)


# --- dialects without groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [V0, V1], ids=["v0", "v1"])
def test_a_dialect_of_arrays_alone_has_no_groups_and_no_nodes_elsewhere(dialect: Any) -> None:
    layout = dialect.create(Prefix("in/"))
    assert layout.node_of_document(Key("elsewhere/meta")) is None
    assert layout.node_of_document(Key("in/a//meta")) is None
    assert layout.node_of_prefix(Prefix("elsewhere/")) is None
    assert layout.node_of_prefix(Prefix("in/../")) is None
    with pytest.raises(NotRepresentable, match="has no groups"):
        layout.format(GroupNode(path=NodePath("/g"), dialect=dialect.name))
