"""``json.dumps`` with ``indent``, byte for byte, in one call for each container: that of the library runs twenty for each member."""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any

_LITERALS = {True: "true", False: "false"}
_SCALARS: dict[type, Callable[[Any], str | None]] = {
    str: encode_basestring_ascii,
    int: int.__repr__,
    bool: _LITERALS.get,
    type(None): lambda _: "null",
}


def dumps_indented(value: Any, indent: int | str, *, sort_keys: bool, default: Callable[[Any], Any]) -> str:
    """Return ``json.dumps(value, indent=indent, sort_keys=sort_keys, separators=(",", ": "), default=default)``."""
    return _text(value, "\n", indent if isinstance(indent, str) else " " * indent, sort_keys, default)


def _text(value: Any, line: str, unit: str, sort_keys: bool, default: Callable[[Any], Any]) -> str:
    scalar = _SCALARS.get(type(value))
    if scalar is not None:
        return scalar(value) or ""
    inner = line + unit
    if type(value) is dict:
        if not value:
            return "{}"
        members = []
        for name, member in sorted(value.items()) if sort_keys else value.items():
            if type(name) is not str:
                raise TypeError(f"names of members must be strings, not {type(name).__name__}")
            scalar = _SCALARS.get(type(member))
            text = scalar(member) if scalar is not None else _text(member, inner, unit, sort_keys, default)
            members.append(f"{encode_basestring_ascii(name)}: {text}")
        return f"{{{inner}{f',{inner}'.join(members)}{line}}}"
    if type(value) in (list, tuple):
        if not value:
            return "[]"
        elements = [
            scalar(each) or "" if (scalar := _SCALARS.get(type(each))) is not None else _text(each, inner, unit, sort_keys, default)
            for each in value
        ]
        return f"[{inner}{f',{inner}'.join(elements)}{line}]"
    if isinstance(value, float | str | int):
        # Subclasses, and floats, which may be undefined.
        return json.dumps(value)
    if isinstance(value, dict | list | tuple):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return _text(default(value), line, unit, sort_keys, default)
