"""An array is mapped and changed, another program moves or removes it, and a program saves another array under its name."""

from __future__ import annotations

import io
import mmap
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support import random_layouts as layouts
from tests.support.mounting import mounted
from tests.support.random_layouts import CHUNK, Layout

pytestmark = pytest.mark.fuse

UNAWARE = ("--no-watch", "--metadata-ttl", "60")
OLD, OTHER, NEW = np.full(3 * CHUNK, 7, "<i8"), np.full(3 * CHUNK, 5, "<i8"), np.full(5, 1.5)

every_layout = pytest.mark.parametrize(
    "layout", [layouts.V1_FILES, layouts.V2, layouts.V3_2019, layouts.V3_2022, layouts.V3], ids=lambda layout: layout.dialect
)


def moved(layout: Layout, store: Path) -> None:
    layout.move(store, "g/a", store, "g/z")


def erased(layout: Layout, store: Path) -> None:
    layout.remove(store, "g/a", store.with_name("aside"))


def replaced(layout: Layout, store: Path) -> None:
    moved(layout, store)
    layout.move(store, "g/b", store, "g/a")


def erased_and_replaced(layout: Layout, store: Path) -> None:
    erased(layout, store)
    layout.move(store, "g/b", store, "g/a")


@pytest.mark.parametrize("options", [(), UNAWARE], ids=["watch", "no-watch"])
@pytest.mark.parametrize("end", [moved, erased, replaced, erased_and_replaced])
@every_layout
def test_what_is_mapped_is_not_discarded_with_the_file_that_is_emptied(
    layout: Layout, end: Callable[[Layout, Path], None], options: tuple[str, ...], tmp_path: Path
) -> None:
    """msync was 0. Or the mapped page was written to the emptied file, and so to the array that had taken the name."""
    layout.make_store(store := tmp_path / "store")
    for name, elements in (("g/a", OLD), ("g/b", OTHER)):
        layout.create(store, name, elements, 1, is_sharded=False)
    content = io.BytesIO()
    np.save(content, NEW)
    with mounted(store, *options, ends_with=None) as mount:
        fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR)
        with mmap.mmap(fd, 0) as mapped:
            mapped[128:136] = b"\x63".ljust(8, b"\0")
            end(layout, store)
            other = os.open(mount.path / "npy/g/a.npy", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(other, content.getvalue())
            os.close(other)
            with pytest.raises(OSError, match="Stale"):
                mapped.flush()
        with suppress(OSError):
            os.close(fd)
        assert np.load(mount.path / "npy/g/a.npy").tolist() == NEW.tolist()
        if end in (moved, replaced):
            assert np.load(mount.path / "npy/g/z.npy").tolist() == OLD.tolist()
        mount.umount()


@pytest.mark.parametrize("options", [(), UNAWARE], ids=["watch", "no-watch"])
@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("end", [replaced, erased_and_replaced])
@every_layout
def test_a_descriptor_of_the_old_array_does_not_empty_the_one_that_has_its_name(
    layout: Layout, end: Callable[[Layout, Path], None], is_changed: bool, options: tuple[str, ...], tmp_path: Path
) -> None:
    """ftruncate(2) was 0, and what was written afterwards replaced the other program's array."""
    layout.make_store(store := tmp_path / "store")
    for name, elements in (("g/a", OLD), ("g/b", OTHER)):
        layout.create(store, name, elements, 1, is_sharded=False)
    with mounted(store, *options, ends_with=None) as mount:
        fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR)
        if is_changed:
            os.pwrite(fd, b"\x63", 128)
        end(layout, store)
        with pytest.raises(OSError, match="Stale"):
            os.ftruncate(fd, 0)
        with suppress(OSError):
            os.close(fd)
        mount.umount()
    assert sorted(elements.tolist() for _, elements in layout.arrays(store)) == sorted(
        each.tolist() for each in ([OLD, OTHER] if end is replaced else [OTHER])
    )


@pytest.mark.parametrize("layout", [layouts.V2, layouts.V3], ids=lambda layout: layout.dialect)
def test_an_equal_array_in_the_very_folder_of_the_old_one_is_the_same_array(layout: Layout, tmp_path: Path) -> None:
    """As tensorstore leaves it with ``delete_existing``."""
    layout.make_store(store := tmp_path / "store")
    for name, elements in (("g/a", OLD), ("g/b", OTHER)):
        layout.create(store, name, elements, 1, is_sharded=False)
    with mounted(store, *UNAWARE) as mount:
        fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR)
        os.pwrite(fd, b"\x63", 128)
        shutil.copytree(store / "g/b", tmp_path / "new")
        for each in (store / "g/a").iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        shutil.copytree(tmp_path / "new", store / "g/a", dirs_exist_ok=True)
        os.fsync(fd)
        os.close(fd)
    assert sorted(elements.tolist() for _, elements in layout.arrays(store)) == [OTHER.tolist(), [0x63, *OTHER[1:].tolist()]]


@every_layout
def test_a_name_without_a_file_is_not_opened(layout: Layout, tmp_path: Path) -> None:
    layout.make_store(store := tmp_path / "store")
    layout.create(store, "g/a", OLD, 1, is_sharded=False)
    with mounted(store, *UNAWARE) as mount:
        fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR)
        moved(layout, store)
        with pytest.raises(FileNotFoundError):
            os.open(mount.path / "npy/g/a.npy", os.O_WRONLY | os.O_TRUNC)
        os.close(fd)
    assert len(list(layout.arrays(store))) == 1


@pytest.mark.parametrize("end", [moved, erased])
@every_layout
def test_a_name_without_a_file_is_not_removed(layout: Layout, end: Callable[[Layout, Path], None], tmp_path: Path) -> None:
    """rm was 0."""
    layout.make_store(store := tmp_path / "store")
    layout.create(store, "g/a", OLD, 1, is_sharded=False)
    with mounted(store, *UNAWARE) as mount:
        assert os.listdir(mount.path / "npy/g") == ["a.npy"]
        end(layout, store)
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                os.unlink(mount.path / "npy/g/a.npy")
        assert "a.npy" not in os.listdir(mount.path / "npy/g")
    assert len(list(layout.arrays(store))) == (end is moved)
