"""A defect of one node hides no other node: in `zarrfs info`, in `zarrfs check`, and in the views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trio.testing import trio_test

from tests.support.mounting import zarrfs
from tests.support.mutations import mutated
from tests.support.trees import every_file, listing, read, tree_of

ARRAY = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": None, "filters": None, "order": "C"}
ENTRY = {"zarr_format": "https://purl.org/zarr/spec/core/3.0", "metadata_encoding": None, "extensions": []}
VIEWS = ("chunks", "zarr3", "npy")


def write_array(folder: Path, **changes: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".zarray").write_text(json.dumps(ARRAY | {"fill_value": 0} | changes))
    (folder / "0").write_bytes(b"\1\2")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Sound arrays, at the root and in a group, beside nodes that were once fatal."""
    store = tmp_path / "store"
    for place in ("a", "g/b", "g/z"):
        write_array(store / place)
    (store / "g" / ".zgroup").write_text('{"zarr_format": 2}')
    write_array(store / "g" / "times", dtype="<M8", fill_value=0)
    (store / "g" / "times" / "0").write_bytes(bytes(16))
    (store / "g" / "entry").mkdir()
    (store / "g" / "entry" / "zarr.json").write_text(json.dumps(ENTRY))
    (store / "g" / "group").mkdir()
    (store / "g" / "group" / ".zgroup").write_text("[" * 1000)
    write_array(store / "g" / "group" / "0" / "deep")
    return store


def described(store: Path) -> dict[str, dict[str, Any]]:
    """Return the nodes of ``zarrfs info --json`` by path; its text output has to succeed and name them too."""
    done = zarrfs("info", str(store), "--json")
    assert done.returncode == 0 and "defect" not in done.stderr, done.stderr
    nodes = {node["path"]: node for node in json.loads(done.stdout)["nodes"]}
    text = zarrfs("info", str(store))
    assert text.returncode == 0, text.stderr
    assert all(path.rpartition("/")[2] in text.stdout for path in nodes)
    return nodes


def checked(store: Path) -> dict[str, Any]:
    """Return the report of ``zarrfs check``."""
    done = zarrfs("check", str(store), "--json")
    assert done.returncode in (0, 1) and "defect" not in done.stderr, done.stderr
    return dict(json.loads(done.stdout))


def test_info_tells_of_every_node(store: Path) -> None:
    nodes = described(store)
    arrays = {path for path, node in nodes.items() if node["kind"] == "array"}
    assert arrays == {"/a", "/g/b", "/g/z", "/g/times", "/g/group/0/deep"}
    assert nodes["/g/times"]["fill_text"] == "0"
    assert "metadata_encoding" in nodes["/g/entry"]["reason"]
    assert "nested deeper" in nodes["/g/group"]["reason"]


def test_check_reads_the_chunks_of_every_node(store: Path) -> None:
    report = checked(store)
    assert report["complete"] and report["chunks"] == 5
    assert {finding["path"] for finding in report["bad"]} == {"/g/entry", "/g/group"}


def test_an_entry_point_that_cannot_be_read_hides_no_store(store: Path) -> None:
    (store / "zarr.json").write_text(json.dumps(ENTRY))
    nodes = described(store)
    assert "metadata_encoding" in nodes["/"]["reason"]
    assert {"/a", "/g/b", "/g/z"} <= {path for path, node in nodes.items() if node["kind"] == "array"}
    assert checked(store)["chunks"] == 5


def test_a_bad_array_with_many_chunk_folders_is_not_searched(store: Path) -> None:
    bad = store / "g" / "bad"
    write_array(bad, dtype="nonsense")
    for n in range(1200):
        (bad / str(n)).mkdir() if n else None
    assert {path for path in described(store) if path.startswith("/g/bad")} == {"/g/bad"}


@trio_test
async def test_the_views_list_the_neighbours(store: Path) -> None:
    async with tree_of(store) as tree:
        for view in VIEWS:
            names = set(await listing(tree, f"{view}/g"))
            suffix = ".npy" if view == "npy" else ""
            assert {f"{name}{suffix}" for name in ("b", "z", "times")} <= names
            assert {"entry.unsupported.txt", "group.unsupported.txt"} <= names
            assert b"metadata_encoding" in await read(tree, f"{view}/g/entry.unsupported.txt")


@pytest.mark.logs("read as its fallback")
@trio_test
async def test_documents_that_went_wrong_in_some_way_hide_nothing(tmp_path: Path) -> None:
    """As in ``tests/dialects/test_mutations.py``, through every view. An unexpected exception would be in the log and fail this test."""
    for seed in range(10_000, 10_040):
        case, key, values = mutated(seed)
        store = tmp_path / str(seed)
        for place, value in (values | {"sound/.zarray": json.dumps(ARRAY | {"fill_value": 7}).encode()}).items():
            (store / place).parent.mkdir(parents=True, exist_ok=True)
            (store / place).write_bytes(value)
        note = f"seed {seed}: {case}, {key}: {values[key][:2000]!r}"
        async with tree_of(store) as tree:
            for view in VIEWS:
                top = await listing(tree, view)
                if {"sound", "sound.npy"} & set(top):
                    async for path in every_file(tree, view):
                        if not path.rpartition("/")[2].isdecimal():
                            await size_of(tree, path)
                else:
                    assert any(name.endswith((".unsupported.txt", ".npy", ".zarray", "zarr.json")) for name in top), note


async def size_of(tree: Any, path: str) -> int:
    from tests.support.trees import walk

    return int((await (await walk(tree, path)).attributes()).size)
