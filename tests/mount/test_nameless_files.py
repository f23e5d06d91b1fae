"""Open files that have lost their name, reached once more through /proc/PID/fd: never the file that has the name now."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.test_bound_files import errno_of, opened
from tests.support.mounting import mounted
from tests.support.small_stores import write

pytestmark = pytest.mark.fuse

OLD, NEW = b"of before", b"the new value"
PARTIAL = "." + "0" * 32 + ".partial"


def _remove(path: Path) -> None:
    path.unlink()


def _remove_and_create(path: Path) -> None:
    path.unlink()
    path.write_bytes(NEW)


def _replace(path: Path) -> None:
    path.with_suffix(PARTIAL).write_bytes(NEW)
    path.with_suffix(PARTIAL).replace(path)


def _open(path: str, flags: int) -> Callable[[], None]:
    def attempt() -> None:
        os.close(os.open(path, flags))

    return attempt


@pytest.mark.parametrize("lose", [_remove, _remove_and_create, _replace])
def test_only_the_file_itself_is_reached_through_its_descriptor(lose: Callable[[Path], None], tmp_path: Path) -> None:
    store = write(tmp_path / "store", {"k": OLD})
    with mounted(store) as mount:
        path = mount.path / "raw/k"
        with opened(path) as fd:
            lose(path)
            now = (store / "k").read_bytes() if (store / "k").exists() else None
            again = f"/proc/self/fd/{fd}"
            attempts = {
                "read": (_open(again, os.O_RDONLY), errno.ENOENT),
                "write": (_open(again, os.O_RDWR), errno.ENOENT),
                "empty": (_open(again, os.O_WRONLY | os.O_TRUNC), errno.ENOENT),
                "truncate": (lambda: os.truncate(again, 0), errno.ESTALE),
            }
            for name, (attempt, expected) in attempts.items():
                assert (name, errno_of(attempt)) == (name, expected)
            assert os.pread(fd, 100, 0) == OLD
        assert now == (None if lose is _remove else NEW)
        assert ((store / "k").read_bytes() if (store / "k").exists() else None) == now


def test_times_are_not_set_for_the_file_that_has_the_name(tmp_path: Path) -> None:
    store = write(tmp_path / "store", {"k": OLD})
    with mounted(store) as mount, opened(mount.path / "raw/k", os.O_PATH) as fd:
        _replace(mount.path / "raw/k")
        before = (store / "k").stat().st_mtime_ns
        assert errno_of(lambda: os.utime(f"/proc/self/fd/{fd}", ns=(10**18, 10**18))) == errno.ESTALE
        assert (store / "k").stat().st_mtime_ns == before


def test_a_file_that_keeps_its_name_is_opened_and_truncated_through_its_descriptor(tmp_path: Path) -> None:
    store = write(tmp_path / "store", {"k": OLD})
    with mounted(store) as mount, opened(mount.path / "raw/k", os.O_RDONLY) as fd:
        with opened(Path(f"/proc/self/fd/{fd}"), os.O_RDWR) as another:
            os.pwrite(another, b"OF", 0)
        os.truncate(f"/proc/self/fd/{fd}", 4)
        assert (store / "k").read_bytes() == b"OF b"
