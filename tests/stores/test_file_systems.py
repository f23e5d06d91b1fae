"""What other users mount is in everybody's mount table."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from zarrfs.stores.file_systems import is_local
from zarrfs.stores.folder import FolderStore


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
