"""Write-back queue for inner chunks of shards (docs/SEMANTICS.md, "Shards"; docs/design/008-shards.md).

A shard is written once for many inner chunks. It is published, with everything queued for it, when each of its chunks within the array
was written, on request (`DelayedChunks.publish`), ``delay`` seconds after its first chunk, when there is no room left, and at the end of
the mount. Reads through this mount see the queued chunks.

Queued chunks are in memory up to the budget, else in mapped files. A failed publish keeps everything queued; if it was part of an
`update`, the chunks of that update are dropped, because the caller gets the error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import trio

from zarrfs.arrays.chunk_store import ChunkStore, Merge, Written, new_generation, split
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.queued_shard import RETRY_SECONDS, OnLoss, QueuedShard, ShardsAt, changed, give_up_lost, is_lost
from zarrfs.arrays.shard_room import ShardRoom
from zarrfs.arrays.spill_file import SpillFile
from zarrfs.buffers import Buffer
from zarrfs.errors import StaleEntry, StoreTimeout, ZarrfsError, raise_first
from zarrfs.keys import Key, Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.change import Change, announcing, is_announced
from zarrfs.stores.presupposing import presupposing_nothing
from zarrfs.threads import CPU_THREADS

log = logging.getLogger(__name__)

# Due shards published concurrently.
_AT_ONCE = 8
# Delay after an array is found to be gone: another program replaces it in two steps.
_GRACE_SECONDS = 1.0
# Limit of lost shards whose error is kept for a later request.
_MAX_UNREPORTED = 1000

OnChange = Callable[[Change, Prefix, Sequence[Coords]], None]
"""Receives a change to a queued shard and the coordinates of the changed chunks, of the array with this chunk prefix."""


class ShardQueue:
    """The queued shards of a mount.

    ``delay``: seconds after which a shard is published (0: at once). ``on_change``: see `OnChange`. ``on_failure``: called with a key and
    the error of a failed publish that no caller gets; ``on_loss``: for one that can never succeed.
    """

    def __init__(
        self,
        *,
        delay: float,
        budget: MemoryBudget,
        directory: str | None,
        start_soon: Callable[..., None],
        on_change: OnChange,
        on_failure: Callable[[str, Exception], None],
        on_loss: OnLoss = is_lost,
    ) -> None:
        self.delay = delay
        self._directory = directory
        self._start_soon = start_soon
        self._on_change = on_change
        self._on_failure = on_failure
        self._on_loss = on_loss
        self._shards: dict[tuple[LiveNode, Coords], QueuedShard] = {}
        self._room = ShardRoom(budget, self._shards.values(), self._publish_early)
        # Errors of shards lost in the background, for the next request.
        self._unreported: dict[QueuedShard, Exception] = {}
        self._running = False
        self._news = trio.Event()
        self._slots = trio.Semaphore(_AT_ONCE)

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def keys(self) -> list[Key]:
        """Keys of the queued shards."""
        return [shard.key for shard in self._shards.values()]

    @property
    def nbytes(self) -> int:
        """Number of queued bytes."""
        return sum(len(each.data or b"") for shard in self._shards.values() for each in shard.all().values())

    @staticmethod
    def is_publishing(key: Key) -> bool:
        """Return True within the store of queued chunks for ``key``: its changes were announced when they were queued."""
        return is_announced(key)

    def get(self, node: LiveNode, unit: Coords) -> QueuedShard | None:
        """Return the queue entry of a shard."""
        return self._shards.get((node, unit))

    def of(self, node: LiveNode) -> list[QueuedShard]:
        """Return the queued shards of an array."""
        return [shard for shard in self._shards.values() if shard.node is node]

    async def publish_one(self, node: LiveNode, unit: Coords) -> None:
        """Publish a queued shard. Raises as `publish`."""
        shards = [shard] if (shard := self._shards.get((node, unit))) is not None else []
        await self._publish_all(shards, lambda each: each.node is node and each.unit == unit)
        if shards:
            node.check()

    async def publish(self, target: ShardsAt) -> list[Key]:
        """Publish the queued shards at ``target``; return their keys, or raise the first failure after trying all.

        The error of a shard, or of chunks, lost in the background is raised once.
        """
        shards = [each for each in self._shards.values() if each.is_at(target)]
        await self._publish_all(shards, lambda each: each.is_at(target))
        return [shard.key for shard in shards]

    async def _publish_all(self, shards: Iterable[QueuedShard], is_meant: Callable[[QueuedShard], bool]) -> None:
        failed: list[Exception] = []
        for shard in shards:
            try:
                await self._publish(shard)
            except ZarrfsError as error:
                failed.append(error)
        failed += [self._unreported.pop(shard) for shard in [each for each in self._unreported if is_meant(each)]]
        raise_first(failed)

    async def end(self) -> list[Key]:
        """Publish everything; pass failed shards to `OnLoss`; return the keys of the lost ones."""
        lost: list[Key] = []
        for shard in list(self._shards.values()):
            key = shard.key
            try:
                await self._publish(shard)
            except Exception as error:  # noqa: BLE001 (a defect in one shard must not affect the others)
                # Earlier losses were reported then.
                if shard.written and not await self._lose(shard, error):
                    lost.append(key)
        return lost

    def below(self, prefix: Prefix) -> list[QueuedShard]:
        """Return the queued shards whose current keys are below ``prefix``."""
        return [each for each in self._shards.values() if each.key.startswith(prefix)]

    async def drop(self, shards: Iterable[QueuedShard]) -> None:
        """Remove these shards from the queue: they are erased."""
        for shard in shards:
            async with shard.lock:
                shard.clear()
                self._room.release(shard)
                self._forget_if_empty(shard)

    async def put(self, shard: QueuedShard, chunks: Mapping[Coords, Buffer | None]) -> None:
        """Queue these chunks; publish the shard if it is now complete, or has no delay. If it raises, they are not queued."""
        now = time.time_ns()
        mine = {coords: Written(data, new_generation(), now) for coords, data in chunks.items()}
        with self._putting(shard) as buffers:
            mine = await self._all_kept(shard, mine, buffers)
            # `modify` takes the same turn from its read of a chunk to its insertion.
            async with shard.node.turn(shard.unit):
                self._insert(shard, mine)
        await self._inserted(shard, mine)

    async def modify(self, shard: QueuedShard, changes: Mapping[Coords, Buffer | Merge | None]) -> None:
        """Run `put` with some chunks changed in part: relative to the queued chunk, else to the stored one."""
        whole, merges = split(changes)
        with self._putting(shard) as buffers:
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
                    buffers.clear()
                    mine = await self._all_kept(shard, mine, buffers)
                    # Queued chunks may be stored by now, and stored ones replaced.
                    same = all(shard.get(coords) is (each if each.generation else None) for coords, each in was.items())
                    if same and shard.publishing.keys().isdisjoint(merges):
                        break
                self._insert(shard, mine)
        await self._inserted(shard, mine)

    async def _as_they_are(self, shard: QueuedShard, merges: Mapping[Coords, Merge]) -> dict[Coords, Written]:
        """Return these chunks as queued, else as stored: then with that generation as ``base``, and none of their own."""
        while any(coords in shard.publishing for coords in merges):
            # The result of the publish is not known yet.
            async with shard.lock:
                pass
        queued = {coords: written for coords in merges if (written := shard.get(coords)) is not None}
        stored = await shard.chunks.stored({coords: merge for coords, merge in merges.items() if coords not in queued})
        return queued | {coords: Written(data, "", 0, base=generation) for coords, (data, generation) in stored.items()}

    @contextmanager
    def _putting(self, shard: QueuedShard) -> Iterator[list[Buffer]]:
        """Keep the entry of a shard during an insertion; see `QueuedShard.inserting`."""
        try:
            with shard.inserting() as buffers:
                yield buffers
        finally:
            self._forget_if_empty(shard)
            self._room.put_ended(shard)

    async def _all_kept(self, shard: QueuedShard, mine: Mapping[Coords, Written], buffers: list[Buffer]) -> dict[Coords, Written]:
        """Return the same chunks in memory that stays, in ``buffers``."""
        # Chunks that are stored at once, or not at all, need no room of their own.
        if not self.delay or len(mine) >= shard.expected:
            return dict(mine)
        kept: dict[Coords, Written] = {}
        for coords, written in mine.items():
            data = None if written.data is None else await self._room.kept(shard, written.data, buffers)
            merge = written.merge
            if merge is not None:
                merge = merge.kept(data, await self._room.kept(shard, merge.packed, buffers))
            kept[coords] = written._replace(data=data, merge=merge)
        return kept

    def _insert(self, shard: QueuedShard, mine: Mapping[Coords, Written]) -> None:
        if not shard.written:
            shard.since = trio.current_time()
        shard.insert(mine)
        self._announce(shard, mine)

    async def _inserted(self, shard: QueuedShard, mine: Mapping[Coords, Written]) -> None:
        if self.delay and len(shard.written) < shard.expected:
            shard.settle(mine)
            self._run_soon()
            return
        try:
            node: LiveNode | None = None
            while shard.node is not node:
                node = shard.node
                await self._try_to_publish(shard)
        except BaseException as error:
            shard.refuse(mine)
            self._announce(shard, mine)
            self._forget_if_empty(shard)
            if shard.written:
                # Its writers got success already.
                self._run_soon()
                if isinstance(error, StaleEntry) and shard.node.why_gone is not None:
                    await self._lose(shard, error)
            raise

    async def _publish(self, shard: QueuedShard) -> None:
        """Store all queued chunks of one shard, in one set; chunks that arrive meanwhile stay queued."""
        node: LiveNode | None = None
        while shard.node is not node:
            # If it is adopted meanwhile, it is stored at the new path.
            node = shard.node
            try:
                await self._try_to_publish(shard)
            except StaleEntry as error:
                if shard.node is node and (node.why_gone is None or not await self._lose(shard, error)):
                    raise

    async def _publish_early(self, shard: QueuedShard) -> None:
        """Publish a shard for the room that it takes; report and retry a failure."""
        try:
            await self._publish(shard)
        except ZarrfsError as error:
            self._failed(shard, error)

    async def _try_to_publish(self, shard: QueuedShard) -> None:
        failures, node = shard.failures, shard.node
        # A writer that waits for the lock holds the node and has its memory.
        async with node.holding(), shard.working(), shard.lock:
            if shard.node is not node:
                return
            if not shard.written:
                self._forget_if_empty(shard)
                return
            if shard.failures != failures and shard.unanswered is not None:
                # The store timed out while this task waited. If each retried in turn, the last would wait for all deadlines.
                raise shard.unanswered.again()
            if (error := await give_up_lost(shard, self._on_loss, self._announce)) is not None:
                self._report_later(shard, error)
            if shard.written:
                await self._store(shard)
            shard.since = trio.current_time()
            self._forget_if_empty(shard)
            if error is not None:
                raise error

    async def _store(self, shard: QueuedShard) -> None:
        shard.publishing, shard.written = shard.written, {}
        # Once it is adopted, the shard has those of another path.
        node, chunks = shard.node, shard.chunks
        try:
            async with chunks.exclusive(next(iter(shard.publishing))):
                if shard.may_be_replaced_unread and not node.is_being_changed:
                    # Another mount may have enlarged the array, and stored more, before the lock.
                    with presupposing_nothing():
                        await node.confirmed()
                    chunks = shard.chunks if shard.node is node else chunks
                with announcing(shard.key):
                    generations = await chunks.merge(shard.publishing)
        except BaseException as error:
            shard.written = shard.publishing | shard.written
            shard.failures += 1
            shard.unanswered = error.again() if isinstance(error, StoreTimeout) else None
            if self.delay:
                # During the publish the queue may have been empty.
                self._run_soon()
            raise
        else:
            shard.retry = RETRY_SECONDS[0]
            stored, shard.publishing = shard.publishing, {}
            shard.settle(stored, is_stored=True)
            self._room.release(shard)
            # Merges into values that others stored meanwhile gave chunks other than those announced.
            anew = {each: written for each, written in stored.items() if written.merge and generations[each] != written.generation}
            if anew:
                self._announce(shard, anew)
        finally:
            shard.publishing = {}

    async def _lose(self, shard: QueuedShard, error: Exception) -> bool:
        """Remove chunks that can no longer be stored from the queue, unless they are adopted; return True if nothing is lost."""
        node = shard.node
        async with shard.lock:
            if shard.node is not node:
                return True
            if not shard.written:
                # Another caller got the error.
                return False
            if shard.node.erased_by_mount:
                log.info("%s: queued chunks removed with their array", shard.key)
                is_kept = True
            else:
                is_kept = await self._on_loss(shard, error)
                if shard.node is not node:
                    # The search for its array has used it at its new path.
                    return True
            shard.clear()
            self._room.release(shard)
            self._forget_if_empty(shard)
            return is_kept

    def shard(self, node: LiveNode, array: ArrayNode, some: Coords, chunks: ChunkStore, expected: int) -> QueuedShard:
        """Return the queue entry of the shard of chunk ``some``, for `put`. The array may have been resized since its first chunk."""
        unit = chunks.unit(some)
        shard = self._shards.get((node, unit))
        if shard is None:
            shard = QueuedShard(node, array, unit, some, chunks, trio.current_time(), expected, SpillFile(self._directory))
            self._shards[node, unit] = shard
            node.on_end |= {self._ended}
        shard.use(array, chunks, expected)
        return shard

    def _forget_if_empty(self, shard: QueuedShard) -> None:
        key = (shard.node, shard.unit)
        if not shard.written and not shard.publishing and not shard.arriving and self._shards.get(key) is shard:
            shard.clear()
            self._room.release(shard)
            del self._shards[key]

    def adopt(self, node: LiveNode, array: ArrayNode, chunks: ChunkStore, expected: Callable[[Coords], int]) -> None:
        """Make ``node`` the owner of what is queued for the same array at the path from which another program renamed it.

        To be called before the array is used at its new path, or in a new shape: what is written there is newer than what was queued.
        """
        for shard in self.of(node):
            # In an array that has grown, other chunks complete a shard.
            shard.use(array, chunks, expected(shard.some))
        for before in dict.fromkeys(shard.node for shard in self._shards.values()):
            if before is node or not node.has_taken_place_of(before):
                continue
            for shard in self.of(before):
                key = node, chunks.unit(shard.some)
                is_same = array.dialect == shard.array.dialect and array.metadata.is_resize_of(shard.array.metadata)
                if is_same and key not in self._shards:
                    self._shards[key] = self._shards.pop((before, shard.unit))
                    shard.node, shard.unit = key
                    shard.use(array, chunks, expected(shard.some))
                    node.on_end |= {self._ended}
                    self._announce(shard, shard.all())

    # --- later --------------------------------------------------------------------------------------------------------------

    def _ended(self, node: LiveNode) -> None:
        """Schedule the queued shards of an array that is gone, to follow it or be lost, after time for its replacement to appear."""
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
        """Publish each shard when it is due, as long as any is queued. A shard that fails delays no other."""
        try:
            while queued := [each for each in self._shards.values() if each.written and not each.underway]:
                self._news = trio.Event()
                with trio.move_on_at(min(shard.since for shard in queued) + self.delay):
                    await self._news.wait()
                now = trio.current_time()
                for shard in queued:
                    if shard.since + self.delay <= now and self._shards.get((shard.node, shard.unit)) is shard:
                        shard.underway = True
                        self._start_soon(self._publish_due, shard)
        finally:
            self._running = False

    async def _publish_due(self, shard: QueuedShard) -> None:
        try:
            async with self._slots:
                await self._publish(shard)
        except Exception as error:  # noqa: BLE001 (no caller waits: it is reported, and retried)
            (self._failed if shard.written else self._report_later)(shard, error)
        finally:
            shard.underway = False
            if shard.written:
                self._run_soon()

    def _report_later(self, shard: QueuedShard, error: Exception) -> None:
        if len(self._unreported) < _MAX_UNREPORTED:
            self._unreported[shard] = error.again() if isinstance(error, ZarrfsError) else error

    def _failed(self, shard: QueuedShard, error: Exception) -> None:
        log.warning("%s: publish failed, will retry: %s", shard.key, error)
        self._on_failure(shard.key, error)
        shard.since = trio.current_time() - self.delay + shard.retry
        shard.retry = min(2 * shard.retry, RETRY_SECONDS[1])

    def _announce(self, shard: QueuedShard, chunks: Mapping[Coords, Written]) -> None:
        queued = {each for each in chunks if (written := shard.get(each)) is not None and written.data is not None}
        if queued:
            self._on_change(Change(shard.key, "set", queued=True), shard.node.chunk_prefix, list(queued))
        gone = [each for each in chunks if each not in queued] if len(queued) < len(chunks) else []
        if gone:
            self._on_change(Change(shard.key, "unknown", queued=True), shard.node.chunk_prefix, gone)
