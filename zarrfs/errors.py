"""What can go wrong in zarrfs: one tree of errors.

An error says what was being done, to which key, and why it failed, in words for the person who reads the log. It knows no errno
and no exit code: `zarrfs.fuse.errno` translates for the kernel, `zarrfs.command.main` for the shell. A library's own exceptions become
members of this tree in the module that calls the library (``raise ... from``).
"""

from __future__ import annotations


class ZarrfsError(Exception):
    """Base of everything that zarrfs raises on purpose.

    ``key`` names the store key, node path or file that the error is about, where there is one.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


# --- what a person asked for cannot be done -------------------------------------------------------------------------------------


class UsageError(ZarrfsError):
    """An option, a configuration file or a store URL that makes no sense."""


class MountpointUnusable(ZarrfsError):
    """The mountpoint is missing, not an empty folder, a symlink, or overlaps the store."""


class MountBusy(ZarrfsError):
    """A mount that is in use stays."""


class RootNeeded(ZarrfsError):
    """What was asked for is root's to do."""


class FuseUnavailable(ZarrfsError):
    """There is no /dev/fuse, or it may not be used, or mounting failed."""


class TooLarge(ZarrfsError):
    """More than zarrfs handles within its memory limit and the room in its cache folder."""


class NotPublished(ZarrfsError):
    """The mount ended and something that was written could not be stored."""


# --- the store ------------------------------------------------------------------------------------------------------------------


class StoreError(ZarrfsError):
    """A store operation failed for a reason that has no class of its own below."""


class StoreNotFound(StoreError):
    """There is no store at this path or URL."""


class StoreAccessDenied(StoreError):
    """The backend does not let us read or write this key."""


class StoreReadOnly(StoreError):
    """The store, or this mount of it, cannot be written."""


class StoreFull(StoreError):
    """No space is left where the store lives."""


class StoreQuotaExceeded(StoreFull):
    """The user's quota is used up where the store lives."""


class StoreTimeout(StoreError):
    """The backend did not answer before the deadline of the operation."""


class StoreUnsupported(StoreError):
    """This backend lacks the capability that the operation needs (readable, writable, listable)."""


class KeyUnusable(StoreError):
    """The backend cannot hold a value under this key, whatever the value (for example ``..`` in a folder)."""


class KeyTooLong(KeyUnusable):
    """A part of the key is longer than the backend's names may be."""


class KeyConflict(StoreError):
    """A key stands where a prefix is needed, or a prefix where a key is needed (``a`` and ``a/b`` in a folder)."""


class PrefixNotEmpty(KeyConflict):
    """Something lies under a prefix that has to be empty to be removed or replaced."""


class NodeMoving(ZarrfsError):
    """A node is being moved or erased, and the caller must not wait for the end of that. Never seen by anybody else."""


class NodeInDoubt(StoreError):
    """The documents of a node that is in use are not there, or cannot be read, and nobody can tell whether it is gone."""


class IntentTooNew(StoreError):
    """A later version of zarrfs has left an operation half done: only that one knows how it ends."""


class GenerationMismatch(StoreError):
    """The value is not, or no longer, the generation that the caller named."""


class RangesOverlap(StoreError):
    """set_partial_values was given overlapping ranges of one key (v3 core 2022, abstract store interface)."""


# --- documents ------------------------------------------------------------------------------------------------------------------


class MetadataError(ZarrfsError):
    """A metadata document that is not what its specification demands."""


class MetadataUnsupported(MetadataError):
    """A well-formed document that asks for something zarrfs cannot do, or refuses to do (an unknown codec, pickle)."""


class NotRepresentable(MetadataError):
    """A node of one dialect that another dialect, view or container has no words for."""


# --- chunks ---------------------------------------------------------------------------------------------------------------------


class ChunkError(ZarrfsError):
    """A chunk that cannot be read or written as its array's metadata demands."""


class ChunkDecodeError(ChunkError):
    """Stored bytes that do not decode to a chunk of the declared size."""


class ChecksumMismatch(ChunkDecodeError):
    """A checksum codec that does not agree with the bytes that it protects."""


class ShardIndexInvalid(ChunkDecodeError):
    """A shard whose index cannot be read, or says of a chunk what cannot be right."""


class ChunkEncodeError(ChunkError):
    """Elements that the array's codecs cannot encode."""


class ChunkSizeMismatch(ChunkError):
    """Bytes offered as a chunk that are shorter or longer than a chunk is."""


# --- the tree -------------------------------------------------------------------------------------------------------------------


class TreeError(ZarrfsError):
    """An operation on the tree of files that the tree does not allow."""


class NoSuchEntry(TreeError):
    """The name is not there."""


class EntryExists(TreeError):
    """The name is already there."""


class CaseConflict(EntryExists):
    """A name that differs in case alone from one that is there, where names are unique regardless of case."""


class NotADirectory(TreeError):
    """A file stands where a directory is needed."""


class IsADirectory(TreeError):
    """A directory stands where a file is needed."""


class DirectoryNotEmpty(TreeError):
    """Only an empty directory can be removed or replaced."""


class HiddenKeys(DirectoryNotEmpty):
    """A folder that looks empty, below which the store holds something that the view does not show."""


class NameInvalid(TreeError):
    """A name that this place of the tree can never hold."""


class NameTooLong(NameInvalid):
    """A name of more bytes than a directory entry's may have."""


class NotPermitted(TreeError):
    """The tree never allows this here, whoever asks."""


class AcrossViews(TreeError):
    """A rename or link from one view into another, or one the store cannot do without loss."""


class FileTooLarge(TreeError):
    """A write past the end of a file whose size is fixed."""


class OperationUnsupported(TreeError):
    """zarrfs has no such operation (symlinks, device nodes, ...)."""


class StaleEntry(TreeError):
    """The value behind an open file or a cached name was replaced behind the mount."""


class LayoutChanged(StaleEntry):
    """The array was resized since what is to be stored was laid out."""


class ContentInvalid(TreeError):
    """What was written into a file is not something that its view can publish."""


# --- kinds ----------------------------------------------------------------------------------------------------------------------

REFUSALS: tuple[type[ZarrfsError], ...] = (
    MetadataError,
    ChunkEncodeError,
    ChunkSizeMismatch,
    KeyUnusable,
    KeyConflict,
    GenerationMismatch,
    TreeError,
    TooLarge,
)
"""Content that cannot be stored where it was written, whatever the store does; everything else may succeed another time."""
