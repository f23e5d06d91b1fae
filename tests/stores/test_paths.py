"""Paths as the kernel takes them: `..` after a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zarrfs.errors import UsageError
from zarrfs.stores import own_files, urls


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with ``link`` to ``a/b``, ``beside`` to a folder beside it, and ``gone`` to none."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    for link, target in {"link": "a/b", "beside": "c", "gone": "nowhere/x", "file": "/etc/passwd"}.items():
        (tmp_path / link).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "path", ["x", "./x", "link/x", "a/../x", "a/b/../../x", "beside/../x", "c/./..//x/", "missing/../x", "a/../link"]
)
def test_a_path_is_where_the_kernel_finds_it_with_its_links(folder: Path, path: str) -> None:
    found = own_files.absolute(path)
    assert found == own_files.absolute(str(folder / path)) == os.path.abspath(path)
    assert os.path.realpath(found) == os.path.realpath(path)


@pytest.mark.parametrize(
    "path", ["link/../x", "a/../link/../x", "link/..", "link/./../x", "gone/../x", "file/../x", "beside/../link/../x"]
)
def test_what_is_elsewhere_for_the_kernel_is_refused(folder: Path, path: str) -> None:
    for each in (path, str(folder / path)):
        with pytest.raises(UsageError, match=r"`\.\.` after the symbolic link .*/(link|gone|file): give the path without it"):
            own_files.absolute(each)
        for url in (each, f"zip:{folder}/{path}", f"{each}|zip:inner", f"{each}|unsharded:"):
            with pytest.raises(UsageError, match="after the symbolic link"):
                urls.absolute(url)


def test_the_working_directory_is_none_of_the_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "link")
    assert own_files.absolute("../x") == str(folder / "a/x")
