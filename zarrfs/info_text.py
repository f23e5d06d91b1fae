"""What ``zarrfs info`` prints for people: the hierarchy as a tree, one line a node; one node alone, with its attributes.

The description is `zarrfs.info.describe`'s: ``{"store": url, "nodes": [...]}``, a node being a dict with ``path`` and ``kind``
(array, group, unsupported) and what else its kind has. How much is stored is None where the store cannot list; how many chunks are,
also where that is in indexes of shards that were not read. Names and attributes come from the store: neither may reach the terminal
as control sequences, nor rich as markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from zarrfs.terminal import counted, printable, size


def render(description: Mapping[str, Any]) -> Tree:
    """The tree to print."""
    nodes = description["nodes"]
    tree = Tree(_text(description["store"], "bold"), guide_style="dim")
    branches: dict[str, Tree] = {}
    for node in nodes:
        parent = node["path"].rpartition("/")[0] or "/"
        while parent != "/" and parent not in branches:
            parent = parent.rpartition("/")[0] or "/"
        under = branches.get(parent, tree) if node["path"] != "/" else tree
        base = parent if parent in branches else "/"
        branches[node["path"]] = branch = under.add(_line(node, node["path"].removeprefix(base).lstrip("/") or "/"))
        if len(nodes) == 1:
            for line in _shards(node) if node["kind"] == "array" else ():
                branch.add(_text(line))
            for name, value in node.get("attributes", {}).items():
                branch.add(_text(f"{name}: {json.dumps(value, ensure_ascii=False)}"))
    return tree


def _line(node: Mapping[str, Any], name: str) -> Text:
    line = _text(name, "bold cyan" if node["kind"] == "array" else "bold")
    line.append("  ")
    match node["kind"]:
        case "array":
            line.append_text(_text(_array(node)))
        case "unsupported":
            line.append_text(_text(f"unsupported: {node['reason']}", "yellow"))
        case _:
            line.append_text(_text(f"group, {node['dialect']}", "dim"))
    return line


def _array(node: Mapping[str, Any]) -> str:
    names = node.get("dimension_names") or [None] * len(node["shape"])
    shape = ", ".join(f"{name}: {length}" if name else str(length) for name, length in zip(names, node["shape"], strict=True))
    fill = node["fill_value"]
    parts = [
        f"{node['data_type']} ({shape})",
        " in ".join(
            [f"chunks {_shape(node['chunk_shape'])}", *(f"shards {_shape(each['shape'])}" for each in node["shards"][::-1])]
        ),
        f"{node['dialect']} {' + '.join(node['codecs'])}".rstrip(),
        f"fill {fill if isinstance(fill, str) and fill else json.dumps(fill)}",
    ]
    what, possible, amounts = "chunks", node["chunks_possible"], []
    if node["chunks_stored"] is not None:
        amounts.append(f"{node['chunks_stored']} of {possible} chunks")
    if node["shards"]:
        what, possible = "shards", node["shards_possible"]
        if node["shards_stored"] is not None:
            amounts.append(f"{node['shards_stored']} of {possible} shards")
    if amounts:
        parts.append(f"{' in '.join(amounts)} stored")
        # What elements of no fixed size take is not known before they are decoded.
        parts.append(size(node["stored_nbytes"]) + ("" if node["nbytes"] is None else f" for {size(node['nbytes'])}"))
    else:
        parts.append(f"{possible} {what}" + ("" if node["nbytes"] is None else f", {size(node['nbytes'])}"))
    return "  ".join(parts)


def _shards(node: Mapping[str, Any]) -> Iterator[str]:
    """Lines about the shards of an array, if it has some: how they are made and, where the indexes were read, how full they are."""
    levels = node["shards"]
    for each, inner in zip(levels, [*(["shards"] * (len(levels) - 1)), "chunks"], strict=False):
        checksum = "with a checksum" if each["checksum"] else "without a checksum"
        coded = f", as a whole {' + '.join(each['codecs'])}" if each["codecs"] else ""
        held = " x ".join(map(str, each["chunks_per_shard"])) or "1"
        yield f"shards {_shape(each['shape'])}: {held} {inner} each, index at the {each['index_location']} {checksum}{coded}"
    indexes = node["indexes"]
    if indexes is not None:
        full = "" if indexes["fullness"] is None else f", {100 * indexes['fullness']:.0f} % of their chunks stored"
        yield f"{counted(indexes['read'], 'index', 'indexes')} read{full}, {size(indexes['unused_nbytes'])} unused"
        faults = [f"{counted(indexes['bad'], 'index', 'indexes')} cannot be read"] if indexes["bad"] else []
        if indexes["bad_chunks"]:
            faults.append(f"{counted(indexes['bad_chunks'], 'entry', 'entries')} cannot be right")
        if faults:
            yield f"{', '.join(faults)}: zarrfs check tells which"


def _shape(lengths: Sequence[int]) -> str:
    return f"({', '.join(map(str, lengths))})"


def _text(value: str, style: str = "") -> Text:
    return Text(printable(value), style)
