"""Codecs of the Zarr v3 core draft of 2022: the list ``codecs``, the member ``compressor``, and filters hidden in the attributes.

Source: Zarr v3 core draft of 2022, "Chunk encoding", "codecs" (array metadata), codecs blosc, endian and gzip; stores of zarr-python 2.13
to 2.16 and GDAL 3.6.

    draft       "codecs": [{"type": "https://purl.org/zarr/spec/codecs/gzip/1.0", "configuration": {"level": 1}}]
    software    "compressor": {"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"level": 1}}
                "attributes": {"filters": [{"id": "delta", "dtype": "<i4"}], ...}

The chain, in the terms of the final v3 and in the order of encoding: transpose (layout "F": the dimensions reversed), `bytes` (from the
codec ``endian``, else the type), the filters, the compressor. URIs are matched by the name in them. zarr-python wrote its zstd under a
URI without a name, which it could not read itself: a nameless codec with the configuration of zstd is zstd.

Documents in the draft's form get the URI that the draft defines (blosc, endian, gzip), or else that of the software of its time
(`zarr.meta` of zarr-python 2.13 to 2.18: zlib, bz2, lz4, lzma, zstd); other codecs have neither, and are refused.

Hidden filters exist only in documents of the software's form: in the draft's form the attribute is the user's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from zarrfs.codecs import lookup
from zarrfs.dialects import documents
from zarrfs.dialects.documents import shortened
from zarrfs.dialects.drafts import name_in_uri
from zarrfs.dialects.gdal_codecs import from_gdal
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v3_2022.entry_point import EntryPoint
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.unparsed import Unparsed

FILTERS = "filters"
"""The attribute with hidden filters."""

_KINDS = ("codec", "codecs")
_NAMELESS = re.compile(r"https?://purl\.org/zarr/spec/codecs?/?")
_TEXT_URI = "https://purl.org/zarr/spec/codecs/{}/1.0"
_SOFTWARE_URI = "https://purl.org/zarr/spec/codec/{}/1.0"
_TEXT_CODECS = frozenset({"blosc", "endian", "gzip"})
# Codecs that zarr-python accepts as a compressor, with a URI; every other codec is a filter there.
_COMPRESSORS = frozenset({"blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma"})
_MAX_CODECS = 32


def parse_codecs(document: Mapping[str, Any], form: EntryPoint, quirks: Quirks) -> tuple[str | None, tuple[CodecSpec, ...]]:
    """Return the value of the codec ``endian`` (None without one), and the codecs after `bytes`, filters first.

    Raises `MetadataError`, `MetadataUnsupported`.
    """
    listed = documents.array(document.get("codecs", []), "codecs")
    compressor = document.get("compressor")
    if listed and compressor is not None:
        raise MetadataError("codecs and compressor are both present: their order is undefined")
    if compressor is not None and not form.software:
        quirks.append("compressor instead of codecs")
    hidden = hidden_filters(document, form) or []
    if len(listed) + len(hidden) > _MAX_CODECS:
        raise MetadataUnsupported(f"chain of {len(listed) + len(hidden)} codecs exceeds the limit of {_MAX_CODECS}")
    if hidden:
        quirks.append("filters are hidden in the attributes")
    named = [_named(each, form, quirks) for each in (listed if compressor is None else [compressor])]
    endian = None
    if named and named[0][0] == "endian":
        endian = _endian(named.pop(0)[1])
    if any(name == "endian" for name, _ in named):
        raise MetadataUnsupported("codec 'endian' after another codec is not supported: its input is elements, not bytes")
    configs = [*hidden, *({**config, "id": name} for name, config in named)]
    return endian, tuple(lookup.from_numcodecs(from_gdal(config, quirks)) for config in configs)


def format_codecs(endian: str | None, codecs: Sequence[CodecSpec], *, software: bool) -> tuple[dict[str, Any], list[Any]]:
    """Return the members that name ``codecs`` (those after `bytes`), and the filters to hide in the attributes.

    Raises `NotRepresentable`.
    """
    formatted = []
    for spec in codecs:
        try:
            config = lookup.to_numcodecs(spec)
        except MetadataUnsupported as error:
            raise NotRepresentable(f"codec {spec.name!r} has no form in Zarr v3 of 2022") from error
        formatted.append((str(config.pop("id")), config))
    if software:
        compressor = formatted.pop() if formatted and formatted[-1][0] in _COMPRESSORS else None
        member = {} if compressor is None else {"codec": _SOFTWARE_URI.format(compressor[0]), "configuration": compressor[1]}
        return {"compressor": member} if member else {}, [{"id": name, **config} for name, config in formatted]
    if endian is not None:
        formatted.insert(0, ("endian", {"endian": endian}))
    listed = [{"type": _uri(name), "configuration": config} for name, config in formatted]
    return {"codecs": listed} if listed else {}, []


def hidden_filters(document: Mapping[str, Any], form: EntryPoint) -> list[Any] | None:
    """Return the filters in the attributes of a ``document``; None if there are none, or the member is the user's."""
    attributes = document.get("attributes")
    filters = attributes.get(FILTERS) if isinstance(attributes, Mapping) else None
    if not form.software and "compressor" not in document:
        return None
    return filters if looks_like_filters(filters) else None


def looks_like_filters(value: Any) -> bool:
    """Return True if an attribute has zarr-python's form of filters: a list of objects that have an ``id``.

    Raises `MetadataError` if it is too long to be parsed: chunks would be decoded without the filters.
    """
    if isinstance(value, Unparsed):
        raise MetadataError(f"attribute 'filters' has {len(value.data)} bytes, too many for filters")
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) and "id" in each for each in value)


def are_same_filters(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """Return True if filters are the same with defaults filled in."""
    try:
        return [*map(lookup.from_numcodecs, these)] == [*map(lookup.from_numcodecs, those)]
    except MetadataError:
        return False


def _uri(name: str) -> str:
    """Return the URI of a codec in the draft's form: its own, or that of the software of its time. Raises `NotRepresentable`."""
    if name in _TEXT_CODECS:
        return _TEXT_URI.format(name)
    if name in _COMPRESSORS:
        return _SOFTWARE_URI.format(name)
    had = ", ".join(sorted(_TEXT_CODECS | _COMPRESSORS))
    raise NotRepresentable(f"codec {name!r} has no URI in the draft of Zarr v3 of 2022, nor in its software, which has {had}")


def _named(value: Any, form: EntryPoint, quirks: list[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the configuration of one codec."""
    members = documents.mapping(value, "codec")
    uri = documents.string(members["codec"] if "codec" in members else documents.member(members, "type"), "URI of a codec")
    quirks += form.check_members(members, ("type", "codec", "configuration"), "codec")
    configuration = members.get("configuration")
    config = {} if configuration is None else documents.mapping(configuration, f"configuration of {shortened(uri)}")
    name = name_in_uri(uri, _KINDS)
    if name is None and _NAMELESS.fullmatch(uri) and config and config.keys() <= {"level", "checksum"}:
        quirks.append("codec without a name, read as zstd")
        name = "zstd"
    if name is None:
        raise MetadataUnsupported(f"codec {shortened(uri)}: unknown")
    return name, config


def _endian(config: Mapping[str, Any]) -> str:
    endian = documents.member(config, "endian")
    if endian not in ("big", "little") or len(config) > 1:
        raise MetadataError(f"codec 'endian' must be 'big' or 'little', not {shortened(dict(config))}")
    return str(endian)
