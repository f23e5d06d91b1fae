"""Another program makes an array at a path above one for whose shards chunks are queued; then this mount removes that array alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from trio.testing import trio_test

from tests.support.random_layouts import V3, V3_2022_SHARDS, Layout
from tests.support.trees import opened, tree_of, walk
from zarrfs.vfs.node import Directory, OpenFlags

LENGTH, WRITTEN = 64, 99


@pytest.mark.parametrize(("layout", "file"), [(V3_2022_SHARDS, "g.npy"), (V3, "store.npy")], ids=["beside a group", "root"])
@trio_test
async def test_they_stay(layout: Layout, file: str, tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    layout.make_store(store)
    layout.create(store, "g/a", np.arange(LENGTH, dtype="<i8"), 1, is_sharded=True)
    if layout is V3:
        zarr.create_array(str(other), shape=(2,), chunks=(1,), dtype="<i4")[:] = 3
    else:
        layout.create(other, "g", np.arange(LENGTH, dtype="<i8"), 2, is_sharded=True)
    async with tree_of(store, shard_delay="600", watch="no", metadata_ttl="0", cache_dir=str(tmp_path / "cache")) as tree:
        handle = await opened(tree, "chunks/g/a/1", OpenFlags(read=True, write=True))
        await handle.write(0, np.full(16, WRITTEN, "<i8").tobytes())
        await handle.flush()
        await handle.release()
        shutil.copytree(other, store, dirs_exist_ok=True)
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        await folder.unlink(file)
        assert not await tree.publish_all()
    ((_, elements),) = layout.arrays(store)
    assert elements.tolist() == [*range(16), *[WRITTEN] * 16, *range(32, LENGTH)]
