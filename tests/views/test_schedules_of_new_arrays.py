"""A new array that several programs fill at once, its document among its chunks, in random schedules (`tests.support.schedules`).

Copying programs with parallel transfers (rclone, parallel cp) do so. In each schedule, every close and rename succeeds, all chunks are
stored, and nothing is left waiting.
"""

from __future__ import annotations

import json
import os
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from tests.support.drivers import DirectDriver
from tests.support.length import tries
from tests.support.schedules import GatedStore, Schedule, run
from tests.support.trees import load, tree_over
from zarrfs.stores.memory import MemoryStore

CHUNK, COUNT = 4, 3
ZARRAY = {"zarr_format": 2, "shape": [CHUNK * COUNT], "chunks": [CHUNK], "dtype": "<i4", "fill_value": 0, "order": "C"}
ZARRAY |= {"compressor": None, "filters": None}
ZARR_JSON = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [CHUNK * COUNT],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": 0,
}
VIEWS = {"chunks": (".zarray", ZARRAY, "{}"), "zarr3": ("zarr.json", ZARR_JSON, "c/{}")}


class Programs:
    """What the programs do: each creates one file of the array ``a``."""

    def __init__(self, driver: DirectDriver, schedule: Schedule) -> None:
        self._driver, self._schedule = driver, schedule
        self._names = trio.Lock()
        """Held while a name is looked up and created, or renamed, as by the kernel."""

    async def put(self, path: str, data: bytes, chance: random.Random) -> None:
        """Write a file in pieces, under its name, or under another one that is then renamed."""
        await self._schedule.step()
        name = f"{path}.partial" if chance.random() < 0.4 else path
        async with self._names:
            fd = await self._driver.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        step = len(data) // chance.choice((1, 4))
        for offset in range(0, len(data), step):
            await self._schedule.step()
            await self._driver.pwrite(fd, data[offset : offset + step], offset)
        await self._schedule.step()
        if chance.random() < 0.2:
            await self._driver.fsync(fd)
        await self._driver.close(fd)
        await self._schedule.step()
        if name != path:
            async with self._names:
                await self._driver.rename(name, path)


async def _schedule(chance: random.Random, *, view: str, dialect: str, cache_dir: Path) -> None:
    inner = MemoryStore()
    schedule = Schedule(chance, 0)
    document, content, key = VIEWS[view]
    options = {"new_dialect": dialect, "cache_dir": str(cache_dir), "metadata_ttl": "1000000"}
    elements = np.arange(1, CHUNK * COUNT + 1, dtype="<i4")
    async with tree_over(GatedStore(inner, schedule), **options) as tree:
        driver = DirectDriver(inner, tree)
        programs = Programs(driver, schedule)
        for folder in (f"{view}/a", f"{view}/a/c")[: 1 + ("/" in key)]:
            await driver.mkdir(folder)
        files = {key.format(index): elements[index * CHUNK : (index + 1) * CHUNK].tobytes() for index in range(COUNT)}
        files[document] = json.dumps(content).encode()
        async with trio.open_nursery() as scheduling:
            scheduling.start_soon(schedule.run)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as copying:
                for name, data in files.items():
                    copying.start_soon(programs.put, f"{view}/a/{name}", data, random.Random(chance.random()))
            schedule.end()
            scheduling.cancel_scope.cancel()
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()
        assert await tree.publish_all() == []
        assert tree.stats()["open_handles"] == tree.stats()["dirty_bytes"] == 0
    async with tree_over(inner, **options) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@pytest.mark.parametrize("view", VIEWS)
def test_any_schedule_of_a_copy(view: str, dialect: str, tmp_path: Path) -> None:
    for number in range(tries(200).max_examples):
        seed = f"{view}, {dialect}, {number}"
        try:
            run(partial(_schedule, view=view, dialect=dialect, cache_dir=tmp_path), seed)
        except BaseException as error:
            error.add_note(f"in the schedule of {seed!r}")
            raise
