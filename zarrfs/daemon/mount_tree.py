"""One mount without the kernel: a store, its hierarchy, and the views over it.

The daemon serves it to the kernel; tests use it directly. Data flows down (views -> hierarchy -> store); changes flow up as one stream:
the observed store notifies `Changes`, which invalidates in the hierarchy and names the changed entries to the kernel.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable
from functools import partial

import trio

from zarrfs import __version__, threads
from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.shard_queue import ShardQueue
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.daemon.changes import Changes
from zarrfs.daemon.losses import Losses
from zarrfs.daemon.malloc import FreedMemory
from zarrfs.daemon.names_of_plugins import known_dialect, store_name
from zarrfs.daemon.rescue import Rescue
from zarrfs.daemon.tasks import Tasks
from zarrfs.daemon.view_plugins import built, chosen, document_names
from zarrfs.errors import UsageError, ZarrfsError
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.recovery import recover
from zarrfs.hierarchy.roots import dialects, read_only_dialects
from zarrfs.hierarchy.unfinished import UnfinishedOperations
from zarrfs.hierarchy.unstored_groups import UnstoredGroups
from zarrfs.keys import Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.machine import is_short
from zarrfs.memory.spill import configure
from zarrfs.options.cache_directory import cache_directory
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.stores import own_files
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.noted import NotedStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.transformers.read_only import ReadOnlyStore
from zarrfs.transformers.without_apart import WithoutApart
from zarrfs.vfs.changed_entry import ChangedEntry
from zarrfs.vfs.node import Directory
from zarrfs.vfs.staging import StagingArea
from zarrfs.vfs.temporary_names import TemporaryNames
from zarrfs.views.base import View, ViewContext
from zarrfs.views.root import ControlDirectory, MountRoot

log = logging.getLogger(__name__)

# A buffer of at least this fraction (one in 24) of the memory limit, or this size, lies in a file.
_LARGE = 24
_LARGE_NBYTES = 8 << 20
_RELIEF_SECONDS = 2.0
_WATCHED_TTL = 300.0
"""Seconds for which decoded chunks are valid while every change is reported, except writes through shared mappings."""
_WATCHED_NODES_TTL = 60.0
"""The same of nodes: a walk over all of them takes longer than `MountConfig.metadata_ttl`."""


class MountTree:
    """All of a mount except the kernel.

    Background tasks run in ``nursery``, which the caller keeps open and then cancels; the caller also closes the store."""

    def __init__(self, config: MountConfig, store: Store, nursery: trio.Nursery) -> None:
        self.config = config
        self.observed = ObservedStore(store)
        noted = NotedStore(self.observed)
        self.store_operations = noted.operations
        tasks = Tasks(nursery)
        limit = config.memory_limit
        self._budget = budget = MemoryBudget(limit)
        staged = budget.share(limit // 4)
        timely = DeadlineStore(noted, config.timeout, tasks, staged)
        whole: Store = ReadOnlyStore(timely) if config.read_only or not store.capabilities.write else timely
        self.store: Store = WithoutApart(whole)
        self.intents = Intents(whole)
        self.mounted_ns = time.time_ns()
        self.watched = False
        self._tasks = tasks
        # One limit for all together; sequential readers get the largest share (docs/design/017-memory.md).
        spill = cache_directory(config)
        self.losses = Losses(Rescue(spill, public_url(config.store)))
        self.counters = WorkCounters()
        freed = FreedMemory(lambda: budget.nbytes)
        budget.tidy = lambda: self._tasks.start_apart(threads.io, freed.give_back)
        configure(spill, max(1 << 20, min(limit // _LARGE, _LARGE_NBYTES)), own_files.make_folder)
        self._cache = ChunkCache(limit // 2, budget)
        slabs = SlabPool(limit // 2, self.counters, spill, budget.share(limit // 2))
        self._readers = ReaderPool(self._cache, slabs, ttl=config.metadata_ttl, start_soon=tasks.start_soon)
        self.staging = StagingArea(
            on_failure=self._on_unpublished,
            on_removed=self.losses.removed,
            on_published=self.losses.published,
            save=self.losses.saved,
            durable=config.durable,
            budget=staged,
            kept=budget.share(limit // 8),
            spill_nbytes=max(1 << 20, min(64 << 20, limit // 8)),
            directory=spill,
        )
        self.queue = ShardQueue(
            delay=config.shard_delay,
            budget=self.staging.room.budget,
            directory=spill,
            start_soon=tasks.start_apart,
            on_change=lambda change, prefix, coords: self.changes.queued(change, prefix, coords),
            on_failure=lambda key, error: self.report("publish", error),
            on_loss=lambda shard, error: self.losses.of_shard(self.hierarchy, shard, error),
        )
        layers = ShardLayers(self.counters, budget, queue=self.queue, read_only=read_only_dialects())
        self.hierarchy = Hierarchy(
            self.store,
            self._readers,
            self.counters,
            ttl=config.metadata_ttl,
            layers=layers,
            chunk_store=whole,
            dialects=dialects(config.dialect_choices),
        )
        editor = NodeEditor(self.hierarchy, self.store, self.intents, new_dialect=known_dialect(config.new_dialect))
        self.unstored = UnstoredGroups(
            self.hierarchy,
            editor,
            self.store,
            start_soon=tasks.start_soon,
            on_created=lambda path: self.changes.stored(Change(path.prefix, "mkdir")),
            on_failure=partial(self.report, "mkdir"),
        )
        self._context = context = ViewContext(
            store=self.store,
            hierarchy=self.hierarchy,
            editor=editor,
            unstored=self.unstored,
            unfinished=UnfinishedOperations(self.hierarchy, self.store, editor, self.intents, start_soon=tasks.start_apart),
            new_arrays=NewArrays(
                chunks=config.new_chunks, codecs=config.new_codecs, separator=config.new_separator, shards=config.new_shards
            ),
            start_soon=tasks.start_soon,
            staging=self.staging,
            store_name=store_name(config.store),
            fill=config.fill,
            resize_erases=config.resize_erases,
            mounted_ns=self.mounted_ns,
            is_watched=lambda: self.watched,
            temporary_names=TemporaryNames(config.temporary_names, document_names()),
        )
        built_views = [(plugin, *view) for plugin in chosen(config) if (view := built(plugin, context)) is not None]
        self._views: dict[str, View] = {plugin.name: view for plugin, view, _ in built_views}
        self.single = config.view
        self.changes = Changes(
            self.hierarchy, self._views, context, self.losses, path_of=self.path_of, start_soon=tasks.start_apart
        )
        self.hierarchy.live.on_removed = self.changes.removed
        self.hierarchy.live.on_moved = self.changes.moved
        folders = {plugin.name: folder for plugin, _, folder in built_views}
        if config.view is not None and config.view not in folders:
            raise UsageError(f"view {config.view!r}: failed, see the log")
        self.root: Directory = (
            folders[config.view]
            if config.view is not None
            else MountRoot(folders, [plugin for plugin, _, _ in built_views], self.mounted_ns)
        )
        self.observed.subscribe(self.changes.stored)
        if config.watch:
            tasks.keep(self.observed.follow, self._on_watched)

    async def relieve(self) -> None:
        """Empty the caches for as long as the machine runs short of memory. Runs in the background."""
        while True:
            await trio.sleep(_RELIEF_SECONDS)
            if self._budget.nbytes and await threads.io(is_short):
                self._budget.release()
                if self._budget.tidy is not None:
                    self._budget.tidy()

    def control(self, **more: Callable[[], dict[str, object]]) -> ControlDirectory:
        """Return the folder ``.zarrfs/``. ``more`` adds the caller's values to ``stats`` or ``config``."""

        def extra(name: str) -> dict[str, object]:
            return more[name]() if name in more else {}

        async def stats() -> bytes:
            return _json(self.stats() | extra("stats"))

        async def config() -> bytes:
            return _json({"views": list(self._views), "read_only": not self.store.capabilities.write} | extra("config"))

        async def errors() -> bytes:
            return self.losses.errors.text()

        async def version() -> bytes:
            return f"zarrfs {__version__}\n".encode()

        return ControlDirectory({"stats.json": stats, "config.json": config, "errors.jsonl": errors, "version": version})

    def stats(self) -> dict[str, object]:
        """Return the counters of the mount."""
        operations = dataclasses.asdict(self.observed.counters)
        return {
            "bytes_read": operations.pop("bytes_read"),
            "bytes_written": operations.pop("bytes_written"),
            "store_operations": operations,
            "chunks_decoded": self.counters.chunks_decoded,
            "chunks_encoded": self.counters.chunks_encoded,
            "shard_indexes_read": self.counters.shard_indexes_read,
            "pending_shards": len(self.queue),
            "pending_bytes": self.queue.nbytes,
            "cache_hits": self._cache.hits,
            "cache_bytes": self._cache.nbytes,
            "slab_bytes": self._readers.slabs.nbytes,
            "slabs_filled": self.counters.slabs_filled,
            "slabs_spilled": self.counters.slabs_spilled,
            "nodes_parsed": self.counters.nodes_parsed,
            "open_handles": self.staging.open_handles,
            "dirty_bytes": self.staging.dirty_nbytes,
            "watched": self.watched,
        }

    async def recover(self) -> None:
        """Complete or undo interrupted operations without a worker. Called before the first request of the kernel."""
        await recover(self.intents, self.hierarchy, self.store, partial(self.report, "recover"))

    def report(self, where: str, error: BaseException) -> None:
        """Record an error for ``.zarrfs/errors.jsonl``."""
        self.losses.errors.add(where, error)

    async def publish_all(self) -> list[tuple[str, str]]:
        """Publish all staged data, at the end; return accepted data that could not be stored since the start, as (file, reason).

        Refused data, whose programs got an error, is in `Losses.refused`."""
        for staged, error in await self.staging.publish_all():
            await self.losses.at_the_end(self.staging, staged, error)
        for path, failure in await self.unstored.store_all():
            self.losses.note(path, f"the group could not be stored: {failure}")
        await self.queue.end()
        for path, failure in await self._context.unfinished.end():
            self.losses.note(path, f"the consolidated copy of its group could not be updated: {failure}")
        if self.observed.counters.changes:
            try:
                await self.store.sync_all()
            except ZarrfsError as error:
                reason = f"sync failed, stored data may not survive a power cut: {error}"
                self.losses.note(public_url(self.config.store), reason)
                self.report("sync", error)
        for path in self.hierarchy.empty_groups.with_attributes:
            self.losses.note(path, "attributes lost: it did not become an array, and its dialect has no groups")
        await self.losses.save_detached()
        for ident, waited in (each for view in self._views.values() for each in view.left()):
            await self.losses.of_name(self._context.temporaries.content(ident), waited=waited)
        return self.losses.failures

    def _on_unpublished(self, ident: str, error: BaseException) -> None:
        self.losses.unpublished(self.staging, ident, error)
        # The staged data is gone, but the kernel has pages of it. Readers keep both (`StagingArea.abandon`).
        staged = self.staging.get(ident)
        is_read = staged is not None and staged.handles > 1
        self.changes.report([ChangedEntry(path=self.path_of(ident), gone=True, superseded=is_read)])

    def _on_watched(self, complete: bool) -> None:
        self.watched = complete
        ttl = self.config.metadata_ttl
        self._readers.ttl = max(ttl, _WATCHED_TTL) if complete and ttl else ttl
        self.hierarchy.ttl = max(ttl, _WATCHED_NODES_TTL) if complete and ttl else ttl
        if complete:
            # Requests answered earlier whose changes are not reported yet are handled as without a watch.
            self.changes.report(())
        elif not self.changes.is_over:
            self.changes.stored(Change(Prefix(""), "unknown", external=True))

    def path_of(self, ident: str) -> str:
        """Return the path in the mount of the file ``ident``."""
        return (ident if self.single is None else ident.partition("/")[2]).rstrip("/")


def _json(value: dict[str, object]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
