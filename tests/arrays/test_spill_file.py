"""Byte sequences in mapped files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio

from tests.support.small_disks import small_disk
from zarrfs.arrays.dirty_chunks import DirtyChunks, RunLayout
from zarrfs.arrays.spill_file import SpillFile
from zarrfs.memory.budget import MemoryBudget


def test_a_sequence_finds_room_where_a_file_for_many_finds_none(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        file = SpillFile(str(folder))
        kept = [await file.keep(bytes([number]) * (1 << 20)) for number in range(2)]
        assert [bytes(each[-1:]) for each in kept] == [b"\0", b"\1"] and len(file._files) == 1
        with pytest.raises(OSError, match="half of the free space"):
            await file.keep(bytes(5 << 20))

    with small_disk(tmp_path / "disk", "8m") as disk:
        trio.run(main, disk)


def test_few_bytes_reserve_little(tmp_path: Path) -> None:
    """64 MiB were reserved for each shard, and for each open file, with any bytes beyond the memory."""

    async def main() -> None:
        file = SpillFile(str(tmp_path))
        await file.keep(b"few")
        assert file.nbytes == 4 << 20
        for _ in range(8):
            await file.keep(bytes(1 << 20))
        # As many again.
        assert [len(each) >> 20 for each in file._files] == [4, 4, 8]
        dirty = DirtyChunks(MemoryBudget(0), str(tmp_path))
        await dirty.add_in_file([(0,)], [dirty.unit((0,), 1)], RunLayout((1024,), (1024,), np.dtype("u1")))
        assert [len(each) for each in dirty._files] == [1 << 20]
        dirty.close()
        await dirty.add_in_file([(0,)], [dirty.unit((0,), 1)], RunLayout((1 << 20,), (1 << 20,), np.dtype("u1")))
        assert [len(each) for each in dirty._files] == [4 << 20]
        dirty.close()

    trio.run(main)
