"""Conversion of a chain of codecs of any layout to the final v3, for the same stored bytes; and back.

The final v3 has array -> array codecs before the array -> bytes codec, and bytes -> bytes codecs after it. v2 has its filters on the
memory of the stored chunk, after the type's byte order: ``bytes | delta | zlib``. A filter has the same effect on memory as on elements
if its configured type matches them; the filter can then precede ``bytes``, with the same stored bytes:

    v2     bytes (big) | delta (dtype >i4, astype <i2) | zlib
    v3     numcodecs.delta (dtype <i4, astype <i2) | bytes (little) | numcodecs.zlib

This is certain if all of the following hold; anything else raises `NotRepresentable`:

* the elements are numbers or booleans, and each filter is configured for exactly the type and byte order of its input;
* the output of the last filter is little-endian (or of one byte): zarr-python 3.1 passes big-endian elements decoded by ``bytes`` on in
  big-endian memory, which a filter misinterprets;
* no ``transpose`` precedes it: zarr-python 3.1 flattens a transposed chunk in the order of its memory, so that its writes differ from its
  reads;
* elements of one byte stay of one byte: zarr-python 3.1 loses the byte order of ``bytes`` if the array's type has none;
* a filter with another output type declares it in a way that zarr-python 3.1 understands (``quantize`` with an ``astype`` does not);
* no NumPy-level filter follows a bytes -> bytes codec.

Streams of LZMA whose format stores the filters (.xz, .lzma) are not representable if the document also lists filters, as v1's may:
numcodecs passes these to the decoder, which accepts them for raw streams only.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zarrfs.codecs import lookup
from zarrfs.codecs.base import ArrayBytesCodec, BytesBytesCodec
from zarrfs.codecs.chain import CodecChain
from zarrfs.codecs.numpy_filter import NumpyFilter
from zarrfs.errors import NotRepresentable
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, little_endian

Dtype = np.dtype[Any]

_NUMBERS = "biuf"
# Members of configurations that are types: of decoded elements, of encoded ones.
_TYPES = {
    "numcodecs.astype": ("decode_dtype", "encode_dtype"),
    "numcodecs.delta": ("dtype", "astype"),
    "numcodecs.fixedscaleoffset": ("dtype", "astype"),
    "numcodecs.quantize": ("dtype", "astype"),
}
# Filters that zarr-python treats as preserving the type of elements, whatever their configuration.
_SAME_TYPE = frozenset({"numcodecs.quantize", "numcodecs.bitround"})


def final_codecs(codecs: Sequence[CodecSpec], data_type: DataType) -> tuple[CodecSpec, ...]:
    """Return the chain ``codecs`` in the final v3: the same stored bytes are the same elements. Raises `NotRepresentable`."""
    chain = CodecChain.build(codecs, data_type)
    if any(
        spec.name == "numcodecs.lzma" and spec.configuration.get("filters") and spec.configuration["format"] != lzma.FORMAT_RAW
        for spec in chain.specs
    ):
        raise NotRepresentable("LZMA stream with filters that is not raw: numcodecs cannot decode it")
    if any(issubclass(lookup.class_of(spec), NumpyFilter) for spec in chain.specs[_index_of_bytes(chain.specs) :]):
        chain = CodecChain.build(_filters_first(chain.specs, data_type.dtype), data_type)
    return chain.v3_specs()


def plain_codecs(data_type: DataType) -> tuple[CodecSpec, ...]:
    """Return the chain for plain elements: C order, little-endian."""
    return CodecChain.build((), data_type).specs


def spelt_out(codecs: Sequence[CodecSpec]) -> tuple[CodecSpec, ...]:
    """Return the chain ``codecs`` with the defaults that zarr-python leaves out of the configurations of numcodecs."""
    return tuple(map(lookup.with_defaults, codecs))


def filters_last(codecs: Sequence[CodecSpec], data_type: DataType) -> tuple[CodecSpec, ...]:
    """Return a chain of the final v3 in the order of v2. `final_codecs` determines if it has the same meaning."""
    specs = CodecChain.build(codecs, data_type).specs
    index = _index_of_bytes(specs)
    filters = [spec for spec in specs[:index] if issubclass(lookup.class_of(spec), NumpyFilter)]
    if not filters:
        return specs
    others = [spec for spec in specs[:index] if spec not in filters]
    return (*others, *plain_codecs(data_type), *filters, *specs[index + 1 :])


def _index_of_bytes(specs: Sequence[CodecSpec]) -> int:
    return next(n for n, spec in enumerate(specs) if issubclass(lookup.class_of(spec), ArrayBytesCodec))


def _filters_first(specs: Sequence[CodecSpec], dtype: Dtype) -> tuple[CodecSpec, ...]:
    serializer, *rest = specs
    _, codec = lookup.resolve(serializer, dtype)
    if not isinstance(codec, ArrayBytesCodec):
        raise NotRepresentable(f"codec {serializer.name!r} before filters on stored bytes")
    if dtype.kind not in _NUMBERS:
        raise NotRepresentable(f"filters on the memory of elements of type {dtype}")
    stored = codec.encoded_dtype(dtype)
    filters: list[CodecSpec] = []
    behind: list[CodecSpec] = []
    for spec in rest:
        _, each = lookup.resolve(spec, stored)
        if isinstance(each, BytesBytesCodec):
            behind.append(spec)
            continue
        if not isinstance(each, NumpyFilter) or behind:
            raise NotRepresentable(f"filter {spec.name!r} works on stored bytes, after codec {(behind or [serializer])[-1].name!r}")
        decoded, encoded = each.types(stored)
        if decoded != stored:
            raise NotRepresentable(f"filter {spec.name!r} interprets elements of type {stored} as {decoded}")
        if encoded.kind not in _NUMBERS or (spec.name in _SAME_TYPE and little_endian(encoded) != little_endian(decoded)):
            raise NotRepresentable(f"filter {spec.name!r} returns elements of type {encoded}")
        filters.append(CodecSpec(spec.name, _little_endian_types(spec, decoded, encoded)))
        stored = encoded
    if little_endian(stored) != stored:
        raise NotRepresentable(f"filters return big-endian elements ({stored})")
    if dtype.itemsize == 1 < stored.itemsize:
        raise NotRepresentable(f"filters return elements with a byte order ({stored}) from elements without one ({dtype})")
    return (*filters, CodecSpec("bytes", {"endian": "little"} if stored.itemsize > 1 else {}), *behind)


def _little_endian_types(spec: CodecSpec, decoded: Dtype, encoded: Dtype) -> Mapping[str, Any]:
    names = _TYPES.get(spec.name, ())
    types = (little_endian(decoded).str, little_endian(encoded).str)
    return {**spec.configuration, **dict(zip(names, types, strict=False))}
