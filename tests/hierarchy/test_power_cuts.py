"""What a power cut may leave of edits that no program has synced: documents are whole, and announce no chunks that are not in place."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.trees import load, opened, tree_over, walk, write
from zarrfs import durability
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intent
from zarrfs.hierarchy.records import RECORD, Record
from zarrfs.keys import APART, ROOT, Key, NodePath, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory, OpenFlags

DOCUMENTS = (".zarray", ".zattrs", ".zgroup", ".zmetadata", ".json", ".array", ".group")


ROOT_ARRAY = (
    b'{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i8", "compressor": null, "filters": null,'
    b' "order": "C", "fill_value": 0}'
)


async def directory(tree: MountTree, path: str) -> Directory:
    """Return the folder at ``path``."""
    found = await walk(tree, path)
    assert isinstance(found, Directory)
    return found


class Recording(ForwardingStore):
    """Records the keys that are replaced, by whether their bytes are on the disk first, and documents replaced before a sync.

    A file system may keep such a document, and not the rename of the chunks, or of the node, that it announces.
    """

    def __init__(self, inner: FolderStore) -> None:
        super().__init__(inner)
        self.seen: set[str] = set()
        self.written_first: set[str] = set()
        self.not_written_first: set[str] = set()
        self.moved: set[str] = set()
        self.syncs = 0
        self.too_early: list[tuple[str, set[str]]] = []

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        is_new = key not in self.seen
        self.seen.add(key)
        if not is_new:
            (self.written_first if durability.is_demanded() else self.not_written_first).add(key)
        is_elsewhere = key.startswith("meta/") or "/" not in key
        if not is_new and is_elsewhere and key.endswith(DOCUMENTS):
            self._check(key)
        return await self.inner.set(key, value, expect=expect)

    def _check(self, key: Key) -> None:
        name = "/".join(key.split("/")[2:]).removesuffix(".json").removesuffix(".array")
        moved = {each for each in self.moved if not key.startswith("meta/") or each.endswith((f"/{name}/", "consolidated"))}
        if moved:
            self.too_early.append((key, moved))

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        if not new.startswith(APART):
            self.moved.add(new)
        return await self.inner.rename_prefix(old, new)

    async def rename(self, old: Key, new: Key) -> bool:
        if new.startswith("meta/"):
            self._check(new)
        return await self.inner.rename(old, new)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        synced = list(targets)
        self.syncs += 1
        self.moved = {
            each for each in self.moved if not any(each.startswith(target) or target.startswith(each) for target in synced)
        }
        await self.inner.sync(synced)


def npy(values: np.ndarray[Any, Any]) -> bytes:
    """Return an ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


async def edit(store: Recording, path: Path, dialect: str, *, copies: bool) -> None:
    """Run each kind of edit, without any fsync."""
    async with tree_over(store, f"file:{path}", new_dialect=dialect, watch="no") as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        await folder.mkdir("g")
        group = await walk(tree, "npy/g")
        assert isinstance(group, Directory)
        await write(tree, "npy/g/a.npy", npy(np.arange(4)))
        if copies:
            # A program may have written much before it makes the copy, and does not wait for that to be on the disk.
            store.moved.clear()
            syncs = store.syncs
            editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect=dialect)
            assert await editor.consolidate(ROOT)
            assert store.syncs == syncs
        await write(tree, "npy/g/b.npy", npy(np.arange(5)))
        await write(tree, "npy/g/a.npy", npy(np.arange(6.0)))
        for units in (b"K", b"C"):
            await write(tree, "chunks/g/a/.zattrs", b'{"units": "%s"}' % units)
        await group.rename("a.npy", group, "b.npy")
        await group.rename("b.npy", group, "c.npy")
        await group.unlink("c.npy")


@pytest.mark.parametrize("copies", [False, True], ids=["", "copies"])
@pytest.mark.parametrize("dialect", ["v2", "v3", "v3_2019", "v3_2022"])
@trio_test
async def test_documents_are_on_the_disk_before_they_replace_the_old_ones(dialect: str, copies: bool, tmp_path: Path) -> None:
    """An empty document of a group hid all that was stored below it."""
    if copies and dialect == "v3_2019":
        pytest.skip("a layout without consolidated copies")
    store = Recording(FolderStore(str(tmp_path)))
    await edit(store, tmp_path, dialect, copies=copies)
    assert any(key.endswith(DOCUMENTS) for key in store.written_first)
    assert not {key for key in store.not_written_first if key.endswith(DOCUMENTS)}
    assert not store.too_early
    await store.aclose()


class Forgetting(Recording):
    """Records what has its new name, not synced, when the record of its operation is erased: what it replaced is removed next."""

    def __init__(self, inner: FolderStore) -> None:
        super().__init__(inner)
        self.forgotten: list[set[str]] = []

    async def erase(self, key: Key) -> None:
        if key.endswith(f"/{RECORD}"):
            self.forgotten.append(set(self.moved))
        await self.inner.erase(key)


@pytest.mark.parametrize("dialect", ["v2", "v3", "v3_2019", "v3_2022"])
@trio_test
async def test_what_was_replaced_is_removed_after_the_new_names_are_on_the_disk(dialect: str, tmp_path: Path) -> None:
    """Without an ordered journal (exFAT, ext2) a power cut would leave neither the old array nor the new one."""
    store = Forgetting(FolderStore(str(tmp_path)))
    async with tree_over(store, f"file:{tmp_path}", new_dialect=dialect, watch="no") as tree:
        await write(tree, "npy/a.npy", npy(np.arange(4)))
        await write(tree, "npy/b.npy", npy(np.arange(4)))
        store.moved.clear()
        store.forgotten.clear()
        await write(tree, "npy/a.npy", npy(np.arange(6.0)))
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        await folder.rename("b.npy", folder, "a.npy")
    assert len(store.forgotten) >= 2 and not any(store.forgotten)
    await store.aclose()


@trio_test
async def test_an_empty_record_is_of_an_operation_that_was_not_begun(tmp_path: Path) -> None:
    """Every later mount reported it, and left what was to be deleted."""
    apart = tmp_path / ".zarrfs" / ("0" * 32)
    (apart / "gone/a").mkdir(parents=True)
    (apart / "gone/a/0").write_bytes(b"1")
    (apart / "intent.json").write_bytes(b"")
    store = FolderStore(str(tmp_path))
    async with tree_over(store, f"file:{tmp_path}", watch="no") as tree:
        await tree.recover()
    assert not (tmp_path / ".zarrfs").exists()
    await store.aclose()


class Steps(ForwardingStore):
    """Lists the steps of a copy into place: those on documents, those on chunks in their place, and syncs."""

    def __init__(self, inner: FolderStore) -> None:
        super().__init__(inner)
        self.steps: list[str] = []

    def _add(self, step: str) -> None:
        if self.steps[-1:] != [step]:
            self.steps.append(step)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if not key.startswith(APART):
            self._add("set document" if key.startswith("meta/") else "set chunks")
        return await self.inner.set(key, value, expect=expect)

    copy = Store.copy

    async def erase_values(self, keys: Iterable[Key]) -> None:
        erased = [key for key in keys if not key.startswith(APART)]
        if erased:
            self._add("erase document" if all(key.startswith("meta/") for key in erased) else "erase chunks")
        await self.inner.erase_values(erased)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        synced = list(targets)
        if any(target.startswith("meta/") for target in synced):
            self._add("sync document")
        await self.inner.sync(synced)

    async def sync_all(self) -> None:
        self._add("sync all")
        await self.inner.sync_all()


@trio_test
async def test_where_nothing_can_be_renamed_one_of_two_arrays_is_complete_on_the_disk_at_each_step(tmp_path: Path) -> None:
    """The chunk of an array without dimensions lies beside its prefix in 2019. Its document came back, and the chunk did not."""
    store = Steps(FolderStore(str(tmp_path)))
    async with tree_over(store, f"file:{tmp_path}", new_dialect="v3_2019", watch="no") as tree:
        await write(tree, "npy/a.npy", npy(np.array(386.0)))
        store.steps.clear()
        await write(tree, "npy/a.npy", npy(np.arange(5)))
    assert store.steps == [
        "sync all",
        "erase document",
        "sync document",
        "erase chunks",
        "set chunks",
        "sync all",
        "set document",
        "sync document",
    ]
    await store.aclose()


@pytest.mark.logs("completed")
@trio_test
async def test_a_rename_whose_document_has_both_names_is_completed(tmp_path: Path) -> None:
    """btrfs keeps both names of a file that was synced before its rename. The array read as fill value, its chunks stayed apart."""
    store = FolderStore(str(tmp_path))
    async with tree_over(store, f"file:{tmp_path}", new_dialect="v3_2022", watch="no") as tree:
        await write(tree, "npy/a.npy", npy(np.arange(5)))
        moves = (
            (Prefix("data/root/a/"), Prefix("data/root/b/")),
            (Key("meta/root/a.array.json"), Key("meta/root/b.array.json")),
        )
        intent = Intent(store, "0" * 32)
        record = Record("rename", NodePath("/b"), Prefix("meta/root/b/"), source=Prefix("a/"), moves=moves, is_placing=True)
        await intent.begin(record)
        await intent.let_go()
    apart = tmp_path / ".zarrfs" / ("0" * 32) / "old"
    apart.mkdir()
    (tmp_path / "data/root/a").rename(apart / "0")
    (tmp_path / moves[1][0]).rename(apart / "1")
    (tmp_path / moves[1][1]).hardlink_to(apart / "1")
    async with tree_over(store, f"file:{tmp_path}", watch="no") as tree:
        await tree.recover()
        np.testing.assert_array_equal(await load(tree, "npy/b.npy"), np.arange(5))
    assert not (tmp_path / ".zarrfs").exists()
    await store.aclose()


class Demanding(ForwardingStore):
    """Lists the keys that are set, by whether their bytes are on the disk before they get their names."""

    def __init__(self, inner: FolderStore) -> None:
        super().__init__(inner)
        self.written_first: list[Key] = []
        self.others: list[Key] = []

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        (self.written_first if durability.is_demanded() else self.others).append(key)
        return await self.inner.set(key, value, expect=expect)


@pytest.mark.parametrize(
    ("dialect", "documents"),
    [
        ("v2", (".zgroup", "g/.zgroup")),
        ("v3", ("zarr.json", "g/zarr.json")),
        ("v3_2022", ("meta/root/g.group.json",)),
    ],
)
@trio_test
async def test_a_first_document_of_a_group_is_on_the_disk_before_it_can_hide_what_the_group_holds(
    dialect: str, documents: tuple[str, ...], tmp_path: Path
) -> None:
    """An empty one, of the root for example, hid all that was stored below it. It is stored with the next new array."""
    store = Demanding(FolderStore(str(tmp_path)))
    async with tree_over(store, f"file:{tmp_path}", new_dialect=dialect, watch="no") as tree:
        npy_folder = await walk(tree, "npy")
        assert isinstance(npy_folder, Directory)
        await npy_folder.mkdir("g")
        await write(tree, "npy/g/a.npy", npy(np.arange(4)))
    for each in documents:
        (tmp_path / each).unlink()
    store.others.clear()
    store.written_first.clear()
    async with tree_over(store, f"file:{tmp_path}", watch="no") as tree:
        await write(tree, "npy/g/b.npy", npy(np.arange(4)))
        await write(tree, "chunks/g/.zattrs", b'{"units": "K"}')
        np.testing.assert_array_equal(await load(tree, "npy/g/a.npy"), np.arange(4))
    made = {each for each in documents if (tmp_path / each).exists()}
    assert made and made <= set(store.written_first) and not made & set(store.others)
    await store.aclose()


@trio_test
async def test_first_attributes_are_on_the_disk_before_they_get_their_name(tmp_path: Path) -> None:
    """A node with an empty `.zattrs` is unreadable, and hides all that is stored below it."""
    store = Demanding(FolderStore(str(tmp_path)))
    async with tree_over(store, f"file:{tmp_path}", new_dialect="v2", watch="no") as tree:
        await write(tree, "npy/a.npy", npy(np.arange(4)))
        for folder in ("chunks", "chunks/a"):
            await write(tree, f"{folder}/.zattrs", b'{"units": "K"}')
    assert {".zattrs", "a/.zattrs"} <= set(store.written_first)
    await store.aclose()


@trio_test
async def test_the_record_of_a_copy_is_on_the_disk_before_a_node_is_taken_out_of_the_copy(tmp_path: Path) -> None:
    """An empty record left the array that was being replaced out of the copy, and no later mount put it in."""
    store = Demanding(FolderStore(str(tmp_path)))
    async with tree_over(store, f"file:{tmp_path}", new_dialect="v2", watch="no") as tree:
        await write(tree, "npy/a.npy", npy(np.arange(4)))
        editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect="v2")
        assert await editor.consolidate(ROOT)
        await write(tree, "npy/a.npy", npy(np.arange(6.0)))
    first = [key for key in store.written_first if key.startswith(APART) or key == ".zmetadata"]
    assert first[1].endswith("/intent.json") and first[0] == first[2] == ".zmetadata"
    await store.aclose()


@trio_test
async def test_a_document_that_only_a_copy_has_is_on_the_disk_before_the_node_depends_on_it(tmp_path: Path) -> None:
    store = Demanding(FolderStore(str(tmp_path)))
    async with tree_over(store, f"file:{tmp_path}", new_dialect="v2", watch="no") as tree:
        await write(tree, "npy/a.npy", npy(np.arange(4)))
        editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect="v2")
        assert await editor.consolidate(ROOT)
    (tmp_path / "a/.zarray").unlink()
    store.written_first.clear()
    async with tree_over(store, f"file:{tmp_path}", watch="no") as tree:
        npy_folder = await walk(tree, "npy")
        assert isinstance(npy_folder, Directory)
        await npy_folder.rename("a.npy", npy_folder, "b.npy")
        np.testing.assert_array_equal(await load(tree, "npy/b.npy"), np.arange(4))
    assert "a/.zarray" in store.written_first
    await store.aclose()


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_an_array_at_the_root_that_was_replaced_can_be_synced(dialect: str, tmp_path: Path) -> None:
    """It was EINVAL: its chunks were looked for at `/0`, which is no key."""
    store = FolderStore(str(tmp_path))
    async with tree_over(store, f"file:{tmp_path}", new_dialect=dialect, watch="no") as tree:
        await write(tree, "chunks/.zarray", ROOT_ARRAY)
        (name,) = [entry[0] async for entry in (await directory(tree, "npy")).entries()]
        await write(tree, f"npy/{name}", npy(np.arange(5)))
        handle = await opened(tree, f"npy/{name}", OpenFlags(read=False, write=True, truncate=True))
        await handle.write(0, npy(np.arange(7)))
        await handle.fsync()
        await handle.release()
        np.testing.assert_array_equal(await load(tree, f"npy/{name}"), np.arange(7))
    await store.aclose()
