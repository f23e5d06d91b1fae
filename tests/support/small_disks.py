"""Disks of a given size, for stores and cache folders that run out of space."""

from __future__ import annotations

import os
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
