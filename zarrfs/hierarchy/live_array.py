"""An array in use, with the document that describes it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from zarrfs.arrays.array import Array
from zarrfs.arrays.live_node import Confirm, LiveNode
from zarrfs.arrays.reader import ArrayReader
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.stores.anchor import Nowhere
from zarrfs.stores.base import Store
from zarrfs.stores.values import Generation

Said = tuple[Key | None, Generation | None]
"""Key of the document that describes a node, and its generation; None for a node without one."""


class LiveArray(LiveNode):
    """An array in use.

    ``document``: key of the document that describes it, of this ``generation``; None if only a consolidated copy does.
    """

    def __init__(self, path: NodePath, chunk_prefix: Prefix, confirm_now: Confirm) -> None:
        super().__init__(path, chunk_prefix, confirm_now)
        self.document: Key | None = None
        self.generation: Generation | None = None
        self.metadata: ArrayMetadata | None = None
        """Its last known metadata, held by a reader or not."""
        self.is_misplaced = False
        """True if its folder was not held in time: the document there had changed already."""
        self._opened: weakref.ref[OpenArray] | None = None
        self._readers: weakref.WeakSet[ArrayReader] = weakref.WeakSet()

    @property
    def folder(self) -> Prefix | None:
        # The folder of an array that is being created is that of its group.
        folder = self.document.parent if self.document is not None else None
        return folder if folder and self.chunk_prefix.startswith(folder) else None

    @property
    def opened(self) -> OpenArray | None:
        """The array by its present documents, if it is held."""
        return self._opened() if self._opened is not None else None

    @opened.setter
    def opened(self, opened: OpenArray | None) -> None:
        self._opened = weakref.ref(opened) if opened is not None else None
        if opened is not None:
            self.metadata = opened.array.metadata
            for each in self._readers:
                each.earlier.clear()
            opened.reader.earlier.update(self._readers)
            self._readers.add(opened.reader)

    def resized(self, metadata: ArrayMetadata) -> None:
        """Record a change of its shape: what is open has the old layout."""
        if (opened := self.opened) is not None:
            opened.superseded = True
            opened.reader.discard()
        self.layouts += 1
        self.opened = None
        self.metadata = metadata

    def anchor_in(self, store: Store, *, is_changing: bool) -> None:
        """Hold its folder, if it is not held and its document there is the one that was read. ``is_changing``: this mount moves it."""
        held = self.anchor
        if self.folder is None or self.document is None or (held is not None and held.holds and not isinstance(held, Nowhere)):
            return
        anchor = store.anchor(self.folder)
        if anchor is None or anchor.generation(self.document[len(self.folder) :]) == self.generation:
            self.anchor, self.is_misplaced = anchor, False
            return
        # The folder has replaced the one that was read, or its document is being written.
        self.is_unread = self.is_misplaced = True
        if isinstance(anchor, Nowhere) and not is_changing:
            # A folder that appears there later is another, unless with this very document.
            self.anchor = anchor

    def is_said_at(self, place: Key | Prefix) -> bool:
        """Return True if the document that describes it lies at ``place``."""
        said: str = self.document if self.document is not None else self.path.prefix
        return said.startswith(place) if isinstance(place, Prefix) else said == place

    def concerns(self, place: Key | Prefix) -> bool:
        """Return True if a change at ``place`` can replace or move the array."""
        return self.is_said_at(place) or (isinstance(place, Prefix) and self.chunk_prefix.startswith(place))


@dataclass(slots=True, weakref_slot=True)
class OpenArray:
    """An array and its reader, by the documents of ``live``.

    ``superseded`` once the documents have changed: data read of it has another layout, or belongs to another array.
    """

    array: Array
    reader: ArrayReader
    live: LiveArray
    superseded: bool = False
    held_nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.held_nbytes = self.array.metadata.held_nbytes
