"""Effects of a change in the store on nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zarrfs.arrays.layers import ChunkBox
from zarrfs.hierarchy.path_index import PathIndex
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords

# Beyond this number, changed chunks are not reported one by one.
_MANY_CHUNKS = 65_536


class NodeChange(NamedTuple):
    """A change of a node: of chunk ``coords`` of the array at ``path``, or (None) of anything in the node or below it."""

    path: NodePath
    coords: Coords | None = None


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """The changes of ``nodes``, of ``chunks`` of arrays, and of ``tops`` with every known node below them.

    May be iterated several times, in portions; nodes learnt meanwhile may be left out.
    """

    nodes: tuple[NodeChange, ...] = ()
    chunks: tuple[tuple[NodePath, ChunkBox | Sequence[Coords]], ...] = ()
    tops: tuple[NodePath, ...] = ()
    known: PathIndex = field(default_factory=PathIndex)

    def __iter__(self) -> Iterator[NodeChange]:
        yield from self.nodes
        for path, box in self.chunks:
            if count(box) <= _MANY_CHUNKS:
                yield from (NodeChange(path, coords) for coords in box)
        for top in self.tops:
            yield NodeChange(top)
            yield from (NodeChange(path) for path in self.known.at_and_below(top) if path != top)

    @property
    def whole(self) -> list[NodePath]:
        """Arrays of which too many chunks changed to be reported one by one."""
        return [path for path, box in self.chunks if count(box) > _MANY_CHUNKS]


def count(box: ChunkBox | Sequence[Coords]) -> int:
    """Return the number of chunks."""
    return box.count if isinstance(box, ChunkBox) else len(box)
