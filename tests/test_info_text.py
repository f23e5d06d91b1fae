from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from zarrfs.info_text import render

ARRAY = {
    "path": "/a/t",
    "kind": "array",
    "dialect": "v3",
    "shape": [24, 10],
    "dimension_names": ["time", None],
    "data_type": "float32",
    "chunk_shape": [12, 10],
    "codecs": ["bytes", "zstd"],
    "fill_value": "NaN",
    "chunks_stored": 1,
    "chunks_possible": 2,
    "stored_nbytes": 300,
    "nbytes": 960 * 1024,
    "shards": [],
    "shards_stored": None,
    "shards_possible": None,
    "indexes": None,
    "attributes": {"units": "K"},
}


def printed(*nodes: dict[str, Any]) -> list[str]:
    console = Console(file=io.StringIO(), width=300)
    console.print(render({"store": "/x.zarr", "nodes": list(nodes)}))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_hierarchy_is_a_tree_of_one_line_a_node() -> None:
    root, group = ({"path": path, "kind": "group", "dialect": "v3"} for path in ("/", "/a"))
    odd = {"path": "/odd", "kind": "unsupported", "dialect": "v3", "reason": "sharding"}
    assert printed(root, group, ARRAY, odd) == [
        "/x.zarr",
        "└── /  group, v3",
        "    ├── a  group, v3",
        "    │   └── t  float32 (time: 24, 10)  chunks (12, 10)  v3 bytes + zstd  fill NaN  1 of 2 chunks stored  300 B for 960.0 KiB",
        "    └── odd  unsupported: sharding",
    ]


def test_one_node_alone_shows_its_attributes() -> None:
    lines = printed(ARRAY)
    assert lines[1].startswith("└── a/t  float32")
    assert lines[2].strip() == '└── units: "K"'


def test_a_store_that_cannot_list() -> None:
    unlisted = ARRAY | {"chunks_stored": None, "stored_nbytes": None, "fill_value": None}
    assert printed(unlisted)[1].endswith("fill null  2 chunks, 960.0 KiB")


def test_a_hostile_name_reaches_neither_the_terminal_nor_rich() -> None:
    lines = printed({"path": "/\x1b[2J[bold]x\n", "kind": "group", "dialect": "v2"})
    assert lines[1] == r"└── \x1b[2J[bold]x\n  group, v2"


OUTER = {
    "shape": [48, 20],
    "chunks_per_shard": [2, 1],
    "index_location": "end",
    "index_codecs": ["bytes", "crc32c"],
    "checksum": True,
    "codecs": [],
}
INNER = {
    "shape": [24, 20],
    "chunks_per_shard": [2, 2],
    "index_location": "start",
    "index_codecs": ["bytes"],
    "checksum": False,
    "codecs": ["gzip", "crc32c"],
}
SHARDED = ARRAY | {"chunks_stored": None, "shards": [OUTER, INNER], "shards_stored": 3, "shards_possible": 4}


def test_shards_are_told_with_the_chunks_within_them() -> None:
    lines = printed(SHARDED | {"attributes": {}})
    assert "  chunks (12, 10) in shards (24, 20) in shards (48, 20)  " in lines[1]
    assert lines[1].endswith("3 of 4 shards stored  300 B for 960.0 KiB")
    assert [line.strip(" └├─│") for line in lines[2:]] == [
        "shards (48, 20): 2 x 1 shards each, index at the end with a checksum",
        "shards (24, 20): 2 x 2 chunks each, index at the start without a checksum, as a whole gzip + crc32c",
    ]


def test_indexes_that_were_read_are_summed_up() -> None:
    indexes = {"read": 3, "bad": 0, "bad_chunks": 0, "chunks_possible": 8, "unused_nbytes": 2048, "fullness": 0.25}
    lines = printed(SHARDED | {"chunks_stored": 2, "chunks_possible": 9, "indexes": indexes})
    assert lines[1].endswith("2 of 9 chunks in 3 of 4 shards stored  300 B for 960.0 KiB")
    assert lines[4].strip(" └├─│") == "3 indexes read, 25 % of their chunks stored, 2.0 KiB unused"
    lines = printed(SHARDED | {"chunks_stored": 0, "indexes": indexes | {"bad": 1, "bad_chunks": 2, "fullness": None}})
    assert [line.strip(" └├─│") for line in lines[4:6]] == [
        "3 indexes read, 2.0 KiB unused",
        "1 index cannot be read, 2 entries cannot be right: zarrfs check tells which",
    ]


def test_a_store_of_shards_that_cannot_list() -> None:
    unlisted = SHARDED | {"stored_nbytes": None, "shards_stored": None}
    assert printed(unlisted)[1].endswith("4 shards, 960.0 KiB")


def test_shards_are_not_listed_among_other_nodes() -> None:
    assert len(printed({"path": "/", "kind": "group", "dialect": "v3"}, SHARDED)) == 3
