"""An array that was stored apart is moved to its path whole or not at all, whatever the store does meanwhile, and can be moved again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import trio_test

from tests.hierarchy.test_roots import V2_ARRAY, V2_GROUP, V3_GROUP, draft_2019, element
from tests.support.arrays import reading
from tests.support.small_shards import document, shard, sharding
from tests.support.stores import contents, fill
from zarrfs.arrays.position import Position
from zarrfs.buffers import Buffer
from zarrfs.dialects.base import Edit
from zarrfs.errors import (
    ContentInvalid,
    EntryExists,
    KeyConflict,
    MetadataError,
    NoSuchEntry,
    PrefixNotEmpty,
    StoreAccessDenied,
    StoreFull,
    StoreTimeout,
    StoreUnsupported,
    ZarrfsError,
)
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.live_array import LiveArray
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.placing import Placing
from zarrfs.keys import APART, Key, NodePath, Prefix
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore

X = NodePath("/x")
DRAFT = draft_2019("", "x")
"""A hierarchy of 2019, whose documents are apart from the chunks, with the array ``/x`` whose first element is 19."""


class Faulty(ForwardingStore):
    """The next operation of a name fails with the error given to `fail`; ``late``: after it took effect; ``key``: on that one alone."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.faults: list[tuple[str, BaseException, bool, str | None]] = []
        self.destined: dict[Prefix, tuple[Prefix, ...]] = {}

    def destine(self, prefix: Prefix, *places: Prefix) -> None:
        self.destined[prefix] = places
        if not places:
            del self.destined[prefix]

    def fail(self, operation: str, error: BaseException, *, late: bool = False, key: str | None = None) -> None:
        self.faults.append((operation, error, late, key))

    async def _do(self, operation: str, place: str, act: Callable[[], Awaitable[Any]]) -> Any:
        fault = next((each for each in self.faults if each[0] == operation and each[3] in (None, place)), None)
        if fault is None:
            return await act()
        self.faults.remove(fault)
        _, error, late, _ = fault
        if late:
            await act()
        raise error

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        generation: Generation | None = await self._do("set", key, lambda: self.inner.set(key, value, expect=expect))
        return generation

    copy = Store.copy

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        return bool(await self._do("rename_prefix", old, lambda: self.inner.rename_prefix(old, new)))

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        await self._do("exchange_prefixes", one, lambda: self.inner.exchange_prefixes(one, other))

    async def erase_values(self, keys: Iterable[Key]) -> None:
        erased = list(keys)
        await self._do("erase_values", "", lambda: self.inner.erase_values(erased))

    @asynccontextmanager
    async def exclusive(self, key: Key) -> AsyncIterator[None]:
        if key.startswith(APART):
            await self._do("lock", key, trio.lowlevel.checkpoint)
        async with super().exclusive(key):
            yield


@dataclass
class Making:
    """A store, and a new array of it that begins with 7 and is stored apart."""

    store: Faulty
    hierarchy: Hierarchy
    editor: NodeEditor
    over: LiveArray | None = None

    async def node(self, path: str = "/x") -> ArrayNode:
        at = NodePath(path)
        layout = await self.editor.layout_for(at)
        return NewArrays(codecs="none", chunks="2").node(at, layout, shape=(4,), data_type=from_name("int16"))

    async def apart(self, path: str = "/x", *, over: bool, chunks: bool = True) -> tuple[ArrayNode, Placing]:
        node = await self.node(path)
        opened = await self.hierarchy.array(node.path) if over else None
        self.over = opened.live if opened is not None else None
        placing = await self.editor.place_apart(node, over=over)
        assert placing is not None
        if chunks:
            key = node.metadata.chunk_key_encoding.key(placing.chunk_prefix, (0,))
            await self.store.set(key, element(7))
        return node, placing

    async def put(self, node: ArrayNode, placing: Placing) -> None:
        await self.editor.put(node, placing, over=self.over)

    async def first(self) -> int | None:
        """Return the first element of ``/x``, as the next mount finds it; None if there is no array."""
        opened = await reading(self.store.inner).hierarchy.array(X)
        return int(np.frombuffer(await opened.reader.read(0, 2, Position()), "<i2")[0]) if opened is not None else None

    async def is_tidy(self) -> bool:
        return not await self.store.prefix_exists(APART) and not self.store.destined


@asynccontextmanager
async def making(values: dict[str, bytes], *, new: str = "v3") -> AsyncIterator[Making]:
    inner = MemoryStore()
    await fill(inner, values)
    faulty = Faulty(inner)
    store = ObservedStore(faulty)
    made = reading(store)
    store.subscribe(lambda change: made.hierarchy.changed(change.target, is_prefix=change.is_prefix) and None)
    yield Making(faulty, made.hierarchy, NodeEditor(made.hierarchy, store, Intents(store), new_dialect=new))


V2 = {".zgroup": V2_GROUP, "x/.zarray": V2_ARRAY, "x/0": element(19), "x/1": element(20)}
OVER = pytest.mark.parametrize("values", [V2, DRAFT], ids=["v2", "v3_2019"])
EMPTY = pytest.mark.parametrize("values", [{".zgroup": V2_GROUP}, draft_2019("")], ids=["v2", "v3_2019"])


# --- over an array --------------------------------------------------------------------------------------------------------------


@OVER
@trio_test
async def test_an_array_takes_the_place_of_another_whole(values: dict[str, bytes]) -> None:
    async with making(values) as m:
        node, placing = await m.apart(over=True)
        assert await m.first() == 19
        await m.put(node, placing)
        # Again, as by a caller that did not get the result.
        await m.put(node, placing)
        assert await m.first() == 7
        await placing.end()
        await placing.end()
        assert await m.first() == 7 and await m.is_tidy()


STEPS = [
    ("set", StoreFull("no room"), False),
    ("set", StoreFull("no room"), True),
    ("rename_prefix", StoreAccessDenied("not yours"), False),
    ("exchange_prefixes", StoreAccessDenied("not yours"), False),
    ("exchange_prefixes", StoreAccessDenied("not yours"), True),
    ("erase_values", StoreFull("no room"), False),
    ("erase_values", StoreFull("no room"), True),
    ("set", KeyboardInterrupt(), False),
    ("rename_prefix", KeyboardInterrupt(), True),
]


@OVER
@pytest.mark.parametrize(("operation", "error", "late"), STEPS)
@trio_test
async def test_a_step_that_fails_leaves_the_old_or_the_new_and_who_tries_again_succeeds(
    values: dict[str, bytes], operation: str, error: BaseException, late: bool
) -> None:
    async with making(values) as m:
        node, placing = await m.apart(over=True)
        m.store.fail(operation, error, late=late)
        is_done = False
        with suppress(ZarrfsError, KeyboardInterrupt):
            await m.put(node, placing)
            is_done = True
        assert await m.first() == (7 if is_done else 19)
        m.store.faults.clear()
        await m.put(node, placing)
        await placing.end()
        assert await m.first() == 7 and await m.is_tidy()


@OVER
@trio_test
async def test_who_gives_up_after_a_failure_has_what_was_there(values: dict[str, bytes]) -> None:
    async with making(values) as m:
        node, placing = await m.apart(over=True)
        for operation in ("exchange_prefixes", "erase_values"):
            m.store.fail(operation, StoreAccessDenied("not yours"))
        with pytest.raises(StoreAccessDenied):
            await m.put(node, placing)
        m.store.faults.clear()
        await placing.end()
        assert await m.first() == 19 and await m.is_tidy()
        assert await contents(m.store) == values


@trio_test
async def test_a_document_that_was_stored_by_a_set_that_failed_is_the_new_one() -> None:
    async with making(DRAFT) as m:
        node, placing = await m.apart(over=True)
        m.store.fail("set", StoreFull("no room, it says"), late=True, key="meta/root/x.array")
        await m.put(node, placing)
        assert await m.first() == 7


# --- at a free path -------------------------------------------------------------------------------------------------------------


@EMPTY
@pytest.mark.parametrize("chunks", [True, False])
@trio_test
async def test_a_new_array_whose_document_cannot_be_stored_is_not_there_until_it_can(
    values: dict[str, bytes], chunks: bool
) -> None:
    async with making(values) as m:
        node, placing = await m.apart(over=False, chunks=chunks)
        for _ in range(2):
            m.store.fail("set", StoreFull("no room"))
            with pytest.raises(StoreFull, match="no room"):
                await m.put(node, placing)
            assert await m.first() is None
            # Chunks without a document would be taken for abandoned ones.
            assert {key for key in await contents(m.store) if not key.startswith(APART)} == set(values)
        await m.put(node, placing)
        await placing.end()
        assert await m.first() == (7 if chunks else 0) and await m.is_tidy()


@EMPTY
@trio_test
async def test_who_has_an_array_in_place_and_tries_again_does_not_need_its_document_as_it_was(values: dict[str, bytes]) -> None:
    async with making(values) as m:
        live = m.hierarchy.live.make(X)
        node, placing = await m.apart(over=False)
        await m.editor.put(node, placing, over=None, of=live)
        # As its writer does, whose caller may get an error of a later step.
        live.document, live.generation = placing.document(await m.editor.layout_for(X), node)
        await m.editor.resize(X, (6,), erase_outside=False)
        await m.editor.put(node, placing, over=None, of=live)
        assert live.why_gone is None and await m.first() == 7


@EMPTY
@trio_test
async def test_of_a_step_that_may_still_take_effect_nobody_says_that_it_failed_or_does_it_again(values: dict[str, bytes]) -> None:
    async with making(values) as m:
        node, placing = await m.apart(over=False)
        m.store.fail("rename_prefix", StoreTimeout("no answer"))
        with pytest.raises(StoreTimeout, match="no answer"):
            await m.put(node, placing)
        before = await contents(m.store)
        with pytest.raises(StoreTimeout, match="/x: outcome of an earlier attempt is unknown") as caught:
            await m.put(node, placing)
        assert caught.value.key == X and await contents(m.store) == before


@trio_test
async def test_a_step_that_took_effect_after_its_deadline_is_known_by_what_is_there() -> None:
    async with making({".zgroup": V2_GROUP}) as m:
        node, placing = await m.apart(over=False)
        m.store.fail("rename_prefix", StoreTimeout("no answer"), late=True)
        await m.put(node, placing)
        await placing.end()
        assert await m.first() == 7 and await m.is_tidy()
    async with making(V2) as m:
        node, placing = await m.apart(over=True)
        m.store.fail("exchange_prefixes", StoreTimeout("no answer"))
        with pytest.raises(StoreTimeout):
            await m.put(node, placing)
        # The timed-out operation takes effect late.
        await m.store.inner.exchange_prefixes(placing.chunk_prefix, Prefix("x/"))
        await m.put(node, placing)
        await placing.end()
        assert await m.first() == 7 and await m.is_tidy()


@trio_test
async def test_what_comes_to_be_in_the_place_at_the_last_moment_is_not_replaced_either() -> None:
    async with making({".zgroup": V2_GROUP}) as m:
        node, placing = await m.apart(over=False)
        m.store.fail("rename_prefix", PrefixNotEmpty("there is a folder"))
        with pytest.raises(EntryExists, match="/x: not empty") as caught:
            await m.put(node, placing)
        assert caught.value.key == X and await m.first() is None


@EMPTY
@trio_test
async def test_what_came_to_be_in_the_place_meanwhile_is_not_replaced(values: dict[str, bytes]) -> None:
    async with making(values) as m:
        node, placing = await m.apart(over=False)
        place = "data/x/" if "zarr.json" in values else "x/"
        await m.store.set(Key(f"{place}somebody's.txt"), b"mine")
        with pytest.raises(EntryExists, match="somebody's"):
            await m.put(node, placing)
        await placing.end()
        assert await contents(m.store) == {**values, f"{place}somebody's.txt": b"mine"}


@pytest.mark.parametrize("error", [StoreAccessDenied("not yours"), KeyConflict("a file lies there")])
@trio_test
async def test_where_nothing_can_be_made_apart_a_new_array_is_made_in_its_place_and_none_is_replaced(error: ZarrfsError) -> None:
    async with making(V2) as m:
        m.store.fail("lock", error)
        with pytest.raises(type(error)):
            await m.editor.place_apart(await m.node(), over=True)
        m.store.fail("lock", error)
        assert await m.editor.place_apart(await m.node("/new"), over=False) is None
        assert await contents(m.store) == V2 and await m.is_tidy()


@trio_test
async def test_operations_that_cannot_begin_keep_no_memory() -> None:
    """Where another user hides the folder of operations, that is each of them."""
    values = {**V2, "y/.zarray": V2_ARRAY}
    async with making(values) as m:
        m.store.fail("lock", StoreAccessDenied("not yours"))
        with pytest.raises(StoreAccessDenied):
            await m.editor.rename(X, NodePath("/y"), over=True)
        m.store.fail("lock", StoreAccessDenied("not yours"))
        await m.editor.erase(X)
        assert await contents(m.store) == {".zgroup": V2_GROUP, "y/.zarray": V2_ARRAY} and await m.is_tidy()


# --- other edits that are refused ----------------------------------------------------------------------------------------------


@trio_test
async def test_what_is_not_there_is_neither_changed_nor_given_another_shape() -> None:
    async with making({**V2, "g/y/.zarray": V2_ARRAY}) as m:
        for edit, raised in (
            (m.editor.amend(NodePath("/no"), Edit(attributes={"a": 1})), NoSuchEntry),
            (m.editor.amend(NodePath("/g"), Edit(shape=(3,))), MetadataError),
            (m.editor.resize(NodePath("/g"), (3,), erase_outside=True), NoSuchEntry),
            (m.editor.resize(X, (3, 3), erase_outside=True), ContentInvalid),
        ):
            with pytest.raises(raised):
                await edit
        await m.editor.rename(X, X)
        assert await contents(m.store) == {**V2, "g/y/.zarray": V2_ARRAY}


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreAccessDenied("not yours"), KeyConflict("a file lies there")])
@OVER
@trio_test
async def test_who_erases_to_have_room_again_can_where_nothing_can_be_put_aside(
    values: dict[str, bytes], error: ZarrfsError
) -> None:
    async with making(values) as m:
        m.store.fail("lock", error)
        await m.editor.erase(X)
        assert await m.first() is None and await m.is_tidy()
        assert not any("/x" in f"/{key}" for key in await contents(m.store))


@trio_test
async def test_what_cannot_be_renamed_is_erased_where_it_is() -> None:
    async with making({"zarr.json": V3_GROUP, **{f"g/{key}": value for key, value in V2.items()}}) as m:
        for _ in range(3):
            m.store.fail("rename_prefix", StoreUnsupported("another file system"))
        await m.editor.erase(NodePath("/g"))
        assert await contents(m.store) == {"zarr.json": V3_GROUP}


ROOTS = {
    "v2": {".zarray": V2_ARRAY, "0": element(19), "1": element(20)},
    # Shards, one of which cannot be read.
    "v3": {"zarr.json": document(8, 4, sharding(2)), "c/0": shard(2, {0: b"ab", 1: b"cd"}), "c/1": b"junk"},
}


@pytest.mark.parametrize("dialect", ROOTS)
@trio_test
async def test_an_array_at_the_root_takes_the_place_of_one_and_leaves_what_is_beside_it(dialect: str) -> None:
    async with making({**ROOTS[dialect], "readme.txt": b"mine"}, new=dialect) as m:
        node, placing = await m.apart("/", over=True)
        first = node.metadata.chunk_key_encoding.key(placing.chunk_prefix, (0,))
        await m.put(node, placing)
        await placing.end()
        found = await contents(m.store)
        assert set(found) == {*ROOTS[dialect], "readme.txt"} - {"1", "c/1"} and await m.is_tidy()
        assert found["readme.txt"] == b"mine" and found[first[len(placing.chunk_prefix) :]] == element(7)


@OVER
@trio_test
async def test_who_is_cancelled_leaves_what_was_there(values: dict[str, bytes]) -> None:
    async with making(values) as m:
        node, placing = await m.apart(over=True)
        with trio.CancelScope() as scope:
            scope.cancel()
            await m.put(node, placing)
        assert scope.cancelled_caught and await m.first() == 19
        await placing.end()
        assert await m.is_tidy() and await contents(m.store) == values
