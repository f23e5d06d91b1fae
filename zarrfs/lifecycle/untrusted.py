"""Parsing of untrusted JSON of a bounded size; values are accepted only with the expected type and size.

Everything else raises ValueError, and no other exception.
"""

from __future__ import annotations

import json
from typing import NoReturn


def document(text: bytes) -> dict[str, object]:
    """Return the JSON object in ``text``, whose size the caller bounds."""
    try:
        value = json.loads(text, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def number(value: object, least: int, most: int) -> int:
    """Return ``value`` if it is an integer from ``least`` to ``most``. Raises ValueError."""
    # Not isinstance: true would be accepted.
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"not an integer from {least} to {most}")
    return value


def seconds(value: object, most: float) -> float:
    """Return ``value``, at most ``most``, if it is a number above 0. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError("not a number of seconds")
    return float(min(value, most))


def text(value: object, most: int) -> str:
    """Return ``value`` if it is text of at most ``most`` characters without NUL. Raises ValueError."""
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        raise ValueError(f"not a text of up to {most} characters")
    return value


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
