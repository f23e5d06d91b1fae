"""The errors of zarrfs, in one tree.

A message states the operation, the key and the reason, for the reader of the log. It contains no errno and no exit code:
`zarrfs.fuse.errno` translates for the kernel, `zarrfs.command.main` for the shell. A library's own exceptions are converted to members of
this tree in the module that calls the library (``raise ... from``).
"""

from __future__ import annotations

from typing import Self


class ZarrfsError(Exception):
    """Base of all exceptions that zarrfs raises deliberately.

    ``key`` is the store key, node path or file concerned, if any.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key

    def again(self) -> Self:
        """Return an equal error without a traceback, to be kept or raised again.

        A kept error with its traceback keeps the variables of all functions that it went through, among them the data."""
        return type(self)(*self.args, key=self.key)


# --- requests of the user that fail ---------------------------------------------------------------------------------------------


class UsageError(ZarrfsError):
    """An invalid option, configuration file or store URL."""


class MountpointUnusable(ZarrfsError):
    """The mountpoint is missing, not an empty folder, a symlink, or overlaps the store."""


class MountBusy(ZarrfsError):
    """The mount is in use and cannot be removed."""


class RootNeeded(ZarrfsError):
    """The request requires root."""


class FuseUnavailable(ZarrfsError):
    """/dev/fuse is missing or inaccessible, or the mount failed."""


class TooLarge(ZarrfsError):
    """The data exceeds the memory limit and the room in the cache folder."""


class NotPublished(ZarrfsError):
    """The mount ended with written data that could not be stored."""


# --- the store ------------------------------------------------------------------------------------------------------------------


class StoreError(ZarrfsError):
    """A store operation failed for a reason without a class of its own below."""


class StoreNotFound(StoreError):
    """There is no store at this path or URL."""


class StoreAccessDenied(StoreError):
    """The backend denies access to this key."""


class StoreReadOnly(StoreError):
    """The store, or this mount of it, is read-only."""


class StoreTurnedReadOnly(StoreReadOnly):
    """The file system of a store that could be written is read-only now, as ext4 is after an error of its disk."""


class StoreFull(StoreError):
    """No space is left for the store."""


class StoreQuotaExceeded(StoreFull):
    """The user's quota for the store is exhausted."""


class FolderFull(StoreFull):
    """A folder of the store has as many folders as its file system permits."""


class OutOfMemory(StoreError, TooLarge):
    """The daemon cannot allocate memory, or address space to map a file."""


class StoreTimeout(StoreError):
    """The backend did not answer before the deadline of the operation."""


class LockHeld(StoreError):
    """Another task or process has held a lock for as long as the caller waits for it."""


class StoreUnsupported(StoreError):
    """This backend lacks the capability that the operation needs (readable, writable, listable)."""


class ValueUnsupported(StoreError):
    """A value is stored in a form that zarrfs does not read, such as a zip entry of an unknown compression method."""


class ValueTooLong(StoreError):
    """A value exceeds the maximum size of a value of the backend: of a file, in a folder."""


class KeyUnusable(StoreError):
    """The backend cannot hold any value under this key (for example ``..`` in a folder)."""


class KeyTooLong(KeyUnusable):
    """A part of the key exceeds the backend's maximum name length."""


class KeyConflict(StoreError):
    """A key exists where a prefix is needed, or a prefix where a key is needed (``a`` and ``a/b`` in a folder)."""


class PartsMissing(KeyConflict):
    """Another program has moved or removed a part of the content of an interrupted operation: no position is left for the rest."""


class PrefixNotEmpty(KeyConflict):
    """A prefix has keys, and must be empty to be removed or replaced."""


class NodeMoving(ZarrfsError):
    """A node is being moved or erased, and the caller must not wait for the end of that. Internal to array access."""


class NodeInDoubt(StoreError):
    """The documents of a node in use are absent or unreadable, and whether the node is gone cannot be determined."""


class IntentTooNew(StoreError):
    """An operation begun by a later version of zarrfs is incomplete: only that version can finish it."""


class GenerationMismatch(StoreError):
    """The value is not, or no longer, of the requested generation."""


class RangesOverlap(StoreError):
    """set_partial_values got overlapping ranges of one key (v3 core 2022, abstract store interface)."""


# --- documents ------------------------------------------------------------------------------------------------------------------


class MetadataError(ZarrfsError):
    """A metadata document violates its specification."""


class MetadataUnsupported(MetadataError):
    """A well-formed document requires something that zarrfs does not support, or refuses (an unknown codec, pickle)."""


class NotRepresentable(MetadataError):
    """A node of one dialect cannot be represented in another dialect, view or container."""


# --- chunks ---------------------------------------------------------------------------------------------------------------------


class ChunkError(ZarrfsError):
    """A chunk cannot be read or written in accordance with its array's metadata."""


class ChunkDecodeError(ChunkError):
    """Stored bytes do not decode to a chunk of the declared size."""


class ChecksumMismatch(ChunkDecodeError):
    """A checksum does not match the bytes that it protects."""


class ShardIndexInvalid(ChunkDecodeError):
    """A shard index is unreadable, or has an invalid entry for a chunk."""


class ChunkEncodeError(ChunkError):
    """The array's codecs cannot encode the elements."""


class ChunkSizeMismatch(ChunkError):
    """Bytes to be stored as a chunk are shorter or longer than the chunk."""


# --- the tree -------------------------------------------------------------------------------------------------------------------


class TreeError(ZarrfsError):
    """An operation that the tree of files does not allow."""


class NoSuchEntry(TreeError):
    """The name does not exist."""


class EntryExists(TreeError):
    """The name exists already."""


class NameTaken(EntryExists):
    """The name belongs to a node that the folder does not show by that name."""


class CaseConflict(EntryExists):
    """A name differs only in case from an existing one, where names are unique regardless of case."""


class NotADirectory(TreeError):
    """A file exists where a directory is needed."""


class IsADirectory(TreeError):
    """A directory exists where a file is needed."""


class DirectoryNotEmpty(TreeError):
    """Only an empty directory can be removed or replaced."""


class HiddenKeys(DirectoryNotEmpty):
    """A folder appears empty, but the store has keys below it that the view does not show."""


class NameInvalid(TreeError):
    """A name that is never valid at this place of the tree."""


class NameTooLong(NameInvalid):
    """A name exceeds the maximum length of a directory entry."""


class NotPermitted(TreeError):
    """An operation that the tree never allows here, for any user."""


class AcrossViews(TreeError):
    """A rename or link between two views, or one that the store cannot do without loss."""


class CopyMayNotFit(AcrossViews):
    """A rename that could only be a copy, of which it is open whether it can replace what has the new name.

    Over an existing file it is `EntryExists`: on EXDEV, mv(1) removes the target before it copies.
    """


class FileTooLarge(TreeError):
    """A write past the end of a file whose size is fixed."""


class OperationUnsupported(TreeError):
    """An operation that zarrfs does not have (symlinks, device nodes, ...)."""


class StaleEntry(TreeError):
    """The value of an open file or a cached name was replaced by another program."""


class LayoutChanged(StaleEntry):
    """The array was resized after the layout of the data to be stored was determined."""


class ContentInvalid(TreeError):
    """The content written to a file cannot be published by its view."""


# --- kinds ----------------------------------------------------------------------------------------------------------------------

_REFUSALS: tuple[type[ZarrfsError], ...] = (
    MetadataError,
    ChunkEncodeError,
    ChunkSizeMismatch,
    KeyUnusable,
    ValueTooLong,
    KeyConflict,
    GenerationMismatch,
    TreeError,
    TooLarge,
)


def is_refusal(error: BaseException) -> bool:
    """Return True if content cannot be stored at its destination in any state of the store and of this machine."""
    # It may succeed once there is memory.
    return isinstance(error, _REFUSALS) and not isinstance(error, OutOfMemory)


LOOK_S = 2.0
"""Seconds for which, after a failure of the store, what is stored is looked at: the program waits for its error meanwhile."""


def shows_stored(error: BaseException) -> bool:
    """Return True if what is stored after this failure of the store is the value of before.

    What timed out may take effect later; where something else has the name of a key, its value may be elsewhere."""
    return isinstance(error, StoreError) and not isinstance(error, (StoreTimeout, KeyConflict))


UNSUPPORTED: tuple[type[ZarrfsError], ...] = (MetadataUnsupported, ValueUnsupported)
"""What is stored may be valid, and requires something that zarrfs does not support."""


def is_want_of_memory(error: BaseException) -> bool:
    """Return True for lack of memory, including a thread that cannot be started because there is no room for its stack."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_want_of_memory, error.exceptions))
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def raise_first(failed: list[Exception]) -> None:
    """Raise the first of these errors, if any, and empty the list.

    An error has the variables of the function that raises it. If these include the error, both are kept, with the data in the variables
    of all functions that it went through, until the next full garbage collection."""
    try:
        if failed:
            raise failed[0]
    finally:
        failed.clear()
