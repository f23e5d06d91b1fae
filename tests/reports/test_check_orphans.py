"""``zarrfs check`` names chunks that belong to no array: a store that has lost the document of one is not in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reports.test_check import checked
from tests.support.small_stores import array_document, write
from zarrfs.command import main

GROUP_V2 = b'{"zarr_format":2}'
GROUP_V3 = b'{"zarr_format": 3, "node_type": "group"}'
V2 = array_document((4,), (2,), "<i2")
ENTRY = (
    b'{"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0", "extensions": [],'
    b' "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_key_suffix": ".json"}'
)


LOST = {
    "v2": ({".zgroup": GROUP_V2, "a/0": b"1234", "a/1": b"1234"}, ["/a"]),
    "v2, with attributes": ({".zgroup": GROUP_V2, "a/.zattrs": b"{}", "a/0.0": b"1234"}, ["/a"]),
    "v2, nested keys": ({".zgroup": GROUP_V2, "a/.zattrs": b"{}", "a/0/0": b"1234", "a/1/0": b"1234"}, ["/a"]),
    "v2, a group in its place": ({".zgroup": GROUP_V2, "a/.zgroup": GROUP_V2, "a/0.0": b"1234", "a/0.1": b"1234"}, ["/a"]),
    "v3": ({"zarr.json": GROUP_V3, "a/c/0/0": b"1234", "a/c/0/1": b"1234"}, ["/a"]),
    "v3, beside a text": ({"zarr.json": GROUP_V3, "a/c/0/0": b"1234", "a/README": b""}, ["/a"]),
    "v3, below": ({"zarr.json": GROUP_V3, "g/zarr.json": GROUP_V3, "g/a/c/0": b"1", "g/b/c/0": b"1"}, ["/g/a", "/g/b"]),
    "v1": ({"g/a/0.0": b"1234", "b/meta": b"{}"}, ["/g"]),
    "2019": ({"zarr.json": ENTRY, "meta/root.group.json": b'{"attributes": {}}', "data/root/a/0/0": b"1234"}, ["/a"]),
}


@pytest.mark.parametrize(("values", "expected"), LOST.values(), ids=LOST)
def test_chunks_without_the_document_of_their_array_are_named(
    values: dict[str, bytes], expected: list[str], tmp_path: Path
) -> None:
    report = checked(write(tmp_path, values))
    assert sorted(finding.path for finding in report.orphaned.first) == expected
    assert report.complete


@pytest.mark.parametrize("name", ["c", "0", "1.2"])
def test_the_chunk_of_an_array_without_dimensions_is_one_of_that_array(name: str, tmp_path: Path) -> None:
    """In the draft of 2019 its key is the path of the array, which may look like the chunk of its group."""
    scalar = (
        b'{"shape": [], "data_type": "<i2", "chunk_grid": {"type": "regular", "chunk_shape": []}, "chunk_memory_layout": "C",'
        b' "compressor": null, "fill_value": 0, "extensions": [], "attributes": {}}'
    )
    group = {
        "zarr.json": b'{"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_encoding": "application/json"}',
        "meta/root/g.group": b'{"extensions": [], "attributes": {}}',
        f"data/g/{name}": b"\x01\x00",
    }
    report = checked(write(tmp_path, group | {f"meta/root/g/{name}.array": scalar}))
    assert (report.chunks, report.orphaned.first) == (1, [])
    (tmp_path / f"meta/root/g/{name}.array").unlink()
    assert [finding.path for finding in checked(tmp_path).orphaned.first] == ["/g"]


def test_many_chunks_are_one_finding(tmp_path: Path) -> None:
    """A folder of more than 10,000 keys is not searched for documents when it is shown, and is a group."""
    store = write(tmp_path, {".zgroup": GROUP_V2, "a/0": b""})
    for n in range(10_001):
        (store / f"a/{n}").touch()
    assert [finding.path for finding in checked(store).orphaned.first] == ["/a"]


def test_such_a_store_is_not_said_to_be_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code stays 0: they may be left of an array that was erased."""
    store = write(tmp_path, {".zgroup": GROUP_V2, "a/0": b"1234"})
    assert main.run(["check", str(store)]) == 0
    text = capsys.readouterr().out
    assert "of no array, which may have lost its document, not checked: 1\n  /a: chunks, but no document" in text
    assert text.endswith("no arrays, but chunks\n")
    write(store, {"b/.zarray": V2})
    assert main.run(["check", str(store)]) == 0
    assert capsys.readouterr().out.endswith(": well, but for chunks of no array\n")


def test_what_has_documents_or_other_names_is_none(tmp_path: Path) -> None:
    values = {".zgroup": GROUP_V2, "a/.zarray": V2, "a/0": b"1234", "g/0/.zarray": V2, "g/0/0": b"1234", "notes/2020.txt": b""}
    report = checked(write(tmp_path, values))
    assert report.orphaned.count == 0
    assert report.arrays == 2
