"""Shards: index positions compared with an array ordered by NumPy, and pairs compared with sets of bytes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.length import unhurried
from zarrfs.errors import MetadataError, MetadataUnsupported, ShardIndexInvalid
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.shards import EMPTY, MAX_CHUNKS, ShardIndex, ShardSpec, assemble


@st.composite
def specs(draw: st.DrawFn) -> ShardSpec:
    counts = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    return ShardSpec(counts, draw(st.sampled_from(["start", "end"])), axes=tuple(draw(st.permutations(range(len(counts))))))


def places(spec: ShardSpec) -> np.ndarray:
    """Return the index position of each chunk of a shard, by its coordinates in the shard."""
    by_index = np.arange(np.prod(spec.chunks_per_shard, dtype=int)).reshape([spec.chunks_per_shard[axis] for axis in spec.axes])
    return by_index.transpose(np.argsort(spec.axes)) if spec.axes else by_index


def chunks_of(spec: ShardSpec, shard: Coords) -> dict[int, Coords]:
    """Return every chunk of a shard by its index position."""
    table = places(spec)
    return {
        int(table[local]): tuple(
            first * count + index for first, count, index in zip(shard, spec.chunks_per_shard, local, strict=True)
        )
        for local in np.ndindex(*spec.chunks_per_shard)
    }


# --- ShardSpec ------------------------------------------------------------------------------------------------------------------------


@unhurried
@given(specs(), st.data())
def test_every_chunk_has_its_place(spec: ShardSpec, data: st.DataObject) -> None:
    shard = tuple(data.draw(st.integers(0, 5)) for _ in spec.chunks_per_shard)
    chunks = chunks_of(spec, shard)
    assert sorted(chunks) == list(range(spec.chunks))
    assert spec.index_shape == (*places(spec).transpose(spec.axes).shape, 2)
    for place, coords in chunks.items():
        assert spec.shard_of(coords) == shard
        assert spec.pair_of(coords) == place
        assert spec.coords_of(shard, place) == coords


@unhurried
@given(specs(), st.data())
def test_a_shard_at_the_edge_holds_what_is_inside(spec: ShardSpec, data: st.DataObject) -> None:
    """This includes a shard completely outside, as before a resize."""
    shard = tuple(data.draw(st.integers(0, 2)) for _ in spec.chunks_per_shard)
    grid: Shape = tuple(data.draw(st.integers(0, 9)) for _ in spec.chunks_per_shard)
    chunks = chunks_of(spec, shard)
    inside = [
        coords for _, coords in sorted(chunks.items()) if all(index < extent for index, extent in zip(coords, grid, strict=True))
    ]
    assert spec.count_within(shard, grid) == len(inside)


@unhurried
@given(specs(), st.data())
def test_shards_take_all_of_a_grid_and_no_chunk_twice(spec: ShardSpec, data: st.DataObject) -> None:
    grid: Shape = tuple(data.draw(st.integers(0, 6)) for _ in spec.chunks_per_shard)
    shards = itertools.product(*map(range, spec.grid_of_shards(grid)))
    assert sum(spec.count_within(shard, grid) for shard in shards) == math.prod(grid)


def test_axes_are_in_order_where_nothing_is_said() -> None:
    assert ShardSpec((2, 3)) == ShardSpec((2, 3), axes=(0, 1))
    assert ShardSpec((2, 3)) != ShardSpec((2, 3), axes=(1, 0))
    assert ShardSpec(()).chunks == 1
    assert ShardSpec((2, 3)).index_codecs == (CodecSpec("bytes", {"endian": "little"}),)


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (1, 2), (0, 1, 2), (-1, 0)])
def test_axes_name_every_dimension_once(axes: tuple[int, ...]) -> None:
    with pytest.raises(MetadataError):
        ShardSpec((2, 3), axes=axes)


@pytest.mark.parametrize(("counts", "location"), [((0, 3), "end"), ((2, -1), "end"), ((2, 3), "middle"), ((2, 3), "")])
def test_a_shard_holds_something_and_its_index_is_somewhere(counts: Shape, location: str) -> None:
    with pytest.raises(MetadataError):
        ShardSpec(counts, location)


def test_an_index_is_no_longer_than_can_be_read() -> None:
    assert ShardSpec((MAX_CHUNKS,)).chunks == MAX_CHUNKS
    for counts in ((MAX_CHUNKS + 1,), (2**62, 2**62), (2**13, 2**14)):
        with pytest.raises(MetadataUnsupported):
            ShardSpec(counts)


# --- ShardIndex -------------------------------------------------------------------------------------------------------------------------

Pair = tuple[int, int]


def index_of(pairs: list[Pair], nbytes: int = 20, first: int = 0, stop: int | None = None) -> ShardIndex:
    return ShardIndex(np.array(pairs, np.uint64).reshape(-1, 2), nbytes, first, nbytes if stop is None else stop)


def is_inside(pair: Pair, first: int, stop: int) -> bool:
    return first <= pair[0] and pair[0] + pair[1] <= stop


def is_bad(pairs: list[Pair], place: int, first: int, stop: int) -> bool:
    """Return True if a pair leads out, or shares a byte with another pair that does not."""
    pair = pairs[place]
    if pair[1] == EMPTY:
        return False
    if not is_inside(pair, first, stop):
        return True
    mine = set(range(pair[0], sum(pair)))
    others = {other for other in pairs if other[1] != EMPTY and is_inside(other, first, stop)} - {pair}
    return any(mine & set(range(other[0], sum(other))) for other in others)


HUGE = [2**32, 2**63, 2**64 - 21, 2**64 - 5, 2**64 - 2, 2**64 - 1]
PAIRS = st.lists(
    st.tuples(st.integers(0, 24) | st.sampled_from(HUGE), st.integers(0, 8) | st.sampled_from([20, *HUGE])), min_size=1, max_size=8
)


@given(PAIRS, st.integers(0, 9), st.integers(-4, 20), st.data())
@example([(0, 20), (5, 2), (9, 3)], 0, 20, None)
@example([(0, 5), (4, 0), (5, 0), (20, 0), (21, 0)], 0, 20, None)
@example([(3, 4), (3, 4), (3, 5)], 0, 20, None)
def test_a_pair_is_bad_where_no_chunk_can_lie(pairs: list[Pair], first: int, stop: int, data: st.DataObject | None) -> None:
    if data is not None and data.draw(st.booleans()):
        pairs = pairs + [data.draw(st.sampled_from(pairs)) for _ in range(3)]
    index = index_of(pairs, 20, first, stop)
    bad = [is_bad(pairs, place, first, max(first, stop)) for place in range(len(pairs))]
    good = {place: pair for place, pair in enumerate(pairs) if pair[1] != EMPTY and not bad[place]}
    for place, pair in enumerate(pairs):
        if bad[place]:
            with pytest.raises(ShardIndexInvalid, match=str(pair[0])):
                index.find(place)
        else:
            assert index.find(place) == good.get(place)
    assert (len(index), index.shard_nbytes, index.bad_count) == (len(pairs), 20, sum(bad))
    assert list(index.stored()) == [(place, nbytes) for place, (_, nbytes) in good.items()]
    assert index.count == len(index.stored_pairs()) == len(good) + sum(bad)
    assert index.stored_pairs() == [place for place in range(len(pairs)) if bad[place] or place in good]
    assert index.used_nbytes == len({byte for offset, nbytes in good.values() for byte in range(offset, offset + nbytes)})


def test_without_nbytes_there_is_no_chunk_and_an_offset_alone_that_says_so_is_damage() -> None:
    index = index_of([(0, EMPTY), (EMPTY, 0), (EMPTY, EMPTY), (EMPTY, 4), (0, 20), (99, EMPTY)])
    for place in (1, 3):
        with pytest.raises(ShardIndexInvalid):
            index.find(place)
    assert [index.find(place) for place in (0, 2, 4, 5)] == [None, None, (0, 20), None]
    assert (index.count, index.bad_count, index.used_nbytes) == (3, 2, 20)
    assert index.stored_pairs() == [1, 3, 4]


def test_many_chunks_may_share_their_bytes() -> None:
    index = index_of([(4, 8)] * 3 + [(12, 8)])
    assert (index.count, index.bad_count, index.used_nbytes) == (4, 0, 16)


def test_an_index_without_chunks() -> None:
    index = index_of([(EMPTY, EMPTY)] * 4)
    assert (index.count, index.bad_count, index.used_nbytes, list(index.stored())) == (0, 0, 0, [])
    assert index.nbytes >= 64


# --- assemble --------------------------------------------------------------------------------------------------------------------------


@unhurried
@given(specs(), st.lists(st.binary(max_size=9), min_size=1, max_size=6), st.integers(0, 40), st.data())
def test_a_new_shard_is_read_back(spec: ShardSpec, values: list[bytes], index_nbytes: int, data: st.DataObject) -> None:
    """Chunks that are one object are stored once; equal objects are not searched for."""
    objects = [data.draw(st.sampled_from([bytearray, memoryview]))(value) for value in values]
    chunks = data.draw(st.dictionaries(st.integers(0, spec.chunks - 1), st.sampled_from(objects)))
    pieces, pairs = assemble(spec, chunks, index_nbytes)
    body = b"".join(pieces)
    at_start = spec.index_location == "start"
    shard = bytes(index_nbytes) + body if at_start else body + bytes(index_nbytes)
    first, stop = (index_nbytes, len(shard)) if at_start else (0, len(body))
    index = ShardIndex(pairs, len(shard), first, stop)
    assert (len(index), index.count, index.bad_count) == (spec.chunks, len(chunks), 0)
    for place in range(spec.chunks):
        found = index.find(place)
        if place in chunks:
            assert found is not None and shard[found[0] : sum(found)] == bytes(chunks[place])
        else:
            assert found is None
    assert len(body) == sum(len(each) for each in {id(each): each for each in chunks.values()}.values()) == index.used_nbytes


def test_the_chunks_of_a_new_shard_lie_in_the_order_of_its_index() -> None:
    pieces, pairs = assemble(ShardSpec((2, 2)), {3: b"ddd", 0: b"a", 2: b"cc"}, 64)
    assert pieces == [b"a", b"cc", b"ddd"]
    assert pairs.tolist() == [[0, 1], [EMPTY, EMPTY], [1, 2], [3, 3]]
    pieces, pairs = assemble(ShardSpec((2, 2), "start"), {3: b"ddd", 0: b"a", 2: b"cc"}, 64)
    assert pairs.tolist() == [[64, 1], [EMPTY, EMPTY], [65, 2], [67, 3]]


def test_a_chunk_of_wider_elements_is_as_long_as_its_bytes() -> None:
    elements = np.arange(3, dtype="<i4")
    pieces, pairs = assemble(ShardSpec((2,)), {0: elements.data, 1: b"x"}, 0)
    assert (pairs.tolist(), b"".join(pieces)) == ([[0, 12], [12, 1]], elements.tobytes() + b"x")
