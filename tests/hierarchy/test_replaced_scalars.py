"""Arrays without dimensions that replace others, or are replaced, in 2019: there the key of the only chunk lies beside the chunk prefix.

The chunk that was stored apart was deleted with what was apart: close(2) returned 0, and the array read as zero, or had the old bytes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.hierarchy.test_several_steps import NEW, OLD, Case, fails_at_any_step, npy
from tests.support.stores import contents
from tests.support.trees import load, tree_over, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.stores.memory import MemoryStore

SCALAR, OTHER_SCALAR = np.array(9, "<i4"), np.array(2.5)


async def _save(new: np.ndarray[Any, Any], tree: MountTree) -> None:
    await write(tree, "npy/g/a.npy", npy(new))


@pytest.mark.logs("")
@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        pytest.param(OLD, OTHER_SCALAR, "exchange", id="to"),
        pytest.param(SCALAR, NEW, "exchange", id="from"),
        pytest.param(SCALAR, NEW, "elsewhere", id="from, elsewhere"),
        pytest.param(SCALAR, OTHER_SCALAR, "exchange", id="both", marks=pytest.mark.soak),
    ],
)
def test_a_failure_or_a_kill_at_any_step_leaves_the_old_or_the_new(
    old: np.ndarray[Any, Any], new: np.ndarray[Any, Any], kind: str, tmp_path: Path
) -> None:
    fails_at_any_step(Case("replace", partial(_save, new), {"a.npy": old}, {"a.npy": new}), kind, "v3_2019", tmp_path)


@pytest.mark.parametrize(("old", "new"), [(OLD, OTHER_SCALAR), (SCALAR, NEW), (SCALAR, OTHER_SCALAR)], ids=["to", "from", "both"])
@pytest.mark.parametrize("path", ["npy/a.npy", "npy/g/a.npy"])
@trio_test
async def test_nothing_of_the_old_array_stays(
    tmp_path: Path, path: str, old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]
) -> None:
    stored = []
    for saves in ([old, new], [new]):
        inner = MemoryStore()
        async with tree_over(inner, cache_dir=str(tmp_path), new_dialect="v3_2019", new_chunks="2x2") as tree:
            await (await tree.root.lookup("npy")).mkdir("g")  # type: ignore[attr-defined]
            for each in saves:
                await write(tree, path, npy(each))
            assert await tree.publish_all() == []
        async with tree_over(inner, new_dialect="v3_2019") as tree:
            np.testing.assert_array_equal(await load(tree, path), new)
        stored.append({key for key in await contents(inner) if key.startswith("data/")})
    assert stored[0] == stored[1]
