"""Chunks that were written and whose shard is not written yet (docs/SEMANTICS.md, "Shards"; docs/design/008-shards.md).

A shard is published, with everything that waits for it, when each of its chunks within the array was written, when somebody asks for it
(`DelayedChunks.publish`), some time after its first chunk came, when there is no room left for what waits, and at the end of the mount.
Until then all that is read of it through this mount is as if it were.

What waits lies in memory as far as the budget goes, else in mapped files. A publish that fails leaves everything waiting; one that was
part of an `update` takes the chunks of that update back, since whoever made it learns of the failure.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import trio

from zarrfs.arrays.chunk_store import ChunkStore, Merge, Written, new_generation, split
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.queued_shard import RETRY_SECONDS, Place, QueuedShard, changed
from zarrfs.arrays.spill_file import SpillFile
from zarrfs.errors import StaleEntry, StoreFull, StoreTimeout, ZarrfsError
from zarrfs.keys import Key, Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.change import Change
from zarrfs.stores.values import Buffer
from zarrfs.threads import CPU_THREADS

log = logging.getLogger(__name__)

# Of what waits in files, in parts of the memory budget: then shards are published although they are not complete.
_FILES_TO_MEMORY = 32
# Shards whose time has come that are published at the same time.
_AT_ONCE = 8
# From when an array is found to be gone: replacing it takes other programs two steps.
_GRACE_SECONDS = 1.0
# Shards that were lost while nobody waited for them, and that somebody may ask for.
_MOST_UNTOLD = 1000

_publishing: contextvars.ContextVar[Key | None] = contextvars.ContextVar("zarrfs_publishing_shard", default=None)


OnChange = Callable[[Change, Prefix, Sequence[Coords]], None]
"""Called with a change of a shard that waits, and the chunks (of the array with this chunk prefix) that are other ones by it."""


OnLoss = Callable[[QueuedShard, Exception], Awaitable[bool]]
"""Called with what waits for a shard and cannot be published any more, and why: it is forgotten after that. Whether nothing is lost."""


async def _is_lost(shard: QueuedShard, error: Exception) -> bool:
    return False


class ShardQueue:
    """All that waits in a mount. ``delay``: seconds after which a shard is published (0: at once). ``told``: see `OnChange`.
    ``on_failure``: called with a key and why it could not be published, where no caller learns it; ``on_loss``: where it never can be."""

    def __init__(
        self,
        *,
        delay: float,
        budget: MemoryBudget,
        directory: str | None,
        start_soon: Callable[..., None],
        told: OnChange,
        on_failure: Callable[[str, Exception], None],
        on_loss: OnLoss = _is_lost,
    ) -> None:
        self.delay = delay
        self._budget = budget
        self._directory = directory
        self._start_soon = start_soon
        self._told = told
        self._on_failure = on_failure
        self._on_loss = on_loss
        self._shards: dict[tuple[LiveNode, Coords], QueuedShard] = {}
        # What was lost while nobody waited for it, for who asks next.
        self._untold: dict[QueuedShard, Exception] = {}
        self._running = False
        self._news = trio.Event()
        self._slots = trio.Semaphore(_AT_ONCE)

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def keys(self) -> list[Key]:
        """The shards that something waits for."""
        return [shard.key for shard in self._shards.values()]

    @property
    def nbytes(self) -> int:
        """Bytes that wait."""
        return sum(len(each.data or b"") for shard in self._shards.values() for each in shard.all().values())

    @staticmethod
    def is_publishing(key: Key) -> bool:
        """Whether the caller is called because what waited for ``key`` is being stored: all that it changes was told before."""
        return _publishing.get() == key

    def get(self, node: LiveNode, unit: Coords) -> QueuedShard | None:
        """What waits for a shard."""
        return self._shards.get((node, unit))

    def of(self, node: LiveNode) -> list[QueuedShard]:
        """All that waits of an array."""
        return [shard for shard in self._shards.values() if shard.node is node]

    async def publish_one(self, node: LiveNode, unit: Coords) -> None:
        """Publish what waits for a shard."""
        if (shard := self._shards.get((node, unit))) is not None:
            await self._publish(shard)
            node.check()

    async def publish(self, place: Place) -> None:
        """Publish what waits there; raises the first failure, after trying all. What was lost before, while nobody waited for it, is
        raised once."""
        first: Exception | None = None
        for shard in [each for each in self._shards.values() if each.is_at(place)]:
            try:
                await self._publish(shard)
            except ZarrfsError as error:
                first = first or error
        for shard in [each for each in self._untold if each.is_at(place)]:
            first = first or self._untold[shard]
            del self._untold[shard]
        if first is not None:
            raise first

    async def end(self) -> list[Key]:
        """Publish everything; what cannot be is lost (`OnLoss`): the keys of that."""
        lost: list[Key] = []
        for shard in list(self._shards.values()):
            key = shard.key
            try:
                await self._publish(shard)
            except Exception as error:  # noqa: BLE001 (a defect that one shard meets must not cost the others)
                # What was lost before was told then.
                if shard.written and not await self._lose(shard, error):
                    lost.append(key)
        return lost

    def below(self, prefix: Prefix) -> list[QueuedShard]:
        """The shards with keys below ``prefix``, as things are, that something waits for."""
        return [each for each in self._shards.values() if each.key.startswith(prefix)]

    async def drop(self, shards: Iterable[QueuedShard]) -> None:
        """Forget what waits for these: they are erased."""
        for shard in shards:
            async with shard.lock:
                self._settle(shard, shard.written)
                shard.written = {}
                self._forget_if_empty(shard)

    async def put(self, shard: QueuedShard, chunks: Mapping[Coords, Buffer | None]) -> None:
        """Let these chunks wait; publish the shard if it is complete by them, or may not wait. When it raises, they do not wait."""
        now = time.time_ns()
        mine = {coords: Written(data, new_generation(), now) for coords, data in chunks.items()}
        with self._putting(shard):
            mine = await self._all_kept(shard, mine)
            # Who changes a part of one of them keeps others out from reading it to putting it here.
            async with shard.node.turn(shard.unit):
                before = self._insert(shard, mine)
        await self._inserted(shard, mine, before)

    async def modify(self, shard: QueuedShard, changes: Mapping[Coords, Buffer | Merge | None]) -> None:
        """As `put`, where some chunks are changed in part: in what waits of them, else in what is stored."""
        whole, merges = split(changes)
        with self._putting(shard):
            async with shard.node.turn(shard.unit):
                while True:
                    now = time.time_ns()
                    was = await self._as_they_are(shard, merges)
                    mine = {coords: Written(data, new_generation(), now) for coords, data in whole.items()}

                    async def change(
                        coords: Coords, was: Mapping[Coords, Written] = was, mine: dict[Coords, Written] = mine
                    ) -> None:
                        data = await merges[coords].onto(was[coords].data)
                        if data is not was[coords].data:
                            mine[coords] = changed(was[coords], merges[coords], data)

                    await for_each(list(was), change, CPU_THREADS)
                    if not mine:
                        return
                    mine = await self._all_kept(shard, mine)
                    # What waited may be stored by now, and what is stored another chunk.
                    same = all(shard.get(coords) is (each if each.generation else None) for coords, each in was.items())
                    if same and shard.publishing.keys().isdisjoint(merges):
                        break
                before = self._insert(shard, mine)
        await self._inserted(shard, mine, before)

    async def _as_they_are(self, shard: QueuedShard, merges: Mapping[Coords, Merge]) -> dict[Coords, Written]:
        """These chunks as they wait, or as they are stored: then with that generation as ``base``, and none of their own."""
        while any(coords in shard.publishing for coords in merges):
            # Whether it will be stored is not known yet.
            async with shard.lock:
                pass
        waiting = {coords: written for coords in merges if (written := shard.get(coords)) is not None}
        stored = await shard.chunks.stored({coords: merge for coords, merge in merges.items() if coords not in waiting})
        return waiting | {coords: Written(data, "", 0, base=generation) for coords, (data, generation) in stored.items()}

    @contextmanager
    def _putting(self, shard: QueuedShard) -> Iterator[None]:
        """While somebody is about to put something there, it is not forgotten."""
        shard.putting += 1
        try:
            yield
        finally:
            shard.putting -= 1
            self._forget_if_empty(shard)

    async def _all_kept(self, shard: QueuedShard, mine: Mapping[Coords, Written]) -> dict[Coords, Written]:
        """The same, in memory that stays."""
        # What is stored at once, or not at all, needs no room of its own.
        if not self.delay or len(mine) >= shard.expected:
            return dict(mine)
        kept: dict[Coords, Written] = {}
        for coords, written in mine.items():
            data = None if written.data is None else await self._kept(shard, written.data)
            merge = written.merge
            if merge is not None:
                merge = merge.kept(data, await self._kept(shard, merge.packed))
            kept[coords] = written._replace(data=data, merge=merge)
        return kept

    def _insert(self, shard: QueuedShard, mine: Mapping[Coords, Written]) -> dict[Coords, Written | None]:
        """Let them wait; what waited before."""
        before = {coords: shard.written.get(coords) for coords in mine}
        if not shard.written:
            shard.since = trio.current_time()
        shard.written |= mine
        self._tell(shard, mine)
        return before

    async def _inserted(self, shard: QueuedShard, mine: Mapping[Coords, Written], before: Mapping[Coords, Written | None]) -> None:
        if self.delay and len(shard.written) < shard.expected:
            self._run_soon()
            return
        try:
            await self._try_to_publish(shard)
        except BaseException as error:
            for coords, written in mine.items():
                if shard.written.get(coords) is written:
                    earlier = before[coords]
                    if earlier is None:
                        del shard.written[coords]
                    else:
                        shard.written[coords] = earlier
            self._tell(shard, mine)
            self._forget_if_empty(shard)
            if shard.written:
                # Who wrote it was told that it is stored.
                self._run_soon()
                if isinstance(error, StaleEntry) and shard.node.why_gone is not None:
                    await self._lose(shard, error)
            raise

    async def _publish(self, shard: QueuedShard) -> None:
        """Store all that waits for one shard, in one set; what comes meanwhile waits for the next one."""
        try:
            await self._try_to_publish(shard)
        except StaleEntry as error:
            if shard.node.why_gone is None or not await self._lose(shard, error):
                raise

    async def _try_to_publish(self, shard: QueuedShard) -> None:
        failures = shard.failures
        # Whoever puts chunks holds the node and has memory, and waits for the lock.
        async with shard.node.holding(), shard.working(), shard.lock:
            if not shard.written:
                self._forget_if_empty(shard)
                return
            if shard.failures != failures and shard.unanswered is not None:
                # The store did not answer while this one waited. If each tried in turn, the last would wait for all deadlines.
                raise shard.unanswered
            await self._store(shard)
            shard.since = trio.current_time()
            self._forget_if_empty(shard)

    async def _store(self, shard: QueuedShard) -> None:
        shard.publishing, shard.written = shard.written, {}
        try:
            async with shard.chunks.exclusive(next(iter(shard.publishing))):
                token = _publishing.set(shard.key)
                try:
                    generations = await shard.chunks.merge(shard.publishing)
                finally:
                    _publishing.reset(token)
        except BaseException as error:
            shard.written = shard.publishing | shard.written
            shard.failures += 1
            shard.unanswered = error if isinstance(error, StoreTimeout) else None
            if self.delay:
                # While this was under way there may have been nothing else to wait for.
                self._run_soon()
            raise
        else:
            self._settle(shard, shard.publishing)
            shard.retry = RETRY_SECONDS[0]
            stored, shard.publishing = shard.publishing, {}
            # Changes that were made in what others have stored meanwhile gave other chunks than were seen here.
            anew = {each: written for each, written in stored.items() if written.merge and generations[each] != written.generation}
            if anew:
                self._tell(shard, anew)
        finally:
            shard.publishing = {}

    async def _lose(self, shard: QueuedShard, error: Exception) -> bool:
        """What waits cannot be stored any more, and waits no longer. Whether nothing of it is lost."""
        async with shard.lock:
            if not shard.written:
                # Somebody else was told.
                return False
            if shard.node.erased_here:
                log.info("%s: chunks that waited went with their array", shard.key)
                is_kept = True
            else:
                is_kept = await self._on_loss(shard, error)
            self._settle(shard, shard.written)
            shard.written = {}
            self._forget_if_empty(shard)
            return is_kept

    def shard(self, node: LiveNode, array: ArrayNode, some: Coords, chunks: ChunkStore, expected: int) -> QueuedShard:
        """What waits for the shard that holds ``some`` chunk, for `put`. The array may have another shape than at its first chunk."""
        unit = chunks.unit(some)
        shard = self._shards.get((node, unit))
        if shard is None:
            shard = QueuedShard(node, array, unit, some, chunks, trio.current_time(), expected, SpillFile(self._directory))
            self._shards[node, unit] = shard
            node.on_end.add(self._ended)
        shard.array, shard.chunks, shard.expected = array, chunks, expected
        return shard

    # --- room ---------------------------------------------------------------------------------------------------------------

    async def _kept(self, shard: QueuedShard, data: Buffer) -> Buffer:
        """A copy of ``data`` that stays, in memory or in a mapped file of the shard."""
        nbytes = len(data)
        if self._budget.take(nbytes):
            shard.memory_nbytes += nbytes
            return bytes(data)
        if sum(each.files.nbytes for each in self._shards.values()) > self._budget.limit * _FILES_TO_MEMORY:
            await self._make_room(shard)
        try:
            return await shard.files.keep(data)
        except OSError as error:
            await self._make_room(shard)
            raise StoreFull(f"no room to keep a chunk of {shard.key!r}: {error}", key=shard.key) from error

    async def _make_room(self, wanting: QueuedShard) -> None:
        """Publish the shard that waits longest, other than the one that wants the room."""
        # One that is being moved waits for who holds another array that goes with it, and that may be us.
        others = [
            each
            for each in self._shards.values()
            if each is not wanting and not each.node.is_being_changed and each.node.why_gone is None
        ]
        if others:
            oldest = min(others, key=lambda shard: shard.since)
            try:
                await self._publish(oldest)
            except ZarrfsError as error:
                self._failed(oldest, error)

    def _settle(self, shard: QueuedShard, done: Mapping[Coords, Written]) -> None:
        """What was ``done`` waits no longer: its room is free."""
        if not shard.written or shard.written is done:
            self._budget.give(shard.memory_nbytes)
            shard.memory_nbytes = 0
            # Unmapped when the last reader has let go of them.
            shard.files.clear()

    def _forget_if_empty(self, shard: QueuedShard) -> None:
        place = (shard.node, shard.unit)
        if not shard.written and not shard.publishing and not shard.putting and self._shards.get(place) is shard:
            self._settle(shard, shard.written)
            del self._shards[place]

    # --- later --------------------------------------------------------------------------------------------------------------

    def _ended(self, node: LiveNode) -> None:
        """What waits for an array that is gone follows it, or is lost: soon, when whoever has erased it has put another in its place."""
        for shard in self.of(node):
            shard.since = min(shard.since, trio.current_time() - self.delay + _GRACE_SECONDS)
        if self.of(node):
            self._run_soon()

    def _run_soon(self) -> None:
        self._news.set()
        if not self._running:
            self._running = True
            self._start_soon(self._run)

    async def _run(self) -> None:
        """Publish each shard when its time has come, for as long as any waits. One that cannot be stored delays no other."""
        try:
            while waiting := [each for each in self._shards.values() if each.written and not each.underway]:
                self._news = trio.Event()
                with trio.move_on_at(min(shard.since for shard in waiting) + self.delay):
                    await self._news.wait()
                now = trio.current_time()
                for shard in waiting:
                    if shard.since + self.delay <= now and self._shards.get((shard.node, shard.unit)) is shard:
                        shard.underway = True
                        self._start_soon(self._publish_due, shard)
        finally:
            self._running = False

    async def _publish_due(self, shard: QueuedShard) -> None:
        try:
            async with self._slots:
                await self._publish(shard)
        except Exception as error:  # noqa: BLE001 (nobody waits for it: it is told, and tried again)
            if shard.written:
                self._failed(shard, error)
            elif len(self._untold) < _MOST_UNTOLD:
                self._untold[shard] = error
        finally:
            shard.underway = False
            if shard.written:
                self._run_soon()

    def _failed(self, shard: QueuedShard, error: Exception) -> None:
        log.warning("%s could not be published, which is tried again: %s", shard.key, error)
        self._on_failure(shard.key, error)
        shard.since = trio.current_time() - self.delay + shard.retry
        shard.retry = min(2 * shard.retry, RETRY_SECONDS[1])

    def _tell(self, shard: QueuedShard, chunks: Mapping[Coords, Written]) -> None:
        waiting = {each for each in chunks if (written := shard.get(each)) is not None and written.data is not None}
        if waiting:
            self._told(Change(shard.key, "set", waits=True), shard.node.chunk_prefix, list(waiting))
        gone = [each for each in chunks if each not in waiting] if len(waiting) < len(chunks) else []
        if gone:
            self._told(Change(shard.key, "unknown", waits=True), shard.node.chunk_prefix, gone)
