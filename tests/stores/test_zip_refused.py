"""Invalid zip files and DBMs: detected when they are opened, or when the value is read."""

from __future__ import annotations

import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.stores.test_zip import made, raw_zip
from tests.support.stores import contents
from zarrfs.errors import StoreError, StoreUnsupported, TooLarge
from zarrfs.keys import ByteRange, Key
from zarrfs.memory import indexes
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.base import Store
from zarrfs.stores.dbm import index
from zarrfs.stores.opening import open_store
from zarrfs.stores.zip import directory, members


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Store]:
    store = await open_store(str(path))
    try:
        yield store
    finally:
        await store.aclose()


def lzma_member(data: bytes, *, window: int | None = None, properties: int | None = None, cut: int = 0) -> bytes:
    """Return ``data`` in the form of a zip file: a header, then the stream."""
    encoded = lzma.compress(data, format=lzma.FORMAT_ALONE)
    said = encoded[:1] if properties is None else bytes([properties])
    return (
        b"\x09\x14\5\0"
        + said
        + (encoded[1:5] if window is None else window.to_bytes(4, "little"))
        + encoded[13 : len(encoded) - cut]
    )


# --- values of a zip file -----------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_value_of_lzma_has_a_header_of_lzma(tmp_path: Path) -> None:
    data = b"some data" * 50
    said = {"method": 14, "size": len(data), "crc": zlib.crc32(data)}
    path = tmp_path / "x.zip"
    path.write_bytes(raw_zip((b"k", lzma_member(data)), **said))
    async with opened(path) as store:
        assert await store.get(Key("k")) == data
    for stored, reason in (
        (lzma_member(data)[:7], "no header as LZMA has one"),
        (lzma_member(data, properties=225), "no header as LZMA has one"),
        (b"\x09\x14\6\0" + lzma_member(data)[4:], "no header as LZMA has one"),
        (lzma_member(data, properties=4 * 9 + 8), "no LZMA decoder for its header"),
        (lzma_member(data, cut=20), "cut short|ends after"),
    ):
        path.write_bytes(raw_zip((b"k", stored), **said))
        async with opened(path) as store:
            with pytest.raises(StoreError, match=f"reading 'k': .*({reason})"):
                await store.get(Key("k"))


@trio_test
async def test_a_value_whose_decoder_needs_very_much_memory_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_MAX_WINDOW_NBYTES", 5000)
    data = bytes(range(256)) * 40
    path = tmp_path / "x.zip"
    path.write_bytes(raw_zip((b"k", lzma_member(data, window=1 << 30)), method=14, size=len(data), crc=zlib.crc32(data)))
    async with opened(path) as store:
        with pytest.raises(TooLarge, match=r"reading 'k': its LZMA decoder needs 10240 bytes: zarrfs has 5000 for one"):
            await store.get(Key("k"))


@trio_test
async def test_the_decoders_of_values_that_need_much_memory_are_not_kept_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_SMALL_WINDOW_NBYTES", 100)
    data = bytes(range(256)) * 40
    path = made(tmp_path / "x.zip", ("a", data), ("b", data), method=zipfile.ZIP_LZMA)
    async with opened(path) as store:
        for key in ("a", "b", "a", "b"):
            for start in (10, 500):
                assert await store.get_partial_values([(Key(key), ByteRange(start, 9))]) == [data[start : start + 9]]
        assert await contents(store) == {"a": data, "b": data}


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@trio_test
async def test_the_decoders_that_are_kept_are_few(tmp_path: Path, method: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_KEPT", 2)
    data = bytes(range(256)) * 40
    names = "abcdef"
    async with opened(made(tmp_path / "x.zip", *((name, data) for name in names), method=method)) as store:
        for start in (0, 700):
            for name in names:
                assert await store.get_partial_values([(Key(name), ByteRange(start, 500))]) == [data[start : start + 500]]


# --- the directory ------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_directory_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_DIRECTORY_NBYTES", 100)
    path = made(tmp_path / "x.zip", ("a", b"1"))
    async with opened(path) as store:
        assert await contents(store) == {"a": b"1"}
    with pytest.raises(StoreUnsupported, match=r"x\.zip has a central directory of \d+ bytes, which is too many"):
        await open_store(str(made(path, *((f"name-{number}", b"") for number in range(9)))))


@trio_test
async def test_a_directory_that_exceeds_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small its entries are in the file."""
    monkeypatch.setattr(indexes, "_limit", 1000)
    async with opened(made(tmp_path / "x.zip", *((f"{number}", b"") for number in range(5)))) as store:
        assert len(await contents(store)) == 5
    with pytest.raises(StoreUnsupported, match=r"x\.zip has too many entries: .* raise --memory-limit"):
        await open_store(str(made(tmp_path / "x.zip", *((f"{number}", b"") for number in range(6)))))


@trio_test
async def test_a_directory_that_ends_within_an_entry_is_damaged(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", ("a", b"1"), ("b", b"2"))
    whole = path.read_bytes()
    first = whole.index(b"PK\1\2")
    # Its comment reaches beyond the end.
    path.write_bytes(whole[: first + 32] + struct.pack("<H", 60_000) + whole[first + 34 :])
    with pytest.raises(StoreError, match=r"x\.zip has a damaged central directory: it ends within an entry"):
        await open_store(str(path))


@pytest.mark.parametrize("where", ["in the comment", "cut", "before the directory"])
@trio_test
async def test_bytes_that_look_like_an_end_are_passed_over(tmp_path: Path, where: str) -> None:
    path = made(tmp_path / "x.zip", ("a", b"1"))
    whole = path.read_bytes()
    false_end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, 46, 1 << 30, 0)
    if where == "before the directory":
        path = made(path, ("a", false_end))
        whole = path.read_bytes()
        false_end = b""
    comment = false_end[:10] if where == "cut" else false_end
    path.write_bytes(whole[:-2] + struct.pack("<H", len(comment)) + comment)
    async with opened(path) as store:
        assert list(await contents(store)) == ["a"]


@trio_test
async def test_extra_fields_that_are_not_those_that_are_looked_for_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("\u00e9")
        info.extra = struct.pack("<HH3s", 0xCAFE, 3, b"abc") + struct.pack("<HH", 0xBEEF, 60_000)
        archive.writestr(info, b"1")
    whole = bytearray(path.read_bytes())
    first = whole.index(b"PK\1\2")
    # As written by a program without UTF-8.
    for at in (6, first + 8):
        whole[at : at + 2] = b"\0\0"
    path.write_bytes(whole)
    async with opened(path) as store:
        assert list((await contents(store)).values()) == [b"1"]


# --- the index of a DBM -------------------------------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> ArchiveFile:
    (folder / "x.dir").write_text(text, "latin-1")
    return ArchiveFile(str(folder / "x.dir"))


def test_an_index_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_MAX_NBYTES", 10)
    with pytest.raises(StoreError, match=r"x\.dir is an index of 11 bytes, which is too many"):
        index.offsets(written(tmp_path, "'a', (0, 1)"))


def test_an_index_that_exceeds_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_limit", 1000)
    few = "'a', (0, 1)\n'b', (0, 1)\n'c', (0, 1)\n"
    assert len(index.offsets(written(tmp_path, few * 9))) == 3
    with pytest.raises(StoreUnsupported, match=r"x\.dir has too many entries: .* raise --memory-limit"):
        index.offsets(written(tmp_path, few + "'d', (0, 1)\n"))


@pytest.mark.logs("skipping .* lines that are no entries of a DBM")
def test_a_line_that_is_too_long_is_skipped_however_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_MAX_LINE", 20)
    monkeypatch.setattr(index, "_PIECE_NBYTES", 15)
    long = "'" + "x" * 60 + "', (0, 1)"
    assert index.offsets(written(tmp_path, f"'a', (0, 1)\n{long}\n'b', (2, 3)\n")) == {b"a": (0, 1), b"b": (2, 3)}
    assert index.offsets(written(tmp_path, f"'a', (0, 1)\n{long}")) == {b"a": (0, 1)}
    assert index.offsets(written(tmp_path, "")) == {}
    with pytest.raises(StoreError, match=r"x\.dir is not the index of a DBM"):
        index.offsets(written(tmp_path, long))


@pytest.mark.parametrize("after", [0, 60, 2000])
@trio_test
async def test_one_that_is_cut_behind_a_zip_file_in_it_does_not_show_that_one(tmp_path: Path, after: int) -> None:
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as inner:
        inner.writestr("k", b"of the inner one")
    stored = (tmp_path / "inner.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as outer:
        outer.writestr("k", b"of the outer one")
        outer.writestr("inner.zip", stored)
        outer.writestr("l", bytes(5000))
    content = (tmp_path / "x.zip").read_bytes()
    os.truncate(tmp_path / "x.zip", content.index(stored) + len(stored) + after)
    with pytest.raises(StoreError, match="it is cut short, or several zip files are joined"):
        await open_store(str(tmp_path / "x.zip"))
