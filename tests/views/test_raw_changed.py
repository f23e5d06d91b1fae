"""The files of ``raw/``: values that are changed in part while, or after, their key is renamed or erased."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.support.trees import tree_of, tree_over, walk
from zarrfs.errors import StaleEntry
from zarrfs.keys import Prefix
from zarrfs.stores.folder.store import FolderStore
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory, File, Handle, OpenFlags
from zarrfs.views.raw import value as raw_value

WRITE = OpenFlags(write=True)
VALUE = bytes(range(1, 201))

Change = Callable[[Handle], Awaitable[object]]


async def overwrite(handle: Handle) -> object:
    return await handle.write(100, b"new")


async def cut(handle: Handle) -> object:
    return await handle.truncate(150)


CHANGES = pytest.mark.parametrize(
    ("change", "changed"), [(overwrite, VALUE[:100] + b"new" + VALUE[103:]), (cut, VALUE[:150])], ids=["write", "truncate"]
)


class SlowRenames(ForwardingStore):
    """Renames of folders have taken effect, but wait for ``returns``."""

    def __init__(self, inner: FolderStore) -> None:
        super().__init__(inner)
        self.renamed = trio.Event()
        self.returns = trio.Event()

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        result = await super().rename_prefix(old, new)
        self.renamed.set()
        await self.returns.wait()
        return result


@CHANGES
@pytest.mark.parametrize("whole_nbytes", [1000, 10], ids=["whole", "in pieces"])
@trio_test
async def test_the_rest_of_a_value_is_kept_while_its_folder_is_renamed(
    whole_nbytes: int, change: Change, changed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at neither place for a moment: the rest became zeros."""
    monkeypatch.setattr(raw_value, "WHOLE_NBYTES", whole_nbytes)
    (tmp_path / "g").mkdir()
    (tmp_path / "g/k").write_bytes(VALUE)
    store = SlowRenames(FolderStore(str(tmp_path)))
    async with tree_over(store, watch="off") as tree:
        folder, file = await walk(tree, "raw"), await walk(tree, "raw/g/k")
        assert isinstance(folder, Directory) and isinstance(file, File)
        handle = await file.open(WRITE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(folder.rename, "g", folder, "h")
            await store.renamed.wait()
            nursery.start_soon(change, handle)
            await wait_all_tasks_blocked()
            store.returns.set()
        await handle.flush()
        await handle.release()
    await store.aclose()
    assert (tmp_path / "h/k").read_bytes() == changed
    assert not (tmp_path / "g").exists()


@CHANGES
@trio_test
async def test_a_part_of_a_value_that_another_program_has_removed_is_refused(
    change: Change, changed: bytes, tmp_path: Path
) -> None:
    """The rest would be zeros that no program wrote."""
    (tmp_path / "k").write_bytes(VALUE)
    async with tree_of(tmp_path, watch="off") as tree:
        file = await walk(tree, "raw/k")
        assert isinstance(file, File)
        handle = await file.open(WRITE)
        (tmp_path / "k").unlink()
        with pytest.raises(StaleEntry):
            await change(handle)
        await handle.release()
    assert not (tmp_path / "k").exists()
