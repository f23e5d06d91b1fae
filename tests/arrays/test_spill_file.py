"""Byte sequences in mapped files."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.support.small_disks import small_disk
from zarrfs.arrays.spill_file import SpillFile


def test_a_sequence_finds_room_where_a_file_for_many_finds_none(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        file = SpillFile(str(folder))
        kept = [await file.keep(bytes([number]) * (1 << 20)) for number in range(2)]
        assert [bytes(each[-1:]) for each in kept] == [b"\0", b"\1"] and len(file._files) == 1
        with pytest.raises(OSError, match="half of the free space"):
            await file.keep(bytes(5 << 20))

    with small_disk(tmp_path / "disk", "8m") as disk:
        trio.run(main, disk)
