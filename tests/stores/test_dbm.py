"""DBMs of the kind ``dbm.dumb``: compared with Python's own, and with malicious indexes."""

from __future__ import annotations

import dbm.dumb
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support import archives
from tests.support.length import tries
from tests.support.stores import contents, names
from zarrfs.errors import StoreError, StoreNotFound, StoreUnsupported
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.opening import open_store


@asynccontextmanager
async def opened(path: Path | str) -> AsyncIterator[Store]:
    store = await open_store(str(path))
    try:
        yield store
    finally:
        await store.aclose()


def written(folder: Path, index: str, data: bytes = b"0123456789") -> Path:
    (folder / "x.dat").write_bytes(data)
    (folder / "x.dir").write_bytes(index.encode("latin-1"))
    return folder / "x"


@tries(100, database=None)
@given(
    values=st.dictionaries(
        st.binary(min_size=1, max_size=9).filter(lambda key: key[-1:] != b"/"), st.binary(max_size=700), max_size=8
    ),
    changes=st.lists(st.tuples(st.integers(0, 7), st.one_of(st.none(), st.binary(max_size=1500))), max_size=4),
)
def test_random_ones_hold_what_python_finds(
    values: dict[bytes, bytes], changes: list[tuple[int, bytes | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("dbm") / "x"
    with dbm.dumb.open(str(path), "n") as archive:
        for key, value in values.items():
            archive[key] = value
        for number, changed in changes:
            if number < len(values):
                key = sorted(values)[number]
                if changed is not None:
                    archive[key] = changed
                elif key in archive:
                    del archive[key]
    with dbm.dumb.open(str(path), "r") as archive:
        expected = {os.fsdecode(key): archive[key] for key in archive.keys()}  # noqa: SIM118

    async def hold() -> None:
        async with opened(path) as store:
            assert await contents(store) == expected

    trio.run(hold)


@pytest.mark.parametrize("suffix", ["", ".dat", ".dir", ".bak"])
@trio_test
async def test_by_its_base_name_or_the_name_of_a_file(tmp_path: Path, suffix: str) -> None:
    path = archives.dumb(tmp_path, {"k": b"v"})
    async with opened(f"{path}{suffix}") as store:
        assert await contents(store) == {"k": b"v"} and store.url == str(path)


@trio_test
async def test_a_folder_of_that_name_is_the_folder(tmp_path: Path) -> None:
    path = archives.dumb(tmp_path, {"k": b"v"})
    path.mkdir()
    async with opened(path) as store:
        assert isinstance(store, FolderStore)
    async with opened(f"dbm:{path}") as store:
        assert await contents(store) == {"k": b"v"}


@pytest.mark.logs("lines that are no entries of a DBM")
@pytest.mark.parametrize(
    "line",
    [
        "'b', (0, 5), __import__('os').system('true')",
        "__import__('os')",
        "'b', (0, -5)",
        "'b', (-1, 5)",
        "'b', (0.5, 5)",
        "'b', (99999999999999999999999, 5)",
        "'b' * 10**10, (0, 5)",
        "'b\\N{BULLET}', (0, 5)",
        "'b\\u0041', (0, 5)",
        "b'b', (0, 5)",
        "'b, (0, 5)",
        "'" + "b" * 70_000 + "', (0, 5)",
        "[" * 9999,
        "\0\0\0",
        "",
    ],
    ids=lambda line: line[:20],
)
@trio_test
async def test_lines_of_another_form_are_skipped_with_one_warning(
    tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    index = f"'a', (0, 3)\n{line}\n'c', (3, 4)\n{line}\n"
    async with opened(written(tmp_path, index)) as store:
        assert await contents(store) == {"a": b"012", "c": b"3456"}
    assert len(caplog.records) == 1 and "2 lines" in caplog.text


@trio_test
async def test_places_outside_of_the_values_are_errors_that_name_the_key(tmp_path: Path) -> None:
    index = "'a', (0, 11)\n'b', (11, 0)\n'c', (9223372036854775807, 1)\n'd', (1, 9223372036854775807)\n'good', (10, 0)\n'fine', (7, 3)\n"
    async with opened(written(tmp_path, index)) as store:
        for key in "abcd":
            for byte_range in (ByteRange(), ByteRange(0, 1)):
                with pytest.raises(StoreError, match=f"'{key}'"):
                    await store.get_partial_values([(Key(key), byte_range)])
        assert await store.get(Key("good")) == b"" and await store.get(Key("fine")) == b"789"
        assert (await names(store))["d", False] == 9223372036854775807


@trio_test
async def test_the_last_line_of_a_key_counts(tmp_path: Path) -> None:
    async with opened(written(tmp_path, "'a', (0, 3)\n\"it's\", (1, 1)\n'a', (5, 2)\n")) as store:
        assert await contents(store) == {"a": b"56", "it's": b"1"}


@pytest.mark.parametrize("changed", [".dir", ".dat"])
@trio_test
async def test_a_program_that_writes_meanwhile_gives_errors(tmp_path: Path, changed: str) -> None:
    path = archives.dumb(tmp_path, {"k": b"v" * 600, "l": b"w"})
    async with opened(path) as store:
        assert await store.get(Key("l")) == b"w"
        with open(f"{path}{changed}", "ab") as file:  # noqa: ASYNC230
            file.write(b"'k', (0, 1)\n")
        with pytest.raises(StoreError, match="changed or replaced"):
            await store.get(Key("k"))


@trio_test
async def test_two_files_of_such_names_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "x.dat").write_bytes(b"data")
    (tmp_path / "x.dir").write_bytes(b"a directory of something")
    with pytest.raises(StoreNotFound):
        await open_store(str(tmp_path / "x"))
    with pytest.raises(StoreError, match="not the index of a DBM"):
        await open_store(f"dbm:{tmp_path}/x")


@trio_test
async def test_the_kinds_of_other_libraries_are_named(tmp_path: Path) -> None:
    (tmp_path / "gnu").write_bytes(b"\xcf\x9a\x57\x13" + bytes(500))
    for name in ("n.pag", "n.dir"):
        (tmp_path / name).write_bytes(bytes(4096))
    for name, kind in (("gnu", r"dbm\.gnu"), ("n", r"dbm\.ndbm")):
        with pytest.raises(StoreUnsupported, match=f"{name} is a DBM of the kind {kind}"):
            await open_store(str(tmp_path / name))
