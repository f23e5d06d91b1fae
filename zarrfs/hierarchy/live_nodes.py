"""Arrays in use: each is one object as long as it is held, at its present path.

For the reasons see docs/design/019-nodes-in-use.md. Operations of this mount move and end them as they happen. Every operation that
moves, erases or replaces documents, or the folders they lie in, runs within `StructureLock.changing`.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace

import trio

from zarrfs.arrays.live_node import LiveNode
from zarrfs.errors import NameInvalid, NodeInDoubt
from zarrfs.hierarchy.bound_paths import BoundPaths, moved_path
from zarrfs.hierarchy.forgotten import Forgotten
from zarrfs.hierarchy.known_nodes import KnownNode, without_large_attributes
from zarrfs.hierarchy.live_array import ERASED, GONE, DocumentVersion, LiveArray, OpenArray
from zarrfs.hierarchy.moves import relocated
from zarrfs.hierarchy.structure_lock import StructureLock
from zarrfs.hierarchy.weak_paths import WeakPaths
from zarrfs.keys import APART, ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.stores.base import Store

# Wait for documents to reappear: editors truncate a document before they write it.
_DOUBT_SECONDS = 1.0


class LiveNodes:
    """The arrays in use, by position.

    ``look_again``: reads the node at a path anew; ``paths_of``: see `Roots.paths_of`; ``forgotten``: learns what this mount erases."""

    def __init__(
        self,
        store: Store,
        look_again: Callable[[NodePath], Awaitable[Node | None]],
        paths_of: Callable[[Prefix, Prefix], Sequence[NodePath] | None],
        forgotten: Forgotten,
    ) -> None:
        self._store = store
        self._look_again = look_again
        self._paths_of = paths_of
        self._forgotten = forgotten
        self._by_path = WeakPaths[LiveArray]()
        self._by_chunk_prefix: weakref.WeakValueDictionary[Prefix, LiveArray] = weakref.WeakValueDictionary()
        self._by_document: weakref.WeakValueDictionary[Key, LiveArray] = weakref.WeakValueDictionary()
        self._apart: weakref.WeakSet[LiveArray] = weakref.WeakSet()
        """Arrays whose documents or chunks lie outside of the folder of their path."""
        self._making: weakref.WeakSet[LiveArray] = weakref.WeakSet()
        self.lock = StructureLock(self._affected, self._look_before)
        self.bound_paths = BoundPaths()
        """Open folders of nodes, arrays or not."""
        self.half_erased: set[tuple[LiveNode, tuple[int, ...]]] = set()
        """Arrays and shapes of which a resize has failed, perhaps with chunks outside of the shape that are not erased."""
        self.turning: set[NodePath] = set()
        """Groups being turned into arrays, whose folders stay the same."""
        self.may_have_turned: set[NodePath] = set()
        """Groups that were to be turned into arrays, where the store did not answer."""
        self.on_removed: Callable[[NodePath, str], None] = lambda path, why: None
        """Called with the path of a removed node and the reason: a later node at that path, or in its folder, is another one."""
        self.on_moved: Callable[[Prefix, Prefix, list[tuple[Prefix, Prefix]] | None], None] = lambda old, new, parts: None
        """Called with old and new prefixes of a moved node's paths, and of its parts, where no rename of the store reports the move."""
        self.on_resized: Callable[[LiveArray, ArrayNode], None] = lambda live, node: None
        """Called with an array in use that has another shape than before, and with its description."""
        self.on_ended: Callable[[LiveArray], None] = lambda live: None
        """Called with an array that has ended."""
        self.changes = 0
        """Counts operations that moved or ended any array."""

    def at(self, path: NodePath) -> LiveArray | None:
        """Return the array in use at ``path``."""
        return self._by_path.get(path)

    def at_and_below(self, path: NodePath) -> Iterator[LiveArray]:
        """Return the arrays in use at ``path`` and below it."""
        return self._by_path.at_and_below(path)

    def with_chunk_prefix(self, prefix: Prefix) -> LiveArray | None:
        """Return the array in use with this chunk prefix."""
        return self._by_chunk_prefix.get(prefix)

    def add(self, path: NodePath, chunk_prefix: Prefix) -> LiveArray:
        """Register the array at ``path`` as in use, and return it."""
        node = LiveArray(path, chunk_prefix, self.confirm)
        self._put(node)
        return node

    def make(self, path: NodePath, over: LiveArray | None = None) -> LiveArray:
        """Return an array that is being created at ``path``, without documents yet: it moves and ends with its folder, and with ``over``.

        `at` does not return it: it may replace another array (``over``). Until it is in place its ``document`` is that of its group.
        """
        node = LiveArray(path, path.prefix, self._confirm_making)
        node.replaces = over
        self._making.add(node)
        return node

    @property
    def unfinished(self) -> set[Prefix]:
        """Chunk prefixes of arrays that are being created."""
        return {node.chunk_prefix for node in self._making if node.why_gone is None}

    def moved(self, old: Key | Prefix, new: Key | Prefix) -> None:
        """Record a rename of a prefix by this mount. (The rename of a document alone does not move its array.)"""
        if not isinstance(old, Prefix) or not isinstance(new, Prefix):
            return
        self.changes += 1
        if (paths := self._paths_of(old, new)) is not None:
            self.bound_paths.moved(*paths)
        with_it: dict[LiveArray, NodePath] = {}
        for node in self._affected(old):
            is_described = node.is_described_at(old)
            if not is_described and (node in self._making or self.lock.is_changing(node.path)):
                continue
            path = moved_path(node.path, old, new)
            if node in self._making:
                # A rename from exactly this prefix moves the content that the array replaces (`_put_moved`).
                if old in (node.path.prefix, node.chunk_prefix):
                    continue
                is_apart = node.chunk_prefix.startswith(APART)
                if path is None or not (is_apart or node.chunk_prefix.startswith(old)):
                    node.end("lost its folder during creation")
                    continue
                if node.document is not None and node.document.startswith(old):
                    node.document = Key(new + node.document[len(old) :])
                node.move(path, node.chunk_prefix if is_apart else Prefix(new + node.chunk_prefix[len(old) :]))
                continue
            if not is_described or path is None or not node.chunk_prefix.startswith(old):
                # Its documents lie elsewhere than its chunks: only one of them was moved.
                self._end(node, f"was renamed without its {'chunks' if is_described else 'documents'}")
                continue
            self._forget(node)
            if node.document is not None:
                self.set_document(node, (Key(new + node.document[len(old) :]), node.generation))
            with_it[node] = node.path
            node.move(path, Prefix(new + node.chunk_prefix[len(old) :]))
        self._put_moved(with_it)

    def renamed(self, path: NodePath, new_path: NodePath, moved: Sequence[tuple[Key | Prefix, Key | Prefix]]) -> None:
        """Record a move, by this mount, of the node at ``path`` and all below it, whose parts are apart: ``moved`` from, to."""
        self.changes += 1
        self.bound_paths.moved(path, new_path)
        with_it = {
            node: node.path
            for node in dict.fromkeys((*self.at_and_below(path), *self._making))
            # An array being created at exactly this path replaces the renamed one.
            if node.path.startswith(f"{path}/") or (node.path == path and node not in self._making)
        }
        for node in with_it:
            self._forget(node)
            if node.document is not None:
                document = Key(relocated(node.document, moved)), node.generation
                if node in self._making:
                    node.document = document[0]
                else:
                    self.set_document(node, document)
            node.move(NodePath(f"{new_path}{node.path[len(path) :]}"), Prefix(relocated(node.chunk_prefix, moved)))
        self._put_moved({node: before for node, before in with_it.items() if node not in self._making})
        parts = [(old, new) for old, new in dict(moved).items() if isinstance(old, Prefix) and isinstance(new, Prefix) and new]
        self.on_moved(path.prefix, new_path.prefix, parts or None)

    def erased(self, target: Key | Prefix) -> None:
        """Record that this mount erased all below a prefix, or the document of an array to be erased.

        (A document that is erased alone may be about to be rewritten, as by editors: `confirm` decides that.)"""
        self.changes += 1
        for node in self._affected(target):
            if node in self._making:
                if target not in (node.path.prefix, node.chunk_prefix):
                    node.end("lost its folder during creation")
            elif node.is_described_at(target) or (not self.lock.is_changing(node.path) and node.has_lost(chunks=True)):
                node.erased_by_mount = not node.is_moved_away
                for each in [each for each in self._making if each.is_to_replace(node, node.path) and node.erased_by_mount]:
                    each.end(ERASED)
                self._end(node, ERASED if node.erased_by_mount else GONE)

    def replaced(self, node: LiveArray, path: NodePath, chunk_prefix: Prefix) -> None:
        """Record that another array replaced ``node``, at ``path``, in this mount: see `Hierarchy.replaced`."""
        self._forget(node)
        node.erased_by_mount = not node.is_moved_away
        # It was moved aside, or erased; errors name its last path.
        node.move(path, chunk_prefix)
        why = "was replaced by another array"
        if node.why_gone is None:
            self._end(node, why)
        # Else it ended when it was moved aside; the node now at its path continues.
        node.why_gone = why

    def removed(self, path: NodePath, why: str = ERASED) -> None:
        """End the node at ``path``, and all below it. (The folder of the root stays.)"""
        if path != ROOT:
            self.bound_paths.ended(path, why)
            self.may_have_turned.discard(path)
            if why == ERASED:
                self._forgotten.erased(path)
            self.on_removed(path, why)

    def document_changed(self, key: Key, *, is_own: bool, is_erased: bool = False) -> None:
        """Mark the array described by ``key``, if in use, for reading again. ``is_own``: changed, ``is_erased``: erased by this mount."""
        if (node := self._by_document.get(key)) is not None:
            node.document_changed(is_own=is_own)
            if is_erased and node in self._apart and not self.lock.is_changing(node.path) and node.has_lost(document=True):
                self.erased(key)

    async def learnt(
        self, path: NodePath, node: Node | None, document: DocumentVersion, before: KnownNode | None
    ) -> OpenArray | None:
        """Process newly read documents: return the array in use at ``path`` if ``node``, found there, is the same array.

        Else that array is resized or ended. ``before``: what was known of the path."""
        await self._end_group(path, node, before)
        live = self.at(path)
        if live is None:
            return None
        if not isinstance(node, ArrayNode):
            await self._end_unless_there(path, live, node)
            return None
        if live.is_replaced_by(node, document):
            # By a save whose outcome is not determined yet.
            self.replaced(live, path, live.chunk_prefix)
            return None
        if document != (live.document, live.generation) and live.has_other_chunks(self._store):
            self._end(live, "was replaced by another array")
            return None
        open_array, is_resized = live.open_array, False
        if live.metadata is not None and not (live.chunk_prefix == node.chunk_prefix and live.metadata.stores_as(node.metadata)):
            is_other = live.is_misplaced or live.may_have_other_chunks or live.chunk_prefix != node.chunk_prefix
            if is_other or not node.metadata.is_resize_of(live.metadata):
                self._end(live, "was replaced by another array")
                return None
            live.resized(node.metadata)
            open_array, is_resized = None, True
        elif open_array is not None:
            # Other attributes: what is shown of missing chunks depends on one of them.
            open_array.array.node = without_large_attributes(node)
        self.set_document(live, document)
        if live.why_gone is not None:
            return None
        if is_resized:
            self.on_resized(live, without_large_attributes(node))
        return open_array

    async def _end_group(self, path: NodePath, node: Node | None, before: KnownNode | None) -> None:
        """End what is in use below ``path`` if another program has removed the group that was there, or replaced it by an array."""
        # What this mount has erased itself is no predecessor of what it makes there: that must not end with it.
        if before is None or not isinstance(before.node, GroupNode) or self._forgotten.is_erased(path, before.learnt):
            return
        if isinstance(node, ArrayNode) and path not in self.turning:
            if path in self.may_have_turned:
                self.may_have_turned.discard(path)
                return
            self.removed(path, "was replaced by an array")
        elif node is None and await self._is_gone(path, path.prefix):
            self.removed(path, GONE)

    async def _end_unless_there(self, path: NodePath, live: LiveArray, node: GroupNode | UnsupportedNode | None) -> None:
        """End the array ``live``, in whose place at ``path`` ``node`` was found, unless its documents may be about to be written."""
        if isinstance(node, GroupNode) and node.explicit:
            self._end(live, "was replaced by a group")
        # It may be moved while its chunks are looked for.
        elif not isinstance(node, UnsupportedNode) and await self._is_gone(path, live.chunk_prefix) and self.at(path) is live:
            self._end(live, ERASED if live.anchor is not None and live.anchor.is_erased else GONE)

    async def _is_gone(self, path: NodePath, prefix: Prefix) -> bool:
        changes = self.changes
        while not await self._store.prefix_exists(prefix):
            if self.changes == changes:
                return not self.lock.is_changing(path)
            # This mount may have moved another node there.
            changes = self.changes
        return False

    async def confirm(self, live: LiveNode) -> bool:
        """Implement `zarrfs.arrays.live_node.Confirm`. Raises `StaleEntry` and `NodeInDoubt`.

        Documents that are unreadable, or missing while the folder exists, may be about to be written: they are waited for."""
        assert isinstance(live, LiveArray)
        if live.document is not None:
            # Held before the stat: a folder put in its place afterwards is another.
            self.hold(live)
            chunk_folder = live.chunk_folder_in_place
            stat = await self._store.stat(live.document)
            if stat is not None and stat.generation == live.generation:
                if self._has_left(live) or live.has_chunks_of_others(self._store):
                    self._end(live, "was replaced by another array")
                    live.check()
                live.confirmed_by_document(chunk_folder)
                return True
        give_up = trio.current_time() + _DOUBT_SECONDS
        while True:
            moves = live.moves
            node = await self._look_again(live.path)
            live.check()
            if self.at(live.path) not in (None, live):
                self._end_alone(live, "was replaced by another array")
                live.check()
            if isinstance(node, ArrayNode) or live.moves != moves:
                # Without a document of its own there is no generation: it is read anew each time.
                return live.document is None
            if trio.current_time() >= give_up:
                raise NodeInDoubt(f"{live.path}: documents missing or unreadable, but the folder exists", key=live.path)
            await trio.sleep(_DOUBT_SECONDS / 20)

    def hold(self, live: LiveArray) -> None:
        """Hold the folder of an array that is written to: an equal one put in its place is another. Raises `StaleEntry`."""
        live.check()
        self._anchor(live)

    def _has_left(self, live: LiveArray) -> bool:
        """Return True if another program has taken its folder away: a copy by hard links in its place has the very document."""
        return live.has_left_its_document and not self.lock.is_changing(live.path)

    async def open_to_write(self, live: LiveArray) -> None:
        """Run `hold` for a file that was opened to be written, before any of it is read. Raises `StaleEntry`.

        An open that empties the file drops what is mapped of it: of an array that is elsewhere by now, it opens another file."""
        has_left = live.has_left_its_path
        self.hold(live)
        if live.is_unread or has_left:
            await self._look_again(live.path)
            self.hold(live)

    def _anchor(self, live: LiveArray) -> None:
        live.anchor_in(self._store, is_changing=self.lock.is_changing(live.path))

    def _look_before(self, live: LiveNode) -> None:
        """Find out, before a change, whether an array whose folder is held no more is in place: what is left later does not tell."""
        if isinstance(live, LiveArray) and live.why_gone is None and live not in self._making:
            self._anchor(live)

    async def _confirm_making(self, live: LiveNode) -> bool:
        live.check()
        assert isinstance(live, LiveArray)
        parent = live.path.parent
        # The root's folder is the store.
        if parent == ROOT and live.generation is None:
            return True
        if live.document is not None:
            stat = await self._store.stat(live.document)
            is_there = stat is not None and live.generation in (None, stat.generation)
        else:
            is_there = isinstance(await self._look_again(parent), GroupNode)
        if not is_there:
            live.end("lost its folder during creation")
            live.check()
        return True

    @asynccontextmanager
    async def changing_document(self, *keys: Key) -> AsyncIterator[None]:
        """Run `changing` for any keys: without waiting if none of them describes an array in use."""
        for key in (documents := [key for key in keys if key in self._by_document]):
            # After the change, the document no longer proves that the folder is the array's own.
            self._anchor(self._by_document[key])
        async with self.lock.changing(*documents) if documents else nullcontext():
            yield

    @contextmanager
    def amending(self, path: NodePath) -> Iterator[None]:
        """Let files of the array in use at ``path`` stay the same ones in the body, which changes only its attributes."""
        node = self.at(path)
        if node is not None:
            node.is_amended = True
        try:
            yield
        finally:
            if node is not None:
                node.is_amended = False

    def set_document(self, node: LiveArray, document: DocumentVersion) -> None:
        """Record the document that describes ``node``: one in another folder, or with other chunks, is another array's, however equal."""
        is_new = node.has_new_document(document)
        if node.document is not None and self._by_document.get(node.document) is node:
            del self._by_document[node.document]
        node.document, node.generation = document
        node.is_unread = node.has_no_document = False
        if node.document is not None:
            self._by_document[node.document] = node
        if not node.is_described_at(node.path.prefix):
            self._apart.add(node)
        if self._has_left(node) or (is_new and (not node.is_in_place() or node.has_other_chunks(self._store))):
            self._end(node, "was replaced by another array")
        else:
            self._anchor(node)

    def fence(self, targets: Sequence[Key | Prefix], known: trio.Event) -> None:
        """Let lookups, readers and writers of what may be at ``targets`` wait until it is ``known`` (see `StructureLock.fence`)."""
        self.lock.fence(tuple(targets), [known])
        for node in dict.fromkeys(node for target in targets for node in self._affected(target)):
            node.fences.append(known)

    def _end(self, node: LiveArray, why: str) -> None:
        self._end_alone(node, why)
        self.removed(node.path, why)

    def _end_alone(self, node: LiveArray, why: str) -> None:
        """End ``node``, but not the node now at its path."""
        self.changes += 1
        if (open_array := node.open_array) is not None:
            open_array.superseded = True
            open_array.discard()
        node.end(why)
        self._forget(node)
        self.on_ended(node)

    def _affected(self, target: Key | Prefix) -> list[LiveArray]:
        """Return the arrays in use that a change at ``target`` can replace or move, without looking at others."""
        if not isinstance(target, Prefix):
            return [node] if (node := self._by_document.get(target)) is not None else []
        try:
            below = self.at_and_below(NodePath(f"/{target[:-1]}"))
        except NameInvalid:
            below = iter(())
        return [node for node in dict.fromkeys((*below, *self._apart, *self._making)) if node.is_affected_by(target)]

    def _put(self, node: LiveArray) -> None:
        path = node.path
        if (before := self.at(path)) is not None and before is not node:
            # It was removed by another program, which was not noticed since.
            self._end_alone(before, "was replaced by another array")
        if node.document is not None:
            self._by_document[node.document] = node
        if not node.is_described_at(path.prefix) or not node.chunk_prefix.startswith(path.prefix):
            self._apart.add(node)
        self._by_path.put(path, node)
        self._by_chunk_prefix[node.chunk_prefix] = node

    def _put_moved(self, nodes: Mapping[LiveArray, NodePath]) -> None:
        """Register arrays that were moved from these paths, and take along what is to replace them."""
        for node, before in nodes.items():
            self._put(node)
            for each in [each for each in self._making if each.is_to_replace(node, before)]:
                # Of another group, the document is not known yet.
                each.document = each.document if before.parent == node.path.parent else None
                each.move(node.path, each.chunk_prefix if each.chunk_prefix.startswith(APART) else node.path.prefix)
            if (open_array := node.open_array) is not None:
                open_array.array.node = replace(open_array.array.node, path=node.path, chunk_prefix=node.chunk_prefix)

    def _forget(self, node: LiveArray) -> None:
        self._apart.discard(node)
        if self.at(node.path) is node:
            self._by_path.remove(node.path)
        if node.document is not None and self._by_document.get(node.document) is node:
            del self._by_document[node.document]
        if self._by_chunk_prefix.get(node.chunk_prefix) is node:
            del self._by_chunk_prefix[node.chunk_prefix]
