"""The interface of a codec: three protocols, by input and output.

Source: v3 final "Codecs" (array -> array, array -> bytes, bytes -> bytes) and v2 "Compressors", "Filters".

A codec is one file. Its module constant ``PLUGIN`` is the codec's class (or several). Codec objects are immutable and may be used from
several threads concurrently. Input of decoders is untrusted: a codec never allocates more than the stated limit of the result.

Names are the final v3's; ``numcodecs_ids`` are the ids of the same codec in v2 (and related layouts), and two class methods convert
configurations between the two. A codec that v3 has only through numcodecs is named ``numcodecs.ID``; for every other codec of numcodecs
that name is an alias (see `zarrfs.codecs.lookup`).

Error messages begin with the codec's name; a caller that knows the chunk prepends its coordinates.
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

from zarrfs.buffers import Buffer, NDArray
from zarrfs.errors import ChunkError, MetadataError, NotRepresentable
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES

Dtype = np.dtype[Any]

BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """A chunk between two codecs: its ``shape`` and the in-memory ``dtype`` of its elements."""

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
        """Size of the chunk in memory, in bytes."""
        return self.size * self.dtype.itemsize


class Codec(abc.ABC):
    """Common base of the three kinds: names, and construction from a configuration.

    ``names``: the final v3's names, of which the first is written. ``numcodecs_ids``: v2's ids; empty if v2 cannot represent it.
    ``lossy``: decoded elements may differ from the encoded ones. ``holds``: the accepted types of variable size (None: the codec does not
    depend on elements). ``in_v3``: programs accept the name in documents of the final v3; otherwise it is specific to zarrfs.
    ``examples``: configurations that together cover the codec; the conformance suite runs over them. ``libraries``: modules of other
    distributions that the codec needs. Its own module imports them in functions only; `zarrfs.codecs.lookup` imports them with the first
    chain that has the codec, and refuses the chain if that fails.
    """

    names: ClassVar[tuple[str, ...]]
    numcodecs_ids: ClassVar[tuple[str, ...]] = ()
    lossy: ClassVar[bool] = False
    holds: ClassVar[tuple[str, ...] | None] = None
    in_v3: ClassVar[bool] = True
    examples: ClassVar[tuple[CodecSpec, ...]]
    libraries: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abc.abstractmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        """Return the codec of ``spec`` (in terms of the final v3, completed).

        Raises `MetadataError` for an invalid configuration, `MetadataUnsupported` for an unknown one.
        """

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        """Return ``spec`` with members added that default to the type of the input elements (v2: of the buffer)."""
        return spec

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        """Return the final v3's form of a numcodecs configuration (``{"id": ..., ...}``)."""
        return CodecSpec(cls.names[0], numcodecs_members(config))

    @classmethod
    def spec_to_numcodecs(cls, spec: CodecSpec) -> dict[str, Any]:
        """Return the numcodecs configuration for ``spec``. Raises `NotRepresentable` if v2 has none."""
        if not cls.numcodecs_ids:
            raise NotRepresentable(f"codec {spec.name!r} has no Zarr v2 form")
        return {"id": cls.numcodecs_ids[0], **spec.configuration}


class BytesStep(Protocol):
    """The interface of a stage after the array -> bytes codec."""

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

    ``after_another``: each element decodes from its predecessor, so a lost element invalidates all later ones.
    """

    after_another: ClassVar[bool] = False

    def encoded_shape(self, shape: Shape) -> Shape:
        """Return the shape of an encoded chunk of ``shape``. Raises `MetadataError` if the codec cannot handle such chunks."""
        return shape

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """Return the type of encoded elements, little-endian. Raises `MetadataError` if the codec cannot handle such elements."""
        return dtype

    def encoded_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the result of `encode` for a chunk of ``spec``, as a spec."""
        return ChunkSpec(self.encoded_shape(spec.shape), self.encoded_dtype(spec.dtype))

    def on_bytes(self, dtype: Dtype) -> BytesStep:
        """Return the same codec for use after the array -> bytes codec, as v2 has its filters; ``dtype`` is that of stored elements.

        Raises `MetadataError`: most codecs are not allowed there.
        """
        raise MetadataError(f"codec {self.names[0]!r} works on arrays and cannot follow the array -> bytes codec")

    def permutation(self, ndim: int) -> tuple[int, ...] | None:
        """Return the permutation of dimensions, for a codec whose decoding does nothing else; None for other codecs.

        Item i is the dimension of the decoded chunk that becomes dimension i of the encoded one. Such a codec has the same effect on a
        part of a chunk as on the whole. Raises `MetadataError` if the codec cannot handle chunks of ``ndim`` dimensions.
        """
        return None

    @abc.abstractmethod
    def encode(self, array: NDArray) -> NDArray:
        """Return the encoded elements. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decode(self, array: NDArray, spec: ChunkSpec) -> NDArray:
        """Return the decoded elements, of ``spec``; may be a view of ``array``. Raises `ChunkDecodeError`."""


class ArrayBytesCodec(Codec):
    """Elements to bytes: `bytes`, compressors of numbers, and codecs for elements of variable size.

    ``cuts``: an encoded chunk contains its own shape, and one at the edge of the array is encoded without the part beyond (N5). Such a
    codec encodes the part within the array, and may decode to less than the chunk: the rest is fill value.
    """

    cuts: ClassVar[bool] = False

    @abc.abstractmethod
    def encoded_nbytes(self, spec: ChunkSpec) -> int | None:
        """Return the size of every encoded chunk of ``spec`` in bytes; None if it depends on the elements. Raises `MetadataError`."""

    def encoded_limit(self, spec: ChunkSpec) -> int:
        """Return the maximum size that `encode`, or any other reasonable encoder, produces: see `BytesBytesCodec.encoded_limit`.

        Called if `encoded_nbytes` is None.
        """
        return MAX_VARIABLE_NBYTES if spec.dtype.hasobject else spec.nbytes + spec.nbytes // 4 + 64 * 1024

    def is_memory(self, dtype: Dtype) -> bool:
        """Return True if the encoded bytes are exactly the memory of elements of ``dtype`` in C order."""
        return False

    @abc.abstractmethod
    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """Return the type, with byte order, of elements of ``dtype`` in the encoded bytes; bytes if these contain no elements."""

    @abc.abstractmethod
    def encode(self, array: NDArray) -> Buffer:
        """Return the bytes of ``array``; may be a view of it. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decode(self, data: Buffer, spec: ChunkSpec) -> NDArray:
        """Return the elements in ``data``, of ``spec`` (a codec that ``cuts`` may return less); may be a view of ``data``.

        Raises `ChunkDecodeError`.
        """


class BytesBytesCodec(Codec):
    """Bytes to bytes: compressors, checksums, byte-level filters."""

    def encoded_limit(self, nbytes: int) -> int:
        """Return the maximum size that `encode`, or any other reasonable encoder, produces from ``nbytes`` bytes.

        It limits the allocation of the next decoder and the fetch of a caller. Generous: it has room for several streams, headers and
        stored blocks.
        """
        return nbytes + nbytes // 4 + 64 * 1024

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """Return the element type seen by a later codec (numcodecs passes arrays on); most codecs return plain bytes."""
        return BYTE

    @abc.abstractmethod
    def encode(self, data: Buffer) -> Buffer:
        """Return the encoded bytes. Raises `ChunkEncodeError`."""

    @abc.abstractmethod
    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        """Return the decoded bytes, at most ``limit`` of them; ``limit`` is checked before anything of that size is allocated.

        ``out``, if given, is writable, contiguous, ``limit`` bytes long, and the preferred destination: a codec that can decode into it
        does so and returns ``out`` (or the part that it filled); others ignore it.

        Raises `ChunkDecodeError` (`ChecksumMismatch` for a checksum), also if the data would decode to more than ``limit``.
        """


@contextmanager
def translated(codec: str, kind: type[ChunkError], *exceptions: type[Exception]) -> Iterator[None]:
    """Convert a library's ``exceptions`` in the body to ``kind``, with the codec's name in the text."""
    try:
        yield
    except exceptions as error:
        raise kind(f"{codec}: {error}") from error


def numcodecs_members(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a numcodecs configuration without its id. netCDF-C writes integers as strings (``"level": "1"``)."""
    return {
        name: int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value) else value
        for name, value in config.items()
        if name != "id"
    }


def check_plugin(offered: object) -> None:
    """Raise TypeError for an object that is not a usable plug-in of this package: another distribution may offer anything."""
    if not isinstance(offered, type) or not issubclass(offered, (ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec)):
        raise TypeError(f"{type(offered).__name__} is no subclass of one of the three kinds of Codec")
    if isabstract(offered):
        raise TypeError(f"{offered.__name__} lacks {', '.join(sorted(offered.__abstractmethods__))}")
    names = (getattr(offered, "names", ()), offered.numcodecs_ids, offered.libraries)
    if not names[0] or not all(isinstance(each, tuple) and all(isinstance(name, str) for name in each) for each in names):
        raise TypeError(f"{offered.__name__} must have names, and its names, ids and libraries must be tuples of strings")
