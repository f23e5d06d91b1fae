"""Turns of work on whole shards: their holders wait for no task that waits for one."""

from __future__ import annotations

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.arrays.test_sharded import CHECKED, node, opened
from tests.support.stores import WaitingStore
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.memory import MemoryStore

ENCODED = ShardSpec((4,), index_codecs=CHECKED, codecs=(CodecSpec("gzip", {"level": 1}),))
WITH_LONG_INDEX = ShardSpec((4096,), index_codecs=CHECKED)


@pytest.mark.parametrize("spec", [ENCODED, WITH_LONG_INDEX], ids=["encoded", "long index"])
@trio_test
async def test_shards_that_are_read_while_they_are_stored_hang_nobody(spec: ShardSpec) -> None:
    array = node((2 * spec.chunks,), spec)
    inner = MemoryStore()
    shards = (0, spec.chunks)
    await opened(inner, array)[0].update({(first,): b"old" for first in shards})
    store = WaitingStore(inner, "stat")
    chunks, _ = opened(store, array)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for first in shards:
                nursery.start_soon(chunks.update, {(first + 1,): b"new"})
            # Each of the two has a turn, and looks whether its shard is known.
            await wait_all_tasks_blocked()
            for first in shards:
                nursery.start_soon(chunks.get_several, [(first,)])
            await wait_all_tasks_blocked()
            store.let_go()
    assert await chunks.get_several([(each,) for first in shards for each in (first, first + 1)]) == [b"old", b"new"] * 2
