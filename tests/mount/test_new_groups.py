"""A new folder is no group until something shows that it is one: programs that write only into empty folders find it empty."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import mounted, run

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

pytestmark = pytest.mark.fuse

VIEWS = pytest.mark.parametrize(("view", "zarr_format"), [("zarr3", 3), ("chunks", 2)])


def dataset() -> Any:
    return xr.Dataset(
        {"t": (("y", "x"), np.arange(6.0).reshape(2, 3)), "flags": ("x", np.array([1, 2, 3], "i2"))},
        coords={"x": [10, 20, 30]},
        attrs={"title": "small"},
    )


def save(path: Path, zarr_format: int, *, consolidated: bool) -> None:
    """Write `dataset` in xarray's default mode; arrays in chunks/ have no compressor."""
    encoding = {name: {"compressors": None} for name in dataset().variables} if zarr_format == 2 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset().to_zarr(path, zarr_format=zarr_format, consolidated=consolidated, encoding=encoding)


@VIEWS
@pytest.mark.parametrize("where", ["", "new", "deep/er"])
@pytest.mark.parametrize("consolidated", [False, True])
def test_xarray_writes_with_its_default_mode_and_refuses_to_write_twice(
    view: str, zarr_format: int, where: str, consolidated: bool, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store") as mount:
        target = mount.path / view / where
        save(target, zarr_format, consolidated=consolidated)
        with xr.open_zarr(target, chunks=None, consolidated=consolidated) as found:
            assert found.identical(dataset())
        with pytest.raises(FileExistsError):
            save(target, zarr_format, consolidated=consolidated)
        assert not mount.errors()
    with mounted(tmp_path / "store") as mount:
        for each in ("zarr3", "chunks"):
            with xr.open_zarr(mount.path / each / where, chunks=None, consolidated=False) as found:
                assert found.identical(dataset()), each


@VIEWS
@pytest.mark.parametrize("where", ["", "new"])
def test_zarr_creates_a_group_only_where_there_is_none(view: str, zarr_format: int, where: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store") as mount:
        target = mount.path / view / where
        target.mkdir(exist_ok=True)
        group = zarr.open_group(str(target), mode="w-", zarr_format=zarr_format, attributes={"a": 1})
        group.create_array("x", shape=2, dtype="i4", compressors=None)[:] = 7
        with pytest.raises(FileExistsError):
            zarr.open_group(str(target), mode="w-", zarr_format=zarr_format)
        assert dict(zarr.open_group(str(target), mode="r").attrs) == {"a": 1}


@VIEWS
def test_a_folder_that_was_only_made_is_a_group_at_the_end(view: str, zarr_format: int, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store) as mount:
        (mount.path / view / "new/inner").mkdir(parents=True)
        assert os.listdir(mount.path / view / "new") == ["inner"] and os.listdir(mount.path / view / "new/inner") == []
        assert os.listdir(store) == []
    assert zarr.open_group(str(store / "new/inner"), mode="r").metadata.zarr_format == 3
    with mounted(store) as mount:
        assert zarr.open_group(str(mount.path / view / "new/inner"), mode="r").metadata.zarr_format == zarr_format


@VIEWS
def test_fsync_stores_a_new_group(view: str, zarr_format: int, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store) as mount:
        (mount.path / view / "a/b").mkdir(parents=True)
        (mount.path / view / "c").mkdir()
        run("sync", mount.path / view / "a")
        assert sorted(each.relative_to(store).as_posix() for each in store.rglob("zarr.json")) == [
            "a/b/zarr.json",
            "a/zarr.json",
            "zarr.json",
        ]
        assert os.listdir(mount.path / view / "a/b") == [".zgroup" if zarr_format == 2 else "zarr.json"]
        assert zarr.open_group(str(mount.path / view / "a/b"), mode="r").metadata.zarr_format == zarr_format


@VIEWS
def test_a_new_group_is_renamed_and_removed_like_any_empty_folder(view: str, zarr_format: int, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store) as mount:
        folder = mount.path / view
        (folder / "a/b").mkdir(parents=True)
        with pytest.raises(OSError, match="not empty"):
            (folder / "a").rmdir()
        os.rename(folder / "a", folder / "c")
        os.rename(folder / "c/b", folder / "d")
        assert sorted(os.listdir(folder)) == ["c", "d"] and os.listdir(folder / "c") == []
        (folder / "e").mkdir()
        os.rename(folder / "d", folder / "e")
        assert sorted(os.listdir(folder)) == ["c", "e"]
        (folder / "c").rmdir()
        shutil.rmtree(folder / "e")
        assert os.listdir(folder) == os.listdir(mount.path / "npy") == []
    assert os.listdir(store) == []


def test_a_node_created_below_makes_groups_of_those_above(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store) as mount:
        (mount.path / "zarr3/a/b").mkdir(parents=True)
        np.save(mount.path / "npy/a/b/x.npy", np.arange(3))
        assert "zarr.json" in os.listdir(mount.path / "zarr3/a") and "zarr.json" in os.listdir(store / "a/b")
        assert zarr.open_group(str(mount.path / "zarr3/a"), mode="r")["b/x"][:].tolist() == [0, 1, 2]


def test_a_kill_loses_a_folder_that_was_only_made(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, ends_with=None) as mount:
        (mount.path / "zarr3/a").mkdir()
        os.kill(mount.pid, signal.SIGKILL)
    assert os.listdir(store) == []


@pytest.mark.parametrize("tool", [("cp", "-a"), ("rsync", "-a")])
def test_times_of_new_folders_are_kept_when_they_are_stored(tool: tuple[str, ...], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "source/empty").mkdir(parents=True)
    os.utime(tmp_path / "source/empty", (1e9, 1e9))
    with mounted(store) as mount:
        run(*tool, tmp_path / "source/empty", mount.path / "zarr3")
        assert (mount.path / "zarr3/empty").stat().st_mtime == 1e9
        run("sync", mount.path / "zarr3/empty")
        assert (mount.path / "zarr3/empty").stat().st_mtime == 1e9


@VIEWS
@pytest.mark.parametrize("tool", [("cp", "-a"), ("rsync", "-a")])
def test_times_of_folders_are_kept_when_new_ones_in_them_are_stored(
    view: str, zarr_format: int, tool: tuple[str, ...], tmp_path: Path
) -> None:
    store, source = tmp_path / "store", tmp_path / "source"
    store.mkdir()
    zarr.create_array(str(source), name="g/x", shape=4, chunks=2, dtype="i4", compressors=None, zarr_format=zarr_format)[:] = 5
    (source / "g/empty/inner").mkdir(parents=True)
    folders = ["g/empty/inner", "g/empty", "g/x", "g", ""]
    for each in folders:
        os.utime(source / each, (1e9, 1e9))
    with mounted(store) as mount:
        run(*tool, source, mount.path / view)
        for is_synced in (False, True):
            if is_synced:
                run("sync", mount.path / view)
                assert (store / "source/g/empty/inner/zarr.json").exists()
            assert {each: (mount.path / view / "source" / each).stat().st_mtime for each in folders} == dict.fromkeys(folders, 1e9)
