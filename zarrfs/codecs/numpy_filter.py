"""What the NumPy-level filters of numcodecs share: where they stand, which types they see, and sizes that are checked.

In final v3 such a filter is an array -> array codec before `bytes` and works on elements (zarr-python 3 and its ``numcodecs.*`` codecs).
In v2 it works on the memory of the stored chunk, in the type that its own configuration names: behind `bytes`. `NumpyFilter` is the
former, `NumpyFilter.on_bytes` gives the latter; the chain decides by position.

Elements are taken in C order of the chunk as the filter meets it. (zarr-python 3 flattens an array in the order that it happens to
have in memory, so that behind `transpose` it does not read back what it wrote.)
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from zarrfs import threads
from zarrfs.codecs.base import Array, ArrayArrayCodec, Buffer, BytesStep, ChunkSpec, Dtype
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError
from zarrfs.memory import copying, spill
from zarrfs.model.data_type import little_endian

NUMBERS = "iuf"
# What a filter that casts may be given: numbers and what NumPy stores as numbers.
CASTABLE = "biufcmM"
# Elements that are filtered at once where there are very many.
_BLOCK = 1 << 18

_LIBRARY_ERRORS = (ValueError, TypeError, RuntimeError, IndexError, OverflowError, ZeroDivisionError)


class NumpyFilter(ArrayArrayCodec):
    """A filter of numcodecs, ``codec``, and its name. Subclasses say what it does to types and to the number of elements."""

    filter_name: ClassVar[str]
    bits_to_a_byte: ClassVar[bool] = False
    """Whether eight decoded elements are one encoded one, behind one that says how many of the last do not count."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec

    @abc.abstractmethod
    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        """The types, with their byte orders, as which the filter sees decoded and encoded elements where the chunk's are ``dtype``.

        Raises `MetadataError` when it cannot take such elements.
        """

    def encoded_size(self, size: int) -> int:
        """Number of encoded elements of ``size`` decoded ones."""
        return size

    def run_encode(self, flat: Array) -> Array:
        """The filter itself, on a run of elements of its decoded type."""
        return np.asarray(self._codec.encode(flat))

    def run_decode(self, flat: Array) -> Array:
        """The filter itself, on a run of elements of its encoded type."""
        return np.asarray(self._codec.decode(flat))

    # --- before `bytes` -----------------------------------------------------------------------------------------------------

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        decoded, encoded = self.types(dtype)
        if decoded.itemsize != dtype.itemsize or decoded.hasobject != dtype.hasobject:
            raise MetadataError(f"codec {self.names[0]}: made for elements of type {decoded}, not {dtype}")
        return little_endian(encoded)

    def encode(self, array: Array) -> Array:
        decoded, encoded = self.types(array.dtype)
        flat = self.checked_encode(spill.contiguous(array).reshape(-1).view(decoded))
        return _as_type(flat.view(encoded), little_endian(encoded)).reshape(self.encoded_shape(array.shape))

    def decode(self, array: Array, spec: ChunkSpec) -> Array:
        _, encoded = self.types(spec.dtype)
        if spec.size == 0 and spec.dtype.hasobject:
            return np.empty(spec.shape, spec.dtype)
        flat = self.checked_decode(_as_type(spill.contiguous(array).reshape(-1), encoded))
        if flat.nbytes != spec.nbytes:
            raise ChunkDecodeError(f"{self.filter_name}: decodes to {flat.nbytes} bytes instead of the {spec.nbytes} of a chunk")
        return flat.view(spec.dtype).reshape(spec.shape)

    # --- behind it ----------------------------------------------------------------------------------------------------------

    def on_bytes(self, dtype: Dtype) -> BytesStep:
        decoded, encoded = self.types(dtype)
        if decoded.hasobject:
            raise MetadataError(f"codec {self.names[0]}: elements that have no fixed size are no bytes")
        return FilterOnBytes(self, decoded, encoded)

    # --- both ---------------------------------------------------------------------------------------------------------------

    def checked_encode(self, flat: Array) -> Array:
        """`run_encode` with errors translated. NumPy's warnings are silenced: a lossy filter loses."""
        if flat.size == 0 and self.encoded_size(0) == 0:
            return np.empty(0, self.types(flat.dtype)[1])
        try:
            with np.errstate(all="ignore"):
                return self.run_encode(flat) if not self._is_large(flat) else self._encode_large(flat)
        except _LIBRARY_ERRORS as error:
            raise ChunkEncodeError(f"{self.filter_name}: {error}") from error

    def checked_decode(self, flat: Array) -> Array:
        """`run_decode` with errors translated."""
        if flat.size == 0 and self.encoded_size(0) == 0:
            return np.empty(0, np.uint8)
        try:
            with np.errstate(all="ignore"):
                return self.run_decode(flat) if not self._is_large(flat) else self._decode_large(flat)
        except _LIBRARY_ERRORS as error:
            raise ChunkDecodeError(f"{self.filter_name}: {error}") from error

    # --- elements without a fixed size, of which not all fit into memory ------------------------------------------------------

    def each(self, array: Array) -> Iterator[Any]:
        """The decoded elements of ``array``, one after the other. Raises `ChunkDecodeError`."""
        _, encoded = self.types(np.dtype(object))
        flat = _as_type(spill.contiguous(array).reshape(-1), encoded)
        for start in range(0, flat.size, _BLOCK):
            yield from self.checked_decode(flat[start : start + _BLOCK]).tolist()

    def put(self, elements: Iterator[Any], spec: ChunkSpec, encoded_spec: ChunkSpec) -> Array:
        """The array that `each` makes ``elements`` of. Raises `ChunkEncodeError`."""
        out = spill.array(encoded_spec.shape, encoded_spec.dtype)
        flat = out.reshape(-1)
        for start in range(0, spec.size, _BLOCK):
            block = np.empty(min(_BLOCK, spec.size - start), object)
            block[:] = list(itertools.islice(elements, block.size))
            flat[start : start + block.size] = self.checked_encode(block)
        return out

    # --- what is large, block by block, into a file --------------------------------------------------------------------------

    def _is_large(self, flat: Array) -> bool:
        decoded, encoded = self.types(flat.dtype if not self.bits_to_a_byte else np.dtype(bool))
        widest = max(decoded.itemsize, encoded.itemsize, 8)
        return spill.is_large(flat.size * widest) and not decoded.hasobject

    def _encode_large(self, flat: Array) -> Array:
        _, encoded = self.types(flat.dtype)
        out = spill.array((self.encoded_size(flat.size),), encoded)
        if self.bits_to_a_byte:
            out[0] = -flat.size % 8
            for start in range(0, flat.size, _BLOCK):
                threads.go_on()
                out[1 + start // 8 : 1 + -(-(start + _BLOCK) // 8)] = np.packbits(flat[start : start + _BLOCK])
            return out
        for start in range(0, flat.size, _BLOCK):
            threads.go_on()
            begin = max(0, start - 1) if self.after_another else start
            out[start : start + _BLOCK] = self.run_encode(flat[begin : start + _BLOCK]).view(encoded)[start - begin :]
        return out

    def _decode_large(self, flat: Array) -> Array:
        if self.bits_to_a_byte:
            return self._bits_of_large(flat)
        decoded, _ = self.types(flat.dtype)
        out = spill.array((flat.size,), decoded)
        for start in range(0, flat.size, _BLOCK):
            threads.go_on()
            part = out[start : start + _BLOCK]
            if self.after_another:
                part[...] = flat[start : start + _BLOCK]
                part[0] += out[start - 1] if start else part.dtype.type(0)
                np.cumsum(part, out=part)
            else:
                part[...] = self.run_decode(flat[start : start + _BLOCK]).view(decoded)
        return out

    def _bits_of_large(self, flat: Array) -> Array:
        if flat[0] > 7:
            raise ChunkDecodeError(f"{self.filter_name}: the first byte, the number of padding bits, is none")
        bits = flat[1:]
        out = spill.array((bits.size * 8,), np.dtype(bool))
        for start in range(0, bits.size, _BLOCK):
            threads.go_on()
            out[start * 8 : (start + _BLOCK) * 8] = np.unpackbits(bits[start : start + _BLOCK])
        return out[: out.size - int(flat[0])]


@dataclass(frozen=True, slots=True)
class FilterOnBytes:
    """A NumPy-level filter as v2 has it: on bytes, seen as ``decoded`` on one side and as ``encoded`` on the other."""

    filter: NumpyFilter
    decoded: Dtype
    encoded: Dtype

    def encoded_limit(self, nbytes: int) -> int:
        """Exact where ``nbytes`` is."""
        return self.filter.encoded_size(-(-nbytes // self.decoded.itemsize)) * self.encoded.itemsize

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """The filter's."""
        return self.encoded

    def encode(self, data: Buffer) -> Buffer:
        """The encoded bytes."""
        if memoryview(data).nbytes % self.decoded.itemsize:
            raise ChunkEncodeError(
                f"{self.filter.filter_name}: {memoryview(data).nbytes} bytes are no whole number of {self.decoded}"
            )
        return _bytes_of(self.filter.checked_encode(_elements(data, self.decoded)))

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        """The decoded bytes."""
        name, nbytes = self.filter.filter_name, memoryview(data).nbytes
        if nbytes % self.encoded.itemsize:
            raise ChunkDecodeError(f"{name}: {nbytes} bytes are no whole number of {self.encoded}")
        if self.encoded_limit(limit) < nbytes:
            raise ChunkDecodeError(f"{name}: {nbytes} encoded bytes are more than a chunk of {limit} bytes makes")
        decoded = _bytes_of(self.filter.checked_decode(_elements(data, self.encoded)))
        if decoded.nbytes > limit:
            raise ChunkDecodeError(f"{name}: decodes to {decoded.nbytes} bytes instead of the {limit} that a chunk has at most")
        return decoded


def _elements(data: Buffer, dtype: Dtype) -> Array:
    return np.frombuffer(data, dtype) if memoryview(data).nbytes else np.empty(0, dtype)


def _as_type(array: Array, dtype: Dtype) -> Array:
    """As `numpy.ndarray.astype` without a copy where none is needed."""
    if array.dtype == dtype:
        return array
    if not spill.is_large(array.size * dtype.itemsize) or dtype.hasobject:
        return array.astype(dtype)
    out = spill.array(array.shape, dtype)
    copying.copy(out, array)
    return out


def _bytes_of(array: Array) -> memoryview:
    return spill.contiguous(array).reshape(-1).view(np.uint8).data
