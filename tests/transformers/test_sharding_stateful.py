"""The sharding transformer, alone and over another one, compared with a dictionary of chunks and other keys.

After every step, a decoder of the test's own decodes the shards below.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.length import tries
from tests.support.sharding import Grid, encode_shard
from tests.support.stores import contents, names
from zarrfs.errors import GenerationMismatch, KeyUnusable, RangesOverlap
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import ABSENT
from zarrfs.transformers.sharding import ShardingStore

GRIDS = [
    Grid((5,), ((3,),)),
    Grid((5,), ((3,),), separator="."),
    Grid((5, 3), ((2, 2),)),
    Grid((5, 3), ((2, 2),), separator=".", prefix=""),
    Grid((3, 4), ((1, 3),), prefix="data/"),
    Grid((4, 3, 2), ((2, 1, 2),)),
    Grid((3, 3, 2), ((2, 2, 1),), before="c/", scalar="c"),
    Grid((), ((),)),
    Grid((), ((),), scalar="c"),
    Grid((0, 2), ((2, 2),)),
]
STACKS = [
    Grid((7,), ((2,), (2,))),
    Grid((5, 4), ((2, 1), (1, 3))),
    Grid((5, 3), ((1, 2), (3, 1)), separator="."),
    Grid((5, 2), ((2, 2), (2, 2), (1, 1))),
    Grid((), ((), ())),
]

VALUES = st.binary(max_size=12)
RANGES = st.one_of(
    st.builds(ByteRange, st.integers(0, 15), st.one_of(st.none(), st.integers(0, 15))), st.integers(0, 15).map(ByteRange.suffix)
)
PICKS = st.integers(0, 10_000)
"""Index of a key or prefix, modulo their number."""


def stacked(inner: Store, grid: Grid) -> Store:
    """Return the transformers of ``grid`` over ``inner``."""
    if not grid.levels:
        return inner
    encoding = ChunkKeyEncoding(grid.before, grid.separator, grid.scalar)
    below = stacked(inner, grid.above)
    return ShardingStore(below, Prefix(grid.prefix), encoding, grid.shape, ShardSpec(grid.levels[0]))


def part_of(value: bytes, part: ByteRange) -> bytes:
    if part.start is None:
        return value[len(value) - min(part.length or 0, len(value)) :]
    return value[part.start :][: part.length]


class ShardingMachine(RuleBasedStateMachine):
    """``model``: the chunks and other values. ``strays``: values below under names of chunks outside of the grid."""

    def __init__(self, grids: Sequence[Grid]) -> None:
        super().__init__()
        self.grids = grids
        self.model: dict[str, bytes] = {}

    @initialize(number=PICKS)
    def open(self, number: int) -> None:
        self.grid = grid = self.grids[number % len(self.grids)]
        self.inner = MemoryStore()
        self.store = stacked(self.inner, grid)
        self.chunks = [Key(key) for key in grid.by_key()]
        beyond = grid.key(tuple(extent + 7 for extent in grid.shape))
        self.outside = [Key(beyond)] if grid.shape else []
        others = ["meta/root/foo.array.json", "x/c0/0"]
        others += [grid.prefix + name for name in ("notes", "c", "c01/0", "c1/notes", "c0/x/y", "c9/notes", "c-1", "c1.x", "c/1/n")]
        self.others = [Key(key) for key in others if key not in {*self.chunks, *self.outside}]
        self.keys = self.chunks + self.others
        every = self.keys + self.outside
        cuts = {key[: end + 1] for key in every for end, letter in enumerate(key) if letter == "/"}
        self.prefixes = [Prefix(prefix) for prefix in sorted(cuts | {"", "never/", grid.prefix})]
        # Below, a name of a chunk is one of a shard, or unused.
        self.strays = dict.fromkeys({*self.outside, *self.chunks[-1:]} - {Key(key) for key in self.outermost()}, b"stray")
        for key in self.strays:
            trio.run(self.inner.set, key, b"stray")

    def key(self, pick: int) -> Key:
        return self.keys[pick % len(self.keys)]

    def outermost(self) -> set[str]:
        """Return the keys of the shards that `inner` may contain."""
        grid = self.grid
        while grid.levels:
            grid = grid.above
        return set(grid.by_key())

    def prefix(self, pick: int) -> Prefix:
        return self.prefixes[pick % len(self.prefixes)]

    # --- the ten operations, and `stat` -------------------------------------------------------------------------------------

    @rule(pick=PICKS)
    def get(self, pick: int) -> None:
        key = self.key(pick)
        value = trio.run(self.store.get, key)
        assert (None if value is None else bytes(value)) == self.model.get(key)

    @rule(wanted=st.lists(st.tuples(PICKS, RANGES), max_size=6))
    def get_partial_values(self, wanted: list[tuple[int, ByteRange]]) -> None:
        every = self.keys + self.outside
        asked = [(every[pick % len(every)], part) for pick, part in wanted]
        got = trio.run(self.store.get_partial_values, asked)
        expected = [part_of(self.model[key], part) if key in self.model else None for key, part in asked]
        assert [None if value is None else bytes(value) for value in got] == expected

    @rule(pick=PICKS, value=VALUES)
    def set(self, pick: int, value: bytes) -> None:
        generation = trio.run(self.store.set, self.key(pick), value)
        self.model[self.key(pick)] = value
        stat = trio.run(self.store.stat, self.key(pick))
        assert stat is not None and generation in (None, stat.generation)

    @rule(pick=PICKS, value=VALUES, right=st.booleans())
    def set_conditionally(self, pick: int, value: bytes, right: bool) -> None:
        key = self.key(pick)
        stat = trio.run(self.store.stat, key)
        generation = (stat.generation if stat is not None else ABSENT) if right else "another"

        async def change() -> None:
            await self.store.set(key, value, expect=generation)

        if right:
            trio.run(change)
            self.model[key] = value
        else:
            with pytest.raises(GenerationMismatch):
                trio.run(change)

    @rule(pieces=st.lists(st.tuples(PICKS, st.integers(0, 15), VALUES), max_size=7), everywhere=st.booleans())
    def set_partial_values(self, pieces: list[tuple[int, int, bytes]], everywhere: bool) -> None:
        triples = [(self.key(pick), start, value) for pick, start, value in pieces]
        if everywhere:
            triples += [(key, 30, b"+") for key in self.chunks]
        taken = [(key, offset) for key, start, value in triples for offset in range(start, start + len(value))]
        if len(set(taken)) < len(taken):
            with pytest.raises(RangesOverlap):
                trio.run(self.store.set_partial_values, triples)
            return
        trio.run(self.store.set_partial_values, triples)
        for key, start, value in triples:
            whole = bytearray(self.model.get(key, b""))
            whole.extend(bytes(max(0, start - len(whole)) if value else 0))
            whole[start : start + len(value)] = value
            self.model[key] = bytes(whole)

    @rule(value=VALUES)
    def set_outside(self, value: bytes) -> None:
        for key in self.outside:
            with pytest.raises(KeyUnusable):
                trio.run(self.store.set, key, value)
            with pytest.raises(KeyUnusable):
                trio.run(self.store.set_partial_values, [(self.key(0), 0, value), (key, 0, value)])
            trio.run(self.store.erase, key)

    @rule(pick=PICKS)
    def erase(self, pick: int) -> None:
        trio.run(self.store.erase, self.key(pick))
        self.model.pop(self.key(pick), None)

    @rule(picks=st.lists(PICKS, max_size=6), all_chunks=st.booleans())
    def erase_values(self, picks: list[int], all_chunks: bool) -> None:
        keys = [self.key(pick) for pick in picks] + (self.chunks if all_chunks else [])
        trio.run(self.store.erase_values, keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(pick=PICKS)
    def erase_prefix(self, pick: int) -> None:
        prefix = self.prefix(pick)
        trio.run(self.store.erase_prefix, prefix)
        self.model = {key: value for key, value in self.model.items() if not key.startswith(prefix)}
        if self.grid.prefix.startswith(prefix) or prefix == self.grid.prefix + "c/" == self.grid.prefix + self.grid.before:
            self.strays = {}

    @rule()
    def list_prefix(self) -> None:
        async def every() -> None:
            for prefix in self.prefixes:
                found = [key async for key in self.store.list_prefix(prefix)]
                assert sorted(found) == sorted(key for key in self.model if key.startswith(prefix))

        trio.run(every)

    @rule()
    def list_dir(self) -> None:
        async def every() -> None:
            for prefix in self.prefixes:
                expected = {}
                for key, value in self.model.items():
                    if key.startswith(prefix):
                        name, slash, _ = key[len(prefix) :].partition("/")
                        expected[name, bool(slash)] = 0 if slash else len(value)
                assert await names(self.store, prefix) == expected
                assert await self.store.prefix_exists(prefix) == bool(expected or (not prefix and not self.strays))

        trio.run(every)

    @rule()
    def stat(self) -> None:
        async def stats() -> None:
            for key in self.keys + self.outside:
                stat = await self.store.stat(key)
                assert (None if stat is None else stat.size) == (len(self.model[key]) if key in self.model else None)
                if stat is not None:
                    found = await self.store.get_with_stat(key, WHOLE)
                    assert found is not None and (bytes(found[0]), found[1]) == (self.model[key], stat)
                    parts = await self.store.get_partial_values([(key, ByteRange(1)), (key, WHOLE)], if_generation=stat.generation)
                    assert [bytes(part or b"") for part in parts] == [self.model[key][1:], self.model[key]]

        trio.run(stats)

    # --- changes by others below --------------------------------------------------------------------------------------------

    @rule(pick=PICKS, data=st.data())
    def a_shard_is_written_by_another(self, pick: int, data: st.DataObject) -> None:
        """Write a shard in another order, with unused bytes, and without some chunks."""
        shards = [*self.grid.above.by_key().items()]
        if len(self.grid.levels) > 1 or not shards:
            return
        key, shard = shards[pick % len(shards)]
        counts = self.grid.levels[0]
        chunks = {}
        for place, inside in enumerate(itertools.product(*map(range, counts))):
            coords = tuple(first * count + index for first, count, index in zip(shard, counts, inside, strict=True))
            chunk = self.grid.key(coords)
            if all(index < extent for index, extent in zip(coords, self.grid.shape, strict=True)):
                self.model.pop(chunk, None)
                if data.draw(st.booleans()):
                    chunks[place] = self.model[chunk] = data.draw(VALUES)
        if chunks:
            order = data.draw(st.permutations(list(chunks)))
            gaps = data.draw(st.lists(st.binary(max_size=3), max_size=len(chunks) + 1))
            trio.run(self.inner.set, Key(key), encode_shard(chunks, math.prod(counts), order=order, gaps=gaps))
        else:
            trio.run(self.inner.erase, Key(key))

    # --- invariants ---------------------------------------------------------------------------------------------------------

    @invariant()
    def what_is_there_is_what_the_model_says(self) -> None:
        if hasattr(self, "store"):
            assert trio.run(contents, self.store) == self.model

    @invariant()
    def the_shards_below_say_so_too(self) -> None:
        if hasattr(self, "store"):
            values = trio.run(contents, self.inner)
            chunks = {key: value for key, value in self.model.items() if key in self.chunks}
            assert self.grid.decoded(values) == chunks
            others = {key: value for key, value in values.items() if key not in self.outermost()}
            assert others == {key: value for key, value in self.model.items() if key not in self.chunks} | self.strays


@pytest.mark.parametrize("grids", [GRIDS, STACKS], ids=["one", "stacked"])
def test_a_store_with_shards_is_a_dictionary_of_chunks(grids: Sequence[Grid]) -> None:
    run_state_machine_as_test(lambda: ShardingMachine(grids), settings=tries(60, stateful_step_count=20, database=None))
