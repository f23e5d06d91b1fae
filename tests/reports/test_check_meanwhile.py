"""``zarrfs check`` of a store that is large, or that others change: in steps, and data removed meanwhile is not an error."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.reports.test_check_shards import CHUNKS, checked, only, opening, store_with
from tests.support.small_shards import LITTLE, UnlistableStore, document, shard, sharding
from tests.support.small_stores import SMALL, write
from tests.support.stores import fill
from zarrfs.arrays import paged_shard_index, shard_index_reader, shard_survey
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import ByteRange, Key, NodePath
from zarrfs.options.config import MountConfig
from zarrfs.reports import check, check_grid, check_shards
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Generation
from zarrfs.transformers.forwarding import ForwardingStore

SHARDED = {"a/zarr.json": document(64, 16, sharding(4)), **{f"a/c/{number}": shard(4, CHUNKS) for number in range(4)}}


def in_memory(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, bytes], over: Callable[[Store], Store] = lambda store: store
) -> Store:
    """Return the store that is checked as ``memory:``."""
    inner = MemoryStore()
    trio.run(fill, inner, values)
    store = over(inner)
    opening(monkeypatch, store)
    return store


# --- in steps -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 4, 5])
@pytest.mark.parametrize("asked", [0, 100])
def test_nothing_is_left_out_or_counted_twice_however_small_the_steps_are(
    batch: int, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (check, check_shards):
        monkeypatch.setattr(module, "_BATCH", batch)
    monkeypatch.setattr(check_grid, "_ASKED", asked)
    sharded = checked(write(tmp_path / "sharded", {**SHARDED, "a/c/9": b"outside"}))
    assert (sharded.chunks, sharded.shards, sharded.total, sharded.done) == (12, 4, 12, 12)
    assert [each.key for each in sharded.outside.first] == ["a/c/9"] and sharded.bad.count == 0
    plain = checked(write(tmp_path / "plain", SMALL))
    assert (plain.chunks, plain.bad.count, plain.complete) == (5, 0, True)
    assert plain.total == plain.done == (12 if asked else 5)


@pytest.mark.parametrize("width", [1, 2, 16])
def test_shards_within_a_shard_are_all_looked_at_however_few_at_once(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_survey, "_WIDTH", width)
    inner = shard(2, {0: b"ab", 1: b"cd"})
    torn = inner[:-1] + bytes([inner[-1] ^ 1])
    store = store_with(tmp_path, {0: shard(4, {0: inner, 1: torn, 2: inner, 3: inner})}, codecs=(sharding(4, sharding(2)),))
    report = checked(store)
    assert (report.chunks, report.shards) == (6, 4) and only(report).shard == (1,)


@pytest.fixture
def in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every index too large to be held, with two pairs to a page."""
    monkeypatch.setattr(shard_index_reader, "HELD_NBYTES", 0)
    for module in (shard_index_reader, paged_shard_index):
        monkeypatch.setattr(module, "PAGE_PAIRS", 2)


@pytest.mark.usefixtures("in_pages")
def test_an_index_that_is_read_in_pages_is_told_by_how_many_are_bad(tmp_path: Path) -> None:
    others = {1: (10**6, 4), 2: (2**64 - 2, 4)}
    report = checked(store_with(tmp_path, {0: shard(4, CHUNKS, others=others), 1: shard(4, CHUNKS)}))
    assert only(report).reason == "shard (0,): 2 of its chunks unreadable"
    assert (report.chunks, report.shards) == (5, 2)


class Restless(ForwardingStore):
    """A store in which another program replaces one shard each time that a part of it is read."""

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        if key_ranges[0][0] == "a/c/1":
            await self.inner.set(Key("a/c/1"), SHARDED["a/c/1"])
        return await super().get_partial_values(key_ranges, if_generation=if_generation)


@pytest.mark.usefixtures("in_pages")
def test_a_shard_that_never_rests_is_one_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a checksum, only some pages of the index are read.
    unchecked = {key: value[:-4] if "/c/" in key else value for key, value in SHARDED.items()}
    unchecked["a/zarr.json"] = document(64, 16, sharding(4, index_codecs=[LITTLE]))
    monkeypatch.setitem(SHARDED, "a/c/1", unchecked["a/c/1"])
    in_memory(monkeypatch, unchecked, Restless)
    report = checked("memory:")
    assert only(report).key == "a/c/1" and "'a/c/1' was changed" in only(report).reason
    assert report.chunks == 9


# --- chunks that cannot be read together ----------------------------------------------------------------------------------------


class TornStore(ForwardingStore):
    """A store with one chunk on a bad part of the disk: every read that includes it fails."""

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        for key, each in key_ranges:
            if key == "a/c/1" and each.resolve(100)[0] <= 4 < each.resolve(100)[1] <= 12:
                raise StoreError(f"reading {key!r}: a bad disk", key=key)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)


def test_of_chunks_that_cannot_be_had_together_those_that_can_alone_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, SHARDED, TornStore)
    report = checked("memory:")
    finding = only(report)
    assert (finding.key, finding.coords, report.chunks) == ("a/c/1", (5,), 11) and "a bad disk" in finding.reason


def strings(*texts: str) -> bytes:
    """Return a chunk of them, as vlen-utf8 encodes it."""
    encoded = [text.encode() for text in texts]
    return struct.pack("<I", len(texts)) + b"".join(struct.pack("<I", len(each)) + each for each in encoded)


TEXTS = json.dumps(
    json.loads(document(16, 8, sharding(2, {"name": "vlen-utf8"}))) | {"data_type": "string", "fill_value": ""}
).encode()


def test_chunks_of_text_in_shards_are_each_decoded(tmp_path: Path) -> None:
    good, other, torn = strings("one", "three"), strings("", "ünf"), strings("six", "seven")[:-2]
    report = checked(write(tmp_path, {"a/zarr.json": TEXTS, "a/c/0": shard(4, {0: good, 2: torn, 3: other})}))
    finding = only(report)
    assert (finding.key, finding.coords) == ("a/c/0", (2,))
    assert (report.chunks, report.stored_nbytes, report.total) == (2, len(good) + len(other), 3)


# --- data removed meanwhile -----------------------------------------------------------------------------------------------------


class Vanishing(ForwardingStore):
    """A store in which chunks vanish from shards after their first index was read: every later index is empty."""

    def __init__(self, inner: Store, empty: bytes) -> None:
        super().__init__(inner)
        self._empty = empty
        self.is_late = False

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        if self.is_late and "/c/" in key_ranges[0][0]:
            await self.inner.set(key_ranges[0][0], self._empty)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)


@pytest.mark.parametrize("text", [False, True], ids=["elements", "text"])
def test_chunks_that_are_gone_when_they_are_read_are_no_fault(text: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a/zarr.json": TEXTS, "a/c/0": shard(4, {0: strings("one", "two")})} if text else dict(SHARDED)
    store = in_memory(monkeypatch, values, lambda inner: Vanishing(inner, shard(4, {})))
    assert isinstance(store, Vanishing)

    before = check_shards._read_group

    async def late(*asked: Any) -> None:
        store.is_late = True
        await before(*asked)

    monkeypatch.setattr(check_shards, "_read_group", late)
    report = checked("memory:")
    assert (report.bad.first, report.chunks, report.complete) == ([], 0, True)
    assert report.total == report.done == (1 if text else 12)


@pytest.mark.parametrize("first", [0, 1], ids=["before it is counted", "before it is read"])
def test_an_array_that_is_gone_by_now_is_no_fault_and_the_others_are_checked(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write(tmp_path, {**SMALL, "b/.zarray": SMALL["a/.zarray"], "b/0.0": SMALL["a/0.0"]})
    array, asked = Hierarchy.array, list[str]()

    async def gone(self: Hierarchy, path: NodePath) -> Any:
        asked.append(path)
        return None if path == "/a" and asked.count("/a") > first else await array(self, path)

    monkeypatch.setattr(Hierarchy, "array", gone)
    report = checked(store)
    assert (report.bad.count, report.chunks, report.complete) == (0, 1, True)


def test_where_nobody_can_tell_what_else_lies_there_the_rest_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def others_at(self: Hierarchy, path: NodePath) -> list[str]:
        raise StoreError("a bad disk", key=path)

    monkeypatch.setattr(Hierarchy, "others_at", others_at)
    store = write(tmp_path, {**SMALL, "bad/.zarray": b"{"})
    report = checked(store)
    told = {each.path: each.reason for each in report.bad.first}
    assert set(told) == {"/", "/a", "/z", "/bad"} and report.chunks == 5
    assert "other nodes here unknown" in told["/a"] and "other nodes here" not in told["/bad"]


def test_a_store_that_cannot_list_is_asked_for_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch, SMALL, UnlistableStore)
    report = trio.run(check.check, MountConfig(store="memory:"), "/a")
    assert (report.chunks, report.total, report.done, report.bad.count) == (5, 6, 6, 0)


def test_an_array_without_elements_has_nothing_to_check(tmp_path: Path) -> None:
    report = checked(write(tmp_path, {"a/zarr.json": document(0, 16, sharding(4))}))
    assert (report.total, report.chunks, report.bad.count, report.complete) == (0, 0, 0, True)
