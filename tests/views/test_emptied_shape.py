"""A document whose shape does not fit the stored data, as in ``ref_noshape.file`` of netCDF-C's tests of corrupt files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.small_stores import array_document
from tests.support.stores import fill
from tests.support.trees import load, names, read, tree_over
from zarrfs.errors import ChunkDecodeError, ZarrfsError
from zarrfs.stores.memory import MemoryStore

BESIDE = np.arange(4, dtype="<i4")


@pytest.mark.logs("")
@trio_test
async def test_an_array_that_lost_its_shape_gives_no_elements_and_hides_no_neighbour() -> None:
    """Six elements are stored, and the shape is empty: by the text a scalar of one. zarr 3.1.6 raises; netCDF-C hides it."""
    document = {"zarr_format": 2, "shape": [], "dtype": "<i4", "chunks": [], "fill_value": -1, "order": "C"}
    values = {
        ".zgroup": b'{"zarr_format": 2}',
        "v/.zarray": json.dumps(document | {"compressor": None, "filters": None}).encode(),
        "v/.zattrs": b'{"_FillValue": -1, "_ARRAY_DIMENSIONS": ["d0"]}',
        "v/0": np.arange(6, dtype="<i4").tobytes(),
        "beside/.zarray": array_document((4,), (4,), "<i4"),
        "beside/0": BESIDE.tobytes(),
    }
    # A document without the member does not define a shape.
    del document["shape"]
    values["without/.zarray"] = json.dumps(document | {"compressor": None, "filters": None}).encode()
    store = MemoryStore()
    await fill(store, values)
    async with tree_over(store) as tree:
        assert np.array_equal(await load(tree, "npy/beside.npy"), BESIDE)
        assert b"shape is missing" in await read(tree, "chunks/without.unsupported.txt")
        with pytest.raises(ChunkDecodeError, match="exceeds the maximum for a chunk of 4 bytes"):
            await read(tree, "chunks/v/0")
        with pytest.raises(ZarrfsError):
            await read(tree, "npy/v.npy")
        assert await names(tree, "npy") == {"beside.npy", "v.npy", "without.unsupported.txt"}
