"""Thousands of damaged documents: every request to a dialect about one returns, or raises `MetadataError`.

``tests/support/mutations.py`` derives them from documents of other software. A failure names its seed.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.support.mutations import mutated
from zarrfs import registry
from zarrfs.codecs.chain import CodecChain
from zarrfs.containers.base import Container
from zarrfs.dialects.base import Dialect, Documents, Edit, Layout
from zarrfs.errors import MetadataError, NameInvalid
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import metadata_values
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode

DIALECTS: tuple[Dialect, ...] = registry.plugins("zarrfs.dialects")
CONTAINERS = [each for each in registry.plugins("zarrfs.containers") if isinstance(each, Container)]
BATCHES = 8
OF_A_BATCH = 250
_PATHS = 12


@contextmanager
def refused_or_done() -> Iterator[None]:
    """Permit the two outcomes for a bad document: return, or raise `MetadataError`. A library's warnings count as errors."""
    with warnings.catch_warnings(), contextlib.suppress(MetadataError):
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize(
    "batch", [pytest.param(each, marks=pytest.mark.full_length if each % 2 else ()) for each in range(BATCHES)]
)
def test_a_document_that_went_wrong_is_refused_and_no_more(batch: int) -> None:
    for seed in range(batch * OF_A_BATCH, (batch + 1) * OF_A_BATCH):
        case, key, values = mutated(seed)
        try:
            ask_all(Key(key), {Key(each): value for each, value in values.items()})
        except Exception as error:
            error.add_note(f"seed {seed}: {case}, {key}: {values[key][:2000]!r}")
            raise


def test_each_of_the_documents_that_were_once_fatal() -> None:
    entry = {"zarr_format": "https://purl.org/zarr/spec/core/3.0", "metadata_encoding": None, "extensions": []}
    ask_all(Key("zarr.json"), {Key("zarr.json"): json.dumps(entry).encode()})
    times = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<M8", "compressor": None, "filters": None, "order": "C"}
    for fill in (0, -1, 2**63 - 1, "NaT", -(2**63), None):
        ask_all(Key("a/.zarray"), {Key("a/.zarray"): json.dumps(times | {"fill_value": fill}).encode()})
    alias = times | {"dtype": "<f8", "fill_value": 0, "filters": [{"id": "quantize", "digits": 2, "dtype": "<f8", "astype": "a"}]}
    ask_all(Key("a/.zarray"), {Key("a/.zarray"): json.dumps(alias).encode()})


def ask_all(key: Key, values: dict[Key, bytes]) -> None:
    """Make every request to every dialect about the nodes whose documents ``key`` may be one of."""
    for dialect in DIALECTS:
        with refused_or_done():
            roots = {each: values[each] for each in dialect.root_keys(Prefix("")) if each in values}
            roots |= {each: values[each] for each in dialect.further_keys(Prefix(""), roots) if each in values}
            layout = dialect.open(Prefix(""), roots) or (dialect.create(Prefix("")) if dialect.per_node else None)
            if layout is not None:
                ask_layout(layout, key, values, of_all=key in roots)


def ask_layout(layout: Layout, key: Key, values: dict[Key, bytes], *, of_all: bool) -> None:
    with refused_or_done():
        layout.check()
    asked = 0
    for path in paths_in(values):
        documents = {each: values[each] for each in layout.document_keys(path) if each in values}
        if (key in documents or of_all) and asked < _PATHS:
            asked += 1
            layout.consolidated_names(path)
            for those in (documents, {}):
                with refused_or_done():
                    ask_node(layout, layout.parse(path, those), those)
            documents |= {each: values[each] for each in layout.consolidated_keys(path) if each in values}
            for edit in (Edit(attributes={"a": 1}), Edit(shape=(5,))):
                with refused_or_done():
                    layout.amend(path, documents, edit)
            with refused_or_done():
                layout.copies_with([path], documents)
                layout.copies_without(path, documents)


def ask_node(layout: Layout, node: ArrayNode | GroupNode | UnsupportedNode | None, documents: Documents) -> None:
    """Assert that a parsed node can be serialized, and that impossible edits are refused."""
    if node is None or isinstance(node, UnsupportedNode):
        return
    json.dumps(metadata_values.plain(node.attributes), allow_nan=False)
    for dialect in DIALECTS:
        with refused_or_done():
            dialect.create(Prefix("")).format(replace(node, dialect=dialect.name))
    if isinstance(node, ArrayNode):
        try:
            json.dumps([metadata_values.of_array(node.metadata), metadata_values.shards(node.metadata)], allow_nan=False)
            metadata_values.fill(node.metadata)
            layout.chunk_key_encodings(node, documents)
            CodecChain.build(node.metadata.codecs, node.metadata.data_type)
        except MetadataError as error:
            raise AssertionError(f"{node.path} is shown as an array, and cannot be one: {error}") from error
        for container in CONTAINERS:
            with refused_or_done():
                container.layout(node.metadata)


def paths_in(values: dict[Key, bytes]) -> list[NodePath]:
    """Return every folder, as the path of a node."""
    found = {ROOT}
    for key in values:
        parts = key.split("/")[:-1]
        with contextlib.suppress(NameInvalid):
            found.update(NodePath("/" + "/".join(parts[: n + 1])) for n in range(len(parts)))
    return sorted(found)
