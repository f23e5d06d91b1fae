"""Properties that an array keeps when another shape or data type is saved over it.

attributes          all; ``_ARRAY_DIMENSIONS`` only where the number of dimensions stays, ``_FillValue`` where the type holds it (in its
                    form)
dimension names     where the number of dimensions stays
chunk shape         where the number of dimensions stays and the grid is regular, with more chunks than one that is all of the array (or
                    where the shape stays); shards with it
chunk keys          always
codecs              all where the data type stays; else those that store every type exactly: transpose, bytes, bytes -> bytes codecs.
                    Filters on elements (delta, fixedscaleoffset, ...) were chosen for the former elements, and may round. Structures
                    become little-endian
fill value          where the new type can hold it; else undefined, where the layout can say so: zero would make zeros missing data; else
                    zero
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zarrfs.codecs import lookup
from zarrfs.codecs.base import ArrayArrayCodec, ArrayBytesCodec
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.base import Dialect, Layout
from zarrfs.errors import MetadataError
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.keys import NodePath
from zarrfs.model import cf_fill_value
from zarrfs.model.chunk_grid import RegularGrid, Shape
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, check_chunk_nbytes

_DIMENSIONS = "_ARRAY_DIMENSIONS"
# Configuration members with the number of bytes of an element.
_ELEMENT_SIZES = ("typesize", "elementsize")
_EXACT = "biufc"


def replacing(
    old: ArrayNode | None, path: NodePath, layout: Layout, new_arrays: NewArrays, *, shape: Shape, data_type: DataType, order: str
) -> ArrayNode:
    """Return the array of ``shape`` and ``data_type`` that replaces ``old`` (None: nothing) at ``path``, without attributes.

    Properties that it does not keep are those of a new array; ``order``: see `NewArrays.node`. Raises `MetadataError` if it is
    impossible.
    """
    try:
        fresh = new_arrays.node(path, layout, shape=shape, data_type=data_type, order=order)
    except MetadataError:
        if old is None:
            raise
        # The mount's options for new arrays may be impossible for this one.
        fresh = NewArrays().node(path, layout, shape=shape, data_type=data_type, order=order)
    if old is None or old.dialect != fresh.dialect:
        return fresh
    for metadata in _kept(old.metadata, fresh.metadata, layout.dialect):
        node = replace(fresh, metadata=metadata)
        try:
            check_chunk_nbytes(metadata.chunk_grid.largest, data_type)
            parsed = layout.parse(path, layout.format(node))
        except MetadataError:
            continue
        if isinstance(parsed, ArrayNode) and _is_meant(parsed.metadata, metadata):
            return replace(parsed, attributes={})
    return fresh


def kept_attributes(old: ArrayNode, new: ArrayNode, dialect: Dialect) -> dict[str, Any]:
    """Return the attributes of ``old`` that its replacement ``new``, of ``dialect``, keeps."""
    kept = dict(old.attributes)
    names = kept.get(_DIMENSIONS)
    if isinstance(names, list) and len(names) != new.metadata.ndim:
        del kept[_DIMENSIONS]
    before, after = old.metadata.data_type, new.metadata.data_type
    element = cf_fill_value.decode(before, kept.get(cf_fill_value.NAME))
    if element is not None and before != after:
        value = kept.pop(cf_fill_value.NAME)
        held = _held(element, before, after)
        if held is not None:
            # Readers of v2 take a plain number for every type. In v3, xarray's form of integers is one, and those of other types are not.
            is_v2 = dialect.fill_value_marks_missing
            is_number = isinstance(value, int | float) and (is_v2 or before.dtype.kind not in "iu")
            kept[cf_fill_value.NAME] = value if is_number else cf_fill_value.encode(after, held)
    return kept


def _kept(old: ArrayMetadata, fresh: ArrayMetadata, dialect: Dialect) -> Iterator[ArrayMetadata]:
    """Yield ``fresh`` with properties of ``old``, most first."""
    kept = replace(fresh, chunk_key_encoding=old.chunk_key_encoding, fill_value=_fill_value(old, fresh, dialect))
    if old.ndim == fresh.ndim:
        kept = replace(kept, dimension_names=old.dimension_names, **_chunks(old, fresh))
    try:
        codecs = CodecChain.build(_codecs(old, fresh), fresh.data_type).specs
    except MetadataError:
        codecs = fresh.codecs
    yield replace(kept, codecs=codecs)
    yield kept
    yield replace(kept, chunk_grid=fresh.chunk_grid, shards=())


def _chunks(old: ArrayMetadata, fresh: ArrayMetadata) -> dict[str, Any]:
    grid = old.chunk_grid
    if old.shape == fresh.shape:
        return {"chunk_grid": grid, "shards": old.shards}
    if not isinstance(grid, RegularGrid) or not isinstance(fresh.chunk_grid, RegularGrid):
        # Irregular lengths were chosen for the former elements.
        return {}
    if not old.shards and grid.chunks == tuple(max(length, 1) for length in old.shape):
        # All of the former array, which says nothing on others: of an array of one element there would be a chunk for each.
        return {}
    # Chunk lengths of a dimension of length 0 may be 0 too.
    chunks = tuple(length or guess for length, guess in zip(grid.chunks, fresh.chunk_grid.chunks, strict=True))
    return {"chunk_grid": RegularGrid(chunks), "shards": old.shards}


def _codecs(old: ArrayMetadata, fresh: ArrayMetadata) -> Sequence[CodecSpec]:
    if (old.data_type, old.ndim) == (fresh.data_type, fresh.ndim):
        return old.codecs
    sizes = old.data_type.itemsize, fresh.data_type.itemsize
    kept = [_sized(spec, *sizes) for spec in old.codecs if _stays(spec, old, fresh)]
    if fresh.data_type.dtype.names is not None and old.data_type != fresh.data_type:
        # zarr-python 3.1 reads every structure as little-endian, whatever the byte order of `bytes`.
        return [replace(spec, configuration={"endian": "little"}) if spec.name == "bytes" else spec for spec in kept]
    return kept


def _stays(spec: CodecSpec, old: ArrayMetadata, fresh: ArrayMetadata) -> bool:
    known = lookup.class_of(spec)
    if spec.name == "transpose":
        return old.ndim == fresh.ndim
    if issubclass(known, ArrayArrayCodec):
        return old.data_type == fresh.data_type
    if issubclass(known, ArrayBytesCodec) and old.data_type != fresh.data_type:
        return spec.name == "bytes" and "endian" in spec.configuration
    return True


def _sized(spec: CodecSpec, old: int, new: int) -> CodecSpec:
    """Return ``spec`` for elements of ``new`` bytes, if it was configured for those of ``old``."""
    sized = {name: new for name in _ELEMENT_SIZES if spec.configuration.get(name) == old}
    return replace(spec, configuration={**spec.configuration, **sized}) if sized else spec


def _fill_value(old: ArrayMetadata, fresh: ArrayMetadata, dialect: Dialect) -> bytes | None:
    """Return one element of the new type equal to the old fill value, else None for an undefined one, else the new default."""
    if old.fill_value is None or old.data_type == fresh.data_type:
        return old.fill_value
    held = _held(old.fill_value, old.data_type, fresh.data_type)
    if held is not None:
        return held
    return None if dialect.fill_value_marks_missing and dialect.has_undefined_fill else fresh.fill_value


def _held(element: bytes, before: DataType, after: DataType) -> bytes | None:
    """Return the element of ``after`` that equals ``element``, of ``before``; None if there is none."""
    if before.dtype.hasobject or before.dtype.kind not in _EXACT or after.dtype.kind not in _EXACT:
        return None
    number = np.frombuffer(element, before.dtype)
    with np.errstate(all="ignore"):
        # Complex numbers lose a part that is not 0, and then differ when converted back.
        held = (number.real if before.dtype.kind == "c" != after.dtype.kind else number).astype(after.dtype)
        back = held.real if after.dtype.kind == "c" != before.dtype.kind else held
        return held.tobytes() if back.astype(before.dtype).tobytes() == element else None


def _is_meant(parsed: ArrayMetadata, asked: ArrayMetadata) -> bool:
    """Return True if the layout reads back what was requested; it may spell codecs in another way."""
    return (parsed.data_type, parsed.chunk_grid, parsed.shards, parsed.fill_value, parsed.chunk_key_encoding) == (
        asked.data_type,
        asked.chunk_grid,
        asked.shards,
        asked.fill_value,
        asked.chunk_key_encoding,
    )
