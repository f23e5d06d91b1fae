"""A dialect with its own default chain, chunk keys, grid, chunk headers and true shapes at the edge; and a read-only one."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.brick_codec import Brick
from tests.support.plugged import plugins
from tests.support.trees import load, names, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ChunkDecodeError, ContentInvalid, NotPermitted, StoreReadOnly, UsageError
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

ELEMENTS = np.arange(35, dtype="<i2").reshape(5, 7) - 9
FILL = 3


dialect_of_bricks = plugins(
    {"zarrfs.codecs": "tests.support.brick_codec:PLUGIN", "zarrfs.dialects": "tests.support.bricks_dialect:PLUGIN"}
)


def bricks(elements: np.ndarray[tuple[int, ...], np.dtype[np.int16]], *, padded: bool = False) -> dict[str, bytes]:
    """Return the chunks of 2 x 4, by key; cut at the edge, or padded as by other writers."""
    found = {}
    for row in range(-(-elements.shape[0] // 2)):
        for column in range(-(-elements.shape[1] // 4)):
            chunk = elements[row * 2 : row * 2 + 2, column * 4 : column * 4 + 4]
            if padded:
                chunk = np.pad(chunk, ((0, 2 - chunk.shape[0]), (0, 4 - chunk.shape[1])))
            found[f"{column}/{row}"] = bytes(Brick().encode(chunk))
    return found


async def store_of(kind: str, *, padded: bool = False) -> MemoryStore:
    store = MemoryStore()
    document = {"shape": [5, 7], "brick": [2, 4], "type": "int16", "fill": FILL}
    await store.set(Key(f"g/a/{kind}.json"), json.dumps(document).encode())
    for key, value in bricks(ELEMENTS, padded=padded).items():
        await store.set(Key(f"g/a/{key}"), value)
    return store


@pytest.mark.parametrize("kind", ["bricks", "walls"])
@pytest.mark.parametrize("padded", [False, True])
@trio_test
async def test_every_view_shows_its_arrays(kind: str, padded: bool) -> None:
    store = await store_of(kind, padded=padded)
    await store.erase(Key("g/a/1/0"))
    elements = ELEMENTS.copy()
    elements[:2, 4:] = FILL
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/g/a.npy")).tolist() == elements.tolist()
        assert await names(tree, "chunks/g/a") == {".zarray", "0.0", "1.0", "1.1", "2.0", "2.1"}
        chunk = np.full((2, 4), 0 if padded else FILL, "<i2")
        chunk[:1, :3] = elements[4:, 4:]
        assert await read(tree, "chunks/g/a/2.1") == chunk.tobytes()
        shown = json.loads(await read(tree, "zarr3/g/a/zarr.json"))
        assert [codec["name"] for codec in shown["codecs"]] == ["test.brick"]
        assert await names(tree, "zarr3/g/a/c/2") == {"0", "1"}
        assert await read(tree, "zarr3/g/a/c/2/1") == await store.get(Key("g/a/1/2"))


@trio_test
async def test_what_is_written_has_its_headers_and_shapes() -> None:
    store = await store_of("bricks", padded=True)
    async with tree_over(store) as tree:
        elements = ELEMENTS.copy()
        elements[4, 6] = 77
        handle = await opened(tree, "npy/g/a.npy", OpenFlags(write=True))
        await handle.write((await handle.attributes()).size - 2, elements[4, 6].tobytes())
        await handle.flush()
        await handle.release()
        assert await store.get(Key("g/a/1/2")) == bricks(elements)["1/2"]
        chunk = np.full((2, 4), 5, "<i2")
        await write(tree, "chunks/g/a/0.1", chunk.tobytes())
        elements[:2, 4:] = 5
        assert await store.get(Key("g/a/1/0")) == bricks(elements)["1/0"]
        await write(tree, "npy/g/a.npy", npy(elements * 2))
        for key, value in bricks(elements * 2).items():
            assert await store.get(Key(f"g/a/{key}")) == value


@trio_test
async def test_a_cut_chunk_of_an_array_that_grows_is_filled_up() -> None:
    store = await store_of("bricks")
    async with tree_over(store) as tree:
        document = json.loads(await read(tree, "zarr3/g/a/zarr.json"))
        await write(tree, "zarr3/g/a/zarr.json", json.dumps(document | {"shape": [6, 8]}).encode())
        expected = np.full((6, 8), FILL, "<i2")
        expected[:5, :7] = ELEMENTS
        assert (await load(tree, "npy/g/a.npy")).tolist() == expected.tolist()


@trio_test
async def test_new_arrays_have_its_chain_keys_and_grid() -> None:
    async with tree_over(store := MemoryStore(), new_dialect="bricks") as tree:
        await write(tree, "npy/b.npy", npy(ELEMENTS))
        assert (await load(tree, "npy/b.npy")).tolist() == ELEMENTS.tolist()
        said = json.loads(await store.get(Key("b/bricks.json")) or b"")
        assert said["brick"] == [4, 4] and said["type"] == "int16"
        assert await store.get(Key("b/1/0")) == Brick().encode(ELEMENTS[:4, 4:])


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_chunks_that_it_cannot_have_are_refused_where_a_program_asks_for_them() -> None:
    async with tree_over(MemoryStore(), new_dialect="bricks") as tree:
        folder = await walk(tree, "chunks")
        assert isinstance(folder, Directory)
        await folder.mkdir("b")
        document = {"zarr_format": 2, "shape": [8], "chunks": [8], "dtype": "<i2", "fill_value": 0, "order": "C"}
        document |= {"filters": None, "compressor": None}
        with pytest.raises(ContentInvalid, match="cannot have these chunks"):
            await write(tree, "chunks/b/.zarray", json.dumps(document).encode())
        await write(tree, "chunks/b/.zarray", json.dumps(document | {"chunks": [4]}).encode())
        await write(tree, "chunks/b/1", ELEMENTS[0, :4].tobytes())
        assert (await load(tree, "npy/b.npy")).tolist() == [0, 0, 0, 0, *ELEMENTS[0, :4]]


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_one_that_is_only_read_refuses_what_would_write() -> None:
    store = await store_of("walls")
    before = {str(key): await store.get(key) for key in [key async for key in store.list()]}
    async with tree_over(store) as tree:
        for name in ("npy/g/a.npy", "chunks/g/a/0.0", "chunks/g/a/.zarray", "zarr3/g/a/c/0/0", "zarr3/g/a/zarr.json"):
            file = await walk(tree, name)
            assert not (await file.attributes()).writable
            with pytest.raises(NotPermitted):
                await opened(tree, name, OpenFlags(write=True))
        for folder, name in (("npy/g", "a.npy"), ("chunks/g/a", "0.0")):
            parent = await walk(tree, folder)
            assert isinstance(parent, Directory)
            with pytest.raises(StoreReadOnly):
                await parent.unlink(name)
        for folder in ("chunks/g", "zarr3/g"):
            parent = await walk(tree, folder)
            assert isinstance(parent, Directory)
            with pytest.raises(StoreReadOnly):
                await parent.rename("a", parent, "b")
        with pytest.raises(StoreReadOnly):
            await write(tree, "npy/g/new.npy", npy(ELEMENTS))
    assert {str(key): await store.get(key) for key in [key async for key in store.list()]} == before
    with pytest.raises(UsageError, match="walls"):
        async with tree_over(MemoryStore(), new_dialect="walls"):
            pass


@trio_test
async def test_a_chunk_without_its_header_is_an_error() -> None:
    store = await store_of("walls")
    await store.set(Key("g/a/0/0"), b"BRICK" + bytes(40))
    async with tree_over(store) as tree:
        with pytest.raises(ChunkDecodeError, match=r"chunk \(0, 0\) of /g/a: test.brick: a brick of shape"):
            await read(tree, "chunks/g/a/0.0")


async def opened(tree: MountTree, path: str, flags: OpenFlags):  # type: ignore[no-untyped-def]
    file = await walk(tree, path)
    assert isinstance(file, File)
    return await file.open(flags)


def npy(elements: np.ndarray[tuple[int, ...], np.dtype[np.int16]]) -> bytes:
    file = io.BytesIO()
    np.save(file, elements)
    return file.getvalue()


@trio_test
async def test_a_grid_that_final_v3_has_no_form_for_is_shown_where_no_document_describes_it() -> None:
    store = MemoryStore()
    document = {"shape": [5, 7], "edges": [[1, 4], [7]], "type": "int16", "fill": FILL}
    await store.set(Key("g/a/walls.json"), json.dumps(document).encode())
    for key, chunk in {"0/0": ELEMENTS[:1], "0/1": ELEMENTS[1:]}.items():
        await store.set(Key(f"g/a/{key}"), bytes(Brick().encode(chunk)))
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/g/a.npy")).tolist() == ELEMENTS.tolist()
        for view in ("chunks", "zarr3"):
            assert {"a.unsupported.txt"} == {name for name in await names(tree, f"{view}/g") if name.startswith("a")}
            reason = (await read(tree, f"{view}/g/a.unsupported.txt")).decode()
            assert "chunk grid" in reason and "UnequalGrid" in reason
