"""Validation of a codec's configuration: unknown members are refused, values are checked for type and range.

Source: v3 final "Codecs" ("configuration"); zarr-extensions: an implementation that meets an unknown member must fail.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.model.codec_spec import CodecSpec

T = TypeVar("T")

_REQUIRED: Any = object()


def only(spec: CodecSpec, *known: str) -> None:
    """Raise `MetadataUnsupported` if the configuration has members that are not ``known``."""
    unknown = sorted(set(spec.configuration) - set(known))
    if unknown:
        raise MetadataUnsupported(f"codec {spec.name}: unknown configuration {short(unknown)}")


def integer(spec: CodecSpec, name: str, low: int, high: int, default: int = _REQUIRED) -> int:
    """Return an integer member from ``low`` to ``high``, inclusive."""
    value = _member(spec, name, default)
    if type(value) is not int or not low <= value <= high:
        raise MetadataError(f"codec {spec.name}: {name} must be an integer from {low} to {high}, not {short(value)}")
    return value


def number(spec: CodecSpec, name: str) -> int | float:
    """Return a number, finite or not."""
    value = _member(spec, name, _REQUIRED)
    if type(value) is not int and type(value) is not float:
        raise MetadataError(f"codec {spec.name}: {name} must be a number, not {short(value)}")
    return value


def boolean(spec: CodecSpec, name: str, default: bool) -> bool:
    """Return a boolean member."""
    value = _member(spec, name, default)
    if type(value) is not bool:
        raise MetadataError(f"codec {spec.name}: {name} must be true or false, not {short(value)}")
    return value


def choice(spec: CodecSpec, name: str, choices: tuple[str, ...], default: str = _REQUIRED) -> str:
    """Return a member that is one of a few strings."""
    value = _member(spec, name, default)
    if not isinstance(value, str) or value not in choices:
        raise MetadataError(f"codec {spec.name}: {name} must be one of {', '.join(choices)}, not {short(value)}")
    return value


def plain_dtype(spec: CodecSpec, name: str, kinds: str) -> np.dtype[Any]:
    """Return a NumPy type, by its array interface string or its name, of one of ``kinds`` (NumPy's letters); no objects or fields."""
    value = _member(spec, name, _REQUIRED)
    try:
        dtype = np.dtype(value) if isinstance(value, str) and len(value) < 32 else None
    except (TypeError, ValueError, SyntaxError, Warning) as error:
        raise MetadataError(f"codec {spec.name}: {name} {short(value)} is not a data type") from error
    if dtype is None:
        raise MetadataError(f"codec {spec.name}: {name} must be the name of a data type, not {short(value)}")
    if dtype.kind not in kinds or dtype.names is not None or dtype.subdtype is not None:
        raise MetadataUnsupported(f"codec {spec.name}: {name} {short(value)} is not an accepted type")
    return dtype


def given(spec: CodecSpec, name: str) -> bool:
    """Return True if the member is present and not null."""
    return spec.configuration.get(name) is not None


def short(value: object) -> str:
    """Return ``repr(value)``, shortened if long."""
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def _member(spec: CodecSpec, name: str, default: T) -> T:
    value: T = spec.configuration.get(name, default)
    if value is _REQUIRED:
        raise MetadataError(f"codec {spec.name}: {name} is missing")
    return value
