"""A chain of codecs of any layout in the words of the final v3, for the same stored bytes; and back.

The final v3 has array -> array codecs before the one that makes bytes, bytes -> bytes codecs behind it. v2 has its filters on the memory
of the stored chunk, behind the type's byte order: ``bytes | delta | zlib``. What such a filter does to memory it does to elements, if it
takes them for what they are; so the filter can stand before ``bytes``, and what is stored is the same:

    v2     bytes (big) | delta (dtype >i4, astype <i2) | zlib
    v3     numcodecs.delta (dtype <i4, astype <i2) | bytes (little) | numcodecs.zlib

That is certain where all of this is so; anything else raises `NotRepresentable`:

* the elements are numbers or booleans, and each filter is configured for just the type and byte order that it meets;
* what the last filter makes is little-endian (or of one byte): zarr-python 3.1 hands elements that ``bytes`` has read on in big-endian
  memory, where a filter takes them for something else;
* no ``transpose`` stands before it: zarr-python 3.1 flattens a transposed chunk in the order of its memory, and so writes something
  else than it reads;
* elements of one byte stay of one byte: zarr-python 3.1 forgets the byte order of ``bytes`` where the array's type has none;
* a filter whose result has another type says so in a way that zarr-python 3.1 understands (``quantize`` with an ``astype`` does not);
* no NumPy-level filter follows a codec that works on bytes.

Streams of LZMA whose format stores the filters (.xz, .lzma) are not representable where the document lists filters, too, as v1's may:
numcodecs hands these to the decoder, which takes them for raw streams alone.
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
# The members of configurations that name types: of decoded elements, of encoded ones.
_TYPES = {
    "numcodecs.astype": ("decode_dtype", "encode_dtype"),
    "numcodecs.delta": ("dtype", "astype"),
    "numcodecs.fixedscaleoffset": ("dtype", "astype"),
    "numcodecs.quantize": ("dtype", "astype"),
}
# Filters that zarr-python takes to keep the type of elements, whatever their configuration says.
_SAME_TYPE = frozenset({"numcodecs.quantize", "numcodecs.bitround"})


def final_codecs(codecs: Sequence[CodecSpec], data_type: DataType) -> tuple[CodecSpec, ...]:
    """The chain ``codecs`` as the final v3 says it: the same stored bytes are the same elements. Raises `NotRepresentable`."""
    chain = CodecChain.build(codecs, data_type)
    if any(
        spec.name == "numcodecs.lzma" and spec.configuration.get("filters") and spec.configuration["format"] != lzma.FORMAT_RAW
        for spec in chain.specs
    ):
        raise NotRepresentable("filters beside an LZMA stream that is not raw: numcodecs does not decode it")
    if any(issubclass(lookup.class_of(spec), NumpyFilter) for spec in chain.specs[_place_of_bytes(chain.specs) :]):
        chain = CodecChain.build(_filters_first(chain.specs, data_type.dtype), data_type)
    return chain.v3_specs()


def plain_codecs(data_type: DataType) -> tuple[CodecSpec, ...]:
    """The chain for elements as they are: C order, little-endian."""
    return CodecChain.build((), data_type).specs


def filters_last(codecs: Sequence[CodecSpec], data_type: DataType) -> tuple[CodecSpec, ...]:
    """A chain of the final v3 as v2 would have it. Whether it means the same is for `final_codecs` to tell."""
    specs = CodecChain.build(codecs, data_type).specs
    place = _place_of_bytes(specs)
    filters = [spec for spec in specs[:place] if issubclass(lookup.class_of(spec), NumpyFilter)]
    if not filters:
        return specs
    others = [spec for spec in specs[:place] if spec not in filters]
    return (*others, *plain_codecs(data_type), *filters, *specs[place + 1 :])


def _place_of_bytes(specs: Sequence[CodecSpec]) -> int:
    return next(n for n, spec in enumerate(specs) if issubclass(lookup.class_of(spec), ArrayBytesCodec))


def _filters_first(specs: Sequence[CodecSpec], dtype: Dtype) -> tuple[CodecSpec, ...]:
    serializer, *rest = specs
    _, codec = lookup.resolve(serializer, dtype)
    if not isinstance(codec, ArrayBytesCodec):
        raise NotRepresentable(f"codec {serializer.name!r} stands before filters on stored bytes")
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
            raise NotRepresentable(
                f"filter {spec.name!r} works on stored bytes, behind codec {(behind or [serializer])[-1].name!r}"
            )
        decoded, encoded = each.types(stored)
        if decoded != stored:
            raise NotRepresentable(f"filter {spec.name!r} takes elements of type {stored} for {decoded}")
        if encoded.kind not in _NUMBERS or (spec.name in _SAME_TYPE and little_endian(encoded) != little_endian(decoded)):
            raise NotRepresentable(f"filter {spec.name!r} makes elements of type {encoded}")
        filters.append(CodecSpec(spec.name, _little_endian_types(spec, decoded, encoded)))
        stored = encoded
    if little_endian(stored) != stored:
        raise NotRepresentable(f"filters make big-endian elements ({stored})")
    if dtype.itemsize == 1 < stored.itemsize:
        raise NotRepresentable(f"filters make elements with a byte order ({stored}) of some that have none ({dtype})")
    return (*filters, CodecSpec("bytes", {"endian": "little"} if stored.itemsize > 1 else {}), *behind)


def _little_endian_types(spec: CodecSpec, decoded: Dtype, encoded: Dtype) -> Mapping[str, Any]:
    names = _TYPES.get(spec.name, ())
    types = (little_endian(decoded).str, little_endian(encoded).str)
    return {**spec.configuration, **dict(zip(names, types, strict=False))}
