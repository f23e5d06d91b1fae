"""Extents of a file's layout, found by their offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zarrfs.containers.base import Elements, FileLayout, Literal

SIZES = st.lists(st.integers(0, 9), max_size=12)


def layout_with(sizes: list[int]) -> FileLayout:
    """Return a layout of extents of these sizes: every third is literal."""
    extents: list[Literal | Elements] = []
    offset = 0
    for index, size in enumerate(sizes):
        extents.append(Elements(offset, size) if index % 3 else Literal(offset, bytes(size)))
        offset += size
    return FileLayout(tuple(extents))


@given(sizes=SIZES, offset=st.integers(0, 120), size=st.integers(0, 120))
def test_parts_are_the_bytes_of_the_range_in_order(sizes: list[int], offset: int, size: int) -> None:
    layout = layout_with(sizes)
    found = [extent.offset + begin + index for extent, begin, nbytes in layout.parts(offset, size) for index in range(nbytes)]
    assert found == list(range(offset, min(offset + size, layout.size)))
    assert all(nbytes > 0 and begin + nbytes <= extent.nbytes for extent, begin, nbytes in layout.parts(offset, size))


def test_extents_before_the_range_are_not_visited() -> None:
    visited = []

    class Counted(tuple):  # type: ignore[type-arg]
        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            visited.append(index)
            return super().__getitem__(index)

    layout = layout_with([1] * 6000)
    object.__setattr__(layout, "extents", Counted(layout.extents))
    assert [extent.offset for extent, _, _ in layout.parts(5990, 3)] == [5990, 5991, 5992]
    assert len(visited) < 30
