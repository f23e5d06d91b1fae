"""`WithoutApart` hides data stored apart from every operation: it can be neither read, nor written, nor erased."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.stores import contents, fill, names
from zarrfs.errors import KeyUnusable, StoreUnsupported
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.without_apart import WithoutApart

A, SEEN, ITSELF = Key(".zarrfs/1/old/a"), Key("d/a"), Key(".zarrfs")
FOLDER, PLAIN = Prefix(".zarrfs/1/old/"), Prefix("d/")
VALUES: dict[str, bytes] = {A: b"aside", SEEN: b"seen", ".zarrfsx/b": b"another name"}


async def both() -> tuple[MemoryStore, WithoutApart]:
    inner = MemoryStore()
    await fill(inner, VALUES)
    return inner, WithoutApart(inner)


@trio_test
async def test_nothing_that_lies_apart_is_seen_by_any_way_of_reading() -> None:
    _, store = await both()
    for key in (A, ITSELF):
        assert await store.get(key) is None and await store.stat(key) is None and store.stat_now(key) is None
        assert await store.get_with_stat(key, WHOLE) is None and store.get_with_stat_now(key, WHOLE) is None
        assert await store.get_partial_values([(SEEN, WHOLE), (key, WHOLE), (SEEN, ByteRange(0, 1))]) == [b"seen", None, b"s"]
        assert store.get_partial_values_now([(key, WHOLE)]) == [None]
        with pytest.raises(WouldWait):
            store.get_partial_values_now([(SEEN, WHOLE), (key, WHOLE)])
        with pytest.raises(WouldWait):
            store.get_partial_values_now([(key, WHOLE)], if_generation="1")
    for prefix in (FOLDER, Prefix(".zarrfs/")):
        assert not await store.prefix_exists(prefix) and await store.prefix_mtime_ns(prefix) is None
        assert await names(store, prefix) == {}
    assert await names(store) == {("d", True): 0, (".zarrfsx", True): 0}
    assert await contents(store) == {SEEN: b"seen", ".zarrfsx/b": b"another name"}


@trio_test
async def test_what_lies_elsewhere_is_read_at_once_where_it_is_at_hand() -> None:
    inner, store = await both()
    assert store.stat_now(SEEN) == inner.stat_now(SEEN)
    for ask in (lambda each: each.get_partial_values_now([(SEEN, WHOLE)]), lambda each: each.get_with_stat_now(SEEN, WHOLE)):
        found: list[object] = []
        for each in (inner, store):
            try:
                found.append(ask(each))
            except WouldWait:
                found.append(WouldWait)
        assert found[0] == found[1]


@trio_test
async def test_nothing_that_lies_apart_is_listed_at_once(tmp_path: Path) -> None:
    inner = FolderStore(str(tmp_path))
    await fill(inner, VALUES)
    store = WithoutApart(inner)
    for prefix in ("", "d/", ".zarrfs/", ".zarrfs/1/", ".zarrfsx/"):
        assert sorted(store.list_dir_now(Prefix(prefix))) == sorted([entry async for entry in store.list_dir(Prefix(prefix))])
        assert store.prefix_mtime_ns_now(Prefix(prefix)) == await store.prefix_mtime_ns(Prefix(prefix))
    await inner.aclose()


REFUSED: dict[str, Callable[[Store], Awaitable[object]]] = {
    "set": lambda store: store.set(A, b"x"),
    "set itself": lambda store: store.set(ITSELF, b"x"),
    "set in part": lambda store: store.set_partial_values([(SEEN, 0, b"x"), (A, 0, b"x")]),
    "rename": lambda store: store.rename(SEEN, A),
    "rename prefix": lambda store: store.rename_prefix(PLAIN, FOLDER),
    "exchange one": lambda store: store.exchange_prefixes(FOLDER, PLAIN),
    "exchange other": lambda store: store.exchange_prefixes(PLAIN, FOLDER),
    "make prefix": lambda store: store.make_prefix(Prefix(".zarrfs/new/")),
    "lock": lambda store: _locked(store),
}


async def _locked(store: Store) -> None:
    async with store.exclusive(A):
        pass


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
@trio_test
async def test_nothing_is_put_there(change: Callable[[Store], Awaitable[object]]) -> None:
    inner, store = await both()
    with pytest.raises(KeyUnusable, match=r"is reserved: \.zarrfs/ holds operations in progress") as caught:
        await change(store)
    assert caught.value.key is not None and caught.value.key.startswith(".zarrfs")
    assert await contents(inner) == VALUES


@trio_test
async def test_nothing_is_taken_from_there_and_all_else_is() -> None:
    inner, store = await both()
    await store.erase(A)
    await store.erase_prefix(Prefix(".zarrfs/"))
    await store.remove_prefix(FOLDER)
    assert not await store.rename(A, Key("b")) and not await store.rename_prefix(FOLDER, Prefix("e/"))
    assert not await store.set_times(A, 0)
    assert await contents(inner) == VALUES
    await store.exchange_prefixes(PLAIN, Prefix(".zarrfsx/"))
    assert await contents(inner) == {A: b"aside", "d/b": b"another name", ".zarrfsx/a": b"seen"}
    await store.erase_values([A, Key("d/b")])
    await store.set(SEEN, b"again")
    await store.erase(SEEN)
    await store.erase_prefix(Prefix(".zarrfsx/"))
    assert await contents(inner) == {A: b"aside"}
    with pytest.raises(StoreUnsupported):
        await store.remove_prefix(PLAIN)
