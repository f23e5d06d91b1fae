"""Translation of an `OSError` of a file operation into an error of a store."""

from __future__ import annotations

import errno
from types import TracebackType

from zarrfs.errors import (
    FolderFull,
    KeyConflict,
    KeyTooLong,
    OutOfMemory,
    PrefixNotEmpty,
    StoreAccessDenied,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreQuotaExceeded,
    StoreTurnedReadOnly,
    StoreUnsupported,
    ValueTooLong,
)

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of a lookup for an absent file, and for a file or symbolic link where a folder is required."""

_KINDS: dict[int, type[StoreError]] = {
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreQuotaExceeded,
    errno.EMLINK: FolderFull,
    errno.EFBIG: ValueTooLong,
    errno.EACCES: StoreAccessDenied,
    errno.EPERM: StoreAccessDenied,
    errno.EROFS: StoreTurnedReadOnly,
    errno.ENOTDIR: KeyConflict,
    errno.EISDIR: KeyConflict,
    errno.ELOOP: KeyConflict,
    errno.ENOTEMPTY: PrefixNotEmpty,
    errno.EEXIST: PrefixNotEmpty,
    errno.ENAMETOOLONG: KeyTooLong,
    errno.EXDEV: StoreUnsupported,
    errno.ENOMEM: OutOfMemory,
}


class translated:
    """Translate an `OSError` (or `MemoryError`) while ``doing`` something to ``key`` into a `StoreError` or subclass.

    ENOENT becomes `StoreNotFound`; callers for which absence is no error handle `ABSENT` themselves. A class, because every lookup and
    read uses it: a generator costs four times as much.
    """

    __slots__ = ("_doing", "_key")

    def __init__(self, doing: str, key: str) -> None:
        self._doing = doing
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, MemoryError):
            raise OutOfMemory(f"{self._doing} {self._key!r}: it does not fit into memory", key=self._key) from error
        if isinstance(error, StoreError) and error.key is None:
            # Of the bytes that were to be stored, which are for any key.
            error.key = self._key
        if isinstance(error, OSError):
            meaning = StoreNotFound if error.errno == errno.ENOENT else _KINDS.get(error.errno or 0, StoreError)
            raise meaning(f"{self._doing} {self._key!r}: {error.strerror or error}", key=self._key) from error
