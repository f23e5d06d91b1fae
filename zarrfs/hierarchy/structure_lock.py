"""Lock of the structure of the hierarchy: operations that move, erase or replace nodes run one at a time.

While one runs, lookups of the affected nodes and publishers of their chunks wait. A task that writes documents at a path keeps it from
being moved (`StructureLock.staying`). For the reasons see docs/design/019-nodes-in-use.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from zarrfs import fences
from zarrfs.arrays.live_node import LiveNode, unfenced
from zarrfs.hierarchy.bound_paths import BoundPath
from zarrfs.keys import Key, NodePath, Prefix

Targets = tuple[Key | Prefix, ...]
"""What an operation changes."""


class StructureLock:
    """The lock of one hierarchy. ``affected``: returns the arrays in use that a change at a key or prefix can replace or move.

    ``before``: called with each of them before a change."""

    def __init__(self, affected: Callable[[Key | Prefix], Iterable[LiveNode]], before: Callable[[LiveNode], None]) -> None:
        self._affected = affected
        self._before = before
        self._lock = trio.Lock()
        self._changing: Targets = ()
        self._underway: Targets = ()
        self._wanted: list[Targets] = []
        self._staying: list[tuple[BoundPath, trio.lowlevel.Task]] = []
        self._changed = trio.Event()
        self._fences: list[tuple[Targets, list[trio.Event]]] = []

    def is_underway(self, path: NodePath) -> bool:
        """Return True while the node is moved, erased or replaced: the store may show the state before or after, or one in between."""
        if not self._underway and not self._fences:
            return False
        return _is_in(path, self._underway) or any(
            _is_in(path, targets) and not all(each.is_set() for each in pending) for targets, pending in self._fences
        )

    def is_changing(self, path: NodePath) -> bool:
        """Return True if an operation moves, erases or replaces the node, or is about to."""
        return bool(self._changing) and _is_in(path, self._changing)

    async def wait_stable(self, path: NodePath) -> None:
        """Wait until no operation in progress affects ``path``. Raises `StoreTimeout` if an abandoned one does not end."""
        while True:
            while self._changing and self.is_changing(path):
                await self._changed.wait()
            if not self._fences:
                return
            # Between two awaits: each of several waiters comes here. Another operation may begin during the wait below.
            self._fences = [(targets, pending) for targets, pending in self._fences if pending]
            abandoned = next((pending for targets, pending in self._fences if _is_in(path, targets)), None)
            if abandoned is None:
                return
            await unfenced(abandoned, path)

    def fence(self, targets: Targets, pending: list[trio.Event]) -> None:
        """Let `wait_stable` of paths in ``targets`` wait for these events, of operations that their callers have abandoned."""
        self._fences.append((targets, pending))

    @asynccontextmanager
    async def changing(self, *targets: Key | Prefix) -> AsyncIterator[None]:
        """Keep publishers and lookups out of ``targets`` during the body, which changes their content. One at a time."""
        # A task that stays may itself change something else first: wait for it before others are blocked.
        self._wanted.append(targets)
        async with AsyncExitStack() as stack:
            stack.callback(self._want_no_more, targets)
            while any(task is not trio.lowlevel.current_task() and _is_in(bound.path, targets) for bound, task in self._staying):
                await self._changed.wait()
            await stack.enter_async_context(self._changing_now(targets))
            yield

    @asynccontextmanager
    async def staying(self, bound: BoundPath) -> AsyncIterator[None]:
        """Prevent moves and removal through this mount of the node at ``bound`` during the body, which writes documents there."""
        while True:
            path = bound.path
            await self.wait_stable(path)
            if any(_is_in(path, targets) for targets in self._wanted):
                await self._changed.wait()
            elif bound.path == path:
                break
        bound.check()
        staying = bound, trio.lowlevel.current_task()
        self._staying.append(staying)
        try:
            yield
        finally:
            self._staying.remove(staying)
            self._wake()

    @asynccontextmanager
    async def _changing_now(self, targets: Targets) -> AsyncIterator[None]:
        async with self._lock:
            self._changing = targets
            affected = list(dict.fromkeys(node for target in targets for node in self._affected(target)))
            given_up: list[trio.Event] = []
            try:
                async with AsyncExitStack() as stack:
                    for node in affected:
                        await stack.enter_async_context(node.changing())
                    for node in affected:
                        self._before(node)
                    self._underway = targets
                    with fences.collected() as given_up:
                        yield
            finally:
                if given_up:
                    for node in affected:
                        node.fences.extend(given_up)
                    self.fence(targets, given_up)
                    for each in given_up:
                        fences.given_up(each)
                self._changing = self._underway = ()
                self._wake()

    def _want_no_more(self, targets: Targets) -> None:
        self._wanted.remove(targets)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


def _is_in(path: NodePath, targets: Targets) -> bool:
    return any(isinstance(target, Prefix) and path.prefix.startswith(target) for target in targets)
