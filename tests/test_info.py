"""``zarrfs info`` of sharded arrays: cheap for a whole store, and everything about one that is named."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.cases import cases
from tests.support.small_shards import ShardReads, UnlistableStore, document, shard, sharding
from tests.support.small_stores import SMALL, write
from tests.support.stores import fill
from zarrfs import cli, offline
from zarrfs.config import MountConfig
from zarrfs.info import describe
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore

GZIP = {"name": "gzip", "configuration": {"level": 1}}
# Three chunks of four, with four unused bytes.
SHARD = shard(4, {0: b"abcd", 1: b"efgh", 3: b"mnop"}, unused=b"gone")


def described(store: Path | str, path: str = "/a", **options: Any) -> dict[str, Any]:
    """The first node, every one of which has to be JSON."""
    nodes = trio.run(partial(describe, MountConfig(store=str(store)), path, **options))["nodes"]
    assert json.loads(json.dumps(nodes)) == nodes
    return dict(nodes[0])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three shards of four chunks in a grid of 2.5 shards."""
    return write(tmp_path, {"a/zarr.json": document(40, 16, sharding(4)), "a/c/0": SHARD, "a/c/2": shard(4, {0: b"abcd"})})


LEVEL = {
    "shape": [16],
    "chunks_per_shard": [4],
    "index_location": "end",
    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c", "configuration": {}}],
    "checksum": True,
    "codecs": [],
}


def test_a_store_is_described_without_reading_an_index(store: Path) -> None:
    said = described(store)
    assert said["shards"] == [LEVEL]
    assert (said["chunk_shape"], said["chunks_possible"], said["chunks_stored"]) == ([4], 10, None)
    assert (said["shards_stored"], said["shards_possible"], said["indexes"]) == (2, 3, None)
    assert said["stored_nbytes"] == len(SHARD) + len(shard(4, {0: b"abcd"}))


def test_of_an_array_that_is_asked_for_every_index_is_read(store: Path) -> None:
    said = described(store, indexes=True)
    assert (said["chunks_stored"], said["chunks_possible"], said["shards_stored"]) == (4, 10, 2)
    # The last shard has two chunks inside the grid.
    assert said["indexes"] == {
        "read": 2,
        "bad": 0,
        "bad_chunks": 0,
        "chunks_possible": 6,
        "unused_nbytes": 4,
        "fullness": 4 / 6,
    }


def test_bad_indexes_are_counted_and_not_in_the_way(store: Path) -> None:
    write(store, {"a/c/1": b"short", "a/c/2": shard(4, {0: b"abcd"}, others={1: (999, 4)})})
    said = described(store, indexes=True)
    assert said["chunks_stored"] == 4
    assert said["indexes"].items() >= {"read": 2, "bad": 1, "bad_chunks": 1, "chunks_possible": 6}.items()


def test_shards_outside_the_grid_count_for_nothing(store: Path) -> None:
    before = described(store, indexes=True)
    write(store, {"a/c/3": SHARD})
    assert described(store, indexes=True) == before


def test_levels_are_told_from_the_outside(tmp_path: Path) -> None:
    inner = sharding(2, index_location="start", index_codecs=[{"name": "bytes", "configuration": {"endian": "big"}}])
    write(tmp_path, {"a/zarr.json": document(40, 16, sharding(4, inner, GZIP), GZIP)})
    said = described(tmp_path, indexes=True)
    coded = [{"name": "gzip", "configuration": {"level": 1}}]
    outer = LEVEL | {"codecs": coded}
    within = {
        "shape": [4],
        "chunks_per_shard": [2],
        "index_location": "start",
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
        "checksum": False,
        "codecs": coded,
    }
    assert said["shards"] == [outer, within]
    assert (said["chunks_possible"], said["chunks_stored"], said["indexes"]["fullness"]) == (20, 0, None)


def test_nested_shards_of_zarr_python() -> None:
    (case,) = [case for case in cases("v3_final") if case.name == "v3_final/sharded"]
    said = described(case.path, "nested", indexes=True)
    assert [level["shape"] for level in said["shards"]] == [[8, 8], [4, 4]]
    assert (said["chunks_stored"], said["chunks_possible"], said["indexes"]["read"]) == (15, 32, 8)


def test_an_array_without_shards_has_none(tmp_path: Path) -> None:
    said = described(write(tmp_path, SMALL), indexes=True)
    assert (said["chunks_stored"], said["chunks_possible"]) == (5, 6)
    assert (said["shards"], said["shards_stored"], said["shards_possible"], said["indexes"]) == ([], None, None, None)


@pytest.mark.parametrize(("node", "reads"), [((), 0), (("/",), 0), (("a",), 40), (("/a/",), 40)])
def test_an_index_is_read_for_who_names_its_array(
    node: tuple[str, ...], reads: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ShardReads(MemoryStore())
    values = {"zarr.json": b'{"zarr_format": 3, "node_type": "group"}', "a/zarr.json": document(640, 16, sharding(4))}
    trio.run(fill, store, values | {f"a/c/{index}": SHARD for index in range(40)})

    async def open_it(url: str, read_only: bool = False) -> Store:
        return store

    monkeypatch.setattr(offline, "open_store", open_it)
    assert cli.run(["info", "memory:", *node, "--json"]) == 0
    (said,) = [each for each in json.loads(capsys.readouterr().out)["nodes"] if each["path"] == "/a"]
    assert (store.reads, said["shards_stored"]) == (reads, 40)
    assert said["chunks_stored"] == (120 if reads else None)


def test_a_store_that_cannot_list_tells_how_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore()
    trio.run(fill, inner, {"a/zarr.json": document(40, 16, sharding(4)), "a/c/0": SHARD})

    async def open_it(url: str, read_only: bool = False) -> Store:
        return UnlistableStore(inner)

    monkeypatch.setattr(offline, "open_store", open_it)
    said = described("memory:", indexes=True)
    assert (said["shards"], said["shards_stored"], said["shards_possible"], said["indexes"]) == ([LEVEL], None, 3, None)


def test_an_array_at_the_root_is_named_by_a_slash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"zarr.json": document(40, 16, sharding(4)), "c/0": SHARD})
    assert cli.run(["info", str(tmp_path)]) == 0
    assert "1 of 3 shards stored" in capsys.readouterr().out
    assert cli.run(["info", str(tmp_path), "/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "chunks (4) in shards (16)" in lines[1] and "3 of 10 chunks in 1 of 3 shards stored" in lines[1]
    assert lines[2].endswith("shards (16): 4 chunks each, index at the end with a checksum")
    assert lines[3].endswith("1 index read, 75 % of their chunks stored, 4 B unused")
