"""Mounts of other users are in the mount table of all users."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zarrfs.stores.folder import tree as folder_tree
from zarrfs.stores.folder.file_systems import RemoteMounts, is_local
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.folder.tree import FolderTree


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_store_opens_while_something_is_mounted_on_a_name_that_is_no_text(tmp_path: Path) -> None:
    place = os.path.join(os.fsencode(tmp_path), b"\x9b \xff")
    os.mkdir(place)
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        FolderStore(str(tmp_path))
        with open(tmp_path / "file", "w") as file:
            assert is_local(file.fileno())
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
def test_all_of_a_store_is_synced_also_where_another_disk_is_mounted_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(folder_tree, "sync_file_system", lambda fd: synced.append(os.fstat(fd).st_dev))
    (tmp_path / "a" / "b c").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "a" / "b c"], check=True)
    try:
        tree = FolderTree(str(tmp_path))
        tree.sync_all()
        assert synced == [tmp_path.stat().st_dev, (tmp_path / "a" / "b c").stat().st_dev]
        tree.close()
    finally:
        subprocess.run(["umount", tmp_path / "a" / "b c"], check=True)


def test_mounts_are_asked_for_by_several_threads_at_once(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    mounts = RemoteMounts(folder)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: mounts.now(), range(20_000))) == {()}
    mounts.close()
    os.close(folder)
