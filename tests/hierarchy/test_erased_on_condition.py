"""A chunk that has become fill value is erased, but not the one that another mount has put there meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trio

from tests.hierarchy.test_several_steps import npy
from tests.support.trees import tree_over, walk, write
from zarrfs.keys import Key
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import Generation
from zarrfs.transformers.forwarding import TransparentStore
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import OpenFlags


class Overtaken(TransparentStore):
    """Another mount sets ``value`` just before a value is erased for the first time."""

    value = b""

    async def _overtake(self, key: Key) -> None:
        value, self.value = self.value, b""
        if value:
            await self.inner.set(key, value)

    async def erase(self, key: Key) -> None:
        await self._overtake(key)
        await super().erase(key)

    async def erase_if(self, key: Key, generation: Generation) -> None:
        await self._overtake(key)
        await super().erase_if(key, generation)


def test_a_chunk_that_another_mount_has_set_is_not_erased(tmp_path: Path) -> None:
    async def main() -> None:
        store = Overtaken(FolderStore(str(tmp_path)))
        async with tree_over(store, f"file:{tmp_path}", new_dialect="v3", new_chunks="4", new_codecs="none", watch="no") as tree:
            await write(tree, "npy/a.npy", npy(np.array([7, 0, 0, 0, 1, 1, 1, 1], "<i4")))
            store.value = np.array([1, 2, 3, 4], "<i4").tobytes()
            file = await walk(tree, "npy/a.npy")
            assert isinstance(file, StagedFile)
            handle = await file.open(OpenFlags(read=True, write=True))
            await handle.write(128, bytes(4))
            await handle.flush()
            await handle.release()
            assert not store.value
        await store.aclose()

    trio.run(main)
    assert np.frombuffer((tmp_path / "a/c/0").read_bytes(), "<i4").tolist() == [0, 2, 3, 4]
