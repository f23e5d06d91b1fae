"""Documents that differ in attributes alone are parsed once, and those that differ in anything else are not taken for each other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.small_stores import array_document
from zarrfs.dialects.documents import parse_object
from zarrfs.dialects.parse_once import ParseOnce
from zarrfs.dialects.v2.dialect import PLUGIN as V2
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.errors import MetadataError
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode
from zarrfs.model.unparsed import Unparsed

# Values that are equal in Python, or become equal as floats, and are different JSON.
DIFFERENT = [
    "1",
    "1.0",
    "true",
    '"1"',
    "[1]",
    "[true]",
    "[1.0]",
    "1e999",
    "1e1000",
    "Infinity",
    '"Infinity"',
    "-0.0",
    "0.0",
    "null",
]


def counted() -> tuple[list[Mapping[str, Any]], ParseOnce[object]]:
    """Return a list of the parsed documents, and the memo."""
    parsed: list[Mapping[str, Any]] = []

    def parse(members: Mapping[str, Any], chosen: Mapping[str, str]) -> object:
        parsed.append(members)
        return object()

    return parsed, ParseOnce(parse)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(DIFFERENT, 2)))
def test_different_members_are_parsed_each(one: str, other: str) -> None:
    parsed, parse = counted()
    for text in (one, other, one):
        data = f'{{"fill_value": {text}}}'.encode()
        parse(parse_object("key", data), {}, data)
    assert len(parsed) == 2


def test_attributes_make_no_difference_and_are_not_kept() -> None:
    parsed, parse = counted()
    found = {parse({"shape": [1], "attributes": {"number": number}}, {}, b"") for number in range(3)}
    assert parsed == [{"shape": [1]}] and len(found) == 1


def test_choices_make_a_difference() -> None:
    parsed, parse = counted()
    assert parse({"shape": [1]}, {}, b"") is not parse({"shape": [1]}, {"codecs": "refuse"}, b"")
    assert len(parsed) == 2


def test_a_long_document_is_parsed_each_time() -> None:
    parsed, parse = counted()
    for source in (bytes(20_000), Unparsed(bytes(20_000))):
        parse({"shape": [1]}, {}, source)
        parse({"shape": [1]}, {}, source)
    assert len(parsed) == 4


def test_a_failure_is_not_remembered() -> None:
    failures = iter([MetadataError("no"), None])

    def parse(members: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
        if (failure := next(failures)) is not None:
            raise failure
        return "read"

    once = ParseOnce(parse)
    with pytest.raises(MetadataError):
        once({}, {}, b"")
    assert once({}, {}, b"") == "read"


def test_arrays_of_one_store_share_their_metadata() -> None:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    nodes = []
    for name in "ab":
        key = Key(f"{name}/zarr.json")
        data = json.dumps(document | {"attributes": {"title": name}}).encode()
        nodes.append(V3.create(Prefix("")).parse(NodePath(f"/{name}"), {key: data}))
    for name in "ab":
        keys = Key(f"{name}/.zarray"), Key(f"{name}/.zattrs")
        documents = array_document((4,), (2,)), json.dumps({"title": name}).encode()
        nodes.append(V2.create(Prefix("")).parse(NodePath(f"/{name}"), dict(zip(keys, documents, strict=True))))
    assert all(isinstance(node, ArrayNode) for node in nodes)
    first, second, third, fourth = (node for node in nodes if isinstance(node, ArrayNode))
    assert first.metadata is second.metadata and third.metadata is fourth.metadata
    assert [node.attributes["title"] for node in (first, second, third, fourth)] == ["a", "b", "a", "b"]
