"""Writes queued for one shard (`zarrfs.arrays.shard_queue`)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain

import trio

from zarrfs.arrays.chunk_store import ChunkStore, Merge, Written, new_generation
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.spill_file import SpillFile
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError, StoreTimeout
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.memory.spill import refuse_lost
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode

RETRY_SECONDS = (5.0, 300.0)
"""Delay before a failed publish is retried: initial, maximum."""


ShardsAt = Key | Prefix | NodePath | LiveNode
"""A selection of queued shards: see `QueuedShard.is_at`."""


@dataclass(slots=True, eq=False)
class QueuedShard:
    """Chunks queued for the shard of ``node`` with coordinates ``unit``; ``some`` is one chunk of it.

    ``array``: the documents at the time of the last write, or of a later use in another shape. ``publishing``: the chunks being stored
    now. ``replaced``: earlier queued values of chunks whose last one may still be refused, oldest first. ``expected``: number of chunks
    of the shard within the array. ``since``: the time from which the delay of its publish counts (trio's clock, in seconds).
    ``arriving``: for each insertion in progress, the buffers that it has so far. ``underway``: a task publishes it since it
    was due. ``failures`` counts failed publishes; ``unanswered`` is the last error if the store did not answer; ``retry``: delay after
    the next one, in seconds.
    ``memory_nbytes``: taken from the budget; ``count_above``: see `zarrfs.arrays.shard_room`.
    """

    node: LiveNode
    array: ArrayNode
    unit: Coords
    some: Coords
    chunks: ChunkStore
    since: float
    expected: int
    files: SpillFile
    written: dict[Coords, Written] = field(default_factory=dict)
    publishing: dict[Coords, Written] = field(default_factory=dict)
    replaced: dict[Coords, list[Written]] = field(default_factory=dict)
    arriving: list[list[Buffer]] = field(default_factory=list)
    underway: bool = False
    lock: trio.Lock = field(default_factory=trio.Lock)
    memory_nbytes: int = 0
    count_above: int = 0
    retry: float = RETRY_SECONDS[0]
    failures: int = 0
    unanswered: StoreTimeout | None = None

    @property
    def key(self) -> Key:
        """Store key of the shard at the node's current path."""
        return self.chunks.keys(self.some)[0]

    @property
    def may_be_replaced_unread(self) -> bool:
        """True if all chunks of it are being stored; of one that contains shards, all chunks of one of these may be."""
        return len(self.publishing) >= self.expected or len(self.array.metadata.shards) > 1

    def use(self, array: ArrayNode, chunks: ChunkStore, expected: int) -> None:
        """Set these for the array as it is described now."""
        if array.metadata.shape != self.array.metadata.shape:
            # What lies beyond the edge of a chunk depends on the shape.
            for written in self._each():
                if written.merge is not None:
                    written.merge.resized(array)
        self.array, self.chunks, self.expected = array, chunks, expected

    def is_at(self, target: ShardsAt) -> bool:
        """Return True if the shard belongs to that array, is of a node at or below that path, or has that key or prefix."""
        if isinstance(target, LiveNode):
            return self.node is target
        if isinstance(target, NodePath):
            return self.node.path.prefix.startswith(target.prefix)
        return self.key == target or (isinstance(target, Prefix) and self.key.startswith(target))

    def get(self, coords: Coords) -> Written | None:
        return self.written.get(coords) or self.publishing.get(coords)

    def all(self) -> dict[Coords, Written]:
        return self.publishing | self.written

    def _each(self) -> Iterator[Written]:
        return chain(self.written.values(), self.publishing.values(), *self.replaced.values())

    def buffers(self) -> Iterator[Buffer]:
        """Return all buffers of chunks that are queued, are about to be, or may be again."""
        yield from chain.from_iterable(self.arriving)
        for written in self._each():
            if written.data is not None:
                yield written.data
            if written.merge is not None:
                yield written.merge.packed

    @contextmanager
    def inserting(self) -> Iterator[list[Buffer]]:
        """Record an insertion in progress; its buffers are put into the list."""
        mine: list[Buffer] = []
        self.arriving.append(mine)
        try:
            yield mine
        finally:
            self.arriving[:] = [each for each in self.arriving if each is not mine]

    def insert(self, mine: Mapping[Coords, Written]) -> None:
        """Queue these chunks, which may still be refused."""
        for coords in mine:
            if (before := self.get(coords)) is not None:
                self.replaced.setdefault(coords, []).append(before)
        self.written |= mine

    def refuse(self, mine: Mapping[Coords, Written]) -> None:
        """Remove these chunks; those that they have replaced are queued again, unless they are stored."""
        for coords, written in mine.items():
            older = self.replaced.get(coords, [])
            if self.written.get(coords) is written:
                if older:
                    self.written[coords] = older.pop()
                else:
                    del self.written[coords]
            else:
                older = [each for each in older if each is not written]
            self._keep_replaced(coords, older)

    def settle(self, done: Mapping[Coords, Written], *, is_stored: bool = False) -> None:
        """Forget what these chunks have replaced: their writer got success, or they are stored."""
        for coords, written in done.items():
            older = self.replaced.get(coords, [])
            places = [number for number, each in enumerate(older) if each is written]
            if places:
                self._keep_replaced(coords, older[places[0] + is_stored :])
            elif (now := self.get(coords)) is None or now is written:
                self._keep_replaced(coords, [])

    def _keep_replaced(self, coords: Coords, older: list[Written]) -> None:
        if older:
            self.replaced[coords] = older
        else:
            self.replaced.pop(coords, None)

    def lost(self) -> tuple[dict[Coords, Written], StoreError | None]:
        """Return the chunks in files of which the disk may have lost bytes by now, and the error."""
        found: dict[Coords, Written] = {}
        last: StoreError | None = None
        if not self.files.is_intact:
            for coords, written in self.all().items():
                try:
                    refuse_lost(written.data, written.merge and written.merge.packed, key=self.key)
                except StoreError as error:
                    found[coords], last = written, error
        return found, last

    def clear(self) -> None:
        """Remove all chunks that are not being stored."""
        self.written = {}
        self.replaced = {}

    def changes(self) -> dict[Coords, Buffer | Merge | None]:
        """Return all queued changes, for use in another array of the same metadata."""
        return {coords: written.data if written.merge is None else written.merge for coords, written in self.all().items()}

    def working(self) -> AbstractAsyncContextManager[None]:
        """Reserve the memory for a repeated merge into other chunks, if any merge is queued."""
        merges = (written.merge for written in self.written.values() if written.merge is not None)
        first = next(merges, None)
        return first.working() if first is not None else nullcontext()


OnLoss = Callable[[QueuedShard, Exception], Awaitable[bool]]
"""Called with a queued shard that can no longer be published, and the error, before it is removed. Returns True if nothing is lost."""


async def is_lost(shard: QueuedShard, error: Exception) -> bool:
    """Return False: the `OnLoss` that does nothing."""
    return False


async def give_up_lost(
    shard: QueuedShard, on_loss: OnLoss, announce: Callable[[QueuedShard, Mapping[Coords, Written]], None]
) -> StoreError | None:
    """Remove the chunks of `QueuedShard.lost`, which would keep the others from being stored; return the error."""
    if shard.node.why_gone is not None:
        # None can be stored there: the whole shard is about to be lost, or follows its array.
        return None
    lost, error = shard.lost()
    if error is not None:
        await on_loss(replace(shard, written=lost, replaced={}), error)
        shard.refuse(lost)
        announce(shard, lost)
    return error


def changed(before: Written, merge: Merge, data: Buffer | None) -> Written:
    """Return ``before``, a queued or stored chunk, after a change whose result is ``data``."""
    now = Written(data, new_generation(), time.time_ns())
    if not before.generation:
        return now._replace(merge=merge.lasting(data), base=before.base)
    if before.merge is None:
        # The whole chunk is queued.
        return now
    return now._replace(merge=merge.lasting(data).after(before.merge), base=before.base)
