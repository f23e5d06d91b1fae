"""Chunks of an array that come encoded already, and several that are encoded at once."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.arrays import Example, reading, store_of
from tests.support.small_stores import SMALL
from tests.support.stores import contents, fill
from zarrfs.errors import ChunkDecodeError, ChunkSizeMismatch
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore


@trio_test
async def test_an_encoded_chunk_is_stored_byte_for_byte_when_it_decodes() -> None:
    store = MemoryStore()
    await fill(store, SMALL)
    r = reading(store)
    array = (await r.array("z")).array
    # No level that zarrfs would have chosen: it is not encoded again.
    encoded = zlib.compress(np.arange(6, dtype="<i4").tobytes(), 9)
    await array.write_encoded((0, 1), memoryview(bytearray(encoded)))
    assert await store.get(Key("z/0.1")) == encoded
    assert r.counters.chunks_encoded == 0
    before = await contents(store)
    for bad in (b"", encoded[:-5], zlib.compress(b"short"), zlib.compress(bytes(1000)), encoded + bytes(1 << 20)):
        with pytest.raises(ChunkDecodeError, match=r"chunk \(0, 1\) of /z"):
            await array.write_encoded((0, 1), bad)
    assert await contents(store) == before


@trio_test
async def test_chunks_that_are_encoded_together_are_what_each_is_alone() -> None:
    r = reading(await store_of(Example((5,), (3,), "<i4")))
    array = (await r.array()).array
    chunks = [((0,), np.array([1, 2, 3], "<i4").tobytes()), ((1,), np.array([4, 5, 6], "<i4").tobytes())]
    together = await array.encode_chunks(chunks)
    assert [bytes(each) for each in together] == [bytes(await array.encode_chunk(*each)) for each in chunks]
    # Beyond the edge is fill value.
    assert np.frombuffer(together[1], "<i4").tolist() == [4, 5, 7]
    assert r.counters.chunks_encoded == 4
    with pytest.raises(ChunkSizeMismatch, match=r"chunk \(1,\)"):
        await array.encode_chunks([chunks[0], ((1,), b"1234")])
