"""Zarr core specification version 3.1, statement by statement: hierarchies, documents, names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.conforming import (
    Check,
    all_of,
    amended,
    array,
    document,
    elements,
    equal,
    group,
    holds,
    keys,
    metadata,
    new_array,
    new_group,
    raises,
    reads,
    refuses,
)
from tests.support.example_array import LEFT, OTHERS, REFUSED, RIGHT, WHOLE, with_members
from tests.support.statements import Statement, Text
from zarrfs.daemon.mount_tree import store_name
from zarrfs.dialects.v3.dialect import PLUGIN
from zarrfs.errors import EntryExists, NameInvalid, NotADirectory
from zarrfs.keys import ROOT, NodePath, Prefix

TEXT = Text("v3", "Zarr core specification version 3.1, with its codecs and stores")

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
PLAIN = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [2, 3],
    "data_type": "int16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 7,
    "codecs": [BYTES],
}
GROUP = {"zarr_format": 3, "node_type": "group"}


def doc(**members: Any) -> dict[str, Any]:
    """Return the document of an array; `...` leaves a member out."""
    return with_members(PLAIN, members)


def store(**members: Any) -> dict[str, Any]:
    """Return an array at the root: `WHOLE` in two chunks."""
    return {"zarr.json": doc(**members), "c/0/0": LEFT, "c/0/1": RIGHT}


def grid(*lengths: Any) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(lengths)}}


def line(data_type: Any, fill_value: Any, *values: Any, codecs: Any = (BYTES,), dtype: str = "") -> dict[str, Any]:
    """Return an array of one dimension and one chunk; ``values`` are stored as NumPy's ``dtype``."""
    count = len(values) or 1
    held = {"c/0": np.array(list(values), dtype)} if values else {}
    return {
        "zarr.json": doc(shape=[count], chunk_grid=grid(count), data_type=data_type, fill_value=fill_value, codecs=list(codecs)),
        **held,
    }


def bad(match: str, **members: Any) -> Check:
    """Return a check that an array with these members is refused, with a reason that names the key."""
    return refuses({"zarr.json": doc(**members)}, rf"^zarr\.json: .*{match}")


def unknown(match: str, **members: Any) -> Check:
    """Return a check as `bad`, for members that the text permits and zarrfs does not support."""
    return refuses({"zarr.json": doc(**members)}, rf"^zarr\.json: .*{match}", bad=False)


def made(**how: Any) -> dict[str, bytes]:
    """Return the stored values of a new array."""
    return new_array("/a", new="v3", **how)


def fills(data_type: Any, fill_value: Any, expected: Any) -> Check:
    """Return a check that missing elements are read as this."""
    return reads(line(data_type, fill_value), [expected])


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("1", "Concepts and terminology")

TREE = {"zarr.json": GROUP, "g/zarr.json": GROUP, **{f"g/a/{key}": value for key, value in store().items()}}
TEXT.row("a hierarchy is a tree of groups and arrays", all_of(holds(TREE, {"g": "group"}), holds(TREE, {"a": "array"}, "/g")))
TEXT.row("group nodes may have children", holds({**TREE, "h/zarr.json": GROUP}, {"g": "group", "h": "group"}))
TEXT.row(
    "array nodes may not have children",
    raises(NotADirectory, "/a: not a group", lambda: new_array("/a/b", new="v3", into={"zarr.json": GROUP, "a/zarr.json": doc()})),
    "as stated: no node is created below an array, and no array over other nodes",
)
TEXT.row(
    "array nodes may not have children",
    raises(EntryExists, "other nodes", lambda: new_array("/g", new="v3", into={"g/b/zarr.json": doc()})),
)
TEXT.row("the root may be a group", lambda: equal(group({"zarr.json": GROUP}).explicit, True))
TEXT.row("the root may be an array: then it is the whole hierarchy", reads(store(), WHOLE))
TEXT.row(
    "an array has zero or more dimensions",
    reads({"zarr.json": doc(shape=[], chunk_grid=grid()), "c": np.int16(5)}, np.int16(5)),
    "as stated, up to 32 (NumPy's)",
)
TEXT.row("an array contains zero or more elements", lambda: equal(elements({"zarr.json": doc(shape=[0, 3])}).shape, (0, 3)))
TEXT.row(
    "two siblings cannot have the same name",
    raises(EntryExists, "exists", lambda: new_group("/g", new="v3", into={"zarr.json": GROUP, "g/zarr.json": GROUP})),
)
TEXT.row(
    "the path of the root is /, that of others their parent's, a slash, their name",
    lambda: equal((NodePath("/").child("foo"), NodePath("/foo").child("bar")), ("/foo", "/foo/bar")),
)
TEXT.row(
    "a path begins with a slash, and does not end with one",
    all_of(
        raises(NameInvalid, "node path", lambda: NodePath("a")),
        raises(NameInvalid, "node path", lambda: NodePath("/a/")),
        raises(NameInvalid, "node path", lambda: NodePath("/a//b")),
    ),
)
TEXT.row(
    "chunk lengths are not zero where the dimension is not",
    bad("chunk", chunk_grid=grid(0, 2)),
    "as stated; 0 is read where the dimension is empty (a quirk)",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("2", "Stored representation")

TEXT.row("the document of the root is under zarr.json", reads(store(), WHOLE))
TEXT.row(
    "the document of /foo/bar is under foo/bar/zarr.json",
    all_of(reads(TREE, WHOLE, "/g/a"), lambda: equal("foo/bar/zarr.json" in new_array("/foo/bar", new="v3"), True)),
)
TEXT.row("data of a root array have no prefix", lambda: equal(array(store()).chunk_prefix, ""))
TEXT.row("data of /foo/bar are under foo/bar/", lambda: equal(array(TREE, "/g/a").chunk_prefix, "g/a/"))
TEXT.row(
    "the example: chunk (1, 0) of /foo/baz is foo/baz/c/1/0",
    lambda: equal("foo/baz/c/1/0" in new_array("/foo/baz", new="v3", shape=(4, 4), chunks=(2, 2), write={(1, 0): LEFT}), True),
)
TEXT.row(
    "the name of a hierarchy's folder should end with .zarr",
    lambda: equal([store_name(url) for url in ("/data/x.zarr", "/data/x")], ["x", "x"]),
    "left to the user: any folder can be a store; names derived from it omit .zarr",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("3", "Array metadata")

TEXT.row(
    "documents are JSON (RFC 8259)",
    all_of(
        refuses({"zarr.json": b"{"}, r"^zarr\.json: not JSON"),
        refuses({"zarr.json": b"\xef\xbb\xbf{}"}, r"^zarr\.json: not"),
        refuses({"zarr.json": b'{"node_type": 1, "node_type": 2}'}, "duplicate member"),
    ),
    "as stated, in UTF-8 without a byte order mark, and no member twice",
)
TEXT.row("a document is a single object", refuses({"zarr.json": [doc()]}, r"^zarr\.json: not a JSON object"))
for name in ("node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value"):
    TEXT.row(f"{name} is mandatory", bad(f"{name} is missing", **{name: ...}), REFUSED)
TEXT.row(
    "zarr_format is mandatory, and 3",
    all_of(bad("zarr_format", zarr_format=...), *(bad("zarr_format", zarr_format=each) for each in (2, "3", 3.0, True, None))),
    OTHERS,
)
TEXT.row(
    "codecs is mandatory",
    lambda: equal(
        (array(store(codecs=...)).metadata == metadata(store()), array(store(codecs=...)).quirks),
        (True, ("codecs is missing: read as C order, little-endian",)),
    ),
    "GDAL 3.8 omits it: read as C order, little-endian (a quirk); --dialect-choices v3.codecs=refuse",
)
TEXT.row(
    "node_type is array, of an array", all_of(*(bad("node_type", node_type=each) for each in ("Array", None, 1, ["array"]))), OTHERS
)
TEXT.row(
    "shape: an array of integers, the length of each dimension",
    all_of(
        lambda: equal(metadata(store()).shape, (2, 3)),
        *(bad("shape", shape=each) for each in (2, [2.0, 3], ["2", 3], [-1, 3], [True, 3], None)),
    ),
    OTHERS,
)
TEXT.row(
    "data_type: of a core type its name",
    all_of(reads(store(), WHOLE), bad("data.type", data_type=5), bad("data.type", data_type=None)),
    OTHERS,
)
TEXT.row(
    "chunk_grid: a regular grid has a name and a configuration with chunk_shape",
    all_of(
        bad("chunk_shape is missing", chunk_grid={"name": "regular"}),
        bad("chunk_shape is missing", chunk_grid={"name": "regular", "configuration": {}}),
    ),
    REFUSED,
)
TEXT.row(
    "chunk_shape: an array of integers, one for each dimension",
    all_of(
        lambda: equal(metadata(store()).grid_shape, (1, 2)),
        *(bad("chunk", chunk_grid=grid(*each)) for each in ([2], [2, 2, 2], [2, "2"], [2, 2.0], [2, -1], [2, None])),
    ),
    OTHERS,
)
TEXT.row(
    "chunk_key_encoding: from coordinates to keys",
    all_of(reads(store(), WHOLE), unknown("made_up", chunk_key_encoding={"name": "made_up"})),
    "as stated; an unknown one is refused",
)
TEXT.row("fill_value: of portions that are not initialized", reads({"zarr.json": doc(), "c/0/0": LEFT}, [[1, 2, 7], [4, 5, 7]]))
TEXT.row(
    "the default fill value that an implementation chooses MUST be recorded",
    lambda: equal(document(made(), "a/zarr.json")["fill_value"], 0),
    "as stated: zero",
)
TEXT.row(
    "fill_value null is not allowed",
    lambda: equal(
        (metadata(store(fill_value=None)).fill_value, array(store(fill_value=None)).quirks),
        (None, ("fill_value is null: undefined",)),
    ),
    "null, which zarrita.js writes, is read as undefined (a quirk); never written",
)
TEXT.row(
    "codecs cannot be empty",
    lambda: equal(
        (elements(store(codecs=[])).tolist(), array(store(codecs=[])).quirks),
        (WHOLE.tolist(), ("codecs is empty: read as C order, little-endian",)),
    ),
    "zarrita.js writes this: read as C order, little-endian (a quirk); --dialect-choices v3.codecs=refuse",
)
TEXT.row(
    "codecs cannot be empty",
    refuses(store(codecs=[]), "refused", choices={"v3.codecs": "refuse"}),
    "refused with v3.codecs=refuse",
)
TEXT.row(
    "for readers of 3.0: no must_understand and no short-hand names in codecs",
    lambda: equal(document(made(codecs="crc32c"), "a/zarr.json")["codecs"], [BYTES, {"name": "crc32c"}]),
    "as stated, for writing",
)
TEXT.row(
    "attributes are optional, an object of any JSON",
    all_of(
        lambda: equal(array(store(attributes={"a": [1, {"b": None}]})).attributes, {"a": [1, {"b": None}]}),
        lambda: equal(array(store()).attributes, {}),
        *(bad("attributes", attributes=each) for each in ([], "a", None)),
    ),
    OTHERS,
)
TEXT.row(
    "storage_transformers: absent and empty mean none",
    all_of(reads(store(storage_transformers=[]), WHOLE), reads(store(), WHOLE)),
    "as stated; [] is written",
)
TEXT.row(
    "each storage transformer is an extension",
    all_of(
        unknown("made_up", storage_transformers=[{"name": "made_up"}]),
        bad("storage_transformers", storage_transformers={}),
        reads(store(storage_transformers=[{"name": "made_up", "must_understand": False}]), WHOLE),
    ),
    "no extension is known: one that must be understood is refused",
)
TEXT.row(
    "dimension_names: strings or null, as many as dimensions",
    all_of(
        lambda: equal(metadata(store(dimension_names=["y", None])).dimension_names, ("y", None)),
        *(bad("dimension_names", dimension_names=each) for each in (["y"], ["y", 1], "yx", ["x"] * 3)),
    ),
    OTHERS,
)
TEXT.row(
    "an unnamed dimension is null", lambda: equal(document(made(dimension_names=(None,)), "a/zarr.json")["dimension_names"], [None])
)
TEXT.row(
    "not specified: all dimensions are unnamed",
    lambda: equal(metadata(store()).dimension_names, None),
    "as stated; null for the whole member is read in the same way",
)
TEXT.row(
    "names should be distinct, but need not", lambda: equal(metadata(store(dimension_names=["x", "x"])).dimension_names, ("x", "x"))
)


@TEXT.rule("the example: 10000 by 1000 float64 in chunks of 1000 by 100, fill value NaN")
def _() -> None:
    example = doc(
        shape=[10000, 1000], dimension_names=["rows", "columns"], data_type="float64", chunk_grid=grid(1000, 100), fill_value="NaN"
    )
    found = metadata({"zarr.json": example})
    assert found.grid_shape == (10, 10) and found.dimension_names == ("rows", "columns")
    assert np.isnan(np.frombuffer(found.fill_bytes, "<f8")[0])


TEXT.row(
    "the example of an extension type",
    unknown("urn:example:datetime", data_type={"name": "urn:example:datetime", "configuration": {"unit": "ns"}}),
    "refused: the type is not known",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("4", "Group metadata")

TEXT.row(
    "each group must have a document zarr.json",
    lambda: equal(keys(new_group("/a/b", new="v3")), ["a/b/zarr.json", "a/zarr.json", "zarr.json"]),
    "as stated, for new nodes",
)
TEXT.row(
    "each group must have a document",
    lambda: equal(group({"g/a/zarr.json": doc()}, "/g").explicit, False),
    "a prefix without one is read as an implicit group: tensorstore writes none at parents",
)
TEXT.row(
    "zarr_format is mandatory, and 3",
    all_of(
        refuses({"zarr.json": {"node_type": "group"}}, "zarr_format"),
        refuses({"zarr.json": {**GROUP, "zarr_format": "3"}}, "zarr_format"),
    ),
    OTHERS,
)
TEXT.row(
    "node_type is mandatory, and group",
    all_of(
        refuses({"zarr.json": {"zarr_format": 3}}, "node_type is missing"),
        refuses({"zarr.json": {**GROUP, "node_type": "folder"}}, "node_type"),
    ),
    OTHERS,
)
TEXT.row(
    "attributes are optional, an object of any JSON",
    all_of(
        lambda: equal(group({"zarr.json": {**GROUP, "attributes": {"a": 1}}}).attributes, {"a": 1}),
        refuses({"zarr.json": {**GROUP, "attributes": []}}, "attributes"),
    ),
    OTHERS,
)
TEXT.row(
    "the example",
    lambda: equal(
        document(new_group("/a", new="v3", spam="ham", eggs=42), "a/zarr.json"),
        {**GROUP, "attributes": {"spam": "ham", "eggs": 42}},
    ),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("5", "Additional fields")

COPY = {"must_understand": False, "kind": "inline", "metadata": {"g": GROUP, "g/a": doc(attributes={"x": 1})}}
TEXT.row(
    "a group may have a field consolidated_metadata, which deviates from extensions",
    lambda: equal(array({"zarr.json": {**GROUP, "consolidated_metadata": COPY}, "g/a/c/0/0": LEFT}, "/g/a").attributes, {"x": 1}),
    "a node without a document of its own is read from the copy; its own document wins",
)
TEXT.row(
    "it MUST be an object of kind inline, with metadata",
    all_of(
        *(
            refuses({"zarr.json": {**GROUP, "consolidated_metadata": each}}, "consolidated_metadata|metadata")
            for each in ([], {**COPY, "kind": "other", "must_understand": True}, {"kind": "inline"})
        )
    ),
    "as stated; null, and another kind that may be ignored, mean none",
)


@TEXT.rule("(no statement) the copy when a document changes", "an edit through zarrfs changes every copy above the node")
def _() -> None:
    values = {"zarr.json": {**GROUP, "consolidated_metadata": COPY}, "g/zarr.json": GROUP, "g/a/zarr.json": doc()}
    after = amended(values, "/g/a", attributes={"y": 2})
    copied = document(after, "zarr.json")["consolidated_metadata"]["metadata"]["g/a"]
    assert copied["attributes"] == document(after, "g/a/zarr.json")["attributes"] == {"y": 2}


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("6", "Node names")


def no_name(name: str) -> Check:
    """Return a check that no node of that name can be created, and none is shown."""

    def check() -> None:
        layout = PLUGIN.create(Prefix(""))
        with pytest.raises(NameInvalid):
            layout.check_name(name)
        assert layout.child_names(ROOT, [], [name, "other"]) == {"other"}

    return check


TEXT.row("must not be empty", no_name(""))
TEXT.row("must not include /", no_name("a/b"))
TEXT.row("must not consist of periods only", all_of(no_name("."), no_name(".."), no_name("...")))
TEXT.row(
    "must not start with __",
    all_of(no_name("__"), no_name("__zarr"), holds({"zarr.json": GROUP, "__x/zarr.json": GROUP}, {})),
    "as stated: none is created, and such names are shown only in raw/",
)
TEXT.row("must not be zarr.json", no_name("zarr.json"))
TEXT.row(
    "names are strings of Unicode code points",
    lambda: equal("ä b/zarr.json" in new_group("/ä b", new="v3"), True),
    "as stated; a lone surrogate is not a character",
)
TEXT.row(
    "we recommend a-z, A-Z, 0-9, -, _ and .",
    holds({"zarr.json": GROUP, "a~!/zarr.json": GROUP}, {"a~!": "group"}),
    "left to the user",
)
TEXT.row(
    "names are case sensitive",
    holds({"zarr.json": GROUP, "foo/zarr.json": GROUP, "FOO/zarr.json": doc()}, {"foo": "group", "FOO": "array"}),
)
TEXT.row(
    "case-folded NFKC strings are recommended",
    holds({"zarr.json": GROUP, "\u00e9/zarr.json": GROUP, "e\u0301/zarr.json": GROUP}, {"\u00e9": "group", "e\u0301": "group"}),
    "left to the user: names are kept unchanged",
)


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
