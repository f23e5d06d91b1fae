"""Store keys as file names: their limits in a folder, and the generation of a file. Pure functions."""

from __future__ import annotations

import os
import re
import stat as st
from collections.abc import Container

from zarrfs.buffers import size_with_holes
from zarrfs.errors import GenerationMismatch, KeyConflict, KeyTooLong, KeyUnusable, StoreAccessDenied
from zarrfs.keys import APART
from zarrfs.stores.owners import owner_of
from zarrfs.stores.values import Absent, Expected, Generation, KeyStat

Parts = tuple[str, ...]
"""The names from the root folder to a file or folder; empty for the root folder itself."""

NAME_MAX = 255
APART_PARTS: Parts = (APART.rstrip("/"),)
TEMPORARY = re.compile(r"\.zarrfs-[0-9a-f]{32}\.partial")
"""Names of files being written: no key may have one, and none is listed."""


def parts_of(key: str) -> Parts:
    """Return the parts of a key or prefix. Raises `KeyUnusable` or `KeyTooLong` if one cannot be a file name."""
    if not key:
        return ()
    parts = tuple((key[:-1] if key[-1] == "/" else key).split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise KeyUnusable(f"a folder cannot hold {key!r}: {part!r} cannot be a file name", key=key)
        try:
            nbytes = len(part) if part.isascii() else len(os.fsencode(part))
        except UnicodeEncodeError as error:
            raise KeyUnusable(f"a folder cannot hold {key!r}: {part!r} is not text", key=key) from error
        if nbytes > NAME_MAX:
            raise KeyTooLong(f"a folder cannot hold {key!r}: a name of {nbytes} bytes, where {NAME_MAX} are the most", key=key)
        if part[0] == "." and TEMPORARY.fullmatch(part):
            raise KeyUnusable(f"{key!r}: names like {part!r} are reserved by the folder store", key=key)
    return parts


def generation_of(stat: os.stat_result, mtime_ns: int | None = None) -> Generation:
    """Return the generation of a file: its position, size and time (``mtime_ns``, if that is about to be set)."""
    return f"{stat.st_dev:x}-{stat.st_ino:x}-{stat.st_size:x}-{stat.st_mtime_ns if mtime_ns is None else mtime_ns:x}"


def size_of(stat: os.stat_result) -> int:
    """Return the size of a file; a `HoledSize` if it has holes."""
    return size_with_holes(stat.st_size, stat.st_blocks * 512)


def key_stat(stat: os.stat_result, trusted: Container[object] | None = None) -> KeyStat:
    """Return the stat of a value, from that of its file; ``trusted``: users who are no strangers, None for all."""
    by_stranger = trusted is not None and (stat.st_uid not in trusted or _may_be_by_others(stat))
    return KeyStat(size_of(stat), stat.st_mtime_ns, generation_of(stat), by_stranger)


def is_apart(parts: Parts) -> bool:
    """Return True for what operations keep apart."""
    return parts[:1] == APART_PARTS


def is_record(parts: Parts) -> bool:
    """Return True for the record of an operation: others must not write what is carried out in the name of its owner."""
    return len(parts) == 3 and is_apart(parts)


def _may_be_by_others(stat: os.stat_result) -> bool:
    """Return True if others can have written a file of this owner, in its place or under another name.

    All may write to executable files where the file system has no modes: no value is one."""
    return stat.st_nlink > 1 or (stat.st_mode & (st.S_IWGRP | st.S_IWOTH) != 0 and not stat.st_mode & st.S_IXUSR)


def require_real_owner(file: int, root: int, parts: Parts) -> None:
    """Raise `StoreAccessDenied` if another user's FUSE mount below the folder ``root`` reports the owner of a file; descriptors both."""
    found = os.fstat(file)
    # A whole store in such a mount is that user's, whose numbers may come from another machine (sshfs).
    if found.st_dev != os.fstat(root).st_dev and owner_of(file) != found.st_uid:
        raise StoreAccessDenied(f"{path_of(parts)!r}: its owner is not known, in a mount of another user", key=path_of(parts))


def path_of(parts: Parts) -> str:
    """Return the key or prefix (without its trailing slash) that consists of ``parts``."""
    return "/".join(parts)


def changed(parts: Parts) -> GenerationMismatch:
    """Return the error for a value of another generation than expected."""
    return GenerationMismatch(f"{path_of(parts)!r} was changed concurrently", key=path_of(parts))


def as_room(found: os.stat_result | None, parts: Parts) -> os.stat_result | None:
    """Return the status of what a new value would replace. Raises `KeyConflict` or `StoreAccessDenied` unless that is a file."""
    if found is not None and not st.S_ISREG(found.st_mode):
        if not st.S_ISDIR(found.st_mode):
            raise not_followed(parts, parts[-1])
        raise KeyConflict(f"{path_of(parts)!r} is a folder, not a value", key=path_of(parts))
    return found


def as_expected(found: os.stat_result | None, expect: Expected, parts: Parts) -> os.stat_result | None:
    """Return the status of a file, None if it is absent. Raises `GenerationMismatch` unless that is as expected."""
    if expect is not None and expect != (generation_of(found) if found is not None else Absent.ABSENT):
        raise changed(parts)
    return found


def not_followed(parts: Parts, name: str) -> StoreAccessDenied:
    """Return the error for an access to a value or folder at which, or on the way to which, ``name`` is a link or special file."""
    return StoreAccessDenied(
        f"no access to {path_of(parts)!r}: {name!r} is a symbolic link or special file, and these are not followed",
        key=path_of(parts),
    )
