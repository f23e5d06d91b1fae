"""What an `OSError` of a file operation means for a store."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from zarrfs.errors import (
    KeyConflict,
    KeyTooLong,
    PrefixNotEmpty,
    StoreAccessDenied,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreQuotaExceeded,
    StoreReadOnly,
    StoreUnsupported,
)

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""What a lookup answers where there is no such file, and where a file or a symbolic link stands where a folder would have to be."""

_KINDS: dict[int, type[StoreError]] = {
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreQuotaExceeded,
    errno.EACCES: StoreAccessDenied,
    errno.EPERM: StoreAccessDenied,
    errno.EROFS: StoreReadOnly,
    errno.ENOTDIR: KeyConflict,
    errno.EISDIR: KeyConflict,
    errno.ELOOP: KeyConflict,
    errno.ENOTEMPTY: PrefixNotEmpty,
    errno.EEXIST: PrefixNotEmpty,
    errno.ENAMETOOLONG: KeyTooLong,
    errno.EXDEV: StoreUnsupported,
}


@contextmanager
def translated(doing: str, place: str) -> Iterator[None]:
    """Raise a member of the `StoreError` tree for an `OSError` (or a value that does not fit into memory) while ``doing`` something
    to ``place``. ENOENT is `StoreNotFound`: whoever asks for something that may be absent handles `ABSENT` itself."""
    try:
        yield
    except MemoryError as error:
        raise StoreError(f"{doing} {place!r}: it does not fit into memory", key=place) from error
    except OSError as error:
        kind = StoreNotFound if error.errno == errno.ENOENT else _KINDS.get(error.errno or 0, StoreError)
        raise kind(f"{doing} {place!r}: {error.strerror or error}", key=place) from error
