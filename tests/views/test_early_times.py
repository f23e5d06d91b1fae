"""Times of 1970 and before, as archives that can be reproduced have them: times like any others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.bundle_container import OFFER
from tests.support.plugged import plugins
from tests.support.scenes import example
from tests.support.trees import tree_over, walk
from tests.support.zarr_python import written
from zarrfs.stores.opening import open_store

EARLY = pytest.mark.parametrize("early_ns", [0, -(10**18), 1])
FILES = {
    "raw/g/a/.zarray",
    "chunks/g/a/.zarray",
    "chunks/g/.zgroup",
    "chunks/g/a/0.0",
    "zarr3/g/a/zarr.json",
    "zarr3/g/a/c/0/0",
    "npy/g/a.npy",
}
FOLDERS = {"raw/g", "chunks/g", "zarr3/g/a"}
bundle = plugins(OFFER)


def stored_in(folder: Path, *, consolidated: bool = False, early_ns: int | None = None) -> None:
    for key, value in written(2, example, consolidated=consolidated).items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(value)
    if early_ns is not None:
        for above, _, files in os.walk(folder, topdown=False):
            for name in (*files, "."):
                os.utime(Path(above, name), ns=(early_ns, early_ns))


@EARLY
@trio_test
async def test_times_of_the_store_are_shown(early_ns: int, tmp_path: Path) -> None:
    stored_in(tmp_path, early_ns=early_ns)
    store = await open_store(str(tmp_path))
    async with tree_over(store, str(tmp_path)) as tree:
        times = {path: (await (await walk(tree, path)).attributes()).mtime_ns for path in FILES | FOLDERS}
        assert times == dict.fromkeys(FILES | FOLDERS, early_ns)
    await store.aclose()


@EARLY
@pytest.mark.parametrize("path", sorted(FILES | FOLDERS))
@trio_test
async def test_a_time_that_was_set_is_shown(early_ns: int, path: str, tmp_path: Path) -> None:
    """rsync copies a file again whose time differs."""
    stored_in(tmp_path)
    store = await open_store(str(tmp_path))
    async with tree_over(store, str(tmp_path)) as tree:
        await (await walk(tree, path)).set_mtime(early_ns)
        assert (await (await walk(tree, path)).attributes()).mtime_ns == early_ns
    await store.aclose()


@EARLY
@trio_test
async def test_the_time_of_a_consolidated_copy_is_that_of_its_newest_document(early_ns: int, tmp_path: Path) -> None:
    stored_in(tmp_path, consolidated=True, early_ns=early_ns)
    store = await open_store(str(tmp_path))
    async with tree_over(store, str(tmp_path)) as tree:
        assert (await (await walk(tree, "chunks/.zmetadata")).attributes()).mtime_ns == early_ns
    await store.aclose()


@EARLY
@trio_test
async def test_the_time_of_a_file_of_a_group_is_that_of_its_newest_document(early_ns: int, tmp_path: Path) -> None:
    stored_in(tmp_path, early_ns=early_ns)
    store = await open_store(str(tmp_path))
    async with tree_over(store, str(tmp_path), views="bundle") as tree:
        assert (await (await walk(tree, "bundle/g.bundle")).attributes()).mtime_ns == early_ns
    await store.aclose()
