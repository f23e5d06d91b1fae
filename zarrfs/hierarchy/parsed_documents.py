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

Content = tuple[Layout, tuple[bytes | None, ...]]
"""Documents without their keys, and their layout: arrays at different paths with the same one differ in nothing else."""


class ParsedDocuments:
    """The arrays parsed last, of small documents, by layouts without consolidated copy.

    They share their metadata, which is most of what a known array takes in memory.
    """

    def __init__(self) -> None:
        self._parsed: OrderedDict[Content, ArrayNode] = OrderedDict()

    def get(self, content: Content, path: NodePath) -> ArrayNode | None:
        """Return what `Layout.parse` would at ``path``, if another array has the same documents; else None."""
        same = self._parsed.get(content)
        if same is None:
            return None
        self._parsed.move_to_end(content)
        return replace(same, path=path, chunk_prefix=content[0].chunk_prefix(path))

    def keep(self, content: Content, node: Node | None) -> None:
        """Keep the result of `Layout.parse` for `get`, if it is an array."""
        # Quirks may name keys.
        if not isinstance(node, ArrayNode) or node.quirks or node.warnings:
            return
        self._parsed[content] = node
        if len(self._parsed) > _MAX_PARSED:
            self._parsed.popitem(last=False)


def content_of(layout: Layout, path: NodePath, documents: Documents) -> Content | None:
    """Return the documents without their keys; None if they are large, or if the layout may treat the path in its own way."""
    if not documents or sum(map(len, documents.values())) > _MAX_NBYTES or not _PLAIN.fullmatch(path):
        return None
    keys = layout.document_keys(path)
    if not documents.keys() <= set(keys) or layout.node_of_document(next(iter(documents))) != path:
        return None
    return layout, tuple(documents.get(key) for key in keys)
