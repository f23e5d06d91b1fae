"""Others replace an array, in its very folder, by one whose chunks are encoded otherwise, and the mount has not looked at it since."""

from __future__ import annotations

import errno
import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import mounted

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

ELEMENTS = np.arange(64).reshape(8, 8)
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "<i4", "compressors": None},
    "wide": {"dtype": "<f8", "compressors": None},
    "compressed": {"dtype": "<i4"},
    "sharded": {"dtype": "<i4", "compressors": None, "shards": (8, 8)},
}


def make(folder: Path, form: str) -> None:
    zarr.create_array(str(folder), shape=(8, 8), chunks=(4, 4), zarr_format=3, **FORMS[form])[...] = ELEMENTS


def read(file: Path) -> bytes | None:
    """Return the content; None if the file is another one by now."""
    try:
        return file.read_bytes()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return None


@pytest.mark.parametrize("view", ["chunks", "npy"])
def test_a_chunk_of_another_form_is_no_damaged_one(view: str, tmp_path: Path) -> None:
    """It was EIO, each time that it was read, until the mount read the document again."""
    store, others = tmp_path / "store", tmp_path / "others"
    zarr.create_group(str(store), zarr_format=3)
    for form in FORMS:
        make(others / form, form)
    for before, after in (pairs := list(permutations(FORMS, 2))):
        shutil.copytree(others / before, store / f"{before}-{after}")
    with mounted(store, "--no-watch", "--metadata-ttl", "1000") as mount:
        for before, after in pairs:
            path = f"{before}-{after}"
            first, last = (mount.path / "chunks" / path / each for each in ("0.0", "1.1"))
            whole = mount.path / "npy" / f"{path}.npy"
            assert first.read_bytes() == ELEMENTS[:4, :4].astype(FORMS[before]["dtype"]).tobytes()
            assert whole.stat().st_size
            for each in (store / path).rglob("*"):
                if each.is_file():
                    each.unlink()
            shutil.copytree(others / after, store / path, dirs_exist_ok=True)
            dtype = FORMS[after]["dtype"]
            if view == "chunks":
                read(last)
                assert read(last) == ELEMENTS[4:, 4:].astype(dtype).tobytes()
                assert read(first) == ELEMENTS[:4, :4].astype(dtype).tobytes()
            else:
                read(whole)
                assert np.load(whole).tolist() == ELEMENTS.tolist()
                assert np.load(whole).dtype == np.dtype(dtype)
