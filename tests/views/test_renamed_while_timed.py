"""An array is renamed in another view after its file is stored, while the time that was set for the file is recorded."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.trees import folder_at, tree_of
from zarrfs.vfs.node import OpenFlags
from zarrfs.views.whole_array.array_file import WholeArrayContent


@trio_test
async def test_the_open_file_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood for the array in creation until its stage was closed, which no rename moves: later writes were refused, or misplaced."""
    text = io.BytesIO()
    np.save(text, np.zeros(8, "u1"))
    async with tree_of(tmp_path, new_dialect="v2", watch="no") as tree:
        npy, chunks = await folder_at(tree, "npy"), await folder_at(tree, "chunks")
        _, handle = await npy.create("a.npy", OpenFlags(read=True, write=True))
        await handle.write(0, text.getvalue())
        await handle.set_mtime(17)
        real, is_renamed = WholeArrayContent.changed_ns, False

        async def renamed(content: WholeArrayContent) -> int:
            nonlocal is_renamed
            if not is_renamed:
                is_renamed = True
                await chunks.rename("a", chunks, "b")
            return await real(content)

        monkeypatch.setattr(WholeArrayContent, "changed_ns", renamed)
        await handle.flush()
        assert is_renamed
        await handle.write(128, b"\7")
        await handle.flush()
        await handle.release()
    assert (tmp_path / "b/0").exists() and not (tmp_path / "a").exists()
