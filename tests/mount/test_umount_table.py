"""umount(8) of an absolute path, which finds the helper only by an entry in the table of libmount."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support.mounting import ROOT
from tests.support.namespace import run_in_namespace

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

# The table of this namespace alone; after any failure nothing stays mounted.
_PREPARED = """
mkdir -p /run/mount && mount -t tmpfs utab /run/mount
mount -t tmpfs logs /var/log
"$SCRIPTS/zarrfs" install mount-helper > /dev/null
trap 'cd / && umount -i -l "$W/a b,c" 2> /dev/null || true' EXIT
code() { local given=0; "$@" || given=$?; echo "code $given"; }
cd "$W"
"""


def _run(script: str) -> list[str]:
    """Return the lines that ``script`` prints, in a folder ``$W`` with a store and a mountpoint ``a b,c``."""
    with tempfile.TemporaryDirectory(prefix="zarrfs-test-") as folder:
        shutil.copytree(ROOT / "demo/example.zarr", Path(folder, "x.zarr"))
        Path(folder, "a b,c").mkdir()
        done = run_in_namespace(_PREPARED + script, sbin=True, env={"W": folder, "LC_ALL": "C.UTF-8"})
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return [line.replace(folder, "W") for line in f"{done.stdout}{done.stderr}".splitlines()]


@pytest.mark.parametrize("mount", ["mount -t zarrfs", "mount -t fuse.zarrfs -o _netdev", '"$SCRIPTS/zarrfs" mount'])
def test_umount_of_an_absolute_path_runs_the_helper(mount: str) -> None:
    done = _run(f'{mount} "$W/x.zarr" "$W/a b,c"; umount -v "$W/a b,c"; cat /run/mount/utab')
    assert done == ["umount.zarrfs: W/a b,c unmounted"]


def test_umount_of_an_absolute_path_fails_while_a_copy_of_the_mount_remains() -> None:
    done = _run(
        """
        mount -t zarrfs "$W/x.zarr" "$W/a b,c"; mkdir copy; mount --bind "$W/a b,c" copy
        code umount "$W/a b,c"
        umount "$W/copy" && rmdir copy
        """
    )
    assert done == ["code 32", "umount.zarrfs: W/a b,c: unmounted, but its daemon continues: also mounted (bind mount) on W/copy"]


def test_entries_do_not_remain() -> None:
    unmounted = '"$SCRIPTS/zarrfs" umount "$W/a b,c"'
    assert _run(f'for i in 1 2; do mount -t zarrfs "$W/x.zarr" "$W/a b,c"; {unmounted}; done; cat /run/mount/utab') == []


def test_entries_of_dead_mounts_do_not_collect() -> None:
    done = _run(
        """
        for i in 1 2 3; do
            "$SCRIPTS/zarrfs" mount "$W/x.zarr" "$W/a b,c" 2> /dev/null
            pid=$(sed -n 's/.*"pid": \\([0-9]*\\).*/\\1/p' "a b,c/.zarrfs/config.json")
            kill -9 $pid && tail --pid=$pid -f /dev/null
        done
        grep -c uhelper /run/mount/utab
        umount "$W/a b,c" && cat /run/mount/utab
        """
    )
    assert done[0] == "1" and not any("uhelper" in line for line in done)


def test_an_entry_that_remains_does_no_harm() -> None:
    done = _run(
        """
        mount -t zarrfs "$W/x.zarr" "$W/a b,c"
        umount -i "$W/a b,c" && mount --fake -i -t fuse.zarrfs -o uhelper=fuse.zarrfs "$W/x.zarr" "$W/a b,c"
        mount -t tmpfs other "$W/a b,c"; code umount "$W/a b,c"
        "$SCRIPTS/zarrfs" uninstall mount-helper > /dev/null
        "$SCRIPTS/zarrfs" mount "$W/x.zarr" "$W/a b,c"; code umount "$W/a b,c"
        """
    )
    assert done == ["code 0", "code 0"]
