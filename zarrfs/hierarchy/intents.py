"""Operations in several steps that leave the old or the new state after a failure or kill at any step (docs/design/022-several-steps.md).

Each operation has a folder for what is not yet, or no longer, at its final position:

    .zarrfs/ID/intent.json   record of the operation: kind, node, position; written before anything existing is touched
    .zarrfs/ID/new/          content to be put in place
    .zarrfs/ID/old/          previous content, until the new one is in place: it is moved back if its position is empty
    .zarrfs/ID/gone/         content to be deleted

A node whose documents and chunks lie in several places is renamed in two rounds: all parts are moved apart (and so recorded; undone after
a kill), then, once the record is updated, to their new positions (completed after a kill).

The worker of an operation holds the lock of its intent. An intent without a holder is an interrupted one: `Intents.left`.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import replace

import trio

from zarrfs import fences
from zarrfs.errors import (
    LockHeld,
    NoSuchEntry,
    StoreAccessDenied,
    StoreTimeout,
    ZarrfsError,
)
from zarrfs.hierarchy.erasing import erase_in_steps
from zarrfs.hierarchy.moves import Target, apart_in, rename, rename_in_order, rename_rest
from zarrfs.hierarchy.putting import put_all, sync_first
from zarrfs.hierarchy.records import MAX_NBYTES, RECORD, Record
from zarrfs.hierarchy.resolving import Apart, resolve
from zarrfs.keys import APART, ByteRange, NodePath, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.locks import waiting_at_most

log = logging.getLogger(__name__)

# Other names in the folder belong to other programs, or have no mount to end them.
_NAME = re.compile("[0-9a-f]{32}")
_ASIDE = ".kept/"
_KEPT_NAME = re.compile("[0-9a-f]{32}[.]kept")
_LOCKED_SECONDS = 1.0

OnDone = Callable[[], Awaitable[None]]


class Intent(Apart):
    """One operation in several steps."""

    def __init__(self, store: Store, name: str | None = None, of: Intents | None = None) -> None:
        super().__init__(APART.child(name if name is not None else uuid.uuid4().hex))
        self.store = store
        # The folder of another one may be in use, empty as yet.
        self._is_new = name is None
        self.was_left = name is not None
        self._on_unfinished = of.on_unfinished if of is not None else None
        self._on_resolved = of.on_resolved if of is not None else _follow_nothing
        self._lock: AbstractAsyncContextManager[None] | None = None
        self._noted: Record | None = None
        self._may_be_stored = False
        """True if a record was to be stored, whether or not that succeeded."""
        self.is_unknown = False
        """True if a decisive step timed out, and its outcome was not determined since."""
        self.is_done = False
        """True if all content is in its final position, whatever the record says."""
        self.on_done: OnDone | None = None
        """Called once (`done`) when the operation is found to be completed, by whichever attempt: arrays in use follow."""
        self._going_back: list[tuple[Target, Target]] | None = None
        """What a `move` that found a part missing has to rename back."""
        self._steps: list[trio.Event] = []
        self._late: list[trio.Event] = []

    @property
    def is_held(self) -> bool:
        """Return True while the operation is in progress."""
        return self._lock is not None

    @property
    def noted(self) -> Record | None:
        """The record stored last, unless it was erased."""
        return self._noted

    def unknown(self) -> None:
        """Record that a decisive step has just timed out: it may take effect until the store has ended it."""
        self.is_unknown = True
        self._steps += fences.abandoned()

    @property
    def is_reported(self) -> bool:
        """True if the end of the steps that timed out is reported."""
        return bool(self._steps)

    @property
    def may_take_effect(self) -> bool:
        """True while a decisive step that timed out may still take effect."""
        return self.is_unknown and not (self.is_reported and all(step.is_set() for step in self._steps))

    @property
    def is_hanging(self) -> bool:
        """True while a step that timed out here, decisive or not, has not ended: an attempt to `end` would wait for it in vain."""
        return any(not step.is_set() for step in self._late)

    def wait_for(self, other: Intent) -> None:
        """Let `is_hanging` be true while it is of ``other``."""
        self._late += other._late

    async def until_ended(self) -> None:
        """Return when the store has ended all steps; never if the backend does not report that."""
        for step in self._steps:
            await step.wait()
        if self.may_take_effect:
            await trio.sleep_forever()

    async def begin(self, record: Record, *places: Prefix) -> None:
        """Lock the intent and store its record: from now on an interrupted operation is found by the next mount.

        ``places``: where it finds what it puts apart, besides `Record.places`."""
        await self.hold(*record.places, *places)
        await self.note(record)

    async def hold(self, *places: Prefix) -> None:
        """Take the lock that marks the operation as in progress; ``places``: of what it concerns, unless something is apart already."""
        if self._lock is None:
            self.store.destine(self.prefix, *places)
            lock = self.store.exclusive(self.prefix.key(RECORD))
            try:
                await lock.__aenter__()
            except (ZarrfsError, trio.Cancelled):
                self.store.destine(self.prefix)
                # A full store may have had room for one folder of two, and an interrupted request may have created both.
                with trio.CancelScope(shield=True):
                    for prefix in (self.prefix, APART) if self._is_new else ():
                        with suppress(ZarrfsError):
                            await self.store.remove_prefix(prefix)
                raise
            self._lock = lock

    async def sync(self) -> None:
        """Sync the file system, so that after a power cut either the new or the old content exists.

        A disk that takes longer than the deadline is only logged: power cuts are too rare to refuse the operation.
        """
        try:
            await self.store.sync_all()
        except StoreTimeout as error:
            log.warning("%s: replacement not synced, may not survive a power cut: %s", self.prefix, error)

    async def note(self, record: Record) -> None:
        """Store ``record`` as the present state of the operation. Raises `TooLarge`."""
        text = record.format()
        self._may_be_stored = True
        with self.collecting():
            # An empty record of copies would leave out of them what the edit had taken out.
            await put_all(self.store, {self.prefix.key(RECORD): text}, on_disk=self._noted is not None or record.is_of_copies)
        self._noted = record
        # After a power cut, chunks of a new array without its document belong to no array.
        if record.operation != "erase" and not record.is_of_copies and not record.is_new:
            with suppress(StoreTimeout):
                await self.store.sync([self.prefix.key(RECORD)])

    async def record(self) -> Record | None:
        """Return the stored record; None if there is none, as nothing was begun.

        Raises `StoreAccessDenied` for a record of a stranger: it would be carried out with the rights of this process. Raises
        `IntentTooNew`, `MetadataError`.
        """
        found = await self.store.get_with_stat(self.prefix.key(RECORD), ByteRange(0, MAX_NBYTES + 1))
        if found is not None and found[1].by_stranger:
            raise StoreAccessDenied(
                "operation of another user, who neither owns the store nor is root: only they or the owner may complete it "
                f"(or others may write to {RECORD}: it counts after chmod go-w)",
                key=self.prefix,
            )
        # A power cut leaves an empty record of operations that do not sync it: of removals and new arrays.
        is_lost = found is not None and not found[0] and not await self.store.prefix_exists(self.old)
        self._noted = None if found is None or is_lost else Record.parse(found[0])
        return self._noted

    async def end(self) -> None:
        """End the operation, successful or failed: `resolve` it, then delete its folder in steps.

        If that fails, or the outcome is unknown, the lock is kept: this mount ends it later, or the next one.
        """
        when = "the next mount" if self._on_unfinished is None else "later"
        if self.is_unknown:
            log.warning("%s: outcome unknown, store timed out; left for %s", self.prefix, when)
            return await self._end_later()
        record = self._noted
        if self.is_hanging and record is not None and record.is_of_documents and not self.is_done:
            # What is stored is not what will be.
            log.warning("%s: store timed out; left for %s", self.prefix, when)
            return await self._end_later()
        try:
            with self.collecting(), trio.CancelScope(shield=True):
                if not self.is_done:
                    await self.resolve()
                    if record is not None and record.is_of_arrays and not await self._on_resolved(self, record):
                        return await self._end_later()
                self.is_done = True
                # From here on all remaining content is to be deleted.
                await self.forget()
                for part in (self.new, self.old, self.gone):
                    await erase_in_steps(self.store, part)
                # A value whose writer was cancelled may arrive until here: this waits for it.
                await self.store.erase_prefix(self.prefix)
                with suppress(ZarrfsError):
                    await self.store.remove_prefix(APART)
        except ZarrfsError as error:
            log.warning("%s: not ended, left for %s: %s", self.prefix, when, error)
            await self._end_later()
        except BaseException:
            await self.let_go()
            raise
        else:
            await self.let_go()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the steps in the body that time out, for `is_hanging`."""
        found: list[trio.Event] = []
        try:
            with fences.collected() as found:
                yield
        finally:
            self._late = [step for step in (*self._late, *found) if not step.is_set()]
            for step in found:
                fences.given_up(step)

    async def end_later(self, record: Record) -> None:
        """Leave the operation of ``record``, which may not be stored, for later."""
        self._noted = record
        await self._end_later()

    async def _end_later(self) -> None:
        self.was_left = True
        if self._on_unfinished is not None:
            self._on_unfinished(self)
        elif not self.is_unknown:
            await self.let_go()

    async def move(self, record: Record) -> None:
        """Rename all ``moves`` of a record. If it raises, `resolve` undoes or completes it."""
        await self.begin(record)
        pairs = apart_in(self.old, record.moved)
        for number, (target, apart) in reversed(list(enumerate(pairs))):
            if not await rename(self.store, target, apart):
                # The last chunk may have been removed late. The rest belongs where it was, without this part.
                self._going_back = [(apart, target) for target, apart in pairs[number + 1 :]]
                raise NoSuchEntry(f"{record.path}: {target} was moved or removed by another program", key=target)
        await self.note(record := replace(record, is_placing=True))
        await rename_in_order(self.store, self.rest(record))
        await self.forget()

    async def forget(self) -> None:
        """Erase the record: all content is in its final position."""
        if (record := self._noted) is not None and record.replaces:
            # What was replaced is removed next: without ordered journals (FAT, ext2), it may be gone before the new names are there.
            await sync_first(self.store, (record.prefix, *record.before, *record.after, *(new for _, new in record.moves)))
        if self._noted is not None or self._may_be_stored:
            # Waits for a failed attempt to store it: after that, the next mount would carry out a record that no one holds.
            with self.collecting():
                await self.store.erase(self.prefix.key(RECORD))
            self._noted, self._may_be_stored = None, False

    async def resolve(self) -> bool:
        """Run `resolve` with the last stored record."""
        if self.is_unknown:
            return False
        if self._going_back is not None:
            await rename_rest(self.store, self._going_back)
            await self.forget()
            self._going_back = self.on_done = None
            return False
        if (begun := self._noted) is not None and begun.moves:
            # Its update, or its erasure at the end, may have failed and yet taken effect.
            await self.record()
        is_done = self._noted is None or await resolve(self.store, self, self._noted)
        if is_done and begun is not None:
            await self.done()
        elif not is_done:
            self.on_done = None
        return is_done

    def failed(self) -> None:
        """Forget `on_done` after a step that has failed without effect, unless it timed out: a later state of the place is of others."""
        if not self.is_unknown:
            self.on_done = None

    async def done(self) -> None:
        """Run `on_done`, unless it was run: the new content is in place."""
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            await on_done()

    async def keep_aside(self) -> Prefix:
        """Move all that is apart to where no mount looks for operations, and return the prefix: it has no position any more."""
        aside = Prefix(self.prefix.removesuffix("/") + _ASIDE)
        await self.store.rename_prefix(self.prefix, aside)
        self._noted, self._may_be_stored = None, False
        return aside

    async def let_go(self) -> None:
        """Release the lock, for another worker."""
        lock, self._lock = self._lock, None
        self.store.destine(self.prefix)
        if lock is not None:
            with trio.CancelScope(shield=True):
                await lock.__aexit__(None, None, None)


class Intents:
    """The operations in several steps of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.on_unfinished: Callable[[Intent], None] | None = None
        """Called with each intent that `Intent.end` could not end."""
        self.on_resolved: Callable[[Intent, Record], Awaitable[bool]] = _follow_nothing
        """Called, outside of edits, for each that failed in between and that `Intent.end` has completed or undone.

        Returns False if the next mount has to end it."""
        self.finish: Callable[[tuple[NodePath, ...]], Awaitable[None]] = _nothing
        """Called before each edit, of the nodes at these paths, to end these."""
        self.error_at: Callable[[NodePath], ZarrfsError | None] = lambda path: None
        """Returns the error of one of these that may still change the node at this path; None without any."""

    def new(self) -> Intent:
        """Return an intent of which nothing is stored yet."""
        return Intent(self.store, of=self)

    @asynccontextmanager
    async def around(self, record: Record) -> AsyncIterator[Intent]:
        """Begin an operation, and end it after the body."""
        intent = self.new()
        try:
            await intent.begin(record)
            with intent.collecting():
                yield intent
        finally:
            await intent.end()

    async def there(self) -> list[Intent]:
        """Return all intents in the store, in progress or interrupted. Raises `StoreAccessDenied` if another user hides them."""
        return await self._named(_NAME)

    async def kept(self) -> list[Intent]:
        """Return what no mount could complete or undo (`Intent.keep_aside`). Raises as `there`."""
        return await self._named(_KEPT_NAME)

    async def _named(self, form: re.Pattern[str]) -> list[Intent]:
        if not self.store.capabilities.list or not await self.store.prefix_exists(APART):
            return []
        names = [name async for name, is_prefix, _, _ in self.store.list_dir(APART) if is_prefix and form.fullmatch(name)]
        return [Intent(self.store, name) for name in sorted(names)]

    async def left(self) -> AsyncGenerator[Intent]:
        """Yield the interrupted intents; each is held until the next is requested.

        Locks of intents without a record of this user's, which may be anyone's and any number, are waited for `_LOCKED_SECONDS` in all.
        """
        spare = _LOCKED_SECONDS
        try:
            there = await self.there()
        except StoreAccessDenied as error:
            # Else who creates the folder first could prevent all mounts of others.
            log.warning("operations of other users left unchanged: %s", error)
            return
        for intent in there:
            began, is_foreign = trio.current_time(), False
            try:
                stat = await self.store.stat(intent.prefix.key(RECORD))
                is_foreign = stat is None or stat.by_stranger
                with waiting_at_most(spare if is_foreign else _LOCKED_SECONDS):
                    await intent.hold()
            except LockHeld:
                # In progress.
                pass
            except ZarrfsError as error:
                log.warning("%s: left unchanged: %s", intent.prefix, error)
            spare = max(0, spare - (trio.current_time() - began)) if is_foreign else spare
            if intent.is_held:
                try:
                    yield intent
                finally:
                    await intent.let_go()
        if self.store.capabilities.list and await self.store.prefix_exists(APART):
            with suppress(ZarrfsError):
                await self.store.remove_prefix(APART)


async def _nothing(paths: tuple[NodePath, ...]) -> None:
    pass


async def _follow_nothing(intent: Intent, record: Record) -> bool:
    return True
