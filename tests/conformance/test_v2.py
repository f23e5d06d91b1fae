"""Zarr storage specification version 2, statement by statement."""

from __future__ import annotations

import base64
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
    keys,
    metadata,
    new_array,
    opened_folder,
    raises,
    reads,
    refuses,
    same,
)
from tests.support.example_array import LEFT, REFUSED, RIGHT, WHOLE, with_members
from tests.support.statements import NOT_YET, Statement, Text
from zarrfs.errors import UsageError
from zarrfs.keys import NodePath
from zarrfs.stores.opening import open_store

TEXT = Text("v2", "Zarr storage specification version 2")

PLAIN = {
    "zarr_format": 2,
    "shape": [2, 3],
    "chunks": [2, 2],
    "dtype": "<i2",
    "compressor": None,
    "fill_value": 7,
    "order": "C",
    "filters": None,
}
GROUP = {"zarr_format": 2}


def zarray(**members: Any) -> dict[str, Any]:
    """Return the text's members; `...` leaves one out."""
    return with_members(PLAIN, members)


def store(**members: Any) -> dict[str, Any]:
    """Return an array at the root: `WHOLE` in two uncompressed chunks."""
    return {".zarray": zarray(**members), "0.0": LEFT, "0.1": RIGHT}


def typed(dtype: Any, fill_value: Any = None, *values: Any) -> dict[str, Any]:
    """Return an array of one dimension and one chunk of this stored type, which contains ``values`` if there are any."""
    count = len(values) or 1
    held = {"0": np.array(list(values), _numpy(dtype))} if values else {}
    return {".zarray": zarray(shape=[count], chunks=[count], dtype=dtype, fill_value=fill_value), **held}


def _numpy(dtype: Any) -> np.dtype[Any]:
    if isinstance(dtype, str):
        return np.dtype(dtype)
    return np.dtype([(name, _numpy(of), *map(tuple, shape)) for name, of, *shape in dtype])


def bad(match: str, **members: Any) -> Check:
    """Return a check that an array with these members is refused, with a reason that names the key."""
    return refuses({".zarray": zarray(**members)}, rf"^\.zarray: .*{match}")


def of_type(dtype: Any, *values: Any) -> Check:
    """Return a check that elements of this type are read, as little-endian ones."""
    expected = np.array(list(values), _numpy(dtype))
    return reads(typed(dtype, None, *values), expected.astype(expected.dtype.newbyteorder("<")))


def fills(dtype: Any, fill_value: Any, expected: Any) -> Check:
    """Return a check that missing elements are read as this."""
    return reads(typed(dtype, fill_value), [expected])


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("1", "Storage")

TEXT.tested(
    "a key is an ASCII string",
    ReadableConformance.test_names_are_kept_as_they_are,
    "keys of any text are kept as they are; names of new nodes are ASCII (7.02)",
)
TEXT.tested("a value is an arbitrary sequence of bytes", StoreConformance.test_what_was_set_is_got)
TEXT.tested("read: get the bytes of a key", ReadableConformance.test_what_is_held_is_got)
TEXT.tested("write: set the bytes of a key", StoreConformance.test_set_replaces_the_whole_value)
TEXT.tested("delete: remove a key and its value", StoreConformance.test_erasing_removes_and_may_be_repeated)


TEXT.row(
    "a directory can be a store: keys are names of files, values their contents",
    lambda: equal(opened_folder({"a/0.0": b"\1\2", ".zgroup": GROUP}), {"a/0.0": b"\1\2", ".zgroup": b'{"zarr_format": 2}'}),
)
TEXT.row(
    "an S3 bucket can be a store",
    raises(UsageError, "s3", lambda: trio.run(open_store, "s3://bucket/x.zarr")),
    NOT_YET + "object stores come later; the URL is refused, and the message lists the known schemes",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("2", "Arrays: Metadata")

TEXT.row("the metadata of an array are the value of the key .zarray", reads(store(), WHOLE))
TEXT.row(
    "they are encoded using JSON",
    all_of(
        refuses({".zarray": b"{"}, r"^\.zarray: not JSON"),
        refuses({".zarray": b"\xef\xbb\xbf{}"}, r"^\.zarray: not"),
        refuses({".zarray": b'{"a": 1, "a": 2}'}, r"^\.zarray: not JSON: duplicate member"),
    ),
    "as stated, in UTF-8 without a byte order mark (RFC 8259), and no member twice; the bare tokens NaN and Infinity are read",
)
TEXT.row("the resource is a JSON object", refuses({".zarray": [1]}, r"^\.zarray: not a JSON object but a list"))
TEXT.row("zarr_format MUST be present", bad("zarr_format is missing", zarr_format=...), REFUSED)
TEXT.row(
    "zarr_format is an integer, the version: 2",
    all_of(*(bad("zarr_format must be", zarr_format=version) for version in (3, 2.0, True, None, "3"))),
    "as stated; of other versions refused",
)


@TEXT.rule(
    "zarr_format is an integer",
    'the string "2", which webknossos writes, is also read (a quirk); --dialect-choices v2.zarr_format=refuse',
)
def _() -> None:
    found = array(store(zarr_format="2"))
    assert found.metadata == metadata(store()) and found.quirks == ('zarr_format is the string "2"',)
    refuses(store(zarr_format="2"), "refused", choices={"v2.zarr_format": "refuse"})()


TEXT.row("shape MUST be present", bad("shape is missing", shape=...), REFUSED)
TEXT.row(
    "shape is a list of integers",
    all_of(*(bad("shape", shape=shape) for shape in ("2", [2.0, 3], [True, 3], [-2, 3], [2**63, 3], {"0": 2}, None))),
    "as stated, from 0 to 2^63-1; up to 32 dimensions (NumPy's)",
)


@TEXT.rule("shape gives the length of each dimension")
def _() -> None:
    assert metadata(store()).shape == (2, 3)
    assert metadata({".zarray": zarray(shape=[], chunks=[]), "0": LEFT[0, 0]}).shape == ()
    assert metadata({".zarray": zarray(shape=[0, 3])}).grid_shape == (0, 2)


TEXT.row("chunks MUST be present", bad("chunks is missing", chunks=...), REFUSED)
TEXT.row(
    "chunks is a list of integers, one for each dimension",
    all_of(*(bad("chunk", chunks=chunks) for chunks in (2, [2], [2, 2, 2], [2, 2.0], [2, None], [0, 2], [True, 2]))),
    "as stated, from 1 (0 where the dimension is empty)",
)


@TEXT.rule("all chunks of an array have the same shape")
def _() -> None:
    for coords in (0, 0), (0, 1):
        found = chunk(store(), coords)
        assert found is not None and found.shape == (2, 2)


TEXT.row("dtype MUST be present", bad("dtype is missing", dtype=...), REFUSED)
TEXT.row(
    "dtype is a string or a list that defines a data type",
    all_of(*(bad("dtype", dtype=dtype, fill_value=None) for dtype in (7, None, {}, "", "int16", [], ["x"], [["x"]]))),
    "as stated; a value that defines no type is refused",
)
TEXT.row("compressor MUST be present", bad("compressor is missing", compressor=...), REFUSED)


@TEXT.rule("compressor is a JSON object that identifies the codec and configures it")
def _() -> None:
    for codec in (
        numcodecs.Zlib(1),
        numcodecs.GZip(1),
        numcodecs.BZ2(1),
        numcodecs.LZMA(),
        numcodecs.Zstd(1),
        numcodecs.LZ4(),
        numcodecs.Blosc(),
    ):
        values = {
            ".zarray": zarray(compressor=codec.get_config()),
            "0.0": bytes(codec.encode(LEFT)),
            "0.1": bytes(codec.encode(RIGHT)),
        }
        assert same(elements(values), WHOLE), codec


TEXT.row("compressor null: no compressor is used", reads(store(compressor=None), WHOLE))
TEXT.row(
    'compressor MUST contain "id"',
    all_of(*(bad("codec|compressor", compressor=compressor) for compressor in ({"level": 1}, {"id": 7}, "zlib", ["zlib"]))),
    REFUSED,
)
TEXT.row(
    "id identifies the codec",
    refuses({".zarray": zarray(compressor={"id": "made_up"})}, r"^\.zarray: .*made_up", bad=False),
    "the codecs of numcodecs, except pickle and codecs that need third-party code; an unknown one is refused as unsupported, with its id",
)
TEXT.row("fill_value MUST be present", bad("fill_value is missing", fill_value=...), REFUSED)
TEXT.row(
    "fill_value is a scalar, the default of portions that are not initialized",
    reads({".zarray": zarray(), "0.0": LEFT}, [[1, 2, 7], [4, 5, 7]]),
)
TEXT.row(
    "fill_value is of the data type",
    all_of(*(bad("fill_value", dtype="<i2", fill_value=value) for value in ("x", 1.5, 40000, [1], {}))),
    "as stated; whole floats for integers (z5py), and 0 and 1 for booleans, are read",
)


@TEXT.rule("fill_value null: no fill value is used", "as stated: undefined, shown as zeros where elements have to be shown")
def _() -> None:
    assert metadata(store(fill_value=None)).fill_value is None
    assert same(elements({".zarray": zarray(fill_value=None)}), np.zeros((2, 3), "<i2"))


@TEXT.rule(
    "fill_value is a scalar of the type",
    "a number in a string (bioformats2raw), a number for a string, for raw bytes or for fields, a longer text, a byte string and a date"
    " as text (zarr-python) are read (quirks);"
    " --dialect-choices v2.fill_value=refuse",
)
def _() -> None:
    assert array(store(fill_value="7")).quirks and metadata(store(fill_value="7")) == metadata(store())
    assert same(elements(typed("|S2", 0)), [b"0"]) and same(elements(typed("|S3", "n/a")), [b"n/a"])
    assert same(elements(typed("<U2", "none")), ["no"]) and same(elements(typed("|V2", 0)), np.zeros(1, "|V2"))
    assert same(elements(typed("<M8[D]", "2000-02-29")), np.array(["2000-02-29"], "<M8[D]"))
    refuses(store(fill_value="7"), "refused", choices={"v2.fill_value": "refuse"})()


TEXT.row("order MUST be present", bad("order is missing", order=...), REFUSED)
TEXT.row(
    'order is either "C" or "F"',
    all_of(*(bad("order", order=order) for order in ("A", "c", None, ["C"]))),
    "as stated; any other is refused",
)
TEXT.row('"C": row-major, the last dimension varies fastest', reads(store(order="C"), WHOLE))
TEXT.row(
    '"F": column-major, the first dimension varies fastest',
    reads({".zarray": zarray(order="F"), "0.0": np.array([1, 4, 2, 5], "<i2"), "0.1": np.array([3, 7, 0, 0], "<i2")}, WHOLE),
)


@TEXT.rule("filters MUST be present", "absent (zarr.js and others) is null (a quirk); --dialect-choices v2.missing=refuse")
def _() -> None:
    found = array(store(filters=...))
    assert found.metadata == metadata(store()) and found.quirks == ("filters is missing: none",)
    refuses(store(filters=...), "refused", choices={"v2.missing": "refuse"})()


TEXT.row(
    "filters is a list of JSON objects",
    all_of(*(bad("filters", filters=filters) for filters in ({}, "none", {"id": "delta", "dtype": "<i2"}))),
    "as stated; the empty list means no filters",
)
TEXT.row("filters null: no filters are applied", all_of(reads(store(filters=None), WHOLE), reads(store(filters=[]), WHOLE)))
TEXT.row(
    'each filter MUST contain "id"',
    all_of(*(bad("codec", filters=[each]) for each in ({"dtype": "<i2"}, {"id": None}, "delta"))),
    REFUSED,
)
TEXT.row(
    'dimension_separator, where present, is "." or "/"',
    all_of(*(bad("dimension_separator", dimension_separator=each) for each in ("", "-", "..", None, ["."]))),
    "as stated; any other is refused",
)
TEXT.row(
    'the default MUST be assumed to be ".": keys like "0.0"',
    all_of(
        reads(store(dimension_separator=...), WHOLE),
        reads(store(dimension_separator="."), WHOLE),
        reads({".zarray": zarray(dimension_separator=...), "0/0": LEFT, "0/1": RIGHT}, WHOLE),
        reads(store(dimension_separator=...) | {"0/0": RIGHT, "0/1": LEFT}, WHOLE),
    ),
    "as stated; absent, and only nested keys are stored, as by the NestedDirectoryStore of zarr 2.2 to 2.7: they are read (a quirk); "
    "--dialect-choices v2.dimension_separator=refuse",
)
TEXT.row('"/": nested keys like "0/0"', reads({".zarray": zarray(dimension_separator="/"), "0/0": LEFT, "0/1": RIGHT}, WHOLE))


@TEXT.rule('"/" SHOULD produce a structure like directories')
def _() -> None:
    made = new_array("/a", new="v2", shape=(2, 3), chunks=(2, 2), separator="/", write={(0, 1): [[1, 2], [3, 4]]})
    assert "a/0/1" in made and document(made, "a/.zarray")["dimension_separator"] == "/"


TEXT.row(
    "other keys SHOULD NOT be present",
    lambda: _only(document(new_array("/a", new="v2"), "a/.zarray"), PLAIN.keys()),
    "as stated: a new .zarray has the specified members; dimension_separator only where it is not the default",
)
TEXT.row("other keys SHOULD be ignored", reads(store(_NCZARR_ARRAY={"dimrefs": ["/x"]}, made_up=None), WHOLE))


@TEXT.rule("other keys SHOULD be ignored", "as stated, and kept by every edit of the document")
def _() -> None:
    after = amended(store(made_up={"a": 1.50}), shape=(1, 3))
    assert document(after, ".zarray") == zarray(made_up={"a": 1.5}, shape=[1, 3])


@TEXT.rule("the example: a delta filter that stores float32, Blosc, fill value NaN")
def _() -> None:
    config = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
    delta = {"id": "delta", "dtype": "<f8", "astype": "<f4"}
    example = zarray(chunks=[1000, 1000], shape=[10000, 10000], compressor=config, dtype="<f8", fill_value="NaN", filters=[delta])
    values = np.arange(1e6).reshape(1000, 1000)
    encoded = numcodecs.get_codec(config).encode(numcodecs.get_codec(delta).encode(values))
    of = {".zarray": example, "2.4": bytes(encoded)}
    assert metadata(of).grid_shape == (10, 10)
    assert same(chunk(of, (2, 4)), values)
    assert np.isnan(np.frombuffer(metadata(of).fill_bytes, "<f8")[0])


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("3", "Arrays: Data type encoding")

TEXT.row("simple types are NumPy's typestr: byte order, kind, size", of_type("<i2", 1, -2))
TEXT.row(
    '"<": little-endian',
    all_of(of_type("<u4", 1, 2**31), reads({".zarray": typed("<u2", None, 1)[".zarray"], "0": b"\1\2"}, [0x201])),
)
TEXT.row(
    '">": big-endian', all_of(of_type(">u4", 1, 2**31), reads({".zarray": typed(">u2", None, 1)[".zarray"], "0": b"\1\2"}, [0x102]))
)
TEXT.row('"|": not relevant', all_of(of_type("|u1", 1, 255), of_type("|S3", b"ab", b"abc")))
TEXT.row("b: Boolean, where all values are True or False", of_type("|b1", True, False))
TEXT.row("i: integer", all_of(*(of_type(each, 1, -100) for each in ("|i1", "<i2", ">i4", "<i8"))))
TEXT.row("u: unsigned integer", all_of(*(of_type(each, 1, 200) for each in ("|u1", "<u2", ">u4", "<u8"))))
TEXT.row(
    "f: floating point",
    all_of(*(of_type(each, 1.5, -np.inf, np.nan) for each in ("<f2", ">f4", "<f8"))),
    "as stated; <f16 and <c32 are refused: the 80-bit floats exist only on x86",
)
TEXT.row(
    "an integer is of 1, 2, 4 or 8 bytes, a float of 2, 4 or 8",
    all_of(*(bad("no such type", dtype=each) for each in ("<i3", "<u16", "<f1", "<b2"))),
    REFUSED,
)
TEXT.row("c: complex floating point", all_of(of_type("<c8", 1 - 2j, np.nan), of_type(">c16", 1 - 2j, 3j)))
TEXT.row("m: timedelta", of_type("<m8[D]", np.timedelta64(5, "D"), np.timedelta64("NaT", "D")))
TEXT.row("M: datetime", of_type(">M8[ns]", np.datetime64("2020-02-03", "ns"), np.datetime64("NaT", "ns")))
TEXT.row("S: string of fixed length", of_type("|S12", b"abc", b"twelve bytes"))
TEXT.row("U: unicode of fixed length", all_of(of_type("<U3", "äöü", "x"), of_type(">U3", "äöü", "x")))
TEXT.row(
    "V: other, chunks of memory of fixed size",
    reads({".zarray": typed("|V3")[".zarray"], "0": b"\1\2\3"}, np.array([b"\1\2\3"], "|V3")),
)
TEXT.row(
    "the integer is the number of bytes that the type uses (of U: of characters, as in NumPy)",
    all_of(of_type("<U2", "ab"), bad("at least one byte", dtype="|S0"), bad("dtype", dtype="<i")),
)
TEXT.row(
    "the byte order MUST be specified",
    all_of(*(bad("dtype", dtype=each, fill_value=None) for each in ("i4", "=i4", "b1", "|i4", "|f8", "|U3", "|M8[ns]"))),
    REFUSED + '; a meaningless byte order ("<i1") is accepted',
)
TEXT.row(
    '"<f8", ">i4", "|b1" and "|S12" are valid',
    all_of(of_type("<f8", 1.5), of_type(">i4", 1), of_type("|b1", True), of_type("|S12", b"x")),
)
TEXT.row(
    "types m and M MUST include the unit in square brackets",
    all_of(*(bad("dtype", dtype=each, fill_value=None) for each in ("M8", "<M8[]", "<M4[ns]"))),
    'as stated; "<M8" without brackets, as zarr-python writes it, is the type without a unit',
)
TEXT.row(
    "the units are NumPy's",
    all_of(
        *(of_type(f"<M8[{unit}]", 5) for unit in "Y M W D h m s ms us ns ps fs as".split()),
        bad("dtype", dtype="<M8[fortnight]", fill_value=None),
    ),
)
TEXT.row('"<M8[ns]" is a datetime of nanoseconds', lambda: _is_type("<M8[ns]", np.dtype("<M8[ns]")))

RGB = [["r", "|u1"], ["g", "|u1"], ["b", "|u1"]]
XYZ = [["x", "<f4"], ["y", ">f4"], ["z", "<f4", [2, 2]]]
NESTED = [["foo", "<f4"], ["bar", [["baz", "<f4"], ["qux", "<i4"]]]]
TEXT.row("structured types are a list of lists", of_type(RGB, (1, 2, 3), (4, 5, 6)))
TEXT.row(
    "a sub-list is [fieldname, datatype, shape], where shape is optional",
    all_of(
        *(bad("dtype|field", dtype=each, fill_value=None) for each in ([["x"]], [["x", "<f4", [2], 1]], ["<f4"], [{"x": "<f4"}]))
    ),
    "as stated; anything else is refused",
)
TEXT.row("fieldname is a string", bad("field", dtype=[[1, "<f4"]], fill_value=None), REFUSED)
TEXT.row("datatype is a string of a simple type", of_type([["x", "<f4"], ["y", ">i2"]], (1.5, 3)))
TEXT.row("shape is a list of integers: the shape of a subarray", of_type(XYZ, (1, 2, [[3, 4], [5, 6]])))
TEXT.row("the example of three unsigned bytes r, g, b", lambda: _is_type(RGB, np.dtype([(each, "u1") for each in "rgb"])))
TEXT.row("structured types may be nested", of_type(NESTED, (1, (2, 3))))


@TEXT.rule(
    "(no statement) the type of Python objects",
    '"|O" is read where the first filter determines the objects: vlen-utf8, vlen-bytes, vlen-array, json2, msgpack2, categorize;'
    " pickle is refused: reading one executes code",
)
def _() -> None:
    values = np.array(["a", "", "äöü"], object)
    of = zarray(shape=[3], chunks=[3], dtype="|O", fill_value="", filters=[{"id": "vlen-utf8"}])
    assert elements({".zarray": of, "0": bytes(numcodecs.VLenUTF8().encode(values))}).tolist() == values.tolist()
    refuses({".zarray": of | {"filters": [{"id": "pickle"}]}}, "pickle", bad=False)()


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("4", "Arrays: Fill value encoding")

TEXT.row(
    'Not a Number MUST be "NaN"',
    all_of(fills("<f4", "NaN", np.nan), lambda: _written("float32", np.nan, "NaN")),
    "as stated, read and written; a payload of NaN is lost, and a bare NaN is read",
)
TEXT.row(
    'positive infinity MUST be "Infinity"',
    all_of(fills(">f8", "Infinity", np.inf), lambda: _written("float64", np.inf, "Infinity")),
    "as stated, read and written",
)
TEXT.row(
    'negative infinity MUST be "-Infinity"',
    all_of(fills("<f2", "-Infinity", -np.inf), lambda: _written("float16", -np.inf, "-Infinity")),
    "as stated, read and written",
)
TEXT.row(
    "any other string is no float",
    all_of(*(bad("fill_value", dtype="<f4", fill_value=each) for each in ("nan", "+Infinity", "0x7fc00000"))),
    REFUSED,
)
TEXT.row(
    "a fixed-length byte string MUST be Base64 in ASCII",
    all_of(fills("|S12", base64.b64encode(b"abc").decode(), b"abc"), lambda: _written("|S4", b"ab", "YWI=")),
    "as stated, read and written",
)
TEXT.row(
    "a structured value MUST be Base64 in ASCII",
    fills([["x", ">i2"], ["y", "|u1"]], "AQIJ", (0x102, 9)),
    "as stated, in the type's byte order",
)
TEXT.row(
    "the standard alphabet of Base64",
    all_of(
        fills("|S3", "+/+/", base64.b64decode("+/+/")),
        bad("fill_value", dtype="|S3", fill_value="-_-_"),
        bad("fill_value", dtype="|S3", fill_value="YWI=!"),
    ),
    "as stated; any other value is refused",
)
TEXT.row("null stays null, of these types as well", all_of(lambda: _undefined("|S3"), lambda: _undefined(RGB)))
TEXT.row(
    "(no statement) complex values",
    all_of(fills("<c8", [1.5, "NaN"], complex(1.5, np.nan)), fills("<c8", 2, 2)),
    "a list of two floats, as zarr-python writes it; a single number is the real part",
)
TEXT.row("(no statement) times", fills("<M8[D]", 1, np.datetime64(1, "D")), "an integer, as zarr-python writes it")

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("5", "Arrays: Chunks")


@TEXT.rule("the raw bytes of a chunk pass through the compressor")
def _() -> None:
    made = new_array("/a", new="v2", codecs="numcodecs.zlib:level=1", write={(1,): [8, 9]})
    assert zlib.decompress(made["a/1"]) == np.array([8, 9], "<i4").tobytes()


TEXT.row("no header is added, nothing else is changed", lambda: _is_chunk(new_array("/a", new="v2", write={(1,): [8, 9]})["a/1"]))
TEXT.row(
    "Blosc's bytes begin with a header of 16 bytes",
    lambda: _is_blosc(new_array("/a", new="v2", codecs="blosc:cname=lz4:clevel=5:shuffle=shuffle", write={(0,): [8, 9]})["a/0"]),
)
TEXT.row(
    "a compressed chunk is stored under a key formed of its index",
    reads({".zarray": zarray(shape=[4, 4]), "1.0": LEFT}, [[7] * 4, [7] * 4, [1, 2, 7, 7], [4, 5, 7, 7]]),
)
TEXT.row("the indices are strings joined by a period", lambda: _keys_of((2, 4), "2.4"))
TEXT.row(
    "an index has no leading zeros and no sign",
    reads({".zarray": zarray(), "00.0": LEFT, "+0.0": LEFT}, np.full((2, 3), 7, "<i2")),
    "as stated: another key is no chunk",
)
TEXT.row("the example: (10000, 10000) in (1000, 1000) has 10 by 10 chunks", lambda: _grid([10000, 10000], [1000, 1000], (10, 10)))


@TEXT.rule("the example: chunk (2, 4) is rows 2000-2999 and columns 4000-4999")
def _() -> None:
    block = np.ones((10, 10), "<i2")
    found = elements({".zarray": zarray(shape=[100, 100], chunks=[10, 10], fill_value=0), "2.4": block})
    assert found.sum() == 100 and (found[20:30, 40:50] == 1).all()


TEXT.row("not all chunks need be present", reads({".zarray": zarray(), "0.1": RIGHT}, [[7, 7, 3], [7, 7, 7]]))
TEXT.row(
    "a chunk that is not present is not initialized",
    lambda: _absent(store(fill_value=0) | {"0.1": b""}, "0.1"),
    "as stated: not listed in chunks/, and ENOENT there (--fill shows it)",
)
TEXT.row(
    "an uninitialized chunk MUST be treated as filled with fill_value", reads({".zarray": zarray()}, np.full((2, 3), 7, "<i2"))
)
TEXT.row(
    "fill_value null: its contents are undefined", lambda: _undefined("<f8"), "as stated; shown as zeros where a value is required"
)
TEXT.row("where a length is not divisible, chunks overhang the edge", reads(store(), WHOLE))


@TEXT.rule("elements outside the array are undefined", "as stated for reading; zarrfs writes the fill value there")
def _() -> None:
    made = new_array("/a", new="v2", shape=(3,), chunks=(2,), fill_value=9, write={(1,): [5, 6]})
    assert made["a/1"] == np.array([5, 9], "<i4").tobytes()


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("6", "Arrays: Filters")

DELTA = {"id": "delta", "dtype": "<i2"}
SCALE = {"id": "fixedscaleoffset", "dtype": "<i2", "astype": "<i2", "scale": 2, "offset": 1}


def _encoded(values: np.ndarray[Any, Any], *configs: dict[str, Any]) -> bytes:
    data: Any = values
    for config in configs:
        data = numcodecs.get_codec(config).encode(data)
    return np.asarray(data).tobytes() if isinstance(data, np.ndarray) else bytes(data)


TEXT.row(
    "one or more filters may transform chunks before compression",
    reads({".zarray": zarray(filters=[DELTA]), "0.0": _encoded(LEFT, DELTA), "0.1": _encoded(RIGHT, DELTA)}, WHOLE),
)
LINE = np.array([3, 5, 11], "<i2")
FILTERED = zarray(shape=[3], chunks=[3], filters=[SCALE, DELTA], compressor={"id": "zlib", "level": 1})
TEXT.row(
    "storing: filters apply in the order of the document, then the compressor",
    lambda: _rewritten(FILTERED, LINE, _encoded(LINE, SCALE, DELTA, {"id": "zlib", "level": 1})),
)
TEXT.row(
    "reading: decompressed, then decoded by the filters in the reverse order",
    reads({".zarray": FILTERED, "0": _encoded(LINE, SCALE, DELTA, {"id": "zlib", "level": 1})}, LINE),
)

# --- helpers ---------------------------------------------------------------------------------------------------------------------


def _only(found: dict[str, Any], names: Any) -> None:
    assert found.keys() == set(names), found


def _is_type(dtype: Any, expected: np.dtype[Any]) -> None:
    assert metadata(typed(dtype)).data_type.dtype == expected


def _written(dtype: str, fill_value: Any, expected: Any) -> None:
    made = new_array("/a", new="v2", dtype=dtype, fill_value=fill_value)
    assert document(made, "a/.zarray")["fill_value"] == expected
    found = metadata(made, "/a")
    assert found.fill_value == np.asarray(fill_value, found.data_type.dtype).tobytes()


def _undefined(dtype: Any) -> None:
    found = metadata(typed(dtype, None))
    assert found.fill_value is None and found.fill_bytes == bytes(found.data_type.itemsize)
    assert chunk(typed(dtype, None), (0,)) is None


def _is_chunk(data: bytes) -> None:
    assert data == np.array([8, 9], "<i4").tobytes()


def _is_blosc(data: bytes) -> None:
    header = blosc_header(data)
    assert header["version"] == 2 and header["nbytes"] == 8 and header["cbytes"] == len(data)
    assert numcodecs.Blosc().decode(data) == np.array([8, 9], "<i4").tobytes()


def _keys_of(coords: tuple[int, ...], key: str) -> None:
    made = new_array("/a", new="v2", shape=(100, 100), chunks=(10, 10), write={coords: np.ones((10, 10))})
    assert keys(made) == [".zgroup", "a/.zarray", f"a/{key}"]


def _grid(shape: list[int], chunks: list[int], expected: tuple[int, ...]) -> None:
    assert metadata({".zarray": zarray(shape=shape, chunks=chunks)}).grid_shape == expected


def _absent(values: dict[str, Any], key: str) -> None:
    del values[key]
    assert chunk(values, (0, 1)) is None and chunk(values, (0, 0)) is not None


def _rewritten(of: dict[str, Any], values: np.ndarray[Any, Any], expected: bytes) -> None:
    """Assert the stored bytes of ``values`` after they are written to an array with this document."""
    from tests.support.conforming import edited

    async def write(_: Any, hierarchy: Any) -> None:
        found = await hierarchy.array(NodePath("/"))
        await found.array.write_chunk((0,), values.tobytes())

    assert edited({".zarray": of}, write)["0"] == expected


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
