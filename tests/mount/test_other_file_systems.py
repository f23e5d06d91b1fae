"""A store of which a part is on another file system: nothing can be renamed from one to the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import mounted, run

pytestmark = [pytest.mark.fuse, pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")]

DIALECTS = ("v0", "v1", "v2", "v3", "v3_2019", "v3_2022")
SMALL, LARGE = np.arange(24, dtype="<i4").reshape(4, 6), np.arange(3_000_000, dtype="<i4").reshape(3000, 1000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store whose group ``g`` is another file system."""
    folder = tmp_path / "store"
    (folder / "g").mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", "size=64m", "none", folder / "g")
    yield folder
    run("umount", "-l", folder / "g")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("values", [SMALL, LARGE], ids=["small", "streamed"])
def test_arrays_are_made_replaced_and_erased(store: Path, tmp_path: Path, dialect: str, values: np.ndarray) -> None:  # type: ignore[type-arg]
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "y.npy", values[:2, :3].astype("<f8"))
    options = ("--new-dialect", dialect, "--new-chunks", "64x1000", "--memory-limit", "4MiB")
    with mounted(store, *options) as mount:
        group = mount.path / "npy/g"
        if not group.exists():
            group.mkdir()
        run("cp", tmp_path / "x.npy", group / "a.npy")
        assert np.array_equal(np.load(group / "a.npy"), values)
        run("cp", tmp_path / "y.npy", group / "a.npy")
        assert np.array_equal(np.load(group / "a.npy"), values[:2, :3])
        run("cp", tmp_path / "x.npy", group / "b.npy")
        run("mv", group / "a.npy", group / "b.npy")
        assert np.array_equal(np.load(group / "b.npy"), values[:2, :3]) and os.listdir(group) == ["b.npy"]
        (group / "b.npy").unlink()
        assert os.listdir(group) == []
        assert not mount.errors()
    assert not list(store.rglob(".zarrfs"))
    assert not [path for path in store.rglob("*") if path.is_file() and path.name in ("0", "0.0", "a", "b")]


def test_what_is_copied_to_its_place_is_what_others_read(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", SMALL)
    with mounted(store) as mount:
        run("cp", tmp_path / "x.npy", mount.path / "npy/g/a.npy")
    assert np.array_equal(zarr.open_array(str(store / "g/a"), mode="r")[...], SMALL)
