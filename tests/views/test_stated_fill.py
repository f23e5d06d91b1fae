"""A fill value that a program states after it created the array, as GDAL does: the chunks that it left out have that value."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.scenes import Scene
from tests.support.small_stores import array_document
from tests.support.trees import load, tree_over, write
from zarrfs.errors import ContentInvalid, NotRepresentable
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore

REFUSED = pytest.mark.logs("write failed, data lost: .*fill_value of an array cannot be changed")
DIALECTS = pytest.mark.parametrize("dialect", ["v3", "v2", "v1", "v3_2022", "v3_2019"])


def v3_document(fill_value: Any, dtype: str = "float32") -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [6],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "dimension_names": ["x"],
    }


async def elements(store: MemoryStore, name: str = "a") -> list[Any]:
    """Return the elements of an array in a later mount."""
    async with tree_over(store) as tree:
        return [str(each) for each in (await load(tree, f"npy/{name}.npy")).tolist()]


@DIALECTS
@pytest.mark.parametrize(("dtype", "fill_value"), [("<i4", -9999), ("<f4", -9999.0), ("<f4", "NaN"), ("<f4", 0.0), ("|u1", 255)])
@trio_test
async def test_a_fill_value_stated_in_chunks(dialect: str, dtype: str, fill_value: Any) -> None:
    store = MemoryStore()
    one = np.ones(2, dtype)
    missing = np.asarray(fill_value, dtype).item()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((6,), (2,), dtype, fill_value=None))
        await s.write("a/.zattrs", {"units": "m"})
        await s.write("a/1", one.tobytes())
        await s.write("a/.zarray", array_document((6,), (2,), dtype, fill_value=fill_value))
        assert (await s.json("a/.zarray"))["fill_value"] == fill_value
        assert (await s.json("a/.zattrs"))["units"] == "m"
        assert await s.names("a") == {".zarray", ".zattrs", "1"}
    assert await elements(store) == [str(each) for each in (missing, missing, one[0].item(), one[0].item(), missing, missing)]


@DIALECTS
@pytest.mark.parametrize(
    ("dtype", "first", "fill_value"),
    [
        ("int32", None, -9999),
        ("float32", "NaN", -9999.0),
        ("float32", "NaN", 0.0),
        ("float32", None, "NaN"),
        ("float32", "NaN", "NaN"),
    ],
)
@trio_test
async def test_a_fill_value_stated_in_zarr3(dialect: str, dtype: str, first: Any, fill_value: Any) -> None:
    store = MemoryStore()
    one = np.ones(2, dtype)
    missing = np.asarray(fill_value, dtype).item()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store, view="zarr3")
        await s.mkdir("a")
        await s.write("a/zarr.json", v3_document(first, dtype))
        await s.mkdir("a/c")
        await s.write("a/c/1", one.tobytes())
        await s.write("a/zarr.json", v3_document(fill_value, dtype))
        assert (await s.json("a/zarr.json"))["fill_value"] == fill_value
    assert await elements(store) == [str(each) for each in (missing, missing, one[0].item(), one[0].item(), missing, missing)]


@REFUSED
@pytest.mark.parametrize("first", [None, "NaN", 5.0])
@trio_test
async def test_a_stated_fill_value_stays(first: Any) -> None:
    store = MemoryStore()
    async with tree_over(store) as tree:
        s = Scene(tree, store, view="zarr3")
        await s.mkdir("a")
        await s.write("a/zarr.json", v3_document(first))
        await s.write("a/zarr.json", v3_document(5.0))
        with pytest.raises(ContentInvalid, match="fill_value of an array cannot be changed"):
            await s.write("a/zarr.json", v3_document(6.0))
    assert await elements(store) == ["5.0"] * 6


@REFUSED
@trio_test
async def test_an_array_of_an_earlier_mount_keeps_its_fill_value() -> None:
    store = MemoryStore()
    async with tree_over(store) as tree:
        s = Scene(tree, store, view="zarr3")
        await s.mkdir("a")
        await s.write("a/zarr.json", v3_document("NaN"))
    async with tree_over(store) as tree:
        with pytest.raises(ContentInvalid, match="fill_value of an array cannot be changed"):
            await Scene(tree, store, view="zarr3").write("a/zarr.json", v3_document(0.0))
    assert await elements(store) == ["nan"] * 6


@trio_test
async def test_zeros_that_npy_left_out_stay_zeros() -> None:
    store = MemoryStore()
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((6,), (2,), "<f4", fill_value=None))
        handle = await Scene(tree, store, view="npy").opened("a.npy")
        await handle.write((await handle.attributes()).size - 24, bytes(24))
        await handle.flush()
        await handle.release()
        await s.write("a/.zarray", array_document((6,), (2,), "<f4", fill_value=-1.0))
        assert (await s.json("a/.zarray"))["fill_value"] == -1.0
    assert await elements(store) == ["0.0"] * 6


@pytest.mark.parametrize("dialect", ["v2", "v1"])
@trio_test
async def test_a_zero_that_npy_wrote_into_a_missing_chunk_stays_zero(dialect: str) -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((6,), (2,), "<f4", fill_value=None))
        handle = await Scene(tree, store, view="npy").opened("a.npy")
        await handle.write((await handle.attributes()).size - 4, bytes(4))
        await handle.flush()
        await handle.release()
        await s.write("a/.zarray", array_document((6,), (2,), "<f4", fill_value=-1.0))
    assert await elements(store) == ["-1.0"] * 4 + ["0.0"] * 2


@trio_test
async def test_the_array_is_followed_and_another_one_at_its_path_is_not_it() -> None:
    store = MemoryStore()
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((6,), (2,), "<i4", fill_value=None))
        await s.rename("a", "b")
        await s.write("b/.zarray", array_document((6,), (2,), "<i4", fill_value=-1))
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((6,), (2,), "<i4", fill_value=None))
        await s.remove("a")
        other = Scene(tree, store, view="zarr3")
        await other.mkdir("a")
        await other.write("a/zarr.json", v3_document(0, "int32"))
        await s.write("a/.zarray", json.loads(await s.read("a/.zarray")) | {"fill_value": -1})
    assert await elements(store, "b") == ["-1"] * 6
    assert await elements(store) == ["0"] * 6


@pytest.mark.parametrize(
    ("dtype", "dialect"),
    [
        ("<M8[s]", "v3"),
        ("|V3", "v3"),
        ("bfloat16", "v3"),
        ([["a", "<i2"], ["b", "<f4"]], "v3"),
        ("<M8[s]", "v3_2022:text"),
        ("|V3", "v3_2022:text"),
    ],
)
@trio_test
async def test_null_is_stated_again_for_another_shape(dtype: Any, dialect: str) -> None:
    """zarr-python and tensorstore write the document that made the array, with the new shape. The layout has no null for these types."""
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((6,), (2,), dtype, fill_value=None))
        fill = (await s.json("a/.zarray"))["fill_value"]
        await s.write("a/.zarray", array_document((8,), (2,), dtype, fill_value=None))
        document = await s.json("a/.zarray")
        assert (document["shape"], document["fill_value"]) == ([8], fill)


@REFUSED
@trio_test
async def test_null_is_not_stated_over_another_fill_value() -> None:
    """Readers would take null for NaT, and missing chunks for other times."""
    store = MemoryStore()
    async with tree_over(store, new_dialect="v3") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((6,), (2,), "<M8[s]", fill_value=5))
        with pytest.raises(ContentInvalid, match="fill_value of an array cannot be changed"):
            await s.write("a/.zarray", array_document((8,), (2,), "<M8[s]", fill_value=None))
        assert (await s.json("a/.zarray"))["shape"] == [6]


@pytest.mark.logs("Zarr v2 has no data type bfloat16")
@trio_test
async def test_a_type_that_the_layout_lacks_is_refused_with_the_name_of_the_document() -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v2") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        with pytest.raises(NotRepresentable, match=r"chunks/a/\.zarray: Zarr v2 has no data type bfloat16"):
            await s.write("a/.zarray", array_document((6,), (2,), "bfloat16", fill_value=None))


@REFUSED
@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize("in_raw", [False, True])
@trio_test
async def test_a_fill_value_that_is_stated_in_the_store_itself_stays(in_raw: bool, view: str) -> None:
    store, key = MemoryStore(), Key("a/zarr.json")
    async with tree_over(store, metadata_ttl="0") as tree:
        s = Scene(tree, store, view=view)
        await s.mkdir("a")
        if view == "chunks":
            await s.write("a/.zarray", array_document((6,), (2,), "<f4", fill_value=None))
        else:
            await s.write("a/zarr.json", v3_document(None))
        stated = json.dumps(json.loads(bytes(await store.get(key) or b"")) | {"fill_value": 5.0}).encode()
        await (write(tree, f"raw/{key}", stated) if in_raw else store.set(key, stated))
        if view == "chunks":
            await s.write("a/.zarray", array_document((6,), (2,), "<f4", fill_value=-1.0))
            assert (await s.json("a/.zarray"))["fill_value"] == -1.0
        else:
            with pytest.raises(ContentInvalid, match="fill_value of an array cannot be changed"):
                await s.write("a/zarr.json", v3_document(-1.0))
    assert await elements(store) == ["5.0"] * 6
