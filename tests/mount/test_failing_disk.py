"""A disk that cannot write what the kernel has accepted, which it reports to one fsync only, and one that turns read-only.

Under the store, and under the cache folder.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio
import zarr

from tests.support.mounting import mounted
from tests.support.small_disks import lossy_disk, write_out
from zarrfs.errors import StoreError
from zarrfs.keys import Key
from zarrfs.memory import disposal
from zarrfs.memory.spill import FileMapping
from zarrfs.memory.written_out import WrittenOut
from zarrfs.stores.folder.store import FolderStore

pytestmark = pytest.mark.fuse

SIZE = 64 << 20
MEMORY = 16 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store on a file system of 64 MiB, whose device has room for 2."""
    with lossy_disk(tmp_path / "disk") as disk:
        (disk / "store").mkdir()
        yield disk / "store"


def can_sync(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            os.fsync(file.fileno())
        except OSError:
            return False
    return True


def test_an_fsync_that_failed_does_not_succeed_until_the_value_is_written_again(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        place = mount.path / "raw/k"
        place.write_bytes(os.urandom(4 << 20))
        # The third one would succeed on the file system below.
        assert [can_sync(place) for _ in range(4)] == [False] * 4
        subprocess.run(["mount", "-o", f"remount,size={SIZE}", str(store.parents[1] / "disk-device")], check=True)
        assert not can_sync(place)
        place.write_bytes(b"small")
        assert can_sync(place)
        mount.umount()
    assert (store / "k").read_bytes() == b"small"


def test_a_disk_that_turns_read_only_is_named_for_every_operation_that_it_refuses(store: Path) -> None:
    (store / "k").write_bytes(b"value")
    with mounted(store, ends_with=None) as mount:
        raw = mount.path / "raw"
        subprocess.run(["mount", "-o", "remount,ro", str(store.parent)], check=True)
        for name, change in {
            "mkdir": lambda: (raw / "d").mkdir(),
            "rename": lambda: (raw / "k").rename(raw / "l"),
            "unlink": lambda: (raw / "k").unlink(),
        }.items():
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
                change()
            last = mount.errors()[-1]
            assert (last["operation"], last["error"]) == (name, "StoreTurnedReadOnly")
        assert mount.umount().returncode == 0
    assert (store / "k").read_bytes() == b"value"


@pytest.mark.parametrize("view", ["raw", "npy"])
def test_staged_data_that_the_disk_of_the_cache_folder_has_lost_is_not_stored(view: str, tmp_path: Path) -> None:
    """Its pages read as zeros, which were stored: with success of fsync, close and umount."""
    old = np.ones(3 * MEMORY, "u1")
    zarr.create_array(tmp_path / "store", shape=old.shape, chunks=(1 << 20,), dtype="u1", compressors=None)[:] = old
    (tmp_path / "store/k").write_bytes(old.tobytes())
    # Which one depends on the file system.
    refused = f"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EIO)}"
    place, start = {"raw": ("raw/k", 0), "npy": ("npy/store.npy", 128)}[view]
    with (
        lossy_disk(tmp_path / "cache", 256 << 20) as cache,
        mounted(tmp_path / "store", "--cache-dir", str(cache), "--memory-limit", str(MEMORY), ends_with=None) as mount,
    ):
        file = os.open(mount.path / place, os.O_RDWR)
        for offset in range(1000, old.nbytes, 1 << 20):
            os.pwrite(file, bytes([2]) * 900_000, start + offset)
        assert write_out(cache, mount.pid) > 0
        for does in (os.fsync, os.fsync, os.close):
            with pytest.raises(OSError, match=refused):
                does(file)
        ended = mount.umount()
        assert ended.returncode == 7 and "the disk of the cache folder has lost what was kept there" in ended.stderr
    assert (tmp_path / "store/k").read_bytes() == old.tobytes()
    assert not np.count_nonzero(zarr.open_array(tmp_path / "store", mode="r")[:] == 0)


def test_a_file_that_a_program_empties_and_writes_anew_is_stored_after_its_bytes_were_lost(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    data = os.urandom(MEMORY)
    with (
        lossy_disk(tmp_path / "cache", 256 << 20) as cache,
        mounted(tmp_path / "store", "--cache-dir", str(cache), "--memory-limit", str(MEMORY), ends_with=None) as mount,
    ):
        file = os.open(mount.path / "raw/k", os.O_RDWR | os.O_CREAT)
        os.write(file, data)
        assert write_out(cache, mount.pid) > 0
        with pytest.raises(OSError, match=r"No space|Input/output"):
            os.fsync(file)
        os.ftruncate(file, 0)
        os.pwrite(file, b"anew", 0)
        os.fsync(file)
        os.close(file)
        assert mount.umount().returncode == 0
    assert (tmp_path / "store/k").read_bytes() == b"anew"


def test_the_errno_of_a_file_system_may_be_that_of_a_missing_call(tmp_path: Path) -> None:
    """EPERM, for bytes that were written through a mapping, counted as a lack of sync_file_range(2), or as a refusal by the store."""

    async def stored(content: memoryview) -> None:
        other = FolderStore(str(tmp_path))
        try:
            await other.set(Key("k"), content)
        finally:
            await other.aclose()

    zarr.create_array(tmp_path / "store", shape=(1 << 16,), chunks=(1 << 16,), dtype="u1")
    with mounted(tmp_path / "store", ends_with=None) as mount:
        file, other = (os.open(mount.path / "npy/store.npy", os.O_RDWR) for _ in range(2))
        written_out = WrittenOut(file)
        written_out.require()
        with mmap.mmap(other, 0) as mapping:
            # A header, which the mount does not take.
            mapping[:128] = bytes(128)
            with suppress(PermissionError):
                os.fsync(other)
            for _ in range(2):
                with pytest.raises(PermissionError):
                    written_out.require()
            # It is no error of the store.
            content = memoryview(FileMapping.of(file, 128, written_out))
            with pytest.raises(StoreError, match="cache folder has lost") as raised:
                trio.run(stored, content)
            del content
            assert type(raised.value) is StoreError and raised.value.key == "k"
        os.close(file)
        os.close(other)


def test_files_are_closed_after_one_whose_close_fails(tmp_path: Path) -> None:
    """The thread ended, and all later files of the cache folder kept their room: servers tell at close what they could not write."""
    zarr.create_array(tmp_path / "store", shape=(100,), chunks=(100,), dtype="u1")
    with mounted(tmp_path / "store", ends_with=None) as mount:
        refused = os.open(mount.path / "chunks/0", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(refused, b"not a chunk")
        reading, writing = os.pipe()
        disposal.close(refused)
        disposal.close(writing)
        assert select.select([reading], [], [], 60)[0] and os.read(reading, 1) == b""
        os.close(reading)
