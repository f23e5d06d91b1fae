"""Nodes at the path of an array: a group at the same path, nodes below it; and the remains after a full disk."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import mounted, run, zarrfs
from tests.support.small_disks import small_disk

pytestmark = pytest.mark.fuse

ELEMENTS = np.arange(6, dtype="<i4").reshape(2, 3)


@pytest.fixture(params=["v3_2022", "v3_2019"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """``/g`` is an array and a group, which holds the array ``/g/b``; only the array counts."""
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", request.param, "--new-chunks", "2x2") as mount:
        (mount.path / "chunks/g").mkdir()
        (mount.path / "chunks/g/.zattrs").write_text('{"is": "a group"}')
        np.save(mount.path / "npy/g/b.npy", ELEMENTS)
        np.save(mount.path / "npy/a.npy", ELEMENTS)
    (array,) = (path for path in (store / "meta/root").iterdir() if path.name.startswith("a.array"))
    array.rename(array.with_name(array.name.replace("a.array", "g.array")))
    data = next(path for path in (store / "data").rglob("a") if path.is_dir())
    for chunk in list(data.rglob("*")):
        if chunk.is_file():
            place = data.with_name("g") / chunk.relative_to(data)
            place.parent.mkdir(parents=True, exist_ok=True)
            chunk.rename(place)
    return store


@pytest.mark.parametrize("view", ["npy", "chunks", "zarr3"])
def test_an_array_is_erased_and_the_group_at_its_path_stays(store: Path, view: str) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with mounted(store) as mount:
        assert np.load(mount.path / "npy/g.npy").tolist() == ELEMENTS.tolist()
        run("rm", "-r", mount.path / ("npy/g.npy" if view == "npy" else f"{view}/g"))
        assert np.load(mount.path / "npy/g/b.npy").tolist() == ELEMENTS.tolist()
        assert json.loads((mount.path / "chunks/g/.zattrs").read_text()) == {"is": "a group"}
        assert not mount.errors()
    after = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert after.items() <= before.items()
    gone = {str(path.relative_to(store)) for path in before.keys() - after.keys()}
    assert len(gone) == 3 and not any("/b" in name for name in gone), gone


def test_nodes_below_an_array_are_told(store: Path) -> None:
    told = zarrfs("info", str(store), "--json")
    (array,) = [node for node in json.loads(told.stdout)["nodes"] if node["path"] == "/g"]
    assert array["nodes_below"] == ["/g/b"]
    assert "nodes below this array, which no view shows: /g/b" in zarrfs("info", str(store)).stdout
    checked = zarrfs("check", str(store))
    assert checked.returncode == 0
    assert "below an array, where no view shows it, not checked: 1\n  /g/b: /g is an array" in checked.stdout


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_nodes_in_the_folder_of_an_array_are_told(tmp_path: Path, zarr_format: int) -> None:
    store = tmp_path / "store"
    group = zarr.open_group(str(store), mode="w", zarr_format=zarr_format)
    group.create_array("x", shape=(2,), chunks=(1,), dtype="i4")[:] = 1
    group.create_group("0").create_array("y", shape=(2,), dtype="i4")[:] = 1
    array = group.create_array("a", shape=(4, 4), chunks=(1, 1), dtype="i4")
    array[...] = 1
    os.rename(store / "x", store / "a/x")
    os.rename(store / "0", store / "a/z0")
    nodes = {node["path"]: node for node in json.loads(zarrfs("info", str(store), "--json").stdout)["nodes"]}
    assert nodes["/a"]["nodes_below"] == ["/a/x", "/a/z0", "/a/z0/y"]
    checked = json.loads(zarrfs("check", str(store), "--json").stdout)
    assert [each["path"] for each in checked["below"]] == ["/a/x", "/a/z0", "/a/z0/y"] and checked["bad"] == []


def synced(folder: Path) -> None:
    """Create a folder and run fsync(2) of it."""
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


def test_a_full_disk_leaves_no_empty_folders(disk: Path) -> None:
    store = disk / "store"
    group = zarr.open_group(str(store), mode="w", zarr_format=3)
    group.create_array("a", shape=(4,), chunks=(2,), dtype="i4", compressors=None)
    before = sorted(str(path.relative_to(store)) for path in store.rglob("*"))
    run("dd", "if=/dev/zero", f"of={disk / 'rest'}", "bs=4096", check=False)
    with mounted(store, ends_with=None) as mount:
        for attempt in (
            lambda: (mount.path / "chunks/a/1").write_bytes(bytes(8)),
            lambda: (mount.path / "raw/x/y").parent.mkdir() or (mount.path / "raw/x/y").write_bytes(bytes(8)),
            lambda: (mount.path / "npy/new").mkdir(),
            lambda: synced(mount.path / "chunks/new"),
            lambda: np.save(mount.path / "npy/n.npy", np.arange(100)),
            lambda: np.save(mount.path / "npy/a.npy", np.arange(100)),
        ):
            with pytest.raises(OSError, match="No space left") as caught:
                attempt()
            assert caught.value.errno == errno.ENOSPC
        (mount.path / "raw/x").rmdir()
        (mount.path / "chunks/new").rmdir()
        mount.umount()
    assert sorted(str(path.relative_to(store)) for path in store.rglob("*")) == before
