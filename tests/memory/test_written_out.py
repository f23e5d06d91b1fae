"""Unnamed files of which the disk has lost bytes, after the kernel had accepted them: they are not used any more."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr
from trio.testing import trio_test

from tests.arrays.test_delayed import mounted as queue
from tests.support.large_buffers import large_from
from tests.support.small_disks import lossy_disk, write_out
from tests.support.stores import InterruptedStore
from tests.support.trees import opened, read, tree_of, tree_over, write
from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.compressed_shards import DecompressedShards
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.arrays.spill_file import SpillFile
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StoreError
from zarrfs.keys import Key
from zarrfs.memory import spill
from zarrfs.memory.disposal import DisposedMapping
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store
from zarrfs.stores.values import KeyStat
from zarrfs.vfs.node import OpenFlags
from zarrfs.vfs.spill_buffer import SpillBuffer

NBYTES = 8 << 20
LOST = "the disk of the cache folder has lost"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with large_from(spill.large_nbytes(), tmp_path), lossy_disk(tmp_path / "disk", 512 << 20) as disk:
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
    assert bytes(await file.keep(b"chunk")) == b"chunk" and file.is_intact
    kept = await file.keep(os.urandom(NBYTES))
    assert write_out(disk) > 0
    assert not file.is_intact and not file.is_intact
    # In another file.
    later = await file.keep(b"later")
    assert not spill.is_intact(kept) and spill.is_intact(later)


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


def shown(disk: Path) -> None:
    """Write out what this process holds in files on ``disk``, and have it read again what is left of it."""
    assert write_out(disk) > 0
    for each in gc.get_objects():
        if isinstance(each, DisposedMapping) and not each.closed:
            each.madvise(mmap.MADV_DONTNEED)
    write_out(disk)


QUEUED = 6
PER_SHARD = 8
CHUNK = 1 << 20


@asynccontextmanager
async def queue_on(disk: Path, path: Path) -> AsyncIterator[MountTree]:
    """A mount in which six chunks of eight are queued for their shard, in a file of which the disk has lost most."""
    zarr.create_array(
        path, shape=(PER_SHARD * CHUNK,), chunks=(CHUNK,), shards=(PER_SHARD * CHUNK,), dtype="u1", compressors=None, fill_value=77
    )
    async with tree_of(path, cache_dir=str(disk), memory_limit="1M", watch="no") as tree:
        for number in range(QUEUED):
            await write(tree, f"chunks/{number}", bytes([number + 1]) * CHUNK)
        shown(disk)
        yield tree


@pytest.mark.logs("write failed")
@trio_test
async def test_queued_chunks_that_are_lost_are_not_read_and_can_be_written_again(disk: Path, tmp_path: Path) -> None:
    """They were read as zeros, and no chunk could be stored in that shard any more, until the end of the mount."""
    async with queue_on(disk, tmp_path / "store") as tree:
        for view in ("chunks/1", "npy/store.npy", "zarr3/c/1"):
            with pytest.raises(StoreError, match=LOST):
                await read(tree, view)
        # In part, over bytes that are lost.
        with pytest.raises(StoreError, match=LOST):
            await opened(tree, "chunks/1", OpenFlags(write=True))
        npy = await opened(tree, "npy/store.npy", OpenFlags(write=True))
        await npy.write(128 + CHUNK + 10, b"part")
        with pytest.raises(StoreError, match=LOST):
            await npy.flush()
        await npy.release()
        for number in range(PER_SHARD):
            await write(tree, f"chunks/{number}", bytes([number + 1]) * CHUNK)
        assert not tree.queue
    stored = zarr.open_array(tmp_path / "store", mode="r")[:]
    np.testing.assert_array_equal(stored, np.repeat(np.arange(1, PER_SHARD + 1, dtype="u1"), CHUNK))


@pytest.mark.logs("chunks lost, rescue failed")
@trio_test
async def test_queued_chunks_that_are_lost_do_not_keep_the_others_of_their_shard_from_the_store(disk: Path, tmp_path: Path) -> None:
    async with queue_on(disk, tmp_path / "store") as tree:
        await write(tree, "chunks/6", bytes([7]) * CHUNK)
        with pytest.raises(StoreError, match=LOST):
            await tree.queue.publish(Key("c/0"))
        assert not tree.queue
        # What is stored is shown again.
        assert await read(tree, "chunks/1") == bytes([77]) * CHUNK
        assert [name for name, _ in await tree.publish_all()] == ["c/0"]
    stored = zarr.open_array(tmp_path / "store", mode="r")[:]
    np.testing.assert_array_equal(stored.reshape(PER_SHARD, CHUNK)[:, 0], [77] * QUEUED + [7, 77])
    assert not (disk / "rescued").exists()


@trio_test
async def test_an_encoded_chunk_that_is_lost_is_not_queued(disk: Path) -> None:
    encoded = memoryview(spill.mapped(NBYTES, str(disk)))
    encoded[:] = os.urandom(NBYTES)
    shown(disk)
    async with queue(MemoryStore()) as m:
        with pytest.raises(StoreError, match=LOST):
            await m.chunks.update({(0,): encoded})
        assert not m.queue


class Losing(InterruptedStore):
    """A store in whose next read of a chunk, once it is ``armed``, a disk loses what it has not taken."""

    disk: Path
    armed = False

    async def interrupt(self, operation: str, target: str) -> None:
        if self.armed and operation.startswith("get") and "c/0" in target:
            self.armed = False
            shown(self.disk)


@pytest.mark.logs("write failed|rescue failed")
@trio_test
async def test_elements_that_are_lost_while_their_chunk_is_read_are_not_merged_into_it(disk: Path, tmp_path: Path) -> None:
    """They were polled before, and zeros were stored."""
    ones = np.ones(4 * CHUNK, "u1")
    zarr.create_array(tmp_path / "store", shape=ones.shape, chunks=ones.shape, dtype="u1", compressors=None)[:] = ones
    inner = await open_store(str(tmp_path / "store"))
    store = Losing(inner)
    store.disk = disk
    async with tree_over(store, f"file:{tmp_path}/store", cache_dir=str(disk), memory_limit="1M", watch="no") as tree:
        handle = await opened(tree, "npy/store.npy", OpenFlags(write=True))
        await handle.write(128, bytes([2]) * (3 * CHUNK))
        store.armed = True
        with pytest.raises(StoreError, match=LOST):
            await handle.flush()
        assert not store.armed
        await handle.release()
    await inner.aclose()
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "store", mode="r")[:], ones)


@trio_test
async def test_a_chunk_that_an_open_file_holds_is_decoded_again(disk: Path, tmp_path: Path) -> None:
    """Its file was read as zeros."""
    elements = np.frombuffer(os.urandom(NBYTES), "u1")
    zarr.create_array(tmp_path / "store", shape=elements.shape, chunks=elements.shape, dtype="u1", compressors=None)[:] = elements
    async with tree_of(tmp_path / "store", cache_dir=str(disk), memory_limit="64M", watch="no") as tree:
        for path in ("chunks/0", "zarr3/c/0", "raw/c/0"):
            handle = await opened(tree, path)
            assert await handle.read(0, 10) == elements[:10].tobytes()
            shown(disk)
            assert await handle.read(5 * CHUNK, 10) == elements[5 * CHUNK : 5 * CHUNK + 10].tobytes(), path
            await handle.release()


def test_a_decompressed_shard_is_read_again(disk: Path) -> None:
    shards = DecompressedShards()
    decoded = spill.mapped(NBYTES, str(disk))
    decoded[:] = os.urandom(NBYTES)
    shards.put((1, (0,)), (memoryview(decoded), KeyStat(NBYTES, 0, "g")))
    assert shards.get((1, (0,))) is not None
    assert write_out(disk) > 0
    assert shards.get((1, (0,))) is None


@trio_test
async def test_staged_bytes_that_are_lost_can_be_written_anew(disk: Path) -> None:
    """Emptied by ftruncate(2): they were refused as long as the file was open, with all that was written afterwards."""
    buffer = SpillBuffer(limit=1, directory=str(disk))
    await buffer.put(0, os.urandom(NBYTES))
    assert write_out(disk) > 0
    await buffer.resize(0)
    await buffer.put(0, b"anew")
    assert bytes(buffer.whole()) == bytes(buffer.read(0, 9)) == b"anew"
    buffer.close()
