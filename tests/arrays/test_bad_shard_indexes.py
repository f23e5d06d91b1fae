"""Errors of unreadable shard indexes: they name the shard, keep nothing alive, and end when the shard is repaired by another program."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

import pytest
from trio.testing import trio_test

from tests.arrays.test_sharded import CHECKED, HOLE, node, opened, pairs
from tests.support.stores import InterruptedStore
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.errors import ShardIndexInvalid
from zarrfs.keys import ByteRange, Key
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.memory import MemoryStore

AT_START = ShardSpec((2,), "start", CHECKED)
KEY = Key("a/c/0")

ARRAYS = [node((4,), ShardSpec((4,), index_codecs=CHECKED)), node((4,), AT_START, ShardSpec((2,)))]

Request = Callable[[ChunkStore], Awaitable[object]]

WITH_STAT: Request = lambda chunks: chunks.get_with_stat((0,), ByteRange())  # noqa: E731

REQUESTS: dict[str, Request] = {
    "stat": lambda chunks: chunks.stat((0,)),
    "get": lambda chunks: chunks.get((0,)),
    "get_parts": lambda chunks: chunks.get_parts((0,), [ByteRange()], "1"),
    "update": lambda chunks: chunks.update({(0,): b"new"}),
    "erase": lambda chunks: chunks.update({(0,): None}),
}


async def damaged(array: ArrayNode) -> tuple[MemoryStore, bytes, bytes]:
    """Return a store whose only shard has a bad checksum, the sound value and the bad one."""
    store = MemoryStore()
    await opened(store, array)[0].update({(i,): b"%d" % i for i in range(3)})
    sound = bytes(await store.get(KEY) or b"")
    at = 0 if array.metadata.shards[0].index_location == "start" else len(sound) - 1
    bad = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
    await store.set(KEY, bad)
    return store, sound, bad


def frames(traceback: TracebackType | None) -> int:
    count = 0
    while traceback is not None:
        count, traceback = count + 1, traceback.tb_next
    return count


async def error_of(request: Request, chunks: ChunkStore) -> ShardIndexInvalid:
    with pytest.raises(ShardIndexInvalid) as caught:
        await request(chunks)
    return caught.value


@pytest.mark.parametrize("array", ARRAYS, ids=["one level", "two levels"])
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@trio_test
async def test_an_error_of_an_index_names_the_shard_and_is_the_same_each_time(array: ArrayNode, request_: Request) -> None:
    store, _, _ = await damaged(array)
    chunks, _ = opened(store, array)
    errors = [await error_of(request_, chunks) for _ in range(4)]
    assert {error.key for error in errors} == {KEY}
    assert all(str(error).count(KEY) == 1 for error in errors)
    # A kept error that is raised again keeps the functions of all earlier requests, and their data.
    assert frames(errors[1].__traceback__) == frames(errors[3].__traceback__)
    assert frames(causes(errors[1])) == frames(causes(errors[3]))


def causes(error: BaseException) -> TracebackType | None:
    while error.__cause__ is not None:
        error = error.__cause__
    return error.__traceback__


@trio_test
async def test_an_error_of_a_position_names_the_shard() -> None:
    array = node((4,), ShardSpec((4,)))
    store = MemoryStore()
    await store.set(KEY, b"aa" + pairs((0, 2), (70, 1), HOLE, HOLE))
    chunks, _ = opened(store, array)
    for request in (lambda: chunks.stat((1,)), lambda: chunks.get((1,)), lambda: chunks.update({(2,): b"new"})):
        with pytest.raises(ShardIndexInvalid, match="'a/c/0': shard index: 1 bytes at 70 are outside") as caught:
            await request()
        assert caught.value.key == KEY


@pytest.mark.parametrize("array", ARRAYS, ids=["one level", "two levels"])
@pytest.mark.parametrize("found_by", [REQUESTS["get"], REQUESTS["stat"], WITH_STAT], ids=["get", "stat", "get_with_stat"])
@pytest.mark.parametrize("read", [REQUESTS["get"], WITH_STAT], ids=["get", "get_with_stat"])
@trio_test
async def test_a_shard_that_another_program_repairs_is_readable(array: ArrayNode, found_by: Request, read: Request) -> None:
    store, sound, _ = await damaged(array)
    chunks, _ = opened(store, array)
    await error_of(found_by, chunks)
    await store.set(KEY, sound)
    value = await read(chunks)
    assert (value[0] if isinstance(value, tuple) else value) == b"0"


@pytest.mark.parametrize("array", ARRAYS, ids=["one level", "two levels"])
@trio_test
async def test_parts_of_a_repaired_chunk_are_those_of_the_generation_that_another_reader_has_seen(array: ArrayNode) -> None:
    store, sound, _ = await damaged(array)
    chunks, _ = opened(store, array)
    await error_of(REQUESTS["stat"], chunks)
    await store.set(KEY, sound)
    stat = await opened(store, array)[0].stat((0,))
    assert stat is not None
    assert await chunks.get_parts((0,), [ByteRange()], stat.generation) == [b"0"]


@pytest.mark.parametrize("array", ARRAYS, ids=["one level", "two levels"])
@trio_test
async def test_a_listing_without_the_chunks_of_a_bad_shard_leaves_a_line_in_the_log(
    array: ArrayNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a copy of what is listed lacks them without a trace."""
    store, _, _ = await damaged(array)
    chunks, _ = opened(store, array)
    with caplog.at_level(logging.INFO, logger="zarrfs.arrays"):
        for _ in range(2):
            assert [chunk async for chunk in chunks.list()] == []
    (line,) = caplog.messages
    assert line.startswith(f"shard {KEY!r}: its chunks are not listed")


class Repaired(InterruptedStore):
    """A store in which another program repairs the shard after it was read, at the request for its stat."""

    sound = b""
    is_read = False

    async def interrupt(self, operation: str, target: str) -> None:
        if operation == "stat" and self.is_read and self.sound:
            sound, self.sound = self.sound, b""
            await self.inner.set(KEY, sound)
        self.is_read |= operation != "stat" and bool(self.sound)


@trio_test
async def test_an_error_is_not_that_of_the_sound_shard_that_was_stored_since() -> None:
    array = node((8,), ShardSpec((4,), codecs=(CodecSpec("crc32c"),)))
    store = Repaired(MemoryStore())
    await opened(store, array)[0].update({(i,): b"%d" % i for i in range(4)})
    sound = bytes(await store.get(KEY) or b"")
    await store.set(KEY, bytes([sound[0] ^ 1]) + sound[1:])
    chunks, _ = opened(store, array)
    store.sound = sound
    assert await chunks.get_several([(1,)]) == [b"1"]
    assert await chunks.get((1,)) == b"1"
