"""Another file of the same size and time is another value: ``rsync -a``, ``cp -p`` and tar create such files as external changes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import mounted

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

N = 1000


def replace(path: Path, value: bytes) -> None:
    status = path.stat()
    assert len(value) == status.st_size
    new = path.with_name("new")
    new.write_bytes(value)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.rename(new, path)


def seen(path: Path, *, listed: bool) -> dict[str, Any]:
    if listed:
        # `ls -l`: the kernel gets the attributes of all files with their names.
        for folder in ("raw", "raw/a/c", "npy", "chunks/a", "zarr3/a", "zarr3/a/c"):
            with os.scandir(path / folder) as entries:
                assert all(entry.stat() for entry in entries)
    return {
        "raw": (path / "raw/k").read_bytes()[:3],
        "npy": np.load(path / "npy/a.npy")[:2].tolist(),
        "chunks": np.fromfile(path / "chunks/a/0", "i4")[:2].tolist(),
        "zarr3": np.fromfile(path / "zarr3/a/c/0", "i4")[:2].tolist(),
        "attributes": (path / "chunks/a/.zattrs").read_text(),
    }


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@pytest.mark.parametrize(("held", "listed"), [(False, False), (False, True), (True, False)], ids=["closed", "listed", "open"])
def test_it_is_seen_in_every_view_though_nothing_is_told(tmp_path: Path, sharded: bool, held: bool, listed: bool) -> None:
    store = tmp_path / "store"
    zarr.create_group(str(store), zarr_format=3)
    array = zarr.create_array(
        str(store / "a"),
        shape=(2 * N,),
        chunks=(N,),
        shards=(2 * N,) if sharded else None,
        dtype="i4",
        zarr_format=3,
        compressors=None,
        attributes={"x": 1},
    )
    array[:] = 1
    (store / "k").write_bytes(b"1" * 5000)
    document = (store / "a/zarr.json").read_bytes()
    array[:] = 2
    two = (store / "a/c/0").read_bytes()
    array[:] = 1
    with mounted(store, "--no-watch", "--metadata-ttl", "1") as mount:
        before = seen(mount.path, listed=listed)
        places = ("raw/k", "chunks/a/0", "zarr3/a/c/0") if held else ()
        files = [open(mount.path / place, "rb") for place in places]  # noqa: SIM115
        started = [(file, file.read(8)) for file in files]
        replace(store / "k", b"2" * 5000)
        replace(store / "a/c/0", two)
        replace(store / "a/zarr.json", document.replace(b'"x": 1', b'"x": 2'))
        until = time.monotonic() + 10
        expected = {"raw": b"222", "npy": [2, 2], "chunks": [2, 2], "zarr3": [2, 2]}

        def is_seen() -> bool:
            now = seen(mount.path, listed=listed)
            assert all(now[name] in (before[name], value) for name, value in expected.items())
            return all(now[name] == value for name, value in expected.items()) and '"x": 2' in now["attributes"]

        wait(is_seen, until)
        for file, first in started:
            # The old value, or an error; never a mix.
            with contextlib.suppress(OSError):
                found = np.frombuffer(first + file.read(), "u1" if file.name.endswith("k") else "i4")
                assert set(found.tolist()) == {ord("1") if file.name.endswith("k") else 1}
            file.close()


def wait(is_so: Callable[[], bool], until: float) -> None:
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.1)
