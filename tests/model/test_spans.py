"""Spans compared with a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zarrfs.model.spans import Spans

SPAN = st.tuples(st.integers(0, 30), st.integers(0, 30))


@given(added=st.lists(SPAN, max_size=12), asked=SPAN)
def test_spans_are_a_set(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    spans, model = Spans(), set[int]()
    for start, stop in added:
        spans.add(start, stop)
        model.update(range(start, stop))
    start, stop = asked[0], max(asked)
    assert spans.covers(start, stop) == model.issuperset(range(start, stop))
    assert spans.mask(start, stop).tolist() == [each in model for each in range(start, stop)]


def test_what_comes_in_order_is_one_span() -> None:
    spans = Spans()
    for start in range(0, 1000, 10):
        spans.add(start, start + 10)
    assert spans._starts == [0]
    assert spans.covers(0, 1000)
