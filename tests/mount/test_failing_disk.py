"""A disk that cannot write what the kernel has accepted: the kernel reports that to one fsync, and the next one succeeds."""

from __future__ import annotations

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
