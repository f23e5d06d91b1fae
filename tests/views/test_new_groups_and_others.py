"""New groups while they are stored, and those whose parent moves or disappears."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.scenes import Scene
from tests.support.stores import WaitingStore, contents
from tests.support.trees import tree_over
from zarrfs.arrays import concurrency
from zarrfs.errors import DirectoryNotEmpty, EntryExists, HiddenKeys
from zarrfs.hierarchy.unstored_groups import LATEST_S, QUIET_S
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.views.nodes import folder

GROUPS_A_B = {"zarr.json", "a/zarr.json", "a/b/zarr.json"}


def in_mocked_time(body: Callable[[Scene], Awaitable[None]], *waits: str) -> None:
    """Run ``body`` with ``zarr3/`` of an empty store that waits in these operations, on a clock that jumps when all tasks wait."""

    async def main() -> None:
        store = WaitingStore(MemoryStore(), *waits)
        async with tree_over(store) as tree:
            await body(Scene(tree, store, "zarr3"))

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("act", "after"),
    [
        (lambda s: s.rename("a", "b"), {"zarr.json", "b/zarr.json"}),
        (lambda s: s.rmdir("a"), {"zarr.json"}),
    ],
    ids=["rename", "rmdir"],
)
def test_a_group_that_is_being_stored_is_renamed_and_removed(act: Callable[[Scene], Awaitable[None]], after: set[str]) -> None:
    async def body(s: Scene) -> None:
        assert isinstance(s.store, WaitingStore)
        await s.mkdir("a")
        await trio.sleep(QUIET_S + 1)
        assert s.store.waiting
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act, s)
            await wait_all_tasks_blocked()
            s.store.let_go()
        assert set(await contents(s.store)) == after
        assert await s.names() == {each.partition("/")[0] for each in after}

    in_mocked_time(body, "set")


@pytest.mark.parametrize("view", ["zarr3", "npy", "raw"])
def test_a_group_whose_parent_is_renamed_follows_it_and_is_stored_there(view: str) -> None:
    async def body(s: Scene) -> None:
        await s.mkdir("a")
        await s.sync("a")
        await s.mkdir("a/b")
        await Scene(s.tree, s.store, view).rename("a", "c")
        assert await s.names() == {"zarr.json", "c"} and await s.names("c") == {"zarr.json", "b"}
        await trio.sleep(LATEST_S)
        assert set(await contents(s.store)) == {"zarr.json", "c/zarr.json", "c/b/zarr.json"}

    in_mocked_time(body)


def test_a_group_renamed_through_another_view_is_stored_when_it_is_quiet() -> None:
    async def body(s: Scene) -> None:
        await s.mkdir("x")
        await s.mkdir("x/b")
        await Scene(s.tree, s.store, "npy").rename("x", "a")
        await trio.sleep(LATEST_S)
        assert set(await contents(s.store)) == GROUPS_A_B

    in_mocked_time(body)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_group_whose_parent_is_removed_in_raw_does_not_bring_it_back(is_seen: bool) -> None:
    async def body(s: Scene) -> None:
        await s.mkdir("a")
        await s.sync("a")
        await s.mkdir("a/b")
        await s.mkdir("a/b/c")
        await Scene(s.tree, s.store, "raw").remove("a")
        if is_seen:
            assert await s.names() == {"zarr.json"}
        await trio.sleep(LATEST_S)
        assert set(await contents(s.store)) == {"zarr.json"} and await s.names() == {"zarr.json"}
        await s.mkdir("a")
        assert await s.names("a") == set()

    in_mocked_time(body)


def test_two_groups_renamed_to_one_name_through_two_views_are_not_merged() -> None:
    async def body(s: Scene) -> None:
        for each in ("a", "a/x", "b", "b/y"):
            await s.mkdir(each)
        failed = []

        async def rename(scene: Scene, name: str) -> None:
            try:
                await scene.rename(name, "c")
            except EntryExists:
                failed.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rename, s, "a")
            nursery.start_soon(rename, Scene(s.tree, s.store, "chunks"), "b")
        assert len(failed) == 1
        inside = {"a": "x", "b": "y"}
        (kept,) = failed
        assert await s.names(kept) == {inside.pop(kept)}
        assert await s.names("c") == set(inside.values())

    in_mocked_time(body)


def test_a_group_beside_hidden_keys_of_its_name_is_not_removed_in_the_mount_alone() -> None:
    async def body(s: Scene) -> None:
        await s.mkdir("a")
        await s.store.set(Key("a/README"), b"theirs")
        with pytest.raises(HiddenKeys):
            await s.rmdir("a")
        await s.rename("a", "b")
        assert await s.names() == {"zarr.json", "b"} and "b/README" in await contents(s.store)

    in_mocked_time(body)


def test_a_node_created_during_rmdir_of_its_group_is_not_erased() -> None:
    async def body(s: Scene) -> None:
        assert isinstance(s.store, WaitingStore)
        await s.mkdir("a")
        await s.sync("a")
        s.store.waits.add("set")

        async def remove() -> None:
            with pytest.raises(DirectoryNotEmpty):
                await s.rmdir("a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(Scene(s.tree, s.store, "npy").mkdir, "a/x")
            await wait_all_tasks_blocked()
            nursery.start_soon(remove)
            await wait_all_tasks_blocked()
            s.store.let_go()
        assert "a/x/zarr.json" in await contents(s.store)

    in_mocked_time(body)


@pytest.mark.parametrize("above", ["n/", ""], ids=["new folder", "root"])
def test_a_folder_made_while_the_document_of_its_group_is_written_is_a_group(above: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name may be a part of chunk keys: in an undecided folder it would wait for an array's document, and end with the mount."""
    written = trio.Event()

    async def has_any(children: AsyncIterable[object]) -> bool:
        found = await concurrency.has_any(children)
        await written.wait()
        return found

    async def body(s: Scene) -> None:
        if above:
            await s.mkdir(above[:-1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(s.mkdir, f"{above}c")
            await wait_all_tasks_blocked()
            await s.write(f"{above}zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {}})
            written.set()
        await trio.sleep(LATEST_S)
        assert f"{above}c/zarr.json" in await contents(s.store)

    monkeypatch.setattr(folder, "has_any", has_any)
    in_mocked_time(body)
