"""Chunks queued for shards of an array that this mount replaces or erases: they go with it, as the stored chunks do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted, run

pytestmark = pytest.mark.fuse

OLD = np.full(32, 7, "<i4")
NEW = np.arange(5, dtype="<f8")


@pytest.fixture(params=["v3", "v3_2022"])
def mount(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    """A mount of an array with a chunk in the queue; all of it has to end without a loss."""
    (tmp_path / "store").mkdir()
    options = ["--new-dialect", request.param, "--new-chunks", "8", "--new-shards", "4", "--shard-delay", "600"]
    with mounted(tmp_path / "store", *options, "--cache-dir", str(tmp_path / "cache")) as mount:
        np.save(mount.path / "npy/a.npy", OLD)
        queue_a_chunk(mount)
        yield mount
    assert not (tmp_path / "cache/rescued").exists()


def queue_a_chunk(mount: Mounted, name: str = "a") -> None:
    with (mount.path / "chunks" / name / "1").open("r+b") as file:
        file.write(np.full(8, 99, "<i4").tobytes())


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def save(mount: Mounted) -> None:
    np.save(mount.path / "npy/a.npy", NEW)


def save_by_mapping(mount: Mounted) -> None:
    mapped = np.lib.format.open_memmap(mount.path / "npy/a.npy", mode="w+", dtype=NEW.dtype, shape=NEW.shape)
    mapped[:] = NEW
    mapped.flush()


def rename_over(mount: Mounted) -> None:
    np.save(mount.path / "npy/b.npy", NEW)
    run("mv", mount.path / "npy/b.npy", mount.path / "npy/a.npy")


def rename_a_temporary_file_over(mount: Mounted) -> None:
    with (mount.path / "npy/.a.npy.Ab12Cd").open("wb") as file:
        np.save(file, NEW)
    os.rename(mount.path / "npy/.a.npy.Ab12Cd", mount.path / "npy/a.npy")


def erase_and_save(mount: Mounted) -> None:
    (mount.path / "npy/a.npy").unlink()
    save(mount)


@pytest.mark.parametrize(
    "event",
    [save, save_by_mapping, rename_over, rename_a_temporary_file_over, erase_and_save],
    ids=lambda event: event.__name__,
)
def test_what_waits_goes_with_an_array_that_this_mount_replaces(mount: Mounted, event: Callable[[Mounted], None]) -> None:
    """It was saved in `rescued/`, with exit code 7, and the first fsync of the new file was ESTALE."""
    event(mount)
    sync(mount.path / "npy/a.npy")
    sync(mount.path / "chunks")
    np.testing.assert_array_equal(np.load(mount.path / "npy/a.npy"), NEW)
    assert not mount.errors()


def test_what_waits_for_the_array_that_is_renamed_over_another_goes_with_the_name(mount: Mounted) -> None:
    np.save(mount.path / "npy/b.npy", OLD)
    queue_a_chunk(mount, "b")
    os.rename(mount.path / "npy/b.npy", mount.path / "npy/a.npy")
    sync(mount.path / "npy/a.npy")
    assert np.load(mount.path / "npy/a.npy").tolist() == [7] * 8 + [99] * 8 + [7] * 16


def test_what_waits_is_stored_before_the_document_of_its_array_is_rewritten_in_raw(mount: Mounted) -> None:
    """Chunks without shards are stored by then, and belong to the new array: so do these."""
    (document,) = (path for name in ("a/zarr.json", "meta/root/a.array.json") if (path := mount.path / "raw" / name).exists())
    with document.open("r+") as file:
        text = file.read()
        queue_a_chunk(mount)
        file.seek(0)
        file.truncate()
        file.write(text.replace('"int32"', '"float32"').replace('"<i4"', '"<f4"'))
    assert json.loads(document.read_bytes()) != json.loads(text)
    sync(mount.path / "chunks")
    assert np.load(mount.path / "npy/a.npy").view("<i4").tolist() == [7] * 8 + [99] * 8 + [7] * 16
