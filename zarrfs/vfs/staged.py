"""One staged file: the state machine of `zarrfs.vfs.staging`."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from zarrfs import durability
from zarrfs.errors import NodeInDoubt, NoSuchEntry, StaleEntry, StoreTimeout, ZarrfsError
from zarrfs.vfs.content import Content, Snapshot, lost
from zarrfs.vfs.given import Given
from zarrfs.vfs.loading import loading
from zarrfs.vfs.node import Attributes, Buffer
from zarrfs.vfs.stage import Stage, StagingRoom, State

log = logging.getLogger(__name__)

_UNPUBLISHED = (State.TRUNCATED, State.DIRTY, State.FAILED, State.PUBLISHING)


class Area(Protocol):
    """What a staged file needs of its `StagingArea`."""

    durable: bool
    tells: bool
    room: StagingRoom

    def supersede(self, staged: Staged) -> None:
        """The name is another file's from now on."""

    def forget(self, staged: Staged) -> None:
        """It is not found by its name any more."""

    def failed(self, ident: str, error: BaseException) -> None:
        """What was written could not be published, and nobody else will tell."""

    async def saved(self, staged: Staged, error: NodeInDoubt) -> Exception:
        """Save the staged bytes elsewhere; returns the error that says where."""


class Staged:
    """One file's staged content; see `zarrfs.vfs.staging`. Use `StagingArea.acquire`."""

    def __init__(self, area: Area, content: Content) -> None:
        self.area = area
        self.content = content
        self.handles = 0
        self.orphan = False
        self.removed = False
        """Whether its name was removed when it was another file's already: it publishes nothing any more."""
        self.lost = False
        self.superseded = False
        self.epoch = 0
        self.emptied = 0
        """Counts how often the file was emptied: handles are older than that, or belong to what it became."""
        self.replaced_at = 0
        """`emptied` of the value that last put another array in the place of the one before; older handles are stale."""
        self.lock = trio.Lock()
        self.given: Given | None = None
        self._state = State.CLEAN
        self.stage: Stage | None = None
        self._failures = 0
        self._unanswered: StoreTimeout | None = None
        self._changed_ns: int | None = None
        self.told_ns: int | None = None
        self._mtime_ns: int | None = None

    @property
    def state(self) -> State:
        """The state it is in now."""
        return self._state

    @property
    def unpublished(self) -> bool:
        """Whether something is staged that the store does not have."""
        return self._state in _UNPUBLISHED and not self.orphan and not self.removed

    @property
    def is_lost(self) -> bool:
        """Whether its folder, or what it is of, is gone."""
        return self.lost or self.content.is_outdated

    @property
    def size(self) -> int | None:
        """Size of the staged file; None while nothing is staged and the published value counts."""
        return None if self.stage is None else self.stage.size

    @property
    def nbytes(self) -> int:
        """Bytes that are staged."""
        return 0 if self.stage is None else self.stage.nbytes

    @property
    def mtime_ns(self) -> int | None:
        """When the staged bytes last changed, or the time that was set for them; None while the published value's counts."""
        return self._mtime_ns if self._mtime_ns is not None else self._changed_ns

    async def create(self) -> None:
        """The file was just created: empty, and published as such only if nothing else comes."""
        async with self.lock:
            await self._empty()

    async def attributes(self) -> Attributes:
        """Size and time as this mount sees them. Raises `NoSuchEntry` when nothing is staged and nothing published."""
        if self.stage is not None or self.orphan:
            nlink = 0 if self.orphan else 1
            return Attributes(False, self.size or 0, self.mtime_ns, nlink=nlink, blksize=self.content.blksize)
        snapshot = await self.content.snapshot()
        if snapshot is None:
            raise NoSuchEntry(f"{self.content.ident} is gone", key=self.content.ident)
        try:
            return snapshot.attributes
        finally:
            await snapshot.aclose()

    async def read(self, offset: int, size: int) -> Buffer | None:
        """Staged bytes; None while nothing is staged and the published value is to be read. Writers do not stop readers."""
        while (stage := self.stage) is not None:
            data = await stage.read(offset, size)
            if self.stage is stage:
                return data
        return None

    def opened_to_write(self) -> None:
        """A handle may write. The kernel has no pages from before: what it is given from now on is remembered."""
        if self.given is None and (self.content.merged or self.content.in_parts):
            self.given = Given(self.area.room.kept)

    async def write(self, offset: int, data: Buffer, seen: Snapshot | None = None, epoch: int = 0) -> int:
        """Stage ``data``; what is needed of the published value beside it is loaded first, unless that was truncated. ``seen``: the
        value that the writer has open since ``epoch``; what was published through this file since then is his own change."""
        self.content.check_write(offset, len(data))
        async with self.lock, self._clean_if_refused():
            # Before anything is loaded: it is about what was written, whatever is given meanwhile.
            given = self.given
            empty = not given and self.content.covers(offset, len(data))
            stage = await self._staged(empty=empty, seen=seen if epoch == self.epoch else None, anew=0 if offset else len(data))
            if given:
                await stage.write_over(offset, data, given)
            else:
                await stage.write(offset, data)
            if given is not None:
                given.wrote(offset, data)
            self._touch(State.DIRTY)
        return len(data)

    async def truncate(self, size: int) -> None:
        """Cut or grow to ``size`` bytes."""
        self.content.check_write(size, 0)
        async with self.lock:
            if self.given is not None:
                # The kernel has other pages from now on.
                self.given.close()
            if size == 0:
                await self._empty()
                return
            async with self._clean_if_refused():
                stage = await self._staged()
                await stage.truncate(size)
                self._touch(State.DIRTY)

    async def drop(self) -> None:
        """Forget what is staged; the published value counts again."""
        stage, self.stage = self.stage, None
        self._state = State.CLEAN
        self._mtime_ns = self._changed_ns = None
        if stage is not None:
            with trio.CancelScope(shield=True):
                await stage.aclose()

    async def set_mtime(self, mtime_ns: int) -> None:
        """utimens(2): kept with the staged bytes until they are published, else set on the value."""
        async with self.lock:
            if self.unpublished or self.orphan:
                self._mtime_ns = mtime_ns
                return
        await self.content.set_mtime(mtime_ns)

    async def flush(self) -> None:
        """Publish what was written; emptiness alone is not published yet."""
        if self._state in (State.DIRTY, State.FAILED, State.PUBLISHING):
            with durability.demanded(self.area.durable):
                await self._publish((State.DIRTY, State.FAILED))
            if self.area.durable and not self.orphan:
                await self.content.sync()

    async def publish_now(self) -> None:
        """Publish whatever is staged, emptiness too."""
        await self._publish((State.TRUNCATED, State.DIRTY, State.FAILED))

    async def fsync(self) -> None:
        """Publish whatever is staged and make it durable."""
        with durability.demanded():
            await self.publish_now()
        if not self.orphan:
            await self.content.sync()

    async def release(self) -> None:
        """One handle less. The last one publishes what is left; a failure is recorded, since nobody waits for it."""
        try:
            if self.handles == 1 and self.unpublished:
                with trio.CancelScope(shield=True):
                    await (self.fsync() if self.area.durable else self.publish_now())
        except NodeInDoubt as error:
            # The documents may be back a moment later, when nobody has the file open any more.
            self.area.failed(self.content.ident, await self.area.saved(self, error))
        except Exception as error:  # noqa: BLE001 (whatever it was, what was written is lost, and somebody has to learn it)
            self.area.failed(self.content.ident, error)
        finally:
            self.handles -= 1
            if self.handles == 0:
                self.area.forget(self)
                if self.given is not None:
                    self.given.close()
                    self.given = None
                await self.drop()

    async def keep_bytes(self) -> None:
        """Load the published value so that handles can go on reading it when it is gone. The caller holds the lock."""
        if self.stage is None:
            try:
                self.stage = await self.content.keep(self.area.room)
            except ZarrfsError as error:
                log.warning("%r loses its name and cannot be kept for those who have it open: %s", self.content.ident, error)

    async def _publish(self, from_states: tuple[State, ...]) -> None:
        failures = self._failures
        async with self.lock:
            if self.orphan or self.removed or self._state not in from_states:
                return
            if self._failures != failures and self._unanswered is not None:
                # The store did not answer while this one waited. If each tried in turn, the last would wait for all deadlines.
                raise self._unanswered
            assert self.stage is not None
            self._state = State.PUBLISHING
            try:
                if self.lost:
                    raise StaleEntry(f"{self.content.ident}: its folder was erased", key=self.content.ident)
                await self.stage.publish()
            except BaseException as error:
                self._state = State.FAILED
                self._failures += 1
                self._unanswered = error if isinstance(error, StoreTimeout) else None
                raise
            mtime_ns = self._mtime_ns
            moved, replaces = self.stage.moved, self.stage.replaces
            await self.drop()
            self.epoch += 1
            # Its handles have changed the value that is there now: from here on that is theirs too.
            self.superseded = False
            if replaces:
                self.replaced_at = self.emptied
            if moved or (replaces and self.handles > 1):
                # Pages of this file are those of older handles, too.
                self.area.supersede(self)
                self.superseded = moved
            if mtime_ns is not None:
                await self.content.set_mtime(mtime_ns)

    async def _staged(self, *, empty: bool = False, seen: Snapshot | None = None, anew: int = 0) -> Stage:
        if self.stage is None:
            if self.orphan:
                raise lost(self.content)
            with loading(self.content.ident):
                if seen is not None and not empty:
                    self.stage = await self.content.stage_over(self.area.room, seen, anew)
                else:
                    self.stage = await self.content.stage(self.area.room, empty=empty)
        return self.stage

    async def _empty(self) -> None:
        stage = await self.content.stage(self.area.room, empty=True)
        self.stage, before = stage, self.stage
        self.emptied += 1
        self._touch(State.TRUNCATED)
        if before is not None:
            await before.aclose()

    @asynccontextmanager
    async def _clean_if_refused(self) -> AsyncIterator[None]:
        """What was loaded for a change that could not be staged is not staged either."""
        try:
            yield
        except ZarrfsError:
            if self._state is State.CLEAN and not self.orphan:
                await self.drop()
            raise

    def _touch(self, state: State) -> None:
        self._state = state
        self._changed_ns = time.time_ns()
        self._mtime_ns = None
