"""Readers and writers of one array, through several views, in random schedules (`tests.support.schedules`).

Each write has a number, and each element tells by which write it was written. A write may take effect from its first byte to its close,
and, if that returned an error, at any time later. After each schedule:

* no element has the value of a write that ended before another one began whose close returned success;
* all views show the same elements, in this mount and in a new one;
* nothing is open, staged or queued, and no memory is taken for it.

The caches do not expire: what is outdated in them stays so.
"""

from __future__ import annotations

import io
import itertools
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from tests.support.drivers import DirectDriver
from tests.support.length import tries
from tests.support.schedules import GatedStore, Schedule, run
from tests.support.trees import load, names, read, tree_over, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.stores.memory import MemoryStore

LENGTH, CHUNK = 8, 4
FIRST = np.arange(LENGTH, dtype="<i4")
FOREVER = 1 << 60

_PLAIN = {"new_chunks": str(CHUNK), "new_codecs": "none", "metadata_ttl": "1000000"}
LAYOUTS = {
    "v2": _PLAIN | {"new_dialect": "v2"},
    "v3": _PLAIN | {"new_dialect": "v3"},
    "v3, little memory": _PLAIN | {"new_dialect": "v3", "memory_limit": "100"},
    "shards": _PLAIN | {"new_dialect": "v3", "new_shards": "2"},
    "shards of 2022 at once": _PLAIN | {"new_dialect": "v3_2022", "new_shards": "2", "shard_delay": "0"},
}


def _npy(elements: Sequence[int]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(elements, "<i4"))
    return file.getvalue()


HEADER = len(_npy([])) if len(_npy([])) == len(_npy(FIRST.tolist())) - 4 * LENGTH else -1


@dataclass(slots=True)
class Write:
    """A write of ``elements``, by index."""

    elements: dict[int, int]
    begin: int
    end: int = FOREVER
    acknowledged: bool = False


class Players:
    """What the tasks do, each on a file of its own, and what they wrote."""

    def __init__(self, driver: DirectDriver, schedule: Schedule) -> None:
        self._driver, self._schedule = driver, schedule
        self._clock = itertools.count(1)
        self.writes = [Write(dict(enumerate(FIRST.tolist())), 0, 0, acknowledged=True)]
        self._opening = trio.Lock()
        """Held while a name is looked up and created or emptied, as by the kernel."""

    async def play(self, chance: random.Random) -> None:
        actions = [
            self._read_chunk,
            self._read_npy,
            self._change_chunk,
            self._change_npy,
            self._replace_chunk,
            self._replace_encoded,
        ]
        for _ in range(chance.randint(1, 3)):
            # A value may be replaced, truncated or unstored while it is used.
            with suppress(OSError):
                await chance.choice(actions)(chance)

    async def _read_chunk(self, chance: random.Random) -> None:
        fd = await self._driver.open(f"chunks/a/{chance.randrange(LENGTH // CHUNK)}", os.O_RDONLY)
        await self._closed(fd, self._pread(fd))

    async def _read_npy(self, chance: random.Random) -> None:
        fd = await self._driver.open("npy/a.npy", os.O_RDONLY)
        await self._closed(fd, self._pread(fd))

    async def _pread(self, fd: int) -> None:
        await self._schedule.step()
        await self._driver.pread(fd, 4096, 0)

    async def _change_chunk(self, chance: random.Random) -> None:
        first = CHUNK * chance.randrange(LENGTH // CHUNK)
        indices = range(first, first + chance.randint(1, CHUNK - 1))
        await self._write(chance, f"chunks/a/{first // CHUNK}", os.O_RDWR, 0, indices)

    async def _change_npy(self, chance: random.Random) -> None:
        first = chance.randrange(LENGTH)
        indices = range(first, min(LENGTH, first + chance.choice((1, CHUNK, LENGTH))))
        await self._write(chance, "npy/a.npy", os.O_RDWR, HEADER + 4 * first, indices)

    async def _replace_chunk(self, chance: random.Random) -> None:
        number = chance.randrange(LENGTH // CHUNK)
        indices = range(CHUNK * number, CHUNK * (number + 1))
        await self._write(chance, f"chunks/a/{number}", os.O_RDWR | os.O_TRUNC, 0, indices)

    async def _replace_encoded(self, chance: random.Random) -> None:
        number = chance.randrange(LENGTH // CHUNK)
        indices = range(CHUNK * number, CHUNK * (number + 1))
        await self._write(chance, f"zarr3/a/c/{number}", os.O_RDWR | os.O_TRUNC, 0, indices)

    async def _write(self, chance: random.Random, path: str, flags: int, offset: int, indices: range) -> None:
        number = len(self.writes)
        written = Write({index: 100 * number + index for index in indices}, next(self._clock))
        self.writes.append(written)
        async with self._opening:
            fd = await self._driver.open(path, flags)

        async def change() -> None:
            if chance.random() < 0.5:
                await self._pread(fd)
            await self._schedule.step()
            await self._driver.pwrite(fd, np.array(list(written.elements.values()), "<i4").tobytes(), offset)
            await self._schedule.step()
            if chance.random() < 0.3:
                await self._driver.fsync(fd)

        await self._closed(fd, change())
        written.acknowledged, written.end = True, next(self._clock)

    async def _closed(self, fd: int, use: Awaitable[None]) -> None:
        try:
            await use
            await self._schedule.step()
        finally:
            await self._driver.close(fd)

    def check(self, elements: Sequence[int]) -> None:
        """Check that each element has the value of a write after which no other one began and succeeded."""
        for index, element in enumerate(elements):
            ends = [each.end for each in self.writes if each.elements.get(index) == element]
            assert ends, f"element {index} is {element}, which nobody wrote"
            later = [each for each in self.writes if each.acknowledged and index in each.elements and each.begin > max(ends)]
            assert not later, f"element {index} is {element}, whose write ended at {max(ends)}, and since then: {later}"


async def _same_in_all_views(tree: MountTree) -> list[int]:
    elements = (await load(tree, "npy/a.npy")).tolist()
    for number in range(LENGTH // CHUNK):
        chunk = np.array(elements[CHUNK * number : CHUNK * (number + 1)], "<i4").tobytes()
        assert await read(tree, f"chunks/a/{number}") == chunk
        assert await read(tree, f"zarr3/a/c/{number}") == chunk
    assert await names(tree, "zarr3/a") == {"c", "zarr.json"}
    return [int(element) for element in elements]


async def _schedule(chance: random.Random, *, options: dict[str, str], failing: float, cache_dir: Path) -> None:
    inner = MemoryStore()
    options = options | {"cache_dir": str(cache_dir)}
    async with tree_over(inner, **options) as tree:
        await write(tree, "npy/a.npy", _npy(FIRST.tolist()))
        await tree.publish_all()
    schedule = Schedule(chance, failing)
    async with tree_over(GatedStore(inner, schedule), **options) as tree:
        players = Players(DirectDriver(inner, tree), schedule)
        if chance.random() < 0.5:
            await _same_in_all_views(tree)
        async with trio.open_nursery() as scheduling:
            scheduling.start_soon(schedule.run)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as playing:
                for number in range(chance.randint(2, 4)):
                    playing.start_soon(players.play, random.Random(f"{chance.random()}-{number}"))
            schedule.end()
            scheduling.cancel_scope.cancel()
        # What is queued for a shard is stored.
        players.check(shown := await _same_in_all_views(tree))
        await trio.sleep(100)
        assert await _same_in_all_views(tree) == shown
        async with tree_over(inner, **options) as other:
            assert await _same_in_all_views(other) == shown
        stats = tree.stats()
        assert (stats["open_handles"], stats["dirty_bytes"], stats["pending_shards"]) == (0, 0, 0)
        assert tree.staging.room.budget.nbytes == 0


@pytest.mark.logs("")
@pytest.mark.parametrize("failing", [0, 0.3], ids=["", "failing"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_schedule(layout: str, failing: float, tmp_path: Path) -> None:
    for number in range(tries(100).max_examples):
        main: Callable[[random.Random], Awaitable[None]] = partial(
            _schedule, options=LAYOUTS[layout], failing=failing, cache_dir=tmp_path
        )
        seed = f"{layout}, {failing}, {number}"
        try:
            run(main, seed)
        except BaseException as error:
            error.add_note(f"in the schedule of {seed!r}")
            raise
