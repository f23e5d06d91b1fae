"""``compression`` and ``compression_opts`` of v1, in numcodecs' words and back.

Source: v1 "Metadata" ("an integer, string or dictionary providing options to the primary compression library"). The text names no
compressor but Blosc and zlib, and no options; these are those of zarr 1.0 and 1.1, with what they take for options that are not given:

    "blosc"  {"clevel": 5, "cname": "lz4", "shuffle": 1}
    "zlib"   1                  "gzip" is another name for it, of which zarr makes "zlib" before it stores it: the header is zlib's
    "bz2"    1
    "lzma"   {"check": 0, "filters": null, "format": 1, "preset": 1}      no preset where there are filters
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
    """The compressor of a ``meta``, none or one. Raises `MetadataError`, `MetadataUnsupported`."""
    name, options = member(document, "compression"), member(document, "compression_opts")
    match name:
        case None | "none":
            if options is not None:
                raise MetadataError(f"compression_opts of {shortened(name)} is null, not {shortened(options)}")
            return []
        case "zlib" | "gzip" | "bz2":
            return [{"id": "bz2" if name == "bz2" else "zlib", "level": _level(name, options)}]
        case "blosc":
            blosc = _members(name, options, _BLOSC)
            if type(blosc["shuffle"]) is not int or blosc["shuffle"] not in (0, 1, 2):
                raise MetadataError(f"compression_opts: shuffle is 0, 1 or 2, not {shortened(blosc['shuffle'])}")
            return [{"id": "blosc", **blosc}]
        case "lzma":
            lzma = _members(name, options, _LZMA)
            # Not both: a list of filters, even an empty one, says all.
            return [
                {"id": "lzma", **lzma, "filters": lzma["filters"] or None, "preset": None if lzma["filters"] else lzma["preset"]}
            ]
        case str():
            raise MetadataUnsupported(f"compression {shortened(name)} is not one that zarrfs decodes")
    raise MetadataError(f"compression is a string, not {shortened(name)}")


def format_compression(compressors: list[dict[str, Any]]) -> dict[str, Any]:
    """``compression`` and ``compression_opts``. Raises `NotRepresentable`."""
    if not compressors:
        return {"compression": "none", "compression_opts": None}
    if len(compressors) > 1:
        raise NotRepresentable("v1 has one compressor and no filters")
    options = dict(compressors[0])
    match name := options.pop("id"):
        case "zlib" | "bz2":
            low, high = _LEVELS[name]
            if set(options) != {"level"} or not low <= options["level"] <= high:
                raise NotRepresentable(f"v1 has no {name} with {options}")
            return {"compression": name, "compression_opts": options["level"]}
        case "blosc":
            if options.pop("blocksize", 0) != 0 or options["shuffle"] not in (0, 1, 2):
                raise NotRepresentable("v1 says of blosc its compressor, level and shuffle alone")
            return {"compression": name, "compression_opts": {each: options[each] for each in _BLOSC}}
        case "lzma":
            # The software puts 1 for a preset that is null, and knows no number for "the check that the format has by default".
            filters, preset, check = options.get("filters"), options.get("preset"), options.get("check", -1)
            if check == -1 or not (filters or (type(preset) is int and 0 <= preset <= 9)):
                raise NotRepresentable(f"v1 has no lzma with {options}")
            return {"compression": name, "compression_opts": {each: options.get(each) for each in _LZMA}}
    raise NotRepresentable(f"v1 has no compression {name!r}")


def _level(name: str, options: Any) -> int:
    level = 1 if options is None else int(options) if isinstance(options, str) and _DIGITS.fullmatch(options) else options
    low, high = _LEVELS[name]
    if type(level) is not int or not low <= level <= high:
        raise MetadataError(f"compression_opts of {name} is a level from {low} to {high}, not {shortened(options)}")
    return level


def _members(name: str, options: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """Options that are an object, with what is left out, or null, filled in."""
    if options is None:
        return dict(defaults)
    if not isinstance(options, dict):
        raise MetadataError(f"compression_opts of {name} is an object, not {shortened(options)}")
    unknown = sorted(options.keys() - defaults.keys())
    if unknown:
        raise MetadataUnsupported(f"compression_opts of {name} has a member {shortened(unknown[0])} that zarrfs does not know")
    return defaults | {each: value for each, value in options.items() if value is not None}
