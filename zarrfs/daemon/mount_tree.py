"""One mount without the kernel: a store, its hierarchy, and the views over it.

The daemon serves it to the kernel; tests use it directly. Data flows down (views -> hierarchy -> store); changes flow up as one stream:
the observed store notifies the hierarchy, which invalidates, and `MountTree.affected` names the entries that have changed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import trio

from zarrfs import __version__, threads
from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.shard_queue import ShardQueue
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.daemon.losses import Losses
from zarrfs.daemon.malloc import FreedMemory
from zarrfs.daemon.moves import Moved, Moves
from zarrfs.daemon.names_of_plugins import known_dialect, store_name
from zarrfs.daemon.rescue import Rescue
from zarrfs.daemon.slices import Slices, Work
from zarrfs.daemon.tasks import Tasks
from zarrfs.daemon.view_plugins import built, chosen, document_names
from zarrfs.errors import UsageError, ZarrfsError
from zarrfs.hierarchy.bound_paths import paths_of
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.live_array import ERASED
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.node_changes import NodeChange, NodeChanges
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.recovery import recover
from zarrfs.hierarchy.roots import dialects, read_only_dialects
from zarrfs.hierarchy.unfinished import UnfinishedOperations
from zarrfs.hierarchy.unstored_groups import UnstoredGroups
from zarrfs.keys import APART, NodePath, Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.machine import is_short
from zarrfs.memory.spill import configure
from zarrfs.model.chunk_grid import Coords
from zarrfs.options.cache_directory import cache_directory
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
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
from zarrfs.views.base import View, ViewContext, path_of
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

Forgotten = Callable[[str, Container[str]], Iterator[None]]
"""Called with a path in the mount, at and below which anything may have changed, and paths of open files there that were replaced.

The work is done by iterating over the result, a little at each step."""


class Entries(Protocol):
    """Called with changed entries; ``external``: changed by another program, so that a file that is not open becomes another file too.

    The work is done by iterating over the result, an entry at each step."""

    def __call__(self, entries: Iterable[ChangedEntry], *, external: bool = False) -> Iterator[None]: ...


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
        self.on_affected: Entries | None = None
        self.on_forgotten: Forgotten | None = None
        self.on_moved: Moved = lambda entries: None
        self.watched = False
        self._is_over = False
        self.slices = Slices(tasks.start_apart)
        self._tasks = tasks
        self._to_look_at: dict[NodePath, None] = {}
        self._is_looking = False
        # One limit for all together; sequential readers get the largest share (docs/design/017-memory.md).
        spill = cache_directory(config)
        self.losses = Losses(Rescue(spill, public_url(config.store)))
        self.counters = WorkCounters()
        freed = FreedMemory(lambda: budget.nbytes)
        budget.tidy = lambda: self._tasks.start_apart(threads.io, freed.give_back)
        configure(spill, max(1 << 20, min(limit // _LARGE, _LARGE_NBYTES)))
        self._cache = ChunkCache(limit // 2, budget)
        slabs = SlabPool(limit // 2, self.counters, spill, budget.share(limit // 2))
        self._readers = ReaderPool(self._cache, slabs, ttl=config.metadata_ttl, start_soon=tasks.start_soon)
        self.staging = StagingArea(
            on_failure=self._on_unpublished,
            on_removed=self.losses.removed,
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
            on_change=self._on_queued,
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
            on_created=lambda path: self._on_change(Change(path.prefix, "mkdir")),
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
        self._moves = Moves(self._views, self.staging, self.path_of, self.hierarchy.roots.is_inside)
        self.hierarchy.live.on_removed = self._on_removed
        self.hierarchy.live.on_moved = self._on_moved
        folders = {plugin.name: folder for plugin, _, folder in built_views}
        if config.view is not None and config.view not in folders:
            raise UsageError(f"view {config.view!r}: failed, see the log")
        self.root: Directory = (
            folders[config.view]
            if config.view is not None
            else MountRoot(folders, [plugin for plugin, _, _ in built_views], self.mounted_ns)
        )
        self.observed.subscribe(self._on_change)
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
            self.losses.add_once(path, f"the group could not be stored: {failure}")
        await self.queue.end()
        await self._context.unfinished.end()
        if self.observed.counters.changes:
            try:
                await self.store.sync_all()
            except ZarrfsError as error:
                self.losses.failures.append(
                    (public_url(self.config.store), f"sync failed, stored data may not survive a power cut: {error}")
                )
                self.report("sync", error)
        for path in self.hierarchy.empty_groups.with_attributes:
            self.losses.add_once(path, "attributes lost: it did not become an array, and its dialect has no groups")
        await self.losses.save_detached()
        for ident, waited in (each for view in self._views.values() for each in view.left()):
            await self.losses.of_name(self._context.temporaries.content(ident), waited=waited)
        return self.losses.failures

    def _on_unpublished(self, ident: str, error: BaseException) -> None:
        self.losses.unpublished(self.staging, ident, error)
        if self.on_affected is not None:
            # The staged data is gone, but the kernel has pages of it.
            self.slices.run(self.on_affected([ChangedEntry(path=self.path_of(ident), gone=True)]))

    # --- change -------------------------------------------------------------------------------------------------------------

    def ended(self) -> None:
        """Stop notices of changes: the kernel sends no more requests."""
        self.on_affected = self.on_forgotten = None
        self.on_moved = lambda entries: None
        self._is_over = True
        self.slices.end()

    def _on_watched(self, complete: bool) -> None:
        self.watched = complete
        ttl = self.config.metadata_ttl
        self._readers.ttl = max(ttl, _WATCHED_TTL) if complete and ttl else ttl
        self.hierarchy.ttl = max(ttl, _WATCHED_NODES_TTL) if complete and ttl else ttl
        if complete:
            # Requests answered earlier whose changes are not reported yet are handled as without a watch.
            self._notify(())
        elif not self._is_over:
            self._on_change(Change(Prefix(""), "unknown", external=True))

    def _on_change(self, change: Change) -> None:
        """Invalidate what a change concerns; entries the kernel has are reported at once, or in slices if there are many."""
        if change.target.startswith(APART):
            # No view shows it.
            return
        if change.kind == "moved":
            assert change.new_target is not None
            self.hierarchy.live.moved(change.target, change.new_target)
            if isinstance(change.target, Prefix) and isinstance(change.new_target, Prefix):
                paths = paths_of(change.target, change.new_target)
                if paths is not None and not change.new_target.startswith(APART):
                    self.hierarchy.empty_groups.move(*paths)
                self._on_moved(change.target, change.new_target)
            return
        if not isinstance(change.target, Prefix):
            self.hierarchy.live.document_changed(change.target, is_erased=change.is_erased_here)
        elif change.is_erased_here:
            self._erased_below(change)
        if change.kind in ("mkdir", "rmdir"):
            nodes = self.hierarchy.came_or_went(Prefix(change.target))
        else:
            nodes = self.hierarchy.changed(change.target, is_prefix=change.is_prefix)
        if self._is_over:
            return
        for path in nodes.whole:
            self._forget_below(change, [path])
        if not change.external:
            self._notify(self._affected(change, nodes))
            return
        self._look_again_at(nodes)
        if change.is_prefix and change.kind not in ("mkdir", "rmdir"):
            self._notify(self._affected(change, nodes.nodes))
            self._forget_below(change, nodes.tops)
        else:
            self._notify(self._affected(change, nodes), external=True)

    def _on_removed(self, path: NodePath, why: str) -> None:
        self.hierarchy.empty_groups.lose_unstored(path)
        if why != ERASED and (left := self._moves.left_below(path.prefix)):
            self.losses.detach(map(self._context.temporaries.detach, left), f"{path} {why}")
            self._tasks.start_apart(self.losses.save_detached)
        self._notify(self._moves.lost(path.prefix))

    def _on_moved(self, old: Prefix, new: Prefix, parts: Sequence[tuple[Prefix, Prefix]] | None = None) -> None:
        self.on_moved(self._moves.follow(old, new, parts))

    def _erased_below(self, change: Change) -> None:
        prefix = Prefix(change.target)
        self.hierarchy.live.erased(prefix)
        for ident in self._idents(change, ()) if prefix else ():
            self._context.lose_names(f"{ident}/")
            self._notify([ChangedEntry(path=self.path_of(ident), gone=True, superseded=True)])
        if (path := path_of(prefix)) is not None:
            self.hierarchy.live.removed(path)

    def _on_queued(self, change: Change, prefix: Prefix, coords: Sequence[Coords]) -> None:
        self._notify(self._affected(change, self.hierarchy.chunks_changed(prefix, coords)))

    def _notify(self, entries: Iterable[ChangedEntry], *, external: bool = False) -> None:
        # Changes by other programs are reported in their order; those of this mount before the call that made them returns, however
        # many of others are still to be reported.
        work: Work = self.on_affected(entries, external=external) if self.on_affected is not None else iter(entries)
        self.slices.run(work, in_turn=external)

    def _forget_below(self, change: Change, tops: Sequence[NodePath]) -> None:
        """Report that all below a prefix may have changed: open files keep their content, or become stale."""
        for ident in self._idents(change, tops) if change.target else [""]:
            # From here on no answer in progress is valid for long, however late the rest is reported.
            self._notify((), external=True)
            self.slices.run(self._forgetting(ident), in_turn=True, name=ident)

    def _idents(self, change: Change, tops: Sequence[NodePath]) -> list[str]:
        """Return the idents of these nodes and the change in each view, without those below another of them."""
        every = {
            (name, *affected.names)
            for name, view in self._views.items()
            for affected in view.affected(change, list(map(NodeChange, tops)))
        }
        return ["/".join(names) for names in every if not any(names[:end] in every for end in range(1, len(names)))]

    def _forgetting(self, ident: str) -> Work:
        superseded = set()
        for each in self.staging.open_below(ident):
            if self.staging.replaced(each):
                superseded.add(self.path_of(each))
            yield None
        if self.on_forgotten is not None:
            yield from self.on_forgotten(self.path_of(ident), superseded)

    def _look_again_at(self, nodes: NodeChanges) -> None:
        """Read the documents of arrays again, so that open files learn of a change of them."""
        self._to_look_at.update((top, None) for top in nodes.tops)
        self._to_look_at.update((node.path, None) for node in nodes.nodes if self.hierarchy.live.at(node.path) is not None)
        if self._to_look_at and not self._is_looking:
            self._is_looking = True
            self._tasks.start_apart(self._look_again)

    async def _look_again(self) -> None:
        try:
            while self._to_look_at:
                await trio.lowlevel.checkpoint()
                top, _ = self._to_look_at.popitem()
                for path in self.hierarchy.open_below(top):
                    try:
                        await self.hierarchy.node(path)
                    except ZarrfsError as error:
                        log.debug("%s: not read again: %s", path, error)
                    await trio.lowlevel.checkpoint()
        finally:
            self._is_looking = False

    def _affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterator[ChangedEntry]:
        for name, view in self._views.items():
            for affected in view.affected(change, nodes):
                below = "/".join(affected.names)
                ident = f"{name}/{below}"
                path = self.path_of(ident)
                if not change.external and (published := self.staging.publishing(ident)) is not None:
                    yield ChangedEntry(path=path, gone=affected.gone, known=published.verbatim)
                elif affected.content:
                    # For open files, a renamed value is unchanged.
                    superseded = (not change.of_move and self.staging.replaced(ident, gone=affected.gone)) or affected.superseded
                    yield ChangedEntry(path=path, gone=affected.gone, superseded=superseded, of_move=change.of_move)
                else:
                    # A new time makes another generation, by which open readers check their data.
                    self.staging.changed(ident)
                    yield ChangedEntry(path=path, gone=affected.gone, known=True)

    def path_of(self, ident: str) -> str:
        """Return the path in the mount of the file ``ident``."""
        return (ident if self.single is None else ident.partition("/")[2]).rstrip("/")


def _json(value: dict[str, object]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
