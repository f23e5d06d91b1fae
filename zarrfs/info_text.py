"""What ``zarrfs info`` prints for people: the hierarchy as a tree, one line a node; one node alone, with its attributes.

The description is `zarrfs.info.describe`'s: ``{"store": url, "nodes": [...]}``, a node being a dict with ``path`` and ``kind``
(array, group, unsupported) and what else its kind has; how much is stored is None where the store cannot list. Names and
attributes come from the store: neither may reach the terminal as control sequences, nor rich as markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text
from rich.tree import Tree

from zarrfs.terminal import printable, size


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
    chunk_shape = ", ".join(str(length) for length in node["chunk_shape"])
    parts = [
        f"{node['data_type']} ({shape})",
        f"chunks ({chunk_shape})",
        f"{node['dialect']} {' + '.join(node['codecs'])}".rstrip(),
        f"fill {fill if isinstance(fill, str) else json.dumps(fill)}",
    ]
    if node["chunks_stored"] is None:
        parts.append(f"{node['chunks_possible']} chunks, {size(node['nbytes'])}")
    else:
        parts.append(f"{node['chunks_stored']} of {node['chunks_possible']} chunks stored")
        parts.append(f"{size(node['stored_nbytes'])} for {size(node['nbytes'])}")
    return "  ".join(parts)


def _text(value: str, style: str = "") -> Text:
    return Text(printable(value), style)
