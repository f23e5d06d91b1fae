"""Edits of nodes through ``chunks/``: zarr-python reads the store after each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.comparing import in_memory
from tests.support.scenes import EVERYWHERE, Scene, scene
from tests.support.small_stores import array_document
from tests.support.stores import contents
from tests.support.trees import tree_over, walk, write
from tests.support.zarr_python import stored
from zarrfs.errors import (
    AcrossViews,
    ChunkSizeMismatch,
    ContentInvalid,
    DirectoryNotEmpty,
    EntryExists,
    IsADirectory,
    NameInvalid,
    NoSuchEntry,
    NotPermitted,
    StoreReadOnly,
    UsageError,
)
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, OpenFlags

zarr = pytest.importorskip("zarr")

NEW = OpenFlags(read=False, write=True, truncate=True)
GIVEN_UP = pytest.mark.logs("write failed, data lost")


# --- attributes -----------------------------------------------------------------------------------------------------------------


@EVERYWHERE
@trio_test
async def test_a_shorter_document_written_over_the_previous_one_without_truncation(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    """netCDF-C 4.9 and 4.10 do this, and ignore the error of close(2)."""
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        for name, text in (("b/.zattrs", b'{"u":{"x":"}"}}'), (".zgroup", b'{"zarr_format":2}')):
            if name.endswith(".zattrs"):
                await s.write(name, b'{\n  "u": {},\n  "title": "a long text", "more": [1, 2]\n}\n')
            handle = await s.opened(name)
            await handle.write(0, text)
            await handle.flush()
            await handle.release()
            assert await s.read(name) == text
        assert (await s.stored())["b"][1] == {"u": {"x": "}"}}

        # Other bytes after the document are no remains.
        handle = await s.opened("b/.zattrs")
        await handle.write(0, b"{}x")
        with pytest.raises(ContentInvalid, match="not JSON"):
            await handle.flush()
        await handle.write(0, text_of_b := b'{"u":{"x":"}"}}')
        await handle.release()
        assert await s.read("b/.zattrs") == text_of_b


@EVERYWHERE
@trio_test
async def test_attributes_are_written_where_the_dialect_keeps_them(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        before = await s.stored()
        for path in ("b", "g/h", ""):
            at = f"{path}/.zattrs" if path else ".zattrs"
            await s.write(at, b'{"units": "km", "n": [1, {"x": null}]}\n')
            # Unchanged, byte for byte.
            assert await s.read(at) == b'{"units": "km", "n": [1, {"x": null}]}\n'
            after = await s.stored()
            assert after[path][1] == {"units": "km", "n": [1, {"x": None}]}
            assert (after[path][0], *after[path][2:]) == (before[path][0], *before[path][2:])
        assert (await s.stored())["g/a"] == before["g/a"]


@trio_test
async def test_what_the_view_put_in_is_taken_out_and_what_the_user_put_in_stays(tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path) as s:
        shown = await s.json("g/a/.zattrs")
        assert shown == {"units": "m", "_ARRAY_DIMENSIONS": ["y", "x"]}
        before = await contents(s.store)
        await s.write("g/a/.zattrs", shown)
        assert await contents(s.store) == before
        await s.write("g/a/.zattrs", {"units": "km", "_ARRAY_DIMENSIONS": ["y", "x"]})
        assert (await s.stored())["g/a"][1] == {"units": "km"}
        # Dimension names are part of the node: the view adds them again.
        await s.write("g/a/.zattrs", {"units": "mm"})
        assert await s.json("g/a/.zattrs") == {"units": "mm", "_ARRAY_DIMENSIONS": ["y", "x"]}
        await s.write("g/a/.zattrs", {"_ARRAY_DIMENSIONS": ["lat", "lon"], "zarrfs": {"mine": 1}})
        assert (await s.stored())["g/a"][1] == {"zarrfs": {"mine": 1}}
        assert await s.json("g/a/.zattrs") == {"_ARRAY_DIMENSIONS": ["lat", "lon"], "zarrfs": {"mine": 1}}
        document = json.loads((await contents(s.store))["g/a/zarr.json"])
        assert document["dimension_names"] == ["lat", "lon"]
        # A list that names no dimensions is an attribute like any other.
        await s.write("g/a/.zattrs", {"_ARRAY_DIMENSIONS": ["lat"]})
        assert (await s.stored())["g/a"][1] == await s.json("g/a/.zattrs") == {"_ARRAY_DIMENSIONS": ["lat"]}


@EVERYWHERE
@trio_test
async def test_attributes_are_removed_and_come_back(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        await s.unlink("g/a/.zattrs")
        assert ".zattrs" not in await s.names("g/a")
        with pytest.raises(NoSuchEntry):
            await s.read("g/a/.zattrs")
        assert (await s.stored())["g/a"][1] == {}
        await s.write("g/a/.zattrs", {"a": 1})
        assert (await s.stored())["g/a"][1] == {"a": 1}
        assert ".zattrs" in await s.names("g/a")
        # After a change of the attributes elsewhere, the name exists again.
        await s.unlink("g/a/.zattrs")
        await write(s.tree, "raw/g/a/" + (".zattrs" if dialect == 2 else "zarr.json"), rewritten(dialect, await contents(s.store)))
        assert (await s.json("g/a/.zattrs"))["raw"] == 1


def rewritten(dialect: int, values: dict[str, bytes]) -> bytes:
    if dialect == 2:
        return b'{"raw": 1}'
    return json.dumps(json.loads(values["g/a/zarr.json"]) | {"attributes": {"raw": 1}}).encode()


@GIVEN_UP
@pytest.mark.parametrize(
    "junk", [b"", b"{", b"[1]", b"null", b'{"a": 1, "a": 2}', b"\xff", b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}"]
)
@trio_test
async def test_what_is_no_json_object_is_refused_and_nothing_stored(junk: bytes, tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path) as s:
        before = await contents(s.store)
        with pytest.raises(ContentInvalid, match=r"chunks/g/a/\.zattrs"):
            await s.write("g/a/.zattrs", junk)
        assert await contents(s.store) == before


@trio_test
async def test_a_chunk_that_is_open_is_stored_although_the_attributes_change(tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path) as s:
        chunk = await walk(s.tree, "chunks/g/a/0.0")
        handle = await chunk.open(OpenFlags(write=True))  # type: ignore[attr-defined]
        await handle.write(0, bytes(4))
        await s.write("g/a/.zattrs", {"units": "km"})
        await handle.flush()
        await s.resized("g/a", [5, 6])
        await handle.write(4, bytes(4))
        await handle.flush()
        await handle.release()
        elements = np.frombuffer((await s.stored())["g/a"][5], "i4").reshape(5, 6)
        assert elements[:2, :3].tolist() == [[0, 0, 2], [6, 7, 8]]


# --- shape ----------------------------------------------------------------------------------------------------------------------


@EVERYWHERE
@GIVEN_UP
@trio_test
async def test_a_shape_is_changed_and_nothing_else_of_an_array(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        before = await contents(s.store)
        document = await s.json("g/a/.zarray")
        await s.write("g/a/.zarray", document)
        await s.write("g/.zgroup", {"zarr_format": 2})
        assert await contents(s.store) == before
        for change, why in (
            ({"shape": [2, 6]}, r"chunk \(1, \d\) is stored outside of the new shape"),
            ({"shape": [4]}, "dimensions"),
            ({"shape": [4, 6, 1], "chunks": [2, 3, 1]}, "number of dimensions"),
            ({"chunks": [2, 2]}, "chunks of an array cannot be changed"),
            ({"dtype": "<i8"}, "dtype of an array"),
            ({"dtype": ">i4"}, "little-endian"),
            ({"order": "F"}, "order must be 'C'"),
            ({"compressor": {"id": "zlib", "level": 1}}, "compressor must be null"),
            ({"filters": [{"id": "delta", "dtype": "<i4"}]}, "filters must be null"),
            ({"dimension_separator": "/"}, "dimension_separator must be '.'"),
            ({"zarr_format": 3}, "zarr_format must be 2, not 3"),
            ({"more": 1}, "member 'more'"),
            ({"shape": [-1, 6]}, "shape"),
        ):
            with pytest.raises(ContentInvalid, match=why):
                await s.write("g/a/.zarray", document | change)
            assert await contents(s.store) == before
        if dialect == 2:
            with pytest.raises(ContentInvalid, match="fill_value of an array"):
                await s.write("g/a/.zarray", document | {"fill_value": 8})
            assert await contents(s.store) == before
        await s.resized("g/a", [9, 6])
        node = (await s.stored())["g/a"]
        assert node[2] == (9, 6)
        elements = np.frombuffer(node[5], "i4").reshape(9, 6)
        assert elements[:4].ravel().tolist() == list(range(24))
        assert (elements[4:] == 7).all()
        await s.resized("g/a", [3, 6])
        assert (await s.stored())["g/a"][2] == (3, 6)


@EVERYWHERE
@trio_test
async def test_resizing_erases_chunks_where_that_is_allowed(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated, resize_erases=True) as s:
        await s.resized("g/a", [4, 3])
        assert await s.names("g/a") == {".zarray", ".zattrs", "0.0", "1.0"}
        assert len([key for key in await contents(s.store) if key.startswith("g/a/") and not key.endswith(("y", "s", "n"))]) == 2
        await s.resized("g/a", [4, 6])
        elements = np.frombuffer((await s.stored())["g/a"][5], "i4").reshape(4, 6)
        assert (elements[:, 3:] == 7).all()


# --- creating -------------------------------------------------------------------------------------------------------------------


@EVERYWHERE
@trio_test
async def test_a_folder_is_a_group_of_the_dialect_around_it(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        await s.mkdir("g/new")
        await s.mkdir("g/new/deep")
        before = await contents(s.store)
        assert await s.names("g/new") == {"deep"} and await s.names("g/new/deep") == set()
        await s.sync("g/new")
        assert await s.names("g/new") == {".zgroup", "deep"} and not any(key.startswith("g/new") for key in before)
        nodes = await s.stored()
        assert nodes["g/new"] == nodes["g/new/deep"] == ("group", {})
        assert f"g/new/{'.zgroup' if dialect == 2 else 'zarr.json'}" in await contents(s.store)
        for taken in ("g/new", "g/a", "g/h", "g/.zgroup"):
            with pytest.raises(EntryExists):
                await s.mkdir(taken)
        with pytest.raises(NotPermitted):
            await s.mkdir("g/a/.x")
        for name in ["\u00e9", ".zattrs2\\"] if dialect == 2 else ["__x", "..."]:
            with pytest.raises(NameInvalid):
                await s.mkdir(f"g/{name}")


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_an_empty_store_gets_the_dialect_that_was_asked_for(dialect: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store)
        await s.mkdir("g")
        await s.write(".zattrs", {"title": "t"})
        assert await s.stored() == {"": ("group", {"title": "t"})}
        await s.sync()
        assert await s.stored() == {"": ("group", {"title": "t"}), "g": ("group", {})}
        assert set(await contents(store)) == (
            {".zgroup", ".zattrs", "g/.zgroup"} if dialect == "v2" else {"zarr.json", "g/zarr.json"}
        )
    with pytest.raises(UsageError, match="v2, v3"):
        async with tree_over(store, new_dialect="v7"):
            pass


DOCUMENT = array_document((4, 3), (2, 3), "<i4")
FILES = {".zattrs": b'{"units": "m"}', ".zarray": DOCUMENT, "0.0": np.arange(6, dtype="<i4").tobytes(), "1.0": bytes(24)}


@pytest.mark.parametrize(
    "order", [[".zarray", ".zattrs", "0.0", "1.0"], ["0.0", ".zattrs", ".zarray", "1.0"], ["1.0", "0.0", ".zattrs", ".zarray"]]
)
@EVERYWHERE
@trio_test
async def test_a_folder_becomes_an_array_in_whatever_order_its_files_come(
    dialect: int, kind: str, consolidated: bool, order: list[str], tmp_path: Path
) -> None:
    all_attributes = {"units": "m"} | ({"_FillValue": 7} if dialect == 3 else {})
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        await s.mkdir("g/n")
        for name in order:
            await s.write(f"g/n/{name}", FILES[name])
            assert name in await s.names("g/n")
            assert await s.read(f"g/n/{name}") == FILES[name]
            assert ".zattrs" not in await s.names("g/n") or await s.json("g/n/.zattrs") in ({"units": "m"}, {"_FillValue": 7})
        assert await s.names("g/n") == set(FILES)
        # Unchanged; the store also has the fill value of .zarray in an attribute.
        assert await s.read("g/n/.zattrs") == FILES[".zattrs"]
        kind_of, attributes, shape, chunks, dtype, data = (await s.stored())["g/n"]
        assert (kind_of, attributes, shape, chunks, dtype) == ("array", all_attributes, (4, 3), (2, 3), "int32")
        assert np.frombuffer(data, "i4").tolist() == [*range(6), *[0] * 6]
        # Chunks are stored with the codecs of the mount's options, and the store has no key of the mount's own.
        sizes = {key: len(value) for key, value in (await contents(s.store)).items() if key.startswith("g/n/")}
        assert set(sizes) == (
            {"g/n/.zarray", "g/n/.zattrs", "g/n/0.0", "g/n/1.0"} if dialect == 2 else {"g/n/zarr.json", "g/n/c/0/0", "g/n/c/1/0"}
        )
        assert s.tree.staging.dirty_nbytes == 0


@GIVEN_UP
@trio_test
async def test_chunks_that_do_not_fit_are_told_when_the_array_comes(tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path) as s:
        await s.mkdir("n")
        for name, data in {"0.0": b"short", "1.0": bytes(24), "7.0": b"x", ".note": b"x"}.items():
            await s.write(f"n/{name}", data)
        with pytest.raises(ContentInvalid, match="exactly 24 bytes, not 5"):
            await s.write("n/.zarray", DOCUMENT)
        assert (await s.stored())["n"][2] == (4, 3)
        assert {key for key in await contents(s.store) if key.startswith("n/")} == {"n/zarr.json", "n/c/1/0"}
        assert await s.read("n/0.0") == b"short"


@GIVEN_UP
@trio_test
async def test_a_group_that_holds_nodes_becomes_no_array_and_a_bad_document_none_at_all(tmp_path: Path) -> None:
    async with scene(2, "memory", tmp_path) as s:
        before = await contents(s.store)
        with pytest.raises(ContentInvalid, match="group that holds nodes"):
            await s.write("g/.zarray", DOCUMENT)
        with pytest.raises(ContentInvalid):
            await s.write("g/h/.zarray", b"{")
        with pytest.raises(ContentInvalid, match="compressor"):
            await s.write("g/h/.zarray", array_document((4,), (2,), compressor={"id": "zlib", "level": 1}))
        with pytest.raises(NameInvalid, match="cannot be a group as well"):
            await s.write("g/a/.zgroup", {"zarr_format": 2})
        with pytest.raises(ContentInvalid):
            await s.write("g/.zgroup", {"zarr_format": 3})
        with pytest.raises(ContentInvalid, match="member 'title' is not supported"):
            await s.write("g/.zgroup", {"zarr_format": 2, "title": "lost at the end of the mount"})
        assert await contents(s.store) == before
        assert await s.names("g/h") == {".zgroup"}


@GIVEN_UP
@trio_test
async def test_members_that_netcdf_adds_to_documents_are_accepted_and_others_are_not(tmp_path: Path) -> None:
    async with scene(2, "memory", tmp_path) as s:
        await s.mkdir("n")
        await s.write("n/.zgroup", {"zarr_format": 2, "_NCZARR_GROUP": {"dims": {"x": 4}, "vars": ["v"], "groups": []}})
        await s.mkdir("n/v")
        await s.write("n/v/.zarray", array_document((4,), (2,), _nczarr_array={"dimrefs": ["/n/x"]}))
        with pytest.raises(ContentInvalid, match="member 'title' is not supported"):
            await s.write("n/v/.zarray", array_document((4,), (2,), title="lost at the end of the mount"))
        stored = await contents(s.store)
        assert json.loads(stored["n/.zgroup"]) == {"zarr_format": 2} and json.loads(stored["n/v/.zarray"])["shape"] == [4]


# --- erasing --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backwards", [False, True])
@EVERYWHERE
@trio_test
async def test_nodes_are_erased_whole(dialect: int, kind: str, consolidated: bool, backwards: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        before = await s.stored()
        await s.remove("g/a", backwards=backwards)
        assert not [key for key in await contents(s.store) if key.startswith("g/a/")]
        assert await s.stored() == {path: node for path, node in before.items() if path != "g/a"}
        await s.remove("g", backwards=backwards)
        assert await s.stored() == {"": before[""], "b": before["b"]}
        assert await s.names() - {".zmetadata"} == {".zattrs", ".zgroup", "b"}
        # A new node at the path has all its names.
        await s.mkdir("g")
        assert await s.names("g") == set()
        await s.mkdir("g/a")
        await s.write("g/a/.zarray", DOCUMENT)
        assert await s.names("g/a") == {".zarray", *([".zattrs"] if dialect == 3 else ())}


@EVERYWHERE
@trio_test
async def test_unlinking_a_document_alone_loses_nothing(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        before = await contents(s.store)
        document = await s.read("g/a/.zarray")
        await s.unlink("g/a/.zarray")
        await s.unlink("g/.zgroup")
        assert await s.names("g/a") == {".zattrs", "0.0", "0.1", "1.0", "1.1"}
        assert await s.names("g") == {"a", "h"}
        with pytest.raises(NoSuchEntry):
            await s.read("g/a/.zarray")
        assert await contents(s.store) == before
        with pytest.raises(DirectoryNotEmpty, match=r"holds '.zattrs'|holds '0.0'"):
            await s.rmdir("g/a")
        # Writing the document again restores the name.
        await s.write("g/a/.zarray", document)
        await s.write("g/.zgroup", {"zarr_format": 2})
        assert ".zarray" in await s.names("g/a")
        assert ".zgroup" in await s.names("g")
        assert await contents(s.store) == before


@EVERYWHERE
@trio_test
async def test_a_folder_is_removed_only_when_it_is_empty(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        before = await contents(s.store)
        for path in ("g", "g/a", "b"):
            with pytest.raises(DirectoryNotEmpty):
                await s.rmdir(path)
        await write(s.tree, "raw/g/h/notes.txt", b"not shown in chunks/")
        with pytest.raises(DirectoryNotEmpty, match=r"notes.txt"):
            await s.rmdir("g/h")
        folder = await walk(s.tree, "raw/g/h")
        assert isinstance(folder, Directory)
        await folder.unlink("notes.txt")
        _, handle = await (await s.folder("g/h")).create("tmp1", NEW)
        await handle.release()
        with pytest.raises(DirectoryNotEmpty, match="tmp1"):
            await s.rmdir("g/h")
        await s.unlink("g/h/tmp1")
        assert await contents(s.store) == before
        # The folder now has only its original content.
        await s.rmdir("g/h")
        assert "g/h" not in await s.stored()


# --- other names ----------------------------------------------------------------------------------------------------------------


@EVERYWHERE
@trio_test
async def test_a_temporary_file_is_renamed_over_documents_and_chunks(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        before = await contents(s.store)
        await s.write("g/a/sedXq1aBc", b'{"units": "km"}')
        await s.write("g/a/.0.0.Zt", bytes(24))
        await s.write("g/a/short.tmp", b"x")
        assert await s.read("g/a/sedXq1aBc") == b'{"units": "km"}'
        assert await contents(s.store) == before
        await s.rename("g/a/sedXq1aBc", "g/a/.zattrs")
        await s.rename("g/a/.0.0.Zt", "g/a/0.0")
        _, attributes, *_, data = (await s.stored())["g/a"]
        assert attributes == {"units": "km"}
        assert np.frombuffer(data, "i4").reshape(4, 6)[:2, :3].tolist() == [[0] * 3] * 2
        assert (await s.json("g/a/.zattrs"))["units"] == "km"
        before = await contents(s.store)
        for name, error in ((".zattrs", ContentInvalid), ("0.0", ChunkSizeMismatch), ("9.9", NameInvalid)):
            with pytest.raises(error):
                await s.rename("g/a/short.tmp", f"g/a/{name}")
        with pytest.raises(IsADirectory):
            await s.rename("g/a/short.tmp", "g/h")
        with pytest.raises(EntryExists):
            await s.rename("g/a/short.tmp", "g/a/0.0", replace=False)
        assert await contents(s.store) == before
        assert await s.read("g/a/short.tmp") == b"x"
        await s.rename("g/a/short.tmp", "g/h/other.tmp")
        await s.unlink("g/h/other.tmp")


@EVERYWHERE
@trio_test
async def test_a_document_is_renamed_to_a_backup_and_written_anew(
    dialect: int, kind: str, consolidated: bool, tmp_path: Path
) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        before = await contents(s.store)
        document = await s.read("g/a/.zattrs")
        await s.rename("g/a/.zattrs", "g/a/.zattrs~")
        # The backup exists in the mount only; meanwhile the node keeps its attributes.
        assert await contents(s.store) == before
        assert ".zattrs" not in await s.names("g/a")
        assert await s.read("g/a/.zattrs~") == document
        await s.write("g/a/.zattrs", document.replace(b'"m"', b'"km"'))
        await s.unlink("g/a/.zattrs~")
        assert (await s.stored())["g/a"][1]["units"] == "km"
        await s.rename("g/a/.zattrs", "g/a/.x")
        await s.rename("g/a/.x", "g/a/.zattrs")
        assert (await s.stored())["g/a"][1]["units"] == "km"
        with pytest.raises(NotPermitted, match="would not be stored"):
            await s.rename("g/a/0.0", "g/a/0.0~")
        with pytest.raises(AcrossViews):
            await s.rename("g/a/0.0", "g/a/0.1")


@EVERYWHERE
@trio_test
async def test_no_file_is_renamed_over_one_that_it_may_not_fit(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    """On EXDEV, mv(1) removes the target, and then fails to copy."""
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        await s.mkdir("g/b")
        await s.write("g/b/.zarray", array_document((4,), (4,), "<i4"))
        await s.write("g/b/0", bytes(range(16)))
        before = await contents(s.store)
        for old, new in (
            ("g/a/0.0", "g/b/0"),
            ("g/a/.zarray", "g/b/.zarray"),
            ("g/b/0", "g/a/.zattrs"),
            ("g/a/.zattrs", "g/a/0.0"),
        ):
            with pytest.raises(EntryExists):
                await s.rename(old, new)
        assert await contents(s.store) == before
        assert await s.read("g/b/0") == bytes(range(16))


@EVERYWHERE
@trio_test
async def test_folders_are_renamed_with_what_is_open_in_them(dialect: int, kind: str, consolidated: bool, tmp_path: Path) -> None:
    async with scene(dialect, kind, tmp_path, consolidated) as s:
        before = await s.stored()
        chunk = await walk(s.tree, "chunks/g/a/0.0")
        handle = await chunk.open(OpenFlags(write=True))  # type: ignore[attr-defined]
        await handle.write(0, b"\xff\xff\xff\xff")
        await s.write("g/a/.note", b"x")
        await s.rename("g", "moved")
        assert await s.names() - {".zmetadata"} == {".zattrs", ".zgroup", "b", "moved"}
        await handle.write(4, b"\xff\xff\xff\xff")
        await handle.flush()
        await handle.release()
        assert await s.read("moved/a/.note") == b"x"
        nodes = await s.stored()
        assert set(nodes) == {"", "b", "moved", "moved/a", "moved/h"}
        assert nodes["moved/a"][1] == before["g/a"][1]
        assert np.frombuffer(nodes["moved/a"][5], "i4")[:3].tolist() == [-1, -1, 2]
        await s.unlink("moved/a/.note")
        # Over an empty folder, as rename(2) permits; not over one with content.
        await s.rename("moved/a", "moved/h")
        assert await s.names("moved") == {".zgroup", "h"}
        with pytest.raises(DirectoryNotEmpty):
            await s.rename("b", "moved")
        with pytest.raises(NameInvalid):
            await s.rename("moved", "moved/h")
        with pytest.raises(EntryExists):
            await s.rename("b", "moved/h", replace=False)
        assert set(await s.stored()) == {"", "b", "moved", "moved/h"}


@trio_test
async def test_a_read_only_mount_changes_no_node(tmp_path: Path) -> None:
    async with scene(3, "memory", tmp_path, read_only=True) as s:
        before = await contents(s.store)
        for attempt in (s.mkdir("x"), s.unlink("g/.zgroup"), s.rmdir("g/h"), s.rename("b", "c"), s.write("g/new", b"x")):
            with pytest.raises(StoreReadOnly):
                await attempt
        with pytest.raises(NotPermitted):
            await s.write("g/a/.zattrs", b"{}")
        assert await contents(s.store) == before


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_the_root_becomes_an_array(dialect: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store)
        await s.write("0.0", FILES["0.0"])
        await s.write(".zarray", DOCUMENT)
        assert await s.names() == {".zarray", "0.0", *([".zattrs"] if dialect == "v3" else ())}
        assert zarr.open_array(in_memory(await contents(store)), mode="r")[0].tolist() == [0, 1, 2]


@trio_test
async def test_an_undefined_fill_value_stays_so() -> None:
    for dialect, fill_value in (("v2", None), ("v3", None)):
        store = MemoryStore()
        async with tree_over(store, new_dialect=dialect) as tree:
            s = Scene(tree, store)
            await s.mkdir("a")
            await s.write("a/.zarray", array_document((4,), (2,), fill_value=None))
            assert (await s.json("a/.zarray"))["fill_value"] == fill_value
        assert "a" in await stored(store)
