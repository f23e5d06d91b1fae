"""``zarr3/`` of Zarr v2 arrays with any types, orders, filters and compressors.

zarr-python reads it as it reads the store, its writes according to these documents are right in the store, and bytes are the stored
ones where possible.
"""

from __future__ import annotations

import json
import lzma
import warnings
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.comparing import in_memory
from tests.support.length import tries
from tests.support.stores import contents, fill
from tests.support.trees import every_file, names, read, tree_over, walk, write
from tests.support.v3_array import ARRAY
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory

zarr = pytest.importorskip("zarr")
numcodecs = pytest.importorskip("numcodecs")

Elements = np.ndarray[Any, np.dtype[Any]]
Files = dict[str, bytes]

NUMBERS = ("|b1", "|i1", "|u1", "<i2", ">i2", "<i4", ">u4", "<i8", ">i8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8")
OTHERS = ("<c8", ">c16", "<M8[s]", ">M8[ms]", "<m8[ns]", "|S3", "<U2", ">U2", "|V3")


def written(array: Elements, chunks: tuple[int, ...], **how: Any) -> Files:
    """Return the keys of a Zarr v2 array, as zarr-python writes it; chunks of fill values are left out."""
    store = in_memory({}).with_read_only(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = zarr.create_array(store, name="a", shape=array.shape, chunks=chunks, dtype=array.dtype, zarr_format=2, **how)
        made[...] = array
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


def opened(files: Files, path: str = "a", *, writable: bool = False) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = in_memory(files)
        return zarr.open_array(store.with_read_only(False) if writable else store, path=path, mode="r+" if writable else "r")


async def shown(files: Files) -> Files:
    """Return the files in ``zarr3/`` of a store."""
    store = MemoryStore()
    await fill(store, files)
    async with tree_over(store) as tree:
        return {path.removeprefix("zarr3/"): await read(tree, path) async for path in every_file(tree, "zarr3")}


async def rewritten(files: Files, elements: Elements) -> Files:
    """Return the store after zarr-python has encoded ``elements`` by the documents of ``zarr3/``, and its chunks were written there."""
    store = MemoryStore()
    await fill(store, files)
    async with tree_over(store) as tree:
        view = {path.removeprefix("zarr3/"): await read(tree, path) async for path in every_file(tree, "zarr3")}
        array = opened(view, writable=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Filters of zarr-python 3.1 misinterpret elements of another byte order, or in Fortran order.
            array[...] = np.ascontiguousarray(elements.astype(elements.dtype.newbyteorder("<")))
        for key, value in array.store_path.store._store_dict.items():
            if not key.endswith("zarr.json"):
                await write(tree, f"zarr3/{key}", value.to_bytes())
        return await contents(store)


def codecs_of(view: Files) -> list[str]:
    return [each["name"] for each in json.loads(view["a/zarr.json"])["codecs"]]


@st.composite
def filters(draw: st.DrawFn, dtype: np.dtype[Any]) -> list[Any]:
    """Return filters that accept ``dtype``, most of them configured for the byte order of their input."""
    found: list[Any] = []
    here = dtype
    for _ in range(draw(st.integers(0, 2))):
        kinds = ["shuffle", "crc32", "astype"]
        if here.kind in "iuf":
            kinds += ["delta", "fixedscaleoffset"]
        if here.kind == "f" and here.itemsize > 2:
            kinds += ["quantize", "bitround"]
        if here == np.dtype(bool):
            kinds = ["packbits", "shuffle"]
        takes = here if draw(st.integers(0, 9)) else here.newbyteorder()
        match draw(st.sampled_from(kinds)):
            case "delta":
                wide = draw(st.sampled_from([takes, np.dtype(">i8"), np.dtype("<i8")])) if takes.kind in "iu" else takes
                found.append(numcodecs.Delta(dtype=takes.str, astype=wide.str))
                here = wide
            case "fixedscaleoffset":
                wide = draw(st.sampled_from(["<f8", ">f8"])) if takes.kind == "f" else takes.str
                found.append(numcodecs.FixedScaleOffset(offset=1, scale=1, dtype=takes.str, astype=wide))
                here = np.dtype(wide)
            case "astype":
                if here.kind not in "iuf":
                    continue
                wide = draw(st.sampled_from(["<f8", ">f8"]))
                found.append(numcodecs.AsType(encode_dtype=wide, decode_dtype=takes.str))
                here = np.dtype(wide)
            case "quantize":
                found.append(numcodecs.Quantize(digits=1, dtype=takes.str))
                here = takes
            case "bitround":
                if takes.str[0] == ">" or here.str[0] == ">":
                    continue
                # It returns integers, which subsequent filters do not expect.
                return [*found, numcodecs.BitRound(keepbits=9)]
            case "packbits":
                return [*found, numcodecs.PackBits()]
            case "shuffle":
                found.append(numcodecs.Shuffle(elementsize=draw(st.sampled_from([1, here.itemsize]))))
                return found
            case "crc32":
                found.append(numcodecs.CRC32())
                return found
    return found


COMPRESSORS = st.sampled_from(
    [
        None,
        numcodecs.Zlib(1),
        numcodecs.GZip(1),
        numcodecs.BZ2(1),
        numcodecs.LZ4(),
        numcodecs.LZMA(preset=1),
        numcodecs.Zstd(1),
        numcodecs.Blosc(cname="zstd", clevel=1, shuffle=-1),
        numcodecs.Blosc(cname="lz4", clevel=5, shuffle=2),
    ]
)


@st.composite
def stores(draw: st.DrawFn) -> tuple[Elements, tuple[int, ...], dict[str, Any]]:
    dtype = np.dtype(draw(st.sampled_from(NUMBERS + OTHERS)))
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    chunks = tuple(draw(st.integers(1, extent)) for extent in shape)
    numbers = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 50, shape)
    elements = numbers.astype(str).astype(dtype) if dtype.kind in "SUV" else numbers.astype(dtype)
    how = {
        "order": draw(st.sampled_from("CF")),
        "filters": draw(filters(dtype)) if dtype.str in NUMBERS else [],
        "compressors": draw(COMPRESSORS),
    }
    return elements, chunks, how


def bits(array: Any) -> bytes:
    elements = np.asarray(array[...])
    return elements.astype(elements.dtype.newbyteorder("<")).tobytes()


@tries(250)
@given(stores())
def test_any_v2_array_is_read_as_it_is_stored(example: tuple[Elements, tuple[int, ...], dict[str, Any]]) -> None:
    elements, chunks, how = example
    files = written(elements, chunks, **how)
    view = trio.run(shown, files)
    assert bits(opened(view)) == bits(opened(files)), (view["a/zarr.json"].decode(), files["a/.zarray"].decode())


@tries(100)
@given(stores(), st.integers(0, 99))
def test_what_zarr_python_writes_by_the_documents_is_right_in_the_store(
    example: tuple[Elements, tuple[int, ...], dict[str, Any]], seed: int
) -> None:
    elements, chunks, how = example
    numbers = np.random.default_rng(seed).integers(1, 50, elements.shape)
    other = numbers.astype(str).astype(elements.dtype) if elements.dtype.kind in "SUV" else numbers.astype(elements.dtype)
    files = written(elements, chunks, **how)
    after = trio.run(rewritten, files, other)
    # Lossy filters lose the same as in zarr-python. (It writes another order for some filters in order "F".)
    assert bits(opened(after)) in (bits(other), bits(opened(written(other, chunks, **how))))


# --- chains that pass through, and others ----------------------------------------------------------------------------------------

DELTA = {"id": "delta", "dtype": "<i4"}
PASSED = {
    "compressed": ("<i4", {"compressors": numcodecs.Zlib(1)}, ["bytes", "numcodecs.zlib"]),
    "big-endian": (">i4", {"compressors": numcodecs.GZip(1)}, ["bytes", "gzip"]),
    "fortran": ("<i4", {"order": "F", "compressors": numcodecs.Zstd(1)}, ["transpose", "bytes", "zstd"]),
    "shuffle": ("<f8", {"filters": [numcodecs.Shuffle(8)]}, ["bytes", "numcodecs.shuffle"]),
    "delta": ("<i4", {"filters": [numcodecs.Delta("<i4", "<i2")]}, ["numcodecs.delta", "bytes"]),
    "delta of big-endian": (">i4", {"filters": [numcodecs.Delta(">i4", "<i4")]}, ["numcodecs.delta", "bytes"]),
    "offset": ("<f8", {"filters": [numcodecs.FixedScaleOffset(0, 10, "<f8", "|u1")]}, ["numcodecs.fixedscaleoffset", "bytes"]),
    "astype": ("<i4", {"filters": [numcodecs.AsType("<i8", "<i4")]}, ["numcodecs.astype", "bytes"]),
    "quantize": ("<f4", {"filters": [numcodecs.Quantize(2, "<f4")]}, ["numcodecs.quantize", "bytes"]),
    "bitround": ("<f4", {"filters": [numcodecs.BitRound(9)]}, ["numcodecs.bitround", "bytes"]),
    "packbits": (
        "|b1",
        {"filters": [numcodecs.PackBits()], "compressors": numcodecs.BZ2(1)},
        ["numcodecs.packbits", "bytes", "numcodecs.bz2"],
    ),
    "several": (
        "<f8",
        {"filters": [numcodecs.FixedScaleOffset(0, 10, "<f8", "<i4"), numcodecs.Delta("<i4"), numcodecs.Shuffle(4)]},
        ["numcodecs.fixedscaleoffset", "numcodecs.delta", "bytes", "numcodecs.shuffle"],
    ),
}
DECODED = {
    "another byte order than the elements have": (">i4", {"filters": [numcodecs.Delta("<i4")]}),
    "big-endian differences": ("<i4", {"filters": [numcodecs.Delta("<i4", ">i4")]}),
    "behind a transposition": ("<i4", {"order": "F", "filters": [numcodecs.Delta("<i4")]}),
    "another type when quantized": ("<f8", {"filters": [numcodecs.Quantize(2, "<f8", "<f4")]}),
    "a filter behind bytes": ("<i4", {"filters": [numcodecs.Shuffle(4), numcodecs.Delta("<i4")]}),
    "wider than one byte": ("|i1", {"filters": [numcodecs.Delta("|i1", "<i2")]}),
    "times taken for integers": ("<M8[s]", {"filters": [numcodecs.Delta("<i8")]}),
}


@pytest.mark.parametrize(("dtype", "how", "codecs"), PASSED.values(), ids=PASSED)
@trio_test
async def test_stored_bytes_pass_where_v3_has_words(dtype: str, how: dict[str, Any], codecs: list[str]) -> None:
    elements = np.arange(1, 21).reshape(4, 5).astype(dtype)
    files = written(elements, (2, 3), **{"compressors": None} | how)
    view = await shown(files)
    assert codecs_of(view) == codecs
    for key, value in files.items():
        if not key.endswith((".zarray", ".zattrs", ".zgroup")):
            assert view["a/c/" + key[2:].replace(".", "/")] == value
    assert bits(opened(view)) == bits(opened(files))


@pytest.mark.parametrize(("dtype", "how"), DECODED.values(), ids=DECODED)
@trio_test
async def test_chunks_are_decoded_where_it_is_not_certain(dtype: str, how: dict[str, Any]) -> None:
    elements = np.arange(1, 21).reshape(4, 5).astype(dtype)
    files = written(elements, (2, 3), **{"compressors": numcodecs.Zlib(1)} | how)
    view = await shown(files)
    assert codecs_of(view) == ["bytes"]
    assert all(len(value) == 6 * elements.itemsize for key, value in view.items() if not key.endswith("zarr.json"))
    assert bits(opened(view)) == bits(opened(files))
    other = elements[::-1].copy()
    assert bits(opened(await rewritten(files, other))) == bits(opened(written(other, (2, 3), **{"compressors": None} | how)))


@trio_test
async def test_fields_of_different_byte_orders_are_decoded() -> None:
    dtype = np.dtype([("x", "<i4"), ("y", ">f8")])
    elements = np.array([(n, n / 2) for n in range(1, 5)], dtype)
    document = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": [["x", "<i4"], ["y", ">f8"]],
        "compressor": None,
        "fill_value": None,
        "order": "C",
        "filters": None,
    }
    files = {"a/.zarray": json.dumps(document).encode(), "a/0": elements[:2].tobytes(), "a/1": elements[2:].tobytes()}
    view = await shown(files)
    assert codecs_of(view) == ["bytes"]
    little = np.dtype([("x", "<i4"), ("y", "<f8")])
    assert np.frombuffer(view["a/c/0"] + view["a/c/1"], little).tolist() == elements.tolist()


@trio_test
async def test_the_same_bytes_with_tensorstore() -> None:
    tensorstore = pytest.importorskip("tensorstore")
    for dtype, order, compressors in (
        (">i4", "F", numcodecs.GZip(1)),
        ("<f8", "C", numcodecs.Zstd(1)),
        ("<u2", "F", numcodecs.Blosc()),
    ):
        elements = np.arange(1, 21).reshape(4, 5).astype(dtype)
        view = await shown(written(elements, (2, 3), order=order, compressors=compressors))
        store = await trio.to_thread.run_sync(lambda view=view: _read_with(tensorstore, view))
        assert (store == elements).all()


def _read_with(tensorstore: Any, view: Files) -> Elements:
    context = tensorstore.Context()
    kvstore = tensorstore.KvStore.open({"driver": "memory"}, context=context).result()
    for key, value in view.items():
        kvstore[key] = value
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory", "path": "a/"}}
    return np.asarray(tensorstore.open(spec, context=context).result().read().result())


@trio_test
async def test_an_array_that_v3_has_no_type_for_is_told_with_the_reason() -> None:
    document = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": [["x", "<i4", [2]]],
        "compressor": None,
        "fill_value": None,
        "order": "C",
        "filters": None,
    }
    store = MemoryStore()
    await fill(store, {"a/.zarray": json.dumps(document).encode(), "b/.zgroup": b'{"zarr_format": 2}'})
    async with tree_over(store) as tree:
        assert await names(tree, "zarr3") == {"zarr.json", "a.unsupported.txt", "b"}
        assert b"fields that are arrays" in await read(tree, "zarr3/a.unsupported.txt")


@trio_test
async def test_lzma_streams_with_filters_of_v1_are_shown_decoded() -> None:
    """zarr 1.x wrote them; numcodecs, and thereby zarr-python, decodes filters of raw streams only."""
    elements = np.arange(8, dtype="<i4")
    filters = [{"id": lzma.FILTER_DELTA, "dist": 4}, {"id": lzma.FILTER_LZMA1, "preset": 1}]
    meta = {"chunks": [8], "shape": [8], "dtype": "<i4", "fill_value": 0, "order": "C", "zarr_format": 1, "compression": "lzma"}
    for form, others, is_stored in (
        (lzma.FORMAT_RAW, filters, True),
        (lzma.FORMAT_XZ, [*filters[:1], {"id": lzma.FILTER_LZMA2}], False),
    ):
        options = {"check": -1, "filters": others, "format": form, "preset": None}
        encoded = lzma.compress(elements.tobytes(), form, -1, None, others)
        view = await shown({"a/meta": json.dumps({**meta, "compression_opts": options}).encode(), "a/attrs": b"{}", "a/0": encoded})
        assert view["a/c/0"] == (encoded if is_stored else elements.tobytes())
        assert np.array_equal(opened(view)[:], elements)


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        ("zstd", {"name": "zstd", "configuration": {"level": 0, "checksum": False}}),
        ({"name": "zstd"}, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}),
        ({"name": "zstd", "configuration": {"checksum": True}}, {"name": "zstd", "configuration": {"level": 0, "checksum": True}}),
        ("numcodecs.crc32c", {"name": "crc32c"}),
        ({"name": "numcodecs.crc32c", "configuration": {"location": "end"}}, {"name": "crc32c"}),
    ],
)
@pytest.mark.parametrize("in_shards", [False, True])
@trio_test
async def test_a_codec_of_v3_whose_options_are_omitted_has_them(codec: object, expected: dict[str, Any], in_shards: bool) -> None:
    """zarr-python refuses an object without a configuration, tensorstore zstd without a level and names of numcodecs."""
    index = {"index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}, codec]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 5,
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": codecs, **index}}]
        if in_shards
        else codecs,
    }
    view = await shown({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}', "a/zarr.json": json.dumps(document).encode()})
    assert json.loads(view["a/zarr.json"])["codecs"][1] == expected
    assert opened(view)[...].tolist() == [5, 5, 5, 5]


async def stored_after(*documents: dict[str, Any]) -> dict[str, bytes]:
    """Return the store, of v2, in which these documents were written one after another for the array ``a``."""
    store = MemoryStore()
    await fill(store, {".zgroup": b'{"zarr_format": 2}'})
    async with tree_over(store) as tree:
        folder = await walk(tree, "zarr3")
        assert isinstance(folder, Directory)
        await folder.mkdir("a")
        for document in documents:
            await write(tree, "zarr3/a/zarr.json", json.dumps(document).encode())
    return await contents(store)


@pytest.mark.parametrize("kind", ["zlib", "bz2", "lz4", "lzma"])
@trio_test
async def test_a_new_array_with_a_codec_of_numcodecs_whose_options_are_omitted(kind: str) -> None:
    """zarr-python leaves defaults out of the document, which the documents of v2 have to state, and writes it again with attributes."""
    document = ARRAY | {"codecs": [*ARRAY["codecs"], {"name": f"numcodecs.{kind}", "configuration": {}}], "attributes": {}}
    stored = await stored_after(document, document | {"attributes": {"units": "m"}, "shape": [5, 3]})
    made = json.loads(stored["a/.zarray"])
    assert made["compressor"] == numcodecs.get_codec({"id": kind}).get_config()
    assert made["shape"] == [5, 3]
    assert json.loads(stored["a/.zattrs"]) == {"units": "m"}


@pytest.mark.parametrize(
    ("data_type", "options"),
    [
        ("int32", {"id": "delta", "dtype": "<i4"}),
        ("float64", {"id": "fixedscaleoffset", "dtype": "<f8", "offset": 1, "scale": 4}),
        ("float64", {"id": "quantize", "dtype": "<f8", "digits": 2}),
    ],
)
@trio_test
async def test_a_new_array_with_a_filter_whose_output_type_is_omitted(data_type: str, options: dict[str, Any]) -> None:
    """zarr-python leaves `astype` out, and writes the document again with attributes."""
    filter_ = {"name": f"numcodecs.{options['id']}", "configuration": {k: v for k, v in options.items() if k != "id"}}
    document = ARRAY | {"data_type": data_type, "codecs": [filter_, *ARRAY["codecs"]], "attributes": {}}
    stored = await stored_after(document, document | {"attributes": {"units": "m"}})
    assert json.loads(stored["a/.zarray"])["filters"] == [numcodecs.get_codec(options).get_config()]
    assert json.loads(stored["a/.zattrs"]) == {"units": "m"}


@pytest.mark.parametrize("codec", ["vlen-utf8", "vlen-bytes"])
@trio_test
async def test_zarr_python_writes_text_in_fortran_order(codec: str) -> None:
    """It flattens a transposed chunk of text in the order of its memory: elements that it wrote in zarr3/ were in other places."""
    texts = [["a", "b", "c"], ["d", "e", "f"]]
    elements = np.array([[text if codec == "vlen-utf8" else text.encode() for text in row] for row in texts], object)
    document = {
        "zarr_format": 2,
        "shape": [2, 3],
        "chunks": [2, 3],
        "dtype": "|O",
        "fill_value": "",
        "order": "F",
        "compressor": None,
        "filters": [{"id": codec}],
    }
    store = MemoryStore()
    await fill(store, {".zgroup": b'{"zarr_format": 2}', "a/.zarray": json.dumps(document).encode()})
    async with tree_over(store) as tree:
        array = opened(
            {path.removeprefix("zarr3/"): await read(tree, path) async for path in every_file(tree, "zarr3")}, writable=True
        )
        array[...] = elements
        await write(tree, "zarr3/a/c/0/0", array.store_path.store._store_dict["a/c/0/0"].to_bytes())
        assert (
            opened({path.removeprefix("zarr3/"): await read(tree, path) async for path in every_file(tree, "zarr3")})[...].tolist()
            == elements.tolist()
        )
    raw = (await contents(store))["a/0.0"]
    kind = numcodecs.VLenUTF8 if codec == "vlen-utf8" else numcodecs.VLenBytes
    assert kind().decode(raw).reshape((2, 3), order="F").tolist() == elements.tolist()
