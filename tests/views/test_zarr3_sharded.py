"""``zarr3/`` of sharded arrays, nested and with missing chunks.

zarr-python reads and writes it without shards, and other libraries read the resulting shards of the store.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.comparing import in_memory
from tests.support.length import tries
from tests.support.trees import every_file, read, tree_of, walk, write

pytest.importorskip("zarr")
pytest.importorskip("tensorstore")

import zarr

from tests.support.sharded import documents, load, make, numbered, regions, store
from zarrfs.vfs.node import Directory

LIBRARIES = ("zarr-python", "tensorstore")


@tries(60)
@given(data=st.data())
def test_any_sharded_array(data: st.DataObject) -> None:
    library = data.draw(st.sampled_from(LIBRARIES))
    # tensorstore supports no codecs after the one for shards.
    document = data.draw(documents(behind=library == "zarr-python"))
    first, second = (data.draw(regions(tuple(document["shape"]))) for _ in range(2))

    async def main(folder: Path) -> None:
        expected = make(folder, document)
        expected[first] = numbered(expected[first].shape, 100)
        store(library, folder, first, expected[first])
        async with tree_of(folder) as tree:
            before = {path.removeprefix("zarr3/"): await read(tree, path) async for path in every_file(tree, "zarr3")}
            shown = json.loads(before["zarr.json"])
            assert "sharding_indexed" not in json.dumps(shown["codecs"])
            assert shown["chunk_key_encoding"] == document["chunk_key_encoding"]
            array: Any = zarr.open_array(in_memory(before).with_read_only(False), mode="r+", zarr_format=3)
            assert (np.asarray(array[...]) == expected).all()
            array[second] = expected[second] = numbered(expected[second].shape, 1000)
            after = {key: value.to_bytes() for key, value in array.store_path.store._store_dict.items()}
            for key, value in after.items():
                if value != before.get(key):
                    await write(tree, f"zarr3/{key}", value)
                    assert await read(tree, f"zarr3/{key}") == value
            for key in before.keys() - after.keys():
                above, _, name = f"zarr3/{key}".rpartition("/")
                above_it = await walk(tree, above)
                assert isinstance(above_it, Directory)
                await above_it.unlink(name)
            assert not await tree.publish_all()
        assert (load(library, folder) == expected).all()
        assert json.loads((folder / "zarr.json").read_text()) == document

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder))
