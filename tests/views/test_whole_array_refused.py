"""``npy/``: refused operations and their reasons; operations on a file that is being written; and a read-only container format."""

from __future__ import annotations

import io
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.arrays import Example, store_of
from tests.support.stores import contents
from tests.support.trees import READ_ONLY, load, names, read, tree_over, walk, write
from zarrfs.containers.base import Container, Elements, FileLayout, Head, Literal
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import (
    AcrossViews,
    ContentInvalid,
    DirectoryNotEmpty,
    EntryExists,
    FileTooLarge,
    IsADirectory,
    NameInvalid,
    NoSuchEntry,
    NotADirectory,
    NotPermitted,
    NotRepresentable,
    StaleEntry,
    StoreReadOnly,
)
from zarrfs.keys import Key, Prefix
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.stores.change import Change
from zarrfs.vfs.node import Directory, File, Handle, OpenFlags
from zarrfs.views.whole_array.view import WholeArrayRoot

NEW = OpenFlags(read=True, write=True, truncate=True)
WRITE = OpenFlags(write=True)
LOST = pytest.mark.logs("write failed, data lost")
ONE = Example((4,), (2,))


def npy(elements: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, elements)
    return file.getvalue()


FOUR = npy(np.arange(4, dtype="<i4"))
HEAD = FOUR[:128]


async def folder(tree: MountTree, path: str = "npy") -> Directory:
    found = await walk(tree, path)
    assert isinstance(found, Directory)
    return found


@asynccontextmanager
async def two_arrays_and_a_group(**options: str) -> AsyncIterator[tuple[MountTree, Directory]]:
    """Yield ``/a``, ``/b``, and the group ``/g`` with the array ``/g/c``."""
    store = await store_of(ONE, ONE)
    await store.set(Key("g/.zgroup"), b'{"zarr_format":2}')
    for key, value in ONE.values("g/c").items():
        await store.set(Key(key), value)
    before = await contents(store)
    async with tree_over(store, **options) as tree:
        yield tree, await folder(tree)
    # Refused operations change nothing.
    assert await contents(store) == before


@asynccontextmanager
async def being_written(data: bytes) -> AsyncIterator[tuple[MountTree, Handle]]:
    """Yield a new file, to which ``data`` was written so far."""
    async with tree_over(await store_of()) as tree:
        _, handle = await (await folder(tree)).create("new.npy", NEW)
        try:
            if data:
                await handle.write(0, data)
            yield tree, handle
        finally:
            await handle.release()


# --- names ------------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_what_is_there_already_is_not_made_again() -> None:
    async with two_arrays_and_a_group() as (_, top):
        with pytest.raises(EntryExists, match=r"'a\.npy' already exists"):
            await top.create("a.npy", NEW)
        with pytest.raises(EntryExists, match="'g' already exists"):
            await top.mkdir("g")
        with pytest.raises(EntryExists, match=r"'b\.npy' already exists"):
            await top.rename("a.npy", top, "b.npy", replace=False)
        with pytest.raises(EntryExists, match="/g already exists and is not an array"):
            await top.create("g.npy", NEW)


@trio_test
async def test_a_file_is_no_folder_and_a_folder_is_no_file() -> None:
    async with two_arrays_and_a_group() as (tree, top):
        with pytest.raises(IsADirectory, match="'g' is a folder"):
            await top.unlink("g")
        with pytest.raises(NotADirectory, match=r"'a\.npy' is a file"):
            await top.rmdir("a.npy")
        with pytest.raises(IsADirectory, match="'g' is a folder"):
            await top.rename("a.npy", top, "g")
        with pytest.raises(NotADirectory, match=r"'a\.npy' is a file"):
            await top.rename("g", top, "a.npy")
        with pytest.raises(DirectoryNotEmpty, match=r"/g is not empty: it holds 'c\.npy'"):
            await top.rmdir("g")
        with pytest.raises(AcrossViews, match="cannot be renamed into another view"):
            await top.rename("a.npy", await folder(tree, "raw"), "a.npy")


@trio_test
async def test_an_arrays_file_keeps_its_suffix_and_its_own_name_is_no_rename() -> None:
    async with two_arrays_and_a_group() as (tree, top):
        with pytest.raises(NameInvalid, match=r"a\.txt: in npy/ a file ends in \.npy"):
            await top.rename("a.npy", top, "a.txt")
        await top.rename("a.npy", top, "a.npy")
        await top.rename("g", top, "g")
        assert await names(tree, "npy") == {"a.npy", "b.npy", "g"}


@trio_test
async def test_what_tells_why_an_array_cannot_be_shown_is_neither_renamed_nor_removed() -> None:
    store = await store_of(ONE)
    await store.set(Key("bad/.zarray"), b"{")
    async with tree_over(store) as tree:
        top = await folder(tree)
        (told,) = await names(tree, "npy") - {"a.npy"}
        assert told.startswith("bad.")
        with pytest.raises(NotPermitted, match="bad"):
            await top.rename(told, top, "c.npy")
        with pytest.raises(NotPermitted, match="cannot be removed"):
            await top.unlink(told)


@trio_test
async def test_nothing_is_made_removed_or_renamed_where_the_mount_is_read_only() -> None:
    store = await store_of(ONE)
    store.capabilities = replace(store.capabilities, write=False)
    async with tree_over(store) as tree:
        top = await folder(tree)
        with pytest.raises(StoreReadOnly):
            await top.create("b.npy", NEW)
        with pytest.raises(StoreReadOnly):
            await top.mkdir("g")
        with pytest.raises(StoreReadOnly):
            await top.unlink("a.npy")
        with pytest.raises(StoreReadOnly):
            await top.rename("a.npy", top, "b.npy")
        assert (await load(tree, "npy/a.npy")).tolist() == [1, 2, 3, 4]


@asynccontextmanager
async def an_array_at_the_root() -> AsyncIterator[tuple[MountTree, Directory, str]]:
    """Yield the tree, the folder ``npy``, and the name of the only file in it."""
    store = await store_of()
    await store.erase(Key(".zgroup"))
    for key, value in ONE.values("a").items():
        await store.set(Key(key.removeprefix("a/")), value)
    async with tree_over(store) as tree:
        (only,) = await names(tree, "npy")
        yield tree, await folder(tree), only


@trio_test
async def test_beside_an_array_at_the_root_there_is_nothing() -> None:
    async with an_array_at_the_root() as (tree, top, only):
        with pytest.raises(NoSuchEntry, match="other"):
            await top.lookup("other.npy")
        for refused in (
            *(top.create(name, NEW) for name in ("b.npy", "tmp.npy", "b.txt")),
            *(top.mkdir(name) for name in ("g", ".g", "tmp")),
            top.rename(only, top, "b.npy"),
        ):
            with pytest.raises(NotPermitted, match="the root of the store is an array"):
                await refused
        assert (await load(tree, f"npy/{only}")).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("elements", [[4, 3, 2, 1], [[1], [2], [3]]])
@trio_test
async def test_a_temporary_file_is_renamed_over_an_array_at_the_root(elements: list[int]) -> None:
    # rsync, and programs that save under another name first.
    async with an_array_at_the_root() as (tree, top, only):
        await write(tree, f"npy/.{only}.Ab12Cd", npy(np.array(elements, "<i4")))
        with pytest.raises(NotPermitted, match="the root of the store is an array"):
            await top.rename(f".{only}.Ab12Cd", top, "b.npy")
        assert await names(tree, "npy") == {only, f".{only}.Ab12Cd"}
        await top.rename(f".{only}.Ab12Cd", top, only)
        assert await names(tree, "npy") == {only}
        assert (await load(tree, f"npy/{only}")).tolist() == elements


@trio_test
async def test_beside_the_reason_why_the_root_cannot_be_shown_there_is_nothing() -> None:
    store = await store_of()
    await store.set(Key(".zgroup"), b"bad")
    async with tree_over(store) as tree:
        top = await folder(tree)
        (told,) = await names(tree, "npy")
        for refused in (top.create(".x.npy.Ab12Cd", NEW), top.create("b.npy", NEW), top.mkdir("g"), top.rename(told, top, ".x")):
            with pytest.raises(NotPermitted):
                await refused


@trio_test
async def test_news_of_a_prefix_that_is_no_path_of_a_node_are_of_no_file() -> None:
    async with two_arrays_and_a_group() as (tree, _):
        view = tree._views["npy"]
        for nowhere in (Prefix("a//"), Prefix("../")):
            assert list(view.names_of(nowhere)) == []
            assert list(view.lost(nowhere)) == []
            view.follow(nowhere, Prefix("g/"))
        assert list(view.names_of(Prefix("g/"))) == [(("g.npy",), False), (("g",), True)]
        assert not list(view.affected(Change(Key("k"), "set"), ()))


# --- a file that is being written -------------------------------------------------------------------------------------------------


@LOST
@trio_test
async def test_a_file_without_a_header_is_no_array() -> None:
    async with being_written(FOUR[:5]) as (_, handle):
        assert bytes(await handle.read(0, 100)) == FOUR[:5]
        with pytest.raises(ContentInvalid, match=r"no \.npy header in its 5 bytes"):
            await handle.flush()
        await handle.truncate(3)
        with pytest.raises(ContentInvalid, match="header in its 3 bytes"):
            await handle.flush()


@LOST
@trio_test
async def test_a_file_that_is_not_whole_is_not_stored() -> None:
    async with being_written(FOUR[:130]) as (tree, handle):
        with pytest.raises(ContentInvalid, match="has 130 bytes, but its header requires 144: nothing was stored"):
            await handle.flush()
    assert await contents(tree.store) == {".zgroup": b'{"zarr_format":2}'}


@trio_test
async def test_the_header_of_a_file_says_how_long_it_can_be() -> None:
    async with being_written(HEAD) as (tree, handle):
        with pytest.raises(FileTooLarge, match="limits the file to 144 bytes"):
            await handle.write(140, b"12345")
        with pytest.raises(FileTooLarge, match="limits the file to 144 bytes"):
            await handle.truncate(145)
        with pytest.raises(NotPermitted, match="header is in use"):
            await handle.write(0, b"\x93NUMPX")
        # Writing the same bytes again changes nothing.
        await handle.write(0, FOUR[:132])
        with pytest.raises(ContentInvalid, match="cannot be truncated while it is being written"):
            await handle.truncate(131)
        await handle.truncate(144)
        await handle.write(132, FOUR[132:])
        assert bytes(await handle.read(120, 100)) == FOUR[120:]
        await handle.flush()
        assert await read(tree, "npy/new.npy") == FOUR


@LOST
@trio_test
async def test_more_than_a_header_tells_of_is_no_array() -> None:
    async with being_written(b"") as (tree, handle):
        with pytest.raises(FileTooLarge, match="limits the file to 144 bytes"):
            await handle.write(0, FOUR + b"x")
    assert await contents(tree.store) == {".zgroup": b'{"zarr_format":2}'}


@trio_test
async def test_zeros_are_no_header_and_a_file_that_was_emptied_can_begin_again() -> None:
    async with being_written(b"") as (tree, handle):
        with pytest.raises(ContentInvalid, match="does not begin with"):
            await handle.truncate(10)
        assert (await handle.attributes()).size == 0
        await handle.truncate(0)
        await handle.write(0, FOUR)
        await handle.flush()
        assert await read(tree, "npy/new.npy") == FOUR


@trio_test
async def test_a_new_file_that_cannot_be_extended_keeps_its_size() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with being_written(b"") as (tree, handle):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, hard))
        try:
            with pytest.raises(FileTooLarge, match="no file that is staged can be so large"):
                await handle.truncate(1 << 25)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (await handle.attributes()).size == 0
        await handle.write(0, FOUR)
        await handle.flush()
        assert await read(tree, "npy/new.npy") == FOUR


@trio_test
async def test_a_file_that_lost_its_name_when_a_part_of_it_was_stored_cannot_be_read_on() -> None:
    """Elements beyond the memory limit are stored early; an unlinked file will never become an array, so they are erased again."""
    elements = np.arange(1 << 16, dtype="<i4")
    whole = npy(elements)
    async with tree_over(await store_of(), memory_limit="0") as tree:
        top = await folder(tree)
        _, handle = await top.create("new.npy", NEW)
        await handle.write(0, whole[: len(whole) - 4])
        await top.unlink("new.npy")
        with pytest.raises(StaleEntry, match="was unlinked, and its stored part erased"):
            await handle.read(0, 10)
        await handle.release()
    assert await contents(tree.store) == {".zgroup": b'{"zarr_format":2}'}


# --- an array's file --------------------------------------------------------------------------------------------------------------


@trio_test
async def test_the_size_of_an_arrays_file_is_that_of_the_array() -> None:
    async with two_arrays_and_a_group() as (tree, _):
        file = await walk(tree, "npy/a.npy")
        assert isinstance(file, File)
        handle = await file.open(WRITE)
        size = (await file.attributes()).size
        with pytest.raises(FileTooLarge, match=f"exactly {size} bytes"):
            await handle.write(size, b"x")
        with pytest.raises(FileTooLarge, match=f"exactly {size} bytes"):
            await handle.truncate(size + 1)
        with pytest.raises(ContentInvalid, match=f"cannot be truncated to {size - 1}"):
            await handle.truncate(size - 1)
        with pytest.raises(NotPermitted, match="the header describes"):
            await handle.write(0, b"\x93NUMPX")
        await handle.release()


# --- a format without writing -----------------------------------------------------------------------------------------------------


class Bare(Container):
    """One byte before the elements, without writing: `Container.read_head` is that of the base class."""

    name: ClassVar[str] = "bare"
    suffix: ClassVar[str] = ".bin"

    def layout(self, metadata: ArrayMetadata) -> FileLayout:
        if metadata.ndim != 1:
            raise NotRepresentable("one dimension alone")
        return FileLayout((Literal(0, b"!"), Elements(1, metadata.nbytes)))


class Taken(Bare):
    """The same format, which falsely claims to be writable."""

    writable: ClassVar[bool] = True

    def read_head(self, data: bytes) -> Head | None:
        return super().read_head(data)


@trio_test
async def test_files_of_a_format_that_cannot_be_taken_back_are_read_only() -> None:
    async with two_arrays_and_a_group() as (_, npy_folder):
        assert isinstance(npy_folder, WholeArrayRoot)
        top = WholeArrayRoot(npy_folder.context, Bare())
        assert await names(top) == {"a.bin", "b.bin", "g"}
        assert await read(top, "a.bin") == b"!" + ONE.elements.tobytes()
        with pytest.raises(NotPermitted, match="bare/ cannot be written"):
            await top.create("c.bin", NEW)
        with pytest.raises(NotPermitted, match="bare/ cannot be written"):
            await top.unlink("a.bin")
        file = await walk(top, "a.bin")
        assert isinstance(file, File)
        with pytest.raises(NotPermitted, match="cannot be written"):
            await file.open(WRITE)
        await (await file.open(READ_ONLY)).release()


@LOST
@trio_test
async def test_a_format_that_has_no_reader_takes_nothing() -> None:
    async with two_arrays_and_a_group() as (_, npy_folder):
        assert isinstance(npy_folder, WholeArrayRoot)
        top = WholeArrayRoot(npy_folder.context, Taken())
        with pytest.raises(NotPermitted, match="files in bare/ cannot be written"):
            await write(top, "c.bin", b"!abcd")


class Failing(Bare):
    """A format that fails unexpectedly on some arrays."""

    def layout(self, metadata: ArrayMetadata) -> FileLayout:
        if metadata.shape == (3,):
            raise ZeroDivisionError("three")
        return super().layout(metadata)


@pytest.mark.logs("/b: read failed: unforeseen error: ZeroDivisionError: three")
@trio_test
async def test_an_array_that_a_format_breaks_on_hides_no_other() -> None:
    async with tree_over(await store_of(ONE, Example((3,), (2,)))) as tree:
        npy_folder = await folder(tree)
        assert isinstance(npy_folder, WholeArrayRoot)
        top = WholeArrayRoot(npy_folder.context, Failing())
        assert await names(top) == {"a.bin", "b.unsupported.txt"}
        assert b"three" in await read(top, "b.unsupported.txt")


@trio_test
async def test_a_name_that_no_node_can_have_names_no_group() -> None:
    async with two_arrays_and_a_group() as (_, top):
        with pytest.raises(NameInvalid, match="cannot name a node"):
            await top.mkdir("%%")
