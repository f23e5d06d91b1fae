"""Shared state of the readers of a mount."""

from __future__ import annotations

from collections.abc import Callable

from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.position import WINDOW_NBYTES
from zarrfs.arrays.slab_pool import SlabPool

# Minimum size of a slab, if the array is that large.
SLAB_NBYTES = 8 * 1024 * 1024

StartSoon = Callable[..., None]


class ReaderPool:
    """Shared state of readers: cache, slabs of about ``slab_nbytes``, and ``start_soon`` of a nursery that fills slabs ahead.

    Decoded chunks stay valid for ``ttl`` seconds. A read within ``window_nbytes`` of the last one continues its pass."""

    def __init__(
        self,
        cache: ChunkCache,
        slabs: SlabPool,
        *,
        ttl: float,
        start_soon: StartSoon | None = None,
        slab_nbytes: int = SLAB_NBYTES,
        window_nbytes: int = WINDOW_NBYTES,
    ) -> None:
        self.cache = cache
        self.slabs = slabs
        self.ttl = ttl
        self.start_soon = start_soon
        self.slab_nbytes = slab_nbytes
        self.window_nbytes = window_nbytes
        self.epoch = 0
        """Counts the calls of `discard_all`."""

    def discard_all(self) -> None:
        """Run `ArrayReader.discard` for every array."""
        self.epoch += 1
        self.cache.discard_all()
        self.slabs.discard_all()
