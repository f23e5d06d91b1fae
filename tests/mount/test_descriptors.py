"""The number of descriptors that a daemon may have, whatever shell has started it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, killed_at_last, mountpoint, zarrfs

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]


def test_the_soft_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with mountpoint() as path:
        command = [sys.executable, "-P", "-m", "zarrfs", "mount", str(tmp_path / "store"), str(path)]
        limited = ["bash", "-c", 'ulimit -Sn 256; exec "$@"', "bash", *command]
        subprocess.run(limited, check=True, cwd="/", env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/sbin"})
        pid = int(json.loads((path / ".zarrfs/config.json").read_bytes())["pid"])
        with killed_at_last(pid, path):
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (wanted, hard)
            assert zarrfs("umount", str(path)).returncode == 0
