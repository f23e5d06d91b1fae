"""Another program replaces an array that is being written to by another one: before any operation of the store, one run each.

Both have the same metadata: they differ only by the folder in which chunks are read and set.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import trio
import zarr
from trio.testing import trio_test

from tests.support.length import FULL
from tests.support.trees import READ_ONLY, tree_of, tree_over, walk
from zarrfs.buffers import Buffer
from zarrfs.errors import StaleEntry, ZarrfsError
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import Answer, Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Directory, OpenFlags

T = TypeVar("T")
OURS, THEIRS, WRITTEN = 7, 5, 99
WRITING = OpenFlags(read=True, write=True)

# Of the last release: the program got the error at close.
pytestmark = pytest.mark.logs(r"write failed, data lost", r"; chunks (saved|lost)")


class Interposed(ForwardingStore):
    """A folder in which something ``happens`` before operation number ``at``."""

    def __init__(self, path: Path) -> None:
        super().__init__(FolderStore(str(path)))
        self.count = 0
        self.at = -1
        self.happens: Callable[[], None] = lambda: None

    def arm(self, at: int, happens: Callable[[], None]) -> None:
        self.count, self.at, self.happens = 0, at, happens

    def arm_steps(self, at: int, steps: Iterator[None], between: int) -> None:
        """Take one of the ``steps`` before operation ``at``, and the next ones after as many operations ``between``; 0: all at once."""

        def step() -> None:
            for _ in steps:
                if between:
                    self.at += between
                    break

        self.arm(at, step)

    def _before(self) -> None:
        if self.count == self.at:
            self.happens()
        self.count += 1

    async def _then(self, operation: Awaitable[T]) -> T:
        self._before()
        return await operation

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        return await self._then(self.inner.get_partial_values(key_ranges, if_generation=if_generation))

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return await self._then(self.inner.get_with_stat(key, byte_range))

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        return await self._then(self.inner.get_many(key_ranges))

    async def stat(self, key: Key) -> KeyStat | None:
        return await self._then(self.inner.stat(key))

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        return await self._then(self.inner.set(key, value, expect=expect))

    async def erase_values(self, keys: Iterable[Key]) -> None:
        await self._then(self.inner.erase_values(keys))

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def held() -> Any:
            self._before()
            async with self.inner.exclusive(key):
                yield

        return held()


def renamed_over(store: Path) -> None:
    os.rename(store / "a", store / "b")
    os.rename(store / "c", store / "a")


def removed_and_made_anew(store: Path) -> None:
    shutil.rmtree(store / "a")
    os.rename(store / "c", store / "a")


async def _change(tree: Any, view: str, opened: Callable[[], None]) -> bool:
    """Return True if some elements were written, and the close acknowledged it."""
    file = await walk(tree, {"npy": "npy/a.npy", "chunks": "chunks/a/1"}[view])
    assert isinstance(file, StagedFile)
    size = (await file.attributes()).size
    # The second half of the second of four chunks; in a sharded array all four are in one shard.
    start = size - 4 * 24 + 4 * 4 if view == "npy" else 4 * 4
    try:
        handle = await file.open(WRITING)
        opened()
        try:
            await handle.write(start, np.full(4, WRITTEN, "<i4").tobytes())
            await handle.flush()
        finally:
            await handle.release()
    except ZarrfsError:
        return False
    return True


@pytest.mark.parametrize("event", [renamed_over, removed_and_made_anew], ids=lambda event: event.__name__)
@pytest.mark.parametrize("delay", ["0", "600"])
@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@pytest.mark.parametrize("view", ["chunks", "npy"])
def test_no_byte_of_one_array_is_in_another(view: str, sharded: bool, delay: str, event: Any, tmp_path: Path) -> None:
    if delay != "0" and not sharded:
        pytest.skip("nothing waits")
    zarr.create_group(str(tmp_path / "store"), zarr_format=3)
    for name, value in ("a", OURS), ("c", THEIRS):
        more = {"shards": (32,)} if sharded else {}
        zarr.create_array(str(tmp_path / "store"), name=name, shape=(32,), chunks=(8,), dtype="<i4", compressors=None, **more)[
            :
        ] = value
    at, happened = 0, True
    while happened:
        path = shutil.copytree(tmp_path / "store", tmp_path / str(at))
        happened = trio.run(_is_apart, path, view, delay, event, at, tmp_path / "cache")
        shutil.rmtree(path)
        at += 1
    assert at > 3


async def _is_apart(path: Path, view: str, delay: str, event: Any, at: int, cache: Path) -> bool:
    """Return True if there was an operation of that number."""
    store = Interposed(path)
    options = {"shard_delay": delay, "watch": "no", "metadata_ttl": "60", "cache_dir": str(cache)}
    async with tree_over(store, f"file:{path}", **options) as tree:
        # The array is known, with its chunks read, as in a mount in use.
        file = await walk(tree, "npy/a.npy")
        assert isinstance(file, StagedFile)
        acknowledged = await _change(tree, view, lambda: store.arm(at, lambda: event(path)))
        lost = await tree.publish_all()
    happened = store.count > at
    await store.aclose()
    if not happened:
        return False
    what = f"{event.__name__} before operation {at}"
    theirs = zarr.open_array(str(path / "a"), mode="r")[:].tolist()
    written = [OURS] * 12 + [WRITTEN] * 4 + [OURS] * 16
    assert theirs == [THEIRS] * 32, f"{what}: {theirs}"
    if (path / "b").exists():
        ours = zarr.open_array(str(path / "b"), mode="r")[:].tolist()
        assert ours in ([OURS] * 32, written), f"{what}: {ours}"
        assert ours == written or not acknowledged or lost, f"{what}: acknowledged, and neither stored nor told"
    return True


@pytest.mark.parametrize("is_replaced", [False, True], ids=["taken", "replaced"])
@pytest.mark.parametrize("group", ["", "g/"])
def test_who_reads_a_new_array_is_given_nothing_else(group: str, is_replaced: bool, tmp_path: Path) -> None:
    """A reader gets neither fill values nor elements of another array.

    The chunks are read where the array was created, or at its path, from which another program removes it at once, or where it puts
    another array.
    """
    zarr.create_group(str(tmp_path / "store"), zarr_format=3).create_group("g")
    zarr.create_array(str(tmp_path / "theirs"), shape=(32,), chunks=(8,), dtype="<i4", compressors=None, zarr_format=3)[:] = THEIRS
    at, happened = 0, True
    while happened:
        path = shutil.copytree(tmp_path / "store", tmp_path / str(at))
        happened = trio.run(_is_read_as_written, path, group, tmp_path / "theirs" if is_replaced else None, at)
        shutil.rmtree(path)
        # Most of these operations are the reader's.
        at += 1 if FULL else 4
    assert at > 3


async def _is_read_as_written(path: Path, group: str, theirs: Path | None, at: int) -> bool:
    store = Interposed(path)
    written = np.full(32, WRITTEN, "<i4")
    text = io.BytesIO()
    np.save(text, written)

    def taken_away() -> None:
        with suppress(FileNotFoundError):
            os.rename(path / group / "a", path / f"taken-{store.count}")
            if theirs is not None:
                shutil.copytree(theirs, path / group / "a")
        store.at += 1

    async with tree_over(store, f"file:{path}", watch="no", metadata_ttl="60", new_chunks="8") as tree:
        folder = await walk(tree, f"npy/{group}".rstrip("/"))
        assert isinstance(folder, Directory)
        file, writer = await folder.create("a.npy", WRITING)
        await writer.write(0, text.getvalue())
        reader = await file.open(READ_ONLY)
        store.arm(at, taken_away)
        over = False

        async def read_again_and_again() -> None:
            while not over:
                await trio.lowlevel.checkpoint()
                with suppress(StaleEntry):
                    data = bytes(await reader.read(len(text.getvalue()) - written.nbytes, written.nbytes))
                    assert data in (written.tobytes(), b""), f"before operation {at}"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_again_and_again)
            with suppress(ZarrfsError):
                await writer.flush()
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            over = True
        with suppress(ZarrfsError):
            await reader.release()
            await writer.release()
    happened = store.count > at
    await store.aclose()
    return happened


EDITS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "shape in chunks": ("chunks/a/.zarray", lambda document: document.update(shape=[8])),
    "shape in zarr3": ("zarr3/a/zarr.json", lambda document: document.update(shape=[8])),
    "attributes in chunks": ("chunks/a/.zattrs", lambda document: document.update(written="by us")),
    "attributes in zarr3": ("zarr3/a/zarr.json", lambda document: document["attributes"].update(written="by us")),
    "attributes in raw": ("raw/a/zarr.json", lambda document: document["attributes"].update(written="by us")),
}


@pytest.mark.parametrize("event", [renamed_over, removed_and_made_anew], ids=lambda event: event.__name__)
@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@pytest.mark.parametrize("edit", EDITS)
def test_no_document_of_one_array_is_changed_for_another(edit: str, sharded: bool, event: Any, tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "store"), zarr_format=3)
    for name, value in ("a", OURS), ("c", THEIRS):
        more = {"shards": (16,)} if sharded else {}
        zarr.create_array(
            str(tmp_path / "store"),
            name=name,
            shape=(32,),
            chunks=(8,),
            dtype="<i4",
            compressors=None,
            attributes={"of": value},
            **more,
        )[:] = value
    at, happened = 0 if "raw" in edit else -1, True
    while happened:
        path = shutil.copytree(tmp_path / "store", tmp_path / str(at))
        happened = trio.run(_is_edited_apart, path, edit, event, at)
        shutil.rmtree(path)
        at += 1
    assert at > (3 if "raw" not in edit else 0)


async def _is_edited_apart(path: Path, edit: str, event: Any, at: int) -> bool:
    """Return True if there was an operation of that number."""
    store = Interposed(path)
    name, change = EDITS[edit]
    acknowledged = True
    async with tree_over(store, f"file:{path}", watch="no", metadata_ttl="60", resize_erases="yes") as tree:
        file = await walk(tree, name)
        assert isinstance(file, StagedFile)
        try:
            if at < 0:
                # An open then shows the cached document.
                event(path)
            handle = await file.open(WRITING)
            document = json.loads(bytes(await handle.read(0, 1 << 20)))
            change(document)
            text = json.dumps(document).encode()
            await handle.truncate(0)
            await handle.write(0, text)
            store.arm(at, lambda: event(path))
            try:
                await handle.flush()
            finally:
                await handle.release()
        except ZarrfsError:
            acknowledged = False
        # Nothing of a change that failed takes effect later, where the other array is now.
        assert not await tree.publish_all()
    happened = store.count > at
    await store.aclose()
    if not happened:
        return False
    what = f"{event.__name__} before operation {at}"
    theirs = zarr.open_array(str(path / "a"), mode="r")
    assert dict(theirs.attrs) == {"of": THEIRS}, what
    assert theirs[:].tolist() == [THEIRS] * 32, what
    if (path / "b").exists():
        ours = zarr.open_array(str(path / "b"), mode="r")
        length = 8 if "shape" in edit else 32
        is_edited = (ours.shape == (8,)) if "shape" in edit else (dict(ours.attrs) == {"of": OURS, "written": "by us"})
        assert is_edited or not acknowledged, f"{what}: acknowledged, and not there"
        assert ours[:].tolist() == [OURS] * (length if is_edited else 32), what
    return True


def test_what_an_array_is_and_its_elements_are_of_one_array(tmp_path: Path) -> None:
    """Another array, whose documents differ only by the shape, replaces it before any operation of the first lookup."""
    for name, length in ("a", 16), ("c", 24):
        zarr.create_array(str(tmp_path / "store"), name=name, shape=(length,), chunks=(8,), dtype="<i4", compressors=None)[:] = (
            length
        )
    at, happened = 0, True
    while happened:
        path = shutil.copytree(tmp_path / "store", tmp_path / str(at))
        happened = trio.run(_is_read_as_one, path, at)
        at += 1
    assert at > 3


async def _is_read_as_one(path: Path, at: int) -> bool:
    store = Interposed(path)
    async with tree_over(store, f"file:{path}", watch="no", metadata_ttl="60") as tree:
        store.arm(at, lambda: renamed_over(path))
        with suppress(StaleEntry):
            file = await walk(tree, "npy/a.npy")
            assert isinstance(file, StagedFile)
            handle = await file.open(READ_ONLY)
            try:
                elements = np.load(io.BytesIO(bytes(await handle.read(0, 1 << 20))))
                assert set(elements.tolist()) == {len(elements)}, f"before operation {at}"
            finally:
                await handle.release()
    happened = store.count > at
    await store.aclose()
    return happened


@pytest.mark.parametrize("is_there", [True, False], ids=["replaced before", "replaced after"])
@trio_test
async def test_what_was_known_before_another_array_came_is_not_taken_for_that_one(is_there: bool, tmp_path: Path) -> None:
    for name, length in ("a", 16), ("c", 24):
        zarr.create_array(str(tmp_path), name=name, shape=(length,), chunks=(8,), dtype="<i4", compressors=None)[:] = length
    async with tree_of(tmp_path, watch="no", metadata_ttl="60") as tree:
        file = await walk(tree, "npy/a.npy")
        assert isinstance(file, StagedFile)
        os.rename(tmp_path / "a", tmp_path / "b")
        if is_there:
            os.rename(tmp_path / "c", tmp_path / "a")
        handle = await file.open(READ_ONLY)
        if not is_there:
            os.rename(tmp_path / "c", tmp_path / "a")
        # Not as if it were the same array after a resize: it has the same type, chunks, codecs and fill value.
        with pytest.raises(StaleEntry):
            await handle.read(0, 1 << 20)
        await handle.release()
