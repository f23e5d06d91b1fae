"""A view of nodes over a small store, and the nodes that zarr-python then reads from the store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.stores import contents
from tests.support.trees import names, opened, read, tree_over, walk, write
from tests.support.zarr_python import everything, store_of_kind, written
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.stores.base import Store
from zarrfs.vfs.node import Directory, Handle, OpenFlags

EVERYWHERE = pytest.mark.parametrize(
    ("dialect", "kind", "consolidated"),
    [(dialect, kind, False) for dialect in (2, 3) for kind in ("memory", "folder")] + [(2, "memory", True), (3, "memory", True)],
)


def example(root: Any) -> None:
    """Write groups and arrays, one of them compressed, with dimension names where the format has them."""
    root.attrs["title"] = "example"
    more = {"dimension_names": ["y", "x"]} if root.metadata.zarr_format == 3 else {}
    array = root.create_array("g/a", shape=(4, 6), chunks=(2, 3), dtype="i4", fill_value=7, attributes={"units": "m"}, **more)
    array[...] = np.arange(24).reshape(4, 6)
    root.create_group("g/h")
    root.create_array("b", shape=(3,), chunks=(2,), dtype="f8", fill_value=0)[...] = 1.5


@dataclass
class Scene:
    """A view over a store. Paths are those below the folder of ``view``."""

    tree: MountTree
    store: Store
    view: str = "chunks"

    async def folder(self, path: str) -> Directory:
        folder = await walk(self.tree, f"{self.view}/{path}")
        assert isinstance(folder, Directory)
        return folder

    async def names(self, path: str = "") -> set[str]:
        return await names(self.tree, f"{self.view}/{path}")

    async def read(self, path: str) -> bytes:
        return await read(self.tree, f"{self.view}/{path}")

    async def json(self, path: str) -> Any:
        return json.loads(await self.read(path))

    async def write(self, path: str, data: bytes | dict[str, Any]) -> None:
        await write(self.tree, f"{self.view}/{path}", data if isinstance(data, bytes) else json.dumps(data).encode())

    async def opened(self, path: str) -> Handle:
        """Open a file to read and write."""
        return await opened(self.tree, f"{self.view}/{path}", OpenFlags(read=True, write=True))

    async def unlink(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        await (await self.folder(folder)).unlink(name)

    async def rmdir(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        await (await self.folder(folder)).rmdir(name)

    async def mkdir(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        await (await self.folder(folder)).mkdir(name)

    async def sync(self, path: str = "") -> None:
        """Run fsync(2) of a folder: new groups there are stored."""
        await (await self.folder(path)).sync()

    async def rename(self, path: str, new: str, *, replace: bool = True) -> None:
        folder, _, name = path.rpartition("/")
        new_folder, _, new_name = new.rpartition("/")
        await (await self.folder(folder)).rename(name, await self.folder(new_folder), new_name, replace=replace)

    async def resized(self, path: str, shape: list[int]) -> None:
        document = f"{path}/{'.zarray' if self.view == 'chunks' else 'zarr.json'}"
        await self.write(document, await self.json(document) | {"shape": shape})

    async def remove(self, path: str, *, backwards: bool = False) -> None:
        """Remove a folder as ``rm -r`` does: the listed entries, then the folder."""
        folder = await self.folder(path)
        for name, is_directory, *_ in sorted([entry async for entry in folder.entries()], reverse=backwards):
            if is_directory:
                await self.remove(f"{path}/{name}", backwards=backwards)
            else:
                await folder.unlink(name)
        await self.rmdir(path)

    async def stored(self) -> dict[str, Any]:
        """Return the nodes that zarr-python reads: from the consolidated copy if there is one, which has to equal the nodes."""
        values = await contents(self.store)
        nodes = everything(values, use_consolidated=False)
        assert everything(values) == nodes
        return nodes


@asynccontextmanager
async def scene(
    dialect: int, kind: str, folder: Path, consolidated: bool = False, write: Any = example, view: str = "chunks", **options: Any
) -> AsyncIterator[Scene]:
    """Yield a store of ``dialect`` whose root group ``write`` fills."""
    values = written(dialect, write, consolidated=consolidated)
    async with store_of_kind(kind, folder, values) as store, tree_over(store, **options) as tree:
        yield Scene(tree, store, view)
