from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from rich.tree import Tree

from zarrfs.reports.info_text import InfoTree

ARRAY = {
    "path": "/a/t",
    "kind": "array",
    "dialect": "v3",
    "hidden_dialects": [],
    "unknown_documents": [],
    "shape": [24, 10],
    "dimension_names": ["time", None],
    "data_type": "float32",
    "chunk_shape": [12, 10],
    "codecs": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    ],
    "fill_value": "NaN",
    "fill_text": "NaN",
    "chunks_stored": 1,
    "chunks_possible": 2,
    "stored_nbytes": 300,
    "nbytes": 960 * 1024,
    "ratio": 3276.8,
    "shards": [],
    "shards_stored": None,
    "shards_possible": None,
    "indexes": None,
    "error": None,
    "quirks": [],
    "attributes": {"units": "K"},
}


def codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def group(path: str, **more: Any) -> dict[str, Any]:
    known = {"hidden_dialects": [], "unknown_documents": []}
    return {"path": path, "kind": "group", "dialect": "v3", "explicit": True, "attributes": {}} | known | more


def printed(*nodes: dict[str, Any], whole: bool = False) -> list[str]:
    return text(Console(file=io.StringIO()), *nodes, whole=whole).splitlines()


def places(*nodes: dict[str, Any]) -> Iterator[tuple[tuple[bool, ...], bool]]:
    """Yield the place of each node, all of which are below the first one."""
    paths = [node["path"] for node in nodes]
    lines = [[each for each in paths if each in (paths[0], path) or path.startswith(f"{each}/")] for path in paths]
    for number, line in enumerate(lines):
        later = lines[number + 1 :]
        siblings = [
            [each for each in later if each[:level] == line[:level] != each and each[level] != line[level]]
            for level in range(1, len(line))
        ]
        yield (False, *map(bool, siblings)), any(paths[number] in each for each in later)


def text(console: Console, *nodes: dict[str, Any], whole: bool = False) -> str:
    tree = InfoTree(console, "/x.zarr", whole=whole)
    for node, place in zip(nodes, places(*nodes), strict=True):
        tree.add(node, *place)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_hierarchy_is_a_tree_of_one_line_a_node() -> None:
    odd = {
        "path": "/odd",
        "kind": "unsupported",
        "dialect": "v3",
        "hidden_dialects": [],
        "unknown_documents": [],
        "reason": "sharding",
    }
    assert printed(group("/"), group("/a", explicit=False, attributes={"x": 1, "y": 2}), ARRAY | {"quirks": ["odd"]}, odd) == [
        "/x.zarr",
        "└── /  group, v3",
        "    ├── a  implicit group, 2 attributes",
        "    │   └── t  float32 (time: 24, 10)  chunks (12, 10)  v3 bytes + zstd(level 3)  fill NaN  1 of 2 chunks stored  "
        "300 B for 960.0 KiB (3277 : 1)  1 quirk, 1 attribute",
        "    └── odd  unsupported: sharding",
    ]


def bare(lines: list[str]) -> list[str]:
    """Return the lines without those of the tree."""
    return [line.strip(" └├─│") for line in lines]


def test_one_node_alone_shows_its_attributes_and_quirks() -> None:
    lines = bare(printed(ARRAY | {"quirks": ["odd"]}))
    assert lines[1].startswith("a/t  float32") and lines[1].endswith("(3277 : 1)")
    assert lines[2:] == ["quirk: odd", "attributes", 'units: "K"']


def test_a_group_that_was_asked_for_shows_its_attributes_before_what_is_in_it() -> None:
    lines = bare(printed(group("/a", attributes={"title": "x"}), ARRAY, whole=True))
    assert lines[1:4] == ["a  group, v3", "attributes", 'title: "x"']
    assert lines[4].startswith("t  float32") and lines[4].endswith("1 attribute")


def test_documents_that_do_not_count_are_told_of_wherever_they_are() -> None:
    lines = bare(printed(group("/", hidden_dialects=["v2"]), ARRAY | {"hidden_dialects": ["v1", "v0"]}))
    assert lines[2] == "documents of v2 here are ignored"
    assert lines[4] == "documents of v1 and v0 here are ignored"


def test_what_keeps_a_listing_from_being_read_is_told() -> None:
    unread = {"chunks_stored": None, "stored_nbytes": None, "ratio": None, "error": "t: permission denied"}
    lines = bare(printed(group("/"), ARRAY | unread))
    assert lines[2].endswith("fill NaN  2 chunks, 960.0 KiB  1 attribute")
    assert lines[3] == "stored amount unknown: t: permission denied"


def test_numbers_that_are_too_large_to_be_told() -> None:
    line = printed(ARRAY | {"chunks_stored": 0, "chunks_possible": None, "stored_nbytes": 0, "nbytes": None, "ratio": None})[1]
    assert line.endswith("0 of more than 10^308 chunks stored  0 B")


def test_codecs_are_told_with_what_matters_of_their_configuration() -> None:
    codecs = [
        codec("transpose", order=[1, 0]),
        codec("bytes", endian="big"),
        codec("numcodecs.zlib", level=1),
        codec("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4, blocksize=0),
        codec("numcodecs.lzma", filters=[{"id": 3, "dist": 4}] * 9, preset=None),
    ]
    chain = "transpose(order [1, 0]) + bytes(endian big) + {}zlib(level 1) + blosc(cname lz4, clevel 5, shuffle shuffle) + {}lzma("
    assert f"  v3 {chain.format('numcodecs.', 'numcodecs.')}filters " in printed(ARRAY | {"codecs": codecs})[1]
    old = printed(ARRAY | {"codecs": codecs, "dialect": "v2"})[1]
    assert f"  v2 {chain.format('', '')}filters " in old and len(old) < 350


def test_data_types_with_a_configuration() -> None:
    time = {"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 1}}
    assert "─ a/t  numpy.datetime64(unit ns) (time" in printed(ARRAY | {"data_type": time})[1]
    fields = {"name": "structured", "configuration": {"fields": [["a", "int32"], ["b", time], ["c", "int16", [2, 2]]]}}
    assert "structured(a: int32, b: numpy.datetime64(unit ns), c: int16 (2, 2)) (" in printed(ARRAY | {"data_type": fields})[1]
    named = {"name": "struct", "configuration": {"fields": [{"name": "a", "data_type": "int32"}] * 1000}}
    assert len(printed(ARRAY | {"data_type": named})[1]) < 300


def test_a_store_that_cannot_list() -> None:
    unlisted = ARRAY | {"chunks_stored": None, "stored_nbytes": None, "ratio": None, "fill_value": None, "fill_text": None}
    assert printed(unlisted)[1].endswith("fill null  2 chunks, 960.0 KiB")


def test_a_hostile_name_reaches_neither_the_terminal_nor_rich() -> None:
    lines = printed(group("/\x1b[2J[bold]x\n", dialect="v2"))
    assert lines[1] == r"└── \x1b[2J[bold]x\n  group, v2"


OUTER = {
    "shape": [48, 20],
    "chunks_per_shard": [2, 1],
    "index_location": "end",
    "index_codecs": [codec("bytes"), codec("crc32c")],
    "checksum": True,
    "codecs": [],
}
INNER = {
    "shape": [24, 20],
    "chunks_per_shard": [2, 2],
    "index_location": "start",
    "index_codecs": [codec("bytes")],
    "checksum": False,
    "codecs": [codec("gzip", level=1), codec("crc32c")],
}
SHARDED = ARRAY | {"chunks_stored": None, "shards": [OUTER, INNER], "shards_stored": 3, "shards_possible": 4}


def test_shards_are_told_with_the_chunks_within_them() -> None:
    lines = printed(SHARDED | {"attributes": {}})
    assert "  chunks (12, 10) in shards (24, 20) in shards (48, 20)  " in lines[1]
    assert lines[1].endswith("3 of 4 shards stored  300 B for 960.0 KiB (3277 : 1)")
    assert [line.strip(" └├─│") for line in lines[2:]] == [
        "shards (48, 20): 2 x 1 shards each, index at the end with a checksum",
        "shards (24, 20): 2 x 2 chunks each, index at the start without a checksum, as a whole gzip(level 1) + crc32c",
    ]


def test_indexes_that_were_read_are_summed_up() -> None:
    indexes = {"read": 3, "bad": 0, "bad_chunks": 0, "chunks_possible": 8, "unused_nbytes": 2048, "fullness": 0.25}
    lines = printed(SHARDED | {"chunks_stored": 2, "chunks_possible": 9, "indexes": indexes})
    assert lines[1].endswith("2 of 9 chunks in 3 of 4 shards stored  300 B for 960.0 KiB (3277 : 1)")
    assert lines[4].strip(" └├─│") == "3 indexes read, 25 % of their chunks stored, 2.0 KiB unused"
    lines = printed(SHARDED | {"chunks_stored": 0, "indexes": indexes | {"bad": 1, "bad_chunks": 2, "fullness": None}})
    assert [line.strip(" └├─│") for line in lines[4:6]] == [
        "3 indexes read, 2.0 KiB unused",
        "1 index unreadable, 2 entries invalid (see: zarrfs check)",
    ]


def test_a_store_of_shards_that_cannot_list() -> None:
    unlisted = SHARDED | {"stored_nbytes": None, "ratio": None, "shards_stored": None}
    assert printed(unlisted)[1].endswith("4 shards, 960.0 KiB")


def test_shards_are_not_listed_among_other_nodes() -> None:
    assert len(printed(group("/"), SHARDED)) == 3


TERMINAL: dict[str, Any] = {"force_terminal": True, "color_system": "standard"}


def test_the_name_stands_out_and_the_rest_does_not() -> None:
    line = text(Console(file=io.StringIO(), width=400, **TERMINAL), ARRAY).splitlines()[1]
    assert (
        line.endswith("\x1b[1;36ma/t\x1b[0m  float32" + line.partition("float32")[2]) and "\x1b" not in line.partition("float32")[2]
    )


def test_a_line_is_wrapped_within_its_branch_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=60, **TERMINAL | {"color_system": None})
    lines = text(console, group("/"), ARRAY, ARRAY | {"path": "/b"}).splitlines()
    assert len(lines) > 6 and all(len(line) <= 60 for line in lines)
    at = next(number for number, line in enumerate(lines) if line.startswith("    ├── a/t"))
    assert lines[at + 1].startswith("    │   ") and lines[-1].startswith("        ")
    assert "".join(line.strip(" └├─│") for line in lines).replace(" ", "").count("12,10") == 2


def test_an_older_rich_draws_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of Debian 12 (13.3) and Ubuntu 24.04 (13.7) have no guides to take."""
    drawn = printed(group("/"), ARRAY)
    for name in ("TREE_GUIDES", "ASCII_GUIDES"):
        monkeypatch.delattr(Tree, name, raising=False)
    assert printed(group("/"), ARRAY) == drawn and drawn[-1].startswith("    └── ")
