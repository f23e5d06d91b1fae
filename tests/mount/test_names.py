"""Names that could not lead to the same array, or to any, in the next mount are refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse


def test_an_array_saved_under_a_long_name_has_that_name_in_the_next_mount(tmp_path: Path) -> None:
    elements = np.arange(3)
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store") as mount:
        folder, saved = mount.path / "npy", []
        for length in (200, *range(240, 252)):
            name = "x" * length + ".npy"
            try:
                np.save(folder / name, elements)
            except OSError:
                with pytest.raises(OSError, match="Invalid argument"):
                    os.rename(folder / saved[0], folder / name)
            else:
                saved.append(name)
        assert 1 < len(saved) < 13
        assert "a name has at most" in mount.errors()[-1]["message"]
    with mounted(tmp_path / "store") as mount:
        assert sorted(os.listdir(mount.path / "npy")) == sorted(saved)
        assert all((np.load(mount.path / "npy" / name) == elements).all() for name in saved)


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize(
    ("dialect", "longest"), [("v3", 255), ("v2", 255), ("v3_2022", 244), ("v3_2022:text", 244), ("v3_2019", 249)]
)
def test_no_group_gets_a_name_too_long_for_its_document(view: str, dialect: str, longest: int, tmp_path: Path) -> None:
    """mkdir(2) succeeded, and the group could not be stored at the end of the mount."""
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", dialect) as mount:
        folder = mount.path / view
        (folder / "a").mkdir()
        for length in range(longest + 1, 256):
            with pytest.raises(OSError, match="File name too long"):
                (folder / ("x" * length)).mkdir()
            with pytest.raises(OSError, match="File name too long"):
                (folder / "a").rename(folder / ("x" * length))
        (folder / ("x" * longest)).mkdir()
    with mounted(tmp_path / "store") as mount:
        assert sorted(path.name for path in (mount.path / view).iterdir() if path.is_dir()) == ["a", "x" * longest]


@pytest.mark.parametrize("view", ["chunks", "zarr3", "npy"])
@pytest.mark.parametrize("dialect", ["v3", "v2", "v1", "v0"])
def test_no_group_gets_the_name_of_the_folder_for_operations(view: str, dialect: str, tmp_path: Path) -> None:
    """mkdir(2) succeeded, and the group could not be stored at the end of the mount."""
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", dialect) as mount:
        folder = mount.path / view
        (folder / "a").mkdir()
        with pytest.raises(OSError, match="Invalid argument"):
            (folder / ".zarrfs").mkdir()
        with pytest.raises(OSError, match="Invalid argument"):
            (folder / "a").rename(folder / ".zarrfs")
        (folder / "a/.zarrfs").mkdir()
        assert (folder / "a/.zarrfs").is_dir()


def test_raw_refuses_the_name_of_the_folder_for_operations_at_once(tmp_path: Path) -> None:
    """A file of that name was accepted by open(2) and write(2), and refused by close(2) as an invalid name."""
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store") as mount:
        raw = mount.path / "raw"
        (raw / "a").write_bytes(b"key")
        (raw / "d").mkdir()
        (raw / "t.__lock").write_bytes(b"temporary")
        attempts: list[Callable[[], object]] = [
            lambda: os.open(raw / ".zarrfs", os.O_CREAT | os.O_WRONLY),
            lambda: (raw / ".zarrfs").mkdir(),
            lambda: (raw / "a").rename(raw / ".zarrfs"),
            lambda: (raw / "d").rename(raw / ".zarrfs"),
            lambda: (raw / "t.__lock").rename(raw / ".zarrfs"),
            lambda: (raw / ".zarrfs").hardlink_to(raw / "t.__lock"),
        ]
        for attempt in attempts:
            with pytest.raises(PermissionError):
                attempt()
        (raw / "d/.zarrfs").write_bytes(b"key")
    assert (tmp_path / "store/d/.zarrfs").read_bytes() == b"key"
