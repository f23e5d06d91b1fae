"""Extended attributes of a directory or a file, as in xattr(7): read from the store, never written.

The kernel returns values of at most 64 KiB. Other file systems accept less, and programs that copy attributes (rsync -X) fail at that
limit: ext4 keeps all attributes of a file in one block of 4 KiB. Attributes are therefore listed as long as together they fit into
that; the others are available by name, like the virtual attributes of CephFS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_NBYTES = 65536
"""Limit of a value: XATTR_SIZE_MAX of the kernel."""

# A block of ext4 is 4096 bytes, of which SELinux and ACLs need some; each attribute in it has a header of 16 bytes, and its name
# and value are padded to multiples of 4.
LISTED_NBYTES = 3584
_HEADER_NBYTES = 24


@dataclass(frozen=True, slots=True)
class ExtendedAttributes:
    """``values`` by name, with its namespace; None for one larger than `MAX_NBYTES`. ``listed``: the names that a listing returns.

    ``forgets``: prefix of names that accept any value and ignore it, for a file or folder that is yet to become what its attributes
    derive from.
    """

    values: Mapping[str, bytes | None] = field(default_factory=dict)
    listed: tuple[str, ...] = ()
    forgets: str | None = None


def attributes_of(values: Iterable[tuple[str, bytes]], *, forgets: str | None = None) -> ExtendedAttributes:
    """Return ``values`` by name; the first ones are listed first, as far as they fit."""
    room, listed, kept = LISTED_NBYTES, [], dict[str, bytes | None]()
    for name, value in values:
        kept[name] = value if len(value) <= MAX_NBYTES else None
        needed = _HEADER_NBYTES + len(name) + len(value)
        if needed <= room:
            room -= needed
            listed.append(name)
    return ExtendedAttributes(kept, tuple(listed), forgets)
