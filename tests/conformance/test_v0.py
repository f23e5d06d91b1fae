"""The layout before Zarr 1.0, "zarr - Persistence", statement by statement."""

from __future__ import annotations

import json
from typing import Any

import numcodecs
import numpy as np

from tests.dialects import test_v0 as dialect_tests
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
    erased,
    group,
    keys,
    metadata,
    new_array,
    new_group,
    opened_folder,
    raises,
    reads,
    refuses,
)
from tests.support.example_array import LEFT, REFUSED, RIGHT, WHOLE, with_members
from tests.support.statements import Statement, Text
from zarrfs.errors import ChunkDecodeError, NotRepresentable

TEXT = Text("v0", "zarr - Persistence (before version 1)")

PLAIN = {"shape": [2, 3], "chunks": [2, 2], "dtype": "<i2", "fill_value": 7, "cname": "lz4", "clevel": 5, "shuffle": 1}
ALLOWED = "as stated; any other is refused"


def zmeta(**members: Any) -> dict[str, Any]:
    """Return the text's members; `...` leaves one out."""
    return with_members(PLAIN, members)


def blosc(values: np.ndarray[Any, Any], **how: Any) -> bytes:
    return bytes(numcodecs.Blosc(**how).encode(values))


def store(**members: Any) -> dict[str, Any]:
    """Return an array at the root: `WHOLE` in two chunks."""
    return {"__zmeta__": zmeta(**members), "__zdata__/0.0.blosc": blosc(LEFT), "__zdata__/0.1.blosc": blosc(RIGHT)}


def bad(match: str, **members: Any) -> Check:
    """Return a check that an array with these members is refused, with a reason that names the key."""
    return refuses({"__zmeta__": zmeta(**members)}, rf"^__zmeta__: .*{match}")


def made(**how: Any) -> dict[str, bytes]:
    """Return the stored values of a new array."""
    return new_array("/a", new="v0", codecs="auto", **how)


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("1", "zarr - Persistence")

TEXT.row(
    "all data and metadata of an array are stored within one folder",
    lambda: equal(
        opened_folder({f"a/{key}": value for key, value in store().items()}).keys(),
        {"a/__zmeta__", "a/__zdata__/0.0.blosc", "a/__zdata__/0.1.blosc"},
    ),
)
TEXT.row(
    "(no statement) groups",
    lambda: equal(
        (group({f"g/a/{key}": value for key, value in store().items()}, "/g").attributes, keys(new_group("/g", new="v0"))), ({}, [])
    ),
    "a folder above arrays is a group, without documents and attributes; a new group is an empty folder",
)
TEXT.row(
    "(no statement) several layouts in one folder",
    lambda: equal(
        array(
            {
                **store(),
                ".zarray": {
                    "zarr_format": 2,
                    "shape": [1],
                    "chunks": [1],
                    "dtype": "<i4",
                    "compressor": None,
                    "fill_value": 0,
                    "order": "C",
                    "filters": None,
                },
            }
        ).dialect,
        "v2",
    ),
    "the newer layout counts: it was written later",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("2", "Configuration metadata")

TEXT.row("a file `__zmeta__` in the folder has the metadata", reads(store(), WHOLE))
TEXT.row(
    "its format is JSON",
    all_of(refuses({"__zmeta__": b"{"}, "^__zmeta__: not JSON"), refuses({"__zmeta__": b"[]"}, "^__zmeta__: not a JSON object")),
    "as stated, an object in UTF-8, no member twice",
)
TEXT.tested(
    "its format is JSON",
    dialect_tests.test_a_pickle_is_refused_and_never_unpickled,
    "the pickle that zarr 0.3.0 wrote is refused, and never unpickled: that would run code",
)
for name in ("shape", "chunks", "dtype", "fill_value", "cname", "clevel", "shuffle"):
    TEXT.row(f"{name} is mandatory", bad(f"{name} is missing", **{name: ...}), REFUSED)
TEXT.row(
    "shape: a list of integers, the size of each dimension",
    all_of(lambda: equal(metadata(store()).shape, (2, 3)), *(bad("shape", shape=each) for each in (2, [2.0, 3], [-1, 3], None))),
    ALLOWED,
)
TEXT.row(
    "chunks: a list of integers, the size of each dimension of a chunk",
    all_of(
        lambda: equal(metadata(store()).grid_shape, (1, 2)), *(bad("chunk", chunks=each) for each in (2, [2], [0, 2], ["2", 2]))
    ),
    ALLOWED,
)
TEXT.row(
    "dtype: a string, NumPy's",
    all_of(
        *(
            lambda each=each: equal(metadata(store(dtype=each, fill_value=None)).data_type.dtype, np.dtype(each).newbyteorder("<"))
            for each in ("<f8", ">i4", "|b1", "|S3", "<U2", "<M8[s]")
        ),
        *(bad("dtype", dtype=each) for each in ("i4x", "f8", 4, None)),
    ),
    "as stated, with the byte order; any other is refused",
)
TEXT.row(
    "(no statement) dtype of several fields",
    lambda: equal(
        metadata({"__zmeta__": zmeta(dtype=[["x", "<f4"], ["y", "|u1"]], fill_value=0)}).data_type.dtype,
        np.dtype([("x", "<f4"), ("y", "u1")]),
    ),
    "a list of fields, as the software writes it",
)
TEXT.row(
    "fill_value: a scalar, of portions that are not initialized",
    reads({"__zmeta__": zmeta(), "__zdata__/0.0.blosc": blosc(LEFT)}, [[1, 2, 7], [4, 5, 7]]),
)
TEXT.row(
    "(no statement) NaN, the infinities and null",
    all_of(
        reads({"__zmeta__": json.dumps(zmeta(dtype="<f4", fill_value=float("-inf"))).encode()}, np.full((2, 3), -np.inf, "<f4")),
        lambda: equal(metadata({"__zmeta__": zmeta(fill_value=None)}).fill_value, None),
    ),
    "bare tokens, and undefined, as the software writes them",
)
TEXT.row(
    "cname: a string, the compression library",
    all_of(
        *(
            reads(
                {
                    "__zmeta__": zmeta(cname=each),
                    "__zdata__/0.0.blosc": blosc(LEFT, cname=each),
                    "__zdata__/0.1.blosc": blosc(RIGHT, cname=each),
                },
                WHOLE,
            )
            for each in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        ),
        bad("cname", cname=5),
    ),
    ALLOWED,
)
TEXT.row(
    "clevel: an integer, the compression level",
    all_of(
        *(lambda each=each: equal(metadata(store(clevel=each)).codecs[-1].configuration["clevel"], each) for each in (0, 9)),
        bad("clevel", clevel="5"),
        bad("clevel", clevel=-1),
    ),
    ALLOWED,
)
TEXT.row(
    "shuffle: 0 none, 1 byte, 2 bit shuffle",
    all_of(
        *(
            lambda each=each, name=name: equal(metadata(store(shuffle=each)).codecs[-1].configuration["shuffle"], name)
            for each, name in ((0, "noshuffle"), (1, "shuffle"), (2, "bitshuffle"))
        ),
        bad("shuffle", shuffle=3),
        bad("shuffle", shuffle=True),
        bad("shuffle", shuffle="1"),
    ),
    ALLOWED,
)
TEXT.row(
    "(no statement) other members",
    lambda: equal(document(amended(store(made_up=1), shape=(1, 3)), "__zmeta__"), zmeta(made_up=1, shape=[1, 3])),
    "ignored, and kept by every edit",
)


@TEXT.rule("the example: indented by 4, members sorted")
def _() -> None:
    found = new_array(
        "/a", new="v0", shape=(1000000, 1000), chunks=(10000, 100), fill_value=42, codecs="blosc:cname=lz4:clevel=3:shuffle=shuffle"
    )
    expected = {
        "shape": [1000000, 1000],
        "chunks": [10000, 100],
        "dtype": "<i4",
        "fill_value": 42,
        "cname": "lz4",
        "clevel": 3,
        "shuffle": 1,
    }
    assert found["a/__zmeta__"].decode() == json.dumps(expected, indent=4, sort_keys=True)


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("3", "User metadata (attributes)")

TEXT.row(
    "a file `__zattr__` in the folder has the attributes",
    all_of(
        lambda: equal(array({**store(), "__zattr__": {"foo": 42}}).attributes, {"foo": 42}),
        lambda: equal(document(made(attributes={"foo": 42}), "a/__zattr__"), {"foo": 42}),
    ),
)
TEXT.row(
    "its format is JSON",
    refuses({**store(), "__zattr__": b"foo"}, "^__zattr__: not JSON"),
    "as stated, an object; else the array is refused",
)
TEXT.row(
    "(no statement) no attributes",
    all_of(lambda: equal(array(store()).attributes, {}), lambda: equal("a/__zattr__" in made(), False)),
    "as in the software: no file, and none is created",
)
TEXT.row(
    "the example: indented by 4, members sorted",
    lambda: equal(made(attributes={"foo": 42, "bar": 4.2})["a/__zattr__"], b'{\n    "bar": 4.2,\n    "foo": 42\n}'),
)
TEXT.tested(
    "(no statement) locks: `__zattr__.lock`, `0.0.blosc.lock`",
    dialect_tests.test_a_lock_is_neither_node_nor_document,
    "neither nodes nor chunks",
)
LOCKED = {f"a/{key}": value for key, value in {**store(), "__zattr__.lock": b"", "__zdata__/0.0.blosc.lock": b""}.items()}
TEXT.row("(no statement) locks of erased data", lambda: equal(keys(erased(LOCKED, "/a")), []), "erased with what they lock")

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("4", "Array data")

TEXT.row("a folder `__zdata__` has the data", lambda: equal(array(store()).chunk_prefix, "__zdata__/"))
TEXT.row(
    "each chunk is compressed using Blosc",
    all_of(
        lambda: equal(blosc_header(made(write={(0,): [8, 9]})["a/__zdata__/0.blosc"])["nbytes"], 8),
        raises(NotRepresentable, "blosc", lambda: new_array("/a", new="v0", codecs="zstd")),
    ),
    "as stated; a new array with another codec is refused",
)
TEXT.row(
    "each chunk is in a file of its own",
    lambda: equal(keys(made(write={(0,): [8, 9], (1,): [1, 2]})), ["a/__zdata__/0.blosc", "a/__zdata__/1.blosc", "a/__zmeta__"]),
)
TEXT.row(
    "(no statement) the order of elements in a chunk",
    all_of(reads(store(), WHOLE), lambda: _transposed()),
    "row-major: the software supports no other order",
)
TEXT.row("the file is named by the indices: 4.2.blosc is row 4, column 2", lambda: _segment())
TEXT.row(
    "a file of another name is no chunk",
    reads({**store(), "__zdata__/0.2": blosc(LEFT), "__zdata__/00.0.blosc": blosc(RIGHT)}, WHOLE),
)
TEXT.row(
    "an array of 100 by 100 in chunks of 10 by 10 has 100 chunks",
    lambda: equal(metadata({"__zmeta__": zmeta(shape=[100, 100], chunks=[10, 10])}).grid_shape, (10, 10)),
)
TEXT.row(
    "a chunk is in the format of Blosc 1: a header of 16 bytes, then compressed data",
    lambda: _header(),
    "as stated; the first byte is 2, the version of the format that Blosc 1.0 and later write",
)
TEXT.row("the header: typesize at 3, then nbytes, blocksize, cbytes, little-endian", lambda: _header())
TEXT.row(
    "a chunk whose header is wrong",
    raises(ChunkDecodeError, "blosc", lambda: elements({**store(), "__zdata__/0.0.blosc": b"\2\1\0\2" + bytes(12)})),
    "EIO, and an error that names the chunk",
)
TEXT.row("a file that does not exist: the chunk is not initialized", lambda: equal(chunk({"__zmeta__": zmeta()}, (0, 0)), None))
TEXT.row("it is interpreted as filled with the fill value", reads({"__zmeta__": zmeta()}, np.full((2, 3), 7, "<i2")))
TEXT.row(
    "the example: a new array has no chunks, an empty `__zdata__`",
    lambda: equal(keys(made()), ["a/__zmeta__"]),
    "as stated; the folder is created where the store has folders",
)
TEXT.row("(no statement) chunks that overhang the edge", reads(store(), WHOLE), "cut off; zarrfs writes the fill value there")


def _transposed() -> None:
    values = [[1, 2], [3, 4]]
    data = made(shape=(2, 2), chunks=(2, 2), order="F", write={(0, 0): values})["a/__zdata__/0.0.blosc"]
    assert np.frombuffer(numcodecs.Blosc().decode(data), "<i4").tolist() == [1, 2, 3, 4]


def _segment() -> None:
    values = {
        "__zmeta__": zmeta(shape=[100, 100], chunks=[10, 10], fill_value=0),
        "__zdata__/4.2.blosc": blosc(np.ones((10, 10), "<i2")),
    }
    found = elements(values)
    assert found.sum() == 100 and (found[40:50, 20:30] == 1).all()


def _header() -> None:
    data = made(write={(0,): [8, 9]})["a/__zdata__/0.blosc"]
    header = blosc_header(data)
    assert (header["version"], header["typesize"], header["nbytes"], header["cbytes"]) == (2, 4, 8, len(data))
    assert numcodecs.Blosc().decode(data) == np.array([8, 9], "<i4").tobytes()


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
