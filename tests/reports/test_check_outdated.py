"""``zarrfs check`` and outdated consolidated copies: zarr-python and xarray follow them, a mount of a local store does not."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reports.test_check import checked
from tests.support.cases import CASES
from zarrfs.command import main

zarr = pytest.importorskip("zarr")


def outdated(store: Path) -> list[tuple[str, str]]:
    report = checked(store)
    assert not (report.bad.count or report.unchecked.count)
    return [(finding.path, finding.reason.removeprefix("consolidated copy ")) for finding in report.outdated.first]


def consolidated(folder: Path, zarr_format: int) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.create_group(folder, zarr_format=zarr_format, attributes={"k": 1})
        inner = root.create_group("g").create_group("h")
        root.create_group("empty")
        for group, name in ((root, "a"), (inner, "b")):
            group.create_array(name, shape=(4,), chunks=(2,), dtype="f8", attributes={"units": "m"})[:] = 1
        zarr.consolidate_metadata(str(folder), zarr_format=zarr_format)
    return folder


def document(zarr_format: int, path: str) -> str:
    return f"{path}/zarr.json" if zarr_format == 3 else f"{path}/.zattrs"


def edited(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def renamed(store: Path) -> None:
    (store / "a").rename(store / "z")


def erased(store: Path) -> None:
    shutil.rmtree(store / "g/h")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda store: None, []),
        (renamed, [("/", "lacks /z"), ("/", "has /a, which is not in the store")]),
        (erased, [("/", "has /g/h, which is not in the store"), ("/", "has /g/h/b, which is not in the store")]),
    ],
    ids=["sound", "renamed", "erased"],
)
def test_a_copy_of_other_nodes_is_outdated(
    tmp_path: Path, zarr_format: int, change: Callable[[Path], None], expected: list[tuple[str, str]]
) -> None:
    store = consolidated(tmp_path / "s", zarr_format)
    change(store)
    found = outdated(store)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_copy_of_other_attributes_is_outdated(tmp_path: Path, zarr_format: int) -> None:
    store = consolidated(tmp_path / "s", zarr_format)
    key = document(zarr_format, "g/h/b")
    edited(store / key, lambda content: content.get("attributes", content).update(units="km"))
    assert outdated(store) == [("/", f"differs from {key}")]


def test_a_copy_of_attributes_that_are_gone_is_outdated(tmp_path: Path) -> None:
    store = consolidated(tmp_path / "s", 2)
    (store / "a/.zattrs").unlink()
    assert outdated(store) == [("/", "differs from a/.zattrs")]


def test_the_same_in_other_words_is_up_to_date(tmp_path: Path) -> None:
    store = consolidated(tmp_path / "s", 3)
    edited(store / "a/zarr.json", lambda content: content.pop("storage_transformers", None))
    edited(store / "a/zarr.json", lambda content: content["chunk_key_encoding"].pop("configuration", None))
    assert outdated(store) == []


@pytest.mark.parametrize("case", sorted(path.parent.name for path in CASES.glob("*/*/store") if (path / ".zmetadata").exists()))
def test_copies_that_other_programs_wrote_are_up_to_date(case: str) -> None:
    for store in CASES.glob(f"*/{case}/store"):
        assert not checked(store).outdated.first


def test_attributes_of_any_size_are_compared_by_their_values(tmp_path: Path) -> None:
    store = consolidated(tmp_path / "s", 3)
    many = {"nan": float("nan"), "list": [0.5] * 30_000, "k": {"a": [1, 2], "b": None}}
    for key, indent in (("zarr.json", 1), ("a/zarr.json", 4)):
        content = json.loads((store / key).read_text())
        of = content if key.startswith("a") else content["consolidated_metadata"]["metadata"]["a"]
        of["attributes"] = many
        (store / key).write_text(json.dumps(content, indent=indent))
    edited(store / "a/zarr.json", lambda content: content.pop("storage_transformers", None))
    assert outdated(store) == []
    edited(store / "a/zarr.json", lambda content: content["attributes"]["k"].pop("b"))
    assert outdated(store) == [("/", "differs from a/zarr.json")]


@pytest.mark.parametrize("nested", [b"[" * 50_000 + b"]" * 50_000, b"1" * 10_000])
def test_a_document_that_no_parser_takes_ends_nothing(tmp_path: Path, nested: bytes) -> None:
    store = consolidated(tmp_path / "s", 2)
    (store / "a/.zattrs").write_bytes(b'{"deep": ' + nested + b"}")
    report = checked(store)
    assert report.complete and report.arrays >= 1


def test_a_copy_of_2022_is_compared_too(tmp_path: Path) -> None:
    store = tmp_path / "s"
    shutil.copytree(CASES / "v3_draft2022_zarrpython/filters/store", store)
    assert outdated(store) == []
    found = sorted((store / "meta/root").rglob("*.array.json"))
    name = found[0].name.removesuffix(".array.json")
    found[0].rename(found[0].with_name("renamed.array.json"))
    # With chunks there it would be read from the copy.
    shutil.rmtree(store / f"data/root/g/{name}")
    assert outdated(store) == [("/", "lacks /g/renamed"), ("/", f"has /g/{name}, which is not in the store")]


def test_each_copy_above_a_node_is_compared(tmp_path: Path) -> None:
    store = consolidated(tmp_path / "s", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(store), path="g", zarr_format=2)
        assert outdated(store) == []
        zarr.open_group(str(store / "g/h"), mode="a", use_consolidated=False).create_array("new", shape=(1,), dtype="i1")
    assert outdated(store) == [("/", "lacks /g/h/new"), ("/g", "lacks /g/h/new")]


def test_attributes_without_a_group_are_not_missing_in_a_copy(tmp_path: Path) -> None:
    """A kill left them, and no update of the copy ended the report."""
    store = consolidated(tmp_path / "s", 2)
    (store / "left").mkdir()
    (store / "left/.zattrs").write_text('{"units": "m"}')
    assert outdated(store) == []


def test_the_command_names_it_and_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = consolidated(tmp_path / "s", 3)
    renamed(store)
    assert main.run(["check", str(store)]) == 0
    said = capsys.readouterr().out
    assert "zarr.json: consolidated copy lacks /z" in said and "well, but for outdated consolidated copies" in said
