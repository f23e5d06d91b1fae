"""Chunks written by other software, and invalid chunks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.cases import Case, cases
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.v2 import array as v2_array
from zarrfs.dialects.v3 import array as v3_array
from zarrfs.errors import ChunkDecodeError
from zarrfs.model.metadata import ArrayMetadata


def metadata_of(case: Case, path: str) -> tuple[str, ArrayMetadata]:
    """Return the prefix of an array's chunk keys, and its metadata."""
    prefix = path.strip("/") + "/" if path != "/" else ""
    if prefix + ".zarray" in case.values:
        return prefix, v2_array.parse_array(json.loads(case.values[prefix + ".zarray"]))
    return prefix, v3_array.parse_array(json.loads(case.values[prefix + "zarr.json"]))[0]


def _arrays() -> Iterator[Any]:
    for name in ("v2/compressors", "v2/filters", "v2/dtypes", "v2/structured", "v2/layout", "v3_final/codecs", "v3_final/dtypes"):
        layout, _ = name.split("/")
        case = next(each for each in cases(layout) if each.name == name)
        for node in case.nodes("array"):
            yield pytest.param(case, node, id=name + node["path"])


@pytest.mark.parametrize(("case", "node"), list(_arrays()))
def test_what_other_software_wrote(case: Case, node: dict[str, Any]) -> None:
    prefix, metadata = metadata_of(case, node["path"])
    dtype = metadata.data_type.dtype
    chain = CodecChain.build(metadata.codecs, metadata.data_type)
    elements = np.empty(metadata.shape, dtype)
    elements[...] = np.frombuffer(metadata.fill_bytes, dtype)[0]
    for coords in itertools.product(*map(range, metadata.grid_shape)):
        key = prefix + metadata.chunk_key_encoding.encode(coords)
        if key not in case.values:
            continue
        shape = metadata.chunk_grid.chunk_shape(coords)
        assert len(case.values[key]) <= chain.encoded_limit(shape)
        begin = [index * extent for index, extent in zip(coords, shape, strict=True)]
        place = tuple(slice(first, first + extent) for first, extent in zip(begin, shape, strict=True))
        # The Ellipsis keeps a view of no dimensions from becoming a scalar.
        out = elements[(..., *place)]
        chain.decode_into(case.values[key], shape, out, tuple(slice(0, extent) for extent in out.shape))
        chunk = chain.decode(case.values[key], shape)
        assert chain.decode(chain.encode(chunk), shape).tobytes() == chunk.tobytes()
    expected = case.expected(node)
    if not node.get("undefined_in_missing"):
        assert elements.tobytes() == expected.astype(expected.dtype.newbyteorder("<")).tobytes()


def test_hostile_chunks() -> None:
    case = next(each for each in cases("hostile") if each.name == "hostile/v2_bad_chunks")
    bad = case.manifest["hostile"]["bad_nodes"]
    assert len(bad) == 13
    for path in bad:
        prefix, metadata = metadata_of(case, path)
        chain = CodecChain.build(metadata.codecs, metadata.data_type)
        shape = metadata.chunk_grid.chunk_shape((0,))
        with pytest.raises(ChunkDecodeError):
            chain.decode(case.values[prefix + "0"], shape)
        with pytest.raises(ChunkDecodeError):
            chain.decode_into(case.values[prefix + "0"], shape, np.empty(shape, metadata.data_type.dtype))
