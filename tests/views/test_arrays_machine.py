"""Writes through ``npy/`` and ``chunks/`` in any order, compared with a NumPy array; zarr-python reads the store after each publish."""

from __future__ import annotations

from typing import Any

import numpy as np
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import tries
from tests.support.trees import read, tree_over, walk, write
from tests.views.test_npy_write import in_zarr, npy
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, Handle, OpenFlags

RW = OpenFlags(write=True)
STEPS = st.sampled_from(["npy", "npy", "chunk", "part of chunk", "flush", "reopen", "replace", "rm chunk"])


@tries(150)
@given(data=st.data(), dialect=st.sampled_from(["v2", "v3"]), limit=st.sampled_from(["0", "64MiB"]))
def test_both_views_write_one_array(data: st.DataObject, dialect: str, limit: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3), label="shape"))
    chunks = tuple(data.draw(st.lists(st.integers(1, 4), min_size=len(shape), max_size=len(shape)), label="chunks"))
    chunks = tuple(min(pair) for pair in zip(chunks, shape, strict=True))
    steps = data.draw(st.lists(STEPS, min_size=1, max_size=10), label="steps")

    def drawn(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        count = int(np.prod(shape))
        return np.array(data.draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count)), "<i2").reshape(shape)

    async def main() -> None:
        store = MemoryStore()
        options = {"new_dialect": dialect, "new_chunks": "x".join(map(str, chunks)), "memory_limit": limit}
        async with tree_over(store, **options) as tree:
            model = drawn(shape)
            await write(tree, "npy/a.npy", npy(model))
            head = len(npy(model)) - model.nbytes

            async def opened() -> Handle:
                file = await walk(tree, "npy/a.npy")
                assert isinstance(file, File)
                return await file.open(RW)

            handle = await opened()
            staged = model.copy()  # The state as seen by the handle: `model` and its own unpublished writes.

            async def publish() -> None:
                await handle.flush()
                model[...] = staged
                np.testing.assert_array_equal((await in_zarr(store, "a"))[...], model)

            for step in steps:
                if step == "npy":
                    flat = staged.reshape(-1)
                    first = data.draw(st.integers(0, flat.size - 1))
                    new = drawn((data.draw(st.integers(1, flat.size - first)),))
                    await handle.write(head + 2 * first, new.tobytes())
                    flat[first : first + new.size] = new
                elif step in ("chunk", "part of chunk", "rm chunk"):
                    coords = tuple(data.draw(st.integers(0, -(-n // c) - 1)) for n, c in zip(shape, chunks, strict=True))
                    box = tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, chunks, strict=True))
                    # Concurrent writes are not tested here.
                    await publish()
                    name = ".".join(map(str, coords))
                    folder = await walk(tree, "chunks/a")
                    assert isinstance(folder, Directory)
                    there = name in {entry[0] async for entry in folder.entries()}
                    if step == "rm chunk":
                        if there:
                            await folder.unlink(name)
                        model[box] = 0
                    elif step == "chunk" or not there:
                        new = drawn(chunks)
                        await write(tree, f"chunks/a/{name}", new.tobytes())
                        model[box] = new[tuple(slice(0, n) for n in model[box].shape)]
                    else:
                        file = await folder.lookup(name)
                        assert isinstance(file, File)
                        other = await file.open(RW)
                        new = drawn((1,))
                        await other.write(0, new.tobytes())
                        await other.flush()
                        await other.release()
                        model[tuple(part.start for part in box)] = new[0]
                    staged[...] = model
                    np.testing.assert_array_equal((await in_zarr(store, "a"))[...], model)
                elif step == "flush":
                    await publish()
                elif step == "reopen":
                    await publish()
                    await handle.release()
                    handle = await opened()
                else:
                    await publish()
                    await handle.release()
                    new = drawn(shape)
                    model[...] = staged[...] = new
                    await write(tree, "npy/a.npy", npy(np.asfortranarray(new)))
                    handle = await opened()
                assert bytes(await handle.read(head, 10**6)) == staged.tobytes()
            await publish()
            await handle.release()
            assert (await read(tree, "npy/a.npy"))[head:] == model.tobytes()

    trio.run(main)
