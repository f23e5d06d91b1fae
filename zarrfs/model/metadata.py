"""Nodes of a hierarchy and the content of their documents, independent of any dialect.

A dialect parses its documents into these values and formats them back; other content of the documents (unknown members, extensions)
stays there, as `zarrfs.dialects` amends documents rather than rewriting them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from zarrfs.errors import MetadataUnsupported
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.chunk_grid import ChunkGrid, Coords, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType
from zarrfs.model.fill_value import undefined
from zarrfs.model.shards import ShardSpec

# A chunk is decoded whole. Blosc cannot hold more than this, and a malicious document declares 2^62 bytes as easily as 2^10.
MAX_CHUNK_NBYTES = 2**31 - 1
# Limit of variable-size elements: a short one takes some 60 bytes of memory, for about the same total.
MAX_CHUNK_OBJECTS = 2**25
# Longer fill values are kept without their padding.
_LONG_FILL_NBYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMetadata:
    """An array of any dialect.

    ``shape``: elements in each dimension. ``fill_value``: one element in the memory form of `data_type` (little-endian bytes; for a type
    of variable size see `zarrfs.model.fill_value`), or None if the document leaves it undefined (null). ``codecs``: from array to bytes,
    in the order of encoding; a chain without an array->bytes codec means C order, little-endian.

    ``shards`` describes the bundling of chunks, if any, outermost first; ``chunk_grid`` and ``codecs`` are those of the innermost chunks,
    and ``chunk_key_encoding`` names the outermost shards.
    """

    shape: Shape
    data_type: DataType
    chunk_grid: ChunkGrid
    chunk_key_encoding: ChunkKeyEncoding
    fill_value: bytes | None
    codecs: tuple[CodecSpec, ...]
    dimension_names: tuple[str | None, ...] | None = None
    shards: tuple[ShardSpec, ...] = ()
    _unpadded: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """A long ``fill_value`` without its padding: a document of 100 bytes declares megabytes, and a listing holds many arrays at once."""
    _held_nbytes: int | None = field(default=None, init=False, repr=False, compare=False)
    """See `held_nbytes`: computed once, since many arrays share this object (`zarrfs.dialects.parse_once`)."""

    def __post_init__(self) -> None:
        if self.fill_value is not None and len(self.fill_value) > _LONG_FILL_NBYTES and not self.data_type.is_variable:
            object.__setattr__(self, "_unpadded", self.fill_value.rstrip(b"\0"))
            object.__delattr__(self, "fill_value")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the ``fill_value`` that is kept without its padding: called for missing attributes only."""
            if name == "fill_value" and self._unpadded is not None:
                return self._unpadded.ljust(self.data_type.itemsize, b"\0")
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def grid_shape(self) -> Shape:
        """Number of chunks along each dimension."""
        return self.chunk_grid.grid_shape(self.shape)

    @property
    def chunks_per_key(self) -> Shape:
        """Number of chunks along each dimension under one store key."""
        return (
            tuple(math.prod(counts) for counts in zip(*(spec.chunks_per_shard for spec in self.shards), strict=True))
            or (1,) * self.ndim
        )

    @property
    def stored_grid_shape(self) -> Shape:
        """Number of stored values along each dimension: shards, or chunks if these are not bundled."""
        return tuple(-(-extent // count) for extent, count in zip(self.grid_shape, self.chunks_per_key, strict=True))

    @property
    def bundles(self) -> Iterator[tuple[ShardSpec, Shape]]:
        """Each of ``shards``, outermost first, with the grid of its content: chunks, or the shards of the next level."""
        return self.bundles_of(self.grid_shape)

    def bundles_of(self, grid_shape: Shape) -> Iterator[tuple[ShardSpec, Shape]]:
        """Return `bundles` for another grid of chunks."""
        for level, spec in enumerate(self.shards):
            within = grid_shape
            for inner in reversed(self.shards[level + 1 :]):
                within = inner.grid_of_shards(within)
            yield spec, within

    def grid_with(self, chunks: Iterable[Coords]) -> Shape:
        """Return the shape of the grid extended to these chunks, and to all others that share a key with one of them."""
        per_axis = zip(self.grid_shape, self.chunks_per_key, *chunks, strict=True)
        return tuple(max(extent, (max(indices) // count + 1) * count) for extent, count, *indices in per_axis)

    @property
    def can_be_unsharded(self) -> bool:
        """True if chunks are in shards from which they can be read one by one: not if a shard as a whole is encoded."""
        return bool(self.shards) and not any(spec.codecs for spec in self.shards)

    @property
    def nbytes(self) -> int:
        """Size of all elements, decoded, in bytes; of references to them, if they are of variable size."""
        return math.prod(self.shape) * self.data_type.itemsize

    @property
    def fill_bytes(self) -> bytes:
        """One element of a missing chunk: the fill value, or the substitute for an undefined one (`fill_value.undefined`)."""
        if self.fill_value is not None:
            return self.fill_value
        return undefined(self.data_type)

    @property
    def held_nbytes(self) -> int:
        """Approximate upper bound of the memory of this object, in bytes: short values take several times their text."""
        if self._held_nbytes is None:
            texts = (self.data_type, self.codecs, self.shards, self.dimension_names)
            fill = self.fill_value if self._unpadded is None else self._unpadded
            object.__setattr__(self, "_held_nbytes", len(fill or b"") + 8 * len(repr(texts)))
            assert self._held_nbytes is not None
        return self._held_nbytes

    def stores_as(self, other: ArrayMetadata) -> bool:
        """Return True if chunks of both hold the same elements: names of dimensions make no difference."""
        return replace(self, dimension_names=None) == replace(other, dimension_names=None)

    def is_resize_of(self, before: ArrayMetadata) -> bool:
        """Return True if only the shape, or the value of missing chunks, differs: a chunk stored in both is then the same."""
        if before.ndim != self.ndim:
            return False
        grid = before.chunk_grid.resized(self.shape)
        return replace(before, shape=self.shape, chunk_grid=grid, fill_value=self.fill_value).stores_as(self)

    def chunk_nbytes(self, coords: Coords) -> int:
        """Return the size of chunk ``coords``, decoded, at its full shape, in bytes; of references, if elements are of variable size."""
        return math.prod(self.chunk_grid.chunk_shape(coords)) * self.data_type.itemsize

    @property
    def max_chunk_nbytes(self) -> int:
        """Maximum of `chunk_nbytes`."""
        return math.prod(self.chunk_grid.largest) * self.data_type.itemsize

    @property
    def chunks_nbytes(self) -> int:
        """Size of all chunks, decoded, at their full shapes, in bytes: the array and the overhang beyond its edge."""
        ends = (self.chunk_grid.span(axis, count - 1)[1] if count else 0 for axis, count in enumerate(self.grid_shape))
        return math.prod(ends) * self.data_type.itemsize


def check_chunk_nbytes(chunk_shape: Shape, data_type: DataType) -> None:
    """Raise `MetadataUnsupported` for chunks whose decoded size exceeds `MAX_CHUNK_NBYTES`.

    Chunks of variable-size elements must not have more than `MAX_CHUNK_OBJECTS` of them.
    """
    if data_type.is_variable and math.prod(chunk_shape) > MAX_CHUNK_OBJECTS:
        raise MetadataUnsupported(
            f"chunks of {math.prod(chunk_shape)} elements of type {data_type.name} exceed the limit of {MAX_CHUNK_OBJECTS} elements"
        )
    nbytes = math.prod(chunk_shape) * data_type.itemsize
    if nbytes > MAX_CHUNK_NBYTES:
        raise MetadataUnsupported(f"chunks of {nbytes} bytes exceed the limit of {MAX_CHUNK_NBYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNode:
    """A group; ``explicit`` is False if it has no document and only its children imply it.

    ``quirks``: as in `ArrayNode`. ``has_copy``: its document holds a consolidated copy of the documents below it.
    """

    path: NodePath
    dialect: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    explicit: bool = True
    quirks: tuple[str, ...] = ()
    has_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayNode:
    """An array: ``chunk_prefix`` and the key encoding of the metadata give the store keys of its chunks.

    ``quirks``: deviations of its documents from their specification. ``warnings``: reasons why elements may differ from what is shown;
    they are logged. ``form``: the spelling its document uses where its layout has several (`Layout.in_form`).
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
    """A node whose documents exist but cannot be used, for ``reason``.

    ``bad``: they violate their specification, or are unreadable; else they require something that zarrfs does not support, or refuses.
    """

    path: NodePath
    dialect: str
    reason: str
    bad: bool = False


Node = GroupNode | ArrayNode | UnsupportedNode
