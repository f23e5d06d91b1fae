"""Zarr v3 core draft of 2 December 2022, statement by statement: data type extensions, sharding, codecs, file system store."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping
from typing import Any

import numcodecs
import numpy as np

from tests.codecs import test_blosc as blosc_tests
from tests.conformance import test_v3_2022
from tests.conformance.stores import file_system_store
from tests.conformance.test_v3_2022 import (
    ENTRY,
    LEFT,
    OTHERS,
    REFUSED,
    RIGHT,
    WHOLE,
    bad,
    doc,
    line,
    made,
    store,
    unknown,
)
from tests.support.conforming import Check, all_of, blosc_header, document, edited, elements, equal, metadata, raises, reads, same
from tests.support.statements import Statement
from tests.transformers import test_sharding as sharding_tests
from tests.transformers import test_sharding_keys as key_tests
from tests.transformers import test_sharding_stateful as model_tests
from zarrfs.errors import ShardIndexInvalid
from zarrfs.keys import NodePath

TEXT = test_v3_2022.TEXT.continued()

URI = "https://purl.org/zarr/spec/extensions/data-types/{}/1.0"
EMPTY = 2**64 - 1


def extended(name: str, named: Any, fallback: Any = "r8") -> dict[str, Any]:
    """Return a data type of an extension."""
    return {"extension": URI.format(name), "type": named, "fallback": fallback}


def elements_of(name: str, named: Any, dtype: Any, *values: Any, fill: Any = None) -> Check:
    """Return a check that elements of this type of an extension are read, as little-endian ones."""
    expected = np.array(list(values), dtype)
    values_of = line(extended(name, named), fill, *values, dtype=dtype)
    return reads(values_of, expected.astype(expected.dtype.newbyteorder("<")), "/a")


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("14", "Data types: Complex number data types")

TEXT.row(
    "(no identifiers are defined)",
    all_of(
        elements_of("complex", "<c8", "<c8", 1.5 - 2j, 3j, fill=[0, 0]),
        elements_of("complex", ">c16", ">c16", 1.5 - 2j, fill=[0, 0]),
    ),
    "the names of zarr-python, <c8 and <c16, are read; the core has complex64 and complex128",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("15", "Data types: Datetime data types")

TEXT.row(
    "datetime: 64-bit integers since 1970-01-01T00:00Z",
    lambda: equal(
        elements(line(extended("datetime", "<M8[s]"), 0, 1, 86400, dtype="<i8"), "/a").astype(str).tolist(),
        ["1970-01-01T00:00:01", "1970-01-02T00:00:00"],
    ),
)
TEXT.row("timedelta: 64-bit integers, the difference of two datetimes", elements_of("datetime", "<m8[h]", "<m8[h]", 5, -7, fill=0))
TEXT.row(
    "the units Y M W D h m s ms us ns ps fs as",
    all_of(
        *(elements_of("datetime", f"<M8[{unit}]", f"<M8[{unit}]", 5, fill=0) for unit in "Y M W D h m s ms us ns ps fs as".split())
    ),
)
TEXT.row(
    '"[endianness]M8[units]" and "[endianness]m8[units]"',
    all_of(elements_of("datetime", ">M8[ns]", ">M8[ns]", 5, fill=0), elements_of("datetime", ">m8[D]", ">m8[D]", 5, fill=0)),
    "as stated: big-endian types without a codec endian",
)
TEXT.row(
    "endianness and units must be given",
    all_of(
        *(
            unknown("without a known fallback", data_type=extended("datetime", each, "made_up"))
            for each in ("M8[ns]", "<M8", "<M8[]", "<M8[fortnight]", "|M8[s]")
        )
    ),
    "as stated: anything else is unknown",
)
TEXT.row(
    "the written form",
    lambda: equal(document(made(dtype="<M8[ns]"), "meta/a.array.json")["data_type"], extended("datetime", "<M8[ns]", "int64")),
    "extension, type, and int64 as fallback",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("16", "Data types: String data types")

TEXT.row(
    "Sn: n bytes, zero-terminated, padded with zeros",
    all_of(
        elements_of("string", "S4", "|S4", b"a", b"bcd", b"efgh", fill=""),
        lambda: equal(
            made(dtype="|S4", shape=(3,), chunks=(3,), write={(0,): [b"a", b"bcd", b"efgh"]})["data/a/c0"], b"a\0\0\0bcd\0efgh"
        ),
    ),
    "as stated; |Sn, which software wrote, is also read",
)
TEXT.row("<Un: n characters of UTF-32, little-endian", elements_of("string", "<U4", "<U4", "a", "bcd", "äöü", fill=""))
TEXT.row(">Un: n characters of UTF-32, big-endian", elements_of("string", ">U4", ">U4", "a", "bcd", "äöü", fill=""))
TEXT.row(
    "(no statement) fill values of Sn",
    all_of(
        reads(line(extended("string", "S4"), "ab"), [b"ab"], "/a"),
        reads(line(extended("string", "|S4"), "YWI="), [b"ab"], "/a"),
        reads(line(extended("string", "S2"), "0x6162"), [b"ab"], "/a"),
    ),
    "text for S4, Base64 for the software's |S4, and hexadecimal digits of exactly the size",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("17", "Data types: Struct data types")

DOGS = [["name", "<U10"], ["age", "<i4"], ["weight", "<f4"]]
DOGS_TYPE = [("name", "<U10"), ("age", "<i4"), ("weight", "<f4")]
TEXT.row(
    "a list of names and types; the example of dogs",
    elements_of("struct", DOGS, DOGS_TYPE, ("Rex", 9, 81.0), ("Fido", 3, 27.0), fill=0),
)
TEXT.row(
    "types of the core and of extensions",
    lambda: equal(
        metadata(line(extended("struct", [["x", "float32"], ["t", "<M8[s]"], ["n", [["a", "int8"]]]]), 0), "/a").data_type.dtype,
        np.dtype([("x", "<f4"), ("t", "<M8[s]"), ("n", [("a", "i1")])]),
    ),
    "as stated, also nested",
)
TEXT.row(
    "the size is the sum of the sizes of the fields",
    lambda: equal(metadata(line(extended("struct", DOGS), 0), "/a").data_type.itemsize, 48),
)
TEXT.row(
    "a type that is no list of names and types",
    all_of(
        *(
            unknown("data.type", data_type=extended("struct", each, "made_up"))
            for each in ([], [["x"]], [[1, "int8"]], [["x", "made_up"]])
        )
    ),
    "unknown: its fallback counts",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("18", "Sharding storage transformer: Configuration")

SHARDING_URI = "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0"


def sharding(*counts: Any, **more: Any) -> dict[str, Any]:
    return {"extension": SHARDING_URI, "type": "indexed", "configuration": {"chunks_per_shard": list(counts)}, **more}


BLOCKS = {(row, column): np.full((2, 2), 10 * row + column, "<i2") for row in range(2) for column in range(2)}
BLOCKED = np.block([[BLOCKS[0, 0], BLOCKS[0, 1]], [BLOCKS[1, 0], BLOCKS[1, 1]]])
PLAIN_BLOCKS = {coords: block.tobytes() for coords, block in BLOCKS.items()}


def sharded(transformer: Any = None, **members: Any) -> dict[str, Any]:
    """Return the array /a of 4 by 4 in one shard of four chunks."""
    return {
        "zarr.json": ENTRY,
        "meta/a.array.json": doc(shape=[4, 4], storage_transformers=[transformer or sharding(2, 2)], **members),
    }


def shard(chunks: Mapping[tuple[int, int], bytes], *, order: Any = None, gap: bytes = b"") -> bytes:
    """Return a shard of 2 by 2 chunks in the form of the text; ``order`` is that of their bytes, ``gap`` precedes each."""
    body, entries = b"", dict.fromkeys(np.ndindex(2, 2), (EMPTY, EMPTY))
    for coords in order or sorted(chunks):
        body += gap
        entries[coords] = (len(body), len(chunks[coords]))
        body += chunks[coords]
    return body + b"".join(struct.pack("<QQ", *entries[coords]) for coords in np.ndindex(2, 2))


WITH_SHARD = {**sharded(), "data/a/c0/0": shard(PLAIN_BLOCKS)}
TEXT.row("configured per array, in storage_transformers", reads(WITH_SHARD, BLOCKED, "/a"))
TEXT.row(
    "extension: the URI of sharding",
    all_of(
        *(
            reads({**sharded(sharding(2, 2, extension=uri)), "data/a/c0/0": shard(PLAIN_BLOCKS)}, BLOCKED, "/a")
            for uri in (
                SHARDING_URI,
                SHARDING_URI.replace("extensions/", ""),
                "https://purl.org/zarr/spec/extensions/storage-transformers/sharding/1.0",
            )
        ),
        unknown("shard|storage transformer", storage_transformers=[sharding(1, 1, extension="https://example.org/sharding/1.0")]),
    ),
    "as stated, in the specification's and the software's form",
)
TEXT.row(
    "type: the binary format, indexed",
    unknown("other", storage_transformers=[sharding(1, 1, type="other")]),
    "as stated; another is refused",
)
TEXT.row(
    "chunks_per_shard: an array of integers, one for each dimension",
    all_of(
        *(
            bad("shard|storage transformer", storage_transformers=[sharding(*each)])
            for each in ((2,), (2, 2, 2), (2, "2"), (2, 2.0), (0, 2))
        ),
        unknown("made_up", storage_transformers=[sharding(2, 2, made_up=1)]),
    ),
    OTHERS,
)
TEXT.row(
    "[32, 2]: 64 chunks are a shard, 32 along the first dimension",
    lambda: equal(
        metadata({"zarr.json": ENTRY, "meta/a.array.json": doc(shape=[200, 40], storage_transformers=[sharding(32, 2)])}, "/a")
        .shards[0]
        .chunks,
        64,
    ),
)
TEXT.row(
    "shards begin where the index is divisible by chunks_per_shard",
    lambda: equal(
        sorted(made(shape=(6,), chunks=(1,), shards="4", write={(n,): [n] for n in range(6)})),
        ["data/a/c0", "data/a/c1", "meta/a.array.json", "zarr.json"],
    ),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("19", "Sharding storage transformer: Key & value transformation")

TEXT.row(
    "only data keys of chunks are changed",
    lambda: equal(
        sorted(made(shape=(4,), chunks=(2,), shards="2", write={(0,): [1, 2]})), ["data/a/c0", "meta/a.array.json", "zarr.json"]
    ),
    "as stated; the specification has data/root here, and data elsewhere: the keys of the array's form count",
)
TEXT.tested("all other entries are passed on", sharding_tests.test_other_keys_below_prefixes_of_chunks_are_passed_on)
TEXT.tested(
    "the shard's key: the chunk's index divided and floored; the example c96/18 to c3/9",
    sharding_tests.test_the_example_of_the_text,
)
TEXT.row(
    "the separator of the array is kept",
    lambda: equal("data/a/c0.1" in made(shape=(4, 8), chunks=(2, 2), shards="2x2", separator=".", write={(0, 3): LEFT}), True),
)
TEXT.tested(
    "of a 0-dimensional array", sharding_tests.test_the_only_chunk_of_a_0_dimensional_array, "its one chunk is a shard of one"
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("20", "Sharding storage transformer: Binary shard format")

TEXT.row("chunks one behind the other, then the index", lambda: _written())
TEXT.row(
    "unused space between chunks is allowed", reads({**sharded(), "data/a/c0/0": shard(PLAIN_BLOCKS, gap=b"gap")}, BLOCKED, "/a")
)
TEXT.row(
    "the index is at the end, 16 bytes for each chunk",
    raises(ShardIndexInvalid, r"\(64 bytes\)", lambda: elements({**sharded(), "data/a/c0/0": bytes(63)}, "/a")),
    "as stated; 16 * 64 is 1024 bytes, not 1014 as in the specification",
)
TEXT.row("pairs of offset and nbytes, little-endian uint64, in C order", lambda: _index())
TEXT.row(
    "empty chunks: both are 2^64-1",
    all_of(
        reads(
            {**sharded(), "data/a/c0/0": shard({(1, 0): PLAIN_BLOCKS[1, 0]})},
            [[7] * 4, [7] * 4, [10, 10, 7, 7], [10, 10, 7, 7]],
            "/a",
        ),
        lambda: _one_of_four(),
    ),
)
TEXT.row(
    "an entry of which only one number is 2^64-1",
    all_of(
        raises(
            ShardIndexInvalid,
            "outside the chunk area",
            lambda: elements({**sharded(), "data/a/c0/0": struct.pack("<8Q", EMPTY, 8, *[EMPTY] * 6)}, "/a"),
        ),
        reads({**sharded(), "data/a/c0/0": struct.pack("<8Q", *[0, EMPTY] * 4)}, [[7] * 4] * 4, "/a"),
    ),
    "nbytes: an empty chunk; offset: damage, EIO for that chunk",
)
TEXT.row(
    "the index has its full shape, beyond the array's edge too",
    reads(
        {
            "zarr.json": ENTRY,
            "meta/a.array.json": doc(shape=[3, 2], storage_transformers=[sharding(2, 2)]),
            "data/a/c0/0": shard({(0, 0): PLAIN_BLOCKS[0, 0], (1, 0): PLAIN_BLOCKS[1, 0]}),
        },
        [[0, 0], [0, 0], [10, 10]],
        "/a",
    ),
)
TEXT.row(
    "chunks may be in any order",
    reads({**sharded(), "data/a/c0/0": shard(PLAIN_BLOCKS, order=[(1, 1), (0, 1), (1, 0), (0, 0)])}, BLOCKED, "/a"),
)
TEXT.row("writing into a shard keeps the others, whatever their order", lambda: _merged())
TEXT.row(
    "parameters of the strategy must not be in the document",
    lambda: equal(document(made(shards="2"), "meta/a.array.json")["storage_transformers"], [sharding(2)]),
)
TEXT.tested(
    "an entry that leads outside of the shard",
    sharding_tests.test_an_entry_that_leads_outside_concerns_its_chunk_alone,
    "EIO for that chunk",
)
TEXT.tested(
    "identical entries",
    sharding_tests.test_identical_entries_are_one_chunk_stored_once,
    "legal: one value for several chunks; overlapping ones are not",
)


def _written() -> None:
    values = made(shape=(4, 4), chunks=(2, 2), dtype="int16", shards="2x2", write=dict(BLOCKS))
    data = values["data/a/c0/0"]
    assert len(data) == 4 * 8 + 64 and same(elements(values, "/a"), BLOCKED)
    assert sorted(struct.iter_unpack("<QQ", data[-64:])) == [(0, 8), (8, 8), (16, 8), (24, 8)]


def _index() -> None:
    data = made(shape=(4, 4), chunks=(2, 2), dtype="int16", shards="2x2", write=dict(BLOCKS))["data/a/c0/0"]
    for coords, (offset, nbytes) in zip(np.ndindex(2, 2), struct.iter_unpack("<QQ", data[-64:]), strict=True):
        assert data[offset : offset + nbytes] == PLAIN_BLOCKS[coords]


def _one_of_four() -> None:
    data = made(shape=(4, 4), chunks=(2, 2), dtype="int16", shards="2x2", write={(1, 0): BLOCKS[1, 0]})["data/a/c0/0"]
    assert data == PLAIN_BLOCKS[1, 0] + struct.pack("<8Q", EMPTY, EMPTY, EMPTY, EMPTY, 0, 8, EMPTY, EMPTY)


def _merged() -> None:
    values = {**sharded(), "data/a/c0/0": shard(PLAIN_BLOCKS, order=[(1, 1), (0, 1), (1, 0), (0, 0)], gap=b"gap")}
    new = np.full((2, 2), 99, "<i2")

    async def write(_: Any, hierarchy: Any) -> None:
        found = await hierarchy.array(NodePath("/a"))
        await found.array.write_chunk((0, 1), new.tobytes())
        await hierarchy.queued.publish(found.live.chunk_prefix)

    expected = BLOCKED.copy()
    expected[:2, 2:] = new
    assert same(elements(edited(values, write), "/a"), expected)


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("21", "Sharding storage transformer: API implementation")

TEXT.tested(
    "it is a StoreWithPartialAccess, of all ten operations",
    model_tests.test_a_store_with_shards_is_a_dictionary_of_chunks,
    "as stated: compared with a dictionary; the conformance suite of stores also covers it",
)
TEXT.tested(
    "get_partial_values: the indexes, then the chunks, in two operations",
    sharding_tests.test_chunks_of_a_shard_are_got_with_its_index_and_one_more_read_and_then_with_one,
    "as stated; one request where the index is known",
)
TEXT.tested(
    "get_partial_values: a chunk exists unless both are 2^64-1",
    sharding_tests.test_without_nbytes_there_is_no_chunk_whatever_the_offset,
    "as stated (the specification has it reversed); if only one of the two numbers is set, the chunk is damaged, and not listed",
)
TEXT.tested(
    "set_partial_values: a shard with all chunks present is created without reading",
    sharding_tests.test_of_a_shard_that_is_replaced_whole_no_chunk_is_read,
)
TEXT.tested(
    "set_partial_values: chunks that are not replaced whole are read",
    sharding_tests.test_chunks_that_are_replaced_whole_are_not_read_and_others_once,
)
TEXT.tested("set_partial_values: each shard is set once", sharding_tests.test_chunks_of_a_shard_are_set_with_one_set)
TEXT.tested(
    "erase_values: where all chunks of a shard go, it is erased unread",
    sharding_tests.test_shards_all_of_whose_chunks_go_are_not_read,
)
TEXT.tested(
    "erase_values: else the index marks them as missing, or the shard is rewritten",
    sharding_tests.test_erasing_what_is_not_there_writes_nothing,
    "as stated: rewritten without the erased chunks; not rewritten where none is erased",
)
TEXT.tested(
    "erase_prefix: whole shards by their keys, others by erase_values",
    sharding_tests.test_a_prefix_that_cuts_through_the_grid_takes_whole_shards_unread,
)
TEXT.tested(
    "list: all keys",
    sharding_tests.test_chunks_in_any_order_with_unused_bytes_between_them,
    'as stated: "list_prefix with the prefix /" means all keys',
)
TEXT.tested(
    "list_prefix: a prefix is translated to shards, chunks that exist are listed by their own keys",
    key_tests.test_leading_indices_of_a_prefix,
)
TEXT.tested(
    "list_dir: prefixes for partial keys, keys for chunks that exist",
    sharding_tests.test_listing_rows_reads_indexes_until_every_row_was_seen,
    "as stated; prefixes without a chunk, which the specification allows to be listed, are omitted",
)
TEXT.tested("a shard without chunks", sharding_tests.test_a_shard_without_chunks_is_not_seen, "neither key nor prefix")

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("22", "Blosc codec")


def listed(name: str, **configuration: Any) -> dict[str, Any]:
    return {"codecs": [{"type": f"https://purl.org/zarr/spec/codecs/{name}/1.0", "configuration": configuration}]}


def packed(**how: Any) -> dict[str, bytes]:
    """Return the chunks of `WHOLE`, compressed."""
    return {f"data/a/c0/{n}": bytes(numcodecs.Blosc(**how).encode(each)) for n, each in enumerate((LEFT, RIGHT))}


BLOSC = {"cname": "lz4", "clevel": 1, "shuffle": 1, "blocksize": 0}
TEXT.row(
    "cname: lz4, lz4hc, blosclz, zstd, zlib",
    all_of(
        *(
            reads({**store(**listed("blosc", **BLOSC | {"cname": each})), **packed(cname=each)}, WHOLE, "/a")
            for each in ("lz4", "lz4hc", "blosclz", "zstd", "zlib")
        ),
        bad("cname", **listed("blosc", **BLOSC | {"cname": "made_up"})),
    ),
    OTHERS,
)
TEXT.tested(
    "cname: snappy", blosc_tests.test_snappy, "with the extra package imagecodecs: numcodecs' c-blosc lacks it; refused without"
)
TEXT.row(
    "clevel: an integer from 0 to 9",
    all_of(*(bad("clevel", **listed("blosc", **BLOSC | {"clevel": each})) for each in (-1, 10, 1.5))),
    OTHERS,
)
TEXT.row(
    "shuffle: 0 none, 1 bytes, 2 bits, -1 by the size of the elements",
    all_of(
        *(
            reads({**store(**listed("blosc", **BLOSC | {"shuffle": each})), **packed(shuffle=each)}, WHOLE, "/a")
            for each in (0, 1, 2, -1)
        ),
        bad("shuffle", **listed("blosc", **BLOSC | {"shuffle": 3})),
    ),
    OTHERS,
)
TEXT.row(
    "blocksize: bytes of a block, 0 automatic",
    all_of(
        reads({**store(**listed("blosc", **BLOSC | {"blocksize": 16})), **packed(blocksize=16)}, WHOLE, "/a"),
        bad("blocksize", **listed("blosc", **BLOSC | {"blocksize": -1})),
    ),
    OTHERS,
)
TEXT.row(
    "the format is c-blosc's: a header and blocks",
    lambda: equal(
        blosc_header(made(codecs="blosc:cname=lz4:clevel=5:shuffle=shuffle", write={(0,): [8, 9]})["data/a/c0"])["nbytes"], 8
    ),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("23", "Endian codec")

TEXT.row(
    "endian: required, big or little",
    all_of(bad("endian is missing", **listed("endian")), bad("endian", **listed("endian", endian="middle"))),
    REFUSED,
)
TEXT.row(
    "big: each element is big-endian",
    reads(
        {**store(**listed("endian", endian="big")), "data/a/c0/0": LEFT.astype(">i2"), "data/a/c0/1": RIGHT.astype(">i2")},
        WHOLE,
        "/a",
    ),
)
TEXT.row(
    "elements in lexicographical order; complex128 is two big-endian floats",
    reads(line("complex128", [0, 0], 1.5 - 2j, dtype=">c16", **listed("endian", endian="big")), np.array([1.5 - 2j], "<c16"), "/a"),
)
TEXT.row(
    "little is the same as no such codec",
    lambda: equal(metadata(store(**listed("endian", endian="little")), "/a"), metadata(store(), "/a")),
)
TEXT.row(
    "behind another codec",
    unknown("endian", codecs=[*listed("gzip", level=1)["codecs"], *listed("endian", endian="big")["codecs"]]),
    "refused: there it would interpret bytes as elements",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("24", "Gzip codec")

TEXT.row("level: an integer from 0 to 9", all_of(*(bad("level", **listed("gzip", level=each)) for each in (-2, 10, 1.5))), OTHERS)
TEXT.row(
    "the data are a Gzip file (RFC 1952)",
    reads(
        {
            **store(**listed("gzip", level=1)),
            "data/a/c0/0": gzip.compress(LEFT.tobytes()),
            "data/a/c0/1": gzip.compress(RIGHT.tobytes()),
        },
        WHOLE,
        "/a",
    ),
)
TEXT.row(
    "a written chunk is a Gzip file",
    lambda: equal(
        gzip.decompress(made(codecs="gzip:level=1", write={(0,): [8, 9]})["data/a/c0"]), np.array([8, 9], "<i4").tobytes()
    ),
)
TEXT.row(
    "the URI of the example, without a version",
    lambda: equal(
        metadata(store(codecs=[{"type": "https://purl.org/zarr/spec/codec/gzip", "configuration": {"level": 1}}]), "/a")
        .codecs[-1]
        .name,
        "gzip",
    ),
    "read, as codec and as codecs, with http and with https",
)

file_system_store(TEXT, "25")


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
