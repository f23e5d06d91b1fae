"""Commands in a mount namespace of their own: what they mount, link into /sbin or do to /dev/fuse is seen by nobody else.

As root only. It stands for a machine on which things are installed, or on which an ordinary user may mount.
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

# A copy of what other tests have mounted would keep their daemons from ending for as long as the namespace lasts.
_ALONE = """
findmnt --raw --noheadings --output TARGET --types fuse.zarrfs | tac | xargs -r -d '\\n' umount --internal-only --lazy 2>/dev/null || true
"""
_SBIN = """
mkdir "$NAMESPACE/sbin" && mount --bind /usr/sbin "$NAMESPACE/sbin"
mount -t tmpfs -o mode=0755 sbin /usr/sbin && ln -s "$NAMESPACE"/sbin/* /usr/sbin/
[ /sbin -ef /usr/sbin ] || { mount --bind /usr/sbin /sbin; }
"""
# A device of its own, on a file system that lets devices be.
_FUSE = """
mkdir "$NAMESPACE/dev" && mount -t tmpfs -o mode=0755 dev "$NAMESPACE/dev"
mknod -m 0666 "$NAMESPACE/dev/fuse" c 10 229 && mount --bind "$NAMESPACE/dev/fuse" /dev/fuse
"""
SCRIPTS = Path(sys.executable).parent
"""Where the commands of the installed package are."""


@cache
def _available() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "--mount", "--propagation", "private", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def require_namespace() -> None:
    """Skip the test where no namespace can be made; fail where that must not be."""
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
        # What was mounted on them is not seen here. Nothing is removed but empty folders, should that ever be otherwise.
        for place in (*folder.iterdir(), folder):
            place.rmdir()


def run_in_namespace(
    script: str, *, sbin: bool = False, fuse_for_users: bool = False, env: Mapping[str, str] | None = None, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """Run a bash ``script`` (with ``set -e``) in a new private mount namespace, and give what it printed; daemons that it leaves behind
    end with their mounts, so it has to unmount what it mounted.

    ``sbin``: /sbin is a copy that may be written to. ``fuse_for_users``: everybody may open /dev/fuse. In ``env``, added to the
    environment, and in the script ``$SCRIPTS`` is the folder of the package's commands.
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
