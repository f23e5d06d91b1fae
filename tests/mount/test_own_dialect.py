"""Dialects of another distribution through a real mount: one with its own codec chain, keys and chunk headers, and a read-only one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.brick_codec import Brick
from tests.support.mounting import Mounted
from tests.support.plugged import mounted_with, offer

pytestmark = pytest.mark.fuse

ELEMENTS = np.arange(500 * 300, dtype="<i2").reshape(500, 300)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounted]:
    """Array ``a`` of ``bricks`` and its equal ``b`` of ``walls``, in chunks of 128 x 100 that end at the edge."""
    offers = {"zarrfs.codecs": "tests.support.brick_codec:PLUGIN", "zarrfs.dialects": "tests.support.bricks_dialect:PLUGIN"}
    offer(tmp_path / "site", offers)
    store = tmp_path / "store"
    document = json.dumps({"shape": ELEMENTS.shape, "brick": [128, 100], "type": "int16", "fill": 0})
    for name, kind in (("a", "bricks"), ("b", "walls")):
        for row in range(4):
            for column in range(3):
                key = store / name / str(column) / str(row)
                key.parent.mkdir(parents=True, exist_ok=True)
                key.write_bytes(brick(ELEMENTS, row, column))
        (store / name / f"{kind}.json").write_text(document)
    with mounted_with(tmp_path / "site", store) as mount:
        yield mount


def brick(elements: np.ndarray[tuple[int, ...], np.dtype[np.int16]], row: int, column: int) -> bytes:
    return bytes(Brick().encode(elements[row * 128 : row * 128 + 128, column * 100 : column * 100 + 100]))


def test_programs_read_both_and_write_one(mount: Mounted, tmp_path: Path) -> None:
    for name in ("a", "b"):
        decoded = mount.stats()["chunks_decoded"]
        assert (np.load(mount.path / f"npy/{name}.npy") == ELEMENTS).all()
        assert mount.stats()["chunks_decoded"] - decoded == 12
        assert (mount.path / f"zarr3/{name}/c/3/1").read_bytes() == brick(ELEMENTS, 3, 1)
        assert (mount.path / f"chunks/{name}/3.1").stat().st_size == 128 * 100 * 2
    changed = np.load(mount.path / "npy/a.npy", mmap_mode="r+")
    changed[499, 299] = -1
    changed.flush()
    del changed
    expected = ELEMENTS.copy()
    expected[499, 299] = -1
    assert (mount.store / "a/2/3").read_bytes() == brick(expected, 3, 2)

    np.save(tmp_path / "other.npy", expected)
    before = {path: path.read_bytes() for path in (mount.store / "b").rglob("*") if path.is_file()}
    for name in ("npy/b.npy", "chunks/b/0.0", "zarr3/b/zarr.json"):
        path = mount.path / name
        assert not stat.S_IMODE(path.stat().st_mode) & 0o222
        assert stat.S_IMODE((mount.path / name.replace("b", "a", 1)).stat().st_mode) & 0o200
        done = subprocess.run(["cp", tmp_path / "other.npy", path], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "cannot create" in done.stderr, done.stderr
    with pytest.raises(OSError, match=os.strerror(30)):
        (mount.path / "npy/b.npy").unlink()
    with pytest.raises(OSError, match=os.strerror(30)):
        (mount.path / "chunks/b").rename(mount.path / "chunks/c")
    assert {path: path.read_bytes() for path in (mount.store / "b").rglob("*") if path.is_file()} == before
