"""``raw/``: refused operations and their reasons, and folders that a mount keeps where an object store cannot represent them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.small_stores import array_document
from tests.support.stores import contents, fill
from tests.support.trees import listing, names, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import (
    AcrossViews,
    DirectoryNotEmpty,
    EntryExists,
    IsADirectory,
    NameInvalid,
    NoSuchEntry,
    NotADirectory,
    OperationUnsupported,
    StoreReadOnly,
    StoreUnsupported,
)
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory, OpenFlags
from zarrfs.vfs.temporary import TemporaryFile
from zarrfs.views.raw import directory as raw_view

NEW = OpenFlags(read=False, write=True, truncate=True)
TEMPORARY = f"k.{'0' * 32}.partial"
"""The temporary name that zarr-python writes before it links it to the key."""
VALUES = {"a/k": b"1", "a/l": b"2", "b/k": b"3", "top": b"4"}


class BucketStore(ForwardingStore):
    """A store of keys alone, like an object store, that renames nothing."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, rename=False)

    async def rename(self, old: Key, new: Key) -> bool:
        raise StoreUnsupported("no renames")

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        raise StoreUnsupported("no renames")


async def small() -> MemoryStore:
    store = MemoryStore()
    await fill(store, VALUES)
    return store


async def folder(tree: MountTree, path: str) -> Directory:
    found = await walk(tree, path)
    assert isinstance(found, Directory)
    return found


async def temporary(tree: MountTree, path: str, data: bytes = b"written") -> TemporaryFile:
    await write(tree, path, data)
    found = await walk(tree, path)
    assert isinstance(found, TemporaryFile)
    return found


@trio_test
async def test_what_is_there_already_is_not_made_again() -> None:
    store = await small()
    async with tree_over(store) as tree:
        raw = await folder(tree, "raw")
        for name in ("top", "a"):
            with pytest.raises(EntryExists, match=name):
                await raw.create(name, NEW)
            with pytest.raises(EntryExists, match=name):
                await raw.mkdir(name)
        made = await raw.mkdir("empty")
        assert isinstance(made, Directory)
        with pytest.raises(EntryExists, match="empty"):
            await raw.mkdir("empty")
        with pytest.raises(EntryExists, match="top"):
            await raw.rename("a", raw, "top", replace=False)
    assert await contents(store) == VALUES


@trio_test
async def test_a_file_is_no_folder_and_a_folder_is_no_file() -> None:
    store = await small()
    async with tree_over(store) as tree:
        raw = await folder(tree, "raw")
        with pytest.raises(IsADirectory, match="'a' is a folder"):
            await raw.unlink("a")
        with pytest.raises(NotADirectory, match="'top' is a file"):
            await raw.rmdir("top")
        with pytest.raises(IsADirectory, match="'b' is a folder"):
            await raw.rename("top", raw, "b")
        with pytest.raises(NotADirectory, match="'top' is a file"):
            await raw.rename("a", raw, "top")
        with pytest.raises(DirectoryNotEmpty, match="holds 'k'"):
            await raw.rename("a", raw, "b")
        with pytest.raises(DirectoryNotEmpty, match="holds"):
            await raw.rmdir("a")
        with pytest.raises(NameInvalid, match="into itself"):
            await raw.rename("a", await folder(tree, "raw/a"), "below")
    assert await contents(store) == VALUES


@trio_test
async def test_who_renames_something_to_its_own_name_changes_nothing() -> None:
    store = await small()
    async with tree_over(store) as tree:
        raw = await folder(tree, "raw")
        await raw.rename("top", raw, "top")
        await raw.rename("a", raw, "a")
        assert await names(tree, "raw") == {"a", "b", "top"}
    assert await contents(store) == VALUES


@trio_test
async def test_nothing_is_renamed_or_linked_from_one_view_into_another() -> None:
    async with tree_over(await small()) as tree:
        raw, chunks = await folder(tree, "raw"), await folder(tree, "chunks")
        with pytest.raises(AcrossViews, match="'top'"):
            await raw.rename("top", chunks, "top")
        await temporary(tree, "chunks/x.tmp")
        theirs = await walk(tree, "chunks/x.tmp")
        assert isinstance(theirs, TemporaryFile)
        with pytest.raises(AcrossViews, match=r"'chunks/x\.tmp' is a file of another view"):
            await raw.link(theirs, "k")


@trio_test
async def test_a_file_that_is_being_written_is_linked_to_a_key_that_is_free() -> None:
    store = await small()
    async with tree_over(store) as tree:
        raw = await folder(tree, "raw")
        written = await temporary(tree, f"raw/{TEMPORARY}")
        for taken in ("top", "a"):
            with pytest.raises(EntryExists, match=taken):
                await raw.link(written, taken)
        with pytest.raises(OperationUnsupported, match="another name"):
            await raw.link(written, f"other{TEMPORARY}")
        value = await walk(tree, "raw/top")
        with pytest.raises(OperationUnsupported, match="one key"):
            await raw.link(value, "other")  # type: ignore[arg-type]
        await raw.link(written, "k")
        assert await read(tree, "raw/k") == b"written"
    assert await contents(store) == VALUES | {"k": b"written"}


@trio_test
async def test_an_empty_part_names_nothing_that_could_be_made() -> None:
    store = MemoryStore()
    await fill(store, {"a//k": b"1"})
    async with tree_over(store) as tree:
        assert await names(tree, "raw/a") == {"%%"}
        assert await read(tree, "raw/a/%%/k") == b"1"
        inner = await folder(tree, "raw/a")
        with pytest.raises(NameInvalid, match="'%%' cannot name a new key"):
            await inner.create("%%", NEW)
        with pytest.raises(NoSuchEntry, match="%%x"):
            await inner.lookup("%%x")


@trio_test
async def test_nothing_is_made_or_removed_where_the_mount_is_read_only() -> None:
    store = await small()
    store.capabilities = replace(store.capabilities, write=False)
    async with tree_over(store) as tree:
        raw = await folder(tree, "raw")
        refused: list[Callable[[], object]] = [
            lambda: raw.create("k", NEW),
            lambda: raw.mkdir("c"),
            lambda: raw.unlink("top"),
            lambda: raw.rmdir("a"),
            lambda: raw.rename("top", raw, "other"),
        ]
        for call in refused:
            with pytest.raises(StoreReadOnly):
                await call()  # type: ignore[misc]
    assert await contents(store) == VALUES


@trio_test
async def test_a_value_is_renamed_by_copying_where_the_store_renames_nothing() -> None:
    inner = await small()
    async with tree_over(BucketStore(inner)) as tree:
        raw = await folder(tree, "raw")
        await raw.rename("top", await folder(tree, "raw/a"), "k")
        assert await names(tree, "raw") == {"a", "b"}
        assert await read(tree, "raw/a/k") == b"4"
    assert await contents(inner) == {"a/k": b"4", "a/l": b"2", "b/k": b"3"}


@trio_test
async def test_a_folder_is_not_renamed_where_that_is_more_than_one_step() -> None:
    inner = await small()
    async with tree_over(BucketStore(inner)) as tree:
        raw = await folder(tree, "raw")
        with pytest.raises(AcrossViews, match="cannot rename a folder in one step"):
            await raw.rename("a", raw, "c")
        assert await names(tree, "raw") == {"a", "b", "top"}
    assert await contents(inner) == VALUES


@pytest.mark.parametrize("of", [lambda inner: inner, BucketStore], ids=["renamed", "copied"])
@trio_test
async def test_a_value_that_is_gone_is_not_renamed(of: Callable[[Store], Store]) -> None:
    class Losing(ForwardingStore):
        """Another program erases the value between its lookup and its rename."""

        async def rename(self, old: Key, new: Key) -> bool:
            await self.inner.erase(old)
            return await super().rename(old, new)

        async def copy(self, old: Key, new: Key) -> bool:
            await self.inner.erase(old)
            return await super().copy(old, new)

    inner = await small()
    async with tree_over(Losing(of(inner))) as tree:
        raw = await folder(tree, "raw")
        with pytest.raises(NoSuchEntry, match="top"):
            await raw.rename("top", raw, "other")
    assert await contents(inner) == {key: value for key, value in VALUES.items() if key != "top"}


@pytest.mark.parametrize("view", ["raw/{}", "chunks/{}", "zarr3/{}", "npy/{}.npy"])
@trio_test
async def test_an_array_that_another_program_has_just_renamed_is_not_renamed(view: str, tmp_path: Path) -> None:
    class Slower(ForwardingStore):
        """Another program gives the folder the same name between its lookup and its rename."""

        async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
            (tmp_path / "a").rename(tmp_path / "b")
            return await super().rename_prefix(old, new)

    for key, value in {"a/.zarray": array_document((4,), (2,), "<i2"), "a/0": bytes(4), ".zgroup": b'{"zarr_format": 2}'}.items():
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(value)
    async with tree_over(Slower(FolderStore(str(tmp_path))), str(tmp_path)) as tree:
        old, new = (view.format(name) for name in "ab")
        before = await walk(tree, old)
        above = await walk(tree, old.rpartition("/")[0])
        assert isinstance(above, Directory)
        with pytest.raises(NoSuchEntry, match="a"):
            await above.rename(old.rpartition("/")[2], above, new.rpartition("/")[2])
        # Nor is the array followed to a path to which this mount has not moved it.
        with pytest.raises(NoSuchEntry):
            await walk(tree, old)
        assert await walk(tree, new) is not before


@trio_test
async def test_an_empty_folder_of_an_object_store_has_a_time_and_is_renamed_with_what_is_in_it() -> None:
    """The folder exists in this mount alone, and so do entries created in it."""
    store = await small()
    async with tree_over(store) as tree:
        raw = await folder(tree, "raw")
        await (await raw.mkdir("empty")).mkdir("inner")
        made = await folder(tree, "raw/empty")
        await made.set_mtime(5_000_000_000)
        assert (await listing(tree, "raw"))["empty"][3] == 5_000_000_000
        await raw.rename("empty", await folder(tree, "raw/a"), "moved")
        assert await names(tree, "raw") == {"a", "b", "top"}
        assert await names(tree, "raw/a/moved") == {"inner"}
    assert await contents(store) == VALUES


@pytest.mark.logs("'a': key hidden by the folder of the same name", "'k3': key hidden by the folder")
@trio_test
async def test_a_key_that_a_folder_hides_is_not_listed_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_view, "_LISTED_ONCE", 3)
    store = MemoryStore()
    await fill(store, {"a": b"hidden", "a/k": b"1", "k3": b"hidden too", "k3/l": b"2", **{f"k{n}": b"" for n in (0, 1, 2, 4)}})
    async with tree_over(store) as tree:
        found = await listing(tree, "raw")
    assert set(found) == {"a", "k0", "k1", "k2", "k3", "k4"}
    assert [name for name, entry in found.items() if entry[1]] == ["a", "k3"]


@trio_test
async def test_news_of_what_waits_for_its_shard_are_none_of_the_key() -> None:
    async with tree_over(await small()) as tree:
        view = tree._views["raw"]
        assert not list(view.affected(Change(Key("a/k"), "set", queued=True), ()))
        (affected,) = view.affected(Change(Key("a/k"), "erase"), ())
        assert (affected.names, affected.gone) == (("a", "k"), True)
