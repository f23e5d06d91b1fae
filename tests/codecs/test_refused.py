"""Chunks and configurations that a codec itself refuses: impossible sizes, limits of its format, and missing libraries."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

from zarrfs.codecs import blosc, deflate, lookup, lz4
from zarrfs.codecs.base import BYTE, BytesBytesCodec, ChunkSpec
from zarrfs.codecs.bytes import Bytes
from zarrfs.codecs.chain import CodecChain
from zarrfs.codecs.numpy_filter import NumpyFilter
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, MetadataUnsupported
from zarrfs.model import data_type
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import OBJECT, STRING

SNAPPY = CodecSpec("blosc", {"typesize": 1, "cname": "snappy", "clevel": 1, "shuffle": "noshuffle", "blocksize": 0})


def codec(spec: CodecSpec) -> BytesBytesCodec:
    _, found = lookup.resolve(spec, BYTE)
    assert isinstance(found, BytesBytesCodec)
    return found


@pytest.mark.parametrize(
    "spec",
    [
        CodecSpec("zstd", {"id": "zstd"}),
        CodecSpec("zstd", {"level": "1"}),
        CodecSpec("crc32c", {"id": "crc32c"}),
        CodecSpec("numcodecs.crc32c", {"id": "crc32c"}),
    ],
)
def test_omitted_options_are_completed_and_others_refused(spec: CodecSpec) -> None:
    """Only configurations of Zarr v2 have an id, and numbers as strings."""
    with pytest.raises(MetadataError):
        codec(spec)


# --- missing libraries --------------------------------------------------------------------------------------------------------------


def test_without_igzip_zlib_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setattr(deflate, "igzip", deflate.igzip.__wrapped__)
    assert deflate.igzip() is None
    data = bytes(range(256)) * 9
    assert bytes(codec(CodecSpec("gzip", {"level": 1})).decode(gzip.compress(data), len(data))) == data
    assert bytes(codec(CodecSpec("numcodecs.zlib", {"level": 1})).decode(zlib.compress(data), len(data))) == data
    with pytest.raises(ChunkDecodeError, match="gzip"):
        codec(CodecSpec("gzip", {"level": 1})).decode(gzip.compress(data)[:-1], len(data))


def test_without_the_package_that_has_snappy_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imagecodecs")
    encoded = bytes(codec(SNAPPY).encode(b"abc" * 100))
    assert bytes(codec(SNAPPY).decode(encoded, 300)) == b"abc" * 100
    decoder = codec(CodecSpec("blosc", {**SNAPPY.configuration, "cname": "zstd"}))
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    # The container may name another compressor than the document.
    with pytest.raises(ChunkDecodeError, match="compressed with snappy, which needs the package imagecodecs"):
        decoder.decode(encoded, 300)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MetadataUnsupported, match=r"snappy needs the package imagecodecs \(pip install"):
        codec(SNAPPY)


def test_a_codec_without_its_library_is_refused_where_it_is_named_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, expect_logs: Callable[[str], None]
) -> None:
    expect_logs("library zstandard unusable")
    monkeypatch.setattr(lookup, "_unusable", set())
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for _ in range(3):
        with pytest.raises(MetadataUnsupported, match="codec zstd: library zstandard unusable: ModuleNotFoundError"):
            CodecChain.build([CodecSpec("zstd")], OBJECT)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    # Names and forms in documents need no library.
    assert lookup.from_numcodecs({"id": "zstd"}) == CodecSpec("zstd", {"level": 0, "checksum": False})
    assert bytes(codec(CodecSpec("gzip", {"level": 1})).encode(b"abc"))


def test_a_library_that_fails_at_its_import_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expect_logs: Callable[[str], None]
) -> None:
    """As numcodecs does beside a zfpy that was built for another NumPy."""
    expect_logs("library zstandard unusable")
    (tmp_path / "zstandard.py").write_text("raise ValueError('numpy.dtype size changed')")
    monkeypatch.setattr(lookup, "_unusable", set())
    monkeypatch.delitem(sys.modules, "zstandard", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MetadataUnsupported, match="library zstandard unusable: ValueError: numpy"):
        CodecChain.build([CodecSpec("zstd")], OBJECT)


def test_a_library_that_can_be_imported_later_is_used_then(
    monkeypatch: pytest.MonkeyPatch, expect_logs: Callable[[str], None]
) -> None:
    expect_logs("library msgpack unusable")
    monkeypatch.setattr(lookup, "_unusable", set())
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "msgpack", None)
        with pytest.raises(MetadataUnsupported, match="msgpack"):
            lookup.resolve(CodecSpec("numcodecs.msgpack2"), np.dtype(object))
    lookup.resolve(CodecSpec("numcodecs.msgpack2"), np.dtype(object))


# --- limits of a format -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "spec"),
    [(blosc, CodecSpec("blosc", {**SNAPPY.configuration, "cname": "lz4"})), (lz4, CodecSpec("numcodecs.lz4"))],
    ids=["blosc", "lz4"],
)
def test_more_than_the_format_has_room_for_is_not_encoded(module: Any, spec: CodecSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_NBYTES", 100)
    assert bytes(codec(spec).decode(codec(spec).encode(b"a" * 100), 100)) == b"a" * 100
    with pytest.raises(ChunkEncodeError, match=r"101 bytes exceed the limit of one (container|block) \(100\)"):
        codec(spec).encode(b"a" * 101)


def test_base64_of_more_than_a_chunk_is_refused() -> None:
    base64 = codec(CodecSpec("numcodecs.base64"))
    with pytest.raises(ChunkDecodeError, match="9 characters exceed those of 6 bytes"):
        base64.decode(b"YWJjYWJjY", 6)
    with pytest.raises(ChunkDecodeError, match="decoded size of 6 bytes exceeds the limit of 5"):
        base64.decode(b"YWJjYWJj", 5)


def test_bytes_that_are_no_chunk_are_refused() -> None:
    chunk = ChunkSpec((3,), np.dtype("<i2"))
    assert Bytes().decode(b"\1\0\2\0\3\0", chunk).tolist() == [1, 2, 3]
    with pytest.raises(ChunkDecodeError, match="bytes: size is 5 bytes instead of 6"):
        Bytes().decode(b"\1\0\2\0\3", chunk)
    with pytest.raises(MetadataError, match="endian and dtype exclude each other"):
        Bytes.from_spec(CodecSpec("bytes", {"endian": "big", "dtype": "<i2"}))


def test_more_elements_than_zarrfs_would_read_are_not_written() -> None:
    chain = CodecChain.build([CodecSpec("numcodecs.json2")], OBJECT)
    with pytest.raises(ChunkEncodeError, match="elements are of type int64 instead of object"):
        chain.encode(np.arange(3))


# --- NumPy's filters, on bytes --------------------------------------------------------------------------------------------------------


DELTA = CodecSpec("numcodecs.delta", {"dtype": "<i4"})


def on_bytes(spec: CodecSpec, dtype: str) -> Any:
    """Return a filter on bytes, as v2 has it after another filter."""
    _, found = lookup.resolve(spec, np.dtype(dtype))
    assert isinstance(found, NumpyFilter)
    return found.on_bytes(np.dtype(dtype))


def test_bytes_that_are_no_whole_number_of_elements_are_refused() -> None:
    delta = on_bytes(DELTA, "<i4")
    assert bytes(delta.decode(delta.encode(b"\1\0\0\0\3\0\0\0"), 8)) == b"\1\0\0\0\3\0\0\0"
    with pytest.raises(ChunkEncodeError, match="delta: 5 bytes are not a multiple of the size of int32"):
        delta.encode(bytes(5))
    with pytest.raises(ChunkDecodeError, match="delta: 5 bytes are not a multiple of the size of int32"):
        delta.decode(bytes(5), 8)
    with pytest.raises(ChunkDecodeError, match="delta: encoded size of 12 bytes exceeds the maximum for a chunk of 8 bytes"):
        delta.decode(bytes(12), 8)


def test_bytes_that_decode_to_more_than_a_chunk_are_refused() -> None:
    bits = on_bytes(CodecSpec("numcodecs.packbits"), "|b1")
    assert bytes(bits.decode(b"\4\xf0", 4)) == b"\1" * 4
    with pytest.raises(ChunkDecodeError, match="packbits: decoded size of 8 bytes exceeds the limit of 4"):
        bits.decode(b"\0\xf0", 4)


def test_no_bytes_are_no_elements() -> None:
    delta = on_bytes(DELTA, "<i4")
    assert bytes(delta.encode(b"")) == bytes(delta.decode(b"", 0)) == b""


def test_elements_without_a_fixed_size_are_no_bytes() -> None:
    labels = CodecSpec("numcodecs.categorize", {"labels": ["a"], "dtype": "|O", "astype": "|u1"})
    with pytest.raises(MetadataError):
        CodecChain.build([CodecSpec("vlen-utf8"), labels], STRING)
    _, found = lookup.resolve(labels, np.dtype(object))
    assert isinstance(found, NumpyFilter)
    with pytest.raises(MetadataError, match="elements of variable size are not bytes"):
        found.on_bytes(np.dtype(object))


# --- JSON ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 2])
def test_separators_that_are_not_stated_are_those_of_numcodecs(indent: int | None) -> None:
    config = {"id": "json2", "indent": indent, "separators": None}
    chain = CodecChain.build([lookup.from_numcodecs(config)], OBJECT)
    elements = np.array(["a", None, 1.5], object)
    theirs = numcodecs.JSON(indent=indent, separators=None)
    assert bytes(chain.encode(elements)) == bytes(theirs.encode(elements))


def test_a_type_of_the_chain_that_is_another_than_the_arrays_is_refused() -> None:
    with pytest.raises(MetadataError):
        CodecChain.build([CodecSpec("bytes"), CodecSpec("vlen-utf8")], data_type.from_name("int32"))
