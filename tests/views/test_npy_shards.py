"""Whole-array files over sharded arrays: reads, writes, and the number of requests to the store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support import zarr_python
from tests.support.length import tries
from tests.support.stores import WaitingStore, fill
from tests.support.trees import load, read, tree_over, walk
from tests.views.test_npy_write import ANEW, Elements, Full, data_offset, in_zarr, npy, opened, operations
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StoreTimeout
from zarrfs.hierarchy.queued import QueuedShards
from zarrfs.keys import Contents, IfUnsynced, Key, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory

FILL = 7
Grid = tuple[int, ...]


def values(elements: Elements, chunks: Grid, shards: Grid, **options: Any) -> dict[str, bytes]:
    """Return the keys and values of a sharded array ``a``."""

    def make(group: Any) -> None:
        array = group.create_array(
            "a", shape=elements.shape, dtype=elements.dtype, chunks=chunks, shards=shards, **{"fill_value": FILL} | options
        )
        array[...] = elements

    return zarr_python.written(3, make)


async def store_with(store: MemoryStore, elements: Elements, chunks: Grid, shards: Grid, **options: Any) -> MemoryStore:
    await fill(store, values(elements, chunks, shards, **options))
    return store


def numbered(*shape: int) -> Elements:
    return np.arange(100, 100 + int(np.prod(shape)), dtype="<i4").reshape(shape)


class Costs:
    """Counts of store operations and codec calls since its creation."""

    def __init__(self, tree: MountTree) -> None:
        self._tree = tree
        self._before = self._now()

    def _now(self) -> dict[str, int]:
        counters = self._tree.counters
        return operations(self._tree) | {
            "decoded": counters.chunks_decoded,
            "encoded": counters.chunks_encoded,
            "indexes": counters.shard_indexes_read,
        }

    def of(self, *names: str) -> tuple[int, ...]:
        now = self._now()
        return tuple(now[name] - self._before[name] for name in names)

    @property
    def reads(self) -> int:
        """Reads of values or parts of them, including indexes."""
        return sum(self.of("get", "get_partial_values"))


# --- existing arrays --------------------------------------------------------------------------------------------------------------


@tries(60)
@given(data=st.data())
def test_any_writes_are_as_on_a_local_file(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(1, 3))

    def lengths(low: int, high: int) -> Grid:
        return tuple(data.draw(st.lists(st.integers(low, high), min_size=ndim, max_size=ndim)))

    shape, chunks, factors = lengths(1, 11), lengths(1, 3), lengths(1, 3)
    shards = tuple(chunk * factor for chunk, factor in zip(chunks, factors, strict=True))
    memory_limit = data.draw(st.sampled_from(["1MiB", "0"]), label="memory")
    delay = data.draw(st.sampled_from(["0", "60"]), label="delay")

    async def main() -> None:
        old = numbered(*shape)
        # A part of it is not stored.
        old[data.draw(st.sampled_from([(), (0,), (slice(0, 2),)]))] = FILL
        store = await store_with(MemoryStore(), old, chunks, shards)
        async with tree_over(store, memory_limit=memory_limit, shard_delay=delay) as tree:
            whole = npy(old)
            assert await read(tree, "npy/a.npy") == whole
            head = data_offset(whole)
            anew = data.draw(st.booleans(), label="anew")
            fortran = anew and data.draw(st.booleans(), label="fortran")
            dtype = np.dtype(">i4" if anew and data.draw(st.booleans(), label="big") else "<i4")
            # The content of the file, in its own order.
            model = bytearray(b"\0" * old.nbytes if anew else old.tobytes())

            async def check() -> None:
                flat = np.frombuffer(bytes(model), dtype)
                expected = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
                np.testing.assert_array_equal((await in_zarr(store, "a"))[...], expected)

            async with opened(tree, "npy/a.npy", *([ANEW] if anew else [])) as handle:
                if anew:
                    form = np.zeros(shape, dtype, order="F" if fortran else "C")
                    await handle.write(0, npy(form)[:head] if form.flags.c_contiguous == (not fortran) else npy_head(form))
                    await handle.truncate(len(whole))
                for _ in range(data.draw(st.integers(1, 5))):
                    offset = data.draw(st.integers(0, len(model) - 1), label="offset")
                    size = data.draw(st.integers(1, len(model) - offset), label="size")
                    # Often the fill value, so that chunks are erased.
                    new = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
                    if data.draw(st.booleans(), label="fill"):
                        new = np.resize(np.array([FILL], dtype).view(np.uint8), len(model))[offset : offset + size]
                    await handle.write(head + offset, new.tobytes())
                    model[offset : offset + size] = new.tobytes()
                    begin = data.draw(st.integers(0, len(model) - 1))
                    assert bytes(await handle.read(head + begin, 50)) == bytes(model[begin : begin + 50])
                    # After a flush the file has the header of the stored array, so only the same header may be used again.
                    if dtype.str == "<i4" and not fortran and data.draw(st.booleans(), label="flush"):
                        await handle.flush()
                        assert tree.staging.dirty_nbytes == 0
                        await check()
            await check()
            budget = tree.staging.room.budget
            assert budget is not None
            assert budget.nbytes == 0

    trio.run(main)


def npy_head(form: Elements) -> bytes:
    """Return a header with Fortran order, even for an array that is in both orders."""
    return npy(form)[: data_offset(npy(form))].replace(b"'fortran_order': False,", b"'fortran_order': True, ")


# --- costs ------------------------------------------------------------------------------------------------------------------------

SHAPE, CHUNKS, SHARDS = (64, 48), (4, 4), (32, 16)
"""Six shards of 32 chunks."""


@pytest.mark.parametrize("memory_limit", ["512MiB", "0"])
@trio_test
async def test_a_whole_file_costs_one_set_a_shard_and_no_read(memory_limit: str) -> None:
    store = await store_with(MemoryStore(), numbered(*SHAPE), CHUNKS, SHARDS)
    async with tree_over(store, memory_limit=memory_limit) as tree:
        new = numbered(*SHAPE) * 3
        new[:32, :16] = FILL
        new[40, 40] = FILL
        await read(tree, "npy/a.npy")
        async with opened(tree, "npy/a.npy", ANEW) as handle:
            costs = Costs(tree)
            await handle.write(0, npy(new))
            await handle.flush()
        # Whether there are values to erase was determined when the array was opened.
        assert costs.of("set", "erase", "encoded", "decoded", "indexes") == (5, 1, 5 * 32, 0, 0)
        assert costs.reads == 0
        assert costs.of("list_dir", "list_prefix") == (0, 0)
        np.testing.assert_array_equal((await in_zarr(store, "a"))[...], new)
        # A shard of fill values alone is not stored.
        assert await store.get(Key("a/c/0/0")) is None


@pytest.mark.parametrize("step", [1000, 4 * 48, 9999])
@pytest.mark.parametrize("memory_limit", ["512MiB", "0"])
@pytest.mark.parametrize("shuffled", [False, True])
@trio_test
async def test_a_pass_in_pieces_reads_nothing_and_sets_each_shard_once(step: int, memory_limit: str, shuffled: bool) -> None:
    store = await store_with(MemoryStore(), numbered(*SHAPE), CHUNKS, SHARDS)
    async with tree_over(store, memory_limit=memory_limit) as tree:
        head = data_offset(await read(tree, "npy/a.npy"))
        new = numbered(*SHAPE) * 5
        offsets = list(range(0, new.nbytes, step))
        if shuffled:
            random.Random(step).shuffle(offsets)
        async with opened(tree, "npy/a.npy") as handle:
            costs = Costs(tree)
            for offset in offsets:
                # Pieces end with elements.
                await handle.write(head + offset // 4 * 4, new.tobytes()[offset // 4 * 4 : (offset + step) // 4 * 4])
            await handle.flush()
        assert costs.of("set", "encoded", "decoded", "indexes") == (6, 6 * 32, 0, 0)
        assert costs.reads == 0
        np.testing.assert_array_equal((await in_zarr(store, "a"))[...], new)


@trio_test
async def test_chunks_of_one_shard_cost_one_set_and_each_read_once() -> None:
    old = numbered(*SHAPE)
    store = await store_with(MemoryStore(), old, CHUNKS, SHARDS)
    async with tree_over(store) as tree:
        head = data_offset(npy(old))
        new = old.copy()
        async with opened(tree, "npy/a.npy") as handle:
            # Eight chunks, written whole: the others of the shard are copied to the new value, and none is decoded.
            costs = Costs(tree)
            new[:8, :16] = -1
            for row in range(8):
                await handle.write(head + row * 48 * 4, new[row, :16].tobytes())
            await handle.flush()
            assert costs.of("set", "encoded", "decoded", "indexes") == (1, 8, 0, 1)
            assert costs.reads == 2
            # Four chunks, written in part: their missing parts are read together.
            costs = Costs(tree)
            new[33, 20:31] = -2
            await handle.write(head + (33 * 48 + 20) * 4, new[33, 20:31].tobytes())
            await handle.flush()
            assert costs.of("set", "encoded", "decoded", "indexes") == (1, 3, 3, 1)
            assert costs.reads == 3
        np.testing.assert_array_equal((await in_zarr(store, "a"))[...], new)


@trio_test
async def test_a_whole_file_is_in_the_store_when_it_is_closed() -> None:
    """This holds however long chunks written one by one are queued for their shards."""
    store = await store_with(MemoryStore(), numbered(*SHAPE), CHUNKS, SHARDS)
    async with tree_over(store, shard_delay="1000") as tree:
        async with opened(tree, "npy/a.npy") as handle:
            await handle.write(data_offset(npy(numbered(*SHAPE))), np.array([5], "<i4").tobytes())
            await handle.flush()
            assert (await in_zarr(store, "a"))[0, 0] == 5
            assert tree.stats()["pending_shards"] == 0


@pytest.mark.parametrize("fill_value", [0, FILL])
@trio_test
async def test_what_a_replaced_array_leaves_out_is_zeros(fill_value: int) -> None:
    old = numbered(*SHAPE)
    store = await store_with(MemoryStore(), old, CHUNKS, SHARDS, fill_value=fill_value)
    async with tree_over(store) as tree:
        data = npy(np.zeros_like(old))
        head = data_offset(data)
        async with opened(tree, "npy/a.npy", ANEW) as handle:
            await handle.write(0, data[:head])
            await handle.truncate(len(data))
            await handle.write(head, numbered(1, 48).tobytes())
            costs = Costs(tree)
            await handle.flush()
        # Replaced shards are not read; of erased ones, only the index.
        assert costs.of("set", "erase", "indexes") == ((3, 3, 3) if fill_value == 0 else (6, 0, 0))
        assert costs.reads <= 3
        expected = np.zeros_like(old)
        expected[0] = numbered(1, 48)
        np.testing.assert_array_equal((await in_zarr(store, "a"))[...], expected)


class Synced(MemoryStore):
    """Records the keys that it has to make durable."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[str] = set()

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        self.synced |= {target for target in targets if not isinstance(target, Contents | IfUnsynced)}


@pytest.mark.parametrize("whole", [False, True])
@trio_test
async def test_fsync_makes_what_was_erased_durable_too(whole: bool) -> None:
    old = numbered(*SHAPE)
    store = Synced()
    await store_with(store, old, CHUNKS, SHARDS)
    async with tree_over(store) as tree:
        head = data_offset(await read(tree, "npy/a.npy"))
        async with opened(tree, "npy/a.npy") as handle:
            for row in range(32 if whole else 4):
                await handle.write(head + row * 48 * 4, np.full(16 if whole else 4, FILL, "<i4").tobytes())
            await handle.fsync()
            assert store.synced == {"a/c/0/0"}
            assert (await store.get(Key("a/c/0/0")) is None) == whole


@pytest.mark.logs("given up by its caller, ended: no space left")
@pytest.mark.parametrize("part", [False, True])
@trio_test
async def test_a_full_store_is_told_at_flush_and_nothing_is_lost(part: bool) -> None:
    old = numbered(*SHAPE)
    store = Full()
    await store_with(store, old, CHUNKS, SHARDS)
    async with tree_over(store) as tree:
        whole = await read(tree, "npy/a.npy")
        head = data_offset(whole)
        new = old.copy()
        new[: 3 if part else 64] *= 2
        async with opened(tree, "npy/a.npy") as handle:
            await handle.write(head, new[: 3 if part else 64].tobytes())
            store.full = True
            for _ in range(2):
                with pytest.raises(Exception, match="no space left"):
                    await handle.flush()
            assert bytes(await handle.read(head, new.nbytes)) == new.tobytes()
            np.testing.assert_array_equal((await in_zarr(store, "a"))[...], old)
            store.full = False
            await handle.flush()
        np.testing.assert_array_equal((await in_zarr(store, "a"))[...], new)
        assert await read(tree, "npy/a.npy") == npy(new)


@pytest.mark.parametrize("memory_limit", ["512MiB", "0"])
@trio_test
async def test_a_pass_decodes_each_chunk_and_reads_each_index_once(memory_limit: str) -> None:
    elements = numbered(*SHAPE)
    elements[:4, :8] = FILL
    store = await store_with(MemoryStore(), elements, CHUNKS, SHARDS)
    async with tree_over(store, memory_limit=memory_limit) as tree:
        async with opened(tree, "npy/a.npy") as handle:
            costs = Costs(tree)
            found = b"".join([bytes(await handle.read(offset, 777)) for offset in range(0, elements.nbytes + 128, 777)])
        assert found == npy(elements)
        assert costs.of("decoded", "indexes") == (6 * 32 - 2, 6)


# --- arrays that replace others ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c", "b"], ids=["free", "taken"])
@trio_test
async def test_what_is_written_while_an_array_is_renamed_goes_along(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Chunks queued for shards are stored before the rename.

    Those queued after that, until the array is locked, stay queued. Writes to the replaced array go with it.
    """

    def make(group: Any) -> None:
        for name in "ab":
            group.create_array(name, shape=(16,), dtype="<i4", chunks=(4,), shards=(8,), fill_value=FILL)[...] = 0

    store = MemoryStore()
    await fill(store, zarr_python.written(3, make))
    async with tree_over(store, shard_delay="600", cache_dir=str(tmp_path)) as tree:
        async with opened(tree, "chunks/a/0") as handle:
            await handle.write(0, bytes(16))
            await handle.flush()
        publish = QueuedShards.publish

        async def and_then_written(queued: QueuedShards, target: Key | Prefix) -> None:
            monkeypatch.undo()
            await publish(queued, target)
            for name in "ab":
                async with opened(tree, f"chunks/{name}/1") as handle:
                    await handle.write(0, np.full(4, ord(name), "<i4").tobytes())
                    await handle.flush()

        monkeypatch.setattr(QueuedShards, "publish", and_then_written)
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        await folder.rename("a.npy", folder, f"{name}.npy")
        expected = [*[0] * 4, *[ord("a")] * 4, *[0] * 8]
        assert np.frombuffer(await read(tree, f"npy/{name}.npy"), "<i4")[-16:].tolist() == expected
        await tree.publish_all()
    assert (await in_zarr(store, name))[...].tolist() == expected
    assert not os.path.exists(tmp_path / "rescued")  # noqa: ASYNC240


@pytest.mark.logs("")
@trio_test
async def test_a_chunk_whose_store_was_refused_and_took_effect_later_is_read_as_stored() -> None:
    """The end of that set was no change, since its chunks had been announced: other views showed the value of before for long."""
    elements = numbered(8)
    inner = await store_with(MemoryStore(), elements, (2,), (8,))
    store = WaitingStore(inner, stubborn=True)
    async with tree_over(store, shard_delay="0", timeout="0.2", metadata_ttl="1000000") as tree:
        async with opened(tree, "chunks/a/0") as handle:
            await handle.write(0, numbered(2)[::-1].tobytes())
            store.waits.add("set")
            with pytest.raises(StoreTimeout):
                await handle.flush()
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), elements)
            before = await inner.get(Key("a/c/0"))
            store.let_go()
            while await inner.get(Key("a/c/0")) == before:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert (await load(tree, "npy/a.npy"))[:2].tolist() == elements[:2][::-1].tolist()
