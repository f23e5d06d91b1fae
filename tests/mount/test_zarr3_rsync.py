"""rsync into ``zarr3/``."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import mounted, run

pytestmark = [pytest.mark.fuse, pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")]


@pytest.mark.parametrize(
    "options",
    ["", "--new-shards 2", "--new-separator .", "--new-dialect v1", "--new-dialect v2", "--new-dialect v2 --new-separator /"],
)
def test_rsync_finds_the_times_that_it_set_and_transfers_nothing_the_second_time(options: str, tmp_path: Path) -> None:
    """It sets the times of folders before it writes below them."""
    store, out = tmp_path / "store", tmp_path / "out"
    store.mkdir()
    with mounted(store, "--new-chunks", "8", *options.split()) as mount:
        np.save(mount.path / "npy/a.npy", np.ones((40, 30), "i4"))
        shutil.copytree(mount.path / "zarr3/a", out)
        for folder, _, names in os.walk(out):
            for each in ("", *names):
                os.utime(Path(folder, each), (1e9, 1e9))
        run("rsync", "-a", f"{out}/", mount.path / "zarr3/b/")
        assert run("rsync", "-ai", f"{out}/", mount.path / "zarr3/b/").stdout == b""
        assert np.load(mount.path / "npy/b.npy").sum() == 1200
        with os.scandir(mount.path / "zarr3") as listed:
            assert {each.name: each.stat().st_mtime for each in listed}["b"] == 1e9


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022", "v3_2022:text"])
def test_the_time_of_a_group_stays_when_documents_of_its_arrays_are_written(view: str, dialect: str, tmp_path: Path) -> None:
    """rsync sets it as soon as it has created the folders of the arrays, and not again after their files."""
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", dialect) as mount:
        (mount.path / "npy/g").mkdir()
        group = mount.path / view / "g"
        for name in ("a", "b"):
            np.save(mount.path / f"npy/g/{name}.npy", np.ones(8, "i4"))
        os.utime(group, (1e9, 1e9))
        for name in ("a", "b"):
            document = group / name / ("zarr.json" if view == "zarr3" else ".zattrs")
            text = json.loads(document.read_text()) | {"attributes": {"of": name}} if view == "zarr3" else {"of": name}
            document.write_text(json.dumps(text))
            assert group.stat().st_mtime == 1e9
