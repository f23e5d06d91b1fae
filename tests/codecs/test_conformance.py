"""Requirements on every codec, over the examples of its class. A new codec is tested as soon as it exists."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.codecs import SHAPE, Example, examples, of_objects, params, same
from tests.support.length import tries
from zarrfs.codecs import lookup
from zarrfs.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import ChunkDecodeError, MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model import data_type
from zarrfs.model.codec_spec import CodecSpec

ALL = examples()
BYTES_BYTES = examples(BytesBytesCodec)

every_example = pytest.mark.parametrize(**params(ALL))
every_bytes_codec = pytest.mark.parametrize(**params(BYTES_BYTES))


def bytes_codec(example: Example) -> BytesBytesCodec:
    _, codec = lookup.resolve(example.spec, example.chunk.dtype)
    assert isinstance(codec, BytesBytesCodec)
    return codec


def test_every_kind_has_members() -> None:
    assert len({each.codec_class for each in examples(ArrayArrayCodec)}) >= 7
    assert examples(ArrayBytesCodec)
    assert len({each.codec_class for each in BYTES_BYTES}) >= 13


@every_example
def test_round_trip(example: Example) -> None:
    encoded = example.chain.encode(example.chunk)
    decoded = example.chain.decode(encoded, SHAPE)
    assert (decoded.shape, decoded.dtype) == (SHAPE, example.chunk.dtype)
    if example.codec_class.lossy:
        # Lossy codecs are idempotent: a second round trip loses nothing more.
        assert same(example.chain.decode(example.chain.encode(decoded), SHAPE), decoded)
    else:
        assert same(decoded, example.chunk)
    assert memoryview(encoded).nbytes <= example.chain.encoded_limit(SHAPE)


@every_example
def test_a_slice_of_a_larger_array_is_encoded_like_a_copy(example: Example) -> None:
    larger = np.zeros((8, 9), example.chunk.dtype)
    larger[1:7, 2:6] = example.chunk
    assert bytes(example.chain.encode(larger[1:7, 2:6])) == bytes(example.chain.encode(example.chunk))


@every_example
def test_decode_into_any_part_of_a_slab(example: Example) -> None:
    encoded = example.chain.encode(example.chunk)
    decoded = example.chain.decode(encoded, SHAPE)
    contiguous = np.zeros(SHAPE, example.chunk.dtype)
    example.chain.decode_into(encoded, SHAPE, contiguous)
    assert same(contiguous, decoded)
    slab = np.zeros((10, 20), example.chunk.dtype)
    example.chain.decode_into(encoded, SHAPE, slab[2:8, 10:14])
    assert same(slab[2:8, 10:14], decoded)
    edge = (slice(0, 5), slice(1, 3))
    slab[...] = 0
    example.chain.decode_into(encoded, SHAPE, slab[5:, 18:], edge)
    assert same(slab[5:, 18:], decoded[edge])
    slab[5:, 18:] = 0
    assert same(slab, np.zeros_like(slab))


@every_example
def test_what_was_cut_off_is_an_error(example: Example) -> None:
    encoded = bytes(example.chain.encode(example.chunk))
    for length in range(len(encoded)):
        with pytest.raises(ChunkDecodeError):
            example.chain.decode(encoded[:length], SHAPE)


@every_example
def test_flipped_bits_are_an_error_or_a_chunk(example: Example) -> None:
    encoded = bytes(example.chain.encode(example.chunk))
    for position in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[position] ^= 1 << position % 8
        try:
            decoded = example.chain.decode(damaged, SHAPE)
        except ChunkDecodeError:
            continue
        assert (decoded.shape, decoded.dtype) == (SHAPE, example.chunk.dtype)


@tries(15)
@given(junk=st.binary(max_size=200))
@every_example
def test_junk_is_an_error_or_a_chunk(example: Example, junk: bytes) -> None:
    try:
        decoded = example.chain.decode(junk, SHAPE)
    except ChunkDecodeError:
        return
    assert (decoded.shape, decoded.dtype) == (SHAPE, example.chunk.dtype)


@tries(15)
@given(data=st.binary(max_size=2000))
@every_bytes_codec
def test_bytes_round_trip(example: Example, data: bytes) -> None:
    codec = bytes_codec(example)
    data = data[: len(data) // 4 * 4]
    encoded = codec.encode(data)
    assert memoryview(encoded).nbytes <= codec.encoded_limit(len(data))
    assert bytes(codec.decode(encoded, len(data))) == data
    assert bytes(codec.decode(bytearray(encoded), len(data) + 100)) == data
    out = bytearray(len(data))
    decoded = codec.decode(encoded, len(data), memoryview(out))
    assert bytes(decoded) == data


@every_bytes_codec
def test_one_byte_more_than_allowed_is_an_error(example: Example) -> None:
    codec = bytes_codec(example)
    encoded = codec.encode(bytes(4000))
    with pytest.raises(ChunkDecodeError):
        codec.decode(encoded, 3999)
    with pytest.raises(ChunkDecodeError):
        codec.decode(encoded, 3999, memoryview(bytearray(3999)))
    with pytest.raises(ChunkDecodeError):
        codec.decode(encoded, 0)


@every_bytes_codec
def test_a_bomb_is_not_unpacked(example: Example) -> None:
    codec = bytes_codec(example)
    encoded = codec.encode(bytes(20 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ChunkDecodeError):
            codec.decode(encoded, 1000)
        # lzma allocates its dictionary, whose size depends on the preset, whatever the output size.
        assert tracemalloc.get_traced_memory()[1] < len(encoded) + (9 << 20)
    finally:
        tracemalloc.stop()


def test_bombs_do_not_need_memory_that_tracemalloc_misses() -> None:
    program = """
        import resource
        from zarrfs.codecs.base import BYTE, BytesBytesCodec
        from zarrfs.errors import ChunkDecodeError
        from zarrfs import registry

        bombs = []
        for each in registry.plugins("zarrfs.codecs"):
            if issubclass(each, BytesBytesCodec):
                codec = each.from_spec(each.complete(each.examples[-1], BYTE))
                bombs.append((each, codec, bytes(codec.encode(bytes(40 << 20)))))
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + (24 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for each, codec, bomb in bombs:
            try:
                codec.decode(bomb, 1000)
            except ChunkDecodeError:
                continue
            raise SystemExit(f"{each} unpacked it")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@every_example
def test_codecs_are_shared_by_threads(example: Example) -> None:
    chunks = [np.roll(example.chunk, shift) for shift in range(16)]
    encoded = [bytes(example.chain.encode(chunk)) for chunk in chunks]
    expected = [example.chain.decode(each, SHAPE) for each in encoded]

    def run(index: int) -> bool:
        out = np.zeros((6, 8), example.chunk.dtype)
        example.chain.decode_into(encoded[index % 16], SHAPE, out[:, 3:7])
        return bytes(example.chain.encode(chunks[index % 16])) == encoded[index % 16] and same(out[:, 3:7], expected[index % 16])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(96)))


@every_example
def test_unknown_configuration_is_refused(example: Example) -> None:
    spec = CodecSpec(example.spec.name, {**example.spec.configuration, "surprise": 1})
    with pytest.raises(MetadataUnsupported, match="surprise"):
        CodecChain.build((spec,), example.chain.data_type)


@every_example
def test_values_of_the_wrong_type_are_refused(example: Example) -> None:
    for name in example.spec.configuration:
        for value in ([], {}, "surprise", 1.5, -(10**40), [None], {"id": 1}, True):
            spec = CodecSpec(example.spec.name, {**example.spec.configuration, name: value})
            try:
                CodecChain.build((spec,), example.chain.data_type).check(SHAPE)
            except MetadataError:
                continue
            assert (type(value), name) in {
                (float, "offset"),
                (int, "offset"),
                (float, "scale"),
                (int, "scale"),
                (list, "labels"),
            } or (type(value) is bool and type(example.spec.configuration[name]) is bool)


@every_example
def test_the_complete_chain_describes_itself(example: Example) -> None:
    again = CodecChain.build(example.chain.specs, example.chain.data_type)
    assert again.specs == example.chain.specs
    assert bytes(again.encode(example.chunk)) == bytes(example.chain.encode(example.chunk))


@every_example
def test_numcodecs_reads_and_writes_the_same(example: Example) -> None:
    spec = next(each for each in example.chain.specs if each.name in example.codec_class.names)
    try:
        config = lookup.to_numcodecs(spec)
    except NotRepresentable:
        assert not example.codec_class.numcodecs_ids
        return
    translated = lookup.from_numcodecs(config)
    assert lookup.resolve(translated, example.chunk.dtype)[0] == spec
    theirs = numcodecs.get_codec(config)
    if example.chunk.dtype.hasobject:
        assert_objects_agree(example, theirs)
        return
    flat = example.chunk.reshape(-1)
    encoded = np.asarray(memoryview(theirs.encode(flat))).tobytes()
    ours = bytes(example.chain.encode(example.chunk))
    assert example.chain.decode(ours, SHAPE).tobytes() == np.asarray(memoryview(theirs.decode(theirs.encode(flat)))).tobytes()
    if issubclass(example.codec_class, BytesBytesCodec):
        assert example.chain.decode(encoded, SHAPE).tobytes() == example.chunk.tobytes()
        assert bytes(memoryview(theirs.decode(ours))) == example.chunk.tobytes()
        if config["id"] != "gzip":  # numcodecs writes the time into its header
            assert ours == encoded
    else:
        behind = CodecChain.build((CodecSpec("bytes"), spec), data_type.from_numpy(example.chunk.dtype))
        assert bytes(behind.encode(example.chunk)) == encoded
        assert behind.decode(encoded, SHAPE).tobytes() == example.chain.decode(ours, SHAPE).tobytes()


def assert_objects_agree(example: Example, theirs: Any) -> None:
    """Assert agreement with numcodecs on variable-length elements; ``tests/codecs/test_objects.py`` draws more of them."""
    numbers = example.spec.name == "numcodecs.vlen-array"
    dtype = example.spec.configuration.get("dtype", "|O")
    chunk = example.chunk
    if numbers:
        chunk = of_objects([np.array(each, dtype) for each in chunk.reshape(-1)], SHAPE)
    encoded = np.asarray(memoryview(theirs.encode(chunk))).tobytes()
    assert bytes(example.chain.encode(example.chunk)) == encoded
    decoded = theirs.decode(encoded).reshape(SHAPE)
    if numbers:
        decoded = of_objects([each.tolist() for each in decoded.reshape(-1)], SHAPE)
    assert same(example.chain.decode(encoded, SHAPE), decoded)
