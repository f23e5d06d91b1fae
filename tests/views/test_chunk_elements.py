"""An element changed in a file has all bytes of its writer, whatever others store in the array meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.support.small_stores import array_document
from tests.support.stores import fill
from tests.support.trees import tree_over, walk
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import File, Handle, OpenFlags

BOTH = OpenFlags(read=True, write=True)
OLD, OTHERS, NEW = 0x0101010101010101, 0x0202020202020202, 0x0101010101010103
LAST = 0x0301010101010101
"""``NEW`` differs from ``OLD`` in its first byte, and ``LAST`` in its last one."""
COUNT = 12


async def opened(tree: MountTree, path: str) -> Handle:
    file = await walk(tree, path)
    assert isinstance(file, File)
    return await file.open(BOTH)


async def store_of_old() -> MemoryStore:
    store = MemoryStore()
    elements = np.full(COUNT, OLD, "<i8").tobytes()
    await fill(store, {"a/.zarray": array_document((COUNT,), (COUNT,), "<i8"), "a/0": elements})
    return store


async def stored(store: MemoryStore) -> list[int]:
    value = await store.get(Key("a/0"))
    assert value is not None
    found: list[int] = np.frombuffer(value, "<i8").tolist()
    return found


def element(value: int) -> bytes:
    return value.to_bytes(8, "little")


@pytest.mark.parametrize("paths", [("chunks/a/0", "npy/a.npy"), ("npy/a.npy", "chunks/a/0")], ids=["chunk", "whole array"])
@pytest.mark.parametrize("pieces", [(0, 8), (0, 1), (0, 4, 8), (0, 3), (5, 8)], ids=str)
@trio_test
async def test_it_is_as_its_writer_sees_it(pieces: tuple[int, ...], paths: tuple[str, str]) -> None:
    """This includes an element written in pieces: its other bytes are those that were read."""
    store = await store_of_old()
    async with tree_over(store) as tree:
        one, other = [await opened(tree, path) for path in paths]
        header, header_of_other = [(await each.attributes()).size - 8 * COUNT for each in (one, other)]
        assert bytes(await one.read(0, header + 8 * COUNT))[header:] == element(OLD) * COUNT
        await other.write(header_of_other + 8 * 5, element(OTHERS))
        await other.flush()
        # This takes over the elements that the other has stored.
        await one.write(header + 8 * 2, element(7))
        await one.fsync()
        for start, stop in zip(pieces, pieces[1:], strict=False):
            await one.write(header + 8 * 5 + start, element(NEW if start < 5 else LAST)[start:stop])
        await one.flush()
        await one.release()
        await other.release()
    assert await stored(store) == [OLD, OLD, 7, OLD, OLD, NEW if pieces[0] < 5 else LAST, *[OLD] * 6]


@trio_test
async def test_a_program_that_writes_all_back_takes_nothing_back() -> None:
    store = await store_of_old()
    async with tree_over(store) as tree:
        one, other = await opened(tree, "chunks/a/0"), await opened(tree, "npy/a.npy")
        header = (await other.attributes()).size - 8 * COUNT
        page = bytearray(await one.read(0, 8 * COUNT))
        await other.write(header + 8 * 5, element(OTHERS))
        await other.flush()
        for place in (3, 9):
            page[8 * place : 8 * place + 8] = element(NEW)
        await one.write(0, bytes(page))
        await one.flush()
        await one.release()
        await other.release()
    assert await stored(store) == [OLD, OLD, OLD, NEW, OLD, OTHERS, OLD, OLD, OLD, NEW, OLD, OLD]


@trio_test
async def test_what_was_read_without_pages_is_not_in_the_pages_of_another_handle() -> None:
    """A program with a mapping writes back whole pages, as they were when it read them."""
    store = await store_of_old()
    async with tree_over(store) as tree:
        mapped, direct, other = [await opened(tree, path) for path in ("chunks/a/0", "chunks/a/0", "npy/a.npy")]
        direct.opened_in(None, paged=False)
        header = (await other.attributes()).size - 8 * COUNT
        page = bytearray(await mapped.read(0, 4096))
        await other.write(header + 8 * 5, element(OTHERS))
        await other.flush()
        # A change of its own, after which it reads the present value.
        await direct.write(8 * 4, element(7))
        await direct.fsync()
        assert bytes(await direct.read(0, 4096))[8 * 5 : 8 * 6] == element(OTHERS)
        page[8 * 2 : 8 * 3] = element(NEW)
        page[8 * 4 : 8 * 5] = element(7)
        await mapped.write(0, bytes(page))
        await mapped.flush()
        for each in (mapped, direct, other):
            await each.release()
    assert await stored(store) == [OLD, OLD, NEW, OLD, 7, OTHERS, *[OLD] * 6]


@trio_test
async def test_what_was_read_into_the_pages_of_another_inode_is_not_in_those_of_a_mapping() -> None:
    """Nor is what was written there: both write back whole pages, as they were when they read them."""
    store = await store_of_old()
    async with tree_over(store) as tree:
        mapped, later, other = [await opened(tree, path) for path in ("chunks/a/0", "chunks/a/0", "npy/a.npy")]
        mapped.opened_in("one", paged=True)
        header = (await other.attributes()).size - 8 * COUNT
        page = bytearray(await mapped.read(0, 4096))
        await other.write(header + 8 * 5, element(OTHERS))
        await other.flush()
        await mapped.write(8 * 1, element(7))
        await mapped.fsync()
        later.opened_in("other", paged=True)
        assert bytes(await later.read(0, 4096))[8 * 5 : 8 * 6] == element(OTHERS)
        await later.write(8 * 4, element(7))
        page[8 * 1 : 8 * 2], page[8 * 2 : 8 * 3] = element(7), element(NEW)
        await mapped.write(0, bytes(page))
        await mapped.flush()
        for each in (mapped, later, other):
            await each.release()
    assert await stored(store) == [OLD, 7, NEW, OLD, 7, OTHERS, *[OLD] * 6]


@trio_test
async def test_also_what_became_fill_value_while_the_array_was_shorter() -> None:
    store = await store_of_old()
    async with tree_over(store, resize_erases=True) as tree:
        one, document = await opened(tree, "chunks/a/0"), await opened(tree, "chunks/a/.zarray")
        assert bytes(await one.read(0, 8 * COUNT)) == element(OLD) * COUNT
        text = json.loads(bytes(await document.read(0, 10_000)))
        for length in (4, COUNT):
            data = json.dumps(text | {"shape": [length]}).encode()
            await document.truncate(0)
            await document.write(0, data)
            await document.flush()
            await one.write(0, element(7))
            await one.fsync()
        await one.write(8 * 5, element(NEW))
        await one.flush()
        for each in (one, document):
            await each.release()
    assert (await stored(store))[5] == NEW


class SlowToAnswer(ForwardingStore):
    """While ``slow``, values are as at the request, and are returned when ``answers`` is set."""

    slow = False

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.answers = trio.Event()

    async def get(self, key: Key) -> Buffer | None:
        return (await self.get_partial_values([(key, ByteRange(0))]))[0]

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        found = await super().get_partial_values(key_ranges, if_generation=if_generation)
        if self.slow:
            await self.answers.wait()
        return found


@pytest.mark.parametrize("changed", ["by another mount", "without pages"])
@trio_test
async def test_what_a_read_returns_that_began_before_the_change_of_another_can_be_written_back(changed: str) -> None:
    """It was no change: the writer was taken to have seen it since its open, or since the other's write through the same file."""
    inner = await store_of_old()
    store = SlowToAnswer(inner)
    async with tree_over(store) as tree, tree_over(inner) as elsewhere:
        reader = await opened(tree, "npy/a.npy")
        header = (await reader.attributes()).size - 8 * COUNT
        async with trio.open_nursery() as nursery:
            store.slow = True
            nursery.start_soon(reader.read, 0, header + 8 * COUNT)
            await wait_all_tasks_blocked()
            store.slow = False
            other = await opened(elsewhere if changed == "by another mount" else tree, "npy/a.npy")
            await other.write(header + 8 * 5, element(OTHERS))
            await other.flush()
            # A write with O_DIRECT does not wait for the pages that are being read.
            writer = await opened(tree, "npy/a.npy") if changed == "by another mount" else reader
            store.answers.set()
        await writer.write(header + 8 * 5, element(OLD))
        await writer.flush()
        for handle in {reader, writer, other}:
            await handle.release()
    assert await stored(inner) == [OLD] * COUNT
