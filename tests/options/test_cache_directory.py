"""The folder for data above the memory limit is refused when mounting, not when the first large file is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from zarrfs.errors import UsageError
from zarrfs.options.cache_directory import cache_directory
from zarrfs.options.config import MountConfig


@pytest.mark.parametrize("folder", ["/proc/nothing", "/dev/null/below", "/proc"])
def test_a_configured_folder_in_which_no_file_can_be_created(folder: str) -> None:
    with pytest.raises(UsageError, match=rf"^cache folder {folder}: .+: choose another with --cache-dir$"):
        cache_directory(MountConfig(store="memory:", cache_dir=folder))


def test_a_configured_folder_is_created(tmp_path: Path) -> None:
    folder = str(tmp_path / "one/two")
    assert cache_directory(MountConfig(store="memory:", cache_dir=folder)) == folder
