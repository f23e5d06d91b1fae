"""Bytes that a written file has returned are distinguished from changed ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import tries
from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.known_pages import PAGE, KnownPages, SeenPages

SIZE = 40 * PAGE + 100
PAGES = st.tuples(st.integers(0, 40), st.integers(1, 30)).map(lambda pair: (pair[0] * PAGE, pair[1] * PAGE))
ANY = st.tuples(st.integers(0, SIZE - 1), st.integers(1, 20 * PAGE))


def add_read(kept: KnownPages, offset: int, data: bytes, *, at_end: bool) -> None:
    with kept.reading(offset, len(data)) as reading:
        kept.add_read(reading, data, at_end=at_end)


@tries(200)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["read", "written"]), PAGES | ANY).map(lambda each: (each[0], *each[1])), max_size=12),
    asked=ANY,
    room=st.sampled_from([0, 3 << 16, 1 << 30]),
)
def test_no_byte_counts_as_given_that_is_another_one(steps: list[tuple[str, int, int]], asked: tuple[int, int], room: int) -> None:
    budget = MemoryBudget(room)
    kept = KnownPages(budget)
    pages = [None] * SIZE  # type: list[int | None]
    for number, (what, offset, size) in enumerate(steps, 1):
        size = min(size, SIZE - offset)
        data = bytes([number]) * size
        if what == "read":
            add_read(kept, offset, data, at_end=offset + size == SIZE)
        else:
            kept.add_written(offset, data)
        pages[offset : offset + size] = data
    assert budget.nbytes <= room
    offset, size = asked[0], min(asked[1], SIZE - asked[0])
    for value in range(len(steps) + 1):
        changed = kept.changed(offset, bytes([value]) * size)
        if changed is not None:
            same = [place for place in range(size) if not changed[place]]
            assert all(pages[offset + place] == value for place in same)
    kept.close()
    assert budget.nbytes == 0 and not kept


def test_what_was_read_is_no_change_and_what_was_written_over_it_neither() -> None:
    kept = KnownPages(MemoryBudget(1 << 20))
    add_read(kept, 0, bytes(PAGE + 100), at_end=True)
    kept.add_written(10, b"ab")
    changed = kept.changed(8, b"\0\0abc\0")
    assert changed is not None and changed.tolist() == [False, False, False, False, True, False]
    assert kept.changed(PAGE + 90, b"x" * 10) is None
    again = kept.changed(PAGE + 90, bytes(10))
    assert again is not None and not again.any()


def test_who_only_writes_is_remembered_nothing_of() -> None:
    budget = MemoryBudget(1 << 20)
    kept = KnownPages(budget)
    kept.add_written(0, bytes(10 * PAGE))
    assert not kept and budget.nbytes == 0


def test_a_handle_has_seen_what_was_read_since_its_open() -> None:
    kept = KnownPages(MemoryBudget(1 << 20))
    first = kept.opened()
    add_read(kept, 0, bytes(3 * PAGE), at_end=False)
    second = kept.opened()
    add_read(kept, PAGE, b"x" * PAGE, at_end=False)
    kept.add_written(2 * PAGE, b"y")
    assert SeenPages(kept, first).changed(0, bytes(PAGE)) is not None
    assert SeenPages(kept, second).changed(0, bytes(PAGE)) is None
    for opened in (first, second):
        seen = SeenPages(kept, opened).changed(PAGE, b"x" * PAGE)
        assert seen is not None and not seen.any()
    # Part of a page is known as long as the rest.
    assert SeenPages(kept, first).content(2 * PAGE, 2) == b"y\0"
    assert SeenPages(kept, second).content(2 * PAGE, 2) is None


def test_what_was_read_before_a_write_or_an_end_of_all_pages_is_not_known() -> None:
    budget = MemoryBudget(1 << 20)
    kept = KnownPages(budget)
    opened = kept.opened()
    add_read(kept, 0, bytes(PAGE), at_end=False)
    with kept.reading(0, PAGE) as before, kept.reading(PAGE, PAGE) as beside:
        kept.add_written(PAGE - 2, b"ab")
        kept.add_read(before, bytes(PAGE), at_end=False)
        kept.add_read(beside, bytes(PAGE), at_end=False)
    changed = kept.changed(PAGE - 2, bytes(4), opened)
    assert changed is not None and changed.tolist() == [True, True, False, False]
    with kept.reading(0, PAGE) as before:
        kept.close()
        kept.add_read(before, bytes(PAGE), at_end=False)
    assert not kept and budget.nbytes == 0


def test_a_page_that_is_forgotten_counts_as_changed() -> None:
    kept = KnownPages(MemoryBudget(1 << 20))
    add_read(kept, 0, bytes(3 * PAGE), at_end=False)
    kept.forget(PAGE + 1, 1)
    assert [kept.content(page * PAGE, 8) for page in range(3)] == [bytes(8), None, bytes(8)]
