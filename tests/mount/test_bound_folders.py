"""In a folder store, an array that another program creates in place of another is a different array, however equal."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.mount.test_bound_files import FOUR, HEADER, arrays, errno_of, make, opened
from tests.support.mounting import mounted

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

OPTIONS = [(), ("--no-watch", "--metadata-ttl", "0"), ("--no-watch", "--metadata-ttl", "60")]


@pytest.fixture(params=[False, True], ids=["plain", "sharded"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "store"
    zarr.create_group(str(folder), zarr_format=3)
    make(folder, sharded=request.param)
    return folder


def make_anew(store: Path, how: str, *, sharded: bool) -> None:
    if how == "removed":
        shutil.rmtree(store / "a")
        make(store, sharded=sharded)
    else:
        # A copy: the same documents, with the same times, or the very files.
        os.rename(store / "a", store / "old")
        shutil.copytree(store / "old", store / "a", copy_function=os.link if how == "linked" else shutil.copy2)


@pytest.mark.parametrize("options", OPTIONS, ids=["watch", "no-watch", "ttl"])
@pytest.mark.parametrize("how", ["removed", "copied", "linked"])
def test_what_was_staged_is_not_stored_in_an_equal_array(store: Path, how: str, options: tuple[str, ...]) -> None:
    sharded = "sharding_indexed" in (store / "a/zarr.json").read_text()
    with mounted(store, *options, ends_with=None) as mount:
        with opened(mount.path / "npy/a.npy") as whole, opened(mount.path / "chunks/a/0") as chunk:
            os.pwrite(whole, FOUR, HEADER)
            os.pwrite(chunk, FOUR[:4], 0)
            make_anew(store, how, sharded=sharded)
            assert errno_of(lambda: os.fsync(whole)) == errno.ESTALE
            assert errno_of(lambda: os.fsync(chunk)) == errno.ESTALE
        (mount.path / "npy/a.npy").read_bytes()
        mount.umount()
    assert all(elements == [7] * 8 for elements in arrays(store).values())


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize("how", ["removed", "copied", "linked"])
def test_a_chunk_that_was_opened_to_be_replaced_is_not_stored_in_an_equal_array(store: Path, how: str, view: str) -> None:
    """Nothing of it was read: its array was determined when it was opened."""
    sharded = "sharding_indexed" in (store / "a/zarr.json").read_text()
    with mounted(store, "--no-watch", ends_with=None) as mount:
        path = mount.path / ("chunks/a/0" if view == "chunks" else "zarr3/a/c/0")
        nbytes = path.stat().st_size
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
        os.pwrite(fd, FOUR[:4] * (nbytes // 4), 0)
        make_anew(store, how, sharded=sharded)
        assert errno_of(lambda: os.fsync(fd)) == errno.ESTALE
        with suppress(OSError):
            os.close(fd)
        mount.umount()
    assert all(elements == [7] * 8 for elements in arrays(store).values())


@pytest.mark.parametrize("options", OPTIONS, ids=["watch", "no-watch", "ttl"])
@pytest.mark.parametrize("file", ["npy/a.npy", "chunks/a/0"])
def test_what_is_written_under_its_name_is_stored_in_a_copy_by_hard_links(store: Path, file: str, options: tuple[str, ...]) -> None:
    """It was stored in the folder that had been moved away, while a program had the array open."""
    with mounted(store, *options, ends_with=None) as mount:
        with opened(mount.path / "npy/a.npy") as before:
            os.pwrite(before, FOUR[:4], HEADER)
            os.fsync(before)
            make_anew(store, "linked", sharded=False)
            with opened(mount.path / file) as now:
                os.pwrite(now, FOUR[:4], (HEADER if file.endswith(".npy") else 0) + 4)
                os.fsync(now)
        mount.umount()
    assert arrays(store) == {"a": [99, 99] + [7] * 6, "old": [99] + [7] * 7}


def test_what_waits_for_its_shard_is_not_stored_in_an_equal_array(store: Path) -> None:
    if "sharding_indexed" not in (store / "a/zarr.json").read_text():
        pytest.skip("nothing waits")
    with mounted(store, "--shard-delay", "60", ends_with=7) as mount:
        with (mount.path / "chunks/a/0").open("r+b") as file:
            file.write(np.full(2, 99, "<i4").tobytes())
        make_anew(store, "removed", sharded=True)
    assert arrays(store) == {"a": [7] * 8}


def test_attributes_that_another_program_writes_make_no_other_array(store: Path) -> None:
    with mounted(store) as mount:
        with opened(mount.path / "npy/a.npy") as whole:
            os.pwrite(whole, FOUR, HEADER)
            zarr.open_array(str(store / "a"), mode="r+").attrs["units"] = "K"
            os.fsync(whole)
            zarr.open_array(str(store / "a"), mode="r+").attrs.clear()
            os.pwrite(whole, FOUR, HEADER + 16)
            os.fsync(whole)
    assert arrays(store) == {"a": [99] * 8}
