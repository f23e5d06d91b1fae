"""Operations in several steps, such that after a failure or a kill at any of them the store has what was there before, or what was
meant, and never neither (docs/design/022-several-steps.md).

What is not yet in its place, and what is no more in it, lies apart, in a folder of its own for each operation:

    .zarrfs/ID/intent.json   what was meant: the operation, the node, its place; not there before anything that was there is touched
    .zarrfs/ID/new/          what is to appear at the place
    .zarrfs/ID/old/          what was there, until the new is in its place: it goes back if that is empty
    .zarrfs/ID/gone/         what nobody gets back

A node whose documents and chunks lie in several places is renamed in two rounds: all of it is moved apart (the record says so; undone
after a kill), then, when the record says that, to its new places (ended after a kill).

Whoever works on an operation holds the lock of its intent. An intent that nobody holds was left behind: `Intents.left`.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import trio

from zarrfs.errors import (
    IntentTooNew,
    KeyConflict,
    KeyUnusable,
    MetadataError,
    NameInvalid,
    PrefixNotEmpty,
    StoreTimeout,
    ZarrfsError,
)
from zarrfs.hierarchy.moves import Place, apart_in, parse_place, rename, rename_rest
from zarrfs.hierarchy.revising import Read, put_each
from zarrfs.keys import APART, ROOT, ByteRange, Key, NodePath, Prefix
from zarrfs.stores.base import Store

log = logging.getLogger(__name__)

VERSION = 2
"""Of what is written; who finds a later one leaves everything as it is. Records without ``moves`` are of version 1."""

Operation = Literal["replace", "rename", "erase", "amend"]
_OPERATIONS: tuple[Operation, ...] = ("replace", "rename", "erase", "amend")

_RECORD = "intent.json"
# What else lies there is not ours.
_NAME = re.compile("[0-9a-f]{32}")
# A document may have so many bytes, and a node has a few of them.
_MAX_NBYTES = 1 << 30
# Keys that are erased in one step: it ends well within any deadline.
_ERASED_AT_ONCE = 64
_LOCKED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Record:
    """What was meant: ``operation`` on the node at ``path``, which lies at ``place``; ``is_used``: whether anything lay there at first;
    ``source``: where what is renamed to it came from. Where its documents lie elsewhere: those that were there ``before``, and those
    that are to be there ``after``. ``copies``: what lies apart is copied to the place, all of it, as often as it takes; ``erased`` goes
    from there before that, or all that is there (None); ``count`` values lie apart. ``moves``: keys and prefixes that are renamed, from
    and to, chunks before what says that they are there; ``replaced``: what lies at the new places, and goes; ``is_placing``: all of these
    lay apart, and are on their way to the new places."""

    operation: Operation
    path: NodePath
    place: Prefix
    is_used: bool = True
    source: Prefix | None = None
    copies: bool = False
    erased: tuple[Key, ...] | None = None
    count: int | None = None
    before: Mapping[Key, bytes] = field(default_factory=dict)
    after: Mapping[Key, bytes] = field(default_factory=dict)
    moves: tuple[tuple[Place, Place], ...] = ()
    replaced: tuple[Place, ...] = ()
    is_placing: bool = False

    @property
    def moved(self) -> tuple[Place, ...]:
        """What lies apart in between."""
        return (*self.replaced, *(old for old, _ in self.moves))

    def format(self) -> bytes:
        """As JSON."""
        content: dict[str, Any] = {
            "version": VERSION if self.moves else 1,
            "operation": self.operation,
            "path": self.path,
            "place": self.place,
            "is_used": self.is_used,
            "source": self.source,
            "copies": self.copies,
            "erased": self.erased,
            "count": self.count,
            "before": {key: base64.b64encode(value).decode() for key, value in self.before.items()},
            "after": {key: base64.b64encode(value).decode() for key, value in self.after.items()},
        }
        if self.moves:
            content |= {"moves": self.moves, "replaced": self.replaced, "is_placing": self.is_placing}
        return (json.dumps(content, indent=1) + "\n").encode()

    @classmethod
    def parse(cls, text: bytes) -> Record:
        """Raises `MetadataError` for what is none, and `IntentTooNew`."""
        try:
            content: Any = json.loads(text)
            version = content["version"]
            if isinstance(version, int) and version > VERSION:
                raise IntentTooNew(f"version {version}: this zarrfs knows those up to {VERSION}")
            if content["operation"] not in _OPERATIONS:
                raise ValueError(f"unknown operation {content['operation']!r}")
            source, erased = content["source"], content["erased"]
            if not content["place"] and erased is None:
                raise ValueError("the whole store is no place")
            moves = tuple((parse_place(old), parse_place(new)) for old, new in content.get("moves", ()))
            replaced = tuple(map(parse_place, content.get("replaced", ())))
            named = (content["place"], *content["before"], *content["after"], *(erased or ()), *sum(moves, ()), *replaced)
            if any(each.startswith(APART) for each in named):
                raise ValueError(f"nothing of it has a place below {APART}")
            return cls(
                content["operation"],
                NodePath(content["path"]),
                Prefix(content["place"]),
                is_used=bool(content["is_used"]),
                source=Prefix(source) if source is not None else None,
                copies=bool(content["copies"]),
                erased=tuple(map(Key, erased)) if erased is not None else None,
                count=int(content["count"]) if content["count"] is not None else None,
                before=_documents(content["before"]),
                after=_documents(content["after"]),
                moves=moves,
                replaced=replaced,
                is_placing=bool(content.get("is_placing", False)),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error, NameInvalid, KeyUnusable) as error:
            raise MetadataError(f"not the record of an operation: {error!r}") from error


class Intent:
    """One operation in several steps. ``new``, ``old``, ``gone``: where these parts lie."""

    def __init__(self, store: Store, name: str | None = None) -> None:
        self._store = store
        self._lock: AbstractAsyncContextManager[None] | None = None
        self._noted: Record | None = None
        self.is_unknown = False
        """Whether a step that decides was given up, and may take effect at any time."""
        self.prefix = APART.child(name if name is not None else uuid.uuid4().hex)
        self.new = self.prefix.child("new")
        self.old = self.prefix.child("old")
        self.gone = self.prefix.child("gone")

    @property
    def is_held(self) -> bool:
        """Whether the operation is begun, and not ended."""
        return self._lock is not None

    async def begin(self, record: Record) -> None:
        """From here on who comes after a kill knows of it."""
        await self.hold()
        await self.note(record)

    async def hold(self) -> None:
        """Take the lock by which others see that somebody works on it."""
        if self._lock is None:
            lock = self._store.exclusive(self.prefix.key(_RECORD))
            await lock.__aenter__()
            self._lock = lock

    async def sync(self) -> None:
        """What takes another's place is there after a power cut, or that other. Of a disk that takes longer than the deadline only the
        log tells: that power cuts are rare is no reason to refuse."""
        try:
            await self._store.sync_all()
        except StoreTimeout as error:
            log.warning("%s: what takes another's place may not survive a power cut yet: %s", self.prefix, error)

    async def note(self, record: Record) -> None:
        """What is meant now."""
        await self._store.set(self.prefix.key(_RECORD), record.format())
        self._noted = record
        if record.operation != "erase":
            with suppress(StoreTimeout):
                await self._store.sync([self.prefix.key(_RECORD)])

    async def record(self) -> Record | None:
        """What was meant; None where there is no record: nothing was begun. Raises `IntentTooNew`, `MetadataError`."""
        text = (await self._store.get_partial_values([(self.prefix.key(_RECORD), ByteRange(0, _MAX_NBYTES))]))[0]
        self._noted = None if text is None else Record.parse(bytes(text))
        return self._noted

    async def end(self) -> None:
        """The operation is over, or has failed: it is brought to an end (`settle`), and what is left of it goes, in steps. What of that
        fails is left for the next mount."""
        if self.is_unknown:
            # The lock is kept: the next mount finds out, when this process is no more.
            log.warning("%s is left for the next mount: the store did not answer, and nobody can tell what it did", self.prefix)
            return
        try:
            with trio.CancelScope(shield=True):
                await self.settle()
                # From here on all that is left is nobody's.
                await self.forget()
                for part in (self.new, self.old, self.gone):
                    await erase_in_steps(self._store, part)
                await erase_in_steps(self._store, self.prefix)
                with suppress(ZarrfsError):
                    await self._store.remove_prefix(APART)
        except ZarrfsError as error:
            log.warning("%s could not be ended, and is left for the next mount: %s", self.prefix, error)
        finally:
            await self.let_go()

    async def move(self, record: Record) -> None:
        """Rename all ``moves`` of a record. When it raises, `settle` undoes or ends it."""
        await self.begin(record)
        for place, apart in reversed(apart_in(self.old, record.moved)):
            await rename(self._store, place, apart)
        await self.note(record := replace(record, is_placing=True))
        for apart, place in self.rest(record):
            await rename(self._store, apart, place)
        await self.forget()

    def rest(self, record: Record) -> list[tuple[Place, Place]]:
        """What lies apart until all is in its place, and where that is: the new places, or (unless ``is_placing``) the old ones."""
        places = apart_in(self.old, record.moved)
        if not record.is_placing:
            return [(apart, place) for place, apart in places]
        return [(apart, new) for (_, apart), (_, new) in zip(places[len(record.replaced) :], record.moves, strict=True)]

    async def forget(self) -> None:
        """All is where it is to be: nothing is meant any more."""
        if self._noted is not None:
            await self._store.erase(self.prefix.key(_RECORD))
            self._noted = None

    async def settle(self) -> bool:
        """See `settle`, of what was noted last."""
        if self.is_unknown:
            return False
        if self._noted is not None and self._noted.moves:
            # Noting the next step may have failed, and taken effect.
            await self.record()
        return self._noted is None or await settle(self._store, self, self._noted)

    async def let_go(self) -> None:
        """Leave it to somebody else."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with trio.CancelScope(shield=True):
                await lock.__aexit__(None, None, None)


class Intents:
    """The operations in several steps of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def new(self) -> Intent:
        """One of which nothing is stored yet."""
        return Intent(self.store)

    @asynccontextmanager
    async def around(self, record: Record) -> AsyncIterator[Intent]:
        """One that begins, and ends."""
        intent = Intent(self.store)
        try:
            await intent.begin(record)
            yield intent
        finally:
            await intent.end()

    async def there(self) -> list[Intent]:
        """Those that there are, whether somebody works on them or not."""
        if not self.store.capabilities.list or not await self.store.prefix_exists(APART):
            return []
        names = [name async for name, is_prefix, _, _ in self.store.list_dir(APART) if is_prefix and _NAME.fullmatch(name)]
        return [Intent(self.store, name) for name in sorted(names)]

    async def left(self) -> AsyncGenerator[Intent]:
        """Those that somebody left behind; each is held until the next is asked for."""
        for intent in await self.there():
            try:
                with trio.move_on_after(_LOCKED_SECONDS):
                    await intent.hold()
            except ZarrfsError as error:
                log.warning("%s is left as it is: %s", intent.prefix, error)
            if intent.is_held:
                try:
                    yield intent
                finally:
                    await intent.let_go()
        if self.store.capabilities.list and await self.store.prefix_exists(APART):
            with suppress(ZarrfsError):
                await self.store.remove_prefix(APART)


async def settle(store: Store, intent: Intent, record: Record) -> bool:
    """Bring an operation to its end that failed, or was killed: the place is as it was, or as it was meant; whether the latter. What is
    left of it is the caller's to `end`. May be done again after a failure."""
    if record.operation == "erase":
        # What is in no place any more is in none again.
        return True
    if record.operation == "amend":
        return await _settle_documents(store, record)
    if record.moves:
        await rename_rest(store, intent.rest(record))
        return record.is_placing
    if record.copies:
        # It was noted when all of it lay apart.
        await copy_into_place(store, intent, record)
        return True
    is_aside = await store.prefix_exists(intent.old)
    if not record.after and not record.before:
        if not is_aside:
            return True
        if not await store.prefix_exists(record.place):
            await store.rename_prefix(intent.old, record.place)
            return False
        if await store.prefix_exists(record.source if record.source is not None else intent.new):
            raise KeyConflict(f"what was at {record.path} is in {intent.old}, and something else in its place", key=record.place)
        return True
    if record.after and await _are_stored(store, record.after):
        return True
    if not is_aside and await _are_stored(store, record.before):
        # Nothing was begun.
        return False
    if (is_aside or not record.is_used) and await store.prefix_exists(record.place):
        # Whoever tries again has it where it was.
        is_apart = await store.prefix_exists(intent.new)
        await store.rename_prefix(record.place, intent.gone if is_apart else intent.new)
    if is_aside:
        await store.rename_prefix(intent.old, record.place)
    for key, value in record.before.items():
        await store.set(key, value)
    return False


async def store_together(intents: Intents, path: NodePath, read: Read, after: Mapping[Key, bytes]) -> None:
    """Change these documents that say what the node at ``path`` is, all or none; ``read``: those of them that were there. Raises
    `GenerationMismatch` where another program has stored one of them since: then what it stored stays."""
    if len(after) < 2:
        await put_each(intents.store, read, after)
        return
    before = {key: read[key].content for key in after if key in read}
    async with intents.around(Record("amend", path, ROOT.prefix, erased=(), before=before, after=after)) as intent:
        await put_each(intents.store, read, after)
        await intent.forget()


async def _settle_documents(store: Store, record: Record) -> bool:
    stored = {key: await store.get(key) for key in {**record.before, **record.after}}
    now = {key: bytes(value) for key, value in stored.items() if value is not None}
    if now == record.after:
        return True
    if any(value not in (record.before.get(key), record.after.get(key)) for key, value in now.items()):
        # Somebody has changed them since. What they say now is what the node is.
        return True
    for key, value in now.items():
        if key not in record.before:
            await store.erase(key)
        elif value != record.before[key]:
            await store.set(key, record.before[key])
    return False


async def copy_into_place(store: Store, intent: Intent, record: Record) -> None:
    """Let what lies apart be at its place where it cannot be renamed: the documents of what was there go first, and its own come last.
    When it fails it is done again."""
    new = {record.place.key(key[len(intent.new) :]): key async for key in store.list_prefix(intent.new)}
    if record.count is not None and len(new) != record.count:
        raise KeyConflict(f"{intent.new} has {len(new)} values where {record.count} were to be copied", key=record.place)
    new = {there: key for there, key in new.items() if there not in record.after}
    await store.erase_values(record.before)
    erased = record.erased if record.erased is not None else [key async for key in store.list_prefix(record.place)]
    # Before anything is copied: one of them may lie where a folder has to be.
    await store.erase_values([key for key in erased if key not in new])
    for there, key in new.items():
        if not await store.copy(key, there):
            raise KeyConflict(f"{key!r} was taken away while it was copied to {record.path}", key=key)
    for key, value in record.after.items():
        await store.set(key, value)


def _documents(content: Mapping[str, str]) -> dict[Key, bytes]:
    return {Key(key): base64.b64decode(value, validate=True) for key, value in content.items()}


async def _are_stored(store: Store, documents: Mapping[Key, bytes]) -> bool:
    for key, value in documents.items():
        stored = await store.get(key)
        if stored is None or bytes(stored) != value:
            return False
    return True


async def erase_in_steps(store: Store, prefix: Prefix) -> None:
    """As `Store.erase_prefix`, in steps each of which ends soon: what is erased stays so when a later one fails."""
    pending: list[tuple[Prefix, bool]] = [(prefix, False)]
    while pending:
        here, is_empty = pending.pop()
        if is_empty:
            try:
                if store.capabilities.empty_prefixes:
                    await store.remove_prefix(here)
            except PrefixNotEmpty:
                # What is not listed: links and special files.
                await store.erase_prefix(here)
            continue
        keys: list[Key] = []
        pending.append((here, True))
        async for name, is_prefix, _, _ in store.list_dir(here):
            if is_prefix:
                pending.append((here.child(name), False))
            else:
                keys.append(here.key(name))
        for start in range(0, len(keys), _ERASED_AT_ONCE):
            await store.erase_values(keys[start : start + _ERASED_AT_ONCE])
