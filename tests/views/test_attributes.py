"""Attributes: text outside of ASCII is shown as itself; numbers that JSON lacks are refused, and kept where they are stored already."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from trio.testing import trio_test

from tests.support.length import LEAST
from tests.support.stores import contents, fill
from tests.support.trees import read, tree_of, tree_over, write
from zarrfs import registry
from zarrfs.dialects.base import Dialect
from zarrfs.errors import ContentInvalid
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.stores.memory import MemoryStore

PATH = NodePath("/a")
EVERY_LAYOUT = pytest.mark.parametrize(
    "dialect", [pytest.param(each, id=each.name) for each in registry.plugins("zarrfs.dialects")]
)
# Placeholder strings, replaced in the document by tokens that no program here would write.
HELD = {
    "plain": "PLAIN",
    "nested": {"list": [1, "PLAIN", {"deep": "BIG"}], "text": 'NaN and \\" Infinity'},
    "big": "BIG",
    "other": 1,
}
TOKENS = {b'"PLAIN"': b"NaN", b'"BIG"': b"1e999"}
READ = '"plain": NaN', '"deep": 1e999', '"big": 1e999'


def documents(dialect: Dialect, attributes: dict[str, Any], *, data_type: str = "int8") -> dict[str, bytes]:
    layout = dialect.create(Prefix(""))
    element = from_name(data_type)
    metadata = ArrayMetadata(
        shape=(2,),
        data_type=element,
        chunk_grid=RegularGrid((2,)),
        chunk_key_encoding=dialect.chunk_key_encoding,
        fill_value=bytes(element.dtype.itemsize),
        codecs=(CodecSpec("bytes", {"endian": "little"} if element.dtype.itemsize > 1 else {}), *dialect.new_codecs),
    )
    prefix = layout.chunk_prefix(PATH)
    node = ArrayNode(path=PATH, dialect=dialect.name, metadata=metadata, chunk_prefix=prefix, attributes=attributes)
    found = {str(key): value for key, value in (layout.entry_documents() | layout.format(node)).items()}
    for token, value in TOKENS.items():
        found = {key: text.replace(token, value) for key, text in found.items()}
    return found


async def store_of(dialect: Dialect, attributes: dict[str, Any], *, data_type: str = "int8") -> MemoryStore:
    store = MemoryStore()
    await fill(store, documents(dialect, attributes, data_type=data_type))
    return store


@pytest.mark.logs("is not JSON")
@EVERY_LAYOUT
@trio_test
async def test_what_is_no_json_is_refused_with_the_reason(dialect: Dialect) -> None:
    store = await store_of(dialect, {"kept": 1})
    before = await contents(store)
    async with tree_over(store) as tree:
        for bad in (b"NaN", b"-Infinity", b'[1, {"x": Infinity}]'):
            with pytest.raises(ContentInvalid, match=r"chunks/a/.zattrs: attribute \"_FillValue.*\": (NaN|-?Infinity) is not JSON"):
                await write(tree, "chunks/a/.zattrs", b'{"kept": 1, "_FillValue": ' + bad + b"}")
            shown = json.loads(await read(tree, "zarr3/a/zarr.json")) | {"attributes": {"_FillValue": "BAD"}}
            with pytest.raises(ContentInvalid, match=r"zarr3/a/zarr\.json: attribute .* is not JSON"):
                await write(tree, "zarr3/a/zarr.json", json.dumps(shown).encode().replace(b'"BAD"', bad))
        assert await contents(store) == before
        await write(tree, "chunks/a/.zattrs", b'{"kept": 1, "_FillValue": "NaN", "big": 1e999}')
    assert any(b"1e999" in value and b'"NaN"' in value and b"Infinity" not in value for value in (await contents(store)).values())


@EVERY_LAYOUT
@trio_test
async def test_nan_that_marks_missing_data_is_not_stored(dialect: Dialect) -> None:
    """netCDF files of xarray have it. netCDF-C ignores the error of a refused `.zattrs`: all attributes were lost."""
    store = await store_of(dialect, {"units": "m"}, data_type="float32")
    async with tree_over(store) as tree:
        await write(tree, "chunks/a/.zattrs", b'{"_FillValue": NaN, "missing_value": NaN, "units": "km", "large": [1, 2]}')
        text = await read(tree, "chunks/a/.zattrs")
        assert json.loads(text) == {"units": "km", "large": [1, 2]} and b"NaN" not in text
        await write(tree, "chunks/a/.zattrs", b'{"missing_value": NaN, "units": "m", "history": "' + b"." * 200_000 + b'"}')
        assert [*json.loads(await read(tree, "chunks/a/.zattrs"))] == ["units", "history"]
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
        await write(tree, "zarr3/a/zarr.json", json.dumps(document | {"attributes": {"missing_value": math.nan, "n": 1}}).encode())
        assert json.loads(await read(tree, "chunks/a/.zattrs")) == {"n": 1}
    assert not any(b"NaN" in value for value in (await contents(store)).values())


@pytest.mark.logs("is not JSON")
@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_a_missing_value_that_is_stored_stays_and_others_are_refused(dialect: str) -> None:
    (plugin,) = [each for each in registry.plugins("zarrfs.dialects") if each.name == dialect]
    store = await store_of(plugin, {"missing_value": "PLAIN", "units": "m"}, data_type="float32")
    async with tree_over(store) as tree:
        for path in ("chunks/a/.zattrs", "zarr3/a/zarr.json"):
            shown = await read(tree, path)
            for bad in (b"Infinity", b"[NaN]", b'NaN, "valid_min": NaN'):
                with pytest.raises(ContentInvalid, match="is not JSON"):
                    await write(tree, path, shown.replace(b'"missing_value": NaN', b'"missing_value": ' + bad))
            await write(
                tree, path, shown.replace(b'"m"', b'"km"') if path == "chunks/a/.zattrs" else shown.replace(b'"km"', b'"m"')
            )
            assert b'"missing_value": NaN' in await read(tree, path)


@pytest.mark.logs("takes precedence")
@trio_test
async def test_nan_as_fill_value_beside_another_one_is_not_dropped() -> None:
    """It states what is missing data, as xarray's form of it does."""
    store = MemoryStore()
    async with tree_over(store, new_dialect="v3") as tree:
        (plugin,) = [each for each in registry.plugins("zarrfs.dialects") if each.name == "v3"]
        await fill(store, documents(plugin, {"_FillValue": -9999.0}, data_type="float32"))
        with pytest.raises(ContentInvalid, match="fill_value takes precedence"):
            await write(tree, "chunks/a/.zattrs", b'{"_FillValue": NaN}')
        document = json.loads(await read(tree, "zarr3/a/zarr.json"))
        await write(tree, "zarr3/a/zarr.json", json.dumps(document | {"attributes": {"_FillValue": math.nan}}).encode())
        assert json.loads((await contents(store))["a/zarr.json"])["attributes"] == {"_FillValue": "AAAAAAAA+H8="}
        assert json.loads(await read(tree, "chunks/a/.zarray"))["fill_value"] == "NaN"


@EVERY_LAYOUT
@trio_test
async def test_what_is_stored_is_read_and_stays_when_its_neighbour_changes(dialect: Dialect) -> None:
    store = await store_of(dialect, HELD)
    async with tree_over(store) as tree:
        for number, path in enumerate(("chunks/a/.zattrs", "zarr3/a/zarr.json")):
            shown = await read(tree, path)
            assert all(each.encode() in shown for each in READ)
            assert b"Infinity," not in shown
            await write(tree, path, shown.replace(b'"other": %d' % (number + 1), b'"other": %d' % (number + 2)))
            (text,) = [value.decode() for value in (await contents(store)).values() if b'"other"' in value]
            assert f'"other": {number + 2}' in text and all(each in text for each in READ)
            assert "Infinity" not in text.replace('and \\\\\\" Infinity', "")


@pytest.mark.logs("is not JSON")
@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_what_is_stored_is_no_leave_for_more(dialect: str) -> None:
    (plugin,) = [each for each in registry.plugins("zarrfs.dialects") if each.name == dialect]
    store = await store_of(plugin, HELD)
    async with tree_over(store) as tree:
        shown = await read(tree, "chunks/a/.zattrs")
        for old, new in (
            (b'"other": 1', b'"other": NaN'),
            (b'"plain": NaN', b'"plain": -Infinity'),
            (b'"big": 1e999', b'"big": Infinity'),
        ):
            assert old in shown
            with pytest.raises(ContentInvalid, match="is not JSON"):
                await write(tree, "chunks/a/.zattrs", shown.replace(old, new))
        await write(tree, "chunks/a/.zattrs", shown.replace(b'"plain": NaN', b'"plain": null'))


@pytest.mark.logs("is not JSON")
@trio_test
async def test_large_attributes_are_looked_at_too() -> None:
    """Large attributes are never parsed as a whole."""
    (plugin,) = [each for each in registry.plugins("zarrfs.dialects") if each.name == "v3"]
    length = 30_000 if LEAST else 200_000
    store = await store_of(plugin, {"large": [*range(length), "PLAIN", "BIG"], "other": 1})
    async with tree_over(store) as tree:
        shown = await read(tree, "chunks/a/.zattrs")
        await write(tree, "chunks/a/.zattrs", shown.replace(b'"other": 1', b'"other": 2'))
        for old in (b" 20000,", b" 1e999"):
            with pytest.raises(ContentInvalid, match='attribute "large": NaN is not JSON'):
                await write(tree, "chunks/a/.zattrs", shown.replace(old, b" NaN" + old[6:]))
    assert b"1e999" in (await contents(store))["a/zarr.json"]


@pytest.mark.logs("is not JSON")
@trio_test
async def test_a_new_node_brings_none() -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v3") as tree:
        root = b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": NaN}}'
        with pytest.raises(ContentInvalid, match="is not JSON"):
            await write(tree, "zarr3/zarr.json", root)
        await write(tree, "zarr3/zarr.json", root.replace(b"NaN", b"null"))


@EVERY_LAYOUT
@trio_test
async def test_text_outside_of_ascii_is_shown_as_itself(dialect: Dialect) -> None:
    """netCDF-C 4.9 and 4.10 read the escape of a character as its digits."""
    attributes = {"units": "°C", "länge": ["中文", "😀"], "path": 'C:\\u00e9 "\x1b'}
    store = await store_of(dialect, attributes)
    async with tree_over(store) as tree:
        shown = await read(tree, "chunks/a/.zattrs")
        assert all(each in shown.decode() for each in ('"°C"', '"länge"', '"中文"', '"😀"', r'"C:\\u00e9 \"\u001b"'))
        assert {name: json.loads(shown)[name] for name in attributes} == attributes
        await write(tree, "chunks/a/.zattrs", shown.replace("°C".encode(), "°F".encode()))
        assert json.loads(await read(tree, "zarr3/a/zarr.json"))["attributes"] == attributes | {"units": "°F"}


@trio_test
async def test_large_text_outside_of_ascii_is_shown_as_itself() -> None:
    (plugin,) = [each for each in registry.plugins("zarrfs.dialects") if each.name == "v3"]
    attributes = {"history": "ä" * 100_000, "units": "°C"}
    store = await store_of(plugin, attributes)
    async with tree_over(store) as tree:
        shown = await read(tree, "chunks/a/.zattrs")
        assert b"\\u" not in shown and json.loads(shown) == attributes
        before = await contents(store)
        await write(tree, "chunks/a/.zattrs", shown)
        assert await contents(store) == before


@pytest.mark.parametrize("dialect", [2, 3])
@trio_test
async def test_names_in_a_consolidated_copy_are_shown_as_themselves(dialect: int, tmp_path: Path) -> None:
    """netCDF-C 4.10 finds no chunks of an array whose name is escaped, and reads fill values."""
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "store"), mode="w", zarr_format=dialect)
    group.create_array("größe", shape=(2,), dtype="i1", attributes={"units": "°C"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(tmp_path / "store"), zarr_format=dialect)
    async with tree_of(tmp_path / "store") as tree:
        copy = (await read(tree, "chunks/.zmetadata")).decode()
        assert '"größe/.zarray"' in copy and '"°C"' in copy
        assert "größe/.zattrs" in json.loads(copy)["metadata"]
        assert "größe" in json.loads(await read(tree, "zarr3/zarr.json"))["consolidated_metadata"]["metadata"]
