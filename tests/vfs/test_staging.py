"""Each state of a staged file, and each transition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.contents import FakeContent, FakeSnapshot
from tests.support.trees import READ_ONLY
from zarrfs.buffers import Buffer
from zarrfs.errors import (
    ChunkSizeMismatch,
    FileTooLarge,
    NodeInDoubt,
    NoSuchEntry,
    NotPermitted,
    StaleEntry,
    StoreError,
    StoreFull,
    StoreTimeout,
)
from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.content import Snapshot
from zarrfs.vfs.file import StagedFile, was_reported
from zarrfs.vfs.loading import Change
from zarrfs.vfs.node import Handle, OpenFlags
from zarrfs.vfs.stage import Stage, StagingRoom, ValueStage
from zarrfs.vfs.staging import Staged, StagingArea, State

WRITE = OpenFlags(read=False, write=True)
BOTH = OpenFlags(write=True)
TRUNCATE = OpenFlags(read=False, write=True, truncate=True)


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: object) -> None:
        async def main() -> None:
            await test(**fixtures)

        trio.run(main)

    return run


class Bench:
    """One file over a fake content, in an area that records losses."""

    def __init__(self, value: bytes | None = None, *, fixed_size: int | None = None, **options: object) -> None:
        self.lost: list[tuple[str, BaseException]] = []
        self.area = StagingArea(on_failure=lambda ident, error: self.lost.append((ident, error)), **options)  # type: ignore[arg-type]
        self.content = FakeContent(value, fixed_size=fixed_size)
        self.file = StagedFile(self.area, self.content)

    @property
    def staged(self) -> Staged:
        staged = self.area.get(self.content.ident)
        assert staged is not None
        return staged

    @property
    def state(self) -> State:
        return self.staged.state


class SlowToLoad(FakeContent):
    """A value whose load ends when ``may_end`` is set; ``loading`` is set when it begins."""

    loading: trio.Event
    may_end: trio.Event

    async def load(self) -> Buffer | None:
        self.loading.set()
        await self.may_end.wait()
        return await super().load()


@in_trio
async def test_a_change_that_nobody_waits_for_loads_nothing_and_changes_nothing() -> None:
    area = StagingArea()
    content = SlowToLoad(b"value")
    content.loading, content.may_end = trio.Event(), trio.Event()
    handle = await StagedFile(area, content).open(WRITE)
    changes: list[Change] = []

    async def write() -> None:
        with trio.CancelScope(shield=True), Change() as change:
            changes.append(change)
            with pytest.raises(StoreTimeout, match="no request waits"):
                await handle.write(1, b"x")
            # Nor does it begin again.
            with pytest.raises(StoreTimeout, match="no request waits"):
                await handle.write(1, b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await content.loading.wait()
        changes[0].cancel()
    staged = area.get(content.ident)
    assert staged is not None and staged.state is State.CLEAN and staged.size is None
    await handle.flush()
    await handle.release()
    assert content.tried == 0


@in_trio
async def test_a_change_goes_on_once_all_is_loaded() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(WRITE)
    with Change() as change:
        await handle.write(1, b"x")
        change.cancel()
        await handle.write(2, b"y")
    await handle.flush()
    await handle.release()
    assert bench.content.value == b"vxyue"


# --- clean ----------------------------------------------------------------------------------------------------------------------


@in_trio
async def test_a_file_that_is_only_read_stages_nothing() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(READ_ONLY)
    assert await handle.read(1, 3) == b"alu"
    assert bench.state is State.CLEAN
    assert bench.staged.size is None
    await handle.flush()
    await handle.release()
    assert bench.content.published == 0
    assert bench.area.get("raw/k") is None


@in_trio
async def test_opening_for_writing_alone_publishes_nothing() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(BOTH)
    await handle.flush()
    await handle.fsync()
    await handle.release()
    assert (bench.content.published, bench.content.loaded, bench.content.synced) == (0, 0, 1)


@in_trio
async def test_what_is_not_there_cannot_be_opened() -> None:
    bench = Bench()
    with pytest.raises(NoSuchEntry):
        await bench.file.open(BOTH)
    with pytest.raises(NoSuchEntry):
        await bench.file.attributes()
    assert bench.area.open_handles == 0


@in_trio
async def test_a_file_that_may_not_be_written() -> None:
    bench = Bench(b"value")
    file = StagedFile(bench.area, bench.content, writable=False)
    with pytest.raises(NotPermitted):
        await file.open(WRITE)
    with pytest.raises(NotPermitted):
        await file.truncate(0)
    handle = await file.open(READ_ONLY)
    with pytest.raises(NotPermitted):
        await handle.write(0, b"x")
    with pytest.raises(NotPermitted):
        await handle.truncate(0)
    await handle.release()


@in_trio
async def test_a_value_that_is_erased_under_a_reader_is_stale() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(READ_ONLY)
    assert await handle.read(0, 1) == b"v"
    bench.content.value = None
    bench.area.changed("raw/k")
    with pytest.raises(StaleEntry):
        await handle.read(1, 3)
    with pytest.raises(StaleEntry):
        await handle.attributes()
    await handle.release()


# --- truncated ------------------------------------------------------------------------------------------------------------------


@in_trio
async def test_o_trunc_is_not_published_at_flush_but_at_the_last_release() -> None:
    bench = Bench(b"value")
    first, second = await bench.file.open(TRUNCATE), await bench.file.open(READ_ONLY)
    assert bench.state is State.TRUNCATED
    assert await second.read(0, 10) == b""
    await first.flush()
    assert bench.content.value == b"value"
    await first.release()
    assert bench.content.value == b""
    await second.release()


@in_trio
async def test_creation_is_published_at_fsync() -> None:
    bench = Bench()
    handle = await bench.file.create(WRITE)
    assert bench.state is State.TRUNCATED
    assert (await bench.file.attributes()).size == 0
    await handle.flush()
    assert bench.content.value is None
    await handle.fsync()
    assert bench.content.value == b""
    assert bench.content.synced == 1
    assert bench.state is State.CLEAN
    await handle.release()
    assert bench.content.published == 1


@in_trio
async def test_truncation_to_zero_by_descriptor_is_like_o_trunc() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"x")
    await handle.truncate(0)
    assert bench.state is State.TRUNCATED
    await handle.flush()
    assert bench.content.value == b"value"
    await handle.release()
    assert bench.content.value == b""


# --- dirty ----------------------------------------------------------------------------------------------------------------------


@in_trio
async def test_a_write_after_o_trunc_loads_nothing_and_is_published_at_flush() -> None:
    bench = Bench(b"old value")
    handle = await bench.file.open(TRUNCATE)
    await handle.write(0, b"new")
    assert bench.state is State.DIRTY
    assert bench.area.dirty_nbytes == 3
    await handle.flush()
    assert bench.content.value == b"new"
    assert bench.content.loaded == 0
    assert bench.state is State.CLEAN
    await handle.release()
    assert bench.content.published == 1


@in_trio
async def test_a_write_of_a_part_loads_the_rest_once() -> None:
    bench = Bench(b"0123456789")
    handle = await bench.file.open(WRITE)
    await handle.write(2, b"ab")
    await handle.write(6, b"cd")
    assert bench.content.loaded == 1
    await handle.flush()
    assert bench.content.value == b"01ab45cd89"
    await handle.release()


@in_trio
async def test_a_write_of_all_of_a_fixed_size_loads_nothing() -> None:
    bench = Bench(b"01234567", fixed_size=8)
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"abcdefgh")
    await handle.flush()
    assert bench.content.value == b"abcdefgh"
    assert bench.content.loaded == 0
    await handle.release()


@in_trio
async def test_cutting_and_growing() -> None:
    bench = Bench(b"0123456789")
    handle = await bench.file.open(BOTH)
    await handle.truncate(4)
    assert bench.state is State.DIRTY
    await handle.truncate(6)
    assert await handle.read(0, 10) == b"0123\0\0"
    assert (await handle.attributes()).size == 6
    await handle.flush()
    assert bench.content.value == b"0123\0\0"
    await handle.release()


@in_trio
async def test_what_no_flush_saw_is_published_at_release() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(WRITE)
    await handle.flush()
    await handle.write(0, b"V")
    await handle.release()
    assert bench.content.value == b"Value"


@in_trio
async def test_a_release_that_is_not_the_last_of_a_writer_publishes_nothing() -> None:
    bench = Bench(b"value")
    first, second = await bench.file.open(WRITE), await bench.file.open(BOTH)
    await first.write(0, b"V")
    await first.release()
    assert bench.content.value == b"value"
    assert await second.read(0, 10) == b"Value"
    await second.release()
    assert bench.content.value == b"Value"


@in_trio
async def test_a_writer_publishes_although_a_reader_has_the_file_open() -> None:
    """What a program had changed in a mapping was stored when all others had closed the file, perhaps hours later."""
    bench = Bench(b"value")
    writer, reader = await bench.file.open(WRITE), await bench.file.open(READ_ONLY)
    await writer.write(0, b"V")
    await writer.release()
    assert bench.content.value == b"Value"
    assert await reader.read(0, 10) == b"Value"
    await reader.release()


@in_trio
async def test_a_file_that_is_being_opened_to_write_is_not_published_by_a_writer_that_closes_it() -> None:
    bench = Bench(b"value")
    content = SlowToLoad(b"value")
    content.loading, content.may_end = trio.Event(), trio.Event()
    file = StagedFile(bench.area, content)
    first = await file.open(TRUNCATE)
    opened = []

    async def look(real: Callable[[], Awaitable[None]] = content.open_to_write) -> None:
        content.loading.set()
        await content.may_end.wait()
        await real()

    async def open_again() -> None:
        opened.append(await file.open(WRITE))

    content.open_to_write = look  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_again)
        await content.loading.wait()
        await first.release()
        assert content.value == b"value"
        content.may_end.set()
    await opened[0].write(0, b"V")
    await opened[0].release()
    assert content.value == b"V"


@in_trio
async def test_a_flush_of_a_reader_publishes_nothing() -> None:
    bench = Bench(b"value")
    writer, reader = await bench.file.open(WRITE), await bench.file.open(READ_ONLY)
    await writer.write(0, b"V")
    await reader.flush()
    assert bench.content.value == b"value"
    await reader.release()
    await writer.release()


@in_trio
async def test_truncation_by_path_is_published_at_once_and_with_it_what_others_staged() -> None:
    bench = Bench(b"0123456789")
    await bench.file.truncate(0)
    assert bench.content.value == b""
    assert bench.area.get("raw/k") is None
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"abc")
    await bench.file.truncate(2)
    assert bench.content.value == b"ab"
    await handle.release()


@in_trio
async def test_a_fixed_size_is_not_exceeded() -> None:
    bench = Bench(b"01234567", fixed_size=8)
    handle = await bench.file.open(BOTH)
    for wrong in (handle.write(0, bytes(9)), handle.write(8, b"x"), handle.truncate(9), bench.file.truncate(9)):
        with pytest.raises(FileTooLarge):
            await wrong
    assert bench.state is State.CLEAN
    await handle.release()
    assert bench.content.value == b"01234567"


@in_trio
async def test_times_are_kept_through_publishing() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"V")
    await bench.file.set_mtime(17)
    assert (await bench.file.attributes()).mtime_ns == 17
    assert bench.content.mtime_ns is None
    await handle.flush()
    assert bench.content.mtime_ns == 17
    await handle.write(1, b"A")
    assert (await bench.file.attributes()).mtime_ns != 17
    await handle.release()
    await bench.file.set_mtime(18)
    assert bench.content.mtime_ns == 18


class SeenWhileTimed(FakeContent):
    """Records what the file shows at the moment at which the value is stored and its time is not."""

    file: StagedFile
    seen: int | None = None

    async def set_mtime(self, mtime_ns: int) -> None:
        self.seen = (await self.file.attributes()).mtime_ns
        await super().set_mtime(mtime_ns)


@in_trio
async def test_a_file_never_shows_the_time_of_its_publish_in_place_of_the_one_that_was_set() -> None:
    content = SeenWhileTimed()
    content.file = StagedFile(StagingArea(), content)
    handle = await content.file.create(WRITE)
    await handle.set_mtime(17)
    # A name that was only created is published after close(2) has returned.
    await handle.release()
    assert (content.seen, content.mtime_ns) == (17, 17)


@in_trio
async def test_what_could_not_be_staged_leaves_the_file_clean(tmp_path: Path) -> None:
    bench = Bench(b"value", spill_nbytes=10, directory=str(tmp_path / "missing"))
    handle = await bench.file.open(BOTH)
    for refused in (handle.write(20, b"x"), handle.truncate(20)):
        with pytest.raises(StoreError, match="the cache folder cannot stage"):
            await refused
        assert bench.state is State.CLEAN
        assert bench.staged.size is None
    assert await handle.read(0, 10) == b"value"
    await handle.release()
    assert bench.content.published == 0


class WithoutMemory(FakeContent):
    """A value of which changes get no memory from the system."""

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        class Refusing(ValueStage):
            async def write(self, offset: int, data: Buffer) -> None:
                await super().write(offset, data)
                raise MemoryError

        return Refusing(room, b"" if empty else self.value or b"", self.publish)


@in_trio
async def test_what_the_system_has_no_memory_to_stage_leaves_the_file_clean() -> None:
    """What a failed write had staged was read, and never published."""
    content, area = WithoutMemory(b"value"), StagingArea()
    handle = await StagedFile(area, content).open(BOTH)
    with pytest.raises(MemoryError):
        await handle.write(0, b"V")
    assert await handle.read(0, 10) == b"value"
    await handle.flush()
    await handle.release()
    assert content.published == 0


# --- publishing -----------------------------------------------------------------------------------------------------------------


@in_trio
async def test_writers_wait_for_a_publish_and_readers_do_not() -> None:
    bench = Bench(b"value")
    bench.content.waits = trio.Event()
    handle = await bench.file.open(BOTH)
    await handle.write(0, b"V")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.flush)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.state is State.PUBLISHING
        assert bench.area.publishing("raw/k") is bench.content
        assert await handle.read(0, 10) == b"Value"
        nursery.start_soon(handle.write, 1, b"ALUE")
        await trio.testing.wait_all_tasks_blocked()
        assert await handle.read(0, 10) == b"Value"
        bench.content.waits.set()
    assert bench.content.value == b"Value"
    assert bench.state is State.DIRTY
    assert await handle.read(0, 10) == b"VALUE"
    await handle.release()
    assert bench.content.value == b"VALUE"


@in_trio
async def test_two_flushes_at_once_publish_once() -> None:
    bench = Bench(b"value")
    first, second = await bench.file.open(WRITE), await bench.file.open(WRITE)
    await first.write(0, b"V")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.flush)
        nursery.start_soon(second.flush)
    assert bench.content.published == 1
    await first.release()
    await second.release()


@in_trio
async def test_flushes_that_wait_for_one_that_the_store_does_not_answer_share_its_failure() -> None:
    bench = Bench(b"value")
    bench.content.waits = trio.Event()
    bench.content.refuses = StoreTimeout("no answer")
    handles = [await bench.file.open(WRITE) for _ in range(8)]
    await handles[0].write(0, b"V")
    failed: list[StoreTimeout] = []

    async def flush(handle: Handle) -> None:
        with pytest.raises(StoreTimeout) as caught:
            await handle.flush()
        failed.append(caught.value)

    async with trio.open_nursery() as nursery:
        for handle in handles:
            nursery.start_soon(flush, handle)
        await trio.testing.wait_all_tasks_blocked()
        bench.content.waits.set()
    assert (len(failed), bench.content.tried) == (8, 1)
    with pytest.raises(StoreTimeout):
        await handles[1].flush()
    bench.content.refuses = None
    await handles[2].flush()
    assert bench.content.value == b"Value"
    for handle in handles:
        await handle.release()


@in_trio
async def test_a_release_is_not_cancelled() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"V")
    with trio.CancelScope() as scope:
        scope.cancel()
        await bench.staged.release(writes=True)
    assert bench.content.value == b"Value"


@in_trio
async def test_readers_of_the_old_value_move_on_when_the_new_one_is_published() -> None:
    bench = Bench(b"old value")
    reader = await bench.file.open(READ_ONLY)
    assert await reader.read(0, 3) == b"old"
    writer = await bench.file.open(TRUNCATE)
    await writer.write(0, b"new")
    await writer.flush()
    await writer.release()
    assert await reader.read(0, 10) == b"new"
    assert (await reader.attributes()).size == 3
    bench.content.value = b"with a new time"
    bench.area.changed("raw/k")
    assert await reader.read(0, 4) == b"with"
    await reader.release()


class SlowToClose(FakeContent):
    """A value whose stage is closed when ``may_end`` is set."""

    may_end: trio.Event

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        may_end = self.may_end

        class Closing(ValueStage):
            async def aclose(self) -> None:
                await may_end.wait()
                await super().aclose()

        return Closing(room, (await self.load() or b"") if not empty else b"", self.publish)


@in_trio
async def test_who_has_read_new_bytes_reads_no_old_ones_while_these_are_dropped() -> None:
    content = SlowToClose(b"old")
    content.may_end = trio.Event()
    file = StagedFile(StagingArea(), content)
    reader, writer = await file.open(READ_ONLY), await file.open(WRITE)
    assert await reader.read(0, 10) == b"old"
    await writer.write(0, b"new")
    assert await reader.read(0, 10) == b"new"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.flush)
        await trio.testing.wait_all_tasks_blocked()
        read = await reader.read(0, 10)
        content.may_end.set()
    assert read == b"new"
    await reader.release()
    await writer.release()


class SeenOrStale(FakeContent):
    """Partial changes are merged into the value that was open, as in ``raw/``. ``looked_up`` is called once after a snapshot."""

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self.looked_up: Callable[[], Awaitable[None]] | None = None

    async def snapshot(self) -> Snapshot | None:
        assert self.value is not None
        snapshot = FakeSnapshot(self.value, None)
        snapshot.attributes = snapshot.attributes._replace(generation=self.value.hex())
        looked_up, self.looked_up = self.looked_up, None
        if looked_up is not None:
            await looked_up()
        return snapshot

    async def stage_over(self, room: StagingRoom, seen: Snapshot, new_nbytes: int) -> Stage:
        return await self.stage_of(room, seen, new_nbytes)


@in_trio
async def test_what_another_handle_publishes_while_one_opens_or_waits_to_write_is_the_same_files_own_change() -> None:
    area, content = StagingArea(), SeenOrStale(b"old value")
    file = StagedFile(area, content)
    writer = await file.open(WRITE)

    async def publish() -> None:
        await writer.write(0, b"new")
        await writer.flush()

    content.looked_up = publish
    opened = await file.open(WRITE)
    await opened.write(4, b"V")
    await opened.flush()
    assert content.value == b"new Value"
    # The second writes while the first one publishes.
    late = await file.open(WRITE)
    await writer.write(0, b"Old")
    content.waits = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.flush)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(late.write, 8, b"E")
        await trio.testing.wait_all_tasks_blocked()
        content.waits.set()
    await late.flush()
    assert content.value == b"Old ValuE"
    for handle in (writer, opened, late):
        await handle.release()


@in_trio
async def test_part_of_a_value_that_others_have_replaced_since_it_was_opened_is_stale() -> None:
    area, content = StagingArea(), SeenOrStale(b"old value")
    handle = await StagedFile(area, content).open(WRITE)
    content.value = b"of others"
    with pytest.raises(StaleEntry, match="open it again"):
        await handle.write(0, b"new")
    # No part of the other value remains.
    await handle.write(0, b"all of it is mine")
    await handle.flush()
    await handle.release()
    assert content.value == b"all of it is mine"


@in_trio
async def test_durable_publishes_are_synced() -> None:
    bench = Bench(b"value", durable=True)
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"V")
    await handle.flush()
    assert bench.content.synced == 1
    await handle.write(0, b"v")
    await handle.release()
    assert bench.content.synced == 2


@in_trio
async def test_readers_keep_the_old_value_when_another_view_replaces_it() -> None:
    bench = Bench(b"old value")
    old, untouched = await bench.file.open(BOTH), await bench.file.open(READ_ONLY)
    assert await old.read(0, 3) == b"old"
    bench.content.value = b"new value"
    assert bench.area.replaced("raw/k")
    new = await bench.file.open(READ_ONLY)
    assert await new.read(0, 9) == b"new value"
    assert await old.read(0, 9) == await untouched.read(0, 9) == b"old value"
    assert (await old.attributes()).size == 9
    assert bench.area.open_handles == 3
    # Writing a part changes the current value, which then is the handle's own.
    await old.write(0, b"NEW")
    assert bench.area.dirty_nbytes == 9
    assert await bench.area.publish_all() == []
    assert bench.content.value == b"NEW value"
    assert await old.read(0, 9) == b"NEW value"
    for handle in (old, untouched, new):
        await handle.release()
    assert bench.area.open_handles == 0


@in_trio
async def test_what_is_staged_is_not_superseded() -> None:
    bench = Bench(b"old value")
    writer, reader = await bench.file.open(WRITE), await bench.file.open(READ_ONLY)
    await writer.write(0, b"OLD")
    bench.content.value = b"another"
    assert not bench.area.replaced("raw/k")
    assert await reader.read(0, 9) == b"OLD value"
    await writer.flush()
    assert bench.content.value == b"OLD value"
    await writer.release()
    await reader.release()
    assert not bench.area.replaced("raw/k")


# --- failed ---------------------------------------------------------------------------------------------------------------------


@in_trio
async def test_a_failure_is_told_again_and_the_staged_bytes_are_kept() -> None:
    bench = Bench(b"value")
    bench.content.refuses = StoreFull("full")
    handle = await bench.file.open(BOTH)
    await handle.write(0, b"VALUE")
    for operation in (handle.flush, handle.flush, handle.fsync):
        with pytest.raises(StoreFull):
            await operation()
        assert bench.state is State.FAILED
        assert await handle.read(0, 10) == b"VALUE"
    assert bench.content.value == b"value"
    bench.content.refuses = None
    await handle.flush()
    assert bench.content.value == b"VALUE"
    assert bench.state is State.CLEAN
    await handle.release()
    assert bench.lost == []


@in_trio
@pytest.mark.logs("write failed, data lost")
async def test_what_still_fails_at_the_last_release_is_dropped_and_recorded() -> None:
    bench = Bench(b"value")
    bench.content.refuses = error = StoreFull("full")
    first, second, reader = [await bench.file.open(flags) for flags in (BOTH, WRITE, READ_ONLY)]
    await first.write(0, b"V")
    with pytest.raises(StoreFull):
        await first.flush()
    await first.release()
    assert bench.lost == []
    await second.release()
    assert bench.lost == [("raw/k", error)]
    assert bench.area.get("raw/k") is None
    # As on a local file system, whose pages keep what the disk did not take.
    assert await reader.read(0, 10) == b"Value"
    bench.content.refuses = None
    await reader.fsync()
    await reader.release()
    assert bench.area.dirty_nbytes == 0
    assert bench.content.value == b"value"


@in_trio
async def test_what_fails_at_a_release_is_not_lost_if_the_file_was_opened_meanwhile() -> None:
    bench = Bench(b"value")
    bench.content.refuses, bench.content.waits = StoreFull("full"), trio.Event()
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"V")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.release)
        await trio.testing.wait_all_tasks_blocked()
        later = await bench.file.open(BOTH)
        bench.content.waits.set()
    assert bench.lost == []
    assert await later.read(0, 10) == b"Value"
    bench.content.refuses = None
    await later.release()
    assert bench.content.value == b"Value"


@pytest.mark.parametrize("fixed_size", [None, 4])
@in_trio
async def test_a_reader_that_closes_a_file_publishes_nothing_of_a_creator_that_only_reads(fixed_size: int | None) -> None:
    """An empty chunk was refused, and its name was gone while its creator, such as flock(1), had it open for other writers."""
    bench = Bench(fixed_size=fixed_size)
    creator, reader = await bench.file.create(READ_ONLY), await bench.file.open(READ_ONLY)
    await reader.release()
    assert bench.content.value is None and bench.state is State.TRUNCATED
    writer = await bench.file.open(WRITE)
    await writer.write(0, b"abcd")
    for handle in (writer, creator):
        await handle.release()
    assert bench.content.value == b"abcd"
    assert not bench.lost


@pytest.mark.parametrize("stores", [False, True], ids=["refused", "stored"])
@pytest.mark.parametrize("flags", [READ_ONLY, WRITE], ids=["reader", "writer"])
@pytest.mark.logs("write failed, data lost")
@in_trio
async def test_a_loss_is_told_once_and_only_if_it_is_one(flags: OpenFlags, stores: bool) -> None:
    """A file that another program closed while the bytes were saved was told of twice, or as lost although that had stored it."""
    saving, may_end = trio.Event(), trio.Event()
    saved = 0

    async def save(staged: Staged, error: NodeInDoubt) -> Exception:
        nonlocal saved
        saved += 1
        saving.set()
        await may_end.wait()
        return error

    bench = Bench(b"value", save=save)
    bench.content.refuses = NodeInDoubt("where is it?", key="raw/k")
    first, second = await bench.file.open(BOTH), await bench.file.open(flags)
    await first.write(0, b"V")
    if flags is WRITE:
        await second.release()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.release)
        await saving.wait()
        if flags is WRITE:
            second = await bench.file.open(flags)
        if stores:
            bench.content.refuses = None
        nursery.start_soon(second.release)
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert bench.content.value == (b"Value" if stores and flags is WRITE else b"value")
    assert len(bench.lost) == (bench.content.value == b"value")
    assert saved == 1 or flags is WRITE
    assert bench.area.dirty_nbytes == bench.area.open_handles == 0


@pytest.mark.logs("write failed, data lost")
@in_trio
async def test_what_was_given_up_and_is_still_read_is_no_report_of_later_bytes() -> None:
    """Bytes of a mapping that were lost later, which no program was told of, were taken for refused ones: umount had exit code 0."""
    reported: list[bool] = []
    content = FakeContent(b"value", fixed_size=5)
    area = StagingArea(on_failure=lambda ident, error: reported.append(was_reported(area, ident)))
    file = StagedFile(area, content)
    reader, writer = await file.open(READ_ONLY), await file.open(TRUNCATE)
    await writer.write(0, b"bad")
    with pytest.raises(ChunkSizeMismatch):
        await writer.flush()
    await writer.release()
    later = await file.open(TRUNCATE)
    await later.write(0, b"map")
    await later.release()
    assert reported == [True, False]
    await reader.release()


class SlowToSync(FakeContent):
    """A value whose sync ends when ``may_end`` is set; ``syncing`` is set when it begins."""

    syncing: trio.Event
    may_end: trio.Event

    async def sync(self) -> None:
        self.syncing.set()
        await self.may_end.wait()
        await super().sync()


@pytest.mark.parametrize("flags", [WRITE, TRUNCATE], ids=["written", "emptied"])
@in_trio
async def test_what_is_staged_and_released_while_a_release_syncs_is_published(flags: OpenFlags) -> None:
    """Neither was the last release when it began: nobody published it, and nobody was told."""
    lost: list[tuple[str, BaseException]] = []
    area = StagingArea(durable=True, on_failure=lambda ident, error: lost.append((ident, error)))
    content = SlowToSync(b"value")
    content.syncing, content.may_end = trio.Event(), trio.Event()
    file = StagedFile(area, content)
    first = await file.open(WRITE)
    await first.write(0, b"V")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.release)
        await content.syncing.wait()
        second = await file.open(flags)
        if flags is WRITE:
            await second.write(1, b"A")
        nursery.start_soon(second.release)
        await trio.testing.wait_all_tasks_blocked()
        content.may_end.set()
    assert content.value == (b"VAlue" if flags is WRITE else b"")
    assert content.synced == 2 and not lost
    assert area.open_handles == 0 and area.get(content.ident) is None


@in_trio
@pytest.mark.logs("write failed, data lost")
async def test_a_defect_while_publishing_at_release_is_recorded_too() -> None:
    bench = Bench(b"value")
    bench.content.refuses = error = ZeroDivisionError("a defect")
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"V")
    await handle.release()
    assert bench.lost == [("raw/k", error)]
    assert bench.area.get("raw/k") is None


@in_trio
async def test_a_size_that_cannot_be_is_mended_by_writing_more() -> None:
    bench = Bench(b"01234567", fixed_size=8)
    handle = await bench.file.open(TRUNCATE)
    await handle.write(0, b"abc")
    with pytest.raises(ChunkSizeMismatch) as caught:
        await handle.flush()
    # The error, and everything that it refers to, stays alive.
    await handle.write(3, b"defgh")
    await handle.flush()
    assert caught.value.key == "raw/k"
    assert bench.content.value == b"abcdefgh"
    await handle.release()


@in_trio
async def test_a_store_that_has_not_answered_is_not_handed_other_bytes_later() -> None:
    bench = Bench(b"")
    bench.content.refuses = StoreTimeout("no answer")
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"first")
    with pytest.raises(StoreTimeout):
        await handle.flush()
    held = bench.content.held
    bench.content.refuses = None
    await handle.write(0, b"other, and longer")
    assert held == b"first"
    await handle.truncate(2)
    await handle.flush()
    assert held == b"first"
    assert bench.content.value == b"ot"
    await handle.release()


@in_trio
async def test_a_store_that_has_not_answered_is_not_handed_other_bytes_from_disk(tmp_path: Path) -> None:
    bench = Bench(b"", spill_nbytes=4, directory=str(tmp_path))
    bench.content.refuses = StoreTimeout("no answer")
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"first")
    with pytest.raises(StoreTimeout):
        await handle.flush()
    held = bench.content.held
    await handle.write(0, b"other")
    assert bytes(held) == b"first"
    bench.content.refuses = None
    await handle.release()
    assert bench.content.value == b"other"


@in_trio
async def test_a_truncation_by_path_that_cannot_be_published_leaves_nothing_staged() -> None:
    bench = Bench(b"01234567", fixed_size=8)
    with pytest.raises(ChunkSizeMismatch):
        await bench.file.truncate(3)
    assert bench.area.get("raw/k") is None
    assert bench.content.value == b"01234567"
    assert bench.lost == []


@in_trio
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_truncation_by_path_that_cannot_be_published_discards_no_write_of_that_moment(is_first: bool) -> None:
    """The close of the handle that had written was a success."""
    bench = Bench(b"01234567", fixed_size=8)
    handle = await bench.file.open(BOTH)

    async def truncate() -> None:
        with pytest.raises(ChunkSizeMismatch):
            await bench.file.truncate(3)

    write = partial(handle.write, 1, b"x")
    async with bench.staged.lock, trio.open_nursery() as nursery:
        for call in (truncate, write) if is_first else (write, truncate):
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
        bench.staged.lock.release()
        await trio.testing.wait_all_tasks_blocked()
        await bench.staged.lock.acquire()
    if is_first:
        await handle.flush()
    else:
        with pytest.raises(ChunkSizeMismatch):
            await handle.flush()
        await handle.write(3, b"34567")
        await handle.flush()
    assert bench.content.value == b"0x234567"
    await handle.release()


@in_trio
async def test_a_publish_that_is_cancelled_has_failed() -> None:
    bench = Bench(b"value")
    bench.content.waits = trio.Event()
    handle = await bench.file.open(WRITE)
    await handle.write(0, b"V")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.flush)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert bench.state is State.FAILED
    bench.content.waits = None
    await handle.release()
    assert bench.content.value == b"Value"


@in_trio
async def test_a_creation_that_failed_leaves_no_handle() -> None:
    """The next file of that name had one handle too many: its last release published nothing."""
    bench = Bench()
    stage = bench.content.stage

    async def refuse(room: StagingRoom, *, empty: bool) -> Stage:
        raise StoreTimeout("no answer")

    bench.content.stage = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreTimeout):
        await bench.file.create(WRITE)
    assert bench.area.open_handles == 0 and bench.area.get("raw/k") is None
    bench.content.stage = stage  # type: ignore[method-assign]
    handle = await bench.file.create(WRITE)
    await handle.release()
    assert bench.content.value == b""


# --- names that are lost and changed --------------------------------------------------------------------------------------------


@in_trio
async def test_an_orphan_keeps_its_bytes_and_publishes_nothing() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(BOTH)
    async with bench.area.unnaming("raw/k"):
        await bench.content.erase()
    assert bench.area.get("raw/k") is None
    assert await handle.read(0, 10) == b"value"
    assert (await handle.attributes()).nlink == 0
    await handle.write(0, b"V")
    await handle.flush()
    await handle.fsync()
    await handle.set_mtime(17)
    await handle.release()
    assert (bench.content.value, bench.content.published, bench.content.mtime_ns) == (None, 0, None)


@in_trio
async def test_nothing_is_kept_of_a_removed_value_whose_last_handle_was_released_while_it_was_loaded() -> None:
    """The kept bytes counted in the budget for the rest of the mount."""
    budget = MemoryBudget(1 << 20)
    bench = Bench(budget=budget)
    bench.content = content = SlowToLoad(b"value")
    content.loading, content.may_end = trio.Event(), trio.Event()
    handle = await StagedFile(bench.area, content).open(BOTH)

    async def unlink() -> None:
        async with bench.area.unnaming(content.ident):
            await content.erase()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(unlink)
        await content.loading.wait()
        await handle.release()
        content.may_end.set()
    assert budget.nbytes == 0 and content.value is None


@in_trio
async def test_a_name_that_could_not_be_taken_away_is_still_the_files() -> None:
    bench = Bench(b"value")
    handle = await bench.file.open(BOTH)
    with pytest.raises(StoreError):
        async with bench.area.unnaming("raw/k"):
            raise StoreError("no")
    assert bench.state is State.CLEAN
    assert (await handle.attributes()).nlink == 1
    await handle.write(0, b"V")
    with pytest.raises(StoreError):
        async with bench.area.unnaming("raw/k"):
            raise StoreError("no")
    assert bench.state is State.DIRTY
    await handle.release()
    assert bench.content.value == b"Value"


@in_trio
@pytest.mark.logs("cannot be kept for its open handles")
async def test_an_orphan_whose_value_could_not_be_kept_is_stale_and_not_empty() -> None:
    bench = Bench(b"value")

    async def load() -> bytes:
        raise StoreError("unreadable")

    bench.content.load = load  # type: ignore[method-assign]
    handle = await bench.file.open(BOTH)
    async with bench.area.unnaming("raw/k"):
        pass
    # The kernel would take any size for the end of the file.
    with pytest.raises(StaleEntry):
        await handle.attributes()
    with pytest.raises(StaleEntry):
        await handle.read(0, 10)
    with pytest.raises(StaleEntry):
        await handle.write(0, b"x")
    await handle.release()


@in_trio
async def test_a_renamed_file_is_published_under_its_new_name_only() -> None:
    bench = Bench(b"value")
    new = FakeContent(b"value", ident="raw/new")
    handle = await bench.file.open(BOTH)
    async with trio.open_nursery() as nursery:
        async with bench.area.renaming("raw/k", new):
            nursery.start_soon(handle.write, 0, b"V")
            await trio.testing.wait_all_tasks_blocked()
            bench.content.value = None
    assert bench.area.get("raw/k") is None
    assert bench.area.get("raw/new") is not None
    await handle.flush()
    assert (bench.content.value, new.value) == (None, b"Value")
    await handle.release()
    assert bench.area.get("raw/new") is None


@in_trio
async def test_files_of_a_renamed_folder_move_with_it() -> None:
    bench = Bench()
    contents = {name: FakeContent(b"", ident=f"raw/{name}") for name in ("a/x", "a/b/y", "ab/z")}
    handles = [await StagedFile(bench.area, content).open(WRITE) for content in contents.values()]
    bench.area.rekey_below("raw/a/", lambda content: FakeContent(ident=content.ident.replace("raw/a/", "raw/new/")))
    assert bench.area.get("raw/new/x") and bench.area.get("raw/new/b/y") and bench.area.get("raw/ab/z")
    assert bench.area.get("raw/a/x") is None
    for handle in handles:
        await handle.release()


# --- all of them ----------------------------------------------------------------------------------------------------------------


@in_trio
async def test_publishing_all_tries_all() -> None:
    bench = Bench()
    names = ["defect", "full", "good"]
    contents = {name: FakeContent(b"old", ident=f"raw/{name}") for name in names}
    contents["full"].refuses = StoreFull("full")
    contents["defect"].refuses = ZeroDivisionError("a defect")
    handles = [await StagedFile(bench.area, content).open(TRUNCATE) for content in contents.values()]
    failed = await bench.area.publish_all()
    assert [staged.content.ident for staged, _ in failed] == ["raw/defect", "raw/full"]
    assert contents["good"].value == b""
    assert contents["good"].synced == 0
    contents["defect"].refuses = None
    with pytest.raises(StoreFull):
        await bench.area.publish_below("raw/")
    assert contents["defect"].value == b""
    contents["full"].refuses = None
    for handle in handles:
        await handle.release()


@in_trio
async def test_what_is_staged_is_listed_by_prefix() -> None:
    bench = Bench()
    handles = [await StagedFile(bench.area, FakeContent(ident=ident)).create(WRITE) for ident in ("raw/a/x", "raw/b", "chunks/a/0")]
    assert [staged.content.ident for staged in bench.area.unpublished_below("raw/")] == ["raw/a/x", "raw/b"]
    for handle in handles:
        await handle.release()
    assert list(bench.area.unpublished_below("")) == []
