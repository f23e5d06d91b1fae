"""Keys that a view does not show are not erased through it.

rmdir of a folder that looks empty, and a rename over it, are ENOTEMPTY; so are removal and replacement of an array with such keys.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mount.test_bound_files import errno_of, keys
from tests.support.mounting import mounted

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

VIEWS = ["chunks", "zarr3", "npy"]


@pytest.fixture(params=[2, 3])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "store"
    root = zarr.create_group(str(folder), zarr_format=request.param)
    for name in ("empty", "full", "other"):
        root.create_group(name)
    array = root.create_array("full/a", shape=(4,), chunks=(2,), dtype="i4", compressors=None)
    array[:] = 7
    return folder


def hide(store: Path, group: str, what: str) -> Path:
    place = store / group / what
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"precious")
    return place


def rmtree(place: Path) -> Callable[[], Any]:
    """Return a function like ``rm -r``: it removes the listed entries, then the folder."""
    return lambda: shutil.rmtree(place)


@pytest.mark.parametrize("what", ["README", "notes/today", ".hidden"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_group_that_looks_empty_stays(store: Path, view: str, what: str) -> None:
    hidden = hide(store, "empty", what)
    with mounted(store) as mount:
        place = mount.path / view / "empty"
        assert errno_of(lambda: os.rmdir(place)) == errno.ENOTEMPTY
        assert errno_of(rmtree(place)) == errno.ENOTEMPTY
        assert errno_of(lambda: os.rename(mount.path / view / "other", place)) == errno.ENOTEMPTY
        assert any("is not shown" in str(line["message"]) and what.split("/")[0] in line["message"] for line in mount.errors())
        assert hidden.read_bytes() == b"precious" and (store / "other").is_dir()
        hidden.unlink()
        if hidden.parent.name == "notes":
            hidden.parent.rmdir()
        os.rename(mount.path / view / "other", place)
        rmtree(place)()
    assert not (store / "empty").exists() and not (store / "other").exists()


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize("what", ["README", "c/notes", "masks/0"])
def test_an_array_with_other_keys_stays(store: Path, view: str, what: str) -> None:
    hidden = hide(store, "full/a", what)
    with mounted(store) as mount:
        assert errno_of(rmtree(mount.path / view / "full/a")) == errno.ENOTEMPTY
        assert hidden.read_bytes() == b"precious"
        hidden.unlink()
        rmtree(mount.path / view / "full/a")()
    assert not [key for key in keys(store) if key.startswith("full/a/")]


def other_shape() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3.0))
    return file.getvalue()


@pytest.mark.parametrize("what", ["README", "c/notes", "inner"])
def test_neither_rm_nor_what_takes_the_place_of_an_array_erases_other_keys_in_its_folder(store: Path, what: str) -> None:
    root = zarr.open_group(str(store))
    root.create_array("b", shape=(2,), dtype="f8")
    if what == "inner":
        shutil.copytree(store / "b", store / "full/a/inner")
    else:
        hide(store, "full/a", what)
    with mounted(store) as mount:
        place = mount.path / "npy/full/a.npy"
        before, content = keys(store), place.read_bytes()
        temporary = mount.path / "npy/full/.a.npy.tmp"
        temporary.write_bytes(other_shape())
        for change in (
            lambda: os.unlink(place),
            lambda: os.rename(mount.path / "npy/b.npy", place),
            lambda: place.write_bytes(other_shape()),
            lambda: os.rename(temporary, place),
        ):
            assert errno_of(change) == errno.ENOTEMPTY
        assert keys(store) == before and place.read_bytes() == content
        temporary.unlink()
    assert keys(store) == before


@pytest.mark.parametrize("view", VIEWS)
def test_a_group_with_a_consolidated_copy_goes(store: Path, view: str) -> None:
    zarr.consolidate_metadata(str(store / "full"))
    zarr.consolidate_metadata(str(store))
    with mounted(store) as mount:
        rmtree(mount.path / view / "full")()
        assert "full" not in os.listdir(mount.path / view)
    assert not (store / "full").exists()


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
def test_chunks_outside_of_the_grid_go_with_their_array(store: Path, view: str) -> None:
    is_v2 = (store / "full/a/.zarray").exists()
    hide(store, "full/a", "9" if is_v2 else "c/9")
    with mounted(store) as mount:
        rmtree(mount.path / view / "full/a")()
    assert not [key for key in keys(store) if key.startswith("full/a/")]
