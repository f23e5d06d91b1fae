"""One list of codecs of the final v3, in an array document or in ``sharding_indexed``: conversion between JSON and codec specs.

Source: Zarr v3 core, sections "codecs" (array metadata) and "Codecs" (chunk encoding): zero or more array -> array codecs, exactly one
array -> bytes codec, zero or more bytes -> bytes codecs. Each is an extension object; an unknown one with ``"must_understand": false`` is
omitted, as in zarrs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zarrfs.codecs import lookup
from zarrfs.codecs.base import ArrayArrayCodec, ArrayBytesCodec
from zarrfs.dialects import documents
from zarrfs.dialects.documents import shortened
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v3.extension import Extension, check_members, extension, extension_to_json
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.model.codec_spec import CodecSpec

# The array -> bytes codec that is not implemented as a codec, but as a way to store chunks: see `zarrfs.dialects.v3.sharding`.
SHARDING = "sharding_indexed"

# Each codec costs a pass over the chunk; real chains have three or four.
MAX_CODECS = 32


def parse_list(value: Any, label: str, ndim: int, quirks: Quirks) -> list[CodecSpec]:
    """Return the codecs in the JSON ``value`` at ``label``; deviations from the specification are added to ``quirks``.

    Raises `MetadataError` for a list that the specification does not allow, `MetadataUnsupported` for an unknown codec.
    """
    listed = documents.array(value, label)
    if len(listed) > MAX_CODECS:
        raise MetadataUnsupported(f"chain of {len(listed)} codecs exceeds the limit of {MAX_CODECS}")
    chain = [spec for each in listed if (spec := _codec(extension(each, label), ndim, quirks)) is not None]
    if not listed:
        quirks.accept("codecs", f"{label} is empty: read as C order, little-endian")
        return chain
    return _ordered(chain, label, quirks)


def list_to_json(specs: Sequence[CodecSpec]) -> list[dict[str, Any]]:
    """Return the JSON of ``specs``."""
    return [extension_to_json(spec.name, spec.configuration) for spec in specs]


def _codec(found: Extension, ndim: int, quirks: Quirks) -> CodecSpec | None:
    if found.name == "bytes":
        # The codec also has a private form, for the types of older layouts.
        check_members(found.configuration, ("endian",), "codec 'bytes'")
    spec = CodecSpec(found.name, found.configuration)
    if found.name == "transpose" and found.configuration.get("order") in ("C", "F"):
        order = list(range(ndim)) if found.configuration["order"] == "C" else list(reversed(range(ndim)))
        quirks.append(f"order of transpose is {found.configuration['order']!r} instead of a list")
        spec = CodecSpec("transpose", {**found.configuration, "order": order})
    if not found.must_understand and found.name != SHARDING:
        try:
            lookup.class_of(spec)
        except MetadataUnsupported:
            quirks.append(f"codec {shortened(found.name)} is unknown, and ignored as it permits")
            return None
    return spec


def _ordered(chain: list[CodecSpec], label: str, quirks: Quirks) -> list[CodecSpec]:
    """Return ``chain``, with `bytes` added if it has no array -> bytes codec.

    Chains of v2 may have filters elsewhere; those of the final v3 may not.
    """
    ranks = [_rank(spec) for spec in chain]
    if ranks == sorted(ranks) and 1 not in ranks and label == "codecs":
        quirks.accept("codecs", f"{label} has no array -> bytes codec: read as C order, little-endian")
        return [*chain[: ranks.count(0)], CodecSpec("bytes", {"endian": "little"}), *chain[ranks.count(0) :]]
    if ranks != sorted(ranks) or ranks.count(1) != 1:
        raise MetadataError(
            "codecs must be any array -> array codecs, one array -> bytes codec, any bytes -> bytes codecs, in this order"
        )
    return chain


def _rank(spec: CodecSpec) -> int:
    if spec.name == SHARDING:
        return 1
    kind = lookup.class_of(spec)
    return 0 if issubclass(kind, ArrayArrayCodec) else 1 if issubclass(kind, ArrayBytesCodec) else 2
