"""An array is renamed repeatedly through this mount, while programs change its chunks: none of them gets an error."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import mounted

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]

NAMES = ("b", "g/b")
RENAMES = 10


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "0"), ("--shard-delay", "0")], ids=" ".join)
def test_every_write_goes_to_the_array(options: tuple[str, ...], sharded: bool, tmp_path: Path) -> None:
    shards = {"shards": (64,)} if sharded else {}
    zarr.create_group(str(tmp_path), zarr_format=3).create_group("g")
    array = zarr.create_array(
        str(tmp_path), name="b", shape=(70,), chunks=(16,), dtype="<i8", compressors=None, fill_value=-1, **shards
    )
    array[:] = 0
    over, progress = threading.Event(), threading.Event()
    failed: list[BaseException] = []
    written: dict[int, int] = {}
    with mounted(tmp_path, *options) as mount:

        def write(chunk: int) -> None:
            written[chunk] = 0
            names = itertools.cycle(NAMES)
            try:
                while not over.is_set():
                    with suppress(FileNotFoundError, StaleName):
                        fd = opened(mount.path / f"chunks/{next(names)}/{chunk}")
                        try:
                            assert np.frombuffer(os.pread(fd, 8, 56), "<i8") == written[chunk]
                            os.pwrite(fd, np.array([written[chunk] + 1], "<i8").tobytes(), 56)
                        finally:
                            os.close(fd)
                        written[chunk] += 1
                        progress.set()
            except BaseException as error:  # noqa: BLE001 (a thread has nobody else to tell)
                failed.append(error)
                progress.set()

        writers = [threading.Thread(target=write, args=(chunk,)) for chunk in (0, 1)]
        for each in writers:
            each.start()
        for number in range(RENAMES):
            progress.clear()
            if failed:
                break
            progress.wait(30)
            old, new = NAMES[number % 2], NAMES[(number + 1) % 2]
            os.rename(mount.path / f"npy/{old}.npy", mount.path / f"npy/{new}.npy")
        over.set()
        for each in writers:
            each.join()
        assert not failed, (failed, mount.log())
    assert all(written.values())
    assert zarr.open_array(str(tmp_path / "b"), mode="r")[[7, 23]].tolist() == list(written.values())


class StaleName(Exception):
    """The name led to another array before it was opened."""


def opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise StaleName from error
        raise


def test_a_renamed_array_is_opened_by_its_path_while_others_are_renamed(tmp_path: Path) -> None:
    """A folder that the kernel still knows by its old name cannot get another one as long as any rename is in progress."""
    store = tmp_path / "store"
    zarr.create_group(str(store), zarr_format=3)
    for group, name in ("g", "g/other"), ("h", "h/a"):
        zarr.create_group(str(store / group), zarr_format=3)
        zarr.create_array(str(store / name), shape=(8,), chunks=(4,), dtype="i4", zarr_format=3)[:] = 7
    done = threading.Event()
    with mounted(store) as mount:

        def rename_on() -> None:
            old, new = mount.path / "raw/g/other", mount.path / "raw/h/other"
            while not done.is_set():
                os.rename(old, new)
                old, new = new, old

        other = threading.Thread(target=rename_on)
        other.start()
        try:
            old, new = "h", "g"
            for _ in range(100):
                with (mount.path / f"chunks/{old}/a/0").open("r+b") as file:
                    file.write(bytes(4))
                    os.rename(mount.path / f"npy/{old}/a.npy", mount.path / f"npy/{new}/a.npy")
                old, new = new, old
        finally:
            done.set()
            other.join()
