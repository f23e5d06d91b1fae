"""Parts of store keys as names of directory entries, and back.

A key may have parts that no directory entry can be called: empty ones (``a//b``), ``.`` and ``..``, NUL, or more than 255 bytes. They
are shown behind the mark ``%%``, percent-escaped; a part that itself begins with the mark is escaped too, so that every name stands
for exactly one part. A part too long for a name cannot be carried by one: it is shown as the mark, ``long-`` and a digest, and found
again by listing.
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
    if part not in ("", ".", "..") and b"\0" not in encoded and len(encoded) <= MAX_NBYTES and not part.startswith(MARK):
        return part
    escaped = MARK + quote_from_bytes(encoded).replace(".", "%2E")
    if len(escaped) <= MAX_NBYTES:
        return escaped
    return digest_of(part)


def digest_of(part: str) -> str:
    """A name for a part that is too long to be one; only a listing tells what it stands for."""
    return _LONG + hashlib.blake2b(os.fsencode(part), digest_size=20).hexdigest()


def is_digest(name: str) -> bool:
    """Whether only a listing tells what ``name`` stands for."""
    return name.startswith(_LONG)


def part_of(name: str) -> str | None:
    """The part of a key that ``name`` stands for. None for a digest name, whose part only a listing tells, and for one that no part
    has: each part has one name."""
    if not name.startswith(MARK):
        return name if name_of(name) == name else None
    part = os.fsdecode(unquote_to_bytes(name[len(MARK) :]))
    return part if name_of(part) == name else None
