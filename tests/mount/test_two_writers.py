"""Two writers of one chunk keep each other's changes, through any views, in one mount or in two.

Each repeatedly changes elements of its own in the same chunks, and closes (or syncs) after each: in the end every element has the value
that was written last (SEMANTICS.md, "Two writers of one chunk").
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.length import FULL
from tests.support.mounting import Mounted, mounted

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

HEADER = 128
ROUNDS = 320 if FULL else 80
CHUNKS = 4


def make(store: Path, shape: int, chunks: int, *, sharded: bool = False, **more: Any) -> Any:
    zarr.create_group(str(store), zarr_format=3)
    array = zarr.create_array(
        str(store / "a"),
        shape=(shape,),
        chunks=(chunks,),
        shards=(shape,) if sharded else None,
        zarr_format=3,
        **{"dtype": "i4", "compressors": None} | more,
    )
    array[:] = 7
    return array


def stored(store: Path) -> list[int]:
    """Return the elements that other programs read."""
    found: list[int] = zarr.open_array(str(store / "a"), mode="r")[:].tolist()
    return found


@pytest.fixture(params=[False, True], ids=["plain", "sharded"])
def sharded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def one_chunk(tmp_path: Path, sharded: bool) -> Path:
    """An array of 16 elements in one chunk."""
    make(tmp_path / "store", 16, 16, sharded=sharded)
    return tmp_path / "store"


def bytes_of(value: int) -> bytes:
    return np.int32(value).tobytes()


def changed(elements: dict[int, int]) -> list[int]:
    """Return the expected elements if nothing else was changed."""
    return [elements.get(index, 7) for index in range(16)]


def change_npy(mount: Mounted, index: int, value: int) -> None:
    fd = os.open(mount.path / "npy/a.npy", os.O_RDWR)
    os.pwrite(fd, bytes_of(value), HEADER + 4 * index)
    os.fsync(fd)
    os.close(fd)


def change_chunk(mount: Mounted, index: int, value: int) -> None:
    fd = os.open(mount.path / "chunks/a/0", os.O_RDWR)
    os.pwrite(fd, bytes_of(value), 4 * index)
    os.fsync(fd)
    os.close(fd)


def replace_in_raw(mount: Mounted, index: int, value: int) -> None:
    key = mount.path / "raw/a/c/0"
    data = bytearray(key.read_bytes())
    data[4 * index : 4 * index + 4] = bytes_of(value)
    key.write_bytes(data)


def replace_in_zarr3(mount: Mounted, index: int, value: int) -> None:
    key = mount.path / "zarr3/a/c/0"
    data = bytearray(key.read_bytes())
    data[4 * index : 4 * index + 4] = bytes_of(value)
    key.write_bytes(data)


OTHERS: dict[str, Callable[[Mounted, int, int], None]] = {
    "npy": change_npy,
    "chunk": change_chunk,
    "zarr3": replace_in_zarr3,
    "raw": replace_in_raw,
}


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest, sharded: bool) -> Callable[[Mounted, int, int], None]:
    if request.param == "raw" and sharded:
        pytest.skip("a shard has an index with a checksum")
    return OTHERS[request.param]


# --- one writer has the chunk open while another changes it -------------------------------------------------------------------


def test_a_chunk_that_was_changed_in_part_is_closed_after_somebody_else_changed_it(
    one_chunk: Path, other: Callable[[Mounted, int, int], None]
) -> None:
    with mounted(one_chunk) as mount:
        fd = os.open(mount.path / "chunks/a/0", os.O_RDWR)
        os.pwrite(fd, bytes_of(1), 0)
        other(mount, 8, 2)
        os.fsync(fd)
        assert stored(one_chunk) == changed({0: 1, 8: 2})
        # The open file now has the stored value.
        assert np.frombuffer(os.pread(fd, 64, 0), "<i4").tolist() == changed({0: 1, 8: 2})
        os.close(fd)


def test_a_chunk_that_was_read_is_written_whole_after_somebody_else_changed_it(
    one_chunk: Path, other: Callable[[Mounted, int, int], None]
) -> None:
    """Bytes written as they were read are not a change. (Writers of the same file share it, as on any file system.)"""
    if other is change_chunk:
        pytest.skip("it is the same file")
    with mounted(one_chunk) as mount:
        fd = os.open(mount.path / "chunks/a/0", os.O_RDWR)
        data = bytearray(os.pread(fd, 64, 0))
        other(mount, 8, 2)
        data[:4] = bytes_of(1)
        os.pwrite(fd, data, 0)
        os.fsync(fd)
        os.close(fd)
        assert stored(one_chunk) == changed({0: 1, 8: 2})


@pytest.mark.parametrize(("file", "begin"), [("chunks/a/0", 0), ("npy/a.npy", HEADER)])
def test_a_mapping_is_written_after_somebody_else_changed_the_chunk(
    one_chunk: Path, other: Callable[[Mounted, int, int], None], file: str, begin: int
) -> None:
    """The kernel writes whole pages, with the content at the time when they were read."""
    with mounted(one_chunk) as mount:
        with mapped(mount.path / file) as mapping:
            assert mapping[begin : begin + 4] == bytes_of(7)
            other(mount, 8, 2)
            mapping[begin : begin + 4] = bytes_of(1)
            mapping.flush()
            other(mount, 9, 3)
            mapping[begin + 4 : begin + 8] = bytes_of(4)
            mapping.flush()
        # Pages of an unmapped file may be published a little later.
        change_npy(mount, 15, 5)
        assert stored(one_chunk) == changed({0: 1, 1: 4, 8: 2, 9: 3, 15: 5})


@pytest.mark.parametrize(("file", "begin"), [("chunks/a/0", 0), ("npy/a.npy", HEADER)])
def test_a_page_is_dirty_when_somebody_else_changes_the_chunk(
    one_chunk: Path, other: Callable[[Mounted, int, int], None], file: str, begin: int
) -> None:
    """The notification of the change makes the kernel write the page back, with the old content around the written bytes."""
    with mounted(one_chunk) as mount:
        with mapped(mount.path / file) as mapping:
            mapping[begin : begin + 4] = bytes_of(1)
            other(mount, 8, 2)
            other(mount, 9, 3)
            mapping.flush()
            mapping[begin + 4 : begin + 8] = bytes_of(4)
            mapping.flush()
        change_npy(mount, 15, 5)
        assert stored(one_chunk) == changed({0: 1, 1: 4, 8: 2, 9: 3, 15: 5})


def test_a_chunk_that_was_removed_is_not_brought_back_by_who_has_it_open(one_chunk: Path) -> None:
    with mounted(one_chunk) as mount:
        fd = os.open(mount.path / "chunks/a/0", os.O_RDWR)
        os.pread(fd, 4, 0)
        change_npy(mount, 8, 2)
        os.pwrite(fd, bytes_of(1), 0)
        os.remove(mount.path / "chunks/a/0")
        os.close(fd)
        assert not (mount.path / "chunks/a/0").exists()
    assert stored(one_chunk) == [0] * 16


def test_two_handles_of_a_chunk_of_which_one_was_there_before_the_change(one_chunk: Path) -> None:
    with mounted(one_chunk) as mount:
        first = os.open(mount.path / "chunks/a/0", os.O_RDWR)
        os.pread(first, 4, 0)
        change_npy(mount, 8, 2)
        second = os.open(mount.path / "chunks/a/0", os.O_RDWR)
        os.pwrite(first, bytes_of(1), 0)
        os.pwrite(second, bytes_of(3), 4)
        os.close(first)
        os.close(second)
    assert stored(one_chunk) == changed({0: 1, 1: 3, 8: 2})


@pytest.mark.parametrize("how", ["truncated", "whole"])
def test_a_chunk_that_is_written_without_a_look_at_the_old_one_is_replaced(one_chunk: Path, how: str) -> None:
    with mounted(one_chunk) as mount:
        fd = os.open(mount.path / "chunks/a/0", os.O_WRONLY | (os.O_TRUNC if how == "truncated" else 0))
        os.pwrite(fd, np.full(16, 1, "<i4").tobytes()[:32], 0)
        change_npy(mount, 8, 2)
        change_npy(mount, 1, 2)
        os.pwrite(fd, np.full(16, 1, "<i4").tobytes()[32:], 32)
        os.close(fd)
    assert stored(one_chunk) == [1] * 16


def test_what_others_change_after_a_failed_publish_stays(tmp_path: Path) -> None:
    """The retry publishes the change, not the old chunk."""
    store = tmp_path / "store"
    make(store, 16, 16)
    with mounted(store) as mount:
        fd = os.open(mount.path / "chunks/a/0", os.O_RDWR)
        g = os.open(mount.path / "npy/a.npy", os.O_RDWR)
        os.pwrite(fd, bytes_of(1), 0)
        os.pwrite(g, bytes_of(3), HEADER + 4)
        (store / "a/c/0").rename(store / "a/elsewhere")
        (store / "a/c/0").mkdir()
        for each in (fd, g):
            with pytest.raises(OSError, match=r"directory|Input"):
                os.fsync(each)
        (store / "a/c/0").rmdir()
        data = np.full(16, 7, "<i4")
        data[8] = 2
        (store / "a/elsewhere").write_bytes(data.tobytes())
        (store / "a/elsewhere").rename(store / "a/c/0")
        for each in (fd, g):
            os.fsync(each)
            os.close(each)
        assert stored(store) == changed({0: 1, 1: 3, 8: 2})


def test_one_element_of_a_mapping_sets_one_chunk(tmp_path: Path) -> None:
    """The chunks beside it in its page are neither set nor read."""
    store = tmp_path / "store"
    make(store, 1024, 16)
    with mounted(store) as mount:
        with mapped(mount.path / "npy/a.npy") as mapping:
            mapping[HEADER + 4 * 100 : HEADER + 4 * 101] = bytes_of(1)
            with mount.counted() as cost:
                mapping.flush()
        assert cost["set"] == 1 and cost.get("erase", 0) + cost.get("erase_values", 0) == 0
        assert sum(count for name, count in cost.items() if name.startswith("get")) == 1
    assert stored(store) == [1 if index == 100 else 7 for index in range(1024)]


# --- repeated writes ----------------------------------------------------------------------------------------------------------


def opened(path: Path) -> int:
    """Open a file; retry after ESTALE, since open(2) may fail while the value is being replaced."""
    while True:
        try:
            return os.open(path, os.O_RDWR)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    fd = opened(path)
    with mmap.mmap(fd, 0) as mapping:
        os.close(fd)
        yield mapping


class Writer:
    """Writes every second element, from ``first`` on. ``nbytes`` is the size of a chunk."""

    def __init__(self, mount: Mounted, first: int, nbytes: int) -> None:
        self.mount = mount
        self.first = first
        self.nbytes = nbytes

    def run(self) -> None:
        # Elements of all chunks in turn.
        for number in range(ROUNDS):
            index = 2 * ((number % CHUNKS) * (ROUNDS // CHUNKS) + number // CHUNKS) + self.first
            self.write(index, index + 1000)

    def write(self, index: int, value: int) -> None:
        raise NotImplementedError

    def chunk(self, index: int) -> tuple[Path, int]:
        number, offset = divmod(4 * index, self.nbytes)
        return self.mount.path / f"chunks/a/{number}", offset


class ChunkFile(Writer):
    def write(self, index: int, value: int) -> None:
        path, offset = self.chunk(index)
        fd = opened(path)
        os.pwrite(fd, bytes_of(value), offset)
        os.close(fd)


class WholeChunk(Writer):
    """Reads a chunk, changes an element and writes it all."""

    def write(self, index: int, value: int) -> None:
        path, offset = self.chunk(index)
        fd = opened(path)
        data = bytearray(os.pread(fd, self.nbytes, 0))
        data[offset : offset + 4] = bytes_of(value)
        os.pwrite(fd, data, 0)
        os.close(fd)


class ChunkMapping(Writer):
    def write(self, index: int, value: int) -> None:
        path, offset = self.chunk(index)
        with mapped(path) as mapping:
            mapping[offset : offset + 4] = bytes_of(value)
            mapping.flush()


class Npy(Writer):
    def write(self, index: int, value: int) -> None:
        fd = os.open(self.mount.path / "npy/a.npy", os.O_RDWR)
        os.pwrite(fd, bytes_of(value), HEADER + 4 * index)
        os.close(fd)


class NpyMapping(Writer):
    """Writes through one mapping."""

    def run(self) -> None:
        with mapped(self.mount.path / "npy/a.npy") as self.mapping:
            super().run()

    def write(self, index: int, value: int) -> None:
        self.mapping[HEADER + 4 * index : HEADER + 4 * index + 4] = bytes_of(value)
        self.mapping.flush()


def run_together(*writers: Writer) -> None:
    failed: list[BaseException] = []

    def run(writer: Writer) -> None:
        try:
            writer.run()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def lost(store: Path) -> list[int]:
    return [index for index, value in enumerate(stored(store)) if value != index + 1000]


PAIRS = [
    (ChunkFile, Npy),
    (ChunkFile, NpyMapping),
    (ChunkFile, ChunkFile),
    (WholeChunk, Npy),
    (ChunkMapping, NpyMapping),
    (NpyMapping, NpyMapping),
]


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=lambda kind: kind.__name__)
def test_two_programs_change_elements_of_the_same_chunks(
    tmp_path: Path, sharded: bool, one: type[Writer], two: type[Writer]
) -> None:
    store = tmp_path / "store"
    make(store, 2 * ROUNDS, 2 * ROUNDS // CHUNKS, sharded=sharded)
    with mounted(store) as mount:
        run_together(one(mount, 0, 8 * ROUNDS // CHUNKS), two(mount, 1, 8 * ROUNDS // CHUNKS))
    assert lost(store) == []


@pytest.mark.parametrize(
    ("one", "two"), [(ChunkFile, Npy), (WholeChunk, ChunkFile), (NpyMapping, NpyMapping)], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("delay", ["0", "5"])
def test_two_mounts_change_elements_of_the_same_chunks(
    tmp_path: Path, sharded: bool, one: type[Writer], two: type[Writer], delay: str
) -> None:
    if delay == "0" and not sharded:
        pytest.skip("nothing waits")
    store = tmp_path / "store"
    make(store, 2 * ROUNDS, 2 * ROUNDS // CHUNKS, sharded=sharded)
    with mounted(store, "--shard-delay", delay) as first, mounted(store, "--shard-delay", delay) as second:
        run_together(one(first, 0, 8 * ROUNDS // CHUNKS), two(second, 1, 8 * ROUNDS // CHUNKS))
    assert lost(store) == []


def test_a_chunk_that_another_mount_sets_again_and_again_can_be_opened_to_write(tmp_path: Path) -> None:
    """The kernel repeats a lookup once, and no more."""
    store = tmp_path / "store"
    array = zarr.create_array(str(store), name="a", shape=(16,), chunks=(16,), dtype="i4", compressors=None)
    array[...] = 7
    with mounted(store) as one, mounted(store) as other:
        ended = threading.Event()

        def set_again() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                with (other.path / "chunks/a/0").open("r+b") as file:
                    file.write(np.int32(number).tobytes())

        setting = threading.Thread(target=set_again)
        setting.start()
        try:
            for number in range(100):
                with (one.path / "chunks/a/0").open("r+b") as file:
                    file.seek(4)
                    file.write(np.int32(number).tobytes())
        finally:
            ended.set()
            setting.join()
    assert zarr.open_array(str(store / "a"), mode="r")[1] == 99


@pytest.mark.parametrize("again", [os.O_RDONLY, os.O_RDWR], ids=["to read", "to write"])
def test_a_mapping_keeps_what_another_program_has_changed_since_although_others_have_read_that(tmp_path: Path, again: int) -> None:
    """The changed file has another inode for those who open it then, with pages of its own."""
    store = tmp_path / "store"
    array = make(store, 4096, 4096)
    with mounted(store, "--no-watch", "--metadata-ttl", "0") as mount:
        path = mount.path / "chunks/a/0"
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            assert mapping[:4] == np.int32(7).tobytes()
            array[1] = 8
            later = os.open(path, again)
            try:
                assert os.pread(later, 4, 4) == np.int32(8).tobytes()
                mapping[8:12] = np.int32(9).tobytes()
                mapping.flush()
            finally:
                os.close(later)
    assert stored(store)[:4] == [7, 8, 9, 7]
