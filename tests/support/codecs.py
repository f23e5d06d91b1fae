"""Chunks for codecs: for every example of every codec, a chain with it and a chunk that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrfs import registry
from zarrfs.codecs.base import Array, Codec
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import MetadataError
from zarrfs.model import data_type
from zarrfs.model.codec_spec import CodecSpec

SHAPE = (6, 4)
_NUMBERS = np.arange(24).reshape(SHAPE) * 37 % 256 - 100
_CHUNKS: dict[str, Array] = {
    "int32": _NUMBERS.astype("<i4"),
    "float64": (_NUMBERS / 7).astype("<f8"),
    "float32": (_NUMBERS / 7).astype("<f4"),
    "bool": _NUMBERS % 3 == 0,
}


@dataclass(frozen=True)
class Example:
    """One example of a codec class, in a chain of its own, and a chunk for it."""

    codec_class: type[Codec]
    spec: CodecSpec
    chain: CodecChain
    chunk: Array

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.spec.name}-{'-'.join(str(value) for value in self.spec.configuration.values())}"


def examples(kind: type[Codec] = Codec) -> list[Example]:
    """All of them, of codec classes of one kind."""
    return list(_examples(kind))


def params(found: list[Example]) -> dict[str, Any]:
    """For ``@pytest.mark.parametrize(**params(...))``."""
    return {"argnames": "example", "argvalues": found, "ids": [each.id for each in found]}


def _examples(kind: type[Codec]) -> Iterator[Example]:
    for codec_class in registry.plugins("zarrfs.codecs"):
        if issubclass(codec_class, kind):
            for spec in codec_class.examples:
                yield _example(codec_class, spec)


def _example(codec_class: type[Codec], spec: CodecSpec) -> Example:
    for name, chunk in _CHUNKS.items():
        try:
            chain = CodecChain.build((spec,), data_type.from_name(name))
            chain.check(SHAPE)
        except MetadataError:
            continue
        return Example(codec_class, spec, chain, chunk)
    raise AssertionError(f"{spec} takes none of the chunks")
