"""The chunks of an array as its documents say that they are stored: the layers of `ChunkStore` from the store up."""

from __future__ import annotations

from zarrfs.hierarchy.chunks import ChunkStore, StoredChunks
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.base import Store


def chunks_of(store: Store, node: ArrayNode) -> ChunkStore:
    """The chunks of ``node``; coordinates are those of its ``metadata.chunk_grid``."""
    metadata = node.metadata
    return StoredChunks(store, node.chunk_prefix, metadata.chunk_key_encoding, metadata.stored_grid_shape)
