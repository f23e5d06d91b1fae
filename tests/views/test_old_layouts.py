"""Nodes of v0 and v1, which have no groups, created and changed through every view.

The stores are with and without empty folders, and are read by readers that share no code with zarrfs.
"""

from __future__ import annotations

import io
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support import reader_v0, reader_v1
from tests.support.length import tries
from tests.support.scenes import Scene
from tests.support.small_stores import write as write_store
from tests.support.stores import contents
from tests.support.trees import load, names, tree_over, write
from tests.support.zarr_python import store_of_kind
from zarrfs.errors import DirectoryNotEmpty, MetadataError, NoSuchEntry, NotRepresentable
from zarrfs.keys import NodePath

READERS: dict[str, Any] = {"v0": reader_v0, "v1": reader_v1}
KINDS = ("memory", "folder")
EVERYWHERE = pytest.mark.parametrize(("dialect", "kind"), list(itertools.product(READERS, KINDS)))
ARRAY = {
    "zarr_format": 2,
    "shape": [3],
    "chunks": [2],
    "dtype": "<i2",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}


@asynccontextmanager
async def empty(dialect: str, kind: str, folder: Path, **options: str) -> AsyncIterator[Scene]:
    async with store_of_kind(kind, folder, {}) as store, tree_over(store, new_dialect=dialect, **options) as tree:
        yield Scene(tree, store)


async def stored(scene: Scene, dialect: str) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Return elements and attributes of every array in the store, by path."""
    values = await contents(scene.store)
    document = {"v0": "__zmeta__", "v1": "meta"}[dialect]
    with tempfile.TemporaryDirectory() as name:
        folder = write_store(Path(name, "copy"), values) if values else Path(name)
        for each in folder.rglob(document):
            # The software creates this folder with the array; a store of keys has it only through its chunks.
            (each.parent / "__zdata__").mkdir(exist_ok=True) if dialect == "v0" else None
        return {
            each.parent.relative_to(folder).as_posix(): (
                READERS[dialect].read_array(each.parent).tolist(),
                READERS[dialect].read_attributes(each.parent),
            )
            for each in folder.rglob(document)
        }


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@EVERYWHERE
@trio_test
async def test_a_folder_is_a_group_as_long_as_its_user_wants(dialect: str, kind: str, tmp_path: Path) -> None:
    async with empty(dialect, kind, tmp_path) as s:
        await s.mkdir("a")
        await s.mkdir("a/b")
        assert await contents(s.store) == {}
        assert await names(s.tree, "npy/a") == {"b"} and "b" in await names(s.tree, "zarr3/a")
        await write(s.tree, "npy/a/b/x.npy", npy(np.arange(3)))
        assert await stored(s, dialect) == {"a/b/x": ([0, 1, 2], {})}
        with pytest.raises(DirectoryNotEmpty):
            await s.rmdir("a/b")
        await s.remove("a/b/x")
        # The folder was created explicitly, and not removed.
        assert await names(s.tree, "npy/a/b") == set()
        assert await contents(s.store) == {}
        await s.rmdir("a/b")
        with pytest.raises(NoSuchEntry):
            await s.folder("a/b")
        await s.rmdir("a")
        assert await names(s.tree, "npy") == set()


@EVERYWHERE
@trio_test
async def test_a_folder_becomes_an_array_in_whatever_order_its_files_come(dialect: str, kind: str, tmp_path: Path) -> None:
    chunk = np.array([5, 6], "<i2").tobytes()
    files: dict[str, Any] = {".zarray": ARRAY, ".zattrs": {"units": "m"}, "0": chunk}
    async with empty(dialect, kind, tmp_path) as s:
        expected = {}
        for number, order in enumerate(itertools.permutations(files)):
            await s.mkdir(f"a{number}")
            for name in order:
                await s.write(f"a{number}/{name}", files[name])
            expected[f"a{number}"] = ([5, 6, 0], {"units": "m"})
            assert await stored(s, dialect) == expected
        assert await s.tree.publish_all() == []


@EVERYWHERE
@trio_test
async def test_attributes_of_a_folder_wait_and_are_missed(dialect: str, kind: str, tmp_path: Path) -> None:
    async with empty(dialect, kind, tmp_path) as s:
        for name in "abc":
            await s.mkdir(name)
            await s.write(f"{name}/.zattrs", {"title": name})
            assert await s.json(f"{name}/.zattrs") == {"title": name}
        assert await contents(s.store) == {}
        await s.unlink("b/.zattrs")
        await s.remove("c")
        assert await s.tree.publish_all() == [("/a", "attributes lost: it did not become an array, and its dialect has no groups")]
        if kind == "folder":
            await s.rename("a", "d")
            assert await s.names() == {".zgroup", "b", "d"}
            await s.write("d/.zarray", ARRAY)
            assert await stored(s, dialect) == {"d": ([0, 0, 0], {"title": "a"})}


@EVERYWHERE
@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_a_group_with_members_has_no_attributes(dialect: str, kind: str, tmp_path: Path) -> None:
    async with empty(dialect, kind, tmp_path) as s:
        await s.mkdir("g")
        await write(s.tree, "npy/g/x.npy", npy(np.arange(3)))
        for path in ("g", ""):
            with pytest.raises(NotRepresentable, match="no groups"):
                await s.write(f"{path}/.zattrs".lstrip("/"), {"title": "g"})
        await s.write("g/.zattrs", b"{}")
        with pytest.raises(MetadataError):
            await write(s.tree, "zarr3/g/zarr.json", b'{"zarr_format": 3, "node_type": "group", "attributes": {"title": "g"}}')
        await write(s.tree, "zarr3/g/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
        assert await stored(s, dialect) == {"g/x": ([0, 1, 2], {})}


@EVERYWHERE
@trio_test
async def test_new_nodes_are_of_the_layout_that_is_nearest(dialect: str, kind: str, tmp_path: Path) -> None:
    """Even where others come first in the store, and the mount has another dialect for new stores."""
    other = "v1" if dialect == "v0" else "v0"
    async with empty(dialect, kind, tmp_path) as s:
        await s.mkdir("m")
        await write(s.tree, "npy/m/x.npy", npy(np.arange(3)))
        values = await contents(s.store)
        (tmp_path / "two").mkdir()
        async with store_of_kind(kind, tmp_path / "two", values) as store, tree_over(store, new_dialect=other) as tree:
            two = Scene(tree, store)
            await write(tree, "npy/m/y.npy", npy(np.arange(2)))
            await two.mkdir("m/deep")
            await write(tree, "npy/m/deep/z.npy", npy(np.arange(1)))
            assert set(await stored(two, dialect)) == {"m/x", "m/y", "m/deep/z"}


@EVERYWHERE
@trio_test
async def test_an_order_that_the_layout_lacks_is_no_reason_to_refuse(dialect: str, kind: str, tmp_path: Path) -> None:
    data = np.asfortranarray(np.arange(12).reshape(3, 4))
    async with empty(dialect, kind, tmp_path) as s:
        await write(s.tree, "npy/x.npy", npy(data))
        assert await stored(s, dialect) == {"x": (data.tolist(), {})}
        node = await s.tree.hierarchy.node(NodePath("/x"))
        codecs = [spec.name for spec in node.metadata.codecs]  # type: ignore[union-attr]
        assert codecs == (["bytes", "blosc"] if dialect == "v0" else ["transpose", "bytes", "blosc"])


@pytest.mark.parametrize("dtype", [[("a", "<i2"), ("b", ">f8")], "V3"])
@EVERYWHERE
@trio_test
async def test_an_array_of_a_type_without_zeros_is_copied_as_zarr_v3(dialect: str, kind: str, tmp_path: Path, dtype: Any) -> None:
    """These layouts have no fill value of such a type: it is undefined, and `zarr3/` shows zeros."""
    data = np.frombuffer(bytes(range(30)), dtype)
    async with empty(dialect, kind, tmp_path) as s:
        await write(s.tree, "npy/x.npy", npy(data))
        copied = Scene(s.tree, s.store, view="zarr3")
        document = await copied.read("x/zarr.json")
        await copied.mkdir("y")
        await copied.write("y/zarr.json", document)
        await copied.mkdir("y/c")
        await copied.write("y/c/0", await copied.read("x/c/0"))
        assert (await load(s.tree, "npy/y.npy")).tolist() == data.tolist()
        assert await copied.read("y/zarr.json") == document


LZMA = {"check": 0, "filters": None, "format": 1, "preset": 1}
RAW_LZMA = {"check": 0, "filters": [{"id": 3, "dist": 2}, {"id": 33, "preset": 1}], "format": 3, "preset": None}
DOCUMENTS = [
    *(
        ("v1", {"zarr_format": 1, "compression": name, "compression_opts": options, "order": order})
        for name, options in [
            ("blosc", {"clevel": 1, "cname": "zstd", "shuffle": 2}),
            ("blosc", {"clevel": 0, "cname": "blosclz", "shuffle": 0}),
            ("zlib", 9),
            ("bz2", 1),
            ("lzma", LZMA),
            ("lzma", RAW_LZMA),
            ("none", None),
            (None, None),
        ]
        for order in "CF"
    ),
    *(
        ("v0", {"cname": cname, "clevel": clevel, "shuffle": shuffle})
        for cname, clevel, shuffle in [("lz4", 0, 0), ("lz4hc", 9, 1), ("zlib", 1, 2), ("blosclz", 5, 1), ("zstd", 3, 2)]
    ),
]


@pytest.mark.parametrize(("dialect", "members"), DOCUMENTS)
@pytest.mark.parametrize("order", ["software", "text"])
@pytest.mark.logs("order is F")
@trio_test
async def test_chunks_are_written_by_the_codecs_of_their_array(
    dialect: str, members: dict[str, Any], order: str, tmp_path: Path
) -> None:
    """With every order, byte order and compressor; a second mount reads it again."""
    array = {"shape": [5, 7], "chunks": [2, 3], "dtype": ">u2", "fill_value": 9}
    document = json.dumps(array | members).encode()
    values = {"a/__zmeta__": document} if dialect == "v0" else {"a/meta": document, "a/attrs": b"{}"}
    data = np.arange(35, dtype="<u2").reshape(5, 7)
    choices = {"dialect_choices": f"v1.order={order}"}
    async with store_of_kind("memory", tmp_path, values) as store:
        async with tree_over(store, **choices) as tree:
            assert (await load(tree, "npy/a.npy")).tolist() == np.full((5, 7), 9).tolist()
            await write(tree, "npy/a.npy", npy(data))
            chunk = np.array([[1, 2, 3], [4, 5, 6]], "<u2")
            await write(tree, "chunks/a/1.1", chunk.tobytes())
        data[2:4, 3:6] = chunk
        folder = write_store(tmp_path / "copy", await contents(store)) / "a"
        how = {"order_as_text": order == "text"} if dialect == "v1" else {}
        assert READERS[dialect].read_array(folder, **how).tolist() == data.tolist()
        assert values.items() <= (await contents(store)).items()
        async with tree_over(store, **choices) as tree:
            assert (await load(tree, "npy/a.npy")).tolist() == data.tolist()


# --- any changes, compared with plain lists -----------------------------------------------------------------------------------------

STEPS = st.sampled_from(["mkdir", "array", "array", "elements", "chunk", "attributes", "resize", "rename", "remove"])


@tries(60)
@given(data=st.data(), dialect=st.sampled_from(sorted(READERS)), kind=st.sampled_from(KINDS))
def test_nodes_are_what_was_made_of_them(data: st.DataObject, dialect: str, kind: str) -> None:
    groups: set[str] = {""}
    arrays: dict[str, tuple[list[int], dict[str, Any]]] = {}

    def inside(group: str, name: str) -> str:
        return f"{group}/{name}".lstrip("/")

    def new_path() -> str | None:
        path = inside(data.draw(st.sampled_from(sorted(groups))), data.draw(st.sampled_from("ab")))
        return path if path not in groups and path not in arrays else None

    def numbers() -> list[int]:
        # Not shorter than a chunk, since otherwise the chunk would be shorter as well.
        return data.draw(st.lists(st.integers(-3, 3), min_size=2, max_size=5))

    async def step(s: Scene) -> None:
        match data.draw(STEPS):
            case "mkdir":
                if (path := new_path()) is not None:
                    await s.mkdir(path)
                    groups.add(path)
            case "array":
                if (path := new_path()) is not None:
                    values = numbers()
                    await write(s.tree, f"npy/{path}.npy", npy(np.array(values, "<i2")))
                    arrays[path] = values, {}
            case _ if not arrays:
                return
            case kind_of_change:
                path = data.draw(st.sampled_from(sorted(arrays)))
                await change(s, kind_of_change, path, *arrays[path])

    async def change(s: Scene, what: str, path: str, values: list[int], attributes: dict[str, Any]) -> None:
        match what:
            case "elements":
                after = numbers()
                await write(s.tree, f"npy/{path}.npy", npy(np.array(after, "<i2")))
                # An array of another length is a new array.
                arrays[path] = after, attributes if len(after) == len(values) else {}
            case "chunk":
                chunk = numbers()[:2]
                await s.write(f"{path}/0", np.array(chunk, "<i2").tobytes())
                arrays[path] = [*chunk[: len(values)], *values[2:]], attributes
            case "attributes":
                members = data.draw(st.dictionaries(st.sampled_from("xyz"), st.integers() | st.text(max_size=2) | st.none()))
                await s.write(f"{path}/.zattrs", members)
                arrays[path] = values, members
            case "resize":
                # Elements cut off in the middle of a chunk stay stored, as with every Zarr library.
                length = data.draw(st.sampled_from([2, 4, 6]))
                await s.resized(path, [length])
                arrays[path] = [*values[:length], *[0] * (length - len(values))], attributes
            case "rename":
                new = new_path()
                if new is not None and kind == "folder":
                    await s.rename(path, new)
                    arrays[new] = arrays.pop(path)
            case "remove":
                group = path.rpartition("/")[0]
                await s.remove(path)
                del arrays[path]
                if group and data.draw(st.booleans()) and not any(each.startswith(f"{group}/") for each in (*arrays, *groups)):
                    await s.rmdir(group)
                    groups.discard(group)

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with empty(dialect, kind, Path(folder), new_chunks="2", resize_erases="true") as s:
                for _ in range(data.draw(st.integers(1, 12))):
                    await step(s)
                    assert await stored(s, dialect) == arrays
                    for group in groups:
                        here = {each.removesuffix(".npy") for each in await names(s.tree, f"npy/{group}".rstrip("/"))}
                        assert here == {
                            each.rpartition("/")[2] for each in (*arrays, *groups - {""}) if each.rpartition("/")[0] == group
                        }
                for path, (values, _) in arrays.items():
                    assert (await load(s.tree, f"npy/{path}.npy")).tolist() == values
                assert await s.tree.publish_all() == []

    trio.run(main)
