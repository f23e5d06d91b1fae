"""``npy/``: headers, shapes without elements, types that NumPy lacks, arrays without a file."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.arrays import Example, examples
from tests.support.length import unhurried
from tests.support.small_stores import array_document
from tests.support.stores import HangingStore, fill
from tests.support.trees import READ_ONLY, load, names, read, tree_over, walk, write
from zarrfs.errors import StaleEntry
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

GROUP = b'{"zarr_format":2}'


async def store_with(values: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    await fill(store, {".zgroup": GROUP, **values})
    return store


def v3_array(data_type: Any, shape: tuple[int, ...] = (3,), fill_value: Any = 0, **more: Any) -> bytes:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2] * len(shape)}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill_value,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    return json.dumps(document | more).encode()


@unhurried
@given(example=examples(), start=st.integers(0, 400), size=st.integers(0, 400))
def test_any_range_of_the_file_is_what_numpy_would_write(example: Example, start: int, size: int) -> None:
    expected = io.BytesIO()
    np.lib.format.write_array(expected, example.elements, version=(1, 0))

    async def main() -> None:
        async with tree_over(await store_with(example.values("a"))) as tree:
            file = await walk(tree, "npy/a.npy")
            assert isinstance(file, File)
            handle = await file.open(READ_ONLY)
            assert bytes(await handle.read(start, size)) == expected.getvalue()[start : start + size]
            await handle.release()
            assert await read(tree, "npy/a.npy") == expected.getvalue()

    trio.run(main)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2**62), (2**62, 0)])
@trio_test
async def test_without_elements_there_is_a_header_and_no_chunk(shape: tuple[int, ...]) -> None:
    async with tree_over(await store_with({"a/.zarray": array_document(shape, (1,) * len(shape))})) as tree:
        header = io.BytesIO(await read(tree, "npy/a.npy"))
        assert np.lib.format.read_magic(header) == (1, 0)
        assert np.lib.format.read_array_header_1_0(header) == (shape, False, np.dtype("<i4"))
        assert header.read() == b""
        assert await names(tree, "chunks/a") == {".zarray"}


@trio_test
async def test_a_chunk_length_of_zero_where_the_dimension_is_zero() -> None:
    async with tree_over(await store_with({"a/.zarray": array_document((0, 3), (0, 3))})) as tree:
        assert (await load(tree, "npy/a.npy")).shape == (0, 3)
        assert await names(tree, "chunks/a") == {".zarray"}


@pytest.mark.parametrize("stored", [False, True])
@trio_test
async def test_a_zero_dimensional_array(stored: bool) -> None:
    example = Example((), (), "<f8", frozenset() if stored else frozenset({()}))
    async with tree_over(await store_with(example.values("a"))) as tree:
        assert await load(tree, "npy/a.npy") == (1 if stored else 7)
        assert await names(tree, "chunks/a") == {".zarray", "0"} if stored else {".zarray"}


@pytest.mark.parametrize(
    ("shape", "dtype", "shown"),
    [
        ((2**62,), "|u1", True),
        ((2**63 - 129,), "|u1", True),
        ((2**63 - 128,), "|u1", False),
        ((2**62, 8), "<f8", False),
        ((2**31, 2**31), "<f8", False),
    ],
)
@trio_test
async def test_huge_shapes(shape: tuple[int, ...], dtype: str, shown: bool) -> None:
    async with tree_over(await store_with({"a/.zarray": array_document(shape, (1,) * len(shape), dtype)})) as tree:
        if shown:
            file = await walk(tree, "npy/a.npy")
            assert isinstance(file, File)
            size = (await file.attributes()).size
            assert size < 2**63
            handle = await file.open(READ_ONLY)
            assert bytes(await handle.read(size - 10, 100)) == b"\7" * 10
            await handle.release()
        assert await names(tree, "npy") == {"a.npy" if shown else "a.unsupported.txt"}
        assert await names(tree, "chunks/a") == {".zarray"}
        if not shown:
            assert b"exceeds the maximum file size" in await read(tree, "npy/a.unsupported.txt")


@trio_test
async def test_types_that_numpy_lacks_are_void_of_the_same_width() -> None:
    bits = np.array([0x3F80, 0x7FC1, 0x8000, 0], "<u2")
    store = await store_with(
        {
            "b/zarr.json": v3_array("bfloat16", (3,), "NaN", dimension_names=["x"], attributes={"units": "K"}),
            "b/c/0": bits[:2].tobytes(),
            "f/zarr.json": v3_array("float8_e4m3fn", (2,), 0.0, codecs=[{"name": "bytes"}]),
        }
    )
    async with tree_over(store) as tree:
        shown = await load(tree, "npy/b.npy")
        assert shown.dtype == "|V2"
        assert shown.tobytes() == np.array([0x3F80, 0x7FC1, 0x7FC0], "<u2").tobytes()
        assert (await load(tree, "npy/f.npy")).dtype == "|V1"
        document = json.loads(await read(tree, "chunks/b/.zarray"))
        assert document["dtype"] == "|V2"
        attributes = json.loads(await read(tree, "chunks/b/.zattrs"))
        assert attributes == {"units": "K", "_ARRAY_DIMENSIONS": ["x"], "zarrfs": {"data_type": "bfloat16"}}
        assert await read(tree, "chunks/b/0") == bits[:2].tobytes()


@pytest.mark.parametrize(
    ("data_type", "value", "fill_bytes"),
    [
        ("float32", "0x7fc00001", b"\x01\x00\xc0\x7f"),
        ("float32", "0x7f800001", b"\x01\x00\x80\x7f"),
        ("complex64", ["NaN", "-Infinity"], b"\x00\x00\xc0\x7f\x00\x00\x80\xff"),
        ("r24", [1, 2, 3], b"\1\2\3"),
        ("bool", True, b"\1"),
    ],
)
@trio_test
async def test_fill_values_bit_for_bit(data_type: str, value: Any, fill_bytes: bytes) -> None:
    store = await store_with({"a/zarr.json": v3_array(data_type, (3, 3), value)})
    async with tree_over(store) as tree:
        assert (await read(tree, "npy/a.npy"))[128:] == fill_bytes * 9
        await write(tree, "chunks/a/1.1", fill_bytes * 4)
        assert (await read(tree, "npy/a.npy"))[128:] == fill_bytes * 9


@trio_test
async def test_an_undefined_fill_value_is_zero() -> None:
    store = await store_with({"a/.zarray": array_document((3,), (2,), fill_value=None), "a/1": b"\1\2\3\4\5\6\7\10"})
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == [0, 0, 0x04030201]


@pytest.mark.parametrize(
    ("shape", "chunks", "inside", "outside"),
    [
        ((8,), (2,), (0, 136), None),
        ((2,), (2,), (0, 132), (128, 6)),
        ((3,), (2,), (130, 4), (134, 1)),
        ((4,), (4,), None, (0, 136)),
    ],
    ids=["grown", "shrunk", "shrunk within a chunk", "other chunks"],
)
@trio_test
async def test_a_reader_of_an_array_whose_metadata_changed_has_what_is_still_there(
    shape: tuple[int, ...], chunks: tuple[int, ...], inside: tuple[int, int] | None, outside: tuple[int, int] | None
) -> None:
    async with tree_over(await store_with(Example((4,), (2,)).values("a"))) as tree:
        file = await walk(tree, "npy/a.npy")
        assert isinstance(file, File)
        handle = await file.open(READ_ONLY)
        whole = bytes(await handle.read(0, 136))
        await tree.store.set(Key("a/.zarray"), array_document(shape, chunks, "<i2", fill_value=7))
        if inside is not None:
            assert await handle.read(*inside) == whole[inside[0] : sum(inside)]
            assert (await load(tree, "npy/a.npy")).shape == shape
        if outside is not None:
            with pytest.raises(StaleEntry):
                await handle.read(*outside)
        await handle.release()


@trio_test
async def test_a_chunk_written_through_the_mount_is_in_the_file_at_once() -> None:
    async with tree_over(await store_with(Example((4,), (2,)).values("a"))) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == [1, 2, 3, 4]
        await write(tree, "raw/a/0", np.array([8, 9], "<i2").tobytes())
        assert (await load(tree, "npy/a.npy")).tolist() == [8, 9, 3, 4]
        await write(tree, "chunks/a/1", np.array([5, 6], "<i2").tobytes())
        assert (await load(tree, "npy/a.npy")).tolist() == [8, 9, 5, 6]


@pytest.mark.parametrize("is_taken", [False, True])
@trio_test
async def test_a_file_that_is_renamed_while_it_is_written_to_remains_bound_to_its_array(is_taken: bool) -> None:
    """``is_taken``: another array gets the name at once."""
    one, other = Example((6, 5), (6, 5), "<i4"), Example((6, 5), (6, 5), "<i4")
    store = HangingStore(MemoryStore())
    store.hang("a/", "rename_prefix")
    await fill(store, one.values("a") | other.values("b"))
    async with tree_over(store) as tree, trio.open_nursery() as nursery:
        folder = await walk(tree, "chunks")
        file = await walk(tree, "npy/a.npy")
        assert isinstance(file, File)
        handle = await file.open(OpenFlags(read=True, write=True))
        size = len(await handle.read(0, 1 << 20))
        renamed = trio.Event()
        is_written: list[bool] = []

        async def rename() -> None:
            assert isinstance(folder, Directory)
            await folder.rename("a", folder, "c")
            if is_taken:
                await folder.rename("b", folder, "a")
            renamed.set()

        async def change() -> None:
            await handle.write(size - 4, b"last")
            is_written.append(True)
            await renamed.wait()
            await handle.flush()
            await handle.release()

        nursery.start_soon(rename)
        await trio.testing.wait_all_tasks_blocked()
        assert store.hanging == [("rename_prefix", "a/")]
        nursery.start_soon(change)
        await trio.testing.wait_all_tasks_blocked()
        assert not is_written
        store.answer()
        await renamed.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert (await read(tree, "npy/c.npy"))[-4:] == b"last"
        if is_taken:
            assert (await read(tree, "npy/a.npy"))[-4:] != b"last"
