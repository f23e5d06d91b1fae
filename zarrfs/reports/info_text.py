"""Text output of ``zarrfs info``: the hierarchy as a tree, one line for each node; for one node also attributes and quirks.

The description of a node is that of `zarrfs.reports.info.describe`: a dict with ``path``, ``kind`` (array, group, unsupported) and
further members of its kind. Stored amounts are None if the store cannot list; so is the number of chunks in shards whose indexes were not
read. Names and attributes come from the store: they must reach neither the terminal as control sequences, nor rich as markup.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from zarrfs.printable import counted, printable, size
from zarrfs.reports.by_identity import ByIdentity

# Maximum of characters of one item in a line: a type may have a thousand fields.
_LONG = 120
_VALUE = 40
_NAMED = 5
# A line has at least this number of characters beside the tree, however narrow the terminal is.
_NARROW = 20
_FLUSHED_EVERY = 0.1
# Space, line past a node, fork and last fork, as in rich's trees, which have them since 13.9.
_GUIDES = ("    ", "│   ", "├── ", "└── ")
_ASCII_GUIDES = ("    ", "|   ", "+-- ", "`-- ")
# Omitted as of little use: how objects are encoded, defaults, and properties of the data type.
_BARE = {"json2", "msgpack2"}
_DROPPED = {("endian", "little"), ("blocksize", "0"), ("scale_factor", "1")}


Line = Sequence[tuple[str, str]]
"""Parts of a line, each with a style of rich: only for a terminal is a `rich.text.Text` made of them, which takes long."""


class InfoTree:
    """The tree on ``console``, printed node by node. ``whole``: with attributes and quirks of the first node, the one requested."""

    def __init__(self, console: Console, store: str, *, whole: bool) -> None:
        self._console = console
        self._store = store
        self._whole = whole
        self._paths: list[str] = []
        """The path of the last node of each level."""
        self._flushed = 0.0
        self._guides = _ASCII_GUIDES if console.options.ascii_only else _GUIDES

    def add(self, node: Mapping[str, Any], followed: Sequence[bool], has_nodes: bool) -> None:
        """Print a node; ``followed`` and ``has_nodes``: its place in the tree (`zarrfs.reports.offline.Placed`)."""
        is_first = not self._paths
        if is_first:
            self._print((), [_part(self._store, "bold")])
        path, level = node["path"], len(followed) - 1
        base = self._paths[level - 1] if level else "/"
        name = path.removeprefix(base).lstrip("/") or path
        self._paths[level:] = [path]
        more = is_first and (self._whole or not has_nodes)
        self._print(followed, _line(node, name, more))
        items = list(_items(node, more))
        for number, (item, below) in enumerate(items):
            places = (*followed, has_nodes or number + 1 < len(items))
            self._print(places, item)
            for index, each in enumerate(below):
                self._print((*places, index + 1 < len(below)), each)
        if (now := time.monotonic()) - self._flushed > _FLUSHED_EVERY:
            self._console.file.flush()
            self._flushed = now

    def _print(self, followed: Sequence[bool], line: Line) -> None:
        space, through, fork, end = self._guides
        above = "".join(through if each else space for each in followed[:-1])
        first = above + (fork if followed[-1] else end) if followed else ""
        if not self._console.is_terminal:
            # A file or pipe has no width to wrap at.
            self._console.file.write(f"{first}{''.join([part for part, _ in line])}\n")
            return
        rest = above + (through if followed[-1] else space) if followed else ""
        for number, part in enumerate(Text.assemble(*line).wrap(self._console, max(_NARROW, self._console.width - len(first)))):
            self._console.print(Text().append(rest if number else first, "dim").append_text(part), soft_wrap=True)


def _items(node: Mapping[str, Any], more: bool) -> Iterator[tuple[Line, Sequence[Line]]]:
    """Yield the lines on a node below its own, each with those below it; ``more``: with shards, attributes and quirks."""
    for line in _warnings(node):
        yield [_part(line, "yellow")], ()
    if more:
        for line in _shards(node) if node["kind"] == "array" else ():
            yield [_part(line)], ()
        for line in node.get("quirks", ()):
            yield [_part(f"quirk: {line}")], ()
        if node.get("attributes"):
            each = [[_part(f"{name}: {json.dumps(value, ensure_ascii=False)}")] for name, value in node["attributes"].items()]
            yield [_part("attributes", "dim")], each


def _line(node: Mapping[str, Any], name: str, more: bool) -> Line:
    line = [_part(name, "bold cyan" if node["kind"] == "array" else "bold"), ("  ", "")]
    # Shown in full below, or counted here.
    counts = [counted(len(node[what]), what[:-1]) for what in ("quirks", "attributes") if node.get(what) and not more]
    match node["kind"]:
        case "array":
            line.append(_part("  ".join([*_array(node), *([", ".join(counts)] if counts else [])])))
        case "unsupported":
            line.append(_part(f"unsupported: {node['reason']}", "yellow"))
        case _:
            # Without a document, a group is in no dialect: its members may be of any.
            kind = ["group", node["dialect"]] if node["explicit"] else ["implicit group"]
            line.append(_part(", ".join([*kind, *counts]), "dim"))
    return line


def _array(node: Mapping[str, Any]) -> list[str]:
    names = node.get("dimension_names") or [None] * len(node["shape"])
    shape = ", ".join(f"{name}: {length}" if name else str(length) for name, length in zip(names, node["shape"], strict=True))
    parts = [
        f"{_short(_data_type(node['data_type']))} ({_short(shape)})",
        " in ".join(
            [
                f"chunks {'' if node.get('chunks_equal', True) else 'up to '}{_shape(node['chunk_shape'])}",
                *(f"shards {_shape(each['shape'])}" for each in node["shards"][::-1]),
            ]
        ),
        f"{node['dialect']} {_codecs(node['codecs'], node['dialect'])}".rstrip(),
        f"fill {'null' if node['fill_text'] is None else _short(node['fill_text'])}",
    ]
    what, possible, amounts = "chunks", _number(node["chunks_possible"]), []
    if node["chunks_stored"] is not None:
        amounts.append(f"{node['chunks_stored']} of {possible} chunks")
    if node["shards"]:
        what, possible = "shards", _number(node["shards_possible"])
        if node["shards_stored"] is not None:
            amounts.append(f"{node['shards_stored']} of {possible} shards")
    # The decoded size of elements without a fixed size is not known before they are read.
    raw = "" if node["nbytes"] is None else size(node["nbytes"])
    if amounts:
        ratio = "" if node["ratio"] is None else f" ({_ratio(node['ratio'])} : 1)"
        parts.append(f"{' in '.join(amounts)} stored")
        parts.append(size(node["stored_nbytes"]) + (f" for {raw}{ratio}" if raw else ""))
    else:
        parts.append(", ".join([f"{possible} {what}", *([raw] if raw else [])]))
    return parts


def _warnings(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings on a node, shown in any case."""
    if node["hidden_dialects"]:
        yield f"documents of {' and '.join(node['hidden_dialects'])} here are ignored"
    if unknown := node["unknown_documents"]:
        yield f"of no known layout, damaged or of a later version of Zarr: {', '.join(unknown)}"
    if below := node.get("nodes_below"):
        more = ", ..." if below[_NAMED:] else ""
        yield f"nodes below this array, which no view shows: {', '.join(below[:_NAMED])}{more}"
    if node.get("error") is not None:
        yield f"stored amount unknown: {node['error']}"


def _shards(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on the shards of an array: their layout and, if the indexes were read, their content."""
    levels = node["shards"]
    for each, inner in zip(levels, [*(["shards"] * (len(levels) - 1)), "chunks"], strict=False):
        checksum = "with a checksum" if each["checksum"] else "without a checksum"
        coded = f", as a whole {_codecs(each['codecs'], node['dialect'])}" if each["codecs"] else ""
        held = " x ".join(map(str, each["chunks_per_shard"])) or "1"
        yield f"shards {_shape(each['shape'])}: {held} {inner} each, index at the {each['index_location']} {checksum}{coded}"
    indexes = node["indexes"]
    if indexes is not None:
        full = "" if indexes["fullness"] is None else f", {100 * indexes['fullness']:.0f} % of their chunks stored"
        yield f"{counted(indexes['read'], 'index', 'indexes')} read{full}, {size(indexes['unused_nbytes'])} unused"
        faults = [f"{counted(indexes['bad'], 'index', 'indexes')} unreadable"] if indexes["bad"] else []
        if indexes["bad_chunks"]:
            faults.append(f"{counted(indexes['bad_chunks'], 'entry', 'entries')} invalid")
        if faults:
            yield f"{', '.join(faults)} (see: zarrfs check)"


def _codecs(codecs: Sequence[Mapping[str, Any]], dialect: str) -> str:
    """Return a codec chain as one line. Only the final v3 has prefixes in names of codecs."""
    return _prefixed(codecs) if dialect == "v3" else _unprefixed(codecs)


@ByIdentity
def _prefixed(codecs: Sequence[Mapping[str, Any]]) -> str:
    return " + ".join(_codec(each["name"], each["configuration"]) for each in codecs)


@ByIdentity
def _unprefixed(codecs: Sequence[Mapping[str, Any]]) -> str:
    return " + ".join(_codec(each["name"].removeprefix("numcodecs."), each["configuration"]) for each in codecs)


def _codec(name: str, configuration: Mapping[str, Any]) -> str:
    return name if name in _BARE else name + _configuration(configuration)


def _configuration(configuration: Mapping[str, Any]) -> str:
    parts = []
    for name, value in configuration.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        # A type's size is obvious, and so are options that are off.
        if name != "typesize" and value not in (None, "", [], {}) and value is not False and (name, text) not in _DROPPED:
            parts.append(f"{name} {_short(text, _VALUE)}")
    return f"({', '.join(parts)})" if parts else ""


def _data_type(data_type: str | Mapping[str, Any]) -> str:
    """Return a type as ``int32``, ``numpy.datetime64(unit ns)`` or ``structured(a: int32, b: float64)``."""
    if isinstance(data_type, str):
        return data_type
    fields = data_type["configuration"].get("fields")
    if fields is None:
        return f"{data_type['name']}{_configuration(data_type['configuration'])}"
    return f"{data_type['name']}({', '.join(map(_field, fields))})"


def _field(field: Sequence[Any] | Mapping[str, Any]) -> str:
    if isinstance(field, Mapping):
        return f"{field['name']}: {_data_type(field['data_type'])}"
    return f"{field[0]}: {_data_type(field[1])}" + (f" {_shape(field[2])}" if len(field) > 2 else "")


def _shape(lengths: Sequence[int]) -> str:
    return f"({_short(', '.join(map(str, lengths)))})"


def _number(value: int | None) -> str:
    return "more than 10^308" if value is None else str(value)


def _ratio(value: float) -> str:
    return f"{value:.0f}" if 1000 <= value < 1e15 else f"{value:.3g}"


def _short(text: str, most: int = _LONG) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _part(value: str, style: str = "") -> tuple[str, str]:
    return printable(value), style
