"""Rescue of accepted data that can no longer be stored at its place, in a folder of this machine (docs/design/023-rescued.md).

rescued/20261123T021500Z-3f9c0a1b/    one folder for each array or file with a loss
    lost.jsonl                        a line for each loss: time, store, key, reason, chunks
    store/                            a Zarr store: the array as it was, with the written chunks only
    files/chunks/a/0                  or the bytes of a file, under its path in the mount
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from zarrfs import threads
from zarrfs.arrays.array import Array
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.buffers import Buffer
from zarrfs.hierarchy.roots import dialects
from zarrfs.keys import Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores import own_files
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.vfs.content import Content
from zarrfs.vfs.node import no_such_entry
from zarrfs.vfs.staging import Staged
from zarrfs.views.whole_array.array_stage import ElementsStage

log = logging.getLogger(__name__)

FOLDER = "rescued"
_PIECE_NBYTES = 1 << 20


class Rescue:
    """Saves data written to ``store``, a URL without secrets, below ``directory`` (None: the system's temporary folder)."""

    def __init__(self, directory: str | None, store: str) -> None:
        self._directory = directory
        self._store = store
        self._rescued: _Rescued | None = None
        self._folders: dict[object, _Folder] = {}

    async def shard(self, shard: QueuedShard, why: Exception) -> str:
        """Save the chunks queued for a shard; return the folder. Raises `OSError` and `ZarrfsError`."""
        lost, error = shard.lost()
        chunks = {coords: written.data for coords, written in shard.all().items() if coords not in lost}
        if error is not None and not chunks:
            raise error
        folder = await threads.io(self._folder, shard.node)
        saved = {coords: data for coords, data in chunks.items() if data is not None}
        if saved:
            async with _RescueStore(folder.path) as rescue:
                # It may have been renamed since they were queued.
                await rescue.store(replace(shard.array, path=shard.node.path), saved)
        erased = [coords for coords, data in chunks.items() if data is None]
        more = {"path": shard.node.path, "chunks": sorted(saved), "erased_chunks": sorted(erased), "lost_chunks": sorted(lost)}
        await threads.io(self._add_line, folder, shard.key, why, more)
        return folder.name

    async def file(self, staged: Staged, why: Exception) -> str:
        """Save the staged data of a file; return the folder. Raises `OSError` and `ZarrfsError`."""
        ident, stage = staged.content.ident, staged.stage
        assert stage is not None
        folder = await threads.io(self._folder, staged)
        if isinstance(stage, ElementsStage):
            async with _RescueStore(folder.path) as rescue:
                chunks = await stage.publish_into(rescue.array)
            await threads.io(self._add_line, folder, ident, why, {"path": stage.path, "chunks": sorted(chunks)})
            return folder.name
        await _save(folder.path, ident, stage.size, stage.read)
        await threads.io(self._add_line, folder, ident, why, {"nbytes": stage.size})
        return folder.name

    async def value(self, content: Content, why: Exception) -> str:
        """Save the value of a file; return the folder. Raises `OSError` and `ZarrfsError`."""
        snapshot = await content.snapshot()
        if snapshot is None:
            raise no_such_entry(content.ident)
        try:
            folder = await threads.io(self._folder, content)
            await _save(folder.path, content.ident, snapshot.attributes.size, snapshot.read)
            await threads.io(self._add_line, folder, content.ident, why, {"nbytes": snapshot.attributes.size})
        finally:
            await snapshot.aclose()
        return folder.name

    def _folder(self, of: object) -> _Folder:
        """Return the folder for losses of one object, created at the first, and again if it was removed since."""
        folder = self._folders.get(of)
        if folder is None or not os.path.isdir(folder.path):
            folder = self._folders[of] = self._new(f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}")
        return folder

    def _new(self, name: str) -> _Folder:
        if self._rescued is not None:
            with suppress(FileNotFoundError):  # It was removed.
                return self._rescued.new(name)
        # None may be usable at the start: a full disk.
        self._rescued = _Rescued(self._directory if self._directory is not None else tempfile.gettempdir())
        return self._rescued.new(name)

    def _add_line(self, folder: _Folder, key: str, why: Exception, more: Mapping[str, object]) -> None:
        line = {"time": time.time(), "store": self._store, "key": key, "why": f"{type(why).__name__}: {why}", **more}
        with open(os.path.join(folder.path, "lost.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for path in (folder.path, folder.rescued.path, os.path.join(folder.rescued.path, "..")):
            own_files.sync_names(path)


class _Folder(NamedTuple):
    """A folder of losses: ``name`` is its path in messages; ``path`` starts at a descriptor, and thus follows renames."""

    rescued: _Rescued
    last: str

    @property
    def name(self) -> str:
        return os.path.join(os.readlink(self.rescued.path), self.last)

    @property
    def path(self) -> str:
        return os.path.join(self.rescued.path, self.last)


class _Rescued:
    """The folder ``rescued`` below ``directory``, held by a descriptor. Raises `OSError`.

    The owner of ``directory`` may be another user, who can replace the folder by a link: nothing below it is accessed by its path.
    """

    def __init__(self, directory: str) -> None:
        self._fd = -1
        name = os.path.join(directory, FOLDER)
        try:
            self._fd = _opened(name)
        except OSError:
            # A folder in which others could read or put links, a link, or a file.
            self._fd = _opened(tempfile.mkdtemp(prefix=f"{FOLDER}-", dir=directory))
        self.path = f"/proc/self/fd/{self._fd}"

    def new(self, name: str) -> _Folder:
        """Return a new folder in it. Raises `FileNotFoundError` if it was removed."""
        os.mkdir(name, 0o700, dir_fd=self._fd)
        return _Folder(self, name)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _opened(path: str) -> int:
    """Return a descriptor of a folder to which only this user may write, created if missing. Raises `OSError`."""
    fd = own_files.enter_folder(path)
    if not own_files.is_private(fd):
        os.close(fd)
        raise PermissionError(f"{path}: belongs to another user, or others may write to it")
    return fd


class _RescueStore:
    """The store in a folder of rescued data, for an ``async with`` block."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "store")
        self._open_store: Store | None = None

    async def __aenter__(self) -> _RescueStore:
        await threads.io(partial(os.makedirs, self._path, 0o700, exist_ok=True))
        self._open_store = await open_store(self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._open_store is not None
        await self._open_store.sync_all()
        await self._open_store.aclose()

    async def array(self, node: ArrayNode) -> Array:
        """Return the array described by ``node``, under its path, with the chunks saved before."""
        store = self._open_store
        assert store is not None
        layout = next(dialect for dialect in dialects() if dialect.name == node.dialect).create(Prefix(""))
        node = replace(node, chunk_prefix=layout.chunk_prefix(node.path))
        counters = WorkCounters()
        array = Array(node, chunks_of(store, node, ShardLayers(counters)), counters)
        for key, document in (layout.entry_documents() | layout.format(node)).items():
            await store.set(key, document)
        return array

    async def store(self, node: ArrayNode, chunks: Mapping[Coords, Buffer]) -> None:
        """Store encoded chunks of the array described by ``node``."""
        await (await self.array(node)).chunks.update(chunks)


async def _save(folder: str, ident: str, nbytes: int, read: Callable[[int, int], Awaitable[Buffer]]) -> None:
    """Save the bytes of a file of the mount; ``read``: by offset and size."""
    files = os.path.join(folder, "files")
    path = _path_in(files, ident)
    with os.fdopen(await threads.io(_created, path), "wb") as file:
        for offset in range(0, nbytes, _PIECE_NBYTES):
            await threads.io(file.write, await read(offset, _PIECE_NBYTES))
        await threads.io(file.flush)
        await threads.io(os.fsync, file)

    while path != files:
        path = os.path.dirname(path)
        await threads.io(own_files.sync_names, path)


def _path_in(folder: str, ident: str) -> str:
    """Return the path below ``folder`` of a file of the mount."""
    return os.path.join(folder, *(part for part in ident.split("/") if part not in ("", ".", "..")))


def _created(path: str) -> int:
    """Create a file, and the folders on the way; return its descriptor."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
