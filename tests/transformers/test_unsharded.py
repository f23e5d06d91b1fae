"""Stores without shards: both forms of sharding, compared with equal unsharded arrays, and the permitted writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import zarr
from trio.testing import trio_test
from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

from tests.support import reader_v3_2022
from tests.support.cases import Case, cases
from tests.support.small_shards import LITTLE
from tests.support.small_shards import document as small_document
from tests.support.stores import contents, fill, names
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, KeyUnusable, NotPermitted, StoreAccessDenied, StoreUnsupported
from zarrfs.hierarchy.sharded_arrays import ShardedArrays
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import ABSENT, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.unsharded import UnshardedStore

SHAPE, CHUNKS = (20, 11), (2, 3)
DOCUMENT = Key("a/zarr.json")


def unsharded(inner: Store, ttl: float = 60) -> UnshardedStore:
    return UnshardedStore(inner, ShardedArrays(inner, ttl=ttl))


def write(folder: Path, *, sharded: bool, how: str = "end", **array: Any) -> None:
    """Write a group with an array and its consolidated copy; ``how``: the form of its shards, if it has any."""
    group = zarr.create_group(folder, attributes={"of": "the group"})
    array = {"shape": SHAPE, "dtype": "i4", "fill_value": 7, "attributes": {"u": [1, 2.50]}, "dimension_names": ["y", "x"]} | array
    inner: list[Any] = [BytesCodec(), ZstdCodec(level=3)]
    match how:
        case "end" | "start":
            shards = {"shape": (8, 6), "index_location": how} if sharded else None
            made = group.create_array("a", chunks=CHUNKS, shards=shards, compressors=inner[1:], **array)
        case "nested":
            nested: Any = ShardingCodec(chunk_shape=CHUNKS, codecs=inner)
            nested = ShardingCodec(chunk_shape=(4, 6), codecs=[nested], index_location="start")
            how_stored = {"chunks": (8, 12), "serializer": nested, "compressors": None}
            made = group.create_array("a", **(how_stored if sharded else {"chunks": CHUNKS, "compressors": inner[1:]}), **array)
        case "transposed":
            order = TransposeCodec(order=(1, 0))
            nested = ShardingCodec(chunk_shape=CHUNKS[::-1], codecs=inner)
            how_stored = {"chunks": (6, 6), "serializer": nested} if sharded else {"chunks": CHUNKS, "serializer": BytesCodec()}
            made = group.create_array("a", filters=[order], compressors=None if sharded else inner[1:], **how_stored, **array)
    made[3:17, 1:8] = np.arange(14 * 7).reshape(14, 7)
    group.create_array("beside", shape=4, chunks=2, dtype="u1")[...] = 5
    with pytest.warns(match="Consolidated"):
        zarr.consolidate_metadata(str(folder))


@asynccontextmanager
async def pair(tmp_path: Path, **how: Any) -> AsyncIterator[tuple[FolderStore, UnshardedStore, dict[str, bytes]]]:
    """Yield a store with shards, its unsharded form, and the values that zarr-python stores for the same arrays without shards."""
    write(tmp_path / "sharded", sharded=True, **how)
    write(tmp_path / "plain", sharded=False, **how)
    inner = FolderStore(str(tmp_path / "sharded"))
    yield inner, unsharded(inner), await contents(FolderStore(str(tmp_path / "plain")))


@pytest.mark.parametrize("how", ["end", "start", "nested", "transposed"])
@trio_test
async def test_it_shows_what_zarr_python_stores_without_shards(tmp_path: Path, how: str) -> None:
    async with pair(tmp_path, how=how) as (_, store, plain):
        shown = await contents(store)
        documents = {key for key in plain if key.endswith("zarr.json")}
        assert {key: value for key, value in shown.items() if key not in documents} == {
            key: value for key, value in plain.items() if key not in documents
        }
        # zarr-python chooses the order of the members of codecs in a copy.
        assert {key: json.loads(shown[key]) for key in documents} == {key: json.loads(plain[key]) for key in documents}
        for prefix in ("", "a/", "a/c/", "a/c/3/", "beside/"):
            for (name, is_prefix), size in (await names(store, prefix)).items():
                if not is_prefix:
                    stat = await store.stat(Key(prefix + name))
                    assert stat is not None and stat.size == size == len(shown[prefix + name])


@pytest.mark.parametrize("keys", [{"name": "default", "separator": "."}, {"name": "v2", "separator": "/"}], ids=str)
@trio_test
async def test_other_chunk_keys(tmp_path: Path, keys: Any) -> None:
    async with pair(tmp_path, chunk_key_encoding=keys) as (_, store, plain):
        assert await contents(store) == plain


@pytest.mark.parametrize("case", cases("v3_draft2022_zarrpython") + cases("v3_draft2022_seed"), ids=lambda each: each.name)
@pytest.mark.logs("read as its fallback")
@trio_test
async def test_the_transformer_of_2022(case: Case) -> None:
    inner = MemoryStore()
    await fill(inner, case.values)
    shown = await contents(unsharded(inner))
    for key, value in shown.items():
        if key.endswith((".array.json", ".zmetadata")):
            assert b"chunks_per_shard" not in value, key
    if case.name.endswith("sharded"):
        assert shown != case.values
        before, after = reader_v3_2022.everything(case.values), reader_v3_2022.everything(shown)
        assert before.keys() == after.keys()
        for path, (elements, attributes) in before.items():
            np.testing.assert_array_equal(after[path][0], elements)
            assert after[path][1] == attributes


@trio_test
async def test_chunks_are_written_and_erased(tmp_path: Path) -> None:
    async with pair(tmp_path) as (inner, store, plain):
        chunk, other = Key("a/c/4/1"), Key("a/c/4/2")
        await store.erase(chunk)
        assert await contents(store) == {key: value for key, value in plain.items() if key != chunk}
        array: Any = zarr.open_array(tmp_path / "sharded" / "a")
        expected = array[...]
        assert (expected[8:10, 3:6] == 7).all()
        generation = await store.set(chunk, plain[other], expect=ABSENT)
        with pytest.raises(GenerationMismatch):
            await store.set(chunk, b"", expect=ABSENT)
        stat = await store.stat(chunk)
        assert stat is not None and stat.generation == generation
        expected[8:10, 3:6] = expected[8:10, 6:9]
        np.testing.assert_array_equal(array[...], expected)
        await store.set_partial_values([(Key("note"), 0, b"beside"), (chunk, 0, plain[chunk])])
        assert await store.get(Key("note")) == b"beside"
        parts = await store.get_partial_values([(chunk, WHOLE), (Key("note"), ByteRange(1, 2)), (DOCUMENT, ByteRange(0, 1))])
        assert [bytes(part or b"") for part in parts] == [plain[chunk][: len(parts[0] or b"")], b"es", b"{"]
        with pytest.raises(KeyUnusable, match="outside"):
            await store.set(Key("a/c/10/0"), b"")
        await store.erase_prefix(Prefix("a/c/"))
        assert {key for key in await contents(inner) if key.startswith("a/")} == {DOCUMENT}
        await store.erase_prefix(Prefix("a/"))
        assert {key.partition("/")[0] for key in await contents(store)} == {"zarr.json", "beside", "note"}


@trio_test
async def test_a_document_is_edited_around_the_shards(tmp_path: Path) -> None:
    async with pair(tmp_path) as (inner, store, plain):
        for key in (DOCUMENT, Key("zarr.json")):
            before = (await contents(inner))[key]
            edited = plain[key].replace(b"2.50", b"2.75").replace(b"2.5", b"2.75").replace(b"the group", b"others")
            assert edited != plain[key]
            await store.set(key, edited)
            assert await store.get(key) == edited
            after = (await contents(inner))[key]
            assert after == before.replace(b"2.5", b"2.75").replace(b"the group", b"others")
        assert zarr.open_array(tmp_path / "sharded" / "a").shards == (8, 6)


@trio_test
async def test_a_copy_that_is_written_has_the_shards_of_its_arrays(tmp_path: Path) -> None:
    """Readers of the store open its arrays by the copy: zarr-python consolidates the metadata of a store without a copy, or anew."""
    async with pair(tmp_path) as (inner, store, plain):
        root, before = Key("zarr.json"), await contents(inner)
        members = json.loads(before[root])
        assert "a" in members["consolidated_metadata"]["metadata"]
        await inner.set(root, json.dumps({**members, "consolidated_metadata": None}).encode())
        await store.set(root, plain[root])
        assert json.loads((await contents(inner))[root]) == members
        assert await store.get(root) == plain[root]
        # Arrays made here have no shards.
        await store.erase_prefix(Prefix("a/"))
        await store.set(DOCUMENT, plain[DOCUMENT])
        await store.set(root, plain[root])
        assert (await contents(inner))[root] == plain[root]


@trio_test
async def test_what_a_document_cannot_say_without_shards_is_refused(tmp_path: Path) -> None:
    async with pair(tmp_path) as (inner, store, plain):
        before = await contents(inner)
        for value in (
            before[DOCUMENT],
            plain[DOCUMENT].replace(b'"level": 3', b'"level": 4'),
            json.dumps(
                json.loads(plain[DOCUMENT]) | {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}}}
            ).encode(),
            json.dumps(json.loads(plain[DOCUMENT]) | {"data_type": "uint64"}).encode(),
            b"no document",
        ):
            assert value != plain[DOCUMENT]
            with pytest.raises(NotPermitted, match=r"shards"):
                await store.set(DOCUMENT, value)
        with pytest.raises(NotPermitted, match="sharded one cannot be written"):
            await store.set(Key("new/zarr.json"), before[DOCUMENT])
        for old, new in ((DOCUMENT, Key("b/zarr.json")), (Key("a/c/2/1"), Key("b/c/0/0"))):
            with pytest.raises(StoreUnsupported):
                await store.rename(old, new)
        with pytest.raises(StoreUnsupported):
            await store.rename_prefix(Prefix("a/c/"), Prefix("b/c/"))
        assert await contents(inner) == before


@trio_test
async def test_arrays_are_moved_with_their_shards(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, store, plain):
        assert await store.rename_prefix(Prefix("a/"), Prefix("g/b/"))
        moved = {key.replace("a/", "g/b/", 1) if key.startswith("a/") else key for key in plain}
        assert set(await contents(store)) == moved
        assert await store.get(Key("g/b/c/4/1")) == plain["a/c/4/1"]


@trio_test
async def test_arrays_that_others_make_and_change_are_followed(tmp_path: Path) -> None:
    (tmp_path / "sharded").mkdir()
    store = unsharded(FolderStore(str(tmp_path / "sharded")), ttl=0)
    assert await contents(store) == {}
    write(tmp_path / "sharded", sharded=True)
    write(tmp_path / "plain", sharded=False)
    assert await contents(store) == await contents(FolderStore(str(tmp_path / "plain")))
    for folder in ("sharded", "plain"):
        array: Any = zarr.open_array(tmp_path / folder / "a")
        array.resize((8, 6))
        array[...] = 3
    assert await contents(store) == await contents(FolderStore(str(tmp_path / "plain")))


@pytest.mark.parametrize("folder", ["new/", "g/h/new/"])
@pytest.mark.parametrize("keys", [{"name": "default", "separator": "/"}, {"name": "v2", "separator": "."}], ids=str)
@trio_test
async def test_an_array_that_appears_where_none_was_known_is_shown_whole_without_shards(
    tmp_path: Path, folder: str, keys: Any
) -> None:
    """Its document without shards beside the keys of shards would be another array: its readers would find other chunks, or none."""
    async with pair(tmp_path, chunk_key_encoding=keys) as (inner, store, plain):
        expected = {key.replace("a/", folder, 1): value for key, value in plain.items() if key.startswith("a/")}
        document = Key(f"{folder}zarr.json")
        assert (
            not await names(store, folder) and await store.get(document) is None and not await store.prefix_exists(Prefix(folder))
        )
        shutil.copytree(tmp_path / "sharded" / "a", tmp_path / "sharded" / folder)
        shown = await contents(store)
        assert {key: value for key, value in shown.items() if key.startswith(folder)} == expected
        # As programs do that do not list: the document, then chunks.
        again = unsharded(inner)
        await inner.erase(document)
        assert await again.get(document) is None and await again.get(document.parent.key("0.0")) != b""
        await inner.set(document, (await contents(inner))[DOCUMENT])
        assert await again.get(document) == expected[document]
        for key, value in expected.items():
            assert await again.get(Key(key)) == value


@trio_test
async def test_an_array_whose_shards_another_program_has_changed_is_shown_by_its_new_document(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, store, plain):
        assert await contents(store) == plain
        write(tmp_path / "other", sharded=True, how="start")
        shutil.rmtree(tmp_path / "sharded" / "a")
        shutil.copytree(tmp_path / "other" / "a", tmp_path / "sharded" / "a")
        assert await store.get(DOCUMENT) == plain[DOCUMENT]
        assert await contents(store) == plain


@pytest.mark.parametrize("folder", ["new/", "g/h/new/"])
@trio_test
async def test_a_folder_with_an_unreadable_document_is_listed(tmp_path: Path, folder: str) -> None:
    document = Key(f"{folder}zarr.json")

    class Denying(ForwardingStore):
        async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
            if key == document and await self.inner.stat(key) is not None:
                raise StoreAccessDenied("not readable", key=key)
            return await self.inner.get_with_stat(key, byte_range)

        get_many = Store.get_many

    async with pair(tmp_path) as (inner, _, _):
        store = unsharded(Denying(inner))
        assert await store.get(document) is None
        shutil.copytree(tmp_path / "sharded" / "a", tmp_path / "sharded" / folder)
        assert {name for name, _ in await names(store, folder)} == {"zarr.json", "c"}


@trio_test
async def test_a_listing_asks_once_for_the_document_in_its_folder(tmp_path: Path) -> None:
    asked: list[Key] = []

    class Counting(ForwardingStore):
        async def stat(self, key: Key) -> KeyStat | None:
            asked.append(key)
            return await self.inner.stat(key)

    async with pair(tmp_path) as (inner, _, _):
        store = unsharded(Counting(inner))
        before = await names(store, "a/")
        asked.clear()
        assert await names(store, "a/") == before
        assert asked.count(DOCUMENT) == 1


@trio_test
async def test_a_document_with_shards_is_refused_wherever_it_is_written(tmp_path: Path) -> None:
    async with pair(tmp_path) as (inner, store, _):
        before = await contents(inner)
        for folder in ("new/", "g/h/new/"):
            with pytest.raises(NotPermitted, match="sharded one cannot be written"):
                await store.set(Key(f"{folder}zarr.json"), before[DOCUMENT])
        assert await contents(inner) == before


@pytest.mark.logs("shown with its shards")
@trio_test
async def test_shards_that_are_encoded_as_a_whole_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    codec = ShardingCodec(chunk_shape=CHUNKS, codecs=[BytesCodec()])
    array: Any = zarr.create_array(tmp_path, shape=SHAPE, chunks=(8, 6), dtype="i4", serializer=codec, compressors=[GzipCodec()])
    array[...] = 1
    inner = FolderStore(str(tmp_path))
    assert await contents(unsharded(inner)) == await contents(inner)
    assert "shown with its shards" in caplog.text


@trio_test
async def test_what_others_change_is_told_of_what_is_shown(tmp_path: Path) -> None:
    async with pair(tmp_path) as (inner, _, plain):
        told: list[Change] = []

        class Telling(ForwardingStore):
            async def watch(self, tell: Callable[[Sequence[Change]], None]) -> None:
                tell([])
                tell([Change(Key("a/c/1/0"), "set", external=True), Change(Key("zarr.json"), "set", external=True)])
                tell([Change(Key("a/c/9/9"), "set", external=True), Change(Prefix("a/c/1/"), "unknown", external=True)])
                tell([Change(Key("beside/c/1"), "erase", external=True), Change(DOCUMENT, "set", external=True)])

        store = unsharded(Telling(inner))
        assert await contents(store) == plain
        await store.watch(told.extend)
        chunks = [Key(f"a/c/{row}/{column}") for row in range(4, 8) for column in range(2)]
        below = sorted({Prefix("a/c/1/"), *(Prefix(f"a/c/{row}/") for row in range(4, 8))})
        places: list[tuple[str, str]] = [*((chunk, "unknown") for chunk in chunks), ("zarr.json", "set")]
        places += [*((prefix, "unknown") for prefix in below), ("beside/c/1", "erase"), (DOCUMENT, "set"), ("a/", "unknown")]
        assert [(change.target, change.kind) for change in told] == places
        assert all(change.external for change in told)


@trio_test
async def test_changes_that_wait_to_be_told_are_known(tmp_path: Path) -> None:
    """Else a file of the mount is read with the elements of before, after another program has changed them."""

    class Changed(MemoryStore):
        def has_changes_now(self) -> bool:
            return True

    assert unsharded(Changed()).has_changes_now() and not unsharded(MemoryStore()).has_changes_now()


@trio_test
async def test_whoever_holds_a_chunk_sets_it_when_its_array_was_resized_meanwhile(tmp_path: Path) -> None:
    write(tmp_path, sharded=True, how="nested")
    store, chunk = unsharded(FolderStore(str(tmp_path)), ttl=0), Key("a/c/4/1")
    async with store.exclusive(chunk):
        value = await store.get(chunk)
        assert value is not None
        zarr.open_array(tmp_path / "a").resize((40, 11))
        with trio.fail_after(30):
            await store.set(chunk, value)
    assert (await contents(store))[chunk] == value


@trio_test
async def test_times_of_folders_are_told_alike_by_listing_and_looking_up(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, store, _):
        for prefix in map(Prefix, ("", "a/", "a/c/", "beside/", "beside/c/")):
            async for name, is_prefix, _, mtime_ns in store.list_dir(prefix):
                if is_prefix:
                    assert await store.prefix_mtime_ns(prefix.child(name)) == mtime_ns


def growing(extent: int) -> bytes:
    """Return a column of chunks of one byte, two to a shard."""
    sharding = {"chunk_shape": [1, 1], "codecs": [{"name": "bytes"}], "index_codecs": [LITTLE]}
    document = json.loads(small_document(extent, 2, {"name": "sharding_indexed", "configuration": sharding}))
    grid = {"name": "regular", "configuration": {"chunk_shape": [2, 1]}}
    return json.dumps(document | {"shape": [extent, 1], "chunk_grid": grid}).encode()


@pytest.mark.parametrize("how", ["set", "set_partial_values", "erase", "erase_prefix"])
@trio_test
async def test_chunks_that_others_store_in_an_array_that_has_grown_since_it_was_read_stay(how: str) -> None:
    """Of the last shard, one chunk was known: the shard was replaced, or erased, without being read."""
    inner = MemoryStore()
    await inner.set(DOCUMENT, growing(3))
    ours, theirs = unsharded(inner), unsharded(inner)
    key = Key("a/c/2/0")
    await ours.set(key, b"1")
    await inner.set(DOCUMENT, growing(4))
    await theirs.set(Key("a/c/3/0"), b"2")
    match how:
        case "set":
            await ours.set(key, b"3")
        case "set_partial_values":
            await ours.set_partial_values([(key, 0, b"3")])
        case "erase":
            await ours.erase(key)
        case "erase_prefix":
            await ours.erase_prefix(key.parent)
    assert await theirs.get(Key("a/c/3/0")) == b"2"
    assert await theirs.get(key) == (b"3" if how.startswith("set") else None)


@trio_test
async def test_the_only_chunk_of_a_shard_whose_index_is_bad_is_erased() -> None:
    inner = MemoryStore()
    await fill(inner, {DOCUMENT: growing(3), "a/c/1/0": b"no index"})
    await unsharded(inner).erase(Key("a/c/2/0"))
    assert await inner.get(Key("a/c/1/0")) is None
