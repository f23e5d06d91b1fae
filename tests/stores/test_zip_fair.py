"""A read of one value of a zip file, however long it takes, delays no reader of another value."""

from __future__ import annotations

import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from zarrfs import threads
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.archive import ArchiveStore
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.zip import members
from zarrfs.stores.zip.archive import ZipArchive

LARGE = bytes(range(256)) * 1024


class Slow(ArchiveFile):
    """A file that does not answer requests for ``held``."""

    held = range(0)
    waiting = threading.Semaphore(0)
    go_on = threading.Event()

    def read(self, start: int, stop: int, key: str) -> bytes:
        if start in self.held:
            self.waiting.release()
            self.go_on.wait()
        return super().read(start, stop, key)


class Cancelling(ArchiveFile):
    """A file that cancels its reader at the third request of 64 KiB, and counts these."""

    scope: trio.CancelScope
    requests = 0

    def read(self, start: int, stop: int, key: str) -> bytes:
        if stop - start == 1 << 16:
            self.requests += 1
            if self.requests == 3:
                trio.from_thread.run_sync(self.scope.cancel)
        return super().read(start, stop, key)


@contextmanager
def held(folder: Path, method: int = zipfile.ZIP_DEFLATED) -> Iterator[ZipArchive]:
    """Yield an archive whose value ``large`` is not read on until the end of the body. There are values at many offsets."""
    path = folder / "x.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("large", LARGE)
        for number in range(200):
            archive.writestr(f"small/{number}", b"x" * number)
        archive.writestr("medium", LARGE[1:])
        archive.writestr("large too", LARGE)
        following = archive.getinfo("small/0").header_offset
    Slow.waiting, Slow.go_on = threading.Semaphore(0), threading.Event()
    file = Slow(str(path))
    opened = ZipArchive(file)
    # Behind the local header.
    file.held = range(31, following)
    try:
        yield opened
    finally:
        Slow.go_on.set()


def test_readers_of_other_values_do_not_wait(tmp_path: Path) -> None:
    with held(tmp_path) as archive:
        reader = threading.Thread(target=archive.read, args=(b"large", [ByteRange()]))
        reader.start()
        Slow.waiting.acquire()
        read: list[bytes] = []

        def all_small() -> None:
            for number in range(200):
                found = archive.read(b"small/%d" % number, [ByteRange()])
                assert found is not None
                read.append(bytes(found[1][0]))

        others = threading.Thread(target=all_small)
        others.start()
        others.join(20)
        assert read == [b"x" * number for number in range(200)]
    reader.join()


@trio_test
async def test_many_readers_of_one_value_leave_threads_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_SLOW_NBYTES", len(LARGE) - 1)
    with held(tmp_path) as archive:
        store = ArchiveStore(archive, "")
        parts: list[object] = []

        async def read(number: int) -> None:
            if number % 2:
                parts.extend(await store.get_partial_values([(Key("large"), ByteRange(number, 1))]))
            else:
                found = await store.get_with_stat(Key("large"), ByteRange(number, 1))
                assert found is not None
                parts.append(found[0])

        async with trio.open_nursery() as nursery:
            for number in range(2 * threads.IO_THREADS):
                nursery.start_soon(read, number)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(20) as scope:
                assert await store.get(Key("small/3")) == b"xxx"
                assert await store.get(Key("large too")) == LARGE
            Slow.go_on.set()
        assert not scope.cancelled_caught
        assert sorted(map(bytes, parts)) == sorted(LARGE[number : number + 1] for number in range(2 * threads.IO_THREADS))  # type: ignore[arg-type]


@trio_test
async def test_a_large_value_of_lzma_does_not_delay_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their decoders are few, since each needs much memory."""
    monkeypatch.setattr(members, "_SLOW_NBYTES", len(LARGE) - 1)
    monkeypatch.setattr(members, "_SMALL_WINDOW_NBYTES", 1000)
    with held(tmp_path, zipfile.ZIP_LZMA) as archive:
        store = ArchiveStore(archive, "")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.get, Key("large"))
            for _ in range(2 * threads.IO_THREADS):
                nursery.start_soon(store.get, Key("medium"))
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(20) as scope:
                assert await store.get(Key("small/3")) == b"xxx"
                assert await store.get(Key("medium")) == LARGE[1:]
            Slow.go_on.set()
        assert not scope.cancelled_caught


@pytest.mark.parametrize("content", [b"", b"x"], ids=["before the value", "behind the value"])
@trio_test
async def test_blocks_without_content_are_not_decoded_for_a_reader_that_has_given_up(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gigabyte of them takes a minute, and any number of entries may share it."""
    empty = b"\0\0\0\xff\xff" * (1 << 19)
    compressed = b"\0\1\0\xfe\xff" + b"x"
    parts = [compressed, empty] if content else [empty, compressed]
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("k", b"".join(parts) + b"\1\0\0\xff\xff")
    stated = bytearray(path.read_bytes())
    # Of the local header, and of the entry in the directory: the method is deflate, and the value has one byte.
    entry = stated.rindex(b"PK\1\2")
    for method, crc, size in ((8, 14, 22), (entry + 10, entry + 16, entry + 24)):
        stated[method : method + 2] = b"\x08\0"
        stated[crc : crc + 4] = zlib.crc32(b"x").to_bytes(4, "little")
        stated[size : size + 4] = b"\1\0\0\0"
    path.write_bytes(stated)
    file = Cancelling(str(path))
    opened = ZipArchive(file)
    monkeypatch.setattr(members, "_SLOW_NBYTES", len(empty))
    assert opened.is_slow(b"k"), "though its value is short"
    with trio.CancelScope() as file.scope:
        await threads.io(opened.read, b"k", [ByteRange()])
    assert file.scope.cancelled_caught and file.requests == 3
    file.requests = 10
    found = opened.read(b"k", [ByteRange()])
    assert found is not None and bytes(found[1][0]) == b"x"
