"""Stamps: digests of a file's attributes for the kernel, to detect that a file of this name is another one."""

from __future__ import annotations

from zarrfs.vfs.node import Attributes

_SEEN_BITS = 30
_SEEN = (1 << _SEEN_BITS) - 1


def stamp_of(attributes: Attributes) -> int:
    """Return the digest of a file's attributes for the kernel; never 0.

    Small, to save memory: 8 bits are of the size only. Above 30 bits is the generation, if known, as it is not in listings.
    """
    if attributes.is_directory:
        return 0
    generation = hash(attributes.generation) & 0x3FFF_FFFF | 1 if attributes.generation is not None else 0
    seen = (hash((attributes.size,)) & 0xFF) << 22 | (hash((attributes.size, attributes.mtime_ns)) & 0x3F_FFFE) | 1
    return generation << _SEEN_BITS | seen


def is_same(stamp: int, other: int) -> bool:
    """Return True if two stamps may be of one value: 0 matches any."""
    if not stamp or not other or stamp == other:
        return True
    if (stamp ^ other) & _SEEN:
        return False
    generation, another = stamp >> _SEEN_BITS, other >> _SEEN_BITS
    return not generation or not another or generation == another


def later(stamp: int, before: int) -> int:
    """Return the stamp of attributes that the kernel gets after others, which were not of another value.

    Those of a listing have no generation: pages that the kernel has are still of the one before.
    """
    return before if 0 < stamp <= _SEEN and before > 0 and is_same(stamp, before) else stamp


def same_size(stamp: int, other: int) -> bool:
    """Return True if two stamps may be of files of one size."""
    return stamp > 0 and other > 0 and not ((stamp ^ other) & _SEEN) >> 22


def matches_kernel(kernel_stamp: int, stamp: int, *, keeps_pages: bool) -> bool:
    """Return True if the kernel's attributes have the present size of a file, and the present time if it keeps pages of it.

    Without pages another time is harmless, and the time of a whole-array file may change all the time.
    """
    return is_same(stamp, kernel_stamp) or (not keeps_pages and same_size(stamp, kernel_stamp))
