"""Reports on documents of no known layout: without them a store of a later version of Zarr would be "no arrays", and well."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import trio
from rich.console import Console

from tests.hierarchy.test_foreign_documents import FOREIGN
from tests.support.small_stores import write
from zarrfs.options.config import MountConfig
from zarrfs.reports.check import check
from zarrfs.reports.findings import Report
from zarrfs.reports.info import describe
from zarrfs.reports.info_text import InfoTree

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
V2 = b'{"zarr_format": 2}'
V2_ARRAY = json.dumps(
    {
        "zarr_format": 2,
        "shape": [1],
        "chunks": [1],
        "dtype": "|u1",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
    }
).encode()
ENTRY_2022 = json.dumps(
    {
        "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_key_suffix": ".json",
        "extensions": [],
    }
).encode()


def checked(store: Path) -> Report:
    return trio.run(check, MountConfig(store=str(store)), "/")


@pytest.mark.parametrize("value", FOREIGN)
@pytest.mark.parametrize(
    ("where", "others"),
    [
        ("", {}),
        ("", {"meta/root/a.array.json": b"{}", "data/root/a/c0": b"1"}),
        ("", {".zgroup": V2}),
        ("x/", {"zarr.json": GROUP}),
        ("x/", {"zarr.json": GROUP, "x/c/0": b"1"}),
        ("x/", {".zgroup": V2}),
        ("x/", {".zgroup": V2, "x/.zarray": V2_ARRAY, "x/0": b"1"}),
        ("x/y/", {"zarr.json": GROUP}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, dict) else each,
)
def test_a_zarr_json_of_no_layout_is_a_finding(tmp_path: Path, where: str, others: dict[str, bytes], value: bytes) -> None:
    key = f"{where}zarr.json"
    write(tmp_path, {key: value} | others)
    found = checked(tmp_path).unchecked
    assert [(each.path, each.key) for each in found.first] == [(f"/{where}".rstrip("/") or "/", key)]
    assert "no known layout" in found.first[0].reason


@pytest.mark.parametrize(
    "files",
    [
        {"zarr.json": GROUP, "x/zarr.json": GROUP},
        {"zarr.json": ENTRY_2022, "meta/root.group.json": b'{"attributes": {}}'},
        {".zgroup": V2, "x/zarr.json": ENTRY_2022, "x/meta/root.group.json": b'{"attributes": {}}'},
        {".zgroup": V2, "x/.zgroup": V2, "x/zarr.json": ENTRY_2022},
        {".zgroup": V2, "x/.zgroup": V2, "x/zarr.json": GROUP},
        # A file of any program.
        {".zgroup": V2, "x/.zgroup": V2, "x/meta": b'{"a": 1}'},
    ],
)
def test_other_documents_are_none(tmp_path: Path, files: dict[str, bytes]) -> None:
    assert checked(write(tmp_path, files)).unchecked.count == 0


def test_one_that_is_not_json_is_reported_once(tmp_path: Path) -> None:
    report = checked(write(tmp_path, {"zarr.json": GROUP, "x/zarr.json": b"\0\1"}))
    assert (report.bad.count, report.unchecked.count) == (1, 0)


def test_info_names_it_in_the_tree(tmp_path: Path) -> None:
    write(tmp_path, {"zarr.json": GROUP, "x/zarr.json": b'{"zarr_format": 4}'})
    nodes = trio.run(describe, MountConfig(store=str(tmp_path)), "/")["nodes"]
    assert [node["unknown_documents"] for node in nodes] == [[], ["x/zarr.json"]]
    console = Console(file=io.StringIO())
    tree = InfoTree(console, "store", whole=False)
    tree.add(nodes[1], (False,), False)
    assert isinstance(console.file, io.StringIO)
    assert "of no known layout, damaged or of a later version of Zarr: x/zarr.json" in console.file.getvalue()
