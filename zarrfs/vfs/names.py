"""Parts of store keys as names of directory entries, and back.

A key may have parts that no directory entry can be called: empty ones (``a//b``), ``.`` and ``..``, NUL, or more than 255 bytes. They
are shown behind the mark ``%%``, percent-escaped, and so is a part that looks like one that was escaped: every name stands for exactly
one part, and every other name for itself, ``%%x`` too. A part too long for a name cannot be carried by one: it is shown as the mark,
``long-`` and a digest, and found again by listing.
"""

from __future__ import annotations

import hashlib
import os
from urllib.parse import quote_from_bytes, unquote_to_bytes

MARK = "%%"
MAX_NBYTES = 255
_LONG = MARK + "long-"


def name_of(part: str) -> str:
    """The directory entry's name for a part of a key."""
    if part.isascii() and 0 < len(part) <= MAX_NBYTES and part[0] not in ".%" and "\0" not in part:
        # As almost every part is.
        return part
    encoded = os.fsencode(part)
    if len(encoded) <= MAX_NBYTES and not _is_escaped(part):
        return part
    escaped = _escaped(part)
    return escaped if len(escaped) <= MAX_NBYTES else digest_of(part)


def _is_escaped(part: str) -> bool:
    """Whether a part that is short enough is shown otherwise than it is."""
    return part in ("", ".", "..") or "\0" in part or is_digest(part) or _unescaped(part) is not None


def _escaped(part: str) -> str:
    return MARK + quote_from_bytes(os.fsencode(part)).replace(".", "%2E")


def _unescaped(name: str) -> str | None:
    """The part that is shown as ``name`` because it has to be escaped; None where there is none."""
    if not name.startswith(MARK):
        return None
    part = os.fsdecode(unquote_to_bytes(name[len(MARK) :]))
    return part if _escaped(part) == name and _is_escaped(part) else None


def digest_of(part: str) -> str:
    """A name for a part that is too long to be one; only a listing tells what it stands for."""
    return _LONG + hashlib.blake2b(os.fsencode(part), digest_size=20).hexdigest()


def is_digest(name: str) -> bool:
    """Whether only a listing tells what ``name`` stands for."""
    return name.startswith(_LONG)


def part_of(name: str) -> str | None:
    """The part of a key that ``name`` stands for. None for a digest name, whose part only a listing tells, and for one that no part
    has: each part has one name."""
    if is_digest(name):
        return None
    part = _unescaped(name)
    if part is None:
        part = name
    return part if name_of(part) == name else None
