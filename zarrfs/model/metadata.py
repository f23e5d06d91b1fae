"""Nodes of a hierarchy and what their documents say, in words that no single dialect owns.

A dialect parses its documents into these values and formats them back; what the documents hold beyond them (unknown members,
extensions) stays in the documents, which `zarrfs.dialects` amends rather than rewrites.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zarrfs.errors import MetadataUnsupported
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.chunk_grid import ChunkGrid, Coords, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType
from zarrfs.model.fill_value import undefined
from zarrfs.model.shards import ShardSpec

# A chunk is decoded whole. Blosc cannot hold more than this, and a hostile document declares 2^62 bytes as easily as 2^10.
MAX_CHUNK_NBYTES = 2**31 - 1
# Of elements that have no fixed size: a short one takes some 60 bytes of memory, so that this comes to about as much.
MAX_CHUNK_OBJECTS = 2**25


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMetadata:
    """An array, whatever its dialect.

    ``shape``: elements a dimension. ``fill_value``: one element as `data_type` holds it in memory (little-endian bytes; of a type
    without a fixed size: see `zarrfs.model.fill_value`), or None
    where the document leaves it undefined (null). ``codecs``: from array to bytes, in the order of encoding; a chain without an
    array->bytes codec means C order, little-endian.

    Where chunks are bundled, ``shards`` says how, outermost first; ``chunk_grid`` and ``codecs`` are those of the innermost chunks, and
    ``chunk_key_encoding`` names the outermost shards.
    """

    shape: Shape
    data_type: DataType
    chunk_grid: ChunkGrid
    chunk_key_encoding: ChunkKeyEncoding
    fill_value: bytes | None
    codecs: tuple[CodecSpec, ...]
    dimension_names: tuple[str | None, ...] | None = None
    shards: tuple[ShardSpec, ...] = ()

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def grid_shape(self) -> Shape:
        """Chunks along each dimension."""
        return self.chunk_grid.grid_shape(self.shape)

    @property
    def chunks_per_key(self) -> Shape:
        """Chunks along each dimension that lie under one key of the store."""
        return (
            tuple(math.prod(counts) for counts in zip(*(spec.chunks_per_shard for spec in self.shards), strict=True))
            or (1,) * self.ndim
        )

    @property
    def stored_grid_shape(self) -> Shape:
        """Along each dimension, what the keys of the store name: shards, or chunks where these are not bundled."""
        return tuple(-(-extent // count) for extent, count in zip(self.grid_shape, self.chunks_per_key, strict=True))

    @property
    def bundles(self) -> Iterator[tuple[ShardSpec, Shape]]:
        """Each of ``shards``, outermost first, with the grid of what it bundles: chunks, or the shards of the next level."""
        for level, spec in enumerate(self.shards):
            grid_shape = self.grid_shape
            for inner in reversed(self.shards[level + 1 :]):
                grid_shape = inner.grid_of_shards(grid_shape)
            yield spec, grid_shape

    @property
    def can_be_unsharded(self) -> bool:
        """Whether chunks lie in shards, out of which they can be taken one by one: not where a shard as a whole is encoded."""
        return bool(self.shards) and not any(spec.codecs for spec in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, decoded; of references to them, where they have no fixed size."""
        return math.prod(self.shape) * self.data_type.itemsize

    @property
    def fill_bytes(self) -> bytes:
        """One element of what missing chunks read as: the fill value, or what stands for an undefined one (`fill_value.undefined`)."""
        if self.fill_value is not None:
            return self.fill_value
        return undefined(self.data_type)

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory, about and at most, that this takes: short values take several times their text."""
        texts = (self.data_type, self.codecs, self.shards, self.dimension_names)
        return len(self.fill_value or b"") + 8 * len(repr(texts))

    def stores_as(self, other: ArrayMetadata) -> bool:
        """True if chunks of both hold the same elements: names of dimensions make no difference."""
        return replace(self, dimension_names=None) == replace(other, dimension_names=None)

    def chunk_nbytes(self, coords: Coords) -> int:
        """Bytes of chunk ``coords``, decoded, at its full shape; of references to its elements, where these have no fixed size."""
        return math.prod(self.chunk_grid.chunk_shape(coords)) * self.data_type.itemsize

    @property
    def max_chunk_nbytes(self) -> int:
        """The most bytes that `chunk_nbytes` gives."""
        return math.prod(self.chunk_grid.largest) * self.data_type.itemsize

    @property
    def chunks_nbytes(self) -> int:
        """Bytes of all chunks together, decoded, at their full shapes: of the array and of what hangs over its edge."""
        ends = (self.chunk_grid.span(axis, count - 1)[1] if count else 0 for axis, count in enumerate(self.grid_shape))
        return math.prod(ends) * self.data_type.itemsize


def check_chunk_nbytes(chunk_shape: Shape, data_type: DataType) -> None:
    """Raise `MetadataUnsupported` for chunks that are larger, decoded, than `MAX_CHUNK_NBYTES`, and for those of more elements than
    `MAX_CHUNK_OBJECTS` where elements have no fixed size."""
    if data_type.is_variable and math.prod(chunk_shape) > MAX_CHUNK_OBJECTS:
        raise MetadataUnsupported(
            f"chunks of {math.prod(chunk_shape)} elements of type {data_type.name} have more than zarrfs decodes ({MAX_CHUNK_OBJECTS})"
        )
    nbytes = math.prod(chunk_shape) * data_type.itemsize
    if nbytes > MAX_CHUNK_NBYTES:
        raise MetadataUnsupported(f"chunks of {nbytes} bytes are larger than zarrfs decodes ({MAX_CHUNK_NBYTES})")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNode:
    """A group; ``explicit`` is False where no document says so and only its children imply it. ``quirks``: as of an `ArrayNode`.
    ``has_copy``: whether its document holds a consolidated copy of those below."""

    path: NodePath
    dialect: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    explicit: bool = True
    quirks: tuple[str, ...] = ()
    has_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayNode:
    """An array: ``chunk_prefix`` and the metadata's key encoding give its chunks' store keys.

    ``quirks``: where its documents deviate from their specification. ``warnings``: why elements may be something else than they are
    shown as; the log tells of these. ``form``: how its document spells what its layout spells in several ways (`Layout.in_form`).
    """

    path: NodePath
    dialect: str
    metadata: ArrayMetadata
    chunk_prefix: Prefix
    attributes: Mapping[str, Any] = field(default_factory=dict)
    quirks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    form: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedNode:
    """A node whose documents are there but cannot be used: ``reason`` is for a person to read.

    ``bad``: they are not what their specification demands, or cannot be read; else they ask for what zarrfs cannot do, or refuses to.
    """

    path: NodePath
    dialect: str
    reason: str
    bad: bool = False


Node = GroupNode | ArrayNode | UnsupportedNode
