"""Lookup of a codec by name: the final v3's names, or the numcodecs ids of v2. A fixed list; nothing is evaluated.

zarr-python writes any codec of numcodecs as ``numcodecs.ID`` with numcodecs' configuration, even if the final v3 has its own codec for
the same bytes (``numcodecs.blosc`` beside ``blosc``): such names are translated only here.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from zarrfs import registry
from zarrfs.codecs.base import Codec, Dtype
from zarrfs.codecs.configuration import short
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.model.codec_spec import CodecSpec

log = logging.getLogger(__name__)

_PREFIX = "numcodecs."
# Libraries that could not be imported: each has its line in the log.
_unusable: set[str] = set()


def resolve(spec: CodecSpec, dtype: Dtype) -> tuple[CodecSpec, Codec]:
    """Return the codec of ``spec`` for elements of ``dtype``, and its complete spec.

    Raises `MetadataUnsupported` for an unknown name or a codec without its library, `MetadataError`.
    """
    known, spec = _known(spec)
    _import_libraries(known)
    spec = known.complete(spec, dtype)
    return spec, known.from_spec(spec)


def codecs() -> object:
    """Return an object that stays the same as long as the known codecs do."""
    return _by_name()


def class_of(spec: CodecSpec) -> type[Codec]:
    """Return the class of the codec. Raises `MetadataUnsupported` for an unknown name."""
    return _known(spec)[0]


def from_numcodecs(config: object) -> CodecSpec:
    """Return the final v3's form of ``{"id": ..., ...}`` of a v2 document. Raises `MetadataUnsupported`, `MetadataError`."""
    if not isinstance(config, Mapping) or not isinstance(config.get("id"), str):
        raise MetadataError(f"a codec must be an object with an 'id', not {short(config)}")
    known = _by_id().get(config["id"])
    if known is None:
        raise MetadataUnsupported(f"codec {short(config['id'])}: unknown")
    return known.spec_from_numcodecs(config)


def with_defaults(spec: CodecSpec) -> CodecSpec:
    """Return a codec chosen by a user with numcodecs' defaults for omitted members, since documents require them.

    Members that follow from the type of the elements stay omitted. The ids of numcodecs are accepted without prefix."""
    if spec.name not in _by_name() and spec.name in _by_id():
        spec = CodecSpec(_PREFIX + spec.name, spec.configuration)
    known, spec = _known(spec)
    if not known.numcodecs_ids:
        return spec
    defaults = known.spec_from_numcodecs({"id": known.numcodecs_ids[0]})
    if defaults.name != spec.name:
        return spec
    derived = known.complete(CodecSpec(spec.name), np.dtype("<i4")).configuration
    members = {name: value for name, value in defaults.configuration.items() if name not in derived}
    return CodecSpec(spec.name, {**members, **spec.configuration})


def to_numcodecs(spec: CodecSpec) -> dict[str, Any]:
    """Return the v2 configuration for ``spec``. Raises `NotRepresentable` if v2 has none."""
    known, spec = _known(spec)
    return known.spec_to_numcodecs(spec)


def _known(spec: CodecSpec) -> tuple[type[Codec], CodecSpec]:
    known = _by_name().get(spec.name)
    if known is None and spec.name.startswith(_PREFIX):
        known = _by_id().get(spec.name.removeprefix(_PREFIX))
        if known is not None:
            return known, known.spec_from_numcodecs({"id": spec.name.removeprefix(_PREFIX), **spec.configuration})
    if known is None:
        raise MetadataUnsupported(f"codec {short(spec.name)}: unknown")
    return known, spec


def _import_libraries(codec: type[Codec]) -> None:
    for name in codec.libraries:
        try:
            importlib.import_module(name)
        except MemoryError:
            raise
        except Exception as error:
            reason = f"library {name} unusable: {type(error).__name__}: {error}"
            if name not in _unusable:
                _unusable.add(name)
                log.warning("codec %s: %s", codec.names[0], reason)
            raise MetadataUnsupported(f"codec {codec.names[0]}: {reason}") from error


@cache
def _by_name() -> dict[str, type[Codec]]:
    return {name: each for each in registry.plugins("zarrfs.codecs") for name in each.names}


@cache
def _by_id() -> dict[str, type[Codec]]:
    return {name: each for each in registry.plugins("zarrfs.codecs") for name in each.numcodecs_ids}
