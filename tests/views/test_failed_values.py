"""Values that are stored as a whole and could not be: the next attempt does not replace what others have stored since."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from numcodecs import VLenUTF8
from trio.testing import trio_test

from tests.support.stores import fill
from tests.support.trees import opened, tree_over, write
from tests.views.test_failed_elements import Full
from zarrfs.buffers import Buffer, same_bytes
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StaleEntry, StoreError, StoreFull, StoreTimeout
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.values import Expected, Generation, KeyStat
from zarrfs.vfs import stage
from zarrfs.vfs.node import Handle, OpenFlags

READ_WRITE = OpenFlags(read=True, write=True)
LOST = pytest.mark.logs("write failed, data lost")
_NUMBERS = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "<i4", "compressor": None, "fill_value": 0, "order": "C"}
_TEXTS = {**_NUMBERS, "dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}]}


def numbers(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def texts(*values: str) -> bytes:
    return bytes(VLenUTF8().encode(np.array(values, object)))


BEFORE, FAILED, OTHERS = numbers(1, 2, 3), numbers(4, 5, 6), numbers(7, 8, 9)
_OF_TEXT = {BEFORE: texts("a", "b", "c"), FAILED: texts("d", "e", "f"), OTHERS: texts("g", "h", "i")}
# The path of a file, and its key.
RAW, ENCODED, TEXT = ("raw/notes", "notes"), ("zarr3/n/c/0", "n/0"), ("chunks/t/0", "t/0")
FILES = pytest.mark.parametrize("file", [RAW, ENCODED, TEXT], ids=["raw", "encoded", "text"])
File = tuple[str, str]


class Late(Full):
    """A store that takes a value, but whose answer is ``error``; then it ``is_silent``: reads get no answer. ``sets`` counts."""

    error: type[StoreError] | None = None
    is_silent = False
    sets = 0

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        self.sets += 1
        generation = await super().set(key, value, expect=expect)
        if self.error is not None:
            self.is_silent = True
            raise self.error("no answer", key=key)
        return generation

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        if self.is_silent:
            raise StoreTimeout("no answer", key=key)
        return await super().get_with_stat(key, byte_range)


def of(file: File, value: bytes) -> bytes:
    return _OF_TEXT[value] if file is TEXT else value


@asynccontextmanager
async def tree_with(file: File) -> AsyncIterator[tuple[MountTree, Late]]:
    store = Late()
    documents = {"n/.zarray": _NUMBERS, "t/.zarray": _TEXTS}
    filters = {"filters": None}
    await fill(store, {key: json.dumps({**filters, **each}).encode() for key, each in documents.items()})
    await store.set(Key(file[1]), of(file, BEFORE))
    async with tree_over(store) as tree:
        yield tree, store


async def stored(store: Full, file: File) -> bytes | None:
    value = await store.inner.get(Key(file[1]))
    return None if value is None else bytes(value)


async def failed(tree: MountTree, store: Full, file: File) -> tuple[Handle, Handle]:
    """Return a handle whose close has failed, and that of a second program that has written nothing."""
    first, second = await opened(tree, file[0], READ_WRITE), await opened(tree, file[0], READ_WRITE)
    await first.write(0, of(file, FAILED))
    store.is_full = True
    with pytest.raises(StoreFull):
        await first.flush()
    store.is_full = False
    return first, second


@LOST
@FILES
@trio_test
async def test_another_writers_close_keeps_the_value_that_others_have_stored_since_a_failed_one(file: File) -> None:
    """The close of a program that had written nothing put the failed value back, over an accepted one, with success."""
    async with tree_with(file) as (tree, store):
        first, second = await failed(tree, store, file)
        await first.release()
        await store.inner.set(Key(file[1]), of(file, OTHERS))
        for _ in range(2):
            with pytest.raises(StaleEntry, match="was replaced since it could not be stored"):
                await second.flush()
        await second.release()
        assert await stored(store, file) == of(file, OTHERS)


@LOST
@FILES
@trio_test
async def test_a_value_that_others_have_erased_since_a_failure_stays_erased(file: File) -> None:
    async with tree_with(file) as (tree, store):
        first, second = await failed(tree, store, file)
        await store.inner.erase(Key(file[1]))
        with pytest.raises(StaleEntry):
            await second.flush()
        await first.release()
        await second.release()
        assert await stored(store, file) is None


@FILES
@trio_test
async def test_a_value_that_nobody_has_replaced_is_stored_by_the_next_attempt(file: File) -> None:
    async with tree_with(file) as (tree, store):
        first, second = await failed(tree, store, file)
        store.is_full = True
        with pytest.raises(StoreFull):
            await second.flush()
        store.is_full = False
        # The same value, stored again, as by cp -a.
        await store.inner.set(Key(file[1]), of(file, BEFORE))
        await second.flush()
        assert await stored(store, file) == of(file, FAILED)
        await first.release()
        await second.release()


@FILES
@trio_test
async def test_a_value_that_is_written_anew_after_the_failure_is_the_later_one(file: File) -> None:
    async with tree_with(file) as (tree, store):
        first, second = await failed(tree, store, file)
        await store.inner.set(Key(file[1]), of(file, OTHERS))
        await second.write(0, of(file, BEFORE))
        await second.flush()
        assert await stored(store, file) == of(file, BEFORE)
        await first.release()
        await second.release()


@FILES
@trio_test
async def test_a_value_that_is_written_anew_in_pieces_is_the_later_one(file: File) -> None:
    """The kernel cuts a write(2) of more than its limit: the whole value, written again, was refused for ever."""
    async with tree_with(file) as (tree, store):
        first, second = await failed(tree, store, file)
        await store.inner.set(Key(file[1]), of(file, OTHERS))
        value = of(file, BEFORE)
        await first.write(0, value[:5])
        with pytest.raises(StaleEntry):
            await first.flush()
        await first.write(5, value[5:])
        await first.flush()
        assert await stored(store, file) == value
        await first.release()
        await second.release()


@LOST
@trio_test
async def test_a_value_of_which_a_part_is_written_again_is_not_written_anew() -> None:
    async with tree_with(RAW) as (tree, store):
        first, second = await failed(tree, store, RAW)
        await store.inner.set(Key(RAW[1]), OTHERS)
        await first.write(4, BEFORE[4:])
        await first.write(0, BEFORE[:3])
        with pytest.raises(StaleEntry):
            await first.flush()
        # What is left of it was written anew.
        await first.truncate(3)
        await first.flush()
        assert await stored(store, RAW) == BEFORE[:3]
        await first.release()
        await second.release()


@FILES
@pytest.mark.parametrize("error", [StoreTimeout, StoreError])
@trio_test
async def test_a_later_attempt_that_may_have_taken_effect_is_no_change_by_others(file: File, error: type[StoreError]) -> None:
    """A full store, then one without an answer: the value of that attempt was taken for another program's, and all later ones refused."""
    async with tree_with(file) as (tree, store):
        first, second = await failed(tree, store, file)
        store.error = error
        with pytest.raises(error):
            await first.flush()
        store.error, store.is_silent = None, False
        value = of(file, OTHERS)
        await first.write(5, value[5:])
        await first.write(0, value[:5])
        await first.flush()
        assert await stored(store, file) == value
        await first.release()
        await second.release()


@trio_test
async def test_a_retry_waits_for_one_deadline_of_a_store_that_does_not_answer() -> None:
    """The look at what is stored, and then the attempt itself, each waited for one."""
    async with tree_with(RAW) as (tree, store):
        first, second = await failed(tree, store, RAW)
        sets = store.sets
        store.is_silent = True
        with pytest.raises(StoreTimeout):
            await first.flush()
        assert store.sets == sets
        store.is_silent = False
        await first.flush()
        assert await stored(store, RAW) == FAILED
        await first.release()
        await second.release()


@LOST
@FILES
@trio_test
async def test_a_refusal_that_no_program_got_is_a_loss_although_an_earlier_error_was_reported(file: File) -> None:
    """The close had given ENOSPC, and the bytes were still to be stored: umount exited with 0, and they were not saved."""
    async with tree_with(file) as (tree, store):
        first, second = await failed(tree, store, file)
        await second.release()
        await store.inner.set(Key(file[1]), of(file, OTHERS))
        await first.release()
        assert [name for name, _ in tree.losses.failures] == [file[0]] and not tree.losses.refused


@LOST
@trio_test
async def test_a_refusal_that_a_program_got_is_a_note() -> None:
    async with tree_with(RAW) as (tree, store):
        first, second = await failed(tree, store, RAW)
        await second.release()
        await store.inner.set(Key(RAW[1]), OTHERS)
        with pytest.raises(StaleEntry):
            await first.flush()
        await first.release()
        assert [name for name, _ in tree.losses.refused] == [RAW[0]] and not tree.losses.failures


@FILES
@trio_test
async def test_a_file_that_is_emptied_after_the_failure_is_the_later_one(file: File) -> None:
    async with tree_with(file) as (tree, store):
        first, second = await failed(tree, store, file)
        await store.inner.set(Key(file[1]), of(file, OTHERS))
        await write(tree, file[0], of(file, BEFORE))
        assert await stored(store, file) == of(file, BEFORE)
        await first.release()
        await second.release()


@LOST
@trio_test
async def test_what_others_store_in_the_moment_of_a_failure_counts_as_before_it() -> None:
    async with tree_with(RAW) as (tree, store):
        first = await opened(tree, RAW[0], READ_WRITE)
        await first.write(0, FAILED)
        store.by_others, store.is_full = OTHERS, True
        with pytest.raises(StoreFull):
            await first.flush()
        # Not between two failures.
        store.by_others = BEFORE
        with pytest.raises(StoreFull):
            await first.flush()
        store.is_full = False
        with pytest.raises(StaleEntry):
            await first.flush()
        await first.release()
        assert await stored(store, RAW) == BEFORE


@FILES
@trio_test
async def test_a_failure_that_has_taken_effect_is_no_change_by_others(file: File) -> None:
    async with tree_with(file) as (tree, store):
        first = await opened(tree, file[0], READ_WRITE)
        await first.write(0, of(file, FAILED))
        store.by_others, store.is_full = of(file, FAILED), True
        with pytest.raises(StoreFull):
            await first.flush()
        store.is_full = False
        await first.flush()
        await first.write(0, of(file, OTHERS))
        await first.flush()
        await first.release()
        assert await stored(store, file) == of(file, OTHERS)


@trio_test
async def test_large_values_are_not_compared_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in files, perhaps on a slow disk: all other requests waited meanwhile."""
    compared: set[bool] = set()

    def recorded(one: Buffer, other: Buffer) -> bool:
        compared.add(threading.current_thread() is threading.main_thread())
        return same_bytes(one, other)

    monkeypatch.setattr(stage, "same_bytes", recorded)
    large = b"x" * (4 << 20)
    async with tree_with(RAW) as (tree, store):
        await store.inner.set(Key(RAW[1]), large)
        first = await opened(tree, RAW[0], READ_WRITE)
        await first.write(0, FAILED)
        store.is_full = True
        for _ in range(2):
            with pytest.raises(StoreFull):
                await first.flush()
        store.is_full = False
        await first.flush()
        await first.release()
        assert await stored(store, RAW) == FAILED + large[len(FAILED) :]
    assert compared == {False}


@LOST
@trio_test
async def test_what_is_kept_of_a_failure_gives_its_memory_back() -> None:
    async with tree_with(RAW) as (tree, store):
        before = tree.staging.room.kept.nbytes
        first, second = await failed(tree, store, RAW)
        store.is_full = True
        await first.release()
        await second.release()
        assert tree.staging.room.kept.nbytes == before
