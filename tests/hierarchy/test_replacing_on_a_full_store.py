"""Saving over an array while the store refuses every change for some time, so that a failed attempt cannot be undone at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from tests.hierarchy.test_several_steps import CASES, NEW, STORES, Faulty, _options, _prepare, npy
from tests.support.trees import load, read, tree_over, walk, write
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NodeInDoubt, StaleEntry, StoreFull
from zarrfs.keys import Key, NodePath
from zarrfs.stores.values import Expected, Generation
from zarrfs.vfs.node import File, Handle, OpenFlags

REPLACE = CASES[1]


class FullFrom(Faulty):
    """A folder that refuses all changes from operation number ``at`` on, until ``has_room``."""

    has_room = False

    async def _changing(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        self.count += 1
        if self.at < self.count and not self.has_room:
            raise StoreFull("no room")
        return await operation()


@pytest.mark.logs("")
@pytest.mark.parametrize(
    ("kind", "dialect"), [("exchange", "v3_2019"), ("exchange", "v3_2022"), ("rename", "v3"), ("exchange", "v3"), ("rename", "v2")]
)
def test_a_replacement_that_could_not_be_undone_keeps_the_attributes_when_it_is_repeated(
    kind: str, dialect: str, tmp_path: Path
) -> None:
    """The array was in no place then: the last close created a new one there, without its attributes.

    The array of v2 is in a group of v3, whose layout a new one would get.
    """
    url, options = f"file:{tmp_path / 'store'}", _options(dialect)

    async def prepare() -> None:
        await _prepare(REPLACE, dialect, tmp_path / "store")
        store = Faulty(tmp_path / "store", STORES[kind])
        async with tree_over(store, url, **options) as tree:
            await write(tree, "chunks/g/a/.zattrs", b'{"units": "m"}')
        await store.aclose()
        if dialect == "v2":
            for folder in (tmp_path / "store", tmp_path / "store/g"):
                (folder / ".zgroup").rename(folder / "zarr.json")
                (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')

    async def attempt(at: int) -> bool:
        store = FullFrom(tmp_path / "store", STORES[kind])
        store.at, has_failed = at, False
        async with tree_over(store, url, **options) as tree:
            file = await walk(tree, "npy/g/a.npy")
            assert isinstance(file, File)
            handle = await file.open(OpenFlags(read=False, write=True, truncate=True))
            try:
                await handle.write(0, npy(NEW))
                await handle.flush()
            except StoreFull:
                has_failed = True
            store.has_room = True
            await handle.release()
            np.testing.assert_array_equal(await load(tree, "npy/g/a.npy"), NEW)
            assert json.loads(await read(tree, "chunks/g/a/.zattrs")) == {"units": "m"}, at
            node = await tree.hierarchy.node(NodePath("/g/a"))
            assert node is not None and node.dialect == dialect
        await store.aclose()
        return has_failed

    trio.run(prepare)
    shutil.copytree(tmp_path / "store", tmp_path / "before")
    at = 0
    while trio.run(attempt, at):
        shutil.rmtree(tmp_path / "store")
        shutil.copytree(tmp_path / "before", tmp_path / "store")
        at += 1
    assert at > 2


class Severed(Faulty):
    """A folder that answers nothing more once it has stored the document of a replacement, until ``answers``."""

    answers = True

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        self._check()
        generation = await super().set(key, value, expect=expect)
        if key.startswith("meta/root/g/a."):
            self.answers = False
        self._check()
        return generation

    async def get(self, key: Key) -> Buffer | None:
        self._check()
        return await super().get(key)

    def _check(self) -> None:
        if not self.answers:
            raise StoreFull("no room")


@pytest.mark.logs("")
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
def test_a_replacement_in_doubt_is_not_read_and_one_that_took_effect_ends_the_old_array(dialect: str, tmp_path: Path) -> None:
    """Its chunks were read as zeros, and what was open with changes of the old array went into the new one."""
    url, options = f"file:{tmp_path / 'store'}", _options(dialect)
    values = np.arange(100, 136, dtype="<i4").reshape(6, 6)

    async def opened(tree: MountTree, name: str, *, truncate: bool) -> Handle:
        file = await walk(tree, name)
        assert isinstance(file, File)
        return await file.open(OpenFlags(read=True, write=True, truncate=truncate))

    async def attempt() -> None:
        await _prepare(REPLACE, dialect, tmp_path / "store")
        store = Severed(tmp_path / "store", STORES["exchange"])
        async with tree_over(store, url, **options) as tree:
            new = await opened(tree, "npy/g/a.npy", truncate=True)
            await new.write(0, npy(values))
            old = await opened(tree, "chunks/g/a/0.0", truncate=False)
            await old.write(0, b"\1\2\3\4")
            with pytest.raises(StoreFull):
                await new.flush()
            for does in (new.read(128, 8), new.write(128, b"\1\2\3\4")):
                with pytest.raises(NodeInDoubt):
                    await does
            store.answers = True
            await new.release()
            with pytest.raises(StaleEntry):
                await old.flush()
            with suppress(StaleEntry):
                await old.release()
            np.testing.assert_array_equal(await load(tree, "npy/g/a.npy"), values)
        await store.aclose()

    trio.run(attempt)
