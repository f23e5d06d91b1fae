"""The elements of an array as bytes of an open file: what they hold, and until when."""

from __future__ import annotations

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.support.arrays import Example, reading, store_of
from tests.support.stores import WaitingStore
from zarrfs.arrays.writer import ArrayWriter
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.views.open_elements import OpenElements

A = Example((8,), (2,))


@pytest.mark.parametrize("is_staged", [False, True])
@trio_test
async def test_a_read_that_ends_after_the_file_was_closed_leaves_no_slab_in_use(is_staged: bool) -> None:
    """A publish ends meanwhile: what was read until then is closed, and the next read opens the new value."""
    store = WaitingStore(await store_of(A))
    found = reading(store, slab_nbytes=4)
    opened = await found.array()
    elements: OpenElements | ArrayWriter = OpenElements(found.hierarchy, opened)
    if is_staged:
        elements = ArrayWriter(opened.array, opened.reader, budget=MemoryBudget(UNLIMITED), directory=None, start_soon=None)
    store.waits |= {"get", "get_partial_values"}
    read: list[bytes] = []

    async def read_all() -> None:
        read.append(bytes(await elements.read(0, 16)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_all)
        await wait_all_tasks_blocked()
        await elements.aclose()
        store.let_go()
    assert read == [A.elements.tobytes()]
    slabs = [found.slabs.get((opened.array.serial, index)) for index in range(4)]
    assert all(slab is None or slab.idle for slab in slabs)
