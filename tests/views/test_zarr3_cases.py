"""Stores written by other software, through ``zarr3/``: read by zarr-python, and by zarrfs itself as a store of v3, bit for bit."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.cases import Case, cases
from tests.support.comparing import (
    assert_expected,
    expected_objects,
    folder_cases,
    in_memory,
    is_object,
    npy_path,
    reason_path,
    why_left_out,
)
from tests.support.stores import fill
from tests.support.trees import every_file, listing, load, read, tree_of, tree_over
from zarrfs.stores.memory import MemoryStore

zarr = pytest.importorskip("zarr")

# An unknown extension type is logged.
pytestmark = pytest.mark.logs("read as its fallback")
every_case = pytest.mark.parametrize("case", folder_cases([*cases("v2"), *cases("v3_2019"), *cases("v3_final")]))
Node = dict[str, Any]


async def shown(case: Case) -> dict[str, bytes]:
    async with tree_of(case.path) as tree:
        return {path.removeprefix("zarr3/"): await read(tree, path) async for path in every_file(tree, "zarr3")}


def arrays(case: Case, files: dict[str, bytes]) -> list[Node]:
    """Return the arrays that final v3 can represent; check the reason of each of the others."""
    found = []
    for node in case.nodes("array"):
        if (reason := why_left_out(node, "zarr3")) is not None:
            assert reason in files[reason_path(node, case.path.name.removesuffix(".zarr"))].decode()
        elif isinstance(node["dtype"], list) and any(len(field) > 2 for field in node["dtype"]):
            assert b"fields that are arrays" in files[reason_path(node)]
        else:
            found.append(node)
    return found


def document(files: dict[str, bytes], node: Node) -> Node:
    path = node["path"].strip("/")
    return dict(json.loads(files[f"{path}/zarr.json" if path else "zarr.json"]))


@every_case
@trio_test
async def test_it_is_a_v3_store_of_the_same_arrays(case: Case) -> None:
    files = await shown(case)
    store = MemoryStore()
    await fill(store, {path: data for path, data in files.items() if not path.endswith(".txt")})
    async with tree_over(store) as tree:
        for node in arrays(case, files):
            # This store has no name of its own.
            name = "array" if node["path"] == "/" else "store"
            if not is_object(node):
                assert_expected(case, node, await load(tree, f"npy/{npy_path(case, node, name)}"))
    for node in case.nodes():
        if node["kind"] == "group" or node in arrays(case, files):
            found = document(files, node)
            copied = found.get("consolidated_metadata", {"metadata": {}})["metadata"]
            inside = f"{node['path'].strip('/')}/".lstrip("/")
            assert copied == {place: document(files, {"path": inside + place}) for place in copied}
            assert "sharding_indexed" not in json.dumps(found)
            if node["kind"] == "array":
                assert found["attributes"] == node.get("attributes", {})


@every_case
@trio_test
async def test_zarr_python_reads_it(case: Case) -> None:
    files = await shown(case)
    for node in arrays(case, files):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = zarr.open_array(in_memory(files), path=node["path"].strip("/"), mode="r", zarr_format=3)
            elements = np.asarray(array[...])
        if is_object(node):
            assert elements.reshape(-1).tolist() == expected_objects(case, node)
        else:
            assert_expected(case, node, elements.astype(elements.dtype.newbyteorder("<")))


@every_case
@trio_test
async def test_a_listing_says_what_lookup_says(case: Case) -> None:
    async with tree_of(case.path) as tree:
        for folder in {path.rpartition("/")[0] async for path in every_file(tree, "zarr3")}:
            await listing(tree, folder)
