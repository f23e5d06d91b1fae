"""Translation of errors to errno: the only table. No other module chooses an errno.

Notes on doubtful choices:

* A bad chunk is EIO, never zeros: a program that requested data must not continue with invented data.
* A chunk of the wrong size, and a document that does not parse, are EINVAL at close(2): the writer's argument was wrong, and a retry
  would not help. Nothing was stored.
* A write past a chunk's end is EFBIG, as past the end of any file that cannot grow.
* A chunk, index or value beyond memory and the room in the cache folder is EFBIG too: the store is sound, and a larger
  ``--memory-limit`` or cache folder may suffice.
* A value that was replaced under a reader is ESTALE. On open(2) the kernel then looks the name up again by itself.
* A backend that does not answer is ETIMEDOUT. Some programs retry on EIO, and a retry is what a dead server needs least.
* Links and device nodes, which no store holds, are EPERM, as link(2), symlink(2) and mknod(2) specify for such file systems: git then
  renames, and tar names the file that it could not create.
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
    errors.StoreTurnedReadOnly: errno.EROFS,
    errors.StoreFull: errno.ENOSPC,
    errors.StoreQuotaExceeded: errno.EDQUOT,
    errors.FolderFull: errno.EMLINK,
    errors.OutOfMemory: errno.ENOMEM,
    errors.StoreTimeout: errno.ETIMEDOUT,
    errors.LockHeld: errno.ETIMEDOUT,
    errors.StoreUnsupported: errno.EOPNOTSUPP,
    errors.ValueUnsupported: errno.EIO,
    errors.KeyUnusable: errno.EINVAL,
    errors.KeyTooLong: errno.ENAMETOOLONG,
    errors.ValueTooLong: errno.EFBIG,
    errors.KeyConflict: errno.ENOTDIR,
    errors.PartsMissing: errno.ESTALE,
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
    errors.NameTaken: errno.EEXIST,
    errors.CaseConflict: errno.EEXIST,
    errors.NotADirectory: errno.ENOTDIR,
    errors.IsADirectory: errno.EISDIR,
    errors.DirectoryNotEmpty: errno.ENOTEMPTY,
    errors.HiddenKeys: errno.ENOTEMPTY,
    errors.NameInvalid: errno.EINVAL,
    errors.NameTooLong: errno.ENAMETOOLONG,
    errors.NotPermitted: errno.EPERM,
    errors.AcrossViews: errno.EXDEV,
    errors.CopyMayNotFit: errno.EXDEV,
    errors.FileTooLarge: errno.EFBIG,
    errors.OperationUnsupported: errno.EPERM,
    errors.StaleEntry: errno.ESTALE,
    errors.LayoutChanged: errno.ESTALE,
    errors.ContentInvalid: errno.EINVAL,
}

# Errors of normal operation. All others are logged, since data may be lost.
QUIET = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EXDEV, errno.EPERM, errno.EROFS})

# Quiet errors whose reason the errno alone does not show: they are logged.
LOGGED = (errors.HiddenKeys, errors.NameTaken, errors.CaseConflict, errors.StoreTurnedReadOnly)


def errno_of(error: errors.ZarrfsError) -> int:
    """Return the errno of an error; a class missing in the table has that of its nearest ancestor."""
    for each in type(error).__mro__:
        if each in ERRNO:
            return ERRNO[each]
    return errno.EIO
