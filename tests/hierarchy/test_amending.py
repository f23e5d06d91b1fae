"""Attributes and shapes that stand in a document and in consolidated copies: a failure or a kill leaves the old or the new everywhere."""

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
from zarrfs.errors import StoreFull, ZarrfsError
from zarrfs.keys import Key
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Buffer, Generation
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
    """Its changing operation number ``at`` fails, or is the last of the process."""

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

    async def set(self, key: Key, value: Buffer, *, if_generation: Generation | None = None) -> Generation | None:
        result: Generation | None = await self._changing(lambda: self.inner.set(key, value, if_generation=if_generation))
        return result

    async def erase(self, key: Key) -> None:
        await self._changing(lambda: self.inner.erase(key))


async def attributes_of(store: MemoryStore, dialect: str) -> tuple[Any, Any]:
    """Those of the array, by its document and by the copy."""
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
