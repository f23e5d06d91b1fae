"""Arrays that are changed, saved over, renamed and removed at once, in random schedules (`tests.support.schedules`).

Now and then, a change of the store takes effect, or is answered, after its deadline, and the mount ends later what it has begun. After
each schedule, all views of this mount and of the next one show the same arrays, no change that succeeded is lost (see
`tests.support.histories`), and nothing is left apart, staged or open.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from tests.support.drivers import DirectDriver
from tests.support.histories import ABSENT, History
from tests.support.length import tries
from tests.support.schedules import GatedStore, Schedule, run
from tests.support.stores import contents
from tests.support.trees import load, read, tree_over, walk
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry
from zarrfs.stores.memory import MemoryStore

CHUNK, MOST = 4, 12
NAMES = ("a", "b")
ATTRIBUTE = "n"
_PLAIN = {"new_chunks": str(CHUNK), "new_codecs": "none", "metadata_ttl": "1000000"}
LAYOUTS = {
    "v2": _PLAIN | {"new_dialect": "v2"},
    "v3": _PLAIN | {"new_dialect": "v3"},
    "2019": _PLAIN | {"new_dialect": "v3_2019"},
    "2022": _PLAIN | {"new_dialect": "v3_2022"},
    "shards": _PLAIN | {"new_dialect": "v3", "new_shards": "2"},
    "shards of 2022": _PLAIN | {"new_dialect": "v3_2022", "new_shards": "2"},
}
LATE = 90.0
"""Seconds, more than the deadline of one operation."""

Shown = dict[str, tuple[list[int], int | None]]
"""Elements and attribute of the arrays, by name."""


def _npy(elements: list[int]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(elements, "<i4"))
    return file.getvalue()


HEADER = len(_npy([0])) - 4


class Players:
    """What the tasks do."""

    def __init__(self, driver: DirectDriver, schedule: Schedule, history: History) -> None:
        self._driver, self._schedule, self._history = driver, schedule, history
        self._names = trio.Lock()
        """Held while a name is looked up and created, renamed or removed, as by the kernel."""

    async def play(self, chance: random.Random) -> None:
        actions = [
            self._change,
            self._replace,
            self._save,
            self._save,
            self._rename,
            self._remove,
            self._remove_chunk,
            self._describe,
        ]
        for _ in range(chance.randint(1, 4)):
            # An array may be replaced, renamed or removed while it is used.
            with suppress(OSError):
                await chance.choice(actions)(chance, chance.choice(NAMES))

    async def _change(self, chance: random.Random, name: str) -> None:
        first = chance.randrange(2 * CHUNK)
        await self._write(chance, name, f"npy/{name}.npy", os.O_RDWR, range(first, min(2 * CHUNK, first + 3)), HEADER + 4 * first)

    async def _replace(self, chance: random.Random, name: str) -> None:
        number = chance.randrange(2)
        path = chance.choice((f"chunks/{name}/{number}", f"zarr3/{name}/c/{number}"))
        flags = os.O_WRONLY | os.O_TRUNC | chance.choice((0, os.O_CREAT))
        await self._write(chance, name, path, flags, range(CHUNK * number, CHUNK * (number + 1)))

    async def _save(self, chance: random.Random, name: str) -> None:
        length = chance.choice((2 * CHUNK, 3 * CHUNK))
        await self._write(chance, name, f"npy/{name}.npy", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, range(length), is_whole=True)

    async def _write(
        self, chance: random.Random, name: str, path: str, flags: int, indices: range, offset: int = 0, *, is_whole: bool = False
    ) -> None:
        elements = [100 * len(self._history.changes) + index for index in indices]
        values = {(name, index): element for index, element in zip(indices, elements, strict=True)}
        if is_whole:
            values = {(name, index): values.get((name, index), ABSENT) for index in range(MOST)}
        with self._history.change(path, values=values, path=path, empties=bool(flags & os.O_TRUNC)):
            data = _npy(elements) if is_whole else np.array(elements, "<i4").tobytes()
            await self._put(chance, path, flags, data, offset)

    async def _put(self, chance: random.Random, path: str, flags: int, data: bytes, offset: int = 0) -> None:
        async with self._names:
            fd = await self._driver.open(path, flags)
        try:
            await self._schedule.step()
            await self._driver.pwrite(fd, data, offset)
            await self._schedule.step()
            if chance.random() < 0.3:
                await self._driver.fsync(fd)
        finally:
            await self._driver.close(fd)

    async def _rename(self, chance: random.Random, name: str) -> None:
        other = NAMES[1 - NAMES.index(name)]
        view = chance.choice(("npy/{}.npy", "chunks/{}", "zarr3/{}"))
        old, new = view.format(name), view.format(other)
        with self._history.change(f"mv {old} {new}", renames=(name, other)):
            async with self._names:
                await self._driver.rename(old, new)

    async def _remove(self, chance: random.Random, name: str) -> None:
        values = {(name, part): ABSENT for part in (*range(MOST), ATTRIBUTE)}
        with self._history.change(f"rm npy/{name}.npy", values=values):
            await self._unlink(f"npy/{name}.npy")

    async def _remove_chunk(self, chance: random.Random, name: str) -> None:
        number = chance.randrange(2)
        values = {(name, index): 0 for index in range(CHUNK * number, CHUNK * (number + 1))}
        with self._history.change(f"rm chunks/{name}/{number}", values=values):
            await self._unlink(f"chunks/{name}/{number}")

    async def _unlink(self, path: str) -> None:
        async with self._names:
            await self._driver.stat(path)
            await self._driver.unlink(path)

    async def _describe(self, chance: random.Random, name: str) -> None:
        path, number = f"chunks/{name}/.zattrs", len(self._history.changes)
        with self._history.change(path, values={(name, ATTRIBUTE): number}, path=path, empties=True):
            await self._put(chance, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, json.dumps({ATTRIBUTE: number}).encode())


async def _shown(tree: MountTree) -> Shown:
    """Return the arrays, which all views have to show alike."""
    shown: Shown = {}
    for name in NAMES:
        try:
            elements = (await load(tree, f"npy/{name}.npy")).tolist()
        except NoSuchEntry:
            for view in ("chunks", "zarr3"):
                with pytest.raises(NoSuchEntry):
                    await walk(tree, f"{view}/{name}")
            continue
        for start in range(0, len(elements), CHUNK):
            chunk = elements[start : start + CHUNK]
            for path in f"chunks/{name}/{start // CHUNK}", f"zarr3/{name}/c/{start // CHUNK}":
                try:
                    assert await read(tree, path) == np.array(chunk, "<i4").tobytes(), path
                except NoSuchEntry:
                    assert chunk == [0] * CHUNK, path
        document = json.loads(await read(tree, f"zarr3/{name}/zarr.json"))
        assert document["shape"] == [len(elements)]
        shown[name] = elements, document["attributes"].get(ATTRIBUTE)
    return shown


def _check(history: History, shown: Shown) -> None:
    for name in NAMES:
        elements, number = shown.get(name, ([], ABSENT))
        for index in range(MOST):
            history.check(name, index, elements[index] if index < len(elements) else ABSENT)
        history.check(name, ATTRIBUTE, number)


async def _schedule(chance: random.Random, *, options: dict[str, str], failing: float, late: float, cache_dir: Path) -> None:
    inner, history = MemoryStore(), History()
    options = options | {"cache_dir": str(cache_dir)}
    schedule = Schedule(chance, failing)
    async with tree_over(GatedStore(inner, schedule, late=late), **options) as tree:
        players = Players(DirectDriver(inner, tree), schedule, history)
        for name in NAMES:
            with history.change(f"no {name}", values={(name, part): ABSENT for part in (*range(MOST), ATTRIBUTE)}):
                pass
        await players._save(chance, "a")
        async with trio.open_nursery() as scheduling:
            scheduling.start_soon(schedule.run)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as playing:
                for number in range(chance.randint(2, 4)):
                    playing.start_soon(players.play, random.Random(f"{chance.random()}-{number}"))
            schedule.end()
            scheduling.cancel_scope.cancel()
        # What was late is determined, and what waits for its shard is stored.
        await trio.sleep(1000)
        _check(history, shown := await _shown(tree))
        await tree.publish_all()
        stats = tree.stats()
        assert (stats["open_handles"], stats["dirty_bytes"], stats["pending_shards"]) == (0, 0, 0)
        assert tree.staging.room.budget.nbytes == 0
        assert await contents(inner, ".zarrfs/") == {}
    async with tree_over(inner, **options) as tree:
        await tree.recover()
        assert await _shown(tree) == shown


@pytest.mark.logs("")
@pytest.mark.parametrize(("failing", "late"), [(0, 0), (0.1, LATE)], ids=["", "late"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_schedule_of_nodes(layout: str, failing: float, late: float, tmp_path: Path) -> None:
    for number in range(tries(100).max_examples):
        main: Callable[[random.Random], Awaitable[None]] = partial(
            _schedule, options=LAYOUTS[layout], failing=failing, late=late, cache_dir=tmp_path
        )
        seed = f"{layout}, {failing}, {number}"
        try:
            run(main, seed)
        except BaseException as error:
            error.add_note(f"in the schedule of {seed!r}")
            raise
