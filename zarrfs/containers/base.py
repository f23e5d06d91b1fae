"""What a whole-array file is: literal bytes, and elements of an array in C order, little-endian.

The literal bytes come from the format's own library, which writes a header or a sparse file without the data. One file a container
format; its module constant ``PLUGIN`` is an instance.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from zarrfs.errors import NotPermitted
from zarrfs.model.chunk_grid import Shape
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
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(extent.nbytes for extent in self.extents))

    def parts(self, offset: int, size: int) -> Iterator[tuple[Literal | Elements, int, int]]:
        """What ``size`` bytes from ``offset`` of the file are: extents, with the first byte and the number of bytes of each."""
        for extent in self.extents:
            begin, end = max(offset, extent.offset), min(offset + size, extent.offset + extent.nbytes)
            if begin < end:
                yield extent, begin - extent.offset, end - begin


@dataclass(frozen=True, slots=True)
class Head:
    """What the first ``nbytes`` bytes of a file that somebody else wrote say: its elements follow, ``shape`` of ``dtype`` (of any byte
    order), in C order, or in Fortran order where ``fortran_order``."""

    nbytes: int
    shape: Shape
    dtype: np.dtype[Any]
    fortran_order: bool = False


class Container(abc.ABC):
    """A whole-array file format. ``name`` is the view's folder, ``suffix`` what is appended to an array's name."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    writable: ClassVar[bool] = False
    """Whether files of this format can be taken back: `read_head` understands them."""
    example: ClassVar[tuple[str, str] | None] = None
    """A command to try in the root of a mount, for README.txt, and what it shows."""

    @abc.abstractmethod
    def layout(self, metadata: ArrayMetadata) -> FileLayout:
        """The file for an array. Raises `NotRepresentable` with the reason when the format has no words for it."""

    def read_head(self, data: bytes) -> Head | None:
        """What a file that begins with ``data`` holds; None while more bytes are needed to tell. Raises `ContentInvalid`."""
        raise NotPermitted(f"files in {self.name}/ cannot be written")


def check_plugin(offered: object) -> None:
    """Raise TypeError for what is no plug-in of this package, or none that can be used: another distribution may offer anything."""
    if not isinstance(offered, Container):
        raise TypeError(f"a {type(offered).__name__} is no Container")
    name, suffix = getattr(offered, "name", None), getattr(offered, "suffix", None)
    if not isinstance(name, str) or not isinstance(suffix, str) or not name or not suffix or "/" in name + suffix:
        raise TypeError("its name and suffix have to be parts of file names")
