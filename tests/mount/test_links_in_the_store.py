"""A link or special file in place of a chunk is an error in every view: to a Zarr library, an absent chunk is fill value.

A change that would need to follow one is an error, too, and leaves what is there.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import mounted
from tests.support.random_layouts import V3_2019, V3_2022, Draft
from tests.support.small_stores import array_document, write

pytestmark = pytest.mark.fuse

ARRAYS = ("link", "linked folder", "pipe", "socket")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A v2 store: a chunk of each array, or the folder of its chunks, is elsewhere, and a link is in its place; or no file at all."""
    store = tmp_path / "store"
    root = zarr.create_group(str(store), zarr_format=2)
    for name in ARRAYS:
        array = root.create_array(
            name, shape=(4, 4), chunks=(2, 4), dtype="i4", fill_value=0, chunk_key_encoding={"name": "v2", "separator": "/"}
        )
        array[...] = 7
    for number, place in enumerate(("link/0/0", "linked folder/0", "pipe/0/0", "socket/0/0")):
        (store / place).rename(tmp_path / f"elsewhere{number}")
    (store / "link/0/0").symlink_to(tmp_path / "elsewhere0")
    (store / "linked folder/0").symlink_to(tmp_path / "elsewhere1")
    os.mkfifo(store / "pipe/0/0")
    monkeypatch.chdir(store)  # The path of a socket is short.
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("socket/0/0")
    return store


@pytest.mark.parametrize("view", ["raw", "zarr3", "chunks"])
def test_a_zarr_library_reads_no_fill_value_there(store: Path, view: str) -> None:
    with mounted(store) as mount:
        for name in ARRAYS:
            array = zarr.open_array(str(mount.path / view / name), mode="r")
            assert (np.asarray(array[2:]) == 7).all(), name
            with pytest.raises(PermissionError):
                array[:2]


def test_the_link_and_what_it_leads_to_stay(store: Path, tmp_path: Path) -> None:
    before = (tmp_path / "elsewhere0").read_bytes()
    with mounted(store) as mount:
        for path in ("raw/link/0/0", "zarr3/link/c/0/0", "chunks/link/0.0"):
            with pytest.raises(PermissionError):
                (mount.path / path).write_bytes(before)
    assert (store / "link/0/0").is_symlink() and (tmp_path / "elsewhere0").read_bytes() == before


@pytest.mark.parametrize("name", ["link", "pipe"])
def test_elements_saved_or_erased_there_are_refused(store: Path, name: str) -> None:
    with mounted(store, ends_with=7) as mount:
        with pytest.raises(PermissionError):
            np.save(mount.path / f"npy/{name}.npy", np.full((4, 4), 9, "i4"))
        with open(mount.path / f"npy/{name}.npy", "r+b", buffering=0) as file:
            # The fill value, which erases the chunk.
            os.pwrite(file.fileno(), bytes(32), os.fstat(file.fileno()).st_size - 64)
            with pytest.raises(PermissionError):
                os.fsync(file.fileno())
            with pytest.raises(PermissionError):
                file.close()


@pytest.mark.parametrize("layout", [V3_2019, V3_2022], ids=lambda layout: layout.dialect)
def test_an_array_whose_chunks_are_behind_a_link_is_neither_renamed_nor_removed(tmp_path: Path, layout: Draft) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    layout.make_store(store)
    layout.create(store, "a", np.arange(32), 1, is_sharded=False)
    document, chunks = (store / place for place in layout.places("a"))
    chunks.rename(elsewhere)
    chunks.symlink_to(elsewhere)
    before = {path.name: path.read_bytes() for path in (document, *elsewhere.iterdir())}
    with mounted(store) as mount:
        for view, name in (("chunks", "a"), ("zarr3", "a"), ("npy", "a.npy")):
            path = mount.path / view / name
            with pytest.raises(PermissionError):
                path.rename(path.with_name(path.name.replace("a", "b")))
        with pytest.raises(PermissionError):
            (mount.path / "npy/a.npy").unlink()
        assert "a" in os.listdir(mount.path / "chunks")
    assert chunks.is_symlink() and {path.name: path.read_bytes() for path in (document, *elsewhere.iterdir())} == before


@pytest.mark.parametrize("is_alone", [False, True], ids=["beside another node", "alone"])
@pytest.mark.parametrize("chunks", [2, 400], ids=["few names", "many names"])
def test_a_document_behind_a_link_hides_neither_its_node_nor_others(tmp_path: Path, chunks: int, is_alone: bool) -> None:
    """In a store without a document of the root, where documents of every layout are looked for."""
    document = array_document((chunks,), (1,))
    other = {} if is_alone else {"b/.zarray": document, "b/0": bytes(4)}
    store = write(tmp_path / "store", {f"a/{number}": bytes(4) for number in range(chunks)} | other)
    (tmp_path / "elsewhere").write_bytes(document)
    (store / "a/.zarray").symlink_to(tmp_path / "elsewhere")
    with mounted(store) as mount:
        for view, shown in (("chunks", "b"), ("zarr3", "b"), ("npy", "b.npy")):
            assert {"a.unsupported.txt", *([] if is_alone else [shown])} <= set(os.listdir(mount.path / view))
            assert ".zarray" in (mount.path / view / "a.unsupported.txt").read_text()
