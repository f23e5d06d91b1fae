"""Common part of `json2` and `msgpack2`: one list of the elements, nested like the chunk, then a type and the shape.

Source: numcodecs ``json2``, ``msgpack2`` (0.6 and later).

    ["a", {"b": 1.5}, "|O", [2]]          a chunk of two elements
    [[1, 2], [3, 4], "|O", [2, 2]]        one of two dimensions
    ["a", "|O", []]                       of none (json2; msgpack2 has no such chunks)

The type is NumPy's type of the elements when they were written, and is ignored: the text determines the types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zarrfs.codecs.base import Dtype
from zarrfs.codecs.configuration import short
from zarrfs.codecs.vlen import ObjectCodec
from zarrfs.errors import ChunkDecodeError
from zarrfs.model.codec_spec import CodecSpec

# Each takes up to a hundred bytes of memory, for one or two bytes of data.
MAX_VALUES = 2**23


class ObjectTextCodec(ObjectCodec):
    """Elements in a text-like form. ``defaults``: all members of its configuration with the library's defaults."""

    holds: ClassVar[tuple[str, ...]] = ("object",)
    in_v3: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, Any]]

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        return CodecSpec(spec.name, {**cls.defaults, **spec.configuration})

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        # Unchanged: the members are not numbers that software wrote as strings.
        return CodecSpec(cls.names[0], {**cls.defaults, **{name: value for name, value in config.items() if name != "id"}})


def unpacked(codec: str, items: Any, size: int) -> list[Any]:
    """Return the ``size`` elements of the list ``items``, in C order. Raises `ChunkDecodeError` if it is not such a list."""
    if not isinstance(items, list) or len(items) < 2 or not isinstance(items[-2], str) or not isinstance(items[-1], list):
        raise ChunkDecodeError(f"{codec}: not a list of elements followed by type and shape")
    *elements, _, shape = items
    count = 1
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise ChunkDecodeError(f"{codec}: {short(shape)} is not a shape")
        count *= extent
    if count != size:
        raise ChunkDecodeError(f"{codec}: {count} elements instead of {size}")
    for depth, extent in enumerate(shape or [1]):
        if depth:
            if not all(isinstance(each, list) for each in elements):
                raise ChunkDecodeError(f"{codec}: elements are not nested in the shape {short(shape)}")
            lengths = {len(each) for each in elements}
            if lengths - {extent}:
                raise ChunkDecodeError(f"{codec}: {short(sorted(lengths))} elements instead of {extent} along dimension {depth}")
            elements = [each for row in elements for each in row]
        elif len(elements) != extent:
            raise ChunkDecodeError(f"{codec}: {len(elements)} elements instead of {extent} along dimension 0")
    return elements


def packed(elements: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Return the list for ``elements`` of a chunk of ``shape``."""
    nested = elements
    for extent in reversed(shape[1:]):
        nested = [nested[start : start + extent] for start in range(0, len(nested), extent)] if extent else []
    if shape and 0 in shape[1:]:
        nested = _hollow(shape)
    return [*nested, "|O", list(shape)]


def _hollow(shape: tuple[int, ...]) -> list[Any]:
    """Return nested lists of ``shape`` without elements."""
    return [_hollow(shape[1:]) for _ in range(shape[0])] if shape else []
