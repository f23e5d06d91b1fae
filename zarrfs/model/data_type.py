"""Data types: the elements of an array.

A `DataType` pairs the name of a type in the final v3 and its extensions with the NumPy type that holds it in memory. In memory every
type is **little-endian**: the byte order of stored bytes belongs to the codecs (`bytes`), not to the type.

Sources: v3 final "Data types"; zarr-extensions ``data-types/``; v2 "Data type encoding" (through `from_numpy`).

    core        bool int8..int64 uint8..uint64 float16 float32 float64 complex64 complex128 r<N>
    extensions  bfloat16 float8_* float6_* float4_* int2 int4 uint2 uint4 (ml_dtypes: a byte each, at least),
                raw_bytes null_terminated_bytes fixed_length_utf32 numpy.datetime64 numpy.timedelta64 structured (also: struct)
    variable    string (str), variable_length_bytes (also: bytes), and `OBJECT`, any JSON value, only in v2 and related layouts

Elements of variable length are Python objects in NumPy's object arrays. Their ``itemsize`` is that of a reference, and unrelated to the
stored bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np

from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable

_CORE = {
    "bool": "|b1",
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"complex{bits}": f"<c{bits // 8}" for bits in (64, 128)},
}
_SMALL_NAMES = (
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float6_e2m3fn float6_e3m2fn float4_e2m1fn int2 int4 uint2 uint4"
).split()
_ALIASES = {"complex_float32": "complex64", "complex_float64": "complex128", "binary": "bytes"}
_NAME_OF_CORE = {np.dtype(text): name for name, text in _CORE.items()}
# NumPy's mark of types that other libraries have registered.
_OF_A_LIBRARY = 2

_VARIABLE = ("string", "variable_length_bytes", "bytes")

# A malicious document may declare an element of 2^40 bytes; NumPy's own limit is a C int.
MAX_ITEMSIZE = 1 << 24
MAX_FIELDS = 1000
"""Limit of a structured type: for some thousands of fields NumPy takes a quarter of a second, uninterrupted."""
# Limit of a decoded chunk of variable-length elements, in bytes: no document states its size.
MAX_VARIABLE_NBYTES = 256 * 1024 * 1024
_MAX_NESTING = 16


@dataclass(frozen=True, slots=True, eq=False)
class DataType:
    """One element of an array.

    ``name`` and ``configuration`` are those of the final v3; ``dtype`` holds the element in memory, little-endian. Types with the same
    elements are equal: ``structured`` of zarr-python up to 3.1 is ``struct`` in later versions and in zarr-extensions, and zarr-python
    writes ``bytes`` as ``variable_length_bytes``.
    """

    name: str
    dtype: np.dtype[Any]
    configuration: Mapping[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataType):
            return NotImplemented
        if self.dtype.names is not None:
            return self.dtype == other.dtype
        names = ("variable_length_bytes" if each.name == "bytes" else each.name for each in (self, other))
        return len(set(names)) == 1 and (self.dtype, self.configuration) == (other.dtype, other.configuration)

    def __hash__(self) -> int:
        return hash(self.dtype)

    @property
    def itemsize(self) -> int:
        """Size of one element in memory, in bytes; of a reference to it, if it is of variable size."""
        return self.dtype.itemsize

    @property
    def is_variable(self) -> bool:
        """True if elements are objects of variable size."""
        return bool(self.dtype.hasobject)

    @property
    def npy_dtype(self) -> np.dtype[Any]:
        """The type as in ``.npy`` files and Zarr v2: types that NumPy lacks become void of the same width."""
        return _plain(self.dtype)

    @property
    def v3_name(self) -> str | dict[str, Any]:
        """The value of the final v3's ``data_type`` member."""
        return {"name": self.name, "configuration": dict(self.configuration)} if self.configuration else self.name


STRING = DataType("string", np.dtype(object))
"""Text of any length: elements are ``str``."""
VARIABLE_LENGTH_BYTES = DataType("variable_length_bytes", np.dtype(object))
"""Elements are ``bytes``."""
OBJECT = DataType("object", np.dtype(object))
"""Elements are JSON values: None, bool, int, float, str, and lists and dicts of them. The final v3 has no such type."""


@cache
def _small_types() -> dict[str, np.dtype[Any]]:
    # The installed version may lack some.
    import ml_dtypes

    return {name: np.dtype(getattr(ml_dtypes, name)) for name in _SMALL_NAMES if hasattr(ml_dtypes, name)}


def small_type(name: str) -> np.dtype[Any] | None:
    """Return the type of ml_dtypes with this ``name``, if there is one. Raises `MetadataUnsupported` if the library is unusable."""
    if name not in _SMALL_NAMES:
        return None
    try:
        return _small_types().get(name)
    except ImportError as error:
        raise MetadataUnsupported(f"data type {name}: library ml_dtypes unusable: {error}") from error


def is_small(dtype: np.dtype[Any]) -> bool:
    """Return True if ``dtype`` is one of those that `small_type` returns."""
    # The first condition is false for NumPy's own types, so ml_dtypes is not imported for them.
    return dtype.isbuiltin == _OF_A_LIBRARY and dtype in _small_types().values()


def from_name(name: object, configuration: Mapping[str, Any] | None = None) -> DataType:
    """Return the type with the final v3's ``name``.

    Raises `MetadataUnsupported` for an unknown name, `MetadataError` for an invalid configuration.
    """
    if not isinstance(name, str):
        raise MetadataError(f"data type: name must be a string, not {_short(name)}")
    if configuration is not None and not isinstance(configuration, Mapping):
        raise MetadataError(f"data type {_short(name)}: configuration must be an object, not {_short(configuration)}")
    name, config = _ALIASES.get(name, name), dict(configuration or {})
    if name in _CORE:
        _only(name, config, ())
        return DataType(name, np.dtype(_CORE[name]))
    if (small := small_type(name)) is not None:
        _only(name, config, ())
        return DataType(name, small)
    if name in _VARIABLE:
        _only(name, config, ())
        return DataType(name, np.dtype(object))
    if re.fullmatch(r"r[0-9]+", name):
        bits = int(name[1:]) if len(name) < 12 and name[1] != "0" else -1
        if bits <= 0 or bits % 8:
            raise MetadataError(f"raw type {_short(name)}: number of bits must be a positive multiple of 8")
        _only(name, config, ())
        return DataType(name, np.dtype(f"|V{_checked_itemsize(bits // 8)}"))
    match name:
        case "raw_bytes" | "null_terminated_bytes":
            length = _length_bytes(name, config)
            return DataType(name, np.dtype(f"|{'V' if name == 'raw_bytes' else 'S'}{length}"), {"length_bytes": length})
        case "fixed_length_utf32":
            length = _length_bytes(name, config)
            if length % 4:
                raise MetadataError(f"fixed_length_utf32: length_bytes must be a multiple of 4, not {length}")
            return DataType(name, np.dtype(f"<U{length // 4}"), {"length_bytes": length})
        case "numpy.datetime64" | "numpy.timedelta64":
            return _time_type(name, config)
        case "structured" | "struct":
            return _structured(name, config, 0)
    raise MetadataUnsupported(f"data type {_short(name)}: unknown")


def from_numpy(dtype: np.dtype[Any]) -> DataType:
    """Return the type of elements of NumPy's ``dtype``, in any byte order.

    Raises `MetadataUnsupported` for object types and for types that no Zarr layout has.
    """
    little = little_endian(dtype)
    if little in _NAME_OF_CORE:
        return DataType(_NAME_OF_CORE[little], little)
    if is_small(little):
        return DataType(next(name for name, small in _small_types().items() if small == little), little)
    if little.hasobject or little.itemsize == 0 or little.subdtype is not None:
        raise MetadataUnsupported(f"elements of type {dtype} are not supported")
    _checked_itemsize(little.itemsize)
    if little.names is not None:
        return _structured_from_numpy(little)
    match little.kind:
        case "V":
            return DataType("raw_bytes", little, {"length_bytes": little.itemsize})
        case "S":
            return DataType("null_terminated_bytes", little, {"length_bytes": little.itemsize})
        case "U":
            return DataType("fixed_length_utf32", little, {"length_bytes": little.itemsize})
        case "M" | "m":
            unit, scale = np.datetime_data(little)
            name = "numpy.datetime64" if little.kind == "M" else "numpy.timedelta64"
            return DataType(name, little, {"unit": unit, "scale_factor": scale})
    raise MetadataUnsupported(f"elements of type {dtype} are not supported")


def little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return ``dtype`` with every number in it little-endian; fields, subarrays and padding are unchanged."""
    return dtype.newbyteorder("<")


@lru_cache(64)
def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return ``dtype`` with void in place of types that only ml_dtypes has, also in fields."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_plain(base), shape))
    if dtype.names is not None:
        assert dtype.fields is not None
        return np.dtype([(name, _plain(dtype.fields[name][0])) for name in dtype.names])
    return np.dtype(f"|V{dtype.itemsize}") if is_small(dtype) else dtype


def _structured_from_numpy(dtype: np.dtype[Any]) -> DataType:
    assert dtype.names is not None and dtype.fields is not None
    fields = [_field_of(name, dtype.fields[name][0]) for name in dtype.names]
    if dtype != np.dtype([(name, dtype.fields[name][0]) for name in dtype.names]):
        what = "titles of fields" if any(len(field) > 2 for field in dtype.fields.values()) else "gaps between their fields"
        raise MetadataUnsupported(f"elements of type {dtype} have {what}, which no Zarr layout can represent")
    return DataType("structured", dtype, {"fields": fields})


def _field_of(name: str, dtype: np.dtype[Any]) -> list[Any]:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        # No v3 data type has subarrays; the extra member preserves the type for the layouts that have them.
        return [*_field_of(name, base), list(shape)]
    return [name, from_numpy(dtype).v3_name]


def _structured(name: str, config: Any, depth: int) -> DataType:
    if depth > _MAX_NESTING:
        raise MetadataError("structured type: nested too deeply")
    if not isinstance(config, Mapping):
        raise MetadataError(f"{name}: configuration must be an object, not {_short(config)}")
    _only(name, config, ("fields",))
    fields = config.get("fields")
    if not isinstance(fields, list) or not fields:
        raise MetadataError(f"{name}: 'fields' must be a list of at least one field")
    if len(fields) > MAX_FIELDS:
        raise MetadataUnsupported(f"{name}: {len(fields)} fields exceed the limit of {MAX_FIELDS}")
    pairs = []
    for item in fields:
        # `structured` (zarr-python) lists [name, type]; `struct` (zarr-extensions) lists {"name":, "data_type":}.
        if isinstance(item, Mapping):
            _known_members(f"field of data type {name}", item, ("name", "data_type"))
            item = [item.get("name"), item.get("data_type")]
        if not isinstance(item, list) or len(item) not in (2, 3) or not isinstance(item[0], str) or not item[0]:
            raise MetadataError(f"{name}: a field must be a name and a type, not {_short(item)}")
        inner = item[1]
        if isinstance(inner, Mapping):
            _known_members(f"data type of field {_short(item[0])}", inner, ("name", "configuration", "must_understand"))
        if isinstance(inner, Mapping) and inner.get("name") in ("structured", "struct"):
            field_type = _structured(inner["name"], inner.get("configuration"), depth + 1)
        elif isinstance(inner, Mapping):
            field_type = from_name(inner.get("name"), inner.get("configuration"))
        else:
            field_type = from_name(inner)
        if field_type.is_variable:
            raise MetadataUnsupported(f"{name}: field {_short(item[0])} has no fixed size")
        shape = item[2] if len(item) == 3 else None
        if shape is not None and not (isinstance(shape, list) and all(type(n) is int and 0 < n <= MAX_ITEMSIZE for n in shape)):
            raise MetadataError(
                f"{name}: shape of field {_short(item[0])} must be a list of positive integers, not {_short(shape)}"
            )
        pairs.append((item[0], field_type.dtype) if shape is None else (item[0], field_type.dtype, tuple(shape)))
    try:
        dtype = np.dtype(pairs)
    except (ValueError, TypeError) as error:
        raise MetadataError(f"{name}: {_short(str(error))}") from error
    _checked_itemsize(dtype.itemsize)
    return DataType(name, dtype, {"fields": fields})


def _time_type(name: str, config: dict[str, Any]) -> DataType:
    _only(name, config, ("unit", "scale_factor"))
    unit, scale = config.get("unit"), config.get("scale_factor", 1)
    if not isinstance(unit, str) or not re.fullmatch(r"generic|[YMWDhms]|[munpfaμµ]s", unit):
        raise MetadataError(f"{name}: unknown unit {_short(unit)}")
    if type(scale) is not int or not 0 < scale < 2**31:
        raise MetadataError(f"{name}: scale_factor must be a positive 32-bit integer, not {_short(scale)}")
    code = "M8" if name == "numpy.datetime64" else "m8"
    text = f"<{code}" if unit == "generic" else f"<{code}[{scale}{'us' if unit in ('μs', 'µs') else unit}]"
    return DataType(name, np.dtype(text), {"unit": unit, "scale_factor": scale})


def _length_bytes(name: str, config: dict[str, Any]) -> int:
    _only(name, config, ("length_bytes",))
    length = config.get("length_bytes")
    if type(length) is not int or length <= 0:
        raise MetadataError(f"{name}: length_bytes must be a positive integer, not {_short(length)}")
    return _checked_itemsize(length)


def _checked_itemsize(itemsize: int) -> int:
    if itemsize > MAX_ITEMSIZE:
        raise MetadataError(f"element size of {itemsize} bytes exceeds the limit of {MAX_ITEMSIZE}")
    return itemsize


def _only(name: str, config: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise MetadataUnsupported(f"data type {name}: unknown configuration {_short(unknown)}")


def _known_members(label: str, members: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise `MetadataUnsupported` for a member that may change the meaning of the others (v3 final, "must_understand")."""
    for member, value in members.items():
        if member not in known and not (isinstance(value, Mapping) and value.get("must_understand") is False):
            raise MetadataUnsupported(f"{label}: unknown member {_short(member)}, which may not be ignored")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def require_plain(data_type: DataType, label: str) -> None:
    """Raise `NotRepresentable` if ``label`` (for the message) cannot represent variable-length or object elements."""
    if data_type.is_variable:
        raise NotRepresentable(f"{label} cannot hold variable-length elements ({data_type.name})")
