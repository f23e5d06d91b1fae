"""Mounts under the limits of ulimit(1)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, killed_at_last, mountpoint, zarrfs

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder store with one key."""
    (tmp_path / "s.zarr").mkdir()
    (tmp_path / "s.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    return tmp_path / "s.zarr"


def mount(limit: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``zarrfs mount`` under ``limit``, the arguments of ulimit(1)."""
    command = [sys.executable, "-P", "-m", "zarrfs", "mount", *map(str, arguments)]
    return subprocess.run(
        ["bash", "-c", f'ulimit {limit} && exec "$@"', "bash", *command],
        cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@contextmanager
def mounted(limit: str, store: Path, *options: str) -> Iterator[Path]:
    """Yield a mount of ``store`` under ``limit``, which the body unmounts."""
    with mountpoint() as path:
        done = mount(limit, store, path, "--log-file", path.with_name("log"), *options)
        assert done.returncode == 0, done.stderr
        with killed_at_last(int(json.loads((path / ".zarrfs" / "config.json").read_bytes())["pid"]), path):
            yield path


def test_where_no_report_can_be_written_umount_does_not_claim_that_everything_is_stored(store: Path) -> None:
    # No file may have a byte: neither values nor the exit report.
    with mounted("-f 0", store) as path:
        with pytest.raises(OSError, match="File too large"):
            (path / "raw" / "x").write_bytes(b"lost")
        done = zarrfs("umount", str(path))
        assert done.returncode == 1
        assert "unmounted, but its daemon could not create an exit report" in done.stderr


def test_a_cache_folder_that_was_removed_is_made_again(store: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache/zarrfs"
    with mounted("-v unlimited", store, "--cache-dir", cache, "--memory-limit", "8M") as path:
        for name in ("x", "y"):
            shutil.rmtree(cache.parent)
            (path / "raw" / name).write_bytes(name.encode() * (20 << 20))
            assert cache.stat().st_mode & 0o777 == 0o700
            assert (path / "raw" / name).read_bytes() == (store / name).read_bytes() == name.encode() * (20 << 20)
        assert zarrfs("umount", str(path)).returncode == 0


def test_a_read_only_mount_needs_no_report(store: Path) -> None:
    with mounted("-f 0", store, "--read-only") as path:
        done = zarrfs("umount", str(path))
        assert (done.returncode, done.stderr) == (0, "")
