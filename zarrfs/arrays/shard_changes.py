"""The content of a shard after changes of some of its chunks: see `zarrfs.arrays.sharded`."""

from __future__ import annotations

from collections.abc import Mapping

from zarrfs.arrays.chunk_store import ChunkStore, Merge, Written, new_generation
from zarrfs.arrays.paged_shard_index import FoundPairs
from zarrfs.arrays.shard_index_cache import KnownShard
from zarrfs.arrays.shard_index_reader import ShardIndexReader
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch
from zarrfs.keys import ByteRange
from zarrfs.memory.spill import buffer, is_large, refuse_lost
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.shards import Pairs, ShardSpec, assemble
from zarrfs.stores.values import KeyStat

UNSEEN = KnownShard(KeyStat(0, None, ""), FoundPairs({}), ("", None))
"""Stands for the stored form of a shard that is replaced whole, and therefore not read."""


class ShardReplaced(Exception):
    """A shard was replaced between its read and its set."""


async def reapplied(parent: ChunkStore, shard: Coords, group: dict[int, Written], known: KnownShard | None) -> dict[int, Written]:
    """Return ``group``, chunks to store in a shard by place, with merges reapplied to chunks other than their base.

    A merge is reapplied where the stored chunk is no longer of generation `Written.base`. Raises `GenerationMismatch` if a chunk is not
    of the expected generation, `ShardReplaced`.
    """
    merges: dict[int, Merge] = {}
    for index, written in group.items():
        if written.merge is None and written.expected is None:
            continue
        stat = known.stat_of(index) if known is not None else None
        generation = stat.generation if stat is not None else ""
        if written.expected not in (None, generation):
            raise GenerationMismatch(f"{parent.keys(shard)[0]!r}: a chunk of the shard changed", key=parent.keys(shard)[0])
        if written.merge is not None and written.base != generation:
            merges[index] = written.merge
    if not merges:
        return group
    ranges = {index: found for index in merges if known is not None and (found := known.find(index)) is not None}
    values: list[Buffer] = []
    if ranges and known is not None:
        asked = [within(found, ByteRange(0, merges[index].limit + 1)) for index, found in ranges.items()]
        try:
            values = await parent.get_parts(shard, asked, known.stat.generation)
        except GenerationMismatch as error:
            raise ShardReplaced from error
    stored = dict(zip(ranges, values, strict=True))
    result = dict(group)
    for index, merge in merges.items():
        result[index] = Written(await merge.onto(stored.get(index)), new_generation(), group[index].mtime_ns)
    return result


def assembled(spec: ShardSpec, reader: ShardIndexReader, pieces: Mapping[int, Buffer]) -> tuple[Buffer, Pairs]:
    """Return a shard of these chunks, by place, and its index. Runs in a thread."""
    chunks, pairs = assemble(spec, pieces, reader.nbytes)
    index = reader.chain.encode(pairs.reshape(spec.index_shape))
    parts = [index, *chunks] if spec.index_location == "start" else [*chunks, index]
    nbytes = sum(map(len, parts))
    shard: Buffer
    if not is_large(nbytes):
        shard = b"".join(parts)
    else:
        shard, end = buffer(nbytes), 0
        for part in parts:
            shard[end : end + len(part)] = part
            end += len(part)
    refuse_lost(*chunks)
    return shard, pairs


def within(found: tuple[int, int], byte_range: ByteRange) -> ByteRange:
    """Return a byte range of a chunk as a range of its shard."""
    offset, nbytes = found
    start, stop = byte_range.resolve(nbytes)
    return ByteRange(offset + start, stop - start)
