"""When a new group is stored, and what becomes of it before that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.support.scenes import Scene
from tests.support.stores import contents
from tests.support.trees import tree_over
from zarrfs.errors import DirectoryNotEmpty, EntryExists, StoreFull
from zarrfs.hierarchy.unstored_groups import LATEST_S, QUIET_S
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


def in_mocked_time(body: Callable[[Scene], Awaitable[None]], store: MemoryStore | None = None) -> None:
    """Run ``body`` with a view of ``store`` (else an empty one), on a clock that jumps when all tasks wait."""

    async def main() -> None:
        kept = store or MemoryStore()
        async with tree_over(kept) as tree:
            await body(Scene(tree, kept, "zarr3"))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_it_is_stored_when_it_has_been_quiet() -> None:
    async def body(s: Scene) -> None:
        await s.mkdir("a")
        await s.mkdir("a/b")
        await trio.sleep(QUIET_S - 1)
        assert await contents(s.store) == {}
        await trio.sleep(2)
        assert set(await contents(s.store)) == {"zarr.json", "a/zarr.json", "a/b/zarr.json"}
        assert await s.names("a") == {"zarr.json", "b"}

    in_mocked_time(body)


def test_operations_in_it_postpone_that_for_a_minute() -> None:
    async def body(s: Scene) -> None:
        await s.mkdir("a")
        begin = trio.current_time()
        while not await contents(s.store):
            assert await s.names("a") == set()
            await trio.sleep(QUIET_S / 2)
        assert QUIET_S < LATEST_S - QUIET_S < trio.current_time() - begin <= LATEST_S + QUIET_S

    in_mocked_time(body)


def test_a_renamed_one_is_stored_under_its_present_name() -> None:
    async def body(s: Scene) -> None:
        await s.mkdir("a")
        await s.mkdir("a/b")
        await s.rename("a", "c")
        await s.mkdir("d")
        await s.rmdir("d")
        await trio.sleep(2 * QUIET_S)
        assert set(await contents(s.store)) == {"zarr.json", "c/zarr.json", "c/b/zarr.json"}

    in_mocked_time(body)


class Full(ForwardingStore):
    """No value can be set while ``is_full``."""

    is_full = True

    async def set(self, key: Key, value: bytes | bytearray | memoryview, *, expect: Expected = None) -> Generation:
        if self.is_full:
            raise StoreFull("no room", key=key)
        return await self.inner.set(key, value, expect=expect)


@pytest.mark.logs("")
@pytest.mark.parametrize("has_room_at_the_end", [False, True])
def test_one_that_cannot_be_stored_is_reported_and_tried_again_at_the_end(has_room_at_the_end: bool) -> None:
    async def main() -> None:
        inner = MemoryStore()
        store = Full(inner)
        async with tree_over(store) as tree:
            s = Scene(tree, store, "zarr3")
            await s.mkdir("a")
            await trio.sleep(2 * QUIET_S)
            assert "no room" in tree.losses.errors.text().decode()
            with pytest.raises(StoreFull):
                await s.sync("a")
            store.is_full = not has_room_at_the_end
            failures = await tree.publish_all()
            if has_room_at_the_end:
                assert failures == [] and set(await contents(inner)) == {"zarr.json", "a/zarr.json"}
            else:
                assert [name for name, _ in failures] == ["/a"] and await contents(inner) == {}

    trio.run(main, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_a_node_of_another_program_takes_its_place(tmp_path: Path) -> None:
    store = MemoryStore()
    async with tree_over(store, metadata_ttl="0") as tree:
        s = Scene(tree, store, "zarr3")
        await s.mkdir("a")
        await s.mkdir("b")
        await store.set(Key("zarr.json"), GROUP)
        await store.set(Key("a/zarr.json"), GROUP[:-1] + b', "attributes": {"theirs": true}}')
        await store.set(Key("b/theirs/zarr.json"), GROUP)
        assert await s.names("a") == {"zarr.json"} and await s.names("b") == {"theirs"}
        assert await s.json("a/zarr.json") == {"zarr_format": 3, "node_type": "group", "attributes": {"theirs": True}}
        with pytest.raises(DirectoryNotEmpty):
            await s.rmdir("b")
        with pytest.raises(EntryExists):
            await s.mkdir("b")
        assert await tree.publish_all() == []
        found = await contents(store)
        assert b"theirs" in found[Key("a/zarr.json")] and {"b/theirs/zarr.json", "b/zarr.json"} < set(found)
