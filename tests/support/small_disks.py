"""Disks of a given size, for stores and cache folders that run out of space."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """Yield a new folder ``path``, a tmpfs of ``size`` (1m); skip the test if only root can mount it."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def unusable_cache(path: Path, state: str) -> Iterator[str]:
    """Yield a cache folder below ``path`` that was removed (``state`` is "gone"), or whose disk is "full"."""
    if state == "gone":
        yield str(path / "gone")
        return
    with small_disk(path / "full", "64k") as folder:
        file = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT)
        with suppress(OSError):
            while True:
                os.write(file, bytes(4096))
        os.close(file)
        yield str(folder)


@contextmanager
def lossy_disk(path: Path, nbytes: int = 64 << 20) -> Iterator[Path]:
    """Yield a new folder ``path``, a file system of ``nbytes`` whose device, in ``path-device``, has room for 2 MiB: more is lost.

    The kernel accepts them, and reports the loss to one fsync(2)."""
    if shutil.which("mkfs.ext2") is None:
        pytest.skip("mkfs.ext2 (e2fsprogs) is missing")
    with small_disk(path.with_name(f"{path.name}-device"), "2m") as device:
        path.mkdir()
        with (device / "image").open("wb") as file:
            file.truncate(nbytes)
        subprocess.run(["mkfs.ext2", "-q", "-F", str(file.name)], check=True)
        if subprocess.run(["mount", "-o", "loop", str(file.name), str(path)], check=False, capture_output=True).returncode:
            pytest.skip("no loop device can be mounted here")
        try:
            yield path
        finally:
            subprocess.run(["umount", "-l", str(path)], check=True)


def write_out(disk: Path, pid: str | int = "self") -> int:
    """Have the kernel write out, and drop, what a process holds in unnamed files on ``disk``, as it does when memory is short.

    Return the number of descriptors of files of which it lost bytes."""
    failed = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if not os.readlink(each).startswith(f"{disk}/"):
                continue
            fd = os.open(each, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(fd)
        except OSError:
            failed += 1
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    return failed
