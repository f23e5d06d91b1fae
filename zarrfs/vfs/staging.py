"""The staging state machine: the path of a write from write(2) to the store.

Each file that is open or not yet published has one `Staged`, shared by all its handles (docs/SEMANTICS.md, "Writing"). It is in one of
five states:

    CLEAN       nothing staged; readers see the published value
    TRUNCATED   emptied by O_TRUNC or just created; published at FSYNC or at a writer's last RELEASE, *never at FLUSH*:
                a shell's ``echo x > f`` sends OPEN|O_TRUNC, FLUSH, WRITE, FLUSH, and the first FLUSH must not publish emptiness
    DIRTY       written to; published at FLUSH, FSYNC or a writer's last RELEASE (mmap writes arrive after the last FLUSH)
    PUBLISHING  a publish is in progress; writers wait for it, readers do not
    FAILED      the last publish failed: the staged bytes are kept, and every FLUSH and FSYNC retries and reports the result,
                until they are rewritten, or given up at a writer's last RELEASE (which records the failure, since no program gets it)

A file that loses its name while open (unlink, rename over) becomes an *orphan*: it keeps its bytes for its handles and publishes nothing
any more. A file whose value is replaced through another view while it is read is *superseded*: its handles continue with the old value,
or are stale, and a later open gets another `Staged`. A `Stage` holds the staged bytes.

All this belongs to one event loop. Each `Staged` has a lock that its mutators (write, truncate, publish) hold across awaits, so that a
publish stores one state of the bytes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext

import trio

from zarrfs.errors import NodeInDoubt, ZarrfsError, raise_first
from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.content import Content
from zarrfs.vfs.spill_buffer import SPILL_NBYTES
from zarrfs.vfs.stage import StagingRoom, State
from zarrfs.vfs.staged import Staged

__all__ = ["Failure", "Staged", "StagingArea"]

log = logging.getLogger(__name__)

Failure = Callable[[str, BaseException], None]
"""Called with (ident, error) of a failed publish whose error no program gets."""


class StagingArea:
    """All staged files of a mount.

    ``on_failure`` is called if the publish at a writer's last RELEASE fails; ``save`` is called before that if the array may reappear: it
    saves the bytes, and returns the error that names where. ``on_removed`` is called with the ident of a file that was removed, replaced
    by another, or emptied and written anew, through this mount, ``on_published`` with that of a file after each publish. ``durable``: a
    sync follows every publish. Staged bytes above ``spill_nbytes`` a file, or above ``budget`` together, go to ``directory``.
    """

    def __init__(
        self,
        *,
        on_failure: Failure | None = None,
        on_removed: Callable[[str], None] = lambda ident: None,
        on_published: Callable[[str], None] = lambda ident: None,
        save: Callable[[Staged, NodeInDoubt], Awaitable[Exception]] | None = None,
        durable: bool = False,
        budget: MemoryBudget | None = None,
        kept: MemoryBudget | None = None,
        spill_nbytes: int = SPILL_NBYTES,
        directory: str | None = None,
    ) -> None:
        self._staged: dict[str, Staged] = {}
        self._superseded: set[Staged] = set()
        self._moving: dict[str, list[trio.Event]] = {}
        self._on_failure = on_failure
        self._save = save
        self.durable = durable
        self._on_removed = on_removed
        self._on_published = on_published
        self.returns_errors = True
        """True if programs receive the answers."""
        self.room = StagingRoom(budget=budget, kept=kept, spill_nbytes=spill_nbytes, directory=directory)

    def get(self, ident: str) -> Staged | None:
        """Return the staged file called ``ident``, if it is open or unpublished."""
        return self._staged.get(ident)

    def current(self, ident: str) -> Staged | None:
        """Return the staged file that a new open of ``ident`` shares with existing handles."""
        staged = self._staged.get(ident)
        return staged if staged is None or not staged.content.is_outdated else None

    def acquire(self, content: Content, *, writes: bool = False) -> Staged:
        """Return the staged file for ``content``, created if missing, and add one handle to it, which may write if ``writes``."""
        staged = self.current(content.ident)
        if staged is None:
            if (outdated := self._staged.get(content.ident)) is not None:
                self.supersede(outdated)
            content = content.renewed()
            staged = self._staged[content.ident] = Staged(self, content)
        staged.handles += 1
        staged.writers += writes
        return staged

    def unpublished_below(self, prefix: str) -> Iterator[Staged]:
        """Return the staged files with unpublished bytes whose ident begins with ``prefix``."""
        return (staged for staged in self._all() if staged.unpublished and staged.content.ident.startswith(prefix))

    def open_below(self, ident: str) -> list[str]:
        """Return the idents of open or unpublished files at or below ``ident`` (``""``: all)."""
        folder = ident.rstrip("/") + "/"
        return [each for each in self._staged if not ident or each == ident or each.startswith(folder)]

    def unpublished_in(self, folder: str) -> dict[str, Staged]:
        """Return the unpublished files directly in a folder, by name; ``folder`` is the prefix of their idents, with its slash."""
        found = ((each.content.ident[len(folder) :], each) for each in self.unpublished_below(folder) if not each.is_lost)
        return {name: staged for name, staged in found if "/" not in name}

    @property
    def dirty_nbytes(self) -> int:
        """Bytes staged and not yet published."""
        return sum(staged.nbytes for staged in self._all() if staged.unpublished)

    @property
    def open_handles(self) -> int:
        """Number of handles on staged files."""
        return sum(staged.handles for staged in self._all())

    async def publish_below(self, prefix: str) -> None:
        """Publish all files whose ident begins with ``prefix``; raise the first failure after trying all."""
        failed: list[Exception] = []
        for staged in [each for each in self.unpublished_below(prefix) if not each.is_lost]:
            try:
                await staged.publish_now()
            except ZarrfsError as error:
                failed.append(error)
        raise_first(failed)

    async def publish_all(self) -> list[tuple[Staged, Exception]]:
        """Publish all files; return the failed ones with their errors. For durability the caller syncs the store once."""
        failed: list[tuple[Staged, Exception]] = []
        for staged in self._all():
            if staged.unpublished:
                try:
                    await staged.publish_now()
                except Exception as error:  # noqa: BLE001 (a defect in one file must not affect the others)
                    failed.append((staged, error))
        return failed

    async def give_up(self) -> None:
        """Remove from the store, at the end of the mount, what failed publishes have already stored."""
        for staged in self._all():
            await staged.drop()

    @asynccontextmanager
    async def unnaming(self, ident: str) -> AsyncIterator[None]:
        """Remove the name ``ident`` from a file in the body; its open handles can still read the value.

        If the body fails, the file keeps its name.
        """
        async with AsyncExitStack() as stack:
            # Files that lost the name earlier must not publish to it again.
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
            self._on_removed(ident)
            for each in others:
                each.removed, each.lost = not each.content.is_elsewhere, each.content.is_elsewhere
            if staged is None:
                return
            if staged.content.is_elsewhere:
                # Another file was removed: a program that has written to this one is told that it cannot be stored.
                staged.lost = True
                self.supersede(staged)
                return
            staged.orphan = True
            self.forget(staged)
            if staged.stage is not None:
                with trio.CancelScope(shield=True):
                    await staged.stage.unnamed()

    def changed(self, ident: str) -> None:
        """Record that the published value of ``ident`` has another generation, or is staged here: open handles move on to it."""
        if (staged := self._staged.get(ident)) is not None:
            staged.moved_on()

    def replaced(self, ident: str, *, gone: bool = False) -> bool:
        """Record a replacement of (a part of) the published value through another view, or its removal (``gone``).

        Return True if this supersedes the open file."""
        staged = self._staged.get(ident)
        if staged is None or staged.content.private or (staged.content.in_parts and not (gone and staged.content.may_be_another)):
            return False
        if staged.state is not State.CLEAN or staged.lock.locked():
            # It has a writer here, or is just losing or changing its name.
            staged.epoch += 1
            return False
        self.supersede(staged)
        return True

    def publishing(self, ident: str) -> Content | None:
        """Return the content of ``ident`` if it is being published now."""
        return staged.content if (staged := self._staged.get(ident)) and staged.state is State.PUBLISHING else None

    @contextmanager
    def moving(self, *idents: str) -> Iterator[None]:
        """Have opens of these names wait while, in the body, they become those of other files, or of none.

        An open between the change of the store and that of the names here would get the value of one file as that of another, or bring
        a removed file back with its first change.
        """
        moved = trio.Event()
        for ident in idents:
            self._moving.setdefault(ident, []).append(moved)
        try:
            yield
        finally:
            for ident in idents:
                self._moving[ident].remove(moved)
                if not self._moving[ident]:
                    del self._moving[ident]
            moved.set()

    def is_moving(self, ident: str) -> bool:
        """Return True while a name is becoming that of another file, or of none."""
        return ident in self._moving

    async def until_moved(self, ident: str) -> bool:
        """Wait while a name is becoming that of another file, or of none. Return False, without a checkpoint, if it is not."""
        waited = False
        while (underway := self._moving.get(ident)) is not None:
            await underway[0].wait()
            waited = True
        return waited

    @asynccontextmanager
    async def renaming(self, ident: str, content: Content) -> AsyncIterator[None]:
        """Rename the file called ``ident``, all of it published, to that of ``content``, in the body.

        No publish under the old name runs meanwhile, or is left for later: what is staged belongs to the content of that name."""
        staged = self._staged.get(ident)
        async with staged.lock if staged is not None else nullcontext():
            if staged is not None:
                await staged.publish_held()
            yield
            self.rekey(ident, content)

    def follow(self) -> None:
        """Update the idents of all files after a move, from their contents (`Content.follow`)."""
        for staged in self._all():
            staged.content.follow()
        for ident in [ident for ident, staged in self._staged.items() if staged.content.ident != ident]:
            self._put(self._staged.pop(ident))

    def lost_below(self, prefix: str) -> None:
        """Mark the files below an erased folder as lost, through any view: they can no longer be published."""
        for staged in [staged for staged in self._all() if staged.content.ident.startswith(prefix)]:
            staged.lost = True
            self.supersede(staged)

    def rekey(self, ident: str, content: Content) -> None:
        """Give the file called ``ident`` the content ``content`` (after a rename; a file at the new name is already detached)."""
        if (staged := self._staged.pop(ident, None)) is not None:
            # Open handles continue at the new path.
            staged.content, staged.lost = content, False
            staged.moved_on()
            self._put(staged)

    def rekey_below(self, prefix: str, moved: Callable[[Content], Content]) -> None:
        """Give each file whose ident begins with ``prefix`` the content ``moved(its content)`` (after a folder was renamed)."""
        for ident, staged in [each for each in self._staged.items() if each[0].startswith(prefix)]:
            self.rekey(ident, moved(staged.content))

    def _all(self) -> list[Staged]:
        return [*self._staged.values(), *self._superseded]

    def _put(self, staged: Staged) -> None:
        if (displaced := self._staged.get(staged.content.ident)) is not None:
            self.supersede(displaced)
        self._staged[staged.content.ident] = staged

    def supersede(self, staged: Staged) -> None:
        """Detach a file: later opens get another `Staged`."""
        staged.superseded = True
        self.forget(staged)
        self._superseded.add(staged)

    async def abandon(self, staged: Staged) -> None:
        """Let a file that no writer could store publish nothing any more: its readers keep the bytes, others find what is stored."""
        with self.moving(staged.content.ident), trio.CancelScope(shield=True):
            staged.removed = True
            self.supersede(staged)
            if staged.stage is not None:
                await staged.stage.unnamed()

    def forget(self, staged: Staged) -> None:
        """Remove a file from the index by name."""
        self._superseded.discard(staged)
        if self._staged.get(staged.content.ident) is staged:
            del self._staged[staged.content.ident]

    def written_anew(self, ident: str) -> None:
        """Record that nothing of an earlier value of the file is left: what was lost of it is wanted no more."""
        self._on_removed(ident)

    def published(self, ident: str) -> None:
        """Record that written data of the file is stored: what was refused of it before is not missing."""
        self._on_published(ident)

    async def saved(self, staged: Staged, error: NodeInDoubt) -> Exception:
        """Save the staged bytes elsewhere; return the error that names where."""
        return await self._save(staged, error) if self._save is not None else error

    def failed(self, ident: str, error: BaseException) -> None:
        """Record the failure of a publish whose error no program gets."""
        log.error("%r: write failed, data lost: %s", ident, error)
        if self._on_failure is not None:
            self._on_failure(ident, error)
