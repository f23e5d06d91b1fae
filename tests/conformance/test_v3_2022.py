"""Zarr v3 core draft of 2 December 2022, statement by statement: concepts, names, types, grids, chunk encoding."""

from __future__ import annotations

import gzip
import zlib
from functools import partial
from typing import Any

import numpy as np

from tests.support.conforming import (
    Check,
    all_of,
    array,
    elements,
    equal,
    group,
    holds,
    metadata,
    new_array,
    new_group,
    raises,
    reads,
    refuses,
)
from tests.support.draft_statements import hierarchy_is_a_tree
from tests.support.example_array import LEFT, OTHERS, REFUSED, RIGHT, WHOLE, with_members
from tests.support.statements import Statement, Text
from zarrfs.dialects.v3_2022.dialect import PLUGIN
from zarrfs.errors import ChunkDecodeError, EntryExists, NameInvalid
from zarrfs.keys import NodePath, Prefix

TEXT = Text("v3_2022", "Zarr v3 core specification, draft of 2022, with its extensions, codecs and stores")

ENTRY = {
    "zarr_format": "https://purl.org/zarr/spec/core/3.0",
    "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"},
    "extensions": [],
}
SOFTWARE = {
    "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
    "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
    "metadata_key_suffix": ".json",
    "extensions": [],
}
GRID = {"type": "regular", "chunk_shape": [2, 2], "separator": "/"}
PLAIN = {
    "shape": [2, 3],
    "data_type": "int16",
    "chunk_grid": GRID,
    "chunk_memory_layout": "C",
    "fill_value": 7,
    "extensions": [],
    "attributes": {},
}
GROUP: dict[str, Any] = {"attributes": {}}


def doc(**members: Any) -> dict[str, Any]:
    """Return the document of an array; `...` leaves a member out."""
    return with_members(PLAIN, members)


def store(**members: Any) -> dict[str, Any]:
    """Return the array /a in the text's form: `WHOLE` in two chunks."""
    return {"zarr.json": ENTRY, "meta/a.array.json": doc(**members), "data/a/c0/0": LEFT, "data/a/c0/1": RIGHT}


def software(**members: Any) -> dict[str, Any]:
    """Return the same in the form of zarr-python 2."""
    return {
        "zarr.json": SOFTWARE,
        "meta/root/a.array.json": doc(**{"data_type": "<i2", **members}),
        "data/root/a/c0/0": LEFT,
        "data/root/a/c0/1": RIGHT,
    }


def grid(*lengths: Any, **more: Any) -> dict[str, Any]:
    return {**GRID, "chunk_shape": list(lengths), **more}


def line(data_type: Any, fill_value: Any, *values: Any, dtype: str = "", **members: Any) -> dict[str, Any]:
    """Return the array /a of one dimension and one chunk; ``values`` are stored as NumPy's ``dtype``."""
    count = len(values) or 1
    held = {"data/a/c0": np.array(list(values), dtype)} if values else {}
    said = doc(shape=[count], chunk_grid=grid(count), data_type=data_type, fill_value=fill_value, **members)
    return {"zarr.json": ENTRY, "meta/a.array.json": said, **held}


def bad(match: str, *, is_bad: bool = True, **members: Any) -> Check:
    """Return a check that an array with these members is refused, with a reason that names the key."""
    return refuses({"zarr.json": ENTRY, "meta/a.array.json": doc(**members)}, rf"^meta/a\.array\.json: .*{match}", "/a", bad=is_bad)


unknown = partial(bad, is_bad=False)
"""As `bad`, for members that the text permits and zarrfs does not support."""


def made(form: str = "text", **how: Any) -> dict[str, bytes]:
    """Return the stored values of a new array /a."""
    return new_array("/a", new=f"v3_2022:{form}", **how)


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("1", "Introduction: Stability policy")

TEXT.row(
    "implementations of 3.X read 3.Y",
    reads({**store(), "zarr.json": {**ENTRY, "zarr_format": "https://purl.org/zarr/spec/core/3.7"}}, WHOLE, "/a"),
)
TEXT.row(
    "but for extensions, codecs and stores that are not supported",
    unknown("made_up", codecs=[{"type": "https://purl.org/zarr/spec/codecs/made_up/1.0"}]),
    "as stated: the node is refused, its neighbours are shown",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("2", "Concepts and terminology")

TREE = {
    "zarr.json": ENTRY,
    "meta/foo/bar.group.json": GROUP,
    "meta/foo/baz/qux.array.json": doc(),
    "data/foo/baz/qux/c0/0": LEFT,
    "data/foo/baz/qux/c0/1": RIGHT,
}
hierarchy_is_a_tree(TEXT, TREE, store())
TEXT.row(
    "an array has zero or more dimensions",
    reads({"zarr.json": ENTRY, "meta/a.array.json": doc(shape=[], chunk_grid=grid()), "data/a/c": np.int16(5)}, np.int16(5), "/a"),
    "as stated, up to 32 (NumPy's)",
)
TEXT.row(
    "two siblings cannot have the same name",
    raises(EntryExists, "exists", lambda: new_group("/a", new="v3", into=store())),
    "as stated, for new nodes",
)
TEXT.row(
    "a path begins with a slash, and does not end with one",
    all_of(raises(NameInvalid, "node path", lambda: NodePath("a")), raises(NameInvalid, "node path", lambda: NodePath("/a/"))),
)
TEXT.row("chunk lengths are not zero where the dimension is not", bad("chunk", chunk_grid=grid(0, 2)), REFUSED)
TEXT.row(
    "a group's document is optional", lambda: equal((group(TREE, "/foo").explicit, group(TREE, "/foo/bar").explicit), (False, True))
)
TEXT.row(
    "codecs are applied in sequence, decoded in reverse",
    reads(
        {
            **store(
                codecs=[
                    {"type": f"https://purl.org/zarr/spec/codecs/{name}/1.0", "configuration": {"level": 1}}
                    for name in ("zlib", "gzip")
                ]
            ),
            "data/a/c0/0": gzip.compress(zlib.compress(LEFT)),
            "data/a/c0/1": gzip.compress(zlib.compress(RIGHT)),
        },
        WHOLE,
        "/a",
    ),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("3", "Node names")


def no_name(name: str) -> Check:
    """Return a check that no node of that name can be created."""
    return raises(NameInvalid, "invalid name", lambda: PLUGIN.create(Prefix("")).check_name(name))


TEXT.row("must not be empty", no_name(""))
TEXT.row(
    "only a-z, A-Z, 0-9, - _ .",
    all_of(
        no_name("a b"),
        no_name("ä"),
        no_name("a/b"),
        no_name("a+"),
        holds({**store(), "meta/a b.array.json": doc()}, {"a": "array"}),
    ),
    "as stated: none is created, and none is shown except in raw/",
)
TEXT.row("must not consist of periods only", all_of(no_name("."), no_name(".."), no_name("...")))
TEXT.row("names are case sensitive", holds({**store(), "meta/A.group.json": GROUP}, {"a": "array", "A": "group"}))

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("4", "Data types")


def of_type(data_type: str, dtype: str, *values: Any) -> Check:
    zero = [0, 0] if data_type[0] == "c" else False if data_type == "bool" else 0
    return reads(line(data_type, zero, *values, dtype=dtype), np.array(list(values), dtype), "/a")


TEXT.row("bool: one byte, 0 or 1", of_type("bool", "|b1", True, False))
for bits in (8, 16, 32):
    TEXT.row(f"int{bits}: little-endian two's complement", of_type(f"int{bits}", f"<i{bits // 8}", -(2 ** (bits - 1)), 5))
    TEXT.row(f"uint{bits}: little-endian", of_type(f"uint{bits}", f"<u{bits // 8}", 2**bits - 1, 5))
TEXT.row(
    "(no statement) int64 and uint64",
    all_of(of_type("int64", "<i8", -5), of_type("uint64", "<u8", 2**64 - 1)),
    "read: the table omits them",
)
for bits in (16, 32, 64):
    TEXT.row(
        f"float{bits}: little-endian IEEE 754" + (" (optional)" if bits == 16 else ""),
        of_type(f"float{bits}", f"<f{bits // 8}", 1.5, -np.inf),
    )
for bits in (64, 128):
    TEXT.row(f"complex{bits}: two little-endian floats", of_type(f"complex{bits}", f"<c{bits // 8}", 1.5 - 2j))
TEXT.row("r*: raw bits", reads({**line("r24", "0x000000"), "data/a/c0": b"\1\2\3"}, np.array([b"\1\2\3"], "|V3"), "/a"))
TEXT.row(
    "r*: a multiple of 8",
    all_of(bad("raw type", data_type="r7", fill_value=0), bad("data type", is_bad=False, data_type="r0", fill_value=0)),
    OTHERS,
)
TEXT.row(
    '(no statement) "<f8", ">i2", "i1": types with a byte order',
    all_of(
        reads(software(), WHOLE, "/a"),
        reads(
            {**software(data_type=">i2"), "data/root/a/c0/0": LEFT.astype(">i2"), "data/root/a/c0/1": RIGHT.astype(">i2")},
            WHOLE,
            "/a",
        ),
        reads(store(data_type="<i2"), WHOLE, "/a"),
    ),
    "read, in both forms: the software has no others, and the specification's own examples use them",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("5", "Chunk grids")

TEXT.row(
    "extensions may define other grids",
    unknown("rectilinear", chunk_grid={"type": "rectilinear", "extension": "https://example.org/g"}),
    "no extension is known: refused, with the name",
)
TEXT.row("regular: the dimensions of the grid are those of the array", bad("chunk", chunk_grid=grid(2)), REFUSED)
TEXT.row(
    "regular: the grid is aligned with the origin",
    reads(
        {"zarr.json": ENTRY, "meta/a.array.json": doc(shape=[4, 4]), "data/a/c1/0": LEFT},
        [[7] * 4, [7] * 4, [1, 2, 7, 7], [4, 5, 7, 7]],
        "/a",
    ),
)
TEXT.row(
    "regular: (10, 200, 3000) in (5, 20, 400) has (2, 10, 8) chunks",
    lambda: equal(
        metadata(
            {"zarr.json": ENTRY, "meta/a.array.json": doc(shape=[10, 200, 3000], chunk_grid=grid(5, 20, 400))}, "/a"
        ).grid_shape,
        (2, 10, 8),
    ),
)
TEXT.row("regular: element (7, 150, 900) is (2, 10, 100) of chunk (1, 7, 2)", lambda: _element())


def key_of(coords: tuple[int, ...], key: str, **more: Any) -> Check:
    said = doc(shape=[99] * len(coords), chunk_grid=grid(*[1] * len(coords), **more))
    return lambda: equal(metadata({"zarr.json": ENTRY, "meta/a.array.json": said}, "/a").chunk_key_encoding.encode(coords), key)


TEXT.row(
    "the identifier: c and the indices joined by the separator: c1/23/45",
    all_of(key_of((1, 23, 45), "c1/23/45"), reads({**store(), "data/a/c00/0": RIGHT, "data/a/0/0": RIGHT}, WHOLE, "/a")),
    "as stated: no leading zeros",
)
TEXT.row(
    'separator "."',
    all_of(
        key_of((1, 23, 45), "c1.23.45", separator="."),
        reads({**software(chunk_grid=grid(2, 2, separator=".")), "data/root/a/c0.0": LEFT, "data/root/a/c0.1": RIGHT}, WHOLE, "/a"),
    ),
)
TEXT.row(
    "the default of the separator is /",
    lambda: equal(
        (
            metadata({"zarr.json": ENTRY, "meta/a.array.json": doc(chunk_grid={"type": "regular", "chunk_shape": [2, 2]})}, "/a")
            == metadata(store(), "/a"),
            array(
                {"zarr.json": ENTRY, "meta/a.array.json": doc(chunk_grid={"type": "regular", "chunk_shape": [2, 2]})}, "/a"
            ).quirks,
        ),
        (True, ("separator of the chunk grid is missing",)),
    ),
    'as stated (a quirk): "Array metadata" requires it',
)
TEXT.row(
    "of no dimensions the key is c",
    all_of(
        reads(
            {"zarr.json": ENTRY, "meta/a.array.json": doc(shape=[], chunk_grid=grid()), "data/a/c": np.int16(5)}, np.int16(5), "/a"
        ),
        reads(
            {"zarr.json": SOFTWARE, "meta/root/a.array.json": doc(shape=[], chunk_grid=grid()), "data/root/a/c0": np.int16(5)},
            np.int16(5),
            "/a",
        ),
    ),
    "as stated; c0, as in zarr-python, where that is stored",
)
TEXT.row(
    "chunks at the edge have the full size",
    all_of(reads(store(), WHOLE, "/a"), lambda: equal(len(made(shape=(3,), chunks=(2,), write={(1,): [5, 6]})["data/a/c1"]), 8)),
)
TEXT.row(
    "elements outside should be written as the fill value",
    lambda: equal(
        made(shape=(3,), chunks=(2,), fill_value=9, write={(1,): [5, 6]})["data/a/c1"], np.array([5, 9], "<i4").tobytes()
    ),
)


def _element() -> None:
    block = np.zeros((5, 20, 400), "<i2")
    block[2, 10, 100] = 1
    said = doc(shape=[10, 200, 3000], chunk_grid=grid(5, 20, 400), fill_value=0)
    found = elements({"zarr.json": ENTRY, "meta/a.array.json": said, "data/a/c1/7/2": block}, "/a")
    assert np.argwhere(found).tolist() == [[7, 150, 900]]


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("6", "Chunk memory layouts, chunk encoding")

TEXT.row("C: the last dimension is the fastest", reads(store(chunk_memory_layout="C"), WHOLE, "/a"))
TEXT.row(
    "F: the first dimension is the fastest",
    reads({**store(chunk_memory_layout="F"), "data/a/c0/0": LEFT.T.copy(), "data/a/c0/1": RIGHT.T.copy()}, WHOLE, "/a"),
)
TEXT.row(
    "extensions may define other layouts",
    unknown("made_up", chunk_memory_layout={"extension": "https://example.org/x", "type": "made_up"}),
    "no extension is known: refused, with the name",
)
TEXT.row(
    "F: the first representation is the chunk with its dimensions reversed",
    lambda: equal(metadata(store(chunk_memory_layout="F"), "/a").codecs[0].configuration, {"order": [1, 0]}),
)
TEXT.row(
    "a codec on bytes takes an array as its elements in C order",
    reads(
        {
            **store(codecs=[{"type": "https://purl.org/zarr/spec/codecs/gzip/1.0", "configuration": {"level": 1}}]),
            "data/a/c0/0": gzip.compress(LEFT.tobytes()),
            "data/a/c0/1": gzip.compress(RIGHT.tobytes()),
        },
        WHOLE,
        "/a",
    ),
)
TEXT.row("without codecs a chunk is the little-endian elements", reads(store(), WHOLE, "/a"))
TEXT.row(
    "a chunk of another size",
    raises(ChunkDecodeError, "7 bytes instead of 8", lambda: elements({**store(), "data/a/c0/0": LEFT.tobytes()[:7]}, "/a")),
    "EIO, and an error that names the chunk",
)
TEXT.row(
    "F, and a codec: reversed, then encoded",
    reads(
        {
            **store(
                chunk_memory_layout="F",
                codecs=[{"type": "https://purl.org/zarr/spec/codecs/gzip/1.0", "configuration": {"level": 1}}],
            ),
            "data/a/c0/0": gzip.compress(LEFT.T.tobytes()),
            "data/a/c0/1": gzip.compress(RIGHT.T.tobytes()),
        },
        WHOLE,
        "/a",
    ),
)
TEXT.row(
    "an incompatible representation should be an error",
    bad("codec", codecs=[{"type": "https://purl.org/zarr/spec/codecs/packbits/1.0"}]),
    "as stated: the array is refused",
)
TEXT.row(
    "a codec is identified by a URI",
    all_of(
        unknown("codec", codecs=[{"type": "gzip", "configuration": {"level": 1}}]),
        unknown("codec", codecs=[{"type": "https://example.org/codecs/gzip/1.0", "configuration": {"level": 1}}]),
        unknown("codec", codecs=[{"type": "https://purl.org/zarr/spec/codecs/gzip/2.0", "configuration": {"level": 1}}]),
    ),
    "as stated: by the name in a URI of zarr-specs, of version 1; in other URIs it may have another meaning",
)


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
