"""Operations in several steps leave the old or the new state: on a full disk, at a deadline, after a kill, beside existing remains."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import mounted, mounted_hanging
from tests.support.small_disks import small_disk
from tests.support.waiting import until
from zarrfs.hierarchy.records import Record
from zarrfs.keys import NodePath, Prefix

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

DIALECTS = ("v0", "v1", "v2", "v3", "v3_2019", "v3_2022")
# Whole chunks are stored while the file is being written.
STREAMS = ("--memory-limit", "4MiB", "--new-chunks", "64x1024")


def npy(values: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def make(store: Path, name: str, values: np.ndarray[Any, Any], **more: Any) -> None:
    zarr.create_array(str(store / name), data=values, zarr_format=3, compressors=None, overwrite=True, **more)


def errno_of(write: Any) -> int:
    try:
        write()
    except OSError as error:
        return int(error.errno or 0)
    return 0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    zarr.create_group(str(folder), zarr_format=3)
    return folder


@pytest.fixture
def on_a_small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "4m") as disk:
        zarr.create_group(str(disk / "store"), zarr_format=3)
        yield disk / "store"


def test_a_replacement_that_the_disk_has_no_room_for_may_be_tried_again(on_a_small_disk: Path) -> None:
    old, new = np.arange(1000, dtype="<i4"), np.arange(5000, dtype="<i4")
    make(on_a_small_disk, "a", old, chunks=(100,))
    with mounted(on_a_small_disk, "--new-codecs", "none", ends_with=None) as mount:
        place = mount.path / "npy/a.npy"
        with place.open("rb") as reader:
            reader.read(10)
            assert errno_of(lambda: place.write_bytes(npy(np.ones(2_000_000, "<i4")))) == errno.ENOSPC
            assert np.array_equal(zarr.open_array(str(on_a_small_disk / "a"), mode="r")[:], old)
            place.write_bytes(npy(new))
        assert np.array_equal(np.load(place), new)
        mount.umount()
    assert np.array_equal(zarr.open_array(str(on_a_small_disk / "a"), mode="r")[:], new)
    assert {each.name for each in on_a_small_disk.iterdir()} == {"a", "zarr.json"}


@pytest.mark.full_length
def test_an_array_of_many_chunks_is_replaced_and_erased_within_the_timeout(store: Path) -> None:
    count = 12_000
    for name in ("a", "b"):
        make(store, name, np.arange(3, dtype="<i4"), chunks=(1,), chunk_key_encoding={"name": "default", "separator": "."})
        document = json.loads((store / name / "zarr.json").read_text()) | {"shape": [count]}
        (store / name / "zarr.json").write_text(json.dumps(document))
        chunk = (store / name / "c.1").read_bytes()
        for number in range(3, count):
            (store / name / f"c.{number}").write_bytes(chunk)
    new = np.arange(1000, dtype="<f8")
    with mounted(store, "--timeout", "0.5", "--no-watch") as mount:
        (mount.path / "npy/a.npy").write_bytes(npy(new))
        (mount.path / "npy/b.npy").unlink()
        assert os.listdir(mount.path / "npy") == ["a.npy"]
        assert np.array_equal(np.load(mount.path / "npy/a.npy"), new)
    assert {each.name for each in store.iterdir()} == {"a", "zarr.json"}
    assert np.array_equal(zarr.open_array(str(store / "a"), mode="r")[:], new)


def test_a_rename_that_fails_leaves_both_arrays(store: Path) -> None:
    target = np.arange(10, 18, dtype="<i4")
    make(store, "a", np.ones(8, "<i4"), chunks=(2,), shards=(8,))
    make(store, "b", target, chunks=(4,))
    with mounted(store, ends_with=None) as mount:
        (mount.path / "chunks/a/0").write_bytes(np.full(2, 99, "<i4").tobytes())
        shard = store / "a/c/0"
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1  # This byte is in the checksum of its index: queued chunks cannot be merged into it.
        shard.write_bytes(content)
        assert errno_of(lambda: os.rename(mount.path / "npy/a.npy", mount.path / "npy/b.npy")) == errno.EIO
        assert np.array_equal(np.load(mount.path / "npy/b.npy"), target)
        assert sorted(os.listdir(mount.path / "npy")) == ["a.npy", "b.npy"]
        mount.umount()
    assert np.array_equal(zarr.open_array(str(store / "b"), mode="r")[:], target)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_kill_leaves_of_a_new_array_is_in_no_way(tmp_path: Path, dialect: str) -> None:
    store = tmp_path / "store"
    store.mkdir()
    data = npy(np.full((4096, 1024), 7, "<i4"))
    with mounted(store, "--new-dialect", dialect, *STREAMS, ends_with=None) as mount:
        file = os.open(mount.path / "npy/big.npy", os.O_WRONLY | os.O_CREAT)
        for start in range(0, len(data) // 2, 1 << 20):
            os.pwrite(file, data[start : start + (1 << 20)], start)
        while not any(path.is_file() for path in store.glob(".zarrfs/*/new/**/*")):
            pass
        os.kill(mount.pid, signal.SIGKILL)
    with suppress(OSError):
        os.close(file)
    assert not [path for path in store.rglob("*") if path.is_file() and ".zarrfs" not in path.parts]
    zeros = np.zeros((128, 1024), "<i4")
    zeros[-1, -1] = 1
    with mounted(store, "--new-dialect", dialect, "--new-chunks", "64x1024") as mount:
        assert os.listdir(mount.path / "npy") == [] and ".zarrfs" not in os.listdir(mount.path / "raw")
        (mount.path / "npy/big.npy").write_bytes(npy(zeros))
        assert np.array_equal(np.load(mount.path / "npy/big.npy"), zeros)
    assert not (store / ".zarrfs").exists()


LEFT = {
    "v0": ("big/__zdata__/0.blosc", "big/__zdata__/7.blosc"),
    "v1": ("big/0", "big/7"),
    "v2": ("big/0", "big/7"),
    "v3": ("big/c/0", "big/c/7"),
    "v3_2019": ("data/big/0", "data/big/7"),
    "v3_2022": ("data/root/big/c0", "data/root/big/c7"),
}


@pytest.mark.parametrize("through", ["npy", "chunks"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_chunks_of_no_array_are_nobodys(tmp_path: Path, dialect: str, through: str) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", dialect) as mount:
        (mount.path / "npy/other.npy").write_bytes(npy(np.arange(3)))
    for key in LEFT[dialect]:
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_bytes(b"left behind")
    new = np.zeros(1000, "<i4")
    with mounted(store, "--new-dialect", dialect, "--new-chunks", "100") as mount:
        assert os.listdir(mount.path / "npy") == ["other.npy"]
        assert not (mount.path / "chunks/big").exists()
        if through == "npy":
            new[-1] = 1
            (mount.path / "npy/big.npy").write_bytes(npy(new))
        else:
            (mount.path / "chunks/big").mkdir()
            document = {"zarr_format": 2, "shape": [1000], "chunks": [100], "dtype": "<i4", "fill_value": 0, "order": "C"}
            (mount.path / "chunks/big/.zarray").write_text(json.dumps(document | {"compressor": None, "filters": None}))
        assert np.array_equal(np.load(mount.path / "npy/big.npy"), new)


def test_what_nobody_can_end_is_left_and_told(store: Path) -> None:
    place, left = NodePath("/b"), store / ".zarrfs" / ("0" * 32)
    for name in ("a", "b"):
        make(store, name, np.arange(8, dtype="<i4"))
    make(left, "old", np.ones(3, "<i2"))
    (left / "intent.json").write_bytes(Record("rename", place, place.prefix, source=Prefix("a/")).format())
    with mounted(store) as mount:
        (line,) = [json.loads(line) for line in (mount.path / ".zarrfs/errors.jsonl").read_text().splitlines()]
        assert line["operation"] == "recover" and line["error"] == "KeyConflict"
        assert f"{left.name}/" in line["message"]
    for folder, count in (store / "a", 8), (store / "b", 8), (left / "old", 3):
        assert zarr.open_array(str(folder), mode="r").shape == (count,)


def test_an_intent_of_a_later_zarrfs_makes_the_mount_read_only(store: Path) -> None:
    make(store, "a", np.arange(3), chunks=(3,))
    left = store / ".zarrfs" / ("0" * 32)
    left.mkdir(parents=True)
    (left / "intent.json").write_text(json.dumps({"version": 99, "operation": "unheard of"}))
    with mounted(store, ends_with=None) as mount:
        assert errno_of(lambda: (mount.path / "npy/b.npy").write_bytes(b"")) == errno.EROFS
        assert np.array_equal(np.load(mount.path / "npy/a.npy"), np.arange(3))
        assert "later zarrfs" in mount.log()
        mount.umount()
    assert (left / "intent.json").exists()


def test_a_rename_over_an_array_that_takes_effect_after_its_deadline_is_undone_at_once(store: Path) -> None:
    """Until the next mount the array was gone; and whoever removed it, or another that took its place, found it there again then."""
    old, new = np.arange(100, dtype="<i4"), np.arange(200, dtype="<i4")
    make(store, "a", old, chunks=(100,))
    make(store, "b", new, chunks=(100,))
    with mounted_hanging(store, 0.5, ends_with=None) as mount:
        mount.hang("a/", "rename_prefix")
        assert errno_of(lambda: os.rename(mount.path / "npy/b.npy", mount.path / "npy/a.npy")) == errno.ETIMEDOUT
        mount.answer()
        while (store / ".zarrfs").exists():
            os.listdir(mount.path / "npy")
        for name, values in {"a": old, "b": new}.items():
            assert np.array_equal(zarr.open_array(str(store / name), mode="r")[:], values)
            assert np.array_equal(np.load(mount.path / f"npy/{name}.npy"), values)
        (mount.path / "npy/a.npy").unlink()
        assert mount.umount().returncode == 0
        assert "operation (rename) that timed out was undone" in mount.log()
    with mounted(store) as mount:
        assert os.listdir(mount.path / "npy") == ["b.npy"]


def test_an_edit_comes_after_the_end_of_an_operation_that_timed_out(store: Path) -> None:
    make(store, "a", np.arange(100, dtype="<i4"), chunks=(100,))
    make(store, "b", np.arange(200, dtype="<i4"), chunks=(100,))
    with mounted_hanging(store, 0.5, ends_with=None) as mount:
        mount.hang("a/", "rename_prefix")
        assert errno_of(lambda: os.rename(mount.path / "npy/b.npy", mount.path / "npy/a.npy")) == errno.ETIMEDOUT
        mount.answer()
        newest = np.arange(300, dtype="<i4")
        while errno_of(lambda: np.save(mount.path / "npy/a.npy", newest)):
            pass
        (mount.path / "npy/b.npy").unlink()
        assert mount.umount().returncode == 0
    with mounted(store) as mount:
        assert os.listdir(mount.path / "npy") == ["a.npy"]
        assert np.array_equal(np.load(mount.path / "npy/a.npy"), newest)
    assert not (store / ".zarrfs").exists()


@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
@pytest.mark.parametrize(("place", "operation"), [("meta/root/a.array*", "set"), ("data/*a/", "rename_prefix")])
@pytest.mark.logs("timed out", "did not answer", "given up by its caller", "ETIMEDOUT", "earlier attempt")
def test_a_replacement_that_timed_out_is_repeated_from_its_outcome(
    tmp_path: Path, dialect: str, place: str, operation: str
) -> None:
    """Its documents and chunks lie apart: the step that timed out takes effect before, or while, fsync repeats the replacement."""
    store = tmp_path / "apart"
    store.mkdir()
    with mounted_hanging(store, 1.0, new_dialect=dialect) as mount:
        np.save(mount.path / "npy/a.npy", np.arange(8, dtype="i4"))
        (mount.path / "chunks/a/.zattrs").write_text('{"of": "a"}')
        content = io.BytesIO()
        np.save(content, np.full(10, 99, "f4"))
        with (mount.path / "npy/a.npy").open("wb") as file:
            file.write(content.getvalue())
            file.flush()
            mount.hang(place, operation)
            with pytest.raises(OSError, match=os.strerror(errno.ETIMEDOUT)):
                os.fsync(file.fileno())
            mount.answer()

            def is_stored() -> bool:
                with suppress(TimeoutError):
                    os.fsync(file.fileno())
                    return True
                return False

            until(is_stored)
        assert np.load(mount.path / "npy/a.npy").tolist() == [99.0] * 10
        assert json.loads((mount.path / "chunks/a/.zattrs").read_text()) == {"of": "a"}
