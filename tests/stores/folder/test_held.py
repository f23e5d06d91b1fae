"""A value held by a descriptor."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from zarrfs.keys import Key
from zarrfs.stores.folder import held
from zarrfs.stores.folder.store import FolderStore

NBYTES = 2 << 20


def descriptors_of(path: Path) -> int:
    """Return the number of descriptors of a file in this process: others may be opened and closed by earlier tests."""
    count = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{each}") == str(path)
    return count


@trio_test
async def test_a_read_that_is_under_way_when_it_is_closed_reads_that_very_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never reads the next file that gets the number of the descriptor."""
    begun, go_on = threading.Event(), threading.Event()
    pread = held.pread

    def gated(*arguments: Any) -> object:
        begun.set()
        go_on.wait()
        return pread(*arguments)

    monkeypatch.setattr(held, "pread", gated)
    (tmp_path / "k").write_bytes(b"k" * NBYTES)
    (tmp_path / "other").write_bytes(b"o" * NBYTES)
    store = FolderStore(str(tmp_path))
    value = await store.hold(Key("k"))
    assert value is not None
    assert descriptors_of(tmp_path / "k") == 1
    found: list[bytes] = []

    async def read() -> None:
        found.append(bytes(await value.read(0, NBYTES)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        while not begun.is_set():
            await wait_all_tasks_blocked()
        value.close()
        others = [os.open(tmp_path / "other", os.O_RDONLY) for _ in range(3)]
        go_on.set()
    for fd in others:
        os.close(fd)
    assert found == [b"k" * NBYTES]
    assert descriptors_of(tmp_path / "k") == 0
    await store.aclose()
