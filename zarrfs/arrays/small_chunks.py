"""Decoding of many small chunks at once, into a part of a slab (docs/design/037-small-chunks.md).

A NumPy view of each chunk's place costs several times the decoding of a chunk of a few bytes. The chunks of a block are therefore decoded
one after the other into a buffer of their own, and copied from there in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrfs.arrays.filling import fill
from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import ChunkDecodeError, StoreError, TooLarge, ZarrfsError
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.model.slab import Block

MAX_NBYTES = 64 * 1024
"""Size in bytes of the largest chunk that is decoded in this way: the copy then costs less than a view."""


def are_small(metadata: ArrayMetadata) -> bool:
    """Return True if the chunks of an array are all small, equal in shape and of fixed size, each with a key of its own."""
    if not metadata.shape or metadata.shards or metadata.data_type.is_variable or not metadata.chunk_grid.is_uniform:
        return False
    return 0 < metadata.max_chunk_nbytes <= MAX_NBYTES


class BlockPart(NamedTuple):
    """The chunks of ``block``, with ``coords``, to be decoded into ``out``: the elements of the block."""

    block: Block
    coords: Sequence[Coords]
    out: NDArray


def decode_blocks(
    chain: CodecChain,
    metadata: ArrayMetadata,
    parts: Sequence[BlockPart],
    stored: Mapping[Coords, Buffer],
    known: Mapping[Coords, NDArray],
) -> dict[Coords, ZarrfsError]:
    """Set the elements of all ``parts``; return the errors of chunks that cannot be decoded.

    A chunk is ``known`` by its elements, or ``stored`` as bytes; one in neither gets fill values.
    """
    failed: dict[Coords, ZarrfsError] = {}
    for part in parts:
        values = [stored.get(each) for each in part.coords] if stored else [None] * len(part.coords)
        if not known and all(value is None for value in values):
            fill(metadata, part.out)
            continue
        elements = None if known else _joined(chain, metadata, values)
        if elements is None:
            elements = np.empty((len(part.coords), *metadata.chunk_grid.largest), metadata.data_type.dtype)
            # A view of a chunk's memory takes less time than one of its elements.
            is_memory = chain.is_memory
            memory = elements.reshape(-1).view(np.uint8).reshape(len(part.coords), -1)
            for index, (coords, value) in enumerate(zip(part.coords, values, strict=True)):
                try:
                    if value is not None and is_memory and coords not in known:
                        memory[index] = np.frombuffer(chain.decode_memory(value, metadata.chunk_grid.largest), np.uint8)
                    else:
                        _set(chain, metadata, elements[index, ...], value, known.get(coords))
                except (ChunkDecodeError, StoreError, TooLarge) as error:
                    failed[coords] = error
        _place(part.block, part.out, elements)
    return failed


def _joined(chain: CodecChain, metadata: ArrayMetadata, values: Sequence[Buffer | None]) -> NDArray | None:
    """Return the elements of chunks whose bytes are their elements; None if one of them is not of that kind."""
    if not chain.is_plain:
        return None
    nbytes = metadata.max_chunk_nbytes
    whole = b"".join([value for value in values if value is not None and len(value) == nbytes])
    if len(whole) != nbytes * len(values):
        return None
    return np.frombuffer(whole, metadata.data_type.dtype).reshape(len(values), *metadata.chunk_grid.largest)


def _set(chain: CodecChain, metadata: ArrayMetadata, out: NDArray, value: Buffer | None, known: NDArray | None) -> None:
    if known is not None:
        out[...] = known
    elif value is None:
        fill(metadata, out)
    else:
        chain.decode_into(value, metadata.chunk_grid.largest, out)


def _place(block: Block, out: NDArray, elements: NDArray) -> None:
    """Copy the chunks in ``elements``, one after the other, to their places in ``out``."""
    ndim = len(block.grid)
    index: Any = (slice(None), *(0,) * block.leading)
    inside = elements[index].reshape(*block.grid, *block.chunk)
    order = [axis for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
    whole = inside.transpose(order).reshape([count * length for count, length in zip(block.grid, block.chunk, strict=True)])
    out[...] = whole[tuple(slice(0, length) for length in out.shape)]
