"""Another mount replaces an array whose document lies elsewhere than its chunks (2019, 2022), while this one reads it.

The new one differs from the old one in its shape alone, as one that was resized does.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import trio_test

from tests.hierarchy.test_windows import Interposed
from tests.support.trees import READ_ONLY, folder_at, tree_over, walk
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry, StaleEntry
from zarrfs.stores.folder import anchors
from zarrfs.stores.folder.store import FolderStore
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Directory, OpenFlags

OLD, NEW = np.full((8, 8), 7, "<i4"), np.full((12, 8), 5, "<i4")
# Document, and folder of the chunks.
PLACES = {"v3_2019": ("meta/root/a.array", "data/a"), "v3_2022": ("meta/root/a.array.json", "data/root/a")}

_CHANGING = OpenFlags(read=True, write=True)

pytestmark = pytest.mark.parametrize("layout", PLACES)


async def _save(tree: MountTree, name: str, elements: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> None:
    text = io.BytesIO()
    np.save(text, elements)
    folder = await walk(tree, "npy")
    assert isinstance(folder, Directory)
    _, handle = await folder.create(f"{name}.npy", OpenFlags(read=True, write=True))
    await handle.write(0, text.getvalue())
    await handle.flush()
    await handle.release()


def _steps(store: Path, layout: str) -> Iterator[None]:
    """Replace the array a by the array b in the steps of a mount."""
    document, chunks = (store / each for each in PLACES[layout])
    new = {each: each.with_name(each.name.replace("a", "b", 1)) for each in (document, chunks)}
    document.unlink()
    yield
    os.rename(chunks, store / "old")
    yield
    os.rename(new[chunks], chunks)
    yield
    os.rename(new[document], document)
    yield


async def _whole(file: StagedFile) -> bytes | None:
    """Return the file, read a chunk at a time; None if that is refused because it is another one by now."""
    pieces: list[bytes] = []
    try:
        reader = await file.open(READ_ONLY)
        while not pieces or pieces[-1]:
            pieces.append(bytes(await reader.read(128 * len(pieces), 128)))
        await reader.release()
    except StaleEntry:
        return None
    return b"".join(pieces)


async def _file(tree: MountTree) -> StagedFile:
    file = await walk(tree, "npy/a.npy")
    assert isinstance(file, StagedFile)
    return file


def _files(folder: Path) -> dict[str, bytes]:
    """Return the values of all files below ``folder`` by their paths, in order."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def _happened(path: Path, layout: str, at: int, between: int) -> bool:
    """Return True if there was an operation with the number ``at``. ``between``: operations from one step to the next; 0: none."""
    store = Interposed(path)
    async with tree_over(store, f"file:{path}", new_dialect=layout, new_chunks="4x8", watch="no") as tree:
        await _save(tree, "a", OLD)
        await _save(tree, "b", NEW)
    replacing = _steps(path, layout)

    async with tree_over(store, f"file:{path}", metadata_ttl="60", watch="no") as tree:
        store.arm_steps(at, replacing, between)
        with suppress(NoSuchEntry):
            if (text := await _whole(await _file(tree))) is not None:
                found = np.load(io.BytesIO(text))
                assert any(np.array_equal(found, each) for each in (OLD, NEW)), f"before operation {at}: {found}"
    happened = store.count > at
    await store.aclose()
    return happened


@pytest.mark.parametrize("between", [0, 1, 2, 3])
def test_what_is_read_is_one_of_both(layout: str, between: int, tmp_path: Path) -> None:
    at, happened = 0, True
    while happened:
        (path := tmp_path / str(at)).mkdir()
        happened = trio.run(_happened, path, layout, at, between)
        at += 1
    assert at > 3


@trio_test
async def test_an_array_whose_folder_is_held_no_more_is_not_read_from_another(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are few descriptors: its folder was released for that of another array."""
    monkeypatch.setattr(anchors, "_MAX_OPEN", 1)
    store = FolderStore(str(tmp_path))
    async with tree_over(store, f"file:{tmp_path}", new_dialect=layout, new_chunks="4x8", watch="no") as tree:
        for name, elements in (("a", OLD), ("b", NEW), ("c", OLD)):
            await _save(tree, name, elements)
    async with tree_over(store, f"file:{tmp_path}", metadata_ttl="60", watch="no") as tree:
        handles = []
        for name in "ac":
            file = await walk(tree, f"npy/{name}.npy")
            assert isinstance(file, StagedFile)
            handles.append(await file.open(READ_ONLY))
            # The first chunk alone.
            assert bytes(await handles[-1].read(128, 128)) == OLD[:4].tobytes()
        for _ in _steps(tmp_path, layout):
            pass
        with pytest.raises(StaleEntry):
            await handles[0].read(256, 128)
        for each in handles:
            await each.release()
    await store.aclose()


@pytest.mark.logs("was replaced by another array")
@trio_test
async def test_chunks_that_arrive_after_an_equal_document_are_those_of_another_array(layout: str, tmp_path: Path) -> None:
    """The document was found before the folder of its chunks: what was written to the old array was stored in the new one."""
    store = FolderStore(str(tmp_path))
    async with tree_over(store, f"file:{tmp_path}", new_dialect=layout, new_chunks="4x8", watch="no") as tree:
        await _save(tree, "a", OLD)
        await _save(tree, "b", OLD + 1)
    document, chunks = (tmp_path / each for each in PLACES[layout])
    new = {each: each.with_name(each.name.replace("a", "b", 1)) for each in (document, chunks)}
    values = _files(new[chunks])
    async with tree_over(store, f"file:{tmp_path}", metadata_ttl="60", watch="no") as tree:
        reader, writer = [await (await _file(tree)).open(flags) for flags in (READ_ONLY, _CHANGING)]
        await writer.write(128, b"\x63")
        document.unlink()
        shutil.rmtree(chunks)
        os.rename(new[document], document)
        # A missing chunk: the document is read.
        assert bytes(await reader.read(256, 128)) == bytes(128)
        os.rename(new[chunks], chunks)
        with pytest.raises(StaleEntry):
            await writer.flush()
        with suppress(StaleEntry):
            await writer.release()
        await reader.release()
    assert _files(chunks) == values
    await store.aclose()


@trio_test
async def test_an_array_whose_last_chunk_was_erased_and_written_again_may_get_other_attributes(layout: str, tmp_path: Path) -> None:
    """Another mount did all of it: the folder that it made was found with the document of before."""
    store = FolderStore(str(tmp_path))
    async with tree_over(store, f"file:{tmp_path}", new_dialect=layout, new_chunks="4x8", watch="no") as tree:
        await _save(tree, "a", NEW)
    document, chunks = (tmp_path / each for each in PLACES[layout])
    async with tree_over(store, f"file:{tmp_path}", metadata_ttl="60", watch="no") as tree:
        reader, writer = [await (await _file(tree)).open(flags) for flags in (READ_ONLY, _CHANGING)]
        assert bytes(await reader.read(128, 128)) == NEW[:4].tobytes()
        (name, value), *_ = _files(chunks).items()
        shutil.rmtree(chunks)
        assert bytes(await reader.read(256, 128)) == bytes(128)
        (chunks / name).parent.mkdir(parents=True)
        (chunks / name).write_bytes(value)
        # Another missing chunk: the document is read again, and is the one of before.
        assert bytes(await reader.read(384, 128)) == bytes(128)
        await writer.write(256, b"\x63")
        text = document.read_text()
        document.with_name("new").write_text(text.replace('"attributes": {}', '"attributes": {"unit": "m"}'))
        assert text != document.with_name("new").read_text()
        os.rename(document.with_name("new"), document)
        assert bytes(await reader.read(257, 127)) == bytes(127)
        await writer.flush()
        await writer.release()
        await reader.release()
    assert len(_files(chunks)) == 2
    await store.aclose()


@trio_test
async def test_attributes_that_this_mount_has_changed_are_no_sign_of_another_array(layout: str, tmp_path: Path) -> None:
    """Other programs have erased the folder of the chunks before, and make it again afterwards."""
    store = FolderStore(str(tmp_path))
    async with tree_over(store, f"file:{tmp_path}", new_dialect=layout, new_chunks="4x8", watch="no") as tree:
        await _save(tree, "a", OLD)
    chunks = tmp_path / PLACES[layout][1]
    (name, value), *_ = _files(chunks).items()
    async with tree_over(store, f"file:{tmp_path}", metadata_ttl="60", watch="no") as tree:
        writer = await (await _file(tree)).open(_CHANGING)
        shutil.rmtree(chunks)
        assert bytes(await writer.read(128, 256)) == bytes(256)
        _, attributes = await (await folder_at(tree, "chunks/a")).create(".zattrs", OpenFlags(write=True))
        await attributes.write(0, b'{"unit": "m"}')
        await attributes.flush()
        await attributes.release()
        assert bytes(await writer.read(128, 256)) == bytes(256)
        (chunks / name).parent.mkdir(parents=True)
        (chunks / name).write_bytes(value)
        await writer.write(256, b"\x63")
        await writer.flush()
        await writer.release()
    assert len(_files(chunks)) == 2
    await store.aclose()
