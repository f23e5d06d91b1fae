"""A real systemd for tests: a manager in namespaces of its own, not that of this machine.

A test cannot use PID 1 of a machine, but any user can run ``systemd --user``, which is the same program: it starts, watches and stops
services in the same way. Here root runs it, in a mount and a PID namespace and in control groups of its own, so that it affects no
other process. /etc and /usr/local are writable copies, in which units and commands are installed as README.md describes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.namespace import SCRIPTS, require_namespace
from tests.support.programs import cannot, demand

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_SYSTEMD = Path("/usr/lib/systemd/systemd")

# Joined groups hold for all that the shell starts; the PID namespace ends all of it with the script.
_OUTER = """
for group in $CONTROL_GROUPS; do echo $$ >"$group/cgroup.procs"; done
exec unshare --pid --fork --kill-child --mount-proc bash -c "$INNER"
"""
_INNER = r"""
set -e
mount -t tmpfs -o mode=0755 run /run
mkdir -p /run/systemd/system /run/home
mkdir -m 0700 /run/user
for folder in /etc /usr/local /usr/sbin $([ /sbin -ef /usr/sbin ] || echo /sbin) /srv /mnt; do
    mkdir -p "/run/overlay$folder/"{upper,work}
    mount -t overlay -o "lowerdir=$folder,upperdir=/run/overlay$folder/upper,workdir=/run/overlay$folder/work" overlay "$folder"
done
export HOME=/run/home XDG_RUNTIME_DIR=/run/user SYSTEMD_UNIT_PATH=/etc/systemd/system:/usr/lib/systemd/user
unset XDG_CONFIG_HOME XDG_CACHE_HOME DBUS_SESSION_BUS_ADDRESS
# In a session of its own, as the kernel's automounter demands.
setsid /usr/lib/systemd/systemd --user --unit=basic.target &
manager=$!
until [ -S /run/user/systemd/private ]; do
    kill -0 $manager 2>/dev/null || exit 99
    read -r -t 0.1 <> <(:) || :
done
mkdir /run/bin
printf '#!/bin/sh\nexec /usr/bin/systemctl --user --no-pager "$@"\n' >/run/bin/systemctl
printf '#!/bin/sh\nexec "$@"\n' >/run/bin/sudo
# There is no journal here.
printf '#!/bin/sh\ncat /run/journal\n' >/run/bin/journalctl
chmod +x /run/bin/*
PATH=/run/bin:$PATH
settings=/etc/systemd/system/zarrfs@.service.d
mkdir -p $settings
printf '[Service]\nStandardOutput=append:/run/journal\nStandardError=append:/run/journal\n' >$settings/journal.conf
"""


def run_under_systemd(script: str, *, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    """Run a bash ``script`` (with ``set -e``) beside a systemd of its own, for ``systemctl``; return its output.

    /etc, /usr/local, /sbin, /srv and /mnt are writable copies; zarrfs is installed in ``~/zarrfs``; the folder of units, ``systemd``,
    is in the working directory. Skips the test if such a systemd cannot run.
    """
    require_namespace()
    demand("systemctl")
    if not _SYSTEMD.exists():
        cannot(f"{_SYSTEMD} is missing")
    with _control_groups() as groups:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", _OUTER],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=Path(__file__).parents[2],
            env={
                "PATH": os.environ["PATH"],
                "CONTROL_GROUPS": " ".join(map(str, groups)),
                "INNER": f"{_INNER}ln -s '{SCRIPTS.parent}' ~/zarrfs\n{script}",
            },
        )
    if done.returncode == 99:
        # Not a failure even where skipping is forbidden: this depends on the configuration of the machine.
        pytest.skip(f"no systemd can be run here: {done.stderr}")
    return done


@contextmanager
def _control_groups() -> Iterator[list[Path]]:
    """Create a control group below ours in every hierarchy; a manager claims everything in its own group."""
    # One name for all, since systemd creates the groups of one hierarchy in another.
    made, name = [], f"zarrfs-test-{uuid.uuid4().hex[:8]}"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for root in (controllers.removeprefix("name="), "unified", ""):
            group = _CONTROL_GROUPS / root / path.lstrip("/") / name
            if (root or not controllers) and (group.parent / "cgroup.procs").exists():
                # A new cpuset without processors cannot be joined; systemd leaves that hierarchy alone.
                if controllers != "cpuset":
                    try:
                        group.mkdir()
                    except OSError as error:
                        pytest.skip(f"no control group can be made: {error}")
                    made.append(group)
                break
    try:
        yield made
    finally:
        for group in made:
            _remove(group)


def _remove(group: Path) -> None:
    """Remove a control group and those below it. Their processes have ended; the kernel may need a moment to notice."""
    for _ in range(100):
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if not group.exists():
            return
        time.sleep(0.02)
