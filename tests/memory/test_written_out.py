"""Unnamed files of which the disk has lost bytes, after the kernel had accepted them: they are not used any more."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.large_buffers import large_from
from tests.support.small_disks import lossy_disk, write_out
from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.arrays.spill_file import SpillFile
from zarrfs.errors import StoreError
from zarrfs.keys import Key
from zarrfs.memory import spill
from zarrfs.stores.folder.store import FolderStore
from zarrfs.vfs.spill_buffer import SpillBuffer

NBYTES = 8 << 20
LOST = "the disk of the cache folder has lost"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with lossy_disk(tmp_path / "disk", 256 << 20) as disk:
        yield disk


@trio_test
async def test_staged_bytes(disk: Path) -> None:
    buffer = SpillBuffer(limit=0, directory=str(disk))
    await buffer.put(0, os.urandom(NBYTES))
    lent = buffer.whole()
    assert write_out(disk) > 0
    # The second time the kernel would report nothing.
    for _ in range(2):
        with pytest.raises(StoreError, match=LOST):
            buffer.whole()
        with pytest.raises(StoreError, match=LOST):
            buffer.read(0, 10)
        with pytest.raises(StoreError, match=LOST):
            await buffer.copy()
    del lent
    buffer.close()


@trio_test
async def test_a_value_that_is_lost_while_it_is_stored_replaces_nothing(disk: Path, tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    await store.set(Key("k"), b"old")
    buffer = SpillBuffer(limit=0, directory=str(disk))
    await buffer.put(0, os.urandom(NBYTES))
    lent = buffer.whole()
    assert write_out(disk) > 0
    with pytest.raises(StoreError, match=LOST):
        await store.set(Key("k"), lent)
    assert await store.get(Key("k")) == b"old"
    assert sorted(os.listdir(tmp_path)) == ["disk", "disk-device", "k"]
    del lent
    buffer.close()
    await store.aclose()


@trio_test
async def test_queued_chunks(disk: Path) -> None:
    file = SpillFile(str(disk))
    assert bytes(await file.keep(b"chunk")) == b"chunk"
    file.require_intact()
    await file.keep(os.urandom(NBYTES))
    assert write_out(disk) > 0
    for _ in range(2):
        with pytest.raises(StoreError, match=LOST):
            file.require_intact()


@trio_test
async def test_a_decoded_chunk_is_read_again(disk: Path) -> None:
    cache = ChunkCache(1 << 30)
    elements = np.frombuffer(os.urandom(NBYTES), np.uint8)

    async def read() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        chunk = np.frombuffer(spill.mapped(NBYTES, str(disk)), np.uint8)
        chunk[:] = elements
        return chunk

    first = await cache.get((1, (0,)), read)
    assert await cache.get((1, (0,)), read) is first
    assert write_out(disk) > 0
    assert cache.peek((1, (0,))) == (False, None)
    again = await cache.get((1, (0,)), read)
    assert again is not first
    np.testing.assert_array_equal(again, elements)


@trio_test
async def test_a_slab_is_not_read_any_more(disk: Path) -> None:
    pool = SlabPool(0, WorkCounters(), str(disk))
    slab = await pool.get_or_add((1, 0), 0, NBYTES, NBYTES)
    slab.memory[:] = np.frombuffer(os.urandom(NBYTES), np.uint8)
    assert slab.spilled and slab.is_intact
    assert write_out(disk) > 0
    assert not slab.is_intact and not slab.is_intact


def test_memory_and_files_on_a_disk_that_takes_them_are_intact(tmp_path: Path) -> None:
    with large_from(1000, tmp_path):
        for buffer in (spill.buffer(10), spill.buffer(1000), np.ones(3), mmap.mmap(-1, 10), None):
            spill.require_intact(buffer)
            assert spill.is_intact(buffer)
