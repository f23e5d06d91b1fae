"""Queued chunks whose bytes the disk of the cache folder has lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.arrays.test_delayed import mounted, stored
from tests.support.small_disks import lossy_disk, write_out
from zarrfs.errors import StoreError
from zarrfs.keys import Prefix
from zarrfs.stores.memory import MemoryStore

pytestmark = pytest.mark.fuse


@pytest.mark.parametrize("others", [(), (1,)], ids=["alone", "beside another"])
@pytest.mark.logs("publish failed, will retry")
@trio_test
async def test_an_fsync_tells_of_a_chunk_that_was_lost_before(others: tuple[int, ...], tmp_path: Path) -> None:
    store = MemoryStore()
    with lossy_disk(tmp_path / "disk", 256 << 20) as disk:
        async with mounted(store, memory=100, directory=str(disk)) as mount:
            await mount.chunks.update({(0,): os.urandom(4 << 20)} | {(each,): b"small" for each in others})
            if not write_out(disk):
                pytest.skip("this kernel loses nothing here")
            (shard,) = mount.queue.below(Prefix("a/"))
            await mount.queue._publish_due(shard)
            assert await stored(store) == dict.fromkeys(others, b"small")
            with pytest.raises(StoreError, match="lost"):
                await mount.chunks.publish([(0,)])
            await mount.chunks.publish([(0,)])
