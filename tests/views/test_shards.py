"""Sharded arrays through the views: data stored by others is read, and others read data written here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.support import sharded
from tests.support.length import tries
from tests.support.sharded import LIBRARIES, documents, numbered, regions
from tests.support.trees import load, names, read, tree_of, walk, write
from zarrfs.keys import NodePath
from zarrfs.vfs.node import File, OpenFlags

DRAWN = tries(25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
# tensorstore supports one level of shards, without codecs before or after them.
PLAIN: dict[str, Any] = {"levels": 1, "before": False, "behind": False}


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


async def check_as_shown(root: Path, expected: sharded.Elements, fill: int) -> None:
    """Assert that every view shows the array ``a`` as expected."""
    async with tree_of(root) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), expected)
        seen = np.full_like(expected, fill)
        opened = await tree.hierarchy.array(NodePath("/a"))
        assert opened is not None
        chunk_shape = opened.array.metadata.chunk_grid.chunk_shape((0,) * expected.ndim)
        for name in await names(tree, "chunks/a"):
            if not name.startswith("."):
                coords = tuple(map(int, name.split(".")))
                chunk = np.frombuffer(await read(tree, f"chunks/a/{name}"), "<i2").reshape(chunk_shape)
                place = tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, chunk_shape, strict=True))
                part = seen[place]
                part[...] = chunk[tuple(slice(0, n) for n in part.shape)]
        np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("library", LIBRARIES)
@DRAWN
@given(st.data())
def test_what_others_stored_is_read(library: str, data: st.DataObject) -> None:
    document = data.draw(documents(**(PLAIN if library != "zarr-python" else {})))
    with folder() as root:
        expected = sharded.make(root / "a", document)
        for step in range(data.draw(st.integers(0, 4))):
            region = data.draw(regions(expected.shape))
            elements = numbered(expected[region].shape, 1 + 1000 * step)
            sharded.store(library, root / "a", region, elements)
            expected[region] = elements
        trio.run(check_as_shown, root, expected, document["fill_value"])


async def change(root: Path, view: str, region: tuple[slice, ...], expected: sharded.Elements, delay: str) -> None:
    """Write the elements of ``expected`` in ``region`` through a view."""
    async with tree_of(root, shard_delay=delay) as tree:
        opened = await tree.hierarchy.array(NodePath("/a"))
        assert opened is not None
        metadata = opened.array.metadata
        if view == "npy":
            file = await walk(tree, "npy/a.npy")
            assert isinstance(file, File)
            header = (await file.attributes()).size - expected.nbytes
            handle = await file.open(OpenFlags(write=True))
            touched = np.zeros(expected.shape, bool)
            touched[region] = True
            for position in np.flatnonzero(touched).tolist():
                await handle.write(header + 2 * position, expected.reshape(-1)[position].tobytes())
            await handle.flush()
            await handle.release()
        else:
            chunk_shape = metadata.chunk_grid.chunk_shape((0,) * expected.ndim)
            for coords in np.ndindex(*metadata.grid_shape):
                place = tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, chunk_shape, strict=True))
                if all(p.start < r.stop and r.start < p.stop for p, r in zip(place, region, strict=True)):
                    whole = np.zeros(chunk_shape, np.int16)
                    whole[tuple(slice(0, n) for n in expected[place].shape)] = expected[place]
                    await write(tree, f"chunks/a/{'.'.join(map(str, coords))}", whole.tobytes())
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), expected)
        assert await tree.publish_all() == []


@pytest.mark.parametrize("view", ["npy", "chunks"])
@DRAWN
@given(st.data())
def test_what_was_written_is_what_others_find(view: str, data: st.DataObject) -> None:
    plain = data.draw(st.booleans())
    document = data.draw(documents(**(PLAIN if plain else {})))
    with folder() as root:
        expected = sharded.make(root / "a", document)
        for step in range(data.draw(st.integers(1, 3))):
            region = data.draw(regions(expected.shape))
            expected[region] = numbered(expected[region].shape, 1 + 1000 * step)
            if data.draw(st.booleans()):
                sharded.store("zarr-python", root / "a", region, expected[region])
            else:
                trio.run(change, root, view, region, expected, data.draw(st.sampled_from(["0", "5"])))
            for library in LIBRARIES if plain else ("zarr-python",):
                np.testing.assert_array_equal(sharded.load(library, root / "a"), expected)
