"""The sharding transformer over many shards, which it processes a few at once, and over those that are too large to be changed."""

from __future__ import annotations

import pytest
from trio.testing import trio_test

from tests.support.stores import contents, fill
from tests.transformers.test_sharding import chunk, everything, sharded
from zarrfs.arrays import shard_index_reader
from zarrfs.errors import TooLarge
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers import shard_listing


@pytest.mark.parametrize("width", [1, 2, 100])
@trio_test
async def test_a_listing_gives_every_chunk_once_however_few_shards_are_looked_at_together(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_listing, "WIDTH", width)
    inner = MemoryStore()
    store = sharded(inner)
    values = {chunk(*coords): b"%d %d" % coords for coords in everything((4, 6))}
    await fill(store, values)
    await inner.set(Key("data/root/foo/beside"), b"no chunk")
    assert await contents(store) == {**values, "data/root/foo/beside": b"no chunk"}


@trio_test
async def test_a_shard_whose_index_is_too_large_to_be_held_is_not_changed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore()
    values = {chunk(*coords): b"%d %d" % coords for coords in everything((4, 6))}
    await fill(sharded(inner), values)
    monkeypatch.setattr(shard_index_reader, "HELD_NBYTES", 0)
    before, store = await contents(inner), sharded(inner)
    for change in (store.erase(chunk(0, 0)), store.erase_values([chunk(0, 0), chunk(3, 5)]), store.set(chunk(0, 0), b"new")):
        with pytest.raises(TooLarge, match="shard of 6 chunks: read-only"):
            await change
    assert await contents(inner) == before and [await store.get(key) for key in values] == list(values.values())
    # Shards that are erased whole need no index.
    await store.erase_values([chunk(*coords) for coords in everything((2, 3))])
    assert [await store.get(key) is None for key in values] == [coords < (2,) and coords[1] < 3 for coords in everything((4, 6))]
