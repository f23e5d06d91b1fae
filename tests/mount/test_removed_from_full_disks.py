"""Removal on a disk without any room left, by which a user makes room."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import mounted, run
from tests.support.small_disks import small_disk

pytestmark = pytest.mark.fuse


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            pass


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize("dialect", ["v0", "v1", "v2", "v3", "v3_2019", "v3_2022", "v3_2022:text"])
def test_rm_r_removes_nodes_with_attributes(tmp_path: Path, dialect: str, view: str) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        (disk / "store").mkdir()
        with mounted(disk / "store", "--new-dialect", dialect, "--cache-dir", str(tmp_path / "cache")) as mount:
            (mount.path / "npy/g").mkdir()
            np.save(mount.path / "npy/g/a.npy", np.arange(9))
            nodes = ["g/a"] if dialect in ("v0", "v1") else ["g/a", "g"]
            for node in nodes:
                (mount.path / "chunks" / node / ".zattrs").write_text(json.dumps({"units": "m", "long": "x" * 5000}))
            fill(disk)
            run("rm", "-r", mount.path / view / "g")
            assert os.listdir(mount.path / "npy") == [] and mount.errors() == []
        left = {path.name for path in (disk / "store").rglob("*") if path.is_file()}
        assert left <= {"zarr.json", ".zgroup", "root.group.json"}


def test_rm_of_attributes_alone_is_an_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        (disk / "store").mkdir()
        with mounted(disk / "store", "--cache-dir", str(tmp_path / "cache")) as mount:
            np.save(mount.path / "npy/a.npy", np.arange(9))
            attributes = mount.path / "chunks/a/.zattrs"
            attributes.write_text('{"units": "m"}')
            fill(disk)
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                attributes.unlink()
            assert json.loads(attributes.read_bytes())["units"] == "m"
            (disk / "filler").unlink()
            attributes.unlink()
            assert "units" not in (disk / "store/a/zarr.json").read_text()
