"""What waits for one shard (`zarrfs.arrays.shard_queue`)."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

import trio

from zarrfs.arrays.chunk_store import ChunkStore, Merge, Written, new_generation
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.spill_file import SpillFile
from zarrfs.errors import StoreTimeout
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.values import Buffer

RETRY_SECONDS = (5.0, 300.0)
"""How long a publish that failed waits to be tried again: at first, and at most."""


Place = Key | Prefix | NodePath | LiveNode
"""Where shards wait: see `QueuedShard.is_at`."""


@dataclass(slots=True, eq=False)
class QueuedShard:
    """What waits for the shard of ``node`` that has the coordinates ``unit``, ``some`` chunk of which is this. ``array``: what the
    documents said when the last chunk was written. ``publishing``: what is being published now; ``expected``: chunks of the shard within
    the array; ``failures``: how often publishing has failed, and ``unanswered``: the last of these errors, if the store did not answer.
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
    putting: int = 0
    underway: bool = False
    lock: trio.Lock = field(default_factory=trio.Lock)
    memory_nbytes: int = 0
    retry: float = RETRY_SECONDS[0]
    failures: int = 0
    unanswered: StoreTimeout | None = None

    @property
    def key(self) -> Key:
        """The key that it will be stored under, as things are."""
        return self.chunks.keys(self.some)[0]

    def is_at(self, place: Place) -> bool:
        """Whether it is of that array, or of the node there or one below it, or has that key, or one below that prefix."""
        if isinstance(place, LiveNode):
            return self.node is place
        if isinstance(place, NodePath):
            return self.node.path.prefix.startswith(place.prefix)
        return self.key == place or (isinstance(place, Prefix) and self.key.startswith(place))

    def get(self, coords: Coords) -> Written | None:
        return self.written.get(coords) or self.publishing.get(coords)

    def all(self) -> dict[Coords, Written]:
        return self.publishing | self.written

    def changes(self) -> dict[Coords, Buffer | Merge | None]:
        """All that waits, to be made in another array of the same metadata."""
        return {coords: written.data if written.merge is None else written.merge for coords, written in self.all().items()}

    def working(self) -> AbstractAsyncContextManager[None]:
        """The memory for making changes anew in other chunks, where some wait."""
        merges = (written.merge for written in self.written.values() if written.merge is not None)
        first = next(merges, None)
        return first.working() if first is not None else nullcontext()


def changed(before: Written, merge: Merge, data: Buffer | None) -> Written:
    """``before``, a chunk that waits or is stored, with a change made that gave ``data``."""
    now = Written(data, new_generation(), time.time_ns())
    if not before.generation:
        return now._replace(merge=merge.lasting(data), base=before.base)
    if before.merge is None:
        # All of it waits.
        return now
    return now._replace(merge=merge.lasting(data).after(before.merge), base=before.base)
