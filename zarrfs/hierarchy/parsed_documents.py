"""Arrays by their documents: those of one store often have the same ones, and differ in their paths alone."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import replace

from zarrfs.dialects.base import Documents, Layout
from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayNode, Node

_MOST = 64
_MOST_NBYTES = 8 * 1024
# Paths of which every layout makes the same. Others may be no nodes, whatever their documents: names that a layout reserves.
_PLAIN = re.compile(r"(/[A-Za-z][A-Za-z0-9_-]*)+")

_Parsed = tuple[Layout, tuple[bytes | None, ...]]


class ParsedDocuments:
    """The arrays parsed last, of small documents. They share their metadata, which is most of what a known array takes in memory."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[_Parsed, ArrayNode] = OrderedDict()

    def parse(self, layout: Layout, path: NodePath, documents: Documents) -> Node | None:
        """Return `Layout.parse`, of a layout without consolidated copy. Raises `MetadataError`."""
        keys = layout.document_keys(path)
        content = tuple(documents.get(key) for key in keys)
        is_usual = (
            documents
            and layout.node_of_document(next(iter(documents))) == path
            and _PLAIN.fullmatch(path)
            and documents.keys() <= set(keys)
            and sum(map(len, documents.values())) <= _MOST_NBYTES
        )
        if not is_usual:
            return layout.parse(path, documents)
        parsed = layout, content
        if (same := self._parsed.get(parsed)) is not None:
            self._parsed.move_to_end(parsed)
            return replace(same, path=path, chunk_prefix=layout.chunk_prefix(path))
        node = layout.parse(path, documents)
        # Quirks may name keys.
        if isinstance(node, ArrayNode) and not node.quirks and not node.warnings:
            self._parsed[parsed] = node
            if len(self._parsed) > _MOST:
                self._parsed.popitem(last=False)
        return node
