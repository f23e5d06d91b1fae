"""Results of store operations: values, their stat, and entries of a listing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreAccessDenied

Generation = str
"""Distinguishes successive values of a key: an ETag, or device, inode, time and size of a file. Opaque."""


class KeyStat(NamedTuple):
    """Properties of a value that need no read of it. ``mtime_ns`` is None if the backend keeps no times.

    ``by_stranger``: stored by a user other than this process's, root, and the owner of the store or its new files, or writable for
    others; False where there are no owners.
    """

    size: int
    mtime_ns: int | None
    generation: Generation
    by_stranger: bool = False


class Absent(enum.Enum):
    """The absence of a value, as an expectation (`Store.set`)."""

    ABSENT = enum.auto()


ABSENT = Absent.ABSENT

Expected = Generation | Absent | None


class Got(NamedTuple):
    """A value, or the part of it requested, and the `Store.stat` of that very value."""

    value: Buffer
    stat: KeyStat


class Missing(enum.Enum):
    """The answer for a key without a value."""

    MISSING = enum.auto()


MISSING = Missing.MISSING


class Denied(NamedTuple):
    """The answer for a key that is not readable; it may or may not have a value."""

    error: StoreAccessDenied


Answer = Got | Missing | Denied


def latest(*times_ns: int | None) -> int | None:
    """Return the latest of several times, as in `KeyStat.mtime_ns`; None if all are unknown. 1970 is a time like any other."""
    found = None
    for each in times_ns:
        if found is None or (each is not None and each > found):
            found = each
    return found


DirEntry = tuple[str, bool, int, int | None]
"""An entry of ``list_dir``: name (without prefix and slash), True for a prefix, size in bytes (0 for a prefix), mtime_ns or None.

A plain tuple, since a value object per entry makes ``ls -l`` of 10,000 keys half as fast again."""


def answer(look: Callable[..., tuple[Buffer, KeyStat] | None], *args: object) -> Answer:
    """Return the result of ``look(*args)`` as an answer. Raises errors other than `StoreAccessDenied`."""
    try:
        found = look(*args)
    except StoreAccessDenied as error:
        return Denied(error)
    return MISSING if found is None else Got(*found)
