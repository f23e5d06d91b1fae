"""Folders of every view behave as those of a local file system."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted, run

pytestmark = pytest.mark.fuse

LONG_AGO = 1_000_000_000
FOLDERS = ["raw/g", "chunks/g", "zarr3/g", "npy/g"]
TEMPORARY = f"x.{'0' * 32}.partial"
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.opendir.restype = LIBC.readdir.restype = ctypes.c_void_p
LIBC.telldir.restype = ctypes.c_long
LIBC.readdir.argtypes = LIBC.telldir.argtypes = LIBC.closedir.argtypes = [ctypes.c_void_p]
LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
NAME_AT = 19
"""Offset of the name in a struct dirent."""


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    store = tmp_path_factory.mktemp("folders") / "store"
    group = zarr.create_group(str(store), zarr_format=3).create_group("g")
    group.create_array("a", shape=(4,), chunks=(2,), dtype="i4", compressors=None)[:] = 1
    group.create_group("inner")
    with mounted(store) as mount:
        yield mount


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_time_that_was_set_is_kept(mount: Mounted, folder: str) -> None:
    path = mount.path / folder / "inner"
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert path.stat().st_mtime == LONG_AGO
    listed = run("find", path.parent, "-maxdepth", "1", "-name", "inner", "-printf", "%T@").stdout
    assert float(listed) == LONG_AGO


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_name_that_comes_or_goes_changes_the_time(mount: Mounted, folder: str) -> None:
    """This includes files that the store does not have."""
    path = mount.path / folder
    names = [TEMPORARY, "new.npy" if folder.startswith("npy") else f"y.{'0' * 32}.partial"]
    for name in names:
        os.utime(path, (LONG_AGO, LONG_AGO))
        with (path / name).open("wb") as file:
            assert path.stat().st_mtime > LONG_AGO
            if name.endswith(".npy"):
                np.save(file, np.arange(3))
        os.utime(path, (LONG_AGO, LONG_AGO))
        (path / name).unlink()
        assert path.stat().st_mtime > LONG_AGO


@pytest.mark.parametrize("flags", [os.O_TRUNC, os.O_APPEND])
def test_the_time_that_a_new_value_gives_its_folder_is_known_at_close(mount: Mounted, flags: int) -> None:
    """The store replaces the value by a rename. A time that appears later is a change for tar, which then exits with 1."""
    folder, behind = mount.path / "raw/g/a/c", mount.store / "g/a/c"
    for _ in range(3):
        folder.stat()
        handle = os.open(folder / "note", os.O_WRONLY | os.O_CREAT | flags)
        os.write(handle, b"later")
        os.close(handle)
        seen = folder.stat()
        assert (seen.st_mtime_ns, seen.st_ctime_ns) == (behind.stat().st_mtime_ns,) * 2
    (folder / "note").unlink()


@pytest.mark.parametrize("through", FOLDERS)
def test_a_name_that_comes_or_goes_in_one_view_changes_the_time_in_the_others(mount: Mounted, through: str) -> None:
    """The kernel keeps attributes for seconds, also of a folder in which a name appears that it has never asked for."""

    def times() -> dict[str, int]:
        return {folder: (mount.path / folder).stat().st_mtime_ns for folder in FOLDERS}

    view, suffix = through.partition("/")[0], ".npy" if through.startswith("npy") else ""
    edits: list[Callable[[], object]] = [
        lambda: np.save(mount.path / f"npy/g/{view}.npy", np.arange(3)),
        lambda: (mount.path / through / (view + suffix)).rename(mount.path / through / (view + "2" + suffix)),
        lambda: (mount.path / f"npy/g/{view}2.npy").unlink() if suffix else shutil.rmtree(mount.path / through / f"{view}2"),
    ]
    for edit in edits:
        before = times()
        edit()
        after = times()
        assert {folder for folder in FOLDERS if after[folder] <= before[folder]} == set()


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_a_listing_has_the_folder_itself_and_the_one_above(mount: Mounted, folder: str) -> None:
    path = mount.path / folder
    assert run("ls", "-a", path).stdout.split()[:2] == [b".", b".."]
    inodes = dict(line.split()[::-1] for line in run("ls", "-ai", path).stdout.splitlines())
    assert int(inodes[b"."]) == path.stat().st_ino
    if folder:
        assert int(inodes[b".."]) == path.parent.stat().st_ino


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    stream = LIBC.opendir(os.fsencode(path))
    assert stream
    try:
        yield stream
    finally:
        LIBC.closedir(stream)


def names(stream: Any, places: dict[bytes, int] | None = None) -> list[bytes]:
    """Return the remaining names of a directory stream; ``places`` receives the position of each."""
    found = []
    while True:
        place = LIBC.telldir(stream)
        entry = LIBC.readdir(stream)
        if not entry:
            return found
        name = ctypes.string_at(entry + NAME_AT)
        found.append(name)
        if places is not None:
            places[name] = place


def test_a_program_can_go_back_in_a_listing_while_names_come_and_go(mount: Mounted) -> None:
    folder = mount.path / "raw/many"
    folder.mkdir()
    for number in range(1000):
        (folder / f"{number:04}").touch()
    places: dict[bytes, int] = {}
    removed: set[bytes] = set()
    with opened(folder) as stream:
        all_names = names(stream, places)
        assert len(all_names) == len(set(all_names)) == 1002
        for index in (850, 7, 500, 1001):
            (folder / f"new{index}").touch()
            (folder / f"{index // 2:04}").unlink()
            removed.add(b"%04d" % (index // 2))
            LIBC.seekdir(stream, places[all_names[index]])
            rest = names(stream)
            assert [name for name in rest if not name.startswith(b"new")] == [
                name for name in all_names[index:] if name not in removed
            ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_name_removed_while_it_is_listed_is_gone_and_can_be_created(mount: Mounted, folder: str) -> None:
    """A listing that began before must not give it to the kernel, which would keep it for minutes."""
    path = mount.path / folder / f"busy-{folder[:-2]}"
    path.mkdir()
    files = [f"{number:04}.{'0' * 32}.partial" for number in range(600)]
    folders = [f"g{number}" for number in range(30)]
    for name in files:
        (path / name).touch()
    for name in folders:
        (path / name).mkdir()
    with opened(path) as stream:
        LIBC.readdir(stream)
        for name in files:
            (path / name).unlink()
        for name in folders[:15]:
            (path / name).rmdir()
        for name in folders[15:]:
            (path / name).rename(path / f"{name}x")
        names(stream)
    for name in (*files, *folders):
        assert not (path / name).exists()
    for name in files[::50]:
        (path / name).touch()
    for name in folders:
        (path / name).mkdir()


@pytest.mark.parametrize("name", ["%%x", "%%%2e", "%%100%"])
def test_a_name_that_begins_as_an_escape_can_be_made(mount: Mounted, name: str) -> None:
    (mount.path / "raw" / name).write_bytes(b"mine")
    assert (mount.store / name).read_bytes() == b"mine"
    assert name in os.listdir(mount.path / "raw")


@pytest.mark.parametrize("view", ["raw", "chunks", "zarr3", "npy"])
def test_links_and_special_files_are_refused(view: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/k").write_bytes(b"value")
    with mounted(tmp_path / "store") as mount, socket.socket(socket.AF_UNIX) as server:
        folder = mount.path / view
        new = folder / "new~"
        for attempt in (
            lambda: new.symlink_to("k"),
            lambda: new.hardlink_to(mount.path / "raw/k"),
            lambda: os.mkfifo(new),
            lambda: os.mknod(new, stat.S_IFSOCK | 0o600),
            lambda: os.mknod(new, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
            lambda: server.bind(str(new)),
        ):
            with pytest.raises(OSError, match=r"not permitted|cross-device") as caught:
                attempt()
            assert caught.value.errno in (errno.EPERM, errno.EXDEV)
        assert not new.exists()
