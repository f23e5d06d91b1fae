from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zarrfs.errors import MountpointUnusable, ZarrfsError
from zarrfs.lifecycle import mount_table, open_by, unmounting
from zarrfs.lifecycle import mountpoint as before
from zarrfs.lifecycle.exit_report import SUDDEN_DEATH, Outcome

REPOSITORY = Path(__file__).parents[2]
SMALL_MOUNT = REPOSITORY / "tests/support/small_mount.py"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "zarrfs"


@pytest.fixture
def small_mount(request: pytest.FixtureRequest, mountpoint: Path, runtime: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(SMALL_MOUNT), str(mountpoint), request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mounted\n"
        yield process
        if mount_table.mount_at(str(mountpoint)):
            subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=True)
        process.wait()


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("small_mount", "outcome"),
    [("well", Outcome(0)), ("badly", Outcome(7, "raw/a could not be stored: no space left")), ("dead", SUDDEN_DEATH)],
    indirect=["small_mount"],
)
def test_umount_waits_and_tells_how_the_daemon_ended(
    small_mount: subprocess.Popen[bytes], outcome: Outcome, mountpoint: Path, runtime: Path
) -> None:
    assert unmounting.unmount(str(mountpoint)) == outcome
    # It has reported its result, and may still be ending.
    small_mount.wait(timeout=10)
    assert mount_table.mount_at(str(mountpoint)) is None
    assert list(runtime.iterdir()) == []


@pytest.mark.fuse
@pytest.mark.parametrize("small_mount", ["well"], indirect=True)
def test_a_mount_in_use_stays_unless_lazy(small_mount: subprocess.Popen[bytes], mountpoint: Path) -> None:
    with pytest.raises(MountpointUnusable, match="already mounted"):
        before.check_mountpoint(str(mountpoint))
    held = os.open(mountpoint, os.O_RDONLY)
    with pytest.raises(ZarrfsError, match=rf"in use by .* \({os.getpid()}: \.\)"):
        unmounting.unmount(str(mountpoint))
    outcome = unmounting.unmount(str(mountpoint), lazy=True)
    assert outcome.exit_code == 0
    assert f"daemon (pid {small_mount.pid}) continues until" in outcome.message and f"({os.getpid()}: .)" in outcome.message
    assert mount_table.mount_at(str(mountpoint)) is None
    assert small_mount.poll() is None
    os.close(held)
    assert small_mount.wait() == 0


@pytest.mark.fuse
@pytest.mark.parametrize("small_mount", ["well"], indirect=True)
def test_a_mount_whose_daemon_died(small_mount: subprocess.Popen[bytes], mountpoint: Path) -> None:
    small_mount.kill()
    small_mount.wait()
    with pytest.raises(MountpointUnusable, match=r"daemon died.*zarrfs umount"):
        before.check_mountpoint(str(mountpoint))
    outcome = unmounting.unmount(str(mountpoint))
    assert outcome.exit_code == 0 and "had died" in outcome.message
    before.check_mountpoint(str(mountpoint))


def test_umount_of_what_zarrfs_did_not_mount(tmp_path: Path) -> None:
    with pytest.raises(MountpointUnusable, match="not mounted"):
        unmounting.unmount(str(tmp_path))
    with pytest.raises(MountpointUnusable, match="type proc"):
        unmounting.unmount("/proc")


@pytest.mark.fuse
@pytest.mark.parametrize("small_mount", ["well"], indirect=True)
def test_the_slower_of_two_umounts_says_that_there_is_no_mount_any_more(
    small_mount: subprocess.Popen[bytes], mountpoint: Path
) -> None:
    found = mount_table.mount_at(str(mountpoint))
    assert found is not None
    assert unmounting.unmount(str(mountpoint)) == Outcome(0)
    # It looked at the mount table before the faster one had ended.
    with pytest.raises(MountpointUnusable, match="no longer mounted: another process has unmounted it"):
        unmounting._unmount(found, False, print, 2.0, 30.0)


@pytest.mark.fuse
@pytest.mark.parametrize("small_mount", ["well"], indirect=True)
def test_a_mount_that_is_unmounted_while_its_users_are_looked_for_is_not_in_use(
    small_mount: subprocess.Popen[bytes], mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = os.open(mountpoint, os.O_RDONLY)

    def of(_: str) -> list[open_by.Holder]:
        # Another umount, whose look at the mount was what used it.
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=True)
        return []

    monkeypatch.setattr(open_by, "of", of)
    with pytest.raises(MountpointUnusable, match="no longer mounted: another process has unmounted it"):
        unmounting.unmount(str(mountpoint))
    os.close(held)
