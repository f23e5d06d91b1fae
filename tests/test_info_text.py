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
