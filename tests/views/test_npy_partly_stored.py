"""Files in ``npy/`` of which one chunk cannot be stored: when the close fails, no other chunk is still on its way."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import trio_test

from tests.support.trees import load, opened, tree_over, write
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreFull
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import OpenFlags

OLD = np.arange(1, 9, dtype="<i4")


class Full(ForwardingStore):
    """A store without room for the second chunk, where the first one takes longer to be stored."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.is_full = False
        self.begun, self.refused = trio.Event(), trio.Event()

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if self.is_full and key.endswith("/1"):
            await self.begun.wait()
            self.refused.set()
            raise StoreFull("no room", key=key)
        if self.is_full and key.endswith("/0"):
            self.begun.set()
            await self.refused.wait()
            for _ in range(100):
                await trio.lowlevel.checkpoint()
        return await self.inner.set(key, value, expect=expect)


def _npy(values: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@trio_test
async def test_no_chunk_changes_after_the_close_has_failed() -> None:
    """A chunk that was being stored was given up: it was read as before, and changed a moment later."""
    store = Full()
    async with tree_over(store, new_chunks="4", new_codecs="none") as tree:
        await write(tree, "npy/a.npy", _npy(OLD))
        handle = await opened(tree, "npy/a.npy", OpenFlags(read=True, write=True))
        await handle.write(0, _npy(OLD * 2))
        store.is_full = True
        with pytest.raises(StoreFull):
            await handle.flush()
        stored = [np.frombuffer(bytes(await store.inner.get(Key(f"a/c/{number}")) or b""), "<i4").tolist() for number in (0, 1)]
        assert stored == [(OLD[:4] * 2).tolist(), OLD[4:].tolist()]
        store.is_full = False
        await handle.flush()
        await handle.release()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), OLD * 2)
