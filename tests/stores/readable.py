"""Requirements on every store that can be read and listed, whatever wrote its values.

A writable store inherits this by `tests.stores.conformance.StoreConformance`; a read-only one defines a fixture ``filled``, which opens
a store of given values.

Source: Zarr v3 core (2022) "Abstract store interface", and the docstrings of `zarrfs.stores.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import pytest
from trio.testing import trio_test

from tests.support.stores import contents, names
from zarrfs.errors import GenerationMismatch, KeyUnusable
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.values import MISSING, Got

Filled = Callable[[Mapping[str, bytes]], AbstractAsyncContextManager[Store]]

A, B, C = Key("a"), Key("d/b"), Key("d/e/c")


class ReadableConformance:
    """The suite of readable stores, to be inherited with a fixture ``filled``."""

    @trio_test
    async def test_an_empty_store_holds_nothing(self, filled: Filled) -> None:
        async with filled({}) as store:
            assert await store.get(A) is None
            assert await store.stat(C) is None
            assert await store.get_partial_values([(A, WHOLE)]) == [None]
            assert await contents(store) == {}
            assert await names(store) == {}
            assert await names(store, "d/") == {}
            assert not await store.prefix_exists(Prefix("d/"))

    @pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)) * 40, bytes(3_000_000)], ids=len)
    @trio_test
    async def test_what_is_held_is_got(self, filled: Filled, value: bytes) -> None:
        async with filled({C: value}) as store:
            got = await store.get(C)
            assert got is not None and bytes(got) == value
            stat = await store.stat(C)
            assert stat is not None and stat.size == len(value) and stat.generation
            assert await store.stat(C) == stat
            assert await store.get(Key("d/e")) is await store.stat(Key("d/e")) is None

    @trio_test
    async def test_partial_values_keep_order_and_duplicates(self, filled: Filled) -> None:
        async with filled({A: b"0123456789", B: b"abc"}) as store:
            wanted = [
                (B, WHOLE),
                (A, ByteRange(2, 3)),
                (Key("missing"), ByteRange(0, 1)),
                (A, ByteRange(8)),
                (A, ByteRange(2, 3)),
                (A, ByteRange.suffix(4)),
                (B, ByteRange.suffix(99)),
                (B, ByteRange.suffix(0)),
                (A, ByteRange(8, 99)),
                (A, ByteRange(10, 1)),
                (A, ByteRange(99)),
                (A, ByteRange(4, 0)),
            ]
            got = await store.get_partial_values(wanted)
            expected = [b"abc", b"234", None, b"89", b"234", b"6789", b"abc", b"", b"89", b"", b"", b""]
            assert [None if value is None else bytes(value) for value in got] == expected
            assert await store.get_partial_values([]) == []

    @trio_test
    async def test_parts_of_a_generation_that_is_not_there_are_refused(self, filled: Filled) -> None:
        async with filled({A: b"here"}) as store:
            stat = await store.stat(A)
            assert stat is not None
            got = await store.get_partial_values([(A, ByteRange(1, 2))], if_generation=stat.generation)
            assert [bytes(value or b"?") for value in got] == [b"er"]
            for key, generation in ((A, stat.generation + "x"), (B, stat.generation)):
                with pytest.raises(GenerationMismatch):
                    await store.get_partial_values([(key, WHOLE)], if_generation=generation)

    @trio_test
    async def test_a_part_comes_with_what_stat_tells_of_its_value(self, filled: Filled) -> None:
        async with filled({A: b"0123456789"}) as store:
            assert await store.get_with_stat(B, WHOLE) is None
            stat = await store.stat(A)
            for byte_range, part in ((WHOLE, b"0123456789"), (ByteRange.suffix(3), b"789"), (ByteRange(2, 3), b"234")):
                found = await store.get_with_stat(A, byte_range)
                assert found is not None and (bytes(found[0]), found[1]) == (part, stat)

    @trio_test
    async def test_a_batch_answers_for_each_key_with_what_stat_returns(self, filled: Filled) -> None:
        values = {f"n/{number}": b"%d" % number for number in range(40)}
        async with filled({A: b"0123456789", C: b"", **values}) as store:
            stat = await store.stat(A)
            assert stat is not None
            wanted = [(B, WHOLE), (A, ByteRange(2, 3)), (C, WHOLE), (A, ByteRange(8, 99)), (Key("d"), WHOLE)]
            missing, part, empty, end, prefix = await store.get_many(wanted)
            assert missing is prefix is MISSING
            assert isinstance(part, Got) and (bytes(part.value), part.stat) == (b"234", stat)
            assert isinstance(end, Got) and (bytes(end.value), end.stat) == (b"89", stat)
            assert isinstance(empty, Got) and (bytes(empty.value), empty.stat.size) == (b"", 0)
            answers = await store.get_many([(Key(key), WHOLE) for key in values])
            assert [bytes(each.value) for each in answers if isinstance(each, Got)] == list(values.values())
            assert await store.get_many([]) == []

    @trio_test
    async def test_a_look_at_a_prefix_ends_after_some_names(self, filled: Filled) -> None:
        async with filled({"a/b": b"1", "a/c/d": b"22", **{f"n/{number}": b"" for number in range(300)}}) as store:
            found = await store.peek(Prefix("a/"), 10)
            assert found is not None and sorted(found)[0][:3] == ("b", False, 1) and sorted(found)[1][:2] == ("c", True)
            assert len(await store.peek(Prefix("n/"), 7) or ()) == 7
            assert len(await store.peek(Prefix("n/"), 300) or ()) == len(await store.peek(Prefix("n/"), 400) or ()) == 300
            assert await store.peek(Prefix("a/b/"), 10) is await store.peek(Prefix("x/"), 10) is None

    @trio_test
    async def test_the_examples_of_the_specification(self, filled: Filled) -> None:
        async with filled({"a/b": b"1", "a/c/d": b"22", "e/f/g": b"333"}) as store:
            assert set(await contents(store, "a/")) == {"a/b", "a/c/d"}
            assert await names(store, "a/") == {("b", False): 1, ("c", True): 0}
            assert await names(store) == {("a", True): 0, ("e", True): 0}
            assert {key async for key in store.list()} == {"a/b", "a/c/d", "e/f/g"}

    @trio_test
    async def test_whether_a_prefix_exists(self, filled: Filled) -> None:
        async with filled({"a/b": b"1", "a/c/d": b"22"}) as store:
            found = {
                prefix: await store.prefix_exists(Prefix(prefix)) for prefix in ("a/", "a/c/", "a/b/", "a/c/d/", "b/", "a/c/e/")
            }
            assert [prefix for prefix, exists in found.items() if exists] == ["a/", "a/c/"]

    @trio_test
    async def test_a_prefix_ends_with_a_slash(self, filled: Filled) -> None:
        async with filled({"ab/c": b"", "a/c": b""}) as store:
            with pytest.raises(KeyUnusable):
                [key async for key in store.list_prefix(Prefix("a"))]
            assert set(await contents(store, "a/")) == {"a/c"}

    @trio_test
    async def test_names_are_kept_as_they_are(self, filled: Filled) -> None:
        keys = {
            ".zarray": b"",
            "ü/日本": b"",
            "a b/%2F": b"",
            "x\ny": b"",
            "back\\slash": b"",
            "0.0": b"",
            "c/0/0": b"",
            "A": b"",
            "~": b"",
        }
        async with filled(keys) as store:
            assert await contents(store) == keys

    @trio_test
    async def test_names_in_the_order_of_bytes_hide_none(self, filled: Filled) -> None:
        """``a-b`` and ``a0`` sort before and after ``a/``."""
        keys = {key: key.encode() for key in ("a/b", "a/c/d", "a-b", "a.b/x", "a0", "a/c-", "a/c0", "b")}
        async with filled(keys) as store:
            assert await contents(store) == keys
            assert set(await names(store)) == {("a", True), ("a-b", False), ("a.b", True), ("a0", False), ("b", False)}
            assert set(await names(store, "a/")) == {("b", False), ("c", True), ("c-", False), ("c0", False)}

    @trio_test
    async def test_a_listing_of_many_keys(self, filled: Filled) -> None:
        many = [Key(f"d/{number}") for number in range(700)]
        async with filled(dict.fromkeys(many, b"1")) as store:
            assert set(await contents(store)) == set(many)
            assert await names(store, "d/") == {(key.name, False): 1 for key in many}

    @trio_test
    async def test_times_are_told_alike_by_stat_and_listing(self, filled: Filled) -> None:
        async with filled({B: b"12345"}) as store:
            stat = await store.stat(B)
            assert stat is not None
            assert [entry async for entry in store.list_dir(Prefix("d/"))] == [("b", False, 5, stat.mtime_ns)]
