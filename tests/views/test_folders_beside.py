"""Folders without documents beside the keys of a hierarchy of 2019 or 2022, whose own documents and chunks are elsewhere."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.trees import folder_at, names, tree_over
from zarrfs.errors import DirectoryNotEmpty
from zarrfs.fuse.errno import errno_of
from zarrfs.stores.folder.store import FolderStore

DIALECTS = pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022", "v3_2022:text"])
VIEWS = pytest.mark.parametrize("view", ["chunks", "zarr3", "npy"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder with an empty folder, one with a file, and one with an empty folder."""
    for folder in ("empty", "full/deep", "nested/deep"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "full/deep/note").write_bytes(b"precious")
    return tmp_path


@DIALECTS
@VIEWS
@trio_test
async def test_a_folder_is_removed_if_it_holds_nothing(dialect: str, view: str, path: Path) -> None:
    async with tree_over(FolderStore(str(path)), new_dialect=dialect) as tree:
        root = await folder_at(tree, view)
        # With a document of its own from now on.
        await (await folder_at(tree, "npy")).mkdir("made")
        (path / "made").mkdir()
        await root.rmdir("empty")
        # Its parent gets a document first: it would vanish with its last member.
        await (await folder_at(tree, f"{view}/nested")).rmdir("deep")
        assert not (path / "nested/deep").exists()
        for name in ("nested", "made"):
            await root.rmdir(name)
        assert {"empty", "nested", "made"}.isdisjoint(await names(tree, view))
        assert not any((path / name).exists() for name in ("empty", "nested", "made"))


@DIALECTS
@VIEWS
@trio_test
async def test_a_folder_with_what_no_view_shows_is_not_removed(dialect: str, view: str, path: Path) -> None:
    async with tree_over(FolderStore(str(path)), new_dialect=dialect) as tree:
        with pytest.raises(DirectoryNotEmpty, match="'note'"):
            await (await folder_at(tree, f"{view}/full")).rmdir("deep")
        assert "deep" in await names(tree, f"{view}/full")
    assert (path / "full/deep/note").read_bytes() == b"precious"


@DIALECTS
@VIEWS
@trio_test
async def test_a_folder_is_copied_when_it_is_moved(dialect: str, view: str, path: Path) -> None:
    # Documents are in other places than what the folder shows: a rename of both is not one step.
    async with tree_over(FolderStore(str(path)), new_dialect=dialect) as tree:
        root = await folder_at(tree, view)
        for name in ("empty", "full"):
            with pytest.raises(Exception, match="beside the keys of its hierarchy") as raised:
                await root.rename(name, root, "moved")
            assert errno_of(raised.value) == errno.EXDEV
        assert "moved" not in await names(tree, view)


@trio_test
async def test_the_folders_of_a_hierarchy_are_no_folders_of_its_nodes(path: Path) -> None:
    async with tree_over(FolderStore(str(path)), new_dialect="v3_2022") as tree:
        root = await folder_at(tree, "npy")
        for name in ("data", "meta", "kept"):
            await root.mkdir(name)
        (path / "data/root").mkdir(parents=True)
        (path / "data/root/k").write_bytes(b"precious")
        await root.rename("data", root, "other")
        await root.rmdir("other")
        await root.rmdir("meta")
        assert await names(tree, "npy") >= {"kept"}
    assert (path / "data/root/k").read_bytes() == b"precious" and (path / "meta/root/kept.group.json").exists()
