"""Other programs, or other tasks of one, in a folder while the document of its array is written there."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from tests.support.scenes import Scene
from tests.support.stores import contents
from tests.support.trees import tree_over
from tests.support.v3_array import ARRAY
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkSizeMismatch, ContentInvalid, NoSuchEntry
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store
from zarrfs.stores.values import Answer, Expected, Generation
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Directory, OpenFlags
from zarrfs.views.nodes.folder import NodeFolder

ZARRAY = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<f4", "fill_value": None, "order": "C"}
ZARRAY |= {"compressor": None, "filters": None}
WRITE = OpenFlags(read=False, write=True)
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


class LateStore(MemoryStore):
    """Sets the document of an array in the first of ``steps``; from then on, requests for it are answered in the second.

    The answers are of the time of the request."""

    document = "meta/root/a.array.json"

    def __init__(self) -> None:
        super().__init__()
        self.reached = False
        self.steps = trio.Event(), trio.Event()

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if key == self.document:
            self.reached = True
            await self.steps[0].wait()
        return await super().set(key, value, expect=expect)

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        answers = await super().get_many(key_ranges)
        if self.reached and self.document in (key for key, _ in key_ranges):
            await self.steps[1].wait()
        return answers


@trio_test
async def test_a_new_folder_that_becomes_an_array_while_it_is_looked_up_is_never_absent() -> None:
    store = LateStore()
    async with tree_over(store, new_dialect="v3_2022") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        found: list[Directory] = []

        async def look() -> None:
            found.append(await s.folder("a"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(s.write, "a/.zarray", ZARRAY)
            await trio.testing.wait_all_tasks_blocked()
            assert store.reached
            nursery.start_soon(look)
            for each in store.steps:
                await trio.testing.wait_all_tasks_blocked()
                each.set()
        await s.write("a/0", bytes(8))
        assert len(found) == 1


@trio_test
async def test_a_chunk_that_is_still_written_when_its_document_is_saved_is_stored_by_its_own_close() -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v2") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        folder = await s.folder("a")
        _, half = await folder.create("0", WRITE)
        await half.write(0, bytes(4))
        _, empty = await folder.create("1", WRITE)
        await s.write("a/.zarray", ZARRAY)
        for handle, offset in (half, 4), (empty, 0):
            await handle.write(offset, b"\1" * (8 - offset))
            await handle.flush()
            await handle.release()
        assert tree.losses.failures == []
        assert await s.read("a/0") == bytes(4) + b"\1" * 4
        assert await s.read("a/1") == b"\1" * 8
        assert {"a/0", "a/1"} <= (await contents(store)).keys()


@pytest.mark.logs("0 bytes instead of 8|exactly 8 bytes, not 0")
@trio_test
async def test_a_chunk_that_was_only_created_when_its_document_is_saved_is_refused_at_its_last_close() -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v2") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        _, handle = await (await s.folder("a")).create("0", WRITE)
        await s.write("a/.zarray", ZARRAY)
        await handle.flush()
        await handle.release()
        assert [file for file, _ in tree.losses.failures] == ["chunks/a/0"]


@pytest.mark.logs("exactly 8 bytes, not")
@trio_test
async def test_a_waiting_chunk_that_was_refused_is_stored_when_it_is_written_again() -> None:
    """Its close would say 0, and it would be saved beside the store at the end of the mount."""
    store = MemoryStore()
    async with tree_over(store, new_dialect="v2") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/0", bytes(4))
        with pytest.raises(ContentInvalid, match="was created, but"):
            await s.write("a/.zarray", ZARRAY)
        with pytest.raises(ChunkSizeMismatch, match="not 5"):
            await s.write("a/0", bytes(5))
        await s.write("a/0", b"\1" * 8)
        assert await tree.publish_all() == []
        assert "a/0" in await contents(store)
        assert await s.read("a/0") == b"\1" * 8


@trio_test
async def test_a_file_renamed_to_a_chunk_while_its_document_is_saved_becomes_the_chunk() -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v2") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/0.partial", b"\1" * 8)
        folder = await s.folder("a")
        assert isinstance(folder, NodeFolder)
        # A rename looks for the place of the new name first: there is none yet.
        waiting, file = await folder.content("0"), await folder.lookup("0.partial")
        await s.write("a/.zarray", ZARRAY)
        assert isinstance(file, StagedFile)
        await folder._layers.temporaries.move(file, waiting)
        assert "a/0" in await contents(store)
        assert await s.read("a/0") == b"\1" * 8
        assert await tree.publish_all() == []
