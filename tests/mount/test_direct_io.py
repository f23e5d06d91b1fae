"""Programs that read and write without the kernel's pages (O_DIRECT): any bytes, not whole pages."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.length import tries
from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

COUNT, CHUNK = 12_000, 6_000
ELEMENTS = np.arange(1, COUNT + 1, dtype="<i4")
HEADER = 128
FILES = {"npy/a.npy": HEADER, "chunks/a/0": 0, "zarr3/a/c/0": 0, "raw/a/c/0": 0}


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounted]:
    zarr.create_group(str(tmp_path / "store"), zarr_format=3)
    array = zarr.create_array(
        str(tmp_path / "store/a"), shape=(COUNT,), chunks=(CHUNK,), dtype="<i4", compressors=None, zarr_format=3
    )
    array[:] = ELEMENTS
    with mounted(tmp_path / "store") as mount:
        yield mount


def stored(mount: Mounted) -> np.ndarray:
    return np.asarray(zarr.open_array(str(mount.store / "a"), mode="r")[:])


class Direct:
    """A file that is open with O_DIRECT, at once or since `fcntl`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(-1, 1 << 16)

    def read(self, offset: int, size: int) -> bytes:
        done = os.preadv(self.fd, [memoryview(self._memory)[:size]], offset)
        return self._memory[:done]

    def write(self, offset: int, data: bytes) -> None:
        self._memory[: len(data)] = data
        assert os.pwritev(self.fd, [memoryview(self._memory)[: len(data)]], offset) == len(data)


@contextmanager
def direct(path: Path, *, later: bool = False) -> Iterator[Direct]:
    fd = os.open(path, os.O_RDWR | (0 if later else os.O_DIRECT))
    if later:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
    try:
        yield Direct(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("later", [False, True], ids=["open", "fcntl"])
@pytest.mark.parametrize("name", FILES)
def test_zeros_written_behind_what_was_read_are_stored(mount: Mounted, name: str, later: bool) -> None:
    with direct(mount.path / name, later=later) as file:
        assert file.read(0, FILES[name] + 100)[FILES[name] :] == ELEMENTS[:25].tobytes()
        file.write(FILES[name] + 4 * 50, bytes(4 * 3))
    expected = ELEMENTS.copy()
    expected[50:53] = 0
    assert (stored(mount) == expected).all()


@pytest.mark.parametrize("name", FILES)
def test_any_bytes_are_read_and_written_as_they_are(mount: Mounted, name: str) -> None:
    chance = random.Random(name)
    nbytes = (mount.path / name).stat().st_size
    expected = bytearray((mount.path / name).read_bytes())
    for _ in range(tries(100).max_examples):
        with direct(mount.path / name, later=chance.random() < 0.3) as file:
            for _ in range(chance.randint(1, 8)):
                offset = min(chance.randrange(FILES[name], nbytes), chance.choice((nbytes, 4096 * chance.randrange(1, 5))))
                size = min(chance.choice((1, 3, 100, 1000, 4096, 9000)), nbytes - offset)
                if chance.random() < 0.5:
                    assert file.read(offset, size) == expected[offset : offset + size]
                else:
                    data = chance.choice((bytes(size), chance.randbytes(size)))
                    file.write(offset, data)
                    expected[offset : offset + size] = data
    assert (mount.path / name).read_bytes() == expected
    length = CHUNK if FILES[name] == 0 else COUNT
    assert stored(mount)[:length].tobytes() == bytes(expected)[FILES[name] :]


@pytest.mark.parametrize("name", ["npy/a.npy", "chunks/a/0"])
def test_what_is_written_back_as_it_was_read_takes_no_change_back(mount: Mounted, name: str) -> None:
    header, other = FILES[name], next(each for each in ("npy/a.npy", "chunks/a/0") if each != name)
    with direct(mount.path / name) as file:
        content = bytearray(file.read(0, header + 4 * CHUNK))
        with open(mount.path / other, "r+b", buffering=0) as changing:
            os.pwrite(changing.fileno(), b"\7" * 4, FILES[other] + 4 * 50)
        content[header + 4 * 60 : header + 4 * 61] = bytes(4)
        file.write(0, bytes(content))
    expected = ELEMENTS.copy()
    expected[50], expected[60] = 0x07070707, 0
    assert (stored(mount) == expected).all()


@pytest.mark.parametrize("name", ["npy/a.npy", "chunks/a/0"])
def test_a_mapping_of_it_changes_what_was_changed_there(mount: Mounted, name: str) -> None:
    header, other = FILES[name], next(each for each in ("npy/a.npy", "chunks/a/0") if each != name)
    with direct(mount.path / name) as file, mmap.mmap(file.fd, header + 4 * CHUNK) as mapping:
        mapping[header + 4 * 60 : header + 4 * 61] = bytes(4)
        with open(mount.path / other, "r+b", buffering=0) as changing:
            os.pwrite(changing.fileno(), b"\7" * 4, FILES[other] + 4 * 50)
        mapping.flush()
    expected = ELEMENTS.copy()
    expected[50], expected[60] = 0x07070707, 0
    assert (stored(mount) == expected).all()
