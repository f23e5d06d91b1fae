"""Edge chunks of arrays whose filter decodes an element from the one before it: padding changes no element inside the array."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.arrays import reading
from tests.support.small_stores import array_document
from tests.support.stores import fill
from zarrfs.arrays.array import Array
from zarrfs.arrays.merging import ElementMerge
from zarrfs.stores.memory import MemoryStore

Elements = np.ndarray[Any, Any]

SHAPE, CHUNKS = (5, 5, 5), (3, 3, 3)
EDGE = (0, 0, 1)
# Fill values whose difference from the elements inside exceeds their type, or the type of differences.
SPOILING = [
    ("<f8", "NaN", None),
    ("<f4", 9.969209968386869e36, None),
    ("<f4", -3.4e38, None),
    ("<i4", -(2**31), "<i2"),
    ("<u2", 999, "|i1"),
]
FILTERS = pytest.mark.parametrize(("dtype", "fill_value", "astype"), SPOILING)


async def array_of(order: str, dtype: str, fill_value: Any, astype: str | None, **more: Any) -> Array:
    delta = {"id": "delta", "dtype": dtype} | ({"astype": astype} if astype else {})
    store = MemoryStore()
    shape, chunks = more.pop("shape", SHAPE), more.pop("chunks", CHUNKS)
    document = array_document(shape, chunks, dtype, order=order, fill_value=fill_value, **{"filters": [delta]} | more)
    await fill(store, {"a/.zarray": document})
    return (await reading(store).array("a")).array


def chunk(dtype: str, first: int = 1) -> Elements:
    return np.arange(first, first + 27).astype(dtype).reshape(CHUNKS)


@pytest.mark.parametrize("order", ["C", "F"])
@FILTERS
@trio_test
async def test_a_fill_value_beyond_the_edge_spoils_no_element(order: str, dtype: str, fill_value: Any, astype: str | None) -> None:
    array = await array_of(order, dtype, fill_value, astype)
    elements = chunk(dtype)
    for coords in np.ndindex(*array.metadata.grid_shape):
        await array.write_chunk(coords, elements.tobytes())
        found = await array.read_chunk(coords)
        assert found is not None
        inside = array.inside(coords)
        np.testing.assert_array_equal(found[inside], elements[inside])


@trio_test
async def test_beyond_the_edge_is_fill_value_where_that_spoils_nothing() -> None:
    """After the last element inside, padding can spoil nothing; whole numbers and their differences are exact, rounded ones too."""
    round_first = {"id": "quantize", "digits": 1, "dtype": "<f8"}
    for dtype, fill_value, filters in (
        ("<i4", 7, [{"id": "delta", "dtype": "<i4"}]),
        ("<f8", -1.0, [{"id": "delta", "dtype": "<f8"}]),
        ("<f8", -1.0, [round_first, {"id": "delta", "dtype": "<f8"}]),
    ):
        array = await array_of("C", dtype, fill_value, None, filters=filters)
        elements = (chunk("<f8") + (0.03 if len(filters) > 1 else 0)).astype(dtype)
        await array.write_chunk(EDGE, elements.tobytes())
        found = await array.read_chunk(EDGE)
        assert found is not None
        np.testing.assert_array_equal(found[..., 2], fill_value)
        np.testing.assert_allclose(found[..., :2], elements[..., :2], atol=0.05)
    one = await array_of("C", "<f8", "NaN", None, shape=(4,), chunks=(3,))
    await one.write_chunk((1,), np.array([1.0, 2.0, 3.0]).tobytes())
    np.testing.assert_array_equal(await one.read_chunk((1,)), [1.0, np.nan, np.nan])


@trio_test
async def test_beyond_the_edge_is_fill_value_where_repeated_elements_lose_more() -> None:
    """After a zero a row begins exactly; the difference to the row before overflows, or loses the digits of small elements."""
    for dtype, elements in (
        ("<f2", [[1.1, 5.55, -60000], [60000, 60000, 60000], [-50016, -50016, 0]]),
        ("<f4", [[1e6, 0.1, 1e9], [0.25, 0.5, 1e9], [0.25, 0.5, 0.75]]),
    ):
        for order in "CF":
            array = await array_of(order, dtype, 0.0, None, shape=(3, 3), chunks=(5, 5))
            # Rows in the order of the codec.
            rows = np.array(elements, dtype) if order == "C" else np.array(elements, dtype).T
            await array.write_chunk((0, 0), np.pad(rows, (0, 2)).tobytes())
            found = await array.read_chunk((0, 0))
            assert found is not None
            # One element loses digits in any case.
            assert (found[:3, :3] != rows).any()
            np.testing.assert_allclose(found[:3, :3], rows, rtol=0.001, atol=0.03)


@trio_test
async def test_the_choice_of_the_padding_takes_no_memory_of_several_chunks() -> None:
    """Nearly all real elements lose a digit; their errors took eight times the memory of the chunk."""
    array = await array_of("C", "<f4", 0.0, None, shape=(1499, 1499), chunks=(1500, 1500))
    elements = (np.random.default_rng(0).random((1500, 1500)) * 1000).astype("<f4")
    elements[-1] = elements[:, -1] = 0
    tracemalloc.start()
    try:
        await array.write_chunk((0, 0), elements.tobytes())
        assert tracemalloc.get_traced_memory()[1] < 4 * elements.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", ["C", "F"])
@trio_test
async def test_real_elements_lose_what_the_filter_itself_loses_and_no_more(order: Any) -> None:
    """The loss is the same as in a chunk without padding."""
    array = await array_of(order, "<f8", 1e30, None)
    elements = (chunk("<f8") / 7) ** 9
    for coords in np.ndindex(*array.metadata.grid_shape):
        await array.write_chunk(coords, elements.tobytes())
        found = await array.read_chunk(coords)
        assert found is not None
        inside = array.inside(coords)
        flat = elements[inside].reshape(-1, order=order)
        alone = np.cumsum(np.concatenate([flat[:1], np.diff(flat)]))
        np.testing.assert_array_equal(found[inside].reshape(-1, order=order), alone)


@pytest.mark.parametrize("order", ["C", "F"])
@FILTERS
@trio_test
async def test_a_chunk_that_waited_for_its_shard_is_put_into_another_without_loss(
    order: str, dtype: str, fill_value: Any, astype: str | None
) -> None:
    array = await array_of(order, dtype, fill_value, astype)
    ours, theirs = chunk(dtype), chunk(dtype, 40)
    changed = np.zeros(CHUNKS, bool)
    changed[1, 1, 0] = changed[2, 0, 1] = True
    inside = array.inside(EDGE)
    cases = [(array.encode_now(EDGE, theirs.copy()), changed), (None, np.ones(CHUNKS, bool))]
    for stored, mask in cases:
        merge = ElementMerge(array, EDGE, ours, lambda mask=mask: mask[inside], sparse=False)  # type: ignore[misc]
        made = await merge.onto(array.encode_now(EDGE, chunk(dtype, 20)) if stored is not None else None)
        merged = await merge.lasting(made).onto(stored)
        assert merged is not None
        expected = np.where(mask, ours, theirs)
        np.testing.assert_array_equal(array.chain.decode(merged, CHUNKS)[inside], expected[inside])


@trio_test
async def test_what_others_wrote_beyond_the_edge_of_a_smaller_array_stays_when_a_chunk_waited() -> None:
    """The array has grown meanwhile: these elements are not padding."""
    array = await array_of("C", "<f4", -1.0, None)
    theirs = chunk("<f4", 40)
    changed = np.zeros(CHUNKS, bool)
    changed[0, 0, 0] = True
    merge = ElementMerge(array, EDGE, chunk("<f4"), lambda: changed[array.inside(EDGE)], sparse=False)
    merged = await merge.lasting(await merge.onto(None)).onto(array.chain.encode(theirs))
    assert merged is not None
    expected = theirs.copy()
    expected[0, 0, 0] = 1
    np.testing.assert_array_equal(array.chain.decode(merged, CHUNKS), expected)


@trio_test
async def test_objects_are_padded_by_repeats_too() -> None:
    labels = [f"l{number}" for number in range(300)]
    filters = [
        {"id": "categorize", "dtype": "|O", "astype": "<u2", "labels": labels},
        {"id": "delta", "dtype": "<u2", "astype": "|i1"},
    ]
    array = await array_of("C", "|O", "l299", None, shape=(2, 2), chunks=(2, 3), filters=filters)
    assert array.plain is not None
    elements = np.array([["l100", "l101", "l5"], ["l102", "l103", "l5"]], object)
    await array.write_chunk((0, 0), array.plain.encode(elements))
    found = await array.read_chunk((0, 0))
    assert found is not None
    np.testing.assert_array_equal(array.plain.decode(found.data, (2, 3))[:, :2], elements[:, :2])
