"""A container format for tests, for the arrays of a group: one line of JSON, then the elements of each array.

The line names every node of the file: an array with its offset, shape, type and attributes, a group with its attributes, and a node that
cannot be read with the reason. Booleans and half floats are wider in the file, and 16-bit integers big-endian.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from zarrfs.containers.base import Elements, FileLayout, GroupContainer, Literal
from zarrfs.errors import NotRepresentable
from zarrfs.model.data_type import require_plain
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode

_IN_FILE = {"|b1": "|i1", "<f2": "<f4", "<i2": ">i2"}


class Bundle(GroupContainer):
    """The format (see the module). ``layouts``: number of calls of `layout` so far."""

    layouts: ClassVar[int] = 0
    name: ClassVar[str] = "bundle"
    suffix: ClassVar[str] = ".bundle"
    most_nodes: ClassVar[int] = 60
    example: ClassVar[tuple[str, str] | None] = ("head -1 bundle/*.bundle", "the nodes of the store")

    def layout(self, nodes: Sequence[Node]) -> FileLayout:
        Bundle.layouts += 1
        if any(node.path.name == "refused" for node in nodes):
            raise NotRepresentable("a node is called refused")
        listed: dict[str, Any] = {}
        elements: list[Elements] = []
        # Extents precede the line in the order of offsets, so that no offset depends on the length of the line.
        offset = 0
        for node in nodes:
            match node:
                case ArrayNode():
                    require_plain(node.metadata.data_type, "a bundle")
                    stored = node.metadata.data_type.npy_dtype
                    dtype = np.dtype(_IN_FILE.get(stored.str, stored))
                    nbytes = node.metadata.nbytes // stored.itemsize * dtype.itemsize if stored.itemsize else 0
                    descr = np.lib.format.dtype_to_descr(dtype)
                    listed[node.path] = [offset, list(node.metadata.shape), descr, dict(node.attributes)]
                    if nbytes:
                        elements.append(Elements(offset, nbytes, path=node.path, dtype=dtype))
                    offset += nbytes
                case GroupNode():
                    listed[node.path] = dict(node.attributes)
                case UnsupportedNode():
                    listed[node.path] = node.reason
        line = json.dumps(listed, default=repr).encode() + b"\n"
        moved = (Elements(each.offset + len(line), each.nbytes, path=each.path, dtype=each.dtype) for each in elements)
        return FileLayout((Literal(0, line), *moved))


def loaded(data: bytes) -> dict[str, Any]:
    """Return the nodes of a bundle by path: an array as array and attributes, a group as attributes, another node as its reason."""
    line, _, rest = data.partition(b"\n")
    found: dict[str, Any] = {}
    for path, node in json.loads(line).items():
        if not isinstance(node, list):
            found[path] = node
            continue
        offset, shape, descr, attributes = node
        count = int(np.prod(shape))
        elements = np.frombuffer(rest, np.lib.format.descr_to_dtype(descr), count, offset) if count else np.zeros(0, descr)
        found[path] = elements.reshape(shape), attributes
    return found


PLUGIN = Bundle()
OFFER = {"zarrfs.views": "tests.support.bundle_view:PLUGIN"}
"""The plug-in for `tests.support.plugged.offer`."""
