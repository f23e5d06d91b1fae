"""Shard indexes read in pages: the results equal those of an index that is held as a whole."""

from __future__ import annotations

import google_crc32c
import pytest
import trio
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.arrays.test_sharded import CHECKED, arrays, node, opened
from tests.support.length import tries
from zarrfs.arrays import shard_index_reader
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.shard_index_cache import ShardIndexCache
from zarrfs.arrays.shard_survey import ShardSurvey, SurveyedShard
from zarrfs.errors import ChunkError, ShardIndexInvalid, TooLarge
from zarrfs.keys import Key
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.memory import MemoryStore


@pytest.fixture(scope="module")
def in_pages() -> object:
    """A function that sets whether indexes are read in pages from now on, however small they are."""
    before = shard_index_reader.HELD_NBYTES
    patch = pytest.MonkeyPatch()
    yield lambda yes: patch.setattr(shard_index_reader, "HELD_NBYTES", -1 if yes else before)
    patch.undo()


@given(array=arrays(), data=st.data())
@tries(40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_pages_say_what_the_whole_index_says(in_pages, array: ArrayNode, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    async def main() -> None:
        store = MemoryStore()
        grid_shape = array.metadata.grid_shape
        coords = st.tuples(*(st.integers(0, extent - 1) for extent in grid_shape))
        in_pages(False)
        await opened(store, array)[0].update(data.draw(st.dictionaries(coords, st.binary(max_size=20), max_size=20)))
        whole, _ = opened(store, array)
        in_pages(True)
        paged, _ = opened(store, array)
        in_pages(False)
        assert sorted([each async for each in paged.list()]) == sorted([each async for each in whole.list()])
        asked: list[Coords] = data.draw(st.lists(coords, min_size=1, max_size=9))
        for _ in range(2):
            assert await paged.get_several(asked) == await whole.get_several(asked)
            for each in asked:
                assert await paged.stat(each) == await whole.stat(each)
        surveys = []
        for chunks in (whole, paged):
            survey = ShardSurvey(chunks, array.metadata)
            shards = [coords async for coords, _, _ in survey.list_shards()]
            surveys.append([await _said(each) async for each in survey.survey(shards)])
        assert surveys[0] == surveys[1]

    trio.run(main)


async def _said(shard: SurveyedShard) -> tuple[object, ...]:
    counts = shard.stored, shard.bad, shard.outside, shard.possible
    return shard.level, shard.coords, counts, sorted([each async for each in shard.every_chunk()])


@trio_test
async def test_a_checksum_is_computed_over_all_pages_and_nothing_is_written(in_pages) -> None:  # type: ignore[no-untyped-def]
    array, store = node((6, 6), ShardSpec((3, 3), index_codecs=CHECKED)), MemoryStore()
    in_pages(False)
    whole, _ = opened(store, array)
    await whole.update({(0, 0): b"a", (0, 5): b"b"})
    key = Key("a/c/0/0")
    shard = bytes(await store.get(key) or b"")
    await store.set(key, shard[:-20] + bytes([shard[-20] ^ 1]) + shard[-19:])
    in_pages(True)
    paged, _ = opened(store, array)
    in_pages(False)
    bad, good = await paged.get_several([(0, 0), (0, 5)])
    assert isinstance(bad, ChunkError) and "crc32c: stored checksum" in str(bad)
    assert good == b"b"
    with pytest.raises(TooLarge, match="read-only"):
        await paged.update({(0, 5): b"c"})


@trio_test
async def test_what_a_page_says_that_cannot_be_spoils_its_chunk_alone(in_pages) -> None:  # type: ignore[no-untyped-def]
    array, store = node((4,), ShardSpec((4,))), MemoryStore()
    pairs = ((0, 2), (1, 99), (2**64 - 1, 1), (0, 2**64 - 1))
    index = b"".join(number.to_bytes(8, "little") for pair in pairs for number in pair)
    await store.set(Key("a/c/0"), b"ab" + index)
    in_pages(True)
    chunks, _ = opened(store, array)
    in_pages(False)
    got = await chunks.get_several([(number,) for number in range(4)])
    assert [isinstance(each, ShardIndexInvalid) for each in got] == [False, True, True, False] and (got[0], got[3]) == (b"ab", None)
    with pytest.raises(ShardIndexInvalid, match="shard index: 99 bytes at 1 are outside the chunk area of the shard"):
        await chunks.stat((1,))


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("index_codecs", [(CodecSpec("bytes", {"endian": "little"}),), CHECKED], ids=["plain", "checked"])
@trio_test
async def test_holes_as_zarrita_marks_them_where_the_index_is_at_the_start(in_pages, paged, index_codecs) -> None:  # type: ignore[no-untyped-def]
    """zarrita 0.2.7 adds the length of the index to each offset, whose 64 bits overflow for missing chunks."""
    spec = ShardSpec((4,), index_location="start", index_codecs=index_codecs)
    array, store = node((4,), spec), MemoryStore()
    nbytes = 64 + 4 * (len(index_codecs) - 1)
    pairs = ((nbytes, 2), (nbytes - 1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (nbytes, 2**64 - 1))
    index = b"".join(number.to_bytes(8, "little") for pair in pairs for number in pair)
    if len(index_codecs) > 1:
        index += google_crc32c.value(index).to_bytes(4, "little")
    await store.set(Key("a/c/0"), index + b"ab")
    in_pages(paged)
    chunks, _ = opened(store, array)
    in_pages(False)
    got = await chunks.get_several([(number,) for number in range(4)])
    assert got == [b"ab", None, None, None]
    assert [coords async for coords, _, _ in chunks.list()] == [(0,)]


@trio_test
async def test_an_index_is_read_once_for_all_who_ask_and_again_when_others_took_its_room() -> None:
    array, store = node((8,), ShardSpec((4,), index_codecs=CHECKED)), MemoryStore()
    await opened(store, array)[0].update({(number,): b"%d" % number for number in range(8)})
    counters = WorkCounters()
    cache = ShardIndexCache(1)
    chunks = chunks_of(store, array, ShardLayers(counters, indexes=cache))
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(chunks.get, (number,))
    assert counters.shard_indexes_read == 1
    for number in (0, 5, 1, 6):
        assert await chunks.get((number,)) == b"%d" % number
    assert counters.shard_indexes_read == 4 and len(cache._known) == 1


@trio_test
async def test_shards_within_shards_whose_indexes_take_turns_do_not_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_index_reader, "_SMALL_NBYTES", 0)
    array, store = node((16,), ShardSpec((2,), index_codecs=CHECKED), ShardSpec((4,), codecs=(CodecSpec("crc32c"),))), MemoryStore()
    await opened(store, array)[0].update({(number,): b"%d" % number for number in range(16)})
    chunks, _ = opened(store, array)
    got: dict[int, object] = {}

    async def get(number: int) -> None:
        got[number] = await chunks.get((number,))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(get, number)
        await chunks.update({(3,): b"new", (12,): None})
    assert got == {number: b"%d" % number for number in range(16)}
    found = await opened(store, array)[0].get_several([(3,), (4,), (12,)])
    assert found == [b"new", b"4", None]
