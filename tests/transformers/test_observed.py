"""Counts, and the stream of changes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.stores import FailingStore, contents, fill, names
from zarrfs.errors import GenerationMismatch, RangesOverlap, StoreError, StoreUnsupported
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.stores.change import Change
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.observed import ObservedStore

A, B = Key("d/a"), Key("d/b")


def counted(store: ObservedStore) -> dict[str, int]:
    return {name: count for name, count in asdict(store.counters).items() if count}


@trio_test
async def test_operations_and_bytes_are_counted_as_they_were_asked() -> None:
    store = ObservedStore(MemoryStore())
    await store.set(A, b"12345")
    await store.set_partial_values([(A, 1, b"xx"), (B, 0, b"y")])
    await store.copy(A, Key("copied"))
    await store.get(A)
    await store.get(Key("missing"))
    await store.get_partial_values([(A, ByteRange(1, 2)), (A, WHOLE), (Key("missing"), WHOLE)])
    await store.get_many([(A, ByteRange(0, 4)), (Key("missing"), WHOLE)])
    await store.stat(A)
    assert len(await names(store, "d/")) == 2
    async with store.exclusive(A):
        pass
    assert [key async for key in store.list_prefix(Prefix("d/"))] == [A, B]
    assert await store.prefix_exists(Prefix("d/"))
    await store.prefix_mtime_ns(Prefix("d/"))
    await store.sync([A])
    await store.rename(A, Key("c"))
    await store.rename_prefix(Prefix("d/"), Prefix("e/"))
    await store.erase(A)
    await store.erase_values([A, B])
    await store.erase_prefix(Prefix(""))
    for unsupported in (store.make_prefix(Prefix("p/")), store.remove_prefix(Prefix("p/")), store.set_times(A, 0)):
        with pytest.raises(StoreUnsupported):
            await unsupported
    expected = dict.fromkeys(asdict(store.counters), 1) | {"get": 2, "bytes_read": 5 + 2 + 5 + 4, "bytes_written": 5 + 3}
    assert counted(store) == expected


@trio_test
async def test_every_change_is_told_once_it_can_be_seen() -> None:
    inner = MemoryStore()
    store = ObservedStore(inner)
    changes: list[Change] = []
    unsubscribe = store.subscribe(changes.append)

    def told() -> list[tuple[str, str]]:
        found = [(str(change.target), change.kind) for change in changes]
        assert all(change.is_prefix == change.target.endswith("/") for change in changes if change.target)
        changes.clear()
        return found

    await store.set(A, b"1")
    assert told() == [("d/a", "set")]
    await store.set_partial_values([(A, 0, b"x"), (B, 0, b"y"), (A, 5, b"z")])
    assert told() == [("d/a", "set"), ("d/b", "set")]
    assert await store.rename(A, Key("c"))
    assert told() == [("d/a", "moved"), ("d/a", "erase"), ("c", "set")]
    assert not await store.rename(A, Key("c"))
    assert await store.rename(B, B)
    assert told() == []
    assert await store.rename_prefix(Prefix("d/"), Prefix("e/"))
    assert told() == [("d/", "moved"), ("d/", "erase"), ("e/", "set")]
    await store.erase(A)
    await store.erase_values([A, B])
    await store.erase_prefix(Prefix(""))
    assert told() == [("d/a", "erase"), ("d/a", "erase"), ("d/b", "erase"), ("", "erase")]
    await store.get(A)
    await store.sync([A])
    store.announce(Change(A, "unknown"))
    assert told() == [("d/a", "unknown")]
    unsubscribe()
    await store.set(A, b"1")
    assert told() == []


@trio_test
async def test_a_failed_set_may_have_changed_something_and_a_refused_one_has_not() -> None:
    """The answer of a server may be lost: what was known before counted as the present state."""
    store = ObservedStore(FailingStore(MemoryStore(), {}))
    changes: list[Change] = []
    store.subscribe(changes.append)
    assert isinstance(store.inner, FailingStore)
    store.inner.errors["set"] = StoreError("no")
    with pytest.raises(StoreError):
        await store.set(A, b"1")
    assert changes == [Change(A, "set")] and store.counters.bytes_written == 0
    changes.clear()
    store.inner.errors["set"] = GenerationMismatch("another value")
    with pytest.raises(GenerationMismatch):
        await store.set(A, b"1")
    with pytest.raises(GenerationMismatch):
        await store.erase_if(A, "another")
    assert changes == []
    with pytest.raises(RangesOverlap):
        await store.set_partial_values([(A, 0, b"xx"), (A, 1, b"y")])
    store.inner.errors["erase_prefix"] = StoreError("no")
    with pytest.raises(StoreError):
        await store.erase_prefix(Prefix("d/"))
    assert changes == [Change(A, "unknown"), Change(Prefix("d/"), "unknown")]


@trio_test
async def test_a_rename_in_vain_makes_both_places_unknown_where_the_store_has_folders(tmp_path: Path) -> None:
    changes: list[Change] = []
    old, new = Prefix("d/"), Prefix("e/")
    for inner, expected in (
        (FolderStore(str(tmp_path)), [Change(old, "unknown"), Change(new, "unknown")]),
        # Where the store has no empty folders, the mount may have one.
        (MemoryStore(), [Change(old, "moved", new_target=new)]),
    ):
        store = ObservedStore(inner)
        store.subscribe(changes.append)
        assert not await store.rename_prefix(old, new)
        assert changes == expected
        changes.clear()
        await store.aclose()


@pytest.mark.logs("a subscriber failed")
@trio_test
async def test_a_subscriber_that_fails_harms_nobody() -> None:
    store = ObservedStore(MemoryStore())
    changes: list[Change] = []

    def fail(change: Change) -> None:
        raise RuntimeError

    store.subscribe(fail)
    store.subscribe(changes.append)
    await fill(store, {A: b"1"})
    assert changes == [Change(A, "set")]
    assert await contents(store) == {A: b"1"}
