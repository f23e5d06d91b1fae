"""Why an array is refused in ``zarr3/`` of a store of another layout: the reason names what the layout lacks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zarrfs.dialects import v0
from zarrfs.dialects.base import Dialect
from zarrfs.dialects.v1 import dialect as v1
from zarrfs.dialects.v2 import dialect as v2
from zarrfs.dialects.v3.chain import filters_last
from zarrfs.dialects.v3_2022 import dialect as v3_2022
from zarrfs.errors import ContentInvalid
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.metadata import ArrayNode
from zarrfs.views.zarr3_array import zarr3_array
from zarrfs.views.zarr3_document import new_array, written_node

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
DELTA = {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0},
}
DOCUMENT = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [8, 8],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "attributes": {},
}
ELEMENTS_FIRST = "Zarr v3 of 2022 cannot represent codecs on elements before those on bytes"
TYPESIZE = "cannot represent codec 'blosc' with typesize 4 at this place of the chain: readers would take it for typesize 1"


@pytest.mark.parametrize(
    ("dialect", "codecs", "reason"),
    [
        (v2, [BYTES, GZIP, BLOSC], f"v2 {TYPESIZE}"),
        (v3_2022, [BYTES, GZIP, BLOSC], f"v3_2022 {TYPESIZE}"),
        (v2, [TRANSPOSE, DELTA, BYTES], "Zarr v2 has codec 'bytes' once, before all filters"),
        (v2, [DELTA, TRANSPOSE, BYTES], "Zarr v2 has codec 'transpose' once, before all filters"),
        (v3_2022, [DELTA, TRANSPOSE, BYTES], ELEMENTS_FIRST),
        (v1, [DELTA, BYTES, BLOSC], "v1 has one compressor and no filters: codec 'bytes' follows another one"),
        (v0, [DELTA, TRANSPOSE, BYTES], "v0 has one compressor and no filters: codec 'transpose' follows another one"),
        (v1, [BYTES, GZIP, BLOSC], "v1 has one compressor and no filters"),
    ],
)
def test_the_reason_is_that_of_the_layout(dialect: Any, codecs: list[dict[str, Any]], reason: str) -> None:
    plugin: Dialect = dialect.PLUGIN
    written = written_node(NodePath("/a"), "zarr.json", json.dumps({**DOCUMENT, "codecs": codecs}).encode())
    assert isinstance(written, ArrayNode)
    asked = written.metadata
    chains = asked.codecs, filters_last(asked.codecs, asked.data_type)
    with pytest.raises(ContentInvalid) as caught:
        new_array(
            plugin.create(Prefix("")), "a/zarr.json", written, show=zarr3_array, chains=chains, keys=plugin.chunk_key_encoding
        )
    assert str(caught.value) == f"a/zarr.json: {reason}"
