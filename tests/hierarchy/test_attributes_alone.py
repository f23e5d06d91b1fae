"""Groups of v2 with attributes and without a document of their own: OME-Zarr by programs that write no ``.zgroup`` (tensorstore).

`.zattrs` alone is no node, but a group that gets its document keeps the attributes that lie there.
"""

from __future__ import annotations

import json

import pytest
from trio.testing import trio_test

from tests.hierarchy.test_edits import ARRAY, GROUP, editing
from tests.support.stores import contents
from tests.support.trees import tree_over, walk, write
from zarrfs.errors import MetadataError
from zarrfs.keys import Key, NodePath
from zarrfs.model.metadata import GroupNode
from zarrfs.stores.memory import MemoryStore

IMAGE = b'{"multiscales": [{"version": "0.4"}]}'


@pytest.mark.parametrize("where", ["", "g/"])
@trio_test
async def test_a_group_that_gets_its_document_keeps_the_attributes_that_are_there(where: str) -> None:
    async with editing({f"{where}.zattrs": IMAGE, f"{where}0/.zarray": ARRAY, "x/.zarray": ARRAY}) as e:
        await e.array(f"/{where}1")
        assert (await contents(e.store))[f"{where}.zattrs"] == IMAGE
        node = await e.reading.hierarchy.node(NodePath(f"/{where}".rstrip("/") or "/"))
        assert isinstance(node, GroupNode) and node.explicit and "multiscales" in node.attributes


@trio_test
async def test_the_attributes_stay_however_the_group_gets_its_document() -> None:
    values = {".zgroup": GROUP, "g/.zattrs": IMAGE, "g/0/.zarray": ARRAY, "x/.zarray": ARRAY}
    async with editing(values) as e:
        await e.group("/g")
        assert (await contents(e.store))["g/.zattrs"] == IMAGE
    async with editing(values) as e:
        await e.editor.rename(NodePath("/x"), NodePath("/g/x"))
        assert (await contents(e.store))["g/.zattrs"] == IMAGE
    store = MemoryStore()
    for key, value in values.items():
        await store.set(Key(key), value)
    async with tree_over(store, new_dialect="v2") as tree:
        await write(tree, "chunks/g/.zgroup", GROUP)
        assert (await contents(store))["g/.zattrs"] == IMAGE
        assert await walk(tree, "chunks/g/.zattrs")


@pytest.mark.parametrize("file", ["chunks/g/.zattrs", "zarr3/g/zarr.json"])
@trio_test
async def test_attributes_that_are_written_are_added_to_those_that_were_not_shown(file: str) -> None:
    store = MemoryStore()
    for key, value in {".zgroup": GROUP, "g/.zattrs": IMAGE, "g/0/.zarray": ARRAY}.items():
        await store.set(Key(key), value)
    written = {"n": 1} if file.endswith(".zattrs") else {"zarr_format": 3, "node_type": "group", "attributes": {"n": 1}}
    async with tree_over(store, new_dialect="v2") as tree:
        await write(tree, file, json.dumps(written).encode())
        assert json.loads((await contents(store))["g/.zattrs"]) == json.loads(IMAGE) | {"n": 1}
        # From then on they are shown, and a program that leaves them out removes them.
        await write(tree, file, json.dumps(written).encode())
        assert json.loads((await contents(store))["g/.zattrs"]) == {"n": 1}


@pytest.mark.parametrize("value", [b"", b"{", b"[]"])
@trio_test
async def test_attributes_that_cannot_be_read_are_neither_erased_nor_made_those_of_a_node(value: bytes) -> None:
    async with editing({".zgroup": GROUP, "g/.zattrs": value, "g/0/.zarray": ARRAY, "x/.zarray": ARRAY}) as e:
        before = await contents(e.store)
        with pytest.raises(MetadataError, match=r"g/\.zattrs"):
            await e.array("/g/1")
        with pytest.raises(MetadataError, match=r"g/\.zattrs"):
            await e.group("/g")
        with pytest.raises(MetadataError, match=r"g/\.zattrs"):
            await e.editor.rename(NodePath("/x"), NodePath("/g/x"))
        assert await contents(e.store) == before
        assert await e.kinds("/g") == {"0": "ArrayNode"}
