"""One mount without the kernel: a store, its hierarchy, and the views over it, joined.

The daemon serves it to the kernel; tests use it directly. Data goes down (views -> hierarchy -> store); what changes comes up as one
stream: the observed store tells the hierarchy what to forget, and `MountTree.affected` names the entries that are different now.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Protocol

import trio

from zarrfs import __version__, registry
from zarrfs.config import MountConfig
from zarrfs.errors import UsageError, ZarrfsError
from zarrfs.hierarchy.cache import ChunkCache
from zarrfs.hierarchy.chunk_layers import ShardLayers
from zarrfs.hierarchy.counters import HierarchyCounters
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.nodes import Hierarchy, NodeChange
from zarrfs.hierarchy.pending_shards import PendingShards
from zarrfs.hierarchy.readers import ReaderPool
from zarrfs.hierarchy.roots import dialects
from zarrfs.hierarchy.slabs import SlabPool
from zarrfs.keys import NodePath, Prefix
from zarrfs.memory import MemoryBudget
from zarrfs.model.chunk_grid import Coords
from zarrfs.redact import public_url
from zarrfs.stores.base import Change, Store
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.noted import NotedStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.transformers.read_only import ReadOnlyStore
from zarrfs.vfs.node import Directory
from zarrfs.vfs.staging import StagingArea
from zarrfs.views.base import View, ViewContext, ViewPlugin
from zarrfs.views.root import ControlDirectory, MountRoot

log = logging.getLogger(__name__)

_ERRORS_KEPT = 1000
_WATCHED_TTL = 300.0
"""Seconds that decoded chunks count while every change is told; what is written through a shared mapping is not."""

Forgotten = Callable[[str, Container[str]], None]
"""Called with a path in the mount, at and below which anything may be different, and paths of files there that are other files now for
whoever has them open."""


class Entries(Protocol):
    """Called with (path in the mount, may have lost its name, readers know what is in it, is another file for whoever has it open);
    ``behind``: it is another file too where nobody has it open."""

    def __call__(self, entries: Iterable[tuple[str, bool, bool, bool]], *, behind: bool = False) -> None: ...


class MountTree:
    """Everything of a mount but the kernel. Background tasks run in ``nursery``, which the caller keeps open while the tree is used
    and then cancels; the caller also closes the store."""

    def __init__(self, config: MountConfig, store: Store, nursery: trio.Nursery) -> None:
        self.config = config
        self.observed = ObservedStore(store)
        noted = NotedStore(self.observed)
        self.store_operations = noted.operations
        timely = DeadlineStore(noted, config.timeout, nursery)
        self.store: Store = ReadOnlyStore(timely) if config.read_only or not store.writable else timely
        self.mounted_ns = time.time_ns()
        self.failures: list[tuple[str, str]] = []
        self.on_affected: Entries | None = None
        self.on_forgotten: Forgotten | None = None
        self.watched = False
        self._nursery = nursery
        self._errors: deque[str] = deque(maxlen=_ERRORS_KEPT)
        # The limit holds for all three together; what a reader going forward needs is the largest part.
        spill = cache_directory(config)
        self.counters = HierarchyCounters()
        self._cache = ChunkCache(config.memory_limit // 4)
        slabs = SlabPool(config.memory_limit // 2, self.counters, spill)
        self._readers = ReaderPool(self._cache, slabs, ttl=config.metadata_ttl, start_soon=nursery.start_soon)
        self.staging = StagingArea(
            on_failure=self._on_unpublished,
            durable=config.durable,
            budget=MemoryBudget(config.memory_limit // 4),
            spill_nbytes=max(1 << 20, min(64 << 20, config.memory_limit // 8)),
            directory=spill,
        )
        self.pending = PendingShards(
            delay=config.shard_delay,
            budget=self.staging.room.budget,
            directory=spill,
            start_soon=nursery.start_soon,
            told=self._on_waiting,
            on_failure=lambda key, error: self.report("publish", error),
        )
        layers = ShardLayers(self.counters, pending=self.pending)
        self.hierarchy = Hierarchy(
            self.store,
            self._readers,
            self.counters,
            ttl=config.metadata_ttl,
            layers=layers,
            dialects=dialects(config.dialect_choices),
        )
        context = ViewContext(
            store=self.store,
            hierarchy=self.hierarchy,
            editor=NodeEditor(self.hierarchy, self.store, new_dialect=_known_dialect(config.new_dialect)),
            new_arrays=NewArrays(chunks=config.new_chunks, codecs=config.new_codecs),
            start_soon=nursery.start_soon,
            staging=self.staging,
            store_name=store_name(config.store),
            fill=config.fill,
            resize_erases=config.resize_erases,
            mounted_ns=self.mounted_ns,
        )
        plugins = _chosen(config)
        self._views: dict[str, View] = {plugin.name: plugin.make(context) for plugin in plugins}
        self.single = config.view
        self.root: Directory = (
            self._views[config.view].root()
            if config.view is not None
            else MountRoot(
                {name: view.root() for name, view in self._views.items()},
                {plugin.name: plugin.about for plugin in plugins},
                self.mounted_ns,
            )
        )
        self.observed.subscribe(self._on_change)
        if config.watch:
            nursery.start_soon(self.observed.follow, self._on_watched)

    def control(self, **more: Callable[[], dict[str, object]]) -> ControlDirectory:
        """What ``.zarrfs/`` holds. ``more`` adds to ``stats`` or ``config`` what the caller knows."""

        def extra(name: str) -> dict[str, object]:
            return more[name]() if name in more else {}

        async def stats() -> bytes:
            return _json(self.stats() | extra("stats"))

        async def config() -> bytes:
            return _json({"views": list(self._views), "read_only": not self.store.writable} | extra("config"))

        async def errors() -> bytes:
            return "".join(self._errors).encode("utf-8", "backslashreplace")

        async def version() -> bytes:
            return f"zarrfs {__version__}\n".encode()

        return ControlDirectory({"stats.json": stats, "config.json": config, "errors.jsonl": errors, "version": version})

    def stats(self) -> dict[str, object]:
        """The counters of the mount."""
        operations = dataclasses.asdict(self.observed.counters)
        return {
            "bytes_read": operations.pop("bytes_read"),
            "bytes_written": operations.pop("bytes_written"),
            "store_operations": operations,
            "chunks_decoded": self.counters.chunks_decoded,
            "chunks_encoded": self.counters.chunks_encoded,
            "shard_indexes_read": self.counters.shard_indexes_read,
            "pending_shards": len(self.pending),
            "pending_bytes": self.pending.nbytes,
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

    def report(self, where: str, error: BaseException) -> None:
        """Keep an error for ``.zarrfs/errors.jsonl``."""
        key = error.key if isinstance(error, ZarrfsError) else None
        line = {"time": time.time(), "operation": where, "key": key, "error": type(error).__name__, "message": str(error)}
        self._errors.append(json.dumps(line) + "\n")

    async def publish_all(self) -> list[tuple[str, str]]:
        """Publish everything that is staged; what could not be stored since the mount began, as (file, reason)."""
        for ident, error in await self.staging.publish_all():
            self._on_unpublished(ident, error)
        for key, error in await self.pending.publish_all():
            self.failures.append((key, str(error)))
            self.report("publish", error)
        if self.observed.counters.changes:
            try:
                await self.store.sync_all()
            except ZarrfsError as error:
                self.failures.append((public_url(self.config.store), f"what was stored may not survive a power cut: {error}"))
                self.report("sync", error)
        for path in self.hierarchy.empty_groups.with_attributes:
            lost = (path, "its attributes were in this mount only: it did not become an array, and its dialect has no groups")
            if lost not in self.failures:
                self.failures.append(lost)
        for ident in (ident for view in self._views.values() for ident in view.left()):
            left = (ident, "it has a name that the store cannot hold, and was in this mount only")
            if left not in self.failures:
                self.failures.append(left)
        return self.failures

    def _on_unpublished(self, ident: str, error: BaseException) -> None:
        self.failures.append((ident, str(error)))
        self.report("release", error)
        if self.on_affected is not None:
            # What was staged is gone, and the kernel has pages of it.
            self.on_affected([(self.path_of(ident), True, False, False)])

    # --- change -------------------------------------------------------------------------------------------------------------

    def _on_watched(self, complete: bool) -> None:
        self.watched = complete
        ttl = self.config.metadata_ttl
        self._readers.ttl = max(ttl, _WATCHED_TTL) if complete and ttl else ttl
        if complete:
            # What was asked for before and is not told yet counts as if there were no watch.
            self._tell(())
        else:
            self._on_change(Change(Prefix(""), "unknown", behind=True))

    def _on_change(self, change: Change) -> None:
        if change.kind in ("made", "unmade"):
            nodes = self.hierarchy.came_or_went(Prefix(change.place))
        else:
            nodes = self.hierarchy.changed(change.place, is_prefix=change.is_prefix)
        if not change.behind:
            self._tell(self._affected(change, nodes))
            return
        opened = [node.path for node in nodes if node.coords is None and self.hierarchy.is_open(node.path)]
        if opened:
            self._nursery.start_soon(self._look_again, opened)
        if change.is_prefix and change.kind not in ("made", "unmade"):
            within = [node for node in nodes if node.path.prefix.startswith(change.place)]
            self._tell(self._affected(change, [node for node in nodes if node not in within]))
            self._forget_below(change, within)
        else:
            self._tell(self._affected(change, nodes), behind=True)

    def _on_waiting(self, change: Change, prefix: Prefix, coords: Sequence[Coords]) -> None:
        self._tell(self._affected(change, self.hierarchy.chunks_changed(prefix, coords)))

    def _tell(self, entries: Iterable[tuple[str, bool, bool, bool]], *, behind: bool = False) -> None:
        listed = list(entries)
        if self.on_affected is not None:
            self.on_affected(listed, behind=behind)

    def _forget_below(self, change: Change, nodes: list[NodeChange]) -> None:
        """All that lies at a prefix may be different: whoever has a file open there keeps what he has, or learns that it is stale."""
        idents = {""}
        if change.place:
            tops: list[NodeChange] = []
            for node in sorted(nodes, key=lambda node: node.path.prefix):
                if not tops or not node.path.prefix.startswith(tops[-1].path.prefix):
                    tops.append(node)
            idents = {
                f"{name}/{'/'.join(affected.names)}"
                for name, view in self._views.items()
                for affected in view.affected(change, tops)
            }
        for ident in idents:
            superseded = {self.path_of(each) for each in self.staging.open_below(ident) if self.staging.replaced(each)}
            if self.on_forgotten is not None:
                self.on_forgotten(self.path_of(ident), superseded)

    async def _look_again(self, paths: list[NodePath]) -> None:
        """Read the documents of arrays anew, so that whoever has them open learns when they say something else now."""
        for path in paths:
            try:
                await self.hierarchy.node(path)
            except ZarrfsError as error:
                log.debug("%s could not be looked at again: %s", path, error)
            await trio.lowlevel.checkpoint()

    def _affected(self, change: Change, nodes: list[NodeChange]) -> Iterator[tuple[str, bool, bool, bool]]:
        for name, view in self._views.items():
            for affected in view.affected(change, nodes):
                below = "/".join(affected.names)
                ident = f"{name}/{below}"
                path = self.path_of(ident)
                if not change.behind and (published := self.staging.publishing(ident)) is not None:
                    yield path, affected.gone, published.verbatim, False
                elif affected.content:
                    yield path, affected.gone, False, self.staging.replaced(ident, gone=affected.gone)
                else:
                    # A new time makes another generation, by which open readers check what they read.
                    self.staging.changed(ident)
                    yield path, affected.gone, True, False

    def path_of(self, ident: str) -> str:
        """Where in the mount the file called ``ident`` is."""
        return (ident if self.single is None else ident.partition("/")[2]).rstrip("/")


def cache_directory(config: MountConfig) -> str | None:
    """Where what exceeds the memory limit goes: the configured folder, else the user's cache folder; None for the system's own."""
    if config.cache_dir is not None:
        os.makedirs(config.cache_dir, exist_ok=True)
        return config.cache_dir
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(home, "zarrfs")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.info("%s cannot be used (%s): large files are staged in the system's temporary folder", folder, error)
        return None


_SUFFIXES = frozenset({"zarr", "zip", "sqlite", "sqlite3", "sqldb", "db", "lmdb", "mdb", "dbm", "n5"})


def store_name(url: str) -> str:
    """The last part of a store's path, without ``.zarr``, ``.zip`` and the like: what a file of its root array is called."""
    # Where the last layer has no path (``x.zip|zip:``), that of the one before it.
    names = (layer.partition("?")[0].rstrip("/").rsplit("/", 1)[-1].rsplit(":", 1)[-1] for layer in reversed(url.split("|")))
    name = next(filter(None, names), "")
    while True:
        stem, dot, suffix = name.rpartition(".")
        if not stem or not dot or suffix.lower() not in _SUFFIXES:
            break
        name = stem
    return name or "array"


def _chosen(config: MountConfig) -> list[ViewPlugin]:
    known: dict[str, ViewPlugin] = {plugin.name: plugin for plugin in registry.plugins("zarrfs.views")}
    names = [config.view] if config.view is not None else list(config.views) or [p.name for p in known.values() if p.by_default]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no view {unknown[0]!r}; the views are {', '.join(sorted(known))}")
    order = ["raw", "chunks", *sorted(known)]
    return [known[name] for name in sorted(set(names), key=order.index)]


def _known_dialect(name: str) -> str:
    known = sorted(dialect.name for dialect in registry.plugins("zarrfs.dialects"))
    if name not in known:
        raise UsageError(f"there is no dialect {name!r}; the dialects are {', '.join(known)}: check new_dialect")
    return name


def _json(value: dict[str, object]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
