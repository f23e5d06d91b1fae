"""A grid of unequal chunks, of another distribution, through a real mount: for programs, an array like any other."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import Mounted
from tests.support.plugged import mounted_with, offer, zarrfs_with
from tests.support.unequal_chunks import GRIDS, UnequalExample

pytestmark = pytest.mark.fuse

EXAMPLE = UnequalExample((401, 300), ((100, 1, 250, 70), (7, 7, 7, 279)), frozenset({(1, 2)}))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    offer(folder, GRIDS)
    return folder


@pytest.fixture
def mount(tmp_path: Path, site: Path) -> Iterator[Mounted]:
    """Array ``a`` on the unequal grid, and its equal ``b`` on a regular one."""
    store = tmp_path / "store.zarr"
    for key, value in EXAMPLE.values("a"):
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_bytes(value)
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (store / "b").mkdir()
    regular = {"name": "regular", "configuration": {"chunk_shape": [100, 100]}}
    (store / "b" / "zarr.json").write_text(json.dumps(EXAMPLE.document | {"chunk_grid": regular}))
    with mounted_with(site, store) as mount:
        np.save(mount.path / "npy/b.npy", EXAMPLE.elements)
        yield mount


def errno_of(call: Callable[[], Any]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or -1
    return 0


def stored(mount: Mounted) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    values = {str(path.relative_to(mount.store)): path.read_bytes() for path in (mount.store / "a/c").rglob("*") if path.is_file()}
    return EXAMPLE.stored_in(values, "a")


def test_a_pass_decodes_each_chunk_once_and_gives_the_elements(mount: Mounted, site: Path, tmp_path: Path) -> None:
    before = mount.stats()["chunks_decoded"]
    copied = tmp_path / "a.npy"
    assert (
        subprocess.run(["dd", f"if={mount.path}/npy/a.npy", f"of={copied}", "bs=64k", "status=none"], check=False).returncode == 0
    )
    assert (np.load(copied) == EXAMPLE.elements).all()
    assert mount.stats()["chunks_decoded"] - before == len(EXAMPLE.coords) - len(EXAMPLE.missing)
    assert sorted(os.listdir(mount.path / "chunks")) == [".zgroup", "a", "b"]
    assert (mount.path / "raw/a/c/0/0").read_bytes() == (mount.store / "a/c/0/0").read_bytes()
    assert zarrfs_with(site, "check", mount.store).returncode == 0
    assert "chunks up to (250, 279)" in zarrfs_with(site, "info", mount.store, "/a").stdout


def test_a_copy_of_its_folder_is_an_array_of_v3(mount: Mounted, site: Path, tmp_path: Path) -> None:
    """Judged by zarr-python, which opens every chunk as an array; the test joins them along the grid."""
    zarr = pytest.importorskip("zarr")
    copied = tmp_path / "copy" / "a"
    copied.parent.mkdir()
    assert subprocess.run(["cp", "-r", mount.path / "chunks/a", copied], check=False).returncode == 0
    document = json.loads((copied / "zarr.json").read_bytes())
    assert document["chunk_grid"] == EXAMPLE.document["chunk_grid"] and document["shape"] == list(EXAMPLE.shape)
    elements = np.full(EXAMPLE.shape, EXAMPLE.fill, "<i4")
    for coords in EXAMPLE.coords:
        shape = EXAMPLE.grid.chunk_shape(coords)
        alone = document | {
            "shape": [(index + 1) * length for index, length in zip(coords, shape, strict=True)],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        }
        (copied / "zarr.json").write_text(json.dumps(alone))
        chunk = zarr.open_array(str(copied), mode="r").blocks[coords]
        box = EXAMPLE.box(coords)
        elements[box] = chunk[tuple(slice(0, each.stop - each.start) for each in box)]
    assert (elements == EXAMPLE.elements).all()
    (copied / "zarr.json").write_text(json.dumps(document))
    assert zarrfs_with(site, "check", copied.parent).returncode == 0
    with mounted_with(site, copied.parent) as again:
        assert (np.load(again.path / "npy/a.npy") == EXAMPLE.elements).all()


def test_a_copy_inside_the_mount_is_another_array(mount: Mounted) -> None:
    for copy in (["cp", "-a", "a", "c"], ["rsync", "-a", "a/", "d/"], ["sh", "-c", "mkdir e && tar -C a -c . | tar -C e -x"]):
        assert subprocess.run(copy, cwd=mount.path / "chunks", check=False).returncode == 0, copy
        name = copy[-1].rstrip("/") if copy[0] != "sh" else "e"
        assert (np.load(mount.path / f"npy/{name}.npy") == EXAMPLE.elements).all()
        stored = json.loads((mount.store / name / "zarr.json").read_bytes())
        assert stored["chunk_grid"] == EXAMPLE.document["chunk_grid"] and len(stored["codecs"]) == 2
        assert sorted(os.listdir(mount.path / "chunks" / name)) == sorted(os.listdir(mount.path / "chunks/a"))
    assert subprocess.run(["rsync", "-ai", "a/", "d/"], cwd=mount.path / "chunks", capture_output=True, check=False).stdout == b""
    assert subprocess.run(["rm", "-r", "c"], cwd=mount.path / "chunks", check=False).returncode == 0
    assert not (mount.store / "c").exists() and "c.npy" not in os.listdir(mount.path / "npy")


def test_a_chunk_file_is_written_like_any_file_of_its_size(mount: Mounted) -> None:
    expected = EXAMPLE.elements
    folder = mount.path / "chunks/a"
    fd = os.open(folder / "2.1", os.O_RDWR)
    try:
        assert os.fstat(fd).st_size == 250 * 7 * 4
        assert os.pwrite(fd, np.array([8, 9], "<i4").tobytes(), 4 * (7 * 3 + 5)) == 8
        assert errno_of(lambda: os.pwrite(fd, b"1234", 250 * 7 * 4)) == errno.EFBIG
        os.fsync(fd)
    finally:
        os.close(fd)
    expected[101 + 3, 7 + 5 : 7 + 7] = 8, 9
    assert (stored(mount) == expected).all()
    assert errno_of(lambda: os.truncate(folder / "2.1", 4)) == errno.EINVAL
    assert errno_of(lambda: (folder / "1.2").read_bytes()) == errno.ENOENT
    (folder / "1.2").write_bytes(np.full((1, 7), 3, "<i4").tobytes())
    expected[100, 14:21] = 3
    assert (stored(mount) == expected).all()
    assert (np.load(mount.path / "npy/a.npy") == expected).all()
    (folder / "1.2").unlink()
    assert not (mount.store / "a/c/1/2").exists()
    assert errno_of(lambda: (folder / "4.0").write_bytes(b"")) == errno.EINVAL
    assert sorted(os.listxattr(folder / "0.0")) == sorted(os.listxattr(folder)) == sorted(os.listxattr(folder / "zarr.json"))
    assert os.getxattr(folder / "0.0", "user.zarr.shape") == b"[401,300]"


def test_its_document_is_edited_by_sed(mount: Mounted) -> None:
    path = mount.path / "chunks/a/zarr.json"
    assert subprocess.run(["sed", "-i", 's/"attributes": *{}/"attributes": {"units": "K"}/', path], check=False).returncode == 0
    assert json.loads(path.read_bytes())["attributes"] == {"units": "K"}
    assert json.loads((mount.store / "a/zarr.json").read_bytes()) == EXAMPLE.document | {"attributes": {"units": "K"}}
    assert errno_of(lambda: path.write_text("{")) == errno.EINVAL
    assert errno_of(lambda: (mount.path / "chunks/a/.zattrs").write_text("{}")) == errno.EINVAL
    assert json.loads(path.read_bytes())["attributes"] == {"units": "K"}


RENAMES = {
    "chunks": ("chunks/a", "chunks/z"),
    "zarr3": ("zarr3/a", "zarr3/z"),
    "npy": ("npy/a.npy", "npy/z.npy"),
    "raw": ("raw/a", "raw/z"),
}


@pytest.mark.parametrize(("old", "new"), RENAMES.values(), ids=RENAMES.keys())
def test_open_files_follow_its_renames(old: str, new: str, mount: Mounted) -> None:
    folder = mount.path / "chunks/a"
    chunk, document = os.open(folder / "1.1", os.O_RDWR), os.open(folder / "zarr.json", os.O_RDWR)
    try:
        os.rename(mount.path / old, mount.path / new)
        os.pwrite(chunk, np.full(7, 5, "<i4").tobytes(), 0)
        text = json.loads(os.pread(document, 1 << 20, 0)) | {"attributes": {"x": 1}}
        os.ftruncate(document, 0)
        os.pwrite(document, json.dumps(text).encode(), 0)
    finally:
        os.close(chunk)
        os.close(document)
    assert sorted(os.listdir(mount.path / "chunks")) == [".zgroup", "b", "z"]
    assert not (mount.store / "a").exists()
    assert json.loads((mount.store / "z/zarr.json").read_bytes())["attributes"] == {"x": 1}
    assert (np.load(mount.path / "npy/z.npy")[100, 7:14] == 5).all()
    assert (mount.path / "chunks/z/1.1").read_bytes() == np.full(7, 5, "<i4").tobytes()


@pytest.mark.logs("write failed, data lost")
@pytest.mark.parametrize("end", ["erased", "another grid"])
def test_open_files_of_an_array_that_is_gone_are_stale(end: str, mount: Mounted) -> None:
    folder = mount.path / "chunks/a"
    chunk, document = os.open(folder / "1.1", os.O_RDWR), os.open(folder / "zarr.json", os.O_RDWR)
    try:
        if end == "erased":
            shutil.rmtree(mount.path / "zarr3/a")
        else:
            np.save(mount.path / "npy/a.npy", np.ones((5, 5), "<f8"))
        assert errno_of(lambda: os.pwrite(chunk, bytes(4), 0) and os.fsync(chunk)) == errno.ESTALE
        assert errno_of(lambda: os.pwrite(document, b" ", 0) and os.fsync(document)) == errno.ESTALE
    finally:
        errno_of(lambda: os.close(chunk))
        errno_of(lambda: os.close(document))
    if end == "erased":
        assert not (mount.store / "a").exists()
    else:
        assert sorted(os.listdir(folder)) == [".zarray", "0.0"]
        assert (np.load(mount.path / "npy/a.npy") == 1).all()


def test_parts_are_read_and_written_in_place(mount: Mounted) -> None:
    path = mount.path / "npy/a.npy"
    expected = EXAMPLE.elements
    read = np.load(path, mmap_mode="r")
    assert (read[95:105, 10:30] == expected[95:105, 10:30]).all()
    del read
    fd = os.open(path, os.O_RDWR)
    try:
        header = os.fstat(fd).st_size - expected.nbytes
        place = header + 4 * (100 * 300 + 5)
        assert os.pread(fd, 40, place) == expected[100, 5:15].tobytes()
        new = np.arange(700, 710, dtype="<i4")
        assert os.pwrite(fd, new.tobytes(), place) == 40
        expected[100, 5:15] = new
        os.fsync(fd)
        with mmap.mmap(fd, 0) as mapped:
            mapped[header + 4 * 400 * 300 : header + 4 * (400 * 300 + 300)] = np.full(300, -5, "<i4").tobytes()
            mapped.flush()
        expected[400] = -5
    finally:
        os.close(fd)
    assert (np.load(path) == expected).all()
    assert (stored(mount) == expected).all()
    written = np.load(path, mmap_mode="r+")
    written[::50] = 1
    written.flush()
    del written
    expected[::50] = 1
    assert (stored(mount) == expected).all()


def test_saving_over_it_stores_its_own_chunks(mount: Mounted) -> None:
    new = EXAMPLE.elements[::-1].copy()
    np.save(mount.path / "npy/a.npy", new)
    assert (stored(mount) == new).all()
    assert json.loads((mount.store / "a/zarr.json").read_bytes())["chunk_grid"] == EXAMPLE.document["chunk_grid"]
    assert (mount.path / "zarr3/a/c/3/3").stat().st_size == 70 * 279 * 4


def test_truncating_it_is_allowed_or_refused_as_for_others(mount: Mounted) -> None:
    def outcome(name: str, change: int | None) -> int:
        path = mount.path / "npy" / name
        try:
            os.truncate(path, 0 if change is None else path.stat().st_size + change)
        except OSError as error:
            return error.errno or -1
        return 0

    for change in (-1, 1, None, 0):
        assert outcome("a.npy", change) == outcome("b.npy", change)


@pytest.mark.logs("write failed, data lost")
def test_chunk_files_have_the_sizes_of_their_chunks(mount: Mounted) -> None:
    folder = mount.path / "zarr3/a/c"
    sizes = {(int(path.parent.name), int(path.name)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    grid = EXAMPLE.grid
    assert sizes == {
        coords: 4 * int(np.prod(grid.chunk_shape(coords))) for coords in EXAMPLE.coords if coords not in EXAMPLE.missing
    }
    (folder / "1/2").write_bytes(np.full((1, 7), 9, "<i4").tobytes())
    expected = EXAMPLE.elements
    expected[100:101, 14:21] = 9
    assert (np.load(mount.path / "npy/a.npy") == expected).all()
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        (folder / "1/2").write_bytes(bytes(24))
    assert (stored(mount) == expected).all()


def test_it_is_resized_by_its_document(mount: Mounted) -> None:
    document = json.loads((mount.path / "zarr3/a/zarr.json").read_bytes())
    document["shape"] = [500, 300]
    document["chunk_grid"]["configuration"]["edges"][0].append(79)
    (mount.path / "zarr3/a/zarr.json").write_text(json.dumps(document))
    elements = np.load(mount.path / "npy/a.npy")
    assert elements.shape == (500, 300) and (elements[:401] == EXAMPLE.elements).all() and (elements[421:] == EXAMPLE.fill).all()
    assert json.loads((mount.store / "a/zarr.json").read_bytes())["chunk_grid"] == document["chunk_grid"]
