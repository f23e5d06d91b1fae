"""Zip files: compared with `zipfile`, with malicious entries, larger than 4 GiB, and changed while open."""

from __future__ import annotations

import io
import os
import random
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.length import tries
from tests.support.stores import contents, names
from zarrfs import threads
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound, StoreUnsupported, UsageError, ValueUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.archive import ArchiveStore
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.stores.zip.directory import ZipDirectory
from zarrfs.stores.zip.members import MemberReader

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
every_method = pytest.mark.parametrize("method", METHODS)
CONTENT = bytes(range(256)) * 700


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Store]:
    store = await open_store(str(path))
    try:
        yield store
    finally:
        await store.aclose()


def made(path: Path, *entries: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, value in entries:
            archive.writestr(name, value)
    return path


def raw_zip(*entries: tuple[bytes, bytes], flags: int = 0, method: int = 0, **fields: int) -> bytes:
    """Return a zip file built by hand: each entry with the bytes of its name and its stored bytes.

    ``fields`` (``crc``, ``size``, ``stored``, ``offset``) are false values for the directory.
    """
    out, directory = b"", b""
    for name, data in entries:
        crc, size = fields.get("crc", zlib.crc32(data)), fields.get("size", len(data))
        sizes = struct.pack("<3I", crc, fields.get("stored", len(data)), size)
        start = struct.pack("<4H", flags, method, 0, 0x2821)
        directory += b"PK\1\2" + struct.pack("<2H", 20, 20) + start + sizes
        directory += struct.pack("<5H2I", len(name), 0, 0, 0, 0, 0, fields.get("offset", len(out))) + name
        out += b"PK\3\4" + struct.pack("<H", 20) + start + sizes + struct.pack("<2H", len(name), 0) + name + data
    count = len(entries)
    return out + directory + b"PK\5\6" + struct.pack("<4H2IH", 0, 0, count, count, len(directory), len(out), 0)


# --- against zipfile ------------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
ENTRIES = st.lists(st.tuples(NAMES, st.binary(max_size=300), st.sampled_from(METHODS)), max_size=12)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@tries(100, database=None)
@given(
    entries=ENTRIES,
    # zipfile takes a magic number in a comment for the end of the archive.
    comment=st.binary(max_size=40).filter(lambda comment: b"PK" not in comment),
    before=st.binary(max_size=40),
    data=st.data(),
)
def test_random_archives_hold_what_zipfile_finds(
    entries: list[tuple[str, bytes, int]],
    comment: bytes,
    before: bytes,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("zip") / "x.zip"
    made_in = io.BytesIO()
    with zipfile.ZipFile(made_in, "w") as archive:
        archive.comment = comment
        for name, value, method in entries:
            archive.writestr(zipfile.ZipInfo(name, (2021, 2, 3, 4, 5, 6)), value, method)
    path.write_bytes(before + made_in.getvalue())
    with zipfile.ZipFile(path) as archive:
        expected = {info.filename: archive.read(info.filename) for info in archive.infolist() if not info.is_dir()}
        folders = {info.filename for info in archive.infolist() if info.is_dir()}
    wanted = (
        data.draw(st.lists(st.tuples(st.sampled_from(sorted(expected)), st.integers(0, 320), st.integers(0, 320)), max_size=5))
        if expected
        else []
    )

    async def hold() -> None:
        async with opened(path) as store:
            assert await contents(store) == expected
            for folder in folders:
                assert await store.prefix_exists(Prefix(folder))
            for name, start, length in wanted:
                parts = await store.get_partial_values(
                    [(Key(name), ByteRange(start, length)), (Key(name), ByteRange.suffix(length))]
                )
                whole = expected[name]
                assert parts == [whole[start : start + length], whole[max(0, len(whole) - length) :]]
                stat = await store.stat(Key(name))
                assert stat is not None and stat.size == len(whole)
                assert stat.mtime_ns == int(time.mktime((2021, 2, 3, 4, 5, 6, 0, 0, -1))) * 10**9

    trio.run(hold)


@trio_test
async def test_other_names_than_ascii(tmp_path: Path) -> None:
    """UTF-8 with the flag, code page 437 without, the Unicode path if it belongs to this name; invalid UTF-8 is kept."""
    path = tmp_path / "x.zip"
    path.write_bytes(raw_zip(("ü".encode(), b"1"), (b"\xff\xfe", b"2"), flags=0x800))
    async with opened(path) as store:
        assert await contents(store) == {"ü": b"1", "\udcff\udcfe": b"2"}
    path.write_bytes(raw_zip((b"\x81", b"1")))
    async with opened(path) as store:
        assert await contents(store) == {"ü": b"1"}
    info = zipfile.ZipInfo("x")
    info.extra = struct.pack("<HHBI", 0x7075, 5 + 2, 1, zlib.crc32(b"\x81")) + "é".encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, b"1")
    path.write_bytes(path.read_bytes().replace(b"x\x75\x70", b"\x81\x75\x70").replace(b"\0x", b"\0\x81"))
    async with opened(path) as store:
        assert await contents(store) == {"é": b"1"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@trio_test
async def test_the_last_of_equal_names_counts(tmp_path: Path) -> None:
    async with opened(made(tmp_path / "x.zip", ("a", b"first"), ("b", b""), ("a", b"last"))) as store:
        assert await contents(store) == {"a": b"last", "b": b""}


@trio_test
async def test_folders_are_empty_prefixes(tmp_path: Path) -> None:
    async with opened(made(tmp_path / "x.zip", ("empty/", b""), ("full/", b""), ("full/k", b"v"), ("deep/er/", b""))) as store:
        assert await contents(store) == {"full/k": b"v"}
        assert await names(store) == {("empty", True): 0, ("full", True): 0, ("deep", True): 0}
        assert await names(store, "empty/") == {} and await names(store, "deep/") == {("er", True): 0}
        assert await store.prefix_exists(Prefix("empty/")) and not await store.prefix_exists(Prefix("full/k/"))
        assert await store.get(Key("empty")) is None


@trio_test
async def test_recognised_by_content_alone(tmp_path: Path) -> None:
    path = made(tmp_path / "no ending", ("k", b"v"))
    async with opened(path) as store:
        assert isinstance(store, ArchiveStore)
    path.write_bytes(b"#!/bin/sh\nexit\n" + path.read_bytes())
    async with opened(path) as store:
        assert await contents(store) == {"k": b"v"}
    async with opened(made(tmp_path / "empty.zip")) as store:
        assert await contents(store) == {}
    (tmp_path / "not.zip").write_bytes(b"something else" * 99)
    with pytest.raises(StoreNotFound, match=r"not\.zip is not a store"):
        await open_store(str(tmp_path / "not.zip"))


@trio_test
async def test_a_comment_that_looks_like_an_end(tmp_path: Path) -> None:
    for comment in (b"PK\5\6", b"PK\5\6" + bytes(18), b"x" * 65535, raw_zip((b"k", b"other"))[-60:]):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr("k", b"v")
            archive.comment = comment
        async with opened(tmp_path / "x.zip") as store:
            if len(comment) != 22:  # An empty archive at the end of another: readers, including zipfile, take that one.
                assert await contents(store) == {"k": b"v"}


# --- parts of values ------------------------------------------------------------------------------------------------------------


@every_method
@trio_test
async def test_parts_in_any_order(tmp_path: Path, method: int) -> None:
    async with opened(made(tmp_path / "x.zip", ("k", CONTENT), method=method)) as store:
        sizes = random.Random(method)
        for start in [
            0,
            5,
            70_000,
            69_999,
            140_000,
            3,
            len(CONTENT) - 1,
            len(CONTENT),
            *(sizes.randrange(len(CONTENT)) for _ in range(20)),
        ]:
            length = sizes.randrange(100_000)
            (part,) = await store.get_partial_values([(Key("k"), ByteRange(start, length))])
            assert part == CONTENT[start : start + length]
            (part,) = await store.get_partial_values([(Key("k"), ByteRange(start + length, 10))])
            assert part == CONTENT[start + length : start + length + 10]


@every_method
@trio_test
async def test_one_value_read_by_many(tmp_path: Path, method: int) -> None:
    async with opened(made(tmp_path / "x.zip", ("k", CONTENT), method=method)) as store:

        async def read(step: int) -> None:
            for start in range(0, len(CONTENT), step):
                (part,) = await store.get_partial_values([(Key("k"), ByteRange(start, step))])
                assert part == CONTENT[start : start + step]

        async with trio.open_nursery() as nursery:
            for step in (7_000, 7_000, 9_001, 60_000, 60_000, 200_000):
                nursery.start_soon(read, step)


class CountingFile(ArchiveFile):
    """Counts the bytes read."""

    nbytes = 0

    def read(self, start: int, stop: int, place: str) -> bytes:
        self.nbytes += stop - start
        return super().read(start, stop, place)


@every_method
def test_a_value_that_is_read_on_is_decoded_once(tmp_path: Path, method: int) -> None:
    content = random.Random(5).randbytes(3 << 20)
    file = CountingFile(str(made(tmp_path / "x.zip", ("k", content), method=method)))
    member = ZipDirectory(file).member(0)
    reader = MemberReader(file)
    file.nbytes = 0
    for start in range(0, len(content), 100_000):
        (part,) = reader.read(b"k", member, [ByteRange(start, 100_000)], "k")
        assert part == content[start : start + 100_000]
    assert file.nbytes < 1.1 * len(content)
    file.nbytes = 0
    # Parts with gaps between them, as of a shard.
    for start in range(0, len(content), 300_000):
        reader.read(b"k", member, [ByteRange(start, 100_000)], "k")
    assert file.nbytes < 1.1 * len(content)


def test_another_reader_in_between_takes_no_decoder_away(tmp_path: Path) -> None:
    content = random.Random(5).randbytes(3 << 20)
    file = CountingFile(str(made(tmp_path / "x.zip", ("k", content), method=zipfile.ZIP_DEFLATED)))
    member = ZipDirectory(file).member(0)
    reader = MemberReader(file)
    reader.read(b"k", member, [ByteRange(0, 1 << 20)], "k")
    reader.read(b"k", member, [ByteRange(2 << 20, 10)], "k")
    file.nbytes = 0
    assert reader.read(b"k", member, [ByteRange(1 << 20, 1000)], "k") == [content[1 << 20 :][:1000]]
    assert file.nbytes < 200_000


# --- malicious entries ----------------------------------------------------------------------------------------------------------


@every_method
@trio_test
async def test_a_flipped_bit_is_an_error_that_names_the_key(tmp_path: Path, method: int) -> None:
    path = made(tmp_path / "x.zip", ("good", CONTENT), ("bad", CONTENT[:5000]), method=method)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("bad")
    content = bytearray(path.read_bytes())
    content[info.header_offset + 30 + len("bad") + info.compress_size // 2] ^= 4
    path.write_bytes(content)
    async with opened(path) as store:
        with pytest.raises(StoreError, match="'bad'") as raised:
            await store.get(Key("bad"))
        assert raised.value.key == "bad"
        assert await store.get(Key("good")) == CONTENT


@every_method
@pytest.mark.parametrize("change", ["size", "stored"])
@pytest.mark.parametrize("by", [-1, 1, 1000, 2**31])
@trio_test
async def test_sizes_that_are_not_so(tmp_path: Path, method: int, change: str, by: int) -> None:
    path = made(tmp_path / "x.zip", ("k", CONTENT), ("other", b"fine"), method=method)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("k")
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\1\2")
    at = entry + (24 if change == "size" else 20)
    said = info.file_size if change == "size" else info.compress_size
    content[at : at + 4] = struct.pack("<I", said + by)
    path.write_bytes(content)
    async with opened(path) as store:
        if change == "stored" and method != zipfile.ZIP_STORED:
            # Its last bytes may be unnecessary: data of the right length and CRC is right.
            with suppress(StoreError):
                assert await store.get(Key("k")) == CONTENT
        else:
            with pytest.raises(StoreError, match="'k'"):
                await store.get(Key("k"))
        assert await store.get(Key("other")) == b"fine"


@pytest.mark.parametrize("declared", [10, 10**9])
@trio_test
async def test_a_bomb_becomes_no_more_than_was_declared_or_asked_for(tmp_path: Path, declared: int) -> None:
    import tracemalloc

    real = 200 << 20
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = b"".join([*(compressor.compress(bytes(1 << 20)) for _ in range(real >> 20)), compressor.flush()])
    (tmp_path / "x.zip").write_bytes(raw_zip((b"bomb", data), method=8, size=declared))
    async with opened(tmp_path / "x.zip") as store:
        tracemalloc.start()
        try:
            byte_range = ByteRange() if declared < real else ByteRange(declared - 10, 10)
            with pytest.raises(StoreError, match="'bomb'"):
                await store.get_partial_values([(Key("bomb"), byte_range)])
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


@trio_test
async def test_an_lzma_dictionary_of_gigabytes_is_not_allocated(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", ("k", CONTENT), method=zipfile.ZIP_LZMA)
    content = bytearray(path.read_bytes())
    at = content.index(b"\5\0", 30)
    content[at + 3 : at + 7] = b"\xff\xff\xff\xf0"
    path.write_bytes(content)
    import resource

    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, limits[1]))
    try:
        async with opened(path) as store:
            assert await store.get(Key("k")) == CONTENT
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(("method", "name"), [(9, "deflate64"), (93, "zstd"), (1, "shrink"), (77, "method 77"), (99, "AES")])
@trio_test
async def test_methods_that_are_not_known_are_named(tmp_path: Path, method: int, name: str) -> None:
    (tmp_path / "x.zip").write_bytes(raw_zip((b"k", b"..."), method=method))
    async with opened(tmp_path / "x.zip") as store:
        with pytest.raises(ValueUnsupported, match=f"'k'.*{name}"):
            await store.get(Key("k"))
        assert await names(store) == {("k", False): 3}


@pytest.mark.parametrize("flags", [0x1, 0x41, 0x2000])
@trio_test
async def test_encrypted_entries_are_denied(tmp_path: Path, flags: int) -> None:
    (tmp_path / "x.zip").write_bytes(raw_zip((b"k", b"secret"), flags=flags))
    async with opened(tmp_path / "x.zip") as store:
        with pytest.raises(StoreAccessDenied, match=r"'k'.*encrypted"):
            await store.get(Key("k"))


HOSTILE = [
    b"../x", b"/abs", b"a//b", b"a/./b", b"a/../b", b"..", b".", b"back\\slash", b"C:\\x", b"nul\0byte", b"ctl\1\n\x7f",
    b"x" * 300, b"deep/" * 2000 + b"x", b"\xff\xfe", b"\xed\xa0\x80", b" ", b"//s", b"a/b/../../../etc/passwd",
]  # fmt: skip


@trio_test
async def test_hostile_names_are_keys_and_nothing_else(tmp_path: Path) -> None:
    entries = [(name, b"%d" % number) for number, name in enumerate(HOSTILE)]
    (tmp_path / "x.zip").write_bytes(raw_zip(*entries, flags=0x800))
    async with opened(tmp_path / "x.zip") as store:
        assert await contents(store) == {os.fsdecode(name): value for name, value in entries}
        for key in ("x", "abs", "b", "etc/passwd", "../../etc/passwd", "nul", "\ud800"):
            assert await store.get(Key(key)) is None


@pytest.mark.logs("without a name")
@trio_test
async def test_what_cannot_be_a_key_is_skipped_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.zip").write_bytes(raw_zip((b"", b"nameless"), (b"k", b"v"), (b"", b"again")))
    async with opened(tmp_path / "x.zip") as store:
        assert await contents(store) == {"k": b"v"}
        assert await names(store) == {("k", False): 1}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("offset", [1, 5, 10**6, 2**32 - 2])
@trio_test
async def test_an_entry_that_is_not_where_it_should_be(tmp_path: Path, offset: int) -> None:
    (tmp_path / "x.zip").write_bytes(raw_zip((b"k", b"v"), offset=offset))
    async with opened(tmp_path / "x.zip") as store:
        with pytest.raises(StoreError, match="'k'"):
            await store.get(Key("k"))


@trio_test
async def test_the_entry_of_another_name_is_not_given(tmp_path: Path) -> None:
    content = raw_zip((b"a", b"1"), (b"b", b"2"))
    (tmp_path / "x.zip").write_bytes(content.replace(b"PK\3\4" + content[4:30] + b"a", b"PK\3\4" + content[4:30] + b"c"))
    async with opened(tmp_path / "x.zip") as store:
        with pytest.raises(StoreError, match=r"'a'.*another entry"):
            await store.get(Key("a"))
        assert await store.get(Key("b")) == b"2"


@tries(200, database=None)
@given(places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_archive_is_an_error_and_never_a_crash(
    places: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("zip") / "x.zip"
    content = bytearray(made(path, ("a/b", b"12345" * 9), ("c", b"x"), ("folder/", b""), method=zipfile.ZIP_DEFLATED).read_bytes())
    for place, value in places:
        content[place % len(content)] = value
    path.write_bytes(content)

    async def hold() -> None:
        try:
            store = await open_store(f"zip:{path}")
        except StoreError as error:
            assert str(path) in str(error)  # noqa: PT017
            return
        async for key in store.list():
            try:
                value = await store.get(key)
            except StoreError as error:
                assert error.key == key  # noqa: PT017
            else:
                assert value is not None and len(value) < 100
        [entry async for entry in store.list_dir(Prefix(""))]

    trio.run(hold)


# --- large, and changed ---------------------------------------------------------------------------------------------------------


@trio_test
async def test_an_archive_of_more_than_4_gib(tmp_path: Path) -> None:
    """A sparse file: the values between are holes."""
    path, large = tmp_path / "large.zip", (4 << 30) + 100
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("first", b"1")
        info = zipfile.ZipInfo("large")
        info.file_size = large
        with archive.open(info, "w", force_zip64=True) as entry:
            entry.write(b"begin")
            assert archive.fp is not None
            hole = large - len("beginend")
            archive.fp.seek(hole, os.SEEK_CUR)
            entry._file_size += hole  # type: ignore[attr-defined]
            entry._compress_size = large  # type: ignore[attr-defined]
            entry.write(b"end")
        archive.writestr("last", b"2")
    assert path.stat().st_size > large > path.stat().st_blocks * 512
    async with opened(path) as store:
        assert await store.get(Key("last")) == b"2" and await store.get(Key("first")) == b"1"
        ranges = [ByteRange(0, 5), ByteRange.suffix(4), ByteRange((4 << 30) - 2, 4), ByteRange(large - 1, 99)]
        assert await store.get_partial_values([(Key("large"), each) for each in ranges]) == [b"begin", b"\0end", bytes(4), b"d"]
        assert await names(store) == {("first", False): 1, ("large", False): large, ("last", False): 1}


@pytest.mark.parametrize("before", [b"", b"something before it"])
@trio_test
async def test_zip64_records_where_none_are_needed(tmp_path: Path, before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    path = made(tmp_path / "x.zip", ("a", CONTENT), ("b", b"small"), ("c/d", CONTENT[:99]), method=zipfile.ZIP_DEFLATED)
    assert b"PK\6\6" in path.read_bytes()
    path.write_bytes(before + path.read_bytes())
    async with opened(path) as store:
        assert await contents(store) == {"a": CONTENT, "b": b"small", "c/d": CONTENT[:99]}


@trio_test
async def test_a_directory_of_more_than_one_piece(tmp_path: Path) -> None:
    entries = [(b"folder-%05d/" % (number // 100) + b"x" * 60 + b"%d" % number, b"") for number in range(15_000)]
    path = tmp_path / "x.zip"
    path.write_bytes(raw_zip(*entries))
    async with opened(path) as store:
        assert {key async for key in store.list()} == {name.decode() for name, _ in entries}
        assert len(await names(store)) == 150 and len(await names(store, "folder-00007/")) == 100


def cut(path: Path) -> None:
    os.truncate(path, 100)


def rewrite(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"old", b"new"))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"old", b"new"))
    os.replace(other, path)


@every_method
@pytest.mark.parametrize("change", [cut, rewrite, replace])
@trio_test
async def test_a_file_that_was_changed_gives_errors_and_never_other_bytes(
    tmp_path: Path, method: int, change: Callable[[Path], None]
) -> None:
    path = made(tmp_path / "x.zip", ("a", b"old" * 9), ("b", b"old" * 9999), method=method)
    async with opened(path) as store:
        assert await store.get(Key("a")) == b"old" * 9
        change(path)
        for key, byte_range in (("a", ByteRange()), ("b", ByteRange()), ("b", ByteRange(5, 9))):
            with pytest.raises(StoreError, match="changed or replaced"):
                await store.get_partial_values([(Key(key), byte_range)])


@trio_test
async def test_a_file_that_was_moved_or_removed_is_still_the_archive(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", ("a", b"value"))
    async with opened(path) as store:
        path.rename(tmp_path / "y.zip")
        assert await store.get(Key("a")) == b"value"
        (tmp_path / "y.zip").unlink()
        assert await store.get(Key("a")) == b"value"


@trio_test
async def test_an_archive_in_several_parts_is_refused(tmp_path: Path) -> None:
    content = bytearray(raw_zip((b"k", b"v")))
    end = content.rindex(b"PK\5\6")
    content[end + 4 : end + 6] = b"\3\0"
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(StoreUnsupported, match="several parts"):
        await open_store(str(tmp_path / "x.zip"))


@trio_test
async def test_a_value_that_nobody_waits_for_is_decoded_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "x.zip", ("k", CONTENT * 100), method=zipfile.ZIP_DEFLATED)
    begun, given_up, ended = threading.Event(), threading.Event(), threading.Event()
    looks: list[bool] = []
    look = threads.go_on

    def counted() -> None:
        looks.append(given_up.is_set())
        if len(looks) == 5:
            begun.set()
            given_up.wait()
        try:
            look()
        except BaseException:
            ended.set()
            raise

    async with opened(path) as store:
        with monkeypatch.context() as patched:
            patched.setattr(threads, "go_on", counted)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.get, Key("k"))
                while not begun.is_set():
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
                given_up.set()
            ended.wait()
        assert looks == [False] * 5
        assert await store.get(Key("k")) == CONTENT * 100


# --- zip files inside of zip files -----------------------------------------------------------------------------------------------------


def zipped(values: dict[str, bytes], method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, value in values.items():
            archive.writestr(name, value)
    return buffer.getvalue()


@pytest.mark.parametrize("outer", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("inner", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@trio_test
async def test_a_zip_file_in_a_zip_file_is_a_store(tmp_path: Path, outer: int, inner: int) -> None:
    values = {"a/.zarray": b"{}", "a/0": bytes(range(256)) * 50, "b": b""}
    path = tmp_path / "x.zip"
    deepest = zipped(values, inner)
    path.write_bytes(zipped({"in/y.zip": zipped({"z.zip": deepest}, outer), "y.zip": deepest}, outer))
    for url in (f"{path}|zip:y.zip|zip:", f"zip:{path}|zip:in/y.zip|zip:z.zip|ZIP:"):
        store = await open_store(url)
        assert await contents(store) == values
        assert await store.get_partial_values([(Key("a/0"), ByteRange(300, 7))]) == [values["a/0"][300:307]]
        await store.aclose()
    store = await open_store(f"{path}|zip:y.zip|zip:a//")
    assert set(await contents(store)) == {".zarray", "0"}
    path.write_bytes(b"PK")
    with pytest.raises(StoreError):
        await store.get(Key("0"))
    await store.aclose()


@trio_test
async def test_what_is_no_zip_file_in_a_zip_file(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(zipped({"y.zip": b"no zip file at all, whatever it is called", "d/": b""}, zipfile.ZIP_DEFLATED))
    with pytest.raises(StoreNotFound, match=r"no nothere\.zip in .*x\.zip"):
        await open_store(f"{path}|zip:nothere.zip|zip:")
    with pytest.raises(StoreNotFound):
        await open_store(f"{path}|zip:d/|zip:")
    with pytest.raises(StoreError, match=r"x\.zip\|zip:y\.zip is not a whole zip file"):
        await open_store(f"{path}|zip:y.zip|zip:")
    with pytest.raises(UsageError, match="deep"):
        await open_store(f"{path}{'|zip:y.zip' * 6}|zip:")


@trio_test
async def test_a_path_inside_an_archive_is_written_as_a_person_likes(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(zipped({"data.zarr/g/.zgroup": b"{}", "odd//k": b"1"}, zipfile.ZIP_STORED))
    for prefix in ("data.zarr/g", "/data.zarr/g/", "data.zarr//g", "\\data.zarr\\g\\"):
        store = await open_store(f"{path}|zip:{prefix}")
        assert await contents(store) == {".zgroup": b"{}"}
        await store.aclose()
    store = await open_store(f"{path}|zip:odd/")
    assert await contents(store) == {"/k": b"1"}
    await store.aclose()
    for prefix in ("data.zarr/../data.zarr", "."):
        with pytest.raises(StoreNotFound):
            await open_store(f"{path}|zip:{prefix}")
