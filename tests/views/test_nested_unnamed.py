"""A v2 array with nested chunk keys and without ``dimension_separator``, as the NestedDirectoryStore of zarr 2.2 to 2.7 wrote it."""

from __future__ import annotations

import json

import numpy as np
from trio.testing import trio_test

from tests.support.cases import CASES, Case
from tests.support.stores import fill
from tests.support.trees import load, tree_over, walk
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Directory, OpenFlags

CASE = Case(CASES / "other_forms" / "nested_unnamed")
ELEMENTS = np.arange(35, dtype="<i4").reshape(7, 5)
HEADER_NBYTES = 128


async def stored(*, but: dict[str, bytes] | None = None) -> MemoryStore:
    store = MemoryStore()
    await fill(store, CASE.values | (but or {}))
    return store


@trio_test
async def test_an_element_that_is_changed_stays_in_the_nested_chunk() -> None:
    async with tree_over(store := await stored()) as tree:
        before = {key async for key in store.list()}
        file = await walk(tree, "npy/a.npy")
        assert isinstance(file, StagedFile)
        handle = await file.open(OpenFlags(read=True, write=True))
        await handle.write(HEADER_NBYTES, np.full(1, 99, "<i4").tobytes())
        await handle.flush()
        await handle.release()
        assert {key async for key in store.list()} == before
    async with tree_over(store) as tree:
        changed = ELEMENTS.copy()
        changed[0, 0] = 99
        assert np.array_equal(await load(tree, "npy/a.npy"), changed)


@trio_test
async def test_an_array_that_only_the_consolidated_copy_describes_is_read() -> None:
    documents = {key: value for key, value in CASE.values.items() if key.rpartition("/")[2] in (".zgroup", ".zarray", ".zattrs")}
    copy = {"zarr_consolidated_format": 1, "metadata": {key: json.loads(value) for key, value in documents.items()}}
    store = MemoryStore()
    chunks = {key: value for key, value in CASE.values.items() if key not in documents}
    await fill(store, chunks | {".zmetadata": json.dumps(copy).encode()})
    async with tree_over(store) as tree:
        assert np.array_equal(await load(tree, "npy/a.npy"), ELEMENTS)


@trio_test
async def test_an_array_without_chunks_gets_those_that_the_specification_names() -> None:
    async with tree_over(store := await stored()) as tree:
        file = await walk(tree, "npy/empty.npy")
        assert isinstance(file, StagedFile)
        handle = await file.open(OpenFlags(read=True, write=True))
        await handle.write(HEADER_NBYTES, b"\1")
        await handle.flush()
        await handle.release()
        assert {key async for key in store.list() if key.startswith("empty/")} == {"empty/.zarray", "empty/0.0"}


@trio_test
async def test_an_array_that_loses_its_last_chunk_keeps_its_keys_and_its_open_files() -> None:
    async with tree_over(store := await stored(), metadata_ttl="0") as tree:
        before = {key async for key in store.list()}
        file = await walk(tree, "npy/a.npy")
        assert isinstance(file, StagedFile)
        handle = await file.open(OpenFlags(read=True, write=True))
        for value in (-1, 5):
            # The fill value is not stored, and the array is looked up again after that.
            await handle.write(HEADER_NBYTES, np.full((7, 5), value, "<i4").tobytes())
            await handle.flush()
            await walk(tree, "npy/a.npy")
        await handle.release()
        assert {key async for key in store.list()} == before


@trio_test
async def test_an_array_without_chunks_keeps_its_keys_and_its_open_files_when_it_is_renamed() -> None:
    async with tree_over(store := await stored()) as tree:
        before = {key async for key in store.list() if key.startswith("a/")}
        file, folder = await walk(tree, "npy/a.npy"), await walk(tree, "npy")
        assert isinstance(file, StagedFile)
        assert isinstance(folder, Directory)
        handle = await file.open(OpenFlags(read=True, write=True))
        for value in (-1, 5):
            await handle.write(HEADER_NBYTES, np.full((7, 5), value, "<i4").tobytes())
            await handle.flush()
            if value == -1:
                await folder.rename("a.npy", folder, "b.npy")
                await walk(tree, "npy/b.npy")
        await handle.release()
        assert {key.replace("b/", "a/", 1) async for key in store.list() if key.startswith("b/")} == before


@trio_test
async def test_a_named_separator_applies_whatever_is_stored() -> None:
    document = json.dumps(json.loads(CASE.values["a/.zarray"]) | {"dimension_separator": "."}).encode()
    async with tree_over(await stored(but={"a/.zarray": document})) as tree:
        assert np.array_equal(await load(tree, "npy/a.npy"), np.full((7, 5), -1))


@trio_test
async def test_nested_keys_without_a_name_may_be_refused() -> None:
    async with tree_over(await stored(), dialect_choices="v2.dimension_separator=refuse") as tree:
        assert np.array_equal(await load(tree, "npy/a.npy"), np.full((7, 5), -1))
