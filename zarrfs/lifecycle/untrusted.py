"""Reading what a stranger's file tells: JSON of a bounded size, whose parts count only where they are of the type and size expected.

Everything raises ValueError, and nothing else, for everything else.
"""

from __future__ import annotations

import json
from typing import NoReturn


def document(text: bytes) -> dict[str, object]:
    """Return the JSON object in ``text``, whose caller bounds its size."""
    try:
        said = json.loads(text, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(said, dict):
        raise ValueError("no JSON object")
    return said


def number(value: object, least: int, most: int) -> int:
    """Return ``value`` if it is a whole number from ``least`` to ``most``."""
    # Not isinstance: true is no number.
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"no whole number from {least} to {most}")
    return value


def seconds(value: object, most: float) -> float:
    """Return ``value`` if it is a number above 0, and at most ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError("no number of seconds")
    return float(min(value, most))


def text(value: object, most: int) -> str:
    """Return ``value`` if it is text of at most ``most`` characters that a file name could hold."""
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        raise ValueError(f"no text of up to {most} characters")
    return value


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
