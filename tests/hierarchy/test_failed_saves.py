"""A save over an array that failed, or timed out, while its file is open or after it was closed: what is removed, saved again or lost."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_repeated_saves import LATE, WithoutExchange, WithoutRename, folder_of_arrays, save_late
from tests.hierarchy.test_several_steps import npy
from tests.support.late_steps import NEW, OLD, OPTIONS, write_chunk
from tests.support.stores import HangingStore
from tests.support.trees import load, names, opened, tree_over, write
from zarrfs.buffers import Buffer
from zarrfs.errors import EntryExists, StoreError, StoreTimeout
from zarrfs.keys import APART, Key, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.vfs.node import OpenFlags

IN_BETWEEN = [
    *LATE[1:],
    pytest.param("v3_2022", HangingStore, ("data/root/a/", "rename_prefix"), id="v3_2022, old moved apart"),
    pytest.param("v3", WithoutExchange, ("a/", "rename_prefix"), id="v3, old moved apart"),
    pytest.param("v3", WithoutRename, ("a/zarr.json", "erase_values"), id="v3, no rename, old documents erased"),
]
"""Steps after which no array is in place."""


@pytest.mark.logs("")
@pytest.mark.parametrize(("dialect", "kind", "step"), IN_BETWEEN)
@trio_test
async def test_an_array_that_is_removed_after_a_failed_save_stays_removed(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, kind: type[HangingStore], step: tuple[str, ...]
) -> None:
    """Only the open file was removed, as no array was found; the old or the new array was put in place when it was closed."""
    inner = MemoryStore()
    store = kind(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        handle = await save_late(tree, store, step, NEW)
        await (await folder_of_arrays(tree)).unlink("a.npy")
        assert await names(tree, "npy") == set()
        await handle.flush()
        await handle.release()
        await trio.sleep(100)
        assert await names(tree, "npy") == set()
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        assert await names(tree, "npy") == set()


@pytest.mark.logs("")
@pytest.mark.parametrize(("dialect", "kind", "step"), IN_BETWEEN)
@trio_test
async def test_an_array_is_saved_again_while_the_file_of_a_failed_save_is_open(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, kind: type[HangingStore], step: tuple[str, ...]
) -> None:
    """It was EEXIST, as the save took the path for free."""
    inner = MemoryStore()
    store = kind(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        handle = await save_late(tree, store, step, NEW)
        again = await opened(tree, "npy/a.npy", OpenFlags(write=True, truncate=True))
        await again.write(0, npy(NEW[:3]))
        await again.flush()
        for each in again, handle:
            await each.release()
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), NEW[:3])


@pytest.mark.logs("")
@pytest.mark.parametrize("is_repeated", [True, False], ids=["repeated", "closed"])
@pytest.mark.parametrize(("dialect", "document"), [("v3", "a/zarr.json"), ("v3_2022", "meta/root/a.array.json")])
@trio_test
async def test_an_array_whose_documents_are_erased_late_is_replaced_or_stays(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, document: str, is_repeated: bool
) -> None:
    """The copy that had not begun counted as undone, and its record was erased; then the documents were: neither array was left."""
    inner = MemoryStore()
    store = WithoutRename(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        handle = await opened(tree, "npy/a.npy", OpenFlags(write=True, truncate=True))
        await handle.write(0, npy(NEW))
        store.hang(document, "erase_values")
        with pytest.raises(StoreTimeout):
            await handle.flush()
        if is_repeated:
            with pytest.raises(StoreTimeout):
                await handle.flush()
        await handle.release()
        store.answer()
        await trio.sleep(100)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), NEW)
        assert not await inner.prefix_exists(APART)
        await tree.publish_all()
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), NEW)


class FailingLate(HangingStore):
    """Reports a failure of the next rename of ``failing`` that takes effect."""

    failing = ""

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        is_renamed = await super().rename_prefix(old, new)
        if old == self.failing:
            self.failing = ""
            raise StoreError("not answered")
        return is_renamed


@pytest.mark.parametrize("edit", ["removed", "changed"])
@trio_test
async def test_an_undone_save_says_nothing_about_later_edits(tmp_path: Path, edit: str) -> None:
    """Its record was kept while the file was open: the end of the file, and each later mount, logged that chunks had been removed."""
    inner = MemoryStore()
    store = FailingLate(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3_2022", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        handle = await opened(tree, "npy/a.npy", OpenFlags(write=True, truncate=True))
        await handle.write(0, npy(NEW))
        store.failing = "data/root/a/"
        with pytest.raises(StoreError, match="not answered"):
            await handle.flush()
        if edit == "removed":
            await (await folder_of_arrays(tree)).unlink("a.npy")
        else:
            await write_chunk(tree, "chunks/a/1", np.full(8, 99, OLD.dtype))
            await write(tree, "chunks/a/.zattrs", b'{"units": "m"}')
            await handle.flush()
        await handle.release()
        assert await tree.publish_all() == []
        assert not await inner.prefix_exists(APART)
        assert (await inner.get(Key("meta/root/a.array.json")) is None) == (edit == "removed")


class Refusing(HangingStore):
    """Exchanges nothing while ``is_refusing``."""

    is_refusing = False

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        if self.is_refusing:
            raise StoreError("refused")
        await super().exchange_prefixes(one, other)


@pytest.mark.logs("")
@trio_test
async def test_a_document_that_is_stored_apart_late_is_stored_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Every later attempt was ESTALE: the document apart was taken for that of the old array."""
    inner = MemoryStore()
    store = Refusing(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        handle = await opened(tree, "npy/a.npy", OpenFlags(write=True, truncate=True))
        await handle.write(0, npy(NEW))
        store.is_refusing = True
        with pytest.raises(StoreError, match="refused"):
            await handle.flush()
        store.is_refusing = False
        store.hang(".zarrfs/*/new/zarr.json", "set")
        with pytest.raises(StoreTimeout):
            await handle.flush()
        store.answer()
        await trio.sleep(100)
        await handle.flush()
        await handle.release()
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect="v3", **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), NEW)


@pytest.mark.logs("")
@pytest.mark.parametrize("fill", [0, 5])
@pytest.mark.parametrize("shards", ["4", None], ids=["shards", "chunks"])
@pytest.mark.parametrize("is_written", [True, False], ids=["written", "repeated"])
@pytest.mark.parametrize("dialect", ["v3", "v3_2022"])
@trio_test
async def test_chunks_of_others_stay_when_the_file_of_a_save_that_has_taken_effect_late_is_stored(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, is_written: bool, shards: str | None, fill: int
) -> None:
    """Those that equalled the fill value when they were saved were erased, with what another program had written there since."""
    inner = MemoryStore()
    store = HangingStore(inner)
    document = Key("a/zarr.json" if dialect == "v3" else "meta/root/a.array.json")
    options = {name: value for name, value in OPTIONS.items() if name != "new_shards"} | ({"new_shards": shards} if shards else {})
    new = np.r_[np.arange(8.0), np.full(24, float(fill))]
    async with tree_over(inner, new_dialect=dialect, **options) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        assert await tree.publish_all() == []
    text = json.loads(bytes((await inner.get(document)) or b""))
    await inner.set(document, json.dumps(text | {"fill_value": fill}).encode())
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **options) as tree:
        handle = await save_late(tree, store, ("*", "exchange_prefixes") if dialect == "v3" else (document, "set"), new)
        wanted = np.r_[new[:16], np.full(8, 99.0), new[24:]]
        await write(tree, "chunks/a/2", wanted[16:24].tobytes())
        if is_written:
            await handle.write(len(npy(new)) - 8, np.float64(77).tobytes())
            wanted[-1] = 77
        await handle.fsync()
        await handle.release()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), wanted)
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect=dialect, **options) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), wanted)


class Failing(WithoutRename):
    """Stores no documents and reads nothing while ``is_failing``."""

    is_failing = False

    async def interrupt(self, operation: str, target: str) -> None:
        await super().interrupt(operation, target)
        if self.is_failing and (operation == "get_partial_values" or target.endswith("zarr.json")):
            raise StoreError("not now")


@pytest.mark.logs("")
@trio_test
async def test_a_path_is_free_after_a_failed_save_whatever_fails_at_its_end(tmp_path: Path) -> None:
    """The last close raised an error, and the path stayed hidden: an array that another program stored there was not found."""
    inner = MemoryStore()
    store = Failing(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3", metadata_ttl="0", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        _, handle = await (await folder_of_arrays(tree)).create("b.npy", OpenFlags(write=True))
        await handle.write(0, npy(NEW))
        store.is_failing = True
        with pytest.raises(StoreError, match="not now"):
            await handle.flush()
        await handle.release()
        store.is_failing = False
        async with tree_over(inner, new_dialect="v3", **OPTIONS) as other:
            await write(other, "npy/b.npy", npy(OLD))
            assert await other.publish_all() == []
        np.testing.assert_array_equal(await load(tree, "npy/b.npy"), OLD)


class RefusingLate(HangingStore):
    """Does not set documents of ``b`` while ``is_refusing``, after they have waited."""

    is_refusing = False

    async def interrupt(self, operation: str, target: str) -> None:
        await super().interrupt(operation, target)
        if self.is_refusing and operation == "set" and target == "meta/root/b.array.json":
            raise StoreError("refused")


@pytest.mark.logs("")
@pytest.mark.parametrize("waits", [("set",), ("set", "erase_values")], ids=["stored", "stored and erased"])
@pytest.mark.parametrize("takes_effect", [True, False], ids=["late", "never"])
@trio_test
async def test_a_new_array_whose_document_is_stored_late_is_found_in_place(
    autojump_clock: MockClock, tmp_path: Path, takes_effect: bool, waits: tuple[str, ...]
) -> None:
    """Each later attempt was EEXIST."""
    inner = MemoryStore()
    store = RefusingLate(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3_2022", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        _, handle = await (await folder_of_arrays(tree)).create("b.npy", OpenFlags(write=True))
        await handle.write(0, npy(NEW))
        store.hang("meta/root/b.array.json", *waits)
        store.is_refusing = not takes_effect
        with pytest.raises(StoreTimeout):
            await handle.flush()
        with pytest.raises(StoreTimeout):
            await handle.flush()
        store.answer()
        await trio.sleep(100)
        store.is_refusing = False
        await handle.fsync()
        await handle.write(len(npy(NEW)) - 8, np.float64(77).tobytes())
        await handle.flush()
        await handle.release()
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect="v3_2022", **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/b.npy"), np.r_[NEW[:-1], 77.0])


class RefusingOnce(HangingStore):
    """Reports a failure of ``refused`` operations, in this order, once each; they take effect nevertheless."""

    refused: tuple[str, ...] = ()

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        generation = await super().set(key, value, expect=expect)
        self._refuse("set" if key == "meta/root/b.array.json" else "")
        return generation

    async def get(self, key: Key) -> Buffer | None:
        self._refuse("get" if key == "meta/root/b.array.json" else "")
        return await super().get(key)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        is_renamed = await super().rename_prefix(old, new)
        self._refuse("rename_prefix")
        return is_renamed

    def _refuse(self, operation: str) -> None:
        if operation == next(iter(self.refused), None):
            self.refused = self.refused[1:]
            raise StoreError("refused")


@pytest.mark.logs("")
@pytest.mark.parametrize(
    "refused",
    [("rename_prefix",), ("rename_prefix", "rename_prefix"), ("rename_prefix", "get"), ("set",), ("set", "get")],
    ids="-".join,
)
@trio_test
async def test_a_new_array_of_which_a_step_failed_and_took_effect_is_stored_by_the_next_attempt(
    tmp_path: Path, refused: tuple[str, ...]
) -> None:
    """Each later attempt failed: its chunks, or its document, were in the way."""
    inner = MemoryStore()
    store = RefusingOnce(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3_2022", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        _, handle = await (await folder_of_arrays(tree)).create("b.npy", OpenFlags(write=True))
        await handle.write(0, npy(NEW))
        store.refused = refused
        # The document is found to be in its place.
        with nullcontext() if refused == ("set",) else pytest.raises(StoreError, match="refused"):
            await handle.flush()
        assert store.refused == ()
        if len(refused) > 1:
            # The state is determined first.
            await handle.flush()
        await handle.write(len(npy(NEW)) - 8, np.float64(77).tobytes())
        await handle.flush()
        await handle.release()
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect="v3_2022", **OPTIONS) as tree:
        assert await names(tree, "npy") == {"a.npy", "b.npy"}
        np.testing.assert_array_equal(await load(tree, "npy/b.npy"), np.r_[NEW[:-1], 77.0])


class OvertakenStore(HangingStore):
    """A store in which another program stores a document just before this one, which fails then."""

    other: bytes | None = None

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if key == "meta/root/b.array.json" and self.other is not None:
            await super().set(key, self.other)
            raise StoreError("refused")
        return await super().set(key, value, expect=expect)


@pytest.mark.logs("")
@trio_test
async def test_the_array_of_another_program_stays_where_a_new_one_failed(tmp_path: Path) -> None:
    """Its document was erased; the next attempt would have replaced it by an array without chunks."""
    inner = MemoryStore()
    store = OvertakenStore(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3_2022", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        document = await inner.get(Key("meta/root/a.array.json"))
        assert document is not None
        store.other = bytes(document).replace(b'"attributes": {}', b'"attributes": {"of": "others"}')
        assert store.other != document
        _, handle = await (await folder_of_arrays(tree)).create("b.npy", OpenFlags(write=True))
        await handle.write(0, npy(NEW))
        with pytest.raises(StoreError, match="refused"):
            await handle.flush()
        with pytest.raises(EntryExists):
            await handle.flush()
        await handle.release()
        await tree.publish_all()
    assert await inner.get(Key("meta/root/b.array.json")) == store.other


@pytest.mark.logs("")
@pytest.mark.parametrize("dialect", ["v1", "v2", "v3", "v3_2022"])
@trio_test
async def test_a_new_array_in_place_whose_document_is_stored_late_has_its_chunks(
    autojump_clock: MockClock, tmp_path: Path, dialect: str
) -> None:
    """They were erased when the file was closed, and the array that appeared later read as fill value."""
    inner = MemoryStore()
    store = WithoutRename(inner)
    document = {"v1": "b/meta", "v2": "b/.zarray", "v3": "b/zarr.json", "v3_2022": "meta/root/b.array.json"}[dialect]
    options = {name: value for name, value in OPTIONS.items() if name != "new_shards"}
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **options) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        _, handle = await (await folder_of_arrays(tree)).create("b.npy", OpenFlags(write=True))
        await handle.write(0, npy(NEW))
        store.hang(document, "set")
        with pytest.raises(StoreTimeout):
            await handle.flush()
        await handle.release()
        store.answer()
        await trio.sleep(100)
        np.testing.assert_array_equal(await load(tree, "npy/b.npy"), NEW)
        await tree.publish_all()
    async with tree_over(inner, new_dialect=dialect, **options) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/b.npy"), NEW)
