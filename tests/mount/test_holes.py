"""Files with holes: what `st_blocks` shows of them, and what is no loss of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, mounted, run
from tests.support.small_disks import small_disk
from tests.support.small_stores import write
from tests.support.waiting import until

pytestmark = pytest.mark.fuse

MIB = 1 << 20


def sparse(path: Path) -> None:
    """Create a file of 64 MiB that holds 1 MiB."""
    with path.open("wb") as file:
        file.truncate(64 * MIB)
        file.seek(32 * MIB)
        file.write(b"x" * MIB)


def blocks(path: Path) -> int:
    """Return st_blocks, in bytes."""
    return path.stat().st_blocks * 512


def listed_blocks(path: Path) -> int:
    """Return st_blocks, in bytes, as a listing of the folder gives it: with READDIRPLUS, before any stat of the file."""
    with os.scandir(path.parent) as entries:
        return next(entry.stat().st_blocks * 512 for entry in entries if entry.name == path.name)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "store", {"full": b"x" * MIB})


@pytest.mark.parametrize("look", [blocks, listed_blocks])
def test_blocks_are_those_of_the_store(store: Path, look: object) -> None:
    assert callable(look)
    sparse(store / "holed")
    with mounted(store) as mount:
        assert look(mount.path / "raw/holed") == blocks(store / "holed") < 2 * MIB
        assert look(mount.path / "raw/full") == MIB
        assert (mount.path / "raw/holed").stat().st_size == 64 * MIB


@pytest.mark.parametrize("look", [blocks, listed_blocks])
def test_blocks_of_a_file_that_is_being_written_are_those_of_its_bytes(store: Path, tmp_path: Path, look: object) -> None:
    assert callable(look)
    with mounted(store, "--cache-dir", str(tmp_path / "cache"), "--memory-limit", "16M") as mount:
        path = mount.path / "raw/new"
        with path.open("wb", buffering=0) as file:
            file.truncate(64 * MIB)
            file.seek(32 * MIB)
            file.write(b"x" * MIB)
            assert path.stat().st_size == 64 * MIB
            assert MIB <= look(path) < 2 * MIB
            assert mount.stats()["dirty_bytes"] < 2 * MIB
        assert MIB <= blocks(store / "new") < 2 * MIB
        assert look(path) == blocks(store / "new")


@pytest.mark.parametrize("by_truncate", [False, True], ids=["seek", "truncate"])
def test_a_hole_in_a_file_that_fits_into_memory_takes_no_space_in_the_store(store: Path, by_truncate: bool) -> None:
    with mounted(store) as mount:
        path = mount.path / "raw/new"
        with path.open("wb", buffering=0) as file:
            file.write(b"begin")
            if by_truncate:
                file.truncate(10 * MIB)
            file.seek(10 * MIB)
            file.write(b"end")
            assert blocks(path) < MIB
        assert blocks(path) == blocks(store / "new") < MIB
        content = path.read_bytes()
        assert content == b"begin" + bytes(10 * MIB - 5) + b"end"
    assert (store / "new").read_bytes() == content


def test_a_file_without_blocks_has_one(store: Path) -> None:
    """`tar -S` takes a file without blocks for zeros, and ext4 reports none while it writes a new file to the disk."""
    with (store / "hole").open("wb") as file:
        file.truncate(MIB)
    with mounted(store) as mount:
        assert blocks(store / "hole") == 0
        assert (blocks(mount.path / "raw/hole"), listed_blocks(mount.path / "raw/hole")) == (4096, 4096)
        with (mount.path / "raw/new").open("wb", buffering=0) as file:
            file.truncate(128 * MIB)
            assert blocks(mount.path / "raw/new") >= 4096


def test_du_counts_what_is_there(store: Path) -> None:
    sparse(store / "holed")
    with mounted(store) as mount:
        done = run("du", "--block-size=1", mount.path / "raw/holed")
        assert int(done.stdout.split()[0]) == blocks(store / "holed")


# --- losses of files that are removed -----------------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A store on a disk of 1 MiB without space."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        (disk / "store").mkdir()
        (disk / "store/file").write_bytes(b"old")
        (disk / "store/other").write_bytes(b"other")
        run("dd", "if=/dev/zero", f"of={disk / 'rest'}", "bs=4096", check=False)
        yield disk / "store"


def lose(mount: Mounted) -> None:
    with pytest.raises(OSError, match="No space left"), (mount.path / "raw/file").open("wb") as file:
        file.write(b"x" * 100_000)


def test_what_was_lost_of_a_file_is_a_failure_at_the_end(full: Path) -> None:
    with mounted(full, ends_with=7) as mount:
        lose(mount)
    assert (full / "file").read_bytes() == b"old"


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_what_was_lost_of_a_file_that_is_removed_is_none(full: Path, replaced: bool) -> None:
    with mounted(full) as mount:
        lose(mount)
        if replaced:
            (mount.path / "raw/other").rename(mount.path / "raw/file")
        else:
            (mount.path / "raw/file").unlink()
        assert {each["key"] for each in mount.errors()} == {"file"}


def test_what_was_lost_of_a_file_that_is_written_anew_is_none(full: Path) -> None:
    with mounted(full) as mount:
        lose(mount)
        (full.parent / "rest").unlink()
        (mount.path / "raw/file").write_bytes(b"new")
    assert (full / "file").read_bytes() == b"new"


def test_a_document_that_was_touched_before_it_is_written_is_no_loss(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / ".zgroup").write_bytes(b'{"zarr_format":2}')
    with mounted(store) as mount:
        (mount.path / "chunks/g").mkdir()
        (mount.path / "chunks/g/.zgroup").touch()
        (mount.path / "chunks/g/.zgroup").write_bytes(b'{"zarr_format":2}')
    assert (store / "g/.zgroup").exists()


REMOVALS = {
    "chunks": ("rm", "-r", "chunks/q"),
    "zarr3": ("rm", "-r", "zarr3/q"),
    "raw": ("rm", "-r", "raw/q"),
    "npy": ("rm", "npy/q.npy"),
}


@pytest.mark.parametrize("removal", [None, *REMOVALS])
def test_what_was_lost_of_a_file_goes_with_its_array(tmp_path: Path, removal: str | None) -> None:
    array = {"zarr_format": 2, "shape": [10], "chunks": [5], "dtype": "<i2", "fill_value": 0, "order": "C"}
    document = json.dumps(array | {"compressor": None, "filters": None})
    store = write(tmp_path / "store", {".zgroup": b'{"zarr_format":2}', "q/.zarray": document.encode(), "q/0": bytes(10)})
    with mounted(store, ends_with=7 if removal is None else 0) as mount:
        # At the last close: no program gets the error.
        (mount.path / "chunks/q/1").touch()
        until(mount.errors)
        if removal is not None:
            *command, path = REMOVALS[removal]
            run(*command, mount.path / path)
            assert not (store / "q").exists()
