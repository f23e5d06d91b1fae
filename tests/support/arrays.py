"""In-memory arrays: a Zarr v2 store of one or several, their elements, and a hierarchy that reads them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.small_stores import array_document
from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.reader_pool import ReaderPool, StartSoon
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.codecs.chain import CodecChain
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import Key, NodePath
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore

FILL = 7


@dataclass(frozen=True)
class Example:
    """An uncompressed array. Padding beyond its edge is junk in the store; ``missing`` chunks are not stored."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str = "<i2"
    missing: frozenset[tuple[int, ...]] = frozenset()

    @property
    def grid(self) -> list[tuple[int, ...]]:
        """The coordinates of all chunks."""
        return list(itertools.product(*(range(-(-n // c)) for n, c in zip(self.shape, self.chunks, strict=True))))

    @property
    def stored(self) -> list[tuple[int, ...]]:
        """The coordinates of the stored chunks."""
        return [coords for coords in self.grid if coords not in self.missing]

    @property
    def elements(self) -> np.ndarray[Any, Any]:
        """The elements that a reader should see."""
        whole = np.arange(1, math.prod(self.shape) + 1).astype(self.dtype).reshape(self.shape)
        for coords in self.missing:
            whole[self._box(coords)] = FILL
        return whole

    def values(self, name: str) -> dict[str, bytes]:
        """Return the keys and values of the array as node ``/name``."""
        values = {f"{name}/.zarray": array_document(self.shape, self.chunks, self.dtype, fill_value=FILL)}
        elements = self.elements
        for coords in self.stored:
            chunk = np.full(self.chunks, -1).astype(self.dtype)
            inside = elements[self._box(coords)]
            chunk[tuple(slice(0, n) for n in inside.shape)] = inside
            values[f"{name}/{'.'.join(map(str, coords)) or '0'}"] = chunk.tobytes()
        return values

    def _box(self, coords: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, self.chunks, strict=True))


@st.composite
def examples(draw: st.DrawFn, max_ndim: int = 4, max_extent: int = 7) -> Example:
    """Return any small array."""
    shape = tuple(draw(st.lists(st.integers(0, max_extent), max_size=max_ndim)))
    chunks = tuple(draw(st.integers(1, max_extent)) for _ in shape)
    example = Example(shape, chunks, draw(st.sampled_from(["|u1", "<i2", "<f8", "<c16"])))
    missing = draw(st.frozensets(st.sampled_from(example.grid), max_size=4)) if example.grid else frozenset()
    return Example(shape, chunks, example.dtype, missing)


@dataclass(frozen=True)
class Wide:
    """A square of float32 in chunks as high as it is: one row of chunks covers the array. All rows of elements are equal."""

    extent: int
    width: int

    @property
    def row(self) -> bytes:
        """One row of elements."""
        return (np.arange(self.extent, dtype="<f4") // self.width).tobytes()

    @property
    def count(self) -> int:
        """The number of chunks."""
        return self.extent // self.width

    def values(self, name: str) -> dict[str, bytes]:
        """Return the keys and values of the array as node ``/name``, at a high compression ratio."""
        chain = CodecChain.build((CodecSpec("bytes", {"endian": "little"}), CodecSpec("numcodecs.lz4")), from_name("float32"))
        document = array_document((self.extent,) * 2, (self.extent, self.width), "<f4", compressor={"id": "lz4", "acceleration": 1})
        values = {f"{name}/.zarray": document}
        chunk = np.empty((self.extent, self.width), "<f4")
        for column in range(self.count):
            chunk[...] = column
            values[f"{name}/0.{column}"] = bytes(chain.encode(chunk))
        return values


WIDE = Wide(8192, 64)
"""256 MiB in 128 chunks of 2 MiB."""


@dataclass
class Reading:
    """A hierarchy over a store, with its counters."""

    store: Store
    hierarchy: Hierarchy
    counters: WorkCounters
    slabs: SlabPool
    cache: ChunkCache

    async def array(self, name: str = "a") -> OpenArray:
        """Return the array at ``/name``."""
        opened = await self.hierarchy.array(NodePath(f"/{name}"))
        assert opened is not None
        return opened


def reading(
    store: Store,
    *,
    slab_limit: int = 1 << 20,
    cache_limit: int = 1 << 20,
    slab_nbytes: int = 64,
    window_nbytes: int = 32,
    ttl: float = 10,
    start_soon: StartSoon | None = None,
) -> Reading:
    """Return readers over ``store`` with small sizes, so that small arrays reach every limit."""
    counters = WorkCounters()
    cache, slabs = ChunkCache(cache_limit), SlabPool(slab_limit, counters)
    pool = ReaderPool(cache, slabs, ttl=ttl, start_soon=start_soon, slab_nbytes=slab_nbytes, window_nbytes=window_nbytes)
    return Reading(store, Hierarchy(store, pool, counters, ttl=ttl), counters, slabs, cache)


async def store_of(*examples: Example, names: Iterable[str] = "abcdefgh") -> MemoryStore:
    """Return a store with the examples as ``/a``, ``/b``, ..."""
    store = MemoryStore()
    await store.set(Key(".zgroup"), b'{"zarr_format":2}')
    for name, example in zip(names, examples, strict=False):
        for key, value in example.values(name).items():
            await store.set(Key(key), value)
    return store
