"""The node of an array, for readers and writers of its chunks: its current path, and whether it still exists (docs/design/019).

The hierarchy creates, moves and ends nodes. A writer holds its node in place until its last set has ended (`LiveNode.holding`). A task
that moves, erases or replaces a node waits for its holders, and new holders wait for the task (`LiveNode.changing`). A reader holds
nothing and checks for a move afterwards (`LiveNode.wait_stable`).

Belongs to one event loop.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext

import trio

from zarrfs.errors import NodeInDoubt, NodeMoving, StaleEntry, StoreTimeout
from zarrfs.keys import APART, NodePath, Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.stores.anchor import AbsentFolder, Anchor
from zarrfs.stores.locks import LockTable
from zarrfs.stores.presupposing import presupposing

_FENCED_SECONDS = 1.0
_CONFIRMATIONS = 64

_waited_until: weakref.WeakKeyDictionary[trio.Event, float] = weakref.WeakKeyDictionary()
_has_memory: contextvars.ContextVar[bool] = contextvars.ContextVar("zarrfs_reads_with_memory", default=False)
_holds: contextvars.ContextVar[tuple[_Hold, ...]] = contextvars.ContextVar("zarrfs_held_nodes", default=())

Confirm = Callable[["LiveNode"], Awaitable[bool]]
"""Returns True if the node is still as known; False if it was read anew. Raises if it is gone, or if that cannot be determined."""

# One for all, since an empty set takes 216 bytes.
_NO_CALLBACKS: frozenset[Callable[[LiveNode], None]] = frozenset()


@contextmanager
def with_memory() -> Iterator[None]:
    """Raise `NodeMoving` in the body instead of waiting for a node that is being moved.

    The mover waits for publishes in progress, and these may wait for the memory reserved here. The caller releases the memory, waits, and
    retries.
    """
    token = _has_memory.set(True)
    try:
        yield
    finally:
        _has_memory.reset(token)


class LiveNode:
    """One node in use.

    ``path`` and ``chunk_prefix`` are the current or last ones; ``moves`` counts their changes, ``layouts`` the resizes that changed the
    layout of its chunks. ``confirm_now`` queries the store.
    """

    def __init__(self, path: NodePath, chunk_prefix: Prefix, confirm_now: Confirm) -> None:
        self.path = path
        self.chunk_prefix = chunk_prefix
        self.moves = 0
        self.layouts = 0
        self.why_gone: str | None = None
        self.erased_by_mount = False
        """True if it was erased through this mount, or replaced by another array: what is queued for it goes with it."""
        self.anchor: Anchor | None = None
        """Its folder, set when a writer first used it."""
        self.is_unread = False
        """True if its documents changed since they were last read."""
        self.has_no_chunks = False
        """True if this mount erased the folder of its chunks alone, and no writer has held it to the end since."""
        self.fences: list[trio.Event] = []
        """Moves or removals of it that passed their deadline and are still running."""
        self.on_end = _NO_CALLBACKS
        """Callbacks for the end of the node."""
        self._confirm_now = confirm_now
        self._holders = 0
        self._changers = 0
        # Created when needed: there may be tens of thousands of nodes.
        self._turns: LockTable | None = None
        self._turn: trio.Event | None = None

    @property
    def folder(self) -> Prefix | None:
        """Folder that must exist, on stores with folders, for a set of its keys; None if unknown."""
        return None

    @property
    def place_of_chunks(self) -> tuple[Prefix | None, Anchor | None]:
        """The arguments of `presupposing` for its chunks, after the store confirmed it."""
        return self.folder, self.anchor

    def is_in_place(self) -> bool:
        """Return True if the folder at its path is its own; False if another is, or if its own was held and is so no more.

        True where folders cannot be distinguished at all."""
        return self.anchor is None or self.folder is None or (self.anchor.holds and self.anchor.is_at(self.folder))

    def expects_sets(self) -> None:
        """Called when the store has confirmed it to a task that sets chunks."""

    def are_chunks_in_place(self) -> bool:
        """Return True if what is read at its chunk prefix is its own: without a proof, the store has to confirm the node."""
        return self.is_in_place()

    def has_taken_place_of(self, other: LiveNode) -> bool:
        """Return True if another program has renamed the folder of ``other``, as far as that is held, to be that of this node.

        If it was renamed back before anything used it elsewhere, both have the same path."""
        folder, anchor = self.folder, other.anchor
        if folder is None or anchor is None or (folder == other.folder and other.why_gone is None) or other.erased_by_mount:
            return False
        return anchor.prefix() == folder

    @property
    def is_moved_away(self) -> bool:
        """True if another program has renamed its folder, as far as that is known: what this mount erases at its path is not it."""
        return is_elsewhere(self.anchor, self.folder)

    # --- for readers and writers ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `StaleEntry` if it is gone."""
        if self.why_gone is not None:
            raise StaleEntry(f"{self.path} {self.why_gone}: open the file again", key=self.path)

    async def wait_stable(self) -> int:
        """Return `moves` when no task is moving or ending it. Raises `StaleEntry`, and `NodeMoving` within `with_memory`."""
        while not self.is_stable:
            if not self._changers or self._is_held_here():
                # Another task may begin to move it during this wait.
                await unfenced(self.fences, self.path)
            elif _has_memory.get():
                raise NodeMoving(f"{self.path} is being moved or erased", key=self.path)
            else:
                await self._next_turn()
        self.check()
        return self.moves

    @property
    def is_being_changed(self) -> bool:
        """True if a task is moving or ending it, or waits to."""
        return bool(self._changers)

    @property
    def is_stable(self) -> bool:
        """True if `wait_stable` would return at once."""
        return not self.fences and (not self._changers or self._is_held_here())

    def has_stayed(self, moves: int) -> bool:
        """Return True if requests sent since `wait_stable` returned ``moves`` went to its path."""
        return self.moves == moves and not self.fences and (not self._changers or self._is_held_here())

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Keep the node in place in the body, after the store confirmed it. Raises `StaleEntry`, and errors of the store."""
        nested = self._is_held_here()
        if not nested:
            await self.wait_stable()
        hold = _Hold(self)
        token = _holds.set((*_holds.get(), hold))
        # A task started within holds for itself: it may outlive the outer one.
        self._holders += 1
        try:
            if not nested:
                await self.confirmed()
                self.expects_sets()
            with presupposing(*self.place_of_chunks):
                yield
            self.has_no_chunks = False
        finally:
            hold.over = True
            _holds.reset(token)
            self._holders -= 1
            if not self._holders:
                self._next()

    async def confirm(self) -> bool:
        """Return True if the store has it at its path, as known; False if it was read anew.

        Raises `StaleEntry` if it is gone, and errors of the store.
        """
        return self._is_held_here() or await self._confirm_now(self)

    async def confirmed(self) -> None:
        """Return when the store has it at its path, as known. Raises as `confirm`, and `NodeInDoubt`."""
        for _ in range(_CONFIRMATIONS):
            if await self._confirm_now(self):
                return
            # It changed, and may change again.
        raise NodeInDoubt(f"{self.path}: documents kept changing during {_CONFIRMATIONS} reads", key=self.path)

    @contextmanager
    def presupposed(self) -> Iterator[None]:
        """Direct reads and sets of the body to its very folder, as far as that is held. Raises `StaleEntry`."""
        self.check()
        with presupposing(self.folder, self.anchor):
            yield

    def turn(self, unit: Coords) -> AbstractAsyncContextManager[None]:
        """Exclude other partial changes and replacements, through this mount, of queued chunks in this unit.

        A task that waits for it has already reserved its memory.
        """
        if self._turns is None:
            self._turns = LockTable()
        return self._turns.hold(repr(unit))

    # --- for tasks that change it --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Keep writers out in the body. For one task at a time."""
        self._changers += 1
        try:
            while self._holders:
                await self._next_turn()
            yield
        finally:
            self._changers -= 1
            self._next()

    @contextmanager
    def held_by_changer(self) -> Iterator[None]:
        """Let the body, a part of `changing` after the store confirmed the node, hold it: else it would wait for itself."""
        hold = _Hold(self)
        token = _holds.set((*_holds.get(), hold))
        try:
            yield
        finally:
            hold.over = True
            _holds.reset(token)

    def move(self, path: NodePath, chunk_prefix: Prefix) -> None:
        """Record a move to this path and prefix."""
        self.path, self.chunk_prefix = path, chunk_prefix
        self.moves += 1

    def end(self, why: str) -> None:
        """Record the end of the node: ``why`` completes a sentence that begins with its path."""
        if self.why_gone is None:
            self.why_gone = why
            self.moves += 1
            for callback in self.on_end:
                callback(self)

    def _is_held_here(self) -> bool:
        return any(hold.node is self and not hold.over for hold in _holds.get())

    async def _next_turn(self) -> None:
        if self._turn is None:
            self._turn = trio.Event()
        await self._turn.wait()

    def _next(self) -> None:
        if self._turn is not None:
            turn, self._turn = self._turn, None
            turn.set()


def is_elsewhere(anchor: Anchor | None, folder: Prefix | None) -> bool:
    """Return True if this folder, as far as it is held, has another path than ``folder``, which this mount did not give it."""
    if anchor is None or isinstance(anchor, AbsentFolder) or not anchor.holds or anchor.is_erased:
        return False
    prefix = anchor.prefix()
    if prefix is None:
        return not anchor.is_erased
    return not (prefix.startswith(APART) or prefix == folder)


@asynccontextmanager
async def bound_to(node: LiveNode | None) -> AsyncIterator[None]:
    """Direct the edit in the body to this array in use, which may have been moved or changed while the edit waited for others."""
    if node is not None:
        await node.confirmed()
    with node.presupposed() if node is not None else nullcontext():
        yield


async def unfenced(fences: list[trio.Event], path: NodePath, what: str = "move or removal") -> None:
    """Return when all these events are set. Raises `StoreTimeout` after a while: the outcome of ``what`` is then unknown.

    However many tasks wait for an event, one after the other, they wait for one while together."""
    while fences:
        ended = fences[0]
        with trio.move_on_at(_waited_until.setdefault(ended, trio.current_time() + _FENCED_SECONDS)):
            await ended.wait()
        if not ended.is_set():
            raise StoreTimeout(f"{path}: {what} still pending: the store does not answer", key=path)
        if ended in fences:
            fences.remove(ended)


class _Hold:
    """One `LiveNode.holding`, visible to all code called, and tasks started, within it."""

    __slots__ = ("node", "over")

    def __init__(self, node: LiveNode) -> None:
        self.node = node
        self.over = False
