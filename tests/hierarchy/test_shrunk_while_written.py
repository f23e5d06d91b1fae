"""A shape reduced with ``resize_erases`` while another mount stores a chunk outside of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.hierarchy.test_several_steps import npy
from tests.hierarchy.test_stopped_resizing import each_step, resized
from tests.hierarchy.test_windows import Interposed
from tests.support.trees import load, tree_over, write

ELEMENTS = np.r_[1:5, [0] * 12].astype("<i4")


@pytest.mark.parametrize("file", ["chunks/a/.zarray", "zarr3/a/zarr.json"])
def test_a_chunk_stored_before_the_smaller_shape_does_not_return_when_the_array_grows(file: str, tmp_path: Path) -> None:
    """It was stored after the chunks outside had been listed, and stayed."""

    async def attempt(at: int) -> bool:
        (path := tmp_path / str(at)).mkdir()
        store = Interposed(path)

        def stored_by_another() -> None:
            if json.loads((path / "a/zarr.json").read_text())["shape"] == [16]:
                (path / "a/c/3").write_bytes(np.full(4, 7, "<i4").tobytes())

        options = {"new_dialect": "v3", "new_chunks": "4", "new_codecs": "none", "watch": "no", "resize_erases": True}
        async with tree_over(store, f"file:{path}", **options) as tree:
            await write(tree, "npy/a.npy", npy(ELEMENTS))
            store.arm(at, stored_by_another)
            await resized(tree, file, 4)
            happened = store.count > at
            await resized(tree, file, 16)
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), ELEMENTS)
        await store.aclose()
        return happened

    each_step(attempt)
