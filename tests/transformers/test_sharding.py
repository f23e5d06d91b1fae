"""The sharding transformer over shards written by hand after the text, and its requests to the inner store."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.sharding import EMPTY, Grid, decode_shard, encode_shard, index_of
from tests.support.stores import FailingStore, contents, fill, names
from zarrfs.buffers import Buffer
from zarrfs.errors import KeyConflict, KeyUnusable, RangesOverlap, ShardIndexInvalid, StoreError, StoreReadOnly, StoreUnsupported
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.change import is_announced
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.transformers.read_only import ReadOnlyStore
from zarrfs.transformers.sharding import ShardingStore

FOO = Prefix("data/root/foo/")
ENCODING = ChunkKeyEncoding("c", "/", "c0")


def sharded(inner: Store, grid_shape: tuple[int, ...] = (4, 6), chunks_per_shard: tuple[int, ...] = (2, 3)) -> ShardingStore:
    return ShardingStore(inner, FOO, ENCODING, grid_shape, ShardSpec(chunks_per_shard))


def chunk(*coords: int) -> Key:
    return FOO.key("c" + "/".join(map(str, coords)))


def counted(store: ObservedStore) -> dict[str, int]:
    """Return the counts of reads and writes. Checks for unchanged shards (`stat`) are not this module's concern."""
    return {name: count for name, count in asdict(store.counters).items() if count and name != "stat"}


def everything(grid_shape: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    return itertools.product(*map(range, grid_shape))


# --- the text's own example ---------------------------------------------------------------------------------------------------


@trio_test
async def test_the_example_of_the_text() -> None:
    """chunks_per_shard [32, 2]: chunks [96, 18] to [127, 19] of /foo/baz are in shard c3/9, with an index of 1024 bytes."""
    inner = MemoryStore()
    baz = Prefix("data/root/foo/baz/")
    store = ShardingStore(inner, baz, ENCODING, (200, 20), ShardSpec((32, 2)))
    for key, value in {"c96/18": b"first", "c96/19": b"second", "c97/18": b"third", "c127/19": b"last"}.items():
        await store.set(baz.key(key), value)
    assert set(await contents(inner)) == {"data/root/foo/baz/c3/9"}
    shard = (await contents(inner))["data/root/foo/baz/c3/9"]
    assert len(shard) == len(b"firstsecondthirdlast") + 1024
    assert decode_shard(shard, 64) == {0: b"first", 1: b"second", 2: b"third", 63: b"last"}


# --- shards of other software -------------------------------------------------------------------------------------------------


@trio_test
async def test_chunks_in_any_order_with_unused_bytes_between_them() -> None:
    inner = MemoryStore()
    values = {0: b"zero", 2: b"", 3: b"three", 5: b"five"}
    await inner.set(chunk(0, 1), encode_shard(values, 6, order=[5, 0, 2, 3], gaps=[b"??", b"", b"???", b"?", b"????"]))
    store = sharded(inner)
    expected = {chunk(0, 3): b"zero", chunk(0, 5): b"", chunk(1, 3): b"three", chunk(1, 5): b"five"}
    assert await contents(store) == expected
    assert await store.get(chunk(0, 4)) is None and await store.stat(chunk(0, 4)) is None
    await store.erase(chunk(1, 3))
    assert decode_shard((await contents(inner))[chunk(0, 1)], 6) == {0: b"zero", 2: b"", 5: b"five"}


@trio_test
async def test_identical_entries_are_one_chunk_stored_once() -> None:
    inner = MemoryStore()
    pairs = [(0, 4), (0, 4), (EMPTY, EMPTY), (0, 4), (4, 2), (EMPTY, EMPTY)]
    await inner.set(chunk(0, 0), b"sameot" + index_of(pairs))
    store = sharded(inner)
    assert await contents(store) == {chunk(0, 0): b"same", chunk(0, 1): b"same", chunk(1, 0): b"same", chunk(1, 1): b"ot"}
    await store.set(chunk(0, 1), b"other")
    assert await contents(store) == {chunk(0, 0): b"same", chunk(0, 1): b"other", chunk(1, 0): b"same", chunk(1, 1): b"ot"}


@trio_test
async def test_without_nbytes_there_is_no_chunk_whatever_the_offset() -> None:
    inner = MemoryStore()
    await inner.set(chunk(0, 0), b"x" + index_of([(99, EMPTY), (0, 1), (0, EMPTY), *[(EMPTY, EMPTY)] * 3]))
    assert await contents(sharded(inner)) == {chunk(0, 1): b"x"}


@pytest.mark.parametrize(
    ("bad", "others"),
    [
        ((100, 4), [(4, 4)]),  # outside
        ((0, 9), [(9, 1)]),  # into the index, which begins at 8
        ((2**63, 2**63), [(4, 4)]),  # an end beyond 64 bits
        ((EMPTY, 3), [(4, 4)]),
    ],
)
@trio_test
async def test_an_entry_that_leads_outside_concerns_its_chunk_alone(bad: tuple[int, int], others: list[tuple[int, int]]) -> None:
    inner = MemoryStore()
    shard = b"goodmore" + index_of([(0, 4), bad, (4, 4), *[(EMPTY, EMPTY)] * 3])
    await inner.set(chunk(0, 0), shard)
    store = sharded(inner)
    assert await contents(store) == {chunk(0, 0): b"good", chunk(0, 2): b"more"}
    assert await names(store, FOO + "c0/") == {("0", False): 4, ("2", False): 4}
    for attempt in (
        lambda: store.get(chunk(0, 1)),
        lambda: store.stat(chunk(0, 1)),
        lambda: store.get_with_stat(chunk(0, 1), WHOLE),
        lambda: store.get_partial_values([(chunk(0, 0), WHOLE), (chunk(0, 1), WHOLE)]),
        lambda: store.set_partial_values([(chunk(0, 1), 0, b"new")]),
    ):
        with pytest.raises(ShardIndexInvalid) as raised:
            await attempt()
        assert raised.value.key == chunk(0, 1)
    # Writing another chunk would lose those that cannot be found.
    with pytest.raises(ShardIndexInvalid):
        await store.set(chunk(1, 1), b"another")
    assert await contents(inner) == {chunk(0, 0): shard}
    await store.set(chunk(0, 1), b"mended")
    await store.set(chunk(1, 1), b"another")
    assert await contents(store) == {
        chunk(0, 0): b"good", chunk(0, 1): b"mended", chunk(0, 2): b"more", chunk(1, 1): b"another"
    }  # fmt: skip


@pytest.mark.parametrize("shard", [b"", b"shorter than an index"])
@trio_test
async def test_a_shard_without_an_index_is_an_error_for_its_chunks_and_nothing_else(shard: bytes) -> None:
    inner = MemoryStore()
    await inner.set(chunk(0, 0), shard)
    await inner.set(chunk(0, 1), encode_shard({0: b"good"}, 6))
    store = sharded(inner)
    assert await contents(store) == {chunk(0, 3): b"good"}
    for attempt in (
        lambda: store.get(chunk(0, 0)),
        lambda: store.set(chunk(0, 0), b"new"),
        lambda: store.erase(chunk(0, 0)),
        lambda: store.set_partial_values([(chunk(0, 0), 0, b"new")]),
    ):
        with pytest.raises(ShardIndexInvalid):
            await attempt()
    assert (await contents(inner))[chunk(0, 0)] == shard
    await store.erase_values([chunk(row, column) for row, column in everything((2, 3))])
    assert set(await contents(inner)) == {chunk(0, 1)}
    await store.set(chunk(0, 0), b"new")
    assert await contents(store) == {chunk(0, 0): b"new", chunk(0, 3): b"good"}


@trio_test
async def test_a_shard_without_chunks_is_not_seen() -> None:
    inner = MemoryStore()
    await inner.set(chunk(0, 0), encode_shard({}, 6))
    store = sharded(inner)
    assert await names(store) == {} and await contents(store) == {}
    assert not await store.prefix_exists(FOO) and not await store.prefix_exists(Prefix("data/"))
    await store.set(chunk(3, 5), b"x")
    assert await names(store) == {("data", True): 0}
    assert await names(store, FOO) == {("c3", True): 0}


@trio_test
async def test_a_shard_that_is_replaced_behind_is_read_anew() -> None:
    inner = MemoryStore()
    store = sharded(inner)
    await fill(store, {chunk(0, 0): b"old", chunk(0, 1): b"other"})
    stat = await store.stat(chunk(0, 0))
    await inner.set(chunk(0, 0), encode_shard({0: b"new value", 1: b"other"}, 6, gaps=[b"???"]))
    assert await store.get(chunk(0, 0)) == b"new value"
    assert await store.stat(chunk(0, 0)) != stat
    await inner.erase(chunk(0, 0))
    assert await contents(store) == {}


# --- requests to the inner store ----------------------------------------------------------------------------------------------


@trio_test
async def test_chunks_of_a_shard_are_got_with_its_index_and_one_more_read_and_then_with_one() -> None:
    behind = ObservedStore(MemoryStore())
    values = {place: b"%d" % place * 10 for place in range(6)}
    await behind.inner.set(chunk(1, 0), encode_shard(values, 6))
    store = sharded(behind)
    asked = [(chunk(2, 0), WHOLE), (chunk(3, 2), ByteRange(1, 3)), (chunk(2, 1), ByteRange.suffix(2)), (chunk(2, 0), ByteRange(8))]
    expected = [b"0" * 10, b"555", b"11", b"00"]
    assert await store.get_partial_values(asked) == expected
    assert counted(behind) == {"get_partial_values": 2, "bytes_read": 6 * 16 + 17}
    assert await store.get_partial_values(asked) == expected
    assert counted(behind) == {"get_partial_values": 3, "bytes_read": 6 * 16 + 2 * 17}
    assert await store.get_partial_values([]) == []


@trio_test
async def test_chunks_of_a_shard_are_set_with_one_set() -> None:
    behind = ObservedStore(MemoryStore())
    store = sharded(behind)
    await store.set_partial_values([(chunk(0, place), 0, b"0123456789") for place in range(3)])
    assert counted(behind) == {"exclusive": 1, "set": 1, "bytes_written": 30 + 96}


@trio_test
async def test_of_a_shard_that_is_replaced_whole_no_chunk_is_read() -> None:
    behind = ObservedStore(MemoryStore())
    await behind.inner.set(chunk(0, 0), encode_shard(dict.fromkeys(range(6), b"0123456789"), 6))
    store = sharded(behind)
    shard = [chunk(row, column) for row, column in everything((2, 3))]
    await store.set_partial_values([(key, 0, b"ten bytes!") for key in shard])
    # The index gives the lengths of the chunks: a chunk longer than the written part would keep its end.
    assert counted(behind) == {
        "get_partial_values": 1, "bytes_read": 96, "exclusive": 1, "set": 1, "bytes_written": 60 + 96
    }  # fmt: skip
    await store.set_partial_values([(key, 0, b"longer than before") for key in shard])
    assert behind.counters.get_partial_values == 1 and behind.counters.set == 2


@trio_test
async def test_chunks_that_are_replaced_whole_are_not_read_and_others_once() -> None:
    behind = ObservedStore(MemoryStore())
    await behind.inner.set(chunk(0, 0), encode_shard({0: b"zero", 1: b"one", 2: b"two", 3: b"three"}, 6))
    store = sharded(behind)
    await store.set_partial_values([(chunk(0, 0), 2, b"RO"), (chunk(0, 0), 0, b"ZE"), (chunk(0, 1), 0, b"ONE")])
    assert await contents(store) == {chunk(0, 0): b"ZERO", chunk(0, 1): b"ONE", chunk(0, 2): b"two", chunk(1, 0): b"three"}
    behind.counters.get_partial_values = behind.counters.bytes_read = 0
    await store.set_partial_values([(chunk(0, 0), 1, b"er"), (chunk(0, 1), 0, b"---")])
    # The chunk that is changed in part, and the unchanged ones.
    assert (behind.counters.get_partial_values, behind.counters.bytes_read) == (2, 4 + 3 + 5)
    assert await store.get(chunk(0, 0)) == b"ZerO"


@trio_test
async def test_shards_all_of_whose_chunks_go_are_not_read() -> None:
    behind = ObservedStore(MemoryStore())
    await behind.inner.set(chunk(0, 0), b"not even a shard")
    await behind.inner.set(chunk(0, 1), encode_shard({0: b"x", 5: b"y"}, 6))
    store = sharded(behind)
    whole = [chunk(row, column) for row, column in everything((2, 3))]
    await store.erase_values([*whole, whole[0], chunk(0, 3)])
    assert counted(behind) == {
        "exclusive": 2, "erase": 1, "get_partial_values": 2, "bytes_read": 96 + 1, "set": 1, "bytes_written": 96 + 1
    }  # fmt: skip
    assert await contents(store) == {chunk(1, 5): b"y"}
    await store.erase(chunk(1, 5))
    assert await contents(behind) == {}


@trio_test
async def test_erasing_what_is_not_there_writes_nothing() -> None:
    behind = ObservedStore(MemoryStore())
    await behind.inner.set(chunk(0, 0), encode_shard({0: b"x"}, 6))
    store = sharded(behind)
    await store.erase_values([chunk(0, 1), chunk(2, 3), chunk(99, 99)])
    assert (behind.counters.set, behind.counters.erase) == (0, 0)


@trio_test
async def test_a_prefix_that_cuts_through_the_grid_takes_whole_shards_unread() -> None:
    """Of 5 rows, in shards of 2, the last row has shards to itself; for row 1, the other row of its shards stays."""
    behind = ObservedStore(MemoryStore())
    store = sharded(behind, (5, 4), (2, 2))
    await fill(store, {chunk(*coords): b"%d%d" % coords for coords in everything((5, 4))})
    await fill(store, {FOO + "c4/notes": b"", FOO + "c2/notes": b"", FOO + "c1/notes": b""})
    store = sharded(behind, (5, 4), (2, 2))
    before = behind.counters.get_partial_values
    await store.erase_prefix(Prefix(FOO + "c4/"))
    assert behind.counters.get_partial_values == before
    rest = {chunk(*coords): b"%d%d" % coords for coords in everything((4, 4))}
    rest |= {FOO + "c2/notes": b"", FOO + "c1/notes": b""}
    assert await contents(store) == rest
    sets = behind.counters.set
    await store.erase_prefix(Prefix(FOO + "c1/"))
    assert behind.counters.set == sets + 2
    assert await names(store, FOO) == {("c0", True): 0, ("c2", True): 0, ("c3", True): 0}
    assert await names(store, FOO + "c2/") == {(str(column), False): 2 for column in range(4)} | {("notes", False): 0}


@trio_test
async def test_a_shard_that_may_hold_millions_of_chunks_costs_nothing_to_erase() -> None:
    behind = ObservedStore(MemoryStore())
    await behind.inner.set(chunk(0, 0), b"whatever")
    store = sharded(behind, (2, 2**26), (1, 2**26))
    assert await names(store, FOO) == {} and await store.get_partial_values([(chunk(1, 5), WHOLE)]) == [None]
    await store.erase_prefix(Prefix(FOO + "c0/"))
    assert behind.counters.erase == 1 and await contents(behind) == {}


@trio_test
async def test_listing_rows_reads_indexes_until_every_row_was_seen() -> None:
    behind = ObservedStore(MemoryStore())
    await fill(sharded(behind), {chunk(*coords): b"x" for coords in everything((4, 6))})
    store = sharded(behind)
    behind.counters.get_partial_values = 0
    assert await names(store, FOO) == {(f"c{row}", True): 0 for row in range(4)}
    assert behind.counters.get_partial_values == 2
    assert await names(store, FOO + "c1/") == {(str(column), False): 1 for column in range(6)}
    assert behind.counters.get_partial_values == 3
    assert len(await names(store, FOO + "c0/")) == 6 and len(await contents(store, FOO + "c2/")) == 6
    assert await store.prefix_exists(Prefix("data/"))


@trio_test
async def test_listing_rows_looks_into_no_prefix_of_shards_whose_rows_were_seen() -> None:
    behind = ObservedStore(MemoryStore())
    store = sharded(behind, (4, 4, 4), (2, 2, 2))
    await fill(store, {chunk(*coords): b"x" for coords in everything((4, 4, 4))})
    assert await names(store, FOO) == {(f"c{row}", True): 0 for row in range(4)}
    # The grid's own folder, the two rows of shards, and below each of these one of two.
    assert behind.counters.list_dir == 5


@trio_test
async def test_listings_tell_sizes_of_chunks_and_times_of_their_shards() -> None:
    inner = MemoryStore()
    await inner.set(chunk(0, 0), encode_shard({0: b"12345", 1: b"1"}, 6, gaps=[b"unused"]))
    stat = await inner.stat(chunk(0, 0))
    assert stat is not None
    store = sharded(inner)
    entries = [entry async for entry in store.list_dir(Prefix(FOO + "c0/"))]
    assert entries == [("0", False, 5, stat.mtime_ns), ("1", False, 1, stat.mtime_ns)]
    for name, _, size, mtime_ns in entries:
        found = await store.stat(Key(FOO + "c0/" + name))
        assert found is not None and (found.size, found.mtime_ns) == (size, mtime_ns)


@trio_test
async def test_other_keys_below_prefixes_of_chunks_are_passed_on() -> None:
    """Even where no chunk can be, and where a row of shards has the name of a row of chunks."""
    inner = MemoryStore()
    store = sharded(inner, (4, 6), (1, 3))
    others = {FOO + name: b"1" for name in ("c9/notes", "c0/notes", "c2/x/y", "c", "c7", "c1.x")}
    await fill(store, {**others, chunk(0, 0): b"22"})
    assert {key: value for key, value in (await contents(inner)).items() if key in others} == others
    assert await contents(store) == {**others, chunk(0, 0): b"22"}
    assert await names(store, FOO + "c9/") == {("notes", False): 1}
    assert await names(store, FOO + "c0/") == {("notes", False): 1, ("0", False): 2}
    assert await names(store, FOO) == dict.fromkeys([("c0", True), ("c2", True), ("c9", True)], 0) | dict.fromkeys(
        [("c", False), ("c7", False), ("c1.x", False)], 1
    )
    for prefix in ("c9/", "c0/", "c2/"):
        assert await store.prefix_exists(Prefix(FOO + prefix))
        await store.erase_prefix(Prefix(FOO + prefix))
        assert not await store.prefix_exists(Prefix(FOO + prefix))


# --- refusals -----------------------------------------------------------------------------------------------------------------


@trio_test
async def test_what_cannot_be_stored_is_refused_before_anything_is() -> None:
    inner = MemoryStore()
    store = sharded(inner)
    await store.set(chunk(0, 0), b"0123")
    before = await contents(inner)
    beside = Key("meta/root/foo.array.json")
    for pieces, error in (
        ([(beside, 0, b"x"), (chunk(1, 0), 0, b"x"), (chunk(4, 0), 0, b"x")], KeyUnusable),
        ([(beside, 0, b"x"), (chunk(1, 0), 0, b"x"), (chunk(0, 0), 1, b"xx"), (chunk(0, 0), 2, b"x")], RangesOverlap),
        ([(beside, 0, b"xx"), (beside, 1, b"x"), (chunk(1, 0), 0, b"x")], RangesOverlap),
        ([(beside, 0, b"x"), (chunk(1, 0), -1, b"x")], ValueError),
    ):
        with pytest.raises(error):
            await store.set_partial_values(pieces)
        assert await contents(inner) == before
    for outside in (chunk(4, 0), chunk(0, 6)):
        with pytest.raises(KeyUnusable):
            await store.set(outside, b"x")
        with pytest.raises(KeyUnusable):
            async with store.exclusive(outside):
                pass
    assert await contents(inner) == before


@trio_test
async def test_what_a_chunk_in_a_shard_cannot_do() -> None:
    inner = MemoryStore()
    store = sharded(inner)
    await fill(store, {chunk(0, 0): b"x", FOO + "notes/a": b"y", "other/b": b"z"})
    for refused in (
        lambda: store.rename(chunk(0, 0), chunk(1, 0)),
        lambda: store.rename(Key("other/b"), chunk(1, 0)),
        lambda: store.rename_prefix(FOO, Prefix("x/")),
        lambda: store.rename_prefix(Prefix("data/"), Prefix("x/")),
        lambda: store.rename_prefix(Prefix("other/"), Prefix(FOO + "c7/")),
        lambda: store.make_prefix(Prefix(FOO + "c1/")),
        lambda: store.remove_prefix(Prefix(FOO + "c1/")),
        lambda: store.set_times(chunk(0, 0), 5),
    ):
        with pytest.raises(StoreUnsupported):
            await refused()
    with pytest.raises(KeyConflict):
        await store.rename_prefix(Prefix("data/"), Prefix("data/x/"))
    assert await store.rename_prefix(Prefix(FOO + "notes/"), Prefix(FOO + "moved/"))
    assert await store.rename(Key("other/b"), Key(FOO + "c"))
    assert await contents(store) == {chunk(0, 0): b"x", FOO + "moved/a": b"y", FOO + "c": b"z"}


@trio_test
async def test_a_set_that_fails_changes_nothing() -> None:
    behind = FailingStore(MemoryStore(), {})
    store = sharded(behind)
    await fill(store, {chunk(0, 0): b"old", chunk(0, 1): b"other"})
    behind.errors["set"] = StoreError("no")
    with pytest.raises(StoreError):
        await store.set(chunk(0, 0), b"new")
    assert await contents(store) == {chunk(0, 0): b"old", chunk(0, 1): b"other"}
    behind.errors.clear()
    await store.set(chunk(0, 0), b"new")
    assert await contents(store) == {chunk(0, 0): b"new", chunk(0, 1): b"other"}


@trio_test
async def test_read_only_above_and_below() -> None:
    inner = MemoryStore()
    await fill(sharded(inner), {chunk(0, 0): b"x"})
    for store in (sharded(ReadOnlyStore(inner)), ReadOnlyStore(sharded(inner))):
        assert not store.capabilities.write
        for change in (
            store.set(chunk(0, 0), b"y"),
            store.erase(chunk(0, 0)),
            store.erase_values([chunk(0, 1)]),
            store.erase_prefix(Prefix(FOO + "c3/")),
            store.set_partial_values([(chunk(0, 0), 0, b"y")]),
        ):
            with pytest.raises(StoreReadOnly):
                await change
        assert await contents(store) == {chunk(0, 0): b"x"}


# --- other parts of the interface ---------------------------------------------------------------------------------------------


class SyncedStore(ForwardingStore):
    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.synced: list[str] = []

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        self.synced = sorted(targets)


@trio_test
async def test_syncing_a_chunk_syncs_its_shard() -> None:
    inner = SyncedStore(MemoryStore())
    store = sharded(inner)
    await fill(store, {chunk(*coords): b"x" for coords in everything((4, 6))})
    await store.sync([chunk(0, 1), chunk(1, 2), chunk(3, 5), chunk(50, 0), Key("zarr.json"), Prefix("meta/")])
    assert inner.synced == [chunk(0, 0), chunk(1, 1), "meta/", "zarr.json"]
    await store.sync([Prefix(FOO + "c3/")])
    assert inner.synced == [FOO + "c1/", chunk(1, 0), chunk(1, 1), FOO + "c3/"]


@trio_test
async def test_folders_that_became_empty_are_no_prefixes_of_chunks(tmp_path: Path) -> None:
    store = sharded(FolderStore(str(tmp_path)))
    await fill(store, {chunk(0, 0): b"x", chunk(2, 3): b"y"})
    await store.erase(chunk(2, 3))
    assert (tmp_path / FOO / "c1").is_dir()
    assert await names(store, FOO) == {("c0", True): 0}
    assert not await store.prefix_exists(Prefix(FOO + "c1/"))
    await store.make_prefix(Prefix(FOO + "kept/"))
    assert await names(store, FOO) == {("c0", True): 0, ("kept", True): 0}


@pytest.mark.parametrize("scalar", ["c", "c0"])
@trio_test
async def test_the_only_chunk_of_a_0_dimensional_array(scalar: str) -> None:
    inner = MemoryStore()
    store = ShardingStore(inner, FOO, ChunkKeyEncoding("c", "/", scalar), (), ShardSpec(()))
    await store.set(FOO.key(scalar), b"element")
    await store.set(FOO.key("c1"), b"something else")
    assert await contents(inner) == {FOO + scalar: encode_shard({0: b"element"}, 1), FOO + "c1": b"something else"}
    assert await names(store, FOO) == {(scalar, False): 7, ("c1", False): 14}
    assert Grid((), ((),), FOO, scalar=scalar).decoded(await contents(inner)) == {FOO + scalar: b"element"}


@trio_test
async def test_two_levels_of_shards() -> None:
    """The upper transformer's shards are the lower one's chunks."""
    inner = ObservedStore(MemoryStore())
    grid = Grid((6, 4), ((2, 1), (1, 4)), FOO)
    lower = ShardingStore(inner, FOO, ENCODING, grid.above.shape, ShardSpec((1, 4)))
    store = ShardingStore(lower, FOO, ENCODING, grid.shape, ShardSpec((2, 1)))
    values = {chunk(*coords): b"%d,%d" % coords for coords in everything(grid.shape)}
    await fill(store, values)
    assert set(await contents(inner)) == set(grid.above.above.by_key())
    assert grid.decoded(await contents(inner)) == await contents(store) == values
    await store.erase_prefix(Prefix(FOO + "c5/"))
    await store.erase_prefix(Prefix(FOO + "c4/"))
    assert set(await contents(inner)) == {chunk(0, 0), chunk(1, 0)}
    inner.counters.set = 0
    await store.set_partial_values([(chunk(0, 0), 0, b"-"), (chunk(1, 0), 0, b"-")])
    assert inner.counters.set == 1


@trio_test
async def test_no_shard_is_held_in_place_of_a_chunk(tmp_path: Path) -> None:
    inner = FolderStore(str(tmp_path))
    store = sharded(inner)
    await store.set(chunk(0, 0), b"chunk")
    assert await store.hold(chunk(0, 0)) is None


# --- changes by others --------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_set_of_a_shard_is_announced_for_its_chunk_alone() -> None:
    """The store below then tells what other programs have set there just before it."""
    announced: dict[Key, bool] = {}

    class Told(ForwardingStore):
        async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
            announced[key] = is_announced(key)
            return await super().set(key, value, expect=expect)

    store = sharded(Told(MemoryStore()))
    await store.set(chunk(0, 1), b"value")
    await store.set_partial_values([(chunk(2, 4), 0, b"value")])
    await store.set(FOO.key("other"), b"value")
    assert announced == {chunk(0, 0): True, chunk(1, 1): True, FOO.key("other"): False}
