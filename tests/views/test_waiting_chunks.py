"""Waiting chunks, files with names of chunks in a folder without an array's document, that programs write, remove or rename meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from tests.support.scenes import Scene
from tests.support.stores import contents
from tests.support.trees import read, tree_over
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkSizeMismatch, ContentInvalid, NoSuchEntry, NotPermitted, StoreFull, StoreTimeout
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.vfs.node import Handle, OpenFlags

ZARRAY = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<f4", "fill_value": None, "order": "C"}
ZARRAY |= {"compressor": None, "filters": None}
ZARR_JSON = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "float32", "fill_value": 0, "attributes": {}}
ZARR_JSON |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}}
ZARR_JSON |= {"chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}
WRITE = OpenFlags(read=False, write=True)
OPEN_TOO = pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])


class HeldStore(MemoryStore):
    """Holds the first request to set the chunk ``a/0``, or refuses those made before ``has_room``."""

    def __init__(self) -> None:
        super().__init__()
        self.has_room = True
        self.reached, self.let_go = trio.Event(), trio.Event()
        self.let_go.set()

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if key == "a/0":
            if not self.has_room:
                raise StoreFull("no room", key=key)
            self.reached.set()
            await self.let_go.wait()
        return await super().set(key, value, expect=expect)


@asynccontextmanager
async def new_folder(store: MemoryStore, **options: str) -> AsyncIterator[Scene]:
    """Yield ``chunks/`` over a store of v2, with a new folder ``a``."""
    async with tree_over(store, new_dialect="v2", **options) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        yield s


async def begun(s: Scene, name: str, data: bytes) -> Handle:
    """Create a file in ``a``, and write its first bytes."""
    _, handle = await (await s.folder("a")).create(name, WRITE)
    await handle.write(0, data)
    return handle


@trio_test
async def test_a_chunk_of_which_a_part_was_closed_is_stored_by_its_last_close() -> None:
    """Each program in ``(head -c4 x; head -c4 y) > a/0`` closes a descriptor of the same open file."""
    store = MemoryStore()
    async with new_folder(store) as s:
        handle = await begun(s, "0", bytes(4))
        await handle.flush()
        await s.write("a/.zarray", ZARRAY)
        await handle.write(4, b"\1" * 4)
        await handle.flush()
        await handle.release()
        assert await s.read("a/0") == bytes(4) + b"\1" * 4
        assert "a/0" in await contents(store)
        assert s.tree.losses.failures == []


@trio_test
async def test_a_chunk_that_stays_a_part_is_refused_by_its_own_close() -> None:
    store = MemoryStore()
    async with new_folder(store) as s:
        handle = await begun(s, "0", bytes(4))
        await handle.flush()
        await s.write("a/.zarray", ZARRAY)
        with pytest.raises(ChunkSizeMismatch, match="not 4"):
            await handle.flush()
        await handle.write(4, bytes(4))
        await handle.flush()
        await handle.release()
        assert "a/0" in await contents(store)


@pytest.mark.logs("is not a chunk of /a")
@trio_test
async def test_a_file_outside_the_grid_is_refused_by_its_own_close() -> None:
    """Its close would say 0, and it would be saved beside the store at the end of the mount."""
    store = MemoryStore()
    async with new_folder(store) as s:
        for name in "2", "0.1":
            handle = await begun(s, name, bytes(8))
            if name == "2":
                await handle.flush()
            await s.write("a/.zarray", ZARRAY)
            with pytest.raises(ContentInvalid, match="is not a chunk of /a"):
                await handle.flush()
            await handle.release()
            await s.unlink(f"a/{name}")
            await s.remove("a")
            await s.mkdir("a")


@trio_test
async def test_a_chunk_that_the_store_refused_while_a_program_holds_it_is_stored_by_its_close() -> None:
    store = HeldStore()
    async with new_folder(store) as s:
        handle = await begun(s, "0", b"\1" * 8)
        await handle.flush()
        store.has_room = False
        await s.write("a/.zarray", ZARRAY)
        with pytest.raises(StoreFull):
            await handle.flush()
        store.has_room = True
        await handle.flush()
        await handle.release()
        assert await s.read("a/0") == b"\1" * 8
        assert "a/0" in await contents(store)


async def _during_storing(s: Scene, store: HeldStore, name: str, new_name: str | None, *, is_open: bool) -> Exception | None:
    """Unlink or rename a file of the array while its waiting chunk ``0`` is stored; return its error."""
    handle = await s.opened("a/0") if is_open else None
    store.let_go = trio.Event()
    errors: list[Exception] = []

    async def change() -> None:
        try:
            if new_name is None:
                await s.unlink(f"a/{name}")
            else:
                await s.rename(f"a/{name}", f"a/{new_name}")
        except (NoSuchEntry, NotPermitted) as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(s.write, "a/.zarray", ZARRAY)
        await store.reached.wait()
        nursery.start_soon(change)
        await trio.testing.wait_all_tasks_blocked()
        store.let_go.set()
    if handle is not None:
        await handle.flush()
        await handle.release()
    return errors[0] if errors else None


@OPEN_TOO
@trio_test
async def test_a_chunk_that_is_removed_while_it_is_stored_does_not_remain(is_open: bool) -> None:
    store = HeldStore()
    async with new_folder(store) as s:
        await s.write("a/0", b"\1" * 8)
        assert await _during_storing(s, store, "0", None, is_open=is_open) is None
        assert await s.names("a") == {".zarray"}
        assert "a/0" not in await contents(store)


@OPEN_TOO
@trio_test
async def test_a_file_renamed_to_a_chunk_while_that_is_stored_replaces_it(is_open: bool) -> None:
    store = HeldStore()
    async with new_folder(store) as s:
        await s.write("a/0", b"\1" * 8)
        await s.write("a/0.partial", b"\2" * 8)
        assert await _during_storing(s, store, "0.partial", "0", is_open=is_open) is None
        assert await s.read("a/0") == b"\2" * 8
        assert await s.names("a") == {".zarray", "0"}


@OPEN_TOO
@trio_test
async def test_a_chunk_that_is_renamed_while_it_is_stored_is_a_chunk(is_open: bool) -> None:
    store = HeldStore()
    async with new_folder(store) as s:
        await s.write("a/0", b"\1" * 8)
        assert isinstance(await _during_storing(s, store, "0", "0.tmp", is_open=is_open), NotPermitted)
        assert await s.read("a/0") == b"\1" * 8
        assert await s.names("a") == {".zarray", "0"}


@pytest.mark.parametrize("new_name", [None, "0.tmp"])
@trio_test
async def test_a_chunk_that_is_removed_or_renamed_during_its_own_close_is_a_chunk(new_name: str | None) -> None:
    store = HeldStore()
    async with new_folder(store) as s:
        handle = await begun(s, "0", b"\1" * 8)
        await s.write("a/.zarray", ZARRAY)
        store.let_go = trio.Event()
        errors: list[Exception] = []

        async def change() -> None:
            try:
                await (s.unlink("a/0") if new_name is None else s.rename("a/0", f"a/{new_name}"))
            except NotPermitted as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(handle.flush)
            await store.reached.wait()
            nursery.start_soon(change)
            await trio.testing.wait_all_tasks_blocked()
            store.let_go.set()
        await handle.release()
        assert len(errors) == (new_name is not None)
        assert await s.names("a") == {".zarray", "0"} - ({"0"} if new_name is None else set())
        assert ("a/0" in await contents(store)) == (new_name is not None)


@OPEN_TOO
@trio_test
async def test_a_document_saved_under_digits_is_no_waiting_chunk(is_open: bool) -> None:
    """The rename was refused, or an unforeseen error, although the array was there by then."""
    store = MemoryStore()
    async with new_folder(store) as s:
        await s.write("a/0", b"\1" * 8)
        await s.write("a/1", ZARRAY)
        handle = await s.opened("a/1") if is_open else None
        await s.rename("a/1", "a/.zarray")
        if handle is not None:
            await handle.release()
        assert await s.names("a") == {".zarray", "0"}
        assert "a/0" in await contents(store) and "a/1" not in await contents(store)


class UnansweredStore(MemoryStore):
    """Does not answer the first request to set the document of ``a``, which takes effect."""

    is_unanswered = True

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        generation = await super().set(key, value, expect=expect)
        if key == "a/.zarray" and self.is_unanswered:
            self.is_unanswered = False
            raise StoreTimeout("no answer", key=key)
        return generation


@pytest.mark.logs("chunks/a/.zarray|no answer")
@trio_test
async def test_chunks_wait_on_where_the_answer_to_their_document_is_lost() -> None:
    """The document is there: by another program, it would be another folder's."""
    store = UnansweredStore()
    async with new_folder(store, metadata_ttl="0") as s:
        await s.write("a/0", b"\1" * 8)
        folder = await s.folder("a")
        with pytest.raises(StoreTimeout):
            await s.write("a/.zarray", ZARRAY)
        assert await s.read("a/0") == b"\1" * 8
        await s.write("a/.zarray", ZARRAY)
        assert await read(folder, "0") == b"\1" * 8
        assert "a/0" in await contents(store)
        assert await s.tree.publish_all() == []


@OPEN_TOO
@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@trio_test
async def test_a_chunk_that_waits_in_one_view_is_stored_when_another_view_makes_its_array(view: str, is_open: bool) -> None:
    """It continued to wait, and hid the chunk that other views then stored under its name."""
    files = {"chunks": ("a/0", "a/.zarray", ZARRAY), "zarr3": ("a/c/0", "a/zarr.json", ZARR_JSON)}
    name, (_, document, content) = files[view][0], files["zarr3" if view == "chunks" else "chunks"]
    async with tree_over(MemoryStore(), new_dialect="v3", new_codecs="none") as tree:
        here, there = Scene(tree, MemoryStore(), view), Scene(tree, MemoryStore(), "zarr3" if view == "chunks" else "chunks")
        await here.mkdir("a")
        if view == "zarr3":
            await here.mkdir("a/c")
        await here.write(name, b"\1" * 8)
        handle = await here.opened(name) if is_open else None
        await there.write(document, content)
        stored = (await read(tree, "npy/a.npy"))[128:]
        assert stored == b"\1" * 8 + bytes(8)
        await there.write(files[there.view][0], b"\2" * 8)
        assert await here.read(name) == b"\2" * 8
        if handle is not None:
            await handle.release()


@pytest.mark.logs("some of the waiting chunks were refused")
@trio_test
async def test_a_chunk_that_does_not_fit_the_array_made_in_another_view_is_refused() -> None:
    async with tree_over(MemoryStore(), new_dialect="v3", new_codecs="none") as tree:
        here, there = Scene(tree, MemoryStore()), Scene(tree, MemoryStore(), "zarr3")
        await here.mkdir("a")
        await here.write("a/0", b"\1" * 4)
        with pytest.raises(ContentInvalid, match="some of the waiting chunks were refused"):
            await there.write("a/zarr.json", ZARR_JSON)
        assert (await read(tree, "npy/a.npy"))[128:] == bytes(16)
