"""A program opens a file after another has changed it, and sets back what was there before, while a third has it open all the time.

What it writes equals what was read from the file before, but not by it: it is a change.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.mount.test_bound_files import opened
from tests.mount.test_two_writers import HEADER, OTHERS, bytes_of, changed, make, mapped, stored
from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@pytest.mark.parametrize(
    ("file", "begin", "other"), [("npy/a.npy", HEADER, "chunk"), ("chunks/a/0", 0, "zarr3"), ("chunks/a/0", 0, "npy")]
)
def test_elements_are_set_back(file: str, begin: int, other: str, sharded: bool, tmp_path: Path) -> None:
    make(tmp_path / "store", 16, 16, sharded=sharded)
    with mounted(tmp_path / "store") as mount, opened(mount.path / file) as first:
        # From its first publish on, whoever opens a chunk file shares it with this handle.
        os.pwrite(first, bytes_of(1), begin)
        os.fsync(first)
        assert np.frombuffer(os.pread(first, 64, begin), "<i4").tolist() == changed({0: 1})
        OTHERS[other](mount, 8, 2)
        with opened(mount.path / file, os.O_WRONLY) as later:
            os.pwrite(later, bytes_of(7), begin + 4 * 8)
            os.fsync(later)
        assert stored(tmp_path / "store") == changed({0: 1})
        assert np.frombuffer(os.pread(first, 64, begin), "<i4").tolist() == changed({0: 1})


def test_elements_are_set_back_while_a_program_maps_the_file(tmp_path: Path) -> None:
    make(tmp_path / "store", 16, 16)
    with mounted(tmp_path / "store") as mount, mapped(mount.path / "npy/a.npy") as mapping:
        mapping[HEADER : HEADER + 4] = bytes_of(1)
        OTHERS["chunk"](mount, 8, 2)
        OTHERS["npy"](mount, 8, 7)
        assert mapping[HEADER + 32 : HEADER + 36] == bytes_of(7)
        OTHERS["chunk"](mount, 9, 3)
        mapping[HEADER + 4 : HEADER + 8] = bytes_of(4)
        mapping.flush()
        assert stored(tmp_path / "store") == changed({0: 1, 1: 4, 9: 3})


def test_what_was_read_before_is_no_change_although_another_has_opened_the_file_since(tmp_path: Path) -> None:
    make(tmp_path / "store", 16, 16)
    with mounted(tmp_path / "store") as mount, opened(mount.path / "npy/a.npy") as first:
        data = bytearray(os.pread(first, HEADER + 64, 0))
        OTHERS["chunk"](mount, 8, 2)
        OTHERS["npy"](mount, 9, 3)
        data[HEADER : HEADER + 4] = bytes_of(1)
        data[HEADER + 36 : HEADER + 40] = bytes_of(3)
        os.pwrite(first, data, 0)
        os.fsync(first)
        assert stored(tmp_path / "store") == changed({0: 1, 8: 2, 9: 3})
