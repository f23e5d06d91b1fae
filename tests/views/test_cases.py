"""Stores written by other software, through the tree of files.

``npy/`` is compared bit for bit, ``chunks/`` as zarr-python reads it, ``raw/`` with the store. ``tests/mount/test_fixtures.py`` does the
same through the kernel.
"""

from __future__ import annotations

import pytest
from trio.testing import trio_test

from tests.support.cases import Case, cases
from tests.support.comparing import (
    assert_expected,
    assert_expected_in_zarr,
    assert_expected_objects,
    folder_cases,
    in_memory,
    is_object,
    npy_path,
    readable_by_zarr,
    reason_path,
    shown_chunks,
    why_left_out,
)
from tests.support.trees import every_file, listing, load, names, read, tree_of

# An unknown extension type is logged.
pytestmark = pytest.mark.logs("read as its fallback")
every_case = pytest.mark.parametrize(
    "case", folder_cases([*cases("v2"), *cases("v3_2019"), *cases("v3_final"), *cases("other_forms")])
)


@every_case
@trio_test
async def test_npy_is_what_the_producer_read(case: Case) -> None:
    async with tree_of(case.path) as tree:
        for node in case.nodes("array"):
            if why_left_out(node) is None:
                assert_expected(case, node, await load(tree, f"npy/{npy_path(case, node)}"))


@every_case
@trio_test
async def test_chunks_is_a_zarr_v2_hierarchy(case: Case) -> None:
    async with tree_of(case.path) as tree:
        files = {path.removeprefix("chunks/"): await read(tree, path) async for path in every_file(tree, "chunks")}
    assert assert_expected_in_zarr(case, in_memory(files)) == len(readable_by_zarr(case))
    for node in case.nodes("array"):
        if is_object(node) and why_left_out(node, "chunks") is None:
            inside = node["path"].lstrip("/") + "/"
            found = {path.removeprefix(inside): data for path, data in files.items() if path.startswith(inside)}
            chunks = {name: data for name, data in found.items() if not name.startswith(".")}
            assert_expected_objects(case, node, found[".zarray"], chunks)


@every_case
@trio_test
async def test_raw_is_the_store(case: Case) -> None:
    async with tree_of(case.path) as tree:
        assert {path.removeprefix("raw/"): await read(tree, path) async for path in every_file(tree, "raw")} == case.values


@every_case
@trio_test
async def test_every_node_is_listed_once_in_every_view(case: Case) -> None:
    async with tree_of(case.path) as tree:
        for view in ("npy", "chunks"):
            for node in case.nodes():
                if node["kind"] == "group":
                    await listing(tree, view + node["path"])
                elif (reason := why_left_out(node, view)) is not None:
                    path = f"{view}/{reason_path(node)}"
                    assert path.rpartition("/")[2] in await names(tree, path.rpartition("/")[0])
                    assert reason in (await read(tree, path)).decode()
                elif view == "chunks":
                    await listing(tree, view + node["path"])


@every_case
@trio_test
async def test_chunks_lists_what_is_stored(case: Case) -> None:
    async with tree_of(case.path) as tree:
        for node in case.nodes("array"):
            if why_left_out(node, "chunks") is None:
                shown = {name for name in await names(tree, f"chunks{node['path']}") if not name.startswith(".")}
                assert shown == shown_chunks(case, node), node["path"]
