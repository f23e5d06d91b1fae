"""Chunks in shards: read, written and counted, over a store that counts operations, compared with a plain dict."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.length import tries
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.sharded import levels
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkError, GenerationMismatch, ShardIndexInvalid, StoreAccessDenied
from zarrfs.keys import ByteRange, Key, NodePath, Prefix
from zarrfs.model import chunk_key, data_type
from zarrfs.model.chunk_grid import Coords, RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.shards import EMPTY, ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore

CHECKED = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c"))
BIG = (CodecSpec("bytes", {"endian": "big"}),)


def node(grid_shape: tuple[int, ...], *specs: ShardSpec) -> ArrayNode:
    """Return an array of bytes, four to a chunk along each dimension, of so many chunks."""
    metadata = ArrayMetadata(
        shape=tuple(4 * extent for extent in grid_shape),
        data_type=data_type.from_name("uint8"),
        chunk_grid=RegularGrid((4,) * len(grid_shape)),
        chunk_key_encoding=chunk_key.default("/"),
        fill_value=b"\0",
        codecs=(CodecSpec("bytes"), CodecSpec("gzip", {"level": 1})),
        shards=specs,
    )
    return ArrayNode(path=NodePath("/a"), dialect="v3", metadata=metadata, chunk_prefix=Prefix("a/"))


def opened(store: Store, array: ArrayNode) -> tuple[ChunkStore, WorkCounters]:
    """Return its chunks, with no shard cached."""
    counters = WorkCounters()
    return chunks_of(store, array, ShardLayers(counters)), counters


def reads(store: ObservedStore) -> int:
    """Return the number of calls that read values."""
    return store.counters.get + store.counters.get_partial_values


def sets(store: ObservedStore) -> int:
    return store.counters.set + store.counters.set_partial_values


@st.composite
def arrays(draw: st.DrawFn) -> ArrayNode:
    ndim = draw(st.integers(0, 3))
    specs = []
    for _ in range(draw(st.integers(1, 3))):
        specs.append(
            ShardSpec(
                tuple(draw(st.integers(1, 3)) for _ in range(ndim)),
                draw(st.sampled_from(["start", "end"])),
                draw(st.sampled_from([CHECKED, BIG])),
                tuple(draw(st.permutations(range(ndim)))),
                draw(st.sampled_from([(), (), (CodecSpec("gzip", {"level": 1}), CodecSpec("crc32c"))])),
            )
        )
    return node(tuple(draw(st.integers(1, 7)) for _ in range(ndim)), *specs)


@given(arrays(), st.data())
@tries(60, suppress_health_check=[HealthCheck.too_slow])
def test_chunks_are_those_that_were_written(array: ArrayNode, data: st.DataObject) -> None:
    async def main() -> None:
        store = MemoryStore()
        expected: dict[Coords, bytes] = {}
        grid_shape = array.metadata.grid_shape
        coords = st.tuples(*(st.integers(0, extent - 1) for extent in grid_shape))
        for step in range(data.draw(st.integers(1, 6))):
            # The cache of shards must never differ from the store.
            fresh, _ = opened(store, array)
            if not step or data.draw(st.booleans()):
                chunks = fresh
            changed = data.draw(st.dictionaries(coords, st.none() | st.binary(max_size=20), max_size=20))
            await chunks.update(changed)
            expected = {key: value for key, value in (expected | changed).items() if value is not None}
            for each in (chunks, opened(store, array)[0]):
                listed = [found async for found in each.list()]
                assert sorted((at, nbytes) for at, nbytes, _ in listed) == sorted((at, len(v)) for at, v in expected.items())
                at = data.draw(coords)
                for under in (at[:depth] for depth in range(len(grid_shape) + 1)):
                    found = {where async for where, _, _ in each.list(under=under)}
                    assert found == {where for where in expected if where[: len(under)] == under}
                asked = data.draw(st.lists(coords, max_size=6))
                byte_range = data.draw(st.sampled_from([ByteRange(), ByteRange(1, 3), ByteRange.suffix(2), ByteRange(5)]))
                values = await each.get_several(asked, byte_range)
                for at, value in zip(asked, values, strict=True):
                    assert not isinstance(value, ChunkError)
                    whole = expected.get(at)
                    assert (None if value is None else bytes(value)) == (
                        None if whole is None else whole[slice(*byte_range.resolve(len(whole)))]
                    )
        if not expected:
            assert [key async for key in store.list()] == []

    trio.run(main)


@trio_test
async def test_chunks_of_one_shard_take_one_read_of_the_index_and_one_of_the_chunks() -> None:
    array = node((8, 8), ShardSpec((4, 4), index_codecs=CHECKED))
    store = ObservedStore(MemoryStore())
    chunks, _ = opened(store, array)
    await chunks.update({(i, j): b"%d %d" % (i, j) for i in range(8) for j in range(8)})
    chunks, counters = opened(store, array)
    for expected_reads, expected_indexes in ((2, 1), (3, 1)):
        assert await chunks.get_several([(0, 0), (1, 2), (3, 3)]) == [b"0 0", b"1 2", b"3 3"]
        assert (reads(store), counters.shard_indexes_read) == (expected_reads, expected_indexes)


@trio_test
async def test_a_level_more_is_one_read_more() -> None:
    array = node((8, 8), ShardSpec((2, 2), index_codecs=CHECKED), ShardSpec((4, 4), index_location="start"))
    store = ObservedStore(MemoryStore())
    chunks, _ = opened(store, array)
    await chunks.update({(i, j): b"%d %d" % (i, j) for i in range(8) for j in range(8)})
    assert sets(store) == 1
    chunks, counters = opened(store, array)
    for expected in (3, 4):
        assert await chunks.get_several([(0, 0), (1, 2), (3, 3)]) == [b"0 0", b"1 2", b"3 3"]
        assert (reads(store), counters.shard_indexes_read) == (expected, 2)


@trio_test
async def test_dirty_chunks_of_one_shard_are_one_set_and_of_a_whole_one_no_read() -> None:
    array = node((6,), ShardSpec((4,)))
    store = ObservedStore(MemoryStore())
    chunks, _ = opened(store, array)
    # Two shards, the second of which extends beyond the edge.
    await chunks.update({(i,): b"%d" % i for i in range(6)})
    assert (sets(store), reads(store)) == (2, 0)
    await chunks.update({(0,): b"new", (2,): b"too"})
    assert (sets(store), reads(store)) == (3, 1)
    assert await chunks.get_several([(i,) for i in range(6)]) == [b"new", b"1", b"too", b"3", b"4", b"5"]


@trio_test
async def test_the_last_chunk_takes_the_shard_with_it() -> None:
    array = node((8,), ShardSpec((4,)))
    store = ObservedStore(MemoryStore())
    chunks, _ = opened(store, array)
    await chunks.update({(1,): b"a", (2,): b"b"})
    await chunks.update({(1,): None})
    assert [key async for key in store.list()] == ["a/c/0"]
    await chunks.update({(2,): None})
    assert [key async for key in store.list()] == []
    await chunks.update({(5,): None})
    assert [key async for key in store.list()] == [] and sets(store) == 2


@trio_test
async def test_erasing_what_is_not_there_stores_nothing() -> None:
    array = node((8,), ShardSpec((4,)), ShardSpec((2,)))
    store = ObservedStore(MemoryStore())
    chunks, _ = opened(store, array)
    await chunks.update({(1,): b"a"})
    await chunks.update({(0,): None, (2,): None, (3,): None, (6,): None})
    assert (sets(store), store.counters.erase) == (1, 0)
    assert await chunks.get((1,)) == b"a"


@trio_test
async def test_listing_reads_each_index_once() -> None:
    array = node((40,), ShardSpec((2,)))
    store = ObservedStore(MemoryStore())
    chunks, _ = opened(store, array)
    await chunks.update({(i,): b"x" for i in range(0, 40, 2)})
    chunks, counters = opened(store, array)
    for _ in range(2):
        assert len([chunk async for chunk in chunks.list()]) == 20
        assert (counters.shard_indexes_read, reads(store)) == (20, 20)


@trio_test
async def test_listing_a_part_reads_no_index_beside_it() -> None:
    array = node((4, 40), ShardSpec((2, 2)))
    store = ObservedStore(MemoryStore())
    chunks, _ = opened(store, array)
    await chunks.update({(i, j): b"x" for i in range(4) for j in range(40)})
    chunks, counters = opened(store, array)
    assert {coords async for coords, _, _ in chunks.list(under=(3,))} == {(3, j) for j in range(40)}
    assert counters.shard_indexes_read == 20
    assert {coords async for coords, _, _ in chunks.list(under=(0, 7))} == {(0, 7)}
    assert counters.shard_indexes_read == 21


@trio_test
async def test_other_chunks_of_a_shard_are_what_they_were_when_one_is_written() -> None:
    array = node((4,), ShardSpec((4,)))
    store = ObservedStore(MemoryStore())
    chunks, counters = opened(store, array)
    await chunks.update({(0,): b"first", (1,): b"second"})
    before = [await chunks.stat((i,)) for i in range(2)]
    await chunks.update({(1,): b"other"})
    after = [await chunks.stat((i,)) for i in range(2)]
    assert before[0] == after[0] and before[1] != after[1]
    assert before[0] is not None and before[1] is not None
    assert await chunks.get_parts((0,), [ByteRange()], before[0].generation) == [b"first"]
    with pytest.raises(GenerationMismatch):
        await chunks.get_parts((1,), [ByteRange()], before[1].generation)
    # None of this read an index of the shards written here.
    assert counters.shard_indexes_read == 0


class SlowAnswers(ForwardingStore):
    """A store whose sets return when they are ``answered``, some time after they took effect."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.answered = trio.Event()

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        generation = await super().set(key, value, expect=expect)
        await self.answered.wait()
        return generation


@pytest.mark.parametrize("specs", [(ShardSpec((4,)),), (ShardSpec((4,)), ShardSpec((2,)))])
@trio_test
async def test_the_other_chunks_of_a_shard_stay_what_they_were_before_its_set_has_returned(specs: tuple[ShardSpec, ...]) -> None:
    """Otherwise who has one of them open finds that it was replaced."""
    store = SlowAnswers(MemoryStore())
    store.answered.set()
    chunks, _ = opened(store, node((4,), *specs))
    await chunks.update({(0,): b"first", (3,): b"other"})
    before = await chunks.stat((3,))
    assert before is not None
    read: list[object] = []

    async def look() -> None:
        # The first of these finds that the shard is another one.
        read.extend(await chunks.get_several([(3,)]))
        read.extend(await chunks.get_parts((3,), [ByteRange()], before.generation))
        read.append(await chunks.stat((3,)))

    store.answered = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chunks.update, {(0,): b"changed"})
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        store.answered.set()
    assert read == [b"other", b"other", before]


@trio_test
async def test_a_shard_that_others_replace_is_read_anew() -> None:
    array = node((4,), ShardSpec((4,)))
    store = MemoryStore()
    ours, _ = opened(store, array)
    theirs, _ = opened(store, array)
    await ours.update({(0,): b"first"})
    stat = await ours.stat((0,))
    assert stat is not None
    await theirs.update({(0,): b"longer than before", (3,): b"new"})
    assert await ours.get_several([(3,)]) == [b"new"]
    assert await ours.get((0,)) == b"longer than before"
    with pytest.raises(GenerationMismatch):
        await ours.get_parts((0,), [ByteRange()], stat.generation)
    await theirs.update({(0,): None, (3,): None})
    assert await ours.get_several([(0,), (3,)]) == [None, None]


class LateAnswers(ForwardingStore):
    """A store whose reads return when they are ``answered``, some time after the value was read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.answered = trio.Event()

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        found = await super().get_with_stat(key, byte_range)
        await self.answered.wait()
        return found


@trio_test
async def test_a_chunk_that_was_there_before_the_read_is_not_missing_by_an_index_that_was_read_before_it() -> None:
    array = node((4,), ShardSpec((4,)))
    store = MemoryStore()
    late = LateAnswers(store)
    ours, _ = opened(late, array)
    theirs, _ = opened(store, array)
    await theirs.update({(0,): b"first"})
    read: dict[int, object] = {}

    async def look(index: int) -> None:
        read[index] = await ours.get((index,))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, 1)
        await trio.testing.wait_all_tasks_blocked()
        await theirs.update({(3,): b"new"})
        # It waits for the index that the other task has asked for.
        nursery.start_soon(look, 3)
        await trio.testing.wait_all_tasks_blocked()
        late.answered.set()
    assert read == {1: None, 3: b"new"}


@trio_test
async def test_an_index_that_was_read_before_its_shard_was_replaced_here_is_not_kept() -> None:
    """Otherwise who has opened a chunk since then finds that it was replaced."""
    late = LateAnswers(MemoryStore())
    chunks, _ = opened(late, node((4,), ShardSpec((4,))))
    theirs, _ = opened(late.inner, node((4,), ShardSpec((4,))))
    await theirs.update({(0,): b"first"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chunks.get_several, [(1,)])
        await trio.testing.wait_all_tasks_blocked()
        await chunks.update({(index,): b"new" for index in range(4)})
        stat = await chunks.stat((0,))
        assert stat is not None
        late.answered.set()
    assert await chunks.get_parts((0,), [ByteRange()], stat.generation) == [b"new"]


def pairs(*numbers: tuple[int, int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for pair in numbers for number in pair)


HOLE = (EMPTY, EMPTY)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # Gaps, another order than that of the index, unused bytes, chunks that share their bytes, a chunk of no bytes.
        (b"..bb..aa...." + pairs((6, 2), (2, 2), HOLE, (6, 2)), [b"aa", b"bb", None, b"aa"]),
        (b"aa" + pairs((0, 2), (1, 0), HOLE, HOLE), [b"aa", b"", None, None]),
        # nbytes alone marks a missing chunk.
        (b"aa" + pairs((0, 2), (99, EMPTY), (0, EMPTY), (EMPTY, 2)), [b"aa", None, None, "bad"]),
        # Into the index, beyond the end, and so far that the sum would overflow.
        (b"aa" + pairs((0, 2), (1, 2), (70, 1), (2**64 - 2, 4)), [b"aa", "bad", "bad", "bad"]),
        # Overlapping ones, and one that is apart from them.
        (b"abcdef" + pairs((0, 3), (2, 2), (4, 2), HOLE), ["bad", "bad", b"ef", None]),
        (b"abcdef" + pairs((0, 6), (1, 1), (3, 1), HOLE), ["bad", "bad", "bad", None]),
        # Too short for its index.
        (b"abc", ["bad", "bad", "bad", "bad"]),
        (b"", ["bad", "bad", "bad", "bad"]),
    ],
)
@trio_test
async def test_what_an_index_may_say_and_what_it_may_not(value: bytes, expected: list[Any]) -> None:
    array = node((4,), ShardSpec((4,)))
    store = MemoryStore()
    await store.set(Key("a/c/0"), value)
    chunks, _ = opened(store, array)
    got = await chunks.get_several([(i,) for i in range(4)])
    assert ["bad" if isinstance(each, ShardIndexInvalid) else each if each is None else bytes(each) for each in got] == expected
    listed = {coords[0] async for coords, _, _ in chunks.list()}
    assert listed == {number for number, each in enumerate(expected) if each not in (None, "bad")}
    for number, each in enumerate(expected):
        if each == "bad":
            with pytest.raises(ShardIndexInvalid):
                await chunks.stat((number,))
    if "bad" not in expected:
        return
    # Writing one chunk would lose the unreadable ones; writing all of them loses nothing.
    with pytest.raises(ShardIndexInvalid):
        await chunks.update({(3,): b"new"} if expected[3] != "bad" else {(0,): b"new"})
    assert await store.get(Key("a/c/0")) == value
    await chunks.update({(i,): b"whole" for i in range(4)})
    assert await chunks.get_several([(i,) for i in range(4)]) == [b"whole"] * 4


@trio_test
async def test_chunks_that_share_bytes_go_on_sharing_them() -> None:
    array = node((4,), ShardSpec((4,)))
    store = MemoryStore()
    await store.set(Key("a/c/0"), b"shared" + pairs((0, 6), (0, 6), HOLE, HOLE))
    chunks, _ = opened(store, array)
    await chunks.update({(3,): b"new"})
    assert await store.get(Key("a/c/0")) == b"sharednew" + pairs((0, 6), (0, 6), HOLE, (6, 3))


@trio_test
async def test_a_checksum_that_does_not_match_spoils_its_shard_alone() -> None:
    array = node((8,), ShardSpec((4,), index_codecs=CHECKED))
    store = MemoryStore()
    chunks, _ = opened(store, array)
    await chunks.update({(i,): b"%d" % i for i in range(8)})
    value = bytearray(await store.get(Key("a/c/0")) or b"")
    value[-1] ^= 1
    await store.set(Key("a/c/0"), value)
    got = await chunks.get_several([(1,), (5,)])
    assert isinstance(got[0], ShardIndexInvalid) and got[1] == b"5"
    assert sorted([coords async for coords, _, _ in chunks.list()]) == [(4,), (5,), (6,), (7,)]
    (level,) = levels(chunks)
    assert {shard.keys[0]: isinstance(shard.index, ShardIndexInvalid) async for shard in level.shards()} == {
        "a/c/0": True,
        "a/c/1": False,
    }


@trio_test
async def test_a_shard_that_cannot_be_decoded_spoils_its_chunks_alone() -> None:
    array = node((8,), ShardSpec((4,), codecs=(CodecSpec("crc32c"),)))
    store = MemoryStore()
    chunks, _ = opened(store, array)
    await chunks.update({(i,): b"%d" % i for i in range(8)})
    value = bytearray(await store.get(Key("a/c/0")) or b"")
    value[0] ^= 1
    await store.set(Key("a/c/0"), value)
    got = await opened(store, array)[0].get_several([(1,), (5,)])
    assert isinstance(got[0], ChunkError) and got[1] == b"5"


def test_the_unit_of_a_chunk_is_its_outermost_shard() -> None:
    array = node((12,), ShardSpec((2,)), ShardSpec((3,)))
    chunks, _ = opened(MemoryStore(), array)
    assert [chunks.unit((i,)) for i in (0, 5, 6, 11)] == [(0,), (0,), (1,), (1,)]
    assert chunks.keys((7,)) == ("a/c/1",)
    assert dataclasses.replace(array.metadata, shards=()).stored_grid_shape == (12,)


@pytest.mark.logs("symbolic link")
@trio_test
async def test_a_link_where_a_shard_has_to_be_is_an_error_and_no_missing_chunk(tmp_path: Path) -> None:
    array = node((8,), ShardSpec((4,)))
    store = FolderStore(str(tmp_path))
    chunks, _ = opened(store, array)
    await chunks.update({(0,): b"a", (4,): b"b"})
    (tmp_path / "a/c/0").rename(tmp_path / "elsewhere")
    (tmp_path / "a/c/0").symlink_to(tmp_path / "elsewhere")
    for each in (chunks, opened(store, array)[0]):
        with pytest.raises(StoreAccessDenied):
            await each.get((0,))
        assert await each.get((4,)) == b"b"
    await store.aclose()
