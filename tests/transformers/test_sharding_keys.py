"""Keys that are chunks of a grid, prefixes that cut through it, and translation of changes of the inner store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from zarrfs.keys import Key, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.change import Change
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.grid_keys import GridKeys
from zarrfs.transformers.observed import ObservedStore
from zarrfs.transformers.sharded_grid import MAX_REPORTED, ShardedGrid
from zarrfs.transformers.sharding import ShardingStore

FOO = Prefix("data/root/foo/")
SLASH, DOT = ChunkKeyEncoding("c", "/", "c0"), ChunkKeyEncoding("c", ".", "c0")


@pytest.mark.parametrize(
    ("encoding", "grid_shape", "leads"),
    [
        (SLASH, (5, 5), {"": (), "c3/": (3,), "c99/": (99,), "c/": None, "c03/": None, "c3/1/": None, "x/": None, "cc/": None}),
        (SLASH, (5, 5, 5), {"": (), "c3/": (3,), "c3/4/": (3, 4), "c3/4/0/": None, "c3//": None, "c3/x/": None}),
        (SLASH, (5,), {"": (), "c3/": None}),
        (SLASH, (), {"": (), "c0/": None, "c/": None}),
        (DOT, (5, 5), {"": (), "c3/": None, "c3./": None, "c3.1/": None}),
        (chunk_key.default("/"), (5, 5), {"": (), "c/": (), "c/3/": (3,), "c/3/1/": None, "c3/": None, "3/": None}),
        (chunk_key.default("/"), (), {"": (), "c/": None}),
        (chunk_key.default("."), (5, 5), {"": (), "c./": None, "c/": None}),
        (chunk_key.v2("/"), (5, 5), {"": (), "3/": (3,), "3/4/": None, "c/": None}),
        (ChunkKeyEncoding("", "/", "0", ".blosc"), (5, 5, 5), {"": (), "3/": (3,), "3/4/": (3, 4), "3.blosc/": None}),
    ],
)
def test_leading_indices_of_a_prefix(
    encoding: ChunkKeyEncoding, grid_shape: tuple[int, ...], leads: dict[str, tuple[int, ...] | None]
) -> None:
    keys = GridKeys(FOO, encoding, grid_shape)
    assert {relative: keys.lead(Prefix(FOO + relative)) for relative in leads} == leads
    for relative, lead in leads.items():
        if lead:
            assert keys.below(lead) == FOO + relative
            assert keys.key((*lead, *[0] * (len(grid_shape) - len(lead)))).startswith(FOO + relative)
    for beside in ("data/root/fo/", "data/root/foo2/", "x/", "data/root/"):
        assert keys.lead(Prefix(beside)) is None


def test_prefixes_above_the_grid() -> None:
    keys = GridKeys(FOO, SLASH, (5, 5))
    above = ("", "data/", "data/root/")
    assert [prefix for prefix in (*above, FOO, "data/root/f/", "x/", FOO + "c0/") if keys.lies_below(Prefix(prefix))] == [*above]
    assert not GridKeys(Prefix(""), SLASH, (5,)).lies_below(Prefix(""))


def test_keys_that_are_chunks_and_others() -> None:
    keys = GridKeys(FOO, SLASH, (5, 5))
    assert keys.decode(FOO + "c4/0") == (4, 0) and keys.holds((4, 0))
    assert keys.decode(FOO + "c5/0") == (5, 0) and not keys.holds((5, 0))
    for other in ("c4", "c4/0/0", "c04/0", "c4/-1", "4/0", "c4.0", "c/4/0", "c4/0 "):
        assert keys.decode(FOO + other) is None
    assert keys.decode("data/root/c4/0") is None


# --- change -------------------------------------------------------------------------------------------------------------------


def seen(grid: ShardedGrid, target: Key | Prefix, kind: str) -> list[tuple[str, str]]:
    changes = list(grid.seen(Change(target, kind, external=True)))  # type: ignore[arg-type]
    assert all(change.external and change.is_prefix == (change.target[-1:] in ("", "/")) for change in changes)
    return [(str(change.target), change.kind) for change in changes]


def test_a_shard_that_changed_is_each_of_its_chunks() -> None:
    grid = ShardedGrid.of(FOO, SLASH, (5, 3), ShardSpec((2, 2)))
    chunks = ["c2/0", "c2/1", "c3/0", "c3/1"]
    assert seen(grid, FOO.key("c1/0"), "set") == [(FOO + key, "unknown") for key in chunks]
    assert seen(grid, FOO.key("c1/0"), "erase") == [(FOO + key, "erase") for key in chunks]
    assert seen(grid, FOO.key("c1/0"), "times") == [(FOO + key, "times") for key in chunks]
    assert seen(grid, FOO.key("c2/1"), "set") == [(FOO + "c4/2", "unknown")]
    # Keys outside any shard, and shards that are not visible.
    assert seen(grid, FOO.key("notes"), "set") == [(FOO + "notes", "set")]
    assert seen(grid, Key("data/root/c1/0"), "erase") == [("data/root/c1/0", "erase")]
    assert seen(grid, FOO.key("c3/0"), "set") == []


def test_a_shard_of_many_chunks_is_the_prefix_that_they_have_in_common() -> None:
    many = MAX_REPORTED + 1
    assert seen(ShardedGrid.of(FOO, SLASH, (9, 5000), ShardSpec((1, many))), FOO.key("c3/2"), "erase") == [(FOO + "c3/", "unknown")]
    assert seen(ShardedGrid.of(FOO, SLASH, (9, 5000), ShardSpec((2, many))), FOO.key("c3/2"), "set") == [(str(FOO), "unknown")]
    assert seen(ShardedGrid.of(FOO, DOT, (9, 5000), ShardSpec((1, many))), FOO.key("c3.2"), "set") == [(str(FOO), "unknown")]
    assert len(seen(ShardedGrid.of(FOO, SLASH, (9, 5000), ShardSpec((1, many - 1))), FOO.key("c3/2"), "set")) == MAX_REPORTED


def test_a_prefix_of_shards_that_changed_is_the_prefixes_of_their_chunks_and_itself() -> None:
    grid = ShardedGrid.of(FOO, SLASH, (7, 3, 4), ShardSpec((2, 2, 4)))
    assert seen(grid, Prefix(FOO + "c2/"), "erase") == [(f"{FOO}c{row}/", "unknown") for row in (2, 4, 5)]
    assert seen(grid, Prefix(FOO + "c3/1/"), "set") == [(f"{FOO}{each}/", "unknown") for each in ("c3/1", "c6/2")]
    assert seen(grid, Prefix(FOO + "c4/"), "set") == [(FOO + "c4/", "unknown")]
    # Empty folders of the inner store are not visible.
    assert seen(grid, Prefix(FOO + "c2/"), "mkdir") == seen(grid, Prefix(FOO + "c2/"), "rmdir") == []
    for prefix in ("", "data/", FOO, FOO + "notes/", "x/"):
        for kind in ("erase", "mkdir", "unknown"):
            assert seen(grid, Prefix(prefix), kind) == [(prefix, kind)]


class ToldStore(MemoryStore):
    """A store that reports the given changes one by one, after a first call without changes."""

    def __init__(self, *changes: Change) -> None:
        super().__init__()
        self.changes = changes

    async def watch(self, on_changes: Callable[[Sequence[Change]], None]) -> None:
        on_changes([])
        for change in self.changes:
            on_changes([change])


@trio_test
async def test_what_is_told_of_shards_is_told_of_chunks() -> None:
    store = ToldStore(Change(FOO.key("c0"), "set", True), Change(FOO.key("c9"), "set", True), Change(FOO.key("x"), "erase", True))
    told: list[list[Change]] = []
    await ShardingStore(store, FOO, SLASH, (5,), ShardSpec((2,))).watch(lambda changes: told.append([*changes]))
    assert told == [
        [],
        [Change(FOO.key("c0"), "unknown", True), Change(FOO.key("c1"), "unknown", True)],
        [Change(FOO.key("x"), "erase", True)],
    ]


@trio_test
async def test_what_another_program_does_to_a_folder_of_shards_is_told(tmp_path: Path) -> None:
    pytest.importorskip("inotify_simple")
    store = ObservedStore(ShardingStore(FolderStore(str(tmp_path)), FOO, SLASH, (5,), ShardSpec((2,))))
    await store.set(FOO.key("c0"), b"x")
    other = ShardingStore(FolderStore(str(tmp_path)), FOO, SLASH, (5,), ShardSpec((2,)))
    watching, seen_all = trio.Event(), trio.Event()
    missing = {FOO.key("c2"), FOO.key("c3")}

    def subscriber(change: Change) -> None:
        missing.discard(change.target)  # type: ignore[arg-type]
        if not missing:
            seen_all.set()

    store.subscribe(subscriber)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.follow, lambda complete: watching.set() if complete else None)
            await watching.wait()
            await other.set(FOO.key("c3"), b"y")
            await seen_all.wait()
            assert await store.get(FOO.key("c3")) == b"y"
            nursery.cancel_scope.cancel()
