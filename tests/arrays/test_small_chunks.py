"""Many small chunks are got and decoded together: the number of store operations, and what one of them may be."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.arrays import FILL, Example, Reading, reading, store_of
from tests.support.small_stores import array_document
from tests.support.stores import fill
from tests.support.trees import read, tree_of
from zarrfs.arrays.position import Position
from zarrfs.arrays.small_chunks import MAX_NBYTES, are_small
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkDecodeError
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Generation
from zarrfs.transformers.forwarding import ForwardingStore

COUNT = 3000


class CountingStore(ForwardingStore):
    """Counts requests for values, and the values requested."""

    requests = values = 0

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        self.requests += 1
        self.values += len(key_ranges)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)


async def whole(found: Reading) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    opened = await found.array()
    nbytes = opened.array.metadata.nbytes
    return np.frombuffer(bytes(await opened.reader.read(0, nbytes, Position())), "<i2")


def large(store: Store) -> Reading:
    return reading(store, slab_nbytes=1 << 20, slab_limit=1 << 22)


@trio_test
async def test_a_request_of_the_store_gets_a_hundred_of_them() -> None:
    example = Example((2 * COUNT,), (2,), missing=frozenset((number,) for number in range(5, COUNT, 7)))
    store = CountingStore(await store_of(example))
    found = large(store)
    assert are_small((await found.array()).array.metadata)
    np.testing.assert_array_equal(await whole(found), example.elements)
    assert found.counters.chunks_decoded == len(example.stored)
    assert store.values == COUNT and store.requests <= COUNT // 100


@pytest.mark.parametrize("shape", [(60, 50), (7, 300, 2)])
@trio_test
async def test_boxes_of_them_are_put_where_they_belong(shape: tuple[int, ...]) -> None:
    chunks = (3, 4, 2)[: len(shape)]
    example = Example(shape, chunks, missing=frozenset([(0,) * len(shape), (1, 2, 0)[: len(shape)]]))
    np.testing.assert_array_equal(await whole(large(await store_of(example))), example.elements.reshape(-1))


@trio_test
async def test_bad_ones_are_errors_and_the_others_are_read() -> None:
    store = MemoryStore()
    document = array_document((2 * COUNT,), (2,), "<i2", compressor={"id": "zlib", "level": 1}, fill_value=FILL)
    values = {f"a/{number}": zlib.compress(np.full(2, number, "<i2").tobytes()) for number in range(COUNT)}
    values |= {"a/17": b"no zlib", "a/1000": zlib.compress(bytes(3))}
    del values["a/30"]
    await fill(store, {".zgroup": b'{"zarr_format":2}', "a/.zarray": document, **values})
    found = large(store)
    opened = await found.array()
    for number in range(COUNT):
        if number in (17, 1000):
            with pytest.raises(ChunkDecodeError, match=rf"chunk \({number},\) of /a"):
                await opened.reader.read(4 * number, 4, Position())
        else:
            expected = FILL if number == 30 else number
            assert np.frombuffer(bytes(await opened.reader.read(4 * number, 4, Position())), "<i2").tolist() == [expected] * 2
    await store.set(Key("a/17"), zlib.compress(np.full(2, 17, "<i2").tobytes()))
    assert np.frombuffer(bytes(await opened.reader.read(4 * 17, 4, Position())), "<i2").tolist() == [17, 17]


@pytest.mark.parametrize(("chunk", "small"), [(MAX_NBYTES // 2, True), (MAX_NBYTES // 2 + 1, False)])
@trio_test
async def test_larger_ones_are_decoded_one_by_one(chunk: int, small: bool) -> None:
    example = Example((3 * chunk,), (chunk,))
    found = large(await store_of(example))
    assert are_small((await found.array()).array.metadata) == small
    np.testing.assert_array_equal(await whole(found), example.elements)


@trio_test
async def test_the_event_loop_runs_a_few_functions_for_each(tmp_path: Path) -> None:
    count = 20_000
    values = {f"a/{number}": number.to_bytes(4, "little") for number in range(count)}
    for key, value in {".zgroup": b'{"zarr_format":2}', "a/.zarray": array_document((count,), (1,), "<i4"), **values}.items():
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(value)
    async with tree_of(tmp_path, watch="false") as tree:
        calls = 0

        def profile(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(profile)
        try:
            content = await read(tree, "npy/a.npy")
        finally:
            sys.setprofile(None)
    assert np.frombuffer(content[-4 * count :], "<i4").tolist() == list(range(count))
    # The key of a chunk takes five; one by one, chunks took more than fifty.
    assert calls < 12 * count
