"""Many small chunks in a row that no slab has room for: they are got together, too, whether or not they are stored."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.arrays.test_small_chunks import CountingStore
from tests.support.arrays import FILL, Example, examples, reading, store_of
from tests.support.small_stores import array_document
from tests.support.stores import HangingStore, fill
from zarrfs.arrays.position import Position
from zarrfs.arrays.small_chunks import are_small
from zarrfs.arrays.small_filling import SmallChunks
from zarrfs.errors import ChunkDecodeError
from zarrfs.keys import Key
from zarrfs.model.slab import SlabGrid
from zarrfs.stores.memory import MemoryStore

SHAPE = (3, 1 << 53)


async def opened_store(chunks: dict[str, bytes]) -> CountingStore:
    store = MemoryStore()
    document = array_document((0, 0), (2, 2), "|u1", fill_value=FILL)
    await fill(store, {".zgroup": b'{"zarr_format":2}', "a/.zarray": document.replace(b"[0, 0]", str([*SHAPE]).encode()), **chunks})
    return CountingStore(store)


@pytest.mark.logs("/a: no room for a row of chunks")
@trio_test
async def test_a_request_of_the_store_gets_hundreds_of_them() -> None:
    far = SHAPE[1] // 2
    store = await opened_store({"a/0.5": bytes([1, 2, 3, 4]), f"a/0.{far // 2}": bytes([5, 6, 7, 8])})
    opened = await (r := reading(store)).array()
    position, nbytes = Position(), 1 << 14
    expected = bytearray([FILL]) * nbytes
    for number in range(4):
        read = bytes(await opened.reader.read(number * nbytes, nbytes, position))
        assert read == (expected[:10] + b"\1\2" + expected[12:] if not number else expected)
    assert bytes(await opened.reader.read(far, nbytes, Position())) == b"\5\6" + expected[2:]
    assert store.values == 5 * nbytes // 2 and store.requests <= store.values // 500
    # The second row of elements is in the same chunks.
    assert bytes(await opened.reader.read(SHAPE[1], nbytes, Position())) == expected[:10] + b"\3\4" + expected[12:]
    assert r.counters.chunks_decoded == 2


@pytest.mark.logs("/a: no room for a row of chunks")
@trio_test
async def test_a_bad_one_is_an_error_until_it_is_mended() -> None:
    store = await opened_store({"a/0.5": b"short"})
    opened = await reading(store).array()
    for _ in range(2):
        with pytest.raises(ChunkDecodeError, match=r"chunk \(0, 5\) of /a"):
            await opened.reader.read(0, 4096, Position())
    assert bytes(await opened.reader.read(4096, 4096, Position())) == bytes([FILL]) * 4096
    await store.set(Key("a/0.5"), b"good")
    assert bytes(await opened.reader.read(0, 4096, Position()))[10:12] == b"go"


@pytest.mark.logs("/a: no room for a row of chunks")
@trio_test
async def test_one_that_was_got_does_not_wait_for_another_request_of_it() -> None:
    store = HangingStore(await opened_store({"a/0.5": bytes([1, 2, 3, 4])}))
    opened = await reading(store).array()
    assert bytes(await opened.reader.read(1 << 14, 4096, Position())) == bytes([FILL]) * 4096
    async with trio.open_nursery() as nursery:
        store.hang("a/0.5")
        nursery.start_soon(opened.reader.chunk, (0, 5))
        await trio.testing.wait_all_tasks_blocked()
        store.hang_no_more()
        with trio.fail_after(10):
            assert bytes(await opened.reader.read(0, 4096, Position()))[10:12] == b"\1\2"
        store.answer()


@given(examples(), st.data())
def test_any_range_of_elements_is_copied(example: Example, data: st.DataObject) -> None:
    async def main() -> None:
        r = reading(await store_of(example), cache_limit=data.draw(st.sampled_from([0, 1 << 20])))
        opened = await r.array()
        metadata = opened.array.metadata
        size = example.elements.size
        if not (size and are_small(metadata)):
            return
        small = SmallChunks(
            opened.array, opened.pool, SlabGrid(metadata.shape, metadata.chunk_grid, metadata.data_type.itemsize, 64)
        )
        small.batch = data.draw(st.integers(1, 9))
        for _ in range(2):
            start = data.draw(st.integers(0, size - 1))
            stop = data.draw(st.integers(start + 1, size))
            out = np.empty(stop - start, metadata.data_type.dtype)
            assert await small.copy(out, start, stop)
            np.testing.assert_array_equal(out, example.elements.reshape(-1)[start:stop])

    trio.run(main)
