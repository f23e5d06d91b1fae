"""``chunks/`` and ``zarr3/``: refused operations in the folder of a node, and their reasons; and chunks that others change meanwhile."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import trio_test

from tests.support.arrays import Example, store_of
from tests.support.small_stores import array_document
from tests.support.stores import contents
from tests.support.trees import READ_ONLY, folder_at, names, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import (
    AcrossViews,
    IsADirectory,
    NameInvalid,
    NoSuchEntry,
    NotADirectory,
    NotPermitted,
    OperationUnsupported,
    StaleEntry,
)
from zarrfs.keys import Key
from zarrfs.vfs.node import Directory, File, Handle, OpenFlags
from zarrfs.vfs.temporary import TemporaryFile

WRITE = OpenFlags(write=True)
LOST = pytest.mark.logs("write failed, data lost")
VIEWS = pytest.mark.parametrize("view", ["chunks", "zarr3"])
TEMPORARY = f"k.{'0' * 32}.partial"
CODECS = {"compressor": {"id": "zlib", "level": 1}}


@asynccontextmanager
async def opened(tree: MountTree, path: str, flags: OpenFlags) -> AsyncIterator[Handle]:
    file = await walk(tree, path)
    assert isinstance(file, File)
    handle = await file.open(flags)
    try:
        yield handle
    finally:
        await handle.release()


async def changed(handle: Handle, data: bytes) -> None:
    """Write and close, as a program does."""
    await handle.write(0, data)
    await handle.flush()


@asynccontextmanager
async def example(view: str) -> AsyncIterator[tuple[MountTree, Directory]]:
    """Yield the array ``/a``, the group ``/g``, and ``/bad`` with an invalid document; assert that none of it changes."""
    store = await store_of(Example((4,), (2,)))
    await store.set(Key("g/.zgroup"), b'{"zarr_format":2}')
    await store.set(Key("bad/.zarray"), b"{")
    before = await contents(store)
    async with tree_over(store) as tree:
        # The root of the view.
        yield tree, await folder_at(tree, view)
    assert await contents(store) == before


# --- names --------------------------------------------------------------------------------------------------------------------------


@VIEWS
@trio_test
async def test_a_file_is_no_folder_and_a_folder_is_no_file(view: str) -> None:
    async with example(view) as (tree, root):
        (told,) = [name for name in await names(root) if name.startswith("bad.")]
        with pytest.raises(NotADirectory, match=told):
            await root.rmdir(told)
        with pytest.raises(IsADirectory, match="'g' is a folder"):
            await root.unlink("g")
        with pytest.raises(IsADirectory, match="'g' is a folder"):
            await root.rename(told, root, "g")
        with pytest.raises(NotADirectory, match=rf"'{told}' is a file"):
            await root.rename("g", root, told)
        with pytest.raises(NameInvalid, match="into itself"):
            await root.rename("g", await folder_at(tree, f"{view}/g"), "below")
        await root.rename("g", root, "g")


@VIEWS
@trio_test
async def test_what_tells_why_a_node_cannot_be_shown_is_neither_renamed_nor_removed(view: str) -> None:
    async with example(view) as (_, root):
        (told,) = [name for name in await names(root) if name.startswith("bad.")]
        with pytest.raises(NotPermitted, match=f"{told!r} cannot be removed"):
            await root.unlink(told)
        with pytest.raises(NotPermitted, match=f"{told!r} cannot be renamed to 'other.txt'"):
            await root.rename(told, root, "other.txt")


@VIEWS
@trio_test
async def test_a_link_is_of_a_file_that_is_being_written_in_this_view(view: str) -> None:
    async with example(view) as (tree, root):
        document = await walk(root, "a/.zarray" if view == "chunks" else "a/zarr.json")
        assert isinstance(document, File)
        with pytest.raises(OperationUnsupported, match="one key"):
            await root.link(document, "other")
        await write(tree, f"raw/{TEMPORARY}", b"{}")
        theirs = await walk(tree, f"raw/{TEMPORARY}")
        assert isinstance(theirs, TemporaryFile)
        with pytest.raises(AcrossViews, match="is a file of another view"):
            await root.link(theirs, ".zattrs")


@VIEWS
@trio_test
async def test_the_name_that_a_file_has_is_no_rename(view: str) -> None:
    async with example(view) as (tree, root):
        await write(root, TEMPORARY, b"kept")
        await root.rename(TEMPORARY, root, TEMPORARY)
        assert await read(root, TEMPORARY) == b"kept"
        document = ".zarray" if view == "chunks" else "zarr.json"
        array = await folder_at(tree, f"{view}/a")
        before = await read(array, document)
        await array.rename(document, array, document)
        assert await read(array, document) == before


@VIEWS
@trio_test
async def test_the_time_of_a_folder_holds_while_files_in_it_are_written(view: str) -> None:
    async with example(view) as (tree, _):
        array = await folder_at(tree, f"{view}/a")
        async with opened(tree, f"{view}/a/{'0' if view == 'chunks' else 'c/0'}", WRITE) as handle:
            await handle.write(0, b"\1\0")
            await array.set_mtime(5_000_000_000)
            assert (await array.attributes()).mtime_ns == 5_000_000_000


@trio_test
async def test_a_temporary_file_covers_the_chunk_that_another_program_stores_under_its_name() -> None:
    """The folder becomes an array by another program after a program has begun to fill it."""
    async with tree_over(await store_of()) as tree:
        await (await folder_at(tree, "chunks")).mkdir("n")
        await write(tree, "chunks/n/0", b"ours")
        for key, value in Example((4,), (2,)).values("n").items():
            await tree.store.set(Key(key), value)
        assert await names(tree, "chunks/n") >= {"0", "1", ".zarray"}


# --- chunks -------------------------------------------------------------------------------------------------------------------------


@LOST
@trio_test
async def test_what_is_written_to_a_chunk_that_a_resize_took_away_is_refused() -> None:
    async with tree_over(await store_of(Example((4,), (2,)))) as tree:
        async with opened(tree, "chunks/a/1", WRITE) as handle:
            await tree.store.set(Key("a/.zarray"), array_document((2,), (2,), "<i2"))
            with pytest.raises(StaleEntry, match="the metadata of /a was changed concurrently: open the chunk again"):
                await changed(handle, b"\1\0\2\0")


@trio_test
async def test_a_chunk_that_was_erased_since_it_was_opened_goes_on_as_fill_values() -> None:
    async with tree_over(await store_of(Example((4,), (2,)))) as tree:
        async with opened(tree, "chunks/a/0", OpenFlags(read=False, write=True)) as handle:
            await tree.store.erase(Key("a/0"))
            await handle.write(2, b"\5\0")
            await handle.flush()
        assert await tree.store.get(Key("a/0")) == b"\7\0\5\0"


@trio_test
async def test_a_large_chunk_that_is_erased_before_it_is_read_is_told_of() -> None:
    store = await store_of()
    await store.set(Key("z/.zarray"), array_document((600_000,), (600_000,), "<i2", **CODECS))
    async with tree_over(store) as tree:
        await write(tree, "chunks/z/0", os.urandom(1_200_000))
        async with opened(tree, "zarr3/z/c/0", READ_ONLY) as handle:
            await store.erase(Key("z/0"))
            with pytest.raises(StaleEntry, match=r"chunk \(0,\) of /z was replaced before it was read"):
                await handle.read(0, 100)


@pytest.mark.parametrize("path", ["chunks/z/0", "zarr3/z/c/0"])
@trio_test
async def test_a_chunk_that_is_replaced_before_it_is_read_is_read_as_it_was_opened(path: str) -> None:
    """At each open: numpy.fromfile takes an error of read(2) for data."""
    store = await store_of()
    await store.set(Key("z/.zarray"), array_document((2,), (2,), "<i2", **CODECS))
    async with tree_over(store) as tree:
        await write(tree, "chunks/z/0", b"\1\0\2\0")
        other = await store.get(Key("z/0"))
        assert other is not None
        file = await walk(tree, path)
        assert isinstance(file, File)
        for value in (b"\3\0\4\0", b"\5\0\6\0"):
            await write(tree, "chunks/z/0", value)
            stored = await store.get(Key("z/0"))
            # Another reader of the same value has read none of it.
            handles = [await file.open(READ_ONLY), await file.open(READ_ONLY)]
            await store.set(Key("z/0"), other)
            for handle in handles:
                assert bytes(await handle.read(0, 100)) == (value if path.startswith("chunks") else stored)
                await handle.release()


@pytest.mark.parametrize("path", ["chunks/s/0", "zarr3/z/c/0", "raw/z/0"])
@trio_test
async def test_a_chunk_that_is_erased_before_it_is_opened_is_not_there(path: str) -> None:
    store = await store_of()
    await store.set(Key("z/.zarray"), array_document((4,), (2,), "<i2", **CODECS))
    await store.set(Key("s/.zarray"), array_document((2,), (2,), "|O", filters=[{"id": "vlen-utf8"}], fill_value=""))
    async with tree_over(store) as tree:
        await write(tree, "chunks/z/0", b"\1\0\2\0")
        await write(tree, "chunks/s/0", b"\2\0\0\0\1\0\0\0a\1\0\0\0b")
        file = await walk(tree, path)
        assert isinstance(file, File)
        for key in ("z/0", "s/0"):
            await store.erase(Key(key))
        with pytest.raises(NoSuchEntry, match=f"{path} is gone"):
            await file.open(READ_ONLY)
        with pytest.raises(NoSuchEntry, match=f"{path} is gone"):
            await file.attributes()


@trio_test
async def test_elements_without_a_fixed_size_are_changed_in_a_chunk_that_is_not_stored() -> None:
    store = await store_of()
    await store.set(Key("s/.zarray"), array_document((2,), (2,), "|O", filters=[{"id": "vlen-utf8"}], fill_value=""))
    async with tree_over(store, fill="true") as tree:
        assert await read(tree, "chunks/s/0") == b"\2" + bytes(11)
        async with opened(tree, "chunks/s/0", WRITE) as handle:
            # The second element becomes a text of one character.
            await handle.write(8, b"\1\0\0\0z")
            await handle.flush()
        assert await store.get(Key("s/0")) == b"\2" + bytes(7) + b"\1\0\0\0z"


@trio_test
async def test_a_chunk_that_is_not_stored_has_no_time_of_its_own() -> None:
    async with tree_over(await store_of(Example((4,), (2,), missing=frozenset({(1,)}))), fill="true") as tree:
        file = await walk(tree, "chunks/a/1")
        assert isinstance(file, File)
        assert await read(tree, "chunks/a/1") == b"\7\0\7\0"
        await file.set_mtime(5_000_000_000)
        assert (await (await walk(tree, "chunks/a/1")).attributes()).mtime_ns != 5_000_000_000
