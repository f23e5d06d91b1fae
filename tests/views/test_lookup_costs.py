"""Costs of another lookup of a file of `npy/`: no request to the store, the header rendered once, few calls."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import zarr
from trio.testing import trio_test

from tests.support.counted import is_counted
from tests.support.trees import tree_over, walk
from zarrfs.containers.npy import Npy
from zarrfs.keys import Key
from zarrfs.stores.folder.store import FolderStore
from zarrfs.vfs.node import Directory
from zarrfs.views.whole_array import array_file

MOST_CALLS = 90
"""Calls of functions of zarrfs; once there were 257."""


@pytest.mark.parametrize("zarr_format", [2, 3])
@trio_test
async def test_a_warm_lookup_asks_for_nothing(zarr_format: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = zarr.open_group(str(tmp_path), mode="w", zarr_format=zarr_format)  # type: ignore[arg-type]
    group.create_array("x", shape=(8,), chunks=(4,), dtype="i4")[:] = np.arange(8)
    # Arrays of other tests in this process may be of the same form.
    monkeypatch.setattr(array_file, "_layouts", OrderedDict())
    rendered = []
    layout = Npy.layout
    monkeypatch.setattr(Npy, "layout", lambda self, metadata: rendered.append(1) or layout(self, metadata))
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_counted(frame.f_code):
            called.append(frame.f_code.co_qualname)

    async with tree_over(FolderStore(str(tmp_path)), f"file:{tmp_path}") as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        for _ in range(2):
            _, first = await folder.lookup_with_attributes("x.npy")
        before = tree.observed.counters.__reduce_ex__(4)
        sys.setprofile(note)
        try:
            _, again = await folder.lookup_with_attributes("x.npy")
        finally:
            sys.setprofile(None)
        assert tree.observed.counters.__reduce_ex__(4) == before, "the store was asked"
        assert again == first
        assert len(rendered) == 1
        assert len(called) <= MOST_CALLS, called
        # Values stored meanwhile are visible at once.
        await tree.store.set(Key("x/0" if zarr_format == 2 else "x/c/0"), bytes(16))
        await tree.store.set(Key("x/9"), bytes(16))
        assert (await folder.lookup_with_attributes("x.npy"))[1].mtime_ns > (first.mtime_ns or 0)
