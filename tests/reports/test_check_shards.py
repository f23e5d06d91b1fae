"""``zarrfs check`` of sharded arrays: a defect of a shard is reported once, with its key, and everything else is decoded."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.small_shards import NONE, ShardReads, UnlistableStore, document, index, shard, sharding
from tests.support.small_stores import write
from tests.support.stores import fill
from zarrfs.buffers import Buffer
from zarrfs.command import main
from zarrfs.errors import StoreError
from zarrfs.keys import ByteRange, Key
from zarrfs.options.config import MountConfig
from zarrfs.reports import check_text, offline
from zarrfs.reports.check import check
from zarrfs.reports.findings import Finding, Report
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import KeyStat
from zarrfs.transformers.forwarding import ForwardingStore

CHUNKS = {0: b"abcd", 1: b"efgh", 3: b"mnop"}
GZIP = {"name": "gzip", "configuration": {"level": 1}}


def store_with(folder: Path, shards: dict[int, bytes], *, shape: int = 64, codecs: tuple[Any, ...] = (sharding(4),)) -> Path:
    """Write the array ``a`` of chunks of four bytes, four to a shard."""
    return write(folder, {"a/zarr.json": document(shape, 16, *codecs)} | {f"a/c/{i}": data for i, data in shards.items()})


def checked(store: Path | str, **options: Any) -> Report:
    return trio.run(check, MountConfig(store=str(store), **options), "/")


def only(report: Report) -> Finding:
    """Return the only finding; everything else was checked."""
    (finding,) = report.bad.first
    assert report.complete and report.done == report.total and report.unchecked.count == 0
    return finding


def test_a_sound_array_is_summed_up_and_says_how_full_it_is(tmp_path: Path) -> None:
    report = checked(store_with(tmp_path, {0: shard(4, CHUNKS), 2: shard(4, {2: b"ijkl"}, unused=b"gone")}))
    assert (report.bad.count, report.outside.count, report.complete) == (0, 0, True)
    assert (report.chunks, report.stored_nbytes, report.decoded_nbytes, report.done, report.total) == (4, 16, 16, 4, 4)
    assert (report.shards, report.shard_chunks, report.shard_chunks_possible, report.shard_unused_nbytes) == (2, 4, 8, 4)
    assert check_text.render(report).plain.endswith("16 B stored, 16 B decoded, 2 shards 50 % full with 4 B unused: all is well")


@pytest.mark.parametrize("width", [1, 100, 1 << 30])
def test_memory_holds_one_chunk_at_least(tmp_path: Path, width: int) -> None:
    report = checked(store_with(tmp_path, {i: shard(4, CHUNKS) for i in range(4)}), memory_limit=width)
    assert (report.chunks, report.bad.count) == (12, 0)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"abcdefgh" + index([(0, 4), (4, 4), NONE, NONE], checksum=1), "crc32c"),
        (shard(4, CHUNKS)[:-1] + b"\0", "crc32c"),
        (shard(4, CHUNKS)[:-9], "crc32c"),
        (shard(4, CHUNKS)[:-40], "shard of 40 bytes: shorter than"),
        (shard(4, CHUNKS)[-60:], "shard of 60 bytes: shorter than"),
        (b"", "shard of 0 bytes: shorter than"),
    ],
    ids=["index", "checksum", "cut", "cut short", "cut in front", "empty"],
)
def test_an_index_that_cannot_be_read_is_told_once(tmp_path: Path, bad: bytes, says: str) -> None:
    report = checked(store_with(tmp_path, {0: shard(4, CHUNKS), 1: bad}))
    finding = only(report)
    assert (finding.path, finding.key, finding.shard, finding.coords) == ("/a", "a/c/1", (1,), None)
    assert says in finding.reason
    assert (report.chunks, report.shards, report.shard_chunks_possible) == (3, 1, 4)


def test_chunks_that_an_index_misplaces_are_told_together(tmp_path: Path) -> None:
    others = {0: (4, 8), 2: (10**6, 4), 3: (0, 4)}
    report = checked(store_with(tmp_path, {0: shard(4, CHUNKS), 3: shard(4, CHUNKS, others=others)}))
    finding = only(report)
    assert (finding.key, finding.shard, finding.coords) == ("a/c/3", (3,), None)
    # The first overlaps the second, so that neither can be right; the fourth lies before both.
    assert finding.reason.startswith("shard (3,): 3 of its chunks unreadable ((12,), (13,), (14,)): ")
    assert (report.chunks, report.shards, report.shard_chunks, report.shard_chunks_possible) == (4, 2, 4, 8)


def test_an_entry_of_which_the_offset_alone_says_empty_is_damage(tmp_path: Path) -> None:
    others = {1: (0, 2**64 - 1), 2: (2**64 - 1, 4)}
    report = checked(store_with(tmp_path, {3: shard(4, {0: b"abcd"}, others=others)}))
    assert only(report).reason.startswith("shard (3,): 1 of its chunks unreadable ((14,)): ")
    assert report.chunks == 1


def test_many_misplaced_chunks_are_not_all_named(tmp_path: Path) -> None:
    codecs = (sharding(1),)
    bad = shard(16, {15: b"z"}, others=dict.fromkeys(range(15), (2**64 - 2, 4)))
    finding = only(checked(store_with(tmp_path, {0: bad}, codecs=codecs)))
    assert "15 of its chunks unreadable ((0,), (1,), (2,), (3,), (4,), ...): " in finding.reason


def test_a_chunk_that_does_not_decode_is_told_by_its_coordinates(tmp_path: Path) -> None:
    report = checked(store_with(tmp_path, {1: shard(4, CHUNKS | {2: b"too long"})}))
    finding = only(report)
    assert (finding.key, finding.coords, finding.shard) == ("a/c/1", (6,), None)
    assert report.chunks == 3 and report.total == 4


def test_identical_entries_are_sound(tmp_path: Path) -> None:
    report = checked(store_with(tmp_path, {0: shard(4, {0: b"abcd"}, others={1: (0, 4), 2: (0, 4)})}))
    assert (report.bad.count, report.chunks, report.shard_unused_nbytes) == (0, 3, 0)


def test_what_lies_outside_the_grid_is_noted_once_a_shard(tmp_path: Path) -> None:
    """Eighteen elements: of the second shard one chunk is inside."""
    report = checked(store_with(tmp_path, {1: shard(4, CHUNKS), 2: shard(4, CHUNKS), 7: b"anything"}, shape=18))
    assert report.bad.count == 0
    assert {(each.key, each.shard) for each in report.outside.first} == {("a/c/1", (1,)), ("a/c/2", (2,)), ("a/c/7", (7,))}
    assert "2 of its chunks outside the grid" in next(each.reason for each in report.outside.first if each.shard == (1,))
    assert (report.chunks, report.shards, report.shard_chunks_possible) == (1, 1, 1)


def test_a_link_in_the_place_of_a_shard_is_bad(tmp_path: Path, expect_logs: Callable[[str], None]) -> None:
    expect_logs("symbolic links")
    store = store_with(tmp_path / "store", {0: shard(4, CHUNKS)})
    (tmp_path / "elsewhere").write_bytes(shard(4, CHUNKS))
    (store / "a/c/1").symlink_to(tmp_path / "elsewhere")
    assert only(checked(store)).key == "a/c/1"


def test_a_grid_too_large_to_be_asked_for_whole_is_read_by_its_listing(tmp_path: Path) -> None:
    store = store_with(tmp_path, {0: shard(4, CHUNKS), 77: b"short"}, shape=2**40)
    report = checked(store)
    assert (only(report).shard, report.chunks) == ((77,), 3)


# --- nested, and encoded as a whole ----------------------------------------------------------------------------------------------


def test_a_shard_within_a_shard(tmp_path: Path) -> None:
    """Chunks of two in shards of four, and these in shards of sixteen."""
    inner = shard(2, {0: b"ab", 1: b"cd"})
    torn = inner[:-1] + bytes([inner[-1] ^ 1])
    good = shard(4, {0: inner, 2: shard(2, {1: b"yz"}, unused=b"...")}, unused=b"..")
    bad = shard(4, {0: torn, 1: inner}, others={3: (5, 5)})
    report = checked(store_with(tmp_path, {0: good, 2: bad}, codecs=(sharding(4, sharding(2)),)))
    found = {(each.key, each.shard): each.reason for each in report.bad.first}
    # The pair that leads into another shard spoils both; their chunks are not reported one by one.
    assert set(found) == {("a/c/2", (2,))}
    assert "2 of its shards unreadable ((8,), (11,))" in found["a/c/2", (2,)]
    assert (report.chunks, report.shards) == (5, 5)
    assert (report.shard_chunks, report.shard_chunks_possible, report.shard_unused_nbytes) == (5, 16, 5 + len(torn))

    write(tmp_path, {"a/c/2": shard(4, {0: torn, 1: inner})})
    report = checked(tmp_path)
    finding = only(report)
    assert (finding.key, finding.shard) == ("a/c/2", (8,))
    assert finding.reason.startswith("shard (8,) of level 2: ") and "crc32c" in finding.reason
    assert (report.chunks, report.shards) == (5, 5)


def test_a_shard_that_was_compressed_as_a_whole(tmp_path: Path) -> None:
    packed = gzip.compress(shard(4, CHUNKS, unused=bytes(1000)))
    store = store_with(tmp_path, {0: packed, 1: packed[:-9], 2: gzip.compress(b"short")}, codecs=(sharding(4), GZIP))
    report = checked(store)
    assert {(each.key, each.shard, each.coords) for each in report.bad.first} == {("a/c/1", (1,), None), ("a/c/2", (2,), None)}
    assert (report.chunks, report.shard_unused_nbytes) == (3, 1000)


# --- mode of operation ---------------------------------------------------------------------------------------------------------


def opening(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    async def open_it(url: str, read_only: bool = False) -> Store:
        return store

    monkeypatch.setattr(offline, "open_store", open_it)


class TornStore(ForwardingStore):
    """A store with one unreadable key."""

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        if key == "a/c/1":
            raise StoreError(f"reading {key!r}: a bad disk", key=key)
        return await super().get_with_stat(key, byte_range)


def test_a_shard_that_the_store_does_not_give_is_one_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore()
    shards = {f"a/c/{i}": shard(4, CHUNKS) for i in range(4)}
    trio.run(fill, inner, {"a/zarr.json": document(64, 16, sharding(4))} | shards)
    opening(monkeypatch, TornStore(inner))
    report = checked("memory:")
    finding = only(report)
    assert (finding.key, finding.shard, report.chunks) == ("a/c/1", (1,), 9)
    assert "a bad disk" in finding.reason


def test_chunks_of_a_shard_are_got_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reads of each shard: its index, and its 64 chunks."""
    store = ShardReads(MemoryStore())
    data = shard(64, {place: bytes([place]) for place in range(64)})
    trio.run(fill, store, {"a/zarr.json": document(256, 64, sharding(1))} | {f"a/c/{i}": data for i in range(4)})
    opening(monkeypatch, store)
    assert checked("memory:").chunks == 256
    assert store.reads == 8


def test_a_store_that_cannot_list_is_asked_for_every_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore()
    shards = {"a/c/0": shard(4, CHUNKS), "a/c/2": shard(4, CHUNKS), "a/c/3": b"short"}
    trio.run(fill, inner, {"a/zarr.json": document(64, 16, sharding(4))} | shards)
    opening(monkeypatch, UnlistableStore(inner))
    report = trio.run(check, MountConfig(store="memory:"), "/a")
    assert (only(report).key, report.chunks, report.shards) == ("a/c/3", 6, 2)


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_with(tmp_path, {0: shard(4, CHUNKS, unused=b"1234567")})
    assert main.run(["check", str(store)]) == 0
    assert "1 shard 75 % full with 7 B unused: all is well" in capsys.readouterr().out
    write(store, {"a/c/1": b"short"})
    assert main.run(["check", str(store), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said.items() >= {"shards": 1, "shard_chunks": 3, "shard_chunks_possible": 4, "shard_unused_nbytes": 7}.items()
    assert said["bad"][0].items() >= {"path": "/a", "key": "a/c/1", "shard": [1]}.items() and "coords" not in said["bad"][0]
    assert main.run(["check", str(store)]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("  a/c/1: shard (1,): ")
