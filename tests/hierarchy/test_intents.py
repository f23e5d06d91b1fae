"""Remains of an operation in several steps after a failure or a kill: each possible one is completed, undone, or kept and reported."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.support.arrays import reading
from tests.support.small_disks import small_disk
from tests.support.stores import WaitingStore, contents, fill
from zarrfs.buffers import Buffer
from zarrfs.errors import (
    IntentTooNew,
    KeyConflict,
    MetadataError,
    PartsMissing,
    StoreAccessDenied,
    StoreFull,
    StoreTimeout,
    TooLarge,
    ZarrfsError,
)
from zarrfs.hierarchy.intents import Intent, Intents
from zarrfs.hierarchy.records import MAX_NBYTES, VERSION, Record
from zarrfs.hierarchy.recovery import Recovered, recover, require_known
from zarrfs.hierarchy.resolving import copy_into_place, resolve
from zarrfs.hierarchy.storing_together import store_together
from zarrfs.keys import APART, Key, NodePath, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore

PATH, PLACE, SOURCE, DOCUMENT = NodePath("/a"), Prefix("data/a/"), Prefix("data/b/"), Key("meta/a.array")
NAME = "0" * 32
OLD, NEW = {DOCUMENT: b"old document"}, {DOCUMENT: b"new document"}


async def store_with(
    values: dict[str, bytes], *, old: bytes = b"", new: bytes = b"", place: bytes = b""
) -> tuple[MemoryStore, Intent]:
    """Return a store, and an operation with one value in each part that is not empty."""
    store = MemoryStore()
    intent = Intent(store, NAME)
    await fill(store, values)
    for prefix, value in ((intent.old, old), (intent.new, new), (PLACE, place)):
        if value:
            await store.set(prefix.key("0"), value)
    return store, intent


async def left_behind(store: Store, record: Record) -> None:
    """Leave a record as a process does that is killed at that point."""
    intent = Intent(store, NAME)
    await intent.begin(record)
    await intent.let_go()


async def mount_again(store: Store, told: list[ZarrfsError] | None = None) -> list[Recovered]:
    """Recover as the next writable mount does first."""
    failed: Callable[[ZarrfsError], None] = (told if told is not None else []).append
    return await recover(Intents(store), reading(store).hierarchy, store, failed)


def edited(**changes: Any) -> bytes:
    """Return a record with other members."""
    return json.dumps(json.loads(Record("replace", PATH, PLACE).format()) | changes).encode()


# --- the record -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        Record("erase", PATH, PLACE),
        Record("rename", PATH, PLACE, source=SOURCE, is_used=False),
        Record("replace", NodePath("/"), Prefix(), copies=True, erased=(Key("0.0"), Key("0.1")), count=3, before=OLD, after=NEW),
        Record(
            "rename", PATH, PLACE, moves=((Prefix("data/a/"), Prefix("data/b/")), (Key("a.array"), Key("b.array"))), is_placing=True
        ),
    ],
    ids=["erase", "rename", "replace", "moves"],
)
def test_a_record_says_afterwards_what_was_meant(record: Record) -> None:
    assert Record.parse(record.format()) == record


@trio_test
async def test_what_no_record_holds_is_not_begun() -> None:
    store = MemoryStore()
    large = {Key(".zmetadata"): bytes(MAX_NBYTES)}
    with pytest.raises(TooLarge, match="to change in several steps exceed"):
        await store_together(Intents(store), NodePath("/"), {}, large | {Key(".zattrs"): b"{}"})
    assert await contents(store) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (edited(operation="shuffle"), "unknown operation 'shuffle'"),
        (edited(place=""), "place is the whole store"),
        (edited(place=".zarrfs/x/"), "below .zarrfs/"),
        (edited(erased=["0", ".zarrfs/x/new/0"]), "below .zarrfs/"),
        (edited(after={"k": "no base 64"}), "not the record of an operation"),
        (edited(moves=[["data/a/", ".zarrfs/x/"]]), "below .zarrfs/"),
        (b"[" * 100_000, "not the record of an operation"),
        (edited(count=math.inf), "not the record of an operation"),
        (edited(erased=[""] * 100_000), "more than 100000 values"),
        (b" " * (MAX_NBYTES + 1), f"more than {MAX_NBYTES} bytes"),
    ],
    ids=[
        "operation",
        "whole store",
        "place apart",
        "key apart",
        "document",
        "move apart",
        "deep",
        "infinity",
        "many values",
        "long",
    ],
)
@pytest.mark.logs("left unchanged")
@trio_test
async def test_a_record_that_nobody_wrote_is_left_and_nothing_is_done(text: bytes, why: str) -> None:
    with pytest.raises(MetadataError, match=why):
        Record.parse(text)
    store, intent = await store_with({}, old=b"old", place=b"new")
    await store.set(intent.prefix.key("intent.json"), text)
    before = await contents(store)
    assert await mount_again(store) == []
    assert await contents(store) == before


@trio_test
async def test_what_a_later_version_left_is_not_touched() -> None:
    store, intent = await store_with({}, old=b"old", place=b"new")
    await store.set(intent.prefix.key("intent.json"), edited(version=VERSION + 1))
    before = await contents(store)
    for asked in (require_known(Intents(store)), mount_again(store)):
        with pytest.raises(IntentTooNew, match=f"version {VERSION + 1}: this zarrfs supports versions up to {VERSION}"):
            await asked
    assert await contents(store) == before
    # Reading the record does not lock it.
    with trio.fail_after(30):
        await intent.hold()


# --- documents and chunks in one folder ----------------------------------------------------------------------------------------


@pytest.mark.logs("interrupted operation \\(\\w+\\) undone")
@trio_test
async def test_what_was_put_aside_goes_back_to_a_place_that_is_empty() -> None:
    store, _ = await store_with({}, old=b"old", new=b"new")
    await left_behind(store, Record("replace", PATH, PLACE))
    assert await mount_again(store) == [Recovered("replace", PATH, False)]
    assert await contents(store) == {PLACE + "0": b"old"}


@pytest.mark.logs("interrupted operation \\(\\w+\\) completed")
@trio_test
async def test_what_was_put_aside_goes_when_the_new_is_in_its_place() -> None:
    store, _ = await store_with({}, old=b"old", place=b"new")
    await left_behind(store, Record("replace", PATH, PLACE))
    assert await mount_again(store) == [Recovered("replace", PATH, True)]
    assert await contents(store) == {PLACE + "0": b"new"}


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.logs("interrupted operation \\(replace\\) (completed|undone)")
@trio_test
async def test_an_exchange_is_told_as_what_it_was(is_done: bool) -> None:
    document = PLACE.key("zarr.json")
    store, intent = await store_with({document: b"new" if is_done else b"old", PLACE + "0": b"chunk"})
    await store.set(intent.new.key("zarr.json"), b"old" if is_done else b"new")
    await left_behind(store, Record("replace", PATH, PLACE, documents={document: b"new"}))
    assert await mount_again(store) == [Recovered("replace", PATH, is_done)]
    assert await contents(store) == {document: b"new" if is_done else b"old", PLACE + "0": b"chunk"}


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.logs("interrupted operation \\(rename\\) (completed|undone)")
@trio_test
async def test_a_rename_over_an_array_is_told_as_what_it_was(is_done: bool) -> None:
    store, _ = await store_with({} if is_done else {SOURCE + "0": b"new"}, place=b"new" if is_done else b"old")
    await left_behind(store, Record("rename", PATH, PLACE, source=SOURCE))
    before = {key: value for key, value in (await contents(store)).items() if not key.startswith(APART)}
    assert await mount_again(store) == [Recovered("rename", PATH, is_done)]
    assert await contents(store) == before


@pytest.mark.parametrize("source", [None, SOURCE], ids=["replace", "rename"])
@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_something_else_in_the_place_costs_neither_it_nor_what_was_put_aside(source: Prefix | None) -> None:
    store, intent = await store_with({}, old=b"old", place=b"somebody's")
    await store.set((source or intent.new).key("0"), b"new")
    await left_behind(store, Record("rename" if source else "replace", PATH, PLACE, source=source))
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [(type(error), error.key) for error in told] == [(KeyConflict, PLACE)]
    assert f"/a: previous content is in {intent.old}" in str(told[0])


# --- documents in another folder -----------------------------------------------------------------------------------------------

REPLACE = Record("replace", PATH, PLACE, before=OLD, after=NEW)
FIRST_CHUNKS = Record("replace", PATH, PLACE, is_used=False, before=OLD, after=NEW)


@pytest.mark.parametrize(
    ("record", "lies", "documents", "chunk"),
    [
        # Before the first step, and without the old document.
        (REPLACE, {"new": b"new", "place": b"old"}, OLD, b"old"),
        (REPLACE, {"new": b"new", "place": b"old"}, {}, b"old"),
        # The old array is aside; the new one is in place, without a document.
        (REPLACE, {"old": b"old", "new": b"new"}, {}, b"old"),
        (REPLACE, {"old": b"old", "place": b"new"}, {}, b"old"),
        (REPLACE, {"old": b"old", "new": b"new", "place": b"somebody's"}, {}, b"old"),
        # A power cut has brought its document back.
        (REPLACE, {"old": b"old", "new": b"new"}, OLD, b"old"),
        (REPLACE, {"old": b"old", "place": b"new"}, OLD, b"old"),
        # There were no chunks before: all chunks are the new ones.
        (FIRST_CHUNKS, {"place": b"new"}, {}, None),
        (FIRST_CHUNKS, {"new": b"new"}, {}, None),
    ],
)
@pytest.mark.logs("interrupted operation \\(\\w+\\) undone")
@trio_test
async def test_without_its_new_document_it_is_what_it_was(
    record: Record, lies: dict[str, bytes], documents: dict[str, bytes], chunk: bytes | None
) -> None:
    store, _ = await store_with(documents, **lies)
    await left_behind(store, record)
    assert await mount_again(store) == [Recovered("replace", PATH, False)]
    assert await contents(store) == {**OLD, **({PLACE + "0": chunk} if chunk is not None else {})}


@pytest.mark.parametrize(
    ("lies", "others"),
    [
        ({"new": b"new"}, {}),
        ({"place": b"new"}, {}),
        ({"new": b"new"}, {DOCUMENT: b"somebody's", PLACE + "0": b"somebody's"}),
        # Which chunks are whose is unknown.
        ({}, {DOCUMENT: b"somebody's", PLACE + "0": b"somebody's"}),
        # A group of the same name.
        ({}, {"meta/a/b.array": b"somebody's", PLACE + "b/0": b"somebody's"}),
    ],
)
@pytest.mark.logs("interrupted operation \\(replace\\) undone")
@trio_test
async def test_of_a_new_array_without_its_document_nothing_is_left_and_what_others_stored_there_stays(
    lies: dict[str, bytes], others: dict[str, bytes]
) -> None:
    """Each mount failed on another array; of another group all chunks were erased."""
    store, _ = await store_with(others, **lies)
    await left_behind(store, Record("replace", PATH, PLACE, is_used=False, after=NEW))
    assert await mount_again(store) == [Recovered("replace", PATH, False)]
    assert await contents(store) == others


@pytest.mark.parametrize(
    ("record", "lies"),
    [
        (REPLACE, {"old": b"old", "new": b"new", "place": b"somebody's"}),
        (REPLACE, {"old": b"old", "new": b"new"}),
        (replace(REPLACE, copies=True, count=1), {"new": b"new", "place": b"somebody's"}),
    ],
    ids=["renamed", "renamed, no chunks", "copied"],
)
@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_an_array_that_another_program_has_stored_there_since_stays(record: Record, lies: dict[str, bytes]) -> None:
    store, _ = await store_with({DOCUMENT: b"somebody's"}, **lies)
    await left_behind(store, record)
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [(type(error), error.key) for error in told] == [(KeyConflict, DOCUMENT)]
    assert "stored by another program" in str(told[0])


@pytest.mark.parametrize(
    "lies",
    [{"new": b"new", "place": b"somebody's"}, {"place": b"somebody's"}, {"new": b"new"}],
    ids=["before the new one was in place", "after that", "without chunks"],
)
@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_an_equal_array_that_another_program_has_stored_there_since_stays(lies: dict[str, bytes]) -> None:
    """Its documents were taken for the ones of before, and the old chunks were put in the place of its own, which were deleted."""
    store, _ = await store_with({}, old=b"old", **lies)
    await left_behind(store, REPLACE)
    await fill(store, {DOCUMENT: OLD[DOCUMENT]})
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [(type(error), error.key) for error in told] == [(KeyConflict, PLACE)]


@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_nothing_is_copied_over_an_equal_array_that_another_program_has_stored_there_since() -> None:
    """It has no attributes, as the one before had: one document of two."""
    attributes = Key("meta/a.attributes")
    store, _ = await store_with({}, new=b"new")
    await left_behind(store, replace(REPLACE, before={**OLD, attributes: b"{}"}, copies=True, count=1))
    await fill(store, {**OLD, PLACE + "0": b"somebody's"})
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [(type(error), error.key) for error in told] == [(KeyConflict, PLACE)]


@pytest.mark.parametrize(
    ("record", "lies"),
    [
        (REPLACE, {"old": b"old", "new": b"new"}),
        (REPLACE, {"old": b"old", "place": b"new"}),
        (replace(REPLACE, copies=True, count=1), {"new": b"new", "place": b"old"}),
    ],
    ids=["before the new one was in place", "after that", "copied"],
)
@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_an_array_in_a_group_that_another_program_has_stored_there_since_stays(
    record: Record, lies: dict[str, bytes]
) -> None:
    """Its chunks were taken for those of the new array, and deleted."""
    store, _ = await store_with({"meta/a/b.array": b"somebody's", PLACE + "b/0": b"somebody's"}, **lies)
    await left_behind(store, record)
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [(type(error), error.key) for error in told] == [(KeyConflict, PLACE + "b/0")]


ENTRY = b'{"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_encoding": "application/json"}'
AT_A, AT_C = Key("meta/root/a.array"), Key("meta/root/c.array")
MOVED = Record(
    "rename", NodePath("/c"), Prefix("meta/root/c/"), source=Prefix("a/"), moves=((PLACE, Prefix("data/c/")), (AT_A, AT_C))
)


@pytest.mark.parametrize(
    ("record", "there", "group"),
    [
        (replace(REPLACE, before={AT_A: b"old document"}, after={AT_A: b"new document"}), {"old/0": b"old"}, "a"),
        # Its document is apart, its chunks are not yet, or not any more.
        (MOVED, {"old/1": b"old document", PLACE + "0": b"old"}, "a"),
        (replace(MOVED, is_placing=True), {"old/1": b"old document", "data/c/0": b"old"}, "c"),
    ],
    ids=["replaced", "renamed", "renamed, in part"],
)
@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_no_array_is_put_where_another_program_has_stored_a_group_since(
    record: Record, there: dict[str, bytes], group: str
) -> None:
    """It hid the group, and what that holds."""
    key = Key(f"meta/root/{group}.group")
    store, intent = await store_with({"zarr.json": ENTRY, key: b"{}", f"meta/root/{group}/b.array": b"somebody's"})
    await fill(store, {intent.prefix + name if name.startswith("old/") else name: value for name, value in there.items()})
    await left_behind(store, record)
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [(type(error), error.key) for error in told] == [(KeyConflict, key)]


# Array a is renamed over array c: the parts of c are apart, then those of a.
OVER_C = replace(MOVED, source=Prefix("a/"), replaced=(Prefix("data/c/"), AT_C))
LIES_APART = {"old/0/0": b"of c", "old/1": b"document of c", "old/2/0": b"old", "old/3": b"old document"}
BACK_AT_A, BACK_AT_C = {AT_A: b"old document", PLACE + "0": b"old"}, {AT_C: b"document of c", "data/c/0": b"of c"}


@pytest.mark.parametrize(
    ("others", "back", "key"),
    [
        ({AT_C: b"somebody's", "data/c/1": b"somebody's"}, BACK_AT_A, AT_C),
        ({"meta/root/c.group": b"{}"}, BACK_AT_A, "meta/root/c.group"),
        ({AT_A: b"somebody's", PLACE + "1": b"somebody's"}, BACK_AT_C, AT_A),
        ({"meta/root/a.group": b"{}"}, BACK_AT_C, "meta/root/a.group"),
    ],
    ids=["array at the new path", "group at the new path", "array at the old path", "group at the old path"],
)
@pytest.mark.logs("neither completed nor undone", "interrupted operation \\(rename\\) undone")
@trio_test
async def test_of_two_nodes_the_one_whose_place_is_free_goes_back(
    others: dict[str, bytes], back: dict[str, bytes], key: str
) -> None:
    """The renamed array stayed apart as long as another node was at the new path; and it hid a group at the old one."""
    store, intent = await store_with({"zarr.json": ENTRY, **others})
    await fill(store, {intent.prefix + name: value for name, value in LIES_APART.items()})
    await left_behind(store, OVER_C)
    told: list[ZarrfsError] = []
    assert await mount_again(store, told) == []
    found = {name: value for name, value in (await contents(store)).items() if not name.startswith(intent.prefix)}
    assert found == {"zarr.json": ENTRY, **others, **back}
    assert [(type(error), error.key) for error in told] == [(KeyConflict, key)]
    # The rest goes back when its place is free, too.
    await store.erase_values([Key(each) for each in others])
    assert [each.is_done for each in await mount_again(store)] == [False]
    assert await contents(store) == {"zarr.json": ENTRY, **BACK_AT_A, **BACK_AT_C}


# A group without documents of its own, whose array has chunks like those of an array in the place of the group.
IN_GROUP = {"zarr.json": ENTRY, "meta/root/a/5.array": b"somebody's", PLACE + "5/0": b"somebody's"}
REPLACE_A = replace(REPLACE, before={AT_A: b"old document"}, after={AT_A: b"new document"})


@pytest.mark.parametrize(
    ("record", "there"),
    [
        (REPLACE_A, {"old/0": b"old", "new/0": b"new"}),
        (REPLACE_A, {"old/0": b"old", PLACE + "0": b"new"}),
        (replace(REPLACE_A, copies=True, count=1), {"new/0": b"new"}),
        (MOVED, {"old/1": b"old document", PLACE + "0": b"old"}),
    ],
    ids=["replaced, old apart", "replaced, new in place", "copied", "renamed"],
)
@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_what_others_have_stored_in_a_group_without_documents_stays_and_is_shown(
    record: Record, there: dict[str, bytes]
) -> None:
    """The chunks of array 5 were taken for those of the new array, and deleted; or the old array hid the group."""
    store, intent = await store_with(IN_GROUP)
    await fill(store, {intent.prefix + name if name.startswith(("old/", "new/")) else name: value for name, value in there.items()})
    await left_behind(store, record)
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [(type(error), error.key) for error in told] == [(KeyConflict, "meta/root/a/5.array")]


@pytest.mark.parametrize("others", [{}, {"meta/root/a.group": b"{}"}], ids=["without documents", "with a document"])
@pytest.mark.logs("interrupted operation \\(replace\\) undone")
@trio_test
async def test_of_a_new_array_nothing_returns_in_a_group_that_others_have_stored_since(others: dict[str, bytes]) -> None:
    """The chunks of array 5 were deleted with those of the new array; or each mount failed on the document of the group."""
    store, _ = await store_with({**IN_GROUP, **others}, place=b"new")
    before = await contents(store)
    await left_behind(store, replace(REPLACE_A, is_used=False, before={}))
    assert await mount_again(store) == [Recovered("replace", PATH, False)]
    assert await contents(store) == before


@pytest.mark.parametrize(
    "record",
    [
        replace(REPLACE, has_chunks=True),
        Record("replace", PATH, PLACE),
        Record("rename", PATH, PLACE, source=SOURCE, is_placing=True),
    ],
    ids=["documents elsewhere", "one folder", "renamed over"],
)
@pytest.mark.logs("given up")
@trio_test
async def test_an_array_that_was_replaced_does_not_return_when_its_successor_was_removed_since(record: Record) -> None:
    """Only the record was still there when the daemon was killed."""
    store, intent = await store_with({}, old=b"old")
    await left_behind(store, record)
    told: list[ZarrfsError] = []
    assert await mount_again(store, told) == []
    assert [(type(error), error.key) for error in told] == [(PartsMissing, PLACE)]
    kept = intent.prefix.removesuffix("/") + ".kept/"
    assert set(await contents(store)) == {f"{kept}intent.json", f"{kept}old/0"}
    assert await mount_again(store, told) == [] and len(told) == 1


class RemovedThen(ForwardingStore):
    """A store in which another mount removes all nodes as soon as it may edit them."""

    @asynccontextmanager
    async def exclusive(self, key: Key) -> AsyncIterator[None]:
        async with super().exclusive(key):
            yield
        if not key.startswith(APART):
            await self.erase_values([each for each in await contents(self.inner) if not each.startswith(APART)])


@pytest.mark.parametrize(
    ("record", "lies"),
    [(FIRST_CHUNKS, {"new": b"new"}), (replace(REPLACE, copies=True, count=1), {"new": b"new", "place": b"half"})],
    ids=["undone", "completed"],
)
@pytest.mark.logs("interrupted operation \\(replace\\)")
@trio_test
async def test_what_another_mount_removes_right_after_a_recovery_does_not_return(record: Record, lies: dict[str, bytes]) -> None:
    """The recovery carried out each record twice, the second time when others could edit the node already."""
    store, _ = await store_with({}, **lies)
    await left_behind(store, record)
    assert await mount_again(RemovedThen(store)) == [Recovered("replace", PATH, record.copies)]
    assert await contents(store) == {}


class Steps(ForwardingStore):
    """Lists the syncs of chunks, and stores of documents."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.steps: list[str] = []

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        self.steps.append(f"set {key}")
        return await self.inner.set(key, value, expect=expect)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        synced = list(targets)
        self.steps += [f"sync {target}" for target in synced]
        await self.inner.sync(synced)


@pytest.mark.logs("undone")
@trio_test
async def test_old_chunks_are_back_on_the_disk_before_their_document() -> None:
    """A power cut would leave the document, later than the record, without them: it would be taken for that of another program."""
    inner, _ = await store_with({}, old=b"old", new=b"new")
    await left_behind(inner, REPLACE)
    store = Steps(inner)
    await mount_again(store)
    assert store.steps[:2] == [f"sync {PLACE}", f"set {DOCUMENT}"]


@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_another_programs_array_gets_no_chunks_of_the_one_that_was_to_be_renamed() -> None:
    moves = ((PLACE, Prefix("data/c/")), (DOCUMENT, Key("meta/c.array")))
    store, intent = await store_with({DOCUMENT: b"somebody's"})
    await fill(store, {intent.old + "0/0": b"old", intent.old + "1": b"old document"})
    await left_behind(store, Record("rename", NodePath("/c"), Prefix("data/c/"), source=PLACE, moves=moves))
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [type(error) for error in told] == [KeyConflict]


@pytest.mark.logs("interrupted operation \\(\\w+\\) completed")
@trio_test
async def test_with_its_new_document_it_is_what_was_meant() -> None:
    store, _ = await store_with(dict(NEW), old=b"old", place=b"new")
    await left_behind(store, REPLACE)
    assert await mount_again(store) == [Recovered("replace", PATH, True)]
    assert await contents(store) == {**NEW, PLACE + "0": b"new"}


@trio_test
async def test_what_took_the_place_lies_apart_again_for_who_tries_once_more() -> None:
    store, intent = await store_with({}, old=b"old", place=b"new")
    assert not await resolve(store, intent, REPLACE)
    assert await contents(store) == {**OLD, PLACE + "0": b"old", intent.new + "0": b"new"}
    # Another program's data at the path is set aside for good: the data for the path is stored elsewhere already.
    store, intent = await store_with({}, old=b"old", new=b"new", place=b"somebody's")
    assert not await resolve(store, intent, REPLACE)
    assert await contents(store) == {**OLD, PLACE + "0": b"old", intent.new + "0": b"new", intent.gone + "0": b"somebody's"}


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.logs("interrupted operation \\(erase\\) (completed|undone)")
@trio_test
async def test_a_removal_is_told_as_what_it_was_whatever_others_have_stored_there_since(is_done: bool) -> None:
    """It was told as undone if there was a node."""
    there = {".zgroup": b'{"zarr_format":2}', "a/.zgroup": b'{"zarr_format":2}'}
    store, intent = await store_with(there)
    if is_done:
        await store.set(intent.gone.key("0"), b"old")
    await left_behind(store, Record("erase", PATH, Prefix("a/")))
    assert await mount_again(store) == [Recovered("erase", PATH, is_done)]
    assert await contents(store) == there


# --- by copying ----------------------------------------------------------------------------------------------------------------


@pytest.mark.logs("interrupted operation \\(\\w+\\) completed")
@trio_test
async def test_what_was_copied_in_part_is_copied_whole() -> None:
    store, _ = await store_with({PLACE + "1": b"of before"}, new=b"new", place=b"half")
    await left_behind(store, Record("replace", PATH, PLACE, copies=True, count=1, before=OLD, after=NEW))
    assert await mount_again(store) == [Recovered("replace", PATH, True)]
    assert {key: value for key, value in (await contents(store)).items() if not key.startswith(APART)} == {
        **NEW,
        PLACE + "0": b"new",
    }


@pytest.mark.logs("interrupted operation \\(\\w+\\) undone")
@trio_test
async def test_chunks_that_others_wrote_before_anything_was_copied_stay() -> None:
    store, _ = await store_with(dict(OLD), new=b"new", place=b"written since")
    await left_behind(store, Record("replace", PATH, PLACE, copies=True, count=1, before=OLD, after=NEW))
    assert await mount_again(store) == [Recovered("replace", PATH, False)]
    assert await contents(store) == {**OLD, PLACE + "0": b"written since"}


@pytest.mark.logs("interrupted operation \\(\\w+\\) completed")
@trio_test
async def test_what_was_copied_whole_is_not_copied_over_what_was_written_since() -> None:
    """Only the record could not be erased."""
    store, _ = await store_with(dict(NEW), new=b"new", place=b"written since")
    await left_behind(store, Record("replace", PATH, PLACE, copies=True, count=1, before=OLD, after=NEW))
    assert await mount_again(store) == [Recovered("replace", PATH, True)]
    assert await contents(store) == {**NEW, PLACE + "0": b"written since"}


@pytest.mark.logs("interrupted operation \\(\\w+\\) completed")
@trio_test
async def test_what_was_copied_whole_does_not_return_when_others_have_removed_it_since() -> None:
    """Only the record was still there when the daemon was killed."""
    store, intent = await store_with({}, new=b"new")
    record = Record("replace", PATH, PLACE, copies=True, count=1, before=OLD, after=NEW)
    await left_behind(store, record)
    await copy_into_place(store, intent, record)
    await store.erase_values([DOCUMENT, PLACE.key("0")])
    assert await mount_again(store) == [Recovered("replace", PATH, True)]
    assert await contents(store) == {}


@pytest.mark.logs("neither completed nor undone")
@trio_test
async def test_where_less_lies_apart_than_was_to_be_copied_nothing_is_taken_away() -> None:
    store, _ = await store_with({}, new=b"new", place=b"old")
    await left_behind(store, Record("replace", PATH, PLACE, copies=True, count=2, before=OLD, after=NEW))
    before, told = await contents(store), []
    assert await mount_again(store, told) == []
    assert await contents(store) == before
    assert [error.key for error in told] == [PLACE] and "1 values found, 2 expected" in str(told[0])


class Vanishing(ForwardingStore):
    """A store in which another process removes each value that is listed."""

    async def copy(self, old: Key, new: Key) -> bool:
        return False


@trio_test
async def test_what_is_taken_away_while_it_is_copied_is_named_and_no_document_says_that_it_is_there() -> None:
    store, intent = await store_with(dict(OLD), new=b"new")
    with pytest.raises(KeyConflict, match=r"/a: copy failed: .* was removed meanwhile") as caught:
        await copy_into_place(Vanishing(store), intent, Record("replace", PATH, PLACE, copies=True, before=OLD, after=NEW))
    assert caught.value.key == intent.new + "0"
    assert DOCUMENT not in await contents(store)


# --- owners of a record --------------------------------------------------------------------------------------------------------


@trio_test
async def test_what_somebody_works_on_is_not_taken_for_left_behind(autojump_clock: MockClock) -> None:
    store, intent = await store_with({}, old=b"old", place=b"new")
    await intent.begin(Record("replace", PATH, PLACE))
    await intent.hold()
    before = await contents(store)
    assert await mount_again(store) == []
    assert await contents(store) == before
    await intent.end()
    assert await contents(store) == {PLACE + "0": b"new"}


@pytest.mark.logs("interrupted operation \\(replace\\) undone")
@trio_test
async def test_any_number_of_locks_without_a_record_is_waited_for_once(autojump_clock: MockClock) -> None:
    store, _ = await store_with({})
    locked = [Intent(store, f"{number:032x}") for number in range(20)]
    for each in locked:
        await store.set(each.new.key("0"), b"")
        await each.hold()
    interrupted = Intent(store, "f" * 32)
    await interrupted.begin(Record("replace", PATH, PLACE))
    await fill(store, {interrupted.old + "0": b"old", interrupted.new + "0": b"new"})
    await interrupted.let_go()
    assert [each.is_done for each in await mount_again(store)] == [False]
    assert await store.get(PLACE.key("0")) == b"old"
    # By the clock of the test: that of one wait, not of twenty.
    assert trio.current_time() < 2
    for each in locked:
        await each.let_go()


class Stalling(ForwardingStore):
    """A store, or a machine, that takes its time before a lock is asked for."""

    @asynccontextmanager
    async def exclusive(self, key: Key) -> AsyncIterator[None]:
        await trio.sleep(5)
        async with super().exclusive(key):
            yield


@pytest.mark.logs("interrupted operation \\(replace\\) undone")
@trio_test
async def test_a_lock_that_nobody_holds_is_taken_however_long_that_takes(autojump_clock: MockClock) -> None:
    """On a machine with much to do, an interrupted operation was left as if somebody worked on it, until another mount."""
    store, _ = await store_with({}, old=b"old", new=b"new")
    await left_behind(store, Record("replace", PATH, PLACE))
    assert await mount_again(Stalling(store)) == [Recovered("replace", PATH, False)]
    assert await contents(store) == {PLACE + "0": b"old"}


class Unrenaming(ForwardingStore):
    """A store like an object store: no prefix is renamed, and no lock holds between processes."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, rename=False)


@pytest.mark.logs("left behind, or in use by another mount")
@trio_test
async def test_where_no_lock_tells_whether_somebody_works_on_it_what_has_no_record_is_left() -> None:
    inner, _ = await store_with({}, new=b"new")
    before = await contents(inner)
    assert await mount_again(Unrenaming(inner)) == [] and await contents(inner) == before
    # In a store with locks it is known to be abandoned: its process has ended.
    assert await mount_again(inner) == [] and await contents(inner) == {}


class Unlockable(ForwardingStore):
    """A store that cannot lock anything."""

    def exclusive(self, key: Key) -> Any:
        raise StoreAccessDenied("no locks for you", key=key)


@pytest.mark.logs("left unchanged: no locks for you")
@trio_test
async def test_what_cannot_be_locked_is_left_as_it_is() -> None:
    store, _ = await store_with({}, old=b"old")
    await left_behind(store, Record("replace", PATH, PLACE))
    before = await contents(store)
    assert await mount_again(Unlockable(store)) == []
    assert await contents(store) == before


@pytest.mark.logs("may not survive a power cut: a slow disk")
@trio_test
async def test_a_disk_that_is_slow_to_sync_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sync_all() -> None:
        raise StoreTimeout("a slow disk")

    store, intent = await store_with({})
    monkeypatch.setattr(store, "sync_all", sync_all)
    await intent.sync()


class Unmovable(ForwardingStore):
    """A store that renames nothing."""

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        raise StoreAccessDenied("not now", key=old)


@pytest.mark.logs("not ended, left for the next mount: not now", "interrupted operation \\(\\w+\\) undone")
@trio_test
async def test_what_cannot_be_ended_now_is_ended_by_the_next_mount() -> None:
    store, _ = await store_with({}, old=b"old", new=b"new")
    intent = Intent(Unmovable(store), NAME)
    await intent.begin(Record("replace", PATH, PLACE))
    await intent.end()
    assert (await contents(store))[intent.old + "0"] == b"old"
    assert await mount_again(store) == [Recovered("replace", PATH, False)]
    assert await contents(store) == {PLACE + "0": b"old"}


@trio_test
async def test_a_cancelled_task_ends_its_operation_all_the_same() -> None:
    inner, _ = await store_with({}, old=b"old", new=b"new")
    store = WaitingStore(inner, "erase")
    intent = Intent(store, NAME)
    await intent.begin(Record("replace", PATH, PLACE))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(intent.end)
        while not store.waiting:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
        store.let_go()
    assert await contents(inner) == {PLACE + "0": b"old"}


def test_a_full_disk_gets_no_folder_of_an_operation(tmp_path: Path) -> None:
    """It had room for `.zarrfs/`, which stayed there when the mount had ended."""

    async def run(path: Path) -> None:
        store = FolderStore(str(path))
        with pytest.raises(StoreFull):
            await Intents(store).new().hold()
        await store.aclose()

    with small_disk(tmp_path / "disk", "1m,nr_inodes=2") as disk:
        trio.run(run, disk)
        assert os.listdir(disk) == []


class Unlocking(ForwardingStore):
    """Creates the folder of a lock, as a folder store does, and is interrupted before it has locked it."""

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        return self._interrupted(key)

    @asynccontextmanager
    async def _interrupted(self, key: Key) -> AsyncIterator[None]:
        await self.inner.make_prefix(key.parent)
        await trio.sleep_forever()
        yield


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "found, perhaps in use"])
@trio_test
async def test_an_interrupted_request_leaves_no_folder_of_a_new_operation(is_new: bool, tmp_path: Path) -> None:
    inner = FolderStore(str(tmp_path))
    store = Unlocking(inner)
    intent = Intents(store).new() if is_new else Intent(store, NAME)
    with trio.move_on_after(0.1):
        await intent.hold()
    assert not intent.is_held
    assert os.listdir(tmp_path) == ([] if is_new else [".zarrfs"])
    await inner.aclose()
