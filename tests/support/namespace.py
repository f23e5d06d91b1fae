"""Commands in a mount namespace of their own: their mounts, links in /sbin and changes of /dev/fuse are invisible outside.

Requires root. The namespace represents a machine with an installation, or one on which an ordinary user may mount.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

# A copy of other tests' mounts would keep their daemons alive as long as the namespace exists.
_ALONE = """
findmnt --raw --noheadings --output TARGET --types fuse.zarrfs | tac | xargs -r -d '\\n' umount --internal-only --lazy 2>/dev/null || true
"""
_SBIN = """
mkdir "$NAMESPACE/sbin" && mount --bind /usr/sbin "$NAMESPACE/sbin"
mount -t tmpfs -o mode=0755 sbin /usr/sbin && ln -s "$NAMESPACE"/sbin/* /usr/sbin/
[ /sbin -ef /usr/sbin ] || { mount --bind /usr/sbin /sbin; }
"""
# A device of its own, on a file system that permits devices.
_FUSE = """
mkdir "$NAMESPACE/dev" && mount -t tmpfs -o mode=0755 dev "$NAMESPACE/dev"
mknod -m 0666 "$NAMESPACE/dev/fuse" c 10 229 && mount --bind "$NAMESPACE/dev/fuse" /dev/fuse
"""
SCRIPTS = Path(sys.executable).parent
"""The folder of the installed package's commands."""


@cache
def _available() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "--mount", "--propagation", "private", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def require_namespace() -> None:
    """Skip the test if no namespace can be created; fail if skipping is forbidden."""
    if not _available():
        if os.environ.get("ZARRFS_REQUIRE_FUSE") == "1":
            pytest.fail("a private mount namespace cannot be made, and ZARRFS_REQUIRE_FUSE=1")
        pytest.skip("needs root, to make a private mount namespace")


@contextmanager
def _folder() -> Iterator[Path]:
    # Not below /tmp's sticky pytest folders, which other users may not enter.
    folder = Path(tempfile.mkdtemp(prefix="zarrfs-namespace-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        # The mounts on these folders are not visible here. rmdir removes empty folders only, should they be visible after all.
        for place in (*folder.iterdir(), folder):
            place.rmdir()


def run_in_namespace(
    script: str, *, sbin: bool = False, fuse_for_users: bool = False, env: Mapping[str, str] | None = None, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """Run a bash ``script`` (with ``set -e``) in a new private mount namespace; return its output.

    Remaining daemons end with their mounts, so the script has to unmount its mounts. ``sbin``: /sbin is a writable copy.
    ``fuse_for_users``: all users may open /dev/fuse. ``env`` is added to the environment, and ``$SCRIPTS`` is the folder of the package's
    commands.
    """
    require_namespace()
    with _folder() as folder:
        prepared = "set -e\n" + _ALONE + (_SBIN if sbin else "") + (_FUSE if fuse_for_users else "") + script
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", prepared],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env=os.environ | {"NAMESPACE": str(folder), "SCRIPTS": str(SCRIPTS), **(env or {})},
        )
