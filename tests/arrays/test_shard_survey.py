"""The survey of shards, compared with the written chunks: arrays of any nesting, axes and index, with missing chunks."""

from __future__ import annotations

import itertools
import math

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.length import unhurried
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.shard_survey import ShardSurvey
from zarrfs.keys import NodePath, Prefix
from zarrfs.model import chunk_key, data_type
from zarrfs.model.chunk_grid import Coords, RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.memory import MemoryStore

LITTLE = CodecSpec("bytes", {"endian": "little"})


def node(grid_shape: tuple[int, ...], *specs: ShardSpec) -> ArrayNode:
    """Return an array of single bytes."""
    metadata = ArrayMetadata(
        shape=grid_shape,
        data_type=data_type.from_name("uint8"),
        chunk_grid=RegularGrid((1,) * len(grid_shape)),
        chunk_key_encoding=chunk_key.default("/"),
        fill_value=b"\0",
        codecs=(CodecSpec("bytes"),),
        shards=specs,
    )
    return ArrayNode(path=NodePath("/a"), dialect="v3", metadata=metadata, chunk_prefix=Prefix("a/"))


@st.composite
def arrays(draw: st.DrawFn) -> ArrayNode:
    ndim = draw(st.integers(0, 3))
    specs = [
        ShardSpec(
            tuple(draw(st.integers(1, 3)) for _ in range(ndim)),
            draw(st.sampled_from(["start", "end"])),
            draw(st.sampled_from([(LITTLE,), (LITTLE, CodecSpec("crc32c"))])),
            tuple(draw(st.permutations(range(ndim)))),
            draw(st.sampled_from([(), (CodecSpec("gzip", {"level": 1}),)])),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return node(tuple(draw(st.integers(1, 7)) for _ in range(ndim)), *specs)


@unhurried
@given(arrays(), st.data())
def test_every_chunk_is_found_in_its_shard_and_nothing_else(array: ArrayNode, data: st.DataObject) -> None:
    metadata = array.metadata
    coords = st.tuples(*(st.integers(0, extent - 1) for extent in metadata.grid_shape))
    written = data.draw(st.dictionaries(coords, st.binary(min_size=1, max_size=5), max_size=30))

    async def main() -> None:
        store = MemoryStore()
        await chunks_of(store, array, ShardLayers(WorkCounters())).update(written)
        survey = ShardSurvey(chunks_of(store, array, ShardLayers(WorkCounters())), metadata)
        listed = [shard async for shard, _, _ in survey.list_shards()]
        outermost = {tuple(i // n for i, n in zip(each, metadata.chunks_per_key, strict=True)) for each in written}
        assert sorted(listed) == sorted(outermost)
        everywhere = list(itertools.product(*map(range, survey.grid_shape)))
        surveyed = [each async for each in survey.survey(everywhere)]
        assert [each.coords for each in surveyed if each.level == 0] == sorted(outermost)
        assert all((each.reason, each.bad, each.outside, each.unused_nbytes) == (None, 0, 0, 0) for each in surveyed)
        assert {each.key for each in surveyed} == {survey.key(each) for each in outermost}
        found: list[tuple[Coords, int]] = []
        for each in surveyed:
            assert each.innermost == (each.level == len(metadata.shards) - 1)
            assert each.stored == len(list(each.chunks())) <= each.possible
            found += each.chunks() if each.innermost else []
        assert sorted(found) == sorted((at, len(value)) for at, value in written.items())
        assert sum(survey.possible(each) for each in everywhere) == math.prod(metadata.grid_shape)

    trio.run(main)


@trio_test
async def test_possible_chunks_are_those_inside_of_the_grid() -> None:
    array = node((5, 3), ShardSpec((4, 2)))
    store = MemoryStore()
    chunks = chunks_of(store, array, ShardLayers(WorkCounters()))
    await chunks.update({(0, 0): b"a", (4, 2): b"b"})
    found = [each async for each in ShardSurvey(chunks, array.metadata).survey([(0, 0), (0, 1), (1, 1)])]
    assert [(each.coords, each.stored, each.possible) for each in found] == [((0, 0), 1, 8), ((1, 1), 1, 1)]
