"""A whole array that some programs have open while others save an array of another type or shape under its name."""

from __future__ import annotations

import faulthandler
import io
import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

LENGTH = 4096
NEW = np.full(2048, 1.5)


@pytest.fixture(params=[None, (2048,)], ids=["plain", "sharded"])
def mount(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    store = tmp_path / "store"
    array = zarr.create_array(str(store), name="a", shape=(LENGTH,), chunks=(1024,), shards=request.param, dtype="i4")
    array[...] = 7
    with mounted(store, ends_with=None) as mount:
        yield mount


def save_over(mount: Mounted, values: np.ndarray = NEW) -> None:
    """Save an array over `a.npy` in another process."""
    code = f"import numpy, sys; numpy.save({str(mount.path / 'npy/a.npy')!r}, numpy.full({values.size}, 1.5, {values.dtype.str!r}))"
    subprocess.run([sys.executable, "-c", code], check=True)


def stored(mount: Mounted) -> np.ndarray:
    return np.asarray(zarr.open_array(str(mount.store / "a"), mode="r")[...])


def test_a_reader_is_stale(mount: Mounted) -> None:
    fd = os.open(mount.path / "npy/a.npy", os.O_RDONLY)
    os.pread(fd, 128, 0)
    save_over(mount)
    with pytest.raises(OSError, match="Stale file handle"):
        os.pread(fd, 4096, 8192)
    os.close(fd)
    assert (np.load(mount.path / "npy/a.npy") == NEW).all()
    assert mount.umount().returncode == 0


def test_a_reader_is_stale_beyond_the_end_of_a_smaller_array_too(mount: Mounted) -> None:
    with (mount.path / "npy/a.npy").open("rb", buffering=0) as file:
        assert len(file.read(8192)) == 8192
        save_over(mount, np.empty(3, "<f8"))
        with pytest.raises(OSError, match="Stale file handle"):
            file.read(8192)
    assert mount.umount().returncode == 0


def test_a_mapping_gets_no_bytes_of_the_new_array(mount: Mounted) -> None:
    fd = os.open(mount.path / "npy/a.npy", os.O_RDONLY)
    mapped = mmap.mmap(fd, 128 + 4 * LENGTH, prot=mmap.PROT_READ)
    assert mapped[128] == 7
    save_over(mount)
    # Another program may have opened and read it by now.
    assert (np.load(mount.path / "npy/a.npy") == NEW).all()
    pid = os.fork()
    if not pid:
        faulthandler.disable()
        os._exit(mapped[8192])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGBUS
    mapped.close()
    os.close(fd)
    assert mount.umount().returncode == 0


def test_what_a_writer_changes_lands_nowhere(mount: Mounted) -> None:
    fd = os.open(mount.path / "npy/a.npy", os.O_RDWR)
    os.pread(fd, 128, 0)
    save_over(mount)
    with pytest.raises(OSError, match="Stale file handle"):
        os.pwrite(fd, b"\x63" * 20, 128 + 4 * 1001)
    os.close(fd)
    assert (stored(mount) == NEW).all()
    assert mount.umount().returncode == 0


def test_what_a_mapping_changes_lands_nowhere(mount: Mounted) -> None:
    values = np.load(mount.path / "npy/a.npy", mmap_mode="r+")
    assert values[5] == 7
    save_over(mount)
    pid = os.fork()
    if not pid:
        faulthandler.disable()
        values[3001] = 99
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGBUS
    del values
    assert (stored(mount) == NEW).all()
    assert mount.umount().returncode == 0


def test_the_writer_itself_goes_on(mount: Mounted) -> None:
    other = os.open(mount.path / "npy/a.npy", os.O_RDONLY)
    fd = os.open(mount.path / "npy/a.npy", os.O_RDWR | os.O_TRUNC)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        np.save(file, NEW)
        os.fsync(fd)
        assert os.pread(fd, 8, 128) == np.float64(1.5).tobytes()
        os.pwrite(fd, np.float64(2.5).tobytes(), 128)
    os.close(other)
    assert stored(mount)[:2].tolist() == [2.5, 1.5]
    assert mount.umount().returncode == 0


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY])
def test_the_writer_goes_on_if_another_program_opens_the_file_before_it_is_complete(mount: Mounted, flags: int) -> None:
    """The open took the file for the old array's: the next write of either program was ESTALE."""
    fd = os.open(mount.path / "npy/a.npy", os.O_RDWR | os.O_TRUNC)
    other = os.open(mount.path / "npy/a.npy", flags)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        np.save(file, NEW)
        os.fsync(fd)
        os.pwrite(fd, np.float64(2.5).tobytes(), 128)
        os.fsync(fd)
    os.pwrite(other, np.float64(3.5).tobytes(), 136)
    os.close(other)
    assert stored(mount)[:3].tolist() == [2.5, 3.5, 1.5]
    assert mount.umount().returncode == 0


def test_one_of_the_same_shape_and_type_is_the_same_array(mount: Mounted) -> None:
    fd = os.open(mount.path / "npy/a.npy", os.O_RDWR)
    os.pread(fd, 128, 0)
    save_over(mount, np.empty(LENGTH, "<i4"))
    assert os.pread(fd, 4, 128) == b"\1\0\0\0"
    os.pwrite(fd, b"\5\0\0\0", 128)
    os.close(fd)
    assert stored(mount)[:2].tolist() == [5, 1]
    assert mount.umount().returncode == 0


def npy(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def begin_to_save_over(mount: Mounted) -> int:
    """Write `a.npy` anew and leave it open: `numpy.save` closes a copy of a descriptor."""
    fd = os.open(mount.path / "npy/a.npy", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, npy(NEW))
    return fd


@pytest.mark.parametrize("how", ["chunks", "raw", "behind"])
def test_another_array_that_has_taken_the_name_meanwhile_is_not_replaced(mount: Mounted, how: str) -> None:
    np.save(mount.path / "npy/b.npy", np.arange(10))
    fd = begin_to_save_over(mount)
    folder = mount.store if how == "behind" else mount.path / how
    (folder / "a").rename(folder / "z")
    (folder / "b").rename(folder / "a")
    with pytest.raises(OSError, match="Stale file handle") if how == "behind" else nullcontext():
        os.close(fd)
    assert stored(mount).tolist() == list(range(10))
    renamed = np.asarray(zarr.open_array(str(mount.store / "z"), mode="r")[...])
    assert (renamed == (7 if how == "behind" else 1.5)).all()
    assert mount.umount().returncode == 0


VIEWS = pytest.mark.parametrize("view", ["chunks", "zarr3", "raw"])
HEADS = pytest.mark.parametrize("is_begun", [False, True], ids=["emptied", "begun"])


@VIEWS
@HEADS
@pytest.mark.parametrize("new", ["z", "g/z"])
def test_what_is_saved_over_an_array_goes_with_it(mount: Mounted, view: str, new: str, is_begun: bool) -> None:
    """It stayed at the old name, where a second program that saved an array there shared it."""
    (mount.path / "npy/g").mkdir()
    fd = begin_to_save_over(mount) if is_begun else os.open(mount.path / "npy/a.npy", os.O_WRONLY | os.O_TRUNC)
    (mount.path / view / "a").rename(mount.path / view / new)
    assert not (mount.path / "npy/a.npy").exists()
    np.save(mount.path / "npy/a.npy", np.arange(10))
    os.pwrite(fd, npy(NEW), 0)
    os.close(fd)
    assert stored(mount).tolist() == list(range(10))
    assert (np.asarray(zarr.open_array(str(mount.store / new), mode="r")[...]) == NEW).all()
    assert mount.umount().returncode == 0


@VIEWS
@HEADS
@pytest.mark.parametrize("values", [NEW, np.ones(LENGTH, "<i4")], ids=["another", "same"])
def test_what_is_saved_over_an_array_is_refused_once_that_is_removed(
    mount: Mounted, view: str, values: np.ndarray, is_begun: bool
) -> None:
    """It brought the array back, or was mixed with what a second program saved there."""
    fd = os.open(mount.path / "npy/a.npy", os.O_WRONLY | os.O_TRUNC)
    if is_begun:
        os.write(fd, npy(values)[:-8])
    shutil.rmtree(mount.path / view / "a")
    assert os.listdir(mount.path / "npy") == []
    np.save(mount.path / "npy/a.npy", np.arange(10))
    os.pwrite(fd, npy(values), 0)
    with pytest.raises(OSError, match="Stale file handle"):
        os.close(fd)
    assert stored(mount).tolist() == list(range(10))
    assert mount.umount().returncode == 0


@pytest.mark.parametrize("is_erased", [False, True], ids=["moved", "erased"])
def test_a_name_that_another_program_has_freed_is_taken(tmp_path: Path, is_erased: bool) -> None:
    """That it is free is not known before the close."""
    store = tmp_path / "store"
    zarr.create_array(str(store), name="a", shape=(LENGTH,), chunks=(1024,), dtype="i4")[...] = 7
    with mounted(store, "--no-watch", "--metadata-ttl", "60") as mount:
        fd = begin_to_save_over(mount)
        if is_erased:
            shutil.rmtree(store / "a")
        else:
            (store / "a").rename(store / "z")
        os.close(fd)
        assert (stored(mount) == NEW).all()
    assert is_erased or (np.asarray(zarr.open_array(str(store / "z"), mode="r")[...]) == 7).all()
