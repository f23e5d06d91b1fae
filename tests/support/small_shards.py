"""Small sharded arrays of final v3, built by hand so that any part of a shard can be wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import google_crc32c

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.values import DirEntry, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore

EMPTY = 2**64 - 1
NONE = (EMPTY, EMPTY)
"""The index entry of a missing chunk."""

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CRC32C = {"name": "crc32c"}


def sharding(chunks: int, *codecs: Any, **more: Any) -> dict[str, Any]:
    """Return the codec, for chunks of that many elements; its index has a checksum and is at the end."""
    configuration = {"chunk_shape": [chunks], "codecs": codecs or [{"name": "bytes"}], "index_codecs": [LITTLE, CRC32C], **more}
    return {"name": "sharding_indexed", "configuration": configuration}


def document(shape: int, shard: int, *codecs: Any) -> bytes:
    """Return an array of bytes, filled with 9, in shards of that many elements."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [shape],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard]}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 9,
            "codecs": codecs,
            "attributes": {},
        }
    ).encode()


def index(pairs: Sequence[tuple[int, int]], *, checksum: int | None = None) -> bytes:
    """Return the encoded index with these pairs of offset and nbytes."""
    data = b"".join(struct.pack("<QQ", *pair) for pair in pairs)
    return data + struct.pack("<I", google_crc32c.value(data) if checksum is None else checksum)


def shard(
    count: int, chunks: Mapping[int, bytes], *, unused: bytes = b"", others: Mapping[int, tuple[int, int]] | None = None
) -> bytes:
    """Return a shard of ``count`` chunks with its index at the end.

    ``unused`` bytes precede all; ``others`` are pairs to use instead.
    """
    body, pairs = unused, [NONE] * count
    for place, chunk in chunks.items():
        pairs[place] = len(body), len(chunk)
        body += chunk
    for place, pair in (others or {}).items():
        pairs[place] = pair
    return body + index(pairs)


class UnlistableStore(ForwardingStore):
    """A store without listing, like a web server: keys are found only by request."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, list=False)

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        raise StoreUnsupported("this store cannot list", key=prefix)
        yield "", False, 0, None


class ShardReads(ForwardingStore):
    """Counts reads of shards."""

    reads = 0

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        self.reads += "/c/" in key
        return await super().get_with_stat(key, byte_range)

    async def get(self, key: Key) -> Buffer | None:
        self.reads += "/c/" in key
        return await super().get(key)

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        self.reads += any("/c/" in key for key, _ in key_ranges)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)
