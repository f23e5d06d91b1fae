"""Plug-ins that only tests have: offered by a distribution of their own, to this process for a while or to a mount."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.mounting import ROOT, Mounted, killed_at_last, mountpoint


def offer(folder: Path, offers: Mapping[str, str]) -> None:
    """Install a distribution in ``folder`` that offers objects (``module:NAME``) by the package whose plug-ins they are."""
    for package, place in offers.items():
        name = f"their_{package}_{place.partition(':')[0]}".replace(".", "_")
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{package}]\n{name} = {place}\n")


@contextmanager
def plugged(folder: Path) -> Iterator[None]:
    """What ``folder`` offers is there while the body runs."""
    sys.path.append(str(folder))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget()


def _forget() -> None:
    """Plug-ins are looked for anew."""
    for name, module in list(sys.modules.items()):
        if name.startswith("zarrfs."):
            for each in list(vars(module).values()):
                if getattr(each, "__module__", "").startswith("zarrfs") and hasattr(each, "cache_clear"):
                    each.cache_clear()


def zarrfs_with(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, with what ``folder`` offers."""
    command = [sys.executable, "-P", "-m", "zarrfs", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=100, check=False)


@contextmanager
def mounted_with(folder: Path, store: Path, *options: str) -> Iterator[Mounted]:
    """As `tests.support.mounting.mounted`, with what ``folder`` offers."""
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
