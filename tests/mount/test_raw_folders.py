"""A folder of ``raw/`` that a program has open, or as its working directory, stays the same folder."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.mount.test_bound_files import errno_of
from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse

OPTIONS = [(), ("--no-watch", "--metadata-ttl", "0"), ("--no-watch", "--metadata-ttl", "60")]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    fill(folder / "a", b"old")
    return folder


def fill(folder: Path, value: bytes) -> None:
    (folder / "b").mkdir(parents=True)
    (folder / "k").write_bytes(value)
    (folder / "b/k").write_bytes(value)


@contextmanager
def standing_in(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def write(name: str, fd: int, flags: int = os.O_CREAT) -> None:
    file = os.open(name, os.O_WRONLY | flags, 0o644, dir_fd=fd)
    try:
        os.write(file, b"mine")
    finally:
        os.close(file)


STEPS: dict[str, Callable[[int], object]] = {
    "create": lambda fd: write("new", fd),
    "write": lambda fd: write("k", fd, os.O_TRUNC),
    "read": lambda fd: os.close(os.open("k", os.O_RDONLY, dir_fd=fd)),
    "mkdir": lambda fd: os.mkdir("new", dir_fd=fd),
    "unlink": lambda fd: os.unlink("k", dir_fd=fd),
    "rename": lambda fd: os.rename("k", "other", src_dir_fd=fd, dst_dir_fd=fd),
    "list": os.listdir,
    "times": lambda fd: os.utime("k", (1, 1), dir_fd=fd),
    "truncate": lambda fd: os.truncate(f"/proc/self/fd/{fd}/k", 1),
}


def content(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", OPTIONS, ids=["watch", "no-watch", "ttl"])
@pytest.mark.parametrize("step", list(STEPS))
@pytest.mark.parametrize("how", ["moved", "erased", "replaced", "made anew"])
def test_it_is_stale_where_another_program_put_something_else_in_its_place(
    store: Path, how: str, step: str, options: tuple[str, ...]
) -> None:
    with mounted(store, *options) as mount:
        raw = mount.path / "raw"
        (raw / "a/k").read_bytes()
        with standing_in(raw / "a") as fd, standing_in(raw / "a/b") as below:
            if how in ("moved", "replaced"):
                os.rename(store / "a", store / "old")
            else:
                shutil.rmtree(store / "a")
            if how in ("replaced", "made anew"):
                fill(store / "a", b"new")
            before = content(store)
            for each in (fd, below):
                assert errno_of(partial(STEPS[step], each)) == errno.ESTALE
            assert content(store) == before
            # Its path leads to the current folder.
            if how in ("replaced", "made anew"):
                (raw / "a/b/mine").write_bytes(b"mine")
                assert (store / "a/b/mine").read_bytes() == b"mine"
                assert (raw / "a/k").read_bytes() == b"new"
                assert sorted(os.listdir(raw / "a")) == ["b", "k"]
            else:
                with pytest.raises(FileNotFoundError):
                    os.listdir(raw / "a")


@pytest.mark.parametrize("options", OPTIONS, ids=["watch", "no-watch", "ttl"])
@pytest.mark.parametrize("step", list(STEPS))
def test_it_goes_where_this_mount_renames_it(store: Path, step: str, options: tuple[str, ...]) -> None:
    with mounted(store, *options) as mount:
        raw = mount.path / "raw"
        with standing_in(raw / "a/b") as fd:
            os.rename(raw / "a", raw / "other")
            fill(raw / "a", b"new")
            STEPS[step](fd)
    assert (store / "a/k").read_bytes() == (store / "a/b/k").read_bytes() == b"new"
    assert sorted(path.name for path in (store / "a/b").iterdir()) == ["k"]
    if step == "create":
        assert (store / "other/b/new").read_bytes() == b"mine"


def test_many_folders_take_few_descriptors_and_none_of_those_that_data_depends_on(tmp_path: Path) -> None:
    """Writes to a value are bound to its folder, however many folders were looked up since it was opened."""
    store = tmp_path / "store"
    fill(store / "a", b"old")
    for number in range(300):
        (store / f"x{number}").mkdir()
    with mounted(store, "--no-watch") as mount:
        resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (256, 256))
        fd = os.open(mount.path / "raw/a/k", os.O_WRONLY)
        os.pwrite(fd, b"mine", 0)
        for number in range(300):
            os.stat(mount.path / f"raw/x{number}")
        held = len(os.listdir(f"/proc/{mount.pid}/fd"))
        os.rename(store / "a", store / "old")
        fill(store / "a", b"new")
        assert errno_of(lambda: os.fsync(fd)) == errno.ESTALE
        with suppress(OSError):
            os.close(fd)
    assert held < 128
    assert (store / "a/k").read_bytes() == b"new"
