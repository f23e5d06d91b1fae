"""Files that have the name of a document, and are none of any layout: damaged entry points, documents of later versions, other files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from trio.testing import trio_test

from tests.hierarchy.test_edits import editing
from tests.support.small_stores import array_document
from tests.support.stores import contents
from tests.support.v3_array import ARRAY
from zarrfs.dialects.base import Edit
from zarrfs.errors import EntryExists, HiddenKeys, MetadataError
from zarrfs.keys import Key, NodePath
from zarrfs.model import chunk_key

FOREIGN = [
    b"{}",
    b'{"zarr_format": 4}',
    b'{"zarr_format": "3", "attributes": {"a": 1}}',
    b'{"zarr_format": "https://example.org/x/3.0", "metadata_encoding": "application/json", "extensions": []}',
]


@pytest.mark.parametrize("value", FOREIGN)
@pytest.mark.parametrize("where", ["", "g/"])
@trio_test
async def test_a_zarr_json_of_no_layout_is_not_replaced_by_the_document_of_a_group(where: str, value: bytes) -> None:
    values = {f"{where}zarr.json": value, f"{where}h/x": b""}
    async with editing(values) as e:
        group = f"/{where}".rstrip("/")
        before = await contents(e.store)
        for path in (f"{group}/a", f"{group}/h/a"):
            with pytest.raises(MetadataError, match=f"{where}zarr.json: not a document of v3, and not replaced by one"):
                await e.array(path)
            with pytest.raises(MetadataError, match="not replaced"):
                await e.group(path)
        with pytest.raises(MetadataError, match="not replaced"):
            await e.editor.check_creatable(NodePath(f"{group}/a"))
        with pytest.raises(MetadataError, match="not replaced"):
            await e.editor.amend(NodePath(group or "/"), Edit(attributes={"new": 1}))
        assert await contents(e.store) == before


@pytest.mark.parametrize("value", FOREIGN)
@trio_test
async def test_a_zarr_json_of_no_layout_is_not_replaced_by_the_document_of_an_array(value: bytes) -> None:
    # What has the name of a chunk may be one of that document.
    async with editing({"g/zarr.json": value, "g/c/0": b"a chunk"}) as e:
        node = await e.node("/g")
        await e.array("/a")
        before = await contents(e.store)
        with pytest.raises(MetadataError, match="not replaced"):
            await e.editor.create(node)
        with pytest.raises(MetadataError, match="not replaced"):
            await e.editor.turn_into_array(node)
        with pytest.raises(EntryExists):
            await e.editor.rename(NodePath("/a"), NodePath("/g"))
        assert await contents(e.store) == before


@pytest.mark.parametrize("where", ["", "g/"])
@trio_test
async def test_what_lies_below_it_is_removed_all_the_same(where: str) -> None:
    values = {f"{where}zarr.json": FOREIGN[0], "g/h/a/zarr.json": json.dumps(ARRAY).encode()}
    async with editing(values) as e:
        await e.editor.erase(NodePath("/g/h/a"))
        assert await contents(e.store) == {f"{where}zarr.json": FOREIGN[0]}


@pytest.mark.parametrize("value", FOREIGN)
@pytest.mark.parametrize("document", [".zgroup", ".zarray"])
@trio_test
async def test_what_has_it_in_its_folder_is_not_empty(document: str, value: bytes) -> None:
    own = b'{"zarr_format": 2}' if document == ".zgroup" else array_document((2,), (1,))
    async with editing({"g/zarr.json": value, f"g/{document}": own}) as e:
        before = await contents(e.store)
        with pytest.raises(HiddenKeys, match=r"holds 'zarr\.json'"):
            await e.editor.erase(NodePath("/g"), only_empty=True)
        assert await contents(e.store) == before


@trio_test
async def test_nodes_of_a_layout_with_other_documents_are_made_beside_it() -> None:
    async with editing({"zarr.json": FOREIGN[0], "g/zarr.json": FOREIGN[1]}, new="v2") as e:
        await e.array("/g/a")
        assert await e.keys() == {"zarr.json", "g/zarr.json", ".zgroup", "g/.zgroup", "g/a/.zarray"}


@pytest.mark.parametrize("value", [b"notes", b'{"title": "notes"}'])
@trio_test
async def test_a_file_called_meta_is_not_replaced_by_the_document_of_v1(value: bytes) -> None:
    async with editing({"a/meta": value}, new="v1") as e:
        node = await e.node("/a")
        node = replace(node, metadata=replace(node.metadata, chunk_key_encoding=chunk_key.v2(".")))
        with pytest.raises(MetadataError, match="a/meta: not a document of v1, and not replaced by one"):
            await e.editor.create(node)
        assert await contents(e.store) == {"a/meta": value}


@pytest.mark.parametrize("value", FOREIGN)
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
@trio_test
async def test_no_node_is_made_in_a_hierarchy_whose_entry_point_would_be_another_file(dialect: str, value: bytes) -> None:
    async with editing({"zarr.json": value}, new=dialect) as e:
        for path in ("/g", "/g/h"):
            with pytest.raises(MetadataError, match=f"zarr.json: not a document of {dialect}, and not replaced by one"):
                await e.group(path)
            with pytest.raises(MetadataError, match="not replaced"):
                await e.editor.check_creatable(NodePath(path))
        assert await contents(e.store) == {"zarr.json": value}
    async with editing(new=dialect) as e:
        await e.group("/g")
        await e.group("/g/h")
        assert await e.kinds("/g") == {"h": "GroupNode"}


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@pytest.mark.parametrize("name", ["attrs", "meta", "zarr.json"])
@trio_test
async def test_a_file_with_the_name_of_a_document_of_another_layout_is_not_erased_with_a_node(dialect: str, name: str) -> None:
    async with editing(new=dialect) as e:
        await e.group("/g")
        await e.array("/a")
        kept = {}
        for path in ("g", "a"):
            if f"{path}/{name}" not in await e.keys():
                kept[f"{path}/{name}"] = b'{"title": "notes"}'
        for key, value in kept.items():
            await e.store.set(Key(key), value)
        before = await contents(e.store)
        for key in kept:
            with pytest.raises(HiddenKeys, match=f"holds '{name}'"):
                await e.editor.erase(NodePath(f"/{key[0]}"), only_empty=True)
        assert await contents(e.store) == before


@trio_test
async def test_both_documents_of_an_array_of_v1_are_erased_with_it() -> None:
    async with editing(new="v1") as e:
        node = await e.node("/a")
        await e.editor.create(replace(node, metadata=replace(node.metadata, chunk_key_encoding=chunk_key.v2("."))))
        assert await e.keys() == {"a/meta", "a/attrs"}
        await e.editor.erase(NodePath("/a"), only_empty=True)
        assert not await e.keys()


@pytest.mark.parametrize("value", [b"notes", b'{"title": "notes"}'])
@trio_test
async def test_files_called_meta_and_attrs_beside_an_array_at_the_root_stay(value: bytes) -> None:
    async with editing({".zarray": array_document((2,), (1,)), "0": bytes(4), "meta": value, "attrs": value}) as e:
        await e.editor.erase(NodePath("/"))
        assert await e.keys() == {"meta", "attrs"}
