"""``numcodecs.shuffle``: the first bytes of all items, then the second bytes, and so on.

Source: numcodecs ``shuffle``; HDF5's filter 2.

    {"id": "shuffle", "elementsize": 4}
    {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}

A missing ``elementsize`` is 4 in v2, and in v3, where zarr-python omits it, the size of the array's elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import BytesBytesCodec, Dtype, numcodecs_members
from zarrfs.codecs.configuration import given, integer, only
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec


@dataclass(frozen=True, slots=True)
class Shuffle(BytesBytesCodec):
    """``elementsize``: size of an item in bytes; 0 and 1 have no effect."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.shuffle",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("shuffle",)
    examples: ClassVar[tuple[CodecSpec, ...]] = tuple(CodecSpec("numcodecs.shuffle", {"elementsize": each}) for each in (1, 2, 4))
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.shuffle",)

    elementsize: int

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "elementsize")
        return cls(integer(spec, "elementsize", 0, 2**31 - 1))

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        return spec if given(spec, "elementsize") else CodecSpec(spec.name, {**spec.configuration, "elementsize": dtype.itemsize})

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        return CodecSpec(cls.names[0], {"elementsize": 4, **numcodecs_members(config)})

    @classmethod
    def spec_to_numcodecs(cls, spec: CodecSpec) -> dict[str, Any]:
        # Neither 0 nor 1 changes the bytes, but in documents of netCDF-C 0 means the size of an element.
        return {"id": cls.numcodecs_ids[0], "elementsize": spec.configuration.get("elementsize") or 1}

    def encoded_limit(self, nbytes: int) -> int:
        return nbytes

    def encode(self, data: Buffer) -> Buffer:
        from numcodecs.shuffle import Shuffle as Library

        if memoryview(data).nbytes % max(1, self.elementsize):
            raise ChunkEncodeError(
                f"shuffle: {memoryview(data).nbytes} bytes are not a multiple of the item size {self.elementsize}"
            )
        target = np.frombuffer(spill.buffer(memoryview(data).nbytes), np.uint8)
        return Library(self.elementsize).encode(data, target).data if target.size else b""

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        from numcodecs.shuffle import Shuffle as Library

        nbytes = memoryview(data).nbytes
        if nbytes > limit or nbytes % max(1, self.elementsize):
            raise ChunkDecodeError(
                f"shuffle: {nbytes} bytes exceed {limit}, or are not a multiple of the item size {self.elementsize}"
            )
        target = np.frombuffer(spill.buffer(nbytes) if out is None else out, np.uint8)[:nbytes]
        return Library(self.elementsize).decode(data, target).data if nbytes else b""


PLUGIN = Shuffle
