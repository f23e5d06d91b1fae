"""A mount's tree without the kernel: created over a store, walked by path, read completely."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

from zarrfs.buffers import storage_nbytes
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import IsADirectory, NotADirectory
from zarrfs.options.config import resolve
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.vfs.node import SIZE_UNKNOWN, Directory, Entry, File, Handle, OpenFlags, VfsNode

READ_ONLY = OpenFlags()
_READ_NBYTES = 128 * 1024


@asynccontextmanager
async def tree_over(store: Store, url: str = "memory:", **options: Any) -> AsyncIterator[MountTree]:
    """Yield a `MountTree` over ``store``, which stays open. ``options`` are those of the mount, as text."""
    failed: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield MountTree(resolve(url, flags=options), store, nursery)
        except Exception as error:  # noqa: BLE001 - raised again below, ungrouped
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed


@asynccontextmanager
async def tree_of(path: Path | str, **options: Any) -> AsyncIterator[MountTree]:
    """Yield a `MountTree` over the store at a path or URL."""
    store = await open_store(str(path))
    try:
        async with tree_over(store, str(path), **options) as tree:
            yield tree
    finally:
        await store.aclose()


async def walk(tree: MountTree | Directory, path: str) -> VfsNode:
    """Return the node at ``path`` (``npy/a/b.npy``). Raises `NoSuchEntry`."""
    node: VfsNode = tree.root if isinstance(tree, MountTree) else tree
    for name in path.split("/"):
        if name:
            if not isinstance(node, Directory):
                raise NotADirectory(f"{name!r} of {path!r} is in a file", key=path)
            node = await node.lookup(name)
    return node


async def folder_at(tree: MountTree | Directory, path: str) -> Directory:
    """Return the folder at ``path``."""
    found = await walk(tree, path)
    assert isinstance(found, Directory)
    return found


async def listing(tree: MountTree | Directory, path: str = "") -> dict[str, Entry]:
    """Return the entries of a folder, by name. Checks that names are unique and that lookup agrees with the listing."""
    folder = await walk(tree, path)
    assert isinstance(folder, Directory), f"{path!r} is a file"
    found: dict[str, Entry] = {}
    async for entry in folder.entries():
        name, is_directory, size, _, writable = entry
        assert name not in found, f"{name!r} is listed twice in {path!r}"
        found[name] = entry
        attributes = await (await folder.lookup(name)).attributes()
        if size == SIZE_UNKNOWN:
            assert name in (".zmetadata", "zarr.json"), f"{path}/{name}"
            size = attributes.size
        assert (attributes.is_directory, attributes.size, attributes.writable) == (is_directory, size, writable), f"{path}/{name}"
        assert storage_nbytes(attributes.size) == storage_nbytes(size), f"{path}/{name}"
    return found


async def names(tree: MountTree | Directory, path: str = "") -> set[str]:
    """Return the names in a folder; see `listing`."""
    return set(await listing(tree, path))


async def read(tree: MountTree | Directory, path: str) -> bytes:
    """Return all bytes of a file, read sequentially and checked against its size."""
    file = await walk(tree, path)
    if not isinstance(file, File):
        raise IsADirectory(f"{path!r} is a folder", key=path)
    handle = await file.open(READ_ONLY)
    try:
        parts: list[bytes] = []
        size = 0
        while part := bytes(await handle.read(size, _READ_NBYTES)):
            parts.append(part)
            size += len(part)
        assert size == (await handle.attributes()).size == (await file.attributes()).size
        return b"".join(parts)
    finally:
        await handle.release()


async def opened(tree: MountTree | Directory, path: str, flags: OpenFlags = READ_ONLY) -> Handle:
    """Open a file."""
    file = await walk(tree, path)
    assert isinstance(file, File)
    return await file.open(flags)


async def write(tree: MountTree | Directory, path: str, data: bytes) -> None:
    """Create or replace a file as ``cp`` does: open with O_TRUNC or create, write, flush, release."""
    folder_path, _, name = path.rpartition("/")
    folder = await walk(tree, folder_path)
    assert isinstance(folder, Directory)
    flags = OpenFlags(read=False, write=True, truncate=True)
    if name in {entry[0] async for entry in folder.entries()}:
        file = await folder.lookup(name)
        assert isinstance(file, File)
        handle = await file.open(flags)
    else:
        _, handle = await folder.create(name, flags)
    try:
        assert await handle.write(0, data) == len(data)
        await handle.flush()
    finally:
        await handle.release()


async def load(tree: MountTree | Directory, path: str) -> np.ndarray[Any, Any]:
    """Return the array in an ``.npy`` file."""
    return np.asarray(np.load(io.BytesIO(await read(tree, path)), allow_pickle=False))


async def every_file(tree: MountTree | Directory, path: str = "", limit: int = 10_000) -> AsyncIterator[str]:
    """Yield the paths of all files below a folder, from at most ``limit`` entries."""
    pending = [path]
    seen = 0
    while pending:
        here = pending.pop()
        folder = await walk(tree, here)
        assert isinstance(folder, Directory)
        async for name, is_directory, *_ in folder.entries():
            seen += 1
            assert seen <= limit, f"more than {limit} entries below {path!r}"
            below = f"{here}/{name}" if here else name
            if is_directory:
                pending.append(below)
            else:
                yield below
