from __future__ import annotations

import os
from pathlib import Path

from zarrfs.lifecycle import mount_table


def test_the_mount_table_with_odd_names() -> None:
    device = os.stat("/proc").st_dev
    assert mount_table.mount_at("/proc") == mount_table.Mount("/proc", "proc", f"{os.major(device)}:{os.minor(device)}")
    assert mount_table.mount_at("/proc/self") is None
    assert mount_table.mount_at("/nowhere/at/all") is None
    assert mount_table.unescaped(rb"/a\040b\134\012") == b"/a b\\\n"


def test_whose_a_mount_is() -> None:
    owner = mount_table.Owner(65534, 100)
    assert mount_table._owner(b"rw,user_id=65534,group_id=100,default_permissions") == owner
    assert mount_table._owner(b"group_id=100,user_id=65534") == owner
    for options in (b"rw", b"rw,user_id=0", b"rw,my_user_id=0,group_id=0", b"rw,user_id=x,group_id=0"):
        assert mount_table._owner(options) is None


def test_places_are_resolved_as_far_as_the_mountpoint(tmp_path: Path) -> None:
    (tmp_path / "real/m").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "to-proc").symlink_to("/proc")
    assert mount_table.resolved(str(tmp_path / "link/m")) == str(tmp_path / "real/m")
    assert mount_table.resolved(str(tmp_path / "to-proc")) == "/proc"
    assert mount_table.resolved("/proc/../proc/") == "/proc"
    assert mount_table.resolved("/") == "/"


def test_mounts_around_a_path() -> None:
    around = {mount.mountpoint for mount in mount_table.mounts_around("/proc/self")}
    assert {"/", "/proc"} <= around
    assert "/proc" in {mount.mountpoint for mount in mount_table.mounts_around("/")}
    assert "/proc" not in {mount.mountpoint for mount in mount_table.mounts_around("/pro")}
