"""Outdated consolidated copies: zarr-python and xarray follow them, a mount of a local store does not.

A copy is compared with the nodes below its group while these are walked: it is read once, and each of their documents once more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from zarrfs.dialects.base import Layout
from zarrfs.errors import MetadataError, ZarrfsError
from zarrfs.hierarchy.consolidated import is_implicit
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import Key, NodePath
from zarrfs.model.metadata import GroupNode, Node, UnsupportedNode
from zarrfs.model.metadata_values import plain
from zarrfs.model.unparsed import Unparsed

# Documents that are requested together.
_BATCH = 256
# Larger ones are not compared: their values may take a multiple of that in memory.
_MAX_NBYTES = 1 << 20


@dataclass(slots=True)
class _Copy:
    """The copy of the group at ``path``, under ``key``: its ``documents`` by the keys of their originals, and those not met yet."""

    path: NodePath
    key: Key
    layout: Layout
    documents: Mapping[Key, bytes]
    left: dict[Key, None]


class ComparedCopies:
    """The copies of the groups above the node that was met last. Unreadable ones are not compared.

    ``on_found`` is called with the path of a group, the key of its copy and what that lacks, has or differs from.
    """

    def __init__(self, hierarchy: Hierarchy, on_found: Callable[[NodePath, Key, str], None]) -> None:
        self._hierarchy = hierarchy
        self._on_found = on_found
        self._open: list[_Copy] = []

    async def meet(self, node: Node) -> None:
        """Compare the copies above ``node`` with its documents, and open its own. Nodes are met before those below them."""
        while self._open and self._open[-1].path not in (node.path, *node.path.ancestors()):
            await self._end(self._open.pop())
        layout = self._hierarchy.roots.layout_of(node)
        if layout is None:
            return
        if isinstance(node, GroupNode):
            await self._begin(layout, node)
        if copies := [copy for copy in self._open if copy.layout.dialect is layout.dialect and copy.layout.prefix == layout.prefix]:
            await self._compare(layout, node, copies)

    async def end(self) -> None:
        """Report what is left in the copies after the last node."""
        while self._open:
            await self._end(self._open.pop())

    async def _begin(self, layout: Layout, group: GroupNode) -> None:
        key = layout.copy_key(group.path)
        if key is None and group.has_copy:
            key = layout.document_keys(group.path)[0]
        if key is None:
            return
        try:
            found = await self._hierarchy.documents((key,))
            documents = layout.copied_documents(key, found[key]) if key in found else {}
        except ZarrfsError:
            return
        if key in found:
            self._open.append(_Copy(group.path, key, layout, documents, dict.fromkeys(documents)))

    async def _compare(self, layout: Layout, node: Node, copies: Iterable[_Copy]) -> None:
        keys = layout.document_keys(node.path)
        stored = await self._hierarchy.documents(keys)
        for copy in copies:
            for key in keys if stored else ():
                copy.left.pop(key, None)
            # A group's own document is in a copy beside it, and not in one that it has itself.
            own = [key for key in stored if key != copy.key and (node.path != copy.path or key in copy.documents)]
            # Attributes alone, left by a kill, are no node of v2: no copy lists them.
            if not own or is_implicit(node) or isinstance(node, UnsupportedNode):
                continue
            if not any(key in copy.documents for key in own):
                self._add(copy, f"lacks {node.path}")
            elif differing := next((key for key in keys if _differs(layout, node, key, stored, copy)), None):
                self._add(copy, f"differs from {differing}")

    async def _end(self, copy: _Copy) -> None:
        left = list(copy.left)
        gone: set[NodePath] = set()
        for start in range(0, len(left), _BATCH):
            some = left[start : start + _BATCH]
            there = await self._hierarchy.documents(some)
            for key in some:
                if key in there or (path := copy.layout.node_of_document(key)) is None:
                    continue
                # A group without documents may be in a copy, and one that has lost them is read from it.
                if path not in gone and await self._hierarchy.node(path) is None:
                    gone.add(path)
                    self._add(copy, f"has {path}, which is not in the store")

    def _add(self, copy: _Copy, what: str) -> None:
        self._on_found(copy.path, copy.key, what)


def _differs(layout: Layout, node: Node, key: Key, stored: Mapping[Key, bytes], copy: _Copy) -> bool:
    """Return True if the document ``key`` of ``node`` has another meaning in the copy."""
    here, there = stored.get(key), copy.documents.get(key)
    # Some programs store no empty attributes, and copy them.
    if key == copy.key or max(len(each or b"") for each in (here, there)) > _MAX_NBYTES:
        return False
    if _plain(here or b"{}") == _plain(there or b"{}"):
        return False
    if here is None or there is None:
        return True
    # Programs write the same in several ways.
    try:
        return _meaning(layout.parse(node.path, stored)) != _meaning(layout.parse(node.path, {**stored, key: there}))
    except MetadataError:
        return True


def _meaning(node: Node | None) -> object:
    if node is None or isinstance(node, UnsupportedNode):
        return None
    # Those of large documents may be unparsed.
    attributes = {name: _plain(each.data) if isinstance(each, Unparsed) else each for name, each in node.attributes.items()}
    return plain(attributes), getattr(node, "metadata", None)


def _plain(document: bytes) -> object:
    try:
        return json.loads(document)
    except (ValueError, RecursionError):
        return None
