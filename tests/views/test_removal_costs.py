"""What the removal of an array costs beside many others that this mount has just created: as much as beside few."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
from trio.testing import trio_test

import zarrfs
from tests.support.scenes import Scene
from tests.support.small_stores import array_document
from tests.support.trees import tree_over
from zarrfs.keys import Key
from zarrfs.stores.folder.store import FolderStore

PACKAGE = str(Path(zarrfs.__file__).parent) + "/"
FEW, MANY = 4, 104


async def cost_of_removal(s: Scene, path: str, *names: str) -> Counter[str]:
    """Remove an array's folder and all in it; return how often functions of zarrfs were called, and called those in C."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        # How often notifications are read depends on the machine.
        if event in ("call", "c_call") and file.startswith(PACKAGE) and not file.startswith(f"{PACKAGE}stores/folder/"):
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        for name in names:
            await (s.rmdir if name.endswith("c") else s.unlink)(f"{path}/{name}")
        await s.rmdir(path)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("view", "names"), [("chunks", (".zarray", "0")), ("zarr3", ("zarr.json", "c/0", "c"))])
@trio_test
async def test_the_others_cost_nothing(view: str, names: tuple[str, ...], tmp_path: Path) -> None:
    document, chunk, *folders = names
    store = FolderStore(str(tmp_path))
    await store.set(Key(".zgroup"), b'{"zarr_format": 2}')
    await store.set(Key("one/.zarray"), array_document((2,), (1,)))
    async with tree_over(store, f"file:{tmp_path}") as tree:
        s = Scene(tree, store, view)
        written = await s.read(f"one/{document}")
        await s.mkdir("g")
        costs = []
        # The first removal costs less than later ones.
        for first, last in ((0, 0), (1, FEW), (FEW, MANY)):
            for number in range(first, last + 1):
                await s.mkdir(f"g/a{number}")
                await s.write(f"g/a{number}/{document}", written)
                for name in folders:
                    await s.mkdir(f"g/a{number}/{name}")
                await s.write(f"g/a{number}/{chunk}", b"abcd")
            costs.append(await cost_of_removal(s, f"g/a{last}", *names))
        _, few, many = costs
        # Once it was 46 to 66 calls for each of the others.
        assert many.total() < few.total() + (MANY - FEW), (many - few).most_common()
