"""Arrays of any dialect as final v3: the metadata and the ``zarr.json`` that the views show.

Chunks appear as stored if final v3 can represent the array's codecs, else decoded (`zarr3_array`), or always decoded
(`decoded_array`). Shards are never shown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zarrfs.dialects.v3.chain import final_codecs, plain_codecs
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.errors import NotRepresentable
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import ChunkGrid, RegularGrid
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode
from zarrfs.model.unparsed import are_large
from zarrfs.views.shown_dimensions import DIMENSIONS
from zarrfs.views.zarr3_fill import shown_attributes

KEYS = chunk_key.default("/")
"""Chunk keys of arrays whose own keys are not shown."""
DECODED_KEYS = chunk_key.v2(".")
"""Keys of chunks that are always decoded."""

_LAYOUT = V3.create(Prefix(""))
# Matches the number of nodes that the hierarchy caches.
_REMEMBERED = 50_000
_LARGE_NBYTES = 8 << 10
_REMEMBERED_NBYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Zarr3Array:
    """An array as a view shows it: its metadata, and the document with that metadata.

    ``encoded``: chunk files hold the stored bytes; otherwise decoded chunks.
    """

    metadata: ArrayMetadata
    encoded: bool
    document: bytes


def zarr3_array(node: ArrayNode) -> Zarr3Array:
    """Return ``node`` with its chunks as stored, if possible. Raises `NotRepresentable`."""
    # Chunk key encodings of other layouts are hidden: final v3 cannot represent all of them, and their programs do not use this view.
    # `KEYS` is what most v3 programs request for a new array, so they can create arrays here.
    keys = node.metadata.chunk_key_encoding if node.dialect == V3.name else KEYS
    try:
        if node.dialect != V3.name and _is_transposed_text(node.metadata):
            raise NotRepresentable(
                "zarr-python 3.1 writes transposed elements of variable length in another order than it reads them"
            )
        codecs = final_codecs(node.metadata.codecs, node.metadata.data_type)
    except NotRepresentable:
        return _shown(node, plain_codecs(node.metadata.data_type), keys, encoded=False)
    return _shown(node, codecs, keys, encoded=True)


def decoded_array(node: ArrayNode) -> Zarr3Array:
    """Return ``node`` with decoded chunks under keys of Zarr v2: C order, little-endian. Raises `NotRepresentable`."""
    return _shown(node, plain_codecs(node.metadata.data_type), DECODED_KEYS, encoded=False)


def dimension_names(node: ArrayNode) -> tuple[str | None, ...] | None:
    """Return the dimension names; in dialects without them, those in the attribute. None if there are none."""
    metadata, names = node.metadata, node.attributes.get(DIMENSIONS)
    if node.dialect == V3.name or metadata.dimension_names is not None:
        return metadata.dimension_names
    if not isinstance(names, list) or len(names) != metadata.ndim or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)


def is_named(shown: ArrayMetadata) -> bool:
    """Return True if all dimensions have names, which CF readers require."""
    return shown.dimension_names is not None and None not in shown.dimension_names


def formatted(node: ArrayNode | GroupNode) -> bytes:
    """Return the ``zarr.json`` of a node whose metadata is that of final v3. Raises `NotRepresentable`."""
    (document,) = _LAYOUT.format(replace(node, path=ROOT)).values()
    return document


def _is_transposed_text(metadata: ArrayMetadata) -> bool:
    return metadata.data_type.is_variable and any(spec.name == "transpose" for spec in metadata.codecs)


def _without_zeros(grid: ChunkGrid) -> ChunkGrid:
    """Return the grid as documents have it: chunks of length 0, which a dimension of length 0 may have, have length 1."""
    return RegularGrid(tuple(max(1, length) for length in grid.chunks)) if isinstance(grid, RegularGrid) else grid


def _shown(node: ArrayNode, codecs: tuple[CodecSpec, ...], keys: ChunkKeyEncoding, *, encoded: bool) -> Zarr3Array:
    shown = replace(
        node.metadata,
        codecs=codecs,
        chunk_grid=_without_zeros(node.metadata.chunk_grid),
        chunk_key_encoding=keys,
        fill_value=node.metadata.fill_bytes,
        dimension_names=dimension_names(node),
        shards=(),
    )
    attributes: Mapping[str, Any] = shown_attributes(node, named=is_named(shown))
    if shown.dimension_names is not None and node.dialect != V3.name:
        # The dimension names replace it.
        attributes = {name: value for name, value in attributes.items() if name != DIMENSIONS}
    return Zarr3Array(shown, encoded, formatted(replace(node, metadata=shown, attributes=attributes)))


class ShownArrays:
    """Cache of what ``show`` returns for the most recently used arrays."""

    def __init__(self, show: Callable[[ArrayNode], Zarr3Array]) -> None:
        self._show = show
        self._shown: OrderedDict[NodePath, tuple[ArrayNode, Zarr3Array]] = OrderedDict()
        self._keys: OrderedDict[NodePath, ChunkKeyEncoding] = OrderedDict()
        # Bytes of the large entries, without their attributes.
        self._nbytes: OrderedDict[NodePath, int] = OrderedDict()
        self._all_nbytes = 0

    def document(self, node: ArrayNode) -> bytes:
        """Return the document of ``node``. Raises `NotRepresentable`."""
        known = self._shown.get(node.path)
        return (known[1] if known is not None and known[0] is node else self._look(node)).document

    def known_keys(self, path: NodePath) -> ChunkKeyEncoding | None:
        """Return the key encoding of the array at ``path``; None if it was never looked at."""
        return self._keys.get(path)

    def of(self, node: ArrayNode) -> Zarr3Array:
        """Return how the chunks of ``node`` appear. Its attributes may be outdated; they do not affect chunks."""
        known = self._shown.get(node.path)
        if known is not None and (known[0] is node or (known[0].metadata, known[0].dialect) == (node.metadata, node.dialect)):
            return known[1]
        return self._look(node)

    def _look(self, node: ArrayNode) -> Zarr3Array:
        shown = self._show(node)
        # A large document is not cached, everything else is.
        large = are_large(node.attributes) or len(shown.document) > _LARGE_NBYTES
        self._forget(node.path)
        self._keys[node.path] = shown.metadata.chunk_key_encoding
        if len(self._keys) > _REMEMBERED:
            self._keys.popitem(last=False)
        self._shown[node.path] = (replace(node, attributes={}), replace(shown, document=b"")) if large else (node, shown)
        if (nbytes := node.metadata.held_nbytes) > _LARGE_NBYTES:
            self._nbytes[node.path] = nbytes
            self._all_nbytes += nbytes
        while len(self._shown) > _REMEMBERED:
            self._forget(next(iter(self._shown)))
        while self._all_nbytes > _REMEMBERED_NBYTES:
            self._forget(next(iter(self._nbytes)))
        return shown

    def _forget(self, path: NodePath) -> None:
        self._shown.pop(path, None)
        self._all_nbytes -= self._nbytes.pop(path, 0)
