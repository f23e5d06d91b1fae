"""The ``codecs`` of an array document of the final v3: between its JSON and codec specs.

Source: Zarr v3 core, sections "codecs" (array metadata) and "Codecs" (chunk encoding): zero or more array -> array codecs, exactly one
array -> bytes codec, zero or more bytes -> bytes codecs. Each is an extension object; an unknown one that says
``"must_understand": false`` is left out, as zarrs does.
"""

from __future__ import annotations

from typing import Any

from zarrfs.codecs import lookup
from zarrfs.codecs.base import ArrayArrayCodec, ArrayBytesCodec, Codec
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.documents import shortened
from zarrfs.dialects.v3_extension import Extension, check_members, extension
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType

# Each codec costs a pass over the chunk; real chains have three or four.
_MAX_CODECS = 32


def parse_codecs(listed: list[Any], element: DataType, chunk_shape: Shape, quirks: list[str]) -> tuple[CodecSpec, ...]:
    """The chain that ``listed`` describes for chunks of ``chunk_shape``; its deviations from the text are added to ``quirks``.

    Raises `MetadataError` for a chain that the text does not allow, `MetadataUnsupported` for a codec that is not known.
    """
    if len(listed) > _MAX_CODECS:
        raise MetadataUnsupported(f"a chain of {len(listed)} codecs is longer than zarrfs decodes ({_MAX_CODECS})")
    chain = [spec for each in listed if (spec := _codec(extension(each, "codecs"), len(chunk_shape), quirks)) is not None]
    if listed:
        _check_order(list(map(lookup.class_of, chain)))
    else:
        quirks.append("codecs is empty: read as C order, little-endian")
    CodecChain.build(chain, element).check(chunk_shape)
    return tuple(chain)


def _codec(named: Extension, ndim: int, quirks: list[str]) -> CodecSpec | None:
    if named.name == "sharding_indexed":
        raise MetadataUnsupported("sharded arrays (codec sharding_indexed) are not supported yet")
    if named.name == "bytes":
        # The codec has a private form besides, for the types of older layouts.
        check_members(named.configuration, ("endian",), "codec 'bytes'")
    spec = CodecSpec(named.name, named.configuration)
    if named.name == "transpose" and named.configuration.get("order") in ("C", "F"):
        order = list(range(ndim)) if named.configuration["order"] == "C" else list(reversed(range(ndim)))
        quirks.append(f"the order of transpose is {named.configuration['order']!r} instead of a list")
        spec = CodecSpec("transpose", {**named.configuration, "order": order})
    if not named.must_understand:
        try:
            lookup.class_of(spec)
        except MetadataUnsupported:
            quirks.append(f"codec {shortened(named.name)} is not known, and ignored as it allows")
            return None
    return spec


def _check_order(kinds: list[type[Codec]]) -> None:
    """The chain may have its filters elsewhere, as v2 has them; the final v3 may not."""
    places = [0 if issubclass(kind, ArrayArrayCodec) else 1 if issubclass(kind, ArrayBytesCodec) else 2 for kind in kinds]
    if places != sorted(places) or places.count(1) != 1:
        raise MetadataError(
            "codecs are any array -> array codecs, one array -> bytes codec, any bytes -> bytes codecs, in this order"
        )
