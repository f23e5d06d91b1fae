"""A value that another program repeatedly replaces by rename: open(2) opens the old one or the new one, and all reads are of that one."""

from __future__ import annotations

import mmap
import os
import resource
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.length import share
from tests.support.mounting import mounted
from tests.support.small_stores import write

pytestmark = pytest.mark.fuse

MiB = 1 << 20


@contextmanager
def replaced_by(values: list[bytes], path: Path) -> Iterator[None]:
    """Replace ``path`` by one value after the other from another program during the block."""
    over = threading.Event()
    new = path.parent.with_name("new")

    def replace() -> None:
        number = 0
        while not over.is_set():
            new.write_bytes(values[number % len(values)])
            os.rename(new, path)
            number += 1

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        yield
    finally:
        over.set()
        replacing.join()


@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "1")], ids=["watched", "unwatched"])
@pytest.mark.parametrize("nbytes", [1000, 300_000, 9 * MiB])
def test_each_read_is_of_one_value(tmp_path: Path, nbytes: int, options: tuple[str, ...]) -> None:
    values = [bytes([65 + number]) * (nbytes + number % 2 * 7) for number in range(16)]
    store = write(tmp_path / "store", {"k": values[0]})
    found: Counter[str] = Counter()
    with mounted(store, *options) as mount, replaced_by(values, store / "k"):
        until = time.monotonic() + share(4)

        def read() -> None:
            while time.monotonic() < until:
                try:
                    with open(mount.path / "raw/k", "rb", buffering=0) as file:
                        value = b"".join(iter(lambda: file.read(65536), b""))
                    known = value in values
                    found["read" if known else f"a mix: {len(value)} bytes of {set(value)}"] += 1
                except OSError as error:
                    found[str(error.strerror)] += 1

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert set(found) == {"read"}, found


def test_what_is_open_is_read_to_its_end_whatever_the_key_is_by_then(tmp_path: Path) -> None:
    old, new = b"o" * (20 * MiB), b"n" * (20 * MiB)
    store = write(tmp_path / "store", {"k": old})
    with mounted(store) as mount, open(mount.path / "raw/k", "rb", buffering=0) as file:
        assert file.read(10) == old[:10]
        (tmp_path / "new").write_bytes(new)
        os.rename(tmp_path / "new", store / "k")
        assert b"".join(iter(lambda: file.read(MiB), b"")) == old[10:]
        os.unlink(store / "k")
        file.seek(0)
        assert file.read(10) == old[:10]


def test_more_files_are_open_than_the_daemon_has_descriptors(tmp_path: Path) -> None:
    count = 700
    store = write(tmp_path / "store", {f"k{number}": bytes([number % 256]) * 100_000 for number in range(count)})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with mounted(store) as mount:
        resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (256, before[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 4096), before[1]))
        try:
            files = [os.open(mount.path / f"raw/k{number}", os.O_RDONLY) for number in range(count)]
            assert all(os.pread(file, 10, 50_000) == bytes([number % 256]) * 10 for number, file in enumerate(files))
            assert len(os.listdir(f"/proc/{mount.pid}/fd")) < 200
            (mount.path / "raw/new").write_bytes(b"new")
            for file in files:
                os.close(file)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (store / "new").read_bytes() == b"new"


UNWATCHED = ("--no-watch", "--metadata-ttl", "60")


def append(path: Path, data: bytes) -> None:
    """Run as a shell does with ``>>``: open(path, "ab") of Python requests the size first."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, data)
    os.close(fd)


@pytest.mark.parametrize("options", [(), UNWATCHED], ids=["watched", "unwatched"])
@pytest.mark.parametrize("present", [b"a longer one, of another program\n", b"x\n"], ids=["longer", "shorter"])
def test_bytes_are_appended_to_the_value_that_is_there_at_the_open(
    tmp_path: Path, present: bytes, options: tuple[str, ...]
) -> None:
    """They were in the middle of it, over its bytes, or after zeros that nobody wrote: at the end of the value that the mount wrote."""
    store = write(tmp_path / "store", {"k": b"one\n"})
    with mounted(store, *options) as mount:
        append(mount.path / "raw/k", b"two\n")
        (store / "k").write_bytes(present)
        append(mount.path / "raw/k", b"three\n")
        assert (store / "k").read_bytes() == present + b"three\n"
        assert (mount.path / "raw/k").read_bytes() == present + b"three\n"


@pytest.mark.parametrize("options", [(), UNWATCHED], ids=["watched", "unwatched"])
def test_an_append_after_a_publish_and_a_change_by_another_program_is_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    """It was written over the other program's bytes, and close(2) and fsync(2) were 0."""
    store = write(tmp_path / "store", {"k": b"one\n"})
    with mounted(store, *options) as mount:
        fd = os.open(mount.path / "raw/k", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"two\n")
        os.fsync(fd)
        append(store / "k", b"of another program\n")
        with pytest.raises(OSError, match="Stale"):
            os.write(fd, b"3\n")
        os.fsync(fd)
        assert (store / "k").read_bytes() == b"one\ntwo\nof another program\n"
        append(mount.path / "raw/k", b"four\n")
        os.close(fd)
        assert (store / "k").read_bytes() == b"one\ntwo\nof another program\nfour\n"


def test_a_page_of_a_mapping_is_no_append(tmp_path: Path) -> None:
    store = write(tmp_path / "store", {"k": b"a" * 5000})
    with mounted(store) as mount:
        fd = os.open(mount.path / "raw/k", os.O_RDWR | os.O_APPEND)
        with mmap.mmap(fd, 0) as mapped:
            mapped[:2] = mapped[4998:] = b"bb"
            mapped.flush()
        os.write(fd, b"end")
        os.close(fd)
        assert (store / "k").read_bytes() == b"bb" + b"a" * 4996 + b"bbend"
