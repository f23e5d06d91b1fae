"""The one fill value of Zarr v0 to v2 in `zarr3/`: elements of missing chunks, and missing data for readers."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.length import tries
from tests.support.scenes import Scene
from tests.support.small_stores import array_document
from tests.support.stores import contents, fill
from tests.support.trees import read, tree_over
from tests.support.zarr_python import written
from zarrfs.errors import ContentInvalid
from zarrfs.stores.memory import MemoryStore

pytest.importorskip("zarr")

REFUSED = pytest.mark.logs("write failed, data lost: .*(differ|is not a value of type|cannot be changed)")
NONE = object()
"""No attribute."""
STRING = "string"
TYPES = {
    "<f4": "float32",
    "<f8": "float64",
    "<i2": "int16",
    "|i1": "int8",
    "|b1": "bool",
    "<c8": "complex64",
    "<U2": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}},
    "|S2": {"name": "null_terminated_bytes", "configuration": {"length_bytes": 2}},
}


def b64(number: float) -> str:
    return base64.standard_b64encode(struct.pack("<d", number)).decode()


NAN = b64(float("nan"))
INFINITY = b64(float("inf"))
MARK = b64(-9999.0)


def attribute(value: Any) -> dict[str, Any]:
    return {} if value is NONE else {"_FillValue": value}


async def v2_array(
    store: MemoryStore, dtype: str, fill_value: Any, value: Any = NONE, *, named: bool = True, shape: tuple[int, ...] = (6,)
) -> None:
    """Write an array `a` without chunks."""
    names = {"_ARRAY_DIMENSIONS": ["x"][: len(shape)]} if named else {}
    document = array_document(shape, (2,)[: len(shape)], dtype, fill_value=fill_value)
    await fill(
        store,
        {
            ".zgroup": b'{"zarr_format": 2}',
            "a/.zarray": document if isinstance(document, bytes) else json.dumps(document).encode(),
            "a/.zattrs": json.dumps({**names, **attribute(value)}).encode(),
        },
    )


async def shown(store: MemoryStore) -> tuple[Any, Any]:
    """Return `fill_value` and `_FillValue` of `a`."""
    async with tree_over(store) as tree:
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
    return document["fill_value"], document["attributes"].get("_FillValue", NONE)


async def stored(store: MemoryStore, *, bare: bool = False) -> tuple[Any, Any]:
    """Return the stored `fill_value` and `_FillValue` of `a`: valid JSON, unless ``bare``."""
    values = await contents(store)
    attributes = json.loads(values.get("a/.zattrs", b"{}"), parse_constant=float if bare else pytest.fail)
    return json.loads(values["a/.zarray"])["fill_value"], attributes.get("_FillValue", NONE)


# --- reading --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "fill_value", "value", "expected"),
    [
        ("<f4", 0.0, NONE, (0.0, b64(0.0))),
        ("<f4", "NaN", NONE, ("NaN", NAN)),
        ("<f4", -9999.0, NONE, (-9999.0, MARK)),
        # The fill value has precedence, as in xarray.
        ("<f4", 0.0, -9999.0, (0.0, b64(0.0))),
        ("<f4", "Infinity", NONE, ("Infinity", INFINITY)),
        ("<f4", None, NONE, (0.0, NONE)),
        ("<f4", None, -9999.0, (0.0, MARK)),
        ("<f4", None, -9999, (0.0, MARK)),
        ("<f4", None, 1e300, (0.0, b64(1e300))),
        ("<f4", None, 0.1, (0.0, b64(0.1))),
        ("<f4", None, "NaN", (0.0, NAN)),
        # A bare token, as zarr-python writes it.
        ("<f4", None, float("inf"), (0.0, INFINITY)),
        # For readers of v2 these are not elements.
        ("<f4", None, "Infinity", (0.0, NONE)),
        ("<f4", None, MARK, (0.0, NONE)),
        ("<f4", None, [1], (0.0, NONE)),
        ("<f4", None, 10**400, (0.0, NONE)),
        ("<i2", 0, NONE, (0, 0)),
        ("<i2", -1, 5, (-1, -1)),
        ("<i2", None, -1, (0, -1)),
        ("<i2", None, -1.0, (0, -1)),
        ("<i2", None, 1.5, (0, NONE)),
        ("<i2", None, "x", (0, NONE)),
        ("<i2", None, True, (0, NONE)),
        # _Unsigned gives it a meaning.
        ("|i1", None, 255, (0, 255)),
        ("|b1", False, NONE, (False, False)),
        ("|b1", None, True, (False, True)),
        ("|b1", None, 1, (False, True)),
        ("|b1", None, 2, (False, NONE)),
        ("<c8", [1.0, 2.0], NONE, ([1.0, 2.0], [b64(1.0), b64(2.0)])),
        ("<c8", None, 5, ([0.0, 0.0], [b64(5.0), b64(0.0)])),
        ("<c8", None, [1, 2], ([0.0, 0.0], NONE)),
        # xarray cannot open a v3 array of these types with the attribute.
        ("<U2", "no", NONE, ("no", NONE)),
        ("<U2", None, "no", ("", "no")),
        ("|S2", "bm8=", NONE, ("bm8=", NONE)),
        ("<M8[s]", 5, NONE, (5, NONE)),
    ],
)
@trio_test
async def test_what_zarr_v3_is_told(dtype: str, fill_value: Any, value: Any, expected: Any) -> None:
    store = MemoryStore()
    await v2_array(store, dtype, fill_value, value)
    before = await contents(store)
    assert await shown(store) == expected
    async with tree_over(store) as tree:
        # Writing the shown document back changes nothing, in any spelling; nor does a resize.
        s = Scene(tree, store, view="zarr3")
        document = await s.json("a/zarr.json")
        await s.write("a/zarr.json", document)
        await s.write("a/zarr.json", json.dumps(document, indent=7).encode())
        assert await contents(store) == before
        await s.write("a/zarr.json", document | {"shape": [8], "attributes": document["attributes"] | {"more": 1}})
        assert json.loads(await read(tree, "chunks/a/.zattrs")) == json.loads(before["a/.zattrs"]) | {"more": 1}
    assert await stored(store, bare=value == float("inf")) == (fill_value, value)


@pytest.mark.parametrize(
    ("fill_value", "value", "expected"), [(0.0, NONE, (0.0, NONE)), (7.0, -9999.0, (7.0, MARK)), (None, -9999.0, (0.0, MARK))]
)
@trio_test
async def test_without_names_of_dimensions_the_fill_value_marks_nothing(fill_value: Any, value: Any, expected: Any) -> None:
    store = MemoryStore()
    await v2_array(store, "<f4", fill_value, value, named=False)
    assert await shown(store) == expected


@trio_test
async def test_a_scalar_is_a_variable() -> None:
    store = MemoryStore()
    await v2_array(store, "<i2", 3, shape=())
    assert await shown(store) == (3, 3)


# --- new arrays -----------------------------------------------------------------------------------------------------------------


def v3_document(dtype: str, fill_value: Any, value: Any, *, named: bool = True, shape: tuple[int, ...] = (6,)) -> dict[str, Any]:
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": STRING if dtype == "|O" else TYPES[dtype],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2] * len(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": [{"name": "vlen-utf8"} if dtype == "|O" else {"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": attribute(value),
    }
    return document | ({"dimension_names": ["x"]} if named and shape else {})


async def make(store: MemoryStore, *documents: dict[str, Any], dialect: str = "v2") -> None:
    if dialect == "v2" and not await contents(store):
        await fill(store, written(2, lambda root: None))
    async with tree_over(store, new_dialect=dialect) as tree:
        s = Scene(tree, store, view="zarr3")
        if "a" not in await s.names():
            await s.mkdir("a")
        for document in documents:
            await s.write("a/zarr.json", document)


NEW = [
    # Written, stored, and shown values.
    ("<i2", 0, NONE, (None, NONE), (0, NONE)),
    ("<i2", 0, -1, (None, -1), (0, -1)),
    ("<i2", 0, -1.0, (None, -1), (0, -1)),
    ("<i2", 0, 0, (0, 0), (0, 0)),
    ("<i2", -1, -1, (-1, -1), (-1, -1)),
    ("<i2", 0, 70000, (None, 70000), (0, 70000)),
    ("|i1", 0, 255, (None, 255), (0, 255)),
    ("<f4", 0.0, NONE, (None, NONE), (0.0, NONE)),
    ("<f4", 0.0, NAN, (None, NONE), (0.0, NONE)),
    ("<f4", 0.0, MARK, (None, -9999.0), (0.0, MARK)),
    ("<f4", 0.0, -9999, (None, -9999), (0.0, MARK)),
    ("<f4", 0.0, b64(1e300), (None, 1e300), (0.0, b64(1e300))),
    ("<f4", "NaN", NONE, ("NaN", NONE), ("NaN", NAN)),
    ("<f4", "NaN", NAN, ("NaN", NONE), ("NaN", NAN)),
    # The default of xarray for floats with a value of their own. A missing chunk is missing data either way.
    ("<f4", "NaN", MARK, (-9999.0, -9999.0), (-9999.0, MARK)),
    ("<f4", "NaN", INFINITY, ("Infinity", NONE), ("Infinity", INFINITY)),
    ("<f4", -9999.0, MARK, (-9999.0, -9999.0), (-9999.0, MARK)),
    ("<f8", "Infinity", "Infinity", ("Infinity", NONE), ("Infinity", INFINITY)),
    # Elements of missing chunks have to be right, at the price that they are missing data then.
    ("<i2", 7, NONE, (7, NONE), (7, 7)),
    ("|b1", False, NONE, (None, NONE), (False, NONE)),
    ("|b1", False, True, (None, True), (False, True)),
    ("|b1", True, True, (True, True), (True, True)),
    ("<c8", [0.0, 0.0], NONE, (None, NONE), ([0.0, 0.0], NONE)),
    ("<c8", [0.0, 0.0], [NAN, NAN], (None, NONE), ([0.0, 0.0], NONE)),
    ("<c8", [0.0, 0.0], [b64(5), b64(0)], (None, 5.0), ([0.0, 0.0], [b64(5), b64(0)])),
    ("<c8", [1.0, 2.0], [b64(1), b64(2)], ([1.0, 2.0], NONE), ([1.0, 2.0], [b64(1), b64(2)])),
    ("<U2", "", NONE, (None, NONE), ("", NONE)),
    ("<U2", "", "no", (None, "no"), ("", "no")),
    ("<U2", "no", "no", ("no", "no"), ("no", "no")),
    ("<U2", "", "", ("", ""), ("", "")),
    ("|O", "", "", ("", ""), ("", "")),
    ("|S2", "", "", ("", ""), ("", "")),
    ("|S2", "", NONE, (None, NONE), ("", NONE)),
    ("|O", "", NONE, (None, NONE), ("", NONE)),
    ("|O", "", "no", (None, "no"), ("", "no")),
]


@pytest.mark.parametrize(("dtype", "fill_value", "value", "in_store", "expected"), NEW)
@pytest.mark.parametrize("steps", [1, 2])
@trio_test
async def test_a_new_array_says_the_same_after_a_remount(
    dtype: str, fill_value: Any, value: Any, in_store: Any, expected: Any, steps: int
) -> None:
    """xarray creates an array without attributes, and adds them."""
    store = MemoryStore()
    await make(store, *(v3_document(dtype, fill_value, each) for each in (NONE, value)[-steps:]))
    found = await stored(store)
    # After the first step the fill value is shown as _FillValue, so that writing it changes nothing.
    assert found == in_store or (steps == 2 and found == (in_store[0], NONE) and expected[0] == fill_value != 0)
    assert await shown(store) == expected
    # The creating program keeps its own fill value, and writes it again.
    before = await contents(store)
    if value is not NONE:
        await make(store, v3_document(dtype, fill_value, value))
        assert await contents(store) == before


@pytest.mark.parametrize(
    ("dtype", "fill_value", "value"),
    [
        ("<i2", 7, -1),
        ("<f4", 7.0, NAN),
        ("<f4", 7.0, MARK),
        ("<f4", -0.0, MARK),
        # Marks no element, no more than zero would.
        ("<f4", 7.0, b64(1e300)),
        ("|i1", -1, 255),
        # Neither JSON nor v2 can represent this number.
        ("<f4", 0.0, INFINITY),
        ("<f4", 0.0, "what"),
        ("<i2", 0, "what"),
        ("<i2", 0, 1.5),
        ("<c8", [0.0, 0.0], [b64(1), b64(2)]),
        ("|b1", True, False),
        ("|S2", "", "bm8="),
        ("<U2", "no", "na"),
    ],
)
@pytest.mark.parametrize("steps", [1, 2])
@REFUSED
@trio_test
async def test_what_one_value_cannot_be_is_refused(dtype: str, fill_value: Any, value: Any, steps: int) -> None:
    store = MemoryStore()
    await fill(store, written(2, lambda root: None))
    if steps == 2:
        await make(store, v3_document(dtype, fill_value, NONE))
    before = await contents(store)
    with pytest.raises(ContentInvalid, match=r"a/zarr.json: _FillValue .* (and the fill value .* differ|is not a value of type)"):
        await make(store, v3_document(dtype, fill_value, value))
    assert {key for key in await contents(store) if not key.endswith((".zgroup", ".zattrs"))} == {
        key for key in before if not key.endswith((".zgroup", ".zattrs"))
    }
    if steps == 2:
        assert await contents(store) == before


@trio_test
async def test_without_names_a_new_array_has_the_fill_value_that_was_asked_for() -> None:
    for fill_value, value, expected in ((0, NONE, (0, NONE)), (7, NONE, (7, NONE)), (7, 7, (7, 7)), (7, -1, (7, -1))):
        store = MemoryStore()
        await make(store, v3_document("<i2", fill_value, value, named=False))
        assert await stored(store) == expected == await shown(store)
        # An attribute may be added.
        await make(store, v3_document("<i2", fill_value, 5, named=False))
        assert await stored(store) == (fill_value, 5) == await shown(store)
        await make(store, v3_document("<i2", fill_value, NONE, named=False))
        assert await stored(store) == (fill_value, NONE) == await shown(store)


@trio_test
async def test_a_new_scalar_gets_null() -> None:
    store = MemoryStore()
    await make(store, v3_document("<i2", 0, NONE, shape=()))
    assert await stored(store) == (None, NONE) and await shown(store) == (0, NONE)


@pytest.mark.parametrize("dialect", ["v0", "v1"])
@trio_test
async def test_older_layouts_do_the_same(dialect: str) -> None:
    for fill_value, value, expected in ((0.0, NONE, (0.0, NONE)), (0.0, MARK, (0.0, MARK)), ("NaN", MARK, (-9999.0, MARK))):
        store = MemoryStore()
        document = v3_document("<f4", fill_value, NONE)
        async with tree_over(store, new_dialect=dialect) as tree:
            s = Scene(tree, store, view="zarr3")
            await s.mkdir("a")
            if dialect == "v0":
                blosc = {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}
                document["codecs"].append({"name": "blosc", "configuration": blosc})
            await s.write("a/zarr.json", document)
            await s.write("a/zarr.json", document | {"attributes": attribute(value)})
        assert await shown(store) == expected
        names = {"v0": ("__zmeta__", "__zattr__"), "v1": ("meta", "attrs")}[dialect]
        values = await contents(store)
        assert json.loads(values[f"a/{names[0]}"])["fill_value"] == (None if fill_value == 0 else -9999)
        assert json.loads(values[f"a/{names[1]}"]).get("_FillValue") == (None if value is NONE else -9999)


# --- edits ----------------------------------------------------------------------------------------------------------------------


@REFUSED
@trio_test
async def test_another_fill_value_beside_null_is_an_attribute() -> None:
    store = MemoryStore()
    await v2_array(store, "<f4", None)
    async with tree_over(store) as tree:
        s = Scene(tree, store, view="zarr3")
        document = await s.json("a/zarr.json")

        async def write(value: Any) -> Any:
            await s.write("a/zarr.json", document | {"attributes": {"units": "m"} | attribute(value)})
            return await stored(store)

        assert await write(MARK) == (None, -9999.0)
        assert await write(b64(5.0)) == (None, 5.0)
        assert await write(NONE) == (None, NONE)
        assert await write(NAN) == (None, NONE)
        # Programs that verify their write find its value, until the end of the mount.
        assert (await s.json("a/zarr.json"))["attributes"]["_FillValue"] == NAN
        with pytest.raises(ContentInvalid, match="differ"):
            await write(INFINITY)
        assert await write(b64(0.0)) == (0.0, 0.0)
        with pytest.raises(ContentInvalid, match=r"in v2 elements that equal fill_value are missing data"):
            await write(MARK)
        assert await write(NONE) == (0.0, 0.0)
        assert (await s.json("a/zarr.json"))["attributes"] == {"units": "m", "_FillValue": b64(0.0)}


@trio_test
async def test_the_attribute_of_text_can_be_removed() -> None:
    store = MemoryStore()
    await v2_array(store, "<U2", "no", "no")
    async with tree_over(store) as tree:
        s = Scene(tree, store, view="zarr3")
        await s.write("a/zarr.json", await s.json("a/zarr.json") | {"attributes": {}})
    assert await stored(store) == ("no", NONE)


@trio_test
async def test_an_attribute_that_no_reader_understands_stays() -> None:
    store = MemoryStore()
    await v2_array(store, "<f4", None, MARK)
    async with tree_over(store) as tree:
        s = Scene(tree, store, view="zarr3")
        await s.write("a/zarr.json", await s.json("a/zarr.json") | {"attributes": {"units": "m"}})
        assert await stored(store) == (None, MARK)
        await s.write("a/zarr.json", await s.json("a/zarr.json") | {"attributes": {"_FillValue": b64(5)}})
        assert await stored(store) == (None, 5.0)


@REFUSED
@trio_test
async def test_missing_chunks_become_what_marks_them_in_all_views_at_once() -> None:
    store = MemoryStore()
    await make(store, v3_document("<f4", "NaN", NONE))
    async with tree_over(store) as tree:
        s = Scene(tree, store, view="zarr3")
        for name in ("0", "1"):
            await s.write(f"a/c/{name}", np.array([1, np.nan], "<f4").tobytes())

        async def numbers() -> list[float]:
            data = (await read(tree, "npy/a.npy"))[-24:]
            return np.nan_to_num(np.frombuffer(data, "<f4"), nan=-1).tolist()

        assert await numbers() == [1, -1, 1, -1, -1, -1]
        document = await s.json("a/zarr.json")
        await s.write("a/zarr.json", document | {"attributes": {"_FillValue": MARK}})
        assert await numbers() == [1, -1, 1, -1, -9999, -9999]
        assert (await s.json("a/zarr.json"))["fill_value"] == -9999
        assert json.loads(await read(tree, "chunks/a/.zarray"))["fill_value"] == -9999
        with pytest.raises(ContentInvalid, match="fill_value of an array cannot be changed"):
            await s.write("a/zarr.json", document)


@REFUSED
@tries(60)
@given(
    st.sampled_from([0.0, -0.0, 1.5, -9999.0, "NaN", "Infinity", "-Infinity"]),
    st.sampled_from([NONE, *map(b64, (0.0, 1.5, -9999.0, float("nan"), float("inf"), 1e300)), 5, -9999.0, "NaN", "what"]),
    st.booleans(),
    st.sampled_from([1, 2]),
)
@trio_test
async def test_what_is_taken_is_shown(fill_value: Any, value: Any, named: bool, steps: int) -> None:
    store = MemoryStore()
    await fill(store, written(2, lambda root: None))
    try:
        await make(store, *(v3_document("<f4", fill_value, each, named=named) for each in (NONE, value)[-steps:]))
    except ContentInvalid:
        return
    own, mark = await shown(store)
    decoded = {"NaN": float("nan"), NONE: None}.get(value, value)
    if isinstance(decoded, str):
        (decoded,) = struct.unpack("<d", base64.b64decode(decoded))
    found = mark if mark is NONE else struct.unpack("<d", base64.b64decode(mark))[0]
    assert own == fill_value or (fill_value == "NaN" and own == ("Infinity" if decoded == float("inf") else decoded))
    assert json.dumps(own) == json.dumps(fill_value) or fill_value == "NaN"
    if decoded is None:
        # NaN is missing data anyway; zero is not, nor is a fill value of an array without dimension names.
        assert (found is NONE) == (not named or json.dumps(fill_value) == "0.0")
    else:
        marks_nothing = np.isnan(decoded) or abs(decoded) > 1e38
        assert found == decoded or (marks_nothing and (found is NONE or np.isnan(found)))
    before = await contents(store)
    async with tree_over(store) as tree:
        s = Scene(tree, store, view="zarr3")
        await s.write("a/zarr.json", await s.json("a/zarr.json"))
    assert await contents(store) == before
