"""Inherited methods of a backend: it declares its capabilities, and the other operations are built from them or refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from trio.testing import trio_test

from tests.support.stores import contents
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, RangesOverlap, StoreError, StoreUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.capabilities import Capabilities
from zarrfs.stores.values import MISSING, DirEntry, Expected, Generation, Got, KeyStat


class LeastStore(Store):
    """A store with the required methods only, and without suffix ranges.

    ``changes`` is the number of times that another program replaces a value between two requests.
    """

    url = "least:"
    capabilities = Capabilities(suffix_ranges=False, create_only=False, match=False)

    def __init__(self, changes: int = 0) -> None:
        self.values: dict[Key, bytes] = {}
        self.changes = changes
        self.number = 0
        self.asked: list[ByteRange] = []

    async def get(self, key: Key) -> Buffer | None:
        return self.values.get(key)

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        self.asked += [byte_range for _, byte_range in key_ranges]
        if self.changes:
            self.changes -= 1
            self.number += 1
        return await super().get_partial_values(key_ranges, if_generation=if_generation)

    async def stat(self, key: Key) -> KeyStat | None:
        return KeyStat(len(self.values[key]), None, str(self.number)) if key in self.values else None

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if expect is not None:
            raise self._unsupported("set what nobody changed")
        self.values[key] = bytes(value)
        return str(self.number)

    async def erase(self, key: Key) -> None:
        self.values.pop(key, None)

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        below = {key[len(prefix) :].partition("/")[:2] for key in self.values if key.startswith(prefix)}
        for name, slash in sorted(below):
            yield name, bool(slash), 0 if slash else len(self.values[prefix.key(name)]), None


def filled(changes: int = 0) -> LeastStore:
    store = LeastStore(changes)
    store.values |= {Key("a/b"): b"1234", Key("a/c/d"): b"5", Key("e"): b""}
    return store


@trio_test
async def test_whether_a_prefix_is_there_is_told_by_the_first_key_below_it() -> None:
    store = filled()
    assert [await store.prefix_exists(Prefix(prefix)) for prefix in ("", "a/", "a/c/", "a/b/", "x/")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert await store.prefix_mtime_ns(Prefix("a/")) is None
    assert await store.free_space() is None


@trio_test
async def test_a_prefix_is_erased_key_by_key() -> None:
    store = filled()
    await store.erase_prefix(Prefix("a/"))
    assert await contents(store) == {"e": b""}
    await store.erase_prefix(Prefix(""))
    assert await contents(store) == {}


@trio_test
async def test_a_value_that_is_replaced_between_two_requests_is_asked_for_again() -> None:
    store = filled(changes=3)
    assert await store.get_with_stat(Key("a/b"), ByteRange.suffix(2)) == (b"34", KeyStat(4, None, "3"))
    # No range was requested relative to the end.
    assert store.asked == [ByteRange(2, 2)] * 4
    assert await store.get_with_stat(Key("a/x"), ByteRange(0, 2)) is None


@trio_test
async def test_a_value_that_is_replaced_all_the_time_is_given_up() -> None:
    store = filled(changes=1000)
    with pytest.raises(GenerationMismatch, match="'a/b' was changed concurrently"):
        await store.get_with_stat(Key("a/b"), ByteRange(0, 2))
    assert 1 < len(store.asked) < 20


@trio_test
async def test_what_only_a_file_system_can_do_is_refused_by_name() -> None:
    store = filled()
    refused = {
        "rename keys": store.rename(Key("e"), Key("f")),
        "rename prefixes": store.rename_prefix(Prefix("a/"), Prefix("b/")),
        "exchange prefixes": store.exchange_prefixes(Prefix("a/"), Prefix("a/c/")),
        "hold empty prefixes": store.make_prefix(Prefix("n/")),
        "set times": store.set_times(Key("e"), 1),
    }
    for what, call in refused.items():
        with pytest.raises(StoreUnsupported, match=f"^least: cannot {what}"):
            await call
    with pytest.raises(StoreUnsupported, match="hold empty prefixes"):
        await store.remove_prefix(Prefix("n/"))
    assert await contents(store) == {"a/b": b"1234", "a/c/d": b"5", "e": b""}


@trio_test
async def test_parts_of_values_are_set_without_losing_the_rest() -> None:
    store = filled()
    await store.set_partial_values([(Key("a/b"), 1, b"xx"), (Key("e"), 2, b"y"), (Key("n"), 0, b"")])
    assert await contents(store) == {"a/b": b"1xx4", "a/c/d": b"5", "e": b"\0\0y", "n": b""}
    with pytest.raises(RangesOverlap, match="'e' at byte 1"):
        await store.set_partial_values([(Key("a/b"), 0, b"lost?"), (Key("e"), 0, b"ab"), (Key("e"), 1, b"c")])
    with pytest.raises(ValueError, match="negative offset -1 for key 'e'"):
        await store.set_partial_values([(Key("e"), -1, b"c")])
    assert store.values[Key("a/b")] == b"1xx4"


@trio_test
async def test_a_backend_without_holes_says_that_data_begins_where_it_was_asked() -> None:
    assert await filled().data_from(Key("a/b"), 3) == 3
    assert await filled().hold(Key("a/b")) is None


class SlowStore(LeastStore):
    """Records the number of requests in flight."""

    capabilities = Capabilities(suffix_ranges=False, create_only=False, match=False, width=3)
    in_flight = most = 0

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await trio.lowlevel.checkpoint()
        try:
            if key == "broken":
                raise StoreError("no", key=key)
            return await super().get_with_stat(key, byte_range)
        finally:
            self.in_flight -= 1


@trio_test
async def test_a_batch_has_no_more_requests_in_flight_than_the_store_takes() -> None:
    store = SlowStore()
    for number in range(10):
        await store.set(Key(f"k{number}"), b"%d" % number)
    answers = await store.get_many([(Key(f"k{number}"), ByteRange()) for number in range(12)])
    assert [bytes(each.value) if isinstance(each, Got) else each for each in answers] == [
        *(b"%d" % number for number in range(10)),
        MISSING,
        MISSING,
    ]
    assert store.most == 3
    with pytest.raises(StoreError, match="no"):
        await store.get_many([(Key("k1"), ByteRange()), (Key("broken"), ByteRange()), (Key("k2"), ByteRange())])
    assert store.in_flight == 0
