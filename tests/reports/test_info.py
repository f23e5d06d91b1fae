"""``zarrfs info``: cheap for a whole store, complete for one named node, and without failure for any content."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.cases import cases
from tests.support.hostile import write_huge
from tests.support.mounting import shell
from tests.support.small_shards import ShardReads, UnlistableStore, document, shard, sharding
from tests.support.small_stores import SMALL, array_document, write
from tests.support.stores import InterruptedStore, fill
from zarrfs.command import main
from zarrfs.errors import StoreAccessDenied
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.model.metadata_values import plain
from zarrfs.model.unparsed import Unparsed
from zarrfs.options.config import MountConfig
from zarrfs.reports import info_amounts, offline
from zarrfs.reports.info import describe, describe_each
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Answer, DirEntry
from zarrfs.transformers.forwarding import ForwardingStore

GZIP = {"name": "gzip", "configuration": {"level": 1}}
# Three chunks of four, with four unused bytes.
SHARD = shard(4, {0: b"abcd", 1: b"efgh", 3: b"mnop"}, unused=b"gone")


def described(store: Path | str, path: str = "/a", **options: Any) -> dict[str, Any]:
    """Return the first node; every node has to be JSON."""
    nodes = trio.run(partial(describe, MountConfig(store=str(store)), path, **options))["nodes"]
    assert json.loads(json.dumps(nodes)) == nodes
    return dict(nodes[0])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three shards of four chunks in a grid of 2.5 shards."""
    return write(tmp_path, {"a/zarr.json": document(40, 16, sharding(4)), "a/c/0": SHARD, "a/c/2": shard(4, {0: b"abcd"})})


LEVEL = {
    "shape": [16],
    "chunks_per_shard": [4],
    "index_location": "end",
    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c", "configuration": {}}],
    "checksum": True,
    "codecs": [],
}


def test_a_store_is_described_without_reading_an_index(store: Path) -> None:
    said = described(store)
    assert said["shards"] == [LEVEL]
    assert (said["chunk_shape"], said["chunks_possible"], said["chunks_stored"]) == ([4], 10, None)
    assert (said["shards_stored"], said["shards_possible"], said["indexes"]) == (2, 3, None)
    assert said["stored_nbytes"] == len(SHARD) + len(shard(4, {0: b"abcd"}))


def test_of_an_array_that_is_asked_for_every_index_is_read(store: Path) -> None:
    said = described(store, indexes=True)
    assert (said["chunks_stored"], said["chunks_possible"], said["shards_stored"]) == (4, 10, 2)
    # The last shard has two chunks inside the grid.
    assert said["indexes"] == {
        "read": 2,
        "bad": 0,
        "bad_chunks": 0,
        "chunks_possible": 6,
        "unused_nbytes": 4,
        "fullness": 4 / 6,
    }


def test_bad_indexes_are_counted_and_not_in_the_way(store: Path) -> None:
    write(store, {"a/c/1": b"short", "a/c/2": shard(4, {0: b"abcd"}, others={1: (999, 4)})})
    said = described(store, indexes=True)
    assert said["chunks_stored"] == 4
    assert said["indexes"].items() >= {"read": 2, "bad": 1, "bad_chunks": 1, "chunks_possible": 6}.items()


def test_shards_outside_the_grid_count_for_nothing(store: Path) -> None:
    before = described(store, indexes=True)
    write(store, {"a/c/3": SHARD})
    assert described(store, indexes=True) == before


def test_levels_are_told_from_the_outside(tmp_path: Path) -> None:
    inner = sharding(2, index_location="start", index_codecs=[{"name": "bytes", "configuration": {"endian": "big"}}])
    write(tmp_path, {"a/zarr.json": document(40, 16, sharding(4, inner, GZIP), GZIP)})
    said = described(tmp_path, indexes=True)
    coded = [{"name": "gzip", "configuration": {"level": 1}}]
    outer = LEVEL | {"codecs": coded}
    within = {
        "shape": [4],
        "chunks_per_shard": [2],
        "index_location": "start",
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
        "checksum": False,
        "codecs": coded,
    }
    assert said["shards"] == [outer, within]
    assert (said["chunks_possible"], said["chunks_stored"], said["indexes"]["fullness"]) == (20, 0, None)


def test_nested_shards_of_zarr_python() -> None:
    (case,) = [case for case in cases("v3_final") if case.name == "v3_final/sharded"]
    said = described(case.path, "nested", indexes=True)
    assert [level["shape"] for level in said["shards"]] == [[8, 8], [4, 4]]
    assert (said["chunks_stored"], said["chunks_possible"], said["indexes"]["read"]) == (15, 32, 8)


def test_an_array_without_shards_has_none(tmp_path: Path) -> None:
    said = described(write(tmp_path, SMALL), indexes=True)
    assert (said["chunks_stored"], said["chunks_possible"]) == (5, 6)
    assert (said["shards"], said["shards_stored"], said["shards_possible"], said["indexes"]) == ([], None, None, None)


@pytest.mark.parametrize(("node", "reads"), [((), 0), (("/",), 0), (("a",), 40), (("/a/",), 40)])
def test_an_index_is_read_for_who_names_its_array(
    node: tuple[str, ...], reads: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ShardReads(MemoryStore())
    values = {"zarr.json": b'{"zarr_format": 3, "node_type": "group"}', "a/zarr.json": document(640, 16, sharding(4))}
    trio.run(fill, store, values | {f"a/c/{index}": SHARD for index in range(40)})

    async def open_it(url: str, read_only: bool = False) -> Store:
        return store

    monkeypatch.setattr(offline, "open_store", open_it)
    assert main.run(["info", "memory:", *node, "--json"]) == 0
    (said,) = [each for each in json.loads(capsys.readouterr().out)["nodes"] if each["path"] == "/a"]
    assert (store.reads, said["shards_stored"]) == (reads, 40)
    assert said["chunks_stored"] == (120 if reads else None)


def test_a_store_that_cannot_list_tells_how_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore()
    trio.run(fill, inner, {"a/zarr.json": document(40, 16, sharding(4)), "a/c/0": SHARD})

    async def open_it(url: str, read_only: bool = False) -> Store:
        return UnlistableStore(inner)

    monkeypatch.setattr(offline, "open_store", open_it)
    said = described("memory:", indexes=True)
    assert (said["shards"], said["shards_stored"], said["shards_possible"], said["indexes"]) == ([LEVEL], None, 3, None)


def test_an_array_at_the_root_is_named_by_a_slash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"zarr.json": document(40, 16, sharding(4)), "c/0": SHARD})
    assert main.run(["info", str(tmp_path)]) == 0
    assert "1 of 3 shards stored" in capsys.readouterr().out
    assert main.run(["info", str(tmp_path), "/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "chunks (4) in shards (16)" in lines[1] and "3 of 10 chunks in 1 of 3 shards stored" in lines[1]
    assert lines[2].endswith("shards (16): 4 chunks each, index at the end with a checksum")
    assert lines[3].endswith("1 index read, 75 % of their chunks stored, 4 B unused")


# --- any content of a store -----------------------------------------------------------------------------------------------------


def all_described(store: Path | str, **options: Any) -> dict[str, dict[str, Any]]:
    """Return every node by its path, as a program reads it."""
    said = trio.run(partial(describe, MountConfig(store=str(store)), "/", **options))
    return {node["path"]: node for node in json.loads(json.dumps(said, allow_nan=False))["nodes"]}


def test_a_named_group_shows_its_attributes_and_those_below_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {f"g/{key}": value for key, value in SMALL.items()})
    write(tmp_path, {"g/.zattrs": b'{"title": "x"}', "g/a/.zattrs": b'{"units": "K", "n": 1}'})
    assert main.run(["info", str(tmp_path), "g"]) == 0
    named = capsys.readouterr().out
    assert 'title: "x"' in named and "2 attributes" in named and "units" not in named
    assert main.run(["info", str(tmp_path)]) == 0
    assert "title" not in capsys.readouterr().out


def test_documents_of_another_layout_at_the_same_path_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        tmp_path,
        {"n/zarr.json": document(4, 4), "n/.zarray": b"{", "n/meta": b'{"zarr_format": 1}', "ok/zarr.json": document(4, 4)},
    )
    nodes = all_described(tmp_path)
    assert (nodes["/n"]["dialect"], nodes["/n"]["hidden_dialects"]) == ("v3", ["v2", "v1"])
    assert nodes["/ok"]["hidden_dialects"] == []
    assert main.run(["info", str(tmp_path)]) == 0
    assert "documents of v2 and v1 here are ignored" in capsys.readouterr().out


def test_attributes_that_json_cannot_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """zarr-python wrote bare tokens; any program can read the output."""
    write(tmp_path, SMALL | {"a/.zattrs": b'{"x": NaN, "y": [Infinity, {"z": -Infinity}], "e": "\\u001b[2J"}'})
    assert main.run(["info", str(tmp_path), "--json"]) == 0

    def refuse(token: str) -> None:
        raise AssertionError(token)

    nodes = json.loads(capsys.readouterr().out, parse_constant=refuse)["nodes"]
    assert nodes[1]["attributes"] == {"x": "NaN", "y": ["Infinity", {"z": "-Infinity"}], "e": "\x1b[2J"}
    assert main.run(["info", str(tmp_path), "a"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


FIELDS = [["a", "<U1"], ["b", "<M8[D]"], ["c", "<f4", [2]], ["d", "|S2"], ["e", [["f", "|b1"]]]]
FILLS: dict[str, tuple[Any, Any, Any, str | None]] = {
    "undefined": ("<f4", None, None, None),
    "nan": ("<f4", "NaN", "NaN", "NaN"),
    "complex": ("<c8", [1.0, "NaN"], [1.0, "NaN"], '[1.0, "NaN"]'),
    "text": ("<U2", "0", "0", '"0"'),
    "bytes": ("|S3", b64(b"a\x1b"), b64(b"a\x1b"), r"'a\x1b'"),
    "long": ("|S200000", b64(bytes(1) + b"x" * 199_999), {"nbytes": 200_000}, "of 200000 bytes"),
    "padded": ("|S16000000", "", "", "''"),
    "raw": ("|V2", b64(b"\1\xff"), b64(b"\1\xff"), "0x01ff"),
    "not a time": ("<M8[s]", -(2**63), -(2**63), "NaT"),
    "time": ("<m8[D]", 3, 3, "3 days"),
    "fields": (
        FIELDS,
        b64(b"x\0\0\0" + bytes(16) + b"z\0\1"),
        b64(b"x\0\0\0" + bytes(16) + b"z\0\1"),
        "(\"x\", 1970-01-01, [0.0, 0.0], 'z', (true))",
    ),
    # NumPy cannot even print it.
    "no text": (
        FIELDS,
        b64(b"\xff" * 4 + bytes(19)),
        b64(b"\xff" * 4 + bytes(19)),
        "(0xffffffff, 1970-01-01, [0.0, 0.0], '', (false))",
    ),
}


@pytest.mark.parametrize("name", FILLS)
def test_fill_values(name: str, tmp_path: Path) -> None:
    dtype, written, told, text = FILLS[name]
    document_of_v2 = json.loads(array_document((4,), (2,), fill_value=written)) | {"dtype": dtype}
    said = described(write(tmp_path, {"a/.zarray": json.dumps(document_of_v2).encode()}))
    assert (said["fill_value"], said["fill_text"]) == (told, text)


def test_more_chunks_and_bytes_than_there_are_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write(write_huge(tmp_path), {"most/.zarray": array_document((2**62,) * 20, (1,) * 20)})
    nodes = all_described(store, indexes=True)
    assert (nodes["/most"]["chunks_possible"], nodes["/most"]["nbytes"], nodes["/most"]["ratio"]) == (None, None, None)
    assert (nodes["/most"]["chunks_stored"], nodes["/most"]["stored_nbytes"]) == (0, 0)
    assert nodes["/no_such_number"]["chunks_possible"] == 2**310
    assert "dimensions" in nodes["/thousands_of_dimensions"]["reason"]
    assert main.run(["info", str(store)]) == 0
    assert "0 of more than 10^308 chunks stored" in capsys.readouterr().out


class BadPlace(InterruptedStore):
    """A store in which ``place`` can be neither read nor listed."""

    def __init__(self, inner: Store, place: str) -> None:
        super().__init__(inner)
        self.place = place

    async def interrupt(self, operation: str, target: str) -> None:
        if target == self.place:
            raise StoreAccessDenied("permission denied", key=target)


@pytest.mark.parametrize("place", ["a/", "a/.zarray", "g/", "a/meta"])
def test_what_cannot_be_read_is_told_and_hides_nothing_else(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = MemoryStore()
    there = {place: b"{}"} if place == "a/meta" else {}
    trio.run(fill, inner, SMALL | {"g/.zgroup": SMALL[".zgroup"], "g/b/.zarray": SMALL["a/.zarray"]} | there)

    async def open_it(url: str, read_only: bool = False) -> Store:
        return BadPlace(inner, place)

    monkeypatch.setattr(offline, "open_store", open_it)
    said = trio.run(partial(describe, MountConfig(store="memory:"), "/"))["nodes"]
    assert {"/a", "/z", "/g"} <= {node["path"] for node in said}
    kinds = {(node["path"], node["kind"]): node for node in said}
    match place:
        case "a/":
            node = kinds["/a", "array"]
            assert "permission denied" in node["error"]
            assert (node["chunks_stored"], node["stored_nbytes"], node["ratio"]) == (None, None, None)
        case "a/.zarray":
            assert "permission denied" in kinds["/a", "unsupported"]["reason"]
        case "g/":
            assert kinds["/g", "group"]["explicit"]
            assert "permission denied" in kinds["/g", "unsupported"]["reason"]
        case "a/meta":
            # A document of v1, which would not count here: its existence is unknown.
            assert kinds["/a", "array"]["chunks_stored"] == 5
            assert kinds["/a", "array"]["hidden_dialects"] is None
    assert kinds["/z", "array"]["error"] is None
    assert main.run(["info", "memory:"]) == 0
    assert ("permission denied" in capsys.readouterr().out) is (place != "a/meta")


def test_a_long_listing_tells_how_far_it_is(tmp_path: Path) -> None:
    write(tmp_path, {"a/.zarray": array_document((600,), (1,), "|u1")} | {f"a/{index}": b"x" for index in range(600)})
    calls: list[tuple[str, int, int | None]] = []
    trio.run(partial(describe, MountConfig(store=str(tmp_path)), "/", on_progress=lambda *call: calls.append(call)))
    assert calls == [("nodes", 1, None), ("chunks of /a", 256, None), ("chunks of /a", 512, None), ("nodes", 2, None)]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_shards_are_counted_once_each_in_whatever_steps_and_told_of(
    batch: int, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = described(store, indexes=True)
    monkeypatch.setattr(info_amounts, "_BATCH", batch)
    monkeypatch.setattr(info_amounts, "_PROGRESS_EVERY", 1)
    calls: list[tuple[str, int, int | None]] = []
    assert described(store, indexes=True, on_progress=lambda *call: calls.append(call)) == said
    assert [call for call in calls if call[0] == "shards of /a"] == [("shards of /a", number, None) for number in (1, 2)]
    assert [call[1:] for call in calls if call[0] == "indexes of shards"] == [(1, 2), (2, 2)]


def test_a_member_that_was_not_parsed_is_told_by_how_long_it_is() -> None:
    attributes = {"large": Unparsed(b"[1, 2, 3]"), "few": [1.5, float("-inf")]}
    assert plain(attributes) == {"large": {"nbytes": 9}, "few": [1.5, "-Infinity"]}


class InterruptedByUser(InterruptedStore):
    """Ctrl-C while the first array is listed."""

    async def interrupt(self, operation: str, target: str) -> None:
        if target == "a/":
            os.kill(os.getpid(), signal.SIGINT)
            await trio.sleep_forever()


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """Handle SIGINT, which a shell ignores for tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_ctrl_c_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    inner = MemoryStore()
    trio.run(fill, inner, SMALL)

    async def open_it(url: str, read_only: bool = False) -> Store:
        return InterruptedByUser(inner)

    monkeypatch.setattr(offline, "open_store", open_it)
    assert main.run(["info", "memory:"]) == 130
    printed = capsys.readouterr()
    assert not printed.err and len(printed.out.splitlines()) <= 2


def test_a_reader_that_closes_the_pipe_ends_it_silently(tmp_path: Path) -> None:
    write(
        tmp_path, {".zgroup": b'{"zarr_format":2}', **{f"x{number}/.zarray": array_document((4,), (4,)) for number in range(3000)}}
    )
    done = shell(f"{sys.executable} -P -m zarrfs info $1 | head -2", tmp_path)
    assert done.stdout.decode().splitlines() == [str(tmp_path), "└── /  group, v2"] and not done.stderr


class Counting(ForwardingStore):
    """A store that counts requests for documents, and for names."""

    requests = 0
    listings = 0

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        self.requests += 1
        return await super().get_many(key_ranges)

    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        self.listings += 1
        return super().list_dir(prefix)

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        self.listings += 1
        return await super().peek(prefix, most)


def test_an_array_costs_one_request_for_its_documents_and_one_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in its folder tells of other layouts, of nodes below it, and of its chunks."""

    async def requests(arrays: int) -> tuple[int, int]:
        store = Counting(MemoryStore())

        async def open_it(url: str, read_only: bool = False) -> Store:
            return store

        monkeypatch.setattr(offline, "open_store", open_it)
        await fill(store, {".zgroup": b'{"zarr_format":2}'})
        for number in range(arrays):
            await fill(store, {f"x{number}/.zarray": array_document((4,), (4,)), f"x{number}/0": bytes(4)})
        await describe(MountConfig(store="memory:"), "/")
        return store.requests, store.listings

    async def main() -> None:
        few, many = await requests(10), await requests(110)
        assert [round((more - less) / 100, 1) for more, less in zip(many, few, strict=True)] == [1, 1]

    trio.run(main)


def test_a_node_is_described_before_the_nodes_after_it_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large store the first lines are printed at once. What is read ahead is one group's children, a few at a time."""
    store = Counting(MemoryStore())

    async def open_it(url: str, read_only: bool = False) -> Store:
        return store

    async def main() -> None:
        await fill(store, {".zgroup": b'{"zarr_format":2}'})
        for group in "abc":
            arrays = {f"{group}/x{number}/.zarray": array_document((4,), (4,)) for number in range(100)}
            await fill(store, {f"{group}/.zgroup": b'{"zarr_format":2}', **arrays})
        before: dict[str, int] = {}
        await describe_each(MountConfig(store="memory:"), "/", lambda node, *_: before.update({node["path"]: store.requests}))
        assert len(before) == 304
        assert before["/"] < 30 and before["/a"] < 100 and before["/c/x99"] > 300

    monkeypatch.setattr(offline, "open_store", open_it)
    trio.run(main)


def test_the_place_of_each_node_in_the_tree(tmp_path: Path) -> None:
    """Also below an unreadable node, where folders without documents are no nodes."""
    array, group = array_document((4,), (4,)), b'{"zarr_format":2}'
    groups = {f"{path}.zgroup": group for path in ("", "a/", "a/d/")}
    arrays = {f"{path}/.zarray": array for path in ("a/b", "a/d/e", "bad/deep/x", "bad/inner", "z")}
    write(tmp_path, {**groups, **arrays, "bad/.zarray": b"{"})
    places: list[tuple[str, str, bool]] = []

    async def main() -> None:
        config = MountConfig(store=str(tmp_path))
        await describe_each(config, "/", lambda node, *place: places.append((node["path"], _marks(place[0]), place[1])))

    trio.run(main)
    assert places == [
        ("/", ".", True),
        ("/a", ".+", True),
        ("/a/b", ".++", False),
        ("/a/d", ".+.", True),
        ("/a/d/e", ".+..", False),
        ("/bad", ".+", True),
        ("/bad/deep/x", ".++", False),
        ("/bad/inner", ".+.", False),
        ("/z", "..", False),
    ]


def _marks(followed: Sequence[bool]) -> str:
    return "".join("+" if each else "." for each in followed)


def test_links_and_files_being_written_hide_no_node(tmp_path: Path, expect_logs: Callable[[str], None]) -> None:
    """Of a folder with many names only the first are looked at, unless they are few."""
    expect_logs("symbolic links")
    chunks = {f"a/{number}": bytes(4) for number in range(400)}
    groups = {f"g/{number}/.zgroup": b'{"zarr_format": 2}' for number in range(400)}
    store = write(tmp_path / "store", {"a/.zarray": array_document((1600,), (4,))} | chunks | groups)
    for place in ("a", "g"):
        for number in range(100):
            (store / place / f"link{number}").symlink_to(tmp_path)
    nodes = trio.run(describe, MountConfig(store=str(store)), "/")["nodes"]
    expected = {"/": "group", "/a": "array", "/g": "group"} | {f"/g/{number}": "group" for number in range(400)}
    assert {node["path"]: node["kind"] for node in nodes} == expected
