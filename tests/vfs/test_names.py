from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.length import unhurried
from zarrfs.vfs.names import MAX_NBYTES, name_of, part_of

PARTS = st.binary(max_size=400).map(lambda encoded: os.fsdecode(encoded.replace(b"/", b"\0")))
NAMES = st.binary(min_size=1, max_size=255).map(lambda encoded: os.fsdecode(encoded.replace(b"/", b"%").replace(b"\0", b"%")))


@unhurried
@given(PARTS)
@example("")
@example(".")
@example("..")
@example("a\0b")
@example("%%x")
@example("%%")
@example("%%long-x")
@example("." * 300)
@example("ü" * 128)
def test_every_part_has_a_name_and_comes_back(part: str) -> None:
    name = name_of(part)
    encoded = os.fsencode(name)
    assert name not in ("", ".", "..")
    assert b"\0" not in encoded and b"/" not in encoded and len(encoded) <= MAX_NBYTES
    assert part_of(name) == (None if name.startswith("%%long-") else part)


@unhurried
@given(PARTS, PARTS)
def test_two_parts_have_two_names(one: str, other: str) -> None:
    assert one == other or name_of(one) != name_of(other)


@unhurried
@given(NAMES)
@example("%%abc")
@example("%%%2e%2e")
@example("%%%2E%2E")
@example("%%")
@example("%%long-")
def test_a_name_stands_for_no_part_or_for_one_that_has_this_name(name: str) -> None:
    part = part_of(name)
    assert part is None or name_of(part) == name


@pytest.mark.parametrize("part", ["0.0", ".zarray", "c", "4913", "name with spaces", "%", "%20", "a%%b", "\n"])
def test_what_a_directory_can_hold_is_not_escaped(part: str) -> None:
    assert name_of(part) == part


@pytest.mark.parametrize("name", ["%%x", "%%%25%25x", "%%%2e", "%%%2Ex", "%%100"])
def test_a_name_that_is_no_escape_stands_for_itself(name: str) -> None:
    assert part_of(name) == name == name_of(name)


def test_a_part_that_looks_like_an_escape_is_escaped() -> None:
    assert name_of("..") == "%%%2E%2E"
    assert name_of("%%%2E%2E") == "%%%25%25%252E%252E"
    assert part_of("%%%25%25%252E%252E") == "%%%2E%2E"
