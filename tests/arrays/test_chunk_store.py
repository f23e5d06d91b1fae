"""Chunks by coordinates, over a store that others change: changed in part, replaced while they are read, and never mixed up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from trio.testing import trio_test

from tests.arrays.test_sharded import CHECKED, node, opened, sets
from zarrfs.arrays import chunk_store, paged_shard_index, shard_index_reader
from zarrfs.arrays.chunk_store import ChunkStore, FixedPrefix, Lasting, Merge, StoredChunks, Written
from zarrfs.arrays.sharded import levels
from zarrfs.buffers import Buffer
from zarrfs.errors import (
    GenerationMismatch,
    ShardIndexInvalid,
    StoreAccessDenied,
    StoreUnsupported,
    TooLarge,
)
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import DirEntry, Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore

ARRAY = node((8,), ShardSpec((4,), index_codecs=CHECKED))
UNCHECKED = node((8,), ShardSpec((4,)))
COMPRESSED = node((8,), ShardSpec((4,), codecs=(CodecSpec("crc32c"),)))
FULL = {(number,): b"%d" % number for number in range(8)}


class Append(Merge):
    """A change of a chunk: more bytes at its end. With no bytes it stays the same."""

    limit = 100
    is_slow = False

    def __init__(self, more: bytes) -> None:
        self.more = more

    def working(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def onto(self, stored: Buffer | None) -> Buffer | None:
        return bytes(stored or b"") + self.more if self.more else stored

    def lasting(self, made: Buffer | None) -> Lasting:
        raise NotImplementedError


class Restless(ForwardingStore):
    """Another program rewrites each shard unchanged just before a part of it is read, or before it is replaced, ``times`` times."""

    times = 0

    async def _disturb(self, key: Key, generation: Generation | None) -> None:
        if generation and self.times and "/c/" in key:
            self.times -= 1
            value = await self.inner.get(key)
            assert value is not None
            await self.inner.set(key, value)

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        await self._disturb(key_ranges[0][0], if_generation)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)


class Overtaken(Restless):
    """Reads are not disturbed: only conditional sets over an old generation."""

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        return await self.inner.get_partial_values(key_ranges, if_generation=if_generation)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        await self._disturb(key, expect)
        return await super().set(key, value, expect=expect)


async def filled(array: Any = ARRAY) -> MemoryStore:
    store = MemoryStore()
    await opened(store, array)[0].update(FULL)
    return store


async def spoilt(array: Any = ARRAY) -> MemoryStore:
    """Return a store whose first shard has a flipped bit, in its index or under its checksum."""
    store = await filled(array)
    value = bytearray(await store.get(Key("a/c/0")) or b"")
    value[-20] ^= 1
    await store.set(Key("a/c/0"), value)
    return store


async def all_of(store: Store, array: Any = ARRAY) -> dict[Any, bytes]:
    """Return the chunks that another reader finds."""
    chunks, _ = opened(store, array)
    return {coords: bytes(await chunks.get(coords) or b"?") async for coords, _, _ in chunks.list()}


# --- changed in part ------------------------------------------------------------------------------------------------------------


@trio_test
async def test_changes_of_chunks_of_a_shard_are_made_in_what_is_stored_and_stored_together() -> None:
    store = ObservedStore(await filled())
    chunks, _ = opened(store, ARRAY)
    before = await store.stat(Key("a/c/1"))
    await chunks.modify({(0,): Append(b"+"), (1,): b"whole", (2,): None, (5,): Append(b""), (6,): Append(b"")})
    assert await all_of(store) == {
        coords: value for coords, value in {**FULL, (0,): b"0+", (1,): b"whole"}.items() if coords != (2,)
    }
    # If all chunks stay the same, nothing is stored.
    assert sets(store) == 1 and await store.stat(Key("a/c/1")) == before


@trio_test
async def test_a_change_of_a_chunk_that_cannot_be_read_is_refused_and_loses_nothing() -> None:
    store = await spoilt()
    before = await store.get(Key("a/c/0"))
    chunks, _ = opened(store, ARRAY)
    with pytest.raises(ShardIndexInvalid, match="crc32c"):
        await chunks.modify({(0,): Append(b"+")})
    with pytest.raises(ShardIndexInvalid, match="crc32c"):
        await chunks.get((0,))
    assert await store.get(Key("a/c/0")) == before
    await chunks.modify({(5,): Append(b"+")})
    assert await chunks.get((5,)) == b"5+"


def plain(store: Store) -> StoredChunks:
    """Return chunks with one key each."""
    return StoredChunks(store, FixedPrefix(Prefix("a/")), chunk_key.default("/"), (8,))


@trio_test
async def test_chunks_that_are_replaced_whole_are_so_beside_those_that_are_changed() -> None:
    store = MemoryStore()
    chunks = plain(store)
    await chunks.update(FULL)
    await chunks.modify({(0,): Append(b"+"), (1,): b"whole", (2,): None})
    assert await chunks.get_several([(0,), (1,), (2,), (3,)]) == [b"0+", b"whole", None, b"3"]
    stamped = await chunks.get_stamped([(1,), (2,)], ByteRange(0, 2))
    assert stamped == [(b"wh", (await store.stat(Key("a/c/1")) or KeyStat(0, None, "")).generation), None]


@trio_test
async def test_a_chunk_that_is_replaced_each_time_is_not_changed_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_store, "_TRIES", 3)
    inner = MemoryStore()
    await plain(inner).update(FULL)
    store = Overtaken(inner)
    chunks = plain(store)
    store.times = 3
    with pytest.raises(GenerationMismatch, match="replaced during each attempt") as caught:
        await chunks.modify({(0,): Append(b"+")})
    assert caught.value.key == "a/c/0" and await chunks.get((0,)) == b"0"
    store.times = 2
    await chunks.modify({(0,): Append(b"+")})
    assert await chunks.get((0,)) == b"0+"


class Unconditional(ForwardingStore):
    """A store without conditional writes."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, create_only=False, match=False)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if expect is not None:
            raise StoreUnsupported("no conditions here")
        return await super().set(key, value)


@trio_test
async def test_where_the_store_knows_no_conditions_what_others_stored_is_not_replaced_either() -> None:
    inner = MemoryStore()
    await plain(inner).update(FULL)
    chunks = plain(Unconditional(inner))
    for data in (b"new", None):
        with pytest.raises(GenerationMismatch, match="was changed concurrently") as caught:
            await chunks.merge({(0,): Written(data, "of ours", 0, expected="of before")})
        assert caught.value.key == "a/c/0"
    assert await chunks.get((0,)) == b"0"
    stat = await chunks.stat((0,))
    assert stat is not None
    await chunks.merge({(0,): Written(b"new", "of ours", 0, expected=stat.generation)})
    assert await chunks.get((0,)) == b"new"


# --- shards that others replace -------------------------------------------------------------------------------------------------

Ask = Callable[[ChunkStore], Awaitable[Any]]


async def _stat_and_value(chunks: ChunkStore) -> Buffer:
    found = await chunks.get_with_stat((1,), ByteRange())
    assert found is not None
    return found[0]


async def _of_several(chunks: ChunkStore) -> Any:
    return (await chunks.get_several([(1,)]))[0]


async def _stamped(chunks: ChunkStore) -> Any:
    found = (await chunks.get_stamped([(1,)]))[0]
    assert isinstance(found, tuple)
    return found[0]


async def _written(chunks: ChunkStore) -> Any:
    await chunks.update({(0,): b"new"})
    return await chunks.get((1,))


async def _size(chunks: ChunkStore) -> Any:
    stat = await chunks.stat((1,))
    return b"1" if stat is not None and stat.size == 1 else stat


READS: list[Ask] = [_stat_and_value, _of_several, _stamped, _written]


@pytest.mark.parametrize("ask", READS, ids=lambda ask: ask.__name__)
@trio_test
async def test_a_shard_that_is_replaced_each_time_is_an_error_that_names_it(ask: Ask) -> None:
    store = Restless(await filled())
    chunks, _ = opened(store, ARRAY)
    store.times = 1
    assert await ask(chunks) == b"1"
    store.times = 1000
    with pytest.raises(GenerationMismatch, match="'a/c/0': access failed: the value was replaced during each attempt") as caught:
        await ask(chunks)
    assert caught.value.key == "a/c/0"
    store.times = 0
    assert await ask(chunks) == b"1" and await all_of(store) in (FULL, {**FULL, (0,): b"new"})


@trio_test
async def test_a_shard_that_is_replaced_before_it_is_stored_is_made_of_what_is_there() -> None:
    store = Overtaken(await filled())
    chunks, _ = opened(store, ARRAY)
    store.times = 2
    await chunks.update({(0,): b"new"})
    assert await all_of(store) == {**FULL, (0,): b"new"}
    store.times = 1000
    with pytest.raises(GenerationMismatch, match="replaced during each attempt") as caught:
        await chunks.update({(1,): b"never"})
    assert caught.value.key == "a/c/0" and await all_of(store) == {**FULL, (0,): b"new"}


@trio_test
async def test_a_chunk_of_a_shard_that_is_not_the_expected_one_is_not_replaced() -> None:
    store = await filled()
    chunks, _ = opened(store, ARRAY)
    async with chunks.exclusive((0,)):
        with pytest.raises(GenerationMismatch, match="'a/c/0': a chunk of the shard changed"):
            await chunks.merge({(0,): Written(b"new", "of ours", 0, expected="of before"), (1,): Written(b"new", "too", 0)})
    assert await all_of(store) == FULL


# --- indexes in pages -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def paged(monkeypatch: pytest.MonkeyPatch, array: Any = ARRAY) -> AsyncIterator[tuple[Restless, ChunkStore]]:
    """Yield a store in which every index is too large to be held, with two pairs to a page."""
    store = Restless(await filled(array))
    with monkeypatch.context() as patched:
        patched.setattr(shard_index_reader, "HELD_NBYTES", 0)
        for module in (shard_index_reader, paged_shard_index):
            patched.setattr(module, "PAGE_PAIRS", 2)
        yield store, opened(store, array)[0]


async def _part(chunks: ChunkStore) -> Any:
    stat = await chunks.stat((1,))
    assert stat is not None
    return (await chunks.get_parts((1,), [ByteRange()], stat.generation))[0]


@pytest.mark.parametrize("array", [ARRAY, UNCHECKED], ids=["checked", "unchecked"])
@pytest.mark.parametrize("ask", [_stat_and_value, _of_several, _stamped, _size, _part], ids=lambda ask: ask.__name__)
@trio_test
async def test_a_shard_that_is_replaced_while_it_is_read_in_pages_is_an_error_too(
    ask: Ask, array: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with paged(monkeypatch, array) as (store, chunks):
        store.times = 1
        assert await ask(chunks) == b"1"
        store.times = 1000
        fresh, _ = opened(store, array)
        with pytest.raises(
            GenerationMismatch, match="'a/c/0': access failed: the value was replaced during each attempt"
        ) as caught:
            await ask(fresh)
        assert caught.value.key == "a/c/0"
        store.times = 0
        assert await ask(fresh) == b"1" and await ask(chunks) == b"1"


@trio_test
async def test_parts_of_a_chunk_in_a_shard_that_never_rests_are_not_had(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paged(monkeypatch) as (store, chunks):
        stat = await chunks.stat((3,))
        assert stat is not None
        assert await chunks.get_parts((3,), [ByteRange(), ByteRange(0, 0)], stat.generation) == [b"3", b""]
        store.times = 1
        with pytest.raises(GenerationMismatch, match=r"chunk \(1,\) of 'a/c/0' was changed concurrently"):
            await chunks.get_parts((1,), [ByteRange()], stat.generation)


@trio_test
async def test_a_listing_of_pages_gives_what_it_is_asked_for_and_no_shard_is_written_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with paged(monkeypatch) as (store, chunks):
        for under in ((), (5,)):
            assert {coords async for coords, _, _ in chunks.list(under=under)} == {
                each for each in FULL if each[: len(under)] == under
            }
        (level,) = levels(chunks)
        known = await level.shard((0,))
        assert known is not None
        with pytest.raises(TooLarge, match="shard of 4 chunks: read-only"):
            level.stored_in((0,), known)
        with pytest.raises(TooLarge, match="read-only"):
            await chunks.update({(0,): b"new"})
    assert await all_of(store) == FULL


@trio_test
async def test_parts_of_a_chunk_that_is_known_of_a_shard_that_never_rests_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paged(monkeypatch, UNCHECKED) as (store, chunks):
        stat = await chunks.stat((1,))
        assert stat is not None
        store.times = 1000
        fresh, _ = opened(store, UNCHECKED)
        with pytest.raises(GenerationMismatch, match="'a/c/0': access failed: the value was replaced during each attempt"):
            await fresh.get_parts((1,), [ByteRange()], stat.generation)


@trio_test
async def test_a_shard_that_is_too_short_for_an_index_in_pages_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paged(monkeypatch) as (store, chunks):
        await store.set(Key("a/c/0"), b"short")
        got = await chunks.get_several([(1,), (5,)])
        assert (
            isinstance(got[0], ShardIndexInvalid) and "shard of 5 bytes: shorter than its index" in str(got[0]) and got[1] == b"5"
        )


# --- shards within shards -------------------------------------------------------------------------------------------------------


@trio_test
async def test_where_the_outer_index_cannot_be_read_its_chunks_alone_are_lost_and_none_is_taken_for_missing() -> None:
    array = node((8,), ShardSpec((2,), index_codecs=CHECKED), ShardSpec((2,)))
    chunks, _ = opened(await spoilt(array), array)
    got = await chunks.get_several([(0,), (3,), (5,)])
    assert [isinstance(each, ShardIndexInvalid) for each in got] == [True, True, False] and got[2] == b"5"


class Listed(ForwardingStore):
    """Counts the names that listings return and the keys looked up; ``denied`` keys are links in a folder."""

    denied: Key | None = None
    names = keys = 0

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        async for entry in super().list_dir(prefix):
            self.names += 1
            yield entry

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        return await Store.peek(self, prefix, most)

    async def stat(self, key: Key) -> KeyStat | None:
        self.keys += 1
        if key == self.denied:
            raise StoreAccessDenied("a link", key=key)
        return await super().stat(key)


@trio_test
async def test_the_chunks_of_each_row_are_found_without_a_listing_of_all_rows() -> None:
    """A program that lists the folders of ``zarr3/`` of an array with flat keys listed all chunks for each of them."""
    store = Listed(MemoryStore())
    chunks = StoredChunks(store, FixedPrefix(Prefix("a/")), chunk_key.v2("."), (60, 100))
    stored = {(row, column) for row in range(60) for column in range(100) if row != column}
    for coords in stored:
        await store.set(chunks.key(coords), b"x")
    found = [coords for row in range(60) async for coords, _, _ in chunks.list(under=(row,))]
    assert set(found) == stored
    assert len(found) == len(stored)
    assert (store.names, store.keys) == (60 * 100, 60 * 100), "as many names as chunks of a row show that there are no fewer"
    store.names = store.keys = 0
    assert [coords async for coords, _, _ in chunks.list(under=(7, 8))] == [(7, 8)]
    assert [coords async for coords, _, _ in chunks.list(under=(60,))] == []
    store.denied = chunks.key((1, 2))
    assert {coords async for coords, _, _ in chunks.list(under=(1,))} == {coords for coords in stored if coords[0] == 1}


@trio_test
async def test_few_chunks_of_a_long_row_are_listed() -> None:
    store = Listed(MemoryStore())
    for length in (1_000, 1_000_000_000):
        chunks = StoredChunks(store, FixedPrefix(Prefix("a/")), chunk_key.v2("."), (60, length))
        for coords in ((1, 2), (1, 3), (2, 3)):
            await store.set(chunks.key(coords), b"x")
        assert {coords async for coords, _, _ in chunks.list(under=(1,))} == {(1, 2), (1, 3)}
        assert store.keys == 0
