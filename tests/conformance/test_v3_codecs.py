"""Zarr core specification version 3.1, statement by statement: chunk encoding, codecs, shards."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numcodecs
import numpy as np

from tests.arrays import test_sharded as shard_tests
from tests.codecs import test_blosc as blosc_tests
from tests.codecs import test_checksums as checksum_tests
from tests.codecs import test_streams as stream_tests
from tests.codecs import test_zstd as zstd_tests
from tests.conformance import test_v3
from tests.conformance.test_v3 import BYTES, LEFT, OTHERS, REFUSED, RIGHT, WHOLE, bad, doc, grid, line, made, store, unknown
from tests.dialects.v3 import test_sharding as sharding_tests
from tests.support.conforming import (
    Check,
    all_of,
    array,
    blosc_header,
    document,
    edited,
    elements,
    equal,
    keys,
    metadata,
    raises,
    reads,
    refuses,
    same,
)
from tests.support.statements import Statement
from zarrfs.errors import ChecksumMismatch, ChunkDecodeError, ShardIndexInvalid
from zarrfs.keys import NodePath

TEXT = test_v3.TEXT.continued()

TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CRC32C = {"name": "crc32c"}
EMPTY = 2**64 - 1


def shards(*chunk_shape: Any, **members: Any) -> dict[str, Any]:
    """Return the codec; other members are those of the text's example."""
    configuration = {"chunk_shape": list(chunk_shape), "codecs": [BYTES], "index_codecs": [BYTES, CRC32C], "index_location": "end"}
    return {"name": "sharding_indexed", "configuration": configuration | members}


def codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def checked(data: bytes) -> bytes:
    """Return ``data`` with its checksum appended."""
    return data + struct.pack("<I", google_crc32c.value(data))


def encoded(*chain: Any, left: bytes, right: bytes) -> dict[str, Any]:
    """Return `WHOLE` with these codecs, in two chunks."""
    return {"zarr.json": doc(codecs=list(chain)), "c/0/0": left, "c/0/1": right}


def gives(chain: list[Any], left: bytes, right: bytes) -> Check:
    return reads(encoded(*chain, left=left, right=right), WHOLE)


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("12", "Chunk encoding")

TEXT.row(
    "array -> array codecs, then one array -> bytes codec, then bytes -> bytes codecs",
    gives([TRANSPOSE, BYTES, GZIP], gzip.compress(LEFT.T.tobytes()), gzip.compress(RIGHT.T.tobytes())),
)
TEXT.row(
    "no other form of the list",
    all_of(*(bad("codecs", codecs=each) for each in ([BYTES, BYTES], [GZIP, BYTES], [BYTES, TRANSPOSE], [BYTES, GZIP, TRANSPOSE]))),
    REFUSED,
)
TEXT.row(
    "exactly one array -> bytes codec",
    lambda: equal(
        (elements(store(codecs=[TRANSPOSE])).tolist(), len(array(store(codecs=[TRANSPOSE])).quirks)), ([[1, 4, 3], [2, 5, -1]], 1)
    ),
    "a list without one, which zarrita and zarr-js wrote, is read as little-endian (a quirk); --dialect-choices v3.codecs=refuse",
)
TEXT.row(
    "encoding: each codec in turn",
    lambda: equal(
        zlib.decompress(made(codecs="gzip:level=1+crc32c", write={(0,): [8, 9]})["a/c/0"][:-4], 31),
        np.array([8, 9], "<i4").tobytes(),
    ),
)
TEXT.row(
    "decoding: in reverse order",
    gives([BYTES, GZIP, CRC32C], checked(gzip.compress(LEFT.tobytes())), checked(gzip.compress(RIGHT.tobytes()))),
)
TEXT.row(
    "the first representation has the array's type and the chunk shape",
    raises(ChunkDecodeError, "7 bytes instead of 8", lambda: elements({**store(), "c/0/0": LEFT.tobytes()[:7]})),
    "as stated: a chunk of another size is EIO",
)
TEXT.row(
    "an incompatible representation should be an error",
    all_of(
        bad("codec", codecs=[codec("transpose", order=[0]), BYTES]),
        refuses({"zarr.json": doc(data_type="string", fill_value="", codecs=[BYTES])}, "zarr.json"),
    ),
    "as stated: the array is refused",
)
TEXT.tested(
    "partial decoding MAY be supported",
    shard_tests.test_chunks_of_one_shard_take_one_read_of_the_index_and_one_of_the_chunks,
    "for shards, whose chunks are read individually; any other chunk is decoded whole",
)
TEXT.row(
    "core codecs SHOULD be implemented",
    all_of(
        *(
            lambda each=each: equal(metadata({"zarr.json": doc(codecs=each)}).shape, (2, 3))
            for each in (
                [TRANSPOSE, BYTES],
                [BYTES, GZIP],
                [BYTES, CRC32C],
                [BYTES, codec("blosc", cname="lz4", clevel=1, shuffle="noshuffle", blocksize=0)],
                [shards(2, 1)],
            )
        )
    ),
    "as stated: blosc, bytes, crc32c, gzip, transpose, sharding_indexed",
)
TEXT.row(
    "extension codecs MAY be in the list",
    all_of(
        gives(
            [BYTES, codec("zstd", level=1, checksum=False)],
            bytes(numcodecs.Zstd(1).encode(LEFT)),
            bytes(numcodecs.Zstd(1).encode(RIGHT)),
        ),
        gives([BYTES, codec("numcodecs.lz4")], bytes(numcodecs.LZ4().encode(LEFT)), bytes(numcodecs.LZ4().encode(RIGHT))),
        unknown("made_up", codecs=[BYTES, "made_up"]),
        unknown("packbits", codecs=["packbits"]),
    ),
    "zstd, vlen-utf8, vlen-bytes, numcodecs.NAME; an unknown one is refused, with its name",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("13", "Codec bytes")


def stored_as(data_type: str, endian: str, dtype: str, *values: Any) -> Check:
    """Return a check that elements of this type are stored as NumPy's ``dtype``."""
    chain = [codec("bytes", endian=endian)]
    zero = [0, 0] if data_type[0] == "c" else False if data_type == "bool" else 0
    return reads(
        line(data_type, zero, *values, codecs=chain, dtype=dtype), np.array(list(values), np.dtype(dtype).newbyteorder("<"))
    )


TEXT.row(
    "endian is big or little",
    all_of(
        reads({"zarr.json": line("uint16", 0)["zarr.json"], "c/0": b"\1\2"}, [0x201]),
        reads({"zarr.json": line("uint16", 0, codecs=[codec("bytes", endian="big")])["zarr.json"], "c/0": b"\1\2"}, [0x102]),
        *(bad("endian", codecs=[codec("bytes", endian=each)]) for each in ("middle", "", None, 1)),
    ),
    OTHERS,
)
TEXT.row(
    "endian is required for types of several bytes",
    reads(store(codecs=["bytes"]), WHOLE),
    "if absent, as in software before the final specification, it is little; always written",
)
TEXT.row(
    "not for types of one byte",
    all_of(
        reads(line("uint8", 0, 1, 255, codecs=["bytes"], dtype="|u1"), [1, 255]),
        lambda: equal(document(made(dtype="uint8"), "a/zarr.json")["codecs"], [{"name": "bytes"}]),
    ),
    "as stated; if present (zarrita), it is accepted",
)
TEXT.row("elements are in lexicographical order (C)", reads(store(), WHOLE))
TEXT.row("bool: one byte, 0 or 1", reads(line("bool", False, 0, 1, codecs=["bytes"], dtype="|u1"), [False, True]))
for endian, order in ("little", "<"), ("big", ">"):
    TEXT.row(
        f"integers: two's complement, {endian}-endian",
        all_of(
            *(
                stored_as(
                    f"{kind}int{8 * size}",
                    endian,
                    f"{order}{kind or 'i'}{size}",
                    1,
                    2 ** (8 * size - 1) - 1,
                    *([] if kind else [-2]),
                )
                for kind in ("", "u")
                for size in (1, 2, 4, 8)
            )
        ),
    )
    TEXT.row(
        f"floats: IEEE 754, {endian}-endian",
        all_of(*(stored_as(f"float{8 * size}", endian, f"{order}f{size}", 1.5, -np.inf) for size in (2, 4, 8))),
    )
    TEXT.row(
        f"complex: the real part, then the imaginary one, {endian}-endian",
        all_of(*(stored_as(f"complex{8 * size}", endian, f"{order}c{size}", 1.5 - 2j) for size in (8, 16))),
    )
TEXT.row(
    "r*: the bytes as they are",
    reads(
        {"zarr.json": line("r24", [0, 0, 0], codecs=[codec("bytes", endian="big")])["zarr.json"], "c/0": b"\1\2\3"},
        np.array([b"\1\2\3"], "|V3"),
    ),
)
TEXT.row("the configuration has no other member", unknown("dtype", codecs=[codec("bytes", dtype="<i2")]), "as stated: refused")

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("14", "Codec transpose")

TEXT.row("order is required", bad("order", codecs=["transpose", BYTES]), REFUSED)
TEXT.row(
    "order: a permutation of 0 to n-1",
    all_of(
        *(
            bad("codec", codecs=[codec("transpose", order=each), BYTES])
            for each in ([0], [0, 0], [1, 2], [0, 1, 2], [0, "1"], 1, None)
        )
    ),
    OTHERS,
)
TEXT.row(
    "no constants C and F",
    lambda: equal(
        (
            elements(store(codecs=[codec("transpose", order="C"), BYTES])).tolist(),
            elements(encoded(codec("transpose", order="F"), BYTES, left=LEFT.T.tobytes(), right=RIGHT.T.tobytes())).tolist(),
        ),
        (WHOLE.tolist(),) * 2,
    ),
    "read, as in drafts of the specification and as zarrita writes them (a quirk); never written",
)


@TEXT.rule("B_shape[i] = A_shape[order[i]], and B[B_pos] = A[A_pos] where B_pos[i] = A_pos[order[i]]")
def _() -> None:
    values = np.arange(24, dtype="<i2").reshape(2, 3, 4)
    order = [2, 0, 1]
    encoded = np.empty([values.shape[axis] for axis in order], "<i2")
    for position in np.ndindex(values.shape):
        encoded[tuple(position[axis] for axis in order)] = values[position]
    of = doc(shape=[2, 3, 4], chunk_grid=grid(2, 3, 4), codecs=[codec("transpose", order=order), BYTES])
    assert same(elements({"zarr.json": of, "c/0/0/0": encoded}), values)


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("15", "Codec gzip")

TEXT.row(
    "level: an integer from 0 to 9",
    all_of(
        *(
            lambda each=each: equal(
                metadata({"zarr.json": doc(codecs=[BYTES, codec("gzip", level=each)])}).codecs[-1].configuration["level"], each
            )
            for each in (0, 9)
        ),
        *(bad("level", codecs=[BYTES, codec("gzip", level=each)]) for each in (-1, 10, "1", None, 1.0)),
        bad("level", codecs=[BYTES, "gzip"]),
    ),
    OTHERS,
)
TEXT.row("the data are a Gzip file (RFC 1952)", gives([BYTES, GZIP], gzip.compress(LEFT.tobytes()), gzip.compress(RIGHT.tobytes())))
TEXT.row(
    "a written chunk is a Gzip file",
    lambda: equal(gzip.decompress(made(codecs="gzip:level=1", write={(0,): [8, 9]})["a/c/0"]), np.array([8, 9], "<i4").tobytes()),
)
TEXT.row(
    "level 0: not compressed",
    lambda: equal(
        np.arange(64, dtype="<i4").tobytes()
        in made(shape=(64,), chunks=(64,), codecs="gzip:level=0", write={(0,): np.arange(64)})["a/c/0"],
        True,
    ),
)
TEXT.tested(
    "a file may have several members",
    stream_tests.test_gzip_is_followed_by_members_or_zeros_alone,
    "as stated; zeros may follow, anything else is EIO",
)
TEXT.tested("checksum and length at its end", stream_tests.test_damaged_checksums_are_noticed, "as stated: a wrong one is EIO")

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("16", "Codec blosc")

BLOSC: dict[str, Any] = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}


def blosc(**members: Any) -> list[Any]:
    return [BYTES, codec("blosc", **{name: value for name, value in {**BLOSC, **members}.items() if value is not ...})]


def packed(values: np.ndarray[Any, Any], **how: Any) -> bytes:
    return bytes(numcodecs.Blosc(**how).encode(values))


TEXT.row(
    "cname: lz4, lz4hc, blosclz, zstd, zlib",
    all_of(
        *(
            gives(blosc(cname=each), packed(LEFT, cname=each), packed(RIGHT, cname=each))
            for each in ("lz4", "lz4hc", "blosclz", "zstd", "zlib")
        ),
        *(bad("cname", codecs=blosc(cname=each)) for each in ("lzma", 5, ...)),
    ),
    OTHERS,
)
TEXT.tested(
    "cname: snappy", blosc_tests.test_snappy, "with the extra package imagecodecs: numcodecs' c-blosc lacks it; refused without"
)
TEXT.row(
    "clevel: an integer from 0 to 9", all_of(*(bad("clevel", codecs=blosc(clevel=each)) for each in (-1, 10, "5", ...))), OTHERS
)
TEXT.row(
    'shuffle: "noshuffle", "shuffle", "bitshuffle"',
    all_of(
        *(
            gives(blosc(shuffle=each), packed(LEFT, shuffle=number), packed(RIGHT, shuffle=number))
            for number, each in enumerate(("noshuffle", "shuffle", "bitshuffle"))
        ),
        *(bad("shuffle", codecs=blosc(shuffle=each)) for each in (1, "byte")),
    ),
    OTHERS,
)
TEXT.row(
    "a shuffle that is chosen MUST be recorded",
    lambda: equal(
        document(made(codecs="blosc:cname=lz4:clevel=5"), "a/zarr.json")["codecs"][1]["configuration"]["shuffle"], "shuffle"
    ),
)
TEXT.row(
    "typesize: positive, required unless there is no shuffle",
    all_of(*(bad("typesize", codecs=blosc(typesize=each)) for each in (0, -1, "4"))),
    "as stated; if absent, it is the element size, as in zarr-python",
)
TEXT.row(
    "a typesize that is chosen MUST be recorded",
    lambda: equal(
        document(made(dtype="int16", codecs="blosc:cname=lz4:clevel=5"), "a/zarr.json")["codecs"][1]["configuration"]["typesize"], 2
    ),
)
TEXT.row(
    "blocksize: bytes of a block, 0 automatic",
    all_of(
        gives(blosc(blocksize=16), packed(LEFT, blocksize=16), packed(RIGHT, blocksize=16)),
        bad("blocksize", codecs=blosc(blocksize=-1)),
    ),
    OTHERS,
)
TEXT.row("the format is c-blosc's: a header and blocks", lambda: _header())
TEXT.tested("a header that is wrong", blosc_tests.test_a_header_that_lies, "EIO, with the reason")


def _header() -> None:
    data = made(codecs="blosc:cname=lz4:clevel=5:shuffle=shuffle:typesize=4:blocksize=0", write={(0,): [8, 9]})["a/c/0"]
    header = blosc_header(data)
    assert (header["typesize"], header["nbytes"], header["cbytes"]) == (4, 8, len(data))
    assert numcodecs.Blosc().decode(data) == np.array([8, 9], "<i4").tobytes()


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("17", "Codec crc32c")

TEXT.row(
    "the bytes and their CRC32C, four bytes, little-endian",
    gives([BYTES, CRC32C], checked(LEFT.tobytes()), checked(RIGHT.tobytes())),
)
TEXT.tested("the checksum is that of RFC 3720", checksum_tests.test_crc32c_as_the_text_has_it)
TEXT.row(
    "a written chunk has the checksum",
    lambda: equal(made(codecs="crc32c", write={(0,): [8, 9]})["a/c/0"], checked(np.array([8, 9], "<i4").tobytes())),
)
TEXT.row("no configuration", unknown("level", codecs=[BYTES, codec("crc32c", level=1)]), "as stated: one with members is refused")
TEXT.row(
    "a checksum that does not match",
    raises(
        ChecksumMismatch,
        "crc32c",
        lambda: elements(encoded(BYTES, CRC32C, left=LEFT.tobytes() + b"\0\0\0\0", right=checked(RIGHT.tobytes()))),
    ),
    "EIO, and an error that names the chunk",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("18", "Codec zstd (zarr-extensions)")

TEXT.row(
    "level: an integer from -131072 to 22",
    all_of(*(bad("level", codecs=[BYTES, codec("zstd", level=each, checksum=False)]) for each in (-131073, 23, "1", 1.0))),
    OTHERS,
)
TEXT.row(
    "checksum: a boolean, whether frames end with one",
    all_of(
        *(lambda each=each: _checksum(each) for each in (False, True)),
        bad("checksum", codecs=[BYTES, codec("zstd", level=0, checksum=1)]),
    ),
    OTHERS,
)
TEXT.row(
    "the data are Zstandard frames (RFC 8878)",
    gives(
        [BYTES, codec("zstd", level=0, checksum=True)],
        bytes(numcodecs.Zstd(0, True).encode(LEFT)),
        bytes(numcodecs.Zstd(0).encode(RIGHT)),
    ),
)
TEXT.tested("frames that do not say how long they are, and several frames", zstd_tests.test_any_run_of_frames)
TEXT.tested("a checksum that does not match", zstd_tests.test_a_damaged_checksum_is_noticed, "EIO")


def _checksum(is_wanted: bool) -> None:
    data = made(codecs=f"zstd:level=1:checksum={str(is_wanted).lower()}", write={(0,): [8, 9]})["a/c/0"]
    # RFC 8878, 3.1.1.1.1: the third bit of the frame's descriptor.
    assert bool(data[4] & 4) is is_wanted
    assert numcodecs.Zstd().decode(data) == np.array([8, 9], "<i4").tobytes()


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("19", "Codec sharding_indexed: configuration")

SHARDED = {"zarr.json": doc(shape=[4, 4], chunk_grid=grid(4, 4), codecs=[shards(2, 2)])}
BLOCKS = {(row, column): np.full((2, 2), 10 * row + column, "<i2") for row in range(2) for column in range(2)}
BLOCKED = np.block([[BLOCKS[0, 0], BLOCKS[0, 1]], [BLOCKS[1, 0], BLOCKS[1, 1]]])


def sharded(*chain: Any, **members: Any) -> dict[str, Any]:
    """Return an array of 4 by 4 in one shard of four chunks."""
    return {"zarr.json": doc(shape=[4, 4], chunk_grid=grid(4, 4), codecs=list(chain), **members)}


def shard(
    chunks: Mapping[tuple[int, int], bytes],
    *,
    order: Any = None,
    gap: bytes = b"",
    at: str = "end",
    big: bool = False,
    crc: bool = True,
) -> bytes:
    """Return a shard of 2 by 2 chunks in the form of the text; ``order`` is that of their bytes, ``gap`` precedes each."""
    index_nbytes = 4 * 16 + (4 if crc else 0)
    start = index_nbytes if at == "start" else 0
    body, entries = b"", dict.fromkeys(np.ndindex(2, 2), (EMPTY, EMPTY))
    for coords in order or sorted(chunks):
        body += gap
        entries[coords] = (start + len(body), len(chunks[coords]))
        body += chunks[coords]
    index = b"".join(struct.pack(">QQ" if big else "<QQ", *entries[coords]) for coords in np.ndindex(2, 2))
    index = checked(index) if crc else index
    return index + body if at == "start" else body + index


PLAIN_BLOCKS = {coords: block.tobytes() for coords, block in BLOCKS.items()}


def without(name: str) -> dict[str, Any]:
    found = shards(2, 2)
    return {"name": found["name"], "configuration": {each: value for each, value in found["configuration"].items() if each != name}}


TEXT.row(
    "chunk_shape: as many lengths as the shard has dimensions",
    all_of(
        bad("chunk_shape is missing", codecs=[without("chunk_shape")]),
        bad("chunk shape", codecs=[shards(2)]),
        bad("chunk_shape", codecs=[shards(2, "2")]),
    ),
    OTHERS,
)
TEXT.row(
    "chunk_shape divides the shard evenly",
    all_of(
        bad("does not divide", shape=[4, 4], chunk_grid=grid(4, 4), codecs=[shards(2, 3)]),
        bad("does not divide", shape=[4, 4], chunk_grid=grid(4, 4), codecs=[shards(8, 4)]),
    ),
    REFUSED,
)
TEXT.row(
    "the example: chunks of [32, 2] in a shard of [64, 64] are 2 by 32",
    lambda: equal(
        metadata({"zarr.json": doc(shape=[64, 64], chunk_grid=grid(64, 64), codecs=[shards(32, 2)])}).shards[0].chunks_per_shard,
        (2, 32),
    ),
)
TEXT.row(
    "codecs: required, with exactly one array -> bytes codec",
    all_of(bad("codecs is missing", codecs=[without("codecs")]), bad("codecs", codecs=[shards(1, 1, codecs=[BYTES, BYTES])])),
    OTHERS + "; a list without one is read as in 12.03",
)
TEXT.row(
    "inner chunks are encoded with these codecs",
    reads(
        sharded(shards(2, 2, codecs=[TRANSPOSE, BYTES, GZIP]))
        | {"c/0/0": shard({coords: gzip.compress(block.T.tobytes()) for coords, block in BLOCKS.items()})},
        BLOCKED,
    ),
)
TEXT.row("index_codecs: required", bad("index_codecs is missing", codecs=[without("index_codecs")]), REFUSED)
TEXT.row(
    "index_codecs: no codecs of variable size",
    unknown("index_codecs", codecs=[shards(2, 1, index_codecs=[BYTES, GZIP])]),
    "as stated: bytes, optionally crc32c; anything else is refused",
)
TEXT.row(
    "index_codecs: any byte order, with or without a checksum",
    all_of(
        *(
            reads(
                sharded(shards(2, 2, index_codecs=[codec("bytes", endian="big" if big else "little"), *([CRC32C] if crc else [])]))
                | {"c/0/0": shard(PLAIN_BLOCKS, big=big, crc=crc)},
                BLOCKED,
            )
            for big in (False, True)
            for crc in (False, True)
        )
    ),
)
TEXT.row(
    "little-endian and crc32c are recommended",
    lambda: equal(document(made(shards="2"), "a/zarr.json")["codecs"][0]["configuration"]["index_codecs"], [BYTES, CRC32C]),
    "as stated, for new arrays",
)
TEXT.row(
    'index_location: "start" or "end"',
    all_of(
        reads(sharded(shards(2, 2, index_location="start")) | {"c/0/0": shard(PLAIN_BLOCKS, at="start")}, BLOCKED),
        reads(sharded(shards(2, 2, index_location="end")) | {"c/0/0": shard(PLAIN_BLOCKS)}, BLOCKED),
        *(bad("index_location", codecs=[shards(2, 1, index_location=each)]) for each in ("middle", None, 0)),
    ),
    OTHERS,
)
TEXT.row("an index at the start is written there, and offsets count from the beginning of the shard", lambda: _at_start())
TEXT.row(
    "index_location: not present it is the end", reads(sharded(without("index_location")) | {"c/0/0": shard(PLAIN_BLOCKS)}, BLOCKED)
)
TEXT.row(
    "it is an array -> bytes codec: others may stand before and behind it",
    reads(
        sharded(TRANSPOSE, shards(2, 2), GZIP)
        | {"c/0/0": gzip.compress(shard({(column, row): BLOCKS[row, column].T.tobytes() for row, column in BLOCKS}))},
        BLOCKED,
    ),
    "transpose before it, bytes -> bytes codecs after it; a codec that changes values before it is refused",
)
TEXT.tested(
    "shards in shards",
    sharding_tests.test_shards_in_shards_are_told_from_the_outside,
    "read and written, up to a useful depth",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("20", "Codec sharding_indexed: binary format")

TEXT.row(
    "a shard is the chunk of the outer array, one object of the store",
    lambda: equal(
        keys(made(shape=(4, 4), chunks=(2, 2), shards="2x2", write=dict(BLOCKS))),
        ["a/c/0/0", "a/zarr.json", "zarr.json"],
    ),
)
TEXT.row("chunks are written one behind the other, then the index", lambda: _written())
TEXT.row("unused space between them is allowed", reads({**SHARDED, "c/0/0": shard(PLAIN_BLOCKS, gap=b"gap")}, BLOCKED))
TEXT.row("the index: uint64, of the shape of chunks per shard and 2, offset and nbytes", lambda: _index())
TEXT.row("offset: from the beginning of the shard", reads({**SHARDED, "c/0/0": shard(PLAIN_BLOCKS, gap=b"12345")}, BLOCKED))
TEXT.row("an empty chunk has offset and nbytes 2^64-1", lambda: _one_of_four())
TEXT.row(
    "an empty chunk is filled with the fill value",
    reads({**SHARDED, "c/0/0": shard({(1, 0): PLAIN_BLOCKS[1, 0]})}, [[7] * 4, [7] * 4, [10, 10, 7, 7], [10, 10, 7, 7]]),
)
TEXT.row(
    "an entry of which only offset is 2^64-1",
    raises(
        ShardIndexInvalid,
        "outside the chunk area",
        lambda: elements({**SHARDED, "c/0/0": checked(struct.pack("<8Q", EMPTY, 8, *[EMPTY] * 6))}),
    ),
    "damage: EIO for that chunk",
)
TEXT.row(
    "an entry of which only nbytes is 2^64-1",
    reads(
        sharded(shards(2, 2, index_location="start"))
        | {"c/0/0": checked(struct.pack("<8Q", 68, 8, 67, EMPTY, 5, EMPTY, 0, EMPTY)) + PLAIN_BLOCKS[0, 0]},
        [[0, 0, 7, 7]] * 2 + [[7] * 4] * 2,
    ),
    "an empty chunk: zarrita 0.2.7 adds the length of the index to every offset, and the marker overflows",
)
TEXT.row(
    "the index has its full shape, beyond the array's edge too",
    reads(
        {
            "zarr.json": doc(shape=[3, 2], chunk_grid=grid(4, 4), codecs=[shards(2, 2)]),
            "c/0/0": shard({(0, 0): PLAIN_BLOCKS[0, 0], (1, 0): PLAIN_BLOCKS[1, 0]}),
        },
        [[0, 0], [0, 0], [10, 10]],
    ),
)
TEXT.row(
    "the example: four chunks, crc32c: an index of 68 bytes",
    raises(ShardIndexInvalid, r"\(68 bytes\)", lambda: elements({**SHARDED, "c/0/0": bytes(67)})),
)
TEXT.row(
    "chunks may be in any order", reads({**SHARDED, "c/0/0": shard(PLAIN_BLOCKS, order=[(1, 1), (0, 1), (1, 0), (0, 0)])}, BLOCKED)
)
TEXT.row("writing into a shard keeps the others, whatever their order", lambda: _merged())
TEXT.row(
    "parameters of the strategy must not be in the document",
    lambda: equal(
        set(document(made(shards="2"), "a/zarr.json")["codecs"][0]["configuration"]),
        {"chunk_shape", "codecs", "index_codecs", "index_location"},
    ),
)
TEXT.row(
    "an index whose checksum does not match",
    raises(ShardIndexInvalid, "index", lambda: elements({**SHARDED, "c/0/0": shard(PLAIN_BLOCKS)[:-1] + b"x"})),
    "EIO for every chunk of the shard, and no fill values",
)
TEXT.row(
    "a shard shorter than its index",
    raises(ShardIndexInvalid, "index", lambda: elements({**SHARDED, "c/0/0": b"short"})),
    "EIO for every chunk of the shard",
)
TEXT.row(
    "an entry that leads outside of the shard",
    raises(
        ShardIndexInvalid, "the chunk area", lambda: elements({**SHARDED, "c/0/0": checked(struct.pack("<8Q", 0, 8, *[EMPTY] * 6))})
    ),
    "EIO for that chunk",
)


def _written() -> None:
    made_store = made(shape=(4, 4), chunks=(2, 2), dtype="int16", shards="2x2", write=dict(BLOCKS))
    data = made_store["a/c/0/0"]
    assert len(data) == 4 * 8 + 68 and same(elements(made_store, "/a"), BLOCKED)
    entries = sorted(struct.iter_unpack("<QQ", data[-68:-4]))
    assert entries == [(0, 8), (8, 8), (16, 8), (24, 8)]


def _index() -> None:
    data = made(shape=(4, 4), chunks=(2, 2), dtype="int16", shards="2x2", write=dict(BLOCKS))["a/c/0/0"]
    assert data[-4:] == struct.pack("<I", google_crc32c.value(data[-68:-4]))
    for coords, (offset, nbytes) in zip(np.ndindex(2, 2), struct.iter_unpack("<QQ", data[-68:-4]), strict=True):
        assert data[offset : offset + nbytes] == PLAIN_BLOCKS[coords]


def _one_of_four() -> None:
    data = made(shape=(4, 4), chunks=(2, 2), dtype="int16", shards="2x2", write={(1, 0): BLOCKS[1, 0]})["a/c/0/0"]
    assert data[:-4] == PLAIN_BLOCKS[1, 0] + struct.pack("<8Q", EMPTY, EMPTY, EMPTY, EMPTY, 0, 8, EMPTY, EMPTY)


def _at_start() -> None:
    after = edited(sharded(shards(2, 2, index_location="start")), _write_one)
    data = after["c/0/0"]
    assert data == checked(struct.pack("<8Q", EMPTY, EMPTY, 68, 8, EMPTY, EMPTY, EMPTY, EMPTY)) + NEW.tobytes()


def _merged() -> None:
    values = {**SHARDED, "c/0/0": shard(PLAIN_BLOCKS, order=[(1, 1), (0, 1), (1, 0), (0, 0)], gap=b"gap")}
    expected = BLOCKED.copy()
    expected[:2, 2:] = NEW
    assert same(elements(edited(values, _write_one)), expected)


NEW = np.full((2, 2), 99, "<i2")


async def _write_one(_: Any, hierarchy: Any) -> None:
    found = await hierarchy.array(NodePath("/"))
    await found.array.write_chunk((0, 1), NEW.tobytes())
    await hierarchy.queued.publish(found.live.chunk_prefix)


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
