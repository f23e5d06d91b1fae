"""Shards encoded as a whole: decoded once for many readers, refused with their keys if invalid, and stored in the same form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.arrays.test_chunk_store import COMPRESSED, all_of, filled, spoilt
from tests.arrays.test_sharded import node, opened, reads
from tests.support.large_buffers import large_from
from tests.support.small_disks import lossy_disk, write_out
from tests.support.stores import WaitingStore, contents
from zarrfs.arrays import compressed_shards, turns
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.sharded import levels
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkDecodeError, ChunkError, GenerationMismatch, MetadataError, StoreError
from zarrfs.keys import ByteRange, Key
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore


def layer(store: Store) -> ChunkStore:
    """Return the decoded shards of `COMPRESSED`."""
    (level,) = levels(opened(store, COMPRESSED)[0])
    assert level.below is not None
    return level.below


@trio_test
async def test_of_several_encoded_shards_those_that_cannot_be_decoded_are_told_with_their_keys() -> None:
    store = await spoilt(COMPRESSED)
    shards = layer(store)
    for values in (await shards.get_several([(0,), (1,), (7,)]), await shards.get_stamped([(0,), (1,), (7,)])):
        assert isinstance(values[0], ChunkDecodeError) and values[0].key == "a/c/0" and "decoding shard 'a/c/0'" in str(values[0])
        assert values[1] is not None and not isinstance(values[1], ChunkError) and values[2] is None


@trio_test
async def test_encoded_shards_are_stored_encoded_and_erased() -> None:
    store = await filled(COMPRESSED)
    shards = layer(store)
    await shards.update({(0,): await shards.get((1,)), (1,): None})
    assert await all_of(store, COMPRESSED) == {(number - 4,): b"%d" % number for number in range(4, 8)}


@trio_test
async def test_a_part_of_an_encoded_shard_of_another_generation_is_not_given() -> None:
    shards = layer(await filled(COMPRESSED))
    stat = await shards.stat((0,))
    assert stat is not None
    assert await shards.get_parts((0,), [ByteRange(0, 2)], stat.generation) == [b"01"]
    for coords, generation in (((0,), "another"), ((7,), stat.generation)):
        with pytest.raises(GenerationMismatch, match=f"'a/c/{coords[0]}' was changed concurrently"):
            await shards.get_parts(coords, [ByteRange(0, 2)], generation)


@trio_test
async def test_an_encoded_shard_is_not_read_by_each_who_asks_and_again_when_others_took_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compressed_shards, "_REMEMBERED", 1)
    waiting = WaitingStore(await filled(COMPRESSED), "get_partial_values")
    store = ObservedStore(waiting)
    shards = layer(store)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(shards.get, (0,))
        await wait_all_tasks_blocked()
        waiting.let_go()
    # Only those readers that were admitted before the first result read it.
    assert reads(store) == turns._CONCURRENT_TURNS < 5
    assert [await shards.get((number,), ByteRange(0, 1)) for number in (0, 1, 0)] == [b"0", b"4", b"0"]
    assert reads(store) == turns._CONCURRENT_TURNS + 2


class Gone(ForwardingStore):
    """A store whose shards are erased before they are read."""

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return None


@trio_test
async def test_an_encoded_shard_that_goes_before_it_is_read_is_not_there() -> None:
    assert await layer(Gone(await filled(COMPRESSED))).get((0,)) is None


@trio_test
async def test_an_encoded_shard_of_more_bytes_than_any_can_have_is_refused() -> None:
    store = await filled(COMPRESSED)
    await store.set(Key("a/c/0"), bytes(2 << 20))
    with pytest.raises(ChunkDecodeError, match=r"'a/c/0'.*stored size exceeds the maximum"):
        await layer(store).get((0,))
    assert await opened(store, COMPRESSED)[0].get((5,)) == b"5"


def test_a_codec_of_elements_cannot_follow_shards() -> None:
    with pytest.raises(MetadataError, match="codec 'bytes' cannot follow sharding"):
        opened(MemoryStore(), node((8,), ShardSpec((4,), codecs=(CodecSpec("bytes"),))))


@trio_test
async def test_a_chunk_that_is_kept_does_not_keep_its_whole_shard() -> None:
    """Each open file, and each cached chunk, held a decoded shard, and counted the bytes of the chunk."""
    store = MemoryStore()
    spec = ShardSpec((4,), codecs=(CodecSpec("gzip", {"level": 1}),))
    chunks, _ = opened(store, node((4,), spec))
    await chunks.update({(each,): bytes(100) for each in range(4)})
    chunks, _ = opened(store, node((4,), spec))
    found = await chunks.get_with_stat((1,), ByteRange())
    assert found is not None
    parts = [found[0], *await chunks.get_several([(1,), (2,)]), *await chunks.get_parts((1,), [ByteRange()], found[1].generation)]
    assert parts == [bytes(100)] * 4 and all(isinstance(each, bytes) for each in parts)


@pytest.mark.fuse
@trio_test
async def test_a_shard_that_the_disk_of_the_cache_folder_has_lost_is_neither_stored_nor_read(tmp_path: Path) -> None:
    """It was encoded as zeros, and stored with success; a chunk was read from it as zeros."""
    store = await filled(COMPRESSED)
    before = await contents(store)
    with lossy_disk(tmp_path / "disk", 256 << 20) as disk, large_from(1 << 20, disk):
        lost = spill.copied(os.urandom(4 << 20))
        if not write_out(disk):
            pytest.skip("this kernel loses nothing here")
        with pytest.raises(StoreError, match="lost"):
            await layer(store).update({(0,): lost})
        assert await contents(store) == before
        with pytest.raises(StoreError, match="lost"):
            compressed_shards._part(lost, ByteRange(0, 10), spill.Buffers())
