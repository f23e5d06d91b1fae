"""Chunks of an array that are encoded already, and several that are encoded at once."""

from __future__ import annotations

import threading
import zlib
from dataclasses import replace

import numpy as np
import pytest
import trio
from trio.testing import trio_test

from tests.support.arrays import FILL, Example, reading, store_of
from tests.support.small_stores import SMALL, array_document
from tests.support.stores import contents, fill
from zarrfs import threads
from zarrfs.arrays.filling import fill as fill_elements
from zarrfs.arrays.filling import is_filled
from zarrfs.errors import ChunkDecodeError, ChunkSizeMismatch
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore


@trio_test
async def test_an_encoded_chunk_is_stored_byte_for_byte_when_it_decodes() -> None:
    store = MemoryStore()
    await fill(store, SMALL)
    r = reading(store)
    array = (await r.array("z")).array
    # Not the level that zarrfs would choose: the chunk is not encoded again.
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


SHORT = (2,) * 26


@pytest.mark.parametrize("how", ["whole", "in a slab"])
@trio_test
async def test_a_large_chunk_is_copied_no_further_when_its_reader_gives_up(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece begins with a check for waiting readers: after the check that finds none, no piece is copied."""
    store = MemoryStore()
    values = {
        "a/.zarray": array_document(SHORT, SHORT, "|u1", order="F"),
        "a/" + ".".join("0" * len(SHORT)): bytes(2 ** len(SHORT)),
    }
    await fill(store, values)
    opened = await reading(store).array("a")
    begun, given_up = threading.Event(), threading.Event()
    looks: list[bool] = []
    look = threads.go_on

    def counted() -> None:
        looks.append(given_up.is_set())
        begun.set()
        given_up.wait()
        look()

    monkeypatch.setattr(threads, "go_on", counted)

    async def read() -> None:
        if how == "whole":
            await opened.reader.chunk((0,) * len(SHORT))
        else:
            await opened.reader.read(0, 1000, opened.reader.new_position())

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while not begun.is_set():
                await trio.lowlevel.checkpoint()
            scope.cancel()
            given_up.set()
    assert looks == [False]


@trio_test
async def test_of_no_elements_all_are_fill_value_and_none_is_where_that_is_undefined() -> None:
    metadata = (await reading(await store_of(Example((4,), (2,)))).array("a")).array.metadata
    for shape, values, expected in (((0,), [], True), ((0, 3), [], True), ((2,), [FILL, FILL], True), ((2,), [FILL, 1], False)):
        elements = np.array(values, "<i2").reshape(shape)
        assert is_filled(metadata, elements) is expected
        assert not is_filled(replace(metadata, fill_value=None), elements)
    nothing = np.empty((0, 3), "<i2")
    fill_elements(metadata, nothing)
    assert nothing.size == 0
