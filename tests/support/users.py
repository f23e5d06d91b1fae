"""Ordinary users on a machine where they may mount: bash scripts in a private namespace, with a home for each user.

as 65534 zarrfs mount $STORE ~/m      # ~ is not that user's home in the script: $W/65534 is
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.namespace import run_in_namespace

REPOSITORY = Path(__file__).parents[2]
USERS = (65534, 2)
"""The users nobody and bin: fusermount3 requires a user with a name."""

_PREPARED = """
export W="$NAMESPACE/w" && mkdir "$W" && mount -t tmpfs -o mode=0755 w "$W"
mkdir -m 1777 "$W/tmp"
for user in %(users)s; do mkdir -p -m 0755 "$W/$user/m" && chown -R $user:$user "$W/$user"; done
as() {
    local user=$1; shift
    setpriv --reuid=$user --regid=$user --clear-groups env -u XDG_RUNTIME_DIR -u XDG_STATE_HOME -u XDG_CACHE_HOME \\
        HOME="$W/$user" TMPDIR="$W/tmp" USER=u$user PATH="$SCRIPTS:$PATH" "$@"
}
zarrfs() { "$SCRIPTS/zarrfs" "$@"; }
code() { "$@" 2>&1 && echo "code 0" || echo "code $?"; }  # what it says, and its exit code
pid_of() { "${@:2}" sed -n 's/.*"pid": \\([0-9]*\\).*/\\1/p' "$1/.zarrfs/config.json"; }
killed() { kill -9 "$1" && tail --pid="$1" -f /dev/null; }  # returns when it is gone
# A script that fails leaves no daemon behind.
trap 'cut -d " " -f 5 /proc/self/mountinfo | grep "^$W/" | while read -r place; do umount -l "$place"; done' EXIT
cd /
"""


def run_as_users(script: str, *, env: Mapping[str, str] | None = None, timeout: float = 100) -> str:
    """Run a bash ``script`` as root and return its output; it has to succeed, and to unmount its mounts.

    ``as UID COMMAND`` runs a command as a user, ``$W/UID`` is that user's home and ``$W/UID/m`` an empty folder.
    """
    prepared = opened() + _PREPARED % {"users": " ".join(map(str, USERS))} + script + '\ncd / && umount "$W"\n'
    done = run_in_namespace(prepared, fuse_for_users=True, env=_plain() | dict(env or {}), timeout=timeout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _plain() -> dict[str, str]:
    return {"PYTHONPATH": str(REPOSITORY), "LC_ALL": "C.UTF-8"}


def opened() -> str:
    """Return a script that makes the interpreter executable for all users, wherever it is, and hides the rest of root's folders."""
    needed = {Path(place).resolve() for place in (sys.base_prefix, sys.prefix, REPOSITORY)}
    closed: dict[Path, list[Path]] = {}
    for place in sorted(needed):
        barred = next((above for above in reversed(place.parents) if not above.stat().st_mode & 0o001), None)
        if barred is not None:
            closed.setdefault(barred, []).append(place)
    lines = []
    for number, (barred, places) in enumerate(closed.items()):
        kept = [f'"$NAMESPACE/kept{number}.{each}"' for each in range(len(places))]
        for place, keep in zip(places, kept, strict=True):
            lines.append(f"mkdir {keep} && mount --bind {shlex.quote(str(place))} {keep}")
        lines.append(f"mount -t tmpfs -o mode=0755 opened {shlex.quote(str(barred))}")
        for place, keep in zip(places, kept, strict=True):
            lines.append(f"mkdir -p {shlex.quote(str(place))} && mount --bind {keep} {shlex.quote(str(place))}")
    return "\n".join(lines)


def script_of_python(source: str, *arguments: str) -> str:
    """Return a command line that runs ``source`` with the tests' interpreter."""
    return shlex.join([sys.executable, "-P", "-c", source, *arguments])
