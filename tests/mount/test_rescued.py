"""Accepted data that can no longer be stored at its path: it follows its array, or is saved below the cache folder."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted
from tests.support.waiting import until

pytestmark = pytest.mark.fuse

LENGTH, CHUNKS = 8, 4


def make(store: Path, name: str = "a", dtype: str = "i4", **more: Any) -> None:
    array = zarr.create_array(
        str(store), name=name, shape=(LENGTH * CHUNKS,), chunks=(LENGTH,), dtype=dtype, overwrite=True, **more
    )
    array[...] = 7


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        # After the end of the mount, close(2) fails.
        with suppress(OSError):
            os.close(fd)


def wait_until_gone(pid: int) -> None:
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        select.select([pidfd], [], [])
        os.close(pidfd)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make(tmp_path / "store", shards=(LENGTH * CHUNKS,))
    return tmp_path / "store"


def elements(path: Path) -> list[int]:
    return zarr.open_array(str(path), mode="r")[...].tolist()


def write_a_chunk(mount: Mounted, value: int = 99) -> None:
    with (mount.path / "chunks/a/1").open("r+b") as file:
        file.write(np.full(LENGTH, value, "<i4").tobytes())


def said(mount: Mounted) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (mount.path / ".zarrfs/errors.jsonl").read_text().splitlines()]


def rescued(cache: Path) -> list[Path]:
    return sorted((cache / "rescued").iterdir()) if (cache / "rescued").exists() else []


WRITTEN = [7] * LENGTH + [99] * LENGTH + [7] * (LENGTH * 2)
SAVED = [0] * LENGTH + [99] * LENGTH + [0] * (LENGTH * 2)


@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "60")], ids=["watch", "no-watch"])
def test_what_waits_for_its_shard_follows_an_array_that_another_program_renames(
    store: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache"), *options) as mount:
        write_a_chunk(mount)
        (store / "g").mkdir()
        os.rename(store / "a", store / "g/b")
    assert elements(store / "g/b") == WRITTEN
    assert not (store / "a").exists()
    assert not rescued(tmp_path / "cache")


def test_what_follows_is_merged_with_what_others_wrote_there(store: Path, tmp_path: Path) -> None:
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache")) as mount:
        with (mount.path / "chunks/a/1").open("r+b") as file:
            file.write(np.full(2, 99, "<i4").tobytes())
        os.rename(store / "a", store / "b")
        zarr.open_array(str(store / "b"), mode="r+")[LENGTH + 4 :] = 55
    assert elements(store / "b") == [7] * LENGTH + [99, 99, 7, 7, 55, 55, 55, 55] + [55] * (LENGTH * 2)


def gone(store: Path) -> None:
    os.rename(store / "a", store.parent / "elsewhere")


def replaced(store: Path) -> None:
    shutil.rmtree(store / "a")
    make(store, dtype="f4", shards=(LENGTH * CHUNKS,))


def renamed_over(store: Path) -> None:
    make(store, "b", dtype="f4", shards=(LENGTH * CHUNKS,))
    os.rename(store / "a", store.parent / "elsewhere")
    os.rename(store / "b", store / "a")


def unreadable(store: Path) -> None:
    (store / "a/zarr.json").write_bytes(b"")


@pytest.mark.parametrize("event", [gone, replaced, renamed_over, unreadable], ids=lambda event: event.__name__)
def test_what_waits_for_a_shard_that_is_no_more_is_saved(store: Path, tmp_path: Path, event: Any) -> None:
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache"), ends_with=None) as mount:
        write_a_chunk(mount)
        event(store)
        ended = mount.umount()
    assert ended.returncode == 7, ended.stderr
    (folder,) = rescued(tmp_path / "cache")
    assert str(folder) in ended.stderr
    assert elements(folder / "store/a") == SAVED
    (line,) = [json.loads(line) for line in (folder / "lost.jsonl").read_text().splitlines()]
    assert line["key"] == "a/c/0" and line["chunks"] == [[1]] and line["store"] == str(store)
    assert os.stat(folder.parent).st_mode & 0o077 == 0
    if (store / "a/zarr.json").exists() and event is not unreadable:
        assert elements(store / "a") == [7] * (LENGTH * CHUNKS)


def test_what_waits_for_a_shard_that_cannot_be_read_is_saved_at_the_end(store: Path, tmp_path: Path) -> None:
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache"), ends_with=None) as mount:
        write_a_chunk(mount)
        shard = bytearray((store / "a/c/0").read_bytes())
        shard[-1] ^= 1
        (store / "a/c/0").write_bytes(shard)
        ended = mount.umount()
    assert ended.returncode == 7 and "shard index: decode failed" in ended.stderr, ended.stderr
    (folder,) = rescued(tmp_path / "cache")
    assert str(folder) in ended.stderr
    assert elements(folder / "store/a") == SAVED
    assert (store / "a/c/0").read_bytes() == shard


def test_it_is_saved_under_the_name_that_the_array_has_by_then(store: Path, tmp_path: Path) -> None:
    """It was saved under the name before the rename, which another array may have."""
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache"), ends_with=None) as mount:
        write_a_chunk(mount, 98)
        os.rename(mount.path / "npy/a.npy", mount.path / "npy/b.npy")
        with (mount.path / "chunks/b/1").open("r+b") as file:
            file.write(np.full(LENGTH, 99, "<i4").tobytes())
        (store / "b/c/0").write_bytes(b"not a shard")
        ended = mount.umount()
    assert ended.returncode == 7 and "b/c/0" in ended.stderr, ended.stderr
    (folder,) = rescued(tmp_path / "cache")
    assert os.listdir(folder / "store") == ["b"]
    assert elements(folder / "store/b") == SAVED


def test_where_it_is_saved_is_told_when_it_happens(store: Path, tmp_path: Path) -> None:
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache"), ends_with=7) as mount:
        with opened(mount.path / "chunks", os.O_RDONLY | os.O_DIRECTORY) as root:
            write_a_chunk(mount)
            replaced(store)
            with pytest.raises(OSError, match="Stale file handle"):
                os.fsync(root)
        (folder,) = rescued(tmp_path / "cache")
        (line,) = [line for line in said(mount) if "saved in" in line["message"]]
        assert str(folder) in line["message"] and line["key"] == "/a"


def test_who_asks_after_it_was_saved_is_told_once(store: Path, tmp_path: Path) -> None:
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache"), ends_with=7) as mount:
        with opened(mount.path / "chunks", os.O_RDONLY | os.O_DIRECTORY) as root:
            write_a_chunk(mount)
            replaced(store)
            while not any("saved in" in line["message"] for line in said(mount)):
                # A lookup that began while the old document was gone and the new one not there yet finds nothing.
                with suppress(FileNotFoundError):
                    os.stat(mount.path / "chunks/a/.zarray")
            with pytest.raises(OSError, match="Stale file handle"):
                os.fsync(root)
            os.fsync(root)


def test_what_waits_goes_with_an_array_that_another_program_erases(store: Path, tmp_path: Path) -> None:
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache")) as mount:
        write_a_chunk(mount)
        shutil.rmtree(store / "a")
    assert list(store.rglob("*")) == [store / "zarr.json"] or not list(store.rglob("a"))
    assert not rescued(tmp_path / "cache")


def test_what_is_closed_while_the_documents_cannot_be_read_is_saved(store: Path, tmp_path: Path) -> None:
    """When they are readable again, no program has the file open."""
    make(store, "b")
    document = (store / "b/zarr.json").read_bytes()
    with mounted(store, "--cache-dir", str(tmp_path / "cache"), ends_with=7) as mount:
        fd = os.open(mount.path / "chunks/b/3", os.O_RDWR)
        os.pwrite(fd, np.full(LENGTH, 99, "<i4").tobytes(), 0)
        (store / "b/zarr.json").write_bytes(b"")
        with pytest.raises(OSError, match="Input/output error"):
            os.close(fd)
        # RELEASE comes after close(2).
        while not any("saved in" in line["message"] for line in said(mount)):
            os.stat(mount.path / "raw")
        (store / "b/zarr.json").write_bytes(document)
    (folder,) = rescued(tmp_path / "cache")
    assert (folder / "files/chunks/b/3").read_bytes() == np.full(LENGTH, 99, "<i4").tobytes()
    assert elements(store / "b") == [7] * (LENGTH * CHUNKS)


def test_a_write_to_an_array_whose_documents_another_program_is_writing_waits_for_them(store: Path) -> None:
    """They are missing for longer than it waits: no ESTALE, since the array is not known to be gone."""
    document = (store / "a/zarr.json").read_bytes()
    with mounted(store) as mount, opened(mount.path / "npy/a.npy", os.O_RDWR) as fd:
        header = os.fstat(fd).st_size - 4 * LENGTH * CHUNKS
        (store / "a/zarr.json").write_bytes(document[:100])
        until(lambda: "a.npy" not in os.listdir(mount.path / "npy"))
        with pytest.raises(OSError, match="Input/output error"):
            os.pwrite(fd, np.full(LENGTH, 99, "<i4").tobytes(), header)
        (store / "a/zarr.json").write_bytes(document)
        os.pwrite(fd, np.full(LENGTH, 99, "<i4").tobytes(), header)
    assert elements(store / "a") == [99] * LENGTH + [7] * LENGTH * (CHUNKS - 1)


def test_an_array_is_saved_over_one_whose_documents_another_program_was_writing(store: Path) -> None:
    document, new = (store / "a/zarr.json").read_bytes(), BytesIO()
    np.save(new, np.full(6, 99, "<f4"))
    with mounted(store) as mount, opened(mount.path / "npy/a.npy", os.O_RDWR | os.O_TRUNC) as fd:
        os.write(fd, new.getvalue())
        (store / "a/zarr.json").write_bytes(document[:100])
        until(lambda: "unsupported" in str(os.listdir(mount.path / "chunks")))
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(fd)
        (store / "a/zarr.json").write_bytes(document)
        os.fsync(fd)
    assert elements(store / "a") == [99] * 6


@pytest.mark.parametrize(
    "sharded", [pytest.param(True, id="sharded"), pytest.param(False, id="plain", marks=pytest.mark.full_length)]
)
def test_what_is_staged_of_an_array_in_doubt_at_the_end_is_saved(tmp_path: Path, sharded: bool) -> None:
    store = tmp_path / "store"
    make(store, shards=(LENGTH * CHUNKS,) if sharded else None)
    with mounted(store, "--cache-dir", str(tmp_path / "cache"), ends_with=None) as mount:
        header = (mount.path / "npy/a.npy").stat().st_size - 4 * LENGTH * CHUNKS
        with opened(mount.path / "npy/a.npy", os.O_RDWR) as whole, opened(mount.path / "chunks/a/3", os.O_RDWR) as chunk:
            os.pwrite(whole, np.full(LENGTH, 99, "<i4").tobytes(), header + 4 * LENGTH)
            os.pwrite(chunk, np.full(LENGTH, 55, "<i4").tobytes(), 0)
            unreadable(store)
            os.kill(mount.pid, signal.SIGTERM)
            wait_until_gone(mount.pid)
    folders = rescued(tmp_path / "cache")
    found = [path.relative_to(folder) for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert Path("files/chunks/a/3") in found, found
    (array,) = (folder / "store/a" for folder in folders if (folder / "store").exists())
    assert elements(array) == SAVED


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
def test_an_array_that_is_moved_to_a_temporary_name_of_another_view_is_saved(tmp_path: Path, view: str) -> None:
    root = zarr.open_group(str(tmp_path / "group"), mode="w")
    root.create_array("b", shape=(300_000,), chunks=(1000,), dtype="i4")[...] = 5
    with mounted(tmp_path / "group", "--cache-dir", str(tmp_path / "cache"), ends_with=None) as mount:
        before = (mount.path / "npy/b.npy").read_bytes()
        moved = [str(mount.path / "npy/b.npy"), str(mount.path / view / "b.npy.part")]
        subprocess.run(["mv", *moved], check=True, stderr=subprocess.DEVNULL)
        (mount.path / view / "empty.part").touch()
        ended = mount.umount()
    assert ended.returncode == 7, ended.stderr
    [folder] = rescued(tmp_path / "cache")
    assert (folder / "files" / view / "b.npy.part").read_bytes() == before
    [line] = (folder / "lost.jsonl").read_text().splitlines()
    assert (json.loads(line)["key"], json.loads(line)["nbytes"]) == (f"{view}/b.npy.part", len(before))
    assert str(folder) in ended.stderr


@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "0")], ids=["watch", "no-watch"])
@pytest.mark.parametrize("name", ["chunks/b/1", "zarr3/b/c/1", "chunks/b/notes.tmp"])
def test_what_waits_in_a_new_folder_is_saved_when_another_program_creates_an_array_there(
    store: Path, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    """A chunk that was closed before its array's document, and a temporary file, belong to no array of another program."""
    written = np.full(LENGTH, 99, "<i4").tobytes()
    with mounted(store, "--cache-dir", str(tmp_path), *options, ends_with=None) as mount:
        (mount.path / name).parent.mkdir(parents=True)
        (mount.path / name).write_bytes(written)
        make(store, "b")
        until(lambda: np.load(mount.path / "npy/b.npy")[0] == 7)
        ended = mount.umount()
    assert ended.returncode == 7
    assert f"{name}: /b was replaced by an array; data saved in" in ended.stderr
    assert elements(store / "b") == [7] * LENGTH * CHUNKS
    (folder,) = rescued(tmp_path)
    assert (folder / "files" / name).read_bytes() == written


def test_what_waits_in_a_group_is_saved_when_another_program_renames_the_group(store: Path, tmp_path: Path) -> None:
    written = np.full(LENGTH, 99, "<i4").tobytes()
    with mounted(store, "--cache-dir", str(tmp_path), ends_with=None) as mount:
        zarr.create_group(str(store), path="g")
        until((mount.path / "chunks/g").exists)
        (mount.path / "chunks/g/1").write_bytes(written)
        os.rename(store / "g", store / "h")
        until(lambda: not (mount.path / "chunks/g").exists())
        ended = mount.umount()
    assert ended.returncode == 7
    assert "chunks/g/1: /g was erased or moved; data saved in" in ended.stderr
    (folder,) = rescued(tmp_path)
    assert (folder / "files/chunks/g/1").read_bytes() == written
