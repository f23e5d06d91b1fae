"""One staged file: the state machine of `zarrfs.vfs.staging`."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import trio

from zarrfs import durability
from zarrfs.buffers import Buffer
from zarrfs.errors import NodeInDoubt, NoSuchEntry, StaleEntry, StoreTimeout, ZarrfsError
from zarrfs.vfs.content import Content, Snapshot, lost
from zarrfs.vfs.known_pages import SeenOfFile, SeenPages
from zarrfs.vfs.loading import loading
from zarrfs.vfs.node import Attributes
from zarrfs.vfs.stage import Stage, StagingRoom, State

log = logging.getLogger(__name__)

_ALL = (State.TRUNCATED, State.DIRTY, State.FAILED)
_UNPUBLISHED = (*_ALL, State.PUBLISHING)


class Area(Protocol):
    """The interface of `StagingArea` that a staged file uses."""

    durable: bool
    returns_errors: bool
    room: StagingRoom

    def supersede(self, staged: Staged) -> None:
        """Detach the file: later opens of its name get another one."""

    async def abandon(self, staged: Staged) -> None:
        """Let the file publish nothing any more."""

    def forget(self, staged: Staged) -> None:
        """Remove the file from the index by name."""

    def failed(self, ident: str, error: BaseException) -> None:
        """Record the failure of a publish whose error no program gets."""

    def written_anew(self, ident: str) -> None:
        """Record that nothing of an earlier value of the file is left."""

    def published(self, ident: str) -> None:
        """Record that written data of the file is stored."""

    async def saved(self, staged: Staged, error: NodeInDoubt) -> Exception:
        """Save the staged bytes elsewhere; return the error that names where."""


class Staged:
    """One file's staged content; see `zarrfs.vfs.staging`. Use `StagingArea.acquire`."""

    def __init__(self, area: Area, content: Content) -> None:
        self.area = area
        self.content = content
        self.handles = 0
        self.writers = 0
        """Number of handles that may write, or have created it, or are being opened for that."""
        self.orphan = False
        self.removed = False
        """True if it publishes nothing any more: its name was removed after another file had taken it, or no writer could store it."""
        self.lost = False
        self.superseded = False
        self.epoch = 0
        """Number of values so far, as far as they are known."""
        self.own_epoch = 0
        """`epoch` of the last one that is no other program's: published through this file, or with another name or time only."""
        self.emptied = 0
        """Number of truncations to empty: distinguishes handles from before and after one."""
        self.replaced_at = 0
        """`emptied` of the last value that replaced an array by another one, or got another layout; older handles are stale."""
        self.lock = trio.Lock()
        self.seen = SeenOfFile(area.room.kept)
        self._state = State.CLEAN
        self.stage: Stage | None = None
        self._failures = 0
        self._unanswered: StoreTimeout | None = None
        self._changed_ns: int | None = None
        self.reported_ns: int | None = None
        self._mtime_ns: int | None = None
        self._timed: Attributes | None = None
        """Attributes of the published value whose time was set last."""

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    @property
    def unpublished(self) -> bool:
        """True if staged bytes are not in the store."""
        return self._state in _UNPUBLISHED and not self.orphan and not self.removed

    @property
    def is_lost(self) -> bool:
        """True if its folder, or the object it is part of, is gone."""
        return self.lost or self.content.is_outdated

    @property
    def size(self) -> int | None:
        """Size of the staged file; None if nothing is staged and the published value counts."""
        return None if self.stage is None else self.stage.size

    @property
    def nbytes(self) -> int:
        """Number of staged bytes."""
        return 0 if self.stage is None else self.stage.nbytes

    @property
    def mtime_ns(self) -> int | None:
        """Time of the last change of the staged bytes, or the time set for them; None if the published value's counts."""
        return self._mtime_ns if self._mtime_ns is not None else self._changed_ns

    async def create(self) -> None:
        """Stage a new, empty file, published as such only if nothing is written."""
        async with self.lock:
            await self._empty()

    async def is_left_to_writer(self) -> bool:
        """Return True if a program is to publish the file: it has written to it, or has only just created it. The caller holds the lock.

        A file that was just created is then published at its last RELEASE at the latest, whether or not it is written to."""
        if self._state is State.CLEAN and self.writers:
            snapshot = await self.content.snapshot()
            if snapshot is not None:
                await snapshot.aclose()
                if not snapshot.attributes.size:
                    await self._empty()
        return self.unpublished

    async def publish_again(self) -> None:
        """Stage the published value as if it had just been written: the next FLUSH publishes it. The caller holds the lock."""
        await self._staged()
        self._touch(State.DIRTY)

    async def attributes(self) -> Attributes:
        """Return size and time as this mount sees them. Raises `NoSuchEntry` if nothing is staged or published, and `StaleEntry`."""
        if self.stage is not None:
            nlink = 0 if self.orphan else 1
            return Attributes(False, self.stage.size, self.mtime_ns, nlink=nlink, blksize=self.content.blksize)
        if self.orphan:
            # The kernel would answer reads with the end of the file at any size given here.
            raise lost(self.content)
        snapshot = await self.content.snapshot()
        if snapshot is None:
            raise NoSuchEntry(f"{self.content.ident} is gone", key=self.content.ident)
        await snapshot.aclose()
        return snapshot.attributes

    async def read(self, offset: int, size: int) -> Buffer | None:
        """Return staged bytes; None if nothing is staged and the published value applies. Writers do not block readers."""
        while (stage := self.stage) is not None:
            data = await stage.read(offset, size)
            if self.stage is stage:
                return data
        return None

    def see(self, page_cache: object, *, paged: bool) -> SeenPages | None:
        """Return `SeenOfFile.opened` for a handle that may write; None where the whole value is written."""
        is_compared = bool(self.seen) or self.content.merged or self.content.in_parts
        return self.seen.opened(page_cache, paged=paged) if is_compared else None

    def require_current(self, emptied: int) -> None:
        """Raise `StaleEntry` if the array was replaced, or stored in another layout, since a handle was opened or has emptied the file.

        ``emptied``: the value of `emptied` then."""
        if emptied < self.replaced_at:
            ident = self.content.ident
            raise StaleEntry(f"{ident} is another array now, or in another layout: open the file again", key=ident)

    async def write(
        self,
        offset: int,
        data: Buffer,
        seen: Snapshot | None = None,
        epoch: int = 0,
        emptied: int | None = None,
        *,
        known: SeenPages | None = None,
        page_cache: object = None,
        at_end: bool = False,
    ) -> int:
        """Stage ``data``; the published bytes needed beside it are loaded first, unless truncated.

        ``seen`` is the value that the writer has open since ``epoch``; later values published through this file are its own changes.
        ``emptied``: see `require_current`; ``known``: see `see`; ``page_cache``: see `Handle.opened_in`; ``at_end``: see `Handle.append`.
        Raises `StaleEntry` if another program has replaced it meanwhile."""
        self.content.check_write(offset, len(data))
        async with self.lock, self._clean_if_refused():
            if emptied is not None:
                # A publish may have ended meanwhile.
                self.require_current(emptied)
            # Before the load: the write refers to what was read before it.
            empty = not known and self.content.covers(offset, len(data))
            base = seen if self.own_epoch <= epoch else None
            stage = await self._staged(empty=empty, seen=base, new_nbytes=0 if offset else len(data))
            if at_end and offset != stage.size:
                # The offset is the end of a value that another program has replaced: bytes of the present one, or zeros, would be there.
                ident = self.content.ident
                raise StaleEntry(f"{ident} has {stage.size} bytes now, not {offset}: open the file again to append", key=ident)
            try:
                if known:
                    await stage.write_over(offset, data, known)
                else:
                    await stage.write(offset, data)
            except BaseException:
                # A part of it may be staged. The kernel drops these pages, too.
                self.seen.forget(page_cache, offset, len(data))
                raise
            self.seen.add_written(page_cache, offset, data)
            self._touch(State.DIRTY)
        return len(data)

    async def truncate(self, size: int, seen: Snapshot | None = None, epoch: int = 0, emptied: int | None = None) -> None:
        """Truncate or extend to ``size`` bytes; the others as for `write`."""
        self.content.check_write(size, 0)
        async with self.lock:
            if emptied is not None:
                self.require_current(emptied)
            await self._truncate(size, seen if self.own_epoch <= epoch else None)

    async def truncate_and_publish(self, size: int) -> None:
        """Truncate or extend to ``size`` bytes, and publish all that is staged.

        After an error, it is as if the request had not been made, unless something was staged before."""
        self.content.check_write(size, 0)
        async with self.lock:
            was_clean = self._state is State.CLEAN and not self.orphan
            try:
                await self._truncate(size, None)
                await self._publish_locked(_ALL)
            except BaseException:
                if was_clean:
                    await self.drop()
                raise

    def laid_out_anew(self) -> None:
        """Record that the value has another layout than the one in which all handles so far count its bytes: they are stale."""
        self.area.supersede(self)
        self.emptied += 1
        self.replaced_at = self.emptied

    def moved_on(self) -> None:
        """Record another value that is no other program's (`own_epoch`)."""
        self.epoch += 1
        self.own_epoch = self.epoch

    async def drop(self) -> None:
        """Discard the staged bytes; the published value counts again."""
        stage, self.stage = self.stage, None
        self._state = State.CLEAN
        self._mtime_ns = self._changed_ns = None
        if stage is not None:
            with trio.CancelScope(shield=True):
                await stage.aclose()

    async def set_mtime(self, mtime_ns: int) -> None:
        """Set the time, as utimens(2): with the staged bytes until they are published, else on the value."""
        async with self.lock:
            if self.unpublished or self.orphan:
                self._mtime_ns = mtime_ns
                return
        await self.content.set_mtime(mtime_ns)
        if self.content.in_parts:
            return
        # Where the store keeps no times, this is the value of which handles have snapshots, with the time of before.
        with suppress(ZarrfsError):
            if (snapshot := await self.content.snapshot()) is not None:
                self._timed = snapshot.attributes
                await snapshot.aclose()

    async def retimed(self, attributes: Attributes) -> Attributes:
        """Return the ``attributes`` of a snapshot with the present time of its value, which may have been set since."""
        of = attributes.size, attributes.generation
        if self._timed is not None and attributes.generation is not None and of == (self._timed.size, self._timed.generation):
            return attributes._replace(mtime_ns=self._timed.mtime_ns)
        return await self.content.retimed(attributes)

    async def flush(self) -> None:
        """Publish written bytes; emptiness alone is not published yet."""
        if self._state in (State.DIRTY, State.FAILED, State.PUBLISHING):
            with durability.demanded(self.area.durable):
                await self._publish((State.DIRTY, State.FAILED))
                if self.area.durable and not self.orphan:
                    await self.content.sync()

    async def publish_now(self) -> None:
        """Publish all that is staged, emptiness too."""
        await self._publish(_ALL)

    async def publish_held(self) -> None:
        """Run `publish_now` for a caller that holds the lock."""
        await self._publish_locked(_ALL)

    async def fsync(self) -> None:
        """Publish all that is staged and make it durable."""
        with durability.demanded():
            await self.publish_now()
            if not self.orphan:
                # May store more: chunks that publishing only queued for their shard.
                await self.content.sync()

    async def release(self, *, writes: bool = False) -> None:
        """Remove one handle. The last one that ``writes`` publishes the rest; a failure is recorded, since no program waits for it.

        Readers keep what could not be stored, under no name: without a writer it is not stored over what others have stored since."""
        self.writers -= writes
        try:
            # Meanwhile it may be opened, changed and released again: that is published here, too. A reader leaves it to such a writer.
            while (writes or self.handles == 1) and self._is_left:
                if not await self._published_rest() and self._is_left:
                    await self.area.abandon(self)
        finally:
            self.handles -= 1
            if self.handles == 0:
                self.area.forget(self)
                await self.drop()

    @property
    def _is_left(self) -> bool:
        """True if it has unpublished bytes and no writer."""
        return self.unpublished and not self.writers

    async def _published_rest(self) -> bool:
        """Publish the rest for the last writer; return False if that failed, which is recorded, and nothing was staged since."""
        changed_ns = self._changed_ns
        try:
            with trio.CancelScope(shield=True):
                await (self.fsync() if self.area.durable else self.publish_now())
        except Exception as error:  # noqa: BLE001 (the bytes are lost, whatever the error, and that has to be reported)
            if self._is_left and isinstance(error, NodeInDoubt):
                # The documents may reappear a moment later, after the last handle is gone.
                error = await self.area.saved(self, error)
            # If the file was opened meanwhile, they are still staged, or another writer has published them, or given them up.
            if self._is_left:
                self.area.failed(self.content.ident, error)
            return self._changed_ns != changed_ns
        return True

    async def keep_bytes(self) -> None:
        """Load the published value, so that handles can still read it after it is gone. The caller holds the lock."""
        if self.stage is None:
            try:
                stage = await self.content.keep(self.area.room)
            except ZarrfsError as error:
                log.warning("%r loses its name and cannot be kept for its open handles: %s", self.content.ident, error)
                return
            if self.handles:
                self.stage = stage
            elif stage is not None:
                # The last handle was released meanwhile, which does not wait for the lock.
                await stage.aclose()

    async def _publish(self, from_states: tuple[State, ...]) -> None:
        failures = self._failures
        async with self.lock:
            if self._failures != failures and self._unanswered is not None and self.unpublished and self._state in from_states:
                # The store did not answer during this wait. If each waiter tried in turn, the last would wait for all deadlines.
                raise self._unanswered.again()
            await self._publish_locked(from_states)

    async def _publish_locked(self, from_states: tuple[State, ...]) -> None:
        if self.orphan or self.removed or self._state not in from_states:
            return
        assert self.stage is not None
        self._state = State.PUBLISHING
        try:
            if self.lost:
                raise StaleEntry(f"{self.content.ident}: its folder was erased, or moved away", key=self.content.ident)
            self.stage.is_left_open = self.writers > 0 and not self.area.returns_errors
            await self.stage.publish()
        except BaseException as error:
            self._state = State.FAILED
            self._failures += 1
            self._unanswered = error.again() if isinstance(error, StoreTimeout) else None
            raise
        moved, replaces = self.stage.moved, self.stage.replaces
        try:
            if self._mtime_ns is not None:
                # While the file has this time from the staged bytes: without them it has the store's, at first that of the publish.
                await self.content.set_mtime(self._mtime_ns)
        finally:
            # Before the bytes are dropped, which may take a moment: a handle that finds none must not read the value of before.
            self.moved_on()
            await self.drop()
            self.area.published(self.content.ident)
            # Its handles have changed the present value: from here on they share it.
            self.superseded = False
            if replaces:
                self.replaced_at = self.emptied
            if self.emptied:
                self.area.written_anew(self.content.ident)
            if moved:
                self.laid_out_anew()
            elif replaces and self.handles > 1:
                # Pages of this file are those of older handles, too.
                self.area.supersede(self)
                self.superseded = False

    async def _staged(self, *, empty: bool = False, seen: Snapshot | None = None, new_nbytes: int = 0) -> Stage:
        if self.stage is None:
            if self.orphan:
                raise lost(self.content)
            with loading(self.content.ident):
                if seen is not None and not empty:
                    self.stage = await self.content.stage_over(self.area.room, seen, new_nbytes)
                else:
                    self.stage = await self.content.stage(self.area.room, empty=empty)
        return self.stage

    async def _truncate(self, size: int, seen: Snapshot | None) -> None:
        # The file differs from what was read before.
        self.seen.forget_all()
        if size == 0:
            await self._empty()
            return
        async with self._clean_if_refused():
            stage = await self._staged(seen=seen)
            await stage.truncate(size)
            self._touch(State.DIRTY)

    async def _empty(self) -> None:
        stage = await self.content.stage(self.area.room, empty=True)
        self.stage, before = stage, self.stage
        self.emptied += 1
        self._touch(State.TRUNCATED)
        if before is not None:
            await before.aclose()

    @asynccontextmanager
    async def _clean_if_refused(self) -> AsyncIterator[None]:
        """Discard what was loaded for a change that then could not be staged."""
        try:
            yield
        except BaseException:
            if self._state is State.CLEAN and not self.orphan:
                await self.drop()
            raise

    def _touch(self, state: State) -> None:
        self._state = state
        self._changed_ns = time.time_ns()
        self._mtime_ns = None
