"""Temporary files without a view: their end, their open handles, and their fsync."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.contents import FakeContent
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkSizeMismatch, EntryExists, NoSuchEntry, StoreFull
from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Handle, OpenFlags
from zarrfs.vfs.staging import StagingArea
from zarrfs.vfs.temporary import Temporaries, TemporaryFile, is_temporary

HEX = "0123456789abcdef" * 2
NAME = f"raw/a/0.{HEX}.partial"
BOTH = OpenFlags(read=True, write=True)


class World:
    """A staging area, its temporary files, and one key with a value."""

    def __init__(self, value: bytes | None = None, *, fixed_size: int | None = None, durable: bool = False) -> None:
        self.budget = MemoryBudget(1 << 20)
        self.area = StagingArea(budget=self.budget, durable=durable)
        self.table = Temporaries(self.area)
        self.key = FakeContent(value, fixed_size=fixed_size, ident="raw/a/0")

    async def create(self, data: bytes = b"", ident: str = NAME) -> tuple[TemporaryFile, Handle]:
        file, handle = await self.table.create(self.table.content(ident), BOTH)
        if data:
            await handle.write(0, data)
        return file, handle

    async def closed(self, data: bytes, ident: str = NAME) -> TemporaryFile:
        file, handle = await self.create(data, ident)
        await handle.flush()
        await handle.release()
        return file

    def names(self, prefix: str = "raw/a/") -> dict[str, int]:
        return {name: size for name, _, size, _, _ in self.table.entries(prefix)}


def alone(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Return a function that runs an async test."""

    def run() -> None:
        trio.run(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        (f"zarr.{HEX}.partial", True),
        (f".zarray.{HEX}.partial", True),
        (f"a\n.{HEX}.partial", True),
        ("0.0.__lock", True),
        (f".zarrfs-{HEX}.partial", True),
        (f"0.zarrfs-{HEX}.partial", False),
        (f"{HEX}.partial", False),
        (f"0.{HEX[1:]}.partial", False),
        (f"0.{HEX.upper()}.partial", False),
        (f"0.{HEX}.partial~", False),
        ("0.partial", False),
        ("__lock", False),
        ("4913", False),
        (".0.0.swp", False),
        ("db.sqlite-journal", False),
    ],
)
def test_which_names_are_temporary(name: str, temporary: bool) -> None:
    assert is_temporary(name) is temporary


@alone
async def test_a_temporary_file_is_a_file() -> None:
    world = World()
    _, handle = await world.create(b"abc")
    assert world.names() == {f"0.{HEX}.partial": 3}
    assert not world.names("raw/"), "it lies one folder further down"
    await handle.truncate(5)
    assert bytes(await handle.read(0, 9)) == b"abc\0\0"
    await handle.flush()
    await handle.release()
    file = world.table.get(NAME)
    assert file is not None
    assert (await file.attributes()).size == 5
    await file.truncate(2)
    await file.set_mtime(7)
    assert ((await file.attributes()).size, (await file.attributes()).mtime_ns) == (2, 7)
    with pytest.raises(EntryExists):
        await world.table.create(world.table.content(NAME), BOTH)
    await world.table.unlink(file)
    assert not world.names()
    assert world.budget.nbytes == 0


@alone
async def test_a_rename_publishes_and_the_handle_goes_on_with_the_key() -> None:
    world = World(b"old value")
    key = StagedFile(world.area, world.key)
    reader = await key.open(OpenFlags())
    file, handle = await world.create(b"new")
    await world.table.move(file, world.key)
    assert world.key.value == b"new"
    assert world.table.get(NAME) is None
    assert bytes(await reader.read(0, 99)) == b"old value", "who has the old value open keeps it"
    assert bytes(await handle.read(0, 99)) == b"new"
    await handle.write(3, b"er")
    await handle.flush()
    assert world.key.value == b"newer"
    for each in (reader, handle):
        await each.release()
    assert world.budget.nbytes == 0


@alone
async def test_fsync_is_kept_for_the_rename() -> None:
    world = World()
    file, handle = await world.create(b"x")
    await handle.fsync()
    assert world.key.synced == 0
    await world.table.move(file, world.key)
    assert world.key.synced == 1
    await handle.release()


@alone
async def test_what_was_written_after_the_fsync_was_not_synced() -> None:
    world = World()
    file, handle = await world.create(b"x")
    await handle.fsync()
    await handle.write(0, b"y")
    await handle.flush()
    await world.table.move(file, world.key)
    assert (world.key.value, world.key.synced) == (b"y", 0)
    await handle.release()


@alone
async def test_a_rename_that_cannot_be_made_durable_says_so_and_can_be_tried_again() -> None:
    world = World(b"old")
    file, handle = await world.create(b"new")
    await handle.fsync()
    world.key.fails_to_sync = StoreFull("no space")
    with pytest.raises(StoreFull):
        await world.table.move(file, world.key)
    assert world.names() == {f"0.{HEX}.partial": 3}
    world.key.fails_to_sync = None
    await world.table.move(file, world.key)
    assert (world.key.value, world.key.synced, world.names()) == (b"new", 1, {})
    await handle.release()


@alone
async def test_every_close_is_an_fsync_in_a_durable_mount() -> None:
    world = World(durable=True)
    await world.table.move(await world.closed(b"x"), world.key)
    assert world.key.synced == 1


@alone
async def test_a_rename_that_fails_leaves_the_temporary_file_and_the_old_value() -> None:
    world = World(b"old")
    file = await world.closed(b"new")
    world.key.refuses = StoreFull("no space")
    with pytest.raises(StoreFull):
        await world.table.move(file, world.key)
    assert (world.key.value, world.names()) == (b"old", {f"0.{HEX}.partial": 3})
    world.key.refuses = None
    await world.table.move(file, world.key)
    assert (world.key.value, world.names()) == (b"new", {})


@alone
async def test_a_value_that_the_view_refuses_stays_temporary() -> None:
    world = World(fixed_size=8)
    file = await world.closed(b"short")
    with pytest.raises(ChunkSizeMismatch):
        await world.table.move(file, world.key)
    assert world.names() == {f"0.{HEX}.partial": 5}


@alone
async def test_a_time_that_was_set_goes_with_the_file() -> None:
    world = World()
    file = await world.closed(b"x")
    await file.set_mtime(1_000_000_007)
    await world.table.move(file, world.table.content("raw/a/1.__lock"))
    moved = world.table.get("raw/a/1.__lock")
    assert moved is not None
    await world.table.move(moved, world.key)
    assert world.key.mtime_ns == 1_000_000_007


@alone
async def test_a_file_that_was_synced_has_the_same_time_after_the_rename() -> None:
    world = World()
    file, handle = await world.create(b"x")
    await handle.fsync()
    before = (await handle.attributes()).mtime_ns
    await world.table.move(file, world.key)
    assert world.key.mtime_ns == before
    await handle.release()


@alone
async def test_a_time_that_was_set_is_seen_by_who_has_the_file_open() -> None:
    world = World()
    file, handle = await world.create()
    await handle.attributes()
    await handle.set_mtime(5)
    assert ((await handle.attributes()).mtime_ns, (await file.attributes()).mtime_ns) == (5, 5)
    await handle.release()


@alone
async def test_a_link_creates_the_key_and_never_replaces_one() -> None:
    world = World()

    async def create(data: Buffer) -> None:
        if world.key.value is not None:
            raise EntryExists("there is one")
        await world.key.publish(data)

    file, handle = await world.create(b"first")
    await handle.fsync()
    await world.table.link(file, world.key, create)
    assert (world.key.value, world.key.synced) == (b"first", 1)
    second = await world.closed(b"second", NAME + ".__lock")
    with pytest.raises(EntryExists):
        await world.table.link(second, world.key, create)
    assert world.key.value == b"first"
    await world.table.unlink(file)
    await handle.write(0, b"F")
    await handle.flush()
    assert (world.key.value, bytes(await handle.read(0, 9))) == (b"first", b"First"), "it has no name any more"
    await handle.release()


@alone
async def test_a_key_becomes_a_temporary_file() -> None:
    world = World(b"value")
    key = StagedFile(world.area, world.key)
    handle = await key.open(BOTH)
    await handle.write(5, b"!")
    world.key.mtime_ns = 5
    await world.table.move(key, world.table.content(NAME))
    assert world.key.value is None
    assert world.names() == {f"0.{HEX}.partial": 6}
    await handle.write(0, b"V")
    await handle.flush()
    assert bytes(await handle.read(0, 99)) == b"Value!"
    assert world.key.value is None
    await handle.release()
    with pytest.raises(NoSuchEntry):
        await world.table.move(StagedFile(world.area, world.key), world.table.content(NAME))


@alone
async def test_a_change_in_the_store_at_the_same_name_is_another_matter() -> None:
    """A removed folder of the same name, which the store reports late."""
    world = World()
    file, handle = await world.create(b"x")
    await handle.flush()
    assert not world.area.replaced(NAME, gone=True)
    await handle.write(1, b"y")
    await world.table.move(file, world.key)
    assert world.key.value == b"xy", "what is written and not yet closed goes with the rename"
    await handle.release()


@alone
async def test_a_folder_takes_its_temporary_files_along() -> None:
    world = World()
    await world.closed(b"x")
    world.table.move_below("raw/a/", "raw/b/c/")
    assert (world.names(), world.names("raw/b/c/")) == ({}, {f"0.{HEX}.partial": 1})


@alone
async def test_what_programs_leave_behind_is_missed_by_nobody() -> None:
    world = World()
    await world.closed(b"x")
    await world.closed(b"x", "chunks/a/0.__lock")
    await world.closed(b"", "chunks/a/empty")
    await world.closed(b"x", "chunks/a/notes.txt")
    assert world.table.left("") == ["chunks/a/notes.txt"]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["write", "truncate", "flush", "read", "reopen"]), st.integers(0, 9), st.binary(max_size=5)),
    max_size=12,
)


@given(OPERATIONS)
def test_readers_of_an_earlier_value_keep_it(operations: list[tuple[str, int, bytes]]) -> None:
    """Values are shared by their holders, and never changed."""

    async def main() -> None:
        world = World()
        file, handle = await world.create()
        model = b""
        snapshots = []
        for name, number, data in operations:
            if name == "write" and data:
                await handle.write(number, data)
                model = (model.ljust(number, b"\0"))[:number] + data + model[number + len(data) :]
            elif name == "truncate":
                await handle.truncate(number)
                model = model[:number].ljust(number, b"\0")
            elif name == "flush":
                await handle.fsync()
                snapshot = await file.content.snapshot()
                assert snapshot is not None
                snapshots.append((snapshot, model))
            elif name == "reopen":
                await handle.flush()
                await handle.release()
                handle = await file.open(BOTH)
            assert bytes(await handle.read(0, 99)) == model
            assert [bytes(await each.read(0, 99)) for each, _ in snapshots] == [value for _, value in snapshots]
        await handle.release()
        await world.table.unlink(file)
        for snapshot, _ in snapshots:
            await snapshot.aclose()
        assert world.budget.nbytes == 0

    trio.run(main)


@alone
async def test_what_lost_its_name_while_it_is_open_keeps_no_time_and_no_promise() -> None:
    world = World()
    file, handle = await world.table.create(world.table.content("raw/t"), BOTH)
    await handle.write(0, b"abc")
    await handle.flush()
    await world.table.unlink(file)
    await handle.set_mtime(5_000_000_000)
    await file.content.set_mtime(5_000_000_000)
    await file.content.sync()
    assert world.table.get("raw/t") is None
    assert bytes(await handle.read(0, 10)) == b"abc"
    await handle.release()
    with pytest.raises(NoSuchEntry, match="'raw/t' is gone"):
        await world.table.move(file, world.table.content("raw/u"))
    assert world.table.get("raw/u") is None


@alone
async def test_its_own_name_is_no_rename_and_what_cannot_be_taken_stays() -> None:
    world = World(b"value")
    file = await world.closed(b"abc")
    await world.table.move(file, file.content)
    assert world.names() == {NAME.rpartition("/")[2]: 3}
    failure = StoreFull("no space")

    async def erase() -> None:
        raise failure

    world.key.erase = erase  # type: ignore[method-assign]
    with pytest.raises(StoreFull):
        await world.table.move(StagedFile(world.area, world.key), world.table.content("raw/a/other"))
    assert world.names() == {NAME.rpartition("/")[2]: 3}
    assert world.budget.nbytes == 3
