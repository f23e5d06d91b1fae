"""What an array or a group is, as extended attributes ``user.zarr.*`` of its folder and files: in the words of the final Zarr v3, as
``zarrfs info --json`` tells it, whatever the dialect and the view.

They are made from the metadata that the hierarchy knows anyway: nothing is read from the store for them. A text is told as it is,
everything else as JSON::

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
"""Of what is in this mount only, until it becomes a node, a chunk or an array: rsync -X sets them before it gives a file its name."""

_REMEMBERED = 64


class NodeAttributes:
    """The extended attributes of nodes. Those of the nodes that were asked for last are kept: who lists a folder with its attributes
    asks for each file in it."""

    def __init__(self) -> None:
        self._known: OrderedDict[NodePath, tuple[Node, bool, ExtendedAttributes]] = OrderedDict()

    def of(self, node: Node | None, *, forgets: bool = False) -> ExtendedAttributes:
        """Those of ``node``; of None, where there is no node yet, `BECOMING`. ``forgets``: it may still become another one."""
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
    """The extended attributes of ``node``; of one that cannot be shown nothing is known but its dialect."""
    values = ((PREFIX + name, _text(value)) for name, value in _values(node) if value is not None)
    return attributes_of(values, forgets=PREFIX if forgets else None)


def _values(node: Node) -> Iterator[tuple[str, Any]]:
    """Those first that are short whatever a document holds, and that tell most."""
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
        # Too large for an extended attribute in any case: not worth formatting at each write(2), before which the kernel asks.
        return " " * (MAX_NBYTES + 1)
    return {name: each if isinstance(each, Unparsed) else metadata_values.plain(each) for name, each in node.attributes.items()}
