"""Behaviour that only the kernel can show: mappings, streams of names, memory pressure, other mounts, and the end of a mount."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, mounted, run, watchdog
from tests.support.small_stores import SMALL, chunk, write
from tests.support.tree_suite import refused

pytestmark = pytest.mark.fuse

libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.opendir.argtypes = [ctypes.c_char_p]
libc.readdir.argtypes = libc.closedir.argtypes = libc.rewinddir.argtypes = libc.telldir.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
libc.telldir.restype = ctypes.c_long

NAMES = {f"key {number}" for number in range(10_000)}


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    folder = tmp_path_factory.mktemp("kernel")
    store = write(folder / "store", SMALL)
    write(store / "many", dict.fromkeys(NAMES, b""))
    with mounted(store, "--cache-dir", str(folder)) as mount:
        yield mount


class Stream:
    """A directory stream of the C library, without ``.`` and ``..``."""

    def __init__(self, path: Path) -> None:
        self._stream = libc.opendir(os.fsencode(path))
        assert self._stream

    def read(self, most: int = 1 << 30) -> list[str]:
        names: list[str] = []
        while len(names) < most and (entry := libc.readdir(self._stream)):
            # struct dirent: d_ino, d_off, d_reclen, d_type, d_name
            (length,) = struct.unpack("H", ctypes.string_at(entry + 16, 2))
            name = os.fsdecode(ctypes.string_at(entry + 19, length - 19).split(b"\0")[0])
            if name not in (".", ".."):
                names.append(name)
        return names

    def tell(self) -> int:
        return int(libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        libc.seekdir(self._stream, position)

    def rewind(self) -> None:
        libc.rewinddir(self._stream)

    def close(self) -> None:
        libc.closedir(self._stream)


def test_a_large_folder_is_streamed_sought_and_rewound(mount: Mounted) -> None:
    stream = Stream(mount.path / "raw/many")
    first = stream.read(3000)
    position = stream.tell()
    rest = stream.read()
    assert len(first) + len(rest) == 10_000
    assert {*first, *rest} == NAMES
    assert stream.read() == []
    stream.seek(position)
    assert stream.read() == rest
    write(mount.store / "many", {"new": b""})
    stream.rewind()
    again = stream.read()
    assert len(again) == len(set(again)) == 10_001
    assert set(again) == NAMES | {"new"}
    (mount.store / "many/new").unlink()
    stream.close()


def test_a_folder_that_is_emptied_while_it_is_read(mount: Mounted) -> None:
    """As ``rm -r`` does."""
    names = {str(number) for number in range(1000)}
    write(mount.store / "emptied", dict.fromkeys(names, b""))
    stream, seen = Stream(mount.path / "raw/emptied"), set()
    while portion := stream.read(100):
        for name in portion:
            assert name not in seen
            seen.add(name)
            (mount.path / "raw/emptied" / name).unlink()
    stream.close()
    assert seen == names
    (mount.path / "raw/emptied").rmdir()
    assert not (mount.store / "emptied").exists()


def test_a_value_is_mapped_and_read(mount: Mounted) -> None:
    value = os.urandom(1_000_000)
    write(mount.store, {"mapped": value})
    with open(mount.path / "raw/mapped", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert mapping[500_000:500_100] == value[500_000:500_100]
        assert mapping[:] == value


def test_a_value_is_mapped_written_and_synced(mount: Mounted) -> None:
    write(mount.store, {"mapped": bytes(10_000)})
    with open(mount.path / "raw/mapped", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[5000:5003] = b"abc"
        mapping.flush()
        assert (mount.path / "raw/mapped").read_bytes()[5000:5003] == b"abc"
        os.fsync(file.fileno())
        assert (mount.store / "mapped").read_bytes()[5000:5003] == b"abc"
    assert (mount.store / "mapped").stat().st_size == 10_000


def test_a_chunk_is_mapped_and_written_through_numpy(mount: Mounted) -> None:
    import numpy as np

    elements = np.memmap(mount.path / "chunks/a/1.0", "<i4", "r+", shape=(2, 3))
    elements[1, 2] = 99
    elements.flush()
    del elements
    stored = np.frombuffer((mount.store / "a/1.0").read_bytes(), "<i4").reshape(2, 3)
    assert stored[1, 2] == 99
    assert (mount.path / "raw/a/1.0").read_bytes() == stored.tobytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping caches needs root")
def test_what_the_kernel_forgets_is_forgotten_here_and_comes_back_the_same(mount: Mounted) -> None:
    numbers = {entry.name: entry.inode() for entry in os.scandir(mount.path / "raw/many")}
    os.stat(mount.path / "raw/many/key 1")
    known = mount.stats()["inodes"]
    assert known > 10_000
    with watchdog(60):
        while mount.stats()["inodes"] > 100:
            mount.drop_caches()
    assert {entry.name: entry.inode() for entry in os.scandir(mount.path / "raw/many")} == numbers


def test_inode_numbers_are_the_same_in_the_next_mount(mount: Mounted, tmp_path: Path) -> None:
    paths = ("raw", "raw/a", "raw/a/0.0", "chunks/a/0.0", "npy/a.npy", "README.txt")
    before = [(mount.path / path).stat().st_ino for path in paths]
    with mounted(mount.store, "--cache-dir", str(tmp_path)) as other:
        assert [(other.path / path).stat().st_ino for path in paths] == before


def test_what_another_mount_writes_is_seen_by_whoever_opens_next(mount: Mounted, tmp_path: Path) -> None:
    with mounted(mount.store, "--cache-dir", str(tmp_path)) as other:
        for view in ("raw", "chunks"):
            for value in (bytes(24), bytes(range(24)), bytes(24)):
                (other.path / view / "a/2.0").write_bytes(value)
                assert (mount.path / view / "a/2.0").read_bytes() == value


def test_one_view_as_the_root_of_the_mount(tmp_path: Path) -> None:
    store = write(tmp_path / "store", SMALL)
    for view in ("raw", "chunks"):
        with mounted(store, "--view", view, "--cache-dir", str(tmp_path)) as mount:
            assert "README.txt" not in os.listdir(mount.path)
            path = mount.path / "a/0.0"
            number = path.stat().st_ino
            assert path.read_bytes() == chunk(0, 0)
            with open(path, "rb") as reader:
                assert reader.read(4) == chunk(0, 0)[:4]
                path.write_bytes(bytes(24))
                assert os.pread(reader.fileno(), 24, 0) == bytes(24)
            assert path.stat().st_ino == number
            path.write_bytes(chunk(0, 0))


def test_a_read_only_mount_changes_nothing(tmp_path: Path) -> None:
    store = write(tmp_path / "store", SMALL)
    with mounted(store, "-o", "ro", "--cache-dir", str(tmp_path)) as mount:
        raw = mount.path / "raw"
        with refused(errno.EROFS):
            (raw / "a/0.0").write_bytes(b"x")
        with refused(errno.EROFS):
            (raw / "new").write_bytes(b"x")
        with refused(errno.EROFS):
            (mount.path / "chunks/a/2.1").write_bytes(b"x")
        with refused(errno.EROFS):
            (raw / "a/0.0").unlink()
        with refused(errno.EROFS):
            (raw / "new").mkdir()
        with refused(errno.EROFS):
            (raw / "a").rename(raw / "b")
        with refused(errno.EROFS):
            os.utime(raw / "a/0.0", (1, 1))
        with open(raw / "a/0.0", "rb") as file:
            os.fsync(file.fileno())
        assert run("ls", "-l", raw / "a").stdout.count(b"-r--r--r--") == 5
    assert {key: (store / key).read_bytes() for key in SMALL} == SMALL


def test_sigterm_publishes_what_is_open_and_unmounts(tmp_path: Path) -> None:
    store = write(tmp_path / "store", SMALL)
    with mounted(store, "--cache-dir", str(tmp_path), ends_with=None) as mount:
        file = open(mount.path / "raw/k", "wb", buffering=0)  # noqa: SIM115
        file.write(b"unpublished")
        pidfd = os.pidfd_open(mount.pid)
        with watchdog(30, lambda: os.kill(mount.pid, signal.SIGKILL)):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            select.select([pidfd], [], [])
        os.close(pidfd)
        assert (store / "k").read_bytes() == b"unpublished"
        with refused(errno.ENOTCONN):
            file.close()


def test_a_durable_mount_syncs_at_every_close(mount: Mounted, tmp_path: Path) -> None:
    with mounted(write(tmp_path / "store", SMALL), "--durable", "--cache-dir", str(tmp_path)) as durable:
        with durable.counted() as cost:
            (durable.path / "raw/k").write_bytes(b"value")
        assert (cost["set"], cost["sync"]) == (1, 1)
    with mount.counted() as cost:
        (mount.path / "raw/k").write_bytes(b"other")
    assert cost["set"] == 1
    assert "sync" not in cost
