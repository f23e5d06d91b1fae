"""A file that is changed by an open handle while it is renamed, after its staged bytes were published: the changes go along.

The kernel writes mappings back at any time. Bytes that were staged just before the rename were stored under the old name later.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.support.stores import contents
from tests.support.trees import load, names, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

VALUE = bytes(range(100))
TEMPORARY = "f.0123456789abcdef0123456789abcdef.partial"
WRITE = OpenFlags(write=True)


def npy(elements: list[int]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(elements, "<i4"))
    return file.getvalue()


async def renamed_while_truncated(tree: MountTree, folder: str, old: str, new: str, content: bytes) -> None:
    """Write to a file; empty it, by another handle, while it is published for its rename; then write ``content``."""
    where, file = await walk(tree, folder), await walk(tree, f"{folder}/{old}")
    assert isinstance(where, Directory) and isinstance(file, File)
    one, other = await file.open(WRITE), await file.open(WRITE)
    await one.write(0, await one.read(0, 1))
    staged = tree.staging.get(f"{folder}/{old}")
    assert staged is not None
    async with trio.open_nursery() as nursery, staged.lock:
        nursery.start_soon(where.rename, old, where, new)
        await wait_all_tasks_blocked()
        nursery.start_soon(other.truncate, 0)
        await wait_all_tasks_blocked()
    await other.write(0, content)
    await other.flush()
    await one.release()
    await other.release()


@pytest.mark.parametrize("old", ["f", TEMPORARY], ids=["key", "temporary"])
@trio_test
async def test_a_key(old: str) -> None:
    store = MemoryStore()
    async with tree_over(store) as tree:
        await write(tree, f"raw/{old}", VALUE)
        await renamed_while_truncated(tree, "raw", old, "g", VALUE[::-1])
        assert await names(tree, "raw") == {"g"} and await read(tree, "raw/g") == VALUE[::-1]
    assert await contents(store) == {"g": VALUE[::-1]}


@pytest.mark.parametrize("elements", [[4, 5, 6], [4, 5, 6, 7]], ids=["same shape", "another shape"])
@trio_test
async def test_an_array(elements: list[int]) -> None:
    async with tree_over(MemoryStore()) as tree:
        await write(tree, "npy/a.npy", npy([1, 2, 3]))
        await renamed_while_truncated(tree, "npy", "a.npy", "b.npy", npy(elements))
        assert await names(tree, "npy") == {"b.npy"}
        assert (await load(tree, "npy/b.npy")).tolist() == elements
