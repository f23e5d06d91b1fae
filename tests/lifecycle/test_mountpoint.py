from __future__ import annotations

from pathlib import Path

import pytest

from zarrfs.errors import FuseUnavailable, MountpointUnusable
from zarrfs.lifecycle import mountpoint as before
from zarrfs.options.config import MountConfig


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.rmdir(), ["does not exist", "mkdir -p"]),
        (lambda path: (path / "x").touch(), ["is not empty", "empty folder"]),
        (lambda path: (path.rmdir(), path.touch()), ["is not a folder"]),
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
    with pytest.raises(MountpointUnusable, match="holds the store"):
        before.check_overlap(str(tmp_path / "store/inside"), str(tmp_path / "link"))
    (tmp_path / "store2").mkdir()
    before.check_overlap(str(tmp_path / "store"), str(tmp_path / "store2"))


def test_no_dev_fuse(config: MountConfig, tmp_path: Path) -> None:
    with pytest.raises(FuseUnavailable, match="modprobe fuse"):
        before.check_fuse(config, device=str(tmp_path / "fuse"))


@pytest.mark.parametrize(("text", "lets"), [("user_allow_other\n", True), ("#user_allow_other\n", False), ("", False)])
def test_fuse_conf(text: str, lets: bool, tmp_path: Path) -> None:
    conf = tmp_path / "fuse.conf"
    conf.write_text(text)
    assert before._lets_users_allow_other(str(conf)) is lets
