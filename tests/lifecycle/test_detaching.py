"""Detaching a mount: by a separate program that checks the target, and whose result becomes a message."""

from __future__ import annotations

import errno
import os
import pwd
import runpy
import sys
from pathlib import Path

import pytest

from zarrfs.errors import FuseUnavailable, MountBusy, ZarrfsError
from zarrfs.lifecycle import detaching, umount2
from zarrfs.lifecycle.detaching import Detaching, detach, user_of
from zarrfs.lifecycle.mount_table import FSTYPE, Mount, Owner, mount_at

NOFOLLOW = 8


def test_what_is_mounted_at_a_place_is_told_without_asking_it(tmp_path: Path) -> None:
    proc = mount_at("/proc")
    assert proc is not None
    assert umount2.device_at("/proc") == proc.device
    # A link is not followed: it has the device of its own folder.
    (tmp_path / "link").symlink_to("/proc")
    assert umount2.device_at(str(tmp_path / "link")) == umount2.device_at(str(tmp_path)) != proc.device


def test_another_mount_than_the_one_that_is_meant_stays(capfd: pytest.CaptureFixture[str]) -> None:
    assert umount2.unmount("/proc", NOFOLLOW, "0:987654") == errno.ESTALE
    assert capfd.readouterr().out == "gone, or covered by another mount\n"
    assert mount_at("/proc") is not None


def test_what_is_no_mountpoint_or_not_there_is_told_by_its_errno(tmp_path: Path) -> None:
    assert umount2.unmount(str(tmp_path / "missing/mnt"), NOFOLLOW, None) == errno.ENOENT
    assert umount2.unmount(str(tmp_path / "missing"), NOFOLLOW, "0:1") == errno.ENOENT
    # EPERM for all but root.
    assert umount2.unmount(str(tmp_path), NOFOLLOW, None) == (errno.EINVAL if os.geteuid() == 0 else errno.EPERM)


@pytest.mark.parametrize("device", [(), ("0:987654",)], ids=["any", "one"])
def test_the_exit_code_of_the_program_is_the_errno(
    tmp_path: Path, device: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["umount2.py", str(tmp_path / "missing/mnt"), str(NOFOLLOW), *device])
    monkeypatch.delitem(sys.modules, "zarrfs.lifecycle.umount2")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("zarrfs.lifecycle.umount2", run_name="__main__")
    assert ended.value.code == errno.ENOENT


@pytest.mark.parametrize("is_automounted", [False, True], ids=["ours", "an automounter's"])
def test_a_place_without_that_mount_is_an_error_that_names_it(
    mountpoint: Path, is_automounted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detaching.os, "geteuid", lambda: 0)
    monkeypatch.setattr(detaching, "is_automounted", lambda _: is_automounted)
    device = umount2.device_at(str(mountpoint) if is_automounted else "/proc")
    assert device is not None
    reason = "invalid argument|operation not permitted" if is_automounted else "gone, or covered by another mount"
    with pytest.raises(ZarrfsError, match=rf"^{mountpoint}: unmount failed: ({reason})$") as raised:
        detach(Mount(str(mountpoint), FSTYPE, device), lazy=False, patience=60)
    assert not isinstance(raised.value, MountBusy) and raised.value.key == str(mountpoint)


def test_a_mount_that_another_process_has_detached_is_detached(mountpoint: Path) -> None:
    # As after `umount --force --lazy`, which ends the daemon and removes the mount at once.
    detach(Mount(str(mountpoint), FSTYPE, "0:987654"), lazy=True, patience=60)


def test_without_fusermount3_a_user_is_told_what_to_install(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detaching.os, "geteuid", lambda: 4321)
    monkeypatch.setattr(detaching.programs, "find", lambda _: None)
    with pytest.raises(FuseUnavailable, match="fusermount3 not found: install fuse3"):
        Detaching(Mount(str(mountpoint), FSTYPE, "0:1"), lazy=False)


@pytest.mark.parametrize(("reason", "is_busy"), [("Device or resource busy", True), ("Invalid argument", False)])
def test_a_mount_is_in_use_by_the_reason_and_not_by_its_name(
    reason: str, is_busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fusermount = tmp_path / "fusermount3"
    fusermount.write_text(f'#!/bin/sh\necho "$0: failed to unmount $3: {reason}" >&2; exit 1\n')
    fusermount.chmod(0o700)
    monkeypatch.setattr(detaching.os, "geteuid", lambda: 4321)
    monkeypatch.setattr(detaching.programs, "find", lambda _: str(fusermount))
    unmounting = Detaching(Mount("/mnt/busy", FSTYPE, "0:1"), lazy=False)
    assert unmounting.ended_within(60)
    with pytest.raises(ZarrfsError, match=f"failed to unmount /mnt/busy: {reason}") as raised:
        unmounting.end()
    assert isinstance(raised.value, MountBusy) == is_busy


def test_a_program_that_cannot_be_started_leaves_nothing_open(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detaching.os, "geteuid", lambda: 0)
    monkeypatch.setattr(detaching.sys, "executable", str(mountpoint / "missing"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Detaching(Mount(str(mountpoint), FSTYPE, "0:1"), lazy=True)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_who_made_a_mount_is_named_as_far_as_that_is_known() -> None:
    someone = pwd.getpwall()[0]
    assert user_of(Mount("/mnt", FSTYPE, "0:1")) == "somebody"
    assert user_of(Mount("/mnt", FSTYPE, "0:1", Owner(someone.pw_uid, 0))) == pwd.getpwuid(someone.pw_uid).pw_name
    assert user_of(Mount("/mnt", FSTYPE, "0:1", Owner(2**31 - 7, 0))) == f"user {2**31 - 7}"
