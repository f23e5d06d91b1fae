"""Consolidated copies with paths of very many parts: each part is a group, whose path is nearly as long as the whole."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from zarrfs.dialects import consolidated
from zarrfs.dialects.base import Dialect, Documents
from zarrfs.dialects.v2.dialect import PLUGIN as V2
from zarrfs.dialects.v3.consolidated import CopiedDocuments
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.dialects.v3_2022.dialect import PLUGIN as DRAFT
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import GroupNode

PROTOCOL = "https://purl.org/zarr/spec/protocol/core/3.0"
ENTRY = {"zarr_format": PROTOCOL, "metadata_encoding": PROTOCOL, "metadata_key_suffix": ".json", "extensions": []}
GROUP = {"zarr_format": 3, "node_type": "group"}
DEEP = "/".join("a" * 20_000)


def of(**values: Any) -> Documents:
    return {Key(key): json.dumps(value).encode() for key, value in values.items()}


def v3(*names: str) -> Documents:
    copy = {"kind": "inline", "must_understand": False, "metadata": dict.fromkeys(names, GROUP)}
    return of(**{"zarr.json": {"zarr_format": 3, "node_type": "group", "consolidated_metadata": copy}})


def v2(*names: str) -> Documents:
    members = {f"{name}/.zgroup": {"zarr_format": 2} for name in names}
    return of(**{".zgroup": {"zarr_format": 2}, ".zmetadata": {"zarr_consolidated_format": 1, "metadata": members}})


def draft(*names: str) -> Documents:
    members = {f"meta/root/{name}.group.json": {"attributes": {}} for name in names}
    copy = {"zarr_consolidated_format": 1, "metadata": members}
    return of(**{"zarr.json": ENTRY, "meta/root/consolidated/.zmetadata": copy, "meta/root.group.json": {"attributes": {}}})


LAYOUTS = pytest.mark.parametrize(("dialect", "documents"), [(V3, v3), (V2, v2), (DRAFT, draft)], ids=["v3", "v2", "v3_2022"])


@LAYOUTS
def test_such_a_copy_is_not_read(dialect: Dialect, documents: Any) -> None:
    """64,000 parts, in a document of 128 kB, took 4 GB."""
    found = documents("b/c", DEEP)
    tracemalloc.start()
    layout = dialect.open(Prefix(""), found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert layout is not None and layout.copied(ROOT) is None and layout.consolidated_names(ROOT) is None
    assert peak < 3 * consolidated.MAX_PATHS_LENGTH
    # It hides nothing.
    assert isinstance(layout.parse(ROOT, found), GroupNode)
    if (key := layout.copy_key(ROOT)) is not None:
        fault = layout.copy_fault(key, found[key], of_members=False)
        assert fault == "paths of nodes, and of groups above them, exceed the limit of 16777216 characters"


@LAYOUTS
def test_a_copy_with_deep_paths_below_the_limit_is_read(dialect: Dialect, documents: Any) -> None:
    layout = dialect.open(Prefix(""), documents("b/c", "/".join("d" * 900)))
    assert layout is not None and layout.consolidated_names(ROOT) == {"b", "d"}
    assert layout.consolidated_names(NodePath("/" + "/".join("d" * 899))) == {"d"}


def test_what_is_below_a_path_of_a_copy() -> None:
    names = ["a", "a/b", "a/b/c", "ab/c", DEEP, "x/y"]
    for listed in (names, [each for each in names if each != DEEP]):
        copied = CopiedDocuments({name: {} for name in listed})
        assert copied.below("a/b") == ["a/b/c"] and copied.below("x") == ["x/y"] and copied.below("x/y") == copied.below("b") == []
        assert copied.below("a") == [each for each in listed if each.startswith("a/")]
