"""The fill value of final v3 arrays in `chunks/`: missing data for readers of Zarr v2, and elements of missing chunks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.comparing import in_memory
from tests.support.scenes import Scene
from tests.support.small_stores import array_document
from tests.support.stores import contents, fill
from tests.support.trees import listing, load, names, read, tree_over, walk, write
from tests.support.zarr_python import written
from zarrfs.buffers import storage_nbytes
from zarrfs.errors import ContentInvalid, DirectoryNotEmpty, NoSuchEntry
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

zarr = pytest.importorskip("zarr")

REFUSED = pytest.mark.logs(r"write failed, data lost: .*(differ|read as NaN)")
NAN64 = "AAAAAAAA+H8="


async def array_in(
    store: MemoryStore, fill_value: Any = 0, attributes: dict[str, Any] | None = None, dtype: str = "<f4", **more: Any
) -> None:
    """Write an array `a` of three chunks of two elements, of which chunk 1 is stored."""

    def make(root: Any) -> None:
        array = root.create_array(
            "a", shape=(6,), chunks=(2,), dtype=dtype, fill_value=fill_value, attributes=attributes or {}, **more
        )
        array[2:4] = 1

    await fill(store, written(3, make))


@pytest.mark.parametrize(
    ("dtype", "own", "attribute", "fill_value", "shown"),
    [
        ("<f4", 0.0, None, None, None),
        ("<f4", 0.0, NAN64, "NaN", None),
        ("<f4", "NaN", None, "NaN", None),
        ("<f4", "NaN", "AAAAAICHw8A=", -9999.0, -9999.0),
        ("<f4", 0.0, -9999, -9999.0, -9999.0),
        ("<f8", 0.0, "Infinity", "Infinity", None),
        ("<f4", 0.0, 1e300, None, 1e300),
        ("<i2", 0, -1, -1, -1),
        ("<i2", 0, 70000, None, 70000),
        ("<i2", 0, "text", None, "text"),
        ("|b1", False, True, True, None),
        ("<c8", [0.0, 0.0], [NAN64, NAN64], ["NaN", "NaN"], None),
        ("<U2", "", "no", "no", None),
        ("<M8[s]", 5, None, 5, None),
    ],
)
@trio_test
async def test_what_zarr_v2_is_told(dtype: str, own: Any, attribute: Any, fill_value: Any, shown: Any) -> None:
    if dtype == "<M8[s]":
        own = np.datetime64(5, "s")
    if dtype == "<c8":
        own = 0j
    store = MemoryStore()

    def make(root: Any) -> None:
        root.create_array(
            "a",
            shape=(2,),
            chunks=(2,),
            dtype=dtype,
            fill_value=float("nan") if own == "NaN" else own,
            attributes={} if attribute is None else {"_FillValue": attribute},
            dimension_names=["x"],
        )

    await fill(store, written(3, make))
    async with tree_over(store) as tree:
        assert json.loads(await read(tree, "chunks/a/.zarray"))["fill_value"] == fill_value
        attributes = json.loads(await read(tree, "chunks/a/.zattrs"))
        assert attributes.get("_FillValue") == shown and ("_FillValue" in attributes) == (shown is not None)
        # The other views show the stored value.
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
        assert document["attributes"].get("_FillValue") == attribute


@trio_test
async def test_missing_chunks_are_there_where_nothing_says_what_they_read_as() -> None:
    store = MemoryStore()
    await array_in(store, 7)
    async with tree_over(store) as tree:
        before = await contents(store)
        assert await names(tree, "chunks/a") == {".zarray", "0", "1", "2"}
        assert np.frombuffer(await read(tree, "chunks/a/0"), "<f4").tolist() == [7, 7]
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        with pytest.raises(NoSuchEntry):
            await folder.lookup("3")
        # A program that removes every listed name terminates.
        await folder.unlink("0")
        assert await contents(store) == before
        assert "0" in await names(tree, "chunks/a")
        for name in await names(tree, "chunks/a"):
            await folder.unlink(name)
        top = await walk(tree, "chunks")
        assert isinstance(top, Directory)
        await top.rmdir("a")
        assert await names(tree, "chunks") == {".zgroup"}


@pytest.mark.parametrize("shards", [None, (4,)])
@pytest.mark.parametrize(
    ("dtype", "own", "attribute", "removed"),
    [
        ("<f4", 0, NAN64, np.nan),
        ("<i2", 0, -9, -9),
        ("<i2", 5, -9, -9),
    ],
)
@trio_test
async def test_a_chunk_that_a_program_removes_reads_as_the_fill_value_that_it_knows(
    dtype: Any, own: Any, attribute: Any, removed: Any, shards: Any
) -> None:
    """zarr-python 3, tensorstore and GDAL remove a chunk instead of writing it if all its elements are that value."""
    store = MemoryStore()

    def make(root: Any) -> None:
        attributes = {} if attribute is None else {"_FillValue": attribute}
        array = root.create_array("a", shape=(7,), chunks=(2,), dtype=dtype, fill_value=own, attributes=attributes, shards=shards)
        array[2:4] = "z" if dtype is str else 1

    await fill(store, written(3, make))
    async with tree_over(store) as tree:
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        data = await read(tree, "chunks/a/0")
        for name in ("0", "1", "3"):
            await folder.unlink(name)
            # tar removes an existing file and creates it with O_EXCL.
            with pytest.raises(NoSuchEntry):
                await folder.lookup(name)
        await write(tree, "chunks/a/0", data)
        await folder.lookup("0")
        await folder.unlink("0")
        top = await walk(tree, "chunks")
        assert isinstance(top, Directory)
        with pytest.raises(DirectoryNotEmpty):
            await top.rmdir("a")
        await folder.sync()
    array = zarr.open_array(in_memory(await contents(store)), path="a", mode="r")
    expected = [removed] * 4 + [own] * 2 + [removed]
    assert all(a == b or (a != a and b != b) for a, b in zip(array[...].tolist(), expected, strict=True))


@trio_test
async def test_an_array_of_which_all_chunks_were_removed_can_be_removed() -> None:
    store = MemoryStore()
    await array_in(store, 7, {"_FillValue": NAN64})
    async with tree_over(store) as tree:
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        for name in ("0", "1", "2", ".zarray"):
            await folder.unlink(name)
        top = await walk(tree, "chunks")
        assert isinstance(top, Directory)
        await write(tree, "npy/a.npy", await read(tree, "npy/a.npy"))
        await top.rmdir("a")
        assert not [key for key in await contents(store) if key.startswith("a/")]


@trio_test
async def test_chunks_removed_before_the_array_shrinks_are_erased() -> None:
    """zarr-python 3 removes the chunks outside of a new shape, and then writes it."""
    store = MemoryStore()
    await array_in(store, 7, {"_FillValue": NAN64})
    async with tree_over(store) as tree:
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        document = json.loads(await read(tree, "chunks/a/.zarray"))
        for name in ("1", "2"):
            await folder.unlink(name)
        file = await folder.lookup(".zarray")
        assert isinstance(file, File)
        handle = await file.open(OpenFlags(read=False, write=True, truncate=True))
        await handle.write(0, json.dumps(document | {"shape": [2]}).encode())
        await handle.flush()
        await handle.release()
        assert not [key for key in await contents(store) if key.startswith("a/c/")]
        await write(tree, "chunks/a/.zarray", json.dumps(document).encode())
        assert np.frombuffer(await read(tree, "chunks/a/1"), "<f4").tolist() == [7, 7]


@trio_test
async def test_a_missing_chunk_of_zeros_takes_no_room() -> None:
    store = MemoryStore()
    await array_in(store, 0)
    async with tree_over(store) as tree:
        entries = await listing(tree, "chunks/a")
        assert [(each[2], storage_nbytes(each[2])) for each in (entries["0"], entries["1"])] == [(8, 0), (8, 8)]
        await write(tree, "chunks/a/0", bytes(8))
        assert storage_nbytes((await listing(tree, "chunks/a"))["0"][2]) == 8


@trio_test
async def test_a_copy_has_all_that_the_array_has() -> None:
    store = MemoryStore()
    await array_in(store, 7, {"_FillValue": 1.0}, shards=(6,))
    async with tree_over(store) as tree:
        files = {name: await read(tree, f"chunks/a/{name}") for name in await names(tree, "chunks/a")}
    copy = zarr.open_array(in_memory(files), mode="r", zarr_format=2)
    assert copy[...].tolist() == [7, 7, 1, 1, 7, 7] and copy.fill_value == 1


@pytest.mark.parametrize(("fill_value", "attributes"), [(float("nan"), {}), (3, {"_FillValue": 3.0})])
@trio_test
async def test_chunks_that_readers_fill_are_not_listed(fill_value: float, attributes: dict[str, Any]) -> None:
    store = MemoryStore()
    await array_in(store, fill_value, attributes)
    async with tree_over(store) as tree:
        assert "0" not in await names(tree, "chunks/a")
        with pytest.raises(NoSuchEntry):
            await read(tree, "chunks/a/0")


@trio_test
async def test_very_many_missing_chunks_are_read_but_not_listed() -> None:
    store = MemoryStore()

    def make(root: Any) -> None:
        array = root.create_array("a", shape=(70_000,), chunks=(1,), dtype="i1", fill_value=7)
        array[5] = 1

    await fill(store, written(3, make))
    async with tree_over(store) as tree:
        assert {name for name in await names(tree, "chunks/a") if not name.startswith(".")} == {"5"}
        assert await read(tree, "chunks/a/6") == b"\7"
        assert json.loads(await read(tree, "chunks/a/.zattrs")) == {"zarrfs": {"missing_chunks_read_as": 7}}
        assert "missing_chunks_read_as" in (await read(tree, "README.txt")).decode()
        # Attributes added by the view are removed again when written back.
        before = await contents(store)
        await write(tree, "chunks/a/.zattrs", await read(tree, "chunks/a/.zattrs"))
        assert await contents(store) == before


# --- writing ---------------------------------------------------------------------------------------------------------------------


async def new_scene(store: MemoryStore) -> None:
    await fill(store, written(3, lambda root: None))


def v3(values: dict[str, bytes]) -> tuple[Any, Any]:
    """Return the stored fill value of `a`, and its `_FillValue`."""
    document = json.loads(values["a/zarr.json"])
    return document["fill_value"], document["attributes"].get("_FillValue")


@pytest.mark.parametrize(
    ("dtype", "fill_value", "stored"),
    [
        ("<i2", -9999, (-9999, -9999)),
        ("<i2", None, (0, None)),
        ("<f4", "NaN", ("NaN", NAN64)),
        ("<f4", -9999.0, (-9999.0, "AAAAAICHw8A=")),
        ("|b1", True, (True, True)),
        ("<M8[s]", 5, (5, None)),
    ],
)
@pytest.mark.parametrize("first", [".zarray", ".zattrs"])
@trio_test
async def test_a_new_array_says_the_same_after_a_remount(dtype: str, fill_value: Any, stored: Any, first: str) -> None:
    store = MemoryStore()
    await new_scene(store)
    documents = {".zarray": array_document((4,), (2,), dtype, fill_value=fill_value), ".zattrs": b'{"units": "m"}'}
    async with tree_over(store) as tree:
        await Scene(tree, store).mkdir("a")
        for name in sorted(documents, key=lambda each: each != first):
            await write(tree, f"chunks/a/{name}", documents[name])
    assert v3(await contents(store)) == stored
    async with tree_over(store) as tree:
        assert json.loads(await read(tree, "chunks/a/.zarray"))["fill_value"] == fill_value
        assert json.loads(await read(tree, "chunks/a/.zattrs"))["units"] == "m"


@pytest.mark.parametrize(("dtype", "fill_value"), [("<U2", ""), ("|S2", ""), ("|S2", "YWI=")])
@trio_test
async def test_text_gets_no_attribute_that_xarray_could_not_open(dtype: str, fill_value: str) -> None:
    store = MemoryStore()
    await new_scene(store)
    document = array_document((4,), (2,), dtype, fill_value=fill_value)
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", document)
        # zarr-python 2 reads on, without a listing, and would take null for uninitialized memory.
        assert await s.read("a/.zarray") == document
        # As zarr-python resizes it, with the fill value that it wrote.
        await s.write("a/.zarray", json.loads(document) | {"shape": [6]})
        assert (await s.json("a/.zarray"))["shape"] == [6]
    assert json.loads((await contents(store))["a/zarr.json"])["attributes"] == {}
    async with tree_over(store) as tree:
        assert json.loads(await read(tree, "chunks/a/.zarray"))["fill_value"] is None


@trio_test
async def test_the_fill_value_of_a_new_array_of_text_is_not_shown_once_it_has_another() -> None:
    """The document was shown as written, with a value that its missing chunks no longer have."""
    store = MemoryStore()
    await new_scene(store)
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((4,), (2,), "|S2", fill_value="YWI="))
        stored = json.loads((await contents(store))["a/zarr.json"])
        await store.set(Key("a/zarr.json"), json.dumps(stored | {"fill_value": "eHk="}).encode())
        tree.hierarchy.forget_all()
        assert (await s.json("a/.zarray"))["fill_value"] is None
        await names(tree, "chunks/a")
        assert await s.read("a/0") == b"xyxy"


@REFUSED
@trio_test
async def test_the_fill_value_of_an_array_is_changed_without_its_missing_chunks() -> None:
    store = MemoryStore()
    await array_in(store, 7)
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        document = await s.json("a/.zarray")
        await s.write("a/.zarray", document | {"fill_value": -1.0})
        assert v3(await contents(store)) == (7.0, "AAAAAAAA8L8=")
        # Programs write empty attributes in between.
        await s.write("a/.zattrs", {})
        await s.unlink("a/.zattrs")
        assert v3(await contents(store)) == (7.0, "AAAAAAAA8L8=")
        before = await contents(store)
        await s.write("a/.zarray", document | {"fill_value": -1.0})
        await s.write("a/.zattrs", {"_FillValue": -1})
        assert await contents(store) == before
        with pytest.raises(ContentInvalid, match=r"_FillValue \(5\) and the fill_value of .zarray differ"):
            await s.write("a/.zattrs", {"_FillValue": 5})
        with pytest.raises(ContentInvalid, match="differ"):
            await s.write("a/.zattrs", {"_FillValue": "what the type cannot hold"})
        assert await contents(store) == before
        await s.write("a/.zarray", document | {"fill_value": None})
        assert v3(await contents(store)) == (7.0, None)
        await s.write("a/.zattrs", {"_FillValue": 5})
        assert (await s.json("a/.zarray"))["fill_value"] == 5.0
        await s.write("a/.zarray", document | {"fill_value": 4.0, "shape": [8]})
        assert v3(await contents(store)) == (7.0, "AAAAAAAAEEA=")
        assert (await s.json("a/.zarray"))["shape"] == [8]


@trio_test
async def test_missing_chunks_are_listed_as_soon_as_another_fill_value_is_written() -> None:
    store = MemoryStore()
    await array_in(store, 7, {"_FillValue": 7})
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        document = await s.json("a/.zarray")
        in_use = await walk(tree, "chunks/a/1")
        assert await names(tree, "chunks/a") == {".zarray", ".zattrs", "1"}
        await s.write("a/.zarray", document | {"fill_value": 9.0})
        assert await names(tree, "chunks/a") == {".zarray", ".zattrs", "0", "1", "2"}
        assert np.frombuffer(await read(tree, "chunks/a/0"), "<f4").tolist() == [7, 7]
        await s.write("a/.zarray", document)
        assert await names(tree, "chunks/a") == {".zarray", ".zattrs", "1"}
        assert isinstance(in_use, File)


@REFUSED
@trio_test
async def test_a_new_array_with_an_attribute_that_says_otherwise_is_refused() -> None:
    store = MemoryStore()
    await new_scene(store)
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zattrs", {"_FillValue": 1})
        with pytest.raises(ContentInvalid, match="differ"):
            await s.write("a/.zarray", array_document((4,), (2,), fill_value=2))
        await s.write("a/.zarray", array_document((4,), (2,), fill_value=1))
        assert v3(await contents(store)) == (1, 1)
        # No defaults of netCDF, though the last ones are as floats.
        for name, dtype, fill_value, other in (("b", "|b1", True, False), ("i", "<i8", -(2**63), 0), ("u", "<u8", 2**64 - 1, 0)):
            await s.mkdir(name)
            await s.write(f"{name}/.zarray", array_document((4,), (2,), dtype, fill_value=fill_value))
            with pytest.raises(ContentInvalid, match="differ"):
                await s.write(f"{name}/.zattrs", {"_FillValue": other})


NETCDF_DEFAULTS = [
    ("<f4", 9.96921e36),
    ("<f8", 9.96921e36),
    ("|i1", -127),
    ("|u1", 255),
    ("<i2", -32767),
    ("<u2", 65535),
    ("<i4", -2147483647),
    ("<u4", 4294967295),
    ("<i8", -9223372036854775806),
    ("<u8", 18446744073709551614),
]


@pytest.mark.parametrize("first", [".zarray", ".zattrs"])
@pytest.mark.parametrize(("dtype", "default"), NETCDF_DEFAULTS)
@trio_test
async def test_a_default_of_netcdf_lies_beside_any_other_fill_value(dtype: str, default: Any, first: str) -> None:
    """netCDF-C 4.9 writes the default where a variable has another ``_FillValue``, and ignores the error of close(2): NCO and CDO lost
    all attributes, and missing data became numbers."""
    store = MemoryStore()
    await new_scene(store)
    documents = {".zarray": array_document((4,), (2,), dtype, fill_value=default), ".zattrs": {"_FillValue": 3, "units": "m"}}
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        for name in sorted(documents, key=lambda each: each != first):
            await s.write(f"a/{name}", documents[name])
        assert (await s.json("a/.zarray"))["fill_value"] == 3 and (await s.json("a/.zattrs"))["units"] == "m"
        await s.write("a/.zattrs", {"_FillValue": 4})
        assert (await s.json("a/.zarray"))["fill_value"] == 4
    async with tree_over(store) as tree:
        assert (await Scene(tree, store).json("a/.zarray"))["fill_value"] == 4
        # Missing chunks are what they were for netCDF-C.
        np.testing.assert_allclose(await load(tree, "npy/a.npy"), np.full(4, default, dtype), rtol=1e-6)


@trio_test
async def test_members_of_netcdf_stay_where_attributes_change_the_fill_value() -> None:
    """netCDF-C opens no hierarchy in which the documents of groups have them, and those of arrays do not."""
    store = MemoryStore()
    await new_scene(store)
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        document = json.loads(array_document((4,), (2,), "<f4", fill_value=None, _NCZARR_ARRAY={"dimrefs": ["/x"]}))
        await s.write("a/.zarray", document)
        await s.write("a/.zattrs", {"_FillValue": -999.0})
        assert await s.json("a/.zarray") == document | {"fill_value": -999.0}
        await s.write("a/.zarray", document | {"fill_value": -1.0})
        assert await s.json("a/.zarray") == document | {"fill_value": -1.0}


@pytest.mark.parametrize("first", [".zarray", ".zattrs"])
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
@trio_test
async def test_in_drafts_of_v3_a_fill_value_of_nan_may_lie_beside_another_attribute(dialect: str, first: str) -> None:
    """As `cp -r` copies such an array of v2, in any order of its documents."""
    store = MemoryStore()
    documents = {".zarray": array_document((4,), (2,), "<f4", fill_value="NaN"), ".zattrs": {"_FillValue": -9999.0}}
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        for name in sorted(documents, key=lambda name: name != first):
            await s.write(f"a/{name}", documents[name])
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        assert (await s.json("a/.zattrs"), (await s.json("a/.zarray"))["fill_value"]) == ({"_FillValue": -9999.0}, -9999.0)
        assert np.isnan(await load(tree, "npy/a.npy")).all()


@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
@trio_test
async def test_in_drafts_of_v3_the_attribute_may_be_changed_where_the_fill_value_cannot(dialect: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((4,), (2,), fill_value=-9999))
        await s.write("a/.zattrs", {"_FillValue": -9999})
        await s.write("a/.zattrs", {"_FillValue": -1})
        assert (await s.json("a/.zattrs"), (await s.json("a/.zarray"))["fill_value"]) == ({"_FillValue": -1}, -9999)


@REFUSED
@pytest.mark.parametrize("attributes", [{}, {"_FillValue": -9}, {"_FillValue": "NaN"}])
@trio_test
async def test_a_fill_value_of_nan_cannot_be_taken_away(attributes: dict[str, Any]) -> None:
    """Programs take null for zero: chunks of zeros that they left out would read as NaN."""
    store = MemoryStore()
    await array_in(store, float("nan"), attributes)
    before = await contents(store)
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        with pytest.raises(ContentInvalid, match="read as NaN"):
            await s.write("a/.zarray", await s.json("a/.zarray") | {"fill_value": None})
    assert await contents(store) == before


@trio_test
async def test_names_of_dimensions_are_those_of_the_document() -> None:
    store = MemoryStore()
    await new_scene(store)
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        for name, first in (("a", ".zarray"), ("b", ".zattrs")):
            await s.mkdir(name)
            files = {".zarray": array_document((4,), (2,)), ".zattrs": b'{"_ARRAY_DIMENSIONS": ["x"], "units": "m"}'}
            for each in sorted(files, key=lambda each, first=first: each != first):
                await s.write(f"{name}/{each}", files[each])
            document = json.loads((await contents(store))[f"{name}/zarr.json"])
            assert document["dimension_names"] == ["x"] and document["attributes"] == {"units": "m", "_FillValue": 7}
            assert (await s.json(f"{name}/.zattrs"))["_ARRAY_DIMENSIONS"] == ["x"]
        await s.mkdir("scalar")
        await s.write("scalar/.zarray", array_document((), ()))
        assert await s.names("scalar") == {".zarray", ".zattrs"}
        assert (await s.json("scalar/.zattrs"))["_ARRAY_DIMENSIONS"] == []
        # A list that names no dimensions is an attribute, until they are named.
        for names, attribute in ((["x", "y"], ["x", "y"]), (["z"], None)):
            await s.write("a/.zattrs", {"_ARRAY_DIMENSIONS": names})
            document = json.loads((await contents(store))["a/zarr.json"])
            assert document["attributes"].get("_ARRAY_DIMENSIONS") == attribute
            assert document["dimension_names"] == (["x"] if attribute else ["z"])


@trio_test
async def test_programs_that_fill_a_new_array_find_nothing_there_that_they_did_not_write() -> None:
    """`cp -r` creates each file with O_EXCL; `tar` unlinks an existing one, and tries again."""
    store = MemoryStore()
    await new_scene(store)
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((6,), (2,), fill_value=3))
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        for name in (".zattrs", "0"):
            with pytest.raises(NoSuchEntry):
                await folder.lookup(name)
        await s.mkdir("b")
        await s.write("b/.zarray", array_document((6,), (2,), fill_value=None))
        folder = await walk(tree, "chunks/b")
        assert isinstance(folder, Directory)
        with pytest.raises(NoSuchEntry):
            await folder.lookup("0")
        await s.write("b/1", bytes(8))
        await folder.lookup("1")
        # After a listing, all names exist.
        assert await s.names("a") == {".zarray", ".zattrs"}
        assert await s.names("b") == {".zarray", "0", "1", "2"}
        await folder.lookup("0")
        await folder.unlink("0")
        await folder.unlink("1")
        for name in ("0", "1"):
            with pytest.raises(NoSuchEntry):
                await folder.lookup(name)
        await folder.lookup("2")
        await s.write("b/1", bytes(8))
        await folder.lookup("1")
        assert await s.names("b") == {".zarray", "0", "1", "2"}
