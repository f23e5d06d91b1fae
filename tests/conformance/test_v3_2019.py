"""Zarr core protocol version 3.0, editor's draft of 19 June 2019, statement by statement."""

from __future__ import annotations

import gzip
from functools import partial
from typing import Any

import numpy as np
import trio

from tests.dialects import test_v3_2019 as dialect_tests
from tests.stores.conformance import StoreConformance
from tests.stores.readable import ReadableConformance
from tests.support.conforming import (
    Check,
    all_of,
    amended,
    array,
    chunk,
    document,
    elements,
    equal,
    erased,
    group,
    holds,
    keys,
    metadata,
    new_array,
    new_group,
    node,
    raises,
    reads,
    refuses,
    same,
)
from tests.support.draft_statements import entry_refused, hierarchy_is_a_tree, unknown_extensions
from tests.support.example_array import LEFT, OTHERS, REFUSED, RIGHT, WHOLE, with_members
from tests.support.statements import NOT_YET, Statement, Text
from zarrfs.dialects.v3_2019.dialect import PLUGIN
from zarrfs.errors import CaseConflict, ChunkDecodeError, EntryExists, NameInvalid, UsageError
from zarrfs.keys import Prefix
from zarrfs.stores.opening import open_store

TEXT = Text("v3_2019", "Zarr core protocol version 3.0, draft of 2019")

ENTRY = {"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_encoding": "application/json", "extensions": []}
PLAIN = {
    "shape": [2, 3],
    "data_type": "<i2",
    "chunk_grid": {"type": "regular", "chunk_shape": [2, 2]},
    "chunk_memory_layout": "C",
    "compressor": None,
    "fill_value": 7,
    "extensions": [],
    "attributes": {},
}
GROUP: dict[str, Any] = {"extensions": [], "attributes": {}}


def doc(**members: Any) -> dict[str, Any]:
    """Return the document of an array; `...` leaves a member out."""
    return with_members(PLAIN, members)


def store(**members: Any) -> dict[str, Any]:
    """Return the array /a: `WHOLE` in two uncompressed chunks."""
    return {"zarr.json": ENTRY, "meta/root/a.array": doc(**members), "data/a/0.0": LEFT, "data/a/0.1": RIGHT}


def grid(*lengths: Any, **more: Any) -> dict[str, Any]:
    return {"type": "regular", "chunk_shape": list(lengths), **more}


def line(data_type: Any, fill_value: Any, *values: Any, dtype: str = "") -> dict[str, Any]:
    """Return the array /a of one dimension and one chunk; ``values`` are stored as NumPy's ``dtype``."""
    count = len(values) or 1
    held = {"data/a/0": np.array(list(values), dtype)} if values else {}
    said = doc(shape=[count], chunk_grid=grid(count), data_type=data_type, fill_value=fill_value)
    return {"zarr.json": ENTRY, "meta/root/a.array": said, **held}


def bad(match: str, *, is_bad: bool = True, **members: Any) -> Check:
    """Return a check that an array with these members is refused, with a reason that names the key."""
    return refuses({"zarr.json": ENTRY, "meta/root/a.array": doc(**members)}, rf"^meta/root/a\.array: .*{match}", "/a", bad=is_bad)


unknown = partial(bad, is_bad=False)
"""As `bad`, for members that the text permits and zarrfs does not support."""


no_entry = partial(entry_refused, store())


def made(**how: Any) -> dict[str, bytes]:
    """Return the stored values of a new array /a."""
    return new_array("/a", new="v3_2019", **how)


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("1", "Concepts and terminology")

TREE = {
    "zarr.json": ENTRY,
    "meta/root/foo/bar.group": GROUP,
    "meta/root/foo/baz/qux.array": doc(),
    "data/foo/baz/qux/0.0": LEFT,
    "data/foo/baz/qux/0.1": RIGHT,
}
hierarchy_is_a_tree(TEXT, TREE, store())
TEXT.row(
    "two siblings cannot have the same name",
    raises(EntryExists, "exists", lambda: new_group("/a", new="v3", into=store())),
    "as stated, for new nodes",
)
TEXT.row("the path of a node: a slash and the names from the root", lambda: equal(array(TREE, "/foo/baz/qux").path, "/foo/baz/qux"))
TEXT.row(
    "an array has zero or more dimensions",
    lambda: equal(metadata({"zarr.json": ENTRY, "meta/root/a.array": doc(shape=[], chunk_grid=grid())}, "/a").ndim, 0),
    "as stated, up to 32 (NumPy's)",
)
TEXT.row(
    "an element may be empty, or have a value",
    lambda: equal(chunk({"zarr.json": ENTRY, "meta/root/a.array": doc()}, (0, 0), "/a"), None),
    "a chunk that is not stored is the fill value",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("2", "Node names")


def no_name(name: str) -> Check:
    """Return a check that no node of that name can be created."""
    return raises(NameInvalid, "1 to 255", lambda: PLUGIN.create(Prefix("")).check_name(name))


TEXT.row("must not be empty", no_name(""))
TEXT.row(
    "only a-z, A-Z, 0-9, - _ .",
    all_of(no_name("a b"), no_name("ä"), no_name("a/b"), no_name("a+")),
    "as stated, for new nodes; existing ones are shown",
)
TEXT.row("must not consist of periods only", all_of(no_name("."), no_name(".."), no_name("...")))
TEXT.row("at most 255 characters", all_of(no_name("a" * 256), lambda: PLUGIN.create(Prefix("")).check_name("a" * 255)))
TEXT.row(
    "siblings must be unique under comparison without case",
    raises(CaseConflict, "case only", lambda: new_group("/A", new="v3", into=store())),
    "as stated, for new nodes; existing ones are shown",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("3", "Data types")


def of_type(data_type: str, *values: Any) -> Check:
    dtype = {"bool": "|b1", "i1": "|i1", "u1": "|u1"}.get(data_type, data_type)
    expected = np.array(list(values), np.dtype(dtype).newbyteorder("<"))
    return reads(line(data_type, False if data_type == "bool" else 0, *values, dtype=dtype), expected, "/a")


TEXT.row("bool: one byte, 0 or 1", of_type("bool", True, False))
TEXT.row("i1: signed, one byte", of_type("i1", -128, 127))
for size in (2, 4, 8):
    for order, endian in ("<", "little"), (">", "big"):
        TEXT.row(f"{order}i{size}: signed, {size} bytes, {endian}-endian", of_type(f"{order}i{size}", -(2 ** (8 * size - 1)), 5))
TEXT.row("u1: one byte", of_type("u1", 255, 5), 'unsigned: "signed integer" in the table is an error')
for size in (2, 4, 8):
    TEXT.row(f"<u{size}: unsigned, {size} bytes, little-endian", of_type(f"<u{size}", 2 ** (8 * size) - 1, 5))
TEXT.row(
    "(no statement) >u2, >u4, >u8",
    all_of(*(of_type(f">u{size}", 2 ** (8 * size) - 1, 5) for size in (2, 4, 8))),
    "read and written: zarrita wrote them, and the table omits them",
)
for size in (2, 4, 8):
    for order, endian in ("<", "little"), (">", "big"):
        TEXT.row(f"{order}f{size}: IEEE 754, {size} bytes, {endian}-endian", of_type(f"{order}f{size}", 1.5, -np.inf, np.nan))
TEXT.row(
    "the identifier is a string of the table",
    all_of(
        unknown("data.type", data_type="int32"),
        unknown("data.type", data_type="|S4"),
        bad("data.type", data_type=5),
        unknown("data.type", data_type="i2"),
    ),
    "as stated; another is refused, with its name; |b1, |i1 and |u1 are read (a quirk)",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("4", "Chunk grids")

TEXT.row(
    "extensions may define other grids",
    all_of(
        unknown("chunk", chunk_grid={"type": "rectilinear"}),
        unknown("chunk", chunk_grid={"extension": "https://example.org/g", "type": "x"}),
    ),
    "no extension is known: refused, with the name",
)
TEXT.row("regular: the dimensions of the grid are those of the array", bad("chunk", chunk_grid=grid(2)), REFUSED)
TEXT.row(
    "regular: the grid is aligned with the origin",
    reads(
        {"zarr.json": ENTRY, "meta/root/a.array": doc(shape=[4, 4]), "data/a/1.0": LEFT},
        [[7] * 4, [7] * 4, [1, 2, 7, 7], [4, 5, 7, 7]],
        "/a",
    ),
)
TEXT.row("regular: the grid overhangs the edge", reads(store(), WHOLE, "/a"))
TEXT.row(
    "regular: (10, 200, 3000) in (5, 20, 400) has (2, 10, 8) chunks",
    lambda: equal(
        metadata(
            {"zarr.json": ENTRY, "meta/root/a.array": doc(shape=[10, 200, 3000], chunk_grid=grid(5, 20, 400))}, "/a"
        ).grid_shape,
        (2, 10, 8),
    ),
)
TEXT.row("regular: element (7, 150, 900) is (2, 10, 100) of chunk (1, 7, 2)", lambda: _element())


def key_of(coords: tuple[int, ...], key: str, **more: Any) -> Check:
    said = doc(shape=[99] * len(coords), chunk_grid=grid(*[1] * len(coords), **more))
    return lambda: equal(metadata({"zarr.json": ENTRY, "meta/root/a.array": said}, "/a").chunk_key_encoding.encode(coords), key)


TEXT.row(
    "the identifier: the indices joined by a separator",
    all_of(key_of((1, 23, 45), "1.23.45"), reads({**store(), "data/a/00.0": RIGHT, "data/a/c0.0": RIGHT}, WHOLE, "/a")),
    "as stated: no leading zeros",
)
TEXT.row(
    "the separator is a period, unless chunk_grid says another",
    all_of(
        key_of((1, 2), "1.2"),
        key_of((1, 2), "1/2", separator="/"),
        reads({**store(chunk_grid=grid(2, 2, separator="/")), "data/a/0/0": LEFT, "data/a/0/1": RIGHT}, WHOLE, "/a"),
    ),
)
TEXT.row(
    "(no statement) which separators",
    all_of(
        key_of((1, 2), "1-2", separator="-"),
        key_of((1, 2), "1_2", separator="_"),
        bad("separator", chunk_grid=grid(2, 2, separator="")),
        bad("separator", chunk_grid=grid(2, 2, separator="c")),
    ),
    "the other characters of keys, besides letters and digits: / . - _",
)
TEXT.row(
    "(no statement) an array of no dimensions",
    reads({"zarr.json": ENTRY, "meta/root/a.array": doc(shape=[], chunk_grid=grid()), "data/a": np.int16(5)}, np.int16(5), "/a"),
    "its identifier is empty: the key is data/a, as zarrita wrote it",
)


def _element() -> None:
    block = np.zeros((5, 20, 400), "<i2")
    block[2, 10, 100] = 1
    said = doc(shape=[10, 200, 3000], chunk_grid=grid(5, 20, 400), fill_value=0)
    found = elements({"zarr.json": ENTRY, "meta/root/a.array": said, "data/a/1.7.2": block}, "/a")
    assert np.argwhere(found).tolist() == [[7, 150, 900]]


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("5", "Chunk memory layouts, chunk encoding")

TEXT.row("C: the last dimension is the fastest", reads(store(chunk_memory_layout="C"), WHOLE, "/a"))
TEXT.row(
    "F: the first dimension is the fastest",
    reads({**store(chunk_memory_layout="F"), "data/a/0.0": LEFT.T.copy(), "data/a/0.1": RIGHT.T.copy()}, WHOLE, "/a"),
)
TEXT.row(
    "extensions may define other layouts",
    unknown("chunk_memory_layout", chunk_memory_layout={"extension": "https://example.org/l", "type": "x"}),
    "no extension is known: refused",
)
GZIP = {"codec": "http://purl.org/zarr/spec/codec/gzip", "configuration": {"level": 1}}
GZIPPED = {"data/a/0.0": gzip.compress(LEFT.tobytes()), "data/a/0.1": gzip.compress(RIGHT.tobytes())}
TEXT.row(
    "the compressor encodes the binary representation of a chunk",
    all_of(
        reads({**store(compressor=GZIP), **GZIPPED}, WHOLE, "/a"),
        lambda: equal(
            gzip.decompress(made(codecs="gzip:level=1", write={(0,): [8, 9]})["data/a/0"]), np.array([8, 9], "<i4").tobytes()
        ),
    ),
)
TEXT.row(
    "decoded data must fit type and layout",
    raises(ChunkDecodeError, "7 bytes instead of 8", lambda: elements({**store(), "data/a/0.0": LEFT.tobytes()[:7]}, "/a")),
    "as stated: else EIO, and an error that names the chunk",
)
TEXT.row(
    "a codec is identified by a URI",
    all_of(
        unknown("codec|compressor", compressor={"codec": "gzip", "configuration": {"level": 1}}),
        unknown("codec|compressor", compressor={"codec": "https://example.org/codec/gzip/1.0"}),
        unknown("codec|compressor", compressor={"codec": "https://purl.org/zarr/spec/codec/made_up/1.0"}),
    ),
    "as stated: by the name in a URI of zarr-specs; another is refused, with its URI",
)
TEXT.row(
    "(no statement) the codecs",
    all_of(
        *(
            lambda name=name: equal(
                metadata(
                    store(compressor={"codec": f"https://purl.org/zarr/spec/codec/{name}/1.0", "configuration": {"level": 1}}), "/a"
                )
                .codecs[-1]
                .name.removeprefix("numcodecs."),
                name,
            )
            for name in ("gzip", "zlib", "bz2", "zstd")
        )
    ),
    "those of numcodecs, by their names",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("6", "Metadata: Bootstrap metadata")

TEXT.row(
    "the canonical encoding is JSON",
    refuses({"zarr.json": ENTRY, "meta/root/a.array": b"{"}, r"^meta/root/a\.array: not JSON", "/a"),
    "as stated, in UTF-8, and no member twice",
)
TEXT.row(
    "any other encoding may be used",
    no_entry("metadata_encoding", metadata_encoding="application/msgpack"),
    "no extension is known: the hierarchy is refused",
)
TEXT.row(
    "each hierarchy must have a bootstrap document",
    lambda: equal(node({"meta/root/a.array": doc()}, "/a"), None),
    "as stated: without it, its keys belong to no hierarchy of this specification",
)
TEXT.row(
    "it is a single object",
    lambda: equal(type(node({"zarr.json": [1]}, "/")).__name__, "UnsupportedNode"),
    "as stated; anything else is an invalid document of final v3",
)
TEXT.row("zarr_format is the URI of the protocol", reads(store(), WHOLE, "/a"))
TEXT.row(
    "its last part is the version, 3 the major one",
    no_entry("version 3", zarr_format="https://purl.org/zarr/spec/protocol/core/4.0"),
    "as stated; of another major version the hierarchy is refused",
)
TEXT.row(
    "of any version 3 names that are not defined may be ignored",
    all_of(
        reads(
            {
                **store(made_up=1),
                "zarr.json": {**ENTRY, "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.1", "made_up": 1},
            },
            WHOLE,
            "/a",
        ),
        lambda: equal(array(store(made_up=1), "/a").quirks, ('unknown member "made_up", ignored',)),
    ),
    "as stated (a quirk)",
)
TEXT.row(
    "metadata_encoding is a MIME type, application/json of JSON",
    all_of(
        no_entry("metadata_encoding is missing", is_bad=True, metadata_encoding=...),
        reads({**store(), "zarr.json": {**ENTRY, "metadata_encoding": "Application/JSON; charset=utf-8"}}, WHOLE, "/a"),
    ),
    "as stated, with parameters or without",
)
TEXT.tested(
    "(no statement) the draft of 2022, whose zarr_format is the same",
    dialect_tests.test_the_draft_of_2022_is_told_apart_by_its_encoding,
    "metadata_encoding distinguishes the two",
)
TEXT.row(
    "extensions is an array of objects",
    no_entry("extensions", is_bad=True, extensions={}),
    "as stated; if absent, it is empty (a quirk)",
)
TEXT.row(
    "extension: a URI, must_understand: true or false",
    all_of(
        no_entry("extension is missing", is_bad=True, extensions=[{"must_understand": False}]),
        no_entry("must_understand is missing", is_bad=True, extensions=[{"extension": "https://example.org/e"}]),
    ),
    REFUSED,
)
unknown_extensions(TEXT, store(), no_entry)
TEXT.row("the example", lambda: equal(document(new_group("/", new="v3_2019"), "zarr.json"), ENTRY), "as stated, for writing")

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("7", "Metadata: Array metadata")

for name in ("shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value"):
    TEXT.row(f"{name} must be there", bad(f"{name} is missing", **{name: ...}), REFUSED)
for name in ("extensions", "attributes"):
    TEXT.row(
        f"{name} must be there",
        lambda name=name: equal(array(store(**{name: ...}), "/a").quirks, (f"{name} is missing",)),
        "if absent, it is empty (a quirk)",
    )
TEXT.row("compressor must be there", reads(store(compressor=...), WHOLE, "/a"), "absent, or null (which zarrita wrote), means none")
TEXT.row(
    "shape: an array of integers",
    all_of(
        lambda: equal(metadata(store(), "/a").shape, (2, 3)),
        *(bad("shape", shape=each) for each in (2, [2.0, 3], ["2", 3], [-1, 3])),
    ),
    OTHERS,
)
DATETIME = {"extension": "http://purl.org/zarr/spec/protocol/extensions/datetime-dtypes/1.0", "type": "<M8[ns]", "fallback": "<i8"}
FALLBACK = {"extension": "https://example.org/fixed-point", "type": "q16", "fallback": "<i2"}
TEXT.row(
    "data_type of an extension: an object with extension and type",
    all_of(
        reads(line(DATETIME, 0, 5, dtype="<i8"), np.array([5], "<M8[ns]"), "/a"),
        bad("extension is missing", data_type={"type": "<M8[ns]"}),
        bad("type is missing", data_type={"extension": "https://example.org/e"}),
    ),
    "as stated; times and complex numbers are known by NumPy's names",
)
TEXT.row(
    "an extension that is not known: its fallback may be used",
    reads(line(FALLBACK, 7, 1, 2, dtype="<i2"), np.array([1, 2], "<i2"), "/a"),
    "as stated (a quirk, and logged); --dialect-choices v3_2019.fallback=refuse",
    logs="read as its fallback",
)
TEXT.row(
    "a fallback is one of the table's, and optional",
    all_of(
        unknown("unknown", data_type={**FALLBACK, "fallback": None}),
        unknown("data.type", data_type={**FALLBACK, "fallback": "int16"}),
    ),
    "as stated: else refused",
)
TEXT.row(
    "chunk_grid: type regular, chunk_shape",
    all_of(
        bad("chunk_shape is missing", chunk_grid={"type": "regular"}), bad("type is missing", chunk_grid={"chunk_shape": [2, 2]})
    ),
    REFUSED,
)
TEXT.row(
    "chunk_shape: an array of integers",
    all_of(*(bad("chunk", chunk_grid=grid(*each)) for each in ([2.0, 2], ["2", 2], [-2, 2], [0, 2]))),
    OTHERS,
)
TEXT.row(
    "chunk_memory_layout: C or F",
    all_of(*(bad("chunk_memory_layout", chunk_memory_layout=each) for each in ("A", "c", None, 1))),
    OTHERS,
)
TEXT.row(
    "compressor: an object with codec, and perhaps configuration",
    all_of(
        bad("codec is missing", compressor={}),
        bad("codec|compressor", compressor="gzip"),
        bad("codec|compressor", compressor={**GZIP, "configuration": []}),
    ),
    OTHERS,
)
TEXT.row(
    "fill_value: of portions that are not initialized",
    reads({"zarr.json": ENTRY, "meta/root/a.array": doc(), "data/a/0.0": LEFT}, [[1, 2, 7], [4, 5, 7]], "/a"),
)


def fills(data_type: Any, value: Any, expected: Any) -> Check:
    return reads(line(data_type, value), [expected], "/a")


TEXT.row(
    "Boolean: true or false",
    all_of(fills("bool", True, True), bad("fill_value", data_type="bool", fill_value="true")),
    "as stated; 0 and 1 are read (a quirk)",
)
TEXT.row(
    "integers: no fraction, no exponent, in range",
    all_of(
        fills("i1", -5, -5),
        bad("fill_value", data_type="i1", fill_value=1.5),
        bad("fill_value", data_type="i1", fill_value=128),
        bad("fill_value", data_type="u1", fill_value=-1),
    ),
    "as stated; 3.0 is read as 3 (a quirk)",
)
TEXT.row(
    "(no statement) floats",
    all_of(
        fills("<f4", "NaN", np.nan),
        fills("<f8", "Infinity", np.inf),
        fills(">f2", "-Infinity", -np.inf),
        fills("<f4", 1.5, 1.5),
        bad("fill_value", data_type="<f4", fill_value="nan"),
    ),
    'numbers, and "NaN", "Infinity" and "-Infinity": the specification has "NaN" in its example, and a TODO',
)
TEXT.row(
    "null: undefined",
    lambda: equal(
        (
            metadata(store(fill_value=None), "/a").fill_value,
            elements({"zarr.json": ENTRY, "meta/root/a.array": doc(fill_value=None)}, "/a").tolist(),
        ),
        (None, [[0] * 3] * 2),
    ),
    "as stated; shown as zeros where a value is required",
)
TEXT.row(
    "extensions: (TODO)",
    all_of(
        unknown("must be understood", extensions=[{"extension": "https://example.org/e", "must_understand": True}]),
        reads(store(extensions=[{"extension": "https://example.org/e", "must_understand": False}]), WHOLE, "/a"),
    ),
    "as in the bootstrap document",
)
TEXT.row(
    "attributes: an object",
    all_of(lambda: equal(array(store(attributes={"a": [1]}), "/a").attributes, {"a": [1]}), bad("attributes", attributes=[])),
    "as stated; null, which zarrita wrote, means none (a quirk)",
)
TEXT.row(
    "other names are reserved for later versions",
    lambda: equal(document(amended(store(made_up=1), "/a", shape=(1, 3)), "meta/root/a.array")["made_up"], 1),
    "ignored (a quirk), and kept by every edit (6.07)",
)


@TEXT.rule("the example: 10000 by 1000 float64 in chunks of 1000 by 100, gzip, NaN")
def _() -> None:
    said = doc(
        shape=[10000, 1000], data_type="<f8", chunk_grid=grid(1000, 100), compressor=GZIP, fill_value="NaN", attributes={"foo": 42}
    )
    values = np.arange(1e5).reshape(1000, 100)
    of = {"zarr.json": ENTRY, "meta/root/a.array": said, "data/a/2.4": gzip.compress(values.tobytes(), 1)}
    assert metadata(of, "/a").grid_shape == (10, 10) and same(chunk(of, (2, 4), "/a"), values)


TEXT.row(
    "the example of an extension type", lambda: equal(metadata(line(DATETIME, None), "/a").data_type.dtype, np.dtype("<M8[ns]"))
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("8", "Metadata: Group metadata")


def group_of(**members: Any) -> dict[str, Any]:
    return {"zarr.json": ENTRY, "meta/root/g.group": members}


TEXT.row(
    "extensions and attributes must be there",
    all_of(
        lambda: equal(document(new_group("/g", new="v3_2019"), "meta/root/g.group"), GROUP),
        lambda: equal(group(group_of(), "/g").attributes, {}),
    ),
    "as stated, for writing; if absent, they are empty",
)
TEXT.row(
    "other names are reserved for later versions",
    lambda: equal(group(group_of(**GROUP, made_up=1), "/g").attributes, {}),
    "ignored (6.07)",
)
TEXT.row(
    "an extension that must be understood",
    refuses(
        group_of(attributes={}, extensions=[{"extension": "https://example.org/e", "must_understand": True}]),
        "must be understood",
        "/g",
        bad=False,
    ),
    "refused",
)
TEXT.row(
    "the example",
    lambda: equal(
        group(group_of(extensions=[], attributes={"spam": "ham", "eggs": 42}), "/g").attributes, {"spam": "ham", "eggs": 42}
    ),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("9", "Stores: Abstract store interface")

TEXT.tested(
    "a key has the characters a-z, A-Z, 0-9, / . - _",
    ReadableConformance.test_names_are_kept_as_they_are,
    "every key in a store is kept; names of new nodes consist of these characters",
)
TEXT.tested("a value is any sequence of bytes", StoreConformance.test_what_was_set_is_got)
TEXT.tested("a store is a mapping from keys to values", StoreConformance.test_set_replaces_the_whole_value)
TEXT.tested("a store need not be readable, writable and listable", StoreConformance.test_read_only_stores_refuse_every_change)
TEXT.tested("get(key)", ReadableConformance.test_what_is_held_is_got, "as stated; None for a missing key")
TEXT.tested("set(key, value)", StoreConformance.test_set_replaces_the_whole_value)
TEXT.tested("delete(key)", StoreConformance.test_erasing_removes_and_may_be_repeated, "as stated, under the name erase")
TEXT.tested("list()", ReadableConformance.test_the_examples_of_the_specification)
TEXT.tested("list_prefix(prefix); the example", ReadableConformance.test_the_examples_of_the_specification)
TEXT.tested("list_dir(prefix); the example", ReadableConformance.test_the_examples_of_the_specification)
TEXT.row(
    "object stores may be stores",
    raises(UsageError, "s3", lambda: trio.run(open_store, "s3://bucket/x.zarr")),
    NOT_YET + "they come later; the URL is refused, and the message lists the known schemes",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("10", "Storage protocol: Storage keys")

TEXT.row("the bootstrap document is under zarr.json", lambda: equal("zarr.json" in made(), True))
TEXT.row(
    "the group /foo/bar is under meta/root/foo/bar.group",
    all_of(
        lambda: equal(group(TREE, "/foo/bar").explicit, True),
        lambda: equal("meta/root/foo/bar.group" in new_group("/foo/bar", new="v3_2019"), True),
    ),
)
TEXT.row(
    'the array /foo/baz is under "meta" + path + ".array" (the formula)',
    reads(
        {**{key: value for key, value in TREE.items() if "qux.array" not in key}, "meta/foo/baz/qux.array": doc()},
        WHOLE,
        "/foo/baz/qux",
    ),
    "read where the example's key is absent; a path that begins with /root is ambiguous, and is not read",
)
TEXT.row(
    "the array /foo/baz is under meta/root/foo/baz.array (the example)",
    all_of(
        reads(TREE, WHOLE, "/foo/baz/qux"), lambda: equal("meta/root/foo/baz.array" in new_array("/foo/baz", new="v3_2019"), True)
    ),
    "read first, and written, as in existing software",
)
TEXT.row(
    "data are under data, the path, a slash and the chunk's identifier: data/foo/baz/0.0",
    lambda: equal(
        "data/foo/baz/1.0" in new_array("/foo/baz", new="v3_2019", shape=(4, 4), chunks=(2, 2), write={(1, 0): LEFT}), True
    ),
)
TEXT.row(
    "a root group is under meta/root.group",
    lambda: equal(group({"zarr.json": ENTRY, "meta/root.group": {**GROUP, "attributes": {"a": 1}}}).attributes, {"a": 1}),
)
TEXT.row(
    "a root array is under meta/root.array, its data under data/",
    reads({"zarr.json": ENTRY, "meta/root.array": doc(), "data/0.0": LEFT, "data/0.1": RIGHT}, WHOLE),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("11", "Storage protocol: Protocol operations")

TEXT.row(
    "create a group: set its document; no ancestors need be made",
    lambda: equal(keys(new_group("/x/y", new="v3_2019")), ["meta/root/x/y.group", "zarr.json"]),
)
TEXT.row(
    "create an array: set its document; no ancestors need be made",
    lambda: equal(keys(new_array("/x/y", new="v3_2019")), ["meta/root/x/y.array", "zarr.json"]),
)
TEXT.row(
    "that implies groups at all paths above",
    lambda: equal([group(new_array("/x/y", new="v3_2019"), path).explicit for path in ("/x", "/")], [False, False]),
)
TEXT.row(
    "store and retrieve elements (TODO)",
    all_of(reads(store(), WHOLE, "/a"), lambda: equal(made(write={(1,): [8, 9]})["data/a/1"], np.array([8, 9], "<i4").tobytes())),
    "the encoded chunk is at its data key",
)
TEXT.row(
    "discover children: list_dir of meta/root, the path and a slash; the example",
    holds(TREE, {"bar": "group", "baz": "group"}, "/foo"),
)
TEXT.row(
    "a key that ends with .array is an array, with .group a group",
    holds({**TREE, "meta/root/foo/readme.txt": b"text"}, {"bar": "group", "baz": "group"}, "/foo"),
)
TEXT.row(
    "a prefix is a group that descendants imply",
    lambda: equal((group(TREE, "/foo/baz").explicit, group(TREE, "/").explicit), (False, False)),
)
TEXT.row(
    "an array and a group at one path (no statement)",
    lambda: equal("a group exists at the same path" in array({**store(), "meta/root/a.group": GROUP}, "/a").quirks, True),
    "the array counts (a quirk)",
)
TEXT.row(
    "delete a group or array (TODO)",
    lambda: equal(
        (keys(erased(TREE, "/foo/bar")), keys(erased(TREE, "/foo/baz"))),
        (
            ["data/foo/baz/qux/0.0", "data/foo/baz/qux/0.1", "meta/root/foo/baz/qux.array", "zarr.json"],
            ["meta/root/foo/bar.group", "zarr.json"],
        ),
    ),
    "its document, and all keys below its path and a slash in meta/root and data",
)
TEXT.row(
    "discover all nodes, determine if a node exists (TODO)",
    lambda: equal(
        [type(node(TREE, path)).__name__ for path in ("/foo/baz/qux", "/foo/bar", "/foo", "/x")],
        ["ArrayNode", "GroupNode", "GroupNode", "NoneType"],
    ),
    "an array's document, then a group's, then a listing",
)


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
