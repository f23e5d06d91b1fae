"""A new array is written in the form of those beside it, where the software of a layout and its text have several."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.stores import contents, fill
from tests.support.trees import read, tree_over, write
from zarrfs.stores.memory import MemoryStore

ENTRY = {
    "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
    "metadata_encoding": "application/json",
    "extensions": [],
}
TEXT = "http://purl.org/zarr/spec/codec/gzip"
SOFTWARE = "https://purl.org/zarr/spec/codec/gzip/1.0"
OTHER = "https://purl.org/zarr/spec/codec/gzip"


def array(codec: str | None) -> dict[str, Any]:
    return {
        "shape": [4],
        "data_type": "<i2",
        "chunk_grid": {"type": "regular", "chunk_shape": [2]},
        "chunk_memory_layout": "C",
        "compressor": None if codec is None else {"codec": codec, "configuration": {"level": 1}},
        "fill_value": 7,
        "extensions": [],
        "attributes": {},
    }


DATA = io.BytesIO()
np.save(DATA, np.arange(4, dtype="<i2"))


@pytest.mark.parametrize(
    ("beside", "new", "expected"),
    [
        ({"x": TEXT}, "new", TEXT),
        ({"x": OTHER}, "new", OTHER),
        ({"x": SOFTWARE}, "new", SOFTWARE),
        # The nearest array counts, and one without a compressor does not.
        ({"g/x": TEXT, "y": SOFTWARE}, "g/new", TEXT),
        ({"g/x": TEXT, "y": SOFTWARE}, "new", SOFTWARE),
        ({"g/h/x": TEXT, "y": None}, "new", TEXT),
        ({"g/x": None, "y": OTHER}, "g/new", OTHER),
        ({"x": None}, "new", SOFTWARE),
        ({}, "new", SOFTWARE),
    ],
)
@pytest.mark.parametrize("root", ["", "in/"], ids=["root", "folder"])
@trio_test
async def test_a_new_array_of_2019_names_its_codec_as_those_beside_it(
    root: str, beside: dict[str, str | None], new: str, expected: str
) -> None:
    values: dict[str, Any] = {f"{root}zarr.json": ENTRY}
    values |= {f"{root}meta/root/{path}.array": array(codec) for path, codec in beside.items()}
    if "/" in new and not root:
        values[f"{root}meta/root/g.group"] = {"extensions": [], "attributes": {}}
    store = MemoryStore()
    await fill(store, {key: json.dumps(value).encode() for key, value in values.items()})
    async with tree_over(store, new_codecs="gzip:level=1") as tree:
        await write(tree, f"npy/{root}{new}.npy", DATA.getvalue())
        assert await read(tree, f"npy/{root}{new}.npy") == DATA.getvalue()
    written = json.loads((await contents(store))[f"{root}meta/root/{new}.array"])
    assert written["compressor"]["codec"] == expected
    # Existing arrays are not changed.
    for path, codec in beside.items():
        assert json.loads((await contents(store))[f"{root}meta/root/{path}.array"]) == array(codec)
