"""Data that is lost after the folder of what was rescued before was removed or moved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from trio.testing import trio_test

from tests.support.lost import Lost
from zarrfs.daemon.rescue import Rescue
from zarrfs.errors import NameInvalid

WHY = NameInvalid("lost")


def _move(rescued: Path) -> None:
    os.rename(rescued, rescued.parent / "kept")


def _remove_one(rescued: Path) -> None:
    for each in rescued.iterdir():
        shutil.rmtree(each)


@pytest.mark.parametrize("happens", [shutil.rmtree, _remove_one, _move], ids=["removed", "one removed", "moved"])
@trio_test
async def test_it_is_saved_in_the_folder_that_is_reported(happens: Callable[[Path], None], tmp_path: Path) -> None:
    rescue, first = Rescue(str(tmp_path), "store"), Lost("raw/first")
    await rescue.value(first, WHY)
    happens(tmp_path / "rescued")
    for each in (first, Lost("raw/other")):
        folder = Path(await rescue.value(each, WHY))
        assert (folder / "files" / each.ident).read_bytes() == b"hers\n"
        assert each.ident in (folder / "lost.jsonl").read_text()


@trio_test
async def test_what_is_rescued_survives_a_power_cut_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files were synced, and not the folders that were created for them."""
    synced: list[Path] = []
    fsync = os.fsync

    def record(fd: int | IO[bytes]) -> None:
        fsync(fd)
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd if isinstance(fd, int) else fd.fileno()}")))

    monkeypatch.setattr(os, "fsync", record)
    folder = Path(await Rescue(str(tmp_path), "store").value(Lost("raw/g/first"), WHY))
    file = folder / "files/raw/g/first"
    assert {file, folder / "lost.jsonl", *(each for each in file.parents if each.is_relative_to(tmp_path))} <= set(synced)
