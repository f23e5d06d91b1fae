"""The format that `vlen-utf8`, `vlen-bytes` and `vlen-array` share: a count, then each item behind its number of bytes.

Source: numcodecs ``vlen``; zarr-extensions ``codecs/vlen-utf8`` and ``codecs/vlen-bytes``. Numbers are unsigned, 32 bits, little-endian.

    02 00 00 00 | 01 00 00 00  61 | 00 00 00 00

Nothing here is trusted: the count has to be that of the chunk, each item has to lie in what is left, and nothing may follow the last
one. (numcodecs allocates what the count says, and passes over what follows.)
"""

from __future__ import annotations

import abc
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from zarrfs.codecs.base import BYTE, Array, ArrayBytesCodec, Buffer, ChunkSpec, Dtype
from zarrfs.codecs.streams import Made
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError
from zarrfs.memory import spill
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES

OBJECT_NBYTES = 100
"""What a small object takes in memory, about."""
TEXT_TO_MEMORY = 4
"""Bytes of memory for a byte of text, at most."""
ALONE_NBYTES = 96 << 20
"""The most that one element may take."""

_NUMBER = struct.Struct("<I")
_PIECES = 8192
_PIECE_NBYTES = 1 << 20


def split(codec: str, data: Buffer, count: int) -> Iterator[memoryview]:
    """The ``count`` items in ``data``. Raises `ChunkDecodeError` where it holds more, fewer, or something else."""
    view = memoryview(data).cast("B")
    nbytes, unpack = view.nbytes, _NUMBER.unpack_from
    if nbytes < _NUMBER.size:
        raise ChunkDecodeError(f"{codec}: {nbytes} bytes are too few for a count")
    (found,) = unpack(view)
    if found != count:
        raise ChunkDecodeError(f"{codec}: {found} elements instead of the {count} that a chunk has")
    end = _NUMBER.size
    for index in range(count):
        start = end + _NUMBER.size
        if start > nbytes:
            raise ChunkDecodeError(f"{codec}: the data ends before element {index}")
        (length,) = unpack(view, end)
        end = start + length
        if end > nbytes:
            raise ChunkDecodeError(f"{codec}: element {index} of {length} bytes is longer than what is left ({nbytes - start})")
        yield view[start:end]
    if end != nbytes:
        raise ChunkDecodeError(f"{codec}: {nbytes - end} bytes follow the last element")


def join(codec: str, items: Sequence[Buffer]) -> bytes:
    """The ``items`` in one value. Raises `ChunkEncodeError` where they are more than a chunk may have."""
    nbytes = _NUMBER.size * (1 + len(items)) + sum(map(len, items))
    if nbytes > MAX_VARIABLE_NBYTES:
        raise ChunkEncodeError(f"{codec}: {nbytes} bytes are more than a chunk of variable length may have ({MAX_VARIABLE_NBYTES})")
    pieces: list[Buffer] = [_NUMBER.pack(len(items))]
    for item in items:
        pieces += (_NUMBER.pack(len(item)), item)
    return b"".join(pieces)


def put_items(items: Iterable[Buffer], count: int, made: Made) -> None:
    """`join`, piece by piece."""
    made.add(_NUMBER.pack(count))
    pieces: list[Buffer] = []
    nbytes = 0
    for item in items:
        pieces += (_NUMBER.pack(len(item)), item)
        nbytes += len(item)
        if len(pieces) >= _PIECES or nbytes >= _PIECE_NBYTES:
            made.add(b"".join(pieces))
            pieces.clear()
            nbytes = 0
    made.add(b"".join(pieces))


def is_much(count: int, nbytes: int) -> bool:
    """Whether ``count`` elements in ``nbytes`` bytes may take much memory as objects: then one is made after the other."""
    return count * OBJECT_NBYTES + TEXT_TO_MEMORY * nbytes > 2 * spill.large_nbytes()


class ObjectCodec(ArrayBytesCodec):
    """What codecs of elements without a fixed size share: `decoded` and `encoded` are between bytes and a list of elements in C order."""

    codec_name: ClassVar[str]
    exact: ClassVar[bool] = False
    """Whether the same elements are always the same bytes."""

    def encoded_nbytes(self, spec: ChunkSpec) -> int | None:
        self.encoded_dtype(spec.dtype)
        return None

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        if not dtype.hasobject:
            raise MetadataError(f"codec {self.codec_name}: elements of type {dtype} have a fixed size")
        return BYTE

    def encode(self, array: Array) -> Buffer:
        return self.encoded(np.ascontiguousarray(array).reshape(-1).tolist(), array.shape)

    def decode(self, data: Buffer, spec: ChunkSpec) -> Array:
        # Before the elements are there, an array of them would be a promise that the data need not keep.
        elements = self.decoded(data, spec.size)
        array: Array = np.empty(spec.size, object)
        # One by one: NumPy takes lists of one length for another dimension.
        for index, each in enumerate(elements):
            array[index] = each
        return array.reshape(spec.shape)

    def each(self, data: Buffer, spec: ChunkSpec) -> Iterator[Any]:
        """The elements one after the other, for a chunk of which not all fit into memory. Raises `ChunkDecodeError`, and `TooLarge` for
        one that does not fit alone."""
        return iter(self.decoded(data, spec.size))

    def put(self, elements: Iterable[Any], shape: tuple[int, ...], made: Made) -> None:
        """`encoded`, piece by piece. Raises `ChunkEncodeError`."""
        made.add(self.encoded(list(elements), shape))

    @abc.abstractmethod
    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> bytes:
        """The bytes of the elements of a chunk of ``shape``. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decoded(self, data: Buffer, size: int) -> list[Any]:
        """The ``size`` elements. Raises `ChunkDecodeError`."""
