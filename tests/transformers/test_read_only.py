"""Nothing changes a store through `ReadOnlyStore`."""

from __future__ import annotations

import inspect

import pytest
from trio.testing import trio_test

from tests.support.stores import contents, fill
from zarrfs.errors import StoreReadOnly
from zarrfs.keys import WHOLE, Key, Prefix
from zarrfs.stores.answers_now import AnswersNow
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import ABSENT
from zarrfs.transformers.forwarding import ForwardingStore, TransparentStore
from zarrfs.transformers.read_only import ReadOnlyStore

A = Key("d/a")


@trio_test
async def test_reading_goes_on_and_every_change_is_refused() -> None:
    inner = MemoryStore()
    await fill(inner, {A: b"1"})
    store = ReadOnlyStore(inner)
    assert inner.capabilities.write and not store.capabilities.write and store.url == inner.url
    assert await contents(store) == {A: b"1"}
    assert await store.get_partial_values([(A, WHOLE)]) == [b"1"]
    assert await store.stat(A) == await inner.stat(A)
    await store.sync([A])
    for change in (
        store.set(A, b"2"),
        store.set(A, b"2", expect=ABSENT),
        store.set_partial_values([(A, 0, b"2")]),
        store.erase(A),
        store.erase_values([A]),
        store.erase_prefix(Prefix("")),
        store.rename(A, Key("b")),
        store.rename_prefix(Prefix("d/"), Prefix("e/")),
        store.make_prefix(Prefix("e/")),
        store.remove_prefix(Prefix("e/")),
        store.set_times(A, 0),
    ):
        with pytest.raises(StoreReadOnly):
            await change
    with pytest.raises(StoreReadOnly):
        async with store.exclusive(A):
            pass
    assert await contents(inner) == {A: b"1"}


def test_a_forwarding_store_forwards_every_operation() -> None:
    """A new operation of the interface must not fall back on its default in a transformer unnoticed."""
    # Built from other operations, which are forwarded.
    assert _operations(Store) - set(vars(ForwardingStore)) == {"check_generation", "list"}
    # Inline forms would bypass a transformer's form that can wait.
    assert _operations(AnswersNow).isdisjoint(vars(ForwardingStore))
    assert _operations(AnswersNow) <= set(vars(TransparentStore))


def _operations(interface: type) -> set[str]:
    return {name for name, value in vars(interface).items() if inspect.isfunction(value) and not name.startswith("_")}
