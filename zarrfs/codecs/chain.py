"""The chain of codecs between the elements of a chunk and its stored bytes.

Source: v3 final "Codecs", "Encoding procedure" and "Decoding procedure"; v2 "Chunks" and "Filters".

A chain is any number of array -> array codecs, one array -> bytes codec, any number of bytes -> bytes codecs. It extends the final v3 in
two ways: a chain without an array -> bytes codec has `bytes` (C order, little-endian) at that position, as in earlier layouts (for
elements of variable size, the codec in `PLAIN_OBJECTS`); and NumPy-level filters may follow `bytes`, as in v2
(`zarrfs.codecs.numpy_filter`). `CodecChain.v3_specs` excludes the latter.

The allocations of a decoding are known before it begins: the shape of the chunk determines the maximum output of each codec, which gets
it as a limit (`BytesBytesCodec.decode`). The output of a codec is checked again here. A chunk with elements of variable size is limited
to `MAX_VARIABLE_NBYTES` after decompression, and the array -> bytes codec allocates in proportion to it.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import le
from typing import Any

import numpy as np

from zarrfs import threads
from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs import lookup, scratch
from zarrfs.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, BytesStep, ChunkSpec
from zarrfs.codecs.numpy_filter import FilterOnBytes, NumpyFilter
from zarrfs.codecs.streams import Output
from zarrfs.codecs.vlen import ObjectCodec, is_much
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, NotRepresentable, TooLarge
from zarrfs.memory import copying, spill
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.chunk_plan import Selection
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import OBJECT, STRING, VARIABLE_LENGTH_BYTES, DataType

_BYTES = CodecSpec("bytes")
PLAIN_OBJECTS = {
    STRING.name: CodecSpec("vlen-utf8"),
    VARIABLE_LENGTH_BYTES.name: CodecSpec("vlen-bytes"),
    "bytes": CodecSpec("vlen-bytes"),
    OBJECT.name: CodecSpec("numcodecs.json2"),
}
"""Default array -> bytes codecs for elements of variable size, by the name of their type."""
# Number of chunk shapes with cached sizes. Regular grids have one shape, others a few.
_REMEMBERED_SHAPES = 64
# Arrays of one store have few different chains, and share them. Longer descriptions than this are not kept.
_REMEMBERED_CHAINS = 256
_SHORT = 2048
# Elements created as objects between two checks for cancellation.
_BETWEEN_LOOKS = 4096


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes that follow from the shape of a chunk.

    ``specs``: the input of each array -> array codec, then of the array -> bytes codec. ``limits``: maximum size before each bytes codec,
    then after the last; the first is exact if ``exact``.
    """

    specs: tuple[ChunkSpec, ...]
    limits: tuple[int, ...]
    exact: bool


_chains: list[tuple[object, dict[str, CodecChain]]] = []


def _chains_of(codecs: object) -> dict[str, CodecChain]:
    """Return the last chains built of these known ``codecs``, by `_key`."""
    for known, chains in _chains:
        if known is codecs:
            return chains
    _chains[:] = [(codecs, {})]
    return _chains[0][1]


def _key(specs: Sequence[CodecSpec], data_type: DataType, fill: bytes | None) -> str:
    """Return a description of a chain that no other chain has."""
    dtype = data_type.dtype
    codecs = [(spec.name, spec.configuration) for spec in specs]
    return repr((codecs, data_type.name, data_type.configuration, dtype.str if dtype.names is None else dtype.descr, fill))


class CodecChain:
    """A chain for chunks of one data type. Immutable; every method may be called from several threads concurrently.

    ``specs``: the complete chain, with the omitted `bytes` and the members that codecs derive from the type of elements.
    """

    def __init__(
        self,
        data_type: DataType,
        specs: tuple[CodecSpec, ...],
        array_codecs: tuple[ArrayArrayCodec, ...],
        serializer: ArrayBytesCodec,
        bytes_codecs: tuple[BytesStep, ...],
        fill: bytes | None = None,
    ) -> None:
        self.data_type = data_type
        self._fill = fill
        self.specs = specs
        self._array_codecs = array_codecs
        self._serializer = serializer
        self._bytes_codecs = bytes_codecs
        self._sizes_of: dict[Shape, _Sizes] = {}

    @classmethod
    def build(cls, specs: Sequence[CodecSpec], data_type: DataType, fill: bytes | None = None) -> CodecChain:
        """Return the chain of ``specs`` (in the order of encoding) for elements of ``data_type``.

        ``fill``: one element, for parts absent from an encoded chunk (`ArrayBytesCodec.cuts`); None for zeros. Raises `MetadataError` for
        an invalid chain, `MetadataUnsupported` for unknown codecs. `check` covers properties that depend on the shape of chunks.
        """
        key = _key(specs, data_type, fill)
        chains = _chains_of(lookup.codecs())
        if (known := chains.get(key)) is not None:
            return known
        dtype = data_type.dtype
        complete: list[CodecSpec] = []
        array_codecs: list[ArrayArrayCodec] = []
        serializer: ArrayBytesCodec | None = None
        bytes_codecs: list[BytesStep] = []
        for each in _with_serializer(specs):
            spec, codec = lookup.resolve(each or (PLAIN_OBJECTS[data_type.name] if dtype.hasobject else _BYTES), dtype)
            if dtype.hasobject and codec.holds is not None and data_type.name not in codec.holds:
                raise MetadataError(f"codec {spec.name!r} does not accept elements of type {data_type.name}")
            match codec:
                case ArrayArrayCodec() if serializer is None:
                    array_codecs.append(codec)
                    dtype = codec.encoded_dtype(dtype)
                case ArrayArrayCodec():
                    bytes_codecs.append(codec.on_bytes(dtype))
                    dtype = bytes_codecs[-1].encoded_dtype(dtype)
                case ArrayBytesCodec() if serializer is None:
                    serializer = codec
                    dtype = codec.encoded_dtype(dtype)
                case BytesBytesCodec() if serializer is not None:
                    bytes_codecs.append(codec)
                    dtype = codec.encoded_dtype(dtype)
                case ArrayBytesCodec():
                    raise MetadataError(f"codec {spec.name!r}: second array -> bytes codec of the chain")
                case _:
                    raise MetadataError(f"codec {spec.name!r} works on bytes and cannot precede the array -> bytes codec")
            complete.append(spec)
        assert serializer is not None
        chain = cls(data_type, tuple(complete), tuple(array_codecs), serializer, tuple(bytes_codecs), fill)
        if len(key) <= _SHORT:
            if len(chains) >= _REMEMBERED_CHAINS:
                chains.clear()
            chains[key] = chain
        return chain

    def v3_specs(self) -> tuple[CodecSpec, ...]:
        """Return the chain in the form of the final v3, for the same stored bytes. Raises `NotRepresentable` if it has none."""
        for spec, codec in zip(self.specs[len(self._array_codecs) + 1 :], self._bytes_codecs, strict=True):
            if not isinstance(codec, BytesBytesCodec):
                raise NotRepresentable(f"filter {spec.name!r} on stored bytes cannot be represented in final Zarr v3")
        for spec in self.specs:
            if not lookup.class_of(spec).in_v3:
                raise NotRepresentable(f"codec {spec.name!r} has no name in final Zarr v3")
        serializer = self.specs[len(self._array_codecs)]
        if serializer.name == _BYTES.name and "dtype" in serializer.configuration:
            raise NotRepresentable("fields of different byte orders cannot be represented in final Zarr v3")
        return self.specs

    def check(self, shape: Shape) -> int:
        """Check that the chain accepts chunks of ``shape``; return the decoded size of one in bytes. Raises `MetadataError`."""
        self._sizes(shape)
        return self._nbytes(shape)

    def encoded_limit(self, shape: Shape) -> int:
        """Return the maximum stored size of a chunk of ``shape`` in bytes; a caller need not fetch more."""
        return self._sizes(shape).limits[-1]

    def decoding_nbytes(self, shape: Shape) -> int:
        """Return the maximum memory of `decode` for a chunk of ``shape``, in bytes, including the resulting elements."""
        sizes = self._sizes(shape)
        stages = sum(map(spill.in_memory, sizes.limits[:-1]))
        if self.data_type.is_variable:
            return stages
        specs = sizes.specs[:-1] if sizes.exact else sizes.specs
        return stages + sum(spill.in_memory(spec.nbytes) for spec in specs)

    def encode(self, array: NDArray, inside: Selection | None = None) -> Buffer:
        """Return the stored bytes of a whole chunk, whose elements are of the in-memory type; may be a view of ``array``.

        ``inside``: the part within the array, from the first element on, if the chunk exceeds the array. Raises `ChunkEncodeError`.
        """
        if array.dtype != self.data_type.dtype:
            raise ChunkEncodeError(f"elements are of type {array.dtype} instead of {self.data_type.dtype}")
        sizes = self._sizes(array.shape)
        ndim = array.ndim
        for codec in self._array_codecs:
            array = codec.encode(array)
        if inside is not None and self._serializer.cuts and (order := self._permutation(ndim)) is not None:
            array = array[tuple(inside[axis] for axis in order)]
        data = self._serializer.encode(array)
        if memoryview(data).nbytes > sizes.limits[0]:
            raise ChunkEncodeError(f"{memoryview(data).nbytes} bytes exceed the limit for decoding of {sizes.limits[0]}")
        for step in self._bytes_codecs:
            data = step.encode(data)
        return data

    def decode(self, data: Buffer, shape: Shape) -> NDArray:
        """Return the elements of a whole chunk; may be a view of ``data``, and read-only. Raises `ChunkDecodeError`."""
        return self._elements(self._serialized(data, shape, None), shape)

    def transcode(self, data: Buffer, shape: Shape, to: CodecChain, keep: NDArray | None = None, fill: Any = None) -> Buffer:
        """Return the encoding by ``to``, a chain for the same elements of variable size, of the chunk stored here as ``data``.

        With the mask ``keep`` (in C order), other elements are replaced by ``fill``. If all elements together would take much memory,
        they are converted one after the other. Raises `ChunkDecodeError`, `ChunkEncodeError`, and `TooLarge` if that is impossible.
        """
        serialized = self._serialized(data, shape, None)
        size = math.prod(shape)
        if not is_much(size, memoryview(serialized).nbytes):
            elements = self._elements(serialized, shape)
            if keep is not None:
                elements = elements.copy()
                # A 0-dimensional array: NumPy would take a list as a sequence of elements.
                one = np.empty((), object)
                one[()] = fill
                elements.reshape(-1)[~keep] = one
            return to.encode(elements)
        with scratch.alone(spill.large_nbytes()):
            each = _while_wanted(self._each(serialized, shape))
            if keep is None and self._is_same_as(to):
                # The elements are validated, and need not be encoded again.
                deque(each, maxlen=0)
                return to._encode_bytes(serialized)
            if keep is not None:
                each = (element if kept else fill for element, kept in zip(each, keep, strict=True))
            encoded = to._encode_each(each, shape)
            # The check for trailing data runs on the request for another element.
            deque(each, maxlen=0)
            return encoded

    def encode_each(self, elements: Iterator[Any], shape: Shape) -> Buffer:
        """Return the encoding of a chunk of many elements of variable size, which ``elements`` creates one after the other.

        Raises `ChunkEncodeError`, and `TooLarge` if that is impossible.
        """
        with scratch.alone(spill.large_nbytes()):
            return self._encode_each(_while_wanted(elements), shape)

    def _each(self, serialized: Buffer, shape: Shape) -> Iterator[Any]:
        specs = self._sizes(shape).specs
        if isinstance(self._serializer, ObjectCodec) and not self._array_codecs:
            return self._serializer.each(serialized, specs[-1])
        match self._array_codecs:
            case (NumpyFilter() as codec,):
                return codec.each(self._serializer.decode(serialized, specs[-1]))
        raise TooLarge(f"{specs[0].size} elements of variable size in a chain of several filters exceed the memory limit")

    def _encode_each(self, elements: Iterator[Any], shape: Shape) -> Buffer:
        sizes = self._sizes(shape)
        data: Buffer
        if isinstance(self._serializer, ObjectCodec) and not self._array_codecs:
            output = Output(self._serializer.codec_name, sizes.limits[0], kind=ChunkEncodeError)
            self._serializer.put(elements, shape, output)
            data = output.whole()
        else:
            match self._array_codecs:
                case (NumpyFilter() as codec,):
                    data = self._serializer.encode(codec.put(elements, sizes.specs[0], sizes.specs[-1]))
                case _:
                    raise TooLarge(
                        f"{math.prod(shape)} elements of variable size in a chain of several filters exceed the memory limit"
                    )
        return self._encode_bytes(data)

    def _encode_bytes(self, data: Buffer) -> Buffer:
        for step in self._bytes_codecs:
            data = step.encode(data)
        return data

    def _is_same_as(self, other: CodecChain) -> bool:
        """Return True if both encode the same elements to the same bytes, apart from the bytes codecs."""
        mine = self._serializer
        if self._array_codecs or other._array_codecs:
            return False
        return isinstance(mine, ObjectCodec) and mine.exact and mine == other._serializer

    def decode_into(self, data: Buffer, shape: Shape, out: NDArray, selection: Selection | None = None) -> None:
        """Decode a chunk of ``shape`` and copy the part ``selection`` (None: all of it) into ``out``.

        ``out`` has the shape of that part and the in-memory element type; it may be any part of a larger array. If it is contiguous and
        covers the chunk, the last decompressor writes directly into it; else into a buffer that is kept for the next chunk. Raises
        `ChunkDecodeError`; the content of ``out`` is then undefined.
        """
        whole = out.shape == shape
        nbytes = self._nbytes(shape)
        if whole and out.flags.c_contiguous and out.flags.writeable and nbytes and self.is_memory:
            memory: NDArray = out.reshape(-1).view(np.uint8)
            decoded = memoryview(self._serialized(data, shape, memory.data))
            if np.frombuffer(decoded, np.uint8).ctypes.data != memory.ctypes.data:
                copying.copy(memory, np.frombuffer(decoded, np.uint8))
            return
        sizes = self._sizes(shape)
        # The ellipsis keeps the element of a 0-dimensional chunk an array: a scalar is an object, or text of another width.
        index: Any = (...,) if selection is None else (*selection, ...)
        if not sizes.exact:
            np.copyto(out, self.decode(data, shape)[index], casting="no")
            return
        with scratch.scratch(sizes.limits[0]) as buffer:
            elements = self._elements(self._serialized(data, shape, buffer), shape)
            copying.copy(out, elements[index])

    def decode_memory(self, data: Buffer, shape: Shape) -> Buffer:
        """Return the memory of the elements of a chunk that is not empty, in C order, by a chain that `is_memory`.

        For a small chunk, a copy of this takes less time than `decode_into`. Raises `ChunkDecodeError`.
        """
        return self._serialized(data, shape, None)

    @property
    def is_plain(self) -> bool:
        """True if the stored bytes of a chunk are its memory."""
        return self.is_memory and not self._bytes_codecs

    @property
    def after_another(self) -> bool:
        """True if elements decode from their predecessors (`ArrayArrayCodec.after_another`)."""
        filters = (step.filter for step in self._bytes_codecs if isinstance(step, FilterOnBytes))
        return any(codec.after_another for codec in (*self._array_codecs, *filters))

    def order(self, ndim: int) -> tuple[int, ...]:
        """Return the dimensions of a chunk in the element order of such codecs, the slowest first."""
        order = tuple(range(ndim))
        for codec in itertools.takewhile(lambda each: not each.after_another, self._array_codecs):
            if (permutation := codec.permutation(ndim)) is not None:
                order = tuple(order[axis] for axis in permutation)
        return order

    @property
    def is_memory(self) -> bool:
        """True if the output of the array -> bytes codec is the chunk's memory."""
        return not self._array_codecs and self._serializer.is_memory(self.data_type.dtype)

    def _serialized(self, data: Buffer, shape: Shape, out: memoryview | None) -> Buffer:
        """Return the output of the array -> bytes codec; the codec next to it may decode into ``out``."""
        sizes = self._sizes(shape)
        limits = sizes.limits
        if memoryview(data).nbytes > limits[-1]:
            raise ChunkDecodeError(
                f"stored size of {memoryview(data).nbytes} bytes exceeds the maximum for a chunk of {limits[0]} bytes"
            )
        for index in reversed(range(len(self._bytes_codecs))):
            data = self._bytes_codecs[index].decode(data, limits[index], out if index == 0 else None)
        if sizes.exact and memoryview(data).nbytes != limits[0]:
            raise ChunkDecodeError(f"decoded size is {memoryview(data).nbytes} bytes instead of {limits[0]}")
        return data

    def _elements(self, data: Buffer, shape: Shape) -> NDArray:
        specs = self._sizes(shape).specs
        array = self._serializer.decode(data, specs[-1])
        if (array.shape, array.dtype) != (specs[-1].shape, specs[-1].dtype):
            array = self._completed(array, specs)
        for codec, spec in zip(reversed(self._array_codecs), reversed(specs[:-1]), strict=True):
            array = codec.decode(array, spec)
        return array

    def _completed(self, array: NDArray, specs: Sequence[ChunkSpec]) -> NDArray:
        """Return a whole chunk from one encoded without the part beyond the array's edge."""
        spec, serializer = specs[-1], self._serializer
        fits = array.ndim == len(spec.shape) and all(map(le, array.shape, spec.shape)) and array.dtype == spec.dtype
        if not fits or not serializer.cuts or self._permutation(len(specs[0].shape)) is None:
            raise ChunkDecodeError(f"decodes to {array.dtype} of shape {array.shape}, not {spec.dtype} of {spec.shape}")
        whole: NDArray = spill.array(spec.shape, spec.dtype)
        # Through bytes: assignment of a NaN may lose its payload.
        whole[...] = np.frombuffer(self._fill or bytes(spec.dtype.itemsize), f"|V{spec.dtype.itemsize}").view(spec.dtype)[0]
        whole[tuple(map(slice, array.shape))] = array
        return whole

    def _permutation(self, ndim: int) -> tuple[int, ...] | None:
        """Return the permutation of the chunk's dimensions at the array -> bytes codec; None if earlier codecs change values."""
        order = tuple(range(ndim))
        for codec in self._array_codecs:
            if (permutation := codec.permutation(ndim)) is None:
                return None
            order = tuple(order[axis] for axis in permutation)
        return order

    def _nbytes(self, shape: Shape) -> int:
        return math.prod(shape) * self.data_type.itemsize

    def _sizes(self, shape: Shape) -> _Sizes:
        sizes = self._sizes_of.get(shape)
        if sizes is None:
            specs = [ChunkSpec(shape, self.data_type.dtype)]
            for codec in self._array_codecs:
                specs.append(codec.encoded_spec(specs[-1]))
            nbytes = self._serializer.encoded_nbytes(specs[-1])
            limits = [self._serializer.encoded_limit(specs[-1]) if nbytes is None else nbytes]
            for step in self._bytes_codecs:
                limits.append(step.encoded_limit(limits[-1]))
            sizes = _Sizes(tuple(specs), tuple(limits), nbytes is not None)
            if len(self._sizes_of) >= _REMEMBERED_SHAPES:
                self._sizes_of.clear()
            self._sizes_of[shape] = sizes
        return sizes


def _while_wanted(elements: Iterator[Any]) -> Iterator[Any]:
    for number in itertools.count():
        if not number % _BETWEEN_LOOKS:
            threads.go_on()
        try:
            # Without a name: an element may be large, and is not held while the next one is created.
            yield next(elements)
        except StopIteration:
            return


def _with_serializer(specs: Sequence[CodecSpec]) -> tuple[CodecSpec | None, ...]:
    """Return ``specs`` with None at the position of an omitted array -> bytes codec."""
    kinds = [lookup.class_of(spec) for spec in specs]
    if any(issubclass(kind, ArrayBytesCodec) for kind in kinds):
        return tuple(specs)
    position = next((index for index, kind in enumerate(kinds) if issubclass(kind, BytesBytesCodec)), len(specs))
    return (*specs[:position], None, *specs[position:])
