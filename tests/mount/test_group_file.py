"""Each group as one file, in a container format for tests, through a mount."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.bundle_container import OFFER, loaded
from tests.support.mounting import Mounted, run
from tests.support.plugged import mounted_with, offer

ARRAYS = {"a": np.arange(20_000, dtype="i2"), "g/b": np.arange(30.0).reshape(5, 6), "g/c": np.array([True, False])}

pytestmark = pytest.mark.fuse


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounted]:
    store = tmp_path / "s.zarr"
    root = zarr.open_group(str(store), mode="w", zarr_format=3)
    for name, elements in ARRAYS.items():
        root.create_array(name, data=elements, chunks=tuple(max(1, n // 2) for n in elements.shape))
    root["g/b"].attrs["units"] = "K"
    offer(tmp_path / "site", OFFER)
    with mounted_with(tmp_path / "site", store) as mount:
        yield mount


def elements_of(path: Path) -> dict[str, Any]:
    return {name: node[0] for name, node in loaded(path.read_bytes()).items() if isinstance(node, tuple)}


def read_all(descriptor: int, size: int) -> tuple[bytes, set[int]]:
    """Read a file in small pieces; return the readable bytes and the stale offsets."""
    data, stale, offset = bytearray(size), set(), 0
    while offset < size:
        try:
            piece = os.pread(descriptor, 100, offset)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            stale.add(offset)
            offset += 1
        else:
            data[offset : offset + len(piece)] = piece
            offset += len(piece)
    return bytes(data), stale


def test_programs_copy_the_file_of_a_group(mount: Mounted, tmp_path: Path) -> None:
    assert sorted(os.listdir(mount.path / "bundle")) == ["g", "g.bundle", "s.bundle"]
    copy = tmp_path / "copy"
    run("cp", mount.path / "bundle/s.bundle", copy)
    assert copy.stat().st_size == (mount.path / "bundle/s.bundle").stat().st_size
    found = elements_of(copy)
    assert set(found) == {"/a", "/g/b", "/g/c"}
    assert all(np.array_equal(found[f"/{name}"], elements) for name, elements in ARRAYS.items())
    assert json.loads(run("head", "-1", mount.path / "bundle/g.bundle").stdout)["/g/b"][3] == {"units": "K"}
    for command, *names in (
        ("mkdir", "bundle/new"),
        ("touch", "bundle/new.bundle"),
        ("rm", "bundle/g.bundle"),
        ("rmdir", "bundle/g"),
        ("mv", "npy/a.npy", "bundle"),
    ):
        assert run(command, *(mount.path / name for name in names), check=False).returncode == 1, command
    assert (mount.path / "npy/a.npy").exists()


@pytest.mark.parametrize("by", ["another program", "this mount"])
def test_an_array_that_is_erased_leaves_the_others_readable(mount: Mounted, by: str) -> None:
    path = mount.path / "bundle/s.bundle"
    before = path.read_bytes()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        shutil.rmtree(mount.store / "g/b" if by == "another program" else mount.path / "zarr3/g/b")
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        data, stale = read_all(descriptor, len(before))
        while by == "another program" and not stale:
            # Its changes are reported within milliseconds.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            data, stale = read_all(descriptor, len(before))
        # The kernel reads whole pages.
        assert 0 < len(stale) <= 2 * 4096
        assert all(data[offset] == before[offset] for offset in range(len(before)) if offset not in stale)
    finally:
        os.close(descriptor)
    assert set(elements_of(path)) == {"/a", "/g/c"}


def _look(path: Path) -> None:
    path.stat()


def _list(path: Path) -> None:
    run("ls", "-l", path.parent)


def _read(path: Path) -> None:
    assert set(elements_of(path)) == {"/a", "/g/b", "/g/c", "/z"}


@pytest.mark.parametrize("seen_by", [_look, _list, _read])
def test_an_open_file_keeps_its_layout_when_an_array_changes_its_shape(mount: Mounted, seen_by: Callable[[Path], None]) -> None:
    """Neither the size nor the pages of the file that is rendered next become those of the open one."""
    path, document = mount.path / "bundle/s.bundle", mount.path / "chunks/a/.zarray"
    np.save(mount.path / "npy/z.npy", np.arange(9_000, dtype="i2"))
    for shape in (19_999, 19_990, 20_000):
        before = path.read_bytes()
        descriptor = os.open(path, os.O_RDONLY)
        try:
            array = json.loads(document.read_text())
            document.write_text(json.dumps(array | {"shape": [shape]}))
            seen_by(path)
            # The last page has no elements of the changed array.
            start = len(before) // 4096 * 4096
            assert os.pread(descriptor, 100_000, start) == before[start:]
        finally:
            os.close(descriptor)
        assert elements_of(path)["/a"].shape == (shape,)


def test_what_is_written_through_other_views_is_in_the_next_read(mount: Mounted) -> None:
    path = mount.path / "bundle/s.bundle"
    assert elements_of(path)["/a"][5] == 5
    descriptor = os.open(path, os.O_RDONLY)
    before = os.fstat(descriptor)
    array = np.load(mount.path / "npy/a.npy", mmap_mode="r+")
    array[5] = 77
    array.flush()
    del array
    assert elements_of(path)["/a"][5] == 77
    np.save(mount.path / "npy/g/new.npy", np.arange(3, dtype="i2"))
    found = elements_of(path)
    assert found["/g/new"].tolist() == [0, 1, 2]
    assert path.stat().st_size > before.st_size and path.stat().st_ino != before.st_ino
    assert len(os.pread(descriptor, 100_000, 0)) == before.st_size
    os.close(descriptor)
    run("mv", mount.path / "zarr3/g", mount.path / "zarr3/h")
    assert set(elements_of(path)) == {"/a", "/h/b", "/h/c", "/h/new"}
    assert sorted(os.listdir(mount.path / "bundle")) == ["h", "h.bundle", "s.bundle"]


def test_many_arrays_are_one_file(mount: Mounted) -> None:
    for index in range(50):
        np.save(mount.path / f"npy/g/n{index:02}.npy", np.full(10, index))
    found = elements_of(mount.path / "bundle/g.bundle")
    assert all((found[f"/g/n{index:02}"] == index).all() for index in range(50))
    (mount.path / "zarr3/g/more").mkdir()
    for index in range(10):
        np.save(mount.path / f"npy/g/more/n{index:02}.npy", np.full(10, index))
    assert "g.bundle.unsupported.txt" in os.listdir(mount.path / "bundle")
    assert "more.bundle" in os.listdir(mount.path / "bundle/g")
