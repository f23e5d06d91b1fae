"""``mode="w"`` at the root of a view, which removes the view's folder first; and the folder while it is removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.attackers import EVE, act
from tests.support.mounting import mounted, run, shell

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

pytestmark = pytest.mark.fuse

VIEWS = pytest.mark.parametrize(("view", "zarr_format"), [("zarr3", 3), ("chunks", 2)])
STORES = pytest.mark.parametrize("stored", [None, 2, 3])


def dataset(start: int) -> Any:
    return xr.Dataset({"t": (("y", "x"), np.arange(start, start + 6.0).reshape(2, 3))}, attrs={"start": start})


def save(path: Path, zarr_format: int, start: int) -> None:
    # Arrays in chunks/ have no compressor.
    encoding = {"t": {"compressors": None}} if zarr_format == 2 else {}
    dataset(start).to_zarr(path, mode="w", zarr_format=zarr_format, consolidated=False, encoding=encoding)


def require(path: Path, start: int) -> None:
    with xr.open_zarr(path, chunks=None, consolidated=False) as found:
        assert found.identical(dataset(start))


def new_store(tmp_path: Path, stored: int | None) -> Path:
    store = tmp_path / "store"
    store.mkdir()
    if stored is not None:
        group = zarr.create_group(store, zarr_format=stored, attributes={"old": 1})
        group.create_array("old/a", shape=(3,), dtype="i2")[:] = 7
    return store


@VIEWS
@STORES
def test_a_hierarchy_is_written_over_another_one(view: str, zarr_format: int, stored: int | None, tmp_path: Path) -> None:
    store = new_store(tmp_path, stored)
    with mounted(store) as mount:
        for start in (0, 10):
            save(mount.path / view, zarr_format, start)
            require(mount.path / view, start)
        assert not mount.errors()
    # It keeps the layout of the one before.
    assert not list(store.rglob("old"))
    assert (store / "t" / (".zarray" if stored == 2 else "zarr.json")).exists()
    with mounted(store) as mount:
        for each in ("zarr3", "chunks"):
            require(mount.path / each, 10)


@VIEWS
@STORES
def test_arrays_and_groups_at_the_root_are_written_over_each_other(
    view: str, zarr_format: int, stored: int | None, tmp_path: Path
) -> None:
    store = new_store(tmp_path, stored)
    with mounted(store) as mount:
        target = mount.path / view
        for shape, dtype in [((4,), "i4"), ((2, 3), "f8")]:
            array = zarr.create_array(target, shape=shape, dtype=dtype, zarr_format=zarr_format, compressors=None, overwrite=True)
            array[...] = 1
            found = zarr.open_array(target, mode="r")
            assert (found.shape, found.dtype, found[...].min()) == (shape, dtype, 1)
        zarr.open_group(target, mode="w", zarr_format=zarr_format, attributes={"new": 1})
        assert dict(zarr.open_group(target, mode="r").attrs) == {"new": 1}
        assert not mount.errors()
    assert dict(zarr.open_group(store, mode="r").attrs) == {"new": 1}
    assert not list(zarr.open_group(store, mode="r").members())


@pytest.mark.parametrize("view", ["zarr3", "chunks", "npy"])
@pytest.mark.parametrize("stored", [2, 3])
def test_an_array_at_the_root_leaves_no_folders_of_its_chunks(view: str, stored: int, tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    key_encoding = {"name": "default" if stored == 3 else "v2", "separator": "/"}
    array = zarr.create_array(store, shape=(4, 4), chunks=(2, 2), dtype="i4", zarr_format=stored, chunk_key_encoding=key_encoding)
    array[:] = 1
    (store / "notes").mkdir()
    with mounted(store) as mount:
        if view == "npy":
            (mount.path / "npy/x.npy").unlink()
        else:
            shutil.rmtree(mount.path / view)
        assert os.listdir(store) == ["notes"]
        np.save(mount.path / "npy/x.npy", np.arange(3))
        assert np.load(mount.path / "npy/x.npy").tolist() == [0, 1, 2]


def test_raw_too(tmp_path: Path) -> None:
    store = new_store(tmp_path, 3)
    with mounted(store) as mount:
        save(mount.path / "raw", 3, 5)
        require(mount.path / "zarr3", 5)
    require(store, 5)


@pytest.mark.parametrize("view", ["raw", "chunks", "zarr3", "npy"])
def test_a_removed_folder_is_gone_until_it_is_made_again(view: str, tmp_path: Path) -> None:
    store = new_store(tmp_path, 3)
    with mounted(store) as mount:
        folder = mount.path / view
        assert b"not empty" in run("rmdir", folder, check=False).stderr
        before = os.open(folder, os.O_PATH)
        shutil.rmtree(folder)
        assert view not in os.listdir(mount.path)
        assert not folder.exists()
        with pytest.raises(FileNotFoundError):
            os.mkdir(folder / "new")
        with pytest.raises(FileNotFoundError):
            os.rmdir(folder)
        folder.mkdir()
        with pytest.raises(FileExistsError):
            folder.mkdir()
        assert os.listdir(folder) == []
        assert view in os.listdir(mount.path)
        # What was removed is no place to write to.
        with pytest.raises(FileNotFoundError):
            os.mkdir("new", dir_fd=before)
        os.close(before)
        (folder / "new").mkdir()
        assert os.listdir(folder) == ["new"]
        assert not mount.errors()
    # The layout is that of the group at the root.
    assert (store / "zarr.json").exists() == (view != "raw")


def test_no_other_name_of_the_mount_is_made_or_removed(tmp_path: Path) -> None:
    store = new_store(tmp_path, 3)
    with mounted(store) as mount:
        for command in ("rmdir README.txt", "rm -f README.txt", "mkdir new", "touch new", "rmdir .zarrfs", "mv README.txt new"):
            assert shell(f"cd {mount.path} && {command}", check=False).returncode == 1, command
        assert sorted(os.listdir(mount.path)) == ["README.txt", "chunks", "npy", "raw", "zarr3"]
        run("mv", mount.path / "zarr3", mount.path / "new", check=False)
        assert sorted(os.listdir(mount.path)) == ["README.txt", "chunks", "npy", "raw", "zarr3"]
        assert (mount.path / "zarr3/old/a/zarr.json").exists()
    with mounted(store, "--read-only") as mount:
        for view in ("raw", "chunks", "zarr3", "npy"):
            assert shell(f"rmdir {mount.path / view}", check=False).returncode == 1
    assert (store / "old/a/zarr.json").exists()


def test_its_user_may_and_others_may_not(tmp_path: Path) -> None:
    store = new_store(tmp_path, 3)
    (tmp_path / "store/zarr.json").unlink()
    shutil.rmtree(store / "old")
    with mounted(store, "-o", f"allow_other,uid={EVE}") as mount:
        mount.path.parent.chmod(0o755)
        act(EVE, "rmdir $1 && mkdir $1", mount.path / "zarr3")
    with mounted(store, "-o", "allow_other") as mount:
        mount.path.parent.chmod(0o755)
        assert act(EVE, "rmdir $1 2>&1 || true", mount.path / "zarr3").rstrip().endswith("Permission denied")
