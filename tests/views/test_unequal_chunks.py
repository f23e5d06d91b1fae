"""Arrays of unequal chunks in every view."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.length import tries
from tests.support.plugged import plugins
from tests.support.stores import contents
from tests.support.trees import listing, load, names, read, tree_over, walk, write
from tests.support.unequal_chunks import GRIDS, UnequalExample, store_with, unequal_examples
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ContentInvalid, FileTooLarge, NoSuchEntry
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

EXAMPLE = UnequalExample((7, 6), ((3, 1, 4), (1, 2, 2, 2)), frozenset({(1, 0)}))
WRITE = OpenFlags(write=True)
LOST = pytest.mark.logs("write failed, data lost")


grid = plugins(GRIDS)


def chunk_name(coords: tuple[int, ...]) -> str:
    return "/".join(["zarr3/a/c", *map(str, coords)])


def decoded_name(coords: tuple[int, ...]) -> str:
    return f"chunks/a/{'.'.join(map(str, coords))}"


def padded(example: UnequalExample, coords: tuple[int, ...], chunk: np.ndarray[Any, Any], *, whole: bool) -> bytes:
    """Return the stored form of ``chunk``: whole by zarr3/, and with fill value beyond the edge by chunks/."""
    if whole:
        return chunk.tobytes()
    stored = np.full_like(chunk, example.fill)
    inside = tuple(slice(0, each.stop - each.start) for each in example.box(coords))
    stored[inside] = chunk[inside]
    return stored.tobytes()


@trio_test
async def test_every_view_shows_it() -> None:
    async with tree_over(store := await store_with(EXAMPLE)) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == EXAMPLE.elements.tolist()
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
        assert document["chunk_grid"] == EXAMPLE.document["chunk_grid"]
        values = await contents(store)
        for row in ("0", "1", "2"):
            sizes = {name: entry[2] for name, entry in (await listing(tree, f"zarr3/a/c/{row}")).items()}
            assert sizes == {key.rpartition("/")[2]: len(values[key]) for key in values if key.startswith(f"a/c/{row}/")}
        for coords in EXAMPLE.coords:
            if coords not in EXAMPLE.missing:
                assert await read(tree, chunk_name(coords)) == values["/".join(["a/c", *map(str, coords)])]
        assert await names(tree, "raw/a/c") == {"0", "1", "2"}
        assert await names(tree, "chunks") == {".zgroup", "a"}
        assert await names(tree, "chunks/a") == {
            "zarr.json",
            *(".".join(map(str, coords)) for coords in EXAMPLE.coords if coords not in EXAMPLE.missing),
        }


@LOST
@trio_test
async def test_a_chunk_file_has_the_size_of_its_own_chunk() -> None:
    async with tree_over(store := await store_with(EXAMPLE)) as tree:
        elements = EXAMPLE.elements
        for coords in ((0, 0), (1, 2), (2, 3), (1, 0)):
            shape = EXAMPLE.grid.chunk_shape(coords)
            chunk = np.full(shape, 100 + sum(coords), "<i4")
            name = chunk_name(coords)
            for wrong in (chunk.tobytes() + b"1234", chunk.tobytes()[:-4]):
                with pytest.raises((ContentInvalid, FileTooLarge)):
                    await write(tree, name, wrong)
            await write(tree, name, chunk.tobytes())
            elements[EXAMPLE.box(coords)] = 100 + sum(coords)
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()
        assert EXAMPLE.stored_in(await contents(store), "a").tolist() == elements.tolist()
        for outside in ((3, 0), (0, 4)):
            with pytest.raises(NoSuchEntry):
                await walk(tree, chunk_name(outside))


@trio_test
async def test_saving_over_it_keeps_the_grid() -> None:
    async with tree_over(store := await store_with(EXAMPLE)) as tree:
        new = (np.arange(42) * 3).astype("<i4").reshape(7, 6)
        await write(tree, "npy/a.npy", npy(new))
        assert (await load(tree, "npy/a.npy")).tolist() == new.tolist()
        values = await contents(store)
        assert json.loads(values["a/zarr.json"])["chunk_grid"] == EXAMPLE.document["chunk_grid"]
        assert EXAMPLE.stored_in(values, "a").tolist() == new.tolist()
        # With another shape it becomes an ordinary new array.
        await write(tree, "npy/a.npy", npy(other := np.ones((3, 5), "<i4")))
        assert (await load(tree, "npy/a.npy")).tolist() == other.tolist()
        assert json.loads((await contents(store))["a/zarr.json"])["chunk_grid"]["name"] == "regular"


@tries(60)
@given(example=unequal_examples(), data=st.data())
def test_any_writes_through_npy_and_chunk_files_are_seen_everywhere(example: UnequalExample, data: st.DataObject) -> None:
    size = example.elements.nbytes

    async def main() -> None:
        async with tree_over(store := await store_with(example)) as tree:
            expected = bytearray(example.elements.tobytes())
            header = len(await read(tree, "npy/a.npy")) - size
            for _ in range(data.draw(st.integers(0, 4))):
                if not size:
                    break
                if data.draw(st.booleans()):
                    file = await walk(tree, "npy/a.npy")
                    assert isinstance(file, File)
                    handle = await file.open(WRITE)
                    for _ in range(data.draw(st.integers(1, 3))):
                        offset = data.draw(st.integers(0, size - 1))
                        written = data.draw(st.binary(min_size=1, max_size=60))[: size - offset]
                        await handle.write(header + offset, written)
                        expected[offset : offset + len(written)] = written
                    await handle.flush()
                    await handle.release()
                elif example.shape:
                    coords = data.draw(st.sampled_from(example.coords))
                    chunk = np.full(example.grid.chunk_shape(coords), data.draw(st.integers(-9, 9)), "<i4")
                    elements = np.frombuffer(expected, "<i4").reshape(example.shape)
                    elements[example.box(coords)] = chunk.flat[0]
                    name = data.draw(st.sampled_from([chunk_name(coords), decoded_name(coords)]))
                    await write(tree, name, chunk.tobytes())
                    assert await read(tree, decoded_name(coords)) == padded(
                        example, coords, chunk, whole=name == chunk_name(coords)
                    )
                assert (await read(tree, "npy/a.npy"))[header:] == expected
            stored = example.stored_in(await contents(store), "a")
            assert stored.tobytes() == expected

    trio.run(main)


@trio_test
async def test_it_grows_and_shrinks_by_its_document() -> None:
    """Growing appends a chunk, shrinking keeps the edges; values outside are erased only with the option for it."""
    async with tree_over(store := await store_with(EXAMPLE), resize_erases="true") as tree:
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
        grown = json.loads(json.dumps(document))
        grown["shape"] = [12, 6]
        grown["chunk_grid"]["configuration"]["edges"][0].append(4)
        await write(tree, "zarr3/a/zarr.json", json.dumps(grown).encode())
        expected = np.full((12, 6), EXAMPLE.fill, "<i4")
        # Junk beyond the old edge was stored, and is visible as in every other Zarr library.
        expected[7:8] = -1
        expected[:7] = EXAMPLE.elements
        assert (await load(tree, "npy/a.npy")).tolist() == expected.tolist()
        assert json.loads((await contents(store))["a/zarr.json"])["chunk_grid"]["configuration"]["edges"] == [
            [3, 1, 4, 4],
            [1, 2, 2, 2],
        ]
        await write(tree, chunk_name((3, 1)), np.full((4, 2), 5, "<i4").tobytes())
        expected[8:12, 1:3] = 5
        assert (await load(tree, "npy/a.npy")).tolist() == expected.tolist()
        await write(tree, "zarr3/a/zarr.json", json.dumps(grown | {"shape": [4, 5]}).encode())
        assert (await load(tree, "npy/a.npy")).tolist() == expected[:4, :5].tolist()
        values = await contents(store)
        assert json.loads(values["a/zarr.json"])["chunk_grid"] == grown["chunk_grid"]
        assert {key for key in values if key.startswith(("a/c/2", "a/c/3"))} == set()


@LOST
@trio_test
async def test_another_grid_is_refused() -> None:
    async with tree_over(store := await store_with(EXAMPLE)) as tree:
        before = await contents(store)
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
        other = json.loads(json.dumps(document))
        other["chunk_grid"]["configuration"]["edges"][0] = [4, 4]
        for wrong in (other, document | {"shape": [9, 6]}):
            with pytest.raises(ContentInvalid):
                await write(tree, "zarr3/a/zarr.json", json.dumps(wrong).encode())
        assert await contents(store) == before


@trio_test
async def test_an_array_is_made_with_it() -> None:
    async with tree_over(store := MemoryStore()) as tree:
        await mkdir(tree, "zarr3", "a")
        await write(tree, "zarr3/a/zarr.json", json.dumps(EXAMPLE.document).encode())
        await mkdir(tree, "zarr3/a", "c")
        await mkdir(tree, "zarr3/a/c", "2")
        await write(tree, chunk_name((2, 1)), np.full((4, 2), 5, "<i4").tobytes())
        values = await contents(store)
        assert json.loads(values["a/zarr.json"])["chunk_grid"] == EXAMPLE.document["chunk_grid"]
        assert len(values["a/c/2/1"]) == 32
        assert (await load(tree, "npy/a.npy"))[4:, 1:3].tolist() == [[5, 5]] * 3


async def mkdir(tree: MountTree, folder: str, name: str) -> None:
    parent = await walk(tree, folder)
    assert isinstance(parent, Directory)
    await parent.mkdir(name)


def npy(elements: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, elements)
    return file.getvalue()
