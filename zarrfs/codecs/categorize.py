"""``numcodecs.categorize``: texts of a fixed list as small integers, counted from 1; 0 is the empty text.

Source: numcodecs ``categorize``; `zarrfs.codecs.numpy_filter` for its positions in a chain.

    {"id": "categorize", "labels": ["female", "male"], "dtype": "|O", "astype": "|u1"}

numcodecs stores text that is not a label as 0, and so loses it; here it is refused. A code without a label is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from zarrfs.buffers import NDArray
from zarrfs.codecs.base import Dtype
from zarrfs.codecs.configuration import given, only, plain_dtype, short
from zarrfs.codecs.numpy_filter import NumpyFilter
from zarrfs.errors import MetadataError
from zarrfs.model.codec_spec import CodecSpec


class Categorize(NumpyFilter):
    """``labels``; ``dtype`` is the type of the elements, objects or fixed-length text; ``astype`` that of the codes, |u1 by default."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.categorize",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("categorize",)
    lossy: ClassVar[bool] = True
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.categorize", {"labels": ["a", "é", "long"], "dtype": "|O", "astype": "|u1"}),
        CodecSpec("numcodecs.categorize", {"labels": ["a", "é", "long"], "dtype": "|O", "astype": "<i2"}),
    )
    holds: ClassVar[tuple[str, ...]] = ("string",)
    filter_name: ClassVar[str] = "categorize"
    in_v3: ClassVar[bool] = False

    def __init__(self, labels: tuple[str, ...], dtype: Dtype, astype: Dtype) -> None:
        super().__init__(None)
        self._types = (dtype, astype)
        self._codes = {"": 0} | {label: index + 1 for index, label in enumerate(labels)}
        # Objects, as the memory of text of a fixed length has no relation to that of the labels.
        self._table = np.empty(len(labels) + 1, object)
        self._table[:] = ["", *labels]

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "labels", "dtype", "astype")
        dtype = plain_dtype(spec, "dtype", "UO")
        astype = plain_dtype(spec, "astype", "iu") if given(spec, "astype") else np.dtype("|u1")
        labels = spec.configuration.get("labels")
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise MetadataError(f"codec {spec.name}: labels must be a list of strings, not {short(labels)}")
        if not dtype.itemsize:
            raise MetadataError(f"codec {spec.name}: labels of type {dtype} have no size")
        return cls(tuple(labels), dtype, astype)

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        return CodecSpec(cls.names[0], {name: value for name, value in config.items() if name != "id"})

    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        return self._types

    def run_encode(self, flat: NDArray) -> NDArray:
        try:
            codes = [self._codes[each] for each in flat.tolist()]
        except KeyError as error:
            raise ValueError(f"{short(error.args[0])} is not a label") from error
        return np.array(codes, self._types[1])

    def run_decode(self, flat: NDArray) -> NDArray:
        if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < len(self._table):
            raise ValueError(f"code without a label (there are {len(self._table) - 1})")
        decoded: NDArray = self._table[flat.astype(np.intp)]
        return decoded.astype(self._types[0], copy=False)


PLUGIN = Categorize
