"""What a codec is: three protocols, by what goes in and what comes out.

Source: v3 final "Codecs" (array -> array, array -> bytes, bytes -> bytes) and v2 "Compressors", "Filters".

One file a codec. Its module constant ``PLUGIN`` is the codec's class (or several). Codec objects are immutable and may be used from
several threads at once. Nothing that is decoded is trusted: a codec never allocates more than it was told the result may have.

Names are the final v3's; ``numcodecs_ids`` are the ids under which v2 (and the layouts around it) know the same codec, and the two
class methods translate configurations between the two. A codec that v3 knows only through numcodecs is named ``numcodecs.ID``; for
every other codec of numcodecs that name is an alias (see `zarrfs.codecs.lookup`).

Messages of errors begin with the codec's name; who knows the chunk puts its coordinates before them.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isabstract
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from zarrfs.errors import ChunkError, MetadataError, NotRepresentable
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES

Buffer = bytes | bytearray | memoryview
Array = np.ndarray[Any, np.dtype[Any]]
Dtype = np.dtype[Any]

BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """A chunk as it is between two codecs: its ``shape`` and the ``dtype`` that its elements have in memory there."""

    shape: Shape
    dtype: Dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of the chunk in memory."""
        return self.size * self.dtype.itemsize


class Codec(abc.ABC):
    """Common to all three: names, and construction from a configuration.

    ``names``: the final v3's names, the first is written. ``numcodecs_ids``: v2's ids; empty when v2 cannot say it. ``lossy``:
    whether decoding may give other elements than were encoded. ``holds``: of the types without a fixed size, those whose elements
    the codec takes (None: it does not look at elements). ``in_v3``: whether programs know the name in documents of the final
    v3; the others are our own. ``examples``: configurations that together reach all of the codec; the conformance suite runs over them.
    """

    names: ClassVar[tuple[str, ...]]
    numcodecs_ids: ClassVar[tuple[str, ...]] = ()
    lossy: ClassVar[bool] = False
    holds: ClassVar[tuple[str, ...] | None] = None
    in_v3: ClassVar[bool] = True
    examples: ClassVar[tuple[CodecSpec, ...]]

    @classmethod
    @abc.abstractmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        """The codec that ``spec`` (final v3's words, completed) describes.

        Raises `MetadataError` for a configuration that is wrong, `MetadataUnsupported` for one that is unknown here.
        """

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        """``spec`` with what it leaves to the type of the elements that the codec will meet (v2: to the buffer's) filled in."""
        return spec

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        """The final v3's words for a numcodecs configuration (``{"id": ..., ...}``)."""
        return CodecSpec(cls.names[0], numcodecs_members(config))

    @classmethod
    def spec_to_numcodecs(cls, spec: CodecSpec) -> dict[str, Any]:
        """The numcodecs configuration for ``spec``. Raises `NotRepresentable` when v2 has none."""
        if not cls.numcodecs_ids:
            raise NotRepresentable(f"codec {spec.name!r} has no Zarr v2 form")
        return {"id": cls.numcodecs_ids[0], **spec.configuration}


class BytesStep(Protocol):
    """What the chain needs of a stage behind the array -> bytes codec."""

    def encoded_limit(self, nbytes: int) -> int:
        """See `BytesBytesCodec`."""

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """See `BytesBytesCodec`."""

    def encode(self, data: Buffer) -> Buffer:
        """See `BytesBytesCodec`."""

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        """See `BytesBytesCodec`."""


class ArrayArrayCodec(Codec):
    """Elements to elements: `transpose`, NumPy-level filters.

    ``after_another``: whether an element decodes from the one before it, so that one that is lost takes those behind it along.
    """

    after_another: ClassVar[bool] = False

    def encoded_shape(self, shape: Shape) -> Shape:
        """The shape of an encoded chunk of ``shape``. Raises `MetadataError` when the codec cannot take such chunks."""
        return shape

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """The type of encoded elements, little-endian. Raises `MetadataError` when the codec cannot take such elements."""
        return dtype

    def encoded_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """What a chunk of ``spec`` is after `encode`."""
        return ChunkSpec(self.encoded_shape(spec.shape), self.encoded_dtype(spec.dtype))

    def on_bytes(self, dtype: Dtype) -> BytesStep:
        """The same codec behind the array -> bytes codec, where v2 has its filters; ``dtype`` is that of the stored elements.

        Raises `MetadataError`: most codecs have no place there.
        """
        raise MetadataError(f"codec {self.names[0]!r} works on arrays and cannot follow the codec that makes bytes of them")

    def permutation(self, ndim: int) -> tuple[int, ...] | None:
        """Of a codec that does no more to elements, once they are encoded, than to order dimensions: which dimension of the decoded
        chunk each dimension of the encoded one is. Such a codec does to a part of a chunk what it does to the whole. None for others,
        whose decoding changes values. Raises `MetadataError` when the codec cannot take chunks of ``ndim`` dimensions."""
        return None

    @abc.abstractmethod
    def encode(self, array: Array) -> Array:
        """The encoded elements. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decode(self, array: Array, spec: ChunkSpec) -> Array:
        """The decoded elements, of ``spec``; may be a view of ``array``. Raises `ChunkDecodeError`."""


class ArrayBytesCodec(Codec):
    """Elements to bytes: `bytes`, compressors of numbers, and those for elements without a fixed size.

    ``cuts``: whether an encoded chunk says its own shape, and one at the edge of the array is encoded without what lies beyond (N5). Such
    a codec is given the part within the array to encode, and what it decodes may be smaller than the chunk: the rest is fill value.
    """

    cuts: ClassVar[bool] = False

    @abc.abstractmethod
    def encoded_nbytes(self, spec: ChunkSpec) -> int | None:
        """Bytes of every encoded chunk of ``spec``; None where that depends on the elements. Raises `MetadataError`."""

    def encoded_limit(self, spec: ChunkSpec) -> int:
        """The most bytes that `encode`, or any other sane encoder, makes of a chunk of ``spec``: see `BytesBytesCodec.encoded_limit`.
        Asked where `encoded_nbytes` does not tell."""
        return MAX_VARIABLE_NBYTES if spec.dtype.hasobject else spec.nbytes + spec.nbytes // 4 + 64 * 1024

    def is_memory(self, dtype: Dtype) -> bool:
        """True if the encoded bytes are the elements of ``dtype`` in C order as they lie in memory, and nothing else."""
        return False

    @abc.abstractmethod
    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """The type, with its byte order, as which the encoded bytes hold elements of ``dtype``; bytes where they hold none."""

    @abc.abstractmethod
    def encode(self, array: Array) -> Buffer:
        """The bytes of ``array``; may be a view of it. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decode(self, data: Buffer, spec: ChunkSpec) -> Array:
        """The elements in ``data``, of ``spec`` (of one that ``cuts``: or fewer along some dimensions); may be a view of ``data``. Raises
        `ChunkDecodeError`."""


class BytesBytesCodec(Codec):
    """Bytes to bytes: compressors, checksums, byte-level filters."""

    def encoded_limit(self, nbytes: int) -> int:
        """The most bytes that `encode`, or any other sane encoder, makes of ``nbytes`` bytes; what a decoder further out may
        allocate, and what a caller may fetch. Generous: several streams, headers and stored blocks have room in it."""
        return nbytes + nbytes // 4 + 64 * 1024

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """The type of elements that a later codec meets (numcodecs hands arrays on); most codecs make plain bytes."""
        return BYTE

    @abc.abstractmethod
    def encode(self, data: Buffer) -> Buffer:
        """The encoded bytes. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        """The decoded bytes, at most ``limit`` of them; ``limit`` is checked before anything of that size is allocated.

        ``out``, when given, is writable, contiguous, ``limit`` bytes long, and a place where the caller would like the bytes: a
        codec that can decode into it does so and returns ``out`` (or the part that it filled); one that cannot ignores it.
        Raises `ChunkDecodeError` (`ChecksumMismatch` for a checksum), also when the data would decode to more than ``limit``.
        """


@contextmanager
def translated(codec: str, kind: type[ChunkError], *exceptions: type[Exception]) -> Iterator[None]:
    """A block in which a library's ``exceptions`` become ``kind``, with the codec's name in the text."""
    try:
        yield
    except exceptions as error:
        raise kind(f"{codec}: {error}") from error


def numcodecs_members(config: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a numcodecs configuration without its id. netCDF-C writes integers as strings (``"level": "1"``)."""
    return {
        name: int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value) else value
        for name, value in config.items()
        if name != "id"
    }


def check_plugin(offered: object) -> None:
    """Raise TypeError for what is no plug-in of this package, or none that can be used: another distribution may offer anything."""
    if not isinstance(offered, type) or not issubclass(offered, (ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec)):
        raise TypeError(f"{type(offered).__name__} is no subclass of one of the three kinds of Codec")
    if isabstract(offered):
        raise TypeError(f"{offered.__name__} lacks {', '.join(sorted(offered.__abstractmethods__))}")
    names = (getattr(offered, "names", ()), offered.numcodecs_ids)
    if not names[0] or not all(isinstance(each, tuple) and all(isinstance(name, str) for name in each) for each in names):
        raise TypeError(f"{offered.__name__} has to have names, and its names and ids are tuples of strings")
