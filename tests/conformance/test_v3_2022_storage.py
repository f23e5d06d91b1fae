"""Zarr v3 core draft of 2 December 2022, statement by statement: documents, stores, keys and operations."""

from __future__ import annotations

import gzip
from functools import partial
from typing import Any

import numpy as np

from tests.conformance import test_v3_2022
from tests.conformance.stores import abstract_store_interface
from tests.conformance.test_v3_2022 import (
    ENTRY,
    GROUP,
    LEFT,
    OTHERS,
    REFUSED,
    RIGHT,
    SOFTWARE,
    TREE,
    WHOLE,
    bad,
    doc,
    grid,
    line,
    made,
    software,
    store,
    unknown,
)
from tests.dialects.v3_2022 import test_array as array_tests
from tests.dialects.v3_2022 import test_dialect as dialect_tests
from tests.support.conforming import (
    Check,
    all_of,
    array,
    chunk,
    document,
    equal,
    erased,
    group,
    holds,
    keys,
    members,
    metadata,
    new_array,
    new_group,
    node,
    reads,
    refuses,
    same,
)
from tests.support.draft_statements import entry_refused, unknown_extensions
from tests.support.statements import Statement
from tests.transformers import test_deadline as deadline_tests
from tests.transformers import test_sharding as transformer_tests

TEXT = test_v3_2022.TEXT.continued()

DATETIME = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"


no_entry = partial(entry_refused, store())

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("7", "Metadata: Entry point metadata")

TEXT.row(
    "documents are JSON (RFC 8259)",
    refuses({"zarr.json": ENTRY, "meta/a.array.json": b"{"}, r"^meta/a\.array\.json: not JSON", "/a"),
    "as stated, in UTF-8, and no member twice",
)
TEXT.row(
    "other encodings of arrays and groups may be defined",
    no_entry(
        "metadata_encoding",
        metadata_encoding={"type": "msgpack", "extension": "https://example.org/m", "metadata_key_suffix": ".m"},
    ),
    "no extension is known: the hierarchy is refused",
)
TEXT.row(
    "each hierarchy must have an entry point",
    lambda: equal(node({"meta/a.array.json": doc()}, "/a"), None),
    "as stated: without it, its keys belong to no hierarchy of this specification",
)
TEXT.row(
    "it is a single object",
    lambda: equal(type(node({"zarr.json": [1], "meta/a.array.json": doc()}, "/")).__name__, "UnsupportedNode"),
    "as stated; anything else is an invalid document of final v3",
)
TEXT.row("zarr_format is the URI of the specification", reads(store(), WHOLE, "/a"))
TEXT.row(
    "(no statement) the URI that software writes",
    reads(software(), WHOLE, "/a"),
    "`https://purl.org/zarr/spec/protocol/core/3.0` is read, too",
)
TEXT.row(
    "its last part is the version, 3 the major one",
    no_entry("not version 3", zarr_format="https://purl.org/zarr/spec/core/4.0"),
    "as stated; of another major version the hierarchy is refused",
)
TEXT.row(
    "of a later 3.x names that are not defined here may be ignored",
    reads(
        {**store(made_up=1), "zarr.json": {**ENTRY, "zarr_format": "https://purl.org/zarr/spec/core/3.1", "made_up": {}}},
        WHOLE,
        "/a",
    ),
    "as stated (a quirk); in 3.0 they are refused (8.38)",
)
TEXT.row(
    "metadata_encoding is an object with type json and metadata_key_suffix",
    all_of(
        no_entry("metadata_key_suffix is missing", is_bad=True, metadata_encoding={"type": "json"}),
        no_entry("metadata_encoding", metadata_encoding={"metadata_key_suffix": ".json"}),
        no_entry("metadata_encoding is missing", is_bad=True, metadata_encoding=...),
    ),
    OTHERS,
)
TEXT.row(
    "metadata_key_suffix is added to the keys of documents",
    reads(
        {
            "zarr.json": {**ENTRY, "metadata_encoding": {"type": "json", "metadata_key_suffix": ".txt"}},
            "meta/a.array.txt": doc(),
            "data/a/c0/0": LEFT,
            "data/a/c0/1": RIGHT,
        },
        WHOLE,
        "/a",
    ),
)
TEXT.row(
    "(no statement) flat members",
    all_of(reads(software(), WHOLE, "/a"), lambda: equal("meta/root.group.json" in new_group("/", new="v3_2022"), True)),
    "metadata_encoding is a URI beside metadata_key_suffix: the form of zarr-python 2, GDAL and zarrita, in which keys have root;"
    " read, and written by default",
)
TEXT.row(
    "extensions is an array of objects", no_entry("extensions", is_bad=True, extensions={}), "as stated; if absent, it is empty"
)
TEXT.row(
    "extension: a URI, must_understand: true or false",
    all_of(
        no_entry("extension is missing", is_bad=True, extensions=[{"must_understand": False}]),
        no_entry("must_understand is missing", is_bad=True, extensions=[{"extension": "https://example.org/e"}]),
        no_entry("must_understand", is_bad=True, extensions=[{"extension": "https://example.org/e", "must_understand": 1}]),
    ),
    REFUSED,
)
unknown_extensions(TEXT, store(), no_entry)
TEXT.row(
    "the example",
    lambda: equal(document(new_group("/", new="v3_2022:text"), "zarr.json"), ENTRY),
    "as stated, for writing with --new-dialect v3_2022:text",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("8", "Metadata: Array metadata")

for name in ("shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value"):
    TEXT.row(f"{name} is mandatory", bad(f"{name} is missing", **{name: ...}), REFUSED)
for name in ("extensions", "attributes"):
    TEXT.row(
        f"{name} is mandatory",
        lambda name=name: equal(array(store(**{name: ...}), "/a").quirks, (f"{name} is missing",)),
        "if absent, it is empty (a quirk): nothing depends on it",
    )
TEXT.row(
    "shape: an array of integers",
    all_of(
        lambda: equal(metadata(store(), "/a").shape, (2, 3)),
        *(bad("shape", shape=each) for each in (2, [2.0, 3], ["2", 3], [-1, 3])),
    ),
    OTHERS,
)
TEXT.row(
    "data_type: the identifier of a core type",
    all_of(unknown("data type", data_type="float"), bad("data type", data_type=5)),
    "as stated; another is refused, with its name",
)
TEXT.row(
    "data_type of an extension: an object with extension, type and perhaps fallback",
    all_of(
        reads(
            line({"extension": DATETIME, "type": "<M8[ns]", "fallback": "int64"}, 0, 5, dtype="<i8"), np.array([5], "<M8[ns]"), "/a"
        ),
        bad("type is missing", data_type={"extension": DATETIME}),
    ),
    "as stated; the types of zarr-specs are known (14 to 17)",
)
TEXT.row(
    "the extension is required, a URI",
    reads(line({"type": "<M8[ns]", "fallback": "int64"}, 0, 5, dtype="<i8"), np.array([5], "<M8[ns]"), "/a"),
    "software wrote several URIs, and none: the type counts where the URI is one of zarr-specs, or absent",
)
FALLBACK = {"extension": "https://example.org/fixed-point/1.0", "type": "q16", "fallback": ["made_up", "int16", "r16"]}
TEXT.row(
    "a type that is not known: the first fallback that is may be used",
    reads(line(FALLBACK, 7, 1, 2, dtype="<i2"), np.array([1, 2], "<i2"), "/a"),
    "as stated (a quirk, and logged)",
    logs="read as its fallback",
)
TEXT.row(
    "options to (de-)activate fallbacks should be considered",
    refuses(line(FALLBACK, 7), "is disabled", "/a", bad=False, choices={"v3_2022.fallback": "refuse"}),
    "--dialect-choices v3_2022.fallback=refuse",
)
TEXT.row(
    "a type that is not known without a fallback that is",
    unknown("without a known fallback", data_type={**FALLBACK, "fallback": "made_up"}),
    "refused",
)
TEXT.row(
    "a fallback may be a raw type",
    reads(line({**FALLBACK, "fallback": "r16"}, "0x0000", 1, dtype="<i2"), np.array([b"\1\0"], "|V2"), "/a"),
    logs="read as its fallback",
)
TEXT.row(
    "chunk_grid: type regular, chunk_shape, separator",
    all_of(
        bad("chunk_shape is missing", chunk_grid={"type": "regular", "separator": "/"}),
        bad("type is missing", chunk_grid={"chunk_shape": [2, 2], "separator": "/"}),
        bad("chunk_grid", chunk_grid=[2, 2]),
    ),
    REFUSED,
)
TEXT.row(
    "chunk_shape: an array of integers",
    all_of(*(bad("chunk", chunk_grid=grid(*each)) for each in ([2.0, 2], ["2", 2], [-2, 2], [None, 2]))),
    OTHERS,
)
TEXT.row(
    'separator is "/" or "."',
    all_of(*(bad("separator", chunk_grid=grid(2, 2, separator=each)) for each in ("-", "", None, "c"))),
    OTHERS,
)
TEXT.row(
    "(no statement) dimension_separator, which zarr-python adds",
    all_of(reads(software(dimension_separator="/"), WHOLE, "/a"), bad("differ", dimension_separator=".")),
    "read where it equals separator (a quirk)",
)
TEXT.row(
    "chunk_memory_layout: C or F",
    all_of(*(bad("chunk_memory_layout", chunk_memory_layout=each) for each in ("A", "c", None, 1))),
    OTHERS,
)
TEXT.row(
    "fill_value: of portions that are not initialized",
    reads({"zarr.json": ENTRY, "meta/a.array.json": doc(), "data/a/c0/0": LEFT}, [[1, 2, 7], [4, 5, 7]], "/a"),
)


def fills(data_type: Any, value: Any, expected: Any) -> Check:
    return reads(line(data_type, value), [expected], "/a")


TEXT.row(
    "Boolean: true or false",
    all_of(
        fills("bool", True, True),
        bad("fill_value", data_type="bool", fill_value="true"),
        bad("fill_value", data_type="bool", fill_value=2),
    ),
    OTHERS,
)
TEXT.row(
    "integers: no fraction, no exponent, in range",
    all_of(
        fills("int8", -5, -5),
        bad("fill_value", data_type="int8", fill_value=1.5),
        bad("fill_value", data_type="int8", fill_value=1.0),
        bad("fill_value", data_type="int8", fill_value=128),
        bad("fill_value", data_type="uint8", fill_value=-1),
    ),
    OTHERS,
)
TEXT.row(
    "null is not permitted",
    lambda: equal(
        (metadata(store(fill_value=None), "/a").fill_value, array(store(fill_value=None), "/a").quirks),
        (None, ("fill_value is null: undefined",)),
    ),
    "software wrote it: read as undefined (a quirk); written only in the software's form",
)
TEXT.row(
    "a default fill value must be stored", lambda: equal(document(made(), "meta/a.array.json")["fill_value"], 0), "as stated: zero"
)
TEXT.row(
    '"0x": the hexadecimal value, of exactly the size of the type',
    all_of(
        fills("int16", "0xfffe", -2),
        fills("float32", "0x7fc00000", np.nan),
        fills("float32", "0x3f800000", 1.0),
        bad("fill_value", data_type="float32", fill_value="0x7fc0"),
        bad("fill_value", data_type="int16", fill_value="0x00fffe"),
    ),
    "as stated: a number of integers, the bits of floats, bytes from left to right of raw types",
)
TEXT.row(
    '"0b": the binary value, of exactly the size of the type',
    all_of(fills("uint8", "0b10100101", 0xA5), bad("fill_value", data_type="uint8", fill_value="0b101")),
)
TEXT.row(
    '"NaN", "+Infinity" and "-Infinity" of floats',
    all_of(fills("float32", "NaN", np.nan), fills("float64", "+Infinity", np.inf), fills("float16", "-Infinity", -np.inf)),
    'as stated; "Infinity", which software wrote, is also read',
)
TEXT.row(
    "an extension type interprets its fill values",
    lambda: equal((metadata(line({**FALLBACK, "fallback": "int16"}, "x"), "/a").fill_value), None),
    "for an unknown type, a value that its fallback cannot represent is undefined (a quirk)",
    logs="read as its fallback",
)
TEXT.row(
    "extensions: as in the entry point",
    all_of(
        unknown("must be understood", extensions=[{"extension": "https://example.org/e", "must_understand": True}]),
        reads(store(extensions=[{"extension": "https://example.org/e", "must_understand": False}]), WHOLE, "/a"),
    ),
)
TEXT.row(
    "attributes: an object of any JSON",
    all_of(
        lambda: equal(array(store(attributes={"a": [1, None]}), "/a").attributes, {"a": [1, None]}),
        bad("attributes", attributes=[]),
    ),
    OTHERS,
)
TEXT.tested(
    "attributes: (no statement) filters",
    array_tests.test_filters_in_the_attributes_are_applied,
    "zarr-python stores filters there: they are applied (a quirk), and kept by every edit",
)
GZIP = {"type": "https://purl.org/zarr/spec/codecs/gzip/1.0", "configuration": {"level": 1}}
GZIPPED = {"data/a/c0/0": gzip.compress(LEFT.tobytes()), "data/a/c0/1": gzip.compress(RIGHT.tobytes())}
TEXT.row(
    "codecs: an array of objects with type and perhaps configuration",
    all_of(
        reads({**store(codecs=[GZIP]), **GZIPPED}, WHOLE, "/a"),
        *(bad("codec|type", codecs=each) for each in ({}, [5], [{"configuration": {}}], [{**GZIP, "configuration": []}])),
    ),
    OTHERS,
)
TEXT.row("codecs absent is the empty list", lambda: equal(metadata(store(), "/a"), metadata(store(codecs=[]), "/a")))
TEXT.row(
    "(no statement) one compressor instead of codecs",
    reads(
        {
            **software(compressor={"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"level": 1}}),
            **{f"data/root/{key[5:]}": value for key, value in GZIPPED.items()},
        },
        WHOLE,
        "/a",
    ),
    "read, and written in the software's form",
)
TEXT.row(
    "storage_transformers: a list of objects with extension and type",
    all_of(
        unknown("made_up", storage_transformers=[{"extension": "https://example.org/t", "type": "made_up"}]),
        bad("type is missing", storage_transformers=[{"extension": "https://example.org/t"}]),
        bad("extension is missing", storage_transformers=[{"type": "indexed"}]),
    ),
    "as stated; sharding is known (18), another is refused: always required",
)
TEXT.row(
    "storage_transformers absent and empty are none",
    lambda: equal(metadata(store(), "/a"), metadata(store(storage_transformers=[]), "/a")),
)
TEXT.row(
    "no other names; an implementation must fail to open a document with unknown ones",
    all_of(
        unknown("made_up", made_up=1),
        unknown("made_up", chunk_grid=grid(2, 2, made_up=1)),
        refuses({**store(), "zarr.json": {**ENTRY, "made_up": 1}}, "made_up", bad=False),
    ),
    "as stated; dimension_separator and extensions of groups are accepted, since software writes them",
)


@TEXT.rule("the example: 10000 by 1000 float64 in chunks of 1000 by 100, gzip, NaN")
def _() -> None:
    said = doc(
        shape=[10000, 1000], data_type="<f8", chunk_grid=grid(1000, 100), codecs=[GZIP], fill_value="NaN", attributes={"foo": 42}
    )
    values = np.arange(1e5).reshape(1000, 100)
    of = {"zarr.json": ENTRY, "meta/a.array.json": said, "data/a/c2/4": gzip.compress(values.tobytes(), 1)}
    assert metadata(of, "/a").grid_shape == (10, 10) and same(chunk(of, (2, 4), "/a"), values)


TEXT.row(
    "the example: a datetime type with fallback, fill_value null",
    lambda: equal(
        metadata(line({"extension": DATETIME, "type": "<M8[ns]", "fallback": "<i8"}, None), "/a").data_type.dtype,
        np.dtype("<M8[ns]"),
    ),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("9", "Metadata: Group metadata")


def group_of(**members: Any) -> dict[str, Any]:
    return {"zarr.json": ENTRY, "meta/g.group.json": members}


TEXT.row(
    "a group must have the name attributes",
    all_of(
        lambda: equal(group(group_of(attributes={"spam": "ham"}), "/g").attributes, {"spam": "ham"}),
        lambda: equal(group(group_of(), "/g").attributes, {}),
    ),
    "as stated, for writing; if absent, there are none",
)
TEXT.row(
    "all other names are reserved",
    refuses(group_of(attributes={}, made_up=1), "made_up", "/g", bad=False),
    "as stated: refused; extensions, which GDAL writes, are treated like those of arrays",
)
TEXT.row(
    "groups have no extensions",
    refuses(
        group_of(attributes={}, extensions=[{"extension": "https://example.org/e", "must_understand": True}]),
        "must be understood",
        "/g",
        bad=False,
    ),
)
TEXT.row(
    "the example: an explicit group",
    lambda: equal(
        document(new_group("/g", new="v3_2022:text", spam="ham", eggs=42), "meta/g.group.json"),
        {"attributes": {"spam": "ham", "eggs": 42}},
    ),
)
TEXT.row("a group does not need a document", lambda: equal(group(TREE, "/foo").explicit, False))

abstract_store_interface(TEXT, "10")

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("11", "Storage: Storage keys")

TEXT.row("the entry point is under zarr.json", lambda: equal("zarr.json" in made(), True))
TEXT.row(
    "the group /foo/bar is under meta/foo/bar.group.json",
    all_of(
        lambda: equal(group(TREE, "/foo/bar").explicit, True),
        lambda: equal("meta/foo/bar.group.json" in new_group("/foo/bar", new="v3_2022:text"), True),
    ),
)
TEXT.row(
    "the array /foo/baz is under meta/foo/baz.array.json",
    all_of(
        reads(TREE, WHOLE, "/foo/baz/qux"),
        lambda: equal("meta/foo/baz.array.json" in new_array("/foo/baz", new="v3_2022:text"), True),
    ),
)
TEXT.row(
    "data are under data, the path, a slash and the chunk's identifier: data/foo/baz/c0/0",
    lambda: equal(
        "data/foo/baz/c1/0" in new_array("/foo/baz", new="v3_2022:text", shape=(4, 4), chunks=(2, 2), write={(1, 0): LEFT}), True
    ),
)
TEXT.row(
    "the path of a key: without meta, and without .array.json or .group.json", holds(TREE, {"bar": "group", "baz": "group"}, "/foo")
)
TEXT.row(
    "a root group is under meta/group.json",
    lambda: equal(group({"zarr.json": ENTRY, "meta/group.json": {"attributes": {"a": 1}}}).attributes, {"a": 1}),
)
TEXT.row(
    "a root array is under meta/array.json, its data under data/",
    reads({"zarr.json": ENTRY, "meta/array.json": doc(), "data/c0/0": LEFT, "data/c0/1": RIGHT}, WHOLE),
)
TEXT.row(
    "(no statement) root in the keys",
    all_of(
        reads(software(), WHOLE, "/a"),
        reads(
            {"zarr.json": SOFTWARE, "meta/root.array.json": doc(data_type="<i2"), "data/root/c0/0": LEFT, "data/root/c0/1": RIGHT},
            WHOLE,
        ),
    ),
    "meta/root/a.array.json, meta/root.array.json, data/root/a/c0/0 where the entry point has the software's form",
)
TEXT.tested(
    "a node called root",
    dialect_tests.test_a_node_called_root_is_one_in_the_form_of_the_text_alone,
    "one in the specification's form only: the entry point determines the form of the whole hierarchy",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("12", "Storage: Operations")

TEXT.row(
    "an array and a group at one path need not be looked for",
    lambda: equal(
        (
            type(node({**store(), "meta/a.group.json": GROUP}, "/a")).__name__,
            "a group exists at the same path: meta/a.group.json" in array({**store(), "meta/a.group.json": GROUP}, "/a").quirks,
        ),
        ("ArrayNode", True),
    ),
    "the array counts (a quirk)",
)
TEXT.row(
    "create a group: set its document; those above are implied",
    lambda: equal(keys(new_group("/x/y", new="v3_2022:text")), ["meta/x/y.group.json", "zarr.json"]),
)
TEXT.row(
    "create an array: set its document; groups above are implied",
    lambda: equal(keys(new_array("/x/y", new="v3_2022:text")), ["meta/x/y.array.json", "zarr.json"]),
)
TEXT.row(
    "store chunk data: set the encoded chunk at its data key",
    lambda: equal(made(write={(1,): [8, 9]})["data/a/c1"], np.array([8, 9], "<i4").tobytes()),
)
TEXT.row("retrieve chunk data: get the data key", reads(store(), WHOLE, "/a"))
TEXT.row(
    "a chunk that is not stored is the fill value",
    reads({"zarr.json": ENTRY, "meta/a.array.json": doc()}, np.full((2, 3), 7, "<i2"), "/a"),
)
TEXT.row(
    "discover children: list_dir of meta, the path and a slash; the example", holds(TREE, {"bar": "group", "baz": "group"}, "/foo")
)
TEXT.row(
    "a prefix is a group that descendants imply",
    lambda: equal((group(TREE, "/foo/baz").explicit, group(TREE, "/").explicit), (False, False)),
)
TEXT.tested(
    "where nothing can be listed, children are known otherwise",
    dialect_tests.test_the_consolidated_copy_tells_nodes_where_nothing_can_be_listed,
    "through zarr-python's consolidated copy, in the software's form",
)
TEXT.row(
    "discover all nodes",
    lambda: equal(
        (members(TREE), members(TREE, "/foo"), members(TREE, "/foo/bar"), members(TREE, "/foo/baz")),
        ({"foo": "group"}, {"bar": "group", "baz": "group"}, {}, {"qux": "array"}),
    ),
)
TEXT.row(
    "erase an array: its document, and all below data, the path and a slash",
    lambda: equal(
        keys(erased({**TREE, "meta/foo/z.group.json": GROUP}, "/foo/baz/qux")),
        ["meta/foo/bar.group.json", "meta/foo/baz.group.json", "meta/foo/z.group.json", "zarr.json"],
    ),
    "as stated; an implicit group with only this array gets a document, and stays",
)
TEXT.row(
    "erase an implicit group: all nodes below it",
    lambda: equal(keys(erased(TREE, "/foo/baz")), ["meta/foo/bar.group.json", "zarr.json"]),
)
TEXT.row(
    "erase an explicit group: its document, and all nodes below it",
    lambda: equal(
        keys(erased(TREE, "/foo/bar")),
        ["data/foo/baz/qux/c0/0", "data/foo/baz/qux/c0/1", "meta/foo/baz/qux.array.json", "zarr.json"],
    ),
)
TEXT.row(
    "a node exists: the array's document, then the group's, then a listing",
    lambda: equal(
        [type(node(TREE, path)).__name__ for path in ("/foo/baz/qux", "/foo/bar", "/foo", "/x")],
        ["ArrayNode", "GroupNode", "GroupNode", "NoneType"],
    ),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("13", "Storage transformers, extensions, implementation notes")

TEXT.tested("they implement the interface of stores, and restore transformed data", transformer_tests.test_the_example_of_the_text)
TEXT.tested(
    "they may be stacked",
    array_tests.test_storage_transformers_are_a_stack_the_first_next_to_the_array,
    "as stated: the first is nearest to the array",
)
TEXT.tested(
    "those that do not change the layout may be added at runtime",
    deadline_tests.test_what_is_in_time_is_as_if_there_were_no_deadline,
)
TEXT.row(
    "which extensions are required: grid, layout, transformer and encoding always, a type without fallback",
    all_of(
        unknown("x", chunk_grid={"extension": "https://example.org/x", "type": "x"}),
        unknown("x", chunk_memory_layout={"extension": "https://example.org/x", "type": "x"}),
        unknown("x", storage_transformers=[{"extension": "https://example.org/x", "type": "x"}]),
        unknown("x", data_type={"extension": "https://example.org/x", "type": "x"}),
    ),
    "as stated: refused",
)
TEXT.row(
    "care must be taken when the parent of an erased node is implicit",
    lambda: equal("meta/foo/baz.group.json" in erased(TREE, "/foo/baz/qux"), True),
    "as stated: it becomes explicit",
)


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
