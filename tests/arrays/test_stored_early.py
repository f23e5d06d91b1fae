"""An array that is stored apart from all nodes keeps few dirty chunks in memory, however large the limit."""

from __future__ import annotations

import os

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
