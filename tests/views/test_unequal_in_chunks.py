"""An array on a grid that Zarr v2 cannot represent, in ``chunks/``: chunk files of their own sizes, and a ``zarr.json``."""

from __future__ import annotations

import json
import logging
import math
import re
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.plugged import plugins
from tests.support.small_stores import array_document
from tests.support.stores import contents, fill
from tests.support.trees import load, names, read, tree_over, walk, write
from tests.support.unequal_chunks import GRIDS, UnequalExample, store_with
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ChunkSizeMismatch, ContentInvalid, FileTooLarge, NameInvalid, NoSuchEntry
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

EXAMPLE = UnequalExample((7, 6), ((3, 1, 4), (1, 2, 2, 2)), frozenset({(1, 0)}))
GRID = EXAMPLE.document["chunk_grid"]
GROUP = b'{"zarr_format": 3, "node_type": "group"}'
LOST = pytest.mark.logs("write failed, data lost")


grid = plugins(GRIDS)


async def mkdir(tree: MountTree, folder: str, name: str) -> None:
    parent = await walk(tree, folder)
    assert isinstance(parent, Directory)
    await parent.mkdir(name)


async def store_of(document: dict[str, Any], chunks: dict[str, bytes] | None = None, name: str = "a") -> MemoryStore:
    """Return a store with one array on `EXAMPLE`'s grid."""
    store = MemoryStore()
    values = {f"{name}/{key}".lstrip("/"): value for key, value in (chunks or {}).items()}
    await fill(store, {f"{name}/zarr.json".lstrip("/"): json.dumps(document).encode(), **values})
    return store


@trio_test
async def test_its_document_is_that_of_the_files_beside_it() -> None:
    document = EXAMPLE.document | {"attributes": {"units": "K", "_FillValue": 7}, "dimension_names": ["y", None]}
    async with tree_over(store := await store_with(EXAMPLE)) as tree:
        await store.set(Key("a/zarr.json"), json.dumps(document).encode())
        shown = json.loads(await read(tree, "chunks/a/zarr.json"))
        assert {name: shown[name] for name in document if name not in ("chunk_key_encoding", "codecs")} == {
            name: value for name, value in document.items() if name not in ("chunk_key_encoding", "codecs")
        }
        assert shown["chunk_key_encoding"] == {"name": "v2", "configuration": {"separator": "."}}
        assert shown["codecs"] == [{"name": "bytes", "configuration": {"endian": "little"}}]
        for coords in EXAMPLE.coords:
            if coords not in EXAMPLE.missing:
                chunk = np.frombuffer(await read(tree, f"chunks/a/{coords[0]}.{coords[1]}"), "<i4")
                assert chunk.size == math.prod(EXAMPLE.grid.chunk_shape(coords))
                box = EXAMPLE.elements[EXAMPLE.box(coords)]
                assert (chunk.reshape(EXAMPLE.grid.chunk_shape(coords))[: box.shape[0], : box.shape[1]] == box).all()


@LOST
@trio_test
async def test_chunk_files_are_written_whole_and_in_part_and_removed() -> None:
    async with tree_over(store := await store_with(EXAMPLE)) as tree:
        elements = EXAMPLE.elements
        file = await walk(tree, "chunks/a/0.2")
        assert isinstance(file, File)
        handle = await file.open(OpenFlags(write=True))
        # The chunk has the shape (3, 2) and begins at column 3.
        await handle.write(4 * 3, np.array([70, 71], "<i4").tobytes())
        with pytest.raises(FileTooLarge, match="24"):
            await handle.write(24, b"1")
        await handle.flush()
        await handle.release()
        elements[1, 4], elements[2, 3] = 70, 71
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()
        for wrong in (bytes(20), bytes(28)):
            with pytest.raises((ChunkSizeMismatch, FileTooLarge)):
                await write(tree, "chunks/a/0.2", wrong)
        assert EXAMPLE.stored_in(await contents(store), "a").tolist() == elements.tolist()
        with pytest.raises(NoSuchEntry):
            await walk(tree, "chunks/a/1.0")
        await write(tree, "chunks/a/1.0", np.array([5], "<i4").tobytes())
        assert (await contents(store))["a/c/1/0"] == np.array([5], "<i4").tobytes()
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        await folder.unlink("1.0")
        assert "a/c/1/0" not in await contents(store)
        with pytest.raises(NameInvalid, match="grid"):
            await write(tree, "chunks/a/3.0", bytes(4))


@trio_test
async def test_missing_chunks_are_read_with_fill_alone() -> None:
    async with tree_over(await store_with(EXAMPLE), fill="true") as tree:
        assert await read(tree, "chunks/a/1.0") == np.array([EXAMPLE.fill], "<i4").tobytes()
        assert "1.0" not in await names(tree, "chunks/a")


@trio_test
async def test_it_grows_and_gets_attributes_by_its_document() -> None:
    async with tree_over(store := await store_with(EXAMPLE)) as tree:
        document = json.loads(await read(tree, "chunks/a/zarr.json"))
        document["attributes"] = {"units": "K"}
        document["shape"] = [12, 6]
        document["chunk_grid"]["configuration"]["edges"][0].append(4)
        written = json.dumps(document).encode()
        await write(tree, "chunks/a/zarr.json", written)
        # It is read back unchanged.
        assert await read(tree, "chunks/a/zarr.json") == written
        stored = json.loads((await contents(store))["a/zarr.json"])
        assert stored == EXAMPLE.document | {name: document[name] for name in ("attributes", "shape", "chunk_grid")}
        await write(tree, "chunks/a/3.1", np.full((4, 2), 5, "<i4").tobytes())
        assert (await load(tree, "npy/a.npy"))[8:, 1:3].tolist() == [[5, 5]] * 4
        assert json.loads(await read(tree, "zarr3/a/zarr.json"))["attributes"] == {"units": "K"}


WRONG: dict[str, dict[str, Any]] = {
    "data_type": {"data_type": "uint32"},
    "fill_value": {"fill_value": 8},
    "grid": {"chunk_grid": {"name": "test.unequal", "configuration": {"edges": [[4, 4], [1, 2, 2, 2]]}}},
    "regular grid": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 2]}}},
    "unknown grid": {"chunk_grid": {"name": "other.grid", "configuration": {}}},
    "shape without edges": {"shape": [9, 6]},
    "keys": {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}},
    "codecs": {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]},
    "big-endian": {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]},
    "names": {"dimension_names": ["a", "b"]},
    "dimensions": {"shape": [7]},
    "member": {"more": 1},
    "group": {"node_type": "group"},
}


@LOST
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
@trio_test
async def test_anything_else_that_is_asked_of_it_is_refused(change: dict[str, Any]) -> None:
    async with tree_over(store := await store_with(EXAMPLE)) as tree:
        before = await contents(store)
        document = json.loads(await read(tree, "chunks/a/zarr.json"))
        with pytest.raises(ContentInvalid, match=r"chunks/a/zarr\.json"):
            await write(tree, "chunks/a/zarr.json", json.dumps(document | change).encode())
        assert await contents(store) == before


@LOST
@trio_test
async def test_documents_are_those_of_the_kind_of_array() -> None:
    store = await store_with(EXAMPLE)
    regular = EXAMPLE.document | {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 2]}}}
    await fill(store, {"zarr.json": GROUP, "b/zarr.json": json.dumps(regular).encode()})
    async with tree_over(store) as tree:
        before = await contents(store)
        zattrs, zarray = b"{}", array_document((7, 6), (4, 2))
        for name, data in ((".zattrs", zattrs), (".zarray", zarray), (".zgroup", b'{"zarr_format": 2}')):
            with pytest.raises(NameInvalid, match="/a"):
                await write(tree, f"chunks/a/{name}", data)
        with pytest.raises(NameInvalid, match=r"/b in chunks/ is \.zarray"):
            await write(tree, "chunks/b/zarr.json", await read(tree, "chunks/a/zarr.json"))
        with pytest.raises(ContentInvalid, match="holds nodes"):
            await write(tree, "chunks/zarr.json", GROUP)
        assert await contents(store) == before
        await mkdir(tree, "chunks", "g")
        plain = json.loads(await read(tree, "chunks/a/zarr.json"))
        for change, reason in (
            ({"chunk_grid": regular["chunk_grid"]}, r"\.zarray"),
            ({"codecs": EXAMPLE.document["codecs"] + [{"name": "crc32c"}]}, "'bytes' alone"),
            ({"chunk_key_encoding": {"name": "default"}}, "'v2'"),
            ({"node_type": "group"}, "g"),
        ):
            with pytest.raises(ContentInvalid, match=reason):
                await write(tree, "chunks/g/zarr.json", json.dumps(plain | change).encode())
        with pytest.raises(ContentInvalid, match=r"\.zgroup"):
            await write(tree, "chunks/g/zarr.json", GROUP)
        assert await names(tree, "npy") == {"a.npy", "b.npy", "g"}


@trio_test
async def test_one_is_made_with_the_codecs_of_the_mount() -> None:
    """Chunks that come before the document are kept for it, in any order."""
    async with tree_over(store := await store_with(EXAMPLE), new_codecs="gzip:level=1", new_separator=".") as tree:
        await mkdir(tree, "chunks", "b")
        for name in sorted(await names(tree, "chunks/a")):
            await write(tree, f"chunks/b/{name}", await read(tree, f"chunks/a/{name}"))
        assert (await load(tree, "npy/b.npy")).tolist() == EXAMPLE.elements.tolist()
        assert await names(tree, "chunks/b") == await names(tree, "chunks/a")
        stored = json.loads((await contents(store))["b/zarr.json"])
        assert stored["chunk_grid"] == GRID and stored["codecs"][1]["name"] == "gzip"
        assert stored["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "."}}
        # Compared within the array: beyond its edge the copy has the fill value.
        assert await read(tree, "chunks/b/1.1") == await read(tree, "chunks/a/1.1")
        assert len(await read(tree, "chunks/b/2.3")) == len(await read(tree, "chunks/a/2.3")) == 4 * 4 * 2


@LOST
@trio_test
async def test_a_dialect_without_the_grid_refuses_it() -> None:
    store = MemoryStore()
    await fill(store, {".zgroup": b'{"zarr_format": 2}'})
    document = EXAMPLE.document | {"chunk_key_encoding": {"name": "v2"}}
    async with tree_over(store) as tree:
        await mkdir(tree, "chunks", "a")
        with pytest.raises(ContentInvalid, match=r"v2|grid"):
            await write(tree, "chunks/a/zarr.json", json.dumps(document).encode())
        assert await contents(store) == {".zgroup": b'{"zarr_format": 2}'}


TYPES: dict[str, tuple[dict[str, Any], bytes]] = {
    "bfloat16": ({"data_type": "bfloat16", "fill_value": "0x7fc0"}, bytes(range(12))),
    "one byte": ({"data_type": "uint8", "codecs": [{"name": "bytes"}]}, bytes(range(6))),
    "big-endian": ({"data_type": "int16", "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]}, bytes(range(12))),
    "transposed": (
        {
            "codecs": [
                {"name": "transpose", "configuration": {"order": [1, 0]}},
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
            ]
        },
        bytes(range(24)),
    ),
    "filtered": (
        {
            "codecs": [
                {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}},
                {"name": "bytes", "configuration": {"endian": "little"}},
            ]
        },
        bytes(range(24)),
    ),
    "text": (
        {"data_type": "string", "fill_value": "-", "codecs": [{"name": "vlen-utf8"}]},
        b"\6\0\0\0" + b"".join(len(text).to_bytes(4, "little") + text for text in (b"a", b"", b"ccc", b"d", b"ee", b"-")),
    ),
}


@pytest.mark.parametrize(("changes", "chunk"), TYPES.values(), ids=TYPES.keys())
@trio_test
async def test_any_type_and_codecs_are_those_of_its_document(changes: dict[str, Any], chunk: bytes) -> None:
    """This includes types that v2 cannot represent, and elements of variable length: chunk (0, 2), of shape (3, 2), and back."""
    async with tree_over(store := await store_of(EXAMPLE.document | changes)) as tree:
        await write(tree, "chunks/a/0.2", chunk)
        shown = json.loads(await read(tree, "chunks/a/zarr.json"))
        assert len(shown["codecs"]) == 1 and shown["codecs"][0]["name"] in ("bytes", "vlen-utf8")
        assert shown["data_type"] == (EXAMPLE.document | changes)["data_type"]
        assert await read(tree, "chunks/a/0.2") == chunk
        shown["attributes"] = {"x": 1}
        await write(tree, "chunks/a/zarr.json", json.dumps(shown).encode())
        stored = json.loads((await contents(store))["a/zarr.json"])
        assert stored == EXAMPLE.document | changes | {"attributes": {"x": 1}}
        # The same as a new array.
        await mkdir(tree, "chunks", "b")
        await write(tree, "chunks/b/zarr.json", await read(tree, "chunks/a/zarr.json"))
        await write(tree, "chunks/b/0.2", await read(tree, "chunks/a/0.2"))
        assert await read(tree, "chunks/b/0.2") == await read(tree, "chunks/a/0.2")


@trio_test
async def test_the_root_of_a_store_can_be_one() -> None:
    store = await store_of(EXAMPLE.document, {"c/1/1": np.arange(2, dtype="<i4").tobytes()}, name="")
    async with tree_over(store) as tree:
        assert await names(tree, "chunks") == {"zarr.json", "1.1"}
        assert await read(tree, "chunks/1.1") == np.arange(2, dtype="<i4").tobytes()
        assert json.loads(await read(tree, "chunks/zarr.json"))["chunk_grid"] == GRID


@trio_test
async def test_consolidated_copies_leave_it_out(caplog: pytest.LogCaptureFixture) -> None:
    """Copies of Zarr v2 leave it out; a copy of v3 includes it."""
    regular = EXAMPLE.document | {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 2]}}}
    store = await store_with(EXAMPLE)
    await fill(store, {"b/zarr.json": json.dumps(regular).encode()})
    metadata = {"a": EXAMPLE.document, "b": regular}
    copy = {
        "zarr_format": 3,
        "node_type": "group",
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata},
    }
    await fill(store, {"zarr.json": json.dumps(copy).encode()})
    with caplog.at_level(logging.INFO):
        async with tree_over(store) as tree:
            shown = json.loads(await read(tree, "chunks/.zmetadata"))["metadata"]
            assert "b/.zarray" in shown and not [name for name in shown if name.startswith("a/") or name.endswith("zarr.json")]
            assert set(json.loads(await read(tree, "zarr3/zarr.json"))["consolidated_metadata"]["metadata"]) == {"a", "b"}
    assert "/a: left out of the consolidated copy of /: the chunk grid of /a has no Zarr v2 form" in caplog.text


def on_edges(edges: Any, shape: tuple[int, ...] = (8, 6)) -> dict[str, Any]:
    return EXAMPLE.document | {"shape": list(shape), "chunk_grid": {"name": "test.unequal", "configuration": {"edges": edges}}}


@LOST
@trio_test
async def test_a_grid_of_very_many_chunks_is_read_back_and_edited() -> None:
    """Its document is about as long as the stored one: a line for each chunk would exceed the limit for documents."""
    count = 90_000
    store = await store_of(on_edges([[1] * count, [6]], (count, 6)))
    async with tree_over(store, new_codecs="none") as tree:
        text = await read(tree, "chunks/a/zarr.json")
        assert len(text) < 4 * count
        await write(tree, "chunks/a/zarr.json", text)
        document = json.loads(text) | {"attributes": {"x": 1}, "shape": [count + 2, 6]}
        document["chunk_grid"]["configuration"]["edges"][0].append(2)
        await write(tree, "chunks/a/zarr.json", json.dumps(document, indent=None).encode())
        assert len((await contents(store))["a/zarr.json"]) < 4 * count
        await write(tree, f"chunks/a/{count}.0", bytes(2 * 6 * 4))
        assert (await read(tree, "npy/a.npy"))[-48:] == bytes(48)
        await mkdir(tree, "chunks", "b")
        await write(tree, "chunks/b/zarr.json", await read(tree, "chunks/a/zarr.json"))
        assert json.loads((await contents(store))["b/zarr.json"])["shape"] == [count + 2, 6]
    async with tree_over(store) as tree:
        assert await names(tree, "chunks") == {".zgroup", "a", "b"}


SHARDED = [
    {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [2, 2],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        },
    }
]
UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "too short": (on_edges([[2, 2], [6]]), "do not fit"),
    "zero": (on_edges([[2, 0, 6], [6]]), "at least one"),
    "negative": (on_edges([[10, -2], [6]]), "-2"),
    "fraction": (on_edges([[2.5, 6], [6]]), "2.5"),
    "text": (on_edges([["2", 6], [6]]), '"2"'),
    "too few": (on_edges([[8]]), "do not fit"),
    "null": (on_edges(None), "must be a list"),
    "too large": (on_edges([[2**40], [2**40]], (2**40, 2**40)), "exceed the limit"),
    "no configuration": (EXAMPLE.document | {"chunk_grid": {"name": "test.unequal"}}, "edges"),
    "rectilinear": (EXAMPLE.document | {"chunk_grid": {"name": "rectilinear", "configuration": {}}}, "rectilinear"),
    "shards": (on_edges([[2, 4, 2], [2, 4]]) | {"codecs": SHARDED}, "test.unequal.*: shards of unequal shapes are not supported"),
    "indivisible shards": (on_edges([[2, 3, 3], [6]]) | {"codecs": SHARDED}, r"does not divide|shards of unequal"),
    "a grid in shards": (
        on_edges([[8], [6]])
        | {
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 6]}},
            "codecs": [SHARDED[0] | {"configuration": SHARDED[0]["configuration"] | {"chunk_grid": GRID}}],  # type: ignore[operator]
        },
        "chunk_grid",
    ),
}


@LOST
@pytest.mark.parametrize(("document", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
@trio_test
async def test_what_cannot_be_read_is_told_in_its_place_and_named_when_written(document: dict[str, Any], reason: str) -> None:
    """No element of such an array is shown, and none is written: its keys are in raw/."""
    store = await store_of(document, {"c/0/0": bytes(range(48))})
    async with tree_over(store) as tree:
        before = await contents(store)
        for view in ("chunks", "zarr3", "npy"):
            assert {"a.unsupported.txt"} == {name for name in await names(tree, view) if name.startswith("a")}
            told = (await read(tree, f"{view}/a.unsupported.txt")).decode()
            assert "a/zarr.json" in told
            assert re.search(reason, told)
        assert await read(tree, "raw/a/c/0/0") == bytes(range(48))
        for view in ("chunks", "zarr3"):
            await mkdir(tree, view, f"of_{view}")
            plain = document | {"chunk_key_encoding": {"name": "v2"}}
            with pytest.raises(ContentInvalid, match=rf"{view}/of_{view}/zarr\.json"):
                await write(tree, f"{view}/of_{view}/zarr.json", json.dumps(plain).encode())
        after = await contents(store)
        assert {key: after[key] for key in before} == before and not any("/c/" in key for key in after.keys() - before.keys())


@LOST
@trio_test
async def test_new_shards_are_none_of_unequal_chunks() -> None:
    async with tree_over(store := await store_with(EXAMPLE), new_shards="2x2") as tree:
        document = await read(tree, "chunks/a/zarr.json")
        for view in ("chunks", "zarr3"):
            await mkdir(tree, view, f"of_{view}")
            with pytest.raises(ContentInvalid, match=rf"{view}/of_{view}/zarr\.json: shards of chunks of unequal shapes"):
                await write(tree, f"{view}/of_{view}/zarr.json", document)
        assert not any("of_" in key and "test.unequal" in value.decode("latin-1") for key, value in (await contents(store)).items())
