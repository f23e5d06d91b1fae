"""Edits of two mounts of one store: each knows what it has read, and what the other has changed since is neither replaced nor lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from trio.testing import trio_test

from tests.hierarchy.test_edits import DIALECTS, GROUP, V3_GROUP, Editing, editing
from tests.support.stores import contents
from zarrfs.dialects.base import Edit
from zarrfs.errors import EntryExists, HiddenKeys, NodeInDoubt, NotADirectory, StaleEntry
from zarrfs.hierarchy.empty_groups import Unstored
from zarrfs.keys import ROOT, Key, NodePath
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.stores.memory import MemoryStore

G = NodePath("/g")


@asynccontextmanager
async def two(dialect: str, *, groups: tuple[str, ...] = ()) -> AsyncIterator[tuple[Editing, Editing, MemoryStore]]:
    """Yield the editors of two mounts; both know the root, and what lies at ``/g``."""
    store = MemoryStore()
    name, value = (".zgroup", GROUP) if dialect == "v2" else ("zarr.json", V3_GROUP)
    for each in ("", *groups):
        await store.set(Key(each + name), value)
    async with editing(inner=store) as ours, editing(inner=store) as theirs:
        for each in (ours, theirs):
            await each.reading.hierarchy.node(G)
        yield ours, theirs, store


@asynccontextmanager
async def two_of_an_empty_store(dialect: str) -> AsyncIterator[tuple[Editing, Editing, MemoryStore]]:
    """Yield the editors of two mounts of a store whose root has no document; both know that."""
    store = MemoryStore()
    async with editing(inner=store, new=dialect) as ours, editing(inner=store, new=dialect) as theirs:
        for each in (ours, theirs):
            await each.reading.hierarchy.node(ROOT)
        yield ours, theirs, store


def make_folder(mount: Editing) -> None:
    """Do what mkdir(2) of ``g`` does."""
    mount.reading.hierarchy.empty_groups.keep(G, unstored=Unstored(G, 0, 60))


def attributes(values: dict[str, bytes]) -> Any:
    return json.loads(values["g/.zattrs"]) if "g/.zattrs" in values else json.loads(values["g/zarr.json"])["attributes"]


@DIALECTS
@trio_test
async def test_attributes_of_a_group_stay_when_an_array_is_created_in_the_folder_of_the_other_mount(dialect: str) -> None:
    async with two(dialect) as (ours, theirs, store):
        make_folder(ours)
        await theirs.group("/g", by="them")
        await ours.array("/g/a")
        values = await contents(store)
        assert attributes(values) == {"by": "them"}
        assert await theirs.kinds("/g") == {"a": "ArrayNode"}


@pytest.mark.parametrize("is_stored", [False, True], ids=["new folder", "group"])
@DIALECTS
@trio_test
async def test_nothing_is_created_below_an_array_that_the_other_mount_has_put_in_the_place_of_a_group(
    dialect: str, is_stored: bool
) -> None:
    async with two(dialect, groups=("g/",) if is_stored else ()) as (ours, theirs, store):
        if is_stored:
            await theirs.editor.erase(G)
        else:
            make_folder(ours)
        await theirs.array("/g")
        await ours.array("/b")
        before = await contents(store)
        with pytest.raises(NotADirectory):
            await ours.array("/g/a")
        with pytest.raises(NotADirectory):
            await ours.editor.rename(NodePath("/b"), NodePath("/g/b"))
        assert await contents(store) == before


@DIALECTS
@trio_test
async def test_a_group_does_not_become_an_array_twice(dialect: str) -> None:
    async with two(dialect, groups=("g/",)) as (ours, theirs, store):
        await theirs.editor.turn_into_array(await theirs.node("/g", (4,)))
        before = await contents(store)
        with pytest.raises(EntryExists):
            await ours.editor.turn_into_array(await ours.node("/g", (6,)))
        assert await contents(store) == before


@DIALECTS
@trio_test
async def test_a_group_is_not_removed_as_empty_with_what_the_other_mount_has_created_in_it(dialect: str) -> None:
    async with two(dialect, groups=("g/",)) as (ours, theirs, store):
        assert await ours.kinds("/g") == {}
        await theirs.array("/g/a")
        before = await contents(store)
        with pytest.raises(HiddenKeys, match="not empty"):
            await ours.editor.erase(G, only_empty=True)
        assert await contents(store) == before
        await theirs.editor.erase(NodePath("/g/a"))
        await ours.editor.erase(G, only_empty=True)
        assert not [key for key in await contents(store) if key.startswith("g/")]


@DIALECTS
@trio_test
async def test_a_removed_group_does_not_return_with_an_array_whose_creation_began_before(dialect: str) -> None:
    async with two(dialect, groups=("g/",)) as (ours, theirs, store):
        making = ours.reading.hierarchy.live.make(NodePath("/g/a"))
        making.document = Key("g/.zgroup" if dialect == "v2" else "g/zarr.json")
        node = await ours.node("/g/a")
        await theirs.editor.erase(G)
        with pytest.raises(StaleEntry):
            await ours.editor.create(node, of=making)
        assert not [key for key in await contents(store) if key.startswith("g/")]


@DIALECTS
@trio_test
async def test_what_the_other_mount_has_put_in_the_place_of_an_empty_group_is_not_removed_with_it(dialect: str) -> None:
    async with two(dialect, groups=("g/",)) as (ours, theirs, store):
        await theirs.editor.turn_into_array(await theirs.node("/g", (4,)))
        before = await contents(store)
        with pytest.raises(StaleEntry):
            await ours.editor.erase(G, only_empty=True, seen=GroupNode)
        assert await contents(store) == before
        await ours.editor.erase(G, only_empty=True, seen=ArrayNode)
        await theirs.group("/g", by="them")
        before = await contents(store)
        with pytest.raises(StaleEntry):
            await ours.editor.erase(G, only_empty=True, seen=ArrayNode)
        assert await contents(store) == before


@DIALECTS
@trio_test
async def test_attributes_of_the_root_stay_when_another_mount_that_found_no_document_there_creates_nodes(dialect: str) -> None:
    async with two_of_an_empty_store(dialect) as (ours, theirs, store):
        await theirs.editor.amend(ROOT, Edit(attributes={"by": "them"}))
        before = await contents(store)
        await ours.array("/a")
        await ours.group("/g")
        assert before.items() <= (await contents(store)).items()


@DIALECTS
@trio_test
async def test_the_root_becomes_one_array_by_one_mount_and_no_group_by_the_other(dialect: str) -> None:
    async with two_of_an_empty_store(dialect) as (ours, theirs, store):
        await theirs.editor.turn_into_array(await theirs.node("/", (4,)))
        before = await contents(store)
        with pytest.raises(EntryExists):
            await ours.editor.turn_into_array(await ours.node("/", (6,)))
        assert await contents(store) == before
    async with two_of_an_empty_store(dialect) as (ours, theirs, store):
        await theirs.array("/")
        before = await contents(store)
        for path in ("/a", "/g/a"):
            with pytest.raises(NotADirectory):
                await ours.array(path)
            with pytest.raises(NotADirectory):
                await ours.group(path)
        assert await contents(store) == before


@DIALECTS
@trio_test
async def test_attributes_of_a_group_do_not_become_those_of_the_array_in_its_place(dialect: str) -> None:
    async with two(dialect, groups=("g/",)) as (ours, theirs, store):
        await theirs.editor.turn_into_array(await theirs.node("/g", (4,), by="them"))
        before = await contents(store)
        with pytest.raises(StaleEntry):
            await ours.editor.amend(G, Edit(attributes={"by": "us"}), seen=GroupNode)
        assert await contents(store) == before


@DIALECTS
@trio_test
async def test_a_group_that_was_seen_empty_is_not_removed_with_attributes_that_the_other_mount_has_given_it(dialect: str) -> None:
    async with two(dialect, groups=("g/",)) as (ours, theirs, store):
        seen = await ours.reading.hierarchy.node(G)
        assert isinstance(seen, GroupNode)
        await theirs.editor.amend(G, Edit(attributes={"by": "them"}))
        before = await contents(store)
        with pytest.raises(HiddenKeys, match="has got attributes"):
            await ours.editor.erase(G, only_empty=True, seen=seen)
        assert await contents(store) == before
        # As by a program that has removed the document, which shows them.
        seen = await ours.reading.hierarchy.node(G)
        assert isinstance(seen, GroupNode) and seen.attributes
        await ours.editor.erase(G, only_empty=True, seen=seen)
        assert not [key for key in await contents(store) if key.startswith("g/")]


@DIALECTS
@trio_test
async def test_a_removed_group_does_not_return_with_a_group_made_in_it_or_a_node_moved_into_it(dialect: str) -> None:
    async with two(dialect, groups=("g/",)) as (ours, theirs, store):
        await ours.array("/b")
        await theirs.editor.erase(G)
        before = await contents(store)
        with pytest.raises(StaleEntry):
            await ours.editor.rename(NodePath("/b"), NodePath("/g/b"))
        assert await contents(store) == before
    async with two(dialect, groups=("g/",)) as (ours, theirs, store):
        await theirs.editor.erase(G)
        before = await contents(store)
        with pytest.raises(StaleEntry):
            await ours.editor.create(GroupNode(path=NodePath("/g/h"), dialect=dialect))
        assert await contents(store) == before


@DIALECTS
@trio_test
async def test_a_document_that_another_program_is_writing_makes_no_other_node_of_its_own(dialect: str) -> None:
    """The edits failed as if an array were in the place of the group, or nothing in that of the array: what was written was refused for
    good, and dropped."""
    a = NodePath("/g/a")
    async with two(dialect, groups=("g/",)) as (ours, _, store):
        node = await ours.array("/g/a")
        for name in ("g/.zgroup", "g/a/.zarray") if dialect == "v2" else ("g/zarr.json", "g/a/zarr.json"):
            whole = await store.get(Key(name))
            assert whole is not None
            await ours.reading.hierarchy.node(a)
            await store.set(Key(name), bytes(whole)[:9])
            before = await contents(store)
            for edit in (
                (
                    ours.editor.create(replace(node, path=NodePath("/g/n"))),
                    ours.editor.rename(a, NodePath("/g/n")),
                    ours.editor.turn_into_array(replace(node, path=G)),
                    ours.editor.erase(G, only_empty=True, seen=GroupNode),
                )
                if name.count("/") == 1
                else (
                    ours.editor.resize(a, (9,), erase_outside=False),
                    ours.editor.amend(a, Edit(attributes={"by": "us"}), seen=ArrayNode),
                    ours.editor.erase(a, only_empty=True, seen=ArrayNode),
                )
            ):
                with pytest.raises(NodeInDoubt, match="unreadable"):
                    await edit
            assert await contents(store) == before
            await store.set(Key(name), whole)
        await ours.editor.resize(a, (9,), erase_outside=False)
