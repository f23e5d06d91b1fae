"""Extended attributes of a directory or a file, as xattr(7) has them: read from what the store says, never written.

The kernel hands out values of at most 64 KiB. Other file systems take less, and programs that copy (rsync -X) fail where theirs does:
ext4 keeps all attributes of a file in one block of 4 KiB. So attributes are listed as long as together they fit there; the others are
there for who asks for them by name, as the virtual attributes of CephFS are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_NBYTES = 65536
"""Of a value: XATTR_SIZE_MAX of the kernel."""

# A block of ext4 is 4096 bytes, of which others (SELinux, ACLs) need some; each attribute there has a header of 16 bytes, and its name
# and value are padded to multiples of 4.
LISTED_NBYTES = 3584
_HEADER_NBYTES = 24


@dataclass(frozen=True, slots=True)
class ExtendedAttributes:
    """``values`` by name, with its namespace; None for one that is larger than `MAX_NBYTES`. ``listed``: the names that a listing tells.

    ``forgets``: names that begin so can be set to anything, and nothing comes of it: the file or folder is yet to become what its
    attributes will be made from.
    """

    values: Mapping[str, bytes | None] = field(default_factory=dict)
    listed: tuple[str, ...] = ()
    forgets: str | None = None


def attributes_of(values: Iterable[tuple[str, bytes]], *, forgets: str | None = None) -> ExtendedAttributes:
    """``values`` by name; those that come first are listed first, as far as there is room."""
    room, listed, kept = LISTED_NBYTES, [], dict[str, bytes | None]()
    for name, value in values:
        kept[name] = value if len(value) <= MAX_NBYTES else None
        needed = _HEADER_NBYTES + len(name) + len(value)
        if needed <= room:
            room -= needed
            listed.append(name)
    return ExtendedAttributes(kept, tuple(listed), forgets)
