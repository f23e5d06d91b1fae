"""A chunk file that a program has open for writing, or mapped, while others change the same chunk through ``npy/``."""

from __future__ import annotations

import faulthandler
import mmap
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

LENGTH = 1 << 19
"""Elements of a chunk of 2 MiB, which is not read when it is opened."""
FAR = 4 * LENGTH - mmap.PAGESIZE
"""Offset of a page that no read before reaches."""


@pytest.fixture(params=[None, (2 * LENGTH,)], ids=["plain", "sharded"])
def mount(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    store = tmp_path / "store"
    array = zarr.create_array(str(store), name="a", shape=(2 * LENGTH,), chunks=(LENGTH,), shards=request.param, dtype="i4")
    array[...] = 7
    with mounted(store, "--shard-delay", "600") as mount:
        yield mount


def change(mount: Mounted, offset: int, value: int) -> None:
    """Change one element of the first chunk through the whole array; the header has 128 bytes."""
    with (mount.path / "npy/a.npy").open("r+b", buffering=0) as file:
        file.seek(128 + offset)
        file.write(np.int32(value).tobytes())


def element(data: bytes) -> int:
    return int.from_bytes(data[:4], "little")


@pytest.mark.parametrize("is_changed_before", [False, True])
def test_a_writer_goes_on_whoever_changes_the_chunk(mount: Mounted, is_changed_before: bool) -> None:
    """Its next read was ESTALE, unless others had changed the chunk before its own first change, too."""
    fd = os.open(mount.path / "chunks/a/0", os.O_RDWR)
    if is_changed_before:
        change(mount, 8, 10)
    os.pwrite(fd, np.int32(11).tobytes(), 0)
    os.fsync(fd)
    for value in (12, 13):
        change(mount, FAR, value)
        assert element(os.pread(fd, 4, FAR - value * mmap.PAGESIZE)) == 7
    os.pwrite(fd, np.int32(14).tobytes(), 4)
    os.fsync(fd)
    assert element(os.pread(fd, 4, FAR)) == 13
    os.close(fd)
    stored = zarr.open_array(str(mount.store / "a"), mode="r")[:LENGTH]
    assert stored[[0, 1, 2, FAR // 4]].tolist() == [11, 14, 10 if is_changed_before else 7, 13]


def test_a_mapping_goes_on_when_others_change_the_chunk(mount: Mounted) -> None:
    """A page fault ended its program by SIGBUS."""
    fd = os.open(mount.path / "chunks/a/0", os.O_RDWR)
    with closing(mmap.mmap(fd, 4 * LENGTH)) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        mapped[0] = 11
        mapped.flush()
        change(mount, FAR, 12)
        if not (pid := os.fork()):
            faulthandler.disable()
            os._exit(mapped[FAR])
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 12
        mapped[4] = 14
        mapped.flush()
    os.close(fd)
    stored = zarr.open_array(str(mount.store / "a"), mode="r")[:LENGTH]
    assert stored[[0, 1, FAR // 4]].tolist() == [11, 14, 12]


def test_a_reader_is_stale(mount: Mounted) -> None:
    fd = os.open(mount.path / "chunks/a/0", os.O_RDONLY)
    change(mount, FAR, 12)
    with pytest.raises(OSError, match="Stale file handle"):
        os.pread(fd, 4, FAR)
    os.close(fd)
