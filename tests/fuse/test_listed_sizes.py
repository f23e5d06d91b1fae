"""A file changes after a listing in progress has got its size: the kernel gets the present one."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.callers import CALLER
from tests.support.drivers import _Reply, direct
from zarrfs.stores.folder.store import FolderStore

NAMES = [f"k{number}" for number in range(20)]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("size", [3, 30])
@trio_test
async def test_the_present_size_of_each_file_is_listed(size: int, is_open: bool, tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    async with direct(store, cache_dir=str(tmp_path), watch="off") as driver:
        handlers, raw = driver.handlers, f"{driver.raw}/many"
        await driver.mkdir(raw)
        for name in NAMES:
            await driver.write(f"{raw}/{name}", b"0123456789")
        listing = await handlers.opendir(await driver._ino(raw), CALLER)
        with driver._readdir_reply() as listed:
            reply = _Reply(5)
            await handlers.readdir(listing, 0, reply)  # type: ignore[arg-type]
            known = {name.decode() for name, _ in listed}
            # All others are changed: some sizes are known to the listing already.
            for name in set(NAMES) - known:
                await driver.truncate(f"{raw}/{name}", size)
            files = [await driver.open(f"{raw}/{name}", 0) for name in NAMES] if is_open else []
            while (more := _Reply(5)) and (await handlers.readdir(listing, reply.next_id, more)) is None and more.next_id:  # type: ignore[arg-type]
                reply = more
            for name, attributes in listed:
                assert attributes.st_size == (10 if name.decode() in known else size), name
            assert len(listed) == len(NAMES)
        for file in files:
            await driver.close(file)
        await handlers.releasedir(listing)
    await store.aclose()
