"""Chunk keys: coordinates to keys and back; other names are not keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarrfs.keys import Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_key import ChunkKeyEncoding

DRAFT_2022 = ChunkKeyEncoding(prefix="c", separator="/", scalar="c0")
BEFORE_V1 = ChunkKeyEncoding(prefix="", separator=".", scalar="0.blosc", suffix=".blosc")
ENCODINGS = [chunk_key.default(), chunk_key.default("."), chunk_key.v2(), chunk_key.v2("/"), DRAFT_2022, BEFORE_V1]

encodings = st.sampled_from(ENCODINGS)
coordinates = st.lists(st.integers(0, 2**62), max_size=5).map(tuple)


@given(encodings, coordinates)
def test_coordinates_survive_their_key(encoding: ChunkKeyEncoding, coords: tuple[int, ...]) -> None:
    assert encoding.decode(encoding.encode(coords), len(coords)) == coords


@given(encodings | st.just(ChunkKeyEncoding("", "/", "0", backwards=True)), st.lists(coordinates, min_size=1, max_size=4))
def test_keys_of_several_are_the_key_of_each(encoding: ChunkKeyEncoding, coords: list[tuple[int, ...]]) -> None:
    assert encoding.keys(Prefix("a/"), coords) == [encoding.key(Prefix("a/"), each) for each in coords]


@given(encodings, st.text("0123456789.c/+-b ", max_size=8), st.integers(0, 4))
def test_a_key_is_the_one_that_its_coordinates_encode(encoding: ChunkKeyEncoding, key: str, ndim: int) -> None:
    coords = encoding.decode(key, ndim)
    assert coords is None or (len(coords) == ndim and encoding.encode(coords) == key)


@pytest.mark.parametrize(
    ("encoding", "coords", "key"),
    [
        (chunk_key.default(), (1, 23, 45), "c/1/23/45"),
        (chunk_key.default("."), (1, 23, 45), "c.1.23.45"),
        (chunk_key.default(), (), "c"),
        (chunk_key.default("."), (), "c"),
        (chunk_key.v2(), (1, 23, 45), "1.23.45"),
        (chunk_key.v2("/"), (1, 23, 45), "1/23/45"),
        (chunk_key.v2("/"), (), "0"),
        (DRAFT_2022, (1, 0), "c1/0"),
        (BEFORE_V1, (1, 0), "1.0.blosc"),
    ],
)
def test_the_keys_of_the_specifications(encoding: ChunkKeyEncoding, coords: tuple[int, ...], key: str) -> None:
    assert encoding.encode(coords) == key
    assert encoding.decode(key, len(coords)) == coords


@pytest.mark.parametrize(
    "key", ["", "1", "1.2.3", "01.2", "+1.2", "-1.2", "1.2 ", "1..2", "1/2", "1.2.", ".1.2", "1.²", "1.٢", "1." + "9" * 20, "c.1.2"]
)
def test_what_only_looks_like_a_key_is_none(key: str) -> None:
    assert chunk_key.v2().decode(key, 2) is None


@pytest.mark.parametrize(
    ("key", "ndim"), [("c/", 1), ("c", 1), ("c/1", 0), ("1", 1), ("c/1/2", 1), ("C/1", 1), ("c//1", 1), ("", 0)]
)
def test_the_default_encoding_needs_its_prefix(key: str, ndim: int) -> None:
    assert chunk_key.default().decode(key, ndim) is None


@given(encodings, coordinates)
def test_a_key_may_begin_as_it_does(encoding: ChunkKeyEncoding, coords: tuple[int, ...]) -> None:
    parts = encoding.encode(coords).split("/")
    for count in range(1, len(parts)):
        assert encoding.may_begin("/".join(parts[:count]), len(coords))


@pytest.mark.parametrize("part", ["", "x", "c", "cx", "c01", "c1/x", "d1", "meta"])
def test_what_no_key_begins_with(part: str) -> None:
    assert not ChunkKeyEncoding("c", "/", "c0").may_begin(part, 3)
    assert not ChunkKeyEncoding("c", ".", "c0").may_begin("c1", 3)


@given(encodings, coordinates)
def test_no_key_begins_with_a_whole_key(encoding: ChunkKeyEncoding, coords: tuple[int, ...]) -> None:
    assert not encoding.may_begin(encoding.encode(coords).removesuffix(encoding.suffix), len(coords))
