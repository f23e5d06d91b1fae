"""Abandoned work ends, and holes cost nothing: large chunks and values, whose readers and writers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, mounted, run, watchdog
from tests.support.small_stores import array_document, write

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(240)]

DIMENSIONS = 30
HUGE = 60 << 30


def sparse(path: Path, nbytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(nbytes)


def work_begins(mount: Mounted, before: int) -> None:
    while mount.stats()["store_operations"] == before:
        os.sched_yield()


@pytest.mark.parametrize("file", ["npy/a.npy", "chunks/a/" + ".".join("0" * DIMENSIONS)])
@pytest.mark.parametrize("store", ["order", pytest.param("transpose", marks=pytest.mark.full_length)])
def test_a_chunk_in_another_order_is_not_decoded_for_a_reader_that_was_killed(store: str, file: str, tmp_path: Path) -> None:
    shape = (2,) * DIMENSIONS
    name = ".".join("0" * DIMENSIONS)
    codec = {"order": "F"} if store == "order" else {"filters": [{"id": "shuffle", "elementsize": 4}], "order": "F"}
    folder = write(tmp_path / "s", {".zgroup": b'{"zarr_format":2}', "a/.zarray": array_document(shape, shape, "|u1", **codec)})
    sparse(folder / "a" / name, 1 << DIMENSIONS)
    with mounted(folder, "--read-only", "--cache-dir", str(tmp_path)) as mount, watchdog(100):
        (mount.path / file).stat()
        before = mount.stats()["store_operations"]
        reader = subprocess.Popen(["dd", f"if={mount.path / file}", "of=/dev/null", "bs=1M", "skip=3", "count=1"])
        work_begins(mount, before)
        reader.send_signal(signal.SIGKILL)
        reader.wait(60)
        assert mount.stats()["chunks_decoded"] == 0
    # `mounted` has unmounted it: no remaining work delayed the end.


def test_a_sparse_value_is_changed_without_its_holes(tmp_path: Path) -> None:
    store = write(tmp_path / "s", {"small": b"x"})
    sparse(store / "k", HUGE)
    with (store / "k").open("r+b") as file:
        file.seek(HUGE // 2)
        file.write(b"here")
    with mounted(store, "--cache-dir", str(tmp_path)) as mount, watchdog(100):
        before = mount.stats()["bytes_read"]
        run("bash", "-c", 'echo end >> "$1"', "bash", mount.path / "raw/k")
        run("truncate", "-s", "+10", mount.path / "raw/k")
        assert mount.stats()["bytes_read"] - before < 1 << 30
        with (mount.path / "raw/k").open("rb") as file:
            file.seek(HUGE // 2)
            assert file.read(6) == b"here\0\0"
            file.seek(HUGE)
            assert file.read() == b"end\n" + bytes(10)
    assert (store / "k").stat().st_size == HUGE + 14
    assert (store / "k").stat().st_blocks < 10_000


def test_a_sparse_value_is_a_chunk_at_the_cost_of_what_it_holds(tmp_path: Path) -> None:
    """A value too long for a chunk is refused in each view, without being read completely to find that out."""
    store = write(tmp_path / "s", {".zgroup": b'{"zarr_format":2}', "a/.zarray": array_document((2**21,), (2**20,), "<f8")})
    sparse(store / "a/0", HUGE)
    sparse(store / "a/1", 8 << 20)
    with mounted(store, "--cache-dir", str(tmp_path)) as mount, watchdog(100):
        before = mount.stats()["bytes_read"]
        for file in ("chunks/a/0", "npy/a.npy"):
            assert run("cat", mount.path / file, check=False).returncode == 1
        refused = run("bash", "-c", 'echo x 1<> "$1"', "bash", mount.path / "zarr3/a/c/0", check=False)
        assert refused.returncode == 1, refused
        assert mount.stats()["bytes_read"] - before < 1 << 30
        assert (mount.path / "chunks/a/1").read_bytes() == bytes(8 << 20)
