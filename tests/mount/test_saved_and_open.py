"""A file of npy/ that stays open after an array was saved through it, or was not: it is that of the array in place."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support import random_layouts as layouts
from tests.support.mounting import Mounted, mounted
from tests.support.random_layouts import CHUNK, Layout

pytestmark = pytest.mark.fuse

UNAWARE = ("--no-watch", "--metadata-ttl", "60")
OLD, OTHER, MARK = np.full(3 * CHUNK, 7, "<i8"), np.full(3 * CHUNK, 5, "<i8"), np.int64(99).tobytes()
SAME, ANOTHER = np.full(3 * CHUNK, 1, "<i8"), np.full(2 * CHUNK, 1, "<i8")

OPTIONS = pytest.mark.parametrize("options", [(), UNAWARE], ids=["watch", "no-watch"])
every_layout = pytest.mark.parametrize(
    "layout", [layouts.V2, layouts.V3_2019, layouts.V3_2022, layouts.V3], ids=lambda one: one.dialect
)


def npy(elements: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, elements)
    return content.getvalue()


def make(layout: Layout, tmp_path: Path) -> Path:
    layout.make_store(store := tmp_path / "store")
    for name, elements in (("g/a", OLD), ("g/b", OTHER)):
        layout.create(store, name, elements, 1, is_sharded=False)
    return store


def stored(layout: Layout, store: Path) -> list[set[int]]:
    return [set(elements.tolist()) for _, elements in layout.arrays(store)]


def saved_over(mount: Mounted, elements: np.ndarray) -> int:
    fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR | os.O_TRUNC)
    os.write(fd, npy(elements))
    os.fsync(fd)
    return fd


def renamed_over(mount: Mounted, elements: np.ndarray) -> int:
    fd = os.open(mount.path / "npy/g/.a.npy.tmp", os.O_RDWR | os.O_CREAT)
    os.write(fd, npy(elements))
    os.rename(mount.path / "npy/g/.a.npy.tmp", mount.path / "npy/g/a.npy")
    return fd


def write(fd: int) -> None:
    os.pwrite(fd, MARK, 128)
    os.fsync(fd)


def empty(fd: int) -> None:
    os.ftruncate(fd, 0)


def require_stale(change: Callable[[int], None], fd: int, layout: Layout, store: Path) -> None:
    """Put another array in the place of the file's own, as another program: then ``change`` is refused."""
    layout.move(store, "g/a", store, "g/z")
    layout.move(store, "g/b", store, "g/a")
    with pytest.raises(OSError, match="Stale"):
        change(fd)
    with suppress(OSError):
        os.close(fd)


@OPTIONS
@pytest.mark.parametrize("change", [write, empty])
@pytest.mark.parametrize("elements", [SAME, ANOTHER], ids=["same", "another"])
@pytest.mark.parametrize("save", [saved_over, renamed_over])
@every_layout
def test_what_is_written_after_a_save_reaches_no_array_that_another_program_puts_there(
    layout: Layout,
    save: Callable[[Mounted, np.ndarray], int],
    elements: np.ndarray,
    change: Callable[[int], None],
    options: tuple[str, ...],
    tmp_path: Path,
) -> None:
    """It was stored there, or replaced that array."""
    store = make(layout, tmp_path)
    with mounted(store, *options, ends_with=None) as mount:
        fd = save(mount, elements)
        require_stale(change, fd, layout, store)
        mount.umount()
    assert sorted(map(sorted, stored(layout, store))) == [[1], [5]]


@pytest.mark.parametrize("view", ["raw", "chunks", "npy"])
@pytest.mark.parametrize("elements", [SAME, ANOTHER], ids=["same", "another"])
@pytest.mark.parametrize("save", [saved_over, renamed_over])
def test_what_is_written_after_a_save_follows_a_rename_in_any_view(
    save: Callable[[Mounted, np.ndarray], int], elements: np.ndarray, view: str, tmp_path: Path
) -> None:
    """It was ESTALE, and once another array of the same shape had the name, it was stored in that."""
    store = make(layouts.V3, tmp_path)
    suffix = ".npy" if view == "npy" else ""
    with mounted(store) as mount:
        fd = save(mount, elements)
        for old, new in (("a", "z"), ("b", "a")):
            os.rename(mount.path / view / f"g/{old}{suffix}", mount.path / view / f"g/{new}{suffix}")
            write(fd)
        os.close(fd)
    assert sorted(map(sorted, stored(layouts.V3, store))) == [[1, 99], [5]]


@OPTIONS
@pytest.mark.parametrize("change", [write, empty])
@every_layout
def test_a_truncation_that_was_refused_leaves_the_open_file_that_of_its_array(
    layout: Layout, change: Callable[[int], None], options: tuple[str, ...], tmp_path: Path
) -> None:
    store = make(layout, tmp_path)
    with mounted(store, *options, ends_with=None) as mount:
        fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR)
        with pytest.raises(OSError, match="Invalid"):
            os.truncate(mount.path / "npy/g/a.npy", 0)
        assert os.pread(fd, 8, 128) == OLD[:1].tobytes()
        require_stale(change, fd, layout, store)
        mount.umount()
    assert sorted(map(sorted, stored(layout, store))) == [[5], [7]]


@OPTIONS
def test_a_save_that_was_refused_replaces_no_other_array_when_it_is_begun_again(options: tuple[str, ...], tmp_path: Path) -> None:
    store = make(layouts.V3, tmp_path)
    with mounted(store, *options, ends_with=None) as mount:
        fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR | os.O_TRUNC)
        os.write(fd, npy(ANOTHER)[:-8])
        with pytest.raises(OSError, match="Invalid"):
            os.fsync(fd)
        require_stale(empty, fd, layouts.V3, store)
        mount.umount()
    assert sorted(map(sorted, stored(layouts.V3, store))) == [[5], [7]]


@OPTIONS
@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_CREAT])
def test_an_open_finds_the_file_that_is_being_saved_though_another_program_has_moved_the_array(
    flags: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    """It was ENOENT, and with O_CREAT a second file of the same name."""
    store = make(layouts.V3, tmp_path)
    with mounted(store, *options) as mount:
        fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR | os.O_TRUNC)
        os.write(fd, npy(ANOTHER)[:-8])
        layouts.V3.move(store, "g/a", store, "g/z")
        other = os.open(mount.path / "npy/g/a.npy", flags)
        os.pwrite(other, MARK, len(npy(ANOTHER)) - 8)
        os.fsync(other)
        os.pwrite(fd, MARK, 128)
        os.close(fd)
        os.close(other)
    assert sorted(map(sorted, stored(layouts.V3, store))) == [[1, 99], [5], [7]]
