"""Conversion of ``compression`` and ``compression_opts`` of v1 to numcodecs configurations, and back.

Source: v1 "Metadata" ("an integer, string or dictionary providing options to the primary compression library"). The specification names
only the compressors Blosc and zlib, and no options; these are those of zarr 1.0 and 1.1, with their defaults:

    "blosc"  {"clevel": 5, "cname": "lz4", "shuffle": 1}
    "zlib"   1                  "gzip" is another name for it, which zarr stores as "zlib": the header is zlib's
    "bz2"    1
    "lzma"   {"check": 0, "filters": null, "format": 1, "preset": 1}      no preset if there are filters
    "none"   null               or null itself
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zarrfs.dialects.documents import member, shortened
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable

_LEVELS = {"zlib": (0, 9), "gzip": (0, 9), "bz2": (1, 9)}
_BLOSC = {"clevel": 5, "cname": "lz4", "shuffle": 1}
_LZMA = {"check": 0, "filters": None, "format": 1, "preset": 1}
_DIGITS = re.compile("[0-9]{1,2}")


def parse_compression(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the compressor of a ``meta``, as a list of none or one. Raises `MetadataError`, `MetadataUnsupported`."""
    name, options = member(document, "compression"), member(document, "compression_opts")
    match name:
        case None | "none":
            if options is not None:
                raise MetadataError(f"compression_opts of {shortened(name)} must be null, not {shortened(options)}")
            return []
        case "zlib" | "gzip" | "bz2":
            return [{"id": "bz2" if name == "bz2" else "zlib", "level": _level(name, options)}]
        case "blosc":
            blosc = _members(name, options, _BLOSC)
            if type(blosc["shuffle"]) is not int or blosc["shuffle"] not in (0, 1, 2):
                raise MetadataError(f"compression_opts: shuffle must be 0, 1 or 2, not {shortened(blosc['shuffle'])}")
            return [{"id": "blosc", **blosc}]
        case "lzma":
            lzma = _members(name, options, _LZMA)
            # Filters and preset exclude each other: a list of filters, even an empty one, is complete.
            return [
                {"id": "lzma", **lzma, "filters": lzma["filters"] or None, "preset": None if lzma["filters"] else lzma["preset"]}
            ]
        case str():
            raise MetadataUnsupported(f"compression {shortened(name)}: unknown")
    raise MetadataError(f"compression must be a string, not {shortened(name)}")


def format_compression(compressors: list[dict[str, Any]]) -> dict[str, Any]:
    """Return ``compression`` and ``compression_opts``. Raises `NotRepresentable`."""
    if not compressors:
        return {"compression": "none", "compression_opts": None}
    if len(compressors) > 1:
        raise NotRepresentable("v1 has one compressor and no filters")
    options = dict(compressors[0])
    match name := options.pop("id"):
        case "zlib" | "bz2":
            low, high = _LEVELS[name]
            if set(options) != {"level"} or not low <= options["level"] <= high:
                raise NotRepresentable(f"v1 cannot represent {name} with {options}")
            return {"compression": name, "compression_opts": options["level"]}
        case "blosc":
            if options.pop("blocksize", 0) != 0 or options["shuffle"] not in (0, 1, 2):
                raise NotRepresentable("v1 can represent only compressor, level and shuffle of blosc")
            return {"compression": name, "compression_opts": {each: options[each] for each in _BLOSC}}
        case "lzma":
            # The software replaces a null preset by 1, and has no number for "the default check of the format".
            filters, preset, check = options.get("filters"), options.get("preset"), options.get("check", -1)
            if check == -1 or not (filters or (type(preset) is int and 0 <= preset <= 9)):
                raise NotRepresentable(f"v1 cannot represent lzma with {options}")
            return {"compression": name, "compression_opts": {each: options.get(each) for each in _LZMA}}
    raise NotRepresentable(f"v1 cannot represent compression {name!r}")


def _level(name: str, options: Any) -> int:
    level = 1 if options is None else int(options) if isinstance(options, str) and _DIGITS.fullmatch(options) else options
    low, high = _LEVELS[name]
    if type(level) is not int or not low <= level <= high:
        raise MetadataError(f"compression_opts of {name} must be a level from {low} to {high}, not {shortened(options)}")
    return level


def _members(name: str, options: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return options that are an object, with defaults for missing and null ones."""
    if options is None:
        return dict(defaults)
    if not isinstance(options, dict):
        raise MetadataError(f"compression_opts of {name} must be an object, not {shortened(options)}")
    unknown = sorted(options.keys() - defaults.keys())
    if unknown:
        raise MetadataUnsupported(f"compression_opts of {name}: unknown member {shortened(unknown[0])}")
    return defaults | {each: value for each, value in options.items() if value is not None}
