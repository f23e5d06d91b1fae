"""Consolidated copies in `chunks/` and `zarr3/` as xarray and other programs find them: no warning, one document, never outdated."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import mounted, run
from tests.support.small_stores import array_document

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

pytestmark = pytest.mark.fuse
FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
VIEWS = ("chunks", "zarr3")


def dataset() -> Any:
    data = xr.Dataset(
        {"t": (("y", "x"), np.arange(6.0).reshape(2, 3), {"units": "K"}), "n": (("x",), np.array([1, 0, 3], "i4")), "s": ((), 7)},
        coords={"x": [0, 1, 2], "time": ("y", np.array(["2000-01-01", "2000-01-02"], "M8[ns]"))},
        attrs={"title": "example"},
    )
    data["n"].encoding = {"_FillValue": np.int32(-1)}
    return data


def opened(path: Path) -> Any:
    """Return a dataset as xarray opens it by default; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return xr.open_zarr(str(path), chunks=None).load()


def save(data: Any, path: Path, zarr_format: int, *, consolidated: bool = True, **how: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.to_zarr(str(path), zarr_format=zarr_format, consolidated=consolidated, **how)


@pytest.fixture
def store(zarr_format: int, tmp_path: Path) -> Path:
    save(dataset(), tmp_path / "store", zarr_format)
    return tmp_path / "store"


@FORMATS
def test_xarray_opens_both_views_without_a_warning(store: Path, tmp_path: Path) -> None:
    expected = opened(store)
    with mounted(store) as mount:
        for view in VIEWS:
            xr.testing.assert_identical(opened(mount.path / view), expected)
        for view in VIEWS:
            run("cp", "-r", mount.path / view, tmp_path / view)
        assert (tmp_path / "chunks/.zmetadata").read_bytes() == (mount.path / "chunks/.zmetadata").read_bytes()
    for view in VIEWS:
        xr.testing.assert_identical(opened(tmp_path / view), expected)
    copied = json.loads((tmp_path / "chunks/.zmetadata").read_bytes())["metadata"]
    assert copied == {key: json.loads((tmp_path / "chunks" / key).read_bytes()) for key in copied}
    files = {str(path.relative_to(tmp_path / "chunks")) for path in (tmp_path / "chunks").rglob(".z*")}
    assert files == {*copied, ".zmetadata"}


@FORMATS
def test_a_change_is_seen_whoever_makes_it(store: Path) -> None:
    with mounted(store) as mount:
        # Fill the kernel's cache.
        assert [opened(mount.path / view)["t"].attrs["units"] for view in VIEWS] == ["K", "K"]
        attributes = json.loads((mount.path / "chunks/t/.zattrs").read_bytes())
        (mount.path / "chunks/t/.zattrs").write_text(json.dumps(attributes | {"units": "°C"}))
        assert [opened(mount.path / view)["t"].attrs["units"] for view in VIEWS] == ["°C", "°C"]
        shown = json.loads((mount.path / "zarr3/t/zarr.json").read_bytes())
        shown["attributes"]["units"] = "°F"
        (mount.path / "zarr3/t/zarr.json").write_text(json.dumps(shown))
        assert [opened(mount.path / view)["t"].attrs["units"] for view in VIEWS] == ["°F", "°F"]
        assert opened(store)["t"].attrs["units"] == "°F"
        key = next(each for each in (store / "t/.zattrs", store / "t/zarr.json") if each.exists())
        (mount.path / "raw/t" / key.name).write_text(key.read_text().replace("\\u00b0F", "mK").replace("°F", "mK"))
        assert [opened(mount.path / view)["t"].attrs["units"] for view in VIEWS] == ["mK", "mK"]
        assert mount.errors() == []


@FORMATS
def test_a_change_by_another_program_is_seen(store: Path) -> None:
    with mounted(store, "--metadata-ttl", "0") as mount:
        assert [opened(mount.path / view)["t"].attrs["units"] for view in VIEWS] == ["K", "K"]
        key = next(each for each in (store / "t/.zattrs", store / "t/zarr.json") if each.exists())
        # The program leaves its own consolidated copy outdated.
        text = key.read_text()
        assert '"K"' in text
        replace(key, text.replace('"K"', '"mK"'))
        assert [opened(mount.path / view)["t"].attrs["units"] for view in VIEWS] == ["mK", "mK"]
        shutil.rmtree(store / "n")
        assert ["n" in opened(mount.path / view) for view in VIEWS] == [False, False]


def replace(path: Path, text: str) -> None:
    (path.parent / ".new").write_text(text)
    (path.parent / ".new").rename(path)


@pytest.mark.parametrize("view", VIEWS)
def test_it_goes_with_its_group(view: str, tmp_path: Path) -> None:
    save(dataset(), tmp_path / "store/a", 3)
    with mounted(tmp_path / "store") as mount:
        assert opened(mount.path / view / "a")["t"].attrs["units"] == "K"
        run("mv", mount.path / view / "a", mount.path / view / "b")
        assert opened(mount.path / view / "b")["t"].attrs["units"] == "K"
        attributes = json.loads((mount.path / "chunks/b/t/.zattrs").read_bytes())
        (mount.path / "chunks/b/t/.zattrs").write_text(json.dumps(attributes | {"units": "m"}))
        assert opened(mount.path / view / "b")["t"].attrs["units"] == "m"
        run("mv", mount.path / view / "b/n", mount.path / view / "b/m")
        assert "m" in opened(mount.path / view / "b") and "n" not in opened(mount.path / view / "b")
        run("rm", "-r", mount.path / view / "b")
        assert os.listdir(tmp_path / "store") in ([], ["zarr.json"])


@FORMATS
def test_each_document_is_read_once_for_both_views(store: Path) -> None:
    with mounted(store, "--metadata-ttl", "600") as mount:
        with mount.counted() as cost:
            opened(mount.path / "chunks")
        assert documents_read(cost) > 0
        with mount.counted() as cost:
            text = run("cat", mount.path / "chunks/.zmetadata").stdout
            document = json.loads(run("cat", mount.path / "zarr3/zarr.json").stdout)
        # All nodes are known from the listing.
        assert documents_read(cost) <= 1
        assert len(json.loads(text)["metadata"]) > len(document["consolidated_metadata"]["metadata"]) == 5


def documents_read(cost: dict[str, int]) -> int:
    return cost.get("get", 0) + cost.get("get_partial_values", 0)


@FORMATS
def test_its_size_is_right_after_a_listing(store: Path) -> None:
    with mounted(store) as mount:
        for path in (mount.path / "chunks/.zmetadata", mount.path / "zarr3/zarr.json"):
            listed = {entry.name: entry for entry in os.scandir(path.parent)}
            assert path.name in listed
            before = path.stat()
            assert before.st_size == len(path.read_bytes())
            assert run("ls", "-la", path.parent).stdout.decode().count(f" {before.st_size} ") >= 1
            assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize("layout", [2, 3])
def test_what_xarray_writes_it_reads_without_a_warning(layout: int, tmp_path: Path) -> None:
    data = dataset()
    plain = {name: {"compressors": None} for name in data.variables}
    store = tmp_path / "store"
    zarr.create_group(str(store), zarr_format=layout)
    with mounted(store) as mount:
        save(data, mount.path / "chunks/two", 2, mode="a", encoding=plain)
        save(data, mount.path / "zarr3/three", 3, mode="a")
        assert mount.errors() == []
        for name in ("two", "three"):
            for view in VIEWS:
                found = opened(mount.path / view / name)
                assert found.keys() == data.keys()
                if name == "two" or layout == 3:
                    # Otherwise 0 is the fill value of a v2 array, and thereby missing data.
                    xr.testing.assert_equal(found, data)
            attributes = json.loads((mount.path / "chunks" / name / "t/.zattrs").read_bytes())
            (mount.path / "chunks" / name / "t/.zattrs").write_text(json.dumps(attributes | {"units": "m"}))
            assert [opened(mount.path / view / name)["t"].attrs["units"] for view in VIEWS] == ["m", "m"]
    for name in ("two", "three"):
        # In its own layout, whatever view it was written through.
        found = opened(store / name)
        assert found["t"].attrs["units"] == "m"
        assert found["t"].values.tolist()[1] == data["t"].values.tolist()[1]


def test_what_xarray_appends_is_in_it(tmp_path: Path) -> None:
    save(dataset(), tmp_path / "store", 3)
    more = xr.Dataset({"more": (("x",), np.array([1.0, 2, 3]))})
    with mounted(tmp_path / "store") as mount:
        save(more, mount.path / "zarr3", 3, mode="a")
        for view in VIEWS:
            assert opened(mount.path / view)["more"].values.tolist() == [1, 2, 3]
    assert opened(tmp_path / "store")["more"].values.tolist() == [1, 2, 3]


@FORMATS
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_hidden", [False, True], ids=["new", "hidden"])
def test_it_has_the_groups_of_its_members_though_their_documents_are_not_seen_yet(
    zarr_format: int, is_hidden: bool, tmp_path: Path
) -> None:
    view, name = {2: ("chunks", ".zgroup"), 3: ("zarr3", "zarr.json")}[zarr_format]
    zarr.create_group(str(tmp_path / "store"), zarr_format=zarr_format)
    zarr.consolidate_metadata(str(tmp_path / "store"), zarr_format=zarr_format)
    with mounted(tmp_path / "store") as mount:
        root = mount.path / view
        plain = {"compressor": None} if zarr_format == 2 else {}
        zarr.open_array(str(root / "g/h/a"), mode="w", shape=4, chunks=2, dtype="i4", zarr_format=zarr_format, **plain)[:] = 7
        if is_hidden:
            assert "h" in os.listdir(root / "g") and name in os.listdir(root / "g/h")
            (root / "g/h" / name).unlink()
        assert not (root / "g/h" / name).exists()
        found = zarr.open_group(str(root), mode="r", zarr_format=zarr_format, use_consolidated=True)
        assert [path for path, _ in sorted(found.members(max_depth=None))] == ["g", "g/h", "g/h/a"]
        assert found["g/h/a"][:].tolist() == [7] * 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("of_array", [False, True], ids=["group", "array"])
def test_it_has_no_attributes_of_what_a_program_sees_no_node_in(of_array: bool, tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "store"), zarr_format=3).create_array("b", data=np.arange(4))
    zarr.consolidate_metadata(str(tmp_path / "store"), zarr_format=3)
    with mounted(tmp_path / "store") as mount:
        root = mount.path / "chunks"
        (root / "a").mkdir()
        if of_array:
            (root / "a/.zarray").write_bytes(array_document((4,), (2,), "<i4"))
        # As of an array whose .zarray was refused: programs write both documents at once.
        (root / "a/.zattrs").write_bytes(b'{"units": "m"}')
        if of_array:
            (root / "a/.zarray").unlink()
        found = zarr.open_group(str(root), mode="r", use_consolidated=True)
        assert [path for path, _ in found.members(max_depth=None)] == ["b"] and found["b"][:].tolist() == [0, 1, 2, 3]
        documents = {".zattrs", ".zgroup"} if not of_array else {".zattrs"}
        assert documents == set(os.listdir(root / "a"))
        members = json.loads((root / ".zmetadata").read_bytes())["metadata"]
        assert {each for each in members if each.startswith("a/")} == (
            {f"a/{name}" for name in documents} if not of_array else set()
        )


def many(folder: Path, count: int) -> Path:
    group = zarr.create_group(str(folder), zarr_format=3)
    for number in range(count):
        group.create_group(f"part{number % 40}/g{number}", attributes={"n": number})
    zarr.consolidate_metadata(str(folder), zarr_format=3)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_a_group_of_a_thousand_nodes(tmp_path: Path) -> None:
    store = many(tmp_path / "store", 1000)
    with mounted(store, "--metadata-ttl", "600") as mount:
        with mount.counted() as cost:
            os.stat(mount.path / "chunks/part7/g7")
            os.listdir(mount.path / "zarr3")
        # Neither a lookup in the group nor its listing creates the copy.
        assert documents_read(cost) < 100
        found = zarr.open_group(str(mount.path / "zarr3"), mode="r", use_consolidated=True)
        assert len(found.metadata.consolidated_metadata.flattened_metadata) == 1040
        assert found["part7/g7"].attrs["n"] == 7
        (mount.path / "chunks/part7/g7/.zattrs").write_text('{"n": -1}')
        found = zarr.open_group(str(mount.path / "chunks"), mode="r", use_consolidated=True)
        assert found["part7/g7"].attrs["n"] == -1


def without_documents(store: Path) -> Path:
    """Leave only the consolidated copy of the documents of ``store``."""
    for each in store.rglob("*"):
        if each.name in (".zarray", ".zattrs", ".zgroup", "zarr.json") and each != store / "zarr.json":
            each.unlink()
    return store


@FORMATS
@pytest.mark.parametrize(("view", "end"), [("npy", ".npy"), ("chunks", ""), ("zarr3", "")])
def test_a_node_whose_documents_are_in_the_copy_alone_is_renamed_with_them(
    zarr_format: int, view: str, end: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    save(dataset(), store, zarr_format)
    save(dataset(), store, zarr_format, group="g/deep", mode="a")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(store))
    before = opened(store)
    with mounted(without_documents(store)) as mount:
        run("mv", mount.path / view / f"t{end}", mount.path / view / f"u{end}")
        run("mv", mount.path / view / "g", mount.path / view / "h")
        for folder in ("chunks", "zarr3"):
            assert opened(mount.path / folder).identical(before.rename(t="u")), folder
        assert not mount.errors()
    with mounted(store) as mount:
        assert opened(mount.path / "chunks").identical(before.rename(t="u"))
        for folder in ("chunks", "zarr3"):
            found = xr.open_zarr(str(mount.path / folder / "h/deep"), chunks=None, consolidated=False)
            assert found.identical(before), folder


@FORMATS
def test_a_new_copy_has_what_only_the_old_one_had(zarr_format: int, tmp_path: Path) -> None:
    store = tmp_path / "store"
    save(dataset(), store, zarr_format)
    before = opened(store)
    with mounted(without_documents(store)) as mount:
        document = mount.path / "chunks/.zmetadata"
        text = document.read_text()
        document.unlink()
        document.write_text(text)
    with mounted(store) as mount:
        assert opened(mount.path / "chunks").identical(before)
