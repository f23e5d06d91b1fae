"""Names that views make beside real nodes, and folders whose root is an array."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.arrays import Example
from tests.support.length import unhurried
from tests.support.small_stores import array_document
from tests.support.stores import fill
from tests.support.trees import load, names, read, tree_over, walk
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.daemon.names_of_plugins import store_name
from zarrfs.errors import AcrossViews, NameInvalid, NoSuchEntry
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory

GROUP = b'{"zarr_format":2}'
ARRAY = Example((4,), (2,))


async def folder(tree: MountTree, path: str) -> Directory:
    found = await walk(tree, path)
    assert isinstance(found, Directory)
    return found


async def store_with(values: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    await fill(store, values)
    return store


@trio_test
async def test_an_array_beside_a_group_called_like_its_file() -> None:
    store = await store_with({".zgroup": GROUP, **ARRAY.values("a"), "a.npy/.zgroup": GROUP, **ARRAY.values("a.npy/inside")})
    async with tree_over(store) as tree:
        assert await names(tree, "npy") == {"a.npy", "a~1.npy"}
        assert (await load(tree, "npy/a~1.npy") == ARRAY.elements).all()
        assert await names(tree, "npy/a.npy") == {"inside.npy"}
        assert await names(tree, "chunks") == {".zgroup", "a", "a.npy"}


@trio_test
async def test_made_names_do_not_meet_each_other() -> None:
    other = Example((3,), (3,))
    store = await store_with({".zgroup": GROUP, **ARRAY.values("a"), "a.npy/.zgroup": GROUP, **other.values("a~1")})
    async with tree_over(store) as tree:
        assert await names(tree, "npy") == {"a.npy", "a~1.npy", "a~2.npy"}
        assert (await load(tree, "npy/a~1.npy") == other.elements).all()
        assert (await load(tree, "npy/a~2.npy") == ARRAY.elements).all()


@trio_test
async def test_a_bad_node_beside_a_group_called_like_its_reason() -> None:
    store = await store_with({".zgroup": GROUP, "a/.zarray": b"bad", "a.unsupported.txt/.zgroup": GROUP})
    async with tree_over(store) as tree:
        for view in ("chunks", "npy"):
            assert await names(tree, view) - {".zgroup"} == {"a.unsupported.txt", "a~1.unsupported.txt"}
            assert b"a/.zarray" in await read(tree, f"{view}/a~1.unsupported.txt")


@trio_test
async def test_a_group_called_like_a_document() -> None:
    group = b'{"zarr_format": 3, "node_type": "group"}'
    store = await store_with({"zarr.json": group, ".zattrs/zarr.json": group, ".zgroup/x/zarr.json": group})
    async with tree_over(store) as tree:
        listed = await names(tree, "chunks")
        assert ".zgroup" in listed
        assert (await (await walk(tree, "chunks/.zgroup")).attributes()).is_directory is False


@trio_test
async def test_an_array_whose_name_leaves_no_room_for_a_suffix() -> None:
    long = "a" * 254
    store = await store_with({".zgroup": GROUP, **ARRAY.values(long), f"{'b' * 250}/.zarray": b"bad"})
    async with tree_over(store) as tree:
        for view in ("npy", "chunks"):
            listed = await names(tree, view)
            assert all(len(os.fsencode(name)) <= 255 for name in listed)
        (made,) = [name for name in await names(tree, "npy") if name.endswith(".npy")]
        assert (await load(tree, f"npy/{made}") == ARRAY.elements).all()


@unhurried
@given(
    st.dictionaries(
        st.sampled_from(["a", "a~1", "a.npy", "b", "a~1.npy", "a~2.npy", "a.npy.npy", "a.unsupported.txt", "a~1.unsupported.txt"]),
        st.sampled_from(["group", "array", "bad"]),
        max_size=8,
    )
)
@trio_test
async def test_every_name_is_free(kinds: dict[str, str]) -> None:
    values = {".zgroup": GROUP}
    for name, kind in kinds.items():
        values |= {"group": {f"{name}/.zgroup": GROUP}, "array": ARRAY.values(name), "bad": {f"{name}/.zarray": b"bad"}}[kind]
    async with tree_over(await store_with(values)) as tree:
        for view, suffix in (("npy", ".npy"), ("chunks", "")):
            listed = [entry[0] async for entry in (await walk(tree, view)).entries()]
            assert len(set(listed)) == len(listed) == len(kinds) + (view == "chunks")
            for name, kind in kinds.items():
                assert kind == "bad" or (kind == "array" and suffix) or name in listed
            for name in listed:
                attributes = await (await walk(tree, f"{view}/{name}")).attributes()
                assert attributes.is_directory == (kinds.get(name) in ({"group"} if suffix else {"group", "array"}))


# --- where the root is an array ------------------------------------------------------------------------------------------------


def at_root(example: Example) -> dict[str, bytes]:
    return {key.removeprefix("x/"): value for key, value in example.values("x").items()}


@trio_test
async def test_a_root_array_is_named_after_the_store() -> None:
    async with tree_over(await store_with(at_root(ARRAY)), "/data/temperature.2m.zarr") as tree:
        assert await names(tree, "npy") == {"temperature.2m.npy"}
        assert (await load(tree, "npy/temperature.2m.npy") == ARRAY.elements).all()
        assert await names(tree, "chunks") == {".zarray", "0", "1"}
        assert (await (await walk(tree, "chunks")).attributes()).writable
        with pytest.raises(NoSuchEntry):
            await walk(tree, "npy/other.npy")


@trio_test
async def test_a_root_that_cannot_be_shown_tells_why() -> None:
    async with tree_over(await store_with({".zarray": '{"zarr_format": 2, "größe": }'.encode()}), "/data/x.zarr") as tree:
        for view in ("npy", "chunks"):
            assert await names(tree, view) == {"x.unsupported.txt"}
            assert b"not JSON" in await read(tree, f"{view}/x.unsupported.txt")
        assert await names(tree, "raw") == {".zarray"}


@trio_test
async def test_the_size_of_a_reason_is_in_bytes() -> None:
    document = array_document((4,), (2,), fill_value="ä")
    for values in ({".zarray": document}, {".zgroup": GROUP, "a/.zarray": document}):
        async with tree_over(await store_with(values)) as tree:
            for view in ("npy", "chunks"):
                (name,) = await names(tree, view) - {".zgroup"}
                assert "ä" in (await read(tree, f"{view}/{name}")).decode()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/data/x.zarr", "x"),
        ("/data/x.zarr/", "x"),
        ("/data/x.zarr.zip", "x"),
        ("/data/x.ZARR", "x"),
        ("/data/.zarr", ".zarr"),
        ("/data/x.2m", "x.2m"),
        ("/data/12:30?.zarr", "12:30?"),
        ("/data/12:30.zip|zip:12:30.zarr", "12:30"),
        ("/data/12:30.zarr|unsharded:", "12:30"),
        ("sqlite:/data/12:30.sqldb", "12:30"),
        ("s3://bucket/a/b.zarr?versionId=1", "b"),
        ("s3://bucket/x.zip|zip:inner/y.zarr", "y"),
        ("/data/x.zip|zip:", "x"),
        ("/data/x.zip|zip:inner/y/", "y"),
        ("sqlite:/data/x.sqldb", "x"),
        ("dbm:x.zarr.dbm", "x"),
        ("/data/x.lmdb", "x"),
        ("/data/x.ome.OZX", "x.ome"),
        ("memory:", "array"),
        ("/", "array"),
    ],
)
def test_the_name_of_a_store(url: str, name: str) -> None:
    assert store_name(url) == name


def test_a_file_with_the_name_of_layers_is_a_store_of_that_name(tmp_path: Path) -> None:
    assert store_name(str(tmp_path / "a|zip:b.zarr")) == "b"
    (tmp_path / "a|zip:b.zarr").mkdir()
    assert store_name(str(tmp_path / "a|zip:b.zarr")) == "a|zip:b"


# --- choice of views -----------------------------------------------------------------------------------------------------------


@trio_test
async def test_one_view_as_the_root() -> None:
    store = await store_with({".zgroup": GROUP, **ARRAY.values("a")})
    async with tree_over(store, view="npy") as tree:
        assert await names(tree) == {"a.npy"}
    async with tree_over(store, views="npy,raw") as tree:
        assert await names(tree) == {"npy", "raw", "README.txt"}


@trio_test
async def test_the_readme_names_every_view() -> None:
    async with tree_over(await store_with({".zgroup": GROUP})) as tree:
        readme = (await read(tree, "README.txt")).decode()
        for view in await names(tree) - {"README.txt"}:
            assert f"{view}/" in readme


@pytest.mark.parametrize("view", ["raw", "chunks", "zarr3", "npy"])
@pytest.mark.parametrize("other", ["raw", "chunks", "zarr3", "npy"])
@trio_test
async def test_a_folder_is_not_moved_into_itself_in_another_view(view: str, other: str) -> None:
    # On EXDEV, mv copies, and meets in its source what it has created in its target.
    if view == other:
        return
    store = await store_with({".zgroup": GROUP, "g/.zgroup": GROUP, "g/h/.zgroup": GROUP, "gg/.zgroup": GROUP})
    async with tree_over(store) as tree:
        source, root = await folder(tree, view), await folder(tree, "")
        for inside in ("g", "g/h"):
            with pytest.raises(NameInvalid, match="'g' cannot be moved into itself"):
                await source.rename("g", await folder(tree, f"{other}/{inside}"), "new")
        with pytest.raises(NameInvalid, match=f"'{view}' cannot be moved into itself"):
            await root.rename(view, await folder(tree, f"{other}/g"), "new")
        for elsewhere in ("gg", ""):
            with pytest.raises(AcrossViews):
                await source.rename("g", await folder(tree, f"{other}/{elsewhere}"), "new")
