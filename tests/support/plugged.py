"""Plug-ins for tests, from a distribution of their own, in this process temporarily or in a mount."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import ROOT, Mounted, killed_at_last, mountpoint


def offer(folder: Path, offers: Mapping[str, str]) -> None:
    """Install a distribution in ``folder`` that offers objects (``module:NAME``), by the package of the plug-ins."""
    for package, place in offers.items():
        name = f"their_{package}_{place.partition(':')[0]}".replace(".", "_")
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{package}]\n{name} = {place}\n")


@contextmanager
def plugged(folder: Path) -> Iterator[None]:
    """Make the plug-ins of ``folder`` available while the body runs."""
    sys.path.append(str(folder))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget()


def plugins(*offers: Mapping[str, str]) -> Any:
    """Return a fixture that makes plug-ins (see `offer`) available to all tests of a module."""

    @pytest.fixture(autouse=True, scope="module")
    def available(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("site")
        for each in offers:
            offer(folder, each)
        with plugged(folder):
            yield

    return available


def _forget() -> None:
    """Drop the cache of discovered plug-ins."""
    for name, module in list(sys.modules.items()):
        if name.startswith("zarrfs."):
            for each in list(vars(module).values()):
                if getattr(each, "__module__", "").startswith("zarrfs") and hasattr(each, "cache_clear"):
                    each.cache_clear()


def zarrfs_with(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command with the plug-ins of ``folder``."""
    command = [sys.executable, "-P", "-m", "zarrfs", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=100, check=False)


@contextmanager
def mounted_with(folder: Path, store: Path, *options: str) -> Iterator[Mounted]:
    """Mount like `tests.support.mounting.mounted`, with the plug-ins of ``folder``."""
    with mountpoint() as path:
        log = path.with_name("log")
        done = zarrfs_with(folder, "mount", store, path, "--log-file", log, *options)
        assert done.returncode == 0, done.stderr
        pid = int(json.loads((path / ".zarrfs" / "config.json").read_bytes())["pid"])
        with killed_at_last(pid, path):
            mount = Mounted(path, store, log, pid)
            yield mount
            ended = zarrfs_with(folder, "umount", path)
            assert ended.returncode == 0, f"{ended.stderr}\n{mount.log()}"
