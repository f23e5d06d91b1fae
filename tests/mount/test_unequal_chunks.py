"""A grid of unequal chunks, of another distribution, through a real mount: programs see an array like any other."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

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
    """``a`` on the unequal grid, and ``b``, its like on a regular one."""
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
    # Zarr v2 has no words for the grid; keys are keys.
    assert sorted(os.listdir(mount.path / "chunks")) == [".zgroup", "a.unsupported.txt", "b"]
    assert "chunk grid" in (mount.path / "chunks/a.unsupported.txt").read_text()
    assert (mount.path / "raw/a/c/0/0").read_bytes() == (mount.store / "a/c/0/0").read_bytes()
    assert zarrfs_with(site, "check", mount.store).returncode == 0
    assert "chunks up to (250, 279)" in zarrfs_with(site, "info", mount.store, "/a").stdout


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
