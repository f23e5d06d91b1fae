"""More arrays in use than folders can be held open: an array whose folder is held no more is not taken for the one in its place.

And the number of descriptors that a daemon may have, whatever shell has started it.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import ROOT, Mounted, killed_at_last, mountpoint
from tests.support.waiting import until

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

LENGTH, CHUNKS, OTHERS = 8, 4, 40
DESCRIPTORS = 100
"""Limit of the daemon's descriptors: it then holds twelve folders."""


def make(path: Path, value: int, chunks: int = CHUNKS) -> None:
    array = zarr.create_array(
        str(path), shape=(LENGTH * chunks,), chunks=(LENGTH,), shards=(LENGTH * CHUNKS,), dtype="i4", attributes={"value": value}
    )
    array[...] = value


@pytest.fixture
def store(tmp_path: Path) -> Path:
    zarr.create_group(str(tmp_path / "store"))
    make(tmp_path / "store/a", 7)
    for number in range(OTHERS):
        make(tmp_path / f"store/x{number}", number)
    return tmp_path / "store"


@contextmanager
def mounted(store: Path, *options: str, ends_with: int = 0, limit: str = f"-n {DESCRIPTORS}") -> Iterator[Mounted]:
    """Mount with few descriptors: ``limit`` is what ulimit gets."""
    with mountpoint() as path:
        cache, log_file = store.with_name("cache"), path.with_name("log")
        command = [
            sys.executable,
            "-P",
            "-m",
            "zarrfs",
            "mount",
            store,
            path,
            "--log-file",
            log_file,
            "--cache-dir",
            cache,
            *options,
        ]
        limited = ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *map(str, command)]
        subprocess.run(limited, check=True, cwd="/", env=os.environ | {"PYTHONPATH": str(ROOT)})
        pid = int(json.loads((path / ".zarrfs/config.json").read_bytes())["pid"])
        with killed_at_last(pid, path):
            mount = Mounted(path, store, log_file, pid)
            yield mount
            assert mount.umount().returncode == ends_with, mount.log()


def write(mount: Mounted, number: int, value: int) -> None:
    (mount.path / f"chunks/a/{number}").write_bytes(np.full(LENGTH, value, "<i4").tobytes())


def use_others(mount: Mounted) -> None:
    for number in range(OTHERS):
        assert set(np.load(mount.path / f"npy/x{number}.npy")) == {number}


@pytest.mark.parametrize("chunks", [CHUNKS, CHUNKS - 1, CHUNKS + 2], ids=["same", "shorter", "longer"])
@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "0")], ids=["watch", "no-watch"])
def test_what_is_queued_for_it_is_not_stored_in_another(store: Path, chunks: int, options: tuple[str, ...]) -> None:
    with mounted(store, "--shard-delay", "600", *options, ends_with=7) as mount:
        write(mount, 1, 99)
        use_others(mount)
        make(store.with_name("new"), 5, chunks)
        os.rename(store / "a", store.with_name("old"))
        os.rename(store.with_name("new"), store / "a")
        found: list[set[int]] = []
        # Until the change is noticed, a file may be opened that is then stale.
        until(lambda: found.append(set(np.load(mount.path / "npy/a.npy"))) or found)
        assert found == [{5}]
    assert set(zarr.open_array(str(store / "a"), mode="r")[...]) == {5}
    saved = next((store.with_name("cache") / "rescued").iterdir()) / "store/a"
    assert set(zarr.open_array(str(saved), mode="r")[LENGTH : 2 * LENGTH]) == {99}


def leave(mount: Mounted) -> None:
    pass


def unlink(mount: Mounted) -> None:
    (mount.path / "npy/a.npy").unlink()


def rename_over(mount: Mounted) -> None:
    os.rename(mount.path / "npy/x0.npy", mount.path / "npy/a.npy")


@pytest.mark.parametrize("end", [leave, unlink, rename_over])
@pytest.mark.parametrize("is_another_there", [False, True], ids=["moved", "replaced"])
def test_what_is_queued_for_it_is_saved_if_it_was_moved(
    store: Path, end: Callable[[Mounted], None], is_another_there: bool
) -> None:
    """It may have been erased, or not: it is neither dropped as erased by another program, nor with what this mount removes."""
    with mounted(store, "--shard-delay", "600", "--no-watch", "--metadata-ttl", "60", ends_with=7) as mount:
        write(mount, 1, 99)
        use_others(mount)
        os.rename(store / "a", store.with_name("old"))
        if is_another_there:
            os.rename(store / "x1", store / "a")
        is_absent = end is unlink and not is_another_there
        with pytest.raises(FileNotFoundError) if is_absent else nullcontext():
            end(mount)
    saved = next((store.with_name("cache") / "rescued").iterdir()) / "store/a"
    assert set(zarr.open_array(str(saved), mode="r")[LENGTH : 2 * LENGTH]) == {99}


@pytest.mark.parametrize("end", [unlink, rename_over])
def test_what_is_queued_for_it_goes_with_it_if_it_was_not_moved(store: Path, end: Callable[[Mounted], None]) -> None:
    with mounted(store, "--shard-delay", "600", "--no-watch", "--metadata-ttl", "60") as mount:
        write(mount, 1, 99)
        use_others(mount)
        end(mount)
    assert not (store.with_name("cache") / "rescued").exists()


def test_it_stays_the_same_array_where_nothing_has_changed(store: Path) -> None:
    with mounted(store, "--shard-delay", "600") as mount:
        write(mount, 1, 99)
        with (mount.path / "chunks/a/2").open("r+b", buffering=0) as file:
            file.write(np.full(2, 88, "<i4").tobytes())
            use_others(mount)
            file.write(np.full(2, 88, "<i4").tobytes())
        use_others(mount)
        assert list(np.load(mount.path / "npy/a.npy")[LENGTH : 2 * LENGTH + 5]) == [99] * LENGTH + [88] * 4 + [7]
    assert list(zarr.open_array(str(store / "a"), mode="r")[LENGTH : 2 * LENGTH + 5]) == [99] * LENGTH + [88] * 4 + [7]


def edit(mount: Mounted, document: str, **members: object) -> None:
    """Write a document of the array while chunks of it are queued and staged, and after its folder was held."""
    write(mount, 1, 99)
    with (mount.path / "chunks/a/2").open("r+b", buffering=0) as file:
        file.write(np.full(2, 88, "<i4").tobytes())
        use_others(mount)
        content = json.loads((mount.path / document).read_text())
        (mount.path / document).write_text(json.dumps(content | members))


@pytest.mark.parametrize("document", ["raw/a/zarr.json", "zarr3/a/zarr.json"])
def test_it_stays_the_same_array_with_attributes_that_this_mount_writes(store: Path, document: str) -> None:
    with mounted(store, "--shard-delay", "600") as mount:
        edit(mount, document, attributes={"value": 8})
    array = zarr.open_array(str(store / "a"), mode="r")
    assert dict(array.attrs) == {"value": 8}
    assert list(array[LENGTH : 2 * LENGTH + 3]) == [99] * LENGTH + [88] * 2 + [7]


@pytest.mark.parametrize("document", ["raw/a/zarr.json", "zarr3/a/zarr.json", "chunks/a/.zarray"])
def test_it_stays_the_same_array_with_a_shape_that_this_mount_writes(store: Path, document: str) -> None:
    with mounted(store, "--shard-delay", "600") as mount:
        edit(mount, document, shape=[LENGTH * (CHUNKS + 1)])
    elements = zarr.open_array(str(store / "a"), mode="r")[...]
    assert len(elements) == LENGTH * (CHUNKS + 1)
    assert list(elements[LENGTH : 2 * LENGTH + 3]) == [99] * LENGTH + [88] * 2 + [7]


def leave_staged(path: Path, size: int) -> None:
    with path.open("wb", buffering=0) as file:
        file.seek(size)
        file.write(b"x")


def test_staged_files_leave_descriptors_to_readers(store: Path) -> None:
    """A user who may write could else make the mount useless for all others."""
    size = 65 << 20  # More than what is staged in memory of one file, all but a byte of it a hole.
    with mounted(store, ends_with=7) as mount:
        for number in range(DESCRIPTORS // 4):
            leave_staged(mount.path / f"chunks/.left{number}", size)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            leave_staged(mount.path / "chunks/.one-more", size)
        assert set(np.load(mount.path / "npy/a.npy")) == {7}
        assert (mount.path / "raw/x1/zarr.json").read_bytes() == (store / "x1/zarr.json").read_bytes()
        for number in range(DESCRIPTORS // 4):
            (mount.path / f"chunks/.left{number}").unlink()
        leave_staged(mount.path / "chunks/.one-more", size)


@pytest.mark.parametrize("removes", [False, True], ids=["read", "removed"])
def test_folders_left_half_read_leave_descriptors_to_others(store: Path, removes: bool) -> None:
    """Everyone who may read could else make the mount useless for all others. What is read on later is whole."""
    names = {f"k{number}" for number in range(3000)}
    (store / "many").mkdir()
    for name in names:
        (store / "many" / name).write_bytes(b"x")
    with mounted(store) as mount, ExitStack() as stack:
        left = [stack.enter_context(os.scandir(mount.path / "raw/many")) for _ in range(DESCRIPTORS)]
        firsts = [next(each) for each in left]
        assert set(np.load(mount.path / "npy/a.npy")) == {7}
        read = [firsts[0], *islice(left[0], 1500)]
        if removes:
            for entry in read:
                os.unlink(entry.path)
        else:
            # Each reads on, and the first is suspended once more.
            for first, each in zip(firsts[1:9], left[1:9], strict=True):
                assert sorted([first.name, *(entry.name for entry in each)]) == sorted(names)
        for each in left[9:20]:
            list(islice(each, 1500))
        assert sorted(entry.name for entry in (*read, *left[0])) == sorted(names)
        assert set(np.load(mount.path / "npy/x0.npy")) == {0}


def test_the_soft_limit_of_descriptors_is_raised(store: Path) -> None:
    with mounted(store, limit="-Sn 256") as mount:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        assert resource.prlimit(mount.pid, resource.RLIMIT_NOFILE) == (wanted, hard)
