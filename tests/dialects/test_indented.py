"""The indented form of documents is that of the standard library, byte for byte, in few calls."""

from __future__ import annotations

import json
import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarrfs.dialects.documents import dump
from zarrfs.dialects.indented import dumps_indented

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from([0, 2, 4, "\t"]), st.booleans())
def test_the_text_is_that_of_the_library(value: object, indent: int | str, sort_keys: bool) -> None:
    ours = dumps_indented(value, indent, sort_keys=sort_keys, default=repr)
    assert ours == json.dumps(value, indent=indent, sort_keys=sort_keys, separators=(",", ": "))


class Text(str):
    """A string that is no plain one."""


def test_other_values() -> None:
    assert dumps_indented([Text("x"), {1}, 1.5, (1,)], 1, sort_keys=False, default=lambda value: sorted(value)) == json.dumps(
        ["x", [1], 1.5, [1]], indent=1, separators=(",", ": ")
    )
    for bad in ({1: 2}, [{None: 1}]):
        with pytest.raises(TypeError):
            dumps_indented(bad, 1, sort_keys=False, default=repr)


def test_a_document_is_rendered_in_few_calls() -> None:
    document = {f"member {n}": n for n in range(100)}
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        dump(document, indent=4)
    finally:
        sys.setprofile(None)
    assert calls <= 10
