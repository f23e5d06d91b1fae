"""Many items: all are processed, in order, a few at once; any number of names is sorted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
import trio
from trio.testing import trio_test

from zarrfs.arrays import concurrency
from zarrfs.arrays.concurrency import each_found, for_each, has_any, in_order


@pytest.mark.parametrize("names", [[], ["b"], ["b", "a"], [f"{number * 7919 % 100}" for number in range(100)], ["x"] * 20])
@trio_test
async def test_names_are_sorted_however_many_they_are(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_RUN", 4)
    assert await in_order(names) == sorted(names)


@pytest.mark.parametrize("slow", ["no", "waits", "works"])
@trio_test
async def test_what_is_found_comes_in_order_however_long_it_takes(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are so short, or so long, that every part exceeds them or none does."""
    monkeypatch.setattr(concurrency, "_MOMENT_S", -1 if slow == "waits" else 1000)
    monkeypatch.setattr(concurrency, "_LONG_S", -1 if slow == "works" else 1000)
    now = most = 0

    async def look(item: int) -> str | None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(item % 3):
            await trio.lowlevel.checkpoint()
        now -= 1
        return f"<{item}>" if item % 5 else None

    found = [each async for each in each_found(range(50), look, 4)]
    assert found == [(item, f"<{item}>") for item in range(50) if item % 5]
    assert 1 <= most <= 4


@trio_test
async def test_the_first_error_ends_the_rest_and_is_raised_as_it_is() -> None:
    done: list[int] = []

    async def act(item: int) -> None:
        if item == 5:
            raise KeyError(item)
        done.append(item)

    with pytest.raises(KeyError):
        await for_each(range(1000), act, 2)
    assert set(range(4)) <= set(done) and len(done) < 20


@trio_test
async def test_whether_there_is_one_is_known_without_the_others() -> None:
    asked: list[int] = []

    async def items() -> AsyncGenerator[int]:
        for number in range(10):
            asked.append(number)
            yield number

    assert await has_any(items()) and asked == [0]
    async with aclosing(items()) as left:
        async for _ in left:
            pass
        assert not await has_any(left)
