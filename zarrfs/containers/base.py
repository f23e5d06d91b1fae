"""What a whole-array file is: literal bytes, and elements of an array in C order, little-endian.

The literal bytes come from the format's own library, which writes a header or a sparse file without the data. One file a container
format; its module constant ``PLUGIN`` is an instance.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

from zarrfs.model.metadata import ArrayMetadata


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes of the format itself, at ``offset`` of the file."""

    offset: int
    data: bytes

    @property
    def nbytes(self) -> int:
        """Length of the extent."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Elements:
    """``nbytes`` bytes at ``offset`` of the file: the array's elements in C order, little-endian, from byte ``start`` of them on."""

    offset: int
    nbytes: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A file's extents, in order and without gaps; ``size`` is the file's size in bytes."""

    extents: tuple[Literal | Elements, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return sum(extent.nbytes for extent in self.extents)


class Container(abc.ABC):
    """A whole-array file format. ``name`` is the view's folder, ``suffix`` what is appended to an array's name."""

    name: ClassVar[str]
    suffix: ClassVar[str]

    @abc.abstractmethod
    def layout(self, metadata: ArrayMetadata) -> FileLayout:
        """The file for an array. Raises `NotRepresentable` with the reason when the format has no words for it."""
