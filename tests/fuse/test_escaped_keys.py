"""Keys that a file system cannot represent, in ``raw/`` over a store that can."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.support.drivers import DirectDriver, direct
from tests.support.stores import contents
from tests.support.tree_suite import refused
from zarrfs.stores.memory import MemoryStore

KEYS = ("a//b", "/leading", "../up", ".", "x/..", "c/./d", "n\0ul", "l" * 256, "l" * 255 + "ü/k", "%%x", "%%long-x", "%", "a/b/c")


def on_memory(body: Callable[[DirectDriver], Awaitable[None]], tmp_path: Path) -> None:
    async def main() -> None:
        async with direct(MemoryStore(), cache_dir=str(tmp_path)) as driver:
            await body(driver)

    trio.run(main)


async def walk(driver: DirectDriver, folder: str) -> list[str]:
    """Return the paths of all files below a folder."""
    found = []
    for name in await driver.listdir(folder):
        path = f"{folder}/{name}"
        try:
            found += await walk(driver, path)
        except NotADirectoryError:
            found.append(path)
    return found


def test_every_key_is_one_file_and_every_file_one_key(tmp_path: Path) -> None:
    async def body(driver: DirectDriver) -> None:
        for key in KEYS:
            await driver.put(key, key.encode())
        files = await walk(driver, driver.raw)
        assert len(files) == len(set(files)) == len(await contents(driver.store))
        values = {await driver.read(path) for path in files}
        assert values >= {key.encode() for key in KEYS}
        for path in files:
            assert all(part not in ("", ".", "..") and len(os.fsencode(part)) <= 255 for part in path.split("/"))

    on_memory(body, tmp_path)


def test_what_is_written_under_an_escaped_name_is_that_keys_value_and_seen_by_its_readers(tmp_path: Path) -> None:
    async def body(driver: DirectDriver) -> None:
        for key in KEYS:
            await driver.put(key, key.encode())
        for path in await walk(driver, driver.raw):
            before = await driver.read(path)
            async with driver.opened(path) as reader:
                assert await driver.pread(reader, 1000, 0) == before
                await driver.write(path, b"new " + before)
                assert await driver.pread(reader, 1000, 0) == b"new " + before
        for key in KEYS:
            assert await driver.stored(key) == b"new " + key.encode()
        for path in await walk(driver, driver.raw):
            await driver.unlink(path)
        assert await contents(driver.store) == {}

    on_memory(body, tmp_path)


def test_a_staged_file_with_an_escaped_name_is_listed_once(tmp_path: Path) -> None:
    async def body(driver: DirectDriver) -> None:
        await driver.put("%%%2E", b"old")
        name = "%%%25%25%252E"
        async with driver.opened(f"{driver.raw}/{name}", os.O_WRONLY) as fd:
            await driver.pwrite(fd, b"longer than before", 0)
            assert (await driver.listdir(driver.raw)).count(name) == 1
        async with driver.opened(f"{driver.raw}/%%%2E%2E", os.O_WRONLY | os.O_CREAT) as fd:
            assert (await driver.listdir(driver.raw)).count("%%%2E%2E") == 1
        assert await driver.stored("..") == b""

    on_memory(body, tmp_path)


def test_a_folder_with_an_escaped_name_is_renamed_with_what_is_open_in_it(tmp_path: Path) -> None:
    async def body(driver: DirectDriver) -> None:
        await driver.put("%%%2E/..", b"old")
        folder = f"{driver.raw}/%%%25%25%252E"
        async with driver.opened(f"{folder}/%%%2E%2E", os.O_WRONLY) as fd:
            await driver.pwrite(fd, b"new", 0)
            await driver.rename(folder, f"{driver.raw}/plain")
            await driver.pwrite(fd, b"NEW", 0)
        assert await driver.stored("plain/..") == b"NEW"
        assert await driver.stored("%%%2E/..") is None

    on_memory(body, tmp_path)


@pytest.mark.logs("key hidden by the folder of the same name")
def test_a_key_in_the_shadow_of_a_folder_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(driver: DirectDriver) -> None:
        await driver.put("s", b"shadowed")
        await driver.put("s/k", b"value")
        assert (await driver.listdir(driver.raw)).count("s") == 1
        assert await driver.listdir(f"{driver.raw}/s") == ["k"]
        assert f"'{driver.prefix}s': key hidden" in caplog.text
        with refused(errno.EEXIST):
            await driver.mkdir(f"{driver.raw}/s")
        with refused(errno.EISDIR):
            await driver.open(f"{driver.raw}/s", os.O_WRONLY)
        assert await driver.stored("s") == b"shadowed"

    on_memory(body, tmp_path)


def test_folders_live_in_the_mount_where_the_store_has_none(tmp_path: Path) -> None:
    async def body(driver: DirectDriver) -> None:
        before = await contents(driver.store)
        await driver.mkdir(f"{driver.raw}/new")
        await driver.mkdir(f"{driver.raw}/new/below")
        assert await contents(driver.store) == before
        await driver.rename(f"{driver.raw}/new", f"{driver.raw}/moved")
        assert await driver.listdir(f"{driver.raw}/moved") == ["below"]
        assert not await driver.exists(f"{driver.raw}/new")
        with refused(errno.ENOTEMPTY):
            await driver.rmdir(f"{driver.raw}/moved")
        await driver.rmdir(f"{driver.raw}/moved/below")
        await driver.rmdir(f"{driver.raw}/moved")
        assert not await driver.exists(f"{driver.raw}/moved")

    on_memory(body, tmp_path)
