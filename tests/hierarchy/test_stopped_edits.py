"""Edits through ``chunks/`` that fail or are killed at any store operation: what was accepted is not lost, and a second attempt works."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from pathlib import Path

import numpy as np
import pytest
import trio
import zarr
from trio.testing import trio_test

from tests.hierarchy.test_amending import STORES as STORES_WITH_COPIES
from tests.hierarchy.test_several_steps import STORES, Faulty, Killed, npy
from tests.support.stores import fill
from tests.support.trees import folder_at, load, names, read, tree_of, tree_over, write
from zarrfs.buffers import Buffer
from zarrfs.errors import NoSuchEntry, StaleEntry, StoreFull, ZarrfsError
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.records import Record
from zarrfs.keys import APART, ROOT, Key, NodePath
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import OpenFlags

pytestmark = pytest.mark.logs("")
ELEMENTS = np.arange(1, 9, dtype="<i4")
DOCUMENT = json.dumps(
    {
        "zarr_format": 2,
        "shape": [8],
        "chunks": [4],
        "dtype": "<i4",
        "fill_value": 0,
        "order": "C",
        "compressor": None,
        "filters": None,
    }
).encode()


@pytest.mark.parametrize("dialect", ["v0", "v2"])
def test_a_chunk_that_waits_for_its_document_is_stored_with_the_second_attempt(dialect: str, tmp_path: Path) -> None:
    """The first one reports the full disk. In v0 it had created the array already, and the chunk then belonged to nothing."""

    async def attempt(at: int) -> bool:
        path = tmp_path / str(at)
        await trio.Path(path).mkdir()
        store = Faulty(path, STORES["exchange"])
        async with tree_over(store, f"file:{path}", new_dialect=dialect, watch="no") as tree:
            await (await folder_at(tree, "chunks")).mkdir("n")
            await write(tree, "chunks/n/1", ELEMENTS[4:].tobytes())
            store.at = store.count + at
            with suppress(StoreFull):
                await write(tree, "chunks/n/.zarray", DOCUMENT)
            happened = store.count > store.at
            store.at = -1
            await write(tree, "chunks/n/.zarray", DOCUMENT)
            np.testing.assert_array_equal((await load(tree, "npy/n.npy"))[4:], ELEMENTS[4:])
            assert await tree.publish_all() == []
        await store.aclose()
        return happened

    at = 0
    while trio.run(attempt, at):
        at += 1
    assert at > 1


@trio_test
async def test_the_fsync_of_a_chunk_that_waits_is_carried_out_with_the_document(tmp_path: Path) -> None:
    """A kill lost the chunk, which was only queued for its shard, although all was synced."""
    async with tree_of(tmp_path, new_dialect="v3", new_shards="2", shard_delay="3600") as tree:
        await (await folder_at(tree, "chunks")).mkdir("n")
        _, handle = await (await folder_at(tree, "chunks/n")).create("1", OpenFlags(read=False, write=True))
        await handle.write(0, ELEMENTS[4:].tobytes())
        await handle.fsync()
        await handle.release()
        await write(tree, "chunks/n/.zarray", DOCUMENT)
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "n", mode="r")[4:], ELEMENTS[4:])


class AskingForLock(ForwardingStore):
    """A folder that notes at each change of a document whether another mount could edit nodes at this moment."""

    def __init__(self, path: Path) -> None:
        super().__init__(FolderStore(str(path)))
        self.path = path
        self.others_may_edit: list[bool] = []

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        self._look(key)
        return await super().set(key, value, expect=expect)

    async def erase(self, key: Key) -> None:
        self._look(key)
        await super().erase(key)

    def _look(self, key: Key) -> None:
        if not key.startswith(APART):
            fd = os.open(self.path, os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.others_may_edit.append(True)
            except BlockingIOError:
                self.others_may_edit.append(False)
            finally:
                os.close(fd)


@trio_test
async def test_other_mounts_edit_nothing_during_a_recovery(tmp_path: Path) -> None:
    """What another mount stored between the steps of a recovery was replaced by what was there before the interrupted operation."""
    inner = FolderStore(str(tmp_path))
    await fill(inner, {key: json.dumps(value).encode() for key, value in STORES_WITH_COPIES["v2"].items()})
    await inner.aclose()
    store = Faulty(tmp_path, STORES["exchange"])
    # The record and the first of two documents.
    store.at, store.kills, store.late = 1, True, True
    with suppress(Killed, BaseExceptionGroup):
        async with tree_over(store, f"file:{tmp_path}", watch="no") as tree:
            await write(tree, "chunks/a/.zattrs", b'{"units": "new"}')
    store.end_process()
    await store.inner.aclose()
    async with aclosing(AskingForLock(tmp_path)) as asking, tree_over(asking, f"file:{tmp_path}", watch="no") as tree:
        await tree.recover()
        assert asking.others_may_edit and not any(asking.others_may_edit)
    assert json.loads((tmp_path / "a/.zattrs").read_bytes()) == {"units": "new"}


@pytest.mark.parametrize(("dialect", "is_in_copy_alone"), [("v2", False), ("v3", False), ("v3", True)])
def test_a_chunk_in_the_new_shape_stays_in_the_array_whose_resize_was_killed(
    dialect: str, is_in_copy_alone: bool, tmp_path: Path
) -> None:
    """Another mount stored it after the kill, when the new document was there and not in the copy. The shape was undone."""

    async def attempt(at: int) -> bool:
        path, options = tmp_path / str(at), {"new_dialect": dialect, "new_chunks": "4", "watch": "no"}
        await trio.Path(path).mkdir()
        async with tree_of(path, **options) as tree:
            await write(tree, "npy/a.npy", npy(ELEMENTS))
            editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect=dialect)
            assert await editor.consolidate(ROOT)
        if is_in_copy_alone:
            (path / "a/zarr.json").unlink()
        store = Faulty(path, STORES["exchange"])
        store.at, store.kills, store.late = at, True, True
        with suppress(Killed, BaseExceptionGroup):
            async with tree_over(store, f"file:{path}", **options) as tree:
                document = json.loads(await read(tree, "zarr3/a/zarr.json"))
                await write(tree, "zarr3/a/zarr.json", json.dumps(document | {"shape": [12]}).encode())
        store.end_process()
        await store.inner.aclose()
        async with tree_of(path, **options) as other:
            is_new = len(await load(other, "npy/a.npy")) == 12
            if is_new:
                await write(other, "chunks/a/2", ELEMENTS[:4].tobytes())
        async with tree_of(path, **options) as tree:
            await tree.recover()
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), [*ELEMENTS, *(ELEMENTS[:4] if is_new else ())])
        copied = json.loads((path / {"v2": ".zmetadata", "v3": "zarr.json"}[dialect]).read_bytes())
        copied = copied["metadata"]["a/.zarray"] if dialect == "v2" else copied["consolidated_metadata"]["metadata"]["a"]
        assert copied["shape"] == [12 if is_new else 8]
        return store.is_dead

    at = 0
    while trio.run(attempt, at):
        at += 1
    assert at > 2


def test_a_killed_creation_leaves_no_array_of_v0_without_the_folder_of_its_chunks(tmp_path: Path) -> None:
    """Zarr 0.4 lists that folder without a check that it exists."""

    async def attempt(at: int) -> bool:
        path = tmp_path / str(at)
        await trio.Path(path).mkdir()
        store = Faulty(path, STORES["exchange"])
        store.at, store.kills, store.late = at, True, True
        with suppress(Killed, BaseExceptionGroup):
            async with tree_over(store, f"file:{path}", new_dialect="v0", watch="no") as tree:
                await (await folder_at(tree, "chunks")).mkdir("n")
                await write(tree, "chunks/n/.zarray", DOCUMENT)
        store.end_process()
        await store.inner.aclose()
        assert not (path / "n/__zmeta__").exists() or (path / "n/__zdata__").is_dir()
        return store.is_dead

    at = 0
    while trio.run(attempt, at):
        at += 1
    assert at > 1


@pytest.mark.parametrize("dialect", ["v0", "v1", "v2", "v3", "v3_2019", "v3_2022"])
@trio_test
async def test_an_array_that_is_saved_over_keeps_the_attributes_that_another_mount_has_just_stored(
    dialect: str, tmp_path: Path
) -> None:
    """It got those that this mount had read before."""
    options = {"new_dialect": dialect, "watch": "no"}
    async with tree_of(tmp_path, **options) as tree, tree_of(tmp_path, **options) as other:
        await write(tree, "npy/a.npy", npy(ELEMENTS))
        await write(tree, "chunks/a/.zattrs", b'{"units": "old"}')
        assert b"old" in await read(tree, "chunks/a/.zattrs")
        await write(other, "chunks/a/.zattrs", b'{"units": "new"}')
        await write(tree, "npy/a.npy", npy(ELEMENTS[:3]))
        assert b"new" in await read(tree, "chunks/a/.zattrs")
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), ELEMENTS[:3])
    async with tree_of(tmp_path, **options) as tree:
        assert json.loads(await read(tree, "chunks/a/.zattrs"))["units"] == "new"


class AskedForLock(ForwardingStore):
    """A store that tells when a lock was asked for, and of which folders of nodes."""

    asked = trio.Event()

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.folders: list[str] = []

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        self.asked.set()
        if not key.startswith(APART):
            self.folders.append(key.parent)
        return super().exclusive(key)


@pytest.mark.parametrize("is_busy", [False, True])
@trio_test
async def test_the_start_of_a_mount_waits_only_once_for_the_edits_of_another(is_busy: bool, tmp_path: Path) -> None:
    """It waited for each interrupted operation, a minute by default; and for one folder once for each layout, under its own lock."""
    async with tree_of(tmp_path, new_dialect="v2") as tree:
        await write(tree, "npy/a.npy", npy(ELEMENTS))
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    for name in "0" * 32, "1" * 32:
        (tmp_path / ".zarrfs" / name).mkdir(parents=True)
        (tmp_path / ".zarrfs" / name / "intent.json").write_bytes(Record.of_copies(NodePath("/a")).format())
    lock = os.open(tmp_path, os.O_RDONLY)
    if is_busy:
        fcntl.flock(lock, fcntl.LOCK_EX)
    async with (
        aclosing(AskedForLock(FolderStore(str(tmp_path)))) as store,
        tree_over(store, f"file:{tmp_path}", watch="no", timeout="1" if is_busy else "60") as tree,
    ):
        await tree.recover()
        assert store.folders == [""] * (1 if is_busy else 2)
        assert (b"another mount is editing" in tree.losses.errors.text()) == is_busy
    os.close(lock)
    assert (tmp_path / ".zarrfs").exists() == is_busy


@trio_test
async def test_an_edit_that_waits_for_another_mount_is_refused_if_that_renames_its_array(tmp_path: Path) -> None:
    """It was refused after it had changed the renamed array, of which a consolidated copy then differed."""
    inner = FolderStore(str(tmp_path))
    async with aclosing(AskedForLock(inner)) as store, tree_over(store, f"file:{tmp_path}", watch="no") as tree:
        await (await folder_at(tree, "npy")).mkdir("g")
        await write(tree, "npy/g/a.npy", npy(ELEMENTS))
        await write(tree, "chunks/g/a/.zattrs", b'{"units": "old"}')
        before = (tmp_path / "g/a/zarr.json").read_bytes()
        store.asked = trio.Event()
        lock = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)

        async def attempt() -> None:
            with pytest.raises(StaleEntry):
                await write(tree, "chunks/g/a/.zattrs", b'{"units": "new"}')

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt)
            await store.asked.wait()
            (tmp_path / "g").rename(tmp_path / "gg")
            os.close(lock)
        assert (tmp_path / "gg/a/zarr.json").read_bytes() == before


@pytest.mark.parametrize("renamed", ["a", "g"], ids=["array", "group above"])
@pytest.mark.parametrize("dialect", ["v2", "v3", "v3_2022"])
@trio_test
async def test_an_array_that_another_mount_has_renamed_does_not_return_from_its_copy(
    dialect: str, renamed: str, tmp_path: Path
) -> None:
    """Its documents were written out of the consolidated copy as it was known: an array without chunks, which read as fill value."""
    options = {"new_dialect": dialect, "watch": "no"}
    async with tree_of(tmp_path, **options) as tree, tree_of(tmp_path, **options) as other:
        await (await folder_at(tree, "npy")).mkdir("g")
        await write(tree, "npy/g/a.npy", npy(ELEMENTS))
        editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect=dialect)
        assert await editor.consolidate(ROOT)
        await load(other, "npy/g/a.npy")
        await (await folder_at(tree, "npy/g")).rename("a.npy", await folder_at(tree, "npy/g"), "first.npy")
        if renamed == "a":
            with suppress(NoSuchEntry):
                await (await folder_at(other, "npy/g")).rename("a.npy", await folder_at(other, "npy/g"), "second.npy")
        else:
            await (await folder_at(other, "npy")).rename("g", await folder_at(other, "npy"), "h")
    async with tree_of(tmp_path, **options) as tree:
        (group,) = await names(tree, "npy")
        assert await names(tree, f"npy/{group}") == {"first.npy"}
        np.testing.assert_array_equal(await load(tree, f"npy/{group}/first.npy"), ELEMENTS)


def texts_in(path: Path) -> list[bytes]:
    return [each.read_bytes() for each in path.rglob("*") if each.is_file()]


@pytest.mark.logs("")
@pytest.mark.parametrize("then", ["a.npy to k.npy", "g to h", "a.npy removed"])
@pytest.mark.parametrize("does", ["rename", "replace"])
def test_no_array_without_its_chunks_is_left_by_a_kill_and_another_mount(does: str, then: str, tmp_path: Path) -> None:
    """Documents are elsewhere in this layout: of each array in the middle of an operation, another mount moved or erased the chunks.

    It knew the array from before. The recovery then gave an array that read as fill value."""

    given_up: list[Path] = []

    async def attempt(at: int) -> bool:
        path, options = tmp_path / str(at), {"new_dialect": "v3_2019", "watch": "no"}
        await trio.Path(path).mkdir()
        async with tree_of(path, **options) as tree:
            await (await folder_at(tree, "npy")).mkdir("g")
            await write(tree, "npy/g/a.npy", npy(ELEMENTS))
        async with tree_of(path, **options) as other:
            await load(other, "npy/g/a.npy")
            store = Faulty(path, STORES["exchange"])
            store.at, store.kills, store.late = at, True, True
            with suppress(Killed, BaseExceptionGroup):
                async with tree_over(store, f"file:{path}", **options) as tree:
                    if does == "rename":
                        await (await folder_at(tree, "npy/g")).rename("a.npy", await folder_at(tree, "npy/g"), "b.npy")
                    else:
                        await write(tree, "npy/g/a.npy", npy(ELEMENTS[:3]))
            store.end_process()
            await store.inner.aclose()
            with suppress(ZarrfsError):
                match then:
                    case "g to h":
                        await (await folder_at(other, "npy")).rename("g", await folder_at(other, "npy"), "h")
                    case "a.npy removed":
                        await (await folder_at(other, "npy/g")).unlink("a.npy")
                    case _:
                        await (await folder_at(other, "npy/g")).rename("a.npy", await folder_at(other, "npy/g"), "k.npy")
        async with tree_of(path, **options) as tree:
            await tree.recover()
            kept = list(path.glob(".zarrfs/*.kept"))
            assert bool(kept) == (b"given up" in tree.losses.errors.text())
            for group in await names(tree, "npy"):
                for name in await names(tree, f"npy/{group}"):
                    found = await load(tree, f"npy/{group}/{name}")
                    np.testing.assert_array_equal(found, ELEMENTS[: len(found)], f"killed at {at}: {group}/{name}")
        given_up.extend(kept)
        for each in kept:
            assert any(b'"shape"' in text or b'"before": {\n' in text for text in texts_in(each))
        async with tree_of(path, **options) as tree:
            # It was reported by each later mount.
            await tree.recover()
            assert tree.losses.errors.text() == b""
        return store.is_dead

    at = 0
    while trio.run(attempt, at):
        at += 1
    assert at > 5
    assert given_up or then != "g to h"
