"""File formats: literal bytes, and the elements of arrays in C order.

A `Container` holds one array, a `GroupContainer` a group with everything below it. The library of the format writes the literal bytes: a
header, or a sparse file without the data. Each format has a file of its own; its module constant ``PLUGIN`` is an instance.
"""

from __future__ import annotations

import abc
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from zarrfs.errors import NotPermitted
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.metadata import ArrayMetadata, Node

MAX_NBYTES = 2**63 - 1
"""Maximum size of a file: the kernel's offsets are signed."""


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
    """Elements of an array in C order: its bytes from ``start`` on, ``nbytes`` of them at ``offset`` of the file.

    ``path`` is the array, in a file of several. ``dtype`` is the type of the elements in the file, by default that of the array,
    little-endian; elements are converted by `numpy.ndarray.astype`. ``start`` counts bytes after the conversion.
    """

    offset: int
    nbytes: int
    start: int = 0
    path: NodePath | None = None
    dtype: np.dtype[Any] | None = None


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The extents of a file, in order and without gaps; ``size`` is the file's size in bytes."""

    extents: tuple[Literal | Elements, ...]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(extent.nbytes for extent in self.extents))

    def parts(self, offset: int, size: int) -> Iterator[tuple[Literal | Elements, int, int]]:
        """Yield the extents within ``size`` bytes from ``offset`` of the file, each with its first byte and byte count."""
        stop = min(offset + size, self.size)
        index = bisect_right(self.extents, offset, key=_offset) - 1
        while offset < stop:
            extent = self.extents[index]
            end = min(stop, extent.offset + extent.nbytes)
            if offset < end:
                yield extent, offset - extent.offset, end - offset
                offset = end
            index += 1


def _offset(extent: Literal | Elements) -> int:
    return extent.offset


@dataclass(frozen=True, slots=True)
class Head:
    """Header of a file from another program: its first ``nbytes`` bytes.

    The elements follow, of ``shape`` and ``dtype`` (either byte order), in C order, or in Fortran order if ``fortran_order``.
    """

    nbytes: int
    shape: Shape
    dtype: np.dtype[Any]
    fortran_order: bool = False

    @property
    def file_nbytes(self) -> int:
        """Size of the complete file."""
        return self.nbytes + math.prod(self.shape) * self.dtype.itemsize


class FileFormat:
    """Common attributes of both kinds of formats. ``name`` is the view's folder; ``suffix`` is appended to a node's name."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    example: ClassVar[tuple[str, str] | None] = None
    """A command to try in the root of a mount, for README.txt, and a description of its output."""


class Container(FileFormat, abc.ABC):
    """A format for one array."""

    writable: ClassVar[bool] = False
    """True if files of this format can be written: `read_head` parses them."""

    @abc.abstractmethod
    def layout(self, metadata: ArrayMetadata) -> FileLayout:
        """Return the layout of an array's file. Raises `NotRepresentable` with the reason if the format cannot hold it."""

    def read_head(self, data: bytes) -> Head | None:
        """Return the header of a file that begins with ``data``; None if it is incomplete. Raises `ContentInvalid`."""
        raise NotPermitted(f"files in {self.name}/ cannot be written")


class GroupContainer(FileFormat, abc.ABC):
    """A format for a group: its arrays and groups, at any depth, with their attributes. Its files are read-only."""

    most_nodes: ClassVar[int] = 10_000
    """Limit of nodes in one file."""

    @abc.abstractmethod
    def layout(self, nodes: Sequence[Node]) -> FileLayout:
        """Return the layout of the file of ``nodes[0]``, a group or an array without a group above it.

        The others are all nodes below it, parents first, siblings by name, including each `UnsupportedNode`, so that the format can name
        what it omits. Equal nodes have equal layouts. Raises `NotRepresentable`. May run in a thread or another process: arguments and
        result can be pickled.
        """


def check_plugin(offered: object) -> None:
    """Raise TypeError unless ``offered``, which any distribution may provide, is a usable plug-in of this package."""
    if not isinstance(offered, Container | GroupContainer):
        raise TypeError(f"a {type(offered).__name__} is no Container and no GroupContainer")
    name, suffix = getattr(offered, "name", None), getattr(offered, "suffix", None)
    if not isinstance(name, str) or not isinstance(suffix, str) or not name or not suffix or "/" in name + suffix:
        raise TypeError("its name and suffix must be parts of file names")
