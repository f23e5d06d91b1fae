"""A cache folder that fails while chunks are decoded: it was removed, or its disk has failed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.arrays import reading
from tests.support.large_buffers import large_from
from tests.support.small_stores import array_document
from tests.support.stores import fill
from zarrfs.arrays.array import Array
from zarrfs.errors import StoreError, TooLarge
from zarrfs.stores.memory import MemoryStore

ELEMENTS = np.arange(10_000, dtype="<i4")


async def array() -> Array:
    store = MemoryStore()
    await fill(store, {"a/.zarray": array_document(ELEMENTS.shape, ELEMENTS.shape, compressor={"id": "lz4", "acceleration": 1})})
    opened = (await reading(store).array("a")).array
    await opened.write_chunk((0,), ELEMENTS.tobytes())
    return opened


@trio_test
async def test_the_error_names_the_chunk(tmp_path: Path) -> None:
    opened = await array()
    with large_from(1, tmp_path / "removed"):
        with pytest.raises(StoreError, match=r"decoding chunk \(0,\) of /a: .*No such file") as raised:
            await opened.read_chunk((0,))
        assert raised.value.key == "a/0" and not isinstance(raised.value, TooLarge)
    with large_from(1, tmp_path):
        np.testing.assert_array_equal(await opened.read_chunk((0,)), ELEMENTS)
