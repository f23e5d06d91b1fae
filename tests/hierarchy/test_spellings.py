"""Renames that change only the case of a name, in folders that ignore it: the new name is found before the rename, too."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.hierarchy.test_several_steps import npy
from tests.support.stores import contents
from tests.support.trees import load, tree_over, walk, write
from zarrfs.errors import EntryExists
from zarrfs.keys import Key, Prefix
from zarrfs.stores.folder.store import FolderStore
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory

VALUES = np.arange(5, dtype="<i2")


class Folding(ForwardingStore):
    """A folder in which names are found whatever their case, as on FAT, exFAT and casefolded folders of ext4."""

    def __init__(self, path: Path) -> None:
        super().__init__(FolderStore(str(path)))
        self._path = path

    def _found(self, target: str) -> Any:
        """Return a key or prefix with the names that are stored, as far as there are such."""
        at, parts = self._path, []
        for name in target.rstrip("/").split("/") if target else ():
            stored = os.listdir(at) if at.is_dir() else []
            parts.append(next((each for each in stored if each == name or each.casefold() == name.casefold()), name))
            at = at / parts[-1]
        return type(target)("/".join(parts) + "/" * target.endswith("/"))  # type: ignore[call-arg]

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._folding(found) if name in _OPERATIONS else found

    def _folding(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def fold(value: Any) -> Any:
            if isinstance(value, Key | Prefix):
                return self._found(value)
            return [fold(each) if isinstance(each, Key | Prefix) else (fold(each[0]), *each[1:]) for each in value]

        return lambda target, *others, **named: operation(fold(target), *others, **named)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        found, target = self._found(old), self._found(new)
        return await self.inner.rename_prefix(found, new if target == found else target)

    def list_dir(self, prefix: Prefix) -> AsyncIterator[Any]:
        return self.inner.list_dir(self._found(prefix))


_OPERATIONS = frozenset(
    "get get_many get_partial_values get_with_stat stat set erase erase_values erase_prefix peek prefix_exists prefix_mtime_ns "
    "make_prefix remove_prefix list_prefix".split()
)


async def rename(folder: Any, name: str, new_name: str) -> None:
    assert isinstance(folder, Directory)
    await folder.rename(name, folder, new_name)


@pytest.mark.parametrize("view", ["npy", "chunks", "zarr3", "raw"])
@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_only_the_case_of_a_name_changes(dialect: str, view: str, tmp_path: Path) -> None:
    """An array was taken for another one, moved away to be replaced by itself, and put back under its new name with EIO; an empty group
    was removed to make room for itself, and lost."""
    store = Folding(tmp_path)
    async with tree_over(store, f"file:{tmp_path}", new_dialect=dialect, watch="no") as tree:
        await write(tree, "npy/a.npy", npy(VALUES))
        for name in ("g", "e"):
            folder = await walk(tree, "chunks")
            assert isinstance(folder, Directory)
            await folder.mkdir(name)
            await (await walk(tree, f"chunks/{name}")).sync()  # type: ignore[union-attr]
        await write(tree, "npy/g/x.npy", npy(VALUES))
        suffix = ".npy" if view == "npy" else ""
        await rename(await walk(tree, view), f"a{suffix}", f"A{suffix}")
        for name in ("g", "e"):
            await rename(await walk(tree, view), name, name.upper())
        assert {name async for name, is_prefix, *_ in store.list_dir(Prefix("")) if is_prefix} == {"A", "G", "E"}
        for name in ("A", "G/x"):
            np.testing.assert_array_equal(await load(tree, f"npy/{name}.npy"), VALUES)
        document = ".zgroup" if dialect == "v2" else "zarr.json"
        assert await store.get(Key(f"E/{document}")) is not None and isinstance(await walk(tree, "chunks/E"), Directory)
    await store.aclose()


@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
@trio_test
async def test_where_documents_and_chunks_lie_apart_such_a_rename_is_refused(dialect: str, tmp_path: Path) -> None:
    store = Folding(tmp_path)
    async with tree_over(store, f"file:{tmp_path}", new_dialect=dialect, watch="no") as tree:
        await write(tree, "npy/a.npy", npy(VALUES))
        before = await contents(store)
        for view, suffix in (("npy", ".npy"), ("chunks", "")):
            with pytest.raises(EntryExists):
                await rename(await walk(tree, view), f"a{suffix}", f"A{suffix}")
            assert await contents(store) == before
