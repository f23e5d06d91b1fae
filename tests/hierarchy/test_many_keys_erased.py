"""What is erased is listed in parts: the keys of a million chunks took 0.2 to 0.3 GB of memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator, Iterable

import pytest
from trio.testing import trio_test

from tests.support.small_stores import array_document
from tests.support.stores import contents, fill
from tests.support.trees import read, tree_over, write
from zarrfs.hierarchy import erasing
from zarrfs.hierarchy.erasing import Outside, erase_in_steps, erase_most
from zarrfs.keys import Key, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import DirEntry
from zarrfs.transformers.forwarding import ForwardingStore

AT_ONCE = 16
GROUP = b'{"zarr_format":2}'


class CountingStore(ForwardingStore):
    """Counts the names that one listing returns, the values that are erased after one, and those that are left below ``a/`` then."""

    listed = most_listed = 0
    erased = most_erased = 0
    least: int | None = None

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        self.listed = self.erased = 0
        async for entry in self.inner.list_dir(prefix):
            self.listed += 1
            self.most_listed = max(self.most_listed, self.listed)
            yield entry

    def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        # Through `list_dir`.
        return super(ForwardingStore, self).list_prefix(prefix)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        keys = list(keys)
        self.erased += len(keys)
        self.most_erased = max(self.most_erased, self.erased)
        await self.inner.erase_values(keys)
        left = len([key async for key in self.inner.list_prefix(Prefix("a/"))])
        self.least = left if self.least is None else min(self.least, left)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "_LISTED_AT_ONCE", AT_ONCE)


async def stored(values: dict[str, bytes]) -> CountingStore:
    inner = MemoryStore()
    await fill(inner, values)
    return CountingStore(inner)


@trio_test
@pytest.mark.parametrize("name", ["a/{}", "a/{}/0", "a/0/{}/0"])
async def test_a_prefix_is_erased_in_parts(name: str) -> None:
    store = await stored({name.format(number): b"x" for number in range(100)} | {"b": b"y"})
    await erase_in_steps(store, Prefix("a/"))
    assert await contents(store) == {"b": b"y"}
    assert store.most_listed <= AT_ONCE


@trio_test
async def test_later_values_stay_and_all_others_are_erased() -> None:
    store = await stored({f"a/{number}": b"x" for number in range(100)})
    earlier = max([mtime_ns or 0 async for _, _, _, mtime_ns in store.list_dir(Prefix("a/"))])
    await fill(store, {f"a/{number}": b"y" for number in range(50)})
    await erase_in_steps(store, Prefix("a/"), until_ns=earlier)
    assert await contents(store) == {f"a/{number}": b"y" for number in range(50)}


@trio_test
async def test_most_chunks_are_erased_in_parts_and_the_last_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "_CHUNKS_AT_ONCE", 5)
    store = await stored({f"a/{number}": b"x" for number in range(100)})
    await erase_most(store, Prefix("a/"))
    assert len(await contents(store)) == store.least == 5
    assert store.most_listed <= AT_ONCE + 5


@trio_test
async def test_left_chunks_are_erased_in_parts_before_a_new_array_is_there() -> None:
    store = await stored({".zgroup": GROUP} | {f"a/{number}": b"x" for number in range(100)} | {"a/notes": b"y"})
    async with tree_over(store, "memory:") as tree:
        await write(tree, "chunks/a/.zarray", array_document((200,), (1,), "|u1"))
    assert set(await contents(store)) == {".zgroup", "a/.zarray", "a/notes"}
    assert store.most_erased <= AT_ONCE


@trio_test
async def test_all_chunks_outside_of_a_smaller_shape_are_erased() -> None:
    """Two of them are outside of the old shape as well: a failed attempt has left them."""
    count = 100
    values = {f"a/{number}.0": b"x" for number in range(count)}
    store = await stored({".zgroup": GROUP, "a/.zarray": array_document((count - 2, 1), (1, 1), "|u1")} | values)
    async with tree_over(store, "memory:", resize_erases=True) as tree:
        text = json.loads(await read(tree, "chunks/a/.zarray")) | {"shape": [3, 1]}
        await write(tree, "chunks/a/.zarray", json.dumps(text).encode())
        left = {key for key in await contents(store) if key.startswith("a/")}
    assert left == {"a/.zarray", "a/0.0", "a/1.0", "a/2.0"}


def test_the_chunks_outside_of_a_smaller_shape_take_little_each() -> None:
    """A tuple for each took a hundred bytes and more."""
    count = 10_000
    tracemalloc.start()
    try:
        outside = Outside((2 * count, 3 * count))
        for number in range(count):
            outside.add((number + 1000, number + 2000))
        nbytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert nbytes < 24 * count
    assert list(outside) == [(number + 1000, number + 2000) for number in range(count)]
    assert not outside.are_others
    outside.add((2 * count, 0))
    assert outside.are_others
