"""The core draft of 2022: the rules of its text by section, and data of real software; everything but array documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cases import Case, below, cases
from zarrfs.dialects.base import Edit
from zarrfs.dialects.v3_2022.dialect import PLUGIN, V3Draft2022Layout
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode

NOWHERE = Prefix("")
CORE = "https://purl.org/zarr/spec/core/3.0"
PROTOCOL = "https://purl.org/zarr/spec/protocol/core/3.0"
TEXT: dict[str, Any] = {
    "zarr_format": CORE,
    "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"},
    "extensions": [],
}
SOFTWARE: dict[str, Any] = {
    "zarr_format": PROTOCOL,
    "metadata_encoding": PROTOCOL,
    "metadata_key_suffix": ".json",
    "extensions": [],
}
ARRAY = {
    "shape": [10],
    "data_type": "int32",
    "chunk_grid": {"type": "regular", "chunk_shape": [4], "separator": "/"},
    "chunk_memory_layout": "C",
    "fill_value": 0,
    "extensions": [],
    "attributes": {},
}
LAYOUTS = ("v3_draft2022_seed", "v3_draft2022_zarrpython", "v3_draft2022_gdal", "v3_2020_zarrita")
FOO = {"extension": "http://example.org/zarr/extension/foo", "must_understand": False, "configuration": {"foo": "bar"}}


def dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


def opened(entry: Any, *, prefix: Prefix = NOWHERE, **documents: Any) -> V3Draft2022Layout:
    """Return the hierarchy with this entry point; ``documents`` by key."""
    found = {prefix.key("zarr.json"): dumped(entry)} | {Key(key): dumped(value) for key, value in documents.items()}
    layout = PLUGIN.open(prefix, found)
    assert layout is not None
    return layout


def parse(layout: V3Draft2022Layout, path: str, **documents: Any) -> Any:
    """Return the node at ``path``, from the documents that the layout requests."""
    at = NodePath(path)
    found = {Key(key): dumped(value) for key, value in documents.items()}
    return layout.parse(at, {key: found[key] for key in layout.document_keys(at) if key in found})


# --- entry point metadata -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [TEXT, SOFTWARE], ids=["text", "software"])
def test_the_entry_point_tells_a_hierarchy(entry: Any) -> None:
    assert PLUGIN.root_keys(Prefix("a/")) == ("a/zarr.json",)
    assert opened(entry, prefix=Prefix("a/")).prefix == "a/"
    opened(entry).check()


@pytest.mark.parametrize(
    "entry",
    [
        {"zarr_format": PROTOCOL, "metadata_encoding": "application/json", "extensions": []},
        {"zarr_format": 3, "node_type": "group", "attributes": {}},
        {"zarr_format": 3, "node_type": "group", "metadata_encoding": TEXT["metadata_encoding"]},
        {"metadata_encoding": TEXT["metadata_encoding"]},
        {},
        [],
    ],
    ids=["2019", "final", "final with more", "no format", "empty", "list"],
)
def test_what_is_another_s_is_left_to_it(entry: Any) -> None:
    assert PLUGIN.open(NOWHERE, {Key("zarr.json"): dumped(entry)}) is None
    assert PLUGIN.open(NOWHERE, {Key("zarr.json"): b"{"}) is None


@pytest.mark.parametrize("version", ["3.0", "3.1", "3.27"])
def test_entry_point_zarr_format_any_minor_version_is_read(version: str) -> None:
    opened(TEXT | {"zarr_format": f"https://purl.org/zarr/spec/core/{version}"}).check()
    opened(SOFTWARE | {"zarr_format": f"http://purl.org/zarr/spec/protocol/core/{version}"}).check()


@pytest.mark.parametrize(
    "value", ["https://purl.org/zarr/spec/core/4.0", "https://purl.org/zarr/spec/core/2.0", "https://example.org/x"]
)
def test_entry_point_zarr_format_must_be_version_3(value: str) -> None:
    for entry in (TEXT, SOFTWARE):
        with pytest.raises(MetadataUnsupported, match=r"zarr\.json: zarr_format"):
            opened(entry | {"zarr_format": value}).check()


def test_entry_point_names_that_are_not_defined_are_refused_now_and_ignored_later() -> None:
    """ "zarr_format": later 3.x are read, and their additions ignored; "Array metadata": unknown fields must fail."""
    later = TEXT | {"zarr_format": "https://purl.org/zarr/spec/core/3.1", "new": 1}
    layout = opened(later)
    layout.check()
    node = parse(layout, "/a", **{"meta/a.array.json": ARRAY | {"new": 1}})
    assert node.quirks == ('array document: unknown member "new", ignored',)
    assert parse(layout, "/g", **{"meta/g.group.json": {"attributes": {}, "new": 1}}).explicit
    with pytest.raises(MetadataUnsupported, match="new"):
        opened(TEXT | {"new": 1}).check()
    with pytest.raises(MetadataUnsupported, match="new"):
        parse(opened(TEXT), "/a", **{"meta/a.array.json": ARRAY | {"new": 1}})
    with pytest.raises(MetadataUnsupported, match="new"):
        parse(opened(TEXT), "/g", **{"meta/g.group.json": {"attributes": {}, "new": 1}})


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ({"type": "msgpack", "metadata_key_suffix": ".m"}, "msgpack"),
        ({"extension": "http://example.org/e", "type": "json", "metadata_key_suffix": ".json"}, "json"),
        ({"type": "json"}, "metadata_key_suffix is missing"),
        ({"type": "json", "metadata_key_suffix": 1}, "string"),
        ({"type": "json", "metadata_key_suffix": "/x.json"}, "invalid end"),
        ({"type": "json", "metadata_key_suffix": ".json", "more": 1}, "more"),
        ("https://example.org/other-encoding", "unknown"),
        (1, "metadata_encoding must be an object"),
        ([], "metadata_encoding must be an object"),
        (True, "metadata_encoding must be an object"),
        (None, "metadata_encoding"),
    ],
)
def test_entry_point_metadata_encoding_must_be_json(encoding: Any, message: str) -> None:
    entry = {**TEXT, "metadata_encoding": encoding}
    if encoding is None:
        del entry["metadata_encoding"]
    with pytest.raises(MetadataError, match=message):
        opened(entry).check()


def test_entry_point_metadata_encoding_that_is_null() -> None:
    """No text allows it. zarr-python 2.18 reads it where the suffix is beside it: it checks only the names of the members."""
    null = SOFTWARE | {"metadata_encoding": None}
    layout = opened(null)
    layout.check()
    array = parse(layout, "/a", **{"meta/root/a.array.json": ARRAY | {"data_type": "<i4"}})
    group = parse(layout, "/g", **{"meta/root/g.group.json": {"attributes": {}}})
    assert isinstance(array, ArrayNode) and isinstance(group, GroupNode)
    assert array.quirks == group.quirks == ("metadata_encoding is null: read as JSON",)
    assert array.metadata == parse(opened(SOFTWARE), "/a", **{"meta/root/a.array.json": ARRAY | {"data_type": "<i4"}}).metadata
    # The member has to exist, there as well; and where nothing else shows the form, the text demands an object.
    for entry in ({name: value for name, value in null.items() if name != "metadata_encoding"}, TEXT | {"metadata_encoding": None}):
        with pytest.raises(MetadataError, match="metadata_encoding"):
            opened(entry).check()


def test_entry_point_extensions_that_must_be_understood_end_it() -> None:
    opened(TEXT | {"extensions": [FOO]}).check()
    for bad in (FOO | {"must_understand": True}, FOO | {"must_understand": 1}, {"must_understand": False}, 7):
        layout = opened(TEXT | {"extensions": [bad]})
        with pytest.raises(MetadataError):
            layout.check()
        with pytest.raises(MetadataError):
            parse(layout, "/a", **{"meta/a.array.json": ARRAY})
        assert parse(layout, "/b") is None


# --- storage keys ---------------------------------------------------------------------------------------------------------


def test_storage_keys_are_those_of_the_text() -> None:
    """Tables 3 and 4."""
    layout = opened(TEXT)
    assert layout.document_keys(ROOT) == ("meta/array.json", "meta/group.json")
    assert layout.document_keys(NodePath("/foo")) == ("meta/foo.array.json", "meta/foo.group.json")
    assert layout.document_keys(NodePath("/foo/bar")) == ("meta/foo/bar.array.json", "meta/foo/bar.group.json")
    assert layout.chunk_prefix(NodePath("/foo/baz")) == "data/foo/baz/"
    assert layout.chunk_prefix(ROOT) == "data/"


def test_storage_keys_of_the_software_have_root() -> None:
    layout = opened(SOFTWARE)
    assert layout.document_keys(ROOT) == ("meta/root.array.json", "meta/root.group.json")
    assert layout.document_keys(NodePath("/foo/bar")) == ("meta/root/foo/bar.array.json", "meta/root/foo/bar.group.json")
    assert layout.chunk_prefix(NodePath("/foo/baz")) == "data/root/foo/baz/"
    assert layout.chunk_prefix(ROOT) == "data/root/"


def test_a_node_called_root_is_one_in_the_form_of_the_text_alone() -> None:
    documents = {"meta/root.group.json": {"attributes": {"x": 1}}}
    assert parse(opened(TEXT), "/root", **documents).attributes == {"x": 1}
    assert parse(opened(TEXT), "/", **documents) is None
    assert parse(opened(SOFTWARE), "/", **documents).attributes == {"x": 1}
    assert opened(TEXT).child_names(ROOT, ["root.group.json", "group.json"], ["root"]) == {"root"}


@pytest.mark.parametrize("suffix", [".json", "", ".txt", ".zarr.json"])
def test_storage_keys_end_with_the_suffix_of_the_entry_point(suffix: str) -> None:
    text = opened(TEXT | {"metadata_encoding": {"type": "json", "metadata_key_suffix": suffix}})
    software = opened(SOFTWARE | {"metadata_key_suffix": suffix})
    for layout, stem in ((text, "meta/a/b"), (software, "meta/root/a/b")):
        path = NodePath("/a/b")
        assert layout.document_keys(path) == (f"{stem}.array{suffix}", f"{stem}.group{suffix}")
        assert layout.format(GroupNode(path=path, dialect="v3_2022")).keys() == {f"{stem}.group{suffix}"}
        assert layout.node_of_document(Key(f"{stem}.group{suffix}")) == path
        assert layout.child_names(NodePath("/a"), [f"b.array{suffix}", f"c.group{suffix}x", "d"], []) == {"b"}
        assert json.loads(layout.entry_documents()[Key("zarr.json")])["zarr_format"].endswith("core/3.0")


@pytest.mark.parametrize("entry", [TEXT, SOFTWARE], ids=["text", "software"])
def test_an_entry_point_is_written_as_it_is_read(entry: Any) -> None:
    layout = opened(entry)
    assert json.loads(layout.entry_documents()[Key("zarr.json")]) == entry


def test_a_new_hierarchy_has_the_form_of_the_software() -> None:
    assert json.loads(PLUGIN.create(Prefix("a/")).entry_documents()[Key("a/zarr.json")]) == SOFTWARE


def test_node_names_are_of_the_characters_of_the_text() -> None:
    """ "Node names". Case counts."""
    layout = opened(TEXT)
    for name in ("a", "A", "0", "-", "_", "a.b", ".a", "x" * 300):
        layout.check_name(name)
    for name in ("", ".", "..", "...", "é", "a b", "a/b", "a+b", "a\n"):
        with pytest.raises(NameInvalid):
            layout.check_name(name)
    names = ["é.array.json", "...group.json", "a b.group.json", ".array.json", "ok.array.json", "Ok.group.json"]
    assert layout.child_names(ROOT, names, ["é", "..", "x"]) == {"ok", "Ok", "x"}
    assert layout.node_of_document(Key("meta/é.array.json")) is None
    assert parse(layout, "/é", **{"meta/é.group.json": {"attributes": {}}}) is None


# --- operations -----------------------------------------------------------------------------------------------------------


def test_operations_children_are_those_of_a_listing() -> None:
    """ "Discover children of a group": the example of the text."""
    layout = opened(TEXT)
    assert layout.listing_prefix(NodePath("/foo")) == "meta/foo/"
    assert layout.child_names(NodePath("/foo"), ["bar.group.json", "x.array.json", "notes.txt"], ["baz"]) == {"bar", "x", "baz"}
    assert layout.listing_prefix(ROOT) == "meta/"
    assert layout.child_names(ROOT, ["array.json", "group.json", "foo.group.json"], []) == {"foo"}
    assert opened(SOFTWARE).listing_prefix(ROOT) == "meta/root/"
    assert layout.node_of_prefix(Prefix("meta/foo/")) == "/foo"
    assert layout.node_of_prefix(Prefix("data/foo/")) is None


def test_operations_a_node_is_an_array_first_then_a_group() -> None:
    """ "Determine if a node exists": array, explicit group; an implied one follows from a listing, not from a document."""
    layout = opened(TEXT)
    both = {"meta/a.array.json": ARRAY, "meta/a.group.json": {"attributes": {}}}
    node = parse(layout, "/a", **both)
    assert isinstance(node, ArrayNode)
    assert any("a group exists at the same path" in quirk for quirk in node.quirks)
    assert isinstance(parse(layout, "/a", **{"meta/a.group.json": {"attributes": {}}}), GroupNode)
    assert parse(layout, "/a") is None


def test_operations_no_ancestors_are_made() -> None:
    """ "Create a group", "Create an array"."""
    assert opened(TEXT).required_groups(NodePath("/a/b/c")) == ()
    documents = opened(TEXT).format(GroupNode(path=NodePath("/a/b"), dialect="v3_2022", attributes={"x": 1}))
    assert {key: json.loads(value) for key, value in documents.items()} == {"meta/a/b.group.json": {"attributes": {"x": 1}}}


def test_a_folder_below_meta_and_data_is_no_other_hierarchy_s() -> None:
    assert opened(TEXT).own_names == {"meta", "data"}


# --- group metadata -------------------------------------------------------------------------------------------------------


def test_group_metadata_has_attributes_alone() -> None:
    layout = opened(TEXT)
    assert parse(layout, "/g", **{"meta/g.group.json": {"attributes": {"spam": "ham"}}}).attributes == {"spam": "ham"}
    assert parse(layout, "/g", **{"meta/g.group.json": {}}).attributes == {}
    for bad in (
        {"attributes": {}, "shape": []},
        {"attributes": 1},
        {"attributes": {}, "extensions": [FOO | {"must_understand": True}]},
    ):
        with pytest.raises(MetadataError, match=r"meta/g\.group\.json"):
            parse(layout, "/g", **{"meta/g.group.json": bad})


def test_group_metadata_of_gdal_and_zarrita_has_extensions() -> None:
    documents = {"meta/root/g.group.json": {"extensions": [], "attributes": {"a": 1}}}
    assert parse(opened(SOFTWARE), "/g", **documents).attributes == {"a": 1}


def test_an_edit_of_a_group_keeps_what_it_does_not_name() -> None:
    key = Key("meta/root/g.group.json")
    documents = {key: b'{"extensions": [],\n "attributes": {"a": 1}}'}
    amended = opened(SOFTWARE).amend(NodePath("/g"), documents, Edit(attributes={"b": 2}))
    assert amended.keys() == {key}
    assert amended[key].startswith(b'{"extensions": [],\n "attributes": {')
    assert json.loads(amended[key]) == {"extensions": [], "attributes": {"b": 2}}


# --- the consolidated copy ------------------------------------------------------------------------------------------------

COPY = "meta/root/consolidated/.zmetadata"
COPIED = {"meta/root/g.group.json": {"attributes": {"a": 1}}, "meta/root/imp/x.array.json": ARRAY, "zarr.json": SOFTWARE}


def consolidated(**members: Any) -> V3Draft2022Layout:
    copy = {"zarr_consolidated_format": 1, "metadata": COPIED | members}
    return opened(SOFTWARE, **{COPY: copy})


def test_the_consolidated_copy_is_asked_for_in_the_form_of_the_software() -> None:
    assert PLUGIN.further_keys(NOWHERE, {Key("zarr.json"): dumped(SOFTWARE)}) == (COPY,)
    assert PLUGIN.further_keys(NOWHERE, {Key("zarr.json"): dumped(TEXT)}) == ()
    assert PLUGIN.further_keys(NOWHERE, {}) == ()


def test_the_consolidated_copy_tells_nodes_where_nothing_can_be_listed() -> None:
    layout = consolidated()
    assert layout.consolidated_names(ROOT) == {"g", "imp"}
    assert parse(layout, "/g").attributes == {"a": 1}
    assert isinstance(parse(layout, "/imp/x"), ArrayNode)
    assert not parse(layout, "/imp").explicit
    assert parse(layout, "/g", **{"meta/root/g.group.json": {"attributes": {"own": 1}}}).attributes == {"own": 1}
    assert opened(SOFTWARE).consolidated_names(ROOT) is None


def test_where_the_consolidated_copy_lies_is_no_node() -> None:
    group = {"meta/root/consolidated.group.json": {"attributes": {}}}
    for layout in (consolidated(**group), opened(SOFTWARE, **{COPY: []})):
        assert layout.child_names(ROOT, ["consolidated.group.json", "g.group.json"], ["consolidated"]) == {"g"}
        assert parse(layout, "/consolidated", **group) is None
        with pytest.raises(NotRepresentable):
            layout.format(GroupNode(path=NodePath("/consolidated"), dialect="v3_2022"))
    assert "consolidated" not in (consolidated(**group).consolidated_names(ROOT) or ())
    # Without a copy it is a name as any other.
    assert parse(opened(SOFTWARE), "/consolidated", **group).explicit


def test_a_change_of_the_consolidated_copy_concerns_the_root() -> None:
    assert opened(SOFTWARE).node_of_document(Key(COPY)) == ROOT
    assert opened(SOFTWARE).node_of_document(Key("zarr.json")) == ROOT


# --- stores of other software ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for layout in LAYOUTS for case in cases(layout)])
def test_the_nodes_of_stores_that_were_written(case: Case) -> None:
    entry = {Key("zarr.json"): case.values["zarr.json"]}
    further = PLUGIN.further_keys(NOWHERE, entry)
    layout = PLUGIN.open(NOWHERE, entry | {key: case.values[key] for key in further if key in case.values})
    assert layout is not None
    found: dict[str, Any] = {}
    pending = [ROOT]
    while pending:
        path = pending.pop()
        node = layout.parse(path, {key: case.values[key] for key in layout.document_keys(path) if key in case.values})
        if node is not None:
            found[path] = node
        if not isinstance(node, ArrayNode):
            names = layout.child_names(path, *below(layout.listing_prefix(path), case.values))
            pending += [path.child(name) for name in names]
    explicit = {node["path"] for node in case.nodes()} - {"/implicit", "/implicit/deep"}
    assert found.keys() - {"/", "/sub"} == explicit - {"/"}
    for node in case.nodes("array"):
        assert found[node["path"]].metadata.shape == tuple(node["shape"])
        assert found[node["path"]].metadata.chunk_grid.chunks == tuple(node["chunk_shape"])
        assert found[node["path"]].attributes == node.get("attributes", found[node["path"]].attributes)
