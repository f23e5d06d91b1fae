"""What a codec is: three protocols, by what goes in and what comes out.

Source: v3 final "Codecs" (array -> array, array -> bytes, bytes -> bytes) and v2 "Compressors", "Filters".

One file a codec. Its module constant ``PLUGIN`` is the codec's class (or several). Codec objects are immutable and may be used from
several threads at once. Nothing that is decoded is trusted: a codec never allocates more than it was told the result may have.

Names are the final v3's; ``numcodecs_ids`` are the ids under which v2 (and the layouts around it) know the same codec, and the two
class methods translate configurations between the two. A codec that v3 knows only through numcodecs is named ``numcodecs.ID``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from zarrfs.model.chunk_grid import Shape
from zarrfs.model.metadata import CodecSpec

Buffer = bytes | bytearray | memoryview
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """A chunk as it is between two codecs: its ``shape`` and the ``dtype`` that its elements have in memory there."""

    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the chunk in memory."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size


class Codec(abc.ABC):
    """Common to all three: names, and construction from a configuration.

    ``names``: the final v3's names, the first is written. ``numcodecs_ids``: v2's ids; empty when v2 cannot say it.
    """

    names: ClassVar[tuple[str, ...]]
    numcodecs_ids: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abc.abstractmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        """The codec that ``spec`` (final v3's words) describes.

        Raises `MetadataError` for a configuration that is wrong, `MetadataUnsupported` for one that is unknown here.
        """

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        """The final v3's words for a numcodecs configuration (``{"id": ..., ...}``)."""
        return CodecSpec(cls.names[0], {name: value for name, value in config.items() if name != "id"})

    @classmethod
    def spec_to_numcodecs(cls, spec: CodecSpec) -> dict[str, Any]:
        """The numcodecs configuration for ``spec``. Raises `NotRepresentable` when v2 has none."""
        from zarrfs.errors import NotRepresentable

        if not cls.numcodecs_ids:
            raise NotRepresentable(f"codec {spec.name!r} has no Zarr v2 form")
        return {"id": cls.numcodecs_ids[0], **spec.configuration}


class ArrayArrayCodec(Codec):
    """Elements to elements: `transpose`, NumPy-level filters."""

    @abc.abstractmethod
    def encoded_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """What a chunk of ``spec`` is after `encode`. Raises `MetadataError` when the codec cannot take such chunks."""

    @abc.abstractmethod
    def encode(self, array: Array) -> Array:
        """The encoded elements. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decode(self, array: Array, spec: ChunkSpec) -> Array:
        """The decoded elements, of ``spec``; may be a view of ``array``. Raises `ChunkDecodeError`."""


class ArrayBytesCodec(Codec):
    """Elements to bytes: `bytes`, and later `sharding_indexed` and the variable-length ones."""

    @abc.abstractmethod
    def encoded_nbytes(self, spec: ChunkSpec) -> int | None:
        """Bytes of every encoded chunk of ``spec``; None where that depends on the elements. Raises `MetadataError`."""

    @abc.abstractmethod
    def encode(self, array: Array) -> Buffer:
        """The bytes of ``array``; may be a view of it. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decode(self, data: Buffer, spec: ChunkSpec) -> Array:
        """The elements in ``data``, of ``spec``; may be a view of ``data``. Raises `ChunkDecodeError`."""


class BytesBytesCodec(Codec):
    """Bytes to bytes: compressors, checksums, byte-level filters."""

    @abc.abstractmethod
    def encoded_limit(self, nbytes: int) -> int:
        """The most bytes that `encode` can make of ``nbytes`` bytes; what a decoder further out may allocate."""

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
