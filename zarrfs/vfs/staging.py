"""The staging state machine: what a write does between write(2) and the store.

One `Staged` for each file that is open or not yet published, shared by all its handles (docs/SEMANTICS.md, "Writing"). It is in one of
five states:

    CLEAN       nothing staged; readers see the published value
    TRUNCATED   emptied by O_TRUNC or just created; published at FSYNC or at the last RELEASE, *never at FLUSH*:
                a shell's ``echo x > f`` sends OPEN|O_TRUNC, FLUSH, WRITE, FLUSH, and the first FLUSH must not publish emptiness
    DIRTY       written to; published at FLUSH, FSYNC or the last RELEASE (mmap writes arrive after the last FLUSH)
    PUBLISHING  a publish is under way; writers wait for it, readers do not
    FAILED      the last publish failed: the staged bytes are kept, and every FLUSH and FSYNC tries again and reports again,
                until they are rewritten, or dropped at the last RELEASE (which records the failure, since nobody hears it)

A file that loses its name while it is open (unlink, rename over) becomes an *orphan*: it keeps its bytes for its handles and publishes
nothing any more. A file that is read while its value is replaced through another view is *superseded*: its handles go on with the old
value, or learn that it is stale, and whoever opens it from then on has another `Staged`.

What is staged is the business of a `Stage` (`zarrfs.vfs.stage`). All this belongs to one event loop. Each `Staged` has a lock that its
mutators (write, truncate, publish) hold across awaits, so that what is published is one state of the bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext

import trio

from zarrfs import durability
from zarrfs.errors import NoSuchEntry, StaleEntry, StoreTimeout, ZarrfsError
from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.content import Content
from zarrfs.vfs.loading import loading
from zarrfs.vfs.node import Attributes, Buffer
from zarrfs.vfs.spill_buffer import SPILL_NBYTES
from zarrfs.vfs.stage import Stage, StagingRoom, State

log = logging.getLogger(__name__)

Failure = Callable[[str, BaseException], None]
"""Called with (ident, error) for what could not be published and whom nobody else will tell."""


_UNPUBLISHED = (State.TRUNCATED, State.DIRTY, State.FAILED, State.PUBLISHING)


class StagingArea:
    """All staged files of a mount.

    ``on_failure`` is told what a last RELEASE could not publish. ``durable``: every publish is followed by a sync. Staged bytes above
    ``spill_nbytes`` a file, or above ``budget`` together, go to ``directory``.
    """

    def __init__(
        self,
        *,
        on_failure: Failure | None = None,
        durable: bool = False,
        budget: MemoryBudget | None = None,
        kept: MemoryBudget | None = None,
        spill_nbytes: int = SPILL_NBYTES,
        directory: str | None = None,
    ) -> None:
        self._staged: dict[str, Staged] = {}
        self._superseded: set[Staged] = set()
        self._on_failure = on_failure
        self.durable = durable
        self.room = StagingRoom(budget=budget, kept=kept, spill_nbytes=spill_nbytes, directory=directory)

    def get(self, ident: str) -> Staged | None:
        """The staged file called ``ident``, if it is open or unpublished."""
        return self._staged.get(ident)

    def acquire(self, content: Content) -> Staged:
        """The staged file for ``content``, made when it is not there; one more handle counts on it."""
        staged = self._staged.get(content.ident)
        if staged is not None and staged.content.is_outdated:
            self._supersede(staged)
            staged = None
        if staged is None:
            content = content.renewed()
            staged = self._staged[content.ident] = Staged(self, content)
        staged.handles += 1
        return staged

    def unpublished_below(self, prefix: str) -> Iterator[Staged]:
        """Staged files whose ident begins with ``prefix`` and that have something to publish."""
        return (staged for staged in self._all() if staged.unpublished and staged.content.ident.startswith(prefix))

    def open_below(self, ident: str) -> list[str]:
        """What is open or unpublished and is called ``ident`` or lies below it (``""``: everything)."""
        folder = ident.rstrip("/") + "/"
        return [each for each in self._staged if not ident or each == ident or each.startswith(folder)]

    def unpublished_in(self, folder: str) -> dict[str, Staged]:
        """Those directly in a folder, by name; ``folder`` is what their idents begin with, with its trailing slash."""
        found = {staged.content.ident[len(folder) :]: staged for staged in self.unpublished_below(folder)}
        return {name: staged for name, staged in found.items() if "/" not in name}

    @property
    def dirty_nbytes(self) -> int:
        """Bytes that are staged and not yet published."""
        return sum(staged.nbytes for staged in self._all() if staged.unpublished)

    @property
    def open_handles(self) -> int:
        """Handles on staged files."""
        return sum(staged.handles for staged in self._all())

    async def publish_below(self, prefix: str) -> None:
        """Publish everything whose ident begins with ``prefix``; raises the first failure, after trying all."""
        failed: list[ZarrfsError] = []
        for staged in list(self.unpublished_below(prefix)):
            try:
                await staged.publish_now()
            except ZarrfsError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    async def publish_all(self) -> list[tuple[str, Exception]]:
        """Publish everything; what could not be, with its reason. Whoever wants it durable syncs the store, once."""
        failed: list[tuple[str, Exception]] = []
        for staged in self._all():
            if staged.unpublished:
                try:
                    await staged.publish_now()
                except Exception as error:  # noqa: BLE001 (a defect that one file meets must not cost the others)
                    failed.append((staged.content.ident, error))
        return failed

    async def give_up(self) -> None:
        """The mount ends: what could not be published takes back what of it is stored already."""
        for staged in self._all():
            await staged.drop()

    @asynccontextmanager
    async def unnaming(self, ident: str) -> AsyncIterator[None]:
        """Around what takes the name ``ident`` from a file: its open handles keep what they may still read. When the body fails the
        file has not lost its name, and goes on as before."""
        if (staged := self._staged.get(ident)) is None:
            yield
            return
        async with staged.lock:
            await staged.keep_bytes()
            try:
                yield
            except BaseException:
                if staged.state is State.CLEAN:
                    await staged.drop()
                raise
            staged.orphan = True
            self._forget(staged)
            if staged._stage is not None:
                with trio.CancelScope(shield=True):
                    await staged._stage.unnamed()

    def changed(self, ident: str) -> None:
        """The published value of ``ident`` has another generation, or is staged here: open handles go on with what is there now."""
        if (staged := self._staged.get(ident)) is not None:
            staged.epoch += 1

    def replaced(self, ident: str, *, gone: bool = False) -> bool:
        """The published value of ``ident`` was replaced or erased (``gone``) through another view, or a part of it. Whether it is
        superseded by that."""
        staged = self._staged.get(ident)
        if staged is None or staged.content.private or (staged.content.in_parts and not gone):
            return False
        if staged.state is not State.CLEAN or staged.lock.locked():
            # Somebody is changing it here, or it is just losing or changing its name.
            staged.epoch += 1
            return False
        self._supersede(staged)
        return True

    def publishing(self, ident: str) -> Content | None:
        """The content of ``ident``, if that is what is being published now."""
        staged = self._staged.get(ident)
        return staged.content if staged is not None and staged.state is State.PUBLISHING else None

    @asynccontextmanager
    async def renaming(self, ident: str, content: Content) -> AsyncIterator[None]:
        """Around what gives the file called ``ident`` the name of ``content``: nothing is published under the old name meanwhile."""
        staged = self._staged.get(ident)
        async with staged.lock if staged is not None else nullcontext():
            yield
            self.rekey(ident, content)

    def follow(self) -> None:
        """Something was moved: every file is called as what it stands for is called now (`Content.follow`)."""
        for staged in self._all():
            staged.content.follow()
        self._staged = {staged.content.ident: staged for staged in self._staged.values()}

    def lost_below(self, prefix: str) -> None:
        """The folder in which these are was erased, through whatever view: there is no place any more where they could be published."""
        for staged in self.unpublished_below(prefix):
            staged.lost = True

    def rekey(self, ident: str, content: Content) -> None:
        """The file called ``ident`` is now ``content``'s (after a rename; what was at the new name is detached already)."""
        if (staged := self._staged.pop(ident, None)) is not None:
            staged.content = content
            # Its handles read it where it is now.
            staged.epoch += 1
            staged.lost = False
            self._staged[content.ident] = staged

    def rekey_below(self, prefix: str, moved: Callable[[Content], Content]) -> None:
        """Every file whose ident begins with ``prefix`` has ``moved(its content)`` now (after a folder was renamed)."""
        for ident, staged in [each for each in self._staged.items() if each[0].startswith(prefix)]:
            self.rekey(ident, moved(staged.content))

    def _all(self) -> list[Staged]:
        return [*self._staged.values(), *self._superseded]

    def _supersede(self, staged: Staged) -> None:
        staged.superseded = True
        self._forget(staged)
        self._superseded.add(staged)

    def _forget(self, staged: Staged) -> None:
        self._superseded.discard(staged)
        if self._staged.get(staged.content.ident) is staged:
            del self._staged[staged.content.ident]

    def _failed(self, ident: str, error: BaseException) -> None:
        log.error("what was written to %r could not be stored and is lost: %s", ident, error)
        if self._on_failure is not None:
            self._on_failure(ident, error)


class Staged:
    """One file's staged content; see the module's text. Use `StagingArea.acquire`."""

    def __init__(self, area: StagingArea, content: Content) -> None:
        self.area = area
        self.content = content
        self.handles = 0
        self.orphan = False
        self.lost = False
        self.superseded = False
        self.epoch = 0
        self.lock = trio.Lock()
        self._state = State.CLEAN
        self._stage: Stage | None = None
        self._failures = 0
        self._unanswered: StoreTimeout | None = None
        self._changed_ns: int | None = None
        self._mtime_ns: int | None = None

    @property
    def state(self) -> State:
        """The state it is in now."""
        return self._state

    @property
    def unpublished(self) -> bool:
        """Whether something is staged that the store does not have."""
        return self._state in _UNPUBLISHED and not self.orphan

    @property
    def size(self) -> int | None:
        """Size of the staged file; None while nothing is staged and the published value counts."""
        return None if self._stage is None else self._stage.size

    @property
    def nbytes(self) -> int:
        """Bytes that are staged."""
        return 0 if self._stage is None else self._stage.nbytes

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
        if self._stage is not None or self.orphan:
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
        while (stage := self._stage) is not None:
            data = await stage.read(offset, size)
            if self._stage is stage:
                return data
        return None

    async def write(self, offset: int, data: Buffer) -> int:
        """Stage ``data``; what is needed of the published value beside it is loaded first, unless that was truncated."""
        self.content.check_write(offset, len(data))
        async with self.lock, self._clean_if_refused():
            stage = await self._staged(empty=self.content.covers(offset, len(data)))
            await stage.write(offset, data)
            self._touch(State.DIRTY)
        return len(data)

    async def truncate(self, size: int) -> None:
        """Cut or grow to ``size`` bytes."""
        self.content.check_write(size, 0)
        async with self.lock:
            if size == 0:
                await self._empty()
                return
            async with self._clean_if_refused():
                stage = await self._staged()
                await stage.truncate(size)
                self._touch(State.DIRTY)

    async def drop(self) -> None:
        """Forget what is staged; the published value counts again."""
        stage, self._stage = self._stage, None
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
        except Exception as error:  # noqa: BLE001 (whatever it was, what was written is lost, and somebody has to learn it)
            self.area._failed(self.content.ident, error)
        finally:
            self.handles -= 1
            if self.handles == 0:
                self.area._forget(self)
                await self.drop()

    async def keep_bytes(self) -> None:
        """Load the published value so that handles can go on reading it when it is gone. The caller holds the lock."""
        if self._stage is None:
            try:
                self._stage = await self.content.keep(self.area.room)
            except ZarrfsError as error:
                log.warning("%r loses its name and cannot be kept for those who have it open: %s", self.content.ident, error)

    async def _publish(self, from_states: tuple[State, ...]) -> None:
        failures = self._failures
        async with self.lock:
            if self.orphan or self._state not in from_states:
                return
            if self._failures != failures and self._unanswered is not None:
                # The store did not answer while this one waited. If each tried in turn, the last would wait for all deadlines.
                raise self._unanswered
            assert self._stage is not None
            self._state = State.PUBLISHING
            try:
                if self.lost:
                    raise StaleEntry(f"{self.content.ident}: its folder was erased", key=self.content.ident)
                await self._stage.publish()
            except BaseException as error:
                self._state = State.FAILED
                self._failures += 1
                self._unanswered = error if isinstance(error, StoreTimeout) else None
                raise
            mtime_ns = self._mtime_ns
            moved = self._stage.moved
            await self.drop()
            self.epoch += 1
            # Its handles have changed the value that is there now: from here on that is theirs too.
            self.superseded = False
            if moved:
                self.area._supersede(self)
            if mtime_ns is not None:
                await self.content.set_mtime(mtime_ns)

    async def _staged(self, *, empty: bool = False) -> Stage:
        if self._stage is None:
            if self.orphan:
                raise lost(self.content)
            with loading(self.content.ident):
                self._stage = await self.content.stage(self.area.room, empty=empty)
        return self._stage

    async def _empty(self) -> None:
        stage = await self.content.stage(self.area.room, empty=True)
        self._stage, before = stage, self._stage
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


def lost(content: Content) -> StaleEntry:
    """The error for an open file that lost its name and whose value could not be kept."""
    return StaleEntry(f"{content.ident} was removed, and could not be kept for those who have it open", key=content.ident)
