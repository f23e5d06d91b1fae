"""Large data is encoded and decoded piece by piece, in files: to the same bytes and the same elements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.large_buffers import large_from
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import ChunkDecodeError, TooLarge
from zarrfs.memory import spill
from zarrfs.model import data_type
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import OBJECT, STRING, VARIABLE_LENGTH_BYTES, DataType


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Callable[[bool], None]]:
    before = spill.large_nbytes()
    with large_from(before, tmp_path):
        yield lambda yes: spill.configure(str(tmp_path), 1 if yes else before)


CHAINS = [
    *[[CodecSpec("bytes", {"endian": "big"}), CodecSpec(name, config)] for name, config in {
        "gzip": {"level": 5}, "zstd": {"level": 1, "checksum": True}, "numcodecs.zlib": {"level": 1}, "numcodecs.bz2": {"level": 1},
        "numcodecs.lzma": {"format": 1, "check": -1, "preset": 1, "filters": None}, "numcodecs.lz4": {"acceleration": 1},
        "blosc": {"typesize": 4, "cname": "zstd", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}, "numcodecs.base64": {},
        "crc32c": {}, "numcodecs.shuffle": {"elementsize": 4},
    }.items()],
    [CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("bytes")],
    [CodecSpec("numcodecs.delta", {"dtype": "<i4"}), CodecSpec("bytes")],
    [CodecSpec("numcodecs.astype", {"encode_dtype": "<i8", "decode_dtype": "<i4"}), CodecSpec("bytes")],
    [CodecSpec("numcodecs.fixedscaleoffset", {"offset": 3, "scale": 2, "dtype": "<i4", "astype": ">f8"}), CodecSpec("bytes")],
]  # fmt: skip


@pytest.mark.parametrize("specs", CHAINS, ids=lambda specs: specs[0].name if specs[0].name != "bytes" else specs[1].name)
def test_a_large_chunk_is_the_same_chunk(large: Callable[[bool], None], specs: list[CodecSpec]) -> None:
    chain = CodecChain.build(specs, data_type.from_name("int32"))
    # More than a block of elements, and not a whole number of blocks.
    elements = np.random.default_rng(0).integers(-1000, 1000, (700, 751), np.int32)
    encoded = bytes(chain.encode(elements))
    large(True)
    in_pieces = chain.encode(elements)
    np.testing.assert_array_equal(chain.decode(encoded, elements.shape), elements)
    large(False)
    np.testing.assert_array_equal(chain.decode(bytes(in_pieces), elements.shape), elements)


def test_bits_of_a_large_chunk(large: Callable[[bool], None]) -> None:
    chain = CodecChain.build([CodecSpec("numcodecs.packbits"), CodecSpec("bytes")], data_type.from_name("bool"))
    elements = np.random.default_rng(0).integers(0, 2, 3_000_001).astype(bool)
    encoded = bytes(chain.encode(elements))
    large(True)
    assert bytes(chain.encode(elements)) == encoded
    np.testing.assert_array_equal(chain.decode(encoded, elements.shape), elements)


def test_what_decodes_to_more_than_a_chunk_is_refused_in_pieces_too(large: Callable[[bool], None]) -> None:
    chain = CodecChain.build([CodecSpec("bytes"), CodecSpec("gzip", {"level": 1})], data_type.from_name("uint8"))
    longer, cut = bytes(chain.encode(np.zeros(5000, np.uint8))), bytes(chain.encode(np.zeros(4000, np.uint8)))[:-9]
    large(True)
    for bad in (longer, cut):
        with pytest.raises(ChunkDecodeError):
            chain.decode(bad, (4000,))


VALUES: list[Any] = [None, True, 1, -2.5, "é,]}", [], [1, [2, {"a": [3]}]], {"k": "v", "l": []}, "x" * 5000]
OBJECTS: dict[str, tuple[DataType, list[CodecSpec], list[Any]]] = {
    "json2": (OBJECT, [CodecSpec("numcodecs.json2")], VALUES),
    "json2, spaced": (OBJECT, [CodecSpec("numcodecs.json2", {"separators": [", ", ": "], "ensure_ascii": False})], VALUES),
    "msgpack2": (OBJECT, [CodecSpec("numcodecs.msgpack2")], VALUES),
    "vlen-array": (OBJECT, [CodecSpec("numcodecs.vlen-array", {"dtype": "<i4"})], [[], [1], [2, 3], list(range(99))]),
    "vlen-utf8": (STRING, [CodecSpec("vlen-utf8")], ["", "é", "long" * 999]),
    "vlen-bytes": (VARIABLE_LENGTH_BYTES, [CodecSpec("vlen-bytes")], [b"", b"\xff", b"long" * 999]),
    "categorize": (
        STRING,
        [CodecSpec("numcodecs.categorize", {"labels": ["a", "é"], "dtype": "|O", "astype": "|u1"}), CodecSpec("bytes")],
        ["", "a", "é"],
    ),
}


@pytest.mark.parametrize("shape", [(1,), (7,), (3001,), (40, 50), (3, 5, 70), ()], ids=str)
@pytest.mark.parametrize("name", list(OBJECTS))
def test_elements_that_are_made_one_after_the_other(large: Callable[[bool], None], name: str, shape: tuple[int, ...]) -> None:
    kind, specs, values = OBJECTS[name]
    if name == "msgpack2" and shape == ():
        pytest.skip("it has no such chunks")
    chain, plain = CodecChain.build([*specs, CodecSpec("gzip", {"level": 1})], kind), CodecChain.build((), kind)
    elements = np.empty(shape, object)
    flat = elements.reshape(-1)
    for index in range(flat.size):
        flat[index] = values[index % len(values)]
    stored, shown = bytes(chain.encode(elements)), bytes(plain.encode(elements))
    large(True)
    assert bytes(chain.transcode(stored, shape, plain)) == shown
    again = bytes(plain.transcode(shown, shape, chain))
    large(False)
    assert bytes(chain.transcode(again, shape, plain)) == shown


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[", b"[1,2,3]", b'[1,2,"|O",[2]', b'[1,2,3,"|O",[2]]', b'[1,"|O",[2]]', b'[1,2,"|O",[2]]x', b'[1 2,"|O",[2]]',
        b'[1,"\xff","|O",[2]]', b'[1,2,"|O",[3]]', b'[1,[2,"|O",[2]]', b'[[1],[2],"|O",[2,2]]', b'[1,2,5,[2]]', b'[1,2,"|O",2]',
    ],
)  # fmt: skip
def test_bad_text_is_refused_in_pieces_too(large: Callable[[bool], None], text: bytes) -> None:
    chain, plain = CodecChain.build([CodecSpec("numcodecs.json2")], OBJECT), CodecChain.build((), OBJECT)
    with pytest.raises(ChunkDecodeError):
        chain.transcode(text, (2,), plain)
    large(True)
    with pytest.raises(ChunkDecodeError):
        chain.transcode(text, (2,), plain)


def test_an_element_that_takes_too_much_memory_is_refused(large: Callable[[bool], None]) -> None:
    chain, plain = CodecChain.build([CodecSpec("numcodecs.json2")], OBJECT), CodecChain.build((), OBJECT)
    text = json.dumps([[[]] * 1_000_000, "|O", [1]]).encode()
    large(True)
    with pytest.raises(TooLarge):
        chain.transcode(text, (1,), plain)
