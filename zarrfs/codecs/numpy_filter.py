"""Common part of numcodecs' NumPy-level filters: their positions, element types, and size checks.

In final v3 such a filter is an array -> array codec before `bytes` and works on elements (zarr-python 3 and its ``numcodecs.*`` codecs).
In v2 it works on the memory of the stored chunk, in the type of its own configuration: after `bytes`. `NumpyFilter` is the former,
`NumpyFilter.on_bytes` returns the latter; the chain decides by position.

Elements are in C order of the filter's input. (zarr-python 3 flattens an array in the order of its memory, so that after `transpose` its
reads differ from its writes.)
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from zarrfs import threads
from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs.base import ArrayArrayCodec, BytesStep, ChunkSpec, Dtype
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError
from zarrfs.memory import copying, spill
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import little_endian

NUMBERS = "iuf"
# Types accepted by a filter that casts: numbers and types that NumPy stores as numbers.
CASTABLE = "biufcmM"
# Elements filtered at once in large chunks, and the maximum of their bytes: fixed-length text may take megabytes each.
_BLOCK = 1 << 18
_BLOCK_NBYTES = 16 * _BLOCK

_LIBRARY_ERRORS = (ValueError, TypeError, RuntimeError, IndexError, OverflowError, ZeroDivisionError)


class NumpyFilter(ArrayArrayCodec):
    """A filter of numcodecs, ``codec``, and its name. Subclasses define its effect on types and on the number of elements."""

    filter_name: ClassVar[str]
    bits_to_a_byte: ClassVar[bool] = False
    """True if an encoded element holds eight decoded ones; the first encoded one is the number of padding bits in the last."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec

    @abc.abstractmethod
    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        """Return the types, with byte orders, of the filter's decoded and encoded elements for a chunk of ``dtype``.

        Raises `MetadataError` if it cannot handle such elements.
        """

    def encoded_size(self, size: int) -> int:
        """Return the number of encoded elements for ``size`` decoded ones."""
        return size

    def run_encode(self, flat: NDArray) -> NDArray:
        """Run the filter on elements of its decoded type."""
        return np.asarray(self._codec.encode(flat))

    def run_decode(self, flat: NDArray) -> NDArray:
        """Run the filter on elements of its encoded type."""
        return np.asarray(self._codec.decode(flat))

    # --- before `bytes` -----------------------------------------------------------------------------------------------------

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        decoded, encoded = self.types(dtype)
        if decoded.itemsize != dtype.itemsize or decoded.hasobject != dtype.hasobject:
            raise MetadataError(f"codec {self.names[0]}: configured for elements of type {decoded}, not {dtype}")
        return little_endian(encoded)

    def encode(self, array: NDArray) -> NDArray:
        decoded, encoded = self.types(array.dtype)
        flat = self.checked_encode(spill.contiguous(array).reshape(-1).view(decoded))
        return _as_type(flat.view(encoded), little_endian(encoded)).reshape(self.encoded_shape(array.shape))

    def decode(self, array: NDArray, spec: ChunkSpec) -> NDArray:
        _, encoded = self.types(spec.dtype)
        if spec.size == 0 and spec.dtype.hasobject:
            return np.empty(spec.shape, spec.dtype)
        flat = self.checked_decode(_as_type(spill.contiguous(array).reshape(-1), encoded))
        if flat.nbytes != spec.nbytes:
            raise ChunkDecodeError(f"{self.filter_name}: decoded size is {flat.nbytes} bytes instead of {spec.nbytes}")
        return flat.view(spec.dtype).reshape(spec.shape)

    # --- after it -----------------------------------------------------------------------------------------------------------

    def on_bytes(self, dtype: Dtype) -> BytesStep:
        decoded, encoded = self.types(dtype)
        if decoded.hasobject:
            raise MetadataError(f"codec {self.names[0]}: elements of variable size are not bytes")
        return FilterOnBytes(self, decoded, encoded)

    # --- both ---------------------------------------------------------------------------------------------------------------

    def checked_encode(self, flat: NDArray) -> NDArray:
        """Run `run_encode` with errors translated. NumPy's warnings are silenced: a lossy filter loses data by design."""
        if flat.size == 0 and self.encoded_size(0) == 0:
            return np.empty(0, self.types(flat.dtype)[1])
        try:
            with np.errstate(all="ignore"):
                return self.run_encode(flat) if not self._is_large(flat) else self._encode_large(flat)
        except _LIBRARY_ERRORS as error:
            raise ChunkEncodeError(f"{self.filter_name}: {error}") from error

    def checked_decode(self, flat: NDArray) -> NDArray:
        """Run `run_decode` with errors translated."""
        if flat.size == 0 and self.encoded_size(0) == 0:
            return np.empty(0, np.uint8)
        try:
            with np.errstate(all="ignore"):
                return self.run_decode(flat) if not self._is_large(flat) else self._decode_large(flat)
        except _LIBRARY_ERRORS as error:
            raise ChunkDecodeError(f"{self.filter_name}: {error}") from error

    # --- elements of variable size, too many for memory -----------------------------------------------------------------------

    def each(self, array: NDArray) -> Iterator[Any]:
        """Yield the decoded elements of ``array``, one after the other. Raises `ChunkDecodeError`."""
        _, encoded = self.types(np.dtype(object))
        flat = _as_type(spill.contiguous(array).reshape(-1), encoded)
        for start in range(0, flat.size, _BLOCK):
            yield from self.checked_decode(flat[start : start + _BLOCK]).tolist()

    def put(self, elements: Iterator[Any], spec: ChunkSpec, encoded_spec: ChunkSpec) -> NDArray:
        """Return the array from which `each` yields ``elements``. Raises `ChunkEncodeError`."""
        out = spill.array(encoded_spec.shape, encoded_spec.dtype)
        flat = out.reshape(-1)
        for start in range(0, spec.size, _BLOCK):
            block = np.empty(min(_BLOCK, spec.size - start), object)
            block[:] = list(itertools.islice(elements, block.size))
            flat[start : start + block.size] = self.checked_encode(block)
        return out

    # --- large chunks, block by block, into a file ---------------------------------------------------------------------------

    def _is_large(self, flat: NDArray) -> bool:
        decoded, encoded = self.types(flat.dtype if not self.bits_to_a_byte else np.dtype(bool))
        widest = max(decoded.itemsize, encoded.itemsize, 8)
        return spill.is_large(flat.size * widest) and not decoded.hasobject

    def _encode_large(self, flat: NDArray) -> NDArray:
        _, encoded = self.types(flat.dtype)
        out = spill.array((self.encoded_size(flat.size),), encoded)
        if self.bits_to_a_byte:
            out[0] = -flat.size % 8
            for start in range(0, flat.size, _BLOCK):
                threads.go_on()
                out[1 + start // 8 : 1 + -(-(start + _BLOCK) // 8)] = np.packbits(flat[start : start + _BLOCK])
            return out
        block = _block(flat.dtype, encoded)
        for start in range(0, flat.size, block):
            threads.go_on()
            begin = max(0, start - 1) if self.after_another else start
            out[start : start + block] = self.run_encode(flat[begin : start + block]).view(encoded)[start - begin :]
        return out

    def _decode_large(self, flat: NDArray) -> NDArray:
        if self.bits_to_a_byte:
            return self._bits_of_large(flat)
        decoded, encoded = self.types(flat.dtype)
        out = spill.array((flat.size,), decoded)
        block = _block(decoded, encoded)
        for start in range(0, flat.size, block):
            threads.go_on()
            part = out[start : start + block]
            if self.after_another:
                part[...] = flat[start : start + block]
                part[0] += out[start - 1] if start else part.dtype.type(0)
                np.cumsum(part, out=part)
            else:
                part[...] = self.run_decode(flat[start : start + block]).view(decoded)
        return out

    def _bits_of_large(self, flat: NDArray) -> NDArray:
        if flat[0] > 7:
            raise ChunkDecodeError(f"{self.filter_name}: invalid number of padding bits in the first byte")
        bits = flat[1:]
        out = spill.array((bits.size * 8,), np.dtype(bool))
        for start in range(0, bits.size, _BLOCK):
            threads.go_on()
            out[start * 8 : (start + _BLOCK) * 8] = np.unpackbits(bits[start : start + _BLOCK])
        return out[: out.size - int(flat[0])]


@dataclass(frozen=True, slots=True)
class FilterOnBytes:
    """A NumPy-level filter in the position of v2: on bytes, with types ``decoded`` and ``encoded`` of its input and output."""

    filter: NumpyFilter
    decoded: Dtype
    encoded: Dtype

    def encoded_limit(self, nbytes: int) -> int:
        """Return the maximum encoded size, exact if ``nbytes`` is."""
        return self.filter.encoded_size(-(-nbytes // self.decoded.itemsize)) * self.encoded.itemsize

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        """Return the encoded type of the filter."""
        return self.encoded

    def encode(self, data: Buffer) -> Buffer:
        """Return the encoded bytes."""
        if memoryview(data).nbytes % self.decoded.itemsize:
            raise ChunkEncodeError(
                f"{self.filter.filter_name}: {memoryview(data).nbytes} bytes are not a multiple of the size of {self.decoded}"
            )
        return _bytes_of(self.filter.checked_encode(_elements(data, self.decoded)))

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        """Return the decoded bytes."""
        name, nbytes = self.filter.filter_name, memoryview(data).nbytes
        if nbytes % self.encoded.itemsize:
            raise ChunkDecodeError(f"{name}: {nbytes} bytes are not a multiple of the size of {self.encoded}")
        if self.encoded_limit(limit) < nbytes:
            raise ChunkDecodeError(f"{name}: encoded size of {nbytes} bytes exceeds the maximum for a chunk of {limit} bytes")
        decoded = _bytes_of(self.filter.checked_decode(_elements(data, self.encoded)))
        if decoded.nbytes > limit:
            raise ChunkDecodeError(f"{name}: decoded size of {decoded.nbytes} bytes exceeds the limit of {limit}")
        return decoded


def with_types(spec: CodecSpec, dtype: Dtype | None = None) -> CodecSpec:
    """Return a filter with both of its types: that of its input (if omitted, ``dtype``), and that of its output, by default the same.

    zarr-python omits them, numcodecs does not.
    """
    config = dict(spec.configuration)
    if config.get("dtype") is None and dtype is not None:
        config["dtype"] = dtype.str
    if config.get("astype") is None and config.get("dtype") is not None:
        config["astype"] = config["dtype"]
    return spec if config == spec.configuration else CodecSpec(spec.name, config)


def _block(decoded: Dtype, encoded: Dtype) -> int:
    """Return the number of elements of these types that are filtered at once."""
    return max(1, min(_BLOCK, _BLOCK_NBYTES // max(decoded.itemsize, encoded.itemsize)))


def _elements(data: Buffer, dtype: Dtype) -> NDArray:
    return np.frombuffer(data, dtype) if memoryview(data).nbytes else np.empty(0, dtype)


def _as_type(array: NDArray, dtype: Dtype) -> NDArray:
    """Return `numpy.ndarray.astype` of ``array``, without a copy if none is needed."""
    if array.dtype == dtype:
        return array
    if not spill.is_large(array.size * dtype.itemsize) or dtype.hasobject:
        return array.astype(dtype)
    out = spill.array(array.shape, dtype)
    copying.copy(out, array)
    return out


def _bytes_of(array: NDArray) -> memoryview:
    return spill.contiguous(array).reshape(-1).view(np.uint8).data
