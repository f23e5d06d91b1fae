"""A shape reduced with ``resize_erases``, of which the chunks outside were not all erased."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import trio_test

from tests.hierarchy.test_several_steps import STORES, Faulty, npy
from tests.support.stores import HangingStore
from tests.support.trees import load, opened, read, tree_of, tree_over, write
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StoreFull, ZarrfsError
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.keys import ROOT, Key
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import OpenFlags

ELEMENTS = np.arange(1, 17, dtype="<i4")


async def resized(tree: MountTree, file: str, extent: int) -> None:
    document = json.loads(await read(tree, file))
    await write(tree, file, json.dumps(document | {"shape": [extent]}).encode())


def each_step(attempt: Callable[[int], Awaitable[bool]]) -> None:
    """Run ``attempt``, which fails at the step of this number, until it returns False: there was no such step."""
    at = 0
    while trio.run(attempt, at):
        at += 1
    assert at > 1


@pytest.mark.logs("")
@pytest.mark.parametrize("file", ["chunks/a/.zarray", "zarr3/a/zarr.json"])
@pytest.mark.parametrize(("shards", "has_copy"), [("none", False), ("4", False), ("none", True)])
def test_the_same_document_again_erases_the_chunks_that_a_failed_attempt_has_left(
    shards: str, has_copy: bool, file: str, tmp_path: Path
) -> None:
    """It changed nothing, and the old elements were there again when the array grew.

    With a consolidated copy, the attempt may fail when the document is stored and no chunk is erased."""

    async def attempt(at: int) -> bool:
        path, options = tmp_path / str(at), {"new_dialect": "v3", "watch": "no", "resize_erases": True}
        await trio.Path(path).mkdir()
        async with tree_of(path, new_chunks="2", new_shards=shards, **options) as tree:
            await write(tree, "npy/a.npy", npy(ELEMENTS))
            if has_copy:
                editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect="v3")
                assert await editor.consolidate(ROOT)
        store = Faulty(path, STORES["exchange"])
        store.at = at
        async with tree_over(store, f"file:{path}", **options) as tree:
            with suppress(StoreFull):
                await resized(tree, file, 4)
            has_failed, store.at = store.count > at, -1
            await resized(tree, file, 4)
            await resized(tree, file, 16)
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), [*ELEMENTS[:4], *[0] * 12])
        return has_failed

    each_step(attempt)


@pytest.mark.logs("")
@pytest.mark.parametrize("delay", ["0", "600"])
@pytest.mark.parametrize("file", ["chunks/a/.zarray", "zarr3/a/zarr.json"])
def test_a_failed_attempt_erases_nothing_of_the_array_that_is_saved_over_it(file: str, delay: str, tmp_path: Path) -> None:
    """The erasure waited in the queue of shards, and was repeated in the array that was at the path by then."""
    saved = np.arange(101, 116, dtype="<i4")

    async def attempt(at: int) -> bool:
        path = tmp_path / str(at)
        options = {"new_dialect": "v3", "watch": "no", "resize_erases": True, "shard_delay": delay}
        await trio.Path(path).mkdir()
        async with tree_of(path, new_chunks="2", new_shards="4", **options) as tree:
            await write(tree, "npy/a.npy", npy(ELEMENTS))
        store = Faulty(path, STORES["exchange"])
        store.at = at
        async with tree_over(store, f"file:{path}", **options) as tree:
            with suppress(StoreFull):
                await resized(tree, file, 10)
            has_failed, store.at = store.count > at, -1
            await write(tree, "npy/a.npy", npy(saved))
            assert not await tree.publish_all()
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), saved)
        return has_failed

    each_step(attempt)


@pytest.mark.parametrize("file", ["chunks/a/.zarray", "zarr3/a/zarr.json"])
@trio_test
async def test_the_same_document_erases_no_chunks_that_another_program_puts_outside(file: str, tmp_path: Path) -> None:
    options = {"new_dialect": "v3", "watch": "no", "resize_erases": True, "new_chunks": "2"}
    async with tree_of(tmp_path, **options) as tree:
        await write(tree, "npy/a.npy", npy(ELEMENTS[:4]))
        # A program that appends stores the chunks first.
        (tmp_path / "a/c/2").write_bytes((tmp_path / "a/c/0").read_bytes())
        await resized(tree, file, 4)
        await resized(tree, file, 6)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), [1, 2, 3, 4, 1, 2])


@pytest.mark.logs("")
@pytest.mark.parametrize("erases", [True, False], ids=["erases", "refuses"])
@pytest.mark.parametrize("file", ["chunks/a/.zarray", "zarr3/a/zarr.json"])
@trio_test
async def test_what_a_writer_queues_while_the_resize_waits_for_it_is_outside_too(file: str, erases: bool, tmp_path: Path) -> None:
    """It was stored after the resize, and was there again when the array grew; or was not counted, and so out of reach."""
    options = {"new_dialect": "v3", "watch": "no", "resize_erases": erases, "new_chunks": "2", "new_shards": "4"}
    async with tree_of(tmp_path, shard_delay="600", **options) as tree:
        await write(tree, "npy/a.npy", npy(np.concatenate([ELEMENTS[:8], np.zeros(8, "<i4")])))
    store = HangingStore(FolderStore(str(tmp_path)))
    async with tree_over(store, f"file:{tmp_path}", shard_delay="600", **options) as tree:
        await load(tree, "npy/a.npy")
        writer = await opened(tree, "chunks/a/5", OpenFlags(read=True, write=True))
        await writer.write(0, ELEMENTS[10:12].tobytes())
        store.hang("a/zarr.json", "stat")
        refused: list[ZarrfsError] = []

        async def resize() -> None:
            try:
                await resized(tree, file, 8)
            except ZarrfsError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.flush)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert store.hanging
            # Only the writer waits for the store, the resize for the writer.
            store.hang_no_more()
            nursery.start_soon(resize)
            await trio.testing.wait_all_tasks_blocked(0.01)
            store.answer()
        await writer.release()
        assert bool(refused) != erases
        if erases:
            await resized(tree, file, 16)
        expected = [*ELEMENTS[:8], *[0] * 8]
        if not erases:
            expected[10:12] = ELEMENTS[10:12]
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), expected)
        assert not await tree.publish_all()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), expected)
    await store.aclose()


class _Full(ForwardingStore):
    """A store with room for ``left`` more values."""

    left = 1_000_000

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        self.left -= 1
        if self.left < 0:
            raise StoreFull("no room")
        return await super().set(key, value, expect=expect)


@pytest.mark.logs("")
@pytest.mark.parametrize("dialect", ["v2", "v3", "v3_2022"])
@trio_test
async def test_a_document_with_another_shape_and_more_takes_effect_as_a_whole(dialect: str) -> None:
    """The shape was stored first: a failure after it left it with the attributes of before."""
    store = _Full(MemoryStore())
    async with tree_over(store, new_dialect=dialect) as tree:
        await write(tree, "npy/a.npy", npy(ELEMENTS))
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
        changed, room, failed = document | {"shape": [20], "attributes": {"units": "m"}}, 0, True
        while failed:
            store.left, failed = room, False
            try:
                await write(tree, "zarr3/a/zarr.json", json.dumps(changed).encode())
            except StoreFull:
                failed = True
            store.left, expected = 1_000_000, document if failed else changed
            found = json.loads(await read(tree, "zarr3/a/zarr.json"))
            assert (found["shape"], found["attributes"]) == (expected["shape"], expected["attributes"])
            room += 1
        assert room > 1
