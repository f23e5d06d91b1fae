"""The copy of a value that an open file keeps: in memory within the budget, else in a file, else none."""

from __future__ import annotations

import threading

import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from zarrfs.memory import spill
from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.kept import kept


def test_what_is_kept_is_counted_for_as_long_as_it_is() -> None:
    budget = MemoryBudget(10)
    first = kept(b"12345678", budget)
    assert first is not None and budget.nbytes == 8
    assert kept(b"123", budget) is None and budget.nbytes == 8
    del first
    assert budget.nbytes == 0


def test_where_memory_has_no_room_a_file_has() -> None:
    budget = MemoryBudget(2)
    copy = kept(b"12345678", budget, in_file=True)
    assert copy is not None and bytes(copy.data) == b"12345678" and spill.is_mapped(copy.data)
    assert memoryview(copy.data).readonly and budget.nbytes == 0
    # Data in a file is not copied again.
    again = kept(copy.data, budget)
    assert again is not None and again.data is copy.data and budget.nbytes == 0


@trio_test
async def test_memory_is_given_back_in_any_thread() -> None:
    budget = MemoryBudget(100)
    data = kept(bytes(60), budget)
    assert data is not None
    holders = [data]
    del data
    served = trio.Event()

    async def work() -> None:
        async with budget.working(50):
            served.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await wait_all_tasks_blocked()
        thread = threading.Thread(target=holders.clear)
        thread.start()
        thread.join()
        with trio.fail_after(60):
            await served.wait()
    assert budget.nbytes == 0
