"""``zarr3/``: the form of arrays and chunks, and the stored form of written chunks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.comparing import in_memory
from tests.support.small_stores import array_document
from tests.support.stores import contents, fill
from tests.support.trees import READ_ONLY, listing, names, read, tree_over, walk, write
from zarrfs.errors import ContentInvalid, EntryExists, FileTooLarge, NameInvalid, NoSuchEntry, StaleEntry, StoreReadOnly
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

NEW = OpenFlags(read=False, write=True, truncate=True)
GIVEN_UP = pytest.mark.logs("write failed, data lost")
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}


def document(shape: list[int], chunks: list[int], **more: Any) -> dict[str, Any]:
    """Return an int32 array of the final v3 with fill value 7."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 7,
        "codecs": [BYTES],
        "attributes": {},
    } | more


def encoding(name: str, separator: str) -> dict[str, Any]:
    return {"chunk_key_encoding": {"name": name, "configuration": {"separator": separator}}}


async def store_with(values: dict[str, bytes | dict[str, Any]]) -> MemoryStore:
    store = MemoryStore()
    await fill(store, {key: value if isinstance(value, bytes) else json.dumps(value).encode() for key, value in values.items()})
    return store


async def folder_of(tree: Any, path: str) -> Directory:
    folder = await walk(tree, path)
    assert isinstance(folder, Directory)
    return folder


def chunk(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


# --- documents ------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_the_document_says_the_array_and_nothing_stale() -> None:
    source = document([4, 4], [2, 2], dimension_names=["y", None], attributes={"a": [1, None]}, codecs=[BYTES, GZIP])
    root: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {"t": 1}}
    root["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": {"a": source | {"shape": [9, 9]}}}
    async with tree_over(await store_with({"zarr.json": root, "a/zarr.json": source})) as tree:
        shown = json.loads(await read(tree, "zarr3/a/zarr.json"))
        assert shown == source | {"storage_transformers": []}
        root["consolidated_metadata"] |= {"metadata": {"a": shown}}
        assert json.loads(await read(tree, "zarr3/zarr.json")) == root


@trio_test
async def test_a_v2_array_in_the_words_of_v3() -> None:
    values: dict[str, Any] = {
        "a/.zarray": array_document((4, 3), (2, 3), ">i2", fill_value=None, order="F", compressor={"id": "zlib", "level": 1}),
        "a/.zattrs": {"units": "m", "_ARRAY_DIMENSIONS": ["y", "x"]},
    }
    async with tree_over(await store_with(values)) as tree:
        shown = json.loads(await read(tree, "zarr3/a/zarr.json"))
    assert shown == {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 3],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "bytes", "configuration": {"endian": "big"}},
            {"name": "numcodecs.zlib", "configuration": {"level": 1}},
        ],
        "attributes": {"units": "m"},
        "dimension_names": ["y", "x"],
        "storage_transformers": [],
    }


@pytest.mark.logs("data_type of an array cannot be changed")
@trio_test
async def test_a_program_spells_the_data_type_as_it_likes() -> None:
    """zarr-python 3.1 writes `structured`, 3.4 `struct`, whatever it has read."""
    fields = [["r", "uint8"], ["g", "int16"]]
    source = document([4], [2], codecs=[BYTES], fill_value="AAAA")
    source |= {"data_type": {"name": "structured", "configuration": {"fields": fields}}}
    spelled = {"name": "struct", "configuration": {"fields": [{"name": name, "data_type": each} for name, each in fields]}}
    async with tree_over(await store_with({"a/zarr.json": source})) as tree:
        written = source | {"data_type": spelled, "fill_value": {"r": 0, "g": 0}, "attributes": {"units": "K"}}
        await write(tree, "zarr3/a/zarr.json", json.dumps(written).encode())
        assert json.loads(await read(tree, "raw/a/zarr.json")) == source | {"attributes": {"units": "K"}}
        spelled["configuration"] = {"fields": [{"name": "r", "data_type": "int8"}, {"name": "g", "data_type": "int16"}]}
        with pytest.raises(ContentInvalid, match="data_type of an array cannot be changed"):
            await write(tree, "zarr3/a/zarr.json", json.dumps(written).encode())


# --- names of chunks ------------------------------------------------------------------------------------------------------------

KEYS = {
    "default /": (encoding("default", "/"), "c/1/0", ["c"], ["c/1"]),
    "default .": (encoding("default", "."), "c.1.0", ["c.1.0"], []),
    "v2 .": (encoding("v2", "."), "1.0", ["1.0"], []),
    "v2 /": (encoding("v2", "/"), "1/0", ["1"], []),
}


@pytest.mark.parametrize(("keys", "key", "top", "folders"), KEYS.values(), ids=KEYS)
@trio_test
async def test_the_keys_are_those_of_the_array(keys: dict[str, Any], key: str, top: list[str], folders: list[str]) -> None:
    source = document([4, 4], [2, 2], **keys)
    async with tree_over(await store_with({"a/zarr.json": source, f"a/{key}": chunk(1, 2, 3, 4)})) as tree:
        assert await names(tree, "zarr3/a") == {"zarr.json", *top}
        for folder in folders:
            assert await names(tree, f"zarr3/a/{folder}") == {"0"}
        assert await read(tree, f"zarr3/a/{key}") == chunk(1, 2, 3, 4)
        assert json.loads(await read(tree, "zarr3/a/zarr.json"))["chunk_key_encoding"] == source["chunk_key_encoding"]


@trio_test
async def test_folders_of_keys_are_found_where_a_chunk_could_lie_and_listed_where_one_does() -> None:
    store = await store_with({"a/zarr.json": document([4, 4], [2, 2]), "s/zarr.json": document([], []), "s/c": chunk(5)})
    async with tree_over(store) as tree:
        assert await names(tree, "zarr3/a") == {"zarr.json"}
        for folder in ("c", "c/0", "c/1"):
            assert await names(tree, f"zarr3/a/{folder}") == set()
        for nothing in ("c/2", "c/00", "c/x", "d", "0", "c/0/0", "c/0/2", "c/0/0/0", "c/c"):
            with pytest.raises(NoSuchEntry):
                await walk(tree, f"zarr3/a/{nothing}")
        with pytest.raises(EntryExists):
            await (await folder_of(tree, "zarr3/a")).mkdir("c")
        await write(tree, "zarr3/a/c/1/0", chunk(1, 2, 3, 4))
        assert await names(tree, "zarr3/a") == {"zarr.json", "c"}
        assert await names(tree, "zarr3/a/c") == {"1"}
        await (await folder_of(tree, "zarr3/a/c/1")).unlink("0")
        assert await names(tree, "zarr3/a") == {"zarr.json"}
        # For an array without dimensions the file has the name of the folder.
        assert await read(tree, "zarr3/s/c") == chunk(5)
        assert await names(tree, "zarr3/s") == {"zarr.json", "c"}


@trio_test
async def test_a_chunk_that_is_being_written_is_listed_with_its_folders() -> None:
    async with tree_over(await store_with({"a/zarr.json": document([4, 4], [2, 2])})) as tree:
        _, handle = await (await folder_of(tree, "zarr3/a/c/0")).create("1", NEW)
        await handle.write(0, chunk(1, 2))
        assert await names(tree, "zarr3/a") == {"zarr.json", "c"}
        assert await names(tree, "zarr3/a/c") == {"0"}
        assert (await listing(tree, "zarr3/a/c/0"))["1"][2] == 8
        await handle.write(8, chunk(3, 4))
        await handle.release()


@pytest.mark.parametrize("name", ["2", "c/2/0", "c/0/2", "c/0/0/0", "c.0.0", "0.0", "c/0", "c"])
@trio_test
async def test_what_is_no_chunk_cannot_be_created(name: str) -> None:
    store = await store_with({"a/zarr.json": document([4, 4], [2, 2])})
    before = await contents(store)
    async with tree_over(store) as tree:
        path, _, last = f"zarr3/a/{name}".rpartition("/")
        with pytest.raises((NameInvalid, EntryExists, NoSuchEntry)):
            await (await folder_of(tree, path)).create(last, NEW)
    assert await contents(store) == before


@trio_test
async def test_nodes_whose_names_could_be_parts_of_keys() -> None:
    group = {"zarr_format": 3, "node_type": "group"}
    nodes = {"c/zarr.json": group, "c/0/zarr.json": group, "c/0/1/zarr.json": document([2], [2]), "c/0/1/c/0": chunk(1, 2)}
    async with tree_over(await store_with({"zarr.json": group, **nodes})) as tree:
        assert await names(tree, "zarr3") == {"zarr.json", "c"}
        assert await names(tree, "zarr3/c/0") == {"zarr.json", "1"}
        assert await names(tree, "zarr3/c/0/1") == {"zarr.json", "c"}
        assert await read(tree, "zarr3/c/0/1/c/0") == chunk(1, 2)


@trio_test
async def test_the_root_may_be_an_array() -> None:
    async with tree_over(await store_with({"zarr.json": document([4], [2]), "c/1": chunk(1, 2)})) as tree:
        assert await names(tree, "zarr3") == {"zarr.json", "c"}
        assert await names(tree, "zarr3/c") == {"1"}
        await write(tree, "zarr3/c/0", chunk(3, 4))
        assert np.frombuffer(await read(tree, "chunks/0"), "<i4").tolist() == [3, 4]


# --- writing --------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_the_bytes_that_are_written_are_stored() -> None:
    zarr = pytest.importorskip("zarr")
    numcodecs = pytest.importorskip("numcodecs")
    store = await store_with(
        {"zarr.json": {"zarr_format": 3, "node_type": "group"}, "a/zarr.json": document([3], [2], codecs=[BYTES, GZIP])}
    )
    async with tree_over(store) as tree:
        for number, values in enumerate(((1, 2), (3, 99))):
            encoded = numcodecs.GZip(9).encode(chunk(*values))
            await write(tree, f"zarr3/a/c/{number}", encoded)
            # Padding beyond the edge is kept as well: the chunk is stored as the program wrote it.
            assert (await contents(store))[f"a/c/{number}"] == encoded == await read(tree, f"zarr3/a/c/{number}")
        assert np.frombuffer(await read(tree, "chunks/a/1"), "<i4").tolist() == [3, 99]
    assert zarr.open_array(in_memory(await contents(store)), path="a", mode="r")[...].tolist() == [1, 2, 3]


@GIVEN_UP
@pytest.mark.parametrize("data", [b"", b"nonsense", chunk(1, 2)], ids=["empty", "nonsense", "plain"])
@trio_test
async def test_what_does_not_decode_leaves_the_store_as_it_was(data: bytes) -> None:
    store = await store_with({"a/zarr.json": document([4], [2], codecs=[BYTES, GZIP])})
    before = await contents(store)
    async with tree_over(store) as tree:
        _, handle = await (await folder_of(tree, "zarr3/a/c")).create("0", NEW)
        await handle.write(0, data)
        for attempt in (handle.flush, handle.fsync):
            with pytest.raises(ContentInvalid, match=r"zarr3/a/c/0: decoding chunk \(0,\)"):
                await attempt()
        await handle.release()
        with pytest.raises(FileTooLarge):
            await write(tree, "zarr3/a/c/0", bytes(200_000))
        assert await names(tree, "zarr3/a") == {"zarr.json"}
    assert await contents(store) == before


@trio_test
async def test_a_part_of_a_chunk_is_changed() -> None:
    store = await store_with({"a/zarr.json": document([4], [4]), "a/c/0": chunk(1, 2, 3, 4)})
    async with tree_over(store) as tree:
        file = await walk(tree, "zarr3/a/c/0")
        assert isinstance(file, File)
        handle = await file.open(OpenFlags(write=True))
        await handle.write(4, chunk(9))
        await handle.release()
    assert (await contents(store))["a/c/0"] == chunk(1, 9, 3, 4)


@trio_test
async def test_a_reader_gets_one_value_or_learns_that_it_is_stale() -> None:
    large = 3 << 20
    store = await store_with({"a/zarr.json": document([large], [large]), "a/c/0": bytes(4 * large)})
    async with tree_over(store) as tree:
        file = await walk(tree, "zarr3/a/c/0")
        assert isinstance(file, File)
        handle = await file.open(READ_ONLY)
        assert bytes(await handle.read(0, 4)) == bytes(4)
        await write(tree, "chunks/a/0", b"\1" * (4 * large))
        with pytest.raises(StaleEntry):
            await handle.read(4 * large - 4, 4)
        await handle.release()
        assert (await read(tree, "zarr3/a/c/0"))[-4:] == b"\1" * 4


@trio_test
async def test_a_chunk_that_is_not_stored_is_not_there_with_fill_either() -> None:
    async with tree_over(await store_with({"a/zarr.json": document([4], [2])}), fill=True) as tree:
        with pytest.raises(NoSuchEntry):
            await walk(tree, "zarr3/a/c/0")


@trio_test
async def test_a_read_only_mount_creates_and_erases_nothing() -> None:
    store = await store_with({"a/zarr.json": document([4], [2]), "a/c/0": chunk(1, 2)})
    before = await contents(store)
    async with tree_over(store, read_only=True) as tree:
        folder, top = await folder_of(tree, "zarr3/a/c"), await folder_of(tree, "zarr3")
        for attempt in (folder.create("1", NEW), folder.unlink("0"), folder.mkdir("x"), top.mkdir("g"), top.rmdir("a")):
            with pytest.raises(StoreReadOnly):
                await attempt
    assert await contents(store) == before


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"data_type": "float32", "fill_value": "0x7fc00001"}, {"fill_value": "NaN"}),
        ({"data_type": "complex64", "fill_value": ["0xffc00000", 2.0]}, {"fill_value": ["NaN", 2.0]}),
        (
            {"data_type": "bytes", "fill_value": [1, 2], "codecs": ["vlen-bytes"]},
            {"data_type": "variable_length_bytes", "fill_value": "AQI="},
        ),
        ({"shape": [0], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}}, {}),
    ],
)
@trio_test
async def test_attributes_of_an_array_that_zarr_python_writes_in_other_words(more: dict[str, Any], shown: dict[str, Any]) -> None:
    """It reads each NaN as "NaN", and `bytes` as the type of its own: its documents were refused."""
    before = document([4], [2]) | more
    store = await store_with({"a/zarr.json": before})
    async with tree_over(store) as tree:
        written = json.loads(await read(tree, "zarr3/a/zarr.json")) | shown | {"attributes": {"u": 1}}
        await write(tree, "zarr3/a/zarr.json", json.dumps(written).encode())
    assert json.loads((await contents(store))["a/zarr.json"]) == before | {"attributes": {"u": 1}}


@GIVEN_UP
@trio_test
async def test_a_nan_with_another_payload_is_another_fill_value() -> None:
    store = await store_with({"a/zarr.json": document([4], [2], data_type="float32", fill_value="NaN")})
    before = await contents(store)
    async with tree_over(store) as tree:
        written = json.loads(await read(tree, "zarr3/a/zarr.json")) | {"fill_value": "0x7fc00001"}
        with pytest.raises(ContentInvalid):
            await write(tree, "zarr3/a/zarr.json", json.dumps(written).encode())
    assert await contents(store) == before
