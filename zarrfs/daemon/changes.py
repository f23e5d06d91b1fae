"""Reports of changes: from the store to the hierarchy, which invalidates, and to the kernel, entry by entry.

Short reports are done before the change returns to its caller; the rest of long ones in slices (`zarrfs.daemon.slices`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import trio

from zarrfs.daemon.losses import Losses
from zarrfs.daemon.moves import Moved, Moves
from zarrfs.daemon.slices import Slices, Work
from zarrfs.errors import ZarrfsError
from zarrfs.hierarchy.live_array import ERASED
from zarrfs.hierarchy.node_changes import NodeChange, NodeChanges
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import APART, NodePath, Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.stores.change import Change
from zarrfs.vfs.changed_entry import ChangedEntry
from zarrfs.views.base import View, ViewContext

log = logging.getLogger(__name__)

Forgotten = Callable[[str, Container[str]], Iterator[None]]
"""Called with a path in the mount, at and below which anything may have changed, and paths of open files there that were replaced.

The work is done by iterating over the result, a little at each step."""


class Entries(Protocol):
    """Called with changed entries; ``external``: changed by another program, so that a file that is not open becomes another file too.

    The work is done by iterating over the result, an entry at each step."""

    def __call__(self, entries: Iterable[ChangedEntry], *, external: bool = False) -> Iterator[None]: ...


class Changes:
    """The changes of one mount. ``path_of``: path in the mount of the file with an ident; ``start_soon``: starts a task of the mount.

    ``on_affected``, ``on_forgotten``, ``on_moved``: the kernel's side, set by its owner.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        views: Mapping[str, View],
        context: ViewContext,
        losses: Losses,
        *,
        path_of: Callable[[str], str],
        start_soon: Callable[..., None],
    ) -> None:
        self.on_affected: Entries | None = None
        self.on_forgotten: Forgotten | None = None
        self.on_moved: Moved = lambda entries: None
        self.slices = Slices(start_soon)
        self.is_over = False
        self._hierarchy = hierarchy
        self._views = views
        self._context = context
        self._staging = context.staging
        self._losses = losses
        self._path_of = path_of
        self._start_soon = start_soon
        self._moves = Moves(views, context.staging, path_of, hierarchy.roots.is_inside)
        self._to_look_at: dict[NodePath, None] = {}
        self._is_looking = False

    def ended(self) -> None:
        """Stop notices of changes: the kernel sends no more requests."""
        self.on_affected = self.on_forgotten = None
        self.on_moved = lambda entries: None
        self.is_over = True
        self.slices.end()

    def stored(self, change: Change) -> None:
        """Process a change in the store: invalidate what it concerns, and report the entries that the kernel has."""
        if change.target.startswith(APART):
            # No view shows it.
            return
        if change.kind == "moved":
            assert change.new_target is not None
            self._hierarchy.live.moved(change.target, change.new_target)
            if isinstance(change.target, Prefix) and isinstance(change.new_target, Prefix):
                paths = self._hierarchy.roots.paths_of(change.target, change.new_target)
                if paths is not None and not change.new_target.startswith(APART):
                    self._hierarchy.empty_groups.move(*paths)
                self.moved(change.target, change.new_target)
            return
        if not isinstance(change.target, Prefix):
            self._hierarchy.live.document_changed(change.target, is_own=not change.external, is_erased=change.is_erased_here)
        elif change.is_erased_here:
            self._erased_below(change)
        if change.kind in ("mkdir", "rmdir"):
            nodes = self._hierarchy.came_or_went(Prefix(change.target))
        else:
            nodes = self._hierarchy.changed(change.target, is_prefix=change.is_prefix)
        if self.is_over:
            return
        for path in nodes.whole:
            self._forget_below(change, [path])
        if not change.external:
            self.report(self._affected(change, nodes))
            return
        self._look_again_at(nodes)
        if change.is_prefix and change.kind not in ("mkdir", "rmdir"):
            self.report(self._affected(change, nodes.nodes))
            self._forget_below(change, nodes.tops)
        else:
            self.report(self._affected(change, nodes), external=True)

    def removed(self, path: NodePath, why: str) -> None:
        """Process the end of a node: see `LiveNodes.on_removed`."""
        self._hierarchy.empty_groups.lose_unstored(path)
        if why != ERASED and (left := self._moves.left_below(path.prefix)):
            self._losses.detach(map(self._context.temporaries.detach, left), f"{path} {why}")
            self._start_soon(self._losses.save_detached)
        self.report(self._moves.lost(path.prefix))

    def moved(self, old: Prefix, new: Prefix, parts: Sequence[tuple[Prefix, Prefix]] | None = None) -> None:
        """Process the rename of a prefix: see `LiveNodes.on_moved`."""
        self.on_moved(self._moves.follow(old, new, parts))

    def queued(self, change: Change, prefix: Prefix, coords: Sequence[Coords]) -> None:
        """Process a change of a queued shard, which affects these chunks of the array with this chunk prefix."""
        self.report(self._affected(change, self._hierarchy.chunks_changed(prefix, coords)))

    def report(self, entries: Iterable[ChangedEntry], *, external: bool = False) -> None:
        """Report changed entries to the kernel; ``external``: see `Entries`."""
        # Changes by other programs are reported in their order; those of this mount before the call that made them returns, however
        # many of others are still to be reported.
        work: Work = self.on_affected(entries, external=external) if self.on_affected is not None else iter(entries)
        self.slices.run(work, in_turn=external)

    def _erased_below(self, change: Change) -> None:
        prefix = Prefix(change.target)
        self._hierarchy.live.erased(prefix)
        for ident in self._idents(change, ()) if prefix else ():
            self._context.lose_names(f"{ident}/")
            self._losses.removed_below(f"{ident}/")
            self.report([ChangedEntry(path=self._path_of(ident), gone=True, superseded=True)])
        for path in self._hierarchy.roots.paths_of(prefix) or ():
            for folder in self._moves.folders(path.prefix):
                self._losses.removed_below(folder)
            self._hierarchy.live.removed(path)

    def _forget_below(self, change: Change, tops: Sequence[NodePath]) -> None:
        """Report that all below a prefix may have changed: open files keep their content, or become stale."""
        for ident in self._idents(change, tops) if change.target else [""]:
            # From here on no answer in progress is valid for long, however late the rest is reported.
            self.report((), external=True)
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
        for each in self._staging.open_below(ident):
            if self._staging.replaced(each):
                superseded.add(self._path_of(each))
            yield None
        if self.on_forgotten is not None:
            yield from self.on_forgotten(self._path_of(ident), superseded)

    def _look_again_at(self, nodes: NodeChanges) -> None:
        """Read the documents of arrays again, so that open files learn of a change of them."""
        self._to_look_at.update((top, None) for top in nodes.tops)
        self._to_look_at.update((node.path, None) for node in nodes.nodes if self._hierarchy.live.at(node.path) is not None)
        if self._to_look_at and not self._is_looking:
            self._is_looking = True
            self._start_soon(self._look_again)

    async def _look_again(self) -> None:
        try:
            while self._to_look_at:
                await trio.lowlevel.checkpoint()
                top, _ = self._to_look_at.popitem()
                for path in self._hierarchy.open_below(top):
                    try:
                        await self._hierarchy.node(path)
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
                path = self._path_of(ident)
                if not change.external and (published := self._staging.publishing(ident)) is not None:
                    yield ChangedEntry(path=path, gone=affected.gone, known=published.verbatim)
                elif affected.content:
                    # For open files, a renamed value is unchanged.
                    superseded = (not change.of_move and self._staging.replaced(ident, gone=affected.gone)) or affected.superseded
                    yield ChangedEntry(path=path, gone=affected.gone, superseded=superseded, of_move=change.of_move)
                else:
                    # A new time makes another generation, by which open readers check their data.
                    self._staging.changed(ident)
                    yield ChangedEntry(path=path, gone=affected.gone, known=True)
