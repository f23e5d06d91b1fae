"""Hypothesis strategies for data types, their elements, and shapes."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from zarrfs.model.data_type import OBJECT, STRING, VARIABLE_LENGTH_BYTES, DataType, from_name, from_numpy

CORE = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
# Every byte pattern of these is a distinct element; float6, float4 and the short integers leave bits of their byte unused.
ML_DTYPES = "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e5m2 float8_e8m0fnu".split()
SHORT_INTEGERS = {"int2": (-2, 1), "int4": (-8, 7), "uint2": (0, 3), "uint4": (0, 15)}


def core_types() -> st.SearchStrategy[DataType]:
    """Return the types of the core of final v3."""
    return st.sampled_from(CORE).map(from_name) | st.integers(1, 9).map(lambda n: from_name(f"r{8 * n}"))


def flat_types() -> st.SearchStrategy[DataType]:
    """Return every type without fields."""
    length = st.integers(1, 5)
    unit = st.sampled_from("Y M W D h m s ms us ns ps fs as".split())
    return st.one_of(
        core_types(),
        st.sampled_from([*ML_DTYPES, *SHORT_INTEGERS]).map(from_name),
        length.map(lambda n: from_name("raw_bytes", {"length_bytes": n})),
        length.map(lambda n: from_name("null_terminated_bytes", {"length_bytes": n})),
        length.map(lambda n: from_name("fixed_length_utf32", {"length_bytes": 4 * n})),
        st.builds(
            lambda name, unit, scale: from_name(name, {"unit": unit, "scale_factor": scale}),
            st.sampled_from(["numpy.datetime64", "numpy.timedelta64"]),
            unit,
            st.integers(1, 1000),
        ),
    )


def data_types() -> st.SearchStrategy[DataType]:
    """Return every fixed-size type, including (nested) structured ones."""
    return st.recursive(flat_types(), _structured, max_leaves=4)


def variable_types() -> st.SearchStrategy[DataType]:
    """Return every variable-length type."""
    return st.sampled_from([STRING, VARIABLE_LENGTH_BYTES, from_name("bytes"), OBJECT])


def _json() -> st.SearchStrategy[Any]:
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
    return st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=5)


def elements(data_type: DataType) -> st.SearchStrategy[bytes]:
    """Return bytes of one element, little-endian: any meaningful bits. For variable-length types, the form of a fill value."""
    dtype = data_type.dtype
    if data_type == STRING:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map(str.encode)
    if data_type == OBJECT:
        return _json().map(lambda value: json.dumps(value, separators=(",", ":"), sort_keys=True).encode())
    if data_type.is_variable:
        return st.binary(max_size=6)
    if dtype.names is not None:
        assert dtype.fields is not None
        inner = [elements(from_numpy(dtype.fields[name][0])) for name in dtype.names]
        return st.tuples(*inner).map(b"".join)
    if data_type.name == "bool":
        return st.sampled_from([b"\0", b"\1"])
    if data_type.name in SHORT_INTEGERS:
        return st.integers(*SHORT_INTEGERS[data_type.name]).map(lambda n: np.array(n).astype(dtype).tobytes())
    if dtype.kind == "U":
        text = st.text(st.characters(exclude_categories=["Cs"]), max_size=dtype.itemsize // 4)
        return text.map(lambda text: text.encode("utf-32-le").ljust(dtype.itemsize, b"\0"))
    return st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)


def shapes(*, max_ndim: int = 4, max_extent: int = 6, min_extent: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Return shapes of small arrays, with up to ``max_ndim`` dimensions."""
    return st.lists(st.integers(min_extent, max_extent), max_size=max_ndim).map(tuple)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array in which each element is its own index in C order."""
    return np.arange(math.prod(shape)).reshape(shape)


def _structured(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.dictionaries(st.text("abé ", min_size=1, max_size=3), inner, min_size=1, max_size=3)
    return st.builds(_of_fields, st.sampled_from(["structured", "struct"]), fields)


def _of_fields(name: str, fields: dict[str, DataType]) -> DataType:
    return from_name(name, {"fields": [[field, each.v3_name] for field, each in fields.items()]})
