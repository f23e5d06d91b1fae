"""The ``codecs`` of an array document of the final v3: the chain of the innermost chunks, and their bundling in shards.

Source: Zarr v3 core, "Codecs"; codec ``sharding_indexed`` 1.0, "Configuration parameters", "Binary shard format".

    {"name": "sharding_indexed", "configuration": {
        "chunk_shape": [2, 3], "codecs": [...],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}], "index_location": "end"}}

``chunk_shape`` is in the dimension order of the codec's input, which differs after ``transpose``; it divides the shape of the shard.
``codecs`` may contain ``sharding_indexed`` again. ``index_location`` defaults to "end" (which it was before it had a name).

Codecs before ``sharding_indexed`` move to the front of the inner chain (docs/design/008): a transposition of a shard is one of each of
its chunks, and a codec without effect on decoding (``numcodecs.bitround``) may run chunk by chunk. Codecs that change values are refused
there: a chunk absent from the shard has the fill value, and the specification does not define if before or after such a codec. On
writing, the part of the chain required by the order of the index moves out again, which is its original place unless it has no effect on
the order.

The index is an array of unsigned 64-bit integers with its own chain. Its size must be known, so that only ``bytes`` and ``crc32c`` are
allowed; every program writes these.
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

# Every level costs a further read for each chunk; real arrays have one or two.
_MAX_LEVELS = 8

_INDEX_TYPE = from_numpy(np.dtype(np.uint64))

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bundled:
    """The content of ``codecs``, as in `ArrayMetadata`. ``chunks`` is the shape of the innermost chunks."""

    chunks: Shape
    codecs: tuple[CodecSpec, ...]
    shards: tuple[ShardSpec, ...]


def parse_codecs(value: Any, element: DataType, outer: Shape, quirks: Quirks) -> Bundled:
    """Return the content of the JSON ``value`` for an array whose grid has chunks of shape ``outer``; deviations go to ``quirks``.

    Raises `MetadataError` for a value that the specification does not allow, `MetadataUnsupported` for an unknown one. The caller checks
    that the chain accepts the chunks: only the innermost ones are ever decoded.
    """
    ndim = len(outer)
    axes, chunks = tuple(range(ndim)), outer
    front: list[CodecSpec] = []
    shards: list[ShardSpec] = []
    chain = parse_list(value, "codecs", ndim, quirks)
    while (index := _sharding(chain)) is not None:
        if len(shards) == _MAX_LEVELS:
            raise MetadataUnsupported(f"nested shards exceed the limit of {_MAX_LEVELS} levels")
        for spec in chain[:index]:
            axes = _then(axes, _before_sharding(spec, element.dtype, ndim))
        configuration = chain[index].configuration
        check_members(configuration, ("chunk_shape", "codecs", "index_codecs", "index_location"), f"codec {SHARDING!r}")
        inner = _inner_chunks(documents.member(configuration, "chunk_shape"), tuple(chunks[axis] for axis in axes), axes)
        for spec in chain[index + 1 :]:
            lookup.resolve(spec, BYTE)
        shard = ShardSpec(
            # A dimension without elements may have chunks of length 0.
            chunks_per_shard=tuple(max(1, whole // part) if part else 1 for whole, part in zip(chunks, inner, strict=True)),
            index_location=_index_location(configuration.get("index_location", "end")),
            index_codecs=_index_codecs(documents.member(configuration, "index_codecs"), quirks),
            axes=axes,
            codecs=tuple(chain[index + 1 :]),
        )
        CodecChain.build(shard.index_codecs, _INDEX_TYPE).check(shard.index_shape)
        shards.append(shard)
        front += chain[:index]
        chunks = inner
        chain = parse_list(documents.member(configuration, "codecs"), "codecs", ndim, quirks)
    if len(front) + len(chain) > MAX_CODECS:
        raise MetadataUnsupported(f"chain of {len(front) + len(chain)} codecs exceeds the limit of {MAX_CODECS}")
    return Bundled(chunks, (*front, *chain), tuple(shards))


def codecs_to_json(metadata: ArrayMetadata, chunks: Shape) -> list[dict[str, Any]]:
    """Return the JSON of ``codecs`` for an array whose innermost chunks have the shape ``chunks``. Raises `NotRepresentable`."""
    ndim, dtype = metadata.ndim, metadata.data_type.dtype
    chain = list(CodecChain.build(metadata.codecs, metadata.data_type).v3_specs())
    levels: list[tuple[list[CodecSpec], ShardSpec]] = []
    axes: Axes = tuple(range(ndim))
    for shard in metadata.shards:
        before, chain = _split(chain, _from(axes, shard.axes), dtype)
        levels.append((before, shard))
        axes = shard.axes
    listed = list_to_json(chain)
    for before, shard in reversed(levels):
        sharding = CodecSpec(
            SHARDING,
            {
                "chunk_shape": [chunks[axis] for axis in shard.axes],
                "codecs": listed,
                "index_codecs": list_to_json(shard.index_codecs),
                "index_location": shard.index_location,
            },
        )
        listed = list_to_json([*before, sharding, *(lookup.resolve(spec, BYTE)[0] for spec in shard.codecs)])
        chunks = tuple(length * count for length, count in zip(chunks, shard.chunks_per_shard, strict=True))
    return listed


def _sharding(chain: list[CodecSpec]) -> int | None:
    """Return the place of ``sharding_indexed`` in a chain, which has at most one; None if absent."""
    return next((index for index, spec in enumerate(chain) if spec.name == SHARDING), None)


def _before_sharding(spec: CodecSpec, dtype: Dtype, ndim: int) -> Axes:
    """Return the permutation of dimensions by a codec before ``sharding_indexed``. Raises `MetadataUnsupported` for other codecs."""
    order = _order(spec, dtype, ndim)
    if order is None:
        raise MetadataUnsupported(
            f"codec {shortened(spec.name)} before {SHARDING} is not supported: missing chunks are undefined there"
        )
    return order


def _order(spec: CodecSpec, dtype: Dtype, ndim: int) -> Axes | None:
    codec = lookup.resolve(spec, dtype)[1]
    return codec.permutation(ndim) if isinstance(codec, ArrayArrayCodec) else None


def _inner_chunks(value: Any, outer: Shape, axes: Axes) -> Shape:
    """Return the shape of the chunks in a shard of shape ``outer`` (codec order), in the order of the array's dimensions."""
    inner = documents.shape(value, "chunk_shape")
    if len(inner) != len(outer):
        raise MetadataError(f"chunk shape {shortened(list(inner))} of {SHARDING} does not have {len(outer)} dimensions")
    if any(whole % part if part else whole for whole, part in zip(outer, inner, strict=True)):
        raise MetadataError(f"chunk shape {shortened(list(inner))} of {SHARDING} does not divide {shortened(list(outer))}")
    return tuple(inner[axes.index(axis)] for axis in range(len(axes)))


def _index_location(value: Any) -> str:
    if value not in ("start", "end"):
        raise MetadataError(f"index_location must be 'start' or 'end', not {shortened(value)}")
    return str(value)


def _index_codecs(value: Any, quirks: Quirks) -> tuple[CodecSpec, ...]:
    """Return the chain of the index, whose shape has one dimension more than the array; no accepted codec depends on it."""
    chain = parse_list(value, "index_codecs", 0, quirks)
    names = [spec.name for spec in chain]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        raise MetadataUnsupported(f"index_codecs must be 'bytes' and optionally 'crc32c'; {shortened(names)} are not supported")
    if chain[0].configuration.get("endian") not in ("little", "big"):
        raise MetadataError("codec 'bytes' of index_codecs: byte order must be 'little' or 'big'")
    return tuple(chain)


def _then(axes: Axes, order: Axes) -> Axes:
    """Return ``axes`` reordered by ``order``."""
    return tuple(axes[axis] for axis in order)


def _from(before: Axes, after: Axes) -> Axes:
    """Return the order that converts ``before`` to ``after``."""
    return tuple(before.index(axis) for axis in after)


def _split(chain: list[CodecSpec], order: Axes, dtype: Dtype) -> tuple[list[CodecSpec], list[CodecSpec]]:
    """Return the codecs that must precede the shards to give their dimensions ``order``, and the rest of the chain of their chunks.

    These are the beginning of the chain if it has that effect; else a transposition, which the rest first reverses.
    """
    straight: Axes = tuple(range(len(order)))
    now = straight
    for index, spec in enumerate([*chain, None]):
        if now == order:
            return chain[:index], chain[index:]
        each = None if spec is None else _order(spec, dtype, len(order))
        if each is None:
            break
        now = _then(now, each)
    undone = CodecSpec("transpose", {"order": list(_from(order, straight))})
    return [CodecSpec("transpose", {"order": list(order)})], [undone, *chain]
