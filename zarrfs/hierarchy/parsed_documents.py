"""Arrays by their documents: those of one store often have the same ones, and differ in their paths alone."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import replace

from zarrfs.dialects.base import Documents, Layout
from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayNode, Node

_MAX_PARSED = 64
_MAX_NBYTES = 8 * 1024
# Paths of which every layout makes the same. Others may be no nodes, whatever their documents: names that a layout reserves.
_PLAIN = re.compile(r"(/[A-Za-z][A-Za-z0-9_-]*)+")

_Content = tuple[Layout, tuple[bytes | None, ...]]


class ParsedDocuments:
    """The arrays parsed last, of small documents, by layouts without consolidated copy.

    They share their metadata, which is most of what a known array takes in memory.
    """

    def __init__(self) -> None:
        self._parsed: OrderedDict[_Content, ArrayNode] = OrderedDict()

    def get(self, layout: Layout, path: NodePath, documents: Documents) -> ArrayNode | None:
        """Return what `Layout.parse` would, if another array has the same documents; else None."""
        content = _content(layout, path, documents)
        same = self._parsed.get(content) if content is not None else None
        if content is None or same is None:
            return None
        self._parsed.move_to_end(content)
        return replace(same, path=path, chunk_prefix=layout.chunk_prefix(path))

    def keep(self, layout: Layout, path: NodePath, documents: Documents, node: Node | None) -> None:
        """Keep the result of `Layout.parse` for `get`, if it is an array."""
        content = _content(layout, path, documents)
        # Quirks may name keys.
        if content is None or not isinstance(node, ArrayNode) or node.quirks or node.warnings:
            return
        self._parsed[content] = node
        if len(self._parsed) > _MAX_PARSED:
            self._parsed.popitem(last=False)


def _content(layout: Layout, path: NodePath, documents: Documents) -> _Content | None:
    """Return the documents without their keys; None if they are large, or if the layout may treat the path in its own way."""
    if not documents or sum(map(len, documents.values())) > _MAX_NBYTES or not _PLAIN.fullmatch(path):
        return None
    keys = layout.document_keys(path)
    if not documents.keys() <= set(keys) or layout.node_of_document(next(iter(documents))) != path:
        return None
    return layout, tuple(documents.get(key) for key in keys)
