"""Finding a codec by its name: the final v3's names, or the ids of numcodecs that v2 uses. A fixed list; nothing is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from zarrfs import registry
from zarrfs.codecs.base import Codec
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.model.metadata import CodecSpec


def codec(spec: CodecSpec) -> Codec:
    """The codec that ``spec`` describes. Raises `MetadataUnsupported` for a name that is not known, `MetadataError`."""
    return _class_of(spec.name).from_spec(spec)


def from_numcodecs(config: object) -> CodecSpec:
    """The final v3's words for ``{"id": ..., ...}`` of a v2 document. Raises `MetadataUnsupported`, `MetadataError`."""
    if not isinstance(config, Mapping) or not isinstance(config.get("id"), str):
        raise MetadataError(f"a codec is an object with an 'id', not {_short(config)}")
    known = _by_id().get(config["id"])
    if known is None:
        raise MetadataUnsupported(f"codec {config['id']!r} is not one that zarrfs decodes")
    return known.spec_from_numcodecs(config)


def to_numcodecs(spec: CodecSpec) -> dict[str, Any]:
    """The v2 configuration for ``spec``. Raises `NotRepresentable` where v2 has none."""
    return _class_of(spec.name).spec_to_numcodecs(spec)


def _class_of(name: str) -> type[Codec]:
    known = _by_name().get(name)
    if known is None:
        raise MetadataUnsupported(f"codec {name!r} is not one that zarrfs decodes")
    return known


@cache
def _by_name() -> dict[str, type[Codec]]:
    return {name: each for each in registry.plugins("zarrfs.codecs") for name in each.names}


@cache
def _by_id() -> dict[str, type[Codec]]:
    return {name: each for each in registry.plugins("zarrfs.codecs") for name in each.numcodecs_ids}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
