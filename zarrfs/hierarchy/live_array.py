"""An array in use, with the document that describes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeGuard

from zarrfs.arrays.array import Array
from zarrfs.arrays.live_node import Confirm, LiveNode, is_elsewhere
from zarrfs.arrays.reader import ArrayReader
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.stores.anchor import AbsentFolder, Anchor
from zarrfs.stores.base import Store
from zarrfs.stores.values import Generation

ERASED = "was erased"
"""The reason for the end of a node that was removed for certain, and not replaced."""
GONE = "was erased or moved"
"""The same of a node of which only its absence is known."""

DocumentVersion = tuple[Key | None, Generation | None]
"""Key of the document that describes a node, and its generation; None for a node without one."""


class LiveArray(LiveNode):
    """An array in use.

    ``document``: key of the document that describes it, of this ``generation``; None if only a consolidated copy does.
    """

    # Of the class, since few arrays are saved over or lose their chunks: with more attributes than 30, each would take 500 bytes more.
    replaces: LiveArray | None = None
    """The array that it is to replace once it is created: until then it goes where that goes, and ends with it."""
    is_being_replaced = False
    """True while a save puts another array in its place, and as long as the outcome is unknown."""
    _has_lost_chunk_folder = False
    """True if the folder of its chunks, where its document lies elsewhere, was found erased, and none of its own was found since.

    Nor has a writer held the array, which may have made one."""
    _changed_without_chunks = False
    """True if another document was found after that."""

    def __init__(self, path: NodePath, chunk_prefix: Prefix, confirm_now: Confirm) -> None:
        super().__init__(path, chunk_prefix, confirm_now)
        self.document: Key | None = None
        self.generation: Generation | None = None
        self.metadata: ArrayMetadata | None = None
        """Its last known metadata, held by a reader or not."""
        self.is_amended = False
        """True while this mount changes nothing of its documents but the attributes."""
        self.is_misplaced = False
        """True if its folder was not held in time: the document there had changed already."""
        self.has_no_document = False
        """True if this mount erased its document alone (see `has_lost`)."""
        self.is_successor: Callable[[ArrayNode, DocumentVersion], bool] | None = None
        """True for the array, with its document, that a save puts in its place, once that save has begun and until it has failed."""
        self._chunk_folder: Anchor | None = None
        """The folder of its chunks, where its document lies elsewhere."""
        self._owns_chunk_folder = False
        """True if the document has not changed from before it was read until after that folder was found."""
        self._confirmed_chunk_folder: Anchor | None = None
        """That folder, if it was at its place when the document was last confirmed."""
        self._follows_erased = False
        """True if that folder has followed one that was erased, and the document has not been found unchanged since."""
        self._open_array: weakref.ref[OpenArray] | None = None
        # Not a WeakSet, which takes a kilobyte.
        self._readers: tuple[weakref.ref[ArrayReader], ...] = ()

    @property
    def folder(self) -> Prefix | None:
        # The folder of an array that is being created is that of its group.
        folder = self.document.parent if self.document is not None else None
        return folder if folder and self.chunk_prefix.startswith(folder) else None

    @property
    def is_apart(self) -> bool:
        """True if its chunks are in a folder of their own, elsewhere than its document (2019, 2022)."""
        return self.document is not None and bool(self.chunk_prefix) and not self.chunk_prefix.startswith(self.document.parent)

    @property
    def open_array(self) -> OpenArray | None:
        """The array by its present documents, if it is held."""
        return self._open_array() if self._open_array is not None else None

    @open_array.setter
    def open_array(self, open_array: OpenArray | None) -> None:
        self._open_array = weakref.ref(open_array) if open_array is not None else None
        if open_array is not None:
            self.metadata = open_array.array.metadata
            if any(each() is not None for each in self._readers):
                # They have to learn what changes from now on.
                self.has_reader(open_array.reader)

    def has_reader(self, reader: ArrayReader) -> None:
        """Let ``reader`` pass what changes to the readers under earlier shapes that are in use."""
        earlier = [each for ref in self._readers if (each := ref()) not in (None, reader)]
        for each in earlier:
            each.follows(())
        reader.follows(earlier)
        self._readers = tuple(weakref.ref(each) for each in (*earlier, reader))

    def has_lost(self, *, chunks: bool = False, document: bool = False) -> bool:
        """Record that a part was erased alone; return True if both are: an equal array put there later is another.

        (One without the other may be about to be written again.)"""
        self.has_no_chunks = self.has_no_chunks or chunks
        self.has_no_document = self.has_no_document or document
        return self.has_no_chunks and self.has_no_document

    def resized(self, metadata: ArrayMetadata) -> None:
        """Record a change of its shape: what is open has the old layout."""
        if (open_array := self.open_array) is not None:
            open_array.superseded = True
            open_array.discard()
        self.layouts += 1
        self.open_array = None
        self.metadata = metadata

    def anchor_in(self, store: Store, *, is_changing: bool) -> None:
        """Hold the array's folder, unless it is held or its document is not the one read. ``is_changing``: this mount moves the array."""
        folder = self._chunk_folder
        # One that was removed may have lost its last chunk: the next chunk makes another.
        if self.is_apart and (not is_held(folder) or folder.is_erased):
            self._chunk_folder, self._owns_chunk_folder = store.anchor(self.chunk_prefix, spare=True), False
            if is_held(folder):
                self._follows_erased = self._has_lost_chunk_folder = True
        held = self.anchor
        if self.folder is None or self.document is None or is_held(held):
            return
        anchor = store.anchor(self.folder)
        if anchor is None or anchor.generation(self.document[len(self.folder) :]) == self.generation:
            self.anchor, self.is_misplaced = anchor, False
            return
        # The folder has replaced the one that was read, or its document is being written.
        self.is_unread = self.is_misplaced = True
        if isinstance(anchor, AbsentFolder) and not is_changing:
            # A folder that appears there later is another, unless with this very document.
            self.anchor = anchor

    def are_chunks_in_place(self) -> bool:
        if not self.is_apart:
            return self.is_in_place()
        held = self._chunk_folder
        return held is None or (self._owns_chunk_folder and held.holds and held.is_at(self.chunk_prefix))

    @property
    def is_moved_away(self) -> bool:
        if self.is_apart:
            return is_elsewhere(self._chunk_folder, self.chunk_prefix)
        # If its folder is held no more, the document at its path has told, before this mount changed anything there.
        return super().is_moved_away or (self.is_misplaced and not is_held(self.anchor))

    @property
    def has_left_its_path(self) -> bool:
        """True if its folder, or that of its chunks, is held and not at its path any more: another program has taken it away."""
        if self.is_apart:
            return is_held(self._chunk_folder) and not self._chunk_folder.is_at(self.chunk_prefix)
        return self.has_left_its_document

    @property
    def has_left_its_document(self) -> bool:
        """True if its folder is held and not at its path any more: the document there is another's, even if it is the same file."""
        return is_held(self.anchor) and not self.is_in_place()

    @property
    def chunk_folder_in_place(self) -> Anchor | None:
        """The folder of its chunks, where its document lies elsewhere, if it is held and at its place."""
        held = self._chunk_folder
        return held if self.is_apart and is_held(held) and held.is_at(self.chunk_prefix) else None

    @property
    def place_of_chunks(self) -> tuple[Prefix | None, Anchor | None]:
        if not self.is_apart:
            return super().place_of_chunks
        # A mount that renames or removes the array takes the document away first: this folder is the array's, wherever it is now.
        held = self._confirmed_chunk_folder
        return (self.chunk_prefix, held) if held is not None else (None, None)

    def confirmed_by_document(self, chunk_folder: Anchor | None) -> None:
        """Record that its document was found unchanged. ``chunk_folder``: `chunk_folder_in_place` of before."""
        self.is_unread, self._confirmed_chunk_folder = False, chunk_folder
        self._owns_chunk_folder, self._follows_erased = True, False
        if chunk_folder is not None and self._has_lost_chunk_folder:
            # Others have made it for the document of before.
            self._has_lost_chunk_folder = False

    @property
    def may_have_other_chunks(self) -> bool:
        """True if the folder of its chunks may have replaced its own before it was found."""
        return self.is_apart and is_held(self._chunk_folder) and not self._owns_chunk_folder

    def has_new_document(self, document: DocumentVersion) -> bool:
        """Return True if ``document`` has another generation. With a folder of chunks that others make later, it is another array's."""
        if document[1] == self.generation:
            return False
        held = self._chunk_folder
        if self._has_lost_chunk_folder or (self.is_apart and is_held(held) and held.is_erased):
            self._changed_without_chunks = True
        return True

    def document_changed(self, *, is_own: bool) -> None:
        """Record that its document is to be read again. ``is_own``: this mount has changed it."""
        self.is_unread = True
        if is_own:
            # The next one that is found is no sign of others.
            self.expects_sets()

    def expects_sets(self) -> None:
        # A folder of chunks that appears from now on may be the one that this mount makes.
        if self._has_lost_chunk_folder or self._changed_without_chunks:
            self._has_lost_chunk_folder = self._changed_without_chunks = False

    def has_other_chunks(self, store: Store) -> bool:
        """Return True if another folder has replaced that of its chunks, or it was renamed.

        (A folder that was removed, without another in its place, may have lost its last chunk.)"""
        if self.has_chunks_of_others(store):
            return True
        held = self._chunk_folder
        if not self.is_apart or not is_held(held):
            return False
        if held.is_at(self.chunk_prefix):
            return self._follows_erased
        return not held.is_erased or not isinstance(store.anchor(self.chunk_prefix, spare=True), AbsentFolder)

    def has_chunks_of_others(self, store: Store) -> bool:
        """Return True if its documents were replaced, and then the folder of its chunks, while it had none."""
        return self._changed_without_chunks and not isinstance(store.anchor(self.chunk_prefix, spare=True), AbsentFolder)

    def is_described_at(self, target: Key | Prefix) -> bool:
        """Return True if the document that describes it lies at ``target``."""
        described_at: str = self.document if self.document is not None else self.path.prefix
        return described_at.startswith(target) if isinstance(target, Prefix) else described_at == target

    def is_replaced_by(self, found: ArrayNode, document: DocumentVersion) -> bool:
        """Return True if a save of this mount has put ``found``, with this document, in its place, whether or not that is reported."""
        return self.is_successor is not None and document != (self.document, self.generation) and self.is_successor(found, document)

    def is_to_replace(self, live: LiveArray, path: NodePath) -> bool:
        """Return True if it is to replace ``live``, known at ``path``, and that has not begun."""
        return self.replaces is live and self.path == path and not live.is_being_replaced

    def is_affected_by(self, target: Key | Prefix) -> bool:
        """Return True if a change at ``target`` can replace or move the array."""
        return self.is_described_at(target) or (isinstance(target, Prefix) and self.chunk_prefix.startswith(target))


def is_held(anchor: Anchor | None) -> TypeGuard[Anchor]:
    """Return True if ``anchor`` is that of a folder which is still held, and existed then."""
    return anchor is not None and anchor.holds and not isinstance(anchor, AbsentFolder)


@dataclass(slots=True, weakref_slot=True)
class OpenArray:
    """An array by the documents of ``live``.

    ``superseded`` once the documents have changed: data read of it has another layout, or belongs to another array.
    """

    array: Array
    pool: ReaderPool
    live: LiveArray
    superseded: bool = False
    _reader: ArrayReader | None = field(init=False, default=None)

    @property
    def reader(self) -> ArrayReader:
        """Its elements. Created at the first use: most arrays that are known are only listed."""
        if self._reader is None:
            self._reader = ArrayReader(self.array, self.pool)
            self.live.has_reader(self._reader)
        return self._reader

    def discard(self, coords: Coords | None = None) -> None:
        """Run `ArrayReader.discard` if there may be something to discard."""
        if self._reader is not None:
            self._reader.discard(coords)
