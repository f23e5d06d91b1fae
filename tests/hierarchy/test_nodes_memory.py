"""The memory of nodes that were only looked up: there may be tens of thousands."""

from __future__ import annotations

import tracemalloc

from trio.testing import trio_test

from tests.hierarchy.test_nodes import GROUP, made
from tests.support.small_stores import array_document
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import NodePath

FEW, MANY = 100, 1100
# A node, its array and its attributes, with a folder of a view that holds them.
MOST_NBYTES = 3_500


async def listed(count: int) -> int:
    """Return the bytes in use after each of ``count`` arrays was looked up and is held."""
    values = {".zgroup": GROUP}
    for number in range(count):
        values[f"x{number:04d}/.zarray"] = array_document((number % 10 + 1,), (2,), "<i2")
        values[f"x{number:04d}/.zattrs"] = b'{"title": "number %d"}' % number
    r, _ = await made(values)
    held: list[OpenArray | None] = []
    tracemalloc.start()
    try:
        async for name, _ in r.hierarchy.children(NodePath("/")):
            held.append(await r.hierarchy.array(NodePath(f"/{name}")))
        assert len(held) == count
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@trio_test
async def test_an_array_that_is_only_known_takes_little() -> None:
    # The first ones pay for what all share.
    await listed(FEW)
    each = (await listed(MANY) - await listed(FEW)) / (MANY - FEW)
    assert each < MOST_NBYTES, f"{each:.0f} bytes for each"
