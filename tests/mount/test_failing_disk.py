"""A disk that cannot write what the kernel has accepted, which it reports to one fsync only, and one that turns read-only."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import mounted
from tests.support.small_disks import small_disk

pytestmark = pytest.mark.fuse

SPACE, SIZE = "2m", 64 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store on a file system of 64 MiB, whose device has room for 2."""
    if shutil.which("mkfs.ext2") is None:
        pytest.skip("mkfs.ext2 (e2fsprogs) is missing")
    with small_disk(tmp_path / "device", SPACE) as device:
        image, disk = device / "image", tmp_path / "disk"
        disk.mkdir()
        with image.open("wb") as file:
            file.truncate(SIZE)
        subprocess.run(["mkfs.ext2", "-q", "-F", str(image)], check=True)
        if subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=False, capture_output=True).returncode:
            pytest.skip("no loop device can be mounted here")
        try:
            (disk / "store").mkdir()
            yield disk / "store"
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def can_sync(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            os.fsync(file.fileno())
        except OSError:
            return False
    return True


def test_an_fsync_that_failed_does_not_succeed_until_the_value_is_written_again(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        place = mount.path / "raw/k"
        place.write_bytes(os.urandom(4 << 20))
        # The third one would succeed on the file system below.
        assert [can_sync(place) for _ in range(4)] == [False] * 4
        subprocess.run(["mount", "-o", f"remount,size={SIZE}", str(store.parents[1] / "device")], check=True)
        assert not can_sync(place)
        place.write_bytes(b"small")
        assert can_sync(place)
        mount.umount()
    assert (store / "k").read_bytes() == b"small"


def test_a_disk_that_turns_read_only_is_named_for_every_operation_that_it_refuses(store: Path) -> None:
    (store / "k").write_bytes(b"value")
    with mounted(store, ends_with=None) as mount:
        raw = mount.path / "raw"
        subprocess.run(["mount", "-o", "remount,ro", str(store.parent)], check=True)
        for name, change in {
            "mkdir": lambda: (raw / "d").mkdir(),
            "rename": lambda: (raw / "k").rename(raw / "l"),
            "unlink": lambda: (raw / "k").unlink(),
        }.items():
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
                change()
            last = mount.errors()[-1]
            assert (last["operation"], last["error"]) == (name, "StoreTurnedReadOnly")
        assert mount.umount().returncode == 0
    assert (store / "k").read_bytes() == b"value"
