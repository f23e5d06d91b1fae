"""Changes of queued chunks are merged into the stored ones with their shard; a large shard is held in a file, with the same result."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.arrays.test_chunk_store import CHECKED, Append, Restless, all_of
from tests.arrays.test_sharded import node, opened
from tests.support.large_buffers import large_from
from zarrfs.arrays.chunk_store import Lasting, Written
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch
from zarrfs.keys import Key
from zarrfs.model.metadata import ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.memory import MemoryStore

ARRAY = node((4,), ShardSpec((4,), index_codecs=CHECKED))


class Late(Append, Lasting):
    """A change that is merged after its writer has ended."""

    packed = b""

    def lasting(self, made: Buffer | None) -> Lasting:
        return self

    def kept(self, made: Buffer | None, packed: Buffer) -> Lasting:
        return self

    def after(self, earlier: Lasting) -> Lasting:
        raise NotImplementedError

    def resized(self, array: ArrayNode) -> None:
        raise NotImplementedError


def change(more: bytes, base: str) -> Written:
    return Written(b"made of what was there", "of ours", 0, merge=Late(more), base=base)


@trio_test
async def test_a_change_is_made_anew_in_a_chunk_that_others_have_stored_meanwhile_and_in_no_other() -> None:
    store = MemoryStore()
    chunks, _ = opened(store, ARRAY)
    await chunks.update({(0,): b"theirs", (1,): b"1"})
    stat = await chunks.stat((1,))
    assert stat is not None
    async with chunks.exclusive((0,)):
        await chunks.merge(
            {(0,): change(b"+", "of before"), (1,): change(b"+", stat.generation), (2,): change(b"new", "of before")}
        )
    assert await all_of(store, ARRAY) == {(0,): b"theirs+", (1,): b"made of what was there", (2,): b"new"}


@trio_test
async def test_a_shard_that_is_replaced_while_a_change_is_made_in_it_is_looked_at_again() -> None:
    store = Restless(MemoryStore())
    chunks, _ = opened(store, ARRAY)
    await chunks.update({(0,): b"0"})
    async with chunks.exclusive((0,)):
        store.times = 2
        await chunks.merge({(0,): change(b"+", "of before")})
        assert await all_of(store, ARRAY) == {(0,): b"0+"}
        store.times = 1000
        with pytest.raises(GenerationMismatch, match="'a/c/0': access failed: the value was replaced during each attempt"):
            await chunks.merge({(0,): change(b"+", "of before")})
    store.times = 0
    assert await all_of(store, ARRAY) == {(0,): b"0+"}


@pytest.mark.parametrize("location", ["start", "end"])
@trio_test
async def test_a_large_shard_is_the_same_bytes_as_one_in_memory(location: str, tmp_path: Path) -> None:
    array = node((4,), ShardSpec((4,), location, CHECKED))
    stored: list[bytes] = []
    for nbytes in (50, 1 << 20):
        store = MemoryStore()
        with large_from(nbytes, tmp_path):
            await opened(store, array)[0].update({(0,): b"a" * 40, (3,): b"b" * 30})
            assert await all_of(store, array) == {(0,): b"a" * 40, (3,): b"b" * 30}
            stored.append(bytes(await store.get(Key("a/c/0")) or b""))
    assert stored[0] == stored[1] and len(stored[0]) == 70 + 4 * 16 + 4
