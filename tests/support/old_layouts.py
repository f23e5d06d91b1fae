"""Helpers for tests of v0 and v1: arrays of the cases, decoded by their dialect without a store."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.cases import Case
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.base import Dialect
from zarrfs.keys import ROOT, Key, Prefix
from zarrfs.model.metadata import ArrayNode


def node_of(case: Case, dialect: Dialect) -> ArrayNode:
    """Return the array at the root of a case."""
    documents = {Key(key): value for key, value in case.values.items()}
    layout = dialect.open(Prefix(""), {key: documents[key] for key in dialect.root_keys(Prefix("")) if key in documents})
    assert layout is not None
    node = layout.parse(ROOT, {key: documents[key] for key in layout.document_keys(ROOT) if key in documents})
    assert isinstance(node, ArrayNode)
    return node


def decoded(case: Case, node: ArrayNode) -> np.ndarray[Any, Any]:
    """Return all elements; missing chunks are the fill value, or zeros where it is undefined."""
    metadata = node.metadata
    dtype = metadata.data_type.dtype
    whole = np.frombuffer(metadata.fill_bytes, dtype).repeat(np.prod(metadata.shape, dtype=int)).reshape(metadata.shape).copy()
    chain = CodecChain.build(metadata.codecs, metadata.data_type)
    for coords in np.ndindex(metadata.grid_shape):
        value = case.values.get(node.chunk_prefix + metadata.chunk_key_encoding.encode(coords))
        if value is not None:
            chunk_shape = metadata.chunk_grid.chunk_shape(coords)
            place = tuple(slice(c * n, c * n + n) for c, n in zip(coords, chunk_shape, strict=True))
            chunk = chain.decode(value, chunk_shape)
            whole[place] = chunk[tuple(slice(0, n) for n in whole[place].shape)]
    return whole
