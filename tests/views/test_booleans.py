"""Booleans are bytes 0 and 1: writes of other bytes are refused, and stored ones are read as neither 0 nor 1."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.reports.test_check_shards import checked
from tests.support.small_shards import document, shard, sharding
from tests.support.small_stores import array_document
from tests.support.small_stores import write as write_store
from tests.support.stores import contents, fill
from tests.support.trees import load, read, tree_over, walk, write
from zarrfs.errors import ChunkEncodeError, ContentInvalid
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import File, OpenFlags

# Three chunks of two elements; padding beyond the edge is ignored.
DOCUMENT = array_document((5,), (2,), "|b1", fill_value=False)
FIELDS = array_document((5,), (2,), [["n", "|u1"], ["ok", "|b1"], ["more", "|b1", [2]]], fill_value=None)  # type: ignore[arg-type]
STORED = {"a/.zarray": DOCUMENT, "a/0": b"\1\0", "a/1": b"\2\1", "a/2": b"\1\7"}


async def change(tree: Any, path: str, offset: int, data: bytes) -> None:
    file = await walk(tree, path)
    assert isinstance(file, File)
    handle = await file.open(OpenFlags(write=True))
    try:
        await handle.write(offset, data)
        await handle.flush()
    finally:
        await handle.release()


@pytest.mark.logs("invalid boolean")
@pytest.mark.parametrize("options", [{}, {"shard_delay": "0"}])
@trio_test
async def test_other_bytes_than_0_and_1_are_refused_in_every_view(options: dict[str, str]) -> None:
    store = MemoryStore()
    await fill(store, STORED)
    before = await contents(store)
    async with tree_over(store, **options) as tree:
        head = len(await read(tree, "npy/a.npy")) - 5
        for path, offset, data in (
            ("chunks/a/0", 0, b"\2\0"),
            ("chunks/a/0", 1, b"\xff"),
            ("npy/a.npy", head, b"\2"),
            ("npy/a.npy", head + 2, b"\3\1"),
        ):
            with pytest.raises(
                ChunkEncodeError, match=r"chunk \((0|1),\) of /a: invalid boolean: byte (2|3|255) instead of 0 or 1"
            ):
                await change(tree, path, offset, data)
        with pytest.raises(ContentInvalid, match="invalid boolean: byte 2 instead of 0 or 1"):
            await write(tree, "zarr3/a/c/0", b"\2\0")
    assert await contents(store) == before


@pytest.mark.logs("invalid boolean")
@trio_test
async def test_a_new_array_and_fields_hold_booleans_too() -> None:
    store = MemoryStore()
    await fill(store, {".zgroup": b'{"zarr_format": 2}', "s/.zarray": FIELDS})
    before = await contents(store)
    async with tree_over(store) as tree:
        made = io.BytesIO()
        np.save(made, np.zeros(4, bool))
        with pytest.raises(ChunkEncodeError, match="invalid boolean: byte 9 instead of 0 or 1"):
            await write(tree, "npy/new.npy", made.getvalue()[:-1] + b"\x09")
        for element in (b"\7\2\0\0", b"\7\1\0\3"):
            with pytest.raises(ChunkEncodeError, match="invalid boolean: byte"):
                await write(tree, "chunks/s/0", b"\7\1\0\1" + element)
        assert await contents(store) == before
        await write(tree, "chunks/s/0", b"\7\1\0\1" * 2)


@trio_test
async def test_what_is_stored_is_shown_as_it_is_and_its_neighbours_can_be_changed() -> None:
    store = MemoryStore()
    await fill(store, STORED)
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/a.npy")).tobytes() == b"\1\0\2\1\1"
        assert await read(tree, "chunks/a/1") == b"\2\1"
        await change(tree, "chunks/a/1", 1, b"\0")
        # Beyond the edge the fill value is stored, whatever is written there.
        await write(tree, "chunks/a/2", b"\0\5")
        await write(tree, "zarr3/a/c/0", b"\0\1")
        assert (await load(tree, "npy/a.npy")).tobytes() == b"\0\1\2\0\0"
    assert (await contents(store))["a/2"] == b"\0\0"


def test_check_finds_them(tmp_path: Path) -> None:
    report = checked(write_store(tmp_path / "plain", STORED))
    (finding,) = report.bad.first
    assert finding.key == "a/1" and "invalid boolean: byte 2 instead of 0 or 1" in finding.reason
    assert report.chunks == 2
    described = json.loads(document(64, 16, sharding(4))) | {"data_type": "bool", "fill_value": False}
    values = {"a/zarr.json": json.dumps(described).encode(), "a/c/0": shard(4, {0: b"\0\1\0\1", 2: b"\0\1\0\5"})}
    (finding,) = checked(write_store(tmp_path / "sharded", values)).bad.first
    assert (finding.key, finding.coords) == ("a/c/0", (2,)) and "byte 5" in finding.reason
