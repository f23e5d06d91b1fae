"""Layout of new arrays by the mount's options: shards, separators, the forms of a dialect."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.small_stores import array_document
from tests.support.stores import contents
from tests.support.trees import load, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ContentInvalid, NotRepresentable, UsageError
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory

REFUSED = pytest.mark.logs("write failed, data lost")
ELEMENTS = np.arange(1, 17, dtype="<i4").reshape(4, 4)
CHUNKS = {f"{y}.{x}": ELEMENTS[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].tobytes() for y in (0, 1) for x in (0, 1)}
V3_ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 4],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
DATA = {"v3": "a/c", "v3_2022": "data/root/a/c", "v3_2022:text": "data/a/c", "v2": "a/"}


async def mkdir(tree: MountTree, path: str) -> None:
    above, _, name = path.rpartition("/")
    folder = await walk(tree, above)
    assert isinstance(folder, Directory)
    await folder.mkdir(name)


async def make(tree: MountTree, view: str, path: str = "a") -> None:
    """Create the array as a program does, in ``view``."""
    inside = f"{view}/{path}".rstrip("/")
    if view == "npy":
        data = io.BytesIO()
        np.save(data, ELEMENTS)
        await write(tree, f"{inside}.npy", data.getvalue())
        return
    if path:
        await mkdir(tree, inside)
    if view == "chunks":
        await write(tree, f"{inside}/.zarray", array_document((4, 4), (2, 2)))
        for name, data_ in CHUNKS.items():
            await write(tree, f"{inside}/{name}", data_)
        return
    await write(tree, f"{inside}/zarr.json", json.dumps(V3_ARRAY).encode())
    for folder in ("c", "c/0", "c/1"):
        await mkdir(tree, f"{inside}/{folder}")
    for name, data_ in CHUNKS.items():
        await write(tree, f"{inside}/c/{name.replace('.', '/')}", data_)


@pytest.mark.parametrize("view", ["chunks", "zarr3", "npy"])
@pytest.mark.parametrize("dialect", ["v3", "v3_2022", "v3_2022:text"])
@trio_test
async def test_new_arrays_are_sharded_in_every_view(dialect: str, view: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect, new_shards="2", new_chunks="2", new_codecs="none") as tree:
        await make(tree, view)
        assert np.array_equal(await load(tree, "npy/a.npy"), ELEMENTS)
        assert await read(tree, "chunks/a/1.0") == CHUNKS["1.0"]
        assert await read(tree, "zarr3/a/c/1/0") == CHUNKS["1.0"]
    stored = {key: value for key, value in (await contents(store)).items() if key.startswith(DATA[dialect])}
    # One shard: four chunks and an index.
    ((_, shard),) = stored.items()
    assert len(shard) == 64 + 4 * 16 + (4 if dialect == "v3" else 0)


@REFUSED
@pytest.mark.parametrize("view", ["chunks", "zarr3", "npy"])
@trio_test
async def test_shards_are_refused_where_the_layout_has_none(view: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v2", new_shards="2", new_chunks="2") as tree:
        with pytest.raises((ContentInvalid, NotRepresentable), match="/a: v2 has no shards, but new_shards"):
            await make(tree, view)
    assert "a/.zarray" not in await contents(store)


@pytest.mark.parametrize(
    ("dialect", "separator", "key"),
    [("v2", "/", "a/1/0"), ("v3", ".", "a/c.1.0"), ("v3_2022", ".", "data/root/a/c1.0"), ("v3_2022:text", ".", "data/a/c1.0")],
)
@pytest.mark.parametrize("view", ["chunks", "npy"])
@trio_test
async def test_new_arrays_have_the_separator_of_the_option(dialect: str, separator: str, key: str, view: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect, new_separator=separator, new_chunks="2") as tree:
        await make(tree, view)
        assert np.array_equal(await load(tree, "npy/a.npy"), ELEMENTS)
        assert await read(tree, "chunks/a/1.0") == CHUNKS["1.0"]
    assert key in await contents(store)


@REFUSED
@trio_test
async def test_a_zarray_of_one_dimension_says_the_separator_of_the_store() -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v2") as tree:
        await mkdir(tree, "chunks/a")
        await write(tree, "chunks/a/.zarray", array_document((4,), (2,), dimension_separator="/"))
        assert json.loads((await contents(store))["a/.zarray"])["dimension_separator"] == "/"
        await mkdir(tree, "chunks/b")
        with pytest.raises(ContentInvalid, match="new_separator"):
            await write(tree, "chunks/b/.zarray", array_document((4, 4), (2, 2), dimension_separator="/"))


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@trio_test
async def test_a_hierarchy_of_2022_in_the_form_of_the_text(view: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v3_2022:text") as tree:
        await make(tree, view)
    stored = await contents(store)
    entry = json.loads(stored["zarr.json"])
    assert entry["metadata_encoding"] == {"type": "json", "metadata_key_suffix": ".json"}
    document = json.loads(stored["meta/a.array.json"])
    assert document["data_type"] == "int32" and "compressor" not in document
    async with tree_over(store) as tree:
        assert np.array_equal(await load(tree, "npy/a.npy"), ELEMENTS)


@REFUSED
@pytest.mark.parametrize(
    ("dialect", "codec"), [("v3_2022:text", "crc32c"), ("v3_2019", "crc32c"), ("v3_2019", "zstd:level=1:checksum=false")]
)
@pytest.mark.parametrize("view", ["chunks", "npy"])
@trio_test
async def test_a_codec_that_neither_the_text_nor_the_software_of_its_time_had(dialect: str, codec: str, view: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect, new_codecs=codec) as tree:
        with pytest.raises((ContentInvalid, NotRepresentable), match="has no URI in the"):
            await make(tree, view)
    assert not any(key.endswith((".array", ".array.json")) for key in await contents(store))


@trio_test
async def test_a_form_that_there_is_not() -> None:
    for name in ("v3_2022:txt", "v3:text"):
        with pytest.raises(UsageError, match="v3_2022:text"):
            async with tree_over(MemoryStore(), new_dialect=name):
                pass


@pytest.mark.parametrize("dialect", ["v3", "v2", "v3_2022", "v3_2022:text"])
@trio_test
async def test_the_root_becomes_an_array_through_zarr3(dialect: str) -> None:
    store = MemoryStore()
    async with tree_over(store, url="memory:", new_dialect=dialect) as tree:
        await make(tree, "zarr3", "")
        assert await read(tree, "chunks/1.0") == CHUNKS["1.0"]
    async with tree_over(store, url="memory:") as tree:
        assert await read(tree, "chunks/0.1") == CHUNKS["0.1"]
