"""A node whose documents cannot be read is neither missing nor free: its file with the reason is found as it is listed."""

from __future__ import annotations

import pytest
from trio.testing import trio_test

from tests.support.small_stores import array_document
from tests.support.stores import InterruptedStore, fill
from tests.support.trees import names, read, tree_over, walk
from zarrfs.errors import NoSuchEntry, StoreAccessDenied
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory

REASON = "permission denied: "


class DenyingStore(InterruptedStore):
    """Denies access to the keys below ``secret/``, which are listed."""

    async def interrupt(self, operation: str, target: str) -> None:
        if target.startswith("secret/") and operation != "list_dir":
            raise StoreAccessDenied(f"{REASON}{target}", key=target)


@pytest.mark.parametrize("view", ["npy", "chunks", "zarr3"])
@pytest.mark.logs(REASON)
@trio_test
async def test_the_reason_is_read(view: str) -> None:
    store = MemoryStore()
    document = array_document((2,), (2,), "<i2")
    await fill(store, {".zgroup": b'{"zarr_format":2}', "secret/.zarray": document, "open/.zarray": document})
    async with tree_over(DenyingStore(store), "memory") as tree:
        shown = {each.removesuffix(".npy") for each in await names(tree, view) if not each.startswith(".z") and each != "zarr.json"}
        assert shown == {"open", "secret.unsupported.txt"}
        assert REASON.encode() in await read(tree, f"{view}/secret.unsupported.txt")
        folder = await walk(tree, view)
        assert isinstance(folder, Directory)
        for name in ("secret", "secret.npy"):
            with pytest.raises(StoreAccessDenied) if view == "npy" or name == "secret" else pytest.raises(NoSuchEntry):
                await folder.lookup(name)
