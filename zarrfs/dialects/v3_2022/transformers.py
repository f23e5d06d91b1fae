"""Storage transformers of the Zarr v3 core draft of 2022: sharding ``indexed``, and stacks of it.

Source: Zarr v3 core draft of 2022, "storage_transformers" (array metadata), "Sharding storage transformer".

    "storage_transformers": [{"extension": "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",     the draft
                              "type": "indexed", "configuration": {"chunks_per_shard": [2, 2]}}]
                             {"extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0", ...}           zarr-python

The first of a stack is the nearest to the array ("the actual store if this transformer is the last one in the stack"): the next one
bundles its shards. An unknown transformer is never ignored ("Extensions": always required).
"""

from __future__ import annotations

from typing import Any

from zarrfs.dialects import documents
from zarrfs.dialects.documents import shortened
from zarrfs.dialects.drafts import name_in_uri
from zarrfs.dialects.v3_2022.entry_point import EntryPoint
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model.shards import ShardSpec

_KINDS = ("storage_transformers", "storage-transformers", "storage_transformer", "storage-transformer")
_TEXT_URI = "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0"
_SOFTWARE_URI = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"
# Every level costs a further read for each chunk.
_MAX_LEVELS = 8


def parse_transformers(value: Any, ndim: int, form: EntryPoint, quirks: list[str]) -> tuple[ShardSpec, ...]:
    """Return the bundling of chunks, outermost first. Raises `MetadataError`, `MetadataUnsupported`."""
    listed = documents.array(value, "storage_transformers")
    if len(listed) > _MAX_LEVELS:
        raise MetadataUnsupported(f"nested shards exceed the limit of {_MAX_LEVELS} levels")
    return tuple(_sharding(each, ndim, form, quirks) for each in reversed(listed))


def format_transformers(shards: tuple[ShardSpec, ...], *, software: bool) -> list[dict[str, Any]]:
    """Return the member ``storage_transformers``. Raises `NotRepresentable` for shards that only the final v3 has."""
    formatted = []
    for spec in reversed(shards):
        if spec != ShardSpec(spec.chunks_per_shard):
            raise NotRepresentable(
                "Zarr v3 of 2022 has only shards with the index at the end, in C order, little-endian, without codecs"
            )
        configuration = {"chunks_per_shard": list(spec.chunks_per_shard)}
        uri = _SOFTWARE_URI if software else _TEXT_URI
        formatted.append({"extension": uri, "type": "indexed", "configuration": configuration})
    return formatted


def _sharding(value: Any, ndim: int, form: EntryPoint, quirks: list[str]) -> ShardSpec:
    members = documents.mapping(value, "storage transformer")
    uri = documents.string(documents.member(members, "extension"), "URI of a storage transformer")
    kind = documents.member(members, "type")
    if name_in_uri(uri, _KINDS) != "sharding" or kind != "indexed":
        raise MetadataUnsupported(f"storage transformer {shortened(uri)} of type {shortened(kind)}: unknown")
    quirks += form.check_members(members, ("extension", "type", "configuration"), "storage transformer")
    configuration = documents.mapping(documents.member(members, "configuration"), "configuration of sharding")
    quirks += form.check_members(configuration, ("chunks_per_shard",), "configuration of sharding")
    counts = documents.shape(documents.member(configuration, "chunks_per_shard"), "chunks_per_shard")
    if len(counts) != ndim:
        raise MetadataError(f"chunks_per_shard {shortened(list(counts))} does not have {ndim} dimensions")
    return ShardSpec(counts)
