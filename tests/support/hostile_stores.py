"""Stores designed to consume time and memory, by name: construction, and an attacker's requests on the mount.

The requests are programs, all started at once; those still running after `ASKED_S` are killed. Each store is small on disk, whatever
size it declares.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import sqlite3
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from tests.support.length import FULL, share
from tests.support.small_stores import array_document, write

ASKED_S = 3.0 if FULL else 1.0
"""Time after which running programs are killed: the tests measure other users meanwhile, and the end of the mount."""

_ANSWER_S = 5.0

MIB = 1 << 20
GROUP = b'{"zarr_format":2}'
GROUP3 = b'{"zarr_format":3,"node_type":"group"}'

LIST_ALL = "ls -lR $M; true"
"""Script that lists every name and size, through every view."""
_GETFATTR = "getfattr -R -d -m - $M; true"
READ_ALL = "find $M -type f -size -64M -exec cat {} + > /dev/null; true"
"""Script that reads every byte of every file that is not huge."""


@dataclass(frozen=True)
class Hostile:
    """``make(folder)`` returns the store's path. ``asks`` are shell scripts in which ``$M`` is the mountpoint."""

    make: Callable[[Path], Path]
    asks: Sequence[str]
    options: Sequence[str] = ("--read-only",)


def provoke(path: Path, asks: Sequence[str], seconds: float = ASKED_S) -> int:
    """Run shell scripts at once, kill those that take longer, and return the number killed."""
    processes = [
        subprocess.Popen(
            ["bash", "-c", ask],
            env=os.environ | {"M": str(path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for ask in asks
    ]
    end = time.monotonic() + seconds
    killed = 0
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            killed += 1
    for process in processes:
        # A killed program ends once its request is answered; without an answer it keeps the mount in use, and `umount` reports it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ANSWER_S)
    return killed


def array3(shape: Sequence[int], chunks: Sequence[int], codecs: Sequence[Any], data_type: Any = "uint8", **more: Any) -> bytes:
    """Return a final v3 array document."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "codecs": codecs,
        }
        | more
    ).encode()


def sharding(
    chunks: Sequence[int], *codecs: Any, index_codecs: Sequence[Any] = ({"name": "bytes", "configuration": {"endian": "little"}},)
) -> Any:
    """Return the sharding codec."""
    inner = list(codecs or ({"name": "bytes"},))
    return {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": chunks, "codecs": inner, "index_codecs": list(index_codecs)},
    }


def sparse(path: Path, nbytes: int, end: bytes = b"") -> None:
    """Write a file of holes with ``end`` at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(nbytes)
        if end:
            file.seek(nbytes - len(end))
            file.write(end)


def zeros(nbytes: int) -> bytes:
    """Return a zstd frame of that many zeros, computed in little memory."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=nbytes)
    block = bytes(MIB)
    parts = [compressor.compress(block) for _ in range(nbytes // MIB)]
    return b"".join((*parts, compressor.flush()))


# --- arrays ---------------------------------------------------------------------------------------------------------------------


def one_element_chunks(folder: Path) -> Path:
    return write(folder / "s", {".zgroup": GROUP, "a/.zarray": array_document((2**62,), (1,), "|u1"), "a/0": b"\1"})


def many_dimensions(folder: Path) -> Path:
    documents = {f"d{n}/.zarray": array_document((2,) * n, (1,) * n, "|u1") for n in (16, 31, 32, 33, 64)}
    return write(folder / "s", {".zgroup": GROUP, "d16/" + ".".join("0" * 16): b"\1", **documents})


def transposed(folder: Path) -> Path:
    """Write arrays of a gigabyte each, in other orders of many short dimensions."""
    shape = (2,) * 30
    swap = {"name": "transpose", "configuration": {"order": [*range(1, 30, 2), *range(0, 30, 2)]}}
    values = {
        "a/.zarray": array_document(shape, shape, "|u1", order="F"),
        "b/zarr.json": array3(shape, shape, [swap, {"name": "bytes"}]),
    }
    sparse(folder / "s" / "a" / ".".join("0" * 30), 1 << 30)
    sparse(folder / "s" / "b" / "c" / "/".join("0" * 30), 1 << 30)
    return write(folder / "s", {".zgroup": GROUP, **values})


def holes(folder: Path) -> Path:
    """Write values of 60 GiB without disk space."""
    for key in ("k", "a/0"):
        sparse(folder / "s" / key, 60 << 30, b"end")
    return write(folder / "s", {".zgroup": GROUP, "a/.zarray": array_document((2**21,), (2**20,), "<f8")})


def many_chunks(folder: Path) -> Path:
    values = {
        "row/.zarray": array_document((2, 2**40), (2, 1), "|u1"),
        "square/.zarray": array_document((2**20, 2**20), (1, 1), "<f8"),
        "row/0.0": b"\1\1",
        "column/zarr.json": array3((2**40, 2), (1, 2), [{"name": "bytes"}]),
    }
    return write(folder / "s", {".zgroup": GROUP, **values})


def large_elements(folder: Path) -> Path:
    values = {
        "a/.zarray": array_document((4,), (2,), "|S900000000", fill_value=None),
        "b/.zarray": array_document((2**30,), (2**30,), "|V1", fill_value="AA=="),
        "u/.zarray": array_document((3,), (1,), "<U200000000", fill_value=""),
    }
    for name in "abu":
        values[f"{name}/0"] = b"\0" * 1000
    return write(folder / "s", {".zgroup": GROUP, **values})


def many_fields(folder: Path) -> Path:
    nested: Any = "<i4"
    for _ in range(200):
        nested = [["f", nested]]
    fields = [[f"f{number}", "<i4"] for number in range(20_000)]
    values = {
        f"{name}/.zarray": array_document((2,), (1,), dtype, fill_value=None)
        for name, dtype in (("wide", fields), ("deep", nested))
    }
    return write(folder / "s", {".zgroup": GROUP, **values})


def zeros_in_parallel(folder: Path) -> Path:
    frame = zeros(512 * MIB)
    document = array_document((2048 * MIB,), (512 * MIB,), "|u1", compressor={"id": "zstd", "level": 1})
    return write(folder / "s", {".zgroup": GROUP, "a/.zarray": document, **{f"a/{number}": frame for number in range(4)}})


def one_huge_chunk(folder: Path) -> Path:
    frame = zeros(3072 * MIB)
    document = array_document((3072 * MIB,), (3072 * MIB,), "|u1", compressor={"id": "zstd", "level": 1})
    return write(folder / "s", {".zgroup": GROUP, "a/.zarray": document, "a/0": frame})


def lying_headers(folder: Path) -> Path:
    """Write values whose headers declare more data than they contain."""
    nbytes = 2**31 - 1
    blosc = struct.pack("<BBBBIII", 2, 1, 0x21, 1, nbytes, nbytes, 40) + bytes(24)
    lz4 = struct.pack("<I", nbytes) + bytes(40)
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", nbytes) + bytes(20)
    values: dict[str, bytes] = {}
    for name, compressor, value in (
        ("blosc", {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}, blosc),
        ("lz4", {"id": "lz4", "acceleration": 1}, lz4),
        ("zstd", {"id": "zstd", "level": 1}, frame),
    ):
        values[f"{name}/.zarray"] = array_document((nbytes,), (nbytes,), "|u1", compressor=compressor)
        values[f"{name}/0"] = value
    for name in ("vlen-utf8", "vlen-bytes"):
        values[f"{name}/.zarray"] = array_document((2**24,), (2**24,), "|O", fill_value="", filters=[{"id": name}])
        values[f"{name}/0"] = struct.pack("<II", 2**24, 2**32 - 1) + bytes(2**20)
    return write(folder / "s", {".zgroup": GROUP, **values})


def objects(folder: Path) -> Path:
    """Write a chunk of JSON: 8 MB, hundreds as Python objects."""
    count = 2**21
    document = array_document((count,), (count,), "|O", fill_value=None, filters=[{"id": "json2", "encoding": "utf-8"}])
    chunk = b"[" + b"{}," * count + b'"|O",[' + str(count).encode() + b"]]"
    return write(folder / "s", {".zgroup": GROUP, "a/.zarray": document, "a/0": chunk, "b/.zarray": document, "b/0": chunk})


def long_elements(folder: Path) -> Path:
    """Write elements that are long lists of numbers, whose text takes a second each."""
    floats = struct.pack("<d", sys.float_info.max) * 2_400_000
    wide = b"\xdd" + struct.pack(">I", 450_000) + (b"\xcb" + struct.pack(">d", sys.float_info.max)) * 450_000
    document = functools.partial(array_document, (3,), (3,), "|O", fill_value=None, compressor={"id": "zlib", "level": 1})
    values = {
        "a/.zarray": document(filters=[{"id": "vlen-array", "dtype": "<f8"}]),
        "a/0": zlib.compress(struct.pack("<I", 3) + (struct.pack("<I", len(floats)) + floats) * 3),
        "m/.zarray": document(filters=[{"id": "msgpack2"}]),
        "m/0": zlib.compress(b"\x95" + wide * 3 + b"\xa2|O\x91\3"),
    }
    return write(folder / "s", {".zgroup": GROUP, **values})


def sparse_chunks(folder: Path) -> Path:
    """Write uncompressed chunks of 256 MiB, all holes."""
    store = write(folder / "s", {".zgroup": GROUP, "a/.zarray": array_document((16 * 256 * MIB,), (256 * MIB,), "|u1")})
    for number in range(16):
        sparse(store / f"a/{number}", 256 * MIB)
    return store


# --- shards ---------------------------------------------------------------------------------------------------------------------


def sparse_shard(folder: Path) -> Path:
    """Write one shard that is only an index: of 2^26 inner chunks, all holes."""
    store = write(folder / "s", {"zarr.json": GROUP3, "a/zarr.json": array3((2**26,), (2**26,), [sharding((1,))])})
    sparse(store / "a/c/0", 2**30)
    return store


def overlapping_shard(folder: Path) -> Path:
    """Write 2^20 inner chunks at one offset, and as many that each overlap the next."""
    count = 2**20
    same, next_to = np.zeros((count, 2), "<u8"), np.zeros((count, 2), "<u8")
    same[:, 1] = next_to[:, 1] = 16
    next_to[:, 0] = np.arange(count)
    document = array3((count * 16,), (count * 16,), [sharding((16,))])
    values = {"same/zarr.json": document, "overlap/zarr.json": document}
    values |= {"same/c/0": bytes(16) + same.tobytes(), "overlap/c/0": bytes(count + 16) + next_to.tobytes()}
    return write(folder / "s", {"zarr.json": GROUP3, **values})


def nested_shards(folder: Path) -> Path:
    """Write shards nested eight levels deep, eight chunks each."""
    codec: Any = {"name": "bytes"}
    for level in range(8):
        codec = sharding((8**level,), codec)
    # Each level points to itself: the index at the end gives its whole extent as the first chunk.
    value = struct.pack("<16Q", *((0, 128) + (2**64 - 1,) * 14))
    return write(folder / "s", {"zarr.json": GROUP3, "a/zarr.json": array3((8**8 * 8,), (8**8,), [codec]), "a/c/0": value})


# --- documents ------------------------------------------------------------------------------------------------------------------


def _everywhere(folder: Path, text: bytes) -> Path:
    """Write ``text`` as each kind of document, beside a sound array."""
    wrapped = b'{"zarr_format":3,"node_type":"group","attributes":{"a":' + text + b"}}"
    values = {
        ".zgroup": GROUP,
        "attributes/.zgroup": GROUP,
        "attributes/.zattrs": b'{"a":' + text + b"}",
        "array/.zarray": text,
        "three/zarr.json": wrapped,
        "ok/.zarray": array_document((4,), (4,)),
        "ok/0": bytes(16),
    }
    return write(folder / "s", values)


def wide_attributes(folder: Path) -> Path:
    return write(folder / "s", {".zgroup": GROUP, ".zattrs": b'{"a":[' + b"{}," * 4_999_999 + b"{}]}"})


def deep_documents(folder: Path) -> Path:
    return _everywhere(folder, b"[" * 2_000_000 + b"]" * 2_000_000)


def wide_documents(folder: Path) -> Path:
    return _everywhere(folder, b"{" + b",".join(b'"k%d":%d' % (number, number) for number in range(300_000)) + b"}")


def long_numbers(folder: Path) -> Path:
    return _everywhere(folder, b"[" + b"9" * 4_000_000 + b",1e" + b"9" * 1000 + b"," + b"0." + b"3" * 4_000_000 + b"]")


def long_strings(folder: Path) -> Path:
    return _everywhere(folder, b'"' + b"\\u0000\\ud800" * 700_000 + b'"')


def one_escape(folder: Path) -> Path:
    return write(folder / "s", {".zgroup": GROUP, ".zattrs": b'{"a":"' + b"x" * 15_000_000 + b'\\u00e9"}'})


def wide_names(folder: Path) -> Path:
    names = {("n" * 8_000_000): 1} | {f"attribute {number:0100}": "v" * 100 for number in range(30_000)}
    values = {"a/.zarray": array_document((4,), (4,)), "a/.zattrs": json.dumps(names).encode(), "a/0": bytes(16)}
    named = array3((4,), (4,), [{"name": "bytes"}], dimension_names=["d" * 8_000_000])
    return write(folder / "s", {".zgroup": GROUP, **values, "named/zarr.json": named})


def long_fill_value(folder: Path) -> Path:
    text = base64.b64encode(bytes(range(256)) * 30_000).decode()
    values = {
        "a/.zarray": array_document((3,), (1,), "|V7680000", fill_value=text),
        "s/.zarray": array_document((3,), (1,), "|S7680000", fill_value=text),
        "r/zarr.json": array3((3,), (1,), [{"name": "bytes"}], "r61440000", fill_value=list(bytes(range(256)) * 30_000)),
    }
    return write(folder / "s", {".zgroup": GROUP, **values})


def long_fill_values(folder: Path) -> Path:
    """Write fill values of 10 MB: in every document, one unterminated string."""
    text = "x" * 10_000_000
    strings = array_document((2**30,), (2**20,), "|O", fill_value=text, filters=[{"id": "vlen-utf8"}])
    values = {
        "v/zarr.json": array3((2**30,), (2**20,), [{"name": "vlen-utf8"}], "string", fill_value=text),
        "a/.zarray": array_document((2**30,), (2**4,), "|S10000000", fill_value=base64.b64encode(text.encode()).decode()),
        "s/0": b"",
        "v/c/0": b"",
    }
    return write(folder / "s", {".zgroup": GROUP, **values, **{f"s{number}/.zarray": strings for number in range(50)}})


def many_large_attributes(folder: Path) -> Path:
    """Write 2 MB of attributes for each of up to 3,000 arrays."""
    attributes = {f"attribute {number:06}": "v" * 200 for number in range(10_000)}
    return _one_of_each(folder, share(3000), {".zattrs": json.dumps(attributes).encode(), ".zarray": array_document((4,), (4,))})


def many_wide_attributes(folder: Path) -> Path:
    """Write 60 KB of attributes, a megabyte when parsed, for each of up to 5,000 arrays."""
    attributes = b'{"a":[' + b"{}," * 20_000 + b"1]}"
    return _one_of_each(folder, share(5000), {".zattrs": attributes, ".zarray": array_document((4,), (4,))})


def many_large_arrays(folder: Path) -> Path:
    """Write large metadata other than attributes: labels, and names of dimensions."""
    labels = [f"label {number:04}" for number in range(4000)]
    codec = {"id": "categorize", "labels": labels, "dtype": "|O", "astype": "<u4"}
    _one_of_each(folder, share(3000), {".zarray": array_document((4,), (4,), "|O", fill_value="", filters=[codec])})
    named = array3((4,) * 30, (4,) * 30, [{"name": "bytes"}], dimension_names=["d" * 30_000] * 30)
    return _one_of_each(folder, share(3000), {"zarr.json": named}, "n")


def long_labels(folder: Path) -> Path:
    """Write labels of text of 16 MB each, by their type."""
    values = {".zgroup": GROUP}
    for number in range(60):
        codec = {"id": "categorize", "labels": [f"{number}", "b", "c"], "dtype": "<U4000000", "astype": "|u1"}
        values |= {f"a{number}/.zarray": array_document((40,), (40,), "<U4000000", filters=[codec]), f"a{number}/0": bytes(40)}
    return write(folder / "s", values)


def _one_of_each(folder: Path, count: int, documents: dict[str, bytes], prefix: str = "a") -> Path:
    store = write(folder / "s", {".zgroup": GROUP})
    beside = write(folder / f"beside-{prefix}", documents)
    for number in range(count):
        (store / f"{prefix}{number}").mkdir()
        for name in documents:
            os.link(beside / name, store / f"{prefix}{number}/{name}")
    return store


def many_codecs(folder: Path) -> Path:
    gzip = {"name": "gzip", "configuration": {"level": 1}}
    transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
    values = {
        "gzip/zarr.json": array3((4, 4), (4, 4), [{"name": "bytes"}, *[gzip] * 10_000]),
        "transpose/zarr.json": array3((4, 4), (4, 4), [*[transpose] * 10_000, {"name": "bytes"}]),
        "delta/.zarray": array_document((4, 4), (4, 4), "<i4", filters=[{"id": "delta", "dtype": "<i4"}] * 10_000),
        "gzip/c/0/0": zlib.compress(bytes(16)),
        "transpose/c/0/0": bytes(16),
        "delta/0.0": bytes(64),
    }
    return write(folder / "s", {".zgroup": GROUP, **values})


def consolidated(folder: Path) -> Path:
    """Write a consolidated copy of up to 20,000 nodes, none of which exists."""
    array = json.loads(array_document((4,), (4,)))
    metadata: dict[str, Any] = {".zgroup": {"zarr_format": 2}}
    for number in range(share(20_000)):
        metadata[f"g{number // 100}/.zgroup"] = {"zarr_format": 2}
        metadata[f"g{number // 100}/a{number}/.zarray"] = array
        metadata[f"g{number // 100}/a{number}/.zattrs"] = {"number": number}
    copy = json.dumps({"zarr_consolidated_format": 1, "metadata": metadata}).encode()
    return write(folder / "s", {".zgroup": GROUP, ".zmetadata": copy, "g0/a0/0": bytes(16)})


def consolidated3(folder: Path) -> Path:
    array = json.loads(array3((4,), (4,), [{"name": "bytes"}]))
    metadata = {f"a{number}": array for number in range(share(20_000))}
    copy = {
        "zarr_format": 3,
        "node_type": "group",
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata},
    }
    return write(folder / "s", {"zarr.json": json.dumps(copy).encode(), "a0/c/0": bytes(4)})


def deep_copies(folder: Path) -> Path:
    """Write consolidated copies with paths of 60,000 parts."""
    name = "/".join("a" * 60_000)
    group = {"zarr_format": 3, "node_type": "group"}
    copy = {"kind": "inline", "must_understand": False, "metadata": {"b": group, name: group}}
    members = {".zgroup": {"zarr_format": 2}, f"{name}/.zgroup": {"zarr_format": 2}}
    values = {
        "zarr.json": json.dumps(group | {"consolidated_metadata": copy}).encode(),
        "b/zarr.json": json.dumps(group).encode(),
        "two/.zgroup": GROUP,
        "two/.zmetadata": json.dumps({"zarr_consolidated_format": 1, "metadata": members}).encode(),
    }
    return write(folder / "s", values)


# --- names ----------------------------------------------------------------------------------------------------------------------


def many_keys(folder: Path) -> Path:
    store = write(folder / "s", {".zgroup": GROUP, "a/.zarray": array_document((10**6,), (1,), "|u1")})
    _links(store / "a", (str(number) for number in range(share(100_000))), folder)
    return store


def many_arrays(folder: Path) -> Path:
    document = folder / "document"
    document.write_bytes(array_document((4,), (4,)))
    store = write(folder / "s", {".zgroup": GROUP})
    for number in range(share(20_000)):
        (store / f"a{number}").mkdir()
        os.link(document, store / f"a{number}/.zarray")
    return store


def deep_folders(folder: Path) -> Path:
    """Write nested groups, deeper than any path length."""
    store = write(folder / "s", {".zgroup": GROUP, "d/.zgroup": GROUP})
    at = os.open(store, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("g", dir_fd=at)
        below = os.open("g", os.O_RDONLY, dir_fd=at)
        os.link(store / ".zgroup", ".zgroup", dst_dir_fd=below)
        os.close(at)
        at = below
    os.close(at)
    return store


def sparse_keys(folder: Path) -> Path:
    """Write keys of a GiB each, all holes."""
    for number in range(32):
        sparse(folder / f"s/k{number}", 2**30)
    return folder / "s"


def _links(folder: Path, names: Any, beside: Path) -> None:
    value = beside / "value"
    value.write_bytes(b"\1")
    # ext4 allows at most 65,000 links to a file.
    for number, name in enumerate(names):
        if number % 50_000 == 49_999:
            value.unlink()
            value.write_bytes(b"\1")
        os.link(value, folder / name)


# --- archives -------------------------------------------------------------------------------------------------------------------


def zip_of_many(folder: Path) -> Path:
    """Write up to 10^6 zip members that share one entry's data; 46 bytes and a name each."""
    name, value = b"a/.zarray", array_document((4,), (4,))
    local = (
        struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0x800, 0, 0, 0x21, zlib.crc32(value), len(value), len(value), len(name), 0) + name
    )
    count = share(10**6)
    head = struct.pack("<4s6H3I", b"PK\1\2", 20, 20, 0x800, 0, 0, 0x21, zlib.crc32(value), len(value), len(value))
    tail = struct.pack("<4H2I", 0, 0, 0, 0, 0, 0)
    path = folder / "many.zip"
    with path.open("wb") as file:
        file.write(local + value)
        begin = file.tell()
        for number in range(count):
            entry = b"a/%d" % number if number else name
            file.write(head + struct.pack("<H", len(entry)) + tail + entry)
        nbytes = file.tell() - begin
        end64 = file.tell()
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, nbytes, begin))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end64, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    assert len(zipfile.ZipFile(path).namelist()) == count
    return path


def zip_bomb(folder: Path) -> Path:
    """Write zip members of 4 GiB of zeros, deflated to 4 MiB."""
    path = folder / "bomb.zip"
    block = bytes(MIB)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(".zgroup", GROUP)
        archive.writestr("a/.zarray", array_document((2**31,), (2**31,), "|u1"))
        with archive.open("a/0", "w", force_zip64=True) as member:
            for _ in range(2048):
                member.write(block)
    return path


def zip_directory_of_holes(folder: Path) -> Path:
    """Write a zip with a central directory of 3 GiB, all holes."""
    path = folder / "holes.zip"
    nbytes = 3 << 30
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2**26, 2**26, nbytes, 0)
    end64 += struct.pack("<4sIQI", b"PK\6\7", 0, nbytes, 1)
    end64 += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    sparse(path, nbytes + len(end64), end64)
    return path


def sqlite_of_many(folder: Path) -> Path:
    path = folder / "many.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE zarr(k TEXT PRIMARY KEY, v BLOB)")
        connection.execute("INSERT INTO zarr VALUES ('a/.zarray', ?)", (array_document((10**6,), (1,), "|u1"),))
        connection.executemany("INSERT INTO zarr VALUES (?, x'01')", ((f"a/{number}",) for number in range(share(300_000))))
        connection.execute("INSERT INTO zarr VALUES ('huge', zeroblob(300000000))")
    return path


def dbm_of_many(folder: Path) -> Path:
    path = folder / "many.dbm"
    path.with_suffix(".dbm.dat").write_bytes(b"\1" * 512)
    with path.with_suffix(".dbm.dir").open("w") as file:
        file.writelines(f"'a/{number}', (0, 1)\n" for number in range(share(500_000)))
    return path


STORES: dict[str, Hostile] = {
    "chunks of one element": Hostile(
        one_element_chunks, [f"dd if=$M/npy/a.npy of=/dev/null bs=1M count=1 skip={n}" for n in (0, 5, 2**30)]
    ),
    "readers that are killed": Hostile(one_element_chunks, [f"cat $M/npy/a.npy; tail -c +{n} $M/npy/a.npy" for n in range(8)]),
    "many dimensions": Hostile(
        many_dimensions,
        [LIST_ALL, "head -c 1000000 $M/npy/d16.npy", "head -c 1000000 $M/npy/d31.npy", "head -c 1000000 $M/npy/d32.npy"],
    ),
    "30 short dimensions in other orders": Hostile(
        transposed,
        [f"{program} -c 1M $M/{file}" for program in ("head", "tail") for file in ("npy/a.npy", "npy/b.npy", "chunks/a/0*")],
    ),
    "60 GiB of holes": Hostile(
        holes,
        ["echo x >> $M/raw/k; truncate -s +1 $M/raw/k", "cat $M/chunks/a/0", "echo x 1<> $M/zarr3/a/c/0", "cat $M/raw/k"],
        (),
    ),
    "2^40 chunks": Hostile(many_chunks, [LIST_ALL, "head -c 1000000 $M/npy/row.npy", "head -c 1000000 $M/npy/column.npy"]),
    "2^40 chunks, filled": Hostile(many_chunks, [LIST_ALL, "cat $M/chunks/square/7.7"], ("--read-only", "--fill")),
    "elements of a gigabyte": Hostile(
        large_elements, [LIST_ALL, *(f"head -c 1000000 $M/npy/{name}.npy; cat $M/chunks/{name}/0" for name in "abu")]
    ),
    "20,000 fields": Hostile(many_fields, [LIST_ALL, READ_ALL]),
    "512 MiB of zeros, four at once": Hostile(
        zeros_in_parallel, [f"head -c 1M $M/chunks/a/{n}; dd if=$M/npy/a.npy bs=1M count=1 skip={n * 512 + 5}" for n in range(4)]
    ),
    "a chunk of 3 GiB": Hostile(one_huge_chunk, ["head -c 1M $M/chunks/a/0", "tail -c 1M $M/npy/a.npy", "cat $M/zarr3/a/c/0"]),
    "headers that lie": Hostile(lying_headers, [LIST_ALL, "cat $M/chunks/*/0", "for f in $M/npy/*.npy; do tail -c 1M $f; done"]),
    "a chunk of two million objects": Hostile(objects, ["cat $M/chunks/a/0", "cat $M/chunks/b/0", LIST_ALL]),
    "elements of two million numbers": Hostile(long_elements, ["cat $M/chunks/a/0", "cat $M/chunks/m/0", LIST_ALL]),
    "sparse chunks": Hostile(sparse_chunks, [f"tail -c 1M $M/chunks/a/{n}" for n in range(16)]),
    "a shard of 2^26 chunks": Hostile(
        sparse_shard, ["ls -l $M/chunks/a", "head -c 1M $M/npy/a.npy", "cat $M/chunks/a/67108863", "cat $M/zarr3/a/c/1"]
    ),
    "overlapping inner chunks": Hostile(
        overlapping_shard, [LIST_ALL, "head -c 4M $M/npy/same.npy", "head -c 4M $M/npy/overlap.npy"]
    ),
    "nested shards": Hostile(nested_shards, [LIST_ALL, "head -c 1M $M/npy/a.npy"]),
    "five million empty objects": Hostile(wide_attributes, ["cat $M/chunks/.zattrs", "ls -l $M/npy", "cat $M/zarr3/zarr.json"]),
    "deep documents": Hostile(deep_documents, [LIST_ALL, READ_ALL]),
    "wide documents": Hostile(wide_documents, [LIST_ALL, READ_ALL]),
    "long numbers": Hostile(long_numbers, [LIST_ALL, READ_ALL]),
    "long strings": Hostile(long_strings, [LIST_ALL, READ_ALL]),
    "one escape in long attributes": Hostile(one_escape, ["cat $M/chunks/.zattrs", "ls -l $M/chunks", "wc $M/zarr3/zarr.json"]),
    "wide names": Hostile(wide_names, [LIST_ALL, READ_ALL, "getfattr -d -R $M/chunks"]),
    "a long fill value": Hostile(long_fill_value, [LIST_ALL, READ_ALL]),
    "long fill values": Hostile(
        long_fill_values,
        [LIST_ALL, "head -c 1M $M/npy/a.npy", "head -c 10M $M/chunks/s/0", "head -c 1M $M/zarr3/v/c/0"],
        ("--read-only", "--fill"),
    ),
    "many arrays of large attributes": Hostile(many_large_attributes, [LIST_ALL, "ls $M/npy", "find $M/chunks", _GETFATTR]),
    "many arrays of wide attributes": Hostile(many_wide_attributes, [LIST_ALL, "find $M -type f", _GETFATTR]),
    "many arrays of large documents": Hostile(many_large_arrays, [LIST_ALL, "ls $M/npy", "find $M/chunks", _GETFATTR]),
    "long labels": Hostile(
        long_labels, [LIST_ALL, "head -c 1M $M/npy/a1.npy", "head -c 1M $M/chunks/a2/0", "tail -c 1M $M/npy/a3.npy"]
    ),
    "10,000 codecs": Hostile(many_codecs, [LIST_ALL, READ_ALL]),
    "many nodes in a copy": Hostile(consolidated, [LIST_ALL, "cat $M/chunks/.zmetadata"]),
    "many nodes in a copy of v3": Hostile(consolidated3, [LIST_ALL, "cat $M/zarr3/zarr.json"]),
    "paths of 60,000 parts in copies": Hostile(deep_copies, [LIST_ALL, READ_ALL, 'echo "{}" > $M/chunks/b/.zattrs'], ()),
    "many keys": Hostile(many_keys, ["ls -l $M/raw/a", "ls -l $M/chunks/a", "ls -l $M/zarr3/a/c", "cat $M/npy/a.npy"]),
    "many arrays": Hostile(many_arrays, [f"ls -l $M/{view}" for view in ("raw", "chunks", "zarr3", "npy")]),
    "3,000 folders deep": Hostile(deep_folders, ["find $M", LIST_ALL]),
    "sparse keys": Hostile(sparse_keys, [f"tail -c 64M $M/raw/k{n}" for n in range(32)]),
    "a large file that is written": Hostile(
        one_element_chunks,
        [
            "truncate -s 3G $M/raw/x; echo y >> $M/raw/x",
            "truncate -s 3G $M/raw/y; dd if=/dev/zero of=$M/raw/y bs=1M count=1 seek=2000 conv=notrunc",
        ],
        (),
    ),
    "a zip of very many members": Hostile(zip_of_many, ["ls -l $M/raw/a", "ls $M/chunks/a", "cat $M/npy/a.npy"]),
    "a zip bomb": Hostile(zip_bomb, ["tail -c 1M $M/raw/a/0", "head -c 1M $M/chunks/a/0", "tail -c 1M $M/npy/a.npy"]),
    "an SQLite of many": Hostile(sqlite_of_many, [LIST_ALL, "tail -c 1M $M/raw/huge"]),
    "a DBM of many": Hostile(dbm_of_many, [LIST_ALL]),
}
"""Mountable stores by name."""

REFUSED: dict[str, Callable[[Path], Path]] = {"a zip directory of holes": zip_directory_of_holes}
"""Stores that cannot be mounted, and that mount refuses quickly and in little memory."""
