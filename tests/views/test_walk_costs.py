"""What a walk over many arrays costs: requests to the store, documents rendered, and calls of functions of zarrfs for each array."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import trio
import zarr
from trio.testing import MockClock, trio_test

from tests.support.counted import is_counted
from tests.support.small_stores import array_document, write
from tests.support.trees import names, tree_of, tree_over, walk
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.keys import Key, NodePath
from zarrfs.options.config import resolve
from zarrfs.reports.info import describe
from zarrfs.stores.folder.store import FolderStore
from zarrfs.vfs.node import Directory, Entry

ARRAYS = 40
# Calls for each array; at first, 750 to 840 and 615 to 655 in a listing, 270 in a lookup, 730 to 860 in the listing of its folder.
MOST_LISTED, MOST_LOOKED_UP, MOST_INSIDE = {2: 500, 3: 375}, 95, 490
MOST_DESCRIBED = {2: 670, 3: 555}


@pytest.fixture(params=[2, 3])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of arrays that differ in shape and attributes."""
    group = zarr.open_group(str(tmp_path), mode="w", zarr_format=request.param)
    for number in range(ARRAYS):
        array = group.create_array(
            f"x{number}", shape=(8 + number,), chunks=(64,), dtype="i4", attributes={"long_name": f"number {number}"}
        )
        array[:] = number + 1
    return tmp_path


@contextmanager
def noted() -> Iterator[Counter[str]]:
    """Count the calls of functions of zarrfs in the body, without those that read the table of mounts: other tests change it."""
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_counted(frame.f_code):
            called[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


class Tasks(trio.abc.Instrument):
    """The number of tasks that began."""

    began = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.began += 1


def operations(tree: MountTree) -> Counter[str]:
    stats = tree.stats()["store_operations"]
    assert isinstance(stats, dict)
    return Counter({name: number for name, number in stats.items() if number})


async def every(entries: AsyncIterator[Entry]) -> list[Entry]:
    return [entry async for entry in entries]


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@trio_test
async def test_a_walk(view: str, store: Path) -> None:
    async with tree_of(store, watch="off") as tree:
        folder = await walk(tree, view)
        assert isinstance(folder, Directory)
        await folder.attributes()
        before = operations(tree)
        tasks = Tasks()
        trio.lowlevel.add_instrument(tasks)
        with noted() as called:
            entries = await every(folder.entries())
        folders = [name for name, is_directory, *_ in entries if is_directory]
        assert len(folders) == ARRAYS
        # One request is for the consolidated copy of the group.
        assert operations(tree) - before == {"get_many": ARRAYS + 1, "list_dir": 1}
        assert called["V2Layout.format"] + called["V3Layout.format"] <= 4, "arrays of one form were rendered"
        assert called.total() <= MOST_LISTED[2 if (store / ".zgroup").exists() else 3] * ARRAYS
        before = operations(tree)
        with noted() as called:
            inside = [await folder.lookup(name) for name in folders]
        assert operations(tree) == before
        assert called["V2Layout.format"] + called["V3Layout.format"] == 0
        assert called.total() <= MOST_LOOKED_UP * ARRAYS
        with noted() as called:
            for each in inside:
                assert isinstance(each, Directory)
                assert len(await every(each.entries())) == 2 + (view == "chunks")
        asked = operations(tree) - before
        assert set(asked) <= {"list_dir", "prefix_mtime_ns"} and asked["list_dir"] <= 2 * ARRAYS
        assert called["V2Layout.format"] + called["V3Layout.format"] <= 2 * ARRAYS
        assert called.total() <= MOST_INSIDE * ARRAYS
        assert called["io"] == 0, "a thread was entered"
        trio.lowlevel.remove_instrument(tasks)
        # Of several lookups at the same time, in two portions, or three on a busy machine. A generator that is not closed takes a task
        # for each array.
        assert tasks.began <= 3 * 16, tasks.began


@trio_test
async def test_a_listing_of_files_lists_the_group_once(store: Path) -> None:
    async with tree_of(store, watch="off") as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        before = operations(tree)
        assert len(await every(folder.entries())) == ARRAYS
        assert (operations(tree) - before)["list_dir"] == 1


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@trio_test
async def test_a_listing_has_the_times_of_the_folders_in_it(view: str, store: Path) -> None:
    async with tree_of(store, watch="off") as tree:
        folder = await walk(tree, view)
        assert isinstance(folder, Directory)
        for name, is_directory, _, mtime_ns, _, *_ in await every(folder.entries()):
            if is_directory:
                assert mtime_ns == (await (await folder.lookup(name)).attributes()).mtime_ns
        # What changes in the course of a listing is in it.
        entries = folder.entries()
        first = await anext(aiter(entries))
        while not first[1]:
            first = await anext(aiter(entries))
        later = f"x{ARRAYS - 1}"
        await tree.store.set(Key(f"{later}/another"), b"1")
        os.utime(store / later, ns=(0, 10**18))
        listed = {entry[0]: entry[3] async for entry in entries}
        assert listed[later] == 10**18


@trio_test
async def test_arrays_of_another_form_are_told_apart(tmp_path: Path) -> None:
    """In zarr3/ there are no objects; documents of one array tell nothing of those of another."""
    for number in range(3):
        write(tmp_path / f"a{number}", {".zarray": array_document((4 + number,), (2,), "<i4")})
        write(tmp_path / f"b{number}", {".zarray": array_document((4 + number,), (2,), "|O", filters=[{"id": "json2"}])})
    async with tree_of(tmp_path, watch="off") as tree:
        for _ in range(2):
            assert await names(tree, "zarr3") == {
                "zarr.json",
                *(f"a{number}" for number in range(3)),
                *(f"b{number}.unsupported.txt" for number in range(3)),
            }


def test_nodes_are_valid_for_longer_while_every_change_is_reported(store: Path) -> None:
    async def main() -> None:
        async with tree_over(FolderStore(str(store)), f"file:{store}", watch="off") as tree:
            for watched, most in ((True, 0), (False, 1)):
                tree._on_watched(watched)
                await tree.hierarchy.node(NodePath("/x1"))
                before = operations(tree)["get_many"]
                await trio.sleep(30)
                await tree.hierarchy.node(NodePath("/x1"))
                assert (operations(tree)["get_many"] > before) == bool(most)
            tree._on_watched(True)
            await tree.hierarchy.node(NodePath("/x1"))
            before = operations(tree)["get_many"]
            # Without reports anything may have changed.
            tree._on_watched(False)
            await tree.hierarchy.node(NodePath("/x1"))
            assert operations(tree)["get_many"] > before

    trio.run(main, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_a_description_of_the_store(store: Path) -> None:
    """``zarrfs info``: there were three listings of the folder of an array, and five requests for documents in it."""
    config = resolve(str(store))
    async with tree_of(store, watch="off") as tree:
        nodes = [NodePath(f"/x{number}") for number in range(ARRAYS)]
        for node in nodes:
            await tree.hierarchy.array(node)
        before = operations(tree)
        for node in nodes:
            assert await tree.hierarchy.others_at(node) == []
        asked = operations(tree) - before
        assert asked["list_dir"] <= ARRAYS and asked["get_many"] <= 2 * ARRAYS
    with noted() as called:
        described = (await describe(config, "/"))["nodes"]
    assert [node["chunks_stored"] for node in described[1:]] == [1] * ARRAYS
    assert called["parse_array"] <= ARRAYS
    assert called.total() <= MOST_DESCRIBED[2 if (store / ".zgroup").exists() else 3] * ARRAYS
