"""Zarr storage specification version 2, statement by statement: hierarchies, attributes, examples."""

from __future__ import annotations

import json
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import trio

from tests.conformance import test_v2
from tests.conformance.test_v2 import GROUP, LEFT, REFUSED, RIGHT, WHOLE, bad, store, zarray
from tests.stores.conformance import StoreConformance
from tests.support.conforming import (
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
    same,
)
from tests.support.statements import Statement
from tests.support.stores import contents
from zarrfs.errors import NameInvalid
from zarrfs.keys import NodePath
from zarrfs.stores.opening import open_store

TEXT = test_v2.TEXT.continued()

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("7", "Hierarchies: Logical storage paths")

TREE = {".zgroup": GROUP, "foo/.zgroup": GROUP, **{f"foo/bar/{key}": value for key, value in store().items()}}
TEXT.row(
    "several arrays may be in one store, at different logical paths",
    all_of(
        reads({**TREE, "b/.zarray": zarray()}, WHOLE, "/foo/bar"),
        reads({**TREE, "b/.zarray": zarray()}, np.full((2, 3), 7, "<i2"), "/b"),
    ),
)
TEXT.row(
    "a logical path is an ASCII string",
    raises(NameInvalid, "ASCII", lambda: new_array("/ä", new="v2")),
    "as stated for new nodes; existing ones are shown unchanged",
)
TEXT.row("a prefix of keys is formed of the logical path", lambda: equal(array(TREE, "/foo/bar").chunk_prefix, "foo/bar/"))
TEXT.row("the metadata are under foo/bar/.zarray", lambda: equal("foo/bar/.zarray" in new_array("/foo/bar", new="v2"), True))
TEXT.row(
    "the attributes are under foo/bar/.zattrs",
    lambda: equal(array({**TREE, "foo/bar/.zattrs": {"a": 1}}, "/foo/bar").attributes, {"a": 1}),
)
TEXT.row("the chunks are under foo/bar/0.0, foo/bar/0.1", reads(TREE, WHOLE, "/foo/bar"))
TEXT.row(
    "backslashes MUST be replaced by slashes",
    lambda: equal(NodePath.normalized("foo\\bar"), "/foo/bar"),
    "as stated, for paths given by a user; a key that contains one belongs to no node",
)
TEXT.row("leading slashes MUST be stripped", lambda: equal(NodePath.normalized("//foo/bar"), "/foo/bar"))
TEXT.row("trailing slashes MUST be stripped", lambda: equal(NodePath.normalized("foo/bar//"), "/foo/bar"))
TEXT.row("several slashes MUST be one", lambda: equal(NodePath.normalized("foo///bar"), "/foo/bar"))
TEXT.row("the key prefix is the path and one slash", lambda: equal(NodePath("/foo/bar").prefix, "foo/bar/"))
TEXT.row(
    'a segment "." or ".." MUST be an error',
    all_of(
        *(
            raises(NameInvalid, "node path", lambda path=path: NodePath.normalized(path))
            for path in ("foo/./bar", "..", "foo/..", "\\..\\x")
        )
    ),
)
TEXT.tested(
    "the interpretation of slashes is up to the store",
    StoreConformance.test_a_key_beside_a_prefix_of_the_same_name,
    "as stated: folder stores nest folders, and refuse a key beside a prefix of the same name; other stores hold both",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("8", "Hierarchies: Groups")

TEXT.row("groups hold arrays and groups", holds({**TREE, "a/.zarray": zarray()}, {"foo": "group", "a": "array"}))
TEXT.row(
    "a group is created by storing .zgroup under its logical path",
    lambda: equal(document(new_group("/a", new="v2"), "a/.zgroup"), GROUP),
)
TEXT.row("there is a group at the root where the key .zgroup is", lambda: equal(group({".zgroup": GROUP}).explicit, True))
TEXT.row(
    "there is a group at foo/bar where foo/bar/.zgroup is",
    lambda: equal(group({"foo/bar/.zgroup": GROUP}, "/foo/bar").explicit, True),
)


@TEXT.rule("(no statement) a prefix without .zgroup", "an implicit group: tensorstore writes no documents at parents")
def _() -> None:
    found = group({".zgroup": GROUP, "foo/bar/.zarray": zarray()}, "/foo")
    assert not found.explicit and found.attributes == {}


TEXT.row(
    "making a group MUST make groups at all paths above",
    lambda: equal(keys(new_group("/foo/bar", new="v2")), [".zgroup", "foo/.zgroup", "foo/bar/.zgroup"]),
)
TEXT.row(
    "making an array MUST make groups at all paths above",
    lambda: equal(keys(new_array("/foo/bar/baz", new="v2")), [".zgroup", "foo/.zgroup", "foo/bar/.zgroup", "foo/bar/baz/.zarray"]),
)


@TEXT.rule("only where they do not exist already")
def _() -> None:
    there = {".zgroup": b'{"zarr_format":2}', ".zattrs": {"a": 1}}
    made = new_array("/foo/bar", new="v2", into=there)
    assert made[".zgroup"] == there[".zgroup"] and document(made, ".zattrs") == {"a": 1}


TEXT.row("the metadata of a group are a JSON object", refuses({".zgroup": b"[]"}, r"^\.zgroup: not a JSON object"))
TEXT.row("zarr_format MUST be present", refuses({".zgroup": {}}, r"^\.zgroup: zarr_format is missing"), REFUSED)
TEXT.row(
    "zarr_format is an integer, the version: 2",
    all_of(
        refuses({".zgroup": {"zarr_format": 3}}, "zarr_format must be 2, not 3"),
        refuses({".zgroup": {"zarr_format": "1"}}, "zarr_format"),
    ),
)
TEXT.row(
    "other keys MUST NOT be present",
    all_of(
        lambda: equal(new_group("/a", new="v2")["a/.zgroup"], b'{\n    "zarr_format": 2\n}'),
        lambda: equal(group({".zgroup": {"zarr_format": 2, "_nczarr_group": {}}}).explicit, True),
    ),
    "as specified for writing; read with other members, which netCDF-C and GDAL add",
)
TEXT.row(
    "the members of a group are its direct children",
    all_of(holds({**TREE, "foo/bar2/.zgroup": GROUP}, {"bar": "array", "bar2": "group"}, "/foo"), holds(TREE, {"foo": "group"})),
)


@TEXT.rule("(no statement) .zarray and .zgroup at one path", "the array counts, as in zarr-python (a quirk)")
def _() -> None:
    found = array({**store(), ".zgroup": GROUP})
    assert "a group exists at the same path" in found.quirks[0]


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("9", "Attributes")

TEXT.row(
    "arrays and groups may have attributes, which are arbitrary",
    all_of(
        lambda: equal(group({".zgroup": GROUP, ".zattrs": {"a": [1, {"b": None}]}}).attributes, {"a": [1, {"b": None}]}),
        lambda: equal(array({**store(), ".zattrs": {"": 1.5}}).attributes, {"": 1.5}),
    ),
)
TEXT.row(
    "they are a JSON object",
    refuses({".zgroup": GROUP, ".zattrs": b"[]"}, r"^\.zattrs: not a JSON object"),
    "as stated; else the node is refused",
)
TEXT.row(
    "they are stored under .zattrs", lambda: equal(document(new_group("/a", new="v2", units="m"), "a/.zattrs"), {"units": "m"})
)
TEXT.row(
    ".zattrs does not have to be present",
    lambda: equal("a/.zattrs" in new_group("/a", new="v2"), False),
    "as stated: not written without attributes",
)
TEXT.row("absent: the attributes are empty", lambda: equal(array(store()).attributes, {}))
TEXT.row(
    "a .zattrs without other documents is not a node",
    lambda: equal(group({"b/.zattrs": {"a": 1}}, "/b").attributes, {}),
    "as stated: the folder is shown, like all others, without attributes",
)
TEXT.row(
    "the example",
    lambda: equal(
        group({".zgroup": GROUP, ".zattrs": b'{"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}'}).attributes,
        {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]},
    ),
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("10", "Examples")

EXAMPLE: dict[str, Any] = {
    "path": "/a",
    "new": "v2",
    "shape": (20, 20),
    "chunks": (10, 10),
    "fill_value": 42,
    "codecs": "numcodecs.zlib:level=1",
}
TEXT.row("a new array has only .zarray", lambda: equal(keys(new_array(**EXAMPLE)), [".zgroup", "a/.zarray"]))


@TEXT.rule("the document: indented by 4, members sorted, filters null, compressor with its level")
def _() -> None:
    found = new_array(**EXAMPLE)["a/.zarray"].decode()
    expected = zarray(shape=[20, 20], chunks=[10, 10], dtype="<i4", fill_value=42, compressor={"id": "zlib", "level": 1})
    assert found == json.dumps(expected, indent=4, sort_keys=True)


TEXT.row(
    "chunks are initialized on demand", lambda: equal("a/0.0" in new_array(**EXAMPLE, write={(0, 0): np.ones((10, 10))}), True)
)
TEXT.row(
    "a chunk decompresses by hand to its elements",
    lambda: equal(
        set(np.frombuffer(zlib.decompress(new_array(**EXAMPLE, write={(0, 0): np.ones((10, 10))})["a/0.0"]), "<i4")), {1}
    ),
)
TEXT.row(
    "attributes that are set make .zattrs",
    lambda: equal(keys(amended(store(), attributes={"foo": 42})), [".zarray", ".zattrs", "0.0", "0.1"]),
)


@TEXT.rule("the example of a hierarchy in a Zip file")
def _() -> None:
    async def main(path: str) -> set[str]:
        opened = await open_store(path)
        found = set(await contents(opened))
        await opened.aclose()
        return found

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "group.zip")
        with zipfile.ZipFile(path, "w") as archive:
            for key in (".zgroup", "foo/.zgroup", "foo/bar/.zarray", "foo/bar/0.0"):
                archive.writestr(key, b"{}")
        assert trio.run(main, str(path)) == {".zgroup", "foo/.zgroup", "foo/bar/.zarray", "foo/bar/0.0"}


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("11", "Changes")

V1 = {"meta": b"{}", "attrs": b"{}"}
TEXT.row(
    ".zarray instead of meta, .zattrs instead of attrs",
    lambda: equal(set(new_array("/a", new="v2", attributes={"x": 1})) & {"a/meta", "a/attrs"}, set()),
)
TEXT.row(
    "keys and encodings of version 1 are not those of version 2",
    bad("codec|compressor", compressor=..., compression="zlib", compression_opts=1),
    "as stated: a document of version 2 with members of version 1 is refused",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("12", "Beside the text: consolidated metadata")

COPY = {"zarr_consolidated_format": 1, "metadata": {".zgroup": GROUP, "a/.zarray": zarray(), "a/.zattrs": {"x": 1}}}


@TEXT.rule(
    "(no statement) .zmetadata, zarr-python's copy of all documents",
    "a node's own documents count; a node without documents is read from the copy",
)
def _() -> None:
    values = {".zmetadata": COPY, "a/0.0": LEFT, "a/0.1": RIGHT}
    assert same(elements(values, "/a"), WHOLE) and array(values, "/a").attributes == {"x": 1}
    own = {**values, "a/.zarray": zarray(fill_value=8)}
    assert metadata(own, "/a").fill_value == b"\x08\0" and array(own, "/a").attributes == {}


@TEXT.rule("(no statement) .zmetadata when a document changes", "an edit through zarrfs also changes the copy")
def _() -> None:
    after = amended({".zmetadata": COPY, ".zgroup": GROUP, "a/.zarray": zarray()}, "/a", attributes={"y": 2})
    assert document(after, ".zmetadata")["metadata"]["a/.zattrs"] == document(after, "a/.zattrs") == {"y": 2}


@TEXT.rule("(no statement) .zmetadata in a group below the root", "as for the root: an edit changes the copy of each group above")
def _() -> None:
    copies = {".zmetadata": {**COPY, "metadata": {"g/a/.zarray": zarray()}}, "g/.zmetadata": COPY}
    after = amended({**copies, "g/.zgroup": GROUP, "g/a/.zarray": zarray()}, "/g/a", attributes={"y": 2})
    assert document(after, ".zmetadata")["metadata"]["g/a/.zattrs"] == {"y": 2}
    assert document(after, "g/.zmetadata")["metadata"]["a/.zattrs"] == {"y": 2}


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
