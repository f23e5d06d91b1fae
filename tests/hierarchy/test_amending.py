"""Attributes and shapes in a document and in consolidated copies: a failure or a kill leaves the old or the new value in all of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from tests.support.small_stores import array_document
from tests.support.stores import contents, fill
from tests.support.trees import read, tree_over, write
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreFull, ZarrfsError
from zarrfs.keys import Key
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore

ZARRAY = json.loads(array_document((4,), (2,), "|u1"))
ARRAY3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "attributes": {"units": "old"},
}
GROUP3 = {"zarr_format": 3, "node_type": "group", "attributes": {}}
STORES: dict[str, dict[str, Any]] = {
    "v2": {
        ".zgroup": {"zarr_format": 2},
        "a/.zarray": ZARRAY,
        "a/.zattrs": {"units": "old"},
        ".zmetadata": {
            "zarr_consolidated_format": 1,
            "metadata": {".zgroup": {"zarr_format": 2}, "a/.zarray": ZARRAY, "a/.zattrs": {"units": "old"}},
        },
    },
    "v3": {
        "zarr.json": GROUP3 | {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {"a": ARRAY3}}},
        "a/zarr.json": ARRAY3,
    },
}


class Killed(BaseException):
    """The end of the process."""


class Ending(ForwardingStore):
    """A store whose changing operation number ``at`` fails, or is the last one of the process."""

    def __init__(self, inner: Store, at: int, *, kills: bool) -> None:
        super().__init__(inner)
        self.at, self.kills = at, kills
        self.count = 0

    async def _changing(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        self.count += 1
        if self.count > self.at and self.kills:
            raise Killed
        if self.count - 1 == self.at:
            raise StoreFull("no room")
        return await operation()

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        result: Generation | None = await self._changing(lambda: self.inner.set(key, value, expect=expect))
        return result

    async def erase(self, key: Key) -> None:
        await self._changing(lambda: self.inner.erase(key))


async def attributes_of(store: MemoryStore, dialect: str) -> tuple[Any, Any]:
    """Return the attributes of the array, from its document and from the copy."""
    found = {key: json.loads(value) for key, value in (await contents(store)).items()}
    if dialect == "v2":
        return found["a/.zattrs"], found[".zmetadata"]["metadata"]["a/.zattrs"]
    return found["a/zarr.json"]["attributes"], found["zarr.json"]["consolidated_metadata"]["metadata"]["a"]["attributes"]


@pytest.mark.logs("")
@pytest.mark.parametrize("kills", [False, True], ids=["failed", "killed"])
@pytest.mark.parametrize("dialect", STORES)
def test_document_and_copy_say_the_same(dialect: str, kills: bool) -> None:
    async def happens(at: int) -> bool:
        store = MemoryStore()
        await fill(store, {key: json.dumps(value).encode() for key, value in STORES[dialect].items()})
        ending = Ending(store, at, kills=kills)
        is_acknowledged = False
        with suppress(Killed, BaseExceptionGroup):
            async with tree_over(ending) as tree:
                ending.count = 0
                with suppress(ZarrfsError):
                    await write(tree, "chunks/a/.zattrs", b'{"units": "new"}')
                    is_acknowledged = True
        async with tree_over(store) as tree:
            await tree.recover()
            shown = json.loads(await read(tree, "chunks/a/.zattrs"))
        stored = await attributes_of(store, dialect)
        assert stored[0] == stored[1] == shown, at
        assert shown == {"units": "new"} or (shown == {"units": "old"} and not is_acknowledged), at
        assert not [key for key in await contents(store) if key.startswith(".zarrfs/")], at
        return ending.count > at

    at = 0
    while trio.run(happens, at):
        at += 1
    assert at > 3, "there are several steps"


@pytest.mark.logs("no room")
@trio_test
async def test_where_no_note_of_it_can_be_made_nothing_is_left_of_it(tmp_path: Path) -> None:
    async with aclosing(FolderStore(str(tmp_path))) as store:
        await fill(store, {key: json.dumps(value).encode() for key, value in STORES["v2"].items()})
        ending = Ending(store, -1, kills=False)
        async with tree_over(ending, f"file:{tmp_path}") as tree:
            ending.at = ending.count
            with pytest.raises(StoreFull):
                await write(tree, "chunks/a/.zattrs", b'{"units": "new"}')
            assert not (tmp_path / ".zarrfs").exists()


class Interfering(ForwardingStore):
    """A store in which another program changes a document just before each of our changes, ``times`` times."""

    def __init__(self, inner: Store, key: str, change: Callable[[dict[str, Any], int], None]) -> None:
        super().__init__(inner)
        self.key, self.change = key, change
        self.times = 0

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if key == self.key and self.times:
            self.times -= 1
            document = json.loads(bytes(await self.inner.get(key) or b"{}"))
            self.change(document, self.times)
            await self.inner.set(key, json.dumps(document).encode())
        return await super().set(key, value, expect=expect)


def _grow(document: dict[str, Any], number: int) -> None:
    document["shape"] = [number + 10]


@pytest.mark.parametrize("times", [1, 3])
@trio_test
async def test_what_another_program_stores_meanwhile_in_the_same_document_stays(times: int) -> None:
    inner = MemoryStore()
    await fill(inner, {key: json.dumps(value).encode() for key, value in STORES["v3"].items()})
    store = Interfering(inner, "a/zarr.json", _grow)
    async with tree_over(store) as tree:
        await read(tree, "chunks/a/.zattrs")
        store.times = times
        await write(tree, "chunks/a/.zattrs", b'{"units": "new"}')
    found = json.loads((await contents(inner))["a/zarr.json"])
    assert (found["shape"], found["attributes"]) == ([10], {"units": "new"})
    assert await attributes_of(inner, "v3") == ({"units": "new"}, {"units": "new"})


@trio_test
async def test_a_node_that_another_program_puts_into_the_copy_meanwhile_stays_there() -> None:
    inner = MemoryStore()
    await fill(inner, {key: json.dumps(value).encode() for key, value in STORES["v2"].items()})

    def add(document: dict[str, Any], number: int) -> None:
        document["metadata"][f"theirs{number}/.zgroup"] = {"zarr_format": 2}

    store = Interfering(inner, ".zmetadata", add)
    async with tree_over(store) as tree:
        await read(tree, "chunks/a/.zattrs")
        store.times = 2
        await write(tree, "chunks/a/.zattrs", b'{"units": "new"}')
    copy = json.loads((await contents(inner))[".zmetadata"])["metadata"]
    assert {"theirs0/.zgroup", "theirs1/.zgroup"} <= set(copy)
    assert copy["a/.zattrs"] == {"units": "new"}
    assert await attributes_of(inner, "v2") == ({"units": "new"}, {"units": "new"})
