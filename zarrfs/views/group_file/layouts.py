"""Layouts of the files of groups. They are cached: each depends on the documents of all nodes below its group."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import trio

from zarrfs import threads
from zarrfs.arrays.flight import Flights
from zarrfs.containers.base import MAX_NBYTES, FileLayout, GroupContainer, Literal
from zarrfs.errors import NotRepresentable
from zarrfs.hierarchy.bound_paths import BoundPath
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.model.unparsed import Unparsed, nbytes_of
from zarrfs.stores.values import latest
from zarrfs.vfs.node import no_such_entry

MAX_KNOWN_NBYTES = 64 << 20
"""Limit of the attributes of all nodes in a file, of its literal bytes, and of those of all cached layouts."""

_RENDERED_NBYTES = 1 << 20


class GroupLayout:
    """The layout of a group's file. Another object after a change of a document that changes the file, or of an array's identity.

    ``arrays``: the arrays with elements in the file, by their paths at that time, each with its bound path.
    """

    def __init__(self, layout: FileLayout, arrays: Mapping[NodePath, tuple[ArrayMetadata, BoundPath]]) -> None:
        self.layout = layout
        self.arrays = arrays

    @property
    def is_outdated(self) -> bool:
        """True if an array is known to be gone, even if an equal one has its path."""
        return any(bound.why_gone is not None for _, bound in self.arrays.values())

    @property
    def held_nbytes(self) -> int:
        """Size of its literal bytes."""
        return sum(extent.nbytes for extent in self.layout.extents if isinstance(extent, Literal))


@dataclass(slots=True)
class _Known:
    """The layout of the ``nodes`` of a group; valid until ``expires``, and until a change after ``state``."""

    nodes: Sequence[Node]
    result: GroupLayout | NotRepresentable
    documents_ns: int | None
    state: tuple[int, int]
    expires: float
    nbytes: int

    def is_of(self, nodes: Sequence[Node]) -> bool:
        """Return True if it applies to ``nodes``, too."""
        is_outdated = isinstance(self.result, GroupLayout) and self.result.is_outdated
        return bool(self.nodes) and list(self.nodes) == nodes and not is_outdated


class GroupLayouts:
    """The layouts of one format, by the paths of groups.

    While a layout is cached and no document has changed, it costs no request and no pass over the nodes.
    """

    def __init__(self, hierarchy: Hierarchy, container: GroupContainer) -> None:
        self._hierarchy = hierarchy
        self._container = container
        self._known: OrderedDict[NodePath, _Known] = OrderedDict()
        self._nbytes = 0
        self._flights: Flights[NodePath] = Flights()

    async def at(self, path: NodePath) -> GroupLayout:
        """Return the present layout of the file of the node at ``path``. Raises `NotRepresentable`, `NoSuchEntry`."""
        result = (await self._looked_up(path)).result
        if isinstance(result, NotRepresentable):
            raise NotRepresentable(str(result), key=path)
        return result

    async def documents_ns(self, path: NodePath) -> int | None:
        """Return the time of the newest document in the file, if the store keeps times."""
        return (await self._looked_up(path)).documents_ns

    def last(self, path: NodePath) -> GroupLayout | None:
        """Return the layout that `at` returned last, if it is cached."""
        known = self._known.get(path)
        return known.result if known is not None and isinstance(known.result, GroupLayout) else None

    async def _looked_up(self, path: NodePath) -> _Known:
        while True:
            known = self._known.get(path)
            if known is not None and known.expires > trio.current_time() and known.state == self._state:
                self._known.move_to_end(path)
                return known
            if not await self._flights.joined(path):
                break
        with self._flights.started(path):
            return await self._learnt(path)

    @property
    def _state(self) -> tuple[int, int]:
        """Another value after any change of a document."""
        return self._hierarchy.forgotten.epoch, self._hierarchy.live.changes

    async def _learnt(self, path: NodePath) -> _Known:
        # A change during the pass makes the result invalid for the next caller.
        state, expires = self._state, trio.current_time() + self._hierarchy.ttl
        before = self._known.get(path)
        nodes: Sequence[Node] = ()
        result: GroupLayout | NotRepresentable
        try:
            nodes = await self._nodes(path)
            documents_ns = latest(*(self._hierarchy.documents_mtime_ns(node.path) for node in nodes))
            if before is not None and before.is_of(nodes):
                before.state, before.expires, before.documents_ns = state, expires, documents_ns
                return before
            result = await self._rendered(nodes)
        except NotRepresentable as error:
            result, documents_ns = error, None
        known = _Known(nodes, result, documents_ns, state, expires, 0)
        self._put(path, known)
        return known

    def _put(self, path: NodePath, known: _Known) -> None:
        known.nbytes = sum(_attributes_nbytes(node) for node in known.nodes)
        if isinstance(known.result, GroupLayout):
            known.nbytes += known.result.held_nbytes
        if (before := self._known.pop(path, None)) is not None:
            self._nbytes -= before.nbytes
        self._known[path] = known
        self._nbytes += known.nbytes
        while self._nbytes > MAX_KNOWN_NBYTES and len(self._known) > 1:
            _, dropped = self._known.popitem(last=False)
            self._nbytes -= dropped.nbytes

    async def _nodes(self, path: NodePath) -> list[Node]:
        """Return the node at ``path`` and all below it, as for `GroupContainer.layout`."""
        hierarchy, most = self._hierarchy, self._container.most_nodes
        top = await hierarchy.node(path)
        if top is None:
            raise no_such_entry(path)
        found: list[Node] = []
        left, nbytes = [top], 0
        while left:
            node = left.pop()
            found.append(node)
            nbytes += _attributes_nbytes(node)
            below: list[Node] = []
            if isinstance(node, GroupNode):
                async for _, child in hierarchy.children(node.path):
                    # Large attributes are left out of a listing.
                    if (whole := await hierarchy.node(child.path)) is not None:
                        below.append(whole)
                    if len(found) + len(left) + len(below) > most:
                        raise NotRepresentable(f"{path} has more than {most} nodes, the limit of one file", key=path)
            if nbytes > MAX_KNOWN_NBYTES:
                raise NotRepresentable(f"the attributes below {path} exceed {MAX_KNOWN_NBYTES} bytes", key=path)
            left.extend(reversed(below))
        return found

    async def _rendered(self, nodes: Sequence[Node]) -> GroupLayout:
        path = nodes[0].path
        try:
            layout = await threads.cpu(_RENDERED_NBYTES, lambda: self._container.layout([_parsed(node) for node in nodes]))
        except NotRepresentable:
            raise
        except Exception as error:
            raise NotRepresentable(reason_of(path, error), key=path) from error
        if layout.size > MAX_NBYTES:
            raise NotRepresentable(f"a file of {layout.size} bytes exceeds the maximum file size ({MAX_NBYTES})", key=path)
        of_elements = {extent.path for extent in layout.extents if not isinstance(extent, Literal)}
        bound_paths = self._hierarchy.live.bound_paths
        arrays = {
            node.path: (node.metadata, bound_paths.at(node.path))
            for node in nodes
            if isinstance(node, ArrayNode) and node.path in of_elements
        }
        return GroupLayout(layout, arrays)


def _parsed(node: Node) -> Node:
    """Return ``node`` with plain values for attributes."""
    if isinstance(node, UnsupportedNode) or not any(isinstance(value, Unparsed) for value in node.attributes.values()):
        return node
    plain = {name: json.loads(value.data) if isinstance(value, Unparsed) else value for name, value in node.attributes.items()}
    return replace(node, attributes=plain)


def _attributes_nbytes(node: Node) -> int:
    return nbytes_of(node.attributes) if isinstance(node, ArrayNode | GroupNode) else len(node.reason)
