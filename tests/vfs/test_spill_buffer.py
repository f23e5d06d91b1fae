from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.length import unhurried
from zarrfs.errors import FileTooLarge, StoreError, StoreFull, StoreQuotaExceeded, is_refusal
from zarrfs.fuse.errno import errno_of
from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.spill_buffer import HOLE_NBYTES, SpillBuffer


def held(buffer: SpillBuffer) -> int:
    """Return the bytes of memory that it holds."""
    return len(buffer._memory) if buffer._memory is not None else 0


@unhurried
@given(
    st.binary(max_size=30),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=12) | st.none())),
)
def test_bytes_are_those_of_a_file(data: bytes, limit: int, changes: list[tuple[int, bytes | None]]) -> None:
    staged, model = SpillBuffer(data, limit=limit), data
    for offset, piece in changes:
        if piece is None:
            staged.truncate(offset)
            model = model[:offset].ljust(offset, b"\0")
        elif piece:
            staged.write(offset, piece)
            model = model.ljust(offset, b"\0")
            model = model[:offset] + piece + model[offset + len(piece) :]
        assert len(staged) == len(model)
        assert bytes(staged.whole()) == model
        assert staged.read(0, 100) == model
        assert staged.read(3, 4) == model[3:7]
        assert held(staged) in (0, len(model))
    staged.close()
    assert len(staged) == 0


def test_above_the_limit_no_memory_is_held() -> None:
    staged = SpillBuffer(bytes(100), limit=100)
    assert held(staged) == 100
    staged.write(100, b"x")
    assert held(staged) == 0
    assert staged.read(99, 10) == b"\0x"
    staged.close()


def test_until_all_bytes_are_in_the_file_those_in_memory_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others read the buffer, and its allocated size, while a thread moves its bytes."""
    staged, write, seen = SpillBuffer(bytes(range(100)), limit=100), os.pwrite, []

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        seen.append((staged.allocated, staged.read(7, 3)))
        return write(fd, data[:50], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    staged.write(100, b"x")
    assert seen[:2] == [(100, b"\7\10\11")] * 2
    staged.close()


def test_a_size_that_no_file_has_is_too_large() -> None:
    staged = SpillBuffer(b"x", limit=10)
    with pytest.raises(FileTooLarge):
        staged.truncate(2**63 - 1)
    with pytest.raises(FileTooLarge):
        staged.write(2**63 - 2, b"xx")
    assert bytes(staged.whole()) == b"x"
    staged.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_without_room_what_was_staged_before_is_still_there(small_disk: Path) -> None:
    (small_disk / "rest").write_bytes(bytes(50_000))
    staged = SpillBuffer(b"before", limit=20_000, directory=str(small_disk))
    staged.write(6, bytes(15_000))
    with pytest.raises(StoreFull):
        staged.write(20_000, b"x")
    assert held(staged) == 15_006
    (small_disk / "rest").unlink()
    staged.write(20_000, b"x")
    assert held(staged) == 0
    with pytest.raises(StoreFull):
        staged.write(20_001, bytes(200_000))
    assert staged.read(0, 8) == b"before\0\0"
    assert len(staged) == 20_001
    staged.close()
    with pytest.raises(StoreFull):
        SpillBuffer(bytes(200_000), limit=10, directory=str(small_disk))


@trio_test
async def test_a_cache_folder_that_fails_is_not_full(tmp_path: Path) -> None:
    """ENOSPC would have a user look for space. What fits in memory is there, also beyond a gap that would be a hole."""
    folder = tmp_path / "removed"
    with pytest.raises(StoreError, match=r"the cache folder cannot stage more than 10 bytes: .*No such file") as raised:
        SpillBuffer(b"x" * 11, limit=10, directory=str(folder))
    assert errno_of(raised.value) == errno.EIO and not is_refusal(raised.value)
    staged = SpillBuffer(b"before", limit=2 * HOLE_NBYTES, directory=str(folder))
    await staged.put(HOLE_NBYTES + 6, b"x")
    assert staged.read(HOLE_NBYTES + 5, 10) == b"\0x"
    with pytest.raises(StoreError):
        await staged.put(3 * HOLE_NBYTES, b"x")
    assert len(staged) == HOLE_NBYTES + 7
    staged.close()


def test_a_later_gap_holds_nothing_of_a_write_that_failed_half_way(small_disk: Path) -> None:
    staged = SpillBuffer(b"x" * 20, limit=10, directory=str(small_disk))
    with pytest.raises(StoreFull):
        staged.write(100, b"y" * 100_000)
    assert len(staged) == 20
    staged.truncate(200)
    assert staged.read(0, 300) == b"x" * 20 + bytes(180)
    staged.close()


@pytest.mark.parametrize("room", [0, 40_000])
@trio_test
async def test_without_room_for_a_file_with_a_hole_its_zeros_are_in_memory(small_disk: Path, room: int) -> None:
    (small_disk / "rest").write_bytes(bytes(65_536 - room))
    budget = MemoryBudget(2 * HOLE_NBYTES)
    staged = SpillBuffer(b"before", directory=str(small_disk), budget=budget)
    await staged.resize(HOLE_NBYTES + 6)
    assert (held(staged) == 0) == bool(room)
    await staged.put(HOLE_NBYTES, b"x" * 100_000)
    assert held(staged) == budget.nbytes == HOLE_NBYTES + 100_000
    assert bytes(staged.whole()) == b"before" + bytes(HOLE_NBYTES - 6) + b"x" * 100_000
    with pytest.raises(StoreFull):
        await staged.put(3 * HOLE_NBYTES, b"x")
    staged.close()
    assert budget.nbytes == 0


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_quota_that_is_used_up_is_like_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Quotas need a prepared file system, so the error is simulated."""
    staged = SpillBuffer(b"x" * 11, limit=10, directory=str(tmp_path))

    def exceeded(*arguments: object) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, exceeded)
        with pytest.raises(StoreQuotaExceeded):
            staged.write(0, b"new") if call == "pwrite" else staged.truncate(100)
    assert bytes(staged.whole()) == b"x" * 11
    assert issubclass(StoreQuotaExceeded, StoreFull)
    staged.close()


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Those of other tests, whose garbage is not collected yet, may be hundreds.
    few = min(before[0], max(1000, 2 * len(os.listdir("/proc/self/fd"))))
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_files_leave_most_descriptors_to_others(tmp_path: Path, few_descriptors: int) -> None:
    most = few_descriptors // 4
    staged = [SpillBuffer(b"x" * 11, limit=10, directory=str(tmp_path)) for _ in range(most)]
    refused = SpillBuffer(b"y" * 10, limit=10, directory=str(tmp_path))
    with pytest.raises(StoreFull, match=f"{most} files"):
        refused.write(10, b"y")
    assert bytes(refused.whole()) == b"y" * 10
    staged[0].close()
    refused.write(10, b"y")
    assert bytes(refused.whole()) == b"y" * 11
    for each in (*staged, refused):
        each.close()


def test_what_does_not_fit_the_common_budget_goes_to_a_file_and_gives_back_what_it_took() -> None:
    budget = MemoryBudget(10)
    first, second = SpillBuffer(b"123456", budget=budget), SpillBuffer(b"1234", budget=budget)
    second.write(4, b"5")
    assert (held(first), held(second), budget.nbytes) == (6, 0, 6)
    assert second.read(0, 10) == b"12345"
    first.truncate(2)
    third = SpillBuffer(b"12345678", budget=budget)
    assert (held(third), budget.nbytes) == (8, 10)
    for staged in (first, second, third):
        staged.close()
    assert budget.nbytes == 0


_WITHOUT_MEMORY = """
import resource
from pathlib import Path
from zarrfs.vfs.spill_buffer import SpillBuffer

staged, data = SpillBuffer(b"abc"), bytes(48 << 20)
limits = resource.getrlimit(resource.RLIMIT_AS)
in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (16 << 20), limits[1]))
try:
    staged.write(100, data)
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, limits)
else:
    raise AssertionError("there was memory")
assert (len(staged), bytes(staged.whole()), staged.read(0, 200)) == (3, b"abc", b"abc")
staged.write(5, b"f")
assert staged.whole() == b"abc\\0\\0f"
staged.close()
"""


def test_a_write_without_memory_leaves_no_part_of_the_gap_before_it() -> None:
    # In a process of its own: this one may have as much free memory that other tests have left.
    subprocess.run([sys.executable, "-c", _WITHOUT_MEMORY], check=True)
