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
value, or learn that it is stale, and whoever opens it from then on has another `Staged`. What is staged is the business of a `Stage`.

All this belongs to one event loop. Each `Staged` has a lock that its mutators (write, truncate, publish) hold across awaits, so that what
is published is one state of the bytes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext

import trio

from zarrfs.errors import NodeInDoubt, ZarrfsError
from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.content import Content
from zarrfs.vfs.spill_buffer import SPILL_NBYTES
from zarrfs.vfs.stage import StagingRoom, State
from zarrfs.vfs.staged import Staged

__all__ = ["Failure", "Staged", "StagingArea"]

log = logging.getLogger(__name__)

Failure = Callable[[str, BaseException], None]
"""Called with (ident, error) for what could not be published and whom nobody else will tell."""


class StagingArea:
    """All staged files of a mount.

    ``on_failure`` is told what a last RELEASE could not publish; ``save`` keeps it before that, where its array may come back, and gives
    the error that says where. ``durable``: every publish is followed by a sync. Staged bytes above
    ``spill_nbytes`` a file, or above ``budget`` together, go to ``directory``.
    """

    def __init__(
        self,
        *,
        on_failure: Failure | None = None,
        save: Callable[[Staged, NodeInDoubt], Awaitable[Exception]] | None = None,
        durable: bool = False,
        budget: MemoryBudget | None = None,
        kept: MemoryBudget | None = None,
        spill_nbytes: int = SPILL_NBYTES,
        directory: str | None = None,
    ) -> None:
        self._staged: dict[str, Staged] = {}
        self._superseded: set[Staged] = set()
        self._on_failure = on_failure
        self._save = save
        self.durable = durable
        self.tells = True
        """Whether it is programs that are answered."""
        self.room = StagingRoom(budget=budget, kept=kept, spill_nbytes=spill_nbytes, directory=directory)

    def get(self, ident: str) -> Staged | None:
        """The staged file called ``ident``, if it is open or unpublished."""
        return self._staged.get(ident)

    def current(self, ident: str) -> Staged | None:
        """The staged file that who opens the file called ``ident`` has in common with others who have it open."""
        staged = self._staged.get(ident)
        return staged if staged is None or not staged.content.is_outdated else None

    def acquire(self, content: Content) -> Staged:
        """The staged file for ``content``, made when it is not there; one more handle counts on it."""
        staged = self.current(content.ident)
        if staged is None:
            if (outdated := self._staged.get(content.ident)) is not None:
                self.supersede(outdated)
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
        found = ((each.content.ident[len(folder) :], each) for each in self.unpublished_below(folder) if not each.is_lost)
        return {name: staged for name, staged in found if "/" not in name}

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
        for staged in [each for each in self.unpublished_below(prefix) if not each.is_lost]:
            try:
                await staged.publish_now()
            except ZarrfsError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    async def publish_all(self) -> list[tuple[Staged, Exception]]:
        """Publish everything; what could not be, with its reason. Whoever wants it durable syncs the store, once."""
        failed: list[tuple[Staged, Exception]] = []
        for staged in self._all():
            if staged.unpublished:
                try:
                    await staged.publish_now()
                except Exception as error:  # noqa: BLE001 (a defect that one file meets must not cost the others)
                    failed.append((staged, error))
        return failed

    async def give_up(self) -> None:
        """The mount ends: what could not be published takes back what of it is stored already."""
        for staged in self._all():
            await staged.drop()

    @asynccontextmanager
    async def unnaming(self, ident: str) -> AsyncIterator[None]:
        """Around what takes the name ``ident`` from a file: its open handles keep what they may still read. When the body fails the
        file has not lost its name, and goes on as before."""
        async with AsyncExitStack() as stack:
            # Of those that have lost the name before, what they change is not to bring it back.
            others = [each for each in self._superseded if each.content.ident == ident and not each.is_lost]
            for each in others:
                await stack.enter_async_context(each.lock)
            if (staged := self._staged.get(ident)) is not None:
                await stack.enter_async_context(staged.lock)
                await staged.keep_bytes()
            try:
                yield
            except BaseException:
                if staged is not None and staged.state is State.CLEAN:
                    await staged.drop()
                raise
            for each in others:
                each.removed = True
            if staged is None:
                return
            staged.orphan = True
            self.forget(staged)
            if staged.stage is not None:
                with trio.CancelScope(shield=True):
                    await staged.stage.unnamed()

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
        self.supersede(staged)
        return True

    def publishing(self, ident: str) -> Content | None:
        """The content of ``ident``, if that is what is being published now."""
        return staged.content if (staged := self._staged.get(ident)) and staged.state is State.PUBLISHING else None

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
        for ident in [ident for ident, staged in self._staged.items() if staged.content.ident != ident]:
            self._put(self._staged.pop(ident))

    def lost_below(self, prefix: str) -> None:
        """The folder in which these are was erased, through whatever view: there is no place any more where they could be published."""
        for staged in [staged for staged in self._all() if staged.content.ident.startswith(prefix)]:
            staged.lost = True
            self.supersede(staged)

    def rekey(self, ident: str, content: Content) -> None:
        """The file called ``ident`` is now ``content``'s (after a rename; what was at the new name is detached already)."""
        if (staged := self._staged.pop(ident, None)) is not None:
            # Its handles read it where it is now.
            staged.content, staged.lost = content, False
            staged.epoch += 1
            self._put(staged)

    def rekey_below(self, prefix: str, moved: Callable[[Content], Content]) -> None:
        """Every file whose ident begins with ``prefix`` has ``moved(its content)`` now (after a folder was renamed)."""
        for ident, staged in [each for each in self._staged.items() if each[0].startswith(prefix)]:
            self.rekey(ident, moved(staged.content))

    def _all(self) -> list[Staged]:
        return [*self._staged.values(), *self._superseded]

    def _put(self, staged: Staged) -> None:
        if (displaced := self._staged.get(staged.content.ident)) is not None:
            self.supersede(displaced)
        self._staged[staged.content.ident] = staged

    def supersede(self, staged: Staged) -> None:
        """Whoever opens the file from now on has another `Staged`."""
        staged.superseded = True
        self.forget(staged)
        self._superseded.add(staged)

    def forget(self, staged: Staged) -> None:
        """It is not found by its name any more."""
        self._superseded.discard(staged)
        if self._staged.get(staged.content.ident) is staged:
            del self._staged[staged.content.ident]

    async def saved(self, staged: Staged, error: NodeInDoubt) -> Exception:
        """Save the staged bytes elsewhere; returns the error that says where."""
        return await self._save(staged, error) if self._save is not None else error

    def failed(self, ident: str, error: BaseException) -> None:
        """What was written could not be published, and nobody else will tell."""
        log.error("what was written to %r could not be stored and is lost: %s", ident, error)
        if self._on_failure is not None:
            self._on_failure(ident, error)
