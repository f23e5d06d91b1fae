"""The pool of slabs: memory is reused, bounded, and never taken from a slab in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from trio.testing import trio_test

from tests.support.length import tries
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.flight import Flight
from zarrfs.arrays.slab_pool import Slab, SlabPool
from zarrfs.memory.budget import MemoryBudget

KIB = 1024


async def added(pool: SlabPool, index: int, nbytes: int, serial: int = 1) -> Slab:
    return await pool.get_or_add((serial, index), 0, nbytes, nbytes)


@trio_test
async def test_memory_is_used_again() -> None:
    pool = SlabPool(64 * KIB, WorkCounters())
    slab = await added(pool, 0, 16 * KIB)
    address = slab.memory.ctypes.data
    pool.passed(slab)
    again = await added(pool, 1, 12 * KIB)
    assert again.memory.ctypes.data == address
    assert again.memory.nbytes == 12 * KIB
    assert pool.nbytes == 16 * KIB
    assert not again.filled


@trio_test
async def test_a_much_larger_buffer_is_not_used_for_a_small_slab() -> None:
    pool = SlabPool(64 * KIB, WorkCounters())
    pool.passed(await added(pool, 0, 40 * KIB))
    small = await added(pool, 1, 8 * KIB)
    assert (small.buffer.nbytes, pool.nbytes) == (8 * KIB, 48 * KIB)


@trio_test
async def test_the_least_recently_used_idle_slab_is_displaced() -> None:
    pool = SlabPool(64 * KIB, WorkCounters())
    for index in range(4):
        await added(pool, index, 16 * KIB)
    first = pool.get((1, 0))
    assert first is not None
    await added(pool, 4, 16 * KIB)
    assert [pool.get((1, index)) is not None for index in range(5)] == [True, False, True, True, True]
    assert pool.nbytes == 64 * KIB


@trio_test
async def test_memory_that_is_wanted_elsewhere_is_what_nobody_would_miss(tmp_path: Path) -> None:
    budget = MemoryBudget(64 * KIB)
    pool = SlabPool(1 << 20, WorkCounters(), str(tmp_path), budget)
    passed, idle, pinned, last = [await added(pool, index, 16 * KIB) for index in range(4)]
    pinned.pins = 1
    pool.passed(passed)
    # Slabs that were given up are evicted first, then the least recently used.
    for taken, there in (
        (8 * KIB, [False, True, True, True]),
        (24 * KIB, [False, False, True, True]),
        (16 * KIB, [False, False, True, False]),
    ):
        assert budget.take(taken)
        assert [pool.get((1, index)) is not None for index in range(4)] == there
    assert pool.nbytes == 16 * KIB and idle.stale and last.stale
    # A request for more memory fails, and a slab without memory is held in a file.
    assert not budget.take(1)
    assert pool.get((1, 2)) is pinned and (await added(pool, 5, 16 * KIB)).spilled
    assert budget.nbytes == 64 * KIB


@trio_test
async def test_memory_of_another_size_makes_room_before_anything_in_use_goes() -> None:
    pool = SlabPool(64 * KIB, WorkCounters())
    small, kept = await added(pool, 0, 16 * KIB), await added(pool, 1, 16 * KIB)
    pool.passed(small)
    assert (await added(pool, 2, 48 * KIB)).buffer.nbytes == 48 * KIB
    assert pool.get((1, 1)) is kept and pool.nbytes == 64 * KIB


@trio_test
async def test_when_all_is_forgotten_whoever_needs_a_slab_keeps_its_memory() -> None:
    pool = SlabPool(64 * KIB, WorkCounters())
    pinned, idle = await added(pool, 0, 16 * KIB, serial=1), await added(pool, 0, 16 * KIB, serial=2)
    pinned.pins = 1
    pinned.memory[:] = 5
    pool.discard_all()
    assert (pool.get((1, 0)), pool.get((2, 0))) == (None, None) and pinned.stale and idle.stale
    again = await added(pool, 0, 16 * KIB)
    again.memory[:] = 7
    assert (pinned.memory == 5).all()


@trio_test
async def test_what_is_in_use_is_not_displaced_and_the_next_lies_in_a_file(tmp_path: Path) -> None:
    counters = WorkCounters()
    pool = SlabPool(32 * KIB, counters, str(tmp_path))
    read, pinned = await added(pool, 0, 16 * KIB), await added(pool, 1, 16 * KIB)
    read.readers, pinned.pins = 1, 1
    assert pool.add_in_memory((1, 2), 0, 1, 16 * KIB) is None
    third = await added(pool, 2, 16 * KIB)
    assert third.spilled and counters.slabs_spilled == 1
    third.memory[:] = 5
    third.used(1 << 30)
    assert (third.memory == 5).all()
    assert pool.nbytes == 32 * KIB
    assert os.listdir(tmp_path) == []
    read.readers = 0
    assert not (await added(pool, 3, 16 * KIB)).spilled
    assert pool.get(read.key) is None and pool.get(pinned.key) is pinned


@trio_test
async def test_a_slab_larger_than_the_limit_lies_in_a_file(tmp_path: Path) -> None:
    pool = SlabPool(16 * KIB, WorkCounters(), str(tmp_path))
    slab = await added(pool, 0, 17 * KIB)
    assert slab.spilled and pool.nbytes == 0
    pool.passed(slab)
    assert pool.get(slab.key) is None


@trio_test
async def test_two_who_need_the_same_file_get_one(tmp_path: Path) -> None:
    counters = WorkCounters()
    pool = SlabPool(0, counters, str(tmp_path))
    slabs: list[Slab] = []

    async def get() -> None:
        slabs.append(await added(pool, 0, 8 * KIB))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(get)
    assert slabs[0] is slabs[1] is slabs[2]
    assert counters.slabs_spilled == 1


@trio_test
async def test_a_file_takes_at_most_half_of_what_is_free(tmp_path: Path) -> None:
    pool = SlabPool(0, WorkCounters(), str(tmp_path))
    status = os.statvfs(tmp_path)
    with pytest.raises(OSError, match="exceed half of the free space"):
        await added(pool, 0, status.f_bavail * status.f_frsize)
    with pytest.raises(OSError, match="exceed half of the free space"):
        await added(pool, 0, 2**70)
    assert os.listdir(tmp_path) == []


@trio_test
async def test_discarded_memory_stays_with_whoever_needs_it() -> None:
    pool = SlabPool(64 * KIB, WorkCounters())
    slab = await added(pool, 0, 16 * KIB)
    slab.pins = 1
    slab.memory[:] = 9
    pool.discard(1)
    assert slab.stale and pool.nbytes == 0
    other = await added(pool, 0, 16 * KIB)
    other.memory[:] = 1
    assert (slab.memory == 9).all()


@trio_test
async def test_discard_names_an_array_or_one_slab() -> None:
    pool = SlabPool(64 * KIB, WorkCounters())
    for serial in (1, 2):
        for index in (0, 1):
            await added(pool, index, 4 * KIB, serial)
    pool.discard(1, 0)
    pool.discard(1, 17)
    pool.discard(2)
    assert [pool.get((serial, index)) is not None for serial in (1, 2) for index in (0, 1)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("pins", "completing", "filling", "stays"),
    [
        (0, False, range(0), True),
        (1, True, range(4, 8), True),
        # A task may be reading its memory, in a thread too.
        (1, False, range(0), False),
        (2, True, range(0), False),
        # What it is being filled with may be of before the change.
        (0, False, range(2, 5), False),
    ],
)
@trio_test
async def test_one_chunk_is_discarded_alone_where_no_task_may_be_using_it(
    pins: int, completing: bool, filling: range, stays: bool
) -> None:
    pool = SlabPool(64 * KIB, WorkCounters())
    slab = await added(pool, 0, 16 * KIB)
    slab.filled.update(range(8))
    slab.complete = True
    slab.pins, slab.completing = pins, completing
    if filling:
        slab.filling[Flight()] = filling
    pool.discard_chunk(1, 0, 3)
    assert (pool.get((1, 0)) is slab, slab.stale) == (stays, not stays)
    if stays:
        assert (3 in slab.filled, len(slab.filled), slab.complete) == (False, 7, False)


class PoolMachine(RuleBasedStateMachine):
    """The pool's account equals the memory of its slabs and its free buffers, and stays within the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlabPool(64 * KIB, WorkCounters())
        self.slabs: dict[tuple[int, int], Slab] = {}

    @rule(index=st.integers(0, 9), nbytes=st.integers(1, 40 * KIB))
    def add(self, index: int, nbytes: int) -> None:
        if self.pool.get((1, index)) is None:
            slab = self.pool.add_in_memory((1, index), 0, nbytes, nbytes)
            if slab is not None:
                assert slab.memory.nbytes == nbytes
                self.slabs[slab.key] = slab

    @rule(index=st.integers(0, 9), used=st.booleans())
    def use(self, index: int, used: bool) -> None:
        slab = self.pool.get((1, index))
        if slab is not None:
            slab.readers = int(used)

    @rule(index=st.integers(0, 9))
    def passed(self, index: int) -> None:
        if (slab := self.pool.get((1, index))) is not None:
            self.pool.passed(slab)

    @rule(index=st.integers(0, 9))
    def discard(self, index: int) -> None:
        self.pool.discard(1, index)

    @rule(index=st.integers(0, 9), number=st.integers(0, 9))
    def discard_chunk(self, index: int, number: int) -> None:
        self.pool.discard_chunk(1, index, number)

    @invariant()
    def account(self) -> None:
        held = [slab for slab in self.slabs.values() if not slab.stale]
        assert all(self.pool.get(slab.key) is slab for slab in held)
        buffers = {slab.buffer.ctypes.data for slab in held}
        assert len(buffers) == len(held), "two slabs share memory"
        assert sum(slab.buffer.nbytes for slab in held) <= self.pool.nbytes <= self.pool.limit

    @invariant()
    def what_is_used_is_there(self) -> None:
        for key, slab in self.slabs.items():
            assert slab.idle or slab.stale or self.pool.get(key) is slab


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = tries(30, stateful_step_count=25)
