"""The memory limit holds for all staged data together."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from trio.testing import trio_test

from tests.support.trees import read, tree_over, walk
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, Handle, OpenFlags

ANEW = OpenFlags(write=True, truncate=True)
MIB = 1 << 20


@trio_test
async def test_what_is_staged_at_once_stays_below_its_part_of_the_limit(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.random.default_rng(0).integers(0, 255, size=(2048, 1024), dtype="u1"))
    values = {f"raw/{number}": bytes([number]) * MIB for number in range(20)} | {
        f"npy/{name}.npy": array.getvalue() for name in "abc"
    }
    async with tree_over(MemoryStore(), memory_limit="16MiB", cache_dir=str(tmp_path), new_chunks="512x1024") as tree:
        budget = tree.staging.room.budget
        assert budget is not None
        handles: dict[str, Handle] = {}
        for path in values:
            folder, _, name = path.partition("/")
            directory = await walk(tree, folder)
            assert isinstance(directory, Directory)
            _, handles[path] = await directory.create(name, ANEW)
        # In turn, so that all of them grow at once.
        for offset in range(0, 2 * MIB + 128, 128 * 1024):
            for path, handle in handles.items():
                if piece := values[path][offset : offset + 128 * 1024]:
                    await handle.write(offset, piece)
                assert budget.nbytes <= 4 * MIB
        assert budget.nbytes > MIB
        for path, handle in handles.items():
            assert bytes(await handle.read(0, 4 * MIB)) == values[path]
            await handle.flush()
            await handle.release()
        assert budget.nbytes == 0
        for path, value in values.items():
            assert await read(tree, path) == value
