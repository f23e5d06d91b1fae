"""Extended attributes of every store of ``tests/cases``, in every view: those of ``zarrfs info --json``; and their listing."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.cases import Case, cases
from tests.support.comparing import folder_cases
from tests.support.small_stores import array_document, write
from tests.support.trees import listing, tree_of, walk
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.keys import NodePath
from zarrfs.model.metadata import GroupNode, UnsupportedNode
from zarrfs.options.config import MountConfig
from zarrfs.reports.info import describe
from zarrfs.vfs.extended_attributes import MAX_NBYTES, ExtendedAttributes, attributes_of
from zarrfs.vfs.node import Directory
from zarrfs.views.extended_attributes import BECOMING, NodeAttributes

LAYOUTS = ("v0_persistence", "v1", "v2", "v3_2019", "v3_2020_zarrita", "v3_draft2022_gdal", "v3_draft2022_seed", "v3_final")
TOLD = ("dialect", "shape", "data_type", "chunk_shape", "dimension_names", "codecs", "fill_value", "attributes")
VIEWS = ("chunks", "zarr3", "npy")


async def every_entry(folder: Directory, path: str) -> AsyncIterator[tuple[str, str, ExtendedAttributes | None]]:
    """Yield path, name and extended attributes of everything below a folder; those from a folder and from its parent have to agree."""
    for name, entry in (await listing(folder)).items():
        told = await folder.extended_attributes_of(name)
        yield path, name, told
        if entry[1]:
            inner = await folder.lookup(name)
            assert isinstance(inner, Directory)
            assert await inner.extended_attributes() == told, f"{path}/{name}"
            async for each in every_entry(inner, f"{path}/{name}"):
                yield each


def parsed(found: ExtendedAttributes) -> dict[str, str]:
    assert all(name.startswith("user.zarr.") for name in found.values)
    assert set(found.listed) <= set(found.values)
    return {name.removeprefix("user.zarr."): value.decode() for name, value in found.values.items() if value is not None}


def same(text: str | None, said: Any) -> bool:
    """Return True if an attribute has the value from the JSON: text unchanged, everything else as JSON."""
    if text is None or said is None:
        return text is None and said is None
    return text == said if isinstance(said, str) else bool(json.loads(text) == said)


@pytest.mark.logs(".")
@pytest.mark.parametrize("case", folder_cases([case for layout in LAYOUTS for case in cases(layout)]))
@trio_test
async def test_they_say_what_info_says(case: Case) -> None:
    nodes = (await describe(MountConfig(store=str(case.path)), "/"))["nodes"]
    arrays = {node["path"]: node for node in json.loads(json.dumps(nodes)) if node["kind"] == "array"}
    async with tree_of(case.path) as tree:
        seen = set()
        for view in VIEWS:
            top = await walk(tree, view)
            assert isinstance(top, Directory)
            async for path, name, told in every_entry(top, view):
                assert told is not None, f"{path}/{name}"
                found = parsed(told)
                below = f"{path}/{name}".removeprefix(view)
                where = below.removesuffix(".npy") if view == "npy" else longest(arrays, below)
                if where == "/store" and "/" in arrays:
                    where = "/"
                if where in arrays and not name.endswith(".unsupported.txt"):
                    said = arrays[where]
                    seen.add((view, where))
                    for each in TOLD:
                        assert same(found.get(each), said[each]), (path, name, each)
                    assert same(found.get("shard_shape"), said["shards"][0]["shape"] if said["shards"] else None)
                else:
                    assert set(found) <= {"dialect", "attributes"}, f"{path}/{name}"
        assert {where for _, where in seen} == set(arrays) or not set(arrays)


def longest(arrays: dict[str, Any], below: str) -> str | None:
    """Return the array at a path, or the nearest one above it."""
    parts = below.split("/")
    for end in range(len(parts), 0, -1):
        if (path := "/".join(parts[:end]) or "/") in arrays:
            return path
    return None


@pytest.mark.logs(".")
@pytest.mark.parametrize("case", folder_cases(list(cases("hostile"))))
@trio_test
async def test_listing_hostile_stores_with_their_attributes_is_never_an_error(case: Case) -> None:
    async with tree_of(case.path) as tree:
        for view in VIEWS:
            top = await walk(tree, view)
            assert isinstance(top, Directory)
            async for path, name, told in every_entry(top, view):
                assert told is not None, f"{path}/{name}"


V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [8, 8],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 8]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": "NaN",
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2, 2],
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            },
        }
    ],
    "dimension_names": ["y", None],
    "attributes": {"title": "a", "limits": [0, 1.5]},
}


async def told_of(tree: MountTree, path: str) -> dict[str, str]:
    node = await walk(tree, path)
    found = await node.extended_attributes()
    assert found is not None
    return parsed(found)


@trio_test
async def test_of_shards_and_of_the_chunks_in_them(tmp_path: Path) -> None:
    write(tmp_path, {"zarr.json": json.dumps(V3).encode()})
    async with tree_of(tmp_path) as tree:
        found = await told_of(tree, "chunks")
    assert found["shape"] == "[8,8]"
    assert found["chunk_shape"] == "[2,2]"
    assert found["shard_shape"] == "[4,8]"
    assert [codec["name"] for codec in json.loads(found["codecs"])] == ["bytes", "crc32c"]
    assert found["fill_value"] == "NaN"
    assert found["dimension_names"] == '["y",null]'
    assert found["attributes"] == '{"title":"a","limits":[0,1.5]}'
    assert found["dialect"] == "v3"


@trio_test
async def test_an_undefined_fill_value_is_not_there_and_one_that_is_text_is_told_as_it_is(tmp_path: Path) -> None:
    document = json.loads(array_document((4,), (2,), "<U3")) | {"fill_value": "no"}
    undefined = json.loads(array_document((4,), (2,))) | {"fill_value": None}
    values = {".zgroup": {"zarr_format": 2}, "text/.zarray": document, "undefined/.zarray": undefined}
    write(tmp_path, {key: json.dumps(value).encode() for key, value in values.items()})
    async with tree_of(tmp_path) as tree:
        assert (await told_of(tree, "chunks/text"))["fill_value"] == "no"
        assert "fill_value" not in await told_of(tree, "chunks/undefined")


@pytest.mark.logs(".")
@trio_test
async def test_where_the_root_is_no_array_that_can_be_shown_its_dialect_is_told(tmp_path: Path) -> None:
    write(tmp_path, {".zarray": array_document((6,), (2,), compressor={"id": "nobody-knows"})})
    async with tree_of(tmp_path) as tree:
        for view in ("chunks", "zarr3"):
            assert await told_of(tree, view) == {"dialect": "v2"}


# --- listing --------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=3000), max_size=12), st.integers(0, 80_000))
def test_what_is_listed_fits_on_a_file_of_this_machine(values: list[bytes], large: int) -> None:
    named = [(f"user.zarr.{number}", value) for number, value in enumerate([*values, bytes(large)])]
    found = attributes_of(named)
    assert found.values == {name: value if len(value) <= MAX_NBYTES else None for name, value in named}
    with tempfile.NamedTemporaryFile() as file:
        for name in found.listed:
            value = found.values[name]
            assert value is not None
            try:
                os.setxattr(file.fileno(), name, value)
            except OSError as error:
                if error.errno == errno.ENOTSUP:
                    return
                raise


def test_as_much_is_listed_as_fits() -> None:
    assert attributes_of([("user.zarr.a", bytes(1000)), ("user.zarr.b", bytes(4000)), ("user.zarr.c", b"x")]).listed == (
        "user.zarr.a",
        "user.zarr.c",
    )
    assert attributes_of([("user.zarr.a", bytes(3500))]).listed == ("user.zarr.a",)


def test_they_are_made_once_for_a_node_and_anew_for_another_one() -> None:
    attributes = NodeAttributes()
    path = NodePath("/g")
    node = GroupNode(path=path, dialect="v3", attributes={"a": math.nan})
    found = attributes.of(node)
    assert parsed(found) == {"dialect": "v3", "attributes": '{"a":"NaN"}'}
    assert attributes.of(node) is found
    assert parsed(attributes.of(GroupNode(path=path, dialect="v2"))) == {"dialect": "v2", "attributes": "{}"}
    assert attributes.of(node, forgets=True).forgets == "user.zarr."
    assert attributes.of(node).forgets is None
    assert attributes.of(UnsupportedNode(path=path, dialect="", reason="bad")).values == {}
    assert attributes.of(None) is BECOMING
