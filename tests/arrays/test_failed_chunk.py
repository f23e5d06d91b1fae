"""The record of elements that were written again after their chunk could not be stored."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zarrfs.arrays.failed_chunk import FailedChunk

SIZE = 1 << 20
_WRITES = st.lists(st.tuples(st.integers(0, 299), st.integers(1, 300), st.sampled_from([None, 1, 2, 3])), max_size=8)


@given(writes=_WRITES)
def test_what_was_written_since_is_recorded_element_by_element(writes: list[tuple[int, int, int | None]]) -> None:
    failed, expected = FailedChunk(None, 0), np.zeros(300, bool)
    for start, count, every in writes:
        stop = min(300, start + count)
        selected = None if every is None else np.arange(stop - start) % every == 0
        failed.wrote(300, start, stop, selected)
        expected[start:stop] |= True if selected is None else selected
    assert failed.is_rewritten == bool(writes)
    rewritten = failed.rewritten()
    assert (rewritten.tolist() if rewritten is not None else [False] * 300) == expected.tolist()


def test_chunks_that_are_written_again_in_order_take_no_memory_for_each_element() -> None:
    """Dirty chunks may be in files: their masks, of a byte for each element, were in memory, and counted in no budget."""
    chunks = [FailedChunk(None, 0) for _ in range(64)]
    tracemalloc.start()
    try:
        for failed in chunks:
            for start in range(0, SIZE, SIZE // 8):
                failed.wrote(SIZE, start, start + SIZE // 8)
        assert tracemalloc.get_traced_memory()[0] < SIZE
    finally:
        tracemalloc.stop()
    rewritten = chunks[0].rewritten()
    assert rewritten is not None and rewritten.all()


def test_scattered_elements_that_are_written_one_by_one_take_no_more_memory_than_a_mask() -> None:
    """Each was a span of its own: 40 bytes for each element of the chunk, counted in no budget."""
    failed, size = FailedChunk(None, 0), 1 << 17
    tracemalloc.start()
    try:
        for start in range(0, size, 2):
            failed.wrote(size, start, start + 1)
        assert tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()
    rewritten = failed.rewritten()
    assert rewritten is not None and rewritten.tolist() == [True, False] * (size // 2)
