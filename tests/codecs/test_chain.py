"""The codec chain: permitted orders, sizes, positions, and its own descriptions."""

from __future__ import annotations

import struct
import sys
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_types import data_types, elements, shapes
from zarrfs.codecs import lookup
from zarrfs.codecs.chain import CodecChain
from zarrfs.codecs.scratch import scratch
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_name, from_numpy

INT32 = from_name("int32")


def spec(name: str, **configuration: Any) -> CodecSpec:
    return CodecSpec(name, configuration)


LITTLE, BIG, GZIP, CRC = spec("bytes", endian="little"), spec("bytes", endian="big"), spec("gzip", level=1), spec("crc32c")
SWAP, DELTA = spec("transpose", order=[1, 0]), spec("numcodecs.delta", dtype="<i4")
DELTA_16 = spec("numcodecs.delta", dtype="<i2")


@given(data=st.data(), data_type=data_types(), shape=shapes(), endian=st.sampled_from(["little", "big"]), reverse=st.booleans())
def test_every_type_in_every_order(
    data: st.DataObject, data_type: DataType, shape: tuple[int, ...], endian: str, reverse: bool
) -> None:
    pool = data.draw(st.lists(elements(data_type), min_size=1, max_size=4))
    size = int(np.prod(shape))
    raw = b"".join(pool[index % len(pool)] for index in range(size))
    chunk = (np.frombuffer(raw, data_type.dtype) if raw else np.empty(0, data_type.dtype)).reshape(shape)
    order = (spec("transpose", order=list(reversed(range(len(shape))))),) if reverse else ()
    chain = CodecChain.build((*order, spec("bytes", endian=endian), GZIP), data_type)
    assert chain.check(shape) == len(raw)
    encoded = chain.encode(chunk)
    assert chain.decode(encoded, shape).tobytes() == raw
    out = np.zeros(shape, data_type.dtype)
    chain.decode_into(encoded, shape, out)
    assert out.tobytes() == raw
    plain = zlib.decompress(encoded, 31)
    assert sorted(plain) == sorted(raw)
    if data_type.dtype.kind in "iufc" and data_type.dtype.num < 256:
        stored = chunk.T if reverse else chunk
        assert plain == stored.astype(data_type.dtype.newbyteorder(">" if endian == "big" else "<")).tobytes()


def test_without_a_codec_that_makes_bytes_it_is_c_order_little_endian() -> None:
    chunk = np.arange(6, dtype="<i4").reshape(2, 3)
    assert bytes(CodecChain.build((), INT32).encode(chunk)) == chunk.tobytes()
    chain = CodecChain.build((SWAP, GZIP), INT32)
    assert [each.name for each in chain.specs] == ["transpose", "bytes", "gzip"]
    assert zlib.decompress(chain.encode(chunk), 31) == chunk.T.tobytes()
    assert CodecChain.build((), from_name("uint8")).specs == (CodecSpec("bytes"),)


@pytest.mark.parametrize(
    "specs",
    [
        (LITTLE, LITTLE),
        (GZIP, LITTLE),
        (LITTLE, SWAP),
        (LITTLE, GZIP, SWAP),
        (SWAP, LITTLE, GZIP, BIG),
        (spec("transpose", order=[0, 0]),),
        (spec("transpose", order=[0, 2]),),
        (spec("transpose", order=[0, -1]),),
        (spec("transpose", order=[True, False]),),
        (spec("transpose"),),
        (spec("bytes", endian="middle"),),
        (spec("numcodecs.packbits"),),
        (spec("numcodecs.delta", dtype="<i2"),),
        (spec("numcodecs.bitround", keepbits=3),),
        (LITTLE, spec("numcodecs.bitround", keepbits=3)),
        (spec("gzip"),),
        (spec("gzip", level=10),),
    ],
)
def test_chains_that_make_no_sense(specs: tuple[CodecSpec, ...]) -> None:
    with pytest.raises(MetadataError):
        CodecChain.build(specs, INT32)


@pytest.mark.parametrize("name", ["pickle", "numcodecs.pickle", "numcodecs.json", "zfpy", "lookup", ""])
def test_codecs_that_are_not_on_the_list(name: str) -> None:
    with pytest.raises(MetadataUnsupported, match=repr(name)):
        CodecChain.build((CodecSpec(name),), INT32)


@pytest.mark.parametrize("config", [None, "zlib", {}, {"id": 1}, {"id": None}, ["zlib"]])
def test_a_v2_codec_is_an_object_with_an_id(config: object) -> None:
    with pytest.raises(MetadataError):
        lookup.from_numcodecs(config)


@pytest.mark.parametrize(
    "dtype", ["O", "V8", "i4,f4", "(2,3)i4", "U4", "S4", "f16", "nonsense", "i4" * 100, "c8", 4, None, ["<i4"]]
)
def test_types_that_a_filter_does_not_take(dtype: object) -> None:
    with pytest.raises(MetadataError):
        CodecChain.build((spec("numcodecs.delta", dtype=dtype),), from_name("complex64"))


def test_transpose_needs_as_many_dimensions() -> None:
    chain = CodecChain.build((SWAP,), INT32)
    assert chain.check((3, 4)) == 48
    for shape in ((), (3,), (2, 3, 4)):
        with pytest.raises(MetadataError, match="dimensions"):
            chain.check(shape)


def test_sizes_that_do_not_fit_are_told() -> None:
    chain = CodecChain.build((LITTLE, GZIP), INT32)
    for nbytes in (0, 4, 20, 28):
        with pytest.raises(ChunkDecodeError, match="24"):
            chain.decode(zlib.compress(bytes(nbytes), 1, 31), (2, 3))
    with pytest.raises(ChunkDecodeError, match="20 bytes instead of 24"):
        CodecChain.build((LITTLE,), INT32).decode(bytes(20), (2, 3))
    with pytest.raises(ChunkEncodeError, match="float64"):
        chain.encode(np.zeros((2, 3)))


def test_a_stored_value_that_is_far_too_long_is_not_looked_at() -> None:
    chain = CodecChain.build((LITTLE, GZIP, CRC), INT32)
    limit = chain.encoded_limit((2, 3))
    assert 24 < limit < 100_000
    with pytest.raises(ChunkDecodeError, match=f"stored size of {limit + 1} bytes"):
        chain.decode(bytes(limit + 1), (2, 3))


def test_nothing_is_copied_that_need_not_be() -> None:
    chunk = np.arange(6, dtype="<i4").reshape(2, 3)
    chain = CodecChain.build((LITTLE,), INT32)
    encoded = chain.encode(chunk)
    assert np.shares_memory(np.frombuffer(encoded, "<i4"), chunk)
    assert np.shares_memory(chain.decode(encoded, (2, 3)), chunk)
    reversed_chain = CodecChain.build((SWAP, LITTLE, CRC), INT32)
    stored = np.frombuffer(bytes(reversed_chain.encode(chunk)), np.uint8)
    assert np.shares_memory(reversed_chain.decode(memoryview(stored), (2, 3)), stored)


@pytest.mark.parametrize("name", ["blosc", "zstd", "numcodecs.lz4"])
def test_a_slab_is_filled_without_fresh_memory(name: str) -> None:
    chunk = np.arange(512 * 512, dtype="<i4").reshape(512, 512)
    config = {"cname": "lz4", "clevel": 5} if name == "blosc" else {}
    chain = CodecChain.build((LITTLE, CodecSpec(name, config)), INT32)
    encoded = bytes(chain.encode(chunk))
    whole, slab = np.zeros_like(chunk), np.zeros((512, 2048), "<i4")
    chain.decode_into(encoded, chunk.shape, slab[:, 512:1024])
    tracemalloc.start()
    try:
        chain.decode_into(encoded, chunk.shape, whole)
        chain.decode_into(encoded, chunk.shape, slab[:, 512:1024])
        chain.decode_into(encoded, chunk.shape, slab[500:, 1024:1026], (slice(0, 12), slice(3, 5)))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert (whole == chunk).all()
    assert (slab[:, 512:1024] == chunk).all()
    assert (slab[500:, 1024:1026] == chunk[:12, 3:5]).all()


def test_scratch_may_be_nested() -> None:
    with scratch(100) as outer:
        outer[:] = b"x" * 100
        with scratch(200) as inner:
            inner[:] = b"y" * 200
        assert bytes(outer) == b"x" * 100


def test_no_dimensions_and_no_elements() -> None:
    chain = CodecChain.build((LITTLE, GZIP), INT32)
    scalar = np.array(7, "<i4")
    out = np.zeros((), "<i4")
    chain.decode_into(chain.encode(scalar), (), out, ())
    assert out == chain.decode(chain.encode(scalar), ()) == 7
    # As a scalar of NumPy, text would have its own width and byte order.
    text = np.array("ab", "<U5")
    chain = CodecChain.build((BIG, spec("numcodecs.shuffle", elementsize=2)), from_numpy(text.dtype))
    out = np.array("other", "<U5")
    chain.decode_into(chain.encode(text), (), out, ())
    assert out == text
    chain = CodecChain.build((LITTLE, GZIP), INT32)
    nothing = np.zeros((0, 3), "<i4")
    assert chain.check((0, 3)) == 0
    assert chain.decode(chain.encode(nothing), (0, 3)).shape == (0, 3)


def test_fields_of_different_byte_orders() -> None:
    descr: list[Any] = [["a", "<i4"], ["b", "|S3"], ["c", ">f8"], ["d", [["e", ">i2", [2]]]]]
    stored = np.dtype([("a", "<i4"), ("b", "S3"), ("c", ">f8"), ("d", [("e", ">i2", (2,))])])
    data_type = from_numpy(stored)
    chain = CodecChain.build((spec("bytes", dtype=descr), GZIP), data_type)
    values = np.array([(1, b"xy", 2.5, ([3, 4],)), (5, b"", -1.0, ([6, 7],))], stored)
    encoded = zlib.compress(values.tobytes(), 1, 31)
    chunk = chain.decode(encoded, (2,))
    assert chunk.dtype == data_type.dtype
    assert chunk.tobytes() == struct.pack("<i3sd2hi3sd2h", 1, b"xy", 2.5, 3, 4, 5, b"", -1.0, 6, 7)
    assert zlib.decompress(chain.encode(chunk), 31) == values.tobytes()
    with pytest.raises(NotRepresentable):
        chain.v3_specs()
    with pytest.raises(NotRepresentable):
        lookup.to_numcodecs(chain.specs[0])
    for wrong in ([["a", "<i4"]], "<i4", [["a"]], [], [["a", "O"]], [["a", "<i4"], ["a", "<i4"]], {"a": "<i4"}, 7):
        with pytest.raises(MetadataError):
            CodecChain.build((spec("bytes", dtype=wrong),), data_type).check((2,))


@pytest.mark.parametrize("kind", ["M8", "m8"])
@pytest.mark.parametrize("unit", ["", "[s]", "[7us]"])
@pytest.mark.parametrize("size", [3, 2**18])
def test_times_are_stored_in_the_byte_order_that_is_asked_for(kind: str, unit: str, size: int) -> None:
    numbers = np.arange(size, dtype="<i8") - 1
    chunk = numbers.view(f"<{kind}{unit}")
    chain = CodecChain.build((BIG,), from_numpy(chunk.dtype))
    assert bytes(chain.encode(chunk)) == numbers.astype(">i8").tobytes()
    assert chain.decode(numbers.astype(">i8").data, (size,)).tobytes() == chunk.tobytes()


def test_filters_on_bytes_are_v2s_alone() -> None:
    before, behind = CodecChain.build((DELTA, LITTLE), INT32), CodecChain.build((LITTLE, DELTA), INT32)
    chunk = np.arange(6, dtype="<i4").reshape(2, 3)
    assert bytes(before.encode(chunk)) == bytes(behind.encode(chunk))
    assert before.v3_specs() == before.specs
    with pytest.raises(NotRepresentable, match=r"numcodecs\.delta"):
        behind.v3_specs()


def test_a_filter_that_changes_the_type_changes_the_sizes() -> None:
    chain = CodecChain.build((spec("numcodecs.astype", encode_dtype="<i2"), DELTA_16, BIG), INT32)
    chunk = np.arange(6, dtype="<i4").reshape(2, 3)
    assert len(chain.encode(chunk)) == 12
    out = np.zeros((4, 5), "<i4")
    chain.decode_into(chain.encode(chunk), (2, 3), out[1:3, 1:4])
    assert (out[1:3, 1:4] == chunk).all()


def test_padding_bits_of_packbits_are_few() -> None:
    chain = CodecChain.build((spec("numcodecs.packbits"), GZIP), from_name("bool"))
    assert len(chain.decode(zlib.compress(b"\7\x80", 1, 31), (1,))) == 1
    for wrong in (b"\x08\x80", b"\xff\x80", b"\6\x80"):
        with pytest.raises(ChunkDecodeError, match="packbits"):
            chain.decode(zlib.compress(wrong, 1, 31), (1,))


def test_shapes_of_chunks_are_not_remembered_for_ever() -> None:
    chain = CodecChain.build((LITTLE,), INT32)
    for extent in range(1000):
        assert chain.check((extent,)) == 4 * extent
    assert chain.check((2**62, 2**62)) == 2**126
    assert sys.getsizeof(chain._sizes_of) < 20_000


def test_arrays_with_one_chain_share_it() -> None:
    specs = [CodecSpec("bytes", {"endian": "little"}), CodecSpec("zstd", {"level": 1, "checksum": False})]
    chain = CodecChain.build(specs, from_name("int32"), b"1234")
    assert (
        CodecChain.build([CodecSpec(each.name, dict(each.configuration)) for each in specs], from_name("int32"), b"1234") is chain
    )
    others = [
        CodecChain.build(specs, from_name("int32")),
        CodecChain.build(specs, from_name("float32"), b"1234"),
        CodecChain.build(specs[:1], from_name("int32"), b"1234"),
        CodecChain.build([specs[0], CodecSpec("zstd", {"level": 2, "checksum": False})], from_name("int32"), b"1234"),
    ]
    assert len({id(each) for each in (chain, *others)}) == 5
    for extent in range(200):
        assert chain.check((extent,)) == 4 * extent
