"""``chunks/``: listing, reading, and the stored form of written chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import trio_test

from tests.support.arrays import Example
from tests.support.comparing import in_memory
from tests.support.small_disks import small_disk
from tests.support.small_stores import array_document
from tests.support.stores import HangingStore, contents, fill
from tests.support.trees import READ_ONLY, listing, names, read, tree_over, walk, write
from zarrfs.errors import ChunkSizeMismatch, FileTooLarge, NameInvalid, NoSuchEntry, StoreReadOnly
from zarrfs.keys import Key
from zarrfs.stores.change import Change
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

GROUP = b'{"zarr_format":2}'
NEW = OpenFlags(read=False, write=True, truncate=True)


async def store_with(values: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    await fill(store, {".zgroup": GROUP, **values})
    return store


# --- reading -------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_listing_shows_the_chunks_that_are_stored_inside_the_grid() -> None:
    example = Example((4, 4), (2, 3), missing=frozenset({(1, 0)}))
    beyond = {"a/2.0": b"x", "a/0.0.0": b"x", "a/00.1": b"x", "a/note.txt": b"x", "a/0/1": b"x"}
    async with tree_over(await store_with(example.values("a") | beyond)) as tree:
        assert await names(tree, "chunks/a") == {".zarray", "0.0", "0.1", "1.1"}
        for name, (_, _, size, _, writable) in (await listing(tree, "chunks/a")).items():
            assert name == ".zarray" or (size, writable) == (12, True)
        for name in ("1.0", "2.0", "0.0.0", "00.1", "note.txt", "0", "0.0.", "-1.0", "1e0.0", "\u0660.0"):
            with pytest.raises(NoSuchEntry):
                await walk(tree, f"chunks/a/{name}")


@pytest.mark.parametrize("separator", [".", "/"])
@trio_test
async def test_names_have_dots_whatever_the_store_has(separator: str) -> None:
    example = Example((4, 4), (2, 3))
    values = {
        key.replace(".", separator) if not key.endswith("array") else key: value for key, value in example.values("a").items()
    }
    values["a/.zarray"] = array_document((4, 4), (2, 3), "<i2", fill_value=7, dimension_separator=separator)
    async with tree_over(await store_with(values)) as tree:
        assert await names(tree, "chunks/a") == {".zarray", "0.0", "0.1", "1.0", "1.1"}
        assert np.frombuffer(await read(tree, "chunks/a/1.0"), "<i2").tolist() == [9, 10, 11, 13, 14, 15]


@trio_test
async def test_a_chunk_that_is_not_stored_is_not_there_unless_it_is_asked_to_be() -> None:
    example = Example((4,), (2,), missing=frozenset({(1,)}))
    async with tree_over(await store_with(example.values("a"))) as tree:
        with pytest.raises(NoSuchEntry):
            await walk(tree, "chunks/a/1")
    async with tree_over(await store_with(example.values("a")), fill=True) as tree:
        assert np.frombuffer(await read(tree, "chunks/a/1"), "<i2").tolist() == [7, 7]
        assert await names(tree, "chunks/a") == {".zarray", "0"}
        with pytest.raises(NoSuchEntry):
            await walk(tree, "chunks/a/2")


@pytest.mark.parametrize("stored", [True, False])
@trio_test
async def test_an_open_chunk_stays_what_it_was_without_memory_to_keep_it(stored: bool) -> None:
    """Half of it is read before another program stores the chunk, half after."""
    example = Example((4,), (2,), missing=frozenset() if stored else frozenset({(1,)}))
    store = await store_with(example.values("a"))
    async with tree_over(store, fill=True) as tree:
        file = await walk(tree, "chunks/a/1")
        assert isinstance(file, File)
        handle = await file.open(READ_ONLY)
        before = np.array([3, 4] if stored else [7, 7], "<i2").tobytes()
        kept = tree.staging.room.kept
        assert kept.take(kept.limit - kept.nbytes)
        assert bytes(await handle.read(0, 2)) == before[:2]
        await store.set(Key("a/1"), np.array([52, 53], "<i2").tobytes())
        tree.observed.announce(Change(Key("a/1"), "set", external=True))
        assert bytes(await handle.read(2, 2)) == before[2:]
        await handle.release()
        assert await read(tree, "chunks/a/1") == np.array([52, 53], "<i2").tobytes()


@trio_test
async def test_a_chunk_is_read_without_room_to_keep_it(tmp_path: Path) -> None:
    """It was to be kept for later reads, in a file, and reading it was EFBIG."""
    chunk = np.random.default_rng(0).integers(0, 255, 2 << 20, "u1").tobytes()
    store = await store_with({"a/.zarray": array_document((2 << 20,), (2 << 20,), "|u1"), "a/0": chunk})
    with small_disk(tmp_path / "cache", "1m") as cache:
        async with tree_over(store, memory_limit="256MiB", cache_dir=str(cache)) as tree:
            kept = tree.staging.room.kept
            assert kept.take(kept.limit - kept.nbytes)
            assert await read(tree, "chunks/a/0") == chunk


@trio_test
async def test_the_documents_are_those_of_an_uncompressed_v2_array() -> None:
    v3 = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 4],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": "NaN",
        "codecs": [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "bytes", "configuration": {"endian": "big"}},
            {"name": "gzip", "configuration": {"level": 1}},
        ],
        "attributes": {"a": [1, None]},
        "dimension_names": ["y", "x"],
    }
    async with tree_over(await store_with({"a/zarr.json": json.dumps(v3).encode()})) as tree:
        document = json.loads(await read(tree, "chunks/a/.zarray"))
        assert document.pop("dimension_separator", ".") == "."
        assert document == {
            "zarr_format": 2,
            "shape": [4, 4],
            "chunks": [2, 3],
            "dtype": "<f4",
            "fill_value": "NaN",
            "order": "C",
            "compressor": None,
            "filters": None,
        }
        assert json.loads(await read(tree, "chunks/a/.zattrs")) == {"a": [1, None], "_ARRAY_DIMENSIONS": ["y", "x"]}
        assert await names(tree, "chunks/a") == {".zarray", ".zattrs"}


@pytest.mark.parametrize(
    ("dimension_names", "attributes", "shown"),
    [
        (["x", None], {}, None),
        (["x", "y"], {"_ARRAY_DIMENSIONS": ["mine", "own"]}, ["mine", "own"]),
        (None, {"_ARRAY_DIMENSIONS": ["mine", "own"]}, ["mine", "own"]),
        (["x", "y"], {}, ["x", "y"]),
    ],
)
@trio_test
async def test_dimension_names(dimension_names: Any, attributes: dict[str, Any], shown: Any) -> None:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": attributes,
    } | ({"dimension_names": dimension_names} if dimension_names else {})
    async with tree_over(await store_with({"a/zarr.json": json.dumps(document).encode()})) as tree:
        if shown is None:
            assert ".zattrs" not in await names(tree, "chunks/a")
        else:
            assert json.loads(await read(tree, "chunks/a/.zattrs"))["_ARRAY_DIMENSIONS"] == shown


# --- writing -------------------------------------------------------------------------------------------------------------------

CODECS = {
    "v2-zlib": {"compressor": {"id": "zlib", "level": 1}},
    "v2-blosc": {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}},
    "v2-fortran": {"order": "F"},
    "v2-big-endian": {"dtype": ">i4"},
    "v2-delta": {"filters": [{"id": "delta", "dtype": "<i4", "astype": "<i4"}], "compressor": {"id": "zstd", "level": 1}},
    "v3-gzip-crc": {"codecs": ["bytes", "gzip", "crc32c"]},
    "v3-transpose": {"codecs": ["transpose", "big", "zstd"]},
}
_V3 = {
    "bytes": {"name": "bytes", "configuration": {"endian": "little"}},
    "big": {"name": "bytes", "configuration": {"endian": "big"}},
    "gzip": {"name": "gzip", "configuration": {"level": 1}},
    "zstd": {"name": "zstd", "configuration": {"level": 0, "checksum": True}},
    "crc32c": {"name": "crc32c"},
    "transpose": {"name": "transpose", "configuration": {"order": [1, 0]}},
}


def array_with(codecs: dict[str, Any]) -> dict[str, bytes]:
    """Return an int32 array of (6, 5) in chunks of (4, 3), with fill value 7 and no chunks."""
    if "codecs" not in codecs:
        dtype = codecs.get("dtype", "<i4")
        return {"a/.zarray": array_document((6, 5), (4, 3), dtype, **{k: v for k, v in codecs.items() if k != "dtype"})}
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [6, 5],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 3]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 7,
        "codecs": [_V3[name] for name in codecs["codecs"]],
    }
    return {"a/zarr.json": json.dumps(document).encode()}


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
@trio_test
async def test_a_written_chunk_is_stored_under_the_codecs_of_the_array(codecs: dict[str, Any]) -> None:
    zarr = pytest.importorskip("zarr")
    store = await store_with(array_with(codecs))
    padded = np.full((8, 6), -5, "<i4")
    padded[:6, :5] = np.arange(30).reshape(6, 5)
    async with tree_over(store) as tree:
        for row in range(2):
            for column in range(2):
                chunk = padded[row * 4 : row * 4 + 4, column * 3 : column * 3 + 3]
                await write(tree, f"chunks/a/{row}.{column}", chunk.tobytes())
        assert tree.stats()["chunks_encoded"] == 4
        # Beyond the array's edge is the fill value, whatever was written there.
        corner = np.frombuffer(await read(tree, "chunks/a/1.1"), "<i4").reshape(4, 3)
        assert corner.tolist() == [[23, 24, 7], [28, 29, 7], [7, 7, 7], [7, 7, 7]]
    array = zarr.open_array(in_memory(await contents(store)), path="a", mode="r")
    assert (array[...] == padded[:6, :5]).all()


@trio_test
async def test_a_written_chunk_of_fill_values_is_stored_all_the_same() -> None:
    store = await store_with(array_with({}))
    async with tree_over(store) as tree:
        await write(tree, "chunks/a/0.0", np.full(12, 7, "<i4").tobytes())
        assert "0.0" in await names(tree, "chunks/a")
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        await folder.unlink("0.0")
        assert await names(tree, "chunks/a") == {".zarray"}
    assert "a/0.0" not in await contents(store)


@pytest.mark.parametrize("name", ["2.0", "0.2", "0", "0.0.0", "00.0"])
@trio_test
async def test_what_is_no_chunk_cannot_be_created(name: str) -> None:
    store = await store_with(array_with({}))
    before = await contents(store)
    async with tree_over(store) as tree:
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        with pytest.raises(NameInvalid, match=r"not a chunk of /a"):
            await folder.create(name, NEW)
    assert await contents(store) == before


@pytest.mark.logs("'chunks/a/0': write failed, data lost")
@trio_test
async def test_a_chunk_of_the_wrong_size_leaves_the_store_as_it_was() -> None:
    store = await store_with(Example((4,), (2,)).values("a"))
    before = await contents(store)
    async with tree_over(store) as tree:
        with pytest.raises(ChunkSizeMismatch):
            await write(tree, "chunks/a/0", b"abc")
        with pytest.raises(FileTooLarge):
            await write(tree, "chunks/a/0", b"abcde")
    assert await contents(store) == before


@trio_test
async def test_a_read_only_mount_creates_and_erases_nothing() -> None:
    store = await store_with(Example((4,), (2,), missing=frozenset({(1,)})).values("a"))
    before = await contents(store)
    async with tree_over(store, read_only=True) as tree:
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        assert not (await folder.attributes()).writable
        for attempt in (folder.create("1", NEW), folder.unlink("0")):
            with pytest.raises(StoreReadOnly):
                await attempt
    assert await contents(store) == before


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@trio_test
async def test_a_chunk_inside_both_shapes_that_is_closed_during_a_resize_is_stored(view: str) -> None:
    store = HangingStore(MemoryStore())
    await fill(store, {".zgroup": b'{"zarr_format":2}', "a/.zarray": array_document((4,), (2,)), "a/0": bytes(8)})
    async with tree_over(store) as tree, trio.open_nursery() as nursery:
        file = await walk(tree, "chunks/a/0" if view == "chunks" else "zarr3/a/c/0")
        assert isinstance(file, File)
        handle = await file.open(OpenFlags(write=True, truncate=True))
        await handle.write(0, b"changed.")
        document = json.dumps(json.loads(await read(tree, "chunks/a/.zarray")) | {"shape": [6]}).encode()
        store.hang("a/.zarray", "set")
        nursery.start_soon(write, tree, "chunks/a/.zarray", document)
        await trio.testing.wait_all_tasks_blocked()
        assert store.hanging == [("set", "a/.zarray")]
        nursery.start_soon(handle.flush)
        await trio.testing.wait_all_tasks_blocked()
        store.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert await store.get(Key("a/0")) == b"changed."
        await handle.release()
