"""The last bytes of a value, where the backend does not support suffix ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from trio.testing import trio_test

from zarrfs.buffers import Buffer
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.memory import MemoryStore

A = Key("a")


class Noting(MemoryStore):
    """Records the requested ranges."""

    def __init__(self, suffix_ranges: bool) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, suffix_ranges=suffix_ranges)
        self.asked: list[ByteRange] = []

    async def get_partial_values(self, key_ranges: Sequence[tuple[Key, ByteRange]], **more: Any) -> list[Buffer | None]:
        self.asked.extend(byte_range for _, byte_range in key_ranges)
        return await super().get_partial_values(key_ranges, **more)


@pytest.mark.parametrize(("suffix_ranges", "asked"), [(True, ByteRange.suffix(3)), (False, ByteRange(7, 3))])
@trio_test
async def test_a_suffix_is_asked_for_by_its_place_where_there_are_no_suffix_ranges(suffix_ranges: bool, asked: ByteRange) -> None:
    store = Noting(suffix_ranges)
    await store.set(A, b"0123456789")
    found = await store.get_with_stat(A, ByteRange.suffix(3))
    assert found is not None and bytes(found[0]) == b"789"
    assert store.asked == [asked]
