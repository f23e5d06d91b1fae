"""A read of one value of a zip file, however long it takes, delays no reader of another value."""

from __future__ import annotations

import threading
import zipfile
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


@contextmanager
def held(folder: Path) -> Iterator[ZipArchive]:
    """Yield an archive whose value ``large`` is not read on until the end of the body. There are values at many offsets."""
    path = folder / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large", LARGE)
        for number in range(200):
            archive.writestr(f"small/{number}", b"x" * number)
    Slow.waiting, Slow.go_on = threading.Semaphore(0), threading.Event()
    file = Slow(str(path))
    opened = ZipArchive(file)
    # Behind the local header.
    file.held = range(31, 1000)
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
            Slow.go_on.set()
        assert not scope.cancelled_caught
        assert sorted(map(bytes, parts)) == sorted(LARGE[number : number + 1] for number in range(2 * threads.IO_THREADS))  # type: ignore[arg-type]
