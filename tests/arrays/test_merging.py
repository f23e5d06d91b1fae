"""Writers that change elements of one array at the same time, in one mount and in two: no writer reverts another's change.

Every element identifies its writer and the number of the write: at the end each is the last one of one of its writers, and elements
without a write are unchanged. Each store operation takes time, so that any two of them can interleave.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.support.length import tries
from tests.support.stores import InterruptedStore
from zarrfs.arrays.array import Array
from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.merging import ElementMerge, store_merged
from zarrfs.arrays.reader import ArrayReader
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.shard_queue import ShardQueue
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.arrays.writer import ArrayWriter
from zarrfs.errors import StoreFull
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore

DTYPES = ["<u1", "<i2", "<f4", "<f8", "<c16", "S3", [("x", "<i4"), ("y", "<f8")]]


class SlowStore(InterruptedStore):
    """Each operation takes one of ``delays``, in turn."""

    def __init__(self, inner: Store, delays: list[int]) -> None:
        super().__init__(inner)
        self._delays = delays
        self._asked = 0
        self.fails: set[int] = set()
        """Numbers of the sets that fail."""
        self._sets = 0

    async def interrupt(self, operation: str, target: str) -> None:
        self._asked += 1
        await trio.sleep(self._delays[self._asked % len(self._delays)])
        if operation == "set":
            self._sets += 1
            if self._sets in self.fails:
                raise StoreFull("no room")


@dataclass(frozen=True)
class Example:
    """An array; ``elements`` are the initial ones, stored if ``stored`` is true (else no chunk is)."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: Any
    shards: tuple[int, ...] | None
    order: str
    endian: str
    stored: bool

    @property
    def node(self) -> ArrayNode:
        data_type = from_numpy(np.dtype(self.dtype))
        codecs: list[CodecSpec] = []
        if self.order == "F" and self.shape:
            codecs.append(CodecSpec("transpose", {"order": list(reversed(range(len(self.shape))))}))
        codecs.append(CodecSpec("bytes", {"endian": self.endian}) if data_type.itemsize > 1 else CodecSpec("bytes"))
        metadata = ArrayMetadata(
            shape=self.shape,
            data_type=data_type,
            chunk_grid=RegularGrid(self.chunks),
            chunk_key_encoding=chunk_key.default("/"),
            fill_value=bytes(data_type.itemsize),
            codecs=tuple(codecs),
            shards=(ShardSpec(self.shards),) if self.shards else (),
        )
        return ArrayNode(path=NodePath("/a"), dialect="v3", metadata=metadata, chunk_prefix=Prefix("a/"))


@st.composite
def arrays(draw: st.DrawFn) -> Example:
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=2), label="shape"))
    chunks = tuple(draw(st.integers(1, 5)) for _ in shape)
    shards = tuple(draw(st.integers(1, 3)) for _ in shape) if shape and draw(st.booleans(), label="sharded") else None
    dtype = draw(st.sampled_from(DTYPES), label="dtype")
    # A struct, or text of bytes, has the byte order of its type.
    endian = "little" if not isinstance(dtype, str) or dtype[0] == "S" else draw(st.sampled_from(["little", "big"]))
    return Example(shape, chunks, dtype, shards, draw(st.sampled_from("CF")), endian, draw(st.booleans(), label="stored"))


@dataclass
class Mount:
    """One of the mounts of a store."""

    array: Array
    reader: ArrayReader
    queue: ShardQueue


@asynccontextmanager
async def mounted(store: Store, example: Example, delay: float) -> AsyncIterator[Mount]:
    async with trio.open_nursery() as nursery:
        queue = ShardQueue(
            delay=delay,
            budget=MemoryBudget(UNLIMITED),
            directory=None,
            start_soon=nursery.start_soon,
            on_change=lambda change, prefix, coords: [mount.reader.discard(each) for each in coords] and None,
            on_failure=lambda key, error: None,
        )
        counters, budget = WorkCounters(), MemoryBudget(64 << 20)
        node = example.node

        async def confirm(live: LiveNode) -> bool:
            return True

        live = LiveNode(node.path, node.chunk_prefix, confirm)
        chunks = chunks_of(store, node, ShardLayers(counters, budget, queue=queue), live)
        array = Array(node, chunks, counters, budget)
        pool = ReaderPool(ChunkCache(0), SlabPool(0, counters, None), ttl=0)
        mount = Mount(array, ArrayReader(array, pool), queue)
        yield mount
        nursery.cancel_scope.cancel()


@dataclass
class World:
    """The writes of each element, by writer, and the last ones."""

    example: Example
    last: dict[tuple[int, ...], dict[int, bytes]] = field(default_factory=dict)
    count: int = 0

    def element(self) -> bytes:
        """Return another element each time."""
        self.count += 1
        size = np.dtype(self.example.dtype).itemsize
        if self.example.dtype == "<f8":
            # NaN, distinguished by its payload.
            return (0x7FF8_0000_0000_0000 | self.count).to_bytes(8, "little")
        return (
            (self.count % 255 + 1).to_bytes(1, "little") + (self.count >> 8).to_bytes(size - 1, "little")
            if size > 1
            else bytes([self.count % 255 + 1])
        )


def places(example: Example) -> list[tuple[int, ...]]:
    return [tuple(map(int, each)) for each in np.ndindex(*example.shape)]


async def write(mount: Mount, store: Store, world: World, who: int, how: str, chosen: list[int]) -> None:
    """Write some elements once; they are published on return."""
    example, array = world.example, mount.array
    every = places(example)
    wanted = {every[number % len(every)] for number in chosen}
    itemsize = np.dtype(example.dtype).itemsize
    if how in ("whole", "raw"):
        # The chunk of the first element.
        some = next(iter(wanted))
        coords = tuple(index // length for index, length in zip(some, example.chunks, strict=True))
        wanted = {each for each in every if tuple(i // n for i, n in zip(each, example.chunks, strict=True)) == coords}
    values = {each: world.element() for each in wanted}
    by_chunk: dict[tuple[int, ...], dict[tuple[int, ...], bytes]] = {}
    for each, value in values.items():
        coords = tuple(index // length for index, length in zip(each, example.chunks, strict=True))
        by_chunk.setdefault(coords, {})[tuple(i % n for i, n in zip(each, example.chunks, strict=True))] = value
    for each, value in values.items():
        world.last.setdefault(each, {})[who] = value
    if how == "writer":
        writer = ArrayWriter(array, mount.reader, budget=MemoryBudget(UNLIMITED), directory=None, start_soon=None)
        for each, value in values.items():
            number = int(np.ravel_multi_index(each, example.shape)) if example.shape else 0
            await writer.write(number * itemsize, value)
        while True:
            try:
                await writer.publish()
                break
            except StoreFull:
                continue
        await writer.aclose()
        return
    for coords, parts in by_chunk.items():
        elements = np.zeros(example.chunks, example.dtype)
        mask = np.zeros(example.chunks, bool)
        for at, value in parts.items():
            elements[at] = np.frombuffer(value, example.dtype)[0] if example.shape else 0
            elements.view(f"V{itemsize}")[at] = np.frombuffer(value, f"V{itemsize}")[0]
            mask[at] = True
        while True:
            try:
                if how == "merge":
                    inside = mask[array.inside(coords)] if example.shape else mask
                    await store_merged(
                        array, coords, ElementMerge(array, coords, elements, lambda m=inside: m, sparse=who % 2 == 0)
                    )
                elif how == "whole" or example.shards:
                    await array.write_chunk(coords, elements.tobytes())
                else:
                    await store.set(Key(array.chunks.keys(coords)[0]), array.chain.encode(elements))
                break
            except StoreFull:
                continue


WRITES = st.lists(
    st.tuples(st.sampled_from(["merge", "merge", "writer", "whole", "raw"]), st.lists(st.integers(0, 40), min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)


@tries(200)
@given(
    example=arrays(),
    writers=st.lists(st.tuples(st.integers(0, 1), WRITES), min_size=2, max_size=4),
    delays=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    waits=st.sampled_from([0, 3, 1000]),
    fails=st.frozensets(st.integers(1, 12), max_size=3),
)
def test_whatever_writers_do_at_the_same_time(
    example: Example,
    writers: list[tuple[int, list[tuple[str, list[int]]]]],
    delays: list[int],
    waits: float,
    fails: frozenset[int],
) -> None:
    world = World(example)
    inner = MemoryStore()

    async def main() -> np.ndarray[Any, Any]:
        store = SlowStore(inner, delays)
        if example.stored:
            async with mounted(inner, example, 0) as first:
                for coords in np.ndindex(*example.node.metadata.grid_shape):
                    start = np.full(example.chunks, world.count)
                    await first.array.write_chunk(coords, np.zeros(start.shape, example.dtype).tobytes())
        store.fails = set(fails) if not example.shards else set()
        async with AsyncExitStack() as stack:
            mounts = [await stack.enter_async_context(mounted(store, example, waits)) for _ in range(2)]

            async def run(who: int, mount: Mount, writes: list[tuple[str, list[int]]]) -> None:
                for how, chosen in writes:
                    await write(mount, store, world, who, how, chosen)
                    await trio.sleep(1)

            async with trio.open_nursery() as nursery:
                for who, (which, writes) in enumerate(writers):
                    nursery.start_soon(run, who, mounts[which], writes)
            for mount in mounts:
                assert await mount.queue.end() == []
        async with mounted(inner, example, 0) as last:
            found = np.zeros(example.shape, example.dtype)
            for coords in np.ndindex(*example.node.metadata.grid_shape):
                chunk = await last.array.read_chunk(coords)
                if chunk is not None:
                    where = tuple(
                        slice(i * n, min((i + 1) * n, extent))
                        for i, n, extent in zip(coords, example.chunks, example.shape, strict=True)
                    )
                    found[where] = chunk[last.array.inside(coords)] if example.shape else chunk
            return found

    found = trio.run(main, clock=MockClock(autojump_threshold=0))
    itemsize = np.dtype(example.dtype).itemsize
    bits = found.view(f"V{itemsize}")
    for each in places(example):
        legal = set(world.last.get(each, {}).values()) or {bytes(itemsize)}
        assert bits[each].tobytes() in legal, (each, bits[each], world.last.get(each))
