"""Sharded arrays in real mounts: the view of programs, the stored values and the number of operations; no data is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.mount.test_kill import running
from tests.support.mounting import mounted, mountpoint, run
from tests.support.waiting import until

pytestmark = pytest.mark.fuse

CHUNKS = 320
LENGTH = 64


def sharded(path: Path, *, chunks: int = 16, chunks_per_shard: int = 16, length: int = LENGTH) -> Any:
    """Create an array of int32 with ``chunks`` chunks of ``length`` elements."""
    return zarr.create_array(
        str(path), shape=chunks * length, chunks=(length,), shards=(chunks_per_shard * length,), dtype="i4", fill_value=0
    )


def chunk(number: int, version: int = 1, length: int = LENGTH) -> np.ndarray[Any, Any]:
    """Return elements that differ between chunks, and between versions of a chunk."""
    return np.arange(length, dtype="<i4") + 1000 * version + 1_000_000 * (number + 1)


def shards_in(store: Path) -> dict[str, bytes]:
    """Return the values of the array's shards."""
    return {str(path.relative_to(store)): path.read_bytes() for path in (store / "c").rglob("*") if path.is_file()}


def test_cp_of_all_chunks_of_a_shard_is_one_set(tmp_path: Path) -> None:
    array = sharded(tmp_path / "store", chunks=64, chunks_per_shard=32)
    source = tmp_path / "chunks"
    source.mkdir()
    for number in range(64):
        chunk(number).tofile(source / str(number))
    with mounted(tmp_path / "store", "--shard-delay", "3600") as mount:
        with mount.counted() as cost:
            run("cp", "-r", f"{source}/.", mount.path / "chunks")
        assert cost["set"] == 2
        # No shard was read; the remaining bytes are the array's documents.
        assert cost.get("bytes_read", 0) < 10_000
        np.testing.assert_array_equal(array[...].reshape(64, LENGTH), [chunk(number) for number in range(64)])


def test_ls_reads_one_index_for_each_shard(tmp_path: Path) -> None:
    array = sharded(tmp_path / "store", chunks=64, chunks_per_shard=8)
    array[...] = np.arange(64 * LENGTH)
    with mounted(tmp_path / "store") as mount:
        for _ in range(2):
            listed = set(os.listdir(mount.path / "chunks"))
            assert {str(number) for number in range(64)} <= listed
            assert mount.stats()["shard_indexes_read"] == 8
            run("ls", "-l", mount.path / "chunks")
        np.testing.assert_array_equal(np.load(mount.path / "npy" / "store.npy"), array[...])
        assert mount.stats()["shard_indexes_read"] == 8


def test_what_waits_is_seen_in_every_view_and_stored_at_fsync_or_at_the_end(tmp_path: Path) -> None:
    store = tmp_path / "store"
    array = sharded(store)
    array[...] = 7
    before = shards_in(store)
    with mounted(store, "--shard-delay", "3600") as mount:
        file = mount.path / "chunks" / "3"
        file.write_bytes(chunk(3).tobytes())
        assert file.read_bytes() == chunk(3).tobytes()
        whole = np.load(mount.path / "npy" / "store.npy")
        assert whole[3 * LENGTH : 4 * LENGTH].tolist() == chunk(3).tolist() and whole[0] == 7
        assert shards_in(store) == before
        fd = os.open(file, os.O_WRONLY)
        os.fsync(fd)
        os.close(fd)
        assert array[3 * LENGTH] == chunk(3)[0]
        (mount.path / "chunks" / "5").unlink()
        (mount.path / "chunks" / "6").write_bytes(chunk(6).tobytes())
        assert not (mount.path / "chunks" / "5").exists() and "5" not in os.listdir(mount.path / "zarr3" / "c")
        assert array[5 * LENGTH] == 7
    expected = np.full((16, LENGTH), 7)
    expected[3], expected[5], expected[6] = chunk(3), 0, chunk(6)
    np.testing.assert_array_equal(array[...].reshape(16, LENGTH), expected)


def test_who_looks_at_the_key_in_raw_finds_what_was_written(tmp_path: Path) -> None:
    store = tmp_path / "store"
    array = sharded(store)
    with mounted(store, "--shard-delay", "3600") as mount:
        (mount.path / "chunks" / "3").write_bytes(chunk(3).tobytes())
        value = (mount.path / "raw" / "c" / "0").read_bytes()
        assert shards_in(store) == {"c/0": value}
        assert array[3 * LENGTH] == chunk(3)[0]
        (mount.path / "chunks" / "4").write_bytes(chunk(4).tobytes())
        assert len((mount.path / "raw" / "c" / "0").read_bytes()) > len(value)
        (mount.path / "raw" / "c" / "0").unlink()
        assert os.listdir(mount.path / "zarr3") == ["zarr.json"]
    assert shards_in(store) == {}


def test_the_other_chunks_of_a_shard_are_the_same_files_when_one_is_written(tmp_path: Path) -> None:
    store = tmp_path / "store"
    array = sharded(store)
    array[...] = np.arange(16 * LENGTH)
    with mounted(store, "--shard-delay", "0") as mount:
        other = mount.path / "chunks" / "9"
        before = other.stat()
        with other.open("rb", buffering=0) as file:
            for version in range(3):
                (mount.path / "chunks" / "3").write_bytes(chunk(3, version).tobytes())
                assert np.frombuffer(file.read(LENGTH), "<i4").tolist() == array[9 * LENGTH + 16 * version :][:16].tolist()
        after = other.stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_cp_p_keeps_the_times_of_chunks(tmp_path: Path) -> None:
    sharded(tmp_path / "store")
    source = tmp_path / "3"
    chunk(3).tofile(source)
    os.utime(source, (1_000_000_000, 1_000_000_000))
    with mounted(tmp_path / "store") as mount:
        run("cp", "-p", source, mount.path / "chunks" / "3")
        (mount.path / "chunks" / "4").write_bytes(chunk(4).tobytes())
        fd = os.open(mount.path / "chunks" / "4", os.O_WRONLY)
        os.fsync(fd)
        os.close(fd)
        assert (mount.path / "chunks" / "3").stat().st_mtime == 1_000_000_000


def test_rm_and_mv_of_an_array_whose_chunks_wait(tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path / "store"))
    for name in ("a", "b"):
        sharded(tmp_path / "store" / name)
    assert group is not None
    with mounted(tmp_path / "store", "--shard-delay", "3600") as mount:
        for name in ("a", "b"):
            (mount.path / "chunks" / name / "3").write_bytes(chunk(3).tobytes())
        run("rm", "-r", mount.path / "chunks" / "a")
        run("mv", mount.path / "chunks" / "b", mount.path / "chunks" / "moved")
        assert (mount.path / "chunks" / "moved" / "3").read_bytes() == chunk(3).tobytes()
    assert not (tmp_path / "store" / "a").exists() and not (tmp_path / "store" / "b").exists()
    assert zarr.open_array(str(tmp_path / "store" / "moved"), mode="r")[3 * LENGTH] == chunk(3)[0]


def test_what_cannot_be_stored_at_the_end_is_told(tmp_path: Path) -> None:
    store = tmp_path / "store"
    array = sharded(store)
    array[...] = 7
    whole = shards_in(store)
    with mounted(store, "--shard-delay", "3600", ends_with=7) as mount:
        (mount.path / "chunks" / "3").write_bytes(chunk(3).tobytes())
        # Another program leaves a shard without a valid index: writing one chunk would lose all others.
        (store / "c" / "0").write_bytes(whole["c/0"][:-1] + b"?")
        fd = os.open(mount.path / "chunks" / "3", os.O_WRONLY)
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(fd)
        os.close(fd)
    assert shards_in(store)["c/0"] == whole["c/0"][:-1] + b"?"


@pytest.mark.parametrize("name", ["chunks/a/0", "zarr3/a/c/0"])
def test_writing_into_a_shard_with_a_damaged_entry_is_an_error_of_the_store(name: str, tmp_path: Path) -> None:
    (store := tmp_path / "store").mkdir()
    options = ("--new-dialect", "v3_2022", "--new-shards", "4", "--new-chunks", "4", "--new-codecs", "none", "--shard-delay", "0")
    with mounted(store, *options, ends_with=7) as mount:
        np.save(mount.path / "npy/a.npy", np.arange(16, dtype="<i4"))
        shard = store / "data/root/a/c0"
        data = shard.read_bytes()
        # The second of four pairs of offset and length leads outside.
        damaged = data[:-48] + (10**12).to_bytes(8, "little") + data[-40:]
        shard.write_bytes(damaged)
        fd = os.open(mount.path / name, os.O_WRONLY | os.O_TRUNC)
        os.write(fd, np.full(4, 7, "<i4").tobytes())
        with pytest.raises(OSError, match="Input/output error"):
            os.close(fd)
    assert shard.read_bytes() == damaged


@pytest.mark.parametrize("folder", ["chunks", "chunks/g", "chunks/g/a", "zarr3/g", "npy", "npy/g", "raw"])
@pytest.mark.parametrize("dialect", ["v3", "v3_2022"])
def test_fsync_of_any_folder_above_stores_what_waits(tmp_path: Path, dialect: str, folder: str) -> None:
    (store := tmp_path / "store").mkdir()
    options = ("--new-dialect", dialect, "--new-shards", "8", "--new-chunks", "4")
    with mounted(store, *options, "--shard-delay", "600", ends_with=None) as mount:
        (mount.path / "npy/g").mkdir()
        np.save(mount.path / "npy/g/a.npy", np.arange(20, dtype="<i4"))
        (mount.path / "chunks/g/a/1").write_bytes(np.full(4, -1, "<i4").tobytes())
        fd = os.open(mount.path / folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)
        os.kill(mount.pid, signal.SIGKILL)
    with mounted(store, "--read-only") as mount:
        assert np.load(mount.path / "npy/g/a.npy")[3:9].tolist() == [3, -1, -1, -1, -1, 8]


def test_an_array_is_resized_and_renamed_whatever_waited_for_the_one_that_it_replaced(tmp_path: Path) -> None:
    (store := tmp_path / "store").mkdir()
    options = ("--new-shards", "8", "--new-chunks", "4", "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache"))
    with mounted(store, *options, ends_with=7) as mount:
        for name, length in (("a", 20), ("b", 30)):
            np.save(mount.path / f"npy/{name}.npy", np.arange(length, dtype="<i4"))
        (mount.path / "chunks/b/1").write_bytes(np.full(4, -1, "<i4").tobytes())
        # Another program: what waits for an array that this mount replaces goes with it.
        os.rename(store / "b", tmp_path / "elsewhere")
        os.rename(store / "a", store / "b")
        until(lambda: (mount.path / "npy/b.npy").exists() and np.load(mount.path / "npy/b.npy").size == 20)
        document = json.loads((mount.path / "chunks/b/.zarray").read_text())
        (mount.path / "chunks/b/.zarray").write_text(json.dumps(document | {"shape": [22]}))
        assert np.load(mount.path / "npy/b.npy").tolist() == [*range(20), 0, 0]
        os.rename(mount.path / "npy/b.npy", mount.path / "npy/c.npy")
    assert len(list((tmp_path / "cache/rescued").iterdir())) == 1


@pytest.mark.parametrize("delay", ["0", "0.05"])
def test_two_mounts_that_write_chunks_of_one_shard_lose_nothing(tmp_path: Path, delay: str) -> None:
    store = tmp_path / "store"
    array = sharded(store, chunks=CHUNKS, chunks_per_shard=CHUNKS)
    with mounted(store, "--shard-delay", delay) as one, mounted(store, "--shard-delay", delay) as other:

        def write(number: int) -> None:
            mount = (one, other)[number % 2]
            (mount.path / "chunks" / str(number)).write_bytes(chunk(number).tobytes())

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(CHUNKS)))
    found = array[...].reshape(CHUNKS, LENGTH)
    lost = [number for number in range(CHUNKS) if found[number].tolist() != chunk(number).tolist()]
    print(f"two mounts: {len(lost)} of {CHUNKS} lost")
    assert not lost


_ZARR_PYTHON = """
import sys, zarr
from tests.mount.test_shards import chunk, LENGTH
path, first = sys.argv[1], int(sys.argv[2])
array = zarr.open_array(path, mode="r+")
print("ready", flush=True)
sys.stdin.readline()
for number in range(first, {chunks}, 2):
    array[number * LENGTH:(number + 1) * LENGTH] = chunk(number)
"""


@pytest.mark.full_length
def test_the_control_loses_about_half(tmp_path: Path) -> None:
    """Two processes of zarr-python do the same."""
    array = sharded(tmp_path / "store", chunks=CHUNKS, chunks_per_shard=CHUNKS)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _ZARR_PYTHON.format(chunks=CHUNKS), str(tmp_path / "store"), str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for first in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    found = array[...].reshape(CHUNKS, LENGTH)
    lost = sum(found[number].tolist() != chunk(number).tolist() for number in range(CHUNKS))
    print(f"the control, zarr-python alone: {lost} of {CHUNKS} lost")
    assert lost


@pytest.mark.full_length
def test_kill_9_leaves_every_shard_whole_old_or_new(tmp_path: Path) -> None:
    """Chunks of 16 KiB, so that a shard is 256 KiB; every write acknowledged by fsync is stored."""
    length = 4096
    store = tmp_path / "store"
    array = sharded(store, length=length)
    array[...] = np.concatenate([chunk(number, 0, length) for number in range(16)])
    acknowledged = dict.fromkeys(range(16), 0)
    moments = random.Random(4)
    versions = iter(range(1, 1_000_000))
    kills = 20
    for kill in range(kills):
        with mountpoint() as path, running(store, path) as pid:
            killer = threading.Timer(moments.uniform(0.005, 0.080), os.kill, (pid, signal.SIGKILL))
            # A busy machine acknowledges nothing within these milliseconds: in every second round they start after a first write.
            if kill % 2 == 0:
                killer.start()
            try:
                while True:
                    number, version = moments.randrange(16), next(versions)
                    fd = os.open(path / "chunks" / str(number), os.O_WRONLY)
                    try:
                        os.write(fd, chunk(number, version, length).tobytes())
                        if version % 3 == 0:
                            os.fsync(fd)
                    finally:
                        os.close(fd)
                    if version % 3 == 0:
                        acknowledged[number] = version
                        if killer.ident is None:
                            killer.start()
            except OSError:
                killer.join()
        found = array[...].reshape(16, length)
        for number in range(16):
            version = int(found[number][0] - 1_000_000 * (number + 1)) // 1000
            assert found[number].tolist() == chunk(number, version, length).tolist(), f"chunk {number} is torn"
            assert version >= acknowledged[number], f"chunk {number} has lost what was acknowledged"
    print(f"{kills} kills: {next(versions) - 1} chunks written, {sum(map(bool, acknowledged.values()))} chunks acknowledged")
    # Else the kills prove nothing.
    assert any(acknowledged.values())
