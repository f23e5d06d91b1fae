"""Extended attributes ``user.zarr.*`` of the folder and the files of an array or a group.

They have the names and values of final Zarr v3, as in the output of ``zarrfs info --json``, for every dialect and view. Their
source is the cached metadata of the hierarchy: they need no read of the store. Strings appear as they are, other values as JSON::

    user.zarr.shape="[12,36,72]"   user.zarr.data_type="float32"   user.zarr.codecs="[{\\"name\\":\\"bytes\\",...}]"
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from zarrfs.dialects.documents import dump
from zarrfs.hierarchy.known_nodes import without_large_attributes
from zarrfs.keys import NodePath
from zarrfs.model import metadata_values
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.model.unparsed import Unparsed, are_large, nbytes_of
from zarrfs.vfs.extended_attributes import MAX_NBYTES, ExtendedAttributes, attributes_of

PREFIX = "user.zarr."

BECOMING = ExtendedAttributes(forgets=PREFIX)
"""Attributes of an entry in this mount only, until it becomes a node or a chunk: rsync -X sets them before the rename."""

_REMEMBERED = 64


class NodeAttributes:
    """The extended attributes of nodes.

    Those of the most recently requested nodes are cached: a listing with attributes requests them for each file in a folder.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[NodePath, tuple[Node, bool, ExtendedAttributes]] = OrderedDict()

    def of(self, node: Node | None, *, forgets: bool = False) -> ExtendedAttributes:
        """Return those of ``node``; `BECOMING` for None, a node that does not exist yet. ``forgets``: it may still become another."""
        if node is None:
            return BECOMING
        known = self._known.pop(node.path, None)
        if known is None or known[0] is not node or known[1] != forgets:
            known = node, forgets, described(node, forgets=forgets)
        if without_large_attributes(node) is node:
            self._known[node.path] = known
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return known[2]


def described(node: Node, *, forgets: bool = False) -> ExtendedAttributes:
    """Return the extended attributes of ``node``; of an unsupported node, only its dialect."""
    values = ((PREFIX + name, _text(value)) for name, value in _values(node) if value is not None)
    return attributes_of(values, forgets=PREFIX if forgets else None)


def _values(node: Node) -> Iterator[tuple[str, Any]]:
    """Yield names and values: first those that are always short, and most useful."""
    yield "dialect", node.dialect or None
    match node:
        case ArrayNode():
            metadata = node.metadata
            yield from metadata_values.of_array(metadata).items()
            shards = metadata_values.shards(metadata)
            yield "shard_shape", shards[0]["shape"] if shards else None
            yield "attributes", _attributes(node)
        case GroupNode():
            yield "attributes", _attributes(node)
        case UnsupportedNode():
            return


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    return dump(value, compact=True)


def _attributes(node: ArrayNode | GroupNode) -> Any:
    if are_large(node.attributes) and nbytes_of(node.attributes) > 2 * MAX_NBYTES:
        # To skip the formatting of a value that is too large anyway: the kernel requests attributes before each write(2).
        return " " * (MAX_NBYTES + 1)
    return {name: each if isinstance(each, Unparsed) else metadata_values.plain(each) for name, each in node.attributes.items()}
