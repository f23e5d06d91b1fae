"""A read-only mount refuses every change as such, even of missing names: as the kernel does on a local file system."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from trio.testing import trio_test

from tests.support.arrays import Example, store_of
from tests.support.trees import tree_over
from zarrfs.errors import StoreReadOnly
from zarrfs.vfs.node import Directory, OpenFlags

CHANGES: dict[str, Callable[[Directory, str], Awaitable[object]]] = {
    "create": lambda root, name: root.create(name, OpenFlags(read=True, write=True)),
    "mkdir": lambda root, name: root.mkdir(name),
    "unlink": lambda root, name: root.unlink(name),
    "rmdir": lambda root, name: root.rmdir(name),
    "rename": lambda root, name: root.rename(name, root, "other.npy"),
}


@pytest.mark.parametrize("view", ["raw", "chunks", "zarr3", "npy"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["missing.npy", "a"])
@trio_test
async def test_every_change_is_refused(view: str, change: str, name: str) -> None:
    async with tree_over(await store_of(Example((4,), (2,))), read_only=True) as tree:
        root = await tree.root.lookup(view)
        assert isinstance(root, Directory)
        with pytest.raises(StoreReadOnly):
            await CHANGES[change](root, name)
