"""What a store answers: values, what is known of them, and entries of a listing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from zarrfs.errors import StoreAccessDenied

Buffer = bytes | bytearray | memoryview
Generation = str
"""What tells one value of a key from the next: an ETag, or device, inode, time and size of a file. Opaque."""


class KeyStat(NamedTuple):
    """What is known of a value without reading it. ``mtime_ns`` is None where the backend keeps no times."""

    size: int
    mtime_ns: int | None
    generation: Generation


class Absent(enum.Enum):
    """No value, where one is expected to be missing (`Store.set`)."""

    ABSENT = enum.auto()


ABSENT = Absent.ABSENT

Expected = Generation | Absent | None


class Got(NamedTuple):
    """A value, or the part of it that was asked for, and what `Store.stat` returns for that very value."""

    value: Buffer
    stat: KeyStat


class Missing(enum.Enum):
    """The answer for a key without a value."""

    MISSING = enum.auto()


MISSING = Missing.MISSING


class Denied(NamedTuple):
    """The answer for a key that may not be read; there may be a value or none."""

    error: StoreAccessDenied


Answer = Got | Missing | Denied

DirEntry = tuple[str, bool, int, int | None]
"""One entry of ``list_dir``: name (without the prefix and without a trailing slash), whether it is a prefix, the value's size in
bytes (0 for a prefix), mtime_ns or None. A plain tuple: a value object an entry makes ``ls -l`` of 10,000 keys half as fast again."""


def answer(look: Callable[..., tuple[Buffer, KeyStat] | None], *args: object) -> Answer:
    """Return what ``look(*args)`` finds as an answer. Raises other errors than `StoreAccessDenied`."""
    try:
        found = look(*args)
    except StoreAccessDenied as error:
        return Denied(error)
    return MISSING if found is None else Got(*found)
