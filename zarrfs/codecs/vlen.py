"""The common format of `vlen-utf8`, `vlen-bytes` and `vlen-array`: a count, then each item preceded by its number of bytes.

Source: numcodecs ``vlen``; zarr-extensions ``codecs/vlen-utf8`` and ``codecs/vlen-bytes``. Numbers are unsigned, 32 bits, little-endian.

    02 00 00 00 | 01 00 00 00  61 | 00 00 00 00

All input is untrusted: the count must be that of the chunk, each item must fit into the remaining bytes, and nothing may follow the last
one. (numcodecs allocates by the stated count, and ignores trailing data.)
"""

from __future__ import annotations

import abc
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs.base import BYTE, ArrayBytesCodec, ChunkSpec, Dtype
from zarrfs.codecs.streams import Output
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError
from zarrfs.memory import spill
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES

OBJECT_NBYTES = 100
"""Approximate memory of a small object."""
TEXT_TO_MEMORY = 4
"""Maximum memory for a byte of text."""
ALONE_NBYTES = 96 << 20
"""Maximum memory of one element."""

_NUMBER = struct.Struct("<I")
_PIECES = 8192
_PIECE_NBYTES = 1 << 20


def split(codec: str, data: Buffer, count: int) -> Iterator[memoryview]:
    """Yield the ``count`` items in ``data``. Raises `ChunkDecodeError` if it contains more, fewer, or something else."""
    view = memoryview(data).cast("B")
    nbytes, unpack = view.nbytes, _NUMBER.unpack_from
    if nbytes < _NUMBER.size:
        raise ChunkDecodeError(f"{codec}: {nbytes} bytes are too few for a count")
    (found,) = unpack(view)
    if found != count:
        raise ChunkDecodeError(f"{codec}: {found} elements instead of {count}")
    end = _NUMBER.size
    for index in range(count):
        start = end + _NUMBER.size
        if start > nbytes:
            raise ChunkDecodeError(f"{codec}: data ends before element {index}")
        (length,) = unpack(view, end)
        end = start + length
        if end > nbytes:
            raise ChunkDecodeError(f"{codec}: element {index} of {length} bytes exceeds the remaining {nbytes - start}")
        yield view[start:end]
    if end != nbytes:
        raise ChunkDecodeError(f"{codec}: {nbytes - end} trailing bytes after the last element")


def join(codec: str, items: Sequence[Buffer]) -> Buffer:
    """Return the ``items`` in one value, in a file if large: one item may occur many times.

    Raises `ChunkEncodeError` if they exceed the limit of a chunk.
    """
    nbytes = joined_nbytes(codec, len(items), sum(map(len, items)))
    output = Output(codec, nbytes, kind=ChunkEncodeError)
    put_items(items, len(items), output)
    return output.whole()


def joined_nbytes(codec: str, count: int, nbytes: int) -> int:
    """Return the size of ``count`` items of ``nbytes`` together. Raises `ChunkEncodeError` if it exceeds the limit of a chunk."""
    whole = _NUMBER.size * (1 + count) + nbytes
    if whole > MAX_VARIABLE_NBYTES:
        raise ChunkEncodeError(f"{codec}: {whole} bytes exceed the limit of a chunk of variable length ({MAX_VARIABLE_NBYTES})")
    return whole


def put_items(items: Iterable[Buffer], count: int, output: Output) -> None:
    """Run `join` piece by piece."""
    output.add(_NUMBER.pack(count))
    pieces: list[Buffer] = []
    nbytes = 0
    for item in items:
        pieces += (_NUMBER.pack(len(item)), item)
        nbytes += len(item)
        if len(pieces) >= _PIECES or nbytes >= _PIECE_NBYTES:
            output.add(b"".join(pieces))
            pieces.clear()
            nbytes = 0
    output.add(b"".join(pieces))


def is_much(count: int, nbytes: int) -> bool:
    """Return True if ``count`` elements in ``nbytes`` bytes may take much memory as objects, to be created one after the other."""
    return count * OBJECT_NBYTES + TEXT_TO_MEMORY * nbytes > 2 * spill.large_nbytes()


class ObjectCodec(ArrayBytesCodec):
    """Common base of codecs for elements of variable size: `decoded` and `encoded` convert bytes to a list of elements in C order."""

    codec_name: ClassVar[str]
    exact: ClassVar[bool] = False
    """True if the same elements always have the same encoding."""

    def encoded_nbytes(self, spec: ChunkSpec) -> int | None:
        self.encoded_dtype(spec.dtype)
        return None

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        if not dtype.hasobject:
            raise MetadataError(f"codec {self.codec_name}: elements of type {dtype} have a fixed size")
        return BYTE

    def encode(self, array: NDArray) -> Buffer:
        return self.encoded(np.ascontiguousarray(array).reshape(-1).tolist(), array.shape)

    def decode(self, data: Buffer, spec: ChunkSpec) -> NDArray:
        # Elements first: an array of the stated size would be allocated before the data proves it.
        elements = self.decoded(data, spec.size)
        array: NDArray = np.empty(spec.size, object)
        # One by one: NumPy would take lists of equal length as another dimension.
        for index, each in enumerate(elements):
            array[index] = each
        return array.reshape(spec.shape)

    def each(self, data: Buffer, spec: ChunkSpec) -> Iterator[Any]:
        """Yield the elements one after the other, for a chunk that does not fit into memory.

        Raises `ChunkDecodeError`, and `TooLarge` for a single element that does not fit.
        """
        return iter(self.decoded(data, spec.size))

    def put(self, elements: Iterable[Any], shape: tuple[int, ...], output: Output) -> None:
        """Run `encoded` piece by piece. Raises `ChunkEncodeError`."""
        output.add(bytes(self.encoded(list(elements), shape)))

    @abc.abstractmethod
    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> Buffer:
        """Return the bytes of the elements of a chunk of ``shape``. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decoded(self, data: Buffer, size: int) -> list[Any]:
        """Return the ``size`` elements. Raises `ChunkDecodeError`."""
