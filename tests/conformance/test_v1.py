"""Zarr storage specification version 1, statement by statement."""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from typing import Any

import numcodecs
import numpy as np
import trio

from tests.stores.conformance import StoreConformance
from tests.stores.readable import ReadableConformance
from tests.support.conforming import (
    Check,
    all_of,
    amended,
    array,
    blosc_header,
    chunk,
    document,
    elements,
    equal,
    group,
    keys,
    metadata,
    new_array,
    new_group,
    node,
    opened_folder,
    raises,
    reads,
    refuses,
    same,
)
from tests.support.example_array import LEFT, REFUSED, RIGHT, WHOLE, with_members
from tests.support.statements import NOT_YET, Statement, Text
from zarrfs.errors import NameInvalid, NotRepresentable, UsageError
from zarrfs.stores.opening import open_store

TEXT = Text("v1", "Zarr storage specification version 1")

PLAIN = {
    "zarr_format": 1,
    "shape": [2, 3],
    "chunks": [2, 2],
    "dtype": "<i2",
    "compression": "none",
    "compression_opts": None,
    "fill_value": 7,
    "order": "C",
}
BLOSC = {"clevel": 5, "cname": "lz4", "shuffle": 1}
LZMA = {"check": 0, "filters": None, "format": 1, "preset": 1}


def meta(**members: Any) -> dict[str, Any]:
    """Return the text's members; `...` leaves one out."""
    return with_members(PLAIN, members)


def store(**members: Any) -> dict[str, Any]:
    """Return an array at the root: `WHOLE` in two uncompressed chunks."""
    return {"meta": meta(**members), "attrs": {}, "0.0": LEFT, "0.1": RIGHT}


def line(dtype: Any, fill_value: Any, *values: Any) -> dict[str, Any]:
    """Return an array of one dimension and one chunk of this stored type."""
    count = len(values) or 1
    held = {"0": np.array(list(values), np.dtype(list(map(tuple, dtype)) if isinstance(dtype, list) else dtype))} if values else {}
    return {"meta": meta(shape=[count], chunks=[count], dtype=dtype, fill_value=fill_value), "attrs": {}, **held}


def bad(match: str, **members: Any) -> Check:
    """Return a check that an array with these members is refused, with a reason that names the key."""
    return refuses({"meta": meta(**members), "attrs": {}}, rf"^meta: .*{match}")


def made(**how: Any) -> dict[str, bytes]:
    """Return the stored values of a new array."""
    return new_array("/a", new="v1", **how)


def fills(dtype: Any, fill_value: Any, expected: Any) -> Check:
    """Return a check that missing elements are read as this."""
    return reads(line(dtype, fill_value), [expected])


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("1", "Storage")

TEXT.tested(
    "a key is an ASCII string",
    ReadableConformance.test_names_are_kept_as_they_are,
    "keys of any text are kept as they are; names of new arrays are ASCII (1.02)",
)
TEXT.row("a key is an ASCII string", raises(NameInvalid, "ASCII", lambda: new_array("/ä", new="v1")), "as stated, for new nodes")
TEXT.tested("a value is an arbitrary sequence of bytes", StoreConformance.test_what_was_set_is_got)
TEXT.tested("read: get the bytes of a key", ReadableConformance.test_what_is_held_is_got)
TEXT.tested("write: set the bytes of a key", StoreConformance.test_set_replaces_the_whole_value)
TEXT.tested("delete: remove a key and its value", StoreConformance.test_erasing_removes_and_may_be_repeated)
TEXT.row(
    "a directory can be a store: keys are names of files, values their contents",
    lambda: equal(opened_folder({"attrs": {}, "0.0": b"\1"}), {"attrs": b"{}", "0.0": b"\1"}),
)
TEXT.row(
    "an S3 bucket can be a store",
    raises(UsageError, "s3", lambda: trio.run(open_store, "s3://bucket/x.zarr")),
    NOT_YET + "object stores come later; the URL is refused, and the message lists the known schemes",
)
TEXT.row(
    "an array store holds one array",
    lambda: equal(
        {
            path: array(
                {f"a/{key}": value for key, value in store().items()} | {f"b/{key}": value for key, value in store().items()}, path
            ).chunk_prefix
            for path in ("/a", "/b")
        },
        {"/a": "a/", "/b": "b/"},
    ),
    "as stated; with several below one path, each folder is an array, and the folder above them a group",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("2", "Metadata")

TEXT.row("the metadata are the value of the key meta", reads(store(), WHOLE))
TEXT.row(
    "they are encoded using JSON",
    all_of(
        refuses({"meta": b"{", "attrs": {}}, "^meta: not JSON"),
        refuses({"meta": b'{"a": 1, "a": 2}', "attrs": {}}, "^meta: not JSON: duplicate member"),
    ),
    "as stated, in UTF-8, and no member twice",
)
TEXT.row(
    "the resource is a JSON object",
    refuses({"meta": [1], "attrs": {}}, "^meta: not a JSON object"),
    "as stated; a file meta without members of an array's document, and without attrs beside it, is not a document",
)
TEXT.row(
    "a file called meta that is no array",
    lambda: equal(node({"meta": {"a": 1}, "b/meta": b"text"}, "/b").__class__.__name__, "GroupNode"),
    "not a node: no attrs beside it, and no members of an array",
)
TEXT.row("zarr_format MUST be present", bad("zarr_format is missing", zarr_format=...), REFUSED)
TEXT.row(
    "zarr_format is an integer, the version: 1",
    all_of(*(bad("zarr_format", zarr_format=each) for each in (2, "1", 1.0, True, None))),
    "as stated; of other versions refused",
)
TEXT.row("shape MUST be present", bad("shape is missing", shape=...), REFUSED)
TEXT.row(
    "shape is a list of integers",
    all_of(*(bad("shape", shape=each) for each in (2, [2.5, 3], ["2", 3], [-1, 3], None))),
    "as stated, from 0 to 2^63-1; up to 32 dimensions (NumPy's)",
)
TEXT.row("shape gives the length of each dimension", lambda: equal(metadata(store()).shape, (2, 3)))
TEXT.row("chunks MUST be present", bad("chunks is missing", chunks=...), REFUSED)
TEXT.row(
    "chunks is a list of integers, one for each dimension",
    all_of(*(bad("chunk", chunks=each) for each in (2, [2], [2, 2, 2], [0, 2], [True, 2], None))),
    "as stated, from 1 (0 where the dimension is empty)",
)
TEXT.row(
    "all chunks of an array have the same shape",
    lambda: equal([chunk(store(), coords).shape for coords in ((0, 0), (0, 1))], [(2, 2), (2, 2)]),
)  # type: ignore[union-attr]
TEXT.row("dtype MUST be present", bad("dtype is missing", dtype=...), REFUSED)
TEXT.row(
    "dtype is a string or a list that defines a data type",
    all_of(*(bad("dtype", dtype=each, fill_value=None) for each in (4, None, "", "int16", [], {}))),
    "as stated; a value that defines no type is refused; the small types of tensorstore (bfloat16, int4) are read as in version 2",
)
TEXT.row("compression MUST be present", bad("compression is missing", compression=...), REFUSED)
TEXT.row(
    "compression is a string that identifies the library",
    all_of(
        bad("compression must be a string", compression=5),
        refuses({"meta": meta(compression="made_up"), "attrs": {}}, "made_up", bad=False),
    ),
    "the compressors of zarr 1.0 and 1.1: blosc, zlib, gzip, bz2, lzma, none; another is refused as unsupported, with its name",
)


def encoded(name: str, options: Any, left: bytes, right: bytes, **members: Any) -> dict[str, Any]:
    return {"meta": meta(compression=name, compression_opts=options, **members), "attrs": {}, "0.0": left, "0.1": right}


@TEXT.rule("compression zlib, bz2, lzma, blosc", "each format as its library decodes it")
def _() -> None:
    blosc = numcodecs.Blosc("lz4", 5, 1)
    for name, options, encode in (
        ("zlib", 1, zlib.compress),
        ("bz2", 1, bz2.compress),
        ("lzma", LZMA, lambda data: lzma.compress(data, check=lzma.CHECK_NONE)),
        ("blosc", BLOSC, lambda data: bytes(blosc.encode(data))),
    ):
        assert same(elements(encoded(name, options, encode(LEFT.tobytes()), encode(RIGHT.tobytes()))), WHOLE), name


TEXT.row(
    '"gzip"',
    reads(encoded("gzip", 1, zlib.compress(LEFT.tobytes()), zlib.compress(RIGHT.tobytes())), WHOLE),
    "read as zlib: the software stored the name zlib, and zlib's header",
)
TEXT.row(
    'no compression: "none", as the software writes it, or null',
    all_of(reads(store(), WHOLE), reads(store(compression=None), WHOLE)),
    'both are read; "none" is written',
)
TEXT.row("compression_opts MUST be present", bad("compression_opts is missing", compression_opts=...), REFUSED)
TEXT.row(
    "compression_opts is an integer, a string or a dictionary",
    all_of(
        bad("level", compression="zlib", compression_opts=[1]),
        bad("object", compression="blosc", compression_opts=5),
        bad("null", compression="none", compression_opts=1),
    ),
    "as stated, in the form that the library accepts: a level (also as a string) for zlib and bz2, an object for blosc and lzma",
)
TEXT.row(
    "they provide options to the library",
    all_of(
        *(
            lambda options=options: equal(
                metadata(store(compression="zlib", compression_opts=options)).codecs[-1].configuration["level"], 3
            )
            for options in (3, "3")
        )
    ),
)
TEXT.row("fill_value MUST be present", bad("fill_value is missing", fill_value=...), REFUSED)
TEXT.row(
    "fill_value is a scalar, the default of portions that are not initialized",
    reads({"meta": meta(), "attrs": {}, "0.0": LEFT}, [[1, 2, 7], [4, 5, 7]]),
)
TEXT.row(
    "fill_value is of the data type",
    all_of(*(bad("fill_value", fill_value=each) for each in ("x", [1], {}, 1.5, 40000))),
    "as stated; else refused",
)
TEXT.row(
    "(no statement) NaN and the infinities",
    all_of(
        reads(
            {"meta": json.dumps(meta(dtype="<f4", fill_value=float("nan"))).encode(), "attrs": {}}, np.full((2, 3), np.nan, "<f4")
        ),
        reads({"meta": meta(dtype="<f4", fill_value="-Infinity"), "attrs": {}}, np.full((2, 3), -np.inf, "<f4")),
        lambda: equal(b'"fill_value": NaN' in made(dtype="float32", fill_value=np.nan)["a/meta"], True),
    ),
    "bare tokens, as the software writes them; the strings of version 2 are also read",
)
TEXT.row(
    "(no statement) strings",
    all_of(
        fills("|S4", "ab", b"ab"),
        fills("<U2", "äö", "äö"),
        lambda: equal(document(made(dtype="|S4", fill_value=b"ab"), "a/meta")["fill_value"], "ab"),
    ),
    "text, not Base64",
)
TEXT.row(
    "(no statement) structured values",
    all_of(fills([["r", "|u1"], ["x", "<i2"]], 0, (0, 0)), bad("fill_value", dtype=[["r", "|u1"]], fill_value="AAA=")),
    "one number, which fills every field, as NumPy's fill does",
)
TEXT.row("order MUST be present", bad("order is missing", order=...), REFUSED)
TEXT.row(
    'order is either "C" or "F"',
    all_of(*(bad("order", order=each) for each in ("A", "f", None, 0))),
    "as stated; any other is refused",
)
TEXT.row('"C": row-major, the last dimension varies fastest', reads(store(order="C"), WHOLE))
COLUMNS = np.array([1, 4, 2, 5], "<i2"), np.array([3, 7, -1, -1], "<i2")
TEXT.row(
    '"F": column-major, the first dimension varies fastest',
    reads(encoded("blosc", BLOSC, *(bytes(numcodecs.Blosc().encode(each)) for each in COLUMNS), order="F"), WHOLE),
    "as stated where Blosc compressed the chunks",
)
TEXT.row(
    '"F" with another compressor, or none',
    reads(encoded("zlib", 1, zlib.compress(LEFT.tobytes()), zlib.compress(RIGHT.tobytes()), order="F"), WHOLE),
    "read in C order, as zarr 1.0 and 1.1 wrote it (a quirk, and logged)",
    logs="read in C order",
)
TEXT.row(
    '"F" with another compressor, or none: column-major',
    reads(encoded("zlib", 1, *(zlib.compress(each.tobytes()) for each in COLUMNS), order="F"), WHOLE, choices={"v1.order": "text"}),
    "as stated with --dialect-choices v1.order=text (a quirk, and logged)",
    logs="read in F order",
)
TEXT.row(
    '"F" for writing',
    all_of(
        lambda: equal(document(made(shape=(4, 4), chunks=(2, 2), order="F", codecs="none"), "a/meta")["order"], "C"),
        lambda: equal(
            document(made(shape=(4, 4), chunks=(2, 2), order="F", codecs="blosc:cname=lz4:clevel=5:shuffle=shuffle"), "a/meta")[
                "order"
            ],
            "F",
        ),
    ),
    "with Blosc only: all software reads that in the same way",
)
TEXT.row("other keys MAY be present", reads(store(made_up=[1]), WHOLE))
TEXT.row(
    "other keys MUST NOT alter the required ones",
    lambda: equal(metadata(store(filters=[{"id": "delta", "dtype": "<i2"}], dimension_separator="/")), metadata(store())),
    "as stated: ignored, and kept by every edit",
)
TEXT.row(
    "other keys are kept",
    lambda: equal(document(amended(store(made_up=[1]), shape=(1, 3)), "meta"), meta(made_up=[1], shape=[1, 3])),
)


@TEXT.rule("the example: 10000 by 10000 float64 in chunks of 1000 by 1000, Blosc")
def _() -> None:
    example = meta(
        chunks=[1000, 1000], compression="blosc", compression_opts=BLOSC, dtype="<f8", fill_value=None, shape=[10000, 10000]
    )
    values = np.arange(1e6).reshape(1000, 1000)
    of = {"meta": example, "attrs": {}, "2.4": bytes(numcodecs.Blosc("lz4", 5, 1).encode(values))}
    assert metadata(of).grid_shape == (10, 10) and metadata(of).fill_value is None
    assert same(chunk(of, (2, 4)), values)


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("3", "Data type encoding")


def of_type(dtype: Any, *values: Any) -> Check:
    """Return a check that elements of this type are read, as little-endian ones."""
    expected = np.array(list(values), np.dtype(list(map(tuple, dtype)) if isinstance(dtype, list) else dtype))
    return reads(line(dtype, None, *values), expected.astype(expected.dtype.newbyteorder("<")))


TEXT.row(
    "simple types are NumPy's typestr: byte order, kind, size",
    all_of(*(of_type(each, 1, 0) for each in ("|b1", "|i1", "<i4", ">u2", "<f4", ">f8", "<c8"))),
)
TEXT.row('"<": little-endian', reads({"meta": meta(shape=[1], chunks=[1], dtype="<u2"), "attrs": {}, "0": b"\1\2"}, [0x201]))
TEXT.row('">": big-endian', reads({"meta": meta(shape=[1], chunks=[1], dtype=">u2"), "attrs": {}, "0": b"\1\2"}, [0x102]))
TEXT.row('"|": not relevant', all_of(of_type("|u1", 1, 255), of_type("|S3", b"ab")))
TEXT.row(
    "a character is the kind of the type",
    all_of(of_type("<M8[ns]", 5), of_type("<m8[s]", 5), of_type("<U3", "abc"), bad("dtype", dtype="<x4")),
    "NumPy's kinds; Python objects are refused: they are pickled",
)
TEXT.row("an integer is the number of bytes", all_of(of_type("|S12", b"abc"), bad("dtype", dtype="<i3"), bad("dtype", dtype="|S")))
TEXT.row(
    "the byte order MUST be specified",
    all_of(*(bad("dtype", dtype=each, fill_value=None) for each in ("f8", "=i4", "b1", "|i4"))),
    REFUSED,
)
TEXT.row(
    '"<f8", ">i4", "|b1" and "|S12" are valid',
    all_of(of_type("<f8", 1.5), of_type(">i4", 1), of_type("|b1", True), of_type("|S12", b"x")),
)
TEXT.row(
    "structured types are a list of lists of two elements",
    all_of(of_type([["r", "|u1"], ["x", ">f4"]], (1, 2.5), (3, 4.5)), bad("dtype|field", dtype=[["r"]], fill_value=None)),
    "as stated; the form with a shape, of version 2, is also read, and never written",
)
TEXT.row("the example: three unsigned bytes r, g, b", of_type([["r", "|u1"], ["g", "|u1"], ["b", "|u1"]], (1, 2, 3)))
TEXT.row(
    "(no statement) types that NumPy lacks",
    raises(NotRepresentable, "bfloat16", lambda: made(dtype="bfloat16")),
    "a new array of them is refused in version 1",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("4", "Chunks")

TEXT.row(
    "the raw bytes of a chunk pass through the compressor",
    lambda: equal(
        zlib.decompress(made(codecs="numcodecs.zlib:level=1", write={(1,): [8, 9]})["a/1"]), np.array([8, 9], "<i4").tobytes()
    ),
)
TEXT.row(
    "no header is added, nothing else is changed",
    lambda: equal(made(write={(1,): [8, 9]})["a/1"], np.array([8, 9], "<i4").tobytes()),
)


@TEXT.rule("Blosc's bytes begin with a header of 16 bytes")
def _() -> None:
    data = made(codecs="auto", write={(0,): [8, 9]})["a/0"]
    header = blosc_header(data)
    assert (header["nbytes"], header["cbytes"], header["typesize"]) == (8, len(data), 4)
    assert numcodecs.Blosc().decode(data) == np.array([8, 9], "<i4").tobytes()


TEXT.row(
    "a chunk is stored under a key formed of its index",
    lambda: equal(keys(made(shape=(40, 40), chunks=(2, 2), write={(2, 14): np.ones((2, 2))})), ["a/2.14", "a/attrs", "a/meta"]),
)
TEXT.row(
    "the indices are strings joined by a period",
    reads({"meta": meta(shape=[4, 4]), "attrs": {}, "1.0": LEFT}, [[7] * 4, [7] * 4, [1, 2, 7, 7], [4, 5, 7, 7]]),
)
TEXT.row(
    "another key is no chunk",
    reads({**store(), "00.0": RIGHT, "0/0": RIGHT, "0.0.0": RIGHT}, WHOLE),
    "as stated: no leading zeros, no other separator",
)
TEXT.row(
    "the example: (10000, 10000) in (1000, 1000) has 10 by 10 chunks",
    lambda: equal(metadata({"meta": meta(shape=[10000] * 2, chunks=[1000] * 2), "attrs": {}}).grid_shape, (10, 10)),
)
TEXT.row("not all chunks need be present", reads({"meta": meta(), "attrs": {}, "0.1": RIGHT}, [[7, 7, 3], [7, 7, 7]]))
TEXT.row(
    "an uninitialized chunk MUST be treated as filled with fill_value",
    reads({"meta": meta(), "attrs": {}}, np.full((2, 3), 7, "<i2")),
)
TEXT.row(
    "fill_value null: its contents are undefined",
    lambda: equal(
        (metadata(store(fill_value=None)).fill_value, elements({"meta": meta(fill_value=None), "attrs": {}}).tolist()),
        (None, [[0] * 3] * 2),
    ),
    "as stated; shown as zeros where a value is required",
)
TEXT.row("where a length is not divisible, chunks overhang the edge", reads(store(), WHOLE))
TEXT.row(
    "elements outside the array are undefined",
    lambda: equal(made(shape=(3,), fill_value=9, write={(1,): [5, 6]})["a/1"], np.array([5, 9], "<i4").tobytes()),
    "as stated for reading; zarrfs writes the fill value there",
)
TEXT.row(
    "(no statement) an array of no dimensions",
    reads({"meta": meta(shape=[], chunks=[]), "attrs": {}, "0": WHOLE[0, 0]}, np.int16(1)),
    "its chunk has the key 0, as in version 2",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("5", "Attributes")

TEXT.row(
    "an array may have attributes, simple key and value items",
    lambda: equal(array({**store(), "attrs": {"foo": 42, "baz": [1, 2]}}).attributes, {"foo": 42, "baz": [1, 2]}),
    "as stated; values are any JSON",
)
TEXT.row(
    "they are a JSON object",
    refuses({**store(), "attrs": b"[]"}, "^attrs: not a JSON object"),
    "as stated; else the array is refused",
)
TEXT.row("they are stored under the key attrs", lambda: equal(document(made(attributes={"units": "m"}), "a/attrs"), {"units": "m"}))
TEXT.row(
    "attrs MUST be present even where there are none",
    lambda: equal(made()["a/attrs"], b"{}"),
    "as stated, for writing; an array without attrs is read (a quirk)",
)
TEXT.row(
    "attrs MUST be present",
    lambda: equal(array({"meta": meta()}).quirks, ("attrs is missing",)),
    "an array without attrs is read (a quirk): nothing else depends on it",
)
TEXT.row(
    "attributes that are changed",
    lambda: equal(document(amended({**store(), "attrs": {"a": 1}}, attributes={"a": 1, "b": [2]}), "attrs"), {"a": 1, "b": [2]}),
)
TEXT.row(
    "(no statement) groups",
    lambda: equal((group({"g/a/meta": meta(), "g/a/attrs": {}}, "/g").attributes, keys(new_group("/g", new="v1"))), ({}, [])),
    "a folder above arrays is a group, without documents and attributes; a new group is an empty folder",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("6", "Example")

EXAMPLE: dict[str, Any] = {"shape": (20, 20), "chunks": (10, 10), "fill_value": 42, "codecs": "numcodecs.zlib:level=1"}
TEXT.row("a new array has the keys attrs and meta", lambda: equal(keys(made(**EXAMPLE)), ["a/attrs", "a/meta"]))
TEXT.row(
    "meta: indented by 4, members sorted",
    lambda: equal(
        made(**EXAMPLE)["a/meta"].decode(),
        json.dumps(
            meta(chunks=[10, 10], compression="zlib", compression_opts=1, dtype="<i4", fill_value=42, shape=[20, 20]),
            indent=4,
            sort_keys=True,
        ),
    ),
)
TEXT.row("attrs is {}", lambda: equal(made(**EXAMPLE)["a/attrs"], b"{}"))
TEXT.row(
    "chunks appear as data are set",
    lambda: equal(
        keys(made(**EXAMPLE, write={(0, 0): np.ones((10, 10)), (1, 0): np.ones((10, 10))})), ["a/0.0", "a/1.0", "a/attrs", "a/meta"]
    ),
)
TEXT.row(
    "a chunk decompresses by hand to its elements",
    lambda: equal(
        np.frombuffer(zlib.decompress(made(**EXAMPLE, write={(0, 0): np.ones((10, 10))})["a/0.0"]), "<i4").tolist(), [1] * 100
    ),
)
TEXT.row(
    "attrs: indented by 4, members sorted",
    lambda: equal(made(attributes={"foo": 42, "bar": "apples"})["a/attrs"], b'{\n    "bar": "apples",\n    "foo": 42\n}'),
)


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
