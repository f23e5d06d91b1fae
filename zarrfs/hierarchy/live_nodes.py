"""The arrays that are in use: each is one object for as long as anybody holds it, wherever it is by now.

docs/design/019-nodes-in-use.md says why. What this mount does to the store moves and ends them as it happens. Every operation that
moves, erases or replaces documents, or what they lie in, is made within `LiveNodes.changing`.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace

import trio

from zarrfs import fences
from zarrfs.arrays.array import is_resized
from zarrfs.arrays.live_node import LiveNode, unfenced
from zarrfs.errors import NameInvalid, NodeInDoubt
from zarrfs.hierarchy.live_array import LiveArray, OpenArray, Said
from zarrfs.hierarchy.moves import relocated
from zarrfs.hierarchy.path_index import PathIndex
from zarrfs.hierarchy.places import Place, Places, moved_path, paths_of
from zarrfs.keys import APART, ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.stores.base import Store

# Editors truncate a document before they write it.
_DOUBT_SECONDS = 1.0


class LiveNodes:
    """The arrays in use, by where they are."""

    def __init__(self, store: Store, look_again: Callable[[NodePath], Awaitable[Node | None]]) -> None:
        self._store = store
        self._look_again = look_again
        self._by_path: dict[NodePath, weakref.ref[LiveArray]] = {}
        self._paths = PathIndex()
        self._by_chunk_prefix: weakref.WeakValueDictionary[Prefix, LiveArray] = weakref.WeakValueDictionary()
        self._by_document: weakref.WeakValueDictionary[Key, LiveArray] = weakref.WeakValueDictionary()
        self._apart: weakref.WeakSet[LiveArray] = weakref.WeakSet()
        """Those whose documents or chunks lie elsewhere than their paths say."""
        self._making: weakref.WeakSet[LiveArray] = weakref.WeakSet()
        self._lock = trio.Lock()
        self._changing: tuple[Key | Prefix, ...] = ()
        self._underway: tuple[Key | Prefix, ...] = ()
        self._changed = trio.Event()
        self._wanted: list[tuple[Key | Prefix, ...]] = []
        self._staying: list[tuple[Place, trio.lowlevel.Task]] = []
        self._fences: list[tuple[tuple[Key | Prefix, ...], list[trio.Event]]] = []
        self.places = Places()
        """Folders of nodes, arrays or not, that somebody has open."""
        self.turning: set[NodePath] = set()
        """Groups that somebody is turning into arrays, whose folders stay what they are."""
        self.on_removed: Callable[[NodePath], None] = lambda path: None
        """Called with the path of a node that is gone: what comes to be there, or in its folder, is another."""
        self.on_moved: Callable[[Prefix, Prefix], None] = lambda old, new: None
        """Called with the prefixes of the paths that a node had and has now, where no rename of the store tells of it."""
        self.changes = 0
        """Counts what moved or ended any of them."""

    def at(self, path: NodePath) -> LiveArray | None:
        """The array in use there."""
        found = self._by_path.get(path)
        return found() if found is not None else None

    def at_and_below(self, path: NodePath) -> Iterator[LiveArray]:
        """The arrays in use there."""
        for each in self._paths.at_and_below(path):
            if (node := self.at(each)) is not None:
                yield node

    def with_chunk_prefix(self, prefix: Prefix) -> LiveArray | None:
        """The array in use whose chunks lie there."""
        return self._by_chunk_prefix.get(prefix)

    def add(self, path: NodePath, chunk_prefix: Prefix) -> LiveArray:
        """The array at ``path`` is in use from now on."""
        node = LiveArray(path, chunk_prefix, self.confirm)
        self._put(node)
        return node

    def make(self, path: NodePath) -> LiveArray:
        """An array is being made at ``path``, and has no documents yet: it goes with the folder that it lies in, and ends with it. It is
        not found by `at`: there may be another, which it replaces. Its ``document`` is its group's, and its own once it is in place."""
        node = LiveArray(path, path.prefix, self._confirm_making)
        self._making.add(node)
        return node

    @property
    def unfinished(self) -> set[Prefix]:
        """Where chunks of arrays lie that are being made."""
        return {node.chunk_prefix for node in self._making if node.why_gone is None}

    def moved(self, old: Key | Prefix, new: Key | Prefix) -> None:
        """This mount has renamed a prefix: everything below ``old`` lies below ``new`` now. (A document alone does not take its array
        along.)"""
        if not isinstance(old, Prefix) or not isinstance(new, Prefix):
            return
        self.changes += 1
        if (paths := paths_of(old, new)) is not None:
            self.places.moved(*paths)
        with_it = []
        for node in self._concerned(old):
            if not node.is_said_at(old):
                continue
            path = moved_path(node.path, old, new)
            if node in self._making:
                # What is renamed from just this place is what it replaces.
                if old in (node.path.prefix, node.chunk_prefix):
                    continue
                is_apart = node.chunk_prefix.startswith(APART)
                if path is None or not (is_apart or node.chunk_prefix.startswith(old)):
                    node.end("lost the folder in which it was being made")
                    continue
                if node.document is not None and node.document.startswith(old):
                    node.document = Key(new + node.document[len(old) :])
                node.move(path, node.chunk_prefix if is_apart else Prefix(new + node.chunk_prefix[len(old) :]))
                continue
            if path is None or not node.chunk_prefix.startswith(old):
                # Its documents lie elsewhere than its chunks, which stay where they are.
                self._end(node, "was renamed without its chunks")
                continue
            self._forget(node)
            if node.document is not None:
                self.say(node, (Key(new + node.document[len(old) :]), node.generation))
            node.move(path, Prefix(new + node.chunk_prefix[len(old) :]))
            with_it.append(node)
        for node in with_it:
            self._put(node)
            if (opened := node.opened) is not None:
                opened.array.node = replace(opened.array.node, path=node.path, chunk_prefix=node.chunk_prefix)

    def renamed(self, path: NodePath, new_path: NodePath, pairs: Iterable[tuple[Key | Prefix, Key | Prefix]]) -> None:
        """This mount has moved the node at ``path``, and all below it, whose documents and chunks lie in different places: ``pairs`` are
        where these were and are."""
        self.changes += 1
        self.places.moved(path, new_path)
        places = list(pairs)
        with_it = [
            node
            for node in dict.fromkeys((*self.at_and_below(path), *self._making))
            # What is being made at the very path replaces what is renamed.
            if node.path.startswith(f"{path}/") or (node.path == path and node not in self._making)
        ]
        for node in with_it:
            self._forget(node)
            if node.document is not None:
                said = Key(relocated(node.document, places)), node.generation
                if node in self._making:
                    node.document = said[0]
                else:
                    self.say(node, said)
            node.move(NodePath(f"{new_path}{node.path[len(path) :]}"), Prefix(relocated(node.chunk_prefix, places)))
        for node in with_it:
            if node in self._making:
                continue
            self._put(node)
            if (opened := node.opened) is not None:
                opened.array.node = replace(opened.array.node, path=node.path, chunk_prefix=node.chunk_prefix)
        self.on_moved(path.prefix, new_path.prefix)

    def erased(self, place: Key | Prefix) -> None:
        """All that lies below a prefix was erased by this mount, or the document of an array that was to be erased. (A document that is
        erased by itself may be about to be written anew, as editors do: that is left to `confirm`.)"""
        self.changes += 1
        for node in self._concerned(place):
            if node in self._making:
                if place not in (node.path.prefix, node.chunk_prefix):
                    node.end("lost the folder in which it was being made")
            elif node.is_said_at(place):
                node.erased_here = True
                self._end(node, "was erased")

    def replaced(self, node: LiveArray, path: NodePath, chunk_prefix: Prefix) -> None:
        """This mount has put another array in the place of ``node``, which lay at ``path`` until then. Chunks that are queued for it are
        saved (docs/design/023-rescued.md)."""
        self._forget(node)
        # Taken out of the way it was moved, or erased; errors and saved chunks name its last path.
        node.move(path, chunk_prefix)
        node.erased_here, node.replaced_here = False, True
        why = "was replaced by another array"
        if node.why_gone is None:
            self._end(node, why)
        # Else it ended when it was taken out of the way, and what has its path by now goes on.
        node.why_gone = why

    def removed(self, path: NodePath, why: str = "was erased") -> None:
        """The node at ``path`` is gone, and all below it. (The folder of the root stays.)"""
        if path != ROOT:
            self.places.ended(path, why)
            self.on_removed(path)

    def document_changed(self, key: Key) -> None:
        """Somebody changed the value of ``key``, which may say what an array in use is."""
        if (node := self._by_document.get(key)) is not None:
            node.is_unread = True

    async def learnt(self, path: NodePath, node: Node | None, said: Said, before: Node | None) -> OpenArray | None:
        """Documents were read again: the array in use at ``path`` if ``node``, which was found there, is that very array; else it is
        told what it is now, a resized one or none. ``before``: what was found there the last time."""
        if isinstance(before, GroupNode):
            if isinstance(node, ArrayNode) and path not in self.turning:
                self.removed(path, "was replaced by an array")
            elif node is None and not await self._store.prefix_exists(path.prefix):
                self.removed(path)
        live = self.at(path)
        if live is None:
            return None
        opened = live.opened
        if not isinstance(node, ArrayNode):
            if isinstance(node, GroupNode) and node.explicit:
                self._end(live, "was replaced by a group")
            elif not isinstance(node, UnsupportedNode) and not await self._store.prefix_exists(live.chunk_prefix):
                self._end(live, "was erased")
            # Else its documents may be about to be written.
            return None
        if live.metadata is not None and not (live.chunk_prefix == node.chunk_prefix and live.metadata.stores_as(node.metadata)):
            if live.is_misplaced or live.chunk_prefix != node.chunk_prefix or not is_resized(live.metadata, node.metadata):
                self._end(live, "was replaced by another array")
                return None
            if opened is not None:
                opened.superseded = True
                opened.reader.discard()
            live.layouts += 1
            live.opened = opened = None
            live.metadata = node.metadata
        self.say(live, said)
        return opened if live.why_gone is None else None

    async def confirm(self, live: LiveNode) -> bool:
        """See `zarrfs.arrays.live_node.Confirm`. Where its documents cannot be read, or are not there while something is, they may be
        about to be written: that is waited for. Raises `StaleEntry` and `NodeInDoubt`."""
        assert isinstance(live, LiveArray)
        if live.document is not None:
            # Held before it is asked for: what comes to be in its place afterwards is another.
            self.hold(live)
            stat = await self._store.stat(live.document)
            if stat is not None and stat.generation == live.generation:
                live.is_unread = False
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
                # Of what has no document of its own there is no generation: it is read anew each time.
                return live.document is None
            if trio.current_time() >= give_up:
                raise NodeInDoubt(
                    f"the documents of {live.path} are not there, or cannot be read, but its folder is", key=live.path
                )
            await trio.sleep(_DOUBT_SECONDS / 20)

    def hold(self, live: LiveArray) -> None:
        """Somebody writes to an array: from now on one that comes to be in its folder's place is another, however equal. Raises
        `StaleEntry`."""
        live.check()
        self._anchor(live)

    def _anchor(self, live: LiveArray) -> None:
        if live.folder is None or live.document is None or (live.anchor is not None and live.anchor.holds):
            return
        anchor = self._store.anchor(live.folder)
        if anchor is not None and anchor.generation(live.document[len(live.folder) :]) != live.generation:
            # It lies in the place of the one that was read, or is just being written.
            live.is_unread = live.is_misplaced = True
        else:
            live.anchor, live.is_misplaced = anchor, False

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
            live.end("lost the folder in which it was being made")
            live.check()
        return True

    def is_underway(self, path: NodePath) -> bool:
        """Whether it is being moved, erased or replaced now: what the store has there may be of before, or of afterwards."""
        return _is_in(path, self._underway)

    def is_changing(self, path: NodePath) -> bool:
        """Whether somebody moves, erases or replaces it, or is about to."""
        return _is_in(path, self._changing)

    async def settled(self, path: NodePath) -> None:
        """Return when nothing is being changed that decides what is at ``path``."""
        while self.is_changing(path):
            await self._changed.wait()
        for places, fences_there in list(self._fences):
            if not fences_there:
                self._fences.remove((places, fences_there))
            elif _is_in(path, places):
                await unfenced(fences_there, path)

    @asynccontextmanager
    async def changing(self, *places: Key | Prefix) -> AsyncIterator[None]:
        """Around what moves, erases or replaces what lies there: nobody publishes to an array there meanwhile, and who asks for one
        waits. One at a time."""
        # Who stays may change something else first: he is waited for before anybody is kept out.
        self._wanted.append(places)
        async with AsyncExitStack() as stack:
            stack.callback(self._want_no_more, places)
            while any(task is not trio.lowlevel.current_task() and _is_in(place.path, places) for place, task in self._staying):
                await self._changed.wait()
            await stack.enter_async_context(self._changing_now(*places))
            yield

    @asynccontextmanager
    async def staying(self, place: Place) -> AsyncIterator[None]:
        """Within, nobody moves or erases through this mount what lies at ``place``. For who writes documents there."""
        while True:
            path = place.path
            await self.settled(path)
            if any(_is_in(path, places) for places in self._wanted):
                await self._changed.wait()
            elif place.path == path:
                break
        place.check()
        staying = place, trio.lowlevel.current_task()
        self._staying.append(staying)
        try:
            yield
        finally:
            self._staying.remove(staying)
            self._tell_changed()

    def _want_no_more(self, places: tuple[Key | Prefix, ...]) -> None:
        self._wanted.remove(places)
        self._tell_changed()

    def _tell_changed(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    @asynccontextmanager
    async def _changing_now(self, *places: Key | Prefix) -> AsyncIterator[None]:
        async with self._lock:
            self._changing = places
            concerned = list(dict.fromkeys(node for place in places for node in self._concerned(place)))
            given_up: list[trio.Event] = []
            try:
                async with AsyncExitStack() as stack:
                    for node in concerned:
                        await stack.enter_async_context(node.changing())
                    self._underway = places
                    with fences.collected() as given_up:
                        yield
            finally:
                if given_up:
                    for node in concerned:
                        node.fences.extend(given_up)
                    self._fences.append((places, given_up))
                self._changing = self._underway = ()
                self._tell_changed()

    @asynccontextmanager
    async def changing_document(self, *keys: Key) -> AsyncIterator[None]:
        """As `changing`, of keys that may be any: where none of them says what an array in use is, nothing is waited for."""
        documents = [key for key in keys if key in self._by_document]
        async with self.changing(*documents) if documents else nullcontext():
            yield

    def say(self, node: LiveArray, said: Said) -> None:
        """What says what ``node`` is, now that it was read: another document in another folder is another array's, however equal."""
        is_new = said[1] != node.generation
        if node.document is not None and self._by_document.get(node.document) is node:
            del self._by_document[node.document]
        node.document, node.generation = said
        node.is_unread = False
        if node.document is not None:
            self._by_document[node.document] = node
        if not node.is_said_at(node.path.prefix):
            self._apart.add(node)
        if is_new and not node.is_in_place():
            self._end(node, "was replaced by another array")
        else:
            self._anchor(node)

    def _end(self, node: LiveArray, why: str) -> None:
        self._end_alone(node, why)
        self.removed(node.path, why)

    def _end_alone(self, node: LiveArray, why: str) -> None:
        """Without what has its path by now."""
        self.changes += 1
        if (opened := node.opened) is not None:
            opened.superseded = True
            opened.reader.discard()
        node.end(why)
        self._forget(node)

    def _concerned(self, place: Key | Prefix) -> list[LiveArray]:
        """The arrays in use that are others, or elsewhere, where something is changed there; no more are looked at than may be."""
        if not isinstance(place, Prefix):
            node = self._by_document.get(place)
            return [node] if node is not None else []
        try:
            below = self.at_and_below(NodePath(f"/{place[:-1]}"))
        except NameInvalid:
            below = iter(())
        return [node for node in dict.fromkeys((*below, *self._apart, *self._making)) if node.concerns(place)]

    def _put(self, node: LiveArray) -> None:
        path = node.path
        if (before := self.at(path)) is not None and before is not node:
            # Another program had removed it, and nobody has asked since.
            self._end_alone(before, "was replaced by another array")

        def dropped(ref: weakref.ref[LiveArray]) -> None:
            if self._by_path.get(path) is ref:
                del self._by_path[path]
                self._paths.discard(path)

        if node.document is not None:
            self._by_document[node.document] = node
        if not node.is_said_at(path.prefix) or not node.chunk_prefix.startswith(path.prefix):
            self._apart.add(node)
        self._by_path[path] = weakref.ref(node, dropped)
        self._paths.add(path)
        self._by_chunk_prefix[node.chunk_prefix] = node

    def _forget(self, node: LiveArray) -> None:
        self._apart.discard(node)
        if self.at(node.path) is node:
            del self._by_path[node.path]
            self._paths.discard(node.path)
        if node.document is not None and self._by_document.get(node.document) is node:
            del self._by_document[node.document]
        if self._by_chunk_prefix.get(node.chunk_prefix) is node:
            del self._by_chunk_prefix[node.chunk_prefix]


def _is_in(path: NodePath, places: tuple[Key | Prefix, ...]) -> bool:
    return any(isinstance(place, Prefix) and path.prefix.startswith(place) for place in places)
