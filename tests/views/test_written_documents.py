"""Documents that a program writes, as far as nothing of them is parsed yet: their size, what they cost, and where they end."""

from __future__ import annotations

import json

import pytest
from trio.testing import trio_test

from tests.support.stores import contents, fill
from tests.support.traced import at_most
from tests.support.trees import opened, read, tree_over, write
from zarrfs.dialects.json_text import MAX_NBYTES, end_of_value
from zarrfs.errors import ContentInvalid
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import OpenFlags
from zarrfs.views.nodes.mount_only import MountOnly

GROUP = {"zarr.json": b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}'}
MIB = 1 << 20
DOCUMENTS = pytest.mark.parametrize("name", ["chunks/.zattrs", "chunks/.zgroup", "zarr3/zarr.json"])


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (b"{}", 2), (b"{}x", 2), (b' {"a": "}"} ]', 11), (b'{"a": "\\"}"}{', 12), (b'{"a": [1, {"b": []}]}, 5', 21),
        (b'{"a": "\xc3\xa9"}\xa9"}', 11), (b'{"a": "' + b"x" * 300_000 + b'"}"', 300_009), (b'{"a": ' + b"[]," * 200_000, 600_006),
        (b'{"a": "', 7), (b"{", 1), (b"", 0), (b"5", 1),
    ],
)  # fmt: skip
def test_where_a_document_ends(text: bytes, end: int) -> None:
    assert end_of_value(text) == end


def test_the_end_is_found_without_the_values_before_it() -> None:
    text = b'{"a": [' + b"[]," * (MIB // 3) + b"0]}"
    with at_most(4 * MIB):
        assert end_of_value(text + b"rest") == len(text)


@pytest.mark.logs("exceeds the limit")
@DOCUMENTS
@trio_test
async def test_a_document_above_the_limit_is_refused_before_it_is_copied(name: str) -> None:
    store = MemoryStore()
    await fill(store, GROUP)
    async with tree_over(store) as tree:
        handle = await opened(tree, name, OpenFlags(read=False, write=True))
        await handle.write(64 * MIB, b"}")
        with at_most(8 * MIB), pytest.raises(ContentInvalid, match=rf"document of \d+ bytes exceeds the limit of {MAX_NBYTES}"):
            await handle.flush()
        await handle.truncate(0)
        await handle.write(0, {"chunks/.zattrs": b"{}", "chunks/.zgroup": b'{"zarr_format": 2}'}.get(name, GROUP["zarr.json"]))
        await handle.release()
    assert json.loads((await contents(store))["zarr.json"])["node_type"] == "group"


@trio_test
async def test_remains_may_begin_within_a_character() -> None:
    """netCDF-C writes a shorter document over the previous one without truncation, and ignores the error of close(2)."""
    store = MemoryStore()
    await fill(store, GROUP)
    async with tree_over(store) as tree:
        await write(tree, "chunks/.zattrs", before := '{"units": "é"}'.encode())
        assert await read(tree, "chunks/.zattrs") == before
        handle = await opened(tree, "chunks/.zattrs", OpenFlags(read=False, write=True))
        await handle.write(0, short := b'{"unit": 12}')
        await handle.release()
        with pytest.raises(UnicodeDecodeError):
            before[len(short) :].decode()
        assert await read(tree, "chunks/.zattrs") == short


def test_hidden_and_timed_documents_take_no_memory_of_their_size() -> None:
    state = MountOnly("zarr3")
    with at_most(8 * MIB):
        for number in range(50):
            document = b"%d" % number * MIB
            state.hide(f"zarr3/{number}/zarr.json", document)
            state.set_mtime(f"zarr3/{number}/zarr.json", document, 5)
    assert state.is_hidden("zarr3/7/zarr.json", b"7" * MIB) and state.mtime_ns("zarr3/7/zarr.json", b"7" * MIB) == 5
    assert not state.is_hidden("zarr3/7/zarr.json", b"7" * MIB + b" ") and state.mtime_ns("zarr3/8/zarr.json", b"7" * MIB) is None
