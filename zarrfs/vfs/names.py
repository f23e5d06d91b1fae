"""Parts of store keys as names of directory entries, and back.

Some parts of keys cannot be names of directory entries: empty ones (``a//b``), ``.`` and ``..``, NUL, or more than 255 bytes. They are
represented by the mark ``%%`` and percent-escapes, and so is a part that looks like an escaped one: every name represents exactly one
part, and every other name represents itself, ``%%x`` too. A part too long for a name is represented by the mark, ``long-`` and a digest,
and found again by listing.
"""

from __future__ import annotations

import hashlib
import os
from urllib.parse import quote_from_bytes, unquote_to_bytes

MARK = "%%"
MAX_NBYTES = 255
_LONG = MARK + "long-"


def name_of(part: str) -> str:
    """Return the name of the directory entry for a part of a key."""
    if part.isascii() and 0 < len(part) <= MAX_NBYTES and part[0] not in ".%" and "\0" not in part:
        # True for almost every part.
        return part
    encoded = os.fsencode(part)
    if len(encoded) <= MAX_NBYTES and not _is_escaped(part):
        return part
    escaped = _escaped(part)
    return escaped if len(escaped) <= MAX_NBYTES else digest_of(part)


def _is_escaped(part: str) -> bool:
    """Return True if the name of a sufficiently short part differs from it."""
    return part in ("", ".", "..") or "\0" in part or is_digest(part) or _unescaped(part) is not None


def _escaped(part: str) -> str:
    return MARK + quote_from_bytes(os.fsencode(part)).replace(".", "%2E")


def _unescaped(name: str) -> str | None:
    """Return the part that is escaped as ``name``; None if there is none."""
    if not name.startswith(MARK):
        return None
    part = os.fsdecode(unquote_to_bytes(name[len(MARK) :]))
    return part if _escaped(part) == name and _is_escaped(part) else None


def digest_of(part: str) -> str:
    """Return the name for a part too long to be one; only a listing maps it back."""
    return _LONG + hashlib.blake2b(os.fsencode(part), digest_size=20).hexdigest()


def is_digest(name: str) -> bool:
    """Return True if only a listing maps ``name`` to its part."""
    return name.startswith(_LONG)


def part_of(name: str) -> str | None:
    """Return the part of a key that ``name`` represents.

    None for a digest name, which only a listing maps back, and for a name that no part has: each part has one name."""
    if is_digest(name):
        return None
    part = _unescaped(name)
    if part is None:
        part = name
    return part if name_of(part) == name else None
