"""A hierarchy of the draft of 2019 changed through ``chunks/``, ``npy/`` and ``zarr3/``.

An independent reader, which shares no code with zarrfs, reads the store.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support import reader_v3_2019 as reader
from tests.support.cases import cases
from tests.support.comparing import tree_below
from tests.support.stores import FailingStore, contents, fill
from tests.support.trees import folder_at, load, names, read, tree_of, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ContentInvalid, NameInvalid, NoSuchEntry, NotPermitted, StoreFull
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File

HIERARCHY = next(case for case in cases("v3_2019") if case.name.endswith("/hierarchy"))
SEED = next(case for case in cases("v3_2019") if case.name.endswith("/seed_forms"))
PREFIXES = pytest.mark.parametrize("inside", ["", "sub/h"])


def npy(elements: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, elements)
    return file.getvalue()


@asynccontextmanager
async def scene(folder: Path, inside: str, case: Any = HIERARCHY, **options: Any) -> AsyncIterator[tuple[MountTree, str, Path]]:
    """Yield the tree of a copy of a case, at the root of a store or below; the prefix of names in its views; and its folder."""
    store = folder / "store"
    shutil.copytree(case.path, store / inside)
    async with tree_of(store, **options) as tree:
        yield tree, f"/{inside}" if inside else "", store / inside


@PREFIXES
@trio_test
async def test_attributes_change_one_member_of_one_document(inside: str, tmp_path: Path) -> None:
    async with scene(tmp_path, inside) as (tree, at, folder):
        before = tree_below(folder)
        changed = {"foo/bar": "meta/root/foo/bar.array", "foo": "meta/root/foo.group", "": "meta/root.group"}
        for name, key in changed.items():
            place = f"chunks{at}/{name}".rstrip("/")
            await write(tree, f"{place}/.zattrs", json.dumps({"of": name}).encode())
            document = json.loads(before.pop(key))
            assert json.loads((folder / key).read_bytes()) == {**document, "attributes": {"of": name}}
            assert json.loads(await read(tree, f"{place}/.zattrs")) == {"of": name}
        await write(tree, f"chunks{at}/implicit/grp/.zattrs", b'{"said": 1}')
        assert reader.nodes(folder)["/implicit/grp"].attributes == {"said": 1}
        after = tree_below(folder)
        assert {key: after[key] for key in before} == before
        assert set(after) == {*before, *changed.values(), "meta/root/implicit/grp.group"}


@PREFIXES
@trio_test
async def test_chunks_are_written_as_the_array_has_them(inside: str, tmp_path: Path) -> None:
    async with scene(tmp_path, inside) as (tree, at, folder):
        before = reader.nodes(folder)
        for path in ("/foo/bar", "/foo/nocomp", "/foo/nullfill", "/implicit/grp/baz"):
            document = before[path].document
            assert document is not None
            coords = "1.1" if len(document["shape"]) == 2 else "1"
            elements = np.arange(
                np.prod(document["chunk_grid"]["chunk_shape"]), dtype=np.dtype(document["data_type"]).newbyteorder("<")
            )
            await write(tree, f"chunks{at}{path}/{coords}", elements.tobytes())
            assert coords in await names(tree, f"chunks{at}{path}")
            after = reader.nodes(folder)[path]
            assert coords in after.stored
            assert after.elements is not None
            assert await load(tree, f"npy{at}{path}.npy") == pytest.approx(after.elements)
            corner = tuple(slice(c, 2 * c) for c in document["chunk_grid"]["chunk_shape"])
            shown = elements.reshape(document["chunk_grid"]["chunk_shape"])
            inside_ = after.elements[corner]
            assert (inside_ == shown[tuple(slice(0, n) for n in inside_.shape)]).all()
        bar = await folder_at(tree, f"chunks{at}/foo/bar")
        await bar.unlink("1.1")
        assert reader.nodes(folder)["/foo/bar"].stored == before["/foo/bar"].stored


@pytest.mark.logs("read as its fallback")
@trio_test
async def test_separators_and_layouts_are_kept(tmp_path: Path) -> None:
    async with scene(tmp_path, "", SEED) as (tree, _, folder):
        for name in ("sep", "F", "a"):
            elements = await load(tree, f"npy/g/{name}.npy")
            elements[1:4, 1:3] = 9
            await write(tree, f"npy/g/{name}.npy", npy(elements))
            node = reader.nodes(folder)[f"/g/{name}"]
            assert node.elements is not None
            assert node.elements.tobytes() == elements.astype(node.elements.dtype).tobytes()
        elements = await load(tree, "npy/imp/dt.npy")
        await write(tree, "npy/imp/dt.npy", npy(elements[::-1].copy()))
        node = reader.nodes(folder)["/imp/dt"]
        assert node.elements is not None
        assert (node.elements == elements[::-1]).all()


@PREFIXES
@trio_test
async def test_arrays_and_groups_are_made_and_erased(inside: str, tmp_path: Path) -> None:
    async with scene(tmp_path, inside) as (tree, at, folder):
        before = tree_below(folder)
        elements = np.arange(60, dtype="<f4").reshape(6, 10)
        await (await folder_at(tree, f"npy{at}/foo")).mkdir("made")
        await write(tree, f"npy{at}/foo/made/x.npy", npy(elements))
        await write(tree, f"npy{at}/y.npy", npy(elements.astype("<i8").T))
        await write(tree, f"npy{at}/s.npy", npy(np.array(5, "<u2")))
        await write(tree, f"npy{at}/times.npy", npy(np.array(["2020-01-01", "NaT"], "<M8[s]")))
        await write(tree, f"npy{at}/z.npy", npy(np.array([1 + 2j, 3], "<c16")))
        made = reader.nodes(folder)
        assert made["/foo/made"].kind == "group"
        assert (made["/foo/made/x"].elements == elements).all()
        assert (made["/y"].elements == elements.T).all()
        assert (made["/s"].elements, made["/s"].stored) == (5, ("",))
        assert made["/times"].elements is not None and made["/times"].elements.dtype == "<M8[s]"
        assert (made["/z"].elements == [1 + 2j, 3]).all()
        document = made["/foo/made/x"].document
        assert document is not None
        assert document["compressor"] == {"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"level": 5}}
        assert document["data_type"] == "<f4"
        for path, elements_ in (("foo/made/x", elements), ("s", np.array(5, "<u2"))):
            assert (await load(tree, f"npy{at}/{path}.npy") == elements_).all()
        assert await names(tree, f"chunks{at}/s") == {".zarray", "0"}
        assert await read(tree, f"chunks{at}/s/0") == b"\5\0"
        for name in ("y.npy", "s.npy", "times.npy", "z.npy"):
            await (await folder_at(tree, f"npy{at}")).unlink(name)
        await (await folder_at(tree, f"npy{at}/foo/made")).unlink("x.npy")
        await (await folder_at(tree, f"npy{at}/foo")).rmdir("made")
        assert tree_below(folder) == before


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_types_that_the_draft_lacks_are_refused(tmp_path: Path) -> None:
    async with scene(tmp_path, "") as (tree, _, folder):
        before = tree_below(folder)
        with pytest.raises(ContentInvalid, match="no data type fixed_length_utf32"):
            await write(tree, "npy/text.npy", npy(np.array(["a", "b"])))
        assert tree_below(folder) == before


@pytest.mark.logs("case only")
@trio_test
async def test_names_are_those_of_the_text(tmp_path: Path) -> None:
    async with scene(tmp_path, "") as (tree, _, folder):
        before = tree_below(folder)
        for view in ("chunks", "npy"):
            with pytest.raises(NameInvalid):
                await (await folder_at(tree, view)).mkdir("a b")
        with pytest.raises(Exception, match="case only"):
            await (await folder_at(tree, "chunks")).mkdir("FOO")
        with pytest.raises(Exception, match="case only"):
            await write(tree, "npy/foo/BAR.npy", npy(np.arange(3)))
        assert tree_below(folder) == before


@PREFIXES
@trio_test
async def test_an_array_is_replaced(inside: str, tmp_path: Path) -> None:
    async with scene(tmp_path, inside) as (tree, at, folder):
        elements = np.arange(7, dtype="<i2")
        await write(tree, f"npy{at}/foo/bar.npy", npy(elements))
        node = reader.nodes(folder)["/foo/bar"]
        assert (node.elements == elements).all()
        assert node.document is not None and node.document["data_type"] == "<i2"
        assert sorted(path.name for path in (folder / "data/foo/bar").iterdir()) == ["0"]


@PREFIXES
@trio_test
async def test_a_node_is_renamed_with_every_byte_of_it(inside: str, tmp_path: Path) -> None:
    async with scene(tmp_path, inside) as (tree, at, folder):
        before = tree_below(folder)

        def renamed(old: str, new: str) -> dict[str, bytes]:
            """Return the expected values after a rename."""
            ends = {f"meta/root/{old}{end}": f"meta/root/{new}{end}" for end in (".array", ".group", "/")}
            ends |= {f"data/{old}/": f"data/{new}/"}
            found = {}
            for key, value in before.items():
                place = next((place for place in ends if key == place or (place.endswith("/") and key.startswith(place))), None)
                found[key if place is None else ends[place] + key[len(place) :]] = value
            return found

        chunks, arrays = await folder_at(tree, f"chunks{at}"), await folder_at(tree, f"npy{at}/foo")
        await chunks.rename("foo", chunks, "moved")
        assert tree_below(folder) == renamed("foo", "moved")
        await chunks.rename("moved", chunks, "foo")
        assert tree_below(folder) == before
        await arrays.rename("bar.npy", arrays, "moved.npy")
        assert tree_below(folder) == renamed("foo/bar", "foo/moved")
        await arrays.rename("moved.npy", arrays, "bar.npy")
        await arrays.rename("bar.npy", arrays, "BAR.npy")
        assert tree_below(folder) == renamed("foo/bar", "foo/BAR")
        await arrays.rename("BAR.npy", arrays, "nocomp.npy")
        after = {key: value for key, value in before.items() if not re.match(r"(meta/root|data)/foo/nocomp", key)}
        before = after
        assert tree_below(folder) == renamed("foo/bar", "foo/nocomp")


@trio_test
async def test_a_new_store_is_a_hierarchy_with_gzip(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    async with tree_of(tmp_path / "new", new_dialect="v3_2019") as tree:
        await (await folder_at(tree, "npy")).mkdir("g")
        await write(tree, "npy/g/x.npy", npy(np.arange(10, dtype=">i4")))
        assert await names(tree, "chunks/g") == {".zgroup", "x"}
    found = reader.nodes(tmp_path / "new")
    assert {path: node.kind for path, node in found.items()} == {"/": "implied", "/g": "group", "/g/x": "array"}
    assert (found["/g/x"].elements == np.arange(10)).all()
    document = found["/g/x"].document
    assert document is not None and document["compressor"]["codec"].endswith("/gzip/1.0")
    assert json.loads((tmp_path / "new/zarr.json").read_bytes()) == {
        "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_encoding": "application/json",
        "extensions": [],
    }


@pytest.mark.parametrize("view", ["chunks", "npy"])
@trio_test
async def test_a_root_array_is_written(view: str, tmp_path: Path) -> None:
    case = next(case for case in cases("v3_2019") if case.name.endswith("/root_array"))
    async with scene(tmp_path, "", case) as (tree, _, folder):
        elements = await load(tree, "npy/store.npy")
        elements[:3, :3] = 4
        if view == "chunks":
            await write(tree, "chunks/0.0", elements[:3, :3].tobytes())
        else:
            file = await walk(tree, "npy/store.npy")
            assert isinstance(file, File)
            await write(tree, "npy/store.npy", npy(elements))
        assert (reader.nodes(folder)["/"].elements == elements).all()


@trio_test
async def test_a_hierarchy_in_a_folder_is_erased_whole(tmp_path: Path) -> None:
    async with scene(tmp_path, "sub/h") as (tree, _, folder):
        (folder.parent / "beside.txt").write_text("no node")
        top = await folder_at(tree, "chunks/sub/h")
        for name in await names(tree, "chunks/sub/h"):
            if name.startswith("."):
                await top.unlink(name)
            else:
                await _erase_below(await folder_at(tree, f"chunks/sub/h/{name}"))
                await top.rmdir(name)
        await (await folder_at(tree, "chunks/sub")).rmdir("h")
        assert [path.name for path in folder.parent.iterdir()] == ["beside.txt"]
        with pytest.raises(NoSuchEntry):
            await walk(tree, "npy/sub/h")


async def _erase_below(folder: Directory) -> None:
    entries = [entry async for entry in folder.entries()]
    for name, is_directory, *_ in entries:
        if is_directory:
            below = await folder.lookup(name)
            assert isinstance(below, Directory)
            await _erase_below(below)
            await folder.rmdir(name)
        else:
            await folder.unlink(name)


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_of_a_scalar_that_never_became_whole_nothing_is_left() -> None:
    class Failing(FailingStore):
        async def interrupt(self, operation: str, target: str) -> None:
            if target.startswith("meta/root/foo/s"):
                await super().interrupt(operation, target)

    inner = MemoryStore()
    await fill(inner, HIERARCHY.values)
    async with tree_over(Failing(inner, {"set": StoreFull("no space")})) as tree:
        with pytest.raises(StoreFull):
            await write(tree, "npy/foo/s.npy", npy(np.array(5, "<u2")))
        assert await names(tree, "npy/foo") == {"bar.npy", "nocomp.npy", "nullfill.npy"}
    assert await contents(inner) == HIERARCHY.values


@trio_test
async def test_arrays_are_no_folders_for_groups(tmp_path: Path) -> None:
    async with scene(tmp_path, "") as (tree, _, _folder):
        with pytest.raises(NotPermitted):
            await (await folder_at(tree, "chunks/foo/bar")).mkdir("g")


@trio_test
async def test_chunks_are_written_through_zarr3(tmp_path: Path) -> None:
    async with scene(tmp_path, "") as (tree, _, folder):
        elements = np.arange(12, dtype="<f8").reshape(4, 3)
        await write(tree, "zarr3/foo/bar/c/1/1", gzip.compress(elements.tobytes()))
        node = reader.nodes(folder)["/foo/bar"]
        assert node.elements is not None
        assert (node.elements[4:8, 3:6] == elements).all()
        document = json.loads(await read(tree, "zarr3/foo/bar/zarr.json"))
        await write(tree, "zarr3/foo/bar/zarr.json", json.dumps({**document, "attributes": {"by": "zarr3"}}).encode())
        assert reader.nodes(folder)["/foo/bar"].attributes == {"by": "zarr3"}
