"""Large data is processed piece by piece: its defects are detected as well, and abandoned work stops."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard

from tests.support.codecs import of_objects
from tests.support.large_buffers import large_from
from zarrfs import threads
from zarrfs.codecs import base64, json_elements, lookup, msgpack2, streams, vlen, vlen_utf8, zstd
from zarrfs.codecs.base import BYTE, BytesBytesCodec
from zarrfs.codecs.chain import CodecChain
from zarrfs.codecs.streams import Output
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, TooLarge
from zarrfs.model import data_type
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import OBJECT, STRING, VARIABLE_LENGTH_BYTES

JSON = CodecChain.build([CodecSpec("numcodecs.json2")], OBJECT)
MSGPACK = CodecChain.build([CodecSpec("numcodecs.msgpack2")], OBJECT)
PLAIN = CodecChain.build((), OBJECT)
TEXT = CodecChain.build((), STRING)
GZIPPED_TEXT = CodecChain.build([CodecSpec("vlen-utf8"), CodecSpec("gzip", {"level": 1})], STRING)


@pytest.fixture
def all_is_large(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A function after whose call all data counts as large."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(large_from(1, tmp_path))


@pytest.fixture
def large(all_is_large: Callable[[], None]) -> None:
    all_is_large()


def codec(name: str, **configuration: Any) -> BytesBytesCodec:
    _, found = lookup.resolve(CodecSpec(name, configuration), BYTE)
    assert isinstance(found, BytesBytesCodec)
    return found


# --- elements without a fixed size ------------------------------------------------------------------------------------------------

BAD_MSGPACK = {
    "fewer elements than the chunk has": (
        msgpack.packb([1, "|O", [2]]),
        "1 elements instead of 2 along a dimension|0 elements instead",
    ),
    "no type behind them": (msgpack.packb([1, 2, 3, [2]]), "not a list of elements followed by type and shape"),
    "another shape behind them": (msgpack.packb([1, 2, "|O", [3]]), "not a list of elements followed by type and shape"),
    "bytes behind all": (msgpack.packb([1, 2, "|O", [2]]) + b"\xc0", "1 trailing bytes after the elements"),
    "an end within": (msgpack.packb([1, 2, "|O", [2]])[:-3], "msgpack2: "),
    "a byte string": (msgpack.packb([1, b"x", "|O", [2]]), "msgpack2: "),
    "a key that is no text": (msgpack.packb([1, {b"": 1}, "|O", [2]]), "is not text"),
    "a number for a key": (msgpack.packb([1, {1: 1}, "|O", [2]]), "msgpack2: "),
}


@pytest.mark.parametrize(("data", "reason"), BAD_MSGPACK.values(), ids=BAD_MSGPACK)
@pytest.mark.usefixtures("large")
def test_msgpack_that_is_no_chunk_is_refused_in_pieces(data: bytes, reason: str) -> None:
    with pytest.raises(ChunkDecodeError, match=reason):
        MSGPACK.transcode(data, (2,), PLAIN)


@pytest.mark.usefixtures("large")
def test_an_element_with_very_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack2, "_ALONE_VALUES", 10)
    assert (
        bytes(MSGPACK.transcode(msgpack.packb([[[1] * 4, [1] * 4], "|O", [1]]), (1,), PLAIN)) == b'[[[1,1,1,1],[1,1,1,1]],"|O",[1]]'
    )
    with pytest.raises(ChunkDecodeError, match="data exceeds the limit"):
        MSGPACK.transcode(msgpack.packb([[[1] * 6, [1] * 6], "|O", [1]]), (1,), PLAIN)


@pytest.mark.usefixtures("large")
def test_an_element_longer_than_memory_allows_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack2, "_ALONE_NBYTES", 1000)
    monkeypatch.setattr(msgpack2, "_PIECE_NBYTES", 100)
    with pytest.raises(TooLarge, match="an element exceeds the memory limit of 1000 bytes"):
        MSGPACK.transcode(msgpack.packb(["x" * 2000, "|O", [1]]), (1,), PLAIN)


@pytest.mark.parametrize(
    ("to", "value"),
    [
        (MSGPACK, 2**64),
        (CodecChain.build([CodecSpec("numcodecs.json2", {"allow_nan": False})], OBJECT), float("nan")),
    ],
    ids=["msgpack2", "json2"],
)
@pytest.mark.usefixtures("large")
def test_an_element_that_the_codec_has_no_words_for_is_refused(to: CodecChain, value: Any) -> None:
    with pytest.raises(ChunkEncodeError):
        PLAIN.transcode(json.dumps([1, value, "|O", [2]]).encode(), (2,), to)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'[1,x,"|O",[2]]', "Expecting value"),
        (b'[1,2,"|O",[2]] [2]]', "trailing data after the elements"),
        (b'[1,2,3,"|O",[2]]', "missing|not a list of elements"),
        (b"[1," + b"[" * 60_000 + b"]" * 60_000 + b',"|O",[2]]', "json2: "),
    ],
    ids=["no value", "behind the end", "too many", "too deep"],
)
@pytest.mark.usefixtures("large")
def test_text_that_is_no_chunk_is_refused_in_pieces(text: bytes, reason: str) -> None:
    with pytest.raises(ChunkDecodeError, match=reason):
        JSON.transcode(text, (2,), MSGPACK)


ROWS: dict[str, list[Any]] = {
    "numbers": [12345] * 90,
    "lists": [[1, 2, 3], [4, 5]] * 45,
    "objects": [{"a": 1, "b": [2]}] * 90,
    "text with commas": ["a,b],c},d"] * 90,
    "spaces": ["   "] * 90,
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_elements_are_the_same_wherever_the_text_is_cut(
    row: list[Any], all_is_large: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of a few characters ends anywhere: within numbers, texts and lists."""
    shape = (len(row),)
    elements = of_objects(row, shape)
    text, expected = bytes(JSON.encode(elements)), bytes(MSGPACK.encode(elements))
    all_is_large()
    for name, small in (("_WINDOW", 3), ("_BATCH", 4), ("_BATCH_TEXT", 20), ("_PATIENCE", 2)):
        monkeypatch.setattr(json_elements, name, small)
    assert bytes(JSON.transcode(text, shape, MSGPACK)) == expected
    spaced = text.replace(b',"|O"', b' ,\n"|O"')
    assert bytes(JSON.transcode(spaced, shape, MSGPACK)) == expected


@pytest.mark.usefixtures("large")
def test_text_whose_marks_are_no_single_bytes_is_too_large_in_pieces() -> None:
    chain = CodecChain.build([CodecSpec("numcodecs.json2", {"encoding": "utf-16"})], OBJECT)
    with pytest.raises(TooLarge, match="bytes of text in utf-16"):
        chain.transcode('[1,"|O",[1]]'.encode("utf-16"), (1,), PLAIN)


@pytest.mark.usefixtures("large")
def test_a_chain_of_several_filters_is_too_large_in_pieces() -> None:
    labels = CodecSpec("numcodecs.categorize", {"labels": ["a"], "dtype": "|O", "astype": "|u1"})
    chain = CodecChain.build([labels, CodecSpec("numcodecs.delta", {"dtype": "|u1"}), CodecSpec("bytes")], STRING)
    with pytest.raises(TooLarge, match="in a chain of several filters"):
        chain.transcode(b"\1\0", (2,), TEXT)
    stored = bytes(TEXT.transcode(b"\1\0\0\0\0\0\0\0", (1,), GZIPPED_TEXT))
    with pytest.raises(TooLarge, match="in a chain of several filters"):
        GZIPPED_TEXT.transcode(stored, (1,), chain)


def test_long_texts_are_passed_on_as_they_are_stored(all_is_large: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlen_utf8, "_LONG_NBYTES", 5)
    monkeypatch.setattr(vlen, "_PIECES", 4)
    elements = of_objects(["", "short", "längere Wörter", "é" * 11] * 3, (12,))
    stored, shown = bytes(GZIPPED_TEXT.encode(elements)), bytes(TEXT.encode(elements))
    keep = np.arange(12) % 5 != 0
    left = of_objects([each if kept else "gone" for each, kept in zip(elements, keep, strict=True)], (12,))
    shown_without = bytes(TEXT.encode(left))
    all_is_large()
    assert bytes(GZIPPED_TEXT.transcode(stored, (12,), TEXT)) == shown
    assert bytes(GZIPPED_TEXT.transcode(stored, (12,), TEXT, keep, "gone")) == shown_without


@pytest.mark.parametrize("bad", [b"abcd\xff abcdefg", b"abcdefg\xc3"], ids=["within", "at the end"])
@pytest.mark.usefixtures("large")
def test_a_long_text_that_is_no_utf_8_is_refused(bad: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlen_utf8, "_LONG_NBYTES", 5)
    data = (1).to_bytes(4, "little") + len(bad).to_bytes(4, "little") + bad
    with pytest.raises(ChunkDecodeError, match="an element is not UTF-8"):
        TEXT.transcode(data, (1,), GZIPPED_TEXT)


@pytest.mark.usefixtures("large")
def test_a_long_text_is_no_label_and_the_log_shows_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlen_utf8, "_LONG_NBYTES", 5)
    labels = CodecSpec("numcodecs.categorize", {"labels": ["long enough"], "dtype": "|O", "astype": "|u1"})
    chain = CodecChain.build([labels, CodecSpec("bytes")], STRING)
    text = b"never seen before"
    data = (1).to_bytes(4, "little") + len(text).to_bytes(4, "little") + text
    with pytest.raises(ChunkEncodeError):
        TEXT.transcode(data, (1,), chain)
    assert str(vlen_utf8.LongText(memoryview(text))) == "never"
    assert bytes(vlen_utf8.LongText(memoryview(text)).encode()) == text


@pytest.mark.usefixtures("large")
def test_a_fill_value_of_another_kind_is_refused() -> None:
    keep = np.array([True, False])
    data = b"\2\0\0\0" + b"\0\0\0\0" * 2
    with pytest.raises(ChunkEncodeError, match="vlen-utf8: 3 is not text"):
        TEXT.transcode(data, (2,), GZIPPED_TEXT, keep, 3)
    of_bytes = CodecChain.build((), VARIABLE_LENGTH_BYTES)
    zipped = CodecChain.build([CodecSpec("vlen-bytes"), CodecSpec("gzip", {"level": 1})], VARIABLE_LENGTH_BYTES)
    with pytest.raises(ChunkEncodeError, match="vlen-bytes: 'x' is not a byte string"):
        of_bytes.transcode(data, (2,), zipped, keep, "x")
    assert zipped.decode(of_bytes.transcode(data, (2,), zipped, keep, b"x"), (2,)).tolist() == [b"", b"x"]


# --- bytes ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("large")
def test_frames_that_do_not_say_how_long_they_are_are_decoded_in_pieces() -> None:
    data = np.arange(9999, dtype="<u2").tobytes()
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert bytes(codec("zstd").decode(unsized, len(data) + 5)) == data
    with pytest.raises(ChunkDecodeError, match="zstd: output exceeds the limit of 100 bytes"):
        codec("zstd").decode(unsized, 100)


def test_a_block_of_no_known_type_is_an_error() -> None:
    # A frame with a window, then the last block, whose type is the reserved one.
    with pytest.raises(ChunkDecodeError, match="zstd: block at byte 6: unknown type"):
        codec("zstd").decode(b"\x28\xb5\x2f\xfd\x00\x48" + (0b111).to_bytes(3, "little"), 10)


@pytest.mark.parametrize(
    "data", [zstandard.compress(b"") * 9, b"\x28\xb5\x2f\xfd\x00\x48" + bytes(3) * 9 + b"\1\0\0"], ids=["frames", "blocks"]
)
def test_who_gave_up_is_not_kept_waiting_by_very_many_frames(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class GivenUp(BaseException):
        """As trio cancels abandoned work."""

    def give_up() -> None:
        raise GivenUp

    assert bytes(codec("zstd").decode(data, 10)) == b""
    monkeypatch.setattr(zstd, "_BETWEEN_LOOKS", 4)
    monkeypatch.setattr(threads, "go_on", give_up)
    with pytest.raises(GivenUp):
        codec("zstd").decode(data, 10)


@pytest.mark.usefixtures("large")
def test_padding_within_base64_is_refused_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base64, "_PIECE_NBYTES", 4)
    assert bytes(codec("numcodecs.base64").decode(b"YWJjYWI=", 10)) == b"abcab"
    with pytest.raises(ChunkDecodeError, match="padding within the data"):
        codec("numcodecs.base64").decode(b"YWI=YWJj", 10)


@pytest.mark.usefixtures("large")
def test_what_is_made_of_a_chunk_grows_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit may exceed the data by far: its memory is not allocated in advance."""
    monkeypatch.setattr(streams, "_FIRST_NBYTES", 8)
    made = Output("test", 100)
    for piece in (b"a" * 5, b"b" * 5, b"c" * 30, b"d" * 60):
        made.add(piece)
    with pytest.raises(ChunkDecodeError, match="test: output exceeds the limit of 100 bytes"):
        made.add(b"e")
    assert bytes(made.whole()) == b"a" * 5 + b"b" * 5 + b"c" * 30 + b"d" * 60


@pytest.mark.usefixtures("large")
def test_a_number_of_padding_bits_that_is_none_is_refused() -> None:
    chain = CodecChain.build([CodecSpec("numcodecs.packbits"), CodecSpec("bytes")], data_type.from_name("bool"))
    with pytest.raises(ChunkDecodeError, match="invalid number of padding bits"):
        chain.decode(b"\x08\xff", (1,))
