"""Operations in several steps that could not be ended at once: this mount ends them when the store permits it.

The outcome of a step that missed its deadline is unknown until the store has ended that step. Until it is determined, the store may hold
neither the old nor the new state; and whoever changes the node meanwhile must not find an old state put over that later. So the operation
is completed or undone as soon as possible, and before any other edit.

Of an edit whose nodes are stored, only the consolidated copies may be left (`Record.is_of_copies`), on a full store without a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from weakref import WeakKeyDictionary

import trio

from zarrfs.dialects.base import Layout
from zarrfs.errors import KeyConflict, StoreAccessDenied, StoreTimeout, ZarrfsError
from zarrfs.hierarchy.bound_paths import paths_of
from zarrfs.hierarchy.consolidated import ConsolidatedCopies
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intent, Intents
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.records import RECORD, Record
from zarrfs.hierarchy.recovery import is_erased, is_renewed, renew_copies
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.stores.base import Store

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0, 60.0
"""Delay before another attempt: initial, maximum."""


class UnfinishedOperations:
    """The unfinished operations of a mount. ``start_soon`` starts a task that shares nothing with the caller."""

    def __init__(
        self, hierarchy: Hierarchy, store: Store, editor: NodeEditor, intents: Intents, *, start_soon: Callable[..., None]
    ) -> None:
        self._hierarchy = hierarchy
        self._store = store
        self._editor = editor
        self._copies = ConsolidatedCopies(hierarchy, store)
        self._start_soon = start_soon
        self._intents: dict[Intent, trio.Event] = {}
        """The unfinished intents; the event is set when the outcome is known."""
        self._failed: WeakKeyDictionary[Intent, ZarrfsError] = WeakKeyDictionary()
        """The errors of the last attempts."""
        self._finishing = False
        intents.on_unfinished = self._add
        intents.on_resolved = self._resolved
        intents.finish = self._finish
        intents.error_at = self._error_at

    async def end(self) -> list[tuple[NodePath, ZarrfsError]]:
        """Make a last attempt, at the end of the mount.

        Returns the nodes, with errors, that consolidated copies lack and that the next mount does not learn of, as no record is stored.
        """
        left: list[tuple[NodePath, ZarrfsError]] = []
        for intent in list(self._intents):
            if not await self._attempt(intent) and (record := intent.noted) is not None and record.is_of_copies:
                error = self._failed.get(intent) or StoreTimeout("store timed out", key=record.path)
                is_stored = False
                with suppress(ZarrfsError):
                    is_stored = await intent.store.stat(intent.prefix.key(RECORD)) is not None
                if not is_stored:
                    left.append((record.path, error))
        return left

    async def attempt(self, at: NodePath | Prefix) -> list[Exception]:
        """Try to end the operations on nodes at or below this path, or with documents and copies below this prefix of the store.

        Returns the errors of those that still lack a part in the store.
        """
        failed: list[Exception] = []
        tried: set[Intent] = set()
        # While one is attempted, an equal one may take its place.
        while (intent := next((each for each in self._intents if each not in tried), None)) is not None:
            tried.add(intent)
            try:
                record = intent.noted
                # Else the rest is to be deleted.
                if record is None or intent.is_done or not await self._is_at(record, at) or await self._attempt(intent):
                    continue
                if intent in self._intents and not intent.is_done:
                    error = self._failed.get(intent)
                    failed.append(error or StoreTimeout(f"{record.path}: outcome of an operation is unknown", key=record.path))
            except ZarrfsError as error:
                failed.append(error)
        return failed

    async def _is_at(self, record: Record, at: NodePath | Prefix) -> bool:
        if isinstance(at, NodePath):
            return any(place.startswith(at.prefix) for place in (record.path.prefix, record.source or record.path.prefix))
        places = list(_targets(record))
        for path in (record.path, *(paths_of(record.source) or () if record.source is not None else ())):
            places += (await self._layout(path)).consolidated_keys(path)
        return any(place.startswith(at) for place in places)

    async def _layout(self, path: NodePath) -> Layout:
        # A lookup of the node itself would wait for the operation.
        return await self._editor.layout_for(path.parent if path != ROOT else ROOT)

    def _add(self, intent: Intent) -> None:
        if intent in self._intents:
            return
        if (record := intent.noted) is not None and record.is_of_copies and not intent.is_done:
            # A program may repeat an edit any number of times: one of them is enough.
            for same in [each for each in self._intents if each.noted == record]:
                self._intents.pop(same).set()
                intent.wait_for(same)
                same.is_done = True
                self._start_soon(same.end)
        known = self._intents[intent] = trio.Event()
        if intent.is_unknown and intent.is_reported and (record := intent.noted) is not None:
            # Nothing is read or changed there before.
            self._hierarchy.live.fence(_targets(record), known)
        self._start_soon(self._follow, intent)

    async def _follow(self, intent: Intent) -> None:
        delay, most = _RETRY_SECONDS
        try:
            if intent.is_unknown:
                await intent.until_ended()
            else:
                await trio.sleep(delay)
            while intent in self._intents and not await self._attempt(intent):
                await trio.sleep(delay)
                delay = min(2 * delay, most)
        finally:
            # At the end of the mount: the next one may end it. A step that may still take effect keeps the lock until the process ends.
            if not intent.is_unknown:
                await intent.let_go()

    async def _attempt(self, intent: Intent) -> bool:
        """End an operation within an edit, if its outcome can be determined; return True if it is ended."""
        try:
            if intent in self._intents and not intent.may_take_effect and not intent.is_hanging:
                record = intent.noted
                if record is None:
                    await self._end(intent)
                else:
                    async with self._editor.excluding(await self._layout(record.path)):
                        pass
        except ZarrfsError as error:
            self._failed[intent] = error
            log.debug("%s: not ended yet: %s", intent.prefix, error)
        return intent not in self._intents

    async def _finish(self, paths: tuple[NodePath, ...]) -> None:
        """End all operations whose outcome can be determined. The caller excludes edits.

        Raises `StoreTimeout` if another one concerns a node at or below one of these paths, or above it."""
        if self._finishing:
            return
        self._finishing = True
        try:
            ready = [each for each in self._intents if not each.may_take_effect and not each.is_hanging]
            for intent in sorted(ready, key=_is_of_copies):
                if not (_is_of_copies(intent) and self._is_in_between(intent)):
                    await self._end(intent)
        finally:
            self._finishing = False
        for intent, known in self._intents.items():
            if intent.is_hanging and (path := next((each for each in paths if _concerns(intent, each)), None)) is not None:
                raise StoreTimeout(f"{path}: outcome of an earlier change is unknown: store timed out", key=path)
            if intent.is_unknown and intent.is_reported and not known.is_set() and (record := intent.noted) is not None:
                for path in paths:
                    if path != ROOT and any(_meet(path.prefix, target) for target in _targets(record)):
                        raise StoreTimeout(f"{path}: outcome of an earlier operation is unknown: store timed out", key=path)

    def _error_at(self, path: NodePath) -> ZarrfsError | None:
        left = next((intent for intent in self._intents if _concerns(intent, path)), None)
        if left is None:
            return None
        return self._failed.get(left) or StoreTimeout(f"{path}: outcome of an earlier change is unknown: store timed out", key=path)

    def _is_in_between(self, copies: Intent) -> bool:
        """Return True while what an intent of copies concerns may lie apart: it would be stored again from the copies."""
        wanted = _targets(copies.noted) if copies.noted is not None else ()
        return any(
            intent.is_unknown and not known.is_set() and intent.noted is not None and _meet_any(wanted, _targets(intent.noted))
            for intent, known in self._intents.items()
        )

    async def _end(self, intent: Intent) -> None:
        is_over = False
        try:
            record = intent.noted
            if intent.is_unknown:
                await self._determine(intent)
            elif record is not None and (record.is_of_arrays or record.is_of_documents) and not intent.is_done:
                changed = (*record.before, *record.after) if record.is_of_documents else _targets(record)
                async with self._hierarchy.live.lock.changing(*changed):
                    await intent.resolve()
                intent.is_done = True
                if not await self._is_renewed(intent, record):
                    # In its place is the record of the copies now.
                    return
            elif record is not None and record.is_of_copies:
                self._hierarchy.forget_all()
                with suppress(StoreAccessDenied):  # The next mount cannot read the nodes either.
                    await renew_copies(self._copies, record)
                intent.is_done = True
            elif record is not None and record.operation == "erase" and not intent.is_done:
                self._hierarchy.forget_all()
                await is_erased(self._hierarchy, self._store, intent, record.path)
            if intent.is_held:
                await intent.end()
            is_over = not intent.is_held
        except ZarrfsError as error:
            self._failed[intent] = error
            log.warning("%s: not ended yet: %s", intent.prefix, error)
        if is_over and (known := self._intents.pop(intent, None)) is not None:
            known.set()

    async def _resolved(self, intent: Intent, record: Record) -> bool:
        """Renew the consolidated copies after an operation that failed in between; return False if they are left for the next mount."""
        async with self._editor.editing(record.path):
            return await self._is_renewed(intent, record)

    async def _is_renewed(self, intent: Intent, record: Record) -> bool:
        self._hierarchy.forget_all()
        return await is_renewed(self._copies, intent, record)

    async def _determine(self, intent: Intent) -> None:
        record = intent.noted
        if record is None:
            # All of it is apart, or in place.
            intent.is_unknown = False
            return
        async with self._hierarchy.live.lock.changing(*_targets(record)):
            intent.is_unknown = False
            try:
                is_done = await intent.resolve()
            except StoreTimeout:
                intent.unknown()
                raise
            except KeyConflict:
                # Others have taken the place: nothing is put over it, by the next mount neither.
                intent.is_unknown = True
                self._intents[intent].set()
                raise
            except BaseException:
                intent.is_unknown = True
                raise
        intent.is_done = True
        self._intents[intent].set()
        log.warning("%s: operation (%s) that timed out was %s", record.path, record.operation, "completed" if is_done else "undone")
        self._hierarchy.forget_all()
        await renew_copies(self._copies, record)


def _is_of_copies(intent: Intent) -> bool:
    return intent.noted is not None and intent.noted.is_of_copies


def _concerns(intent: Intent, path: NodePath) -> bool:
    """Return True if the end of an edit or erasure may change the node at ``path``."""
    if intent.is_done or (record := intent.noted) is None:
        return False
    is_erased = record.operation == "erase"
    return (record.is_of_documents and path == record.path) or (is_erased and _meet(path.prefix, record.path.prefix))


def _meet_any(some: Iterable[Key | Prefix], others: Iterable[Key | Prefix]) -> bool:
    """Return True if a path prefix among ``some`` is at, above or below one of ``others``."""
    return any(_meet(one, other) for one in some if isinstance(one, Prefix) and one != ROOT.prefix for other in others)


def _meet(one: Prefix, other: Key | Prefix) -> bool:
    return isinstance(other, Prefix) and (one.startswith(other) or other.startswith(one))


def _targets(record: Record) -> tuple[Key | Prefix, ...]:
    """Return the places that an operation may still change."""
    moved = [place for pair in record.moves for place in pair]
    prefixes = (record.path.prefix, record.prefix, *((record.source,) if record.source is not None else ()))
    return tuple(dict.fromkeys((*prefixes, *record.before, *record.after, *record.replaced, *moved)))
