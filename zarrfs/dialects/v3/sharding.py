"""The ``codecs`` of an array document of the final v3 as a whole: the chain of the innermost chunks, and how these are bundled in shards.

Source: Zarr v3 core, "Codecs"; codec ``sharding_indexed`` 1.0, "Configuration parameters", "Binary shard format".

    {"name": "sharding_indexed", "configuration": {
        "chunk_shape": [2, 3], "codecs": [...],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}], "index_location": "end"}}

``chunk_shape`` is in the dimensions that the codec meets, so in another order behind ``transpose``; it divides the shape of the shard.
``codecs`` may hold ``sharding_indexed`` again. ``index_location`` is "end" where it is left out (and was so before it had a name).

What stands before the codec goes to the front of the inner chain (docs/design/008): transposing a shard is transposing each of its
chunks, and what does nothing when it is decoded (``numcodecs.bitround``) may do it a chunk at a time. Codecs that change values are
refused there: a chunk that is not in the shard is filled with the fill value, and the text does not say on which side of such a codec.
When it is written back, as much of the chain comes out again as the order of the index asks for, which is where it was unless it
orders nothing.

The index is an array of unsigned 64-bit integers of its own chain. Its size has to be known, so that of the codecs here only ``bytes``
and ``crc32c`` remain; that is what every program writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrfs.codecs import lookup
from zarrfs.codecs.base import BYTE, ArrayArrayCodec, Dtype
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects import documents
from zarrfs.dialects.documents import shortened
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v3.codecs import MAX_CODECS, SHARDING, list_to_json, parse_list
from zarrfs.dialects.v3.extension import check_members
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_numpy
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.model.shards import ShardSpec

# Every level is a read more for each chunk; real ones are one or two.
_MAX_LEVELS = 8

_INDEX_TYPE = from_numpy(np.dtype(np.uint64))

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bundled:
    """What ``codecs`` say: as in `ArrayMetadata`. ``chunks`` is the shape of the innermost chunks."""

    chunks: Shape
    codecs: tuple[CodecSpec, ...]
    shards: tuple[ShardSpec, ...]


def parse_codecs(value: Any, element: DataType, outer: Shape, quirks: Quirks) -> Bundled:
    """What the JSON ``value`` says of an array whose grid has chunks of shape ``outer``; deviations are added to ``quirks``.

    Raises `MetadataError` for what the text does not allow, `MetadataUnsupported` for what is not known. Whether the chain can take
    such chunks is for the caller to check: only those that are innermost are ever decoded.
    """
    ndim = len(outer)
    axes, chunks = tuple(range(ndim)), outer
    front: list[CodecSpec] = []
    shards: list[ShardSpec] = []
    chain = parse_list(value, "codecs", ndim, quirks)
    while (place := _sharding(chain)) is not None:
        if len(shards) == _MAX_LEVELS:
            raise MetadataUnsupported(f"chunks are in shards of shards of more than {_MAX_LEVELS} levels")
        for spec in chain[:place]:
            axes = _then(axes, _before_sharding(spec, element.dtype, ndim))
        configuration = chain[place].configuration
        check_members(configuration, ("chunk_shape", "codecs", "index_codecs", "index_location"), f"codec {SHARDING!r}")
        inner = _inner_chunks(documents.member(configuration, "chunk_shape"), tuple(chunks[axis] for axis in axes), axes)
        for spec in chain[place + 1 :]:
            lookup.resolve(spec, BYTE)
        shard = ShardSpec(
            # A dimension without elements may have chunks of length 0.
            chunks_per_shard=tuple(max(1, whole // part) if part else 1 for whole, part in zip(chunks, inner, strict=True)),
            index_location=_index_location(configuration.get("index_location", "end")),
            index_codecs=_index_codecs(documents.member(configuration, "index_codecs"), quirks),
            axes=axes,
            codecs=tuple(chain[place + 1 :]),
        )
        CodecChain.build(shard.index_codecs, _INDEX_TYPE).check(shard.index_shape)
        shards.append(shard)
        front += chain[:place]
        chunks = inner
        chain = parse_list(documents.member(configuration, "codecs"), "codecs", ndim, quirks)
    if len(front) + len(chain) > MAX_CODECS:
        raise MetadataUnsupported(f"a chain of {len(front) + len(chain)} codecs is longer than zarrfs decodes ({MAX_CODECS})")
    return Bundled(chunks, (*front, *chain), tuple(shards))


def codecs_to_json(metadata: ArrayMetadata, chunks: Shape) -> list[dict[str, Any]]:
    """The JSON of ``codecs`` for an array whose innermost chunks have the shape ``chunks``. Raises `NotRepresentable`."""
    ndim, dtype = metadata.ndim, metadata.data_type.dtype
    chain = list(CodecChain.build(metadata.codecs, metadata.data_type).v3_specs())
    levels: list[tuple[list[CodecSpec], ShardSpec]] = []
    axes: Axes = tuple(range(ndim))
    for shard in metadata.shards:
        before, chain = _split(chain, _from(axes, shard.axes), dtype)
        levels.append((before, shard))
        axes = shard.axes
    said = list_to_json(chain)
    for before, shard in reversed(levels):
        sharding = CodecSpec(
            SHARDING,
            {
                "chunk_shape": [chunks[axis] for axis in shard.axes],
                "codecs": said,
                "index_codecs": list_to_json(shard.index_codecs),
                "index_location": shard.index_location,
            },
        )
        said = list_to_json([*before, sharding, *(lookup.resolve(spec, BYTE)[0] for spec in shard.codecs)])
        chunks = tuple(length * count for length, count in zip(chunks, shard.chunks_per_shard, strict=True))
    return said


def _sharding(chain: list[CodecSpec]) -> int | None:
    """The place of ``sharding_indexed`` in a chain, where there is at most one."""
    return next((place for place, spec in enumerate(chain) if spec.name == SHARDING), None)


def _before_sharding(spec: CodecSpec, dtype: Dtype, ndim: int) -> Axes:
    """What a codec before ``sharding_indexed`` does to the order of dimensions."""
    order = _order(spec, dtype, ndim)
    if order is None:
        raise MetadataUnsupported(
            f"codec {shortened(spec.name)} before {SHARDING} is not supported: what a chunk that is not stored holds is not defined there"
        )
    return order


def _order(spec: CodecSpec, dtype: Dtype, ndim: int) -> Axes | None:
    codec = lookup.resolve(spec, dtype)[1]
    return codec.permutation(ndim) if isinstance(codec, ArrayArrayCodec) else None


def _inner_chunks(value: Any, outer: Shape, axes: Axes) -> Shape:
    """The shape of the chunks in a shard of shape ``outer`` as the codec meets it, in the order of the array's dimensions."""
    inner = documents.shape(value, "chunk_shape")
    if len(inner) != len(outer):
        raise MetadataError(f"the chunk shape {shortened(list(inner))} of {SHARDING} is not for {len(outer)} dimensions")
    if any(whole % part if part else whole for whole, part in zip(outer, inner, strict=True)):
        raise MetadataError(f"the chunk shape {shortened(list(inner))} of {SHARDING} does not divide {shortened(list(outer))}")
    return tuple(inner[axes.index(axis)] for axis in range(len(axes)))


def _index_location(value: Any) -> str:
    if value not in ("start", "end"):
        raise MetadataError(f"index_location is 'start' or 'end', not {shortened(value)}")
    return str(value)


def _index_codecs(value: Any, quirks: Quirks) -> tuple[CodecSpec, ...]:
    """The chain of the index, whose shape has one dimension more than the array; no codec that is taken asks for it."""
    chain = parse_list(value, "index_codecs", 0, quirks)
    names = [spec.name for spec in chain]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        raise MetadataUnsupported(f"index_codecs are 'bytes' and perhaps 'crc32c'; {shortened(names)} are not supported")
    if chain[0].configuration.get("endian") not in ("little", "big"):
        raise MetadataError("codec 'bytes' of index_codecs needs a byte order, 'little' or 'big'")
    return tuple(chain)


def _then(axes: Axes, order: Axes) -> Axes:
    """``axes`` when their dimensions are ordered by ``order`` once more."""
    return tuple(axes[place] for place in order)


def _from(before: Axes, after: Axes) -> Axes:
    """The order that makes ``after`` of ``before``."""
    return tuple(before.index(axis) for axis in after)


def _split(chain: list[CodecSpec], order: Axes, dtype: Dtype) -> tuple[list[CodecSpec], list[CodecSpec]]:
    """What has to stand before the shards so that their dimensions have ``order``, and what is left of the chain of their chunks.

    That is the beginning of the chain where it does so; else a transposition, which the chain first undoes.
    """
    straight: Axes = tuple(range(len(order)))
    now = straight
    for place, spec in enumerate([*chain, None]):
        if now == order:
            return chain[:place], chain[place:]
        each = None if spec is None else _order(spec, dtype, len(order))
        if each is None:
            break
        now = _then(now, each)
    undone = CodecSpec("transpose", {"order": list(_from(order, straight))})
    return [CodecSpec("transpose", {"order": list(order)})], [undone, *chain]
