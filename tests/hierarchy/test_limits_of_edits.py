"""An edit makes no document that zarrfs itself could not read again: neither a consolidated copy, nor one that is indented."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trio.testing import trio_test

from tests.support.stores import contents, fill
from tests.support.trees import folder_at, names, tree_over, write
from tests.views.test_attributes import EVERY_LAYOUT, store_of
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.dialects import json_text
from zarrfs.dialects.base import Dialect
from zarrfs.dialects.documents import dump
from zarrfs.errors import ContentInvalid, MetadataError, NotRepresentable
from zarrfs.hierarchy import consolidated as module_of_copies
from zarrfs.stores.memory import MemoryStore

ARRAY_V3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [1],
    "data_type": "int8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": ["bytes"],
    "attributes": {},
}
ARRAY_V2 = {
    "zarr_format": 2,
    "shape": [1],
    "chunks": [1],
    "dtype": "|i1",
    "fill_value": 0,
    "order": "C",
    "filters": None,
    "compressor": None,
}
GROUP_V2 = {"zarr_format": 2}
COPY_V3 = {"kind": "inline", "must_understand": False, "metadata": {"a": ARRAY_V3, "b": ARRAY_V3}}
STORES: dict[str, dict[str, Any]] = {
    "v3": {
        "zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": COPY_V3},
        "a/zarr.json": ARRAY_V3,
        "b/zarr.json": ARRAY_V3,
    },
    "v2": {
        ".zgroup": GROUP_V2,
        "a/.zarray": ARRAY_V2,
        "b/.zarray": ARRAY_V2,
        ".zmetadata": {
            "zarr_consolidated_format": 1,
            "metadata": {".zgroup": GROUP_V2, "a/.zarray": ARRAY_V2, "b/.zarray": ARRAY_V2},
        },
    },
}
COPIES = {"v3": "zarr.json", "v2": ".zmetadata"}
REASONS = {
    "depth": "nested deeper than 64 levels",
    "size": "bytes exceeds the limit of 4000 bytes",
    "values": "more than 60000 values in one document",
}


def attributes(what: str) -> bytes:
    if what == "size":
        return json.dumps({"text": "x" * 2500}).encode()
    return b'{"x":' * 63 + b"1" + b"}" * 63 if what == "depth" else json.dumps({"list": [0] * 40_000}).encode()


def limited(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "size":
        for module in (json_text, module_of_copies):
            monkeypatch.setattr(module, "MAX_NBYTES", 4000)
    if what == "values":
        for module in (json_text, module_of_copies):
            monkeypatch.setattr(module, "MAX_VALUES", 60_000)


async def consolidated(layout: str) -> MemoryStore:
    store = MemoryStore()
    await fill(store, {key: json.dumps(value).encode() for key, value in STORES[layout].items()})
    return store


@pytest.mark.logs("outdated")
@pytest.mark.parametrize("what", REASONS)
@pytest.mark.parametrize("layout", STORES)
@trio_test
async def test_a_copy_that_the_edit_would_make_unreadable_stays(
    layout: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In final v3 the whole store was unreadable after attributes were written that are legal for their array."""
    store, copy = await consolidated(layout), COPIES[layout]
    limited(what, monkeypatch)
    async with tree_over(store) as tree:
        for name in "ab":
            before = (await contents(store))[copy]
            await write(tree, f"chunks/{name}/.zattrs", attributes(what))
    assert (await contents(store))[copy] == before
    (logged,) = [each.getMessage() for each in caplog.records if "outdated" in each.message]
    assert logged.startswith(f"{copy}: consolidated copy outdated from here on, as it is unreadable with this change (")
    assert REASONS[what] in logged
    async with tree_over(store) as tree:
        assert {"a", "b"} <= await names(tree, "chunks")
        # Smaller ones: the copy follows again.
        await write(tree, "chunks/b/.zattrs", b'{"small": 5}')
        await write(tree, "chunks/a/.zattrs", b'{"small": 6}')
    assert (await contents(store))[copy].count(b'"small"') == 2


@pytest.mark.logs("could not be read again")
@trio_test
async def test_a_new_copy_that_would_be_unreadable_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    documents = {key: json.dumps(value).encode() for key, value in STORES["v3"].items()}
    documents["zarr.json"] = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    documents["a/zarr.json"] = json.dumps(ARRAY_V3 | {"attributes": {"text": "x" * 3600}}).encode()
    await fill(store, documents)
    limited("size", monkeypatch)
    async with tree_over(store) as tree:
        await write(tree, "chunks/.zmetadata", json.dumps({"metadata": {}, "zarr_consolidated_format": 1}).encode())
    assert (await contents(store))["zarr.json"] == documents["zarr.json"]


@EVERY_LAYOUT
@trio_test
async def test_nested_lists_are_not_indented_to_many_times_their_size(dialect: Dialect) -> None:
    """Of 190 kB of attributes, v0 and v2 made 22 MB, which is above the limit of a document."""
    store = await store_of(dialect, {})
    member = b"[" * 50 + b",".join([b"0"] * 1900) + b"]" * 50
    text = b"{" + b",".join(b'"%d": ' % number + member for number in range(45)) + b"}"
    async with tree_over(store) as tree:
        await write(tree, "chunks/a/.zattrs", text)
    assert sum(map(len, (await contents(store)).values())) < 3 * len(text)
    async with tree_over(store) as tree:
        assert "a" in await names(tree, "chunks")


def test_a_long_text_keeps_its_indentation_where_that_is_short() -> None:
    text = {"names": ["a long name of a station" * 3] * 20_000}
    assert dump(text, indent=4).startswith(b'{\n    "names": [\n        "a long')
    assert json.loads(dump({"deep": [[[[0.5] * 90_000]]]}, indent=4)) == {"deep": [[[[0.5] * 90_000]]]}


@pytest.mark.logs("could not be read again")
@trio_test
async def test_a_document_of_the_node_itself_that_would_be_unreadable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await consolidated("v2")
    before = await contents(store)
    limited("size", monkeypatch)
    async with tree_over(store) as tree:
        # Six characters for each of two bytes.
        with pytest.raises((ContentInvalid, MetadataError), match=r"a/\.zattrs: could not be read again: document of"):
            await write(tree, "chunks/a/.zattrs", json.dumps({"text": "é" * 1500}, ensure_ascii=False).encode())
    assert await contents(store) == before


@pytest.mark.logs("could not be read again")
@pytest.mark.parametrize("document", [".zgroup", ".zarray"])
@pytest.mark.parametrize("dialect", ["v3", "v3_2019", "v3_2022"])
@trio_test
async def test_a_new_node_does_not_get_attributes_with_which_its_document_is_unreadable(dialect: str, document: str) -> None:
    """In a ``.zattrs`` they are a level higher. The group was stored, and seen no more."""
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        await (await folder_at(tree, "chunks")).mkdir("g")
        with pytest.raises(NotRepresentable, match="could not be read again: nested deeper than 64 levels"):
            await write(tree, "chunks/g/.zattrs", b'{"x":' * 64 + b"1" + b"}" * 64)
        await write(tree, f"chunks/g/{document}", json.dumps(GROUP_V2 if document == ".zgroup" else ARRAY_V2).encode())
        await write(tree, "chunks/g/.zattrs", b'{"x":' * 63 + b"1" + b"}" * 63)
    async with tree_over(store) as tree:
        assert document in await names(tree, "chunks/g")


async def _make_group(tree: MountTree, name: str) -> None:
    await (await folder_at(tree, "chunks")).mkdir(name)
    await write(tree, f"chunks/{name}/.zgroup", b'{"zarr_format": 2}')


@pytest.mark.logs("outdated")
@pytest.mark.parametrize("layout", STORES)
@trio_test
async def test_a_copy_that_would_have_too_many_members_stays(
    layout: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, copy = await consolidated(layout), COPIES[layout]
    async with tree_over(store) as tree:
        # Documents of this length are measured.
        await write(tree, "chunks/a/.zattrs", json.dumps({"text": "x" * 70_000}).encode())
        await _make_group(tree, "d")
        before = (await contents(store))[copy]
        assert b'"d' in before
        document = json.loads(before)
        members = document["metadata"] if layout == "v2" else document["consolidated_metadata"]["metadata"]
        for module in (json_text, module_of_copies):
            monkeypatch.setattr(module, "MAX_MEMBERS", len(members))
        await _make_group(tree, "e")
    assert (await contents(store))[copy] == before
    (logged,) = [each.getMessage() for each in caplog.records if "outdated" in each.message]
    assert f"more than {len(members)} members in one object" in logged
