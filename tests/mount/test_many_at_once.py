"""Documents of one hierarchy that several threads write at once, as zarr-python does."""

from __future__ import annotations

import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse

GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "attributes": {},
}
# `c` may be a part of a chunk's key: its folder is undecided for a while.
NODES = {"r": GROUP, "r/a": GROUP, "r/a/b": GROUP, "r/a/b/c": ARRAY, "r/a/b/d": ARRAY}
ROUNDS = 20


def write_document(folder: Path, document: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"zarr.{uuid.uuid4().hex}.partial"
    partial.write_text(json.dumps(document))
    os.rename(partial, folder / "zarr.json")


def test_no_thread_is_in_the_way_of_another(tmp_path: Path) -> None:
    (store := tmp_path / "store").mkdir()
    with mounted(store) as mount, ThreadPoolExecutor(len(NODES)) as pool:
        for number in range(ROUNDS):
            root = mount.path / "zarr3" / f"round{number}"
            done = [pool.submit(write_document, root / name, document) for name, document in NODES.items()]
            assert [each.exception() for each in done] == [None] * len(NODES), f"round {number}"
    for number in range(ROUNDS):
        for name, document in NODES.items():
            stored = json.loads((store / f"round{number}" / name / "zarr.json").read_text())
            assert stored["node_type"] == document["node_type"], f"round {number}: {name}"
