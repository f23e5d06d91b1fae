"""Sizes chosen by a store or a writer, and the memory that the daemon needs for them (docs/design/017-memory.md).

Each test repeats an attack, actual or possible, and asserts the outcome (the right bytes, or an errno and its reason in
``errors.jsonl``) and the peak: anonymous memory of the daemon and of its children stays below the limit and 150 MB.
"""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.large_stores import BOMBS, MIB, sparse, v2, v3, write
from tests.support.length import FULL, share
from tests.support.mounting import ROOT, Mounted, mounted, mounted_hanging, zarrfs
from tests.support.resident import sampled

pytestmark = pytest.mark.fuse

T = TypeVar("T")

LIMIT = share(192 * MIB)
ALLOWED = LIMIT + 150 * 1000 * 1000
GROUP = '{"zarr_format":2}'
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
JSON2 = {"id": "json2", "encoding": "utf-8", "strict": True, "separators": [",", ":"], "sort_keys": True, "indent": None}


@contextmanager
def watched(store: Path, tmp_path: Path, *, ends_with: int = 0) -> Iterator[Mounted]:
    """Mount ``store`` with the default memory limit, or a quarter of it, and assert the peak."""
    with mounted(store, "--memory-limit", str(LIMIT), "--cache-dir", str(tmp_path / "cache"), ends_with=ends_with) as mount:
        with sampled(mount.pid) as peak:
            yield mount
        assert peak.nbytes < ALLOWED, f"{peak.nbytes / 1e6:.0f} MB, {peak.before / 1e6:.0f} at first"


def some_always(names: Iterable[str], *always: str) -> list[Any]:
    """Return all names as cases; those not in ``always`` need the full length of the tests."""
    return [pytest.param(name, id=name, marks=[] if name in always else pytest.mark.full_length) for name in names]


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(lambda call: call(), calls))


def count(place: Path, skipped: int = 0) -> tuple[int, bool]:
    """Return the number of bytes in a file after the first ``skipped`` ones, and whether all of them are zeros."""
    nbytes, zeros = 0, True
    with place.open("rb", buffering=0) as file:
        file.seek(skipped)
        while piece := file.read(MIB):
            nbytes += len(piece)
            zeros = zeros and piece.count(0) == len(piece)
    return nbytes, zeros


def why(mount: Mounted) -> str:
    return " ".join(str(each["message"]) for each in mount.errors())


def v2_store(folder: Path, document: str, chunks: dict[str, bytes]) -> Path:
    write(folder / "a", document, chunks, ".zarray")
    (folder / ".zgroup").write_text(GROUP)
    return folder


def errno_of(call: Callable[[], Any]) -> int | None:
    try:
        call()
    except OSError as error:
        return error.errno
    return None


# --- chunks -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", some_always(BOMBS, "zlib", "blosc"))
def test_chunks_of_zeros_that_are_read_in_parallel(tmp_path: Path, name: str) -> None:
    config, encoded = BOMBS[name]
    nbytes = share(256 * MIB)
    data = encoded(nbytes)
    store = v2_store(tmp_path / "s", v2([4 * nbytes], [nbytes], config), {str(index): data for index in range(4)})
    with watched(store, tmp_path) as mount:
        found = at_once([lambda index=index: count(mount.path / f"chunks/a/{index}") for index in range(4)])  # type: ignore[misc]
        assert found == [(nbytes, True)] * 4
        assert count(mount.path / "npy/a.npy", 128) == (4 * nbytes, True)


@pytest.mark.soak
def test_the_largest_chunk_there_may_be(tmp_path: Path) -> None:
    nbytes = 2**31 - MIB
    store = v2_store(tmp_path / "s", v2([nbytes], [nbytes], {"id": "zlib", "level": 1}), {"0": BOMBS["zlib"][1](nbytes)})
    with watched(store, tmp_path) as mount:
        with (mount.path / "chunks/a/0").open("rb", buffering=0) as file:
            for offset in (0, nbytes // 2, nbytes - 4096):
                assert os.pread(file.fileno(), 4096, offset) == bytes(4096)


def test_chunks_without_a_codec_that_are_holes(tmp_path: Path) -> None:
    nbytes = 512 * MIB
    store = v2_store(tmp_path / "s", v2([4 * nbytes], [nbytes], None), {})
    for index in range(4):
        sparse(store / f"a/{index}", nbytes, {100 * MIB: b"x"})
    with watched(store, tmp_path) as mount:
        places = [mount.path / f"chunks/a/{index}" for index in range(4)]

        def look(place: Path) -> bytes:
            with place.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), 3, 100 * MIB - 1)

        assert at_once([lambda place=place: look(place) for place in places]) == [b"\0x\0"] * 4  # type: ignore[misc]


@pytest.mark.full_length
def test_a_large_chunk_that_is_transposed(tmp_path: Path) -> None:
    rows, columns = 16384, 8192
    codecs = [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}, {"name": "zstd", "configuration": {}}]
    write(tmp_path / "s" / "a", v3([rows, columns], [rows, columns], codecs), {})
    piece = os.urandom(MIB)
    with watched(tmp_path / "s", tmp_path) as mount:
        place = mount.path / "chunks/a/0.0"
        with place.open("wb", buffering=0) as file:
            for _ in range(rows * columns // MIB):
                file.write(piece)
        with place.open("rb", buffering=0) as file:
            assert os.pread(file.fileno(), MIB, 77 * MIB) == piece
        with (mount.path / "npy/a.npy").open("rb", buffering=0) as file:
            assert os.pread(file.fileno(), MIB, 77 * MIB + 128) == piece


@pytest.mark.parametrize("name", some_always(["gzip", "zstd", "lz4", "blosc"], "lz4"))
def test_a_large_chunk_that_cannot_be_compressed(tmp_path: Path, name: str) -> None:
    nbytes = LIMIT if FULL else 2 * LIMIT
    # A chunk at the edge of the array, with padding.
    store = v2_store(tmp_path / "s", v2([nbytes - 5], [nbytes], BOMBS[name][0]), {})
    pieces = [os.urandom(MIB) for _ in range(3)]
    with watched(store, tmp_path) as mount:
        with (mount.path / "chunks/a/0").open("wb", buffering=0) as file:
            for index in range(nbytes // MIB):
                file.write(pieces[index % 3])
        with (mount.path / "chunks/a/0").open("rb", buffering=0) as file:
            for index in range(0, nbytes // MIB - 1, 50):
                assert os.pread(file.fileno(), MIB, index * MIB) == pieces[index % 3]
            assert os.pread(file.fileno(), 10, nbytes - 10) == pieces[(nbytes // MIB - 1) % 3][-10:-5] + bytes(5)


def test_a_little_is_written_into_large_chunks(tmp_path: Path) -> None:
    nbytes = share(256 * MIB)
    store = v2_store(tmp_path / "s", v2([4 * nbytes], [nbytes], {"id": "zlib", "level": 1}), {})
    with watched(store, tmp_path) as mount:
        with (mount.path / "npy/a.npy").open("r+b", buffering=0) as file:
            for index in range(8):
                os.pwrite(file.fileno(), b"here", 128 + index * nbytes // 2 + 1000)
        assert len(zlib.decompress((store / "a/3").read_bytes())) == nbytes
        with (mount.path / "npy/a.npy").open("rb", buffering=0) as file:
            assert [os.pread(file.fileno(), 5, 128 + index * nbytes // 2 + 1000) for index in range(8)] == [b"here\0"] * 8


def test_many_readers_of_arrays_with_large_chunks(tmp_path: Path) -> None:
    nbytes = 32 * MIB
    data = BOMBS["zlib"][1](nbytes)
    for number in range(8):
        document = v2([nbytes, 4], [nbytes // 4, 4], {"id": "zlib", "level": 1})
        write(tmp_path / f"s/a{number}", document, {f"{index}.0": data for index in range(4)}, ".zarray")
    (tmp_path / "s/.zgroup").write_text(GROUP)
    with watched(tmp_path / "s", tmp_path) as mount:

        def jump(number: int) -> bool:
            places = random.Random(number)
            with (mount.path / f"npy/a{number % 8}.npy").open("rb", buffering=0) as file:
                return all(not any(os.pread(file.fileno(), 4096, places.randrange(128, 4 * nbytes))) for _ in range(3))

        assert at_once([lambda number=number: jump(number) for number in range(32)]) == [True] * 32  # type: ignore[misc]


@pytest.mark.full_length
def test_chunks_that_are_held_open(tmp_path: Path) -> None:
    nbytes = 6 * MIB
    data = BOMBS["zlib"][1](nbytes)
    for number in range(150):
        write(tmp_path / f"s/a{number}", v2([nbytes], [nbytes], {"id": "zlib", "level": 1}), {"0": data}, ".zarray")
    (tmp_path / "s/.zgroup").write_text(GROUP)
    with watched(tmp_path / "s", tmp_path) as mount:
        opened = [os.open(mount.path / f"chunks/a{number}/0", os.O_RDONLY) for number in range(150)]
        try:
            for offset in (0, 3 * MIB):
                assert all(os.pread(fd, 1000, offset) == bytes(1000) for fd in opened)
        finally:
            for fd in opened:
                os.close(fd)


# --- elements without a fixed size ------------------------------------------------------------------------------------------


def _vlen(items: int, item: bytes) -> bytes:
    return struct.pack("<I", items) + (struct.pack("<I", len(item)) + item) * items


def _json(items: int, item: str) -> bytes:
    return f'[{",".join([item] * items)},"|O",[{items}]]'.encode()


OBJECTS: dict[str, tuple[dict[str, Any], int, Callable[[int], bytes]]] = {
    "json2, of numbers": (JSON2, 3 << 20, lambda count: _json(count, "1.5")),
    "json2, of lists": (JSON2, 3 << 20, lambda count: _json(count, "[]")),
    "msgpack2": (
        {"id": "msgpack2"},
        3 << 20,
        lambda count: b"\xdd" + struct.pack(">I", count + 2) + b"\x90" * count + b"\xa2|O\x91\xce" + struct.pack(">I", count),
    ),
    "vlen-utf8": ({"id": "vlen-utf8"}, 4 << 20, lambda count: _vlen(count, b"")),
    "vlen-utf8, one long text": ({"id": "vlen-utf8"}, 1, lambda count: _vlen(1, "\U0001f600".encode() + bytes(200 * MIB))),
    "vlen-bytes": ({"id": "vlen-bytes"}, 4 << 20, lambda count: _vlen(count, b"ab")),
    "vlen-array": ({"id": "vlen-array", "dtype": "<i4"}, 2 << 20, lambda count: _vlen(count, bytes(4))),
}


@pytest.mark.parametrize("name", some_always(OBJECTS, "vlen-utf8", "json2, of numbers"))
def test_elements_that_are_small_in_the_store_and_large_in_memory(tmp_path: Path, name: str) -> None:
    codec, size, made = OBJECTS[name]
    data = made(size)
    store = v2_store(tmp_path / "s", v2([size], [size], {"id": "zlib", "level": 1}, "|O", [codec]), {"0": zlib.compress(data, 1)})
    with watched(store, tmp_path) as mount:
        with (mount.path / "chunks/a/0").open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            head = file.read(2000)
    if name.startswith("vlen-") and name != "vlen-array":
        assert (nbytes, head) == (len(data), data[:2000])
    else:
        plain = _json(size, {"json2, of numbers": "1.5", "vlen-array": "[0]"}.get(name, "[]"))
        assert (nbytes, head) == (len(plain), plain[:2000])


def test_elements_that_are_large_each(tmp_path: Path) -> None:
    count, length = 8, 2_400_000
    codec = {"id": "vlen-array", "dtype": "<f8"}
    data = zlib.compress(_vlen(count, bytes(8 * length)), 1)
    store = v2_store(tmp_path / "s", v2([count], [count], {"id": "zlib", "level": 1}, "|O", [codec]), {"0": data})
    with watched(store, tmp_path) as mount:
        plain = _json(count, f"[{','.join(['0.0'] * length)}]")
        assert (mount.path / "chunks/a/0").read_bytes() == plain


@pytest.mark.parametrize("count", [240, 40_000])
def test_a_long_label_of_many_elements(tmp_path: Path, count: int) -> None:
    label = "x" * 1_000_000
    codec = {"id": "categorize", "labels": [label], "dtype": "|O", "astype": "|u1"}
    document = v2([count], [count], None, "|O", [codec]).replace('"fill_value": 0', '"fill_value": ""')
    store = v2_store(tmp_path / "s", document, {"0": b"\1" * count})
    with watched(store, tmp_path) as mount:
        file = mount.path / "chunks/a/0"
        if count == 240:
            assert file.read_bytes() == _vlen(count, label.encode())
        else:
            assert errno_of(file.read_bytes) == errno.EIO


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_many_nodes_that_are_small_in_the_store_and_large_in_memory(tmp_path: Path) -> None:
    """60 KB of attributes that are a megabyte when parsed, and as much of metadata other than attributes."""
    labels = {"id": "categorize", "labels": [f"label {n:04}" for n in range(4000)], "dtype": "<U10", "astype": "<u4"}
    documents = {
        "a": {".zarray": v2([4], [4], None), ".zattrs": '{"a":[' + "{}," * 20_000 + "1]}"},
        "c": {".zarray": v2([4], [4], None, "<U10", [labels]).replace('"fill_value": 0', '"fill_value": ""'), "0": "\0" * 16},
        "g": {".zgroup": GROUP, ".zattrs": '{"a":[' + "[]," * 20_000 + "1]}"},
    }
    count, store = 120, tmp_path / "s"
    store.mkdir()
    (store / ".zgroup").write_text(GROUP)
    for number in range(count):
        for kind, texts in documents.items():
            place = store / f"{kind}{number}"
            place.mkdir()
            for name, text in texts.items():
                (place / name).write_text(text)
    with watched(store, tmp_path) as mount:
        for view in ("chunks", "npy", "zarr3"):
            assert len(os.listdir(mount.path / view)) >= 3 * count
        for number in range(count):
            assert b"shape" in (mount.path / f"chunks/c{number}/.zarray").read_bytes()
            assert (mount.path / f"chunks/c{number}/0").read_bytes() == bytes(4 * 40)


def test_large_documents_that_are_invalid(tmp_path: Path) -> None:
    store = v2_store(tmp_path / "s", v2([4], [4], None), {})
    texts = {".zarray": b'{"a":"' + b"\xff" * (15 << 20), "zarr.json": b'{"zarr_format":3,"shape":"' + b"x" * (15 << 20) + b'"}'}
    for name, text in texts.items():
        for number in range(12):
            place = store / f"{name.strip('.')}{number}"
            place.mkdir()
            (place / name).write_bytes(text)
    with watched(store, tmp_path) as mount:
        assert sum(name.endswith(".unsupported.txt") for name in os.listdir(mount.path / "chunks")) == 24


def test_names_that_are_not_there_are_found_out_without_looking_at_those_that_are(tmp_path: Path) -> None:
    store = v2_store(tmp_path / "s", v2([4], [4], None), {})
    for number in range(200):
        v2_store(store / f"g{number}", v2([4], [4], None), {})
    with watched(store, tmp_path) as mount:
        for view in ("chunks", "npy", "zarr3"):
            for name in ("no", "no.npy", "no~1.npy", "no.unsupported.txt", ".hidden", "n" * 255):
                assert errno_of((mount.path / view / name).stat) == 2
        assert mount.stats()["nodes_parsed"] < 10


def test_more_values_than_a_text_may_hold(tmp_path: Path) -> None:
    size = 1
    data = zlib.compress(_json(1, "[" + "[]," * (9 << 20) + "[]]"), 1)
    store = v2_store(tmp_path / "s", v2([size], [size], {"id": "zlib", "level": 1}, "|O", [JSON2]), {"0": data})
    with watched(store, tmp_path) as mount:
        assert errno_of((mount.path / "chunks/a/0").read_bytes) == 5
        assert "exceeds the limit of 8388608 values" in why(mount)


def test_one_element_that_takes_too_much_alone(tmp_path: Path) -> None:
    data = zlib.compress(_json(1, "[" + "[]," * (2 << 20) + "[]]"), 1)
    store = v2_store(tmp_path / "s", v2([1], [1], {"id": "zlib", "level": 1}, "|O", [JSON2]), {"0": data})
    with watched(store, tmp_path) as mount:
        assert errno_of((mount.path / "chunks/a/0").read_bytes) == 27
        assert "exceeds the memory limit" in why(mount)


def test_long_texts_one_after_the_other(tmp_path: Path) -> None:
    texts = {"ascii": "a" * (64 << 20), "wide": "\U0001f600" + "a" * (32 << 20)}
    for name, text in texts.items():
        data = zlib.compress(_json(1, f'"{text}"'), 1)
        v2_store(tmp_path / "s" / name, v2([1], [1], {"id": "zlib", "level": 1}, "|O", [JSON2]), {"0": data})
    with watched(tmp_path / "s", tmp_path) as mount:
        for name in texts:
            for _ in range(5):
                assert errno_of((mount.path / "chunks" / name / "a/0").read_bytes) == 27


# --- shards -----------------------------------------------------------------------------------------------------------------


def sharded(count: int, *, location: str = "end", checksum: bool = False, inner: Sequence[Any] = ({"name": "bytes"},)) -> str:
    codecs = [BYTES, *([{"name": "crc32c"}] if checksum else [])]
    configuration = {"chunk_shape": [1], "codecs": list(inner), "index_codecs": codecs, "index_location": location}
    return v3([count], [count], [{"name": "sharding_indexed", "configuration": configuration}])


def test_sparse_shards_of_very_many_chunks(tmp_path: Path) -> None:
    """Indexes of 1 GiB. All pairs but one are an empty chunk at byte 0, which cannot be decoded."""
    store, count = tmp_path / "s", 1 << 26
    pair = struct.pack("<QQ", 0, 1)
    write(store / "end", sharded(count), {})
    sparse(store / "end/c/0", 16 + 16 * count, {0: b"\7", 16 + 5 * 16: pair})
    write(store / "start", sharded(count, location="start"), {})
    sparse(store / "start/c/0", 16 * count + 1, {16 * count: b"\7", (count - 1) * 16: struct.pack("<QQ", 16 * count, 1)})
    write(store / "sum", sharded(count, checksum=True), {})
    sparse(store / "sum/c/0", 16 + 16 * count + 4)
    with watched(store, tmp_path, ends_with=0) as mount:
        chunks = mount.path / "chunks"
        assert (chunks / "end/5").read_bytes() == b"\7"
        assert (chunks / f"start/{count - 1}").read_bytes() == b"\7"
        assert errno_of((chunks / f"end/{count - 7}").read_bytes) == 5
        assert errno_of((chunks / "sum/5").read_bytes) == 5
        assert "stored checksum 00000000" in why(mount)
        with os.scandir(chunks / "end") as entries:
            names = {next(entries).name for _ in range(1000)}
        assert {".zarray", "0", "1", "2"} <= names
        assert errno_of(lambda: (chunks / "end/5").write_bytes(b"x")) == 27
        assert "above the limit of 262144 chunks" in why(mount)


def test_shards_within_shards(tmp_path: Path) -> None:
    store, count = tmp_path / "s", 1 << 12
    inner = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [1], "codecs": [{"name": "bytes"}], "index_codecs": [BYTES]},
    }
    outer = {"name": "sharding_indexed", "configuration": {"chunk_shape": [count], "codecs": [inner], "index_codecs": [BYTES]}}
    write(store / "a", v3([count * count], [count * count], [outer]), {})
    nbytes = 16 * count
    index = b"".join(struct.pack("<QQ", number * nbytes, nbytes) for number in range(count))
    sparse(store / "a/c/0", count * nbytes + len(index), {count * nbytes: index})
    with watched(store, tmp_path) as mount:
        with os.scandir(mount.path / "chunks/a") as entries:
            assert len({next(entries).name for _ in range(20_000)}) == 20_000
        places = [mount.path / f"chunks/a/{number}" for number in range(0, count * count, count * count // 64)]
        assert set(at_once([lambda place=place: errno_of(place.read_bytes) for place in places])) == {5}  # type: ignore[misc]


def test_shards_that_are_compressed_as_a_whole(tmp_path: Path) -> None:
    nbytes, chunks = share(256 * MIB), 8
    configuration = {"chunk_shape": [nbytes // chunks], "codecs": [{"name": "bytes"}], "index_codecs": [BYTES]}
    codecs = [{"name": "sharding_indexed", "configuration": configuration}, {"name": "gzip", "configuration": {"level": 1}}]
    stream = zlib.compressobj(1, zlib.DEFLATED, 31)
    index = b"".join(struct.pack("<QQ", number * (nbytes // chunks), nbytes // chunks) for number in range(chunks))
    shard = b"".join([*(stream.compress(bytes(MIB)) for _ in range(nbytes // MIB)), stream.compress(index), stream.flush()])
    write(tmp_path / "s/a", v3([4 * nbytes], [nbytes], codecs), {f"c/{number}": shard for number in range(4)})
    with watched(tmp_path / "s", tmp_path) as mount:
        places = [mount.path / f"chunks/a/{number}" for number in range(0, 4 * chunks, 3)]
        found = at_once([lambda place=place: count(place) for place in places])  # type: ignore[misc]
        assert found == [(nbytes // chunks, True)] * len(places)


# --- values -----------------------------------------------------------------------------------------------------------------


def test_a_file_that_grows_by_truncate_takes_neither_memory_nor_disk(tmp_path: Path) -> None:
    store, cache = tmp_path / "s", tmp_path / "cache"
    store.mkdir()
    with watched(store, tmp_path) as mount:
        before = os.statvfs(tmp_path).f_bavail
        subprocess.run(["truncate", "-s", "3G", mount.path / "raw/x"], check=True)
        subprocess.run(["truncate", "-s", "4G", mount.path / "raw/x"], check=True)
        with (mount.path / "raw/y").open("wb", buffering=0) as file:
            for offset in (0, 1 << 30, 5 << 30, 3 << 30):
                os.pwrite(file.fileno(), b"here", offset)
        assert [(store / name).stat().st_size for name in "xy"] == [4 << 30, (5 << 30) + 4]
        assert sum((store / name).stat().st_blocks for name in "xy") * 512 < MIB
        assert (before - os.statvfs(tmp_path).f_bavail) * os.statvfs(tmp_path).f_frsize < 512 * MIB
        with (mount.path / "raw/y").open("rb", buffering=0) as file:
            assert os.pread(file.fileno(), 6, (3 << 30) - 1) == b"\0here\0"
    assert not list(cache.iterdir())


@pytest.mark.full_length
def test_many_values_that_are_open_at_once(tmp_path: Path) -> None:
    store = tmp_path / "s"
    for number in range(400):
        sparse(store / f"large{number}", 8 * MIB, {4 * MIB: b"here"})
    for number in range(3000):
        sparse(store / f"small{number}", 65_000)
    with watched(store, tmp_path) as mount:
        names = [f"large{number}" for number in range(400)] + [f"small{number}" for number in range(3000)]
        opened = [os.open(mount.path / "raw" / name, os.O_RDONLY) for name in names]
        try:
            assert all(os.pread(fd, 4, 4 * MIB) == b"here" for fd in opened[:400])
            assert all(os.pread(fd, 4, 10_000) == bytes(4) for fd in opened[400:])
        finally:
            for fd in opened:
                os.close(fd)


@pytest.mark.full_length
def test_many_files_with_a_little_staged_in_each(tmp_path: Path) -> None:
    store = tmp_path / "s"
    store.mkdir()
    piece = os.urandom(MIB // 2)
    with watched(store, tmp_path) as mount:
        opened = [os.open(mount.path / f"raw/k{number}", os.O_WRONLY | os.O_CREAT) for number in range(800)]
        try:
            at_once([lambda part=part: [os.pwrite(fd, piece, 0) for fd in opened[part::16]] for part in range(16)])  # type: ignore[misc]
        finally:
            for fd in opened:
                os.close(fd)
        assert all((store / f"k{number}").read_bytes() == piece for number in range(0, 800, 50))


@pytest.mark.full_length
def test_values_written_to_a_store_that_hangs(tmp_path: Path) -> None:
    """Their writers get ETIMEDOUT and go on to the next; the store still has the values, and may hang for hours."""
    (tmp_path / "store").mkdir()
    value = os.urandom(LIMIT // 8)
    options = {"memory_limit": LIMIT, "cache_dir": str(tmp_path / "cache")}
    with mounted_hanging(tmp_path / "store", 0.1, ends_with=7, **options) as mount, sampled(mount.pid) as peak:
        mount.hang("*", "set")
        number = 0
        while mount.operations()["set"] < 8 * 6:
            number += 1
            assert errno_of(partial((mount.path / f"raw/{number}").write_bytes, value)) == errno.ETIMEDOUT
        mount.answer()
    assert peak.nbytes < ALLOWED, f"{peak.nbytes / 1e6:.0f} MB, {peak.before / 1e6:.0f} at first"


def test_a_huge_value_that_is_read_anywhere(tmp_path: Path) -> None:
    sparse(tmp_path / "s/x", 64 << 30, {33 << 30: b"here"})
    with watched(tmp_path / "s", tmp_path) as mount:
        with (mount.path / "raw/x").open("rb", buffering=0) as file:
            at_once([lambda: [os.pread(file.fileno(), MIB, random.randrange(64 << 30)) for _ in range(share(50))]] * 16)
            assert os.pread(file.fileno(), 4, 33 << 30) == b"here"


def test_a_chunk_that_no_memory_and_no_disk_holds_is_refused(tmp_path: Path) -> None:
    store = v2_store(tmp_path / "s", v2([1 << 30], [1 << 30], {"id": "zlib", "level": 1}), {"0": BOMBS["zlib"][1](1 << 30)})
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "none", small], check=False).returncode:
        pytest.skip("a small file system is root's to mount")
    try:
        with mounted(store, "--memory-limit", str(LIMIT), "--cache-dir", str(small)) as mount, sampled(mount.pid) as peak:
            assert errno_of((mount.path / "chunks/a/0").read_bytes) == 27
            assert "the room in the cache folder" in why(mount)
        assert peak.nbytes < ALLOWED
    finally:
        subprocess.run(["umount", "-l", small], check=True)


# --- names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.full_length
def test_a_folder_of_very_many_keys(tmp_path: Path) -> None:
    store, count = tmp_path / "s", share(300_000)
    (store / "a").mkdir(parents=True)
    (store / ".zgroup").write_text(GROUP)
    (store / "a/.zarray").write_text(v2([count], [1], None))
    folder = os.open(store / "a", os.O_RDONLY)
    for number in range(count):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    with watched(store, tmp_path) as mount:
        assert len(os.listdir(mount.path / "raw/a")) == count + 1
        assert len(os.listdir(mount.path / "chunks/a")) == count + 1


def test_a_listing_goes_back_to_what_it_no_longer_holds(tmp_path: Path) -> None:
    store = tmp_path / "s"
    store.mkdir()
    for number in range(9000):
        (store / f"k{number}").touch()
    script = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
libc.telldir.argtypes = libc.readdir.argtypes = [ctypes.c_void_p]
def name(entry): return ctypes.string_at(entry + 19)
folder = ctypes.c_void_p(libc.opendir(sys.argv[1].encode()))
names, places = [], []
while True:
    place = libc.telldir(folder)
    entry = libc.readdir(folder)
    if not entry: break
    names.append(name(entry)); places.append(place)
assert len(names) == 9002, len(names)
for at in (3, 8000, 100, 5000):
    libc.seekdir(folder, places[at])
    assert name(libc.readdir(folder)) == names[at], at
"""
    with watched(store, tmp_path) as mount:
        subprocess.run(["python3", "-c", script, mount.path / "raw"], check=True)


def test_a_zip_directory_of_very_many_members(tmp_path: Path) -> None:
    count, place = 500_000, tmp_path / "s.zip"
    with place.open("wb") as file:
        file.write(struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 1, 0) + b"x")
        start = file.tell()
        for number in range(count):
            name = b"group-%03d/key-%07d" % (number % 500, number)
            file.write(struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0x800, 0, 0, 33, 0, 0, 0, len(name), *[0] * 6) + name)
        end = file.tell()
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, end - start, start))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    with watched(place, tmp_path) as mount:
        assert len(os.listdir(mount.path / "raw")) == 500
        assert len(os.listdir(mount.path / "raw/group-007")) == 1000


@pytest.mark.parametrize("command", ["mount", "info", "check"])
def test_a_dbm_of_very_many_names(command: str, tmp_path: Path) -> None:
    """Ten megabytes that are two hundred in memory: more than an index may take with this limit."""
    count = 700_000
    (tmp_path / "x.dat").write_bytes(b"x")
    (tmp_path / "x.dir").write_text("".join(f"'{number:x}', (0, 1)\n" for number in range(count)))
    (tmp_path / "mnt").mkdir()
    arguments = [tmp_path / "x", *([tmp_path / "mnt"] if command == "mount" else []), "-o", f"memory_limit={64 * MIB}"]
    done = zarrfs(command, *map(str, arguments))
    assert (done.returncode, "raise --memory-limit" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("content", ["values", "documents"])
def test_a_record_of_an_operation_that_nobody_began(content: str, tmp_path: Path) -> None:
    store = tmp_path / "s"
    folder = store / ".zarrfs" / ("0" * 32)
    folder.mkdir(parents=True)
    (store / ".zgroup").write_text(GROUP)
    with (folder / "intent.json").open("w") as file:
        if content == "values":
            file.write('{"version": 1, "x": [' + "[]," * 15_000_000 + "0]}")
        else:
            head = '{"version": 1, "operation": "amend", "path": "/", "place": "", "is_used": true, "source": null, "copies": false'
            file.write(f'{head}, "erased": [], "count": null, "before": {{}}, "after": {{".zgroup": "{"A" * (47 * MIB)}"}}}}')
    command = [sys.executable, "-P", "-m", "zarrfs", "check", str(store), "-o", f"memory_limit={LIMIT}"]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True) as checking:
        with sampled(checking.pid) as peak:
            said, _ = checking.communicate(timeout=100)
    assert checking.returncode == 1 and "0" * 32 in said, said
    assert peak.nbytes < ALLOWED, f"{peak.nbytes / 1e6:.0f} MB"


LARGE_VALUES = """
import sqlite3, sys
nbytes = int(sys.argv[2])
with sqlite3.connect(sys.argv[1]) as database:
    database.execute("INSERT INTO zarr VALUES('a/0', zeroblob(?)), ('text', CAST(zeroblob(?) AS TEXT))", (nbytes, nbytes // 4))
"""


@pytest.mark.full_length
def test_large_values_in_a_database(tmp_path: Path) -> None:
    place, nbytes = tmp_path / "s.sqlite", 2 * (ALLOWED // 4 * 3)
    with sqlite3.connect(place) as database:
        database.execute("CREATE TABLE zarr(k TEXT PRIMARY KEY, v BLOB)")
        database.execute("INSERT INTO zarr VALUES('.zgroup', ?), ('a/.zarray', ?)", (GROUP, v2([nbytes], [nbytes], None)))
    database.close()
    # In another process: after a test has opened a store, SQLite in this one may be limited to little memory.
    subprocess.run([sys.executable, "-c", LARGE_VALUES, place, str(nbytes)], check=True)
    with watched(place, tmp_path) as mount:
        assert sorted(os.listdir(mount.path / "raw")) == [".zgroup", "a", "text"]
        assert count(mount.path / "chunks/a/0") == (nbytes, True)
        assert (mount.path / "raw/text").stat().st_size == nbytes // 4
