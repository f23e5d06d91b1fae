"""``transpose``: the dimensions in another order.

Source: v3 final, codec ``transpose`` 1.0.

    {"name": "transpose", "configuration": {"order": [1, 0, 2]}}

Dimension ``i`` of the encoded chunk is dimension ``order[i]`` of the decoded one. The strings "C" (unchanged) and "F" (reversed) are from
drafts of the specification; zarrita 0.2 wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from zarrfs.buffers import NDArray
from zarrfs.codecs.base import ArrayArrayCodec, ChunkSpec
from zarrfs.codecs.configuration import only, short
from zarrfs.errors import MetadataError
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.codec_spec import CodecSpec


@dataclass(frozen=True, slots=True)
class Transpose(ArrayArrayCodec):
    """``order``: a permutation, or "C" or "F" for any number of dimensions."""

    names: ClassVar[tuple[str, ...]] = ("transpose",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("transpose", {"order": [1, 0]}),
        CodecSpec("transpose", {"order": "F"}),
        CodecSpec("transpose", {"order": "C"}),
    )

    order: tuple[int, ...] | str

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "order")
        order = spec.configuration.get("order")
        if order in ("C", "F"):
            return cls(str(order))
        if not isinstance(order, list | tuple) or any(type(axis) is not int for axis in order):
            raise MetadataError(f"codec transpose: order must be a list of dimensions, not {short(order)}")
        if sorted(order) != list(range(len(order))):
            raise MetadataError(f"codec transpose: order {short(order)} does not contain every dimension once")
        return cls(tuple(order))

    def encoded_shape(self, shape: Shape) -> Shape:
        return tuple(shape[axis] for axis in self._axes(len(shape)))

    def permutation(self, ndim: int) -> tuple[int, ...]:
        return self._axes(ndim)

    def encode(self, array: NDArray) -> NDArray:
        return array.transpose(self._axes(array.ndim))

    def decode(self, array: NDArray, spec: ChunkSpec) -> NDArray:
        axes = self._axes(len(spec.shape))
        return array.transpose(sorted(range(len(axes)), key=axes.__getitem__))

    def _axes(self, ndim: int) -> tuple[int, ...]:
        if self.order == "C":
            return tuple(range(ndim))
        if self.order == "F":
            return tuple(reversed(range(ndim)))
        assert isinstance(self.order, tuple)
        if len(self.order) != ndim:
            raise MetadataError(f"codec transpose: order {short(self.order)} has {len(self.order)} dimensions instead of {ndim}")
        return self.order


PLUGIN = Transpose
