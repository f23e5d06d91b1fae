"""Writes to whole-array files: elements changed in place; arrays created, replaced, erased and renamed."""

from __future__ import annotations

import io
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
import zarr
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test
from zarr.core.buffer import default_buffer_prototype

from tests.support.arrays import FILL, Example
from tests.support.length import tries
from tests.support.stores import WaitingStore, contents, fill
from tests.support.trees import READ_ONLY, listing, load, names, read, tree_of, tree_over, walk, write
from zarrfs.arrays.writer import ArrayWriter
from zarrfs.buffers import Buffer, Mask
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import (
    ContentInvalid,
    EntryExists,
    FileTooLarge,
    NameInvalid,
    NoSuchEntry,
    NotPermitted,
    StaleEntry,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, Handle, OpenFlags
from zarrfs.views.whole_array.new_array_stage import NewArrayStage

WRITE = OpenFlags(write=True)
ANEW = OpenFlags(write=True, truncate=True)
Elements = np.ndarray[Any, Any]
# The log names the loss, too, for programs that ignored the error.
LOST = pytest.mark.logs("write failed, data lost")
DIALECTS = pytest.mark.parametrize("dialect", ["v2", "v3"])


async def store_with(values: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    await fill(store, values)
    return store


async def in_zarr(store: Store, path: str) -> Any:
    """Return the array as zarr-python reads it from the values in the store."""
    values = {}
    for key in [key async for key in store.list()]:
        value = await store.get(key)
        assert value is not None
        values[str(key)] = default_buffer_prototype().buffer.from_bytes(bytes(value))
    return zarr.open_array(zarr.storage.MemoryStore(values), path=path, mode="r")


def npy(elements: Elements, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, elements, **options)
    return file.getvalue()


@asynccontextmanager
async def opened(tree: MountTree, path: str, flags: OpenFlags = WRITE) -> AsyncIterator[Handle]:
    file = await walk(tree, path)
    assert isinstance(file, File)
    handle = await file.open(flags)
    try:
        yield handle
    finally:
        await handle.release()


@asynccontextmanager
async def created(tree: MountTree, name: str) -> AsyncIterator[Handle]:
    _, handle = await (await folder(tree, "npy")).create(name, ANEW)
    try:
        yield handle
    finally:
        await handle.release()


@asynccontextmanager
async def emptied(tree: MountTree, name: str) -> AsyncIterator[Handle]:
    """Open a file, which may exist, as ``open(path, "wb")`` does."""
    if name not in await names(tree, "npy"):
        async with created(tree, name) as handle:
            yield handle
        return
    file = await walk(tree, f"npy/{name}")
    assert isinstance(file, File)
    handle = await file.open(ANEW)
    try:
        yield handle
    finally:
        await handle.release()


async def folder(tree: MountTree, path: str) -> Directory:
    found = await walk(tree, path)
    assert isinstance(found, Directory)
    return found


def operations(tree: MountTree) -> dict[str, int]:
    found: dict[str, int] = dict(tree.stats()["store_operations"])  # type: ignore[call-overload]
    return found


def data_offset(data: bytes) -> int:
    return data.index(b"\n") + 1


# --- in place ---------------------------------------------------------------------------------------------------------------------


@tries(150)
@given(data=st.data())
def test_any_writes_are_as_on_a_local_file(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(0, 3))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=ndim, max_size=ndim)))
    chunks = tuple(data.draw(st.lists(st.integers(1, 5), min_size=ndim, max_size=ndim)))
    dtype = data.draw(st.sampled_from(["<i2", "<f8", "|u1", "<u4"]))
    example = Example(shape, chunks, dtype)
    memory_limit = data.draw(st.sampled_from(["1MiB", "0"]), label="memory")

    async def main() -> None:
        store = await store_with(example.values("a"))
        async with tree_over(store, memory_limit=memory_limit) as tree:
            model = bytearray(await read(tree, "npy/a.npy"))
            head = data_offset(bytes(model))
            async with opened(tree, "npy/a.npy") as handle, opened(tree, "npy/a.npy", READ_ONLY) as other:
                for _ in range(data.draw(st.integers(1, 6))):
                    offset = data.draw(st.integers(head, len(model) - 1), label="offset")
                    size = data.draw(st.integers(1, len(model) - offset), label="size")
                    new = data.draw(st.binary(min_size=size, max_size=size))
                    assert await handle.write(offset, new) == size
                    model[offset : offset + size] = new
                    assert bytes(await other.read(0, len(model))) == bytes(model)
                    begin = data.draw(st.integers(0, len(model) - 1))
                    assert bytes(await handle.read(begin, 50)) == bytes(model[begin : begin + 50])
                    if data.draw(st.booleans(), label="flush"):
                        await handle.flush()
                        assert tree.staging.dirty_nbytes == 0
                        assert npy(np.asarray((await in_zarr(store, "a"))[...], dtype))[head:] == bytes(model)[head:]
            assert npy(np.asarray((await in_zarr(store, "a"))[...], dtype))[head:] == bytes(model)[head:]
            assert await read(tree, "npy/a.npy") == bytes(model)
            budget = tree.staging.room.budget
            assert budget is not None
            assert budget.nbytes == 0

    trio.run(main)


@trio_test
async def test_a_write_inside_one_chunk_costs_one_get_and_one_set() -> None:
    example = Example((1024, 1024), (512, 512), "<f4")
    async with tree_over(await store_with(example.values("a"))) as tree:
        head = data_offset(await read(tree, "npy/a.npy"))
        async with opened(tree, "npy/a.npy") as handle:
            before = operations(tree)
            await handle.write(head + 4096 * 3, b"\1" * 1024)
            await handle.flush()
        after = operations(tree)
    assert after["get"] + after["get_partial_values"] - before["get"] - before["get_partial_values"] <= 1
    assert after["set"] - before["set"] == 1


@trio_test
async def test_chunks_that_are_written_whole_are_not_got_however_the_pieces_are_cut() -> None:
    example = Example((64, 64), (16, 16), "<f4")
    async with tree_over(await store_with(example.values("a"))) as tree:
        head = data_offset(await read(tree, "npy/a.npy"))
        new = np.arange(64 * 64, dtype="<f4").tobytes()
        async with opened(tree, "npy/a.npy") as handle:
            before = operations(tree)
            for offset in range(0, len(new), 999):
                await handle.write(head + offset, new[offset : offset + 999])
            await handle.flush()
        after = operations(tree)
        # Pieces end within elements, whose other bytes are read: only those chunks.
        assert after["set"] - before["set"] == 16
        async with opened(tree, "npy/a.npy") as handle:
            before = operations(tree)
            for offset in range(0, len(new), 1000):
                await handle.write(head + offset, new[offset : offset + 1000])
            await handle.flush()
        after = operations(tree)
        assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {"stat": 1, "set": 16}


@trio_test
async def test_the_header_can_be_written_as_it_is_and_no_otherwise() -> None:
    example = Example((4, 4), (2, 2))
    async with tree_over(await store_with(example.values("a"))) as tree:
        whole = await read(tree, "npy/a.npy")
        async with opened(tree, "npy/a.npy") as handle:
            # As a page of a mapping arrives.
            await handle.write(0, whole)
            with pytest.raises(NotPermitted, match="header"):
                await handle.write(8, b"\0")
            with pytest.raises(FileTooLarge):
                await handle.write(len(whole), b"\0")
            with pytest.raises(FileTooLarge):
                await handle.truncate(len(whole) + 1)
            with pytest.raises(ContentInvalid):
                await handle.truncate(len(whole) - 1)
            await handle.truncate(len(whole))
        assert await read(tree, "npy/a.npy") == whole


@trio_test
async def test_a_chunk_that_becomes_fill_value_is_erased_and_padding_stays_fill_value() -> None:
    store = MemoryStore()
    example = Example((5,), (4,), "<i4")
    await fill(store, example.values("a"))
    async with tree_over(store) as tree:
        head = data_offset(await read(tree, "npy/a.npy"))
        async with opened(tree, "npy/a.npy") as handle:
            await handle.write(head, np.full(5, FILL, "<i4").tobytes())
        assert await names(tree, "chunks/a") == {".zarray"}
        async with opened(tree, "npy/a.npy") as handle:
            await handle.write(head + 16, np.full(1, 9, "<i4").tobytes())
        assert np.frombuffer(await read(tree, "chunks/a/1"), "<i4").tolist() == [9, 7, 7, 7]


@LOST
@trio_test
async def test_whoever_has_it_open_sees_every_change_and_a_changed_shape_is_stale() -> None:
    example = Example((4,), (2,), "<i4")
    store = await store_with(example.values("a"))
    async with tree_over(store) as tree:
        whole = await read(tree, "npy/a.npy")
        head = data_offset(whole)
        async with opened(tree, "npy/a.npy", READ_ONLY) as reader, opened(tree, "npy/a.npy") as writer:
            assert bytes(await reader.read(0, 1000)) == whole
            await write(tree, "chunks/a/0", np.array([5, 6], "<i4").tobytes())
            assert np.frombuffer(await reader.read(head, 8), "<i4").tolist() == [5, 6]
            await writer.write(head, np.array([8], "<i4").tobytes())
            assert np.frombuffer(await reader.read(head, 8), "<i4").tolist() == [8, 6]
            assert np.frombuffer(await read(tree, "chunks/a/0"), "<i4").tolist() == [5, 6]
            changed = Example((6,), (2,), "<i4").values("a")
            await tree.store.set(Key("a/.zarray"), changed["a/.zarray"])
            with pytest.raises(StaleEntry):
                await writer.write(head, b"1234")


@pytest.mark.parametrize("dialect", ["v2", "v3", "v3_2022"])
@trio_test
async def test_who_has_written_reads_on_after_a_change_of_the_attributes(dialect: str) -> None:
    async with tree_over(MemoryStore(), new_dialect=dialect) as tree:
        await write(tree, "npy/a.npy", whole := npy(np.arange(6, dtype="<i4")))
        async with opened(tree, "npy/a.npy", OpenFlags(read=True, write=True)) as handle:
            await handle.write(len(whole) - 4, np.array([9], "<i4").tobytes())
            await handle.flush()
            await write(tree, "chunks/a/.zattrs", b'{"units": "m"}')
            assert np.frombuffer(await handle.read(len(whole) - 8, 8), "<i4").tolist() == [4, 9]


def test_changes_by_others_beside_staged_elements_are_seen_when_the_file_is_opened_again() -> None:
    async def main() -> None:
        async with tree_over(store := MemoryStore(), watch="no", metadata_ttl="5", new_chunks="2") as tree:
            await write(tree, "npy/a.npy", whole := npy(np.arange(1, 7, dtype="<i4")))
            assert await read(tree, "npy/a.npy") == whole
            async with opened(tree, "npy/a.npy") as writer:
                await writer.write(len(whole) - 24, np.array([8], "<i4").tobytes())
                await store.set(Key("a/c/2"), await store.get(Key("a/c/1")) or b"")
                await trio.sleep(10)
                assert (await load(tree, "npy/a.npy")).tolist() == [8, 2, 3, 4, 3, 4]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("while_it_is_stored", [False, True])
@trio_test
async def test_a_chunk_that_was_stored_ahead_is_written_again_with_its_neighbours(while_it_is_stored: bool) -> None:
    example = Example((192, 256), (64, 64), "<i4")
    store = WaitingStore(await store_with(example.values("a")), "set")
    async with tree_over(store, memory_limit="1MiB") as tree, trio.open_nursery() as nursery:
        head = data_offset(await read(tree, "npy/a.npy"))
        new = example.elements.copy()
        async with opened(tree, "npy/a.npy") as handle:

            async def put(row: int, columns: int, value: int) -> None:
                new[row, :columns] = value
                await handle.write(head + row * 1024, new[row, :columns].tobytes())

            # Four chunks become dirty together, of which the first is then written whole: it is stored when memory runs short.
            for row in range(64):
                await put(row, 256 if row == 0 else 64, -row)
            await put(64, 256, -1000)
            await put(128, 256, -1001)
            await trio.testing.wait_all_tasks_blocked()
            assert store.waiting == ["a/0.0"]
            if not while_it_is_stored:
                store.let_go()
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(put, 1, 256, -1002)
            await trio.testing.wait_all_tasks_blocked()
            store.let_go()
            await trio.testing.wait_all_tasks_blocked()
            assert bytes(await handle.read(head, new.nbytes)) == new.tobytes()
            await handle.flush()
        assert (await load(tree, "npy/a.npy")).tobytes() == new.tobytes()


class Full(MemoryStore):
    """A store that can be full."""

    full = False

    async def set(self, key: Key, value: Any, **more: Any) -> None:
        if self.full:
            raise StoreFull("no space left", key=key)
        await super().set(key, value, **more)


@trio_test
async def test_a_full_store_is_told_at_flush_and_nothing_is_lost() -> None:
    store = Full()
    example = Example((8,), (2,), "<i4")
    await fill(store, example.values("a"))
    async with tree_over(store) as tree:
        whole = await read(tree, "npy/a.npy")
        head = data_offset(whole)
        new = np.arange(100, 108, dtype="<i4").tobytes()
        async with opened(tree, "npy/a.npy") as handle:
            await handle.write(head, new)
            store.full = True
            for _ in range(2):
                with pytest.raises(StoreFull):
                    await handle.flush()
            assert bytes(await handle.read(head, 100)) == new
            store.full = False
            await handle.flush()
        assert await read(tree, "npy/a.npy") == whole[:head] + new


# --- new arrays -------------------------------------------------------------------------------------------------------------------

NEW = [
    np.arange(35, dtype="<f4").reshape(5, 7),
    np.asfortranarray(np.arange(35, dtype="<f4").reshape(5, 7)),
    np.arange(24, dtype=">i8").reshape(2, 3, 4),
    np.array(3.5),
    np.zeros((0, 5), "<u2"),
    np.array([b"ab", b"c"], "S3"),
    np.array(["ab", "ç"], "<U3"),
    np.array([True, False]),
    np.array(["2020-01-01", "NaT"], "<M8[D]"),
    np.array([(1, 2.5), (3, np.nan)], [("a", "<i4"), ("b", "<f8")]),
]


@DIALECTS
@pytest.mark.parametrize("limit", ["512MiB", "0"])
@pytest.mark.parametrize("elements", NEW, ids=lambda elements: f"{elements.dtype.str}{elements.shape}")
async def test_a_copied_file_becomes_an_array(elements: Elements, limit: str, dialect: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect, memory_limit=limit, new_chunks="2") as tree:
        await write(tree, "npy/a.npy", npy(elements))
        found = await in_zarr(store, "a")
        assert found.shape == elements.shape
        # Bit for bit, since NaN and NaT are unequal to themselves.
        little = elements.astype(elements.dtype.newbyteorder("<"))
        assert found[...].tobytes() == little.tobytes()
        assert (await load(tree, "npy/a.npy")).tobytes() == little.tobytes()
        codecs = [codec["name"] for codec in found.metadata.to_dict().get("codecs", ())]
        fortran = not elements.flags.c_contiguous
        assert fortran == (found.metadata.order == "F" if dialect == "v2" else "transpose" in codecs)
        assert await names(tree, "npy") == {"a.npy"}


test_a_copied_file_becomes_an_array = trio_test(test_a_copied_file_becomes_an_array)


@DIALECTS
@trio_test
async def test_a_new_array_costs_one_set_a_chunk_and_one_a_document(dialect: str) -> None:
    elements = np.arange(1, 65, dtype="<i4").reshape(8, 8)
    async with tree_over(MemoryStore(), new_dialect=dialect, new_chunks="4x4") as tree:
        await write(tree, "npy/a.npy", npy(elements))
        # The first node of a store also makes its root a group.
        assert operations(tree)["set"] == 4 + 2
        await write(tree, "npy/b.npy", npy(elements))
        assert operations(tree)["set"] == 4 + 2 + 4 + 1


@trio_test
async def test_nobody_sees_it_before_it_is_whole_and_the_metadata_comes_last() -> None:
    elements = np.arange(1, 65, dtype="<i4").reshape(8, 8)
    data = npy(elements)
    store = MemoryStore()
    async with tree_over(store, new_chunks="2x8", memory_limit="0") as tree:
        npy_folder = await folder(tree, "npy")
        _, handle = await npy_folder.create("a.npy", ANEW)
        await handle.write(0, data[:-40])
        # Complete chunks are stored already, for lack of memory; they are not shown as nodes.
        assert await names(tree, "chunks") == set()
        assert await names(tree, "npy") == {"a.npy"}
        assert (await listing(tree, "npy"))["a.npy"][2] == len(data) - 40
        assert bytes(await handle.read(0, len(data))) == data[:-40]
        await handle.write(len(data) - 40, data[-40:])
        assert not [key async for key in store.list() if key.endswith("zarr.json")]
        await handle.flush()
        assert (await listing(tree, "chunks"))["a"][1]
        await handle.release()
        np.testing.assert_array_equal((await in_zarr(store, "a"))[...], elements)


@pytest.mark.parametrize("limit", ["512MiB", "0"])
@pytest.mark.parametrize("cut", [0, 5, 60, -1, -40])
@LOST
@trio_test
async def test_a_short_file_leaves_nothing_behind(cut: int, limit: str) -> None:
    data = npy(np.arange(1, 65, dtype="<i4").reshape(8, 8))[:cut]
    store = MemoryStore()
    async with tree_over(store, new_chunks="2x8", memory_limit=limit) as tree:
        _, handle = await (await folder(tree, "npy")).create("a.npy", ANEW)
        if data:
            await handle.write(0, data)
            with pytest.raises(ContentInvalid, match=r"a\.npy"):
                await handle.flush()
        await handle.release()
        assert not [key async for key in store.list()]
        assert await names(tree, "npy") == set()
        # The path is free again.
        await write(tree, "npy/a.npy", npy(np.arange(3)))
        assert (await load(tree, "npy/a.npy")).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GARBAGE" * 20, "not an .npy file"),
        (npy(np.array([None, 1], object), allow_pickle=True), "pickle"),
        (b"\x93NUMPY\x03\x00" + bytes(200), "version 3.0"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(200), "exceeds the limit"),
        (b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').getcwd()".ljust(31) + b"\n", "cannot be parsed"),
        (npy(np.arange(3)) + b"x", "limits the file to"),
    ],
)
@LOST
@trio_test
async def test_what_is_no_npy_file_is_refused_when_it_is_written(data: bytes, reason: str) -> None:
    store = MemoryStore()
    async with tree_over(store) as tree:
        _, handle = await (await folder(tree, "npy")).create("a.npy", ANEW)
        with pytest.raises((ContentInvalid, FileTooLarge), match=reason):
            await handle.write(0, data)
        await handle.release()
        assert not [key async for key in store.list()]
        assert await names(tree, "npy") == set()


@trio_test
async def test_the_header_alone_makes_an_empty_array() -> None:
    """As `numpy.lib.format.open_memmap` leaves it before it maps the file."""
    elements = np.zeros((8, 8), "<i4")
    store = MemoryStore()
    async with tree_over(store, new_chunks="4x8") as tree:
        await write(tree, "npy/a.npy", npy(elements)[:128])
        assert await read(tree, "npy/a.npy") == npy(elements)
        assert await names(tree, "zarr3/a") == {"zarr.json"}


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(npy(np.zeros((8, 8), ">i4"))[:128], id="big-endian"),
        pytest.param(npy(np.zeros((8, 8), "<i4", order="F"))[:128], id="Fortran order"),
        pytest.param(npy(np.zeros((8, 8), [("a", "<i2"), ("b", ">i2")]))[:128], id="a big-endian field"),
        pytest.param(
            b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<i4', 'fortran_order': False, 'shape': (8, 8), }".ljust(69) + b"\n",
            id="short",
        ),
    ],
)
@pytest.mark.parametrize("over", [False, True], ids=["new", "over an array"])
@pytest.mark.parametrize("extended", ["", "by ftruncate", "by its last byte", "by its last byte, which comes first"])
@LOST
@trio_test
async def test_a_header_alone_under_which_elements_are_elsewhere_is_refused(header: bytes, over: bool, extended: str) -> None:
    """A program that maps the file next, as `open_memmap` does, would write the elements where its own header puts them."""
    elements = np.arange(64, dtype="<i4").reshape(8, 8)
    async with tree_over(MemoryStore()) as tree:
        if over:
            await write(tree, "npy/a.npy", npy(elements))
        async with opened(tree, "npy/a.npy", ANEW) if over else created(tree, "a.npy") as handle:
            size = len(header) + elements.nbytes
            if extended.endswith("first"):
                await handle.write(size - 1, b"\0")
            await handle.write(0, header)
            if extended == "by ftruncate":
                await handle.truncate(size)
            elif extended:
                await handle.write(size - 1, b"\0")
            with pytest.raises(ContentInvalid, match="header without elements"):
                await handle.flush()
        assert await names(tree, "npy") == ({"a.npy"} if over else set())
        if over:
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), elements)


@pytest.mark.parametrize("elements", [np.zeros((8, 8), ">i4"), np.zeros((8, 8), "<i4", order="F")])
@trio_test
async def test_an_array_of_zeros_that_are_all_written_is_stored(elements: Elements) -> None:
    async with tree_over(MemoryStore()) as tree:
        await write(tree, "npy/a.npy", npy(elements))
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), elements)


@trio_test
async def test_a_header_alone_in_an_order_that_makes_no_difference() -> None:
    column = np.zeros((8, 1), "<u1")
    header = npy(column)[:128].replace(b"'fortran_order': False, ", b"'fortran_order': True,  ")
    async with tree_over(MemoryStore()) as tree:
        await write(tree, "npy/a.npy", header)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), column)


@pytest.mark.parametrize("kind", ["M8", "m8"])
@DIALECTS
@trio_test
async def test_big_endian_times_are_written_in_pieces_that_end_within_elements(kind: str, dialect: str) -> None:
    """NumPy makes zeros of times without a unit little-endian: the other bytes of such elements were stored in reverse."""
    numbers = (np.arange(1, 21) * 12345).astype(">i8")
    whole = npy(numbers.view(f">{kind}"))
    async with tree_over(MemoryStore(), new_dialect=dialect) as tree:
        directory = await folder(tree, "npy")
        _, handle = await directory.create("a.npy", ANEW)
        await handle.write(0, whole[:128])
        for start in reversed(range(128, len(whole), 50)):
            await handle.write(start, whole[start : start + 50])
            assert await handle.read(start, 50) == whole[start : start + 50]
        await handle.flush()
        await handle.release()
        assert (await load(tree, "npy/a.npy")).view("<i8").tolist() == numbers.tolist()


@pytest.mark.parametrize("elements", [np.arange(64, dtype=">i4").reshape(8, 8), np.asfortranarray(np.arange(64).reshape(8, 8))])
@pytest.mark.parametrize("over", [False, True], ids=["new", "over an array"])
@pytest.mark.parametrize("waits", [False, True], ids=["", "while it is published"])
@trio_test
async def test_a_later_write_in_the_written_layout_is_stale(elements: Elements, over: bool, waits: bool) -> None:
    """A child process that ends, and fsync, publish the file while its program still writes: its offsets are of another layout then."""
    data = npy(elements)
    store = WaitingStore(MemoryStore())
    async with tree_over(store) as tree, trio.open_nursery() as nursery:
        if over:
            await write(tree, "npy/a.npy", npy(np.zeros_like(elements, order="C").astype(elements.dtype.newbyteorder("<"))))
        async with opened(tree, "npy/a.npy", ANEW) if over else created(tree, "a.npy") as handle:
            await handle.write(0, data)
            if waits:
                store.waits.add("set")
                nursery.start_soon(handle.flush)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(_stale, handle)
                await trio.testing.wait_all_tasks_blocked()
                store.let_go()
            else:
                await handle.flush()
            await _stale(handle)
            with pytest.raises(StaleEntry):
                await handle.truncate(len(data))
            await handle.flush()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), elements)


@pytest.mark.parametrize("elements", [np.arange(64, dtype=">i4").reshape(8, 8), np.asfortranarray(np.arange(64).reshape(8, 8))])
@trio_test
async def test_handles_of_a_temporary_file_are_stale_once_it_is_stored_in_another_layout(elements: Elements) -> None:
    """A program that maps a file under a temporary name may write to the mapping after the rename."""
    data = npy(elements)
    async with tree_over(MemoryStore()) as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        async with created(tree, ".a.npy.tmp") as handle:
            await handle.write(0, data)
            await folder.rename(".a.npy.tmp", folder, "a.npy")
            await _stale(handle)
            with pytest.raises(StaleEntry):
                await handle.read(128, 8)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), elements)


async def _stale(handle: Handle) -> None:
    with pytest.raises(StaleEntry):
        await handle.write(128, bytes(8))


@pytest.mark.parametrize("elements", [np.arange(64, dtype=">i4").reshape(8, 8), np.asfortranarray(np.arange(64).reshape(8, 8))])
@pytest.mark.parametrize("preallocated", [False, True], ids=["", "ftruncate first"])
@pytest.mark.parametrize("first", ["header", "elements"])
@pytest.mark.parametrize("piece", [1, 1000])
@trio_test
async def test_the_header_may_be_written_late(elements: Elements, preallocated: bool, first: str, piece: int) -> None:
    """Programs map a file that they have extended, or write the header when they know the shape."""
    data = npy(elements)
    pieces = [(128, data[128:]), (0, data[:128])]
    if first == "header":
        pieces.reverse()
    async with tree_over(MemoryStore(), new_chunks="4x8") as tree:
        async with created(tree, "a.npy") as handle:
            if preallocated:
                await handle.truncate(len(data))
            for offset, part in pieces:
                for start in range(0, len(part), piece):
                    written = part[start : start + piece]
                    await handle.write(offset + start, written)
                    assert bytes(await handle.read(offset + start, len(written))) == written
            assert bytes(await handle.read(0, len(data))) == data
            await handle.flush()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), elements)


@trio_test
async def test_holes_before_a_late_header_are_not_stored() -> None:
    """The elements would take more time and space than any test has."""
    shape = (1 << 30, 1 << 10)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": shape})
    size = len(header.getvalue()) + math.prod(shape) * 4
    store = MemoryStore()
    async with tree_over(store, new_chunks="1024x1024") as tree:
        async with created(tree, "a.npy") as handle:
            await handle.truncate(size)
            await handle.write(size - 4, b"\5\0\0\0")
            assert tree.staging.dirty_nbytes < 1 << 20
            await handle.write(0, header.getvalue())
            await handle.flush()
        async with opened(tree, "npy/a.npy", READ_ONLY) as handle:
            assert bytes(await handle.read(size - 8, 8)) == b"\0\0\0\0\5\0\0\0"
        assert len([key async for key in store.list_prefix(Prefix("a/c/"))]) == 1


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_elements_before_the_header_that_there_is_no_room_for_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    elements = np.arange(1 << 20, dtype="<i4")
    data, write = npy(elements), ArrayWriter.write
    full = True

    async def no_room(self: ArrayWriter, offset: int, piece: Buffer, changed: Mask | None = None) -> None:
        if full and offset > 1 << 20:
            raise StoreFull("no room to stage more")
        await write(self, offset, piece, changed)

    monkeypatch.setattr(ArrayWriter, "write", no_room)
    async with tree_over(MemoryStore()) as tree:
        async with created(tree, "a.npy") as handle:
            await handle.write(128, data[128:])
            for offset in (0, len(data) - 4):
                with pytest.raises(StoreFull):
                    await handle.write(offset, data[offset : max(128, offset + 4)])
            with pytest.raises(StoreFull):
                await handle.flush()
            assert bytes(await handle.read(0, len(data))) == data
            full = False
            await handle.flush()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), elements)


@trio_test
async def test_what_was_there_before_a_write_that_failed_in_part_can_be_written_back(tmp_path: Path) -> None:
    """Bytes that the program had read were no change, although the write had staged others."""
    cache, count = tmp_path / "cache", 3 << 18
    cache.mkdir()
    async with tree_over(MemoryStore(), memory_limit="16MiB", cache_dir=str(cache), new_chunks=str(count)) as tree:
        elements = np.arange(2 * count, dtype="<i4")
        data = npy(elements)
        await write(tree, "npy/a.npy", data)
        at = data_offset(data) + 4 * (count - 1)
        page = at - at % 4096
        async with opened(tree, "npy/a.npy", WRITE) as handle:
            read_before = bytes(await handle.read(page, 8192))[at - page :][:8]
            await handle.write(data_offset(data), b"\1\0\0\0")
            cache.rmdir()
            # A missing folder would be created again.
            cache.touch()
            with pytest.raises(StoreError):
                # Of two chunks: there is memory for the first one.
                await handle.write(at, b"\xff" * 8)
            cache.unlink()
            await handle.write(at, read_before)
            await handle.flush()
        elements[0] = 1
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), elements)


@LOST
@pytest.mark.parametrize("failing", ["header", "elements"])
@pytest.mark.parametrize("is_there", [True, False], ids=["saved over", "new"])
@trio_test
async def test_a_file_of_which_only_the_header_could_be_written_is_no_array_of_zeros(
    failing: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python writes the header again when it closes the file after the error."""
    data, name = npy(np.arange(16, dtype="<i4")), "write" if failing == "elements" else "_look_for_head"
    owner: type[Any] = ArrayWriter if failing == "elements" else NewArrayStage
    real = getattr(owner, name)

    async def full(*arguments: Any) -> None:
        raise StoreFull("no room to stage more")

    store = MemoryStore()
    async with tree_over(store) as tree:
        if is_there:
            await write(tree, "npy/a.npy", data)
        before = await contents(store)
        async with emptied(tree, "a.npy") as handle:
            if failing == "elements":
                await handle.write(0, data[:128])
            monkeypatch.setattr(owner, name, full)
            with pytest.raises(StoreFull):
                await (handle.write(0, data[:128]) if failing == "header" else handle.write(128, data[128:]))
            monkeypatch.setattr(owner, name, real)
            if failing == "header":
                await handle.write(0, data[:128])
            with pytest.raises(ContentInvalid, match="a header without elements, since a write failed"):
                await handle.flush()
        assert await contents(store) == before

        async with emptied(tree, "a.npy") as handle:
            monkeypatch.setattr(owner, name, full)
            with pytest.raises(StoreFull):
                await handle.write(0, data)
            monkeypatch.setattr(owner, name, real)
            await handle.write(0, data)
            await handle.flush()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), np.arange(16))


@trio_test
async def test_a_hole_is_zeros() -> None:
    data = npy(np.zeros((8, 8), "<i4"))
    store = MemoryStore()
    async with tree_over(store, new_chunks="4x8") as tree:
        _, handle = await (await folder(tree, "npy")).create("a.npy", ANEW)
        await handle.write(0, data[:128])
        await handle.write(len(data) - 1, b"\0")
        await handle.flush()
        await handle.write(len(data) - 4, np.array([5], "<i4").tobytes())
        await handle.flush()
        await handle.release()
        assert (await load(tree, "npy/a.npy")).sum() == 5


@DIALECTS
@trio_test
async def test_names_are_those_that_the_dialect_allows(dialect: str) -> None:
    async with tree_over(MemoryStore(), new_dialect=dialect) as tree:
        with pytest.raises(NameInvalid):
            await (await folder(tree, "npy")).create("zarr.json.npy" if dialect == "v3" else "ü.npy", ANEW)


@trio_test
async def test_a_name_that_is_a_group_or_there_already_is_refused() -> None:
    example = Example((4,), (2,))
    async with tree_over(await store_with(example.values("g/a"))) as tree:
        with pytest.raises(EntryExists):
            await (await folder(tree, "npy")).create("g.npy", ANEW)
        with pytest.raises(EntryExists):
            await (await folder(tree, "npy/g")).create("a.npy", ANEW)


@trio_test
async def test_a_read_only_mount_takes_nothing() -> None:
    example = Example((4,), (2,))
    async with tree_over(await store_with(example.values("a")), read_only="yes") as tree:
        with pytest.raises(StoreReadOnly):
            await (await folder(tree, "npy")).create("b.npy", ANEW)
        with pytest.raises(NotPermitted):
            async with opened(tree, "npy/a.npy"):
                pass
        with pytest.raises(StoreReadOnly):
            await (await folder(tree, "npy")).unlink("a.npy")


# --- replaced ---------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_the_same_shape_and_type_keeps_metadata_and_attributes() -> None:
    example = Example((4, 4), (2, 2), "<i4")
    store = await store_with(example.values("a") | {"a/.zattrs": b'{"units": "m"}'})
    async with tree_over(store) as tree:
        new = np.arange(16, dtype="<i4").reshape(4, 4)
        new[:2, :2] = FILL
        await write(tree, "npy/a.npy", npy(np.asfortranarray(new)))
        found = await in_zarr(store, "a")
        np.testing.assert_array_equal(found[...], new)
        assert found.attrs["units"] == "m"
        assert found.chunks == (2, 2)
        # Chunks equal to the fill value are not stored.
        assert await store.get(Key("a/0.0")) is None
        assert np.load(io.BytesIO(await read(tree, "npy/a.npy"))).flags.c_contiguous


@trio_test
async def test_holes_in_a_replaced_array_are_zeros_whatever_its_fill_value() -> None:
    example = Example((8,), (2,), "<i4")
    store = await store_with(example.values("a"))
    async with tree_over(store) as tree:
        data = npy(np.zeros(8, "<i4"))
        async with opened(tree, "npy/a.npy", ANEW) as handle:
            await handle.write(0, data[:128])
            await handle.truncate(len(data))
            await handle.flush()
        assert (await in_zarr(store, "a"))[...].tolist() == [0] * 8


@trio_test
async def test_elements_that_equal_the_fill_value_are_no_holes_when_storing_is_tried_again() -> None:
    example = Example((8,), (2,), "<i4")
    store = Full()
    await fill(store, example.values("a"))
    async with tree_over(store) as tree:
        new = npy(np.array([FILL] * 7 + [5], "<i4"))
        async with opened(tree, "npy/a.npy", ANEW) as handle:
            await handle.write(0, new)
            store.full = True
            with pytest.raises(StoreFull):
                await handle.flush()
            assert bytes(await handle.read(0, len(new))) == new
            store.full = False
            await handle.flush()
        assert (await in_zarr(store, "a"))[...].tolist() == [FILL] * 7 + [5]


@DIALECTS
@trio_test
async def test_another_shape_replaces_the_array_as_a_whole_and_keeps_its_attributes(dialect: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_chunks="3", new_dialect=dialect) as tree:
        await (await folder(tree, "npy")).mkdir("g")
        await write(tree, "npy/g/a.npy", npy(np.arange(1, 17).reshape(4, 4)))
        await write(tree, "chunks/g/a/.zattrs", b'{"units": "m"}')
        new = np.arange(1.0, 6.0)
        await write(tree, "npy/g/a.npy", npy(new))
        found = await in_zarr(store, "g/a")
        np.testing.assert_array_equal(found[...], new)
        assert dict(found.attrs) == {"units": "m"}
        assert found.metadata.zarr_format == int(dialect[1])
        left = sorted([key async for key in store.list_prefix(Prefix("g/a/"))])
        assert left == (
            ["g/a/.zarray", "g/a/.zattrs", "g/a/0", "g/a/1"] if dialect == "v2" else ["g/a/c/0", "g/a/c/1", "g/a/zarr.json"]
        )


@pytest.mark.parametrize("cut", [0, 5, -1])
@LOST
@trio_test
async def test_a_short_replacement_loses_nothing(cut: int) -> None:
    example = Example((4, 4), (2, 2), "<i4")
    store = await store_with(example.values("a"))
    async with tree_over(store, memory_limit="0") as tree:
        whole = await read(tree, "npy/a.npy")
        async with opened(tree, "npy/a.npy", ANEW) as handle:
            data = npy(np.ones((9, 9)))[:cut]
            if data:
                await handle.write(0, data)
                with pytest.raises(ContentInvalid):
                    await handle.flush()
                # Others see the old array until the new one is stored.
                assert len(await read(tree, "chunks/a/0.0")) == 16
        assert await read(tree, "npy/a.npy") == whole


@LOST
@DIALECTS
@pytest.mark.parametrize("mended", [False, True])
@trio_test
async def test_an_array_whose_replacement_finds_no_room_is_there_again(mended: bool, dialect: str) -> None:
    store = Full()
    async with tree_over(store, new_dialect=dialect, new_chunks="2x2") as tree:
        old, new = np.arange(1, 17).reshape(4, 4), np.arange(1.0, 10.0).reshape(3, 3)
        await write(tree, "npy/a.npy", npy(old))
        await write(tree, "chunks/a/.zattrs", b'{"units": "m"}')
        async with opened(tree, "npy/a.npy", ANEW) as handle:
            await handle.write(0, npy(new))
            store.full = True
            for _ in range(2):
                with pytest.raises(StoreFull):
                    await handle.flush()
            assert bytes(await handle.read(0, 1000)) == npy(new)
            if mended:
                store.full = False
                await handle.flush()
        found = await in_zarr(store, "a")
        np.testing.assert_array_equal(found[...], new if mended else old)
        assert dict(found.attrs) == {"units": "m"}
        store.full = False
        assert await names(tree, "npy") == {"a.npy"}
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), new if mended else old)


# --- erased and renamed -----------------------------------------------------------------------------------------------------------


@pytest.mark.logs("loses its name")
@trio_test
async def test_rm_erases_the_array_and_leaves_its_group() -> None:
    example = Example((4,), (2,))
    store = await store_with(example.values("g/a"))
    async with tree_over(store) as tree:
        async with opened(tree, "npy/g/a.npy", READ_ONLY) as reader:
            await (await folder(tree, "npy/g")).unlink("a.npy")
            with pytest.raises((StaleEntry, NoSuchEntry)):
                await reader.read(0, 10)
        assert await names(tree, "npy") == {"g"}
        assert await names(tree, "npy/g") == set()
        assert not [key async for key in store.list() if key.startswith("g/a")]


@trio_test
async def test_a_new_file_that_is_removed_while_it_is_written_is_gone() -> None:
    store = MemoryStore()
    async with tree_over(store, memory_limit="0", new_chunks="2") as tree:
        npy_folder = await folder(tree, "npy")
        _, handle = await npy_folder.create("a.npy", ANEW)
        await handle.write(0, npy(np.arange(1, 9)))
        await npy_folder.unlink("a.npy")
        assert await names(tree, "npy") == set()
        await handle.flush()
        await handle.release()
        assert not [key async for key in store.list()]


@trio_test
async def test_mv_renames_replaces_and_goes_into_groups() -> None:
    one, two = Example((4,), (2,), "<i4"), Example((6,), (3,), "<i2")
    store = await store_with(
        one.values("a") | two.values("g/b") | {".zgroup": b'{"zarr_format":2}', "g/.zgroup": b'{"zarr_format":2}'}
    )
    async with tree_over(store) as tree:
        whole = await read(tree, "npy/a.npy")
        root, group = await folder(tree, "npy"), await folder(tree, "npy/g")
        await root.rename("a.npy", group, "c.npy")
        assert await read(tree, "npy/g/c.npy") == whole
        with pytest.raises(EntryExists):
            await group.rename("c.npy", group, "b.npy", replace=False)
        await group.rename("c.npy", group, "b.npy")
        assert await read(tree, "npy/g/b.npy") == whole
        assert await names(tree, "npy/g") == {"b.npy"}
        assert await names(tree, "npy") == {"g"}
        np.testing.assert_array_equal((await in_zarr(store, "g/b"))[...], one.elements)
        await root.rename("g", root, "h")
        assert await read(tree, "npy/h/b.npy") == whole


@trio_test
async def test_a_temporary_name_becomes_an_array_when_it_is_renamed() -> None:
    """As rsync, and `mv` between file systems, write: under a hidden name first."""
    store = MemoryStore()
    elements = np.arange(10.0)
    async with tree_over(store) as tree:
        await write(tree, "npy/.a.npy.Xy12Z", npy(elements))
        await write(tree, "npy/.b.npy.Xy12Z", npy(elements)[:-1])
        assert not [key async for key in store.list()]
        root = await folder(tree, "npy")
        await root.rename(".a.npy.Xy12Z", root, "a.npy")
        np.testing.assert_array_equal((await in_zarr(store, "a"))[...], elements)
        with pytest.raises(ContentInvalid):
            await root.rename(".b.npy.Xy12Z", root, "b.npy")
        with pytest.raises(NameInvalid):
            await root.rename("a.npy", root, "a.txt")
        assert await names(tree, "npy") == {"a.npy", ".b.npy.Xy12Z"}


@trio_test
async def test_groups_are_made_and_removed() -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v2") as tree:
        root = await folder(tree, "npy")
        group = await root.mkdir("g")
        await write(tree, "npy/g/a.npy", npy(np.arange(3)))
        assert {".zgroup", "g/.zgroup", "g/a/.zarray"} <= {key async for key in store.list()}
        await group.unlink("a.npy")
        await root.rmdir("g")
        assert {key async for key in store.list()} == {".zgroup"}


@trio_test
async def test_a_time_that_was_set_stays_until_the_array_is_changed() -> None:
    """`rsync -a` sets it, and compares it to decide that nothing has to be transferred again."""
    elements = npy(np.arange(10.0))
    async with tree_over(MemoryStore()) as tree:
        root = await folder(tree, "npy")
        await write(tree, "npy/.a.npy.Xy12Z", elements)
        await (await walk(tree, "npy/.a.npy.Xy12Z")).set_mtime(10**18)
        await root.rename(".a.npy.Xy12Z", root, "a.npy")
        assert (await (await walk(tree, "npy/a.npy")).attributes()).mtime_ns == 10**18
        assert (await listing(tree, "npy"))["a.npy"][3] == 10**18
        async with opened(tree, "npy/a.npy") as handle:
            await handle.write(len(elements) - 8, bytes(8))
        assert (await (await walk(tree, "npy/a.npy")).attributes()).mtime_ns != 10**18


@pytest.mark.parametrize("same", [False, True], ids=["new", "same shape"])
@trio_test
async def test_what_others_put_in_the_place_of_an_array_is_not_the_file_that_became_it(same: bool, tmp_path: Path) -> None:
    """The program that wrote the file and has it open reads nothing of theirs, even without a request in between."""
    store = tmp_path / "store"
    zarr.create_group(str(store), zarr_format=3)
    for name in ("theirs", "a") if same else ("theirs",):
        zarr.create_array(str(store / name), shape=(4,), chunks=(2,), dtype="<i4", zarr_format=3)[...] = 5
    async with tree_of(store, watch="no") as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        flags = OpenFlags(read=True, write=True, truncate=True)
        if same:
            file = await walk(tree, "npy/a.npy")
            assert isinstance(file, File)
            handle = await file.open(flags)
        else:
            _, handle = await folder.create("a.npy", flags)
        await handle.write(0, npy(np.full(4, 7, "<i4")))
        await handle.flush()
        (store / "a").rename(tmp_path / "aside")
        (store / "theirs").rename(store / "a")
        for _ in range(2):
            with pytest.raises(StaleEntry, match="another"):
                await handle.read(0, 1000)
        assert np.frombuffer(await read(tree, "npy/a.npy"), "<i4")[-4:].tolist() == [5] * 4
        with pytest.raises(StaleEntry, match="another"):
            await handle.read(0, 1000)
        await handle.release()
    assert zarr.open_array(str(tmp_path / "aside"), mode="r")[...].tolist() == [7] * 4
