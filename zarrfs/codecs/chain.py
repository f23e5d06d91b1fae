"""The chain of codecs between the elements of a chunk and its stored bytes.

Source: v3 final "Codecs", "Encoding procedure" and "Decoding procedure"; v2 "Chunks" and "Filters".

A chain is any number of array -> array codecs, one array -> bytes codec, any number of bytes -> bytes codecs. Two liberties beyond the
final v3: a chain without an array -> bytes codec has `bytes` (C order, little-endian) where it is needed, as in the layouts before it
(for elements without a fixed size, the one of `PLAIN_OBJECTS`); and NumPy-level filters may follow `bytes`, as v2 has them
(`zarrfs.codecs.numpy_filter`). `CodecChain.v3_specs` is without the latter.

What decoding may allocate is known before it begins: from the shape of the chunk follows how many bytes each codec may yield, and a
codec is told so (`BytesBytesCodec.decode`). What a codec yields is checked again here. Where elements have no fixed size, a chunk may
have `MAX_VARIABLE_NBYTES` once it is decompressed, and the array -> bytes codec makes of them what they justify.
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
from zarrfs.codecs import lookup, scratch
from zarrfs.codecs.base import Array, ArrayArrayCodec, ArrayBytesCodec, Buffer, BytesBytesCodec, BytesStep, ChunkSpec
from zarrfs.codecs.numpy_filter import FilterOnBytes, NumpyFilter
from zarrfs.codecs.streams import Made
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
"""How elements without a fixed size become bytes where nothing else is said, by the name of their type."""
# Regular grids have one shape of chunks, others a few; every other one is worked out again.
_REMEMBERED_SHAPES = 64
# Elements as objects that are made between two looks at whether somebody still waits.
_BETWEEN_LOOKS = 4096


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What follows from the shape of a chunk. ``specs``: what each array -> array codec meets, then what the array -> bytes codec
    meets. ``limits``: the most bytes before each bytes codec, then behind the last; the first is exact where ``exact``."""

    specs: tuple[ChunkSpec, ...]
    limits: tuple[int, ...]
    exact: bool


class CodecChain:
    """A chain for chunks of one data type. Immutable; every method may be called from several threads at once.

    ``specs``: the chain as it is, complete: with the `bytes` that was left out and with what codecs take from the type of elements.
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
        """The chain that ``specs`` (in the order of encoding) describe for elements of ``data_type``. ``fill``: one element, for what an
        encoded chunk leaves out (`ArrayBytesCodec.cuts`); None for zeros.

        Raises `MetadataError` for a chain that makes no sense, `MetadataUnsupported` for codecs that are not known. What depends on
        the shape of chunks is checked by `check`.
        """
        dtype = data_type.dtype
        complete: list[CodecSpec] = []
        array_codecs: list[ArrayArrayCodec] = []
        serializer: ArrayBytesCodec | None = None
        bytes_codecs: list[BytesStep] = []
        for each in _with_serializer(specs):
            spec, codec = lookup.resolve(each or (PLAIN_OBJECTS[data_type.name] if dtype.hasobject else _BYTES), dtype)
            if dtype.hasobject and codec.holds is not None and data_type.name not in codec.holds:
                raise MetadataError(f"codec {spec.name!r} does not take elements of type {data_type.name}")
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
                    raise MetadataError(f"codec {spec.name!r} makes bytes of the elements a second time")
                case _:
                    raise MetadataError(
                        f"codec {spec.name!r} works on bytes and cannot precede the codec that makes bytes of the elements"
                    )
            complete.append(spec)
        assert serializer is not None
        return cls(data_type, tuple(complete), tuple(array_codecs), serializer, tuple(bytes_codecs), fill)

    def v3_specs(self) -> tuple[CodecSpec, ...]:
        """The chain as the final v3 can say it, for the same stored bytes. Raises `NotRepresentable` where it cannot."""
        for spec, codec in zip(self.specs[len(self._array_codecs) + 1 :], self._bytes_codecs, strict=True):
            if not isinstance(codec, BytesBytesCodec):
                raise NotRepresentable(f"filter {spec.name!r} works on stored bytes, which final Zarr v3 has no place for")
        for spec in self.specs:
            if not lookup.class_of(spec).in_v3:
                raise NotRepresentable(f"codec {spec.name!r} has no name in final Zarr v3")
        serializer = self.specs[len(self._array_codecs)]
        if serializer.name == _BYTES.name and "dtype" in serializer.configuration:
            raise NotRepresentable("fields of different byte orders have no words in final Zarr v3")
        return self.specs

    def check(self, shape: Shape) -> int:
        """Whether chunks of ``shape`` can pass: bytes of such a chunk in memory, decoded. Raises `MetadataError`."""
        self._sizes(shape)
        return self._nbytes(shape)

    def encoded_limit(self, shape: Shape) -> int:
        """The most bytes that a stored chunk of ``shape`` may have; who finds more need not fetch them."""
        return self._sizes(shape).limits[-1]

    def decoding_nbytes(self, shape: Shape) -> int:
        """Bytes of memory, at most, for what `decode` makes of a chunk of ``shape`` on the way to its elements, these included."""
        sizes = self._sizes(shape)
        stages = sum(map(spill.in_memory, sizes.limits[:-1]))
        if self.data_type.is_variable:
            return stages
        specs = sizes.specs[:-1] if sizes.exact else sizes.specs
        return stages + sum(spill.in_memory(spec.nbytes) for spec in specs)

    def encode(self, array: Array, inside: Selection | None = None) -> Buffer:
        """The stored bytes of a whole chunk, whose elements are of the data type in memory; may be a view of ``array``. ``inside``: the
        part that lies within the array, from the first element on, where some does not.

        Raises `ChunkEncodeError`.
        """
        if array.dtype != self.data_type.dtype:
            raise ChunkEncodeError(f"elements are {array.dtype}, those of the array {self.data_type.dtype}")
        sizes = self._sizes(array.shape)
        ndim = array.ndim
        for codec in self._array_codecs:
            array = codec.encode(array)
        if inside is not None and self._serializer.cuts and (order := self._permutation(ndim)) is not None:
            array = array[tuple(inside[axis] for axis in order)]
        data = self._serializer.encode(array)
        if memoryview(data).nbytes > sizes.limits[0]:
            raise ChunkEncodeError(f"{memoryview(data).nbytes} bytes are more than zarrfs decodes ({sizes.limits[0]})")
        for step in self._bytes_codecs:
            data = step.encode(data)
        return data

    def decode(self, data: Buffer, shape: Shape) -> Array:
        """The elements of a whole chunk; may be a view of ``data``, and read-only. Raises `ChunkDecodeError`."""
        return self._elements(self._serialized(data, shape, None), shape)

    def transcode(self, data: Buffer, shape: Shape, to: CodecChain, keep: Array | None = None, fill: Any = None) -> Buffer:
        """What ``to``, a chain for the same elements without a fixed size, makes of the chunk that is stored here as ``data``.

        With ``keep``, elements for which that (in C order) says no are replaced by ``fill``. Where all elements together would take much
        memory, one is made after the other. Raises `ChunkDecodeError`, `ChunkEncodeError`, and `TooLarge` for what does not work so.
        """
        serialized = self._serialized(data, shape, None)
        size = math.prod(shape)
        if not is_much(size, memoryview(serialized).nbytes):
            elements = self._elements(serialized, shape)
            if keep is not None:
                elements = elements.copy()
                # An array of no dimensions: NumPy would take a list for elements.
                one = np.empty((), object)
                one[()] = fill
                elements.reshape(-1)[~keep] = one
            return to.encode(elements)
        with scratch.alone(spill.large_nbytes()):
            each = _while_wanted(self._each(serialized, shape))
            if keep is None and self._is_same_as(to):
                # They are looked at, and need not be made again.
                deque(each, maxlen=0)
                return to._encode_bytes(serialized)
            if keep is not None:
                each = (element if kept else fill for element, kept in zip(each, keep, strict=True))
            encoded = to._encode_each(each, shape)
            # What follows the last element is looked at when another one is asked for.
            deque(each, maxlen=0)
            return encoded

    def _each(self, serialized: Buffer, shape: Shape) -> Iterator[Any]:
        specs = self._sizes(shape).specs
        if isinstance(self._serializer, ObjectCodec) and not self._array_codecs:
            return self._serializer.each(serialized, specs[-1])
        match self._array_codecs:
            case (NumpyFilter() as codec,):
                return codec.each(self._serializer.decode(serialized, specs[-1]))
        raise TooLarge(f"{specs[0].size} elements without a fixed size, in a chain of several filters, are too many")

    def _encode_each(self, elements: Iterator[Any], shape: Shape) -> Buffer:
        sizes = self._sizes(shape)
        data: Buffer
        if isinstance(self._serializer, ObjectCodec) and not self._array_codecs:
            made = Made(self._serializer.codec_name, sizes.limits[0], kind=ChunkEncodeError)
            self._serializer.put(elements, shape, made)
            data = made.whole()
        else:
            match self._array_codecs:
                case (NumpyFilter() as codec,):
                    data = self._serializer.encode(codec.put(elements, sizes.specs[0], sizes.specs[-1]))
                case _:
                    raise TooLarge(f"{math.prod(shape)} elements without a fixed size, in a chain of several filters, are too many")
        return self._encode_bytes(data)

    def _encode_bytes(self, data: Buffer) -> Buffer:
        for step in self._bytes_codecs:
            data = step.encode(data)
        return data

    def _is_same_as(self, other: CodecChain) -> bool:
        """Whether both make the same bytes of the same elements, but for the bytes codecs."""
        mine = self._serializer
        if self._array_codecs or other._array_codecs:
            return False
        return isinstance(mine, ObjectCodec) and mine.exact and mine == other._serializer

    def decode_into(self, data: Buffer, shape: Shape, out: Array, selection: Selection | None = None) -> None:
        """Decode a chunk of ``shape`` and put the part of it that ``selection`` names (None: all of it) into ``out``.

        ``out`` has the shape of that part and the type of elements in memory; it may be any part of a larger array. Where it is
        contiguous and takes all of the chunk, the last decompressor writes right into it; else into a buffer that is kept for the
        next chunk. Raises `ChunkDecodeError`; ``out`` then holds anything.
        """
        whole = out.shape == shape
        nbytes = self._nbytes(shape)
        if whole and out.flags.c_contiguous and out.flags.writeable and nbytes and self._is_memory:
            memory: Array = out.reshape(-1).view(np.uint8)
            decoded = memoryview(self._serialized(data, shape, memory.data))
            if np.frombuffer(decoded, np.uint8).ctypes.data != memory.ctypes.data:
                copying.copy(memory, np.frombuffer(decoded, np.uint8))
            return
        sizes = self._sizes(shape)
        if not sizes.exact:
            elements = self.decode(data, shape)
            # The ellipsis keeps the element of a chunk of no dimensions an array.
            index: Any = (...,) if selection is None else (*selection, ...)
            np.copyto(out, elements[index], casting="no")
            return
        with scratch.scratch(sizes.limits[0]) as buffer:
            elements = self._elements(self._serialized(data, shape, buffer), shape)
            copying.copy(out, elements if selection is None else elements[selection])

    @property
    def after_another(self) -> bool:
        """Whether elements decode from those before them (`ArrayArrayCodec.after_another`)."""
        filters = (step.filter for step in self._bytes_codecs if isinstance(step, FilterOnBytes))
        return any(codec.after_another for codec in (*self._array_codecs, *filters))

    def order(self, ndim: int) -> tuple[int, ...]:
        """The dimensions of a chunk in the order in which such codecs go through its elements, the slowest first."""
        order = tuple(range(ndim))
        for codec in itertools.takewhile(lambda each: not each.after_another, self._array_codecs):
            if (permutation := codec.permutation(ndim)) is not None:
                order = tuple(order[axis] for axis in permutation)
        return order

    @property
    def _is_memory(self) -> bool:
        """Whether the bytes that the array -> bytes codec makes are the chunk's memory."""
        return not self._array_codecs and self._serializer.is_memory(self.data_type.dtype)

    def _serialized(self, data: Buffer, shape: Shape, out: memoryview | None) -> Buffer:
        """What the array -> bytes codec made; the codec next to it is offered ``out``."""
        sizes = self._sizes(shape)
        limits = sizes.limits
        if memoryview(data).nbytes > limits[-1]:
            raise ChunkDecodeError(
                f"{memoryview(data).nbytes} stored bytes are more than a chunk of {limits[0]} bytes can have made"
            )
        for index in reversed(range(len(self._bytes_codecs))):
            data = self._bytes_codecs[index].decode(data, limits[index], out if index == 0 else None)
        if sizes.exact and memoryview(data).nbytes != limits[0]:
            raise ChunkDecodeError(f"decodes to {memoryview(data).nbytes} bytes instead of the {limits[0]} that a chunk has")
        return data

    def _elements(self, data: Buffer, shape: Shape) -> Array:
        specs = self._sizes(shape).specs
        array = self._serializer.decode(data, specs[-1])
        if (array.shape, array.dtype) != (specs[-1].shape, specs[-1].dtype):
            array = self._completed(array, specs)
        for codec, spec in zip(reversed(self._array_codecs), reversed(specs[:-1]), strict=True):
            array = codec.decode(array, spec)
        return array

    def _completed(self, array: Array, specs: Sequence[ChunkSpec]) -> Array:
        """What was decoded of a chunk that was encoded without what lies beyond the array's edge, and the rest."""
        spec, serializer = specs[-1], self._serializer
        fits = array.ndim == len(spec.shape) and all(map(le, array.shape, spec.shape)) and array.dtype == spec.dtype
        if not fits or not serializer.cuts or self._permutation(len(specs[0].shape)) is None:
            raise ChunkDecodeError(f"decodes to {array.dtype} of shape {array.shape}, not {spec.dtype} of {spec.shape}")
        whole: Array = spill.array(spec.shape, spec.dtype)
        # Through bytes: assigning a NaN may lose its payload.
        whole[...] = np.frombuffer(self._fill or bytes(spec.dtype.itemsize), f"|V{spec.dtype.itemsize}").view(spec.dtype)[0]
        whole[tuple(map(slice, array.shape))] = array
        return whole

    def _permutation(self, ndim: int) -> tuple[int, ...] | None:
        """Which dimension of the chunk each one is that the array -> bytes codec meets; None where codecs before it change values."""
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
            if len(self._sizes_of) < _REMEMBERED_SHAPES:
                self._sizes_of[shape] = sizes
        return sizes


def _while_wanted(elements: Iterator[Any]) -> Iterator[Any]:
    for number, each in enumerate(elements):
        if not number % _BETWEEN_LOOKS:
            threads.go_on()
        yield each


def _with_serializer(specs: Sequence[CodecSpec]) -> tuple[CodecSpec | None, ...]:
    """``specs`` with None in the place of an array -> bytes codec that was left out."""
    kinds = [lookup.class_of(spec) for spec in specs]
    if any(issubclass(kind, ArrayBytesCodec) for kind in kinds):
        return tuple(specs)
    place = next((index for index, kind in enumerate(kinds) if issubclass(kind, BytesBytesCodec)), len(specs))
    return (*specs[:place], None, *specs[place:])
