"""Chunks in shards that are replaced as a whole: a part of one is not written into another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from trio.testing import trio_test

from tests.support.trees import opened, read, tree_of, write
from zarrfs.errors import StaleEntry
from zarrfs.vfs.node import OpenFlags

READ_WRITE = OpenFlags(read=True, write=True)
VIEWS = {"chunks": "chunks/t/{}", "zarr3": "zarr3/t/c/{}"}
both = pytest.mark.parametrize(("view", "other"), [("chunks", "zarr3"), ("zarr3", "chunks")])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A shard of two chunks with texts of the same lengths."""
    array = zarr.create_array(str(tmp_path / "t"), shape=(4,), chunks=(2,), shards=(4,), dtype=str, compressors=None, zarr_format=3)
    array[:] = np.array(["alpha", "beta", "omega", "zeta"], dtype=object)
    return tmp_path


@both
@trio_test
async def test_a_part_is_not_written_into_another_value(view: str, other: str, store: Path) -> None:
    """Its close was 0, and a text was stored that nobody wrote."""
    async with tree_of(store, shard_delay=0) as tree:
        handle = await opened(tree, VIEWS[view].format(0), READ_WRITE)
        where = bytes(await handle.read(0, 1 << 16)).index(b"alpha")
        await write(tree, VIEWS[other].format(0), await read(tree, VIEWS[other].format(1)))
        with pytest.raises(StaleEntry, match="was replaced since it was opened"):
            await handle.write(where, b"AL")
        await handle.release()
    assert zarr.open_array(str(store / "t"))[:].tolist() == ["omega", "zeta", "omega", "zeta"]


@both
@trio_test
async def test_another_chunk_of_the_shard_may_be_replaced(view: str, other: str, store: Path) -> None:
    async with tree_of(store, shard_delay=0) as tree:
        handle = await opened(tree, VIEWS[view].format(0), READ_WRITE)
        where = bytes(await handle.read(0, 1 << 16)).index(b"alpha")
        await write(tree, VIEWS[other].format(1), await read(tree, VIEWS[other].format(0)))
        await handle.write(where, b"AL")
        await handle.flush()
        await handle.release()
    assert zarr.open_array(str(store / "t"))[:].tolist() == ["ALpha", "beta", "alpha", "beta"]
