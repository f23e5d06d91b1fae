"""Views cache only some of very many arrays; their content is the same."""

from __future__ import annotations

import json

import pytest
from trio.testing import trio_test

from tests.support.arrays import Example, store_of
from tests.support.small_stores import array_document
from tests.support.trees import load, names, read, tree_over, walk, write
from zarrfs.errors import (
    AcrossViews,
    ContentInvalid,
    DirectoryNotEmpty,
    IsADirectory,
    NotADirectory,
    NotPermitted,
    OperationUnsupported,
)
from zarrfs.keys import Key
from zarrfs.vfs.node import Directory, File, OpenFlags
from zarrfs.views import extended_attributes, zarr3_array
from zarrfs.views.extended_attributes import NodeAttributes
from zarrfs.views.nodes import mount_only

NEW = OpenFlags(read=False, write=True, truncate=True)
MANY = [Example((extent,), (2,)) for extent in range(2, 8)]


@pytest.mark.parametrize(
    "limits", [{"_REMEMBERED": 2}, {"_LARGE_NBYTES": 1, "_REMEMBERED_NBYTES": 1}], ids=["by number", "by size"]
)
@trio_test
async def test_an_array_that_was_forgotten_is_shown_as_before(limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(zarr3_array, name, limit)
    store = await store_of(*MANY)
    # Its chunk grid is written out, which takes memory.
    for name, example in zip("abcdef", MANY, strict=True):
        await store.set(Key(f"{name}/.zattrs"), json.dumps({"extent": example.shape[0]}).encode())
    async with tree_over(store) as tree:
        for _ in range(2):
            for name, example in zip("abcdef", MANY, strict=True):
                document = json.loads(await read(tree, f"zarr3/{name}/zarr.json"))
                assert document["shape"] == list(example.shape) and document["attributes"] == {"extent": example.shape[0]}
                assert await read(tree, f"zarr3/{name}/c/0") == example.elements[:2].tobytes()
        assert len(await names(tree, "zarr3")) == len(MANY) + 1
        await write(tree, "zarr3/a/c/0", b"\5\0\6\0")
        assert (await load(tree, "npy/a.npy")).tolist() == [5, 6]


@trio_test
async def test_the_attributes_of_few_nodes_are_remembered_and_those_of_all_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extended_attributes, "_REMEMBERED", 2)
    store = await store_of(*MANY)
    async with tree_over(store) as tree:
        for _ in range(2):
            for name, example in zip("abcdef", MANY, strict=True):
                told = await (await walk(tree, f"npy/{name}.npy")).extended_attributes()
                folder = await walk(tree, "npy")
                assert isinstance(folder, Directory)
                listed = await folder.extended_attributes_of(f"{name}.npy")
                assert (
                    listed is not None
                    and listed.values["user.zarr.shape"] == json.dumps(list(example.shape)).replace(" ", "").encode()
                )
                assert told is None or told == listed
    assert NodeAttributes().of(None) is extended_attributes.BECOMING


@trio_test
async def test_few_folders_of_removed_chunks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_only, "_REMOVED", 5)
    async with tree_over(await store_of(Example((20, 2), (1, 2)))) as tree:
        document = await read(tree, "zarr3/a/zarr.json")
        folder = await walk(tree, "zarr3")
        assert isinstance(folder, Directory)
        await folder.mkdir("n")
        await write(tree, "zarr3/n/zarr.json", document)
        for number in range(20):
            await write(tree, f"chunks/n/{number}.0", b"\1\0\2\0")
            inner = await walk(tree, f"zarr3/n/c/{number}")
            assert isinstance(inner, Directory)
            await inner.unlink("0")
        assert len(await names(tree, "zarr3/n/c")) == 4
        around = await walk(tree, "zarr3/n/c")
        assert isinstance(around, Directory)
        # A program's own folder is not one of them.
        await around.mkdir("19")
        assert len(await names(tree, "zarr3/n/c")) == 5


@pytest.mark.logs("write failed, data lost")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chunk_key_encoding": {"name": "v2"}}, "chunk keys of v2 arrays have the form 'default' with '/'"),
        ({"data_type": "bfloat16"}, "v2"),
        ({"dimension_names": ["x"], "attributes": {"_ARRAY_DIMENSIONS": ["y"]}}, "has dimension names only in the attribute"),
    ],
    ids=["keys", "type", "names"],
)
@trio_test
async def test_an_array_that_the_stores_dialect_has_no_words_for_is_not_made(changes: dict[str, object], reason: str) -> None:
    store = await store_of(Example((4,), (2,)))
    await store.set(Key("other/.zarray"), array_document((4,), (2,), "<i2"))
    async with tree_over(store) as tree:
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
        folder = await walk(tree, "zarr3")
        assert isinstance(folder, Directory)
        await folder.mkdir("n")
        with pytest.raises(ContentInvalid, match=reason):
            await write(tree, "zarr3/n/zarr.json", json.dumps(document | changes).encode())
        assert await store.get(Key("n/.zarray")) is None
        await write(tree, "zarr3/n/zarr.json", json.dumps(document).encode())
        assert json.loads(await read(tree, "zarr3/n/zarr.json")) == document


# --- the folder of views --------------------------------------------------------------------------------------------------------------


@trio_test
async def test_the_views_are_there_and_nothing_else_can_be() -> None:
    async with tree_over(await store_of(Example((4,), (2,)))) as tree:
        root = tree.root
        for refused in (root.create("k", NEW), root.mkdir("k"), root.unlink("README.txt")):
            with pytest.raises(NotPermitted):
                await refused
        with pytest.raises(DirectoryNotEmpty, match="raw/ is not empty"):
            await root.rmdir("raw")
        with pytest.raises(IsADirectory, match="'raw' is a folder"):
            await root.unlink("raw")
        with pytest.raises(NotADirectory, match=r"'README\.txt' is a file"):
            await root.rmdir("README.txt")
        with pytest.raises(AcrossViews, match="'raw' cannot be renamed in one step"):
            await root.rename("raw", root, "other")
        readme = await root.lookup("README.txt")
        assert isinstance(readme, File)
        with pytest.raises(OperationUnsupported, match="'other' cannot be another name for it"):
            await root.link(readme, "other")
        with pytest.raises(NotPermitted, match=r"README\.txt cannot be changed"):
            await readme.truncate(0)
        # Setting times is permitted, so that programs that copy whole trees continue.
        await readme.set_mtime(5)
        await root.set_mtime(5)
        assert isinstance(await root.listed_file("README.txt"), File)
        assert await root.extended_attributes_of("README.txt") is None
        await root.sync()
