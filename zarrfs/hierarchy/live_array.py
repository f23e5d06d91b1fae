"""An array that is in use, and what its documents say that it is."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from zarrfs.arrays.array import Array
from zarrfs.arrays.live_node import Confirm, LiveNode
from zarrfs.arrays.reader import ArrayReader
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.stores.values import Generation

Said = tuple[Key | None, Generation | None]
"""The document that says what a node is, and its generation; None for a node without one."""


class LiveArray(LiveNode):
    """An array in use. ``document``: the key that says what it is, of this ``generation``; None where it is known from a consolidated
    copy alone."""

    def __init__(self, path: NodePath, chunk_prefix: Prefix, confirm_now: Confirm) -> None:
        super().__init__(path, chunk_prefix, confirm_now)
        self.document: Key | None = None
        self.generation: Generation | None = None
        self.metadata: ArrayMetadata | None = None
        """What it was known to be last, whether or not anybody holds that."""
        self.is_misplaced = False
        """Whether its folder was not held in time: what lies there had another document already."""
        self._opened: weakref.ref[OpenArray] | None = None
        self._readers: weakref.WeakSet[ArrayReader] = weakref.WeakSet()

    @property
    def folder(self) -> Prefix | None:
        # Of one that is being made, that of its group.
        folder = self.document.parent if self.document is not None else None
        return folder if folder and self.chunk_prefix.startswith(folder) else None

    @property
    def opened(self) -> OpenArray | None:
        """The array as its documents are now, if anybody holds that."""
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

    def is_said_at(self, place: Key | Prefix) -> bool:
        """Whether what says what it is lies there."""
        said: str = self.document if self.document is not None else self.path.prefix
        return said.startswith(place) if isinstance(place, Prefix) else said == place

    def concerns(self, place: Key | Prefix) -> bool:
        """Whether it is another, or elsewhere, where something is changed there."""
        return self.is_said_at(place) or (isinstance(place, Prefix) and self.chunk_prefix.startswith(place))


@dataclass(slots=True, weakref_slot=True)
class OpenArray:
    """An array and its reader, as the documents of ``live`` say that it is. ``superseded`` once they say something else: what was read
    of it is laid out otherwise, or another array's."""

    array: Array
    reader: ArrayReader
    live: LiveArray
    superseded: bool = False
    held_nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.held_nbytes = self.array.metadata.held_nbytes
