from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.mounting import zarrfs
from zarrfs.errors import FuseUnavailable, MountpointUnusable
from zarrfs.lifecycle import mountpoint as before
from zarrfs.lifecycle.dead_mounts import Life
from zarrfs.lifecycle.mount_table import FSTYPE, Mount, Owner
from zarrfs.options.config import MountConfig


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.rmdir(), ["does not exist", "mkdir -p"]),
        (lambda path: (path / "x").touch(), ["not empty", "empty folder"]),
        (lambda path: (path.rmdir(), path.touch()), ["not a folder"]),
        (lambda path: (path.rmdir(), path.symlink_to("/usr")), ["is a symlink", "/usr"]),
        (lambda path: (path.rmdir(), path.symlink_to("/nowhere")), ["is a symlink", "/nowhere"]),
    ],
)
def test_an_unusable_mountpoint(make: object, words: list[str], mountpoint: Path) -> None:
    make(mountpoint)  # type: ignore[operator]
    with pytest.raises(MountpointUnusable) as caught:
        before.check_mountpoint(str(mountpoint))
    assert all(word in str(caught.value) for word in [str(mountpoint), *words])
    assert "\n" not in str(caught.value)


def test_a_usable_mountpoint(mountpoint: Path) -> None:
    before.check_mountpoint(str(mountpoint))


def test_overlap_is_seen_through_symlinks(tmp_path: Path) -> None:
    (tmp_path / "store/inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for store, mount in (("store", "store"), ("store", "store/inside"), ("link", "store/inside"), ("store", "link/inside")):
        with pytest.raises(MountpointUnusable, match="inside"):
            before.check_overlap(str(tmp_path / store), str(tmp_path / mount))
    with pytest.raises(MountpointUnusable, match="contains the store"):
        before.check_overlap(str(tmp_path / "store/inside"), str(tmp_path / "link"))
    (tmp_path / "store2").mkdir()
    before.check_overlap(str(tmp_path / "store"), str(tmp_path / "store2"))


@pytest.mark.skipif(os.geteuid() != 0, reason="a bind mount needs root")
def test_overlap_is_seen_through_bind_mounts(tmp_path: Path) -> None:
    """Where mounts are shared, as systemd arranges, a mount below the copy of a store is in the store, too."""
    for name in ("store/m", "copy", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["mount", "--bind", tmp_path / "store", tmp_path / "copy"], check=True)
    try:
        with pytest.raises(MountpointUnusable, match="lies inside the store"):
            before.check_overlap(str(tmp_path / "store"), str(tmp_path / "copy/m"))
        with pytest.raises(MountpointUnusable, match="contains the store"):
            before.check_overlap(str(tmp_path / "copy/m"), str(tmp_path / "store"))
        before.check_overlap(str(tmp_path / "store"), str(tmp_path / "elsewhere"))
    finally:
        subprocess.run(["umount", tmp_path / "copy"], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a bind mount needs root")
def test_overlap_is_seen_through_a_bind_mount_of_a_folder_in_the_store(tmp_path: Path) -> None:
    for name in ("store/group/m", "copy", "beside/m", "copy of beside"):
        (tmp_path / name).mkdir(parents=True)
    copies = {"store/group": "copy", "beside": "copy of beside"}
    for folder, copy in copies.items():
        subprocess.run(["mount", "--bind", tmp_path / folder, tmp_path / copy], check=True)
    try:
        for inside in ("copy", "copy/m"):
            with pytest.raises(MountpointUnusable, match="lies inside the store"):
                before.check_overlap(str(tmp_path / "store"), str(tmp_path / inside))
            with pytest.raises(MountpointUnusable, match="contains the store"):
                before.check_overlap(str(tmp_path / inside), str(tmp_path / "store"))
        before.check_overlap(str(tmp_path / "store"), str(tmp_path / "copy of beside/m"))
        before.check_overlap(str(tmp_path / "copy of beside"), str(tmp_path / "copy"))
    finally:
        for copy in copies.values():
            subprocess.run(["umount", tmp_path / copy], check=True)


@pytest.mark.parametrize("option", ["--cache-dir", "--log-file"])
def test_a_folder_of_ours_below_the_mountpoint_is_refused_before_it_is_created(option: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "mount").mkdir()
    (tmp_path / "link").symlink_to("mount")
    done = zarrfs("mount", str(tmp_path / "store"), str(tmp_path / "mount"), option, str(tmp_path / "link/deep/er"))
    assert done.returncode == 5 and "contains the" in done.stderr and "choose one outside it" in done.stderr
    assert list((tmp_path / "mount").iterdir()) == []


def test_no_dev_fuse(config: MountConfig, tmp_path: Path) -> None:
    with pytest.raises(FuseUnavailable, match="modprobe fuse"):
        before.check_fuse(config, device=str(tmp_path / "fuse"))


@pytest.mark.parametrize(("text", "lets"), [("user_allow_other\n", True), ("#user_allow_other\n", False), ("", False)])
def test_fuse_conf(text: str, lets: bool, tmp_path: Path) -> None:
    conf = tmp_path / "fuse.conf"
    conf.write_text(text)
    assert before._lets_users_allow_other(str(conf)) is lets


@pytest.mark.parametrize(
    ("life", "uid", "words"),
    [
        (Life.ALIVE, 0, "already mounted by zarrfs: `zarrfs umount .*` first, or choose another"),
        (Life.SILENT, 0, "daemon does not answer: end it, then `zarrfs umount"),
        (Life.DEAD, 2**31 - 7, rf"mount by user {2**31 - 7} whose daemon died: they or root may remove it"),
        (Life.DEAD, 4321, None),
    ],
    ids=["alive", "silent", "another's", "dead"],
)
def test_a_mount_of_ours_is_replaced_only_when_its_daemon_is_gone_and_it_is_this_users(
    mountpoint: Path, life: Life, uid: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Mount(str(mountpoint), FSTYPE, "0:987654", Owner(uid, 0))
    monkeypatch.setattr(before, "mount_at", lambda path: found if path == str(mountpoint) else None)
    monkeypatch.setattr(before, "life_of", lambda mount: life)
    monkeypatch.setattr(before.os, "geteuid", lambda: 4321)
    monkeypatch.setattr(before.os, "getuid", lambda: 4321)
    if words is None:
        assert before.holds_dead_mount(str(mountpoint))
        with pytest.raises(
            MountpointUnusable, match=r"is a mount of type fuse\.zarrfs whose daemon died: remove it with `zarrfs umount"
        ):
            before.check_mountpoint(str(mountpoint))
        return
    with pytest.raises(MountpointUnusable, match=words):
        before.check_mountpoint(str(mountpoint))


def test_a_folder_in_a_dead_mount_is_told_of_as_that(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(path: str) -> NoReturn:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path)

    above = str(mountpoint.parent)
    monkeypatch.setattr(before, "mount_at", lambda path: Mount(above, "fuse.other", "0:1") if path == above else None)
    monkeypatch.setattr(before.os, "lstat", dead)
    with pytest.raises(
        MountpointUnusable, match=rf"lies in {above}, a mount of type fuse\.other whose daemon died: .*fusermount3 -u"
    ):
        before.check_mountpoint(str(mountpoint))


@pytest.mark.parametrize(("mode", "words"), [(0o555, "not writable"), (0o1777, "sticky folder of another user")])
def test_what_fusermount3_would_refuse_is_refused_before(
    mountpoint: Path, mode: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mountpoint.chmod(mode)
    owner = mountpoint.stat().st_uid
    monkeypatch.setattr(before.os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(before.os, "getuid", lambda: owner + 1)
    monkeypatch.setattr(before.os, "access", lambda path, how: bool(mode & 0o002))
    with pytest.raises(MountpointUnusable, match=f"{words}.*: choose a folder of your own"):
        before.check_mountpoint(str(mountpoint))


def test_a_device_that_may_not_be_used_is_no_missing_one(config: MountConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, flags: int) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(before.os, "open", refused)
    with pytest.raises(FuseUnavailable, match=r"/dev/fuse: not accessible \(permission denied\): run as root, or `chmod 0666` it"):
        before.check_fuse(config)


def test_what_a_user_lacks_is_said_before_the_mount(config: MountConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fuse").touch()
    device, conf = str(tmp_path / "fuse"), tmp_path / "fuse.conf"
    monkeypatch.setattr(before.os, "geteuid", lambda: 4321)
    monkeypatch.setattr(before.programs, "find", lambda _: None)
    with pytest.raises(FuseUnavailable, match="fusermount3 not found"):
        before.check_fuse(config, device)
    monkeypatch.setattr(before.programs, "find", lambda name: f"/usr/bin/{name}")
    before.check_fuse(config, device, str(conf))
    others = replace(config, allow_other=True)
    with pytest.raises(FuseUnavailable, match=r"allow_other: not permitted: root must add a line `user_allow_other` to .*conf"):
        before.check_fuse(others, device, str(conf))
    conf.write_text("user_allow_other # as everywhere\n")
    before.check_fuse(others, device, str(conf))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t0\n", ""),
        ("CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t1\n", "no_new_privs"),
        ("CapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t1\n", ""),
        ("CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nNoNewPrivs:\t0\n", "CAP_SYS_ADMIN"),
        ("Name:\tzarrfs: x\n", ""),
        (None, ""),
    ],
    ids=["user", "no_new_privs", "root", "container", "old kernel", "no /proc"],
)
def test_what_hinders_every_mount_is_named(status: str | None, words: str, tmp_path: Path) -> None:
    if status is not None:
        (tmp_path / "status").write_text(status)
    hindrance = before.hindrance(str(tmp_path / "status"))
    assert words in hindrance and bool(words) == bool(hindrance)
