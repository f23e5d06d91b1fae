"""Large buffers are held in files, small ones in memory."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.large_buffers import large_from
from tests.support.small_disks import small_disk
from zarrfs.errors import OutOfMemory, StoreError, StoreFull, StoreQuotaExceeded, TooLarge, is_refusal
from zarrfs.fuse.errno import errno_of
from zarrfs.memory import spill


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Iterator[None]:
    with large_from(1000, tmp_path):
        yield


def test_a_large_buffer_is_mapped_and_leaves_no_name(tmp_path: Path) -> None:
    small, large = spill.buffer(999), spill.buffer(1000)
    assert not spill.is_mapped(small) and spill.is_mapped(large) and spill.is_mapped(large[10:20])
    assert spill.is_mapped(np.frombuffer(large, "<u2").reshape(5, 100).T)
    large[:] = bytes(range(250)) * 4
    assert bytes(large[-3:]) == b"\xf7\xf8\xf9"
    assert not list(tmp_path.iterdir())


def test_buffers_share_what_memory_they_have() -> None:
    buffers = spill.Buffers()
    found = [spill.is_mapped(buffers.buffer(300)) for _ in range(6)]
    assert found == [False, False, False, True, True, True]
    kept = buffers.kept(b"x" * 300)
    assert spill.is_mapped(kept) and bytes(kept) == b"x" * 300


def test_more_than_a_disk_has_is_refused() -> None:
    with pytest.raises(TooLarge, match="exceed the limit of one buffer"):
        spill.buffer(spill.MAX_NBYTES + 1)
    free = os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
    if free < spill.MAX_NBYTES:
        with pytest.raises(TooLarge, match="exceed half of the free space"):
            spill.buffer(free)


def test_small_buffers_find_room_where_a_file_for_many_of_them_finds_none(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk, large_from(1000, disk):
        buffers = spill.Buffers(in_memory=0)
        found = [buffers.buffer(600) for _ in range(3)]
        assert all(map(spill.is_mapped, found)) and len({id(each.obj) for each in found}) == 1
        with pytest.raises(TooLarge, match="exceed half of the free space"):
            buffers.buffer(5 << 20)
        del found, buffers


def test_a_cache_folder_that_fails_is_no_lack_of_room(tmp_path: Path) -> None:
    """EFBIG would say that the data can never be stored; what is written would count as refused, not as lost."""
    for folder, reason in (("missing", "No such file"), ("file", "Not a directory")):
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match=reason) as raised:
            spill.mapped(1000, str(tmp_path / folder))
        assert not isinstance(raised.value, TooLarge) and not is_refusal(raised.value)
        assert spill.refusal_of(OSError(errno.EIO, "")) is StoreError
    assert spill.refusal_of(OSError(errno.ENOSPC, "")) is StoreFull
    assert spill.refusal_of(OSError(errno.EDQUOT, "")) is StoreQuotaExceeded


def test_copies_are_what_was_copied() -> None:
    elements = np.arange(600, dtype="<u2").reshape(20, 30)
    assert spill.contiguous(elements) is elements
    copy = spill.contiguous(elements.T)
    assert spill.is_mapped(copy) and copy.flags.c_contiguous
    np.testing.assert_array_equal(copy, elements.T)
    assert bytes(spill.copied(bytes(range(256)) * 5)) == bytes(range(256)) * 5


def test_where_a_file_has_data(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(10 << 20)
        file.seek(5 << 20)
        file.write(b"here")
    with path.open("rb") as file:
        content = memoryview(spill.FileMapping.of(file.fileno(), 10 << 20))
    extents = list(spill.data_extents(content) or ())
    assert [content[start:stop].tobytes().strip(b"\0") for start, stop in extents] == [b"here"]
    assert sum(stop - start for start, stop in extents) < 1 << 20
    assert spill.data_extents(content[1:]) is None


def _without_address_space(answers: Any) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    try:
        spill.mapped(64 << 20)
    except OutOfMemory as error:
        answers.put(errno_of(error))
    else:
        answers.put(None)


def test_a_file_for_which_there_is_no_address_space_is_no_full_disk() -> None:
    """It was EFBIG, which means that no file can be as large."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_without_address_space, args=(answers,))
    process.start()
    assert answers.get() == errno.ENOMEM
    process.join()
