"""An array that is stored apart from all nodes keeps few dirty chunks in memory, however large the limit."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import trio

from tests.support.arrays import reading
from tests.support.small_stores import array_document
from tests.support.stores import contents
from zarrfs.arrays.writer import ArrayWriter
from zarrfs.keys import Key
from zarrfs.memory.budget import MemoryBudget
from zarrfs.stores.memory import MemoryStore

MIB = 1 << 20
CHUNKS = 32


@pytest.mark.parametrize("is_apart", [True, False])
def test_complete_chunks_are_stored_while_the_program_writes(is_apart: bool) -> None:
    """But those of an array that others see are not, before the file is closed."""

    async def main() -> None:
        store = MemoryStore()
        await store.set(Key("a/.zarray"), array_document((CHUNKS * MIB,), (MIB,), "|u1"))
        async with trio.open_nursery() as nursery:
            r = reading(store, start_soon=nursery.start_soon)
            opened = await r.array()
            writer = ArrayWriter(
                opened.array,
                None if is_apart else opened.reader,
                budget=MemoryBudget(1 << 40),
                directory=None,
                start_soon=nursery.start_soon,
                is_apart=is_apart,
            )
            elements = os.urandom(CHUNKS * MIB)
            for number in range(CHUNKS):
                await writer.write(number * MIB, elements[number * MIB : (number + 1) * MIB])
                while writer._storing:
                    await next(iter(writer._storing.values())).wait()
                assert not is_apart or writer.nbytes <= 5 * MIB
            assert is_apart or writer.nbytes == CHUNKS * MIB
            early = len(await contents(store)) - 1
            assert early >= CHUNKS - 5 if is_apart else early == 0
            await writer.publish()
            await writer.aclose()
            stored = await contents(store)
            assert b"".join(stored[f"a/{number}"] for number in range(CHUNKS)) == elements

    trio.run(main)


@pytest.mark.parametrize("written", [range(0), range(9_000, 12_000)], ids=["nothing", "some"])
def test_chunks_without_writes_are_not_all_dirty_at_once(written: range) -> None:
    """A file of a few bytes may replace an array of millions of chunks whose fill value is not zero: all of them become zeros."""
    count = 14_000
    most = [0]

    async def main() -> None:
        store = MemoryStore()
        await store.set(Key("a/.zarray"), array_document((count,), (1,), "|u1", fill_value=5))
        await store.set(Key("a/3"), b"\7")
        opened = await reading(store).array()
        writer = ArrayWriter(
            opened.array,
            None,
            budget=MemoryBudget(1 << 40),
            directory=None,
            start_soon=None,
            on_stored=lambda keys: most.append(writer.nbytes),
        )
        await writer.write(written.start, bytes([9]) * len(written))
        await writer.publish_whole()
        await writer.aclose()
        stored = await contents(store)
        assert b"".join(stored[f"a/{number}"] for number in range(count)) == bytes(
            9 * (number in written) for number in range(count)
        )

    trio.run(main)
    assert max(most) <= 4096 + len(written)


def test_tiny_chunks_are_few_in_memory_whatever_their_elements_take() -> None:
    """A dirty chunk of one byte takes hundreds of bytes: those of an array that is stored apart do not wait for 4 MiB of elements."""
    count, piece = 30_000, 1_000
    elements = os.urandom(count)

    async def main() -> None:
        store = MemoryStore()
        await store.set(Key("a/.zarray"), array_document((count,), (1,), "|u1", fill_value=0))
        async with trio.open_nursery() as nursery:
            opened = await reading(store, start_soon=nursery.start_soon).array()
            budget = MemoryBudget(1 << 40)
            writer = ArrayWriter(opened.array, None, budget=budget, directory=None, start_soon=nursery.start_soon, is_apart=True)
            for start in range(0, count, piece):
                await writer.write(start, elements[start : start + piece])
                while writer._storing:
                    await next(iter(writer._storing.values())).wait()
                assert len(writer._dirty) <= 10 * piece
            await writer.publish()
            assert budget.nbytes == 0
            await writer.aclose()
        stored = await contents(store)
        assert b"".join(stored.get(f"a/{number}", b"\0") for number in range(count)) == elements

    trio.run(main)


def held(*roots: Any) -> int:
    """Return the number of objects in these sets."""
    seen: dict[int, Any] = {}
    pending = list(roots)
    while pending:
        each = pending.pop()
        if id(each) not in seen and not isinstance(each, type):
            seen[id(each)] = each
            pending += gc.get_referents(each)
    return len(seen)


@pytest.mark.parametrize("fill_value", [0, 1])
@pytest.mark.parametrize("chunks", [{}, {"a/77": b"\1", "a/19999": b"\1"}], ids=["new", "over others"])
def test_what_is_known_of_stored_chunks_is_not_held_chunk_by_chunk(fill_value: int, chunks: dict[str, bytes]) -> None:
    """An array may have millions of chunks of some bytes."""
    count = 20_000

    async def main() -> None:
        store = MemoryStore()
        await store.set(Key("a/.zarray"), array_document((count,), (1,), "|u1", fill_value=fill_value))
        for key, value in chunks.items():
            await store.set(Key(key), value)
        opened = await reading(store).array()
        writer = ArrayWriter(
            opened.array, None, budget=MemoryBudget(1 << 40), directory=None, start_soon=None, on_stored=None, is_apart=not chunks
        )
        # Every third chunk equals the fill value 1.
        elements = bytes((2, 3, 1)[number % 3] for number in range(count))
        await writer.write(0, elements)
        await writer.publish_whole()
        storage = writer._storage
        known = storage.stored, storage.as_fill, storage.replaced, storage.attempted
        assert sum(map(len, known)) >= 2 * count - count // 3
        assert held(*known) < count // 10
        stored = await contents(store)
        assert len(writer.stored) == len(stored) - 1
        assert b"".join(stored.get(f"a/{number}", bytes([fill_value])) for number in range(count)) == elements
        await writer.aclose()

    trio.run(main)
