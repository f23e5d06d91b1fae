"""Edits of nodes through ``zarr3/``: zarr-python reads the store after each."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.comparing import in_memory
from tests.support.scenes import EVERYWHERE, Scene, scene
from tests.support.stores import contents
from tests.support.trees import tree_over, walk
from tests.support.trees import write as write_file
from tests.support.v3_array import ARRAY
from tests.support.zarr_python import everything
from zarrfs.errors import (
    AcrossViews,
    ContentInvalid,
    DirectoryNotEmpty,
    EntryExists,
    NoSuchEntry,
    NotPermitted,
    OperationUnsupported,
)
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import File, OpenFlags

zarr = pytest.importorskip("zarr")

NEW = OpenFlags(read=False, write=True, truncate=True)
GIVEN_UP = pytest.mark.logs("write failed, data lost")
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
FILES = {"zarr.json": json.dumps(ARRAY).encode(), "c/0/0": np.arange(6, dtype="<i4").tobytes(), "c/1/0": bytes(24)}


def group(**attributes: Any) -> dict[str, Any]:
    return GROUP | {"attributes": attributes}


async def write_below(s: Scene, path: str, name: str, data: bytes) -> None:
    """Write a file and create its folders, as ``cp -r`` does."""
    parts = name.split("/")
    for depth in range(1, len(parts)):
        with contextlib.suppress(EntryExists):
            await s.mkdir(f"{path}/{'/'.join(parts[:depth])}")
    await s.write(f"{path}/{name}", data)


# --- attributes and shape -------------------------------------------------------------------------------------------------------


@EVERYWHERE
@trio_test
async def test_attributes_are_written_where_the_dialect_keeps_them(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        before = await s.stored()
        for path in ("b", "g/h", ""):
            at = f"{path}/zarr.json" if path else "zarr.json"
            text = json.dumps(await s.json(at) | {"attributes": {"units": "km", "n": [1, {"x": None}]}}).encode() + b"\n"
            await s.write(at, text)
            # Unchanged, byte for byte.
            assert await s.read(at) == text
            after = await s.stored()
            assert after[path][1] == {"units": "km", "n": [1, {"x": None}]}
            assert (after[path][0], *after[path][2:]) == (before[path][0], *before[path][2:])
        assert (await s.stored())["g/a"] == before["g/a"]
        await s.write("b/zarr.json", await s.json("b/zarr.json") | {"attributes": {"n": 1}})
        await s.write("b/zarr.json", await s.json("b/zarr.json") | {"attributes": {"n": True}})
        assert (await s.stored())["b"][1]["n"] is True


@trio_test
async def test_what_the_view_does_not_show_survives_edits(tmp_path: Path) -> None:
    async with scene(2, "memory", tmp_path, view="zarr3") as s:
        values = await contents(s.store)
        document = json.loads(values["g/a/.zarray"]) | {"mine": {"kept": [1]}}
        await write_file(s.tree, "raw/g/a/.zarray", json.dumps(document).encode())
        await s.write("g/a/zarr.json", await s.json("g/a/zarr.json") | {"shape": [5, 6], "attributes": {"units": "km"}})
        assert json.loads((await contents(s.store))["g/a/.zarray"]) == document | {"shape": [5, 6]}


@EVERYWHERE
@GIVEN_UP
@trio_test
async def test_shape_and_attributes_are_changed_and_nothing_else_of_an_array(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        before = await contents(s.store)
        document = await s.json("g/a/zarr.json")
        await s.write("g/a/zarr.json", document)
        assert await contents(s.store) == before
        grid = {"name": "regular", "configuration": {"chunk_shape": [2, 2]}}
        for change, why in (
            ({"shape": [2, 6]}, r"chunk \(1, \d\) is stored outside of the new shape"),
            ({"shape": [4]}, "dimensions"),
            ({"chunk_grid": grid}, "chunk_grid of an array cannot be changed"),
            ({"data_type": "int64"}, "data_type of an array"),
            ({"fill_value": 8}, "fill_value of an array"),
            ({"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]}, "codecs of an array"),
            ({"chunk_key_encoding": {"name": "v2"}}, "chunk_key_encoding of an array"),
            *([({"dimension_names": ["a", "b"]}, "dimension_names of an array")] if dialect == 3 else ()),
            ({"zarr_format": 2}, "zarr_format must be 3, not 2"),
            ({"node_type": "group"}, "not supported|group"),
            ({"more": {"must_understand": False}}, "member 'more'"),
        ):
            with pytest.raises(ContentInvalid, match=why):
                await s.write("g/a/zarr.json", document | change)
            assert await contents(s.store) == before
        with pytest.raises(ContentInvalid, match="cannot be a group as well"):
            await s.write("g/a/zarr.json", GROUP)
        await s.write("g/a/zarr.json", document | {"shape": [9, 6], "attributes": {"units": "km"}})
        node = (await s.stored())["g/a"]
        assert node[1:3] == ({"units": "km"}, (9, 6))
        elements = np.frombuffer(node[5], "i4").reshape(9, 6)
        assert elements[:4].ravel().tolist() == list(range(24))
        assert (elements[4:] == 7).all()


@EVERYWHERE
@trio_test
async def test_resizing_erases_chunks_where_that_is_allowed(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3", resize_erases=True) as s:
        await s.resized("g/a", [4, 3])
        assert await s.names("g/a/c/0") == await s.names("g/a/c/1") == {"0"}
        await s.resized("g/a", [4, 6])
        elements = np.frombuffer((await s.stored())["g/a"][5], "i4").reshape(4, 6)
        assert (elements[:, 3:] == 7).all()


@pytest.mark.logs("write failed, data lost: .*some dimensions have names")
@trio_test
async def test_names_of_dimensions_in_a_v2_store_are_those_of_the_attribute(tmp_path: Path) -> None:
    async with scene(2, "memory", tmp_path, view="zarr3") as s:
        await s.mkdir("none")
        await s.write("none/zarr.json", ARRAY | {"dimension_names": None})
        await s.mkdir("n")
        await s.write("n/zarr.json", ARRAY | {"dimension_names": ["y", "x"]})
        assert (await s.stored())["n"][1] == {"units": "m", "_ARRAY_DIMENSIONS": ["y", "x"]}
        shown = await s.json("n/zarr.json")
        assert (shown["dimension_names"], shown["attributes"]) == (["y", "x"], {"units": "m", "_FillValue": 7})
        await s.write("n/zarr.json", shown | {"attributes": {"units": "km"}})
        assert (await s.stored())["n"][1] == {"units": "km", "_ARRAY_DIMENSIONS": ["y", "x"]}
        await s.write("n/zarr.json", {name: value for name, value in shown.items() if name != "dimension_names"})
        assert (await s.stored())["n"][1] == {"units": "m", "_ARRAY_DIMENSIONS": ["y", "x"]}
        await s.write("n/zarr.json", shown | {"dimension_names": ["lat", "lon"]})
        assert (await s.stored())["n"][1] == {"units": "m", "_ARRAY_DIMENSIONS": ["lat", "lon"]}
        with pytest.raises(ContentInvalid, match="some dimensions have names"):
            await s.write("n/zarr.json", shown | {"dimension_names": ["lat", None]})


# --- consolidated copies --------------------------------------------------------------------------------------------------------


@trio_test
async def test_of_a_consolidated_copy_that_is_written_only_that_there_is_one_counts(tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path, view="zarr3") as s:
        before = await contents(s.store)
        document = await s.json("zarr.json")
        copy = {"kind": "inline", "must_understand": False, "metadata": {"g": group(stale=1)}}
        await s.write("zarr.json", document | {"consolidated_metadata": copy})
        stored = await contents(s.store)
        assert {key for key in stored if stored[key] != before.get(key)} == {"zarr.json"}
        shown = await s.json("zarr.json")
        copied = shown.pop("consolidated_metadata")["metadata"]
        assert shown == document and copied.pop("g") == await s.json("g/zarr.json")
        assert copied == {place: await s.json(f"{place}/zarr.json") for place in copied}


# --- creating -------------------------------------------------------------------------------------------------------------------


@EVERYWHERE
@trio_test
async def test_a_folder_is_a_group_of_the_dialect_around_it(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        await s.mkdir("g/new")
        await s.mkdir("g/new/deep")
        assert not any(key.startswith("g/new/") for key in await contents(s.store))
        await s.sync("g")
        assert f"g/new/{'.zgroup' if dialect == 2 else 'zarr.json'}" in await contents(s.store)
        # Programs that fill a new folder expect it to be empty, until it is listed.
        with pytest.raises(NoSuchEntry):
            await s.read("g/new/zarr.json")
        await s.write("g/new/zarr.json", group(k=1))
        nodes = await s.stored()
        assert (nodes["g/new"], nodes["g/new/deep"]) == (("group", {"k": 1}), ("group", {}))
        assert await s.names("g/new") == {"zarr.json", "deep"}
        for taken in ("g/new", "g/a", "g/zarr.json", "g/a/c"):
            with pytest.raises(EntryExists):
                await s.mkdir(taken)
        with pytest.raises(NotPermitted):
            await s.mkdir("g/a/.x")


@pytest.mark.parametrize("order", list(itertools.permutations(FILES)), ids=" ".join)
@EVERYWHERE
@trio_test
async def test_a_folder_becomes_an_array_in_whatever_order_its_files_come(
    dialect: int, kind: str, consolidated: bool, order: tuple[str, ...], tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        await s.mkdir("g/n")
        for name in order:
            await write_below(s, "g/n", name, FILES[name])
            assert await s.read(f"g/n/{name}") == FILES[name]
        assert await s.names("g/n") == {"zarr.json", "c"}
        assert await s.names("g/n/c") == {"0", "1"}
        assert await s.names("g/n/c/0") == await s.names("g/n/c/1") == {"0"}
        nodes = await s.stored()
        assert {path for path in nodes if path.startswith("g/n")} == {"g/n"}
        kind_of, attributes, shape, chunks, dtype, data = nodes["g/n"]
        assert (kind_of, attributes, shape, chunks, dtype) == ("array", {"units": "m"}, (4, 3), (2, 3), "int32")
        assert np.frombuffer(data, "i4").tolist() == [*range(6), *[0] * 6]
        # Stored unchanged, under the keys of the store's dialect.
        stored = await contents(s.store)
        assert stored["g/n/0.0" if dialect == 2 else "g/n/c/0/0"] == FILES["c/0/0"]
        assert s.tree.staging.dirty_nbytes == 0
        await s.remove("g/n")
        assert not [key for key in await contents(s.store) if key.startswith("g/n/")]


@EVERYWHERE
@trio_test
async def test_folders_that_wait_are_groups_when_something_says_so(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        before = set(await s.stored())

        async def made() -> set[str]:
            await s.sync()
            return set(await s.stored()) - before

        for name in ("n", "n/c", "n/c/0", "n/5"):
            await s.mkdir(name)
        assert await made() == {"n"}
        assert await s.names("n") == {"zarr.json", "c", "5"}
        assert await s.names("n/c") == {"0"}
        # A group document in the folder itself.
        await s.write("n/zarr.json", GROUP)
        assert await made() == {"n", "n/c", "n/5"}
        assert await s.names("n/c") == {"zarr.json", "0"}
        # A name that is not part of a key.
        await s.mkdir("n/c/0/x")
        assert await made() == {"n", "n/c", "n/5", "n/c/0", "n/c/0/x"}
        # An array document in an undecided folder.
        await s.mkdir("m")
        await s.mkdir("m/2")
        await s.mkdir("m/2/3")
        await s.write("m/2/zarr.json", ARRAY)
        assert await made() == {"n", "n/c", "n/5", "n/c/0", "n/c/0/x", "m", "m/2"}
        await s.rmdir("m/2/3")
        assert await s.names("m/2") == {"zarr.json"}
        # In a group that was written explicitly, or has content, no folder is undecided.
        await s.mkdir("n/c/1")
        assert "n/c/1" in await made()
        if not consolidated:
            # (zarr-python 3.1 loses nodes of a consolidated copy whose siblings do not follow one another.)
            await s.mkdir("g/c")
            assert "g/c" in await made()


@trio_test
async def test_a_folder_that_waits_is_removed_and_cannot_be_renamed(tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path, view="zarr3") as s:
        await s.mkdir("n")
        await s.mkdir("n/c")
        await s.write("n/c/0", b"waits")
        with pytest.raises(AcrossViews):
            await s.rename("n/c", "n/d")
        with pytest.raises(DirectoryNotEmpty):
            await s.rmdir("n/c")
        await s.rename("n", "moved")
        assert await s.names("moved") == {"c"}
        assert await s.read("moved/c/0") == b"waits"
        await s.unlink("moved/c/0")
        await s.rmdir("moved/c")
        assert await s.names("moved") == set()
        with pytest.raises(AcrossViews):
            await s.rename("g/a/c", "g/a/d")


@GIVEN_UP
@trio_test
async def test_chunks_that_do_not_fit_are_told_when_the_array_comes(tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path, view="zarr3") as s:
        await s.mkdir("n")
        for name, data in {"c/0/0": b"short", "c/1/0": bytes(24), "c/7/0": b"x", ".note": b"x"}.items():
            await write_below(s, "n", name, data)
        with pytest.raises(ContentInvalid, match=r"decoding chunk \(0, 0\)"):
            await s.write("n/zarr.json", ARRAY)
        assert (await s.stored())["n"][2] == (4, 3)
        assert {key for key in await contents(s.store) if key.startswith("n/")} == {"n/zarr.json", "n/c/1/0"}
        # They stay in the mount, and can be removed.
        assert await s.read("n/c/0/0") == b"short"
        assert await s.read("n/c/7/0") == b"x"
        assert await s.names("n/c") == {"0", "1", "7"}
        await s.unlink("n/.note")
        await s.remove("n")
        assert "n" not in await s.stored()


@GIVEN_UP
@trio_test
async def test_a_group_that_holds_nodes_becomes_no_array_and_a_bad_document_none_at_all(tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path, view="zarr3") as s:
        before = await contents(s.store)
        with pytest.raises(ContentInvalid, match="group that holds nodes"):
            await s.write("g/zarr.json", ARRAY)
        shards = {"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 3], "codecs": ARRAY["codecs"]}}
        shards["configuration"] |= {"index_codecs": [*ARRAY["codecs"], {"name": "crc32c"}], "index_location": "end"}  # type: ignore[operator]
        for bad in (b"", b"{", b"[]", b"{}", {**GROUP, "zarr_format": 4}, {**GROUP, "more": 1}, {**ARRAY, "codecs": [shards]}):
            with pytest.raises(ContentInvalid):
                await s.write("g/h/zarr.json", bad)
        with pytest.raises(ContentInvalid, match="omit sharding_indexed"):
            await s.write("g/h/zarr.json", {**ARRAY, "codecs": [shards]})
        assert await contents(s.store) == before
        assert await s.names("g/h") == {"zarr.json"}


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "zstd": ({"codecs": [*ARRAY["codecs"], {"name": "zstd", "configuration": {"level": 1, "checksum": False}}]}, {"id": "zstd"}),
    "numcodecs.zlib": ({"codecs": [*ARRAY["codecs"], {"name": "numcodecs.zlib", "configuration": {"level": 1}}]}, {"id": "zlib"}),
    "big-endian": ({"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]}, {}),
    "reversed": ({"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, *ARRAY["codecs"]]}, {}),
    "delta": (
        {"codecs": [{"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i4"}}, *ARRAY["codecs"]]},
        {},
    ),
    "v2 keys": ({"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}, None),
    "bfloat16": ({"data_type": "bfloat16", "fill_value": 0.0}, None),
    "no name of a dimension": ({"dimension_names": ["y", None]}, None),
    "other names in the attribute": ({"dimension_names": ["y", "x"], "attributes": {"_ARRAY_DIMENSIONS": ["a", "b"]}}, None),
}


@GIVEN_UP
@pytest.mark.parametrize(("asked", "compressor"), ASKED.values(), ids=ASKED)
@trio_test
async def test_a_new_array_has_the_form_that_was_asked_for_where_the_dialect_can_say_it(
    asked: dict[str, Any], compressor: dict[str, Any] | None, tmp_path: Path
) -> None:
    document = ARRAY | asked
    for dialect in (2, 3):
        async with scene(dialect, "memory", tmp_path, view="zarr3") as s:
            await s.mkdir("n")
            before = await contents(s.store)
            if dialect == 2 and compressor is None:
                with pytest.raises(ContentInvalid):
                    await s.write("n/zarr.json", document)
                assert await contents(s.store) == before
                continue
            await s.write("n/zarr.json", document)
            shown = await s.json("n/zarr.json")
            assert {name: shown.get(name) for name in document} == document
            if dialect == 2:
                stored = json.loads((await contents(s.store))["n/.zarray"])["compressor"]
                assert compressor == {} or (compressor or {}).items() <= stored.items()
            if "bfloat16" in str(document):
                continue
            # Chunks that zarr-python writes by the document are right in the store.
            view = {"n/zarr.json": await s.read("n/zarr.json")}
            array = zarr.open_array(in_memory(view).with_read_only(False), path="n", mode="r+")
            array[...] = np.arange(12).reshape(4, 3)
            for key, value in array.store_path.store._store_dict.items():
                if not key.endswith("zarr.json"):
                    await write_below(s, "n", key.removeprefix("n/"), value.to_bytes())
            *_, dtype, elements = (await s.stored())["n"]
            assert np.frombuffer(elements, dtype).tolist() == list(range(12))


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_the_root_becomes_an_array(dialect: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store, "zarr3")
        await s.mkdir("c")
        await s.mkdir("c/0")
        await s.write("c/0/0", FILES["c/0/0"])
        await s.write("zarr.json", ARRAY)
        assert await s.names() == {"zarr.json", "c"}
        assert zarr.open_array(in_memory(await contents(store)), mode="r")[0].tolist() == [0, 1, 2]


# --- erasing, renaming, links ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backwards", [False, True])
@EVERYWHERE
@trio_test
async def test_nodes_are_erased_whole(dialect: int, kind: str, consolidated: bool, backwards: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        # This includes attributes: an unlinked document stays so while the folders beside it are removed.
        await s.write("g/zarr.json", group(k=1))
        before = await s.stored()
        await s.remove("g/a", backwards=backwards)
        assert await s.stored() == {path: node for path, node in before.items() if path != "g/a"}
        await s.remove("g", backwards=backwards)
        assert await s.stored() == {"": before[""], "b": before["b"]}
        assert await s.names() == {"zarr.json", "b"}
        await s.mkdir("g")
        assert await s.names("g") == set()


@EVERYWHERE
@trio_test
async def test_an_array_created_here_is_removed_with_the_chunks_that_other_views_have_stored(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        await s.mkdir("g/n")
        await s.write("g/n/zarr.json", FILES["zarr.json"])
        for coords in ("0.0", "1.0"):
            await write_file(s.tree, f"chunks/g/n/{coords}", FILES["c/1/0"])
        await s.remove("g/n")
        assert "n" not in await s.names("g") and "g/n" not in await s.stored()


@EVERYWHERE
@trio_test
async def test_a_folder_is_removed_only_when_nothing_is_left_in_it(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        before = await contents(s.store)
        await s.write("g/h/zarr.json", group(k=1))
        for path in ("g", "g/a", "b", "b/c", "g/h"):
            with pytest.raises(DirectoryNotEmpty):
                await s.rmdir(path)
        # An array without chunks is not an empty folder either.
        await s.unlink("b/c/0")
        await s.unlink("b/c/1")
        await s.rmdir("b/c")
        with pytest.raises(DirectoryNotEmpty, match=r"zarr\.json"):
            await s.rmdir("b")
        await s.write("g/h/zarr.json", GROUP)
        await s.rmdir("g/h")
        await s.unlink("b/zarr.json")
        assert "b" in await s.stored()
        await s.rmdir("b")
        assert set(before) > set(await contents(s.store))
        assert set(await s.stored()) == {"", "g", "g/a"}


@EVERYWHERE
@trio_test
async def test_folders_are_renamed_with_what_is_open_in_them(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, view="zarr3") as s:
        before = await s.stored()
        chunk = await walk(s.tree, "zarr3/g/a/c/0/0")
        assert isinstance(chunk, File)
        encoded = await s.read("g/a/c/1/1")
        handle = await chunk.open(OpenFlags(write=True, truncate=True))
        await handle.write(0, encoded[:8])
        await s.write("g/a/.note", b"x")
        await handle.write(8, encoded[8:])
        await s.rename("g", "moved")
        await handle.flush()
        await handle.release()
        nodes = await s.stored()
        assert set(nodes) == {"", "b", "moved", "moved/a", "moved/h"}
        assert nodes["moved/a"][1] == before["g/a"][1]
        elements = np.frombuffer(nodes["moved/a"][5], "i4").reshape(4, 6)
        assert elements[:2, :3].tolist() == elements[2:, 3:].tolist()
        assert await s.read("moved/a/.note") == b"x"


@trio_test
async def test_zarr_python_creates_documents_only_where_there_are_none(tmp_path: Path) -> None:
    """`LocalStore.set_if_not_exists`: a temporary name, and a link."""
    async with scene(3, "memory", tmp_path, view="zarr3") as s:
        await s.mkdir("n")
        partial = f"n/zarr.{'0123456789abcdef' * 2}.partial"
        _, handle = await (await s.folder("n")).create(partial.rpartition("/")[2], NEW)
        await handle.write(0, json.dumps(group(k=1)).encode())
        await handle.release()
        file = await walk(s.tree, f"zarr3/{partial}")
        assert isinstance(file, File)
        folder = await s.folder("n")
        await folder.link(file, "zarr.json")
        assert (await s.stored())["n"] == ("group", {"k": 1})
        with pytest.raises(EntryExists):
            await folder.link(file, "zarr.json")
        with pytest.raises(OperationUnsupported):
            await folder.link(file, "other.tmp")
        await s.unlink(partial)
        assert await s.names("n") == {"zarr.json"}


@trio_test
async def test_a_temporary_file_is_renamed_over_documents_and_chunks(tmp_path: Path) -> None:
    async with scene(2, "folder", tmp_path, view="zarr3") as s:
        data = await s.read("g/a/c/1/1")
        before = await contents(s.store)
        await s.write("g/a/c/0/0.tmp", data)
        await s.write("g/a/sedXq1aBc", json.dumps(await s.json("g/a/zarr.json") | {"attributes": {"units": "km"}}).encode())
        assert await contents(s.store) == before
        await s.rename("g/a/c/0/0.tmp", "g/a/c/0/0")
        await s.rename("g/a/sedXq1aBc", "g/a/zarr.json")
        _, attributes, *_, elements = (await s.stored())["g/a"]
        assert attributes == {"units": "km"}
        assert (await contents(s.store))["g/a/0.0"] == data
        assert np.frombuffer(elements, "i4").reshape(4, 6)[0, 0] == 15
        with pytest.raises(NotPermitted, match="would not be stored"):
            await s.rename("g/a/c/0/0", "g/a/c/0/0~")
        with pytest.raises(AcrossViews):
            await s.rename("g/a/c/0/0", "g/a/c/0/1")


@trio_test
async def test_no_file_is_renamed_over_one_that_it_may_not_fit(tmp_path: Path) -> None:
    """On EXDEV, mv(1) removes the target, and then fails to copy."""
    async with scene(2, "folder", tmp_path, view="zarr3") as s:
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
        document = await s.json("g/a/zarr.json") | {"data_type": "int16", "codecs": codecs}
        await s.mkdir("g/b")
        await s.write("g/b/zarr.json", json.dumps(document).encode())
        await s.mkdir("g/b/c")
        await s.mkdir("g/b/c/0")
        await s.write("g/b/c/0/0", bytes(range(12)))
        before = await contents(s.store)
        for old, new in (("g/a/c/0/0", "g/b/c/0/0"), ("g/a/zarr.json", "g/b/zarr.json"), ("g/b/c/0/0", "g/a/zarr.json")):
            with pytest.raises(EntryExists):
                await s.rename(old, new)
        assert await contents(s.store) == before
        assert await s.read("g/b/c/0/0") == bytes(range(12))


@pytest.mark.parametrize("dialect", [2, 3])
@trio_test
async def test_what_is_copied_out_and_in_again_is_the_same(dialect: int, tmp_path: Path) -> None:
    async with scene(dialect, "memory", tmp_path, view="zarr3") as s:
        before = await s.stored()

        async def copy(source: str, target: str) -> None:
            await s.mkdir(target)
            folder = await s.folder(source)
            for name, is_directory, *_ in sorted([entry async for entry in folder.entries()]):
                if is_directory:
                    await copy(f"{source}/{name}", f"{target}/{name}")
                else:
                    await s.write(f"{target}/{name}", await s.read(f"{source}/{name}"))

        await copy("g", "copy")
        after = await s.stored()
        expected = {path.replace("g", "copy", 1): node for path, node in before.items() if path.split("/")[0] == "g"}
        assert {path: node for path, node in after.items() if path.startswith("copy")} == expected
        assert everything(await contents(s.store)) == before | expected
