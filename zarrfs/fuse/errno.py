"""From errors to errno: the one table. Only this module chooses an errno.

The doubtful choices:

* A bad chunk is EIO, never zeros: a program that asked for data must not go on with invented data.
* A chunk of the wrong size, and a document that does not parse, are EINVAL at close(2): the writer's argument was wrong, and trying
  again will not help. Nothing was stored.
* Writing past a chunk's end is EFBIG, as past the end of any file that cannot grow.
* What exceeds memory and the room in the cache folder (a chunk, an index, a value) is EFBIG too: the store is sound, and a larger
  ``--memory-limit`` or cache folder may do.
* A value that was replaced under a reader is ESTALE. On open(2) the kernel then looks the name up again by itself.
* A backend that does not answer is ETIMEDOUT. Some programs retry on EIO, and a retry is what a dead server needs least.
* Links and device nodes, which no store holds, are EPERM, as link(2), symlink(2) and mknod(2) say of such file systems: git then renames,
  and tar tells which file it could not make.
* A link or rename that the tree cannot do is EXDEV, on which ``mv`` copies instead.
* A bad document that is *read* never reaches this table: it becomes an ``.unsupported.txt``.
"""

from __future__ import annotations

import errno

from zarrfs import errors

ERRNO: dict[type[errors.ZarrfsError], int] = {
    errors.ZarrfsError: errno.EIO,
    errors.UsageError: errno.EINVAL,
    errors.MountpointUnusable: errno.EBUSY,
    errors.MountBusy: errno.EBUSY,
    errors.RootNeeded: errno.EPERM,
    errors.FuseUnavailable: errno.ENODEV,
    errors.TooLarge: errno.EFBIG,
    errors.NotPublished: errno.EIO,
    errors.StoreError: errno.EIO,
    errors.StoreNotFound: errno.EIO,
    errors.StoreAccessDenied: errno.EACCES,
    errors.StoreReadOnly: errno.EROFS,
    errors.StoreFull: errno.ENOSPC,
    errors.StoreQuotaExceeded: errno.EDQUOT,
    errors.StoreTimeout: errno.ETIMEDOUT,
    errors.StoreUnsupported: errno.EOPNOTSUPP,
    errors.KeyUnusable: errno.EINVAL,
    errors.KeyTooLong: errno.ENAMETOOLONG,
    errors.KeyConflict: errno.ENOTDIR,
    errors.PrefixNotEmpty: errno.ENOTEMPTY,
    errors.NodeMoving: errno.EIO,
    errors.NodeInDoubt: errno.EIO,
    errors.IntentTooNew: errno.EROFS,
    errors.GenerationMismatch: errno.ESTALE,
    errors.RangesOverlap: errno.EINVAL,
    errors.MetadataError: errno.EINVAL,
    errors.MetadataUnsupported: errno.EINVAL,
    errors.NotRepresentable: errno.EINVAL,
    errors.ChunkError: errno.EIO,
    errors.ChunkDecodeError: errno.EIO,
    errors.ChecksumMismatch: errno.EIO,
    errors.ShardIndexInvalid: errno.EIO,
    errors.ChunkEncodeError: errno.EINVAL,
    errors.ChunkSizeMismatch: errno.EINVAL,
    errors.TreeError: errno.EIO,
    errors.NoSuchEntry: errno.ENOENT,
    errors.EntryExists: errno.EEXIST,
    errors.CaseConflict: errno.EEXIST,
    errors.NotADirectory: errno.ENOTDIR,
    errors.IsADirectory: errno.EISDIR,
    errors.DirectoryNotEmpty: errno.ENOTEMPTY,
    errors.HiddenKeys: errno.ENOTEMPTY,
    errors.NameInvalid: errno.EINVAL,
    errors.NameTooLong: errno.ENAMETOOLONG,
    errors.NotPermitted: errno.EPERM,
    errors.AcrossViews: errno.EXDEV,
    errors.FileTooLarge: errno.EFBIG,
    errors.OperationUnsupported: errno.EPERM,
    errors.StaleEntry: errno.ESTALE,
    errors.LayoutChanged: errno.ESTALE,
    errors.ContentInvalid: errno.EINVAL,
}

# What a program meets in daily life; anything else is logged, because somebody may have lost something.
QUIET = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EXDEV, errno.EPERM, errno.EROFS})

# But what nobody can see from the errno alone is told.
TOLD = (errors.HiddenKeys, errors.CaseConflict)


def errno_of(error: errors.ZarrfsError) -> int:
    """The errno for an error of our tree; a class that the table lacks has that of its nearest ancestor."""
    for each in type(error).__mro__:
        if each in ERRNO:
            return ERRNO[each]
    return errno.EIO
