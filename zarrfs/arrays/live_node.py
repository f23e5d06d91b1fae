"""The node of an array, as whoever reads and publishes its chunks knows it: where it is now, and whether it still is (docs/design/019).

It is made, moved and ended by the hierarchy. Who publishes holds it (`LiveNode.holding`), so that it stays where it is until the last
set has ended; who moves, erases or replaces it waits for these, and keeps others from beginning (`LiveNode.changing`). Who reads holds
nothing: he looks afterwards whether it was moved meanwhile (`LiveNode.settled`).

Belongs to one event loop.
"""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

import trio

from zarrfs.errors import NodeInDoubt, NodeMoving, StaleEntry, StoreTimeout
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.locks import LockTable
from zarrfs.stores.presupposing import presupposing

_FENCED_SECONDS = 1.0
_CONFIRMATIONS = 64

_has_memory: contextvars.ContextVar[bool] = contextvars.ContextVar("zarrfs_reads_with_memory", default=False)
_holds: contextvars.ContextVar[tuple[_Hold, ...]] = contextvars.ContextVar("zarrfs_held_nodes", default=())

Confirm = Callable[["LiveNode"], Awaitable[bool]]
"""Whether what is known of the node is so still; False: it was found out anew. Raises where it is not there, or nobody can tell."""


@contextmanager
def with_memory() -> Iterator[None]:
    """Within, nobody waits for a node that is being moved: whoever moves it waits for those who publish to it, and these may wait for the
    memory that is taken here. `NodeMoving` is raised instead: give the memory back, wait, and begin anew."""
    token = _has_memory.set(True)
    try:
        yield
    finally:
        _has_memory.reset(token)


class LiveNode:
    """One node that is in use. ``path`` and ``chunk_prefix`` are those that it has now, or had last; ``moves`` counts how often they
    changed, and ``layouts`` how often a resize did what its chunks are. ``confirm_now`` asks the store."""

    def __init__(self, path: NodePath, chunk_prefix: Prefix, confirm_now: Confirm) -> None:
        self.path = path
        self.chunk_prefix = chunk_prefix
        self.moves = 0
        self.layouts = 0
        self.why_gone: str | None = None
        self.erased_here = False
        """Whether it is gone because somebody erased it through this mount."""
        self.replaced_here = False
        """Whether it is gone because this mount put another array in its place."""
        self.anchor: Anchor | None = None
        """Its folder, since somebody began to write to it."""
        self.is_unread = False
        """Whether what says what it is was changed, and not read since."""
        self.fences: list[trio.Event] = []
        """What moves or ends it, was given up at its deadline, and goes on."""
        self.on_end: set[Callable[[LiveNode], None]] = set()
        """Called when it is found to be gone."""
        self._confirm_now = confirm_now
        self._turns = LockTable()
        self._holders = 0
        self._changers = 0
        self._turn = trio.Event()

    @property
    def folder(self) -> Prefix | None:
        """What has to be there, where a store has folders, for anything of it to be stored; None where that is not known."""
        return None

    def is_in_place(self) -> bool:
        """Whether what lies in its place is its folder, as far as that is held."""
        return self.anchor is None or self.folder is None or self.anchor.is_at(self.folder)

    # --- for who reads and publishes -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `StaleEntry` where it is gone."""
        if self.why_gone is not None:
            raise StaleEntry(f"{self.path} {self.why_gone}: open the file again", key=self.path)

    async def settled(self) -> int:
        """Return `moves` when nobody is moving or ending it. Raises `StaleEntry`, and `NodeMoving` within `with_memory`."""
        while self._changers and not self._is_held_here():
            if _has_memory.get():
                raise NodeMoving(f"{self.path} is being moved or erased", key=self.path)
            await self._turn.wait()
        await unfenced(self.fences, self.path)
        self.check()
        return self.moves

    @property
    def is_being_changed(self) -> bool:
        """Whether somebody is moving or ending it, or waits to."""
        return bool(self._changers)

    def has_stayed(self, moves: int) -> bool:
        """Whether what was asked for since `settled` gave ``moves`` was asked for in its place."""
        return self.moves == moves and not self.fences and (not self._changers or self._is_held_here())

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Within, it is there and stays where it is: the store was asked. Raises `StaleEntry`, and what kept the store from answering."""
        nested = self._is_held_here()
        if not nested:
            await self.settled()
        hold = _Hold(self)
        token = _holds.set((*_holds.get(), hold))
        # A task that was begun within holds for itself: it may go on when the outer one has ended.
        self._holders += 1
        try:
            if not nested:
                await self.confirmed()
            with presupposing(self.folder, self.anchor):
                yield
        finally:
            hold.over = True
            _holds.reset(token)
            self._holders -= 1
            if not self._holders:
                self._next()

    async def confirm(self) -> bool:
        """Whether the store has it where it is, and as it was; False where that was found out anew. Raises `StaleEntry` where it is not
        there, and what kept the store from answering."""
        return self._is_held_here() or await self._confirm_now(self)

    async def confirmed(self) -> None:
        """Return when the store has it where it is, and as it is known. Raises as `confirm`, and `NodeInDoubt`."""
        for _ in range(_CONFIRMATIONS):
            if await self._confirm_now(self):
                return
            # It is another now, and may be yet another.
        raise NodeInDoubt(f"the documents of {self.path} are changed again and again", key=self.path)

    @contextmanager
    def presupposed(self) -> Iterator[None]:
        """Within, what lies in its folder is read and set in that very folder, as far as it is held. Raises `StaleEntry`."""
        self.check()
        with presupposing(self.folder, self.anchor):
            yield

    def turn(self, unit: Coords) -> AbstractAsyncContextManager[None]:
        """While held, nobody else of this mount changes a part of a chunk in this unit, or puts one in its place, that waits for its
        shard. Who waits for it has the memory that he needs."""
        return self._turns.hold(repr(unit))

    # --- for who changes it --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Within, nobody publishes to it. For one at a time."""
        self._changers += 1
        try:
            while self._holders:
                await self._turn.wait()
            yield
        finally:
            self._changers -= 1
            self._next()

    def move(self, path: NodePath, chunk_prefix: Prefix) -> None:
        """It is there now."""
        self.path, self.chunk_prefix = path, chunk_prefix
        self.moves += 1

    def end(self, why: str) -> None:
        """It is no more: ``why`` completes a sentence that begins with its path."""
        if self.why_gone is None:
            self.why_gone = why
            self.moves += 1
            for told in self.on_end:
                told(self)

    def _is_held_here(self) -> bool:
        return any(hold.node is self and not hold.over for hold in _holds.get())

    def _next(self) -> None:
        turn, self._turn = self._turn, trio.Event()
        turn.set()


async def unfenced(fences: list[trio.Event], path: NodePath) -> None:
    """Return when all of these have ended. Raises `StoreTimeout` where that takes long: where the node is nobody can tell."""
    if fences:
        with trio.move_on_after(_FENCED_SECONDS):
            while fences:
                ended = fences[0]
                await ended.wait()
                if ended in fences:
                    fences.remove(ended)
        if fences:
            raise StoreTimeout(f"{path} is being moved or erased by a store that does not answer", key=path)


class _Hold:
    """One `LiveNode.holding`, known to all that is called, or begun, within it."""

    __slots__ = ("node", "over")

    def __init__(self, node: LiveNode) -> None:
        self.node = node
        self.over = False
