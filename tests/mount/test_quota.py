"""A real file system with a quota (btrfs): exceeding it is EDQUOT, handled as ENOSPC, and no stored value is lost."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse

OLD = np.arange(1000, dtype="<i4")
QUOTA = 8 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A v3 store on a subvolume that may hold 8 MiB of a disk of 160 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("mkfs.btrfs (btrfs-progs) is missing")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(160 << 20)
    subprocess.run(["mkfs.btrfs", "-q", "-M", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=False, capture_output=True).returncode:
        pytest.skip("no btrfs can be mounted here")
    try:
        volume = disk / "volume"
        for command in (["subvolume", "create", volume], ["quota", "enable", disk]):
            subprocess.run(["btrfs", *map(str, command)], check=True, capture_output=True)
        limit(volume, QUOTA)
        zarr.create_group(str(volume / "store"), zarr_format=3)
        zarr.create_array(str(volume / "store"), name="a", shape=OLD.shape, chunks=(4000,), dtype="<i4", compressors=None)[:] = OLD
        yield volume / "store"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def limit(volume: Path, nbytes: int) -> None:
    # The command fails while data above the old limit is being removed, which one sync may not complete on a busy machine.
    for left in reversed(range(20)):
        subprocess.run(["btrfs", "filesystem", "sync", str(volume)], check=True, capture_output=True)
        done = subprocess.run(["btrfs", "qgroup", "limit", str(nbytes), str(volume)], check=not left, capture_output=True)
        if done.returncode == 0:
            return


def errno_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def npy(elements: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, elements)
    return file.getvalue()


def stored(store: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.asarray(zarr.open_array(str(store / "a"), mode="r")[:])


def exhaust(folder: Path) -> None:
    """Write until nothing more fits."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
                    os.fsync(file.fileno())


def test_a_replacement_beyond_the_quota_leaves_the_array_and_may_be_tried_again(store: Path) -> None:
    new = np.arange(5000, dtype="<i4")
    with mounted(store, "--new-codecs", "none", ends_with=None) as mount:
        place = mount.path / "npy/a.npy"
        assert errno_of(lambda: place.write_bytes(npy(np.ones(5_000_000, "<i4")))) == errno.EDQUOT
        assert np.array_equal(stored(store), OLD)
        # Removed data counts for a while; raise the quota, as an administrator would.
        limit(store.parent, 4 * QUOTA)
        place.write_bytes(npy(new))
        assert np.array_equal(np.load(place), new)
        mount.umount()
    assert np.array_equal(stored(store), new)
    assert {each.name for each in store.iterdir()} == {"a", "zarr.json"}


@pytest.mark.parametrize("place", ["raw/large", "chunks/large", "zarr3/large"])
def test_a_value_beyond_the_quota_is_not_stored_in_part(place: str, store: Path) -> None:
    large = np.ones(5_000_000, "<i4")
    if not place.startswith("raw/"):
        zarr.create_array(str(store), name="large", shape=large.shape, chunks=large.shape, dtype="<i4", compressors=None)
        place += "/0" if place.startswith("chunks") else "/c/0"
    with mounted(store, ends_with=None) as mount:
        assert errno_of(lambda: (mount.path / place).write_bytes(large.tobytes())) == errno.EDQUOT
        ended = mount.umount()
        assert ended.returncode in (0, 7), ended.stderr
    assert not [each for each in store.rglob("*") if each.is_file() and each.stat().st_size > 1 << 20]
    assert np.array_equal(stored(store), OLD)


def test_with_the_quota_used_up_an_array_can_be_erased(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        exhaust(store.parent)
        (mount.path / "npy/a.npy").unlink()
        assert os.listdir(mount.path / "npy") == []
        mount.umount()
    assert not (store / "a").exists()
