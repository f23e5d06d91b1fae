"""Arrays of elements without a fixed size in every view: the content of a chunk's file, writes to one, and bad chunks.

numcodecs reads and writes the store according to the documents; zarrfs' own codecs judge nothing here.
"""

from __future__ import annotations

import json
from typing import Any

import numcodecs
import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.codecs import of_objects
from tests.support.comparing import in_memory
from tests.support.stores import contents, fill
from tests.support.trees import listing, names, read, tree_over, walk, write
from zarrfs.errors import ChunkDecodeError, ContentInvalid, FileTooLarge, NoSuchEntry, NotRepresentable
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

pytestmark = [pytest.mark.logs("write failed, data lost"), pytest.mark.filterwarnings("ignore::UserWarning")]

GROUP = b'{"zarr_format":2}'
ZLIB = {"id": "zlib", "level": 1}
JSON = json.loads(json.dumps(numcodecs.JSON().get_config()))
UTF8 = {"id": "vlen-utf8"}
BYTES = {"id": "vlen-bytes"}
CATEGORIZE = {"id": "categorize", "labels": ["a", "é"], "dtype": "|O", "astype": "|u1"}

# The filter, elements of a chunk of three, the filter they are shown with, other elements that can be stored, and invalid bytes.
KINDS: list[tuple[dict[str, Any], list[Any], dict[str, Any], list[Any], bytes]] = [
    (UTF8, ["", "é", "long text"], UTF8, ["x", "", "中文"], b"\3\0\0\0\1\0\0\0\xff\0\0\0\0\0\0\0\0"),
    (BYTES, [b"", b"\0\xff", b"zz"], BYTES, [b"x", b"", b"\n"], b"\3\0\0\0\1\0\0\0"),
    (CATEGORIZE, ["a", "", "é"], UTF8, ["é", "é", ""], numcodecs.VLenUTF8().encode(of_objects(["a", "b", "é"], (3,)))),
    (JSON, [{"a": [1, None]}, "x", 2.5], JSON, [[], {}, "é"], b'["a","b","|O",[2]]'),
    (numcodecs.MsgPack().get_config(), [{"a": [1, None]}, "x", 2.5], JSON, [[], {}, "é"], b"[" * 100_000),
    ({"id": "vlen-array", "dtype": "<i2"}, [[1, 2], [], [-3]], JSON, [[], [4], [5, 6]], b'[[1],[2],[40000],"|O",[3]]'),
]
every_kind = pytest.mark.parametrize(
    ("filter_", "elements", "shown", "others", "wrong"), KINDS, ids=[kind[0]["id"] for kind in KINDS]
)


def zarray(filters: list[Any], shape: list[int], chunks: list[int], **members: Any) -> bytes:
    document = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|O", "compressor": ZLIB, "fill_value": None}
    return json.dumps({**document, "filters": filters, "order": "C", **members}).encode()


def encoded(config: dict[str, Any], elements: list[Any], *, compressed: bool = True) -> bytes:
    dtype = config.get("dtype", "|O")
    given = [np.array(each, dtype) if config["id"] == "vlen-array" else each for each in elements]
    data = np.asarray(memoryview(numcodecs.get_codec(config).encode(of_objects(given, (len(given),))))).tobytes()
    return bytes(numcodecs.Zlib(1).encode(data)) if compressed else data


def decoded(config: dict[str, Any], data: bytes, *, compressed: bool = True) -> list[Any]:
    if compressed:
        data = numcodecs.Zlib(1).decode(data)
    if config["id"] in ("json2", "msgpack2"):
        # numcodecs converts lists to dimensions.
        import msgpack

        return list((json.loads(data) if config["id"] == "json2" else msgpack.unpackb(data))[:-2])
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in numcodecs.get_codec(config).decode(data)]


async def store_with(values: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    await fill(store, {".zgroup": GROUP, **values})
    return store


@every_kind
@trio_test
async def test_chunks_are_shown_and_written(
    filter_: dict[str, Any], elements: list[Any], shown: dict[str, Any], others: list[Any], wrong: bytes
) -> None:
    store = await store_with({"a/.zarray": zarray([filter_], [9], [3]), "a/0": encoded(filter_, elements)})
    async with tree_over(store) as tree:
        document = json.loads(await read(tree, "chunks/a/.zarray"))
        assert (document["dtype"], document["filters"], document["compressor"]) == ("|O", [shown], None)
        file = await read(tree, "chunks/a/0")
        assert file == encoded(shown, elements, compressed=False)
        assert (await listing(tree, "chunks/a"))["0"][2] == len(file)

        for name in ("0", "1"):
            await write(tree, f"chunks/a/{name}", encoded(shown, others, compressed=False))
            assert decoded(filter_, (await contents(store))[f"a/{name}"]) == others
            assert decoded(shown, await read(tree, f"chunks/a/{name}"), compressed=False) == others
        assert set(await names(tree, "chunks/a")) == {".zarray", "0", "1"}

        before = await contents(store)
        for bad in (wrong, b"", file[:-1], file + b"x", encoded(shown, others[:2], compressed=False)):
            for name in ("0", "2"):
                with pytest.raises(ContentInvalid, match="nothing was stored"):
                    await write(tree, f"chunks/a/{name}", bad)
        assert await contents(store) == before
        assert decoded(shown, await read(tree, "chunks/a/0"), compressed=False) == others
        with pytest.raises(NoSuchEntry):
            await walk(tree, "chunks/a/2")


@trio_test
async def test_what_lies_beyond_the_edge_is_filled() -> None:
    store = await store_with({"a/.zarray": zarray([UTF8], [4], [3], fill_value="-"), "b/.zarray": zarray([JSON], [4], [3])})
    async with tree_over(store) as tree:
        await write(tree, "chunks/a/1", encoded(UTF8, ["x", "y", "z"], compressed=False))
        await write(tree, "chunks/b/1", encoded(JSON, [[1], "y", "z"], compressed=False))
        assert decoded(UTF8, await read(tree, "chunks/a/1"), compressed=False) == ["x", "-", "-"]
        assert decoded(JSON, await read(tree, "chunks/b/1"), compressed=False) == [[1], None, None]
        assert (await listing(tree, "chunks/a"))["1"][2] == len(encoded(UTF8, ["x", "-", "-"], compressed=False))
    values = await contents(store)
    assert decoded(UTF8, values["a/1"]) == ["x", "-", "-"] and decoded(JSON, values["b/1"]) == [[1], None, None]


@trio_test
async def test_chunks_that_are_not_stored_can_be_read_as_fill_values() -> None:
    store = await store_with({"a/.zarray": zarray([UTF8], [4], [3], fill_value="é"), "b/.zarray": zarray([BYTES], [4], [3])})
    async with tree_over(store, fill=True) as tree:
        assert decoded(UTF8, await read(tree, "chunks/a/1"), compressed=False) == ["é"] * 3
        assert decoded(BYTES, await read(tree, "chunks/b/0"), compressed=False) == [b""] * 3
        assert await names(tree, "chunks/a") == {".zarray"}


@pytest.mark.parametrize("config", [UTF8, CATEGORIZE], ids=lambda config: config["id"])
@trio_test
async def test_fortran_order_is_undone(config: dict[str, Any]) -> None:
    elements = ["a", "", "é", "a", "a", "é"]
    chunk = of_objects(elements, (2, 3))
    stored = encoded(config, list(chunk.T.reshape(-1)))
    store = await store_with({"a/.zarray": zarray([config], [2, 3], [2, 3], order="F"), "a/0.0": stored})
    async with tree_over(store) as tree:
        assert decoded(UTF8, await read(tree, "chunks/a/0.0"), compressed=False) == elements
        await write(tree, "chunks/a/0.0", await read(tree, "chunks/a/0.0"))
    assert decoded(config, (await contents(store))["a/0.0"]) == list(chunk.T.reshape(-1))


@trio_test
async def test_a_scalar() -> None:
    store = await store_with({"a/.zarray": zarray([JSON], [], []), "a/0": numcodecs.Zlib(1).encode(b'[[1],"|O",[]]')})
    async with tree_over(store) as tree:
        assert await read(tree, "chunks/a/0") == b'[[1],"|O",[]]'
        await write(tree, "chunks/a/0", b'[ {"b": 2}, "|O", [] ]')
        assert await read(tree, "chunks/a/0") == b'[{"b":2},"|O",[]]'


LYING = {
    "count": b"\xff\xff\xff\xff\1\0\0\0x",
    "length": b"\3\0\0\0\xff\xff\xff\xffx",
    "nested": b"[" * 100_000,
    "junk": None,
}


@pytest.mark.parametrize(
    ("config", "lie"), [(UTF8, "count"), (BYTES, "length"), (JSON, "nested"), (UTF8, "junk"), (CATEGORIZE, "count")]
)
@trio_test
async def test_one_bad_chunk_hides_no_other(config: dict[str, Any], lie: str) -> None:
    good = [b"a"] * 3 if config is BYTES else ["a"] * 3
    data = LYING[lie]
    bad = b"no zlib" if data is None else bytes(numcodecs.Zlib(1).encode(data))
    store = await store_with({"a/.zarray": zarray([config], [6], [3]), "a/0": bad, "a/1": encoded(config, good)})
    async with tree_over(store) as tree:
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        found = {name: size async for name, _, size, *_ in folder.entries()}
        assert set(found) == {".zarray", "0", "1"} and found["0"] == 0
        assert decoded(UTF8 if config is CATEGORIZE else config, await read(tree, "chunks/a/1"), compressed=False) == good
        with pytest.raises(ChunkDecodeError, match=r"chunk \(0,\) of /a"):
            await read(tree, "chunks/a/0")
        # It can be replaced, as cp does.
        file = await read(tree, "chunks/a/1")
        bad_file = await folder.lookup("0")
        assert isinstance(bad_file, File)
        handle = await bad_file.open(OpenFlags(read=False, write=True, truncate=True))
        await handle.write(0, file)
        await handle.flush()
        await handle.release()
        assert await read(tree, "chunks/a/0") == file


@trio_test
async def test_more_than_can_be_decoded_is_refused_before_it_is_staged() -> None:
    store = await store_with({"a/.zarray": zarray([UTF8], [6], [3]), "a/0": encoded(UTF8, ["a"] * 3)})
    async with tree_over(store) as tree:
        file = await walk(tree, "chunks/a/0")
        assert isinstance(file, File)
        handle = await file.open(OpenFlags(read=True, write=True))
        with pytest.raises(FileTooLarge):
            await handle.write(MAX_VARIABLE_NBYTES, b"x")
        await handle.release()


@trio_test
async def test_a_change_in_one_view_is_seen_in_the_others() -> None:
    store = await store_with({"a/.zarray": zarray([UTF8], [6], [3]), "a/0": encoded(UTF8, ["a", "b", "c"])})
    async with tree_over(store) as tree:
        assert len(await read(tree, "chunks/a/0")) == 19
        await write(tree, "zarr3/a/c/0", encoded(UTF8, ["x", "yy", "zzz"]))
        assert decoded(UTF8, await read(tree, "chunks/a/0"), compressed=False) == ["x", "yy", "zzz"]
        assert (await listing(tree, "chunks/a"))["0"][2] == 22
        await write(tree, "raw/a/0", encoded(UTF8, ["1", "2", "3"]))
        assert decoded(UTF8, await read(tree, "chunks/a/0"), compressed=False) == ["1", "2", "3"]


# --- the other views --------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_zarr3_passes_text_and_byte_strings_through_and_decodes_categories() -> None:
    zarr = pytest.importorskip("zarr")
    arrays = {"t": (UTF8, ["", "é", "x"]), "b": (BYTES, [b"", b"\xff", b"x"]), "c": (CATEGORIZE, ["a", "é", ""])}
    values = {}
    for name, (config, elements) in arrays.items():
        values |= {f"{name}/.zarray": zarray([config], [4], [3], fill_value=None), f"{name}/0": encoded(config, elements)}
    store = await store_with(values)
    async with tree_over(store) as tree:
        for name, (config, elements) in arrays.items():
            files = {key: await read(tree, f"zarr3/{name}/{key}") for key in ("zarr.json", "c/0")}
            if config is not CATEGORIZE:
                assert files["c/0"] == values[f"{name}/0"]
            shown = zarr.open_array(in_memory(files), mode="r")
            assert shown[:3].tolist() == elements
            assert shown[3:].tolist() == [b"" if config is BYTES else ""]
        for name in arrays:
            assert "variable-length" in (await read(tree, f"npy/{name}.unsupported.txt")).decode()
        with pytest.raises(ContentInvalid):
            await write(tree, "zarr3/c/c/0", encoded(UTF8, ["none of them", "", ""], compressed=False))
        await write(tree, "zarr3/c/c/0", encoded(UTF8, ["é", "", "a"], compressed=False))
    assert decoded(CATEGORIZE, (await contents(store))["c/0"]) == ["é", "", "a"]


@pytest.mark.parametrize("sharded", [False, True])
@trio_test
async def test_arrays_of_v3(sharded: bool) -> None:
    zarr = pytest.importorskip("zarr")
    from zarr.storage import MemoryStore as Theirs

    theirs: dict[str, Any] = {}
    array = zarr.create_array(
        Theirs(theirs), shape=(4, 4), chunks=(2, 2), shards=(4, 4) if sharded else None, dtype="string", fill_value="?"
    )
    texts = np.array([["a", "é", "", "d"], ["e", "f", "g", "h"], ["?"] * 4, ["i", "j", "?", "?"]], object)
    array[...] = texts
    store = MemoryStore()
    await fill(store, {key: value.to_bytes() for key, value in theirs.items()})
    async with tree_over(store) as tree:
        stored = {"0.0", "0.1", "1.0"}
        # The fill value is null in Zarr v2, so that the missing chunk is shown as a file.
        assert await names(tree, "chunks") == {".zarray", *stored, "1.1"}
        assert decoded(UTF8, await read(tree, "chunks/1.1"), compressed=False) == ["?"] * 4
        assert decoded(UTF8, await read(tree, "chunks/0.0"), compressed=False) == ["a", "é", "e", "f"]
        await write(tree, "chunks/0.1", encoded(UTF8, ["new", "", "g", "h"], compressed=False))
        document = json.loads(await read(tree, "zarr3/zarr.json"))
        assert document["data_type"] == "string" and "sharding" not in json.dumps(document)
        assert decoded(UTF8, await read(tree, "chunks/0.1"), compressed=False) == ["new", "", "g", "h"]
        files = {key: await read(tree, f"zarr3/{key}") for key in ("zarr.json", "c/0/0", "c/0/1", "c/1/0")}
    texts[0, 2:] = ["new", ""]
    assert zarr.open_array(in_memory(files), mode="r")[...].tolist() == texts.tolist()


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@pytest.mark.parametrize(
    ("config", "elements"), [(UTF8, ["é", ""]), (BYTES, [b"\0", b""]), (JSON, [{"a": 1}, None])], ids=["text", "bytes", "json"]
)
@trio_test
async def test_new_arrays_through_chunks(dialect: str, config: dict[str, Any], elements: list[Any]) -> None:
    store = MemoryStore()
    root = {".zgroup": GROUP} if dialect == "v2" else {"zarr.json": b'{"zarr_format":3,"node_type":"group"}'}
    await fill(store, root)
    document = zarray([config], [2], [2], compressor=None)
    async with tree_over(store) as tree:
        folder = await walk(tree, "chunks")
        assert isinstance(folder, Directory)
        await folder.mkdir("new")
        if config is JSON and dialect == "v3":
            with pytest.raises(NotRepresentable, match="no data type for objects"):
                await write(tree, "chunks/new/.zarray", document)
            return
        for wrong in (
            zarray([config], [2], [2]),
            zarray([config, ZLIB], [2], [2], compressor=None),
            zarray([{"id": "pickle"}], [2], [2], compressor=None),
            zarray([CATEGORIZE], [2], [2], compressor=None),
        ):
            with pytest.raises(ContentInvalid):
                await write(tree, "chunks/new/.zarray", wrong)
        await write(tree, "chunks/new/.zarray", document)
        await write(tree, "chunks/new/0", encoded(config, elements, compressed=False))
        assert decoded(config, await read(tree, "chunks/new/0"), compressed=False) == elements
        assert json.loads(await read(tree, "chunks/new/.zarray"))["filters"] == [config]
    values = await contents(store)
    if dialect == "v2":
        stored = json.loads(values["new/.zarray"])
        assert stored["filters"] == [config] and stored["dtype"] == "|O"
        data = values["new/0"]
        if stored["compressor"] is not None:
            data = bytes(numcodecs.get_codec(stored["compressor"]).decode(data))
        assert decoded(config, data, compressed=False) == elements
    else:
        zarr = pytest.importorskip("zarr")
        assert zarr.open_array(in_memory(values), path="new", mode="r")[...].tolist() == elements


@trio_test
async def test_new_arrays_through_zarr3() -> None:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2],
        "data_type": "string",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": "x",
        "codecs": [{"name": "vlen-utf8"}, {"name": "gzip", "configuration": {"level": 1}}],
    }
    store = await store_with({})
    async with tree_over(store) as tree:
        folder = await walk(tree, "zarr3")
        assert isinstance(folder, Directory)
        await folder.mkdir("new")
        await write(tree, "zarr3/new/zarr.json", json.dumps(document).encode())
        await write(tree, "chunks/new/0", encoded(UTF8, ["a", "é"], compressed=False))
    values = await contents(store)
    stored = json.loads(values["new/.zarray"])
    assert (stored["dtype"], stored["filters"], stored["fill_value"], stored["compressor"]["id"]) == ("|O", [UTF8], "x", "gzip")
    assert decoded(UTF8, numcodecs.GZip().decode(values["new/0"]), compressed=False) == ["a", "é"]


@trio_test
async def test_attributes_and_shape_are_edited_and_the_filter_stays() -> None:
    store = await store_with({"a/.zarray": zarray([CATEGORIZE], [6], [3], extra=1), "a/0": encoded(CATEGORIZE, ["a"] * 3)})
    async with tree_over(store) as tree:
        await write(tree, "chunks/a/.zattrs", b'{"b": 1}')
        document = json.loads(await read(tree, "chunks/a/.zarray"))
        await write(tree, "chunks/a/.zarray", json.dumps({**document, "shape": [9]}).encode())
        with pytest.raises(ContentInvalid):
            await write(tree, "chunks/a/.zarray", json.dumps({**document, "filters": [JSON]}).encode())
    values = await contents(store)
    assert json.loads(values["a/.zarray"]) == {**json.loads(zarray([CATEGORIZE], [6], [3], extra=1)), "shape": [9]}
    assert json.loads(values["a/.zattrs"]) == {"b": 1}


@trio_test
async def test_a_pickle_is_refused_and_hides_nobody() -> None:
    store = await store_with(
        {"a/.zarray": zarray([{"id": "pickle", "protocol": 5}], [3], [3]), "a/0": b"cos\nsystem\n", "b/.zgroup": GROUP}
    )
    async with tree_over(store) as tree:
        for view in ("chunks", "zarr3", "npy"):
            assert "unpickling runs code" in (await read(tree, f"{view}/a.unsupported.txt")).decode()
            assert "b" in await names(tree, view)
