"""A file that one program has open to read while another one writes it: the writer's release stores it, or gives it up."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

FILES = pytest.mark.parametrize(("path", "start"), [("npy/a.npy", 128), ("chunks/a/0", 0), ("zarr3/a/c/0", 0), ("raw/a/c/0", 0)])
MARK = np.int32(99).tobytes()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    array = zarr.create_array(str(tmp_path / "store"), name="a", shape=(1024,), chunks=(1024,), dtype="i4", compressors=None)
    array[...] = 7
    return tmp_path / "store"


def first(store: Path) -> int:
    return int(np.frombuffer((store / "a/c/0").read_bytes()[:4], "<i4")[0])


def change_mapped(path: Path, offset: int) -> None:
    """Change a file through a mapping that outlives its descriptor: no FLUSH follows. (`mmap.mmap` keeps one of its own.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.open(path, os.O_RDWR)
    mapped = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    ctypes.memmove(mapped + offset, MARK, len(MARK))
    assert not libc.munmap(mapped, 4096)


@FILES
def test_what_is_mapped_is_stored_when_the_mapping_ends_although_others_read_the_file(store: Path, path: str, start: int) -> None:
    """It was stored when the last of them closed it, perhaps days later, or was lost with the daemon."""
    with mounted(store) as mount:
        reader = os.open(mount.path / path, os.O_RDONLY)
        os.pread(reader, 4, start)
        change_mapped(mount.path / path, start)
        # munmap(2) does not wait for the RELEASE.
        while first(store) != 99:
            pass
        os.close(reader)


def fail_to_change(mount: Mounted, path: str, start: int) -> None:
    """Change a file while the place of its chunk is taken by a folder; the chunk is there again afterwards."""
    chunk, elsewhere = mount.store / "a/c/0", mount.store / "a/elsewhere"
    fd = os.open(mount.path / path, os.O_RDWR)
    os.pread(fd, 4, start)
    os.pwrite(fd, MARK, start)
    chunk.rename(elsewhere)
    chunk.mkdir()
    with pytest.raises(OSError, match=r"directory|Input"):
        os.fsync(fd)
    with pytest.raises(OSError, match=r"directory|Input"):
        os.close(fd)
    while not any(each["operation"] == "release" for each in mount.errors()):
        pass
    chunk.rmdir()
    elsewhere.rename(chunk)


@FILES
def test_what_a_writer_could_not_store_does_not_return_when_a_reader_closes_the_file(store: Path, path: str, start: int) -> None:
    """It was stored then, over what others had stored since."""
    with mounted(store) as mount:
        reader = os.open(mount.path / path, os.O_RDONLY)
        fail_to_change(mount, path, start)
        (mount.path / "zarr3/a/c/0").write_bytes(np.full(1024, 5, "<i4").tobytes())
        with suppress(OSError):
            os.fsync(reader)
        os.close(reader)
        again = os.open(mount.path / path, os.O_RDONLY)
        assert os.pread(again, 4, start) == np.int32(5).tobytes()
        os.close(again)
    assert first(store) == 5


@pytest.mark.parametrize("is_new", [False, True])
def test_an_incomplete_save_is_given_up_although_a_reader_has_it_open(store: Path, is_new: bool) -> None:
    """It was in the way of the array, and of later saves, until the reader had closed it."""
    with mounted(store) as mount:
        path = mount.path / ("npy/b.npy" if is_new else "npy/a.npy")
        np.save(store.parent / "whole.npy", np.ones(3000))
        writer = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
        reader = os.open(path, os.O_RDONLY)
        os.write(writer, (store.parent / "whole.npy").read_bytes()[:-8])
        with pytest.raises(OSError, match="Invalid argument"):
            os.close(writer)
        while not any(each["operation"] == "release" for each in mount.errors()):
            pass
        assert len(os.pread(reader, 30_000, 0)) == 128 + 8 * 2999
        if is_new:
            assert not path.exists()
        else:
            assert path.stat().st_size == 128 + 4 * 1024 and np.load(path)[0] == 7
        np.save(path, np.ones(5))
        os.close(reader)
        assert np.load(path).tolist() == [1.0] * 5
