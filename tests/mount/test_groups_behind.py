"""Another program changes a group, or a folder that was only made, which this mount still knows as it was: nothing of it is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import random_layouts as layouts
from tests.support.mounting import Mounted, mounted
from tests.support.random_layouts import CHUNK, Layout

pytestmark = pytest.mark.fuse

UNAWARE = ("--no-watch", "--metadata-ttl", "60", "--resize-erases")
LENGTH = 3 * CHUNK
THEIRS, OURS = np.full(LENGTH, 5, "<i8"), np.full(CHUNK, 99, "<i8")

every_layout = pytest.mark.parametrize(
    "layout", [layouts.V1_FILES, layouts.V2, layouts.V3_2019, layouts.V3_2022, layouts.V3], ids=lambda layout: layout.dialect
)
with_groups = pytest.mark.parametrize(
    "layout", [layouts.V2, layouts.V3_2019, layouts.V3_2022, layouts.V3], ids=lambda layout: layout.dialect
)


def document(view: str, length: int) -> tuple[str, str]:
    """Return name and text of the document of a new array."""
    if view == "chunks":
        plain: dict[str, Any] = {"order": "C", "filters": None, "compressor": None, "fill_value": 0}
        return ".zarray", json.dumps({"zarr_format": 2, "shape": [length], "chunks": [CHUNK], "dtype": "<i8", **plain})
    parts = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    node = {"zarr_format": 3, "node_type": "array", "shape": [length], "data_type": "int64", "fill_value": 0, **parts}
    return "zarr.json", json.dumps(node)


@pytest.mark.parametrize("length", [LENGTH, LENGTH + CHUNK], ids=["same shape", "larger"])
@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@every_layout
def test_an_array_put_in_the_place_of_a_new_folder_is_not_replaced(layout: Layout, view: str, length: int, tmp_path: Path) -> None:
    """The chunks written to the folder waited for another array."""
    layout.make_store(store := tmp_path / "store")
    with mounted(store, *UNAWARE, "--cache-dir", str(tmp_path / "cache"), ends_with=7) as mount:
        folder = mount.path / view / "g/b"
        folder.mkdir()
        chunk = folder / ("0" if view == "chunks" else "c/0")
        chunk.parent.mkdir(exist_ok=True)
        chunk.write_bytes(OURS.tobytes())
        layout.create(store, "g/b", THEIRS, 1, is_sharded=False)
        name, text = document(view, length)
        with pytest.raises(OSError, match="Stale"):
            (folder / name).write_text(text)
    ((_, elements),) = layout.arrays(store)
    assert elements.tolist() == THEIRS.tolist()
    (saved,) = (path for path in (tmp_path / "cache").rglob("0") if path.is_file())
    assert saved.read_bytes() == OURS.tobytes()


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@with_groups
def test_an_array_put_in_the_place_of_a_stored_group_is_not_replaced(layout: Layout, view: str, tmp_path: Path) -> None:
    layout.make_store(store := tmp_path / "store")
    with mounted(store, *UNAWARE) as mount:
        assert len(os.listdir(mount.path / view / "g")) <= 1
        remove_group(store)
        layout.create(store, "g", THEIRS, 1, is_sharded=False)
        name, text = document(view, LENGTH)
        with pytest.raises(OSError, match="Stale"):
            (mount.path / view / "g" / name).write_text(text)
    ((_, elements),) = layout.arrays(store)
    assert elements.tolist() == THEIRS.tolist()


@every_layout
def test_what_is_created_below_an_array_put_in_the_place_of_a_new_folder_is_refused(layout: Layout, tmp_path: Path) -> None:
    """The document of the array was replaced by that of a group, or the new array was below an array, where no view shows it."""
    layout.make_store(store := tmp_path / "store")
    layout.create(store, "moved", THEIRS, 1, is_sharded=False)
    with mounted(store, *UNAWARE) as mount:
        (mount.path / "chunks/g/b").mkdir()
        layout.create(store, "g/b", THEIRS, 2, is_sharded=False)
        with pytest.raises(OSError, match=r"Stale|Not a directory"):
            np.save(mount.path / "npy/g/b/new.npy", OURS)
        with pytest.raises(OSError, match="Not a directory"):
            os.rename(mount.path / "chunks/moved", mount.path / "chunks/g/b/moved")
    assert [elements.tolist() for _, elements in layout.arrays(store)] == [THEIRS.tolist()] * 2


@pytest.mark.parametrize("options", [(), UNAWARE], ids=["watching", "unaware"])
def test_attributes_that_another_mount_gave_a_new_folder_stay_when_an_array_is_saved_in_it(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    layouts.V3.make_store(store := tmp_path / "store")
    with mounted(store, *options) as ours, mounted(store, *options) as theirs:
        (ours.path / "chunks/g/new").mkdir()
        (theirs.path / "chunks/g/new").mkdir()
        (theirs.path / "chunks/g/new/.zattrs").write_text('{"by": "them"}')
        np.save(ours.path / "npy/g/new/a.npy", OURS)
    assert json.loads((store / "g/new/zarr.json").read_bytes())["attributes"] == {"by": "them"}


def remove_group(store: Path) -> None:
    for part in (store / "g", *store.rglob("g.group*")):
        shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)


def move_group(store: Path) -> None:
    for part in [*store.glob("g"), *store.rglob("g.group*")]:
        part.rename(part.with_name("h" + part.name[1:]))


def open_attributes(mount: Mounted, view: str) -> int:
    path = mount.path / view / "g" / (".zattrs" if view == "chunks" else "zarr.json")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    attributes = {"by": "this mount"}
    node = attributes if view == "chunks" else {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    os.truncate(fd, 0)
    os.pwrite(fd, json.dumps(node).encode(), 0)
    return fd


@pytest.mark.parametrize("end", [remove_group, move_group])
@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@with_groups
def test_attributes_of_a_group_that_is_gone_are_stored_nowhere(
    layout: Layout, view: str, end: Callable[[Path], None], tmp_path: Path
) -> None:
    layout.make_store(store := tmp_path / "store")
    with mounted(store, *UNAWARE) as mount:
        fd = open_attributes(mount, view)
        end(store)
        with pytest.raises(OSError, match="Stale") as refused:
            os.close(fd)
        assert refused.value.errno == errno.ESTALE
    assert not any(b"this mount" in path.read_bytes() for path in store.rglob("*") if path.is_file())


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize("is_moved", [False, True], ids=["erased", "moved"])
def test_new_folders_do_not_bring_the_group_above_them_back(view: str, is_moved: bool, tmp_path: Path) -> None:
    """They were stored at the path where the group had been, and so was an array, with the chunks that waited for its document."""
    layouts.V3.make_store(store := tmp_path / "store")
    layouts.V3.create(store, "g/a", THEIRS, 1, is_sharded=False)
    with mounted(store, *UNAWARE, "--cache-dir", str(tmp_path / "cache"), ends_with=7) as mount:
        group = mount.path / view / "g"
        for name in ("synced/below", "left", "array"):
            (group / name).mkdir(parents=True)
        chunk = group / ("array/0" if view == "chunks" else "array/c/0")
        chunk.parent.mkdir(exist_ok=True)
        chunk.write_bytes(OURS.tobytes())
        synced = os.open(group / "synced/below", os.O_RDONLY)
        if is_moved:
            os.rename(store / "g", store / "elsewhere")
        else:
            shutil.rmtree(store / "g")
        with pytest.raises(OSError, match="Stale"):
            os.fsync(synced)
        os.close(synced)
        name, text = document(view, LENGTH)
        with pytest.raises(OSError, match=r"Stale|No such file"):
            (group / "array" / name).write_text(text)
    assert not (store / "g").exists()
    assert is_moved == (store / "elsewhere/a/zarr.json").exists() and not (store / "elsewhere/left").exists()
    (saved,) = (path for path in (tmp_path / "cache").rglob("0") if path.is_file())
    assert saved.read_bytes() == OURS.tobytes()


def test_a_document_in_a_new_folder_whose_group_was_moved_is_refused(tmp_path: Path) -> None:
    layouts.V2.make_store(store := tmp_path / "store")
    with mounted(store, *UNAWARE) as mount:
        (mount.path / "chunks/g/new").mkdir()
        os.rename(store / "g", store / "elsewhere")
        name, text = document("chunks", LENGTH)
        with pytest.raises(OSError, match="Stale"):
            (mount.path / "chunks/g/new" / name).write_text(text)
    assert not (store / "g").exists()
