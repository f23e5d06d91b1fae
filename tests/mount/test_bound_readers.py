"""Readers of an array that is resized continue in the layout they opened, as far as the array still has the elements."""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mount.test_bound_files import errno_of, opened
from tests.support.mounting import Mounted, mounted
from tests.support.waiting import until

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

HEADER = 128
ROWS, COLUMNS = 400, 1024
ELEMENTS = np.arange(ROWS * COLUMNS, dtype="<i4").reshape(ROWS, COLUMNS)
ROW_NBYTES = COLUMNS * 4


@pytest.fixture(params=[False, True], ids=["plain", "sharded"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "store"
    zarr.create_group(str(folder), zarr_format=3)
    shards = (200, 1024) if request.param else None
    array = zarr.create_array(str(folder / "a"), shape=ELEMENTS.shape, chunks=(20, 512), shards=shards, dtype="i4", zarr_format=3)
    array[:] = ELEMENTS
    return folder


def resize(mount: Mounted, how: str, shape: tuple[int, int]) -> None:
    if how == "behind":
        zarr.open_array(str(mount.store / "a"), mode="r+").resize(shape)
        while np.load(mount.path / "npy/a.npy", mmap_mode="r").shape != shape:
            pass
        return
    name = {"chunks": ".zarray", "zarr3": "zarr.json", "raw": "zarr.json"}[how]
    place = mount.path / how / "a" / name
    place.write_text(json.dumps(json.loads(place.read_text()) | {"shape": list(shape)}))


def row(fd: int, index: int, count: int = 1) -> list[int]:
    data = os.pread(fd, count * ROW_NBYTES, HEADER + index * ROW_NBYTES)
    return [int(each) for each in np.frombuffer(data, "<i4")[:: COLUMNS - 1][: 2 * count]]


WAYS = ["chunks", "zarr3", "raw", "behind"]


@pytest.mark.parametrize("how", WAYS)
def test_of_one_that_grew_everything_is_read_on(store: Path, how: str) -> None:
    with mounted(store) as mount:
        with opened(mount.path / "npy/a.npy", os.O_RDONLY) as reader:
            os.pread(reader, 64, 0)
            with mmap.mmap(reader, 0, prot=mmap.PROT_READ) as mapping:
                resize(mount, how, (ROWS + 100, COLUMNS + 100))
                for index in (0, 199, ROWS - 1):
                    assert row(reader, index)[0] == index * COLUMNS
                    start = HEADER + index * ROW_NBYTES
                    assert np.array_equal(np.frombuffer(mapping[start : start + ROW_NBYTES], "<i4"), ELEMENTS[index])
            assert os.fstat(reader).st_size == HEADER + ELEMENTS.nbytes
        assert np.load(mount.path / "npy/a.npy", mmap_mode="r").shape == (ROWS + 100, COLUMNS + 100)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
@pytest.mark.parametrize("rows", [ROWS + 100, ROWS - 100])
def test_its_name_leads_to_the_new_shape_where_changes_are_not_reported(store: Path, rows: int, flags: int) -> None:
    """While a program had the file open, its name was ESTALE for every program."""
    with mounted(store, "--no-watch", "--metadata-ttl", "0.5") as mount:
        with opened(mount.path / "npy/a.npy", flags) as old:
            if flags == os.O_RDWR:
                os.pwrite(old, np.int32(7).tobytes(), HEADER)
                os.fsync(old)
            first = row(old, 0)[0]
            zarr.open_array(str(store / "a"), mode="r+").resize((rows, COLUMNS))
            until(lambda: (mount.path / "npy/a.npy").stat().st_size == HEADER + rows * ROW_NBYTES)
            new = np.load(mount.path / "npy/a.npy", mmap_mode="r")
            assert new.shape == (rows, COLUMNS) and int(new[0, 0]) == first
            del new
            if flags == os.O_RDONLY:
                assert row(old, 0)[0] == first


@pytest.mark.parametrize("how", WAYS)
def test_what_is_written_after_it_grew_is_seen(store: Path, how: str) -> None:
    with mounted(store) as mount:
        with opened(mount.path / "npy/a.npy", os.O_RDONLY) as reader:
            assert row(reader, 5)[0] == 5 * COLUMNS
            resize(mount, how, (ROWS + 100, COLUMNS))
            assert row(reader, 5)[0] == 5 * COLUMNS
            new = np.load(mount.path / "npy/a.npy", mmap_mode="r+")
            new[5] = -5
            new.flush()
            del new
            with opened(mount.path / "npy/a.npy", os.O_RDONLY) as other:
                assert row(other, 5)[0] == -5
            # Holders of the old file are notified of it as of any other change.
            os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)
            assert row(reader, 5)[0] == -5


@pytest.mark.parametrize("how", WAYS)
def test_of_one_that_shrank_the_rest_is_read_on_and_the_others_are_stale(store: Path, how: str) -> None:
    def beyond(reader: int) -> Callable[[], Any]:
        return lambda: row(reader, 399)

    with mounted(store, "--resize-erases") as mount:
        with opened(mount.path / "npy/a.npy", os.O_RDONLY) as reader, opened(mount.path / "npy/a.npy", os.O_RDONLY) as idle:
            os.pread(reader, 64, 0)
            resize(mount, how, (200, COLUMNS))
            for each in (reader, idle):
                assert row(each, 0)[0] == 0
                assert row(each, 150)[0] == 150 * COLUMNS
                assert row(each, 198)[0] == 198 * COLUMNS
                assert errno_of(beyond(each)) == errno.ESTALE
                assert errno_of(lambda each=each: row(each, 195, 10)) in (0, errno.ESTALE)  # type: ignore[misc]
        assert np.array_equal(np.load(mount.path / "npy/a.npy"), ELEMENTS[:200])


def test_of_one_that_has_fewer_columns_the_rest_of_each_row_is_read_on(store: Path) -> None:
    with mounted(store, "--resize-erases") as mount:
        with opened(mount.path / "npy/a.npy", os.O_RDONLY) as reader:
            os.pread(reader, 64, 0)
            resize(mount, "chunks", (ROWS, 1023))
            # Each page has an element that is gone.
            assert errno_of(lambda: row(reader, 300)) == errno.ESTALE
            resize(mount, "chunks", (ROWS, COLUMNS))
            assert row(reader, 300)[0] == 300 * COLUMNS


def removed(mount: Mounted) -> None:
    (mount.path / "npy/a.npy").unlink()


def renamed_over(mount: Mounted) -> None:
    np.save(mount.path / "npy/b.npy", np.zeros(3))
    (mount.path / "npy/b.npy").rename(mount.path / "npy/a.npy")


@pytest.mark.parametrize("event", [removed, renamed_over], ids=lambda event: event.__name__)
def test_a_program_that_copies_what_is_removed_gets_an_error_and_not_the_end_of_the_file(
    store: Path, event: Callable[[Mounted], None]
) -> None:
    with mounted(store) as mount, (mount.path / "npy/a.npy").open("rb", buffering=0) as file:
        assert len(file.read(ROW_NBYTES)) == ROW_NBYTES
        event(mount)
        # The kernel may also request the size by itself, and end reads there.
        assert errno_of(lambda: os.fstat(file.fileno())) == errno.ESTALE
        assert errno_of(file.readall) == errno.ESTALE
