"""Sets and ranges of numbers, against Python's sets."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from zarrfs.model.number_set import NumberSet, merged, portions, without

LARGEST = 5000
RANGES = st.tuples(st.integers(0, LARGEST), st.integers(0, 200)).map(lambda pair: range(pair[0], pair[0] + pair[1]))
SEVERAL = st.lists(RANGES, max_size=6)


def numbers_in(ranges: Iterable[range]) -> set[int]:
    return {number for each in ranges for number in each}


@unhurried
@given(
    added=st.lists(RANGES | st.integers(0, LARGEST), max_size=8),
    removed=st.lists(st.integers(0, LARGEST), max_size=4),
    asked=RANGES,
)
def test_it_holds_what_was_added_and_gaps_are_the_rest(added: list[range | int], removed: list[int], asked: range) -> None:
    found, expected = NumberSet(), set[int]()
    for each in added:
        if isinstance(each, range):
            found.update(each)
            expected |= set(each)
        else:
            found.add(each)
            expected.add(each)
    for number in (*removed, *(each.start for each in added if isinstance(each, range))):
        found.remove(number)
        expected.discard(number)
    assert len(found) == len(expected)
    assert all((number in found) == (number in expected) for number in range(0, LARGEST + 300, 7))
    gaps = list(found.gaps(asked))
    assert numbers_in(gaps) == set(asked) - expected
    assert all(gaps) and all(before.stop < after.start for before, after in zip(gaps, gaps[1:], strict=False))


@unhurried
@given(ranges=SEVERAL, excluded=SEVERAL)
def test_ranges_are_merged_and_excluded(ranges: list[range], excluded: list[range]) -> None:
    whole = merged(ranges)
    assert numbers_in(whole) == numbers_in(ranges)
    assert all(before.stop < after.start for before, after in zip(whole, whole[1:], strict=False))
    rest = list(without(whole, excluded))
    assert numbers_in(rest) == numbers_in(ranges) - numbers_in(excluded) and all(rest)


@unhurried
@given(ranges=SEVERAL, size=st.integers(1, 300))
def test_portions_are_of_one_size_but_for_the_last(ranges: list[range], size: int) -> None:
    found = list(portions(ranges, size))
    assert [number for portion in found for each in portion for number in each] == [number for each in ranges for number in each]
    sizes = [sum(map(len, portion)) for portion in found]
    assert sizes[:-1] == [size] * len(sizes[:-1]) and all(0 < each <= size for each in sizes)
