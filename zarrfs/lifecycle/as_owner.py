"""Asking in the name of who has mounted: without ``allow_other`` nobody else may look into a FUSE mount, not even root.

So root has another process ask, which is that user's: nothing that the user says, of a mount or of files, gets root's permissions. And
since a daemon that hangs does not answer, and a request that it has read cannot be given up, that process is left behind if it has to be.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Any

from zarrfs.lifecycle import programs
from zarrfs.lifecycle.mount_table import Mount

# What fits into a pipe that nobody reads yet.
_LIMIT = 60_000


def is_somebody_else(mount: Mount) -> bool:
    """Whether this process may look into ``mount`` in its owner's name, and only so."""
    return os.geteuid() == 0 and mount.owner is not None and mount.owner.uid != 0


def run(mount: Mount, program: str, *arguments: str, patience: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program that says less than 64 KiB, as who made ``mount`` where that is for this process to choose, else as this user.

    Raises OSError when that is not possible, TimeoutError after ``patience`` seconds.
    """
    path = programs.find(program)
    if path is None:
        raise FileNotFoundError(program)
    whose: dict[str, Any] = {}
    if is_somebody_else(mount):
        assert mount.owner is not None
        whose = {"user": mount.owner.uid, "group": mount.owner.gid, "extra_groups": ()}
    asking = subprocess.Popen(
        [path, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"LC_ALL": "C"},
        **whose,
    )
    assert asking.stdout is not None and asking.stderr is not None
    with asking.stdout, asking.stderr:
        try:
            asking.wait(patience)
        except subprocess.TimeoutExpired as error:
            asking.kill()
            # If it does not end it will when the daemon does.
            with contextlib.suppress(subprocess.TimeoutExpired):
                asking.wait(0.1)
            raise TimeoutError(f"{program} got no answer in {patience:g} s") from error
        return subprocess.CompletedProcess(asking.args, asking.returncode, asking.stdout.read(), asking.stderr.read())


def read(mount: Mount, path: str, patience: float) -> bytes:
    """A small file, as `run` reads it. Raises OSError."""
    done = run(mount, "head", "-c", str(_LIMIT), "--", path, patience=patience)
    if done.returncode != 0:
        raise OSError(done.stderr.decode(errors="replace").strip())
    return done.stdout
