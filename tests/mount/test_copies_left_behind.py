"""fsync of a folder while a full disk keeps the update of a consolidated copy from being stored."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted
from tests.support.small_disks import small_disk

pytestmark = [pytest.mark.fuse, pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")]

LARGE = 1_500_000
"""Bytes of the copy: more than the disk has left."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "8m") as disk:
        yield disk


def make(store: Path, zarr_format: int) -> None:
    root = zarr.open_group(str(store), mode="w", zarr_format=zarr_format)
    root.create_group("g").attrs["large"] = "x" * LARGE
    zarr.consolidate_metadata(str(store), zarr_format=zarr_format)


def fill(disk: Path, left: int = 200_000) -> Path:
    """Leave space for an array, and not for the copy."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(65536)) == 65536:
            pass
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - left)
    return disk / "filler"


def synced(path: Path) -> int:
    """Return the errno of an fsync; 0 if it succeeds."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        return error.errno
    finally:
        os.close(fd)
    return 0


def copied(store: Path) -> set[str]:
    v2, v3 = store / ".zmetadata", store / "zarr.json"
    if v2.exists():
        return {key.partition("/")[0] for key in json.loads(v2.read_bytes())["metadata"]}
    return set(json.loads(v3.read_bytes())["consolidated_metadata"]["metadata"])


def create(mount: Mounted) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        np.save(mount.path / "npy/a.npy", np.arange(5))


@pytest.mark.logs("copies not updated, left for later", "not ended yet")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("folder", ["", "chunks", "npy", "zarr3", "raw", "chunks/a"])
def test_fsync_of_a_folder_fails_as_long_as_the_copy_lacks_its_nodes(
    disk: Path, tmp_path: Path, zarr_format: int, folder: str
) -> None:
    store = disk / "store"
    make(store, zarr_format)
    with mounted(store, "--cache-dir", str(tmp_path / "cache")) as mount:
        filler = fill(disk)
        create(mount)
        assert (store / "a").is_dir() and "a" not in copied(store)
        assert [synced(mount.path / folder) for _ in range(2)] == [errno.ENOSPC] * 2
        # The copy lists no node there that it lacks.
        assert synced(mount.path / "chunks/g") == 0
        filler.unlink()
        assert synced(mount.path / folder) == 0
        assert "a" in copied(store)
        # Its close has failed: the end of the mount would report that.
        (mount.path / "npy/a.npy").unlink()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("left", [0, 8192])
def test_an_array_that_the_copy_lists_is_removed_from_a_full_disk(disk: Path, tmp_path: Path, zarr_format: int, left: int) -> None:
    """The room for the new copy is that of the array."""
    store, b = disk / "store", np.arange(1000)
    root = zarr.open_group(str(store), mode="w", zarr_format=zarr_format)
    root.create_group("g").attrs["large"] = "x" * 200_000
    for name, values in (("a", np.random.default_rng(1).random(100_000)), ("b", b)):
        root.create_array(name, data=values, chunks=(20_000,))
    zarr.consolidate_metadata(str(store), zarr_format=zarr_format)
    with mounted(store, "--cache-dir", str(tmp_path / "cache")) as mount:
        filler = fill(disk, left)
        (mount.path / "npy/a.npy").unlink()
        assert sorted(os.listdir(mount.path / "npy")) == ["b.npy", "g"]
        assert not (store / "a").exists() and copied(store) >= {"b", "g"} and "a" not in copied(store)
        assert mount.errors() == []
        filler.unlink()
        assert np.array_equal(np.load(mount.path / "npy/b.npy"), b)
    assert not (store / ".zarrfs").exists()
