"""Whole-array file formats: literal bytes, and the elements of an array in C order, little-endian.

The library of the format writes the literal bytes: a header, or a sparse file without the data. Each container format has a file of
its own; its module constant ``PLUGIN`` is an instance.
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
    """The array's elements in C order, little-endian, from byte ``start`` on: ``nbytes`` bytes at ``offset`` of the file."""

    offset: int
    nbytes: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The extents of a file, in order and without gaps; ``size`` is the file's size in bytes."""

    extents: tuple[Literal | Elements, ...]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(extent.nbytes for extent in self.extents))

    def parts(self, offset: int, size: int) -> Iterator[tuple[Literal | Elements, int, int]]:
        """Yield the extents within ``size`` bytes from ``offset`` of the file, each with its first byte and byte count."""
        for extent in self.extents:
            begin, end = max(offset, extent.offset), min(offset + size, extent.offset + extent.nbytes)
            if begin < end:
                yield extent, begin - extent.offset, end - begin


@dataclass(frozen=True, slots=True)
class Head:
    """Header of a file from another program: its first ``nbytes`` bytes.

    The elements follow, of ``shape`` and ``dtype`` (either byte order), in C order, or in Fortran order if ``fortran_order``.
    """

    nbytes: int
    shape: Shape
    dtype: np.dtype[Any]
    fortran_order: bool = False


class Container(abc.ABC):
    """A whole-array file format. ``name`` is the view's folder; ``suffix`` is appended to an array's name."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    writable: ClassVar[bool] = False
    """True if files of this format can be written: `read_head` parses them."""
    example: ClassVar[tuple[str, str] | None] = None
    """A command to try in the root of a mount, for README.txt, and a description of its output."""

    @abc.abstractmethod
    def layout(self, metadata: ArrayMetadata) -> FileLayout:
        """Return the layout of an array's file. Raises `NotRepresentable` with the reason if the format cannot hold it."""

    def read_head(self, data: bytes) -> Head | None:
        """Return the header of a file that begins with ``data``; None if it is incomplete. Raises `ContentInvalid`."""
        raise NotPermitted(f"files in {self.name}/ cannot be written")


def check_plugin(offered: object) -> None:
    """Raise TypeError unless ``offered``, which any distribution may provide, is a usable plug-in of this package."""
    if not isinstance(offered, Container):
        raise TypeError(f"a {type(offered).__name__} is no Container")
    name, suffix = getattr(offered, "name", None), getattr(offered, "suffix", None)
    if not isinstance(name, str) or not isinstance(suffix, str) or not name or not suffix or "/" in name + suffix:
        raise TypeError("its name and suffix must be parts of file names")
