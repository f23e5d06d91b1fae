"""Requirements on every store, whatever its backend.

A backend's tests inherit `StoreConformance` and define ``store_url``, which opens an empty writable store; `test_conformance.py` does so
for every plug-in that offers an example.

Source: Zarr v3 core (2022) "Abstract store interface", and the docstrings of `zarrfs.stores.base`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from trio.testing import trio_test

from tests.stores.readable import Filled, ReadableConformance
from tests.support.stores import contents, fill, names
from zarrfs.errors import (
    GenerationMismatch,
    KeyConflict,
    PrefixNotEmpty,
    RangesOverlap,
    StoreNotFound,
    StoreReadOnly,
    StoreUnsupported,
)
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.stores.values import ABSENT

Opener = Callable[..., AbstractAsyncContextManager[Store]]

A, B, C = Key("a"), Key("d/b"), Key("d/e/c")


class StoreConformance(ReadableConformance):
    """The suite of writable stores, to be inherited with a fixture ``store_url``."""

    @pytest.fixture
    def opened(self, store_url: str) -> Opener:
        @asynccontextmanager
        async def opened(read_only: bool = False) -> AsyncIterator[Store]:
            store = await open_store(store_url, read_only)
            try:
                yield store
            finally:
                await store.aclose()

        return opened

    @pytest.fixture
    def filled(self, opened: Opener) -> Filled:
        @asynccontextmanager
        async def filled(values: Mapping[str, bytes]) -> AsyncIterator[Store]:
            async with opened() as store:
                await fill(store, values)
                yield store

        return filled

    # --- readable -----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)) * 40, bytes(3_000_000)], ids=len)
    @trio_test
    async def test_what_was_set_is_got(self, opened: Opener, value: bytes) -> None:
        async with opened() as store:
            for kind in (bytes, bytearray, memoryview):
                await store.set(C, kind(value))
                got = await store.get(C)
                assert got is not None and bytes(got) == value
                stat = await store.stat(C)
                assert stat is not None and stat.size == len(value)

    @trio_test
    async def test_a_value_is_copied_when_it_is_set(self, opened: Opener) -> None:
        async with opened() as store:
            mine = bytearray(b"mine")
            await store.set(A, mine)
            mine[:] = b"your"
            assert await contents(store) == {"a": b"mine"}

    # --- writable -----------------------------------------------------------------------------------------------------------

    @trio_test
    async def test_set_replaces_the_whole_value(self, opened: Opener) -> None:
        async with opened() as store:
            await store.set(A, b"a long value")
            await store.set(A, b"short")
            assert await contents(store) == {"a": b"short"}

    @trio_test
    async def test_partial_values_are_set_within_what_is_there(self, opened: Opener) -> None:
        async with opened() as store:
            await store.set(A, b"0123456789")
            await store.set_partial_values([(A, 8, b"XYZ"), (B, 2, b"new"), (A, 0, b"--"), (A, 2, b"+"), (A, 5, b"")])
            assert await contents(store) == {"a": b"--+34567XYZ", "d/b": b"\0\0new"}

    @trio_test
    async def test_overlapping_ranges_are_refused_before_anything_is_stored(self, opened: Opener) -> None:
        async with opened() as store:
            await store.set(A, b"0123456789")
            with pytest.raises(RangesOverlap):
                await store.set_partial_values([(B, 0, b"new"), (A, 4, b"xx"), (A, 3, b"yy")])
            assert await contents(store) == {"a": b"0123456789"}

    @trio_test
    async def test_erasing_removes_and_may_be_repeated(self, opened: Opener) -> None:
        async with opened() as store:
            await fill(store, {A: b"1", B: b"2", C: b"3"})
            await store.erase(B)
            await store.erase(B)
            await store.erase(Key("never/was"))
            assert await contents(store) == {"a": b"1", "d/e/c": b"3"}
            await store.erase_values([A, C, Key("never")])
            assert await contents(store) == {}

    @trio_test
    async def test_erasing_a_prefix_takes_what_begins_with_it_and_no_more(self, opened: Opener) -> None:
        async with opened() as store:
            await fill(store, {"d/x": b"", "d/e/y": b"", "d/e/f/z": b"", "dd": b"", "e/d/x": b""})
            await store.erase_prefix(Prefix("d/e/"))
            assert set(await contents(store)) == {"d/x", "dd", "e/d/x"}
            assert ("e", True) not in await names(store, "d/")
            await store.erase_prefix(Prefix("never/"))
            await store.erase_prefix(Prefix("d/"))
            assert set(await contents(store)) == {"dd", "e/d/x"}
            await store.erase_prefix(Prefix(""))
            assert await names(store) == {}
            await store.set(A, b"still usable")

    @trio_test
    async def test_sync_takes_what_is_there_and_what_is_not(self, opened: Opener) -> None:
        async with opened() as store:
            await fill(store, {A: b"1", C: b"2"})
            await store.erase(A)
            await store.sync([A, C, Key("never/was/here")])
            await store.sync([])

    @trio_test
    async def test_a_concurrent_get_sees_a_whole_value(self, opened: Opener) -> None:
        values = [bytes([fill_byte]) * size for fill_byte, size in ((1, 300_000), (2, 5), (3, 1_500_000))]
        async with opened() as store:
            await store.set(B, values[0])
            writing = True

            async def write() -> None:
                nonlocal writing
                for turn in range(30):
                    await store.set(B, values[turn % 3])
                writing = False

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                while writing:
                    got = await store.get(B)
                    assert got is not None and bytes(got) in values
                    first, last = await store.get_partial_values([(B, ByteRange(0, 1)), (B, ByteRange.suffix(1))])
                    assert first is not None and last is not None and bytes(first) == bytes(last)
                    await trio.lowlevel.checkpoint()

    @trio_test
    async def test_read_only_stores_refuse_every_change(self, opened: Opener) -> None:
        async with opened(read_only=True) as store:
            assert not store.capabilities.write
            for change in (
                store.set(A, b""),
                store.set_partial_values([(A, 0, b"x")]),
                store.erase(A),
                store.erase_values([A]),
                store.erase_prefix(Prefix("d/")),
            ):
                with pytest.raises(StoreReadOnly):
                    await change
            assert await names(store) == {}

    # --- generations and locks ----------------------------------------------------------------------------------------------

    @trio_test
    async def test_each_value_has_a_generation_of_its_own(self, opened: Opener) -> None:
        async with opened() as store:
            seen = set()
            for value in (b"one", b"two", b"one", b"two", b"", b"one"):
                await store.set(A, value)
                stat = await store.stat(A)
                assert stat is not None and stat.generation
                assert await store.stat(A) == stat
                seen.add(stat.generation)
            assert len(seen) == 6

    @trio_test
    async def test_parts_of_another_generation_are_refused(self, opened: Opener) -> None:
        async with opened() as store:
            await store.set(A, b"old")
            old = await store.stat(A)
            assert old is not None
            assert [bytes(v or b"?") for v in await store.get_partial_values([(A, WHOLE)], if_generation=old.generation)] == [
                b"old"
            ]
            await store.set(A, b"new")
            with pytest.raises(GenerationMismatch):
                await store.get_partial_values([(A, WHOLE)], if_generation=old.generation)
            await store.erase(A)
            with pytest.raises(GenerationMismatch):
                await store.get_partial_values([(A, WHOLE)], if_generation=old.generation)

    @trio_test
    async def test_set_gives_the_generation_that_stat_tells(self, opened: Opener) -> None:
        async with opened() as store:
            for value in (b"", b"x", b"yz"):
                generation = await store.set(A, value)
                stat = await store.stat(A)
                assert stat is not None and generation in (None, stat.generation)

    @trio_test
    async def test_conditional_set(self, opened: Opener) -> None:
        async with opened() as store:
            if not store.capabilities.create_only or not store.capabilities.match:
                pytest.skip("this backend has no conditional set")
            await store.set(C, b"created", expect=ABSENT)
            with pytest.raises(GenerationMismatch):
                await store.set(C, b"created again", expect=ABSENT)
            stat = await store.stat(C)
            assert stat is not None
            await store.set(C, b"changed", expect=stat.generation)
            with pytest.raises(GenerationMismatch):
                await store.set(C, b"too late", expect=stat.generation)
            assert await contents(store) == {"d/e/c": b"changed"}
            await store.erase(C)
            with pytest.raises(GenerationMismatch):
                await store.set(C, b"gone", expect=stat.generation)

    @trio_test
    async def test_conditional_erase(self, opened: Opener) -> None:
        async with opened() as store:
            for key in (A, C):
                await store.set(key, b"first")
                first = await store.stat(key)
                await store.set(key, b"second")
                second = await store.stat(key)
                assert first is not None and second is not None
                with pytest.raises(GenerationMismatch):
                    await store.erase_if(key, first.generation)
                assert await store.get(key) == b"second"
                await store.erase_if(key, second.generation)
                assert await store.get(key) is None
                with pytest.raises(GenerationMismatch):
                    await store.erase_if(key, second.generation)

    @trio_test
    async def test_a_value_is_copied(self, opened: Opener) -> None:
        async with opened() as store:
            await store.set(A, b"first")
            await store.set(B, b"other")
            assert await store.copy(A, B) and await store.copy(A, C)
            assert not await store.copy(Key("missing"), A)
            assert await contents(store) == {A: b"first", B: b"first", C: b"first"}

    @pytest.mark.parametrize("generation", ["", "now"])
    @trio_test
    async def test_of_many_conditional_sets_one_wins(self, opened: Opener, generation: str) -> None:
        async with opened() as store:
            if not store.capabilities.create_only or not store.capabilities.match:
                pytest.skip("this backend has no conditional set")
            if generation:
                await store.set(B, b"first")
                stat = await store.stat(B)
                assert stat is not None
                generation = stat.generation
            won = []

            async def compete(number: int) -> None:
                try:
                    await store.set(B, b"%d" % number, expect=generation or ABSENT)
                except GenerationMismatch:
                    return
                won.append(number)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(compete, number)
            assert len(won) == 1
            assert await contents(store) == {"d/b": b"%d" % won[0]}

    @trio_test
    async def test_exclusive_loses_no_update(self, opened: Opener) -> None:
        async with opened() as store:

            async def increment() -> None:
                async with store.exclusive(B):
                    value = await store.get(B)
                    await trio.lowlevel.checkpoint()
                    await store.set(B, b"%d" % (int(bytes(value or b"0")) + 1))

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(increment)
            assert await contents(store) == {"d/b": b"20"}

    @trio_test
    async def test_exclusive_is_for_one_key_and_ends_with_cancellation(self, opened: Opener) -> None:
        async with opened() as store:
            async with store.exclusive(B):
                async with store.exclusive(Key("d/other")):
                    pass
                with trio.CancelScope() as scope:
                    scope.cancel()
                    async with store.exclusive(B):
                        pytest.fail("held twice")
            with trio.CancelScope() as scope:
                async with store.exclusive(B):
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
            async with store.exclusive(B):
                pass

    # --- listable -----------------------------------------------------------------------------------------------------------

    @trio_test
    async def test_a_prefix_that_was_erased_does_not_exist(self, opened: Opener) -> None:
        async with opened() as store:
            await fill(store, {"a/b": b"1", "a/c/d": b"22"})
            await store.erase_prefix(Prefix("a/c/"))
            assert await store.prefix_exists(Prefix("a/")) and not await store.prefix_exists(Prefix("a/c/"))

    @trio_test
    async def test_keys_that_change_while_they_are_listed(self, opened: Opener) -> None:
        async with opened() as store:
            await fill(store, {f"d/{number}": b"" for number in range(600)})
            seen = set()
            async for name, *_ in store.list_dir(Prefix("d/")):
                seen.add(name)
                if len(seen) == 1:
                    for number in range(600):
                        if str(number) not in seen and number % 2:
                            await store.erase(Key(f"d/{number}"))
            assert seen >= {str(number) for number in range(0, 600, 2)}

    @trio_test
    async def test_a_key_beside_a_prefix_of_the_same_name(self, opened: Opener) -> None:
        """``a`` and ``a/b``: a backend stores both or refuses the second, and the first stays whole."""
        async with opened() as store:
            await store.set(Key("a"), b"1")
            await store.set(Key("p/q"), b"2")
            held = {"a": b"1", "p/q": b"2"}
            for key in ("a/b", "a/b/c", "p"):
                try:
                    await store.set(Key(key), b"3")
                except KeyConflict:
                    continue
                held[key] = b"3"
            assert await contents(store) == held

    # --- operations of file systems -----------------------------------------------------------------------------------------

    @trio_test
    async def test_rename(self, opened: Opener) -> None:
        async with opened() as store:
            await fill(store, {A: b"1", B: b"2"})
            before = await store.stat(A)
            try:
                assert await store.rename(A, Key("new/place"))
            except StoreUnsupported:
                assert await contents(store) == {A: b"1", B: b"2"}
                pytest.skip("this backend cannot rename")
            after = await store.stat(Key("new/place"))
            assert before is not None and after is not None and after.mtime_ns == before.mtime_ns
            assert await contents(store) == {"new/place": b"1", "d/b": b"2"}
            assert await store.rename(Key("new/place"), B)
            assert await contents(store) == {"d/b": b"1"}
            assert await store.rename(B, B)
            assert not await store.rename(A, B)
            assert not await store.rename(A, A)
            assert not await store.rename(Key("never/was"), Key("x/y"))
            assert await contents(store) == {"d/b": b"1"}

    @trio_test
    async def test_rename_prefix(self, opened: Opener) -> None:
        async with opened() as store:
            await fill(store, {"d/b": b"2", "d/e/c": b"3", "f/g": b"4"})
            before = await store.stat(Key("d/e/c"))
            try:
                assert await store.rename_prefix(Prefix("d/"), Prefix("x/y/"))
            except StoreUnsupported:
                pytest.skip("this backend cannot rename")
            after = await store.stat(Key("x/y/e/c"))
            assert before is not None and after is not None and after.mtime_ns == before.mtime_ns
            held = {"x/y/b": b"2", "x/y/e/c": b"3", "f/g": b"4"}
            assert await contents(store) == held
            assert ("d", True) not in await names(store)
            with pytest.raises(PrefixNotEmpty):
                await store.rename_prefix(Prefix("f/"), Prefix("x/"))
            with pytest.raises(KeyConflict):
                await store.rename_prefix(Prefix("x/"), Prefix("x/y/z/"))
            with pytest.raises(KeyConflict):
                await store.rename_prefix(Prefix(""), Prefix("z/"))
            assert not await store.rename_prefix(Prefix("never/"), Prefix("f/"))
            assert await store.rename_prefix(Prefix("f/"), Prefix("f/"))
            assert await contents(store) == held

    @trio_test
    async def test_exchange_prefixes(self, opened: Opener) -> None:
        async with opened() as store:
            await fill(store, {"d/b": b"2", "d/e/c": b"3", "f/g/h": b"4", "k": b"5"})
            before = await store.stat(Key("d/e/c"))
            try:
                await store.exchange_prefixes(Prefix("d/"), Prefix("f/g/"))
            except StoreUnsupported:
                pytest.skip("this backend cannot exchange")
            after = await store.stat(Key("f/g/e/c"))
            assert before is not None and after is not None and after.mtime_ns == before.mtime_ns
            held = {"f/g/b": b"2", "f/g/e/c": b"3", "d/h": b"4", "k": b"5"}
            assert await contents(store) == held
            with pytest.raises(StoreNotFound):
                await store.exchange_prefixes(Prefix("d/"), Prefix("never/"))
            with pytest.raises(KeyConflict):
                await store.exchange_prefixes(Prefix("f/"), Prefix("f/g/"))
            assert await contents(store) == held
            assert store.capabilities.rename

    @trio_test
    async def test_empty_prefixes(self, opened: Opener) -> None:
        async with opened() as store:
            try:
                await store.make_prefix(Prefix("m/n/"))
            except StoreUnsupported:
                assert await names(store) == {}
                pytest.skip("this backend has no empty prefixes")
            await store.make_prefix(Prefix("m/n/"))
            assert await names(store, "m/") == {("n", True): 0}
            assert await contents(store) == {}
            with pytest.raises(PrefixNotEmpty):
                await store.remove_prefix(Prefix("m/"))
            await store.remove_prefix(Prefix("m/n/"))
            await store.remove_prefix(Prefix("m/n/"))
            await store.set(Key("m/k"), b"")
            with pytest.raises(PrefixNotEmpty):
                await store.remove_prefix(Prefix("m/"))
            await store.erase(Key("m/k"))
            assert await names(store) == {("m", True): 0}

    @trio_test
    async def test_times_that_were_set_stay(self, opened: Opener) -> None:
        async with opened() as store:
            await store.set(C, b"1")
            try:
                assert await store.set_times(C, 1_234_567_890_123_456_789)
            except StoreUnsupported:
                pytest.skip("this backend keeps no times")
            assert not await store.set_times(A, 5)
            stat = await store.stat(C)
            assert stat is not None and stat.mtime_ns == 1_234_567_890_123_456_789
            assert await contents(store) == {"d/e/c": b"1"}
