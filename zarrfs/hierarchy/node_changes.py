"""What a change in the store means for the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from zarrfs.arrays.layers import ChunkBox
from zarrfs.hierarchy.path_index import PathIndex
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords

# More than these are not told one by one.
_MANY_CHUNKS = 65_536


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What a change in the store means for a node: chunk ``coords`` of the array at ``path``, or (None) anything of the node and of
    what lies below it."""

    path: NodePath
    coords: Coords | None = None


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """What a change in the store means: for ``nodes``, for ``chunks`` of arrays, for ``tops`` and every known node below them. May be
    gone through several times, a little at a time; what is learnt meanwhile may be left out."""

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
        """Arrays of which so many chunks are concerned that they are not named one by one."""
        return [path for path, box in self.chunks if count(box) > _MANY_CHUNKS]


def count(box: ChunkBox | Sequence[Coords]) -> int:
    """How many chunks these are."""
    return box.count if isinstance(box, ChunkBox) else len(box)
