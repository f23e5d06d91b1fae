"""Changes by other programs in a folder store: the events of `FolderWatch` without those that the store itself caused.

The store's own file operations cause events like any other. Each is therefore declared with `FolderChanges.own`, before and after,
together with the state of its files afterwards. The kernel queues an event before the system call that caused it returns: at the end
of the operation all its events are queued. Events of its files are deferred until then. If a file is still in the state that the
operation left, no other program has changed it since, and the announcement of the operation covers earlier changes (not if it announces
a time, or parts of the value alone); else another program has changed it. This includes operations that begin or end while the watches
are being added.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import trio

from zarrfs import threads
from zarrfs.errors import StoreAccessDenied
from zarrfs.keys import Key, Prefix
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.change import Change, is_announced
from zarrfs.stores.folder.inline import InlineTree
from zarrfs.stores.folder.names import Parts, generation_of, path_of
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.folder.watch import Event, FolderWatch, Overflow, Seen, Unwatchable, events

log = logging.getLogger(__name__)

OnChanges = Callable[[Sequence[Change]], None]
ChangeKind = Literal["set", "erase", "times", "unknown", "mkdir", "rmdir"]
Found = dict[tuple[Parts, bool], ChangeKind]
"""Changes by name; True in the key for a folder."""

EVERYTHING = Change(Prefix(""), "unknown", external=True)

_SLICE_SECONDS = 0.005
"""Computing time after which reporting changes yields to other tasks."""
_INLINE_NBYTES = 4 * 1024
"""Events understood inline: at most 128, at about 10 microseconds each."""
_MAX_QUEUED_NBYTES = 16 * 1024 * 1024


class Own:
    """An operation of the store on the values ``leaves`` and on all that lies below the folders ``below``.

    ``left`` is the state of the leaves at its end: a generation, ``"/"`` for a folder, or ``""`` for absence. The folders are then gone,
    unless they are leaves too; ``moved_to`` is the new position of the first one, or of the first leaf. ``took_effect``: False if it
    failed, or found nothing to change: all events are then of other programs. ``moved``: what they changed before it was moved.
    ``of_times``: it sets a time. ``in_part``: its caller announces parts of the value that it sets (`zarrfs.stores.change.announcing`).
    """

    __slots__ = ("below", "count", "events", "in_part", "is_over", "leaves", "left", "moved", "moved_to", "of_times", "took_effect")

    def __init__(self, leaves: tuple[Parts, ...], below: tuple[Parts, ...], moved_to: Parts | None, *, of_times: bool) -> None:
        self.leaves = leaves
        self.below = below
        self.moved_to = moved_to
        self.of_times = of_times
        self.in_part = len(leaves) == 1 and is_announced(path_of(leaves[0]))
        self.count = 0
        self.left: dict[Parts, str] = {}
        self.took_effect = False
        self.is_over = False
        self.events: Found = {}
        self.moved: Found = {}

    def covers(self, parts: Parts) -> bool:
        """Return True if an event at ``parts`` may be of this operation."""
        return parts in self.leaves or parts == self.moved_to or any(parts[: len(folder)] == folder for folder in self.below)

    def add(self, parts: Parts, is_folder: bool, kind: ChangeKind | Literal["moved"]) -> None:
        """Defer an event to the end of the operation."""
        self.count += 1
        _add(self.events, parts, is_folder, kind)

    def move(self, seen: Seen) -> None:
        """Record the event also at the new place, if it is of what is moved, and not the move itself."""
        if self.moved_to is None or (seen.is_folder and not self.below):
            return
        source = (self.below or self.leaves)[0]
        rest = seen.parts[len(source) :]
        if seen.parts[: len(source)] != source or (not rest and seen.kind == "erase"):
            return
        if not self.below:
            # The mount may give it the new name between the two reports: with the old name first, one of them finds it.
            _add(self.moved, seen.parts, seen.is_folder, "set")
        _add(self.moved, (*self.moved_to, *rest), seen.is_folder, seen.kind if rest else "set")

    def explains(self, parts: Parts, is_folder: bool, kind: ChangeKind, state: str) -> bool:
        """Return True if it caused the events at ``parts``, which is now in this ``state``, as `left`."""
        # A set, like a removal, is one event.
        if not self.took_effect or (self.of_times and kind != "times") or (self.in_part and self.count > 1):
            return False
        if is_folder and self.below and parts == self.moved_to:
            # Several events there have another kind.
            return kind == "set"
        if self.left.get(parts) == "/" and (kind == "rmdir" or (kind == "unknown" and not self.below)):
            # It was removed, and made again.
            return False
        left = self.left.get(parts) if parts in self.leaves else ""
        # An operation on a value does nothing to a folder that had its name.
        return state == left and not (is_folder and parts in self.leaves and left != "/")


class FolderChanges:
    """The changes of one tree. Its state belongs to the event loop, and to one thread at a time that processes events for it."""

    def __init__(self, tree: FolderTree, inline: InlineTree) -> None:
        self._tree = tree
        self._inline = inline
        self._watch: FolderWatch | None = None
        self._is_beginning = False
        """True while watches are being added: they have events that cannot be read yet."""
        self._queue: deque[bytes | Own] = deque()
        self._found: list[Change] = []
        """Changes to be reported before those in the queue."""
        self._own: list[Own] = []
        self._awake = trio.Event()
        self._is_reporting = False

    @contextmanager
    def own(
        self, *leaves: Parts, below: tuple[Parts, ...] = (), moved_to: Parts | None = None, of_times: bool = False
    ) -> Iterator[Own]:
        """Declare an operation of the store for the body, see `Own`."""
        own = Own(leaves, below, moved_to, of_times=of_times)
        self._own.append(own)
        try:
            own.took_effect = True
            yield own
        except BaseException:
            own.took_effect = False
            raise
        finally:
            own.is_over = True
            if self._watch is None and not self._is_beginning:
                self._own.remove(own)
            else:
                self._read(own)

    def _read(self, *ended: Own) -> None:
        """Read the events so far, then those operations have ``ended``; wake the task that reports changes, if there may be any."""
        watch = self._watch
        portions = watch.read() if watch is not None else []
        if watch is not None and not (self._queue or self._is_reporting or self._tree.mounts.now()):
            few = (
                [event for portion in portions for event in events(portion)] if sum(map(len, portions)) <= _INLINE_NBYTES else None
            )
            if few is not None and all(map(watch.is_of_value, few)):
                # Of most own operations there is nothing to report.
                self._found.extend(self._understood(watch, [*few, *ended]))
                if self._found:
                    self._awake.set()
                return
        self._queue.extend([*portions, *ended])
        self._awake.set()

    def are_waiting(self) -> bool:
        """Return True if changes have been reported that `watch` has not passed on."""
        return self._watch is not None and (
            self._is_reporting or bool(self._queue) or bool(self._found) or self._watch.has_events()
        )

    async def watch(self, on_changes: OnChanges) -> None:
        """Run `zarrfs.stores.base.Store.watch`."""
        if not self._tree.local:
            log.info("%s is not on a file system of this machine: changes by other programs are not watched", self._tree.path)
            return
        again = False
        try:
            while True:
                try:
                    watch = await self._begun()
                    log.info("%s: watching %d folders for changes", self._tree.path, len(watch))
                    on_changes([EVERYTHING] if again else [])
                    await self._report_until_overflow(watch, on_changes)
                except BaseException:
                    if (ended := self._end()) is not None:
                        ended.close()
                    raise
                # Not used from here on: the kernel needs a while to remove thousands of watches. The next full report covers changes
                # meanwhile.
                self._end()
                await threads.io(watch.close)
                log.info("%s: event queue overflow, reporting everything as changed", self._tree.path)
                # Now, and again when the new watches exist.
                on_changes([EVERYTHING])
                again = True
        except Unwatchable as error:
            log.warning("%s: changes by other programs are not watched: %s", self._tree.path, error)

    # --- the stream ---------------------------------------------------------------------------------------------------------

    async def _begun(self) -> FolderWatch:
        """Add the watches. Raises `Unwatchable`."""
        self._is_beginning = True
        watch = await threads.io(FolderWatch, self._tree, abandon_on_cancel=True)
        self._watch, self._is_beginning = watch, False
        # Operations that have ended meanwhile are in the queue: their events precede them.
        self._queue.extendleft(reversed(watch.read()))
        self._awake.set()
        return watch

    async def _report_until_overflow(self, watch: FolderWatch, on_changes: OnChanges) -> None:
        unwatchable: Unwatchable | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_on, watch)
            try:
                while True:
                    await self._awake.wait()
                    self._is_reporting = True
                    await self._report_queued(watch, on_changes)
                    self._is_reporting = False
            except Overflow:
                pass
            except Unwatchable as error:
                unwatchable = error
            nursery.cancel_scope.cancel()
        if unwatchable is not None:
            raise unwatchable

    async def _report_queued(self, watch: FolderWatch, on_changes: OnChanges) -> None:
        self._awake = trio.Event()
        watch.require_local()
        found, self._found = self._found, []
        queued = list(self._queue)
        self._queue.clear()
        nbytes = sum(len(each) for each in queued if isinstance(each, bytes))
        if nbytes > _MAX_QUEUED_NBYTES:
            raise Overflow
        few = list(_parsed(queued)) if nbytes <= _INLINE_NBYTES else None
        if few is None or not all(isinstance(each, Own) or watch.is_quick(each) for each in few):
            every = few if few is not None else _parsed(queued)
            changes = await threads.io(self._understood, watch, every, abandon_on_cancel=True)
        else:
            changes = self._understood(watch, few)
        until = time.thread_time() + _SLICE_SECONDS
        for change in (*found, *changes):
            on_changes((change,))
            if time.thread_time() >= until:
                await trio.lowlevel.checkpoint()
                until = time.thread_time() + _SLICE_SECONDS

    async def _read_on(self, watch: FolderWatch) -> None:
        while True:
            await trio.lowlevel.wait_readable(watch.fileno())
            self._read()

    def _end(self) -> FolderWatch | None:
        """End the use of the watches; return them, to be closed. Operations in progress are still declared."""
        watch, self._watch, self._is_beginning, self._is_reporting = self._watch, None, False, False
        self._queue.clear()
        self._found.clear()
        self._own = [each for each in self._own if not each.is_over]
        return watch

    # --- event processing ---------------------------------------------------------------------------------------------------

    def _understood(self, watch: FolderWatch, events: Iterable[Event | Own]) -> list[Change]:
        found: Found = {}
        for each in events:
            if isinstance(each, Own):
                self._judge(each, found)
            else:
                for seen in watch.understand(each):
                    self._sort(seen, found)
        if not self._own:
            # During an own operation, further events may concern the folders that left.
            watch.drop_leaving()
        return [_change(parts, is_folder, kind) for (parts, is_folder), kind in found.items()]

    def _sort(self, seen: Seen, found: Found) -> None:
        """Defer a change to the own operation that it may be of; else add it to the changes by other programs."""
        covering = [own for own in tuple(self._own) if own.covers(seen.parts)]
        if covering:
            covering[0].add(seen.parts, seen.is_folder, seen.kind)
            if len(covering) == 1:
                # Else it may be of the other one.
                covering[0].move(seen)
            return
        _add(found, seen.parts, seen.is_folder, seen.kind)

    def _judge(self, own: Own, found: Found) -> None:
        """Report the deferred changes that are not of an operation that has ended."""
        if own not in self._own:
            return  # It ended before these watches.
        self._own.remove(own)
        # Without an event: in a new folder that was not watched yet, and may be gone again.
        untold: Found = {
            entry: "unknown" if entry[1] else "set"
            for parts, left in (own.left.items() if own.took_effect else ())
            if (entry := (parts, left == "/")) not in own.events
        }
        states = {entry: self._state(*entry) for entry in own.events | own.moved | untold}
        changed = {entry: kind for entry, kind in own.events.items() if not own.explains(*entry, kind, states[entry])}
        changed |= {entry: kind for entry, kind in untold.items() if states[entry] != own.left[entry[0]]}
        for (parts, is_folder), kind in (changed | (own.moved if own.took_effect else {})).items():
            now = states[parts, is_folder]
            if not is_folder:
                kind = "erase" if not now else "set" if kind == "erase" else kind
            other = next((each for each in tuple(self._own) if each.covers(parts)), None)
            if other is None:
                _add(found, parts, is_folder, kind)
            else:
                other.add(parts, is_folder, kind)

    def _state(self, parts: Parts, is_folder: bool) -> str:
        """Return the present state: a value's generation, ``"/"`` for a folder, ``""`` for absence."""
        try:
            try:
                return self._state_in(self._inline, parts, is_folder)
            except WouldWait:
                if not self._tree.mounts.now():
                    return self._state_in(self._tree, parts, is_folder)
        except (OSError, StoreAccessDenied):
            pass
        # What cannot be found out, or may hang, counts as a change: at worst, an unnecessary notification.
        return "?"

    @staticmethod
    def _state_in(tree: FolderTree | InlineTree, parts: Parts, is_folder: bool) -> str:
        if is_folder:
            return "" if tree.folder_mtime_ns(parts) is None else "/"
        stat = tree.stat(parts)
        return "" if stat is None else generation_of(stat)


def _parsed(queued: Iterable[bytes | Own]) -> Iterator[Event | Own]:
    for each in queued:
        if isinstance(each, Own):
            yield each
        else:
            yield from events(each)


def _add(found: Found, parts: Parts, is_folder: bool, kind: ChangeKind | Literal["moved"]) -> None:
    entry = parts, is_folder
    if kind == "moved":
        kind = "set"
    before = found.get(entry, kind)
    if is_folder and before != kind:
        kind = "rmdir" if {before, kind} == {"mkdir", "rmdir"} else "unknown"
    elif before == "set" and kind == "times":
        kind = "set"
    found[entry] = kind


def _change(parts: Parts, is_folder: bool, kind: ChangeKind) -> Change:
    path = "/".join(parts)
    return Change(Prefix(path + "/") if is_folder else Key(path), kind, external=True)
