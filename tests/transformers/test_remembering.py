"""`RememberingStore` sends the same request once, and answers as the store would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from trio.testing import trio_test

from tests.support.stores import fill
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import MISSING, Answer, DirEntry, Got
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.remembering import RememberingStore

NAMES = Prefix("d/")
KEYS = Key("d/a"), Key("d/b"), Key("d/none")


class Asked(ForwardingStore):
    """Notes its requests."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.requests: list[str] = []

    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        self.requests.append(f"list {prefix}")
        return super().list_dir(prefix)

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        self.requests.append(f"peek {prefix}")
        return await super().peek(prefix, most)

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        self.requests.append(" ".join(["get", *(key for key, _ in key_ranges)]))
        return await super().get_many(key_ranges)


async def both(most: int = 256, count: int = 2) -> tuple[Asked, RememberingStore]:
    inner = MemoryStore()
    await fill(inner, {f"d/{'abcdefgh'[number]}": b"x" for number in range(count)})
    asked = Asked(inner)
    return asked, RememberingStore(asked, most)


async def listed(store: Store, prefix: Prefix) -> list[str]:
    return [name async for name, *_ in store.list_dir(prefix)]


@trio_test
async def test_a_folder_is_listed_once_however_it_is_asked_for() -> None:
    asked, store = await both()
    assert [name for name, *_ in await store.peek(NAMES, 10) or ()] == ["a", "b"]
    assert await listed(store, NAMES) == ["a", "b"]
    assert [name for name, *_ in store.list_dir_now(NAMES)] == ["a", "b"]
    assert [name for name, *_ in await store.peek(NAMES, 1) or ()] == ["a"]
    assert asked.requests == ["peek d/"]


@trio_test
async def test_names_that_are_not_all_of_a_folder_are_not_taken_for_it() -> None:
    asked, store = await both()
    assert len(await store.peek(NAMES, 2) or ()) == 2
    assert await listed(store, NAMES) == ["a", "b"]
    assert asked.requests == ["peek d/", "list d/"]


@trio_test
async def test_the_first_names_of_a_large_folder_are_requested_once() -> None:
    asked, store = await both()
    for _ in range(2):
        assert [name for name, *_ in await store.peek(NAMES, 1) or ()] == ["a"]
        assert [name for name, *_ in await store.peek(NAMES, 2) or ()] == ["a", "b"]
    assert asked.requests == ["peek d/"] * 2


@trio_test
async def test_an_absent_folder_is_told_from_an_empty_one() -> None:
    _, store = await both()
    assert await listed(store, Prefix("none/")) == []
    assert await store.peek(Prefix("none/"), 10) is None


@trio_test
async def test_a_listing_that_was_left_is_not_taken_for_a_whole_one() -> None:
    asked, store = await both()
    listing = store.list_dir(NAMES)
    assert (await anext(listing))[0] == "a"
    await listing.aclose()  # type: ignore[attr-defined]
    assert await listed(store, NAMES) == ["a", "b"]
    assert asked.requests == ["list d/"] * 2


@trio_test
async def test_values_are_requested_once_and_absence_is_remembered() -> None:
    asked, store = await both()
    for _ in range(2):
        got = await store.get_many([(key, WHOLE) for key in KEYS])
        assert [each.value if isinstance(each, Got) else each for each in got] == [b"x", b"x", MISSING]
    await store.get_many([(KEYS[0], WHOLE), (KEYS[0], ByteRange(0, 1))])
    assert asked.requests == ["get d/a d/b d/none", "get d/a"]


@pytest.mark.parametrize("most", [1, 2])
@trio_test
async def test_only_the_last_ones_are_remembered(most: int) -> None:
    asked, store = await both(most, count=3)
    keys = [(Key(f"d/{name}"), WHOLE) for name in "abc"]
    assert len(await store.get_many(keys)) == 3
    await store.get_many(keys)
    assert asked.requests == ["get d/a d/b d/c", " ".join(["get", *("d/a", "d/b", "d/c")[: 3 - most]])]
