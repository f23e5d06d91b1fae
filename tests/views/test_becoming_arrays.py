"""Other programs, or other tasks of one, in a folder while the document of its array is written there."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from tests.support.scenes import Scene
from tests.support.trees import tree_over
from tests.support.v3_array import ARRAY
from zarrfs.errors import NoSuchEntry
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store

ZARRAY = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<f4", "fill_value": None, "order": "C"}
ZARRAY |= {"compressor": None, "filters": None}
DIALECTS = pytest.mark.parametrize("dialect", ["v1", "v2", "v3", "v3_2019", "v3_2022"])


async def while_running(act: Callable[[], Awaitable[None]], look: Callable[[], Awaitable[None]]) -> None:
    """Call ``look`` again and again while ``act`` runs."""
    async with trio.open_nursery() as nursery:

        async def looking() -> None:
            while True:
                await look()
                await trio.lowlevel.checkpoint()

        nursery.start_soon(looking)
        await act()
        nursery.cancel_scope.cancel()


@DIALECTS
@trio_test
async def test_a_folder_of_chunks_is_not_found_before_it_is_made(dialect: str) -> None:
    """rsync looks a folder up, and makes it if it is absent, while the document gets its name."""
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store, "zarr3")
        for each in ("a", "a/c", "a/c/0"):
            await s.mkdir(each)

        async def look() -> None:
            with pytest.raises(NoSuchEntry):
                await (await s.folder("a/c")).lookup("1")

        await while_running(lambda: s.write("a/zarr.json", json.dumps(ARRAY).encode()), look)
        assert await s.names("a/c") == {"0"}
        await s.mkdir("a/c/1")
        await s.write("a/c/1/0", bytes(24))
        assert await s.names("a/c") == {"0", "1"}


@DIALECTS
@trio_test
async def test_a_missing_chunk_and_attributes_of_a_new_array_are_not_found_before_it_is_listed(dialect: str) -> None:
    """Programs that copy create them with O_EXCL."""
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store, "chunks")
        await s.mkdir("a")

        async def look() -> None:
            for name in ("0", ".zattrs"):
                with pytest.raises(NoSuchEntry):
                    await (await s.folder("a")).lookup(name)

        await while_running(lambda: s.write("a/.zarray", json.dumps(ZARRAY).encode()), look)


@pytest.mark.parametrize("options", [{}, {"new_shards": "2x1"}, {"new_dialect": "v2"}], ids=str)
@trio_test
async def test_folders_keep_the_times_that_were_set_while_a_chunk_below_is_stored(options: dict[str, str], tmp_path: Path) -> None:
    """rsync sets the times of folders before it writes below them."""
    store = await open_store(str(tmp_path))
    async with tree_over(store, str(tmp_path), **options) as tree:
        s = Scene(tree, store, "zarr3")
        await s.mkdir("a")
        await s.write("a/zarr.json", json.dumps(ARRAY).encode())
        for each in ("a/c", "a/c/0", "a/c/1"):
            await s.mkdir(each)
        folders = [await s.folder(each) for each in ("a", "a/c", "a/c/1")]
        for folder in folders:
            await folder.set_mtime(10**18)

        async def look() -> None:
            assert [(await folder.attributes()).mtime_ns for folder in folders] == [10**18] * 3

        await look()
        await while_running(lambda: s.write("a/c/0/0", bytes(24)), look)
        await s.sync("a")
        await look()
        await s.write("a/c/1/0", bytes(24))
        await s.sync("a")
        times = [(await folder.attributes()).mtime_ns for folder in folders]
        assert times[:2] == [10**18] * 2 and times[2] != 10**18
    await store.aclose()


@pytest.mark.parametrize("dialect", ["v0", "v1", "v2", "v3", "v3_2019", "v3_2022"])
@trio_test
async def test_attributes_written_before_the_array_are_read_back_as_written(dialect: str) -> None:
    """rsync --checksum compares the bytes: cp writes .zattrs first, and v0 and v1 store its members sorted."""
    store = MemoryStore()
    written = b'{"u": "K", "n": 1}\n'
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zattrs", written)
        await s.write("a/.zarray", json.dumps(ZARRAY).encode())
        assert await s.read("a/.zattrs") == written
