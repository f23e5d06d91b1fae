"""Chunks for codecs: for every example of every codec, a chain with it and a matching chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrfs import registry
from zarrfs.buffers import NDArray
from zarrfs.codecs.base import Codec
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import ChunkEncodeError, MetadataError
from zarrfs.model import data_type
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType

SHAPE = (6, 4)
_NUMBERS = np.arange(24).reshape(SHAPE) * 37 % 256 - 100


def of_objects(elements: list[Any], shape: tuple[int, ...]) -> NDArray:
    """Return a chunk of objects, without NumPy's conversion of lists to dimensions."""
    chunk: NDArray = np.empty(len(elements), object)
    for index, element in enumerate(elements):
        chunk[index] = element
    return chunk.reshape(shape)


_ANY = [None, 1, -2.5, "é", "", True, [], {}, [1, [2]], {"a": {"b": None}}, "long", 2**40]
_CHUNKS: list[tuple[DataType, NDArray]] = [
    (data_type.from_name("int32"), _NUMBERS.astype("<i4")),
    (data_type.from_name("float64"), (_NUMBERS / 7).astype("<f8")),
    (data_type.from_name("float32"), (_NUMBERS / 7).astype("<f4")),
    (data_type.from_name("bool"), _NUMBERS % 3 == 0),
    (data_type.STRING, of_objects(["", "a", "é", "long"] * 6, SHAPE)),
    (data_type.VARIABLE_LENGTH_BYTES, of_objects([b"", b"a", b"\x00\xff", b"long"] * 6, SHAPE)),
    (data_type.OBJECT, of_objects(_ANY * 2, SHAPE)),
    (data_type.OBJECT, of_objects([[], [0, 1], [1], [0, 1, 0, 1]] * 6, SHAPE)),
    (data_type.OBJECT, of_objects([[], [0.5, 1.0], [-0.0], [1e300, math.inf]] * 6, SHAPE)),
    (data_type.OBJECT, of_objects([[], [False, True], [True], [False] * 9] * 6, SHAPE)),
]


@dataclass(frozen=True)
class Example:
    """One example of a codec class, in a chain of its own, and a chunk for it."""

    codec_class: type[Codec]
    spec: CodecSpec
    chain: CodecChain
    chunk: NDArray

    @property
    def id(self) -> str:
        """The test id."""
        return f"{self.spec.name}-{'-'.join(str(value) for value in self.spec.configuration.values())}"


def same(ours: NDArray, theirs: NDArray) -> bool:
    """Return True if two chunks are equal: bit for bit, or equal objects of the same type."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return False
    if ours.dtype.hasobject:
        return _told(ours.tolist()) == _told(theirs.tolist())
    return ours.tobytes() == theirs.tobytes()


def _told(value: Any) -> str:
    """Return a key that is equal for equal values of the same type; members of objects are unordered."""
    if isinstance(value, list):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{name!r}: {_told(each)}' for name, each in value.items()))}}}"
    return repr(value)


def examples(kind: type[Codec] = Codec) -> list[Example]:
    """Return all examples of codec classes of one kind."""
    return list(_examples(kind))


def params(found: list[Example]) -> dict[str, Any]:
    """Return the arguments for ``@pytest.mark.parametrize(**params(...))``."""
    return {"argnames": "example", "argvalues": found, "ids": [each.id for each in found]}


def _examples(kind: type[Codec]) -> Iterator[Example]:
    for codec_class in registry.plugins("zarrfs.codecs"):
        if issubclass(codec_class, kind):
            for spec in codec_class.examples:
                yield _example(codec_class, spec)


def _example(codec_class: type[Codec], spec: CodecSpec) -> Example:
    for element, chunk in _CHUNKS:
        try:
            chain = CodecChain.build((spec,), element)
            chain.check(SHAPE)
            if not (same(chain.decode(chain.encode(chunk), SHAPE), chunk) or codec_class.lossy):
                continue
        except (MetadataError, ChunkEncodeError):
            continue
        return Example(codec_class, spec, chain, chunk)
    raise AssertionError(f"{spec} takes none of the chunks")
