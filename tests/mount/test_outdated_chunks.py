"""A chunk that was read when its file was opened, and that is decoded only after others have replaced it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse


def _read(fd: int) -> None:
    assert os.pread(fd, 4, 0) == np.int32(1).tobytes()


def _write(fd: int) -> None:
    os.pwrite(fd, np.int32(3).tobytes(), 4)


@pytest.mark.parametrize("shards", [(), ("--new-shards", "2")], ids=["plain", "sharded"])
@pytest.mark.parametrize("use", [_read, _write])
def test_the_old_value_of_an_open_chunk_is_no_value_of_its_array(
    use: Callable[[int], None], shards: tuple[str, ...], tmp_path: Path
) -> None:
    """``npy/`` showed it from then on, although the store had the new one."""
    (store := tmp_path / "store").mkdir()
    with mounted(store, "--new-chunks", "4", *shards) as mount:
        whole = mount.path / "npy/a.npy"
        np.save(whole, np.ones(8, "<i4"))
        # What is decoded after this read counts until it is known to be replaced.
        assert np.load(whole).tolist() == [1] * 8
        fd = os.open(mount.path / "chunks/a/0", os.O_RDWR)
        np.save(whole, np.full(8, 2, "<i4"))
        use(fd)
        # The kernel drops its pages of the whole array.
        (mount.path / "chunks/a/1").write_bytes(np.full(4, 5, "<i4").tobytes())
        assert np.load(whole).tolist() == [2] * 4 + [5] * 4
        os.close(fd)
        assert np.load(whole).tolist() == [2, 3 if use is _write else 2, 2, 2] + [5] * 4
