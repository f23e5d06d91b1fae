"""Hierarchies of several layouts in one store, root arrays and consolidated copies among them, changed by programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.comparing import tree_below
from tests.support.mounting import mounted, run

pytestmark = pytest.mark.fuse

_SOFTWARE = "https://purl.org/zarr/spec/protocol/core/3.0"
_ENTRIES: dict[str, dict[str, Any]] = {
    "2019": {"zarr_format": _SOFTWARE, "metadata_encoding": "application/json", "extensions": []},
    "2022": {"zarr_format": _SOFTWARE, "metadata_encoding": _SOFTWARE, "metadata_key_suffix": ".json", "extensions": []},
    "2022 text": {
        "zarr_format": "https://purl.org/zarr/spec/core/3.0",
        "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"},
        "extensions": [],
    },
}
_KEYS = {
    "2019": ("meta/root.array", "meta/root/a.array", "data/", "data/a/"),
    "2022": ("meta/root.array.json", "meta/root/a.array.json", "data/root/c", "data/root/a/c"),
    "2022 text": ("meta/array.json", "meta/a.array.json", "data/c", "data/a/c"),
}
_ZARRAY = {
    "zarr_format": 2,
    "shape": [6],
    "chunks": [2],
    "dtype": "<i4",
    "fill_value": 0,
    "order": "C",
    "compressor": None,
    "filters": None,
}
COPY = "meta/root/consolidated/.zmetadata"


def put(folder: Path, key: str, value: Any) -> None:
    (folder / key).parent.mkdir(parents=True, exist_ok=True)
    (folder / key).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())


def documents(form: str) -> dict[str, Any]:
    grid = {"type": "regular", "chunk_shape": [2]} | ({} if form == "2019" else {"separator": "/"})
    return {
        "shape": [6],
        "data_type": "int32" if form == "2022 text" else "<i4",
        "chunk_grid": grid,
        "chunk_memory_layout": "C",
        "fill_value": 0,
        "extensions": [],
        "attributes": {"n": 1},
    } | ({"compressor": None} if form == "2019" else {})


def make(folder: Path, form: str, *, at_root: bool) -> None:
    """Store a hierarchy of one array of 0 to 5, at its root or called ``a``."""
    put(folder, "zarr.json", _ENTRIES[form])
    root, inside, root_chunk, chunk = _KEYS[form]
    put(folder, root if at_root else inside, documents(form))
    if not at_root:
        put(folder, root.replace("array", "group"), {"attributes": {}} | ({"extensions": []} if form == "2019" else {}))
    for number in range(3):
        put(folder, f"{root_chunk if at_root else chunk}{number}", np.arange(2 * number, 2 * number + 2, dtype="<i4").tobytes())


def copy_all(folder: Path) -> None:
    """Store a consolidated copy of a hierarchy of 2022, as zarr-python does."""
    names = [name for name in tree_below(folder) if name.endswith(".json")]
    copied = {name: json.loads((folder / name).read_bytes()) for name in names}
    put(folder, COPY, {"metadata": copied, "zarr_consolidated_format": 1})
    put(folder, "meta/root/consolidated.group.json", {"attributes": {}})


def make_group(folder: Path, *, copied: bool) -> None:
    """Store a group of final v3."""
    copy = {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {}}} if copied else {}
    put(folder, "zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {}} | copy)


@pytest.mark.parametrize("view", ["chunks", "zarr3", "npy"])
def test_a_hierarchy_is_renamed_with_its_own_copy(view: str, tmp_path: Path) -> None:
    make_group(tmp_path, copied=True)
    make(tmp_path / "old", "2022", at_root=False)
    copy_all(tmp_path / "old")
    before = tree_below(tmp_path / "old")
    with mounted(tmp_path) as mount:
        run("mv", mount.path / view / "old", mount.path / view / "new")
        assert not mount.errors()
    assert tree_below(tmp_path / "new") == before


@pytest.mark.parametrize("form", _ENTRIES)
def test_the_entry_point_of_another_hierarchy_is_no_node_of_a_copy(form: str, tmp_path: Path) -> None:
    make_group(tmp_path, copied=True)
    make_group(tmp_path / "g", copied=False)
    make(tmp_path / "g/old", form, at_root=False)
    with mounted(tmp_path) as mount:
        run("mv", mount.path / "npy/g", mount.path / "npy/h")
        assert not mount.errors()
    assert set(json.loads((tmp_path / "zarr.json").read_bytes())["consolidated_metadata"]["metadata"]) == {"h"}


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize("form", _ENTRIES)
def test_mv_copies_an_array_into_another_hierarchy(form: str, view: str, tmp_path: Path) -> None:
    put(tmp_path, ".zgroup", {"zarr_format": 2})
    put(tmp_path, "b/.zarray", _ZARRAY)
    put(tmp_path, "b/.zattrs", {"n": 1})
    put(tmp_path, "b/0", np.full(2, 7, "<i4").tobytes())
    make(tmp_path / "old", form, at_root=False)
    inside = "c/0" if view == "zarr3" else "0"
    with mounted(tmp_path) as mount:
        old, new = mount.path / view / "b", mount.path / view / "old/b"
        (new / inside).parent.mkdir(parents=True)
        # mv renames chunks before documents, or after them: in the order of inode numbers.
        with pytest.raises(OSError, match="cross-device"):
            (old / inside).rename(new / inside)
        with pytest.raises(PermissionError):
            (old / inside).rename(new / "tmp0")
        shutil.rmtree(new)
        run("mv", old, new)
        assert np.load(mount.path / "npy/old/b.npy").tolist() == [7, 7, 0, 0, 0, 0]
        assert json.loads((mount.path / "chunks/old/b/.zattrs").read_bytes())["n"] == 1
        assert not (tmp_path / "b").exists()


def test_mv_over_an_array_of_another_hierarchy_keeps_both(tmp_path: Path) -> None:
    """The copy of structures that final v3 cannot represent would fail after mv(1) has removed the array in its place."""
    put(tmp_path, "zarr.json", {"zarr_format": 3, "node_type": "group"})
    put(tmp_path, "old/.zgroup", {"zarr_format": 2})
    with mounted(tmp_path) as mount:
        folder = mount.path / "npy"
        np.save(folder / "a.npy", np.arange(3))
        np.save(folder / "old/b.npy", np.zeros(2, [("pair", "<i4", (2,))]))
        with pytest.raises(FileExistsError):
            (folder / "old/b.npy").rename(folder / "a.npy")
        moved = subprocess.run(["mv", folder / "old/b.npy", folder / "a.npy"], capture_output=True, text=True, check=False)
        assert "File exists" in moved.stderr
        assert np.load(folder / "a.npy").tolist() == [0, 1, 2]
        assert np.load(folder / "old/b.npy").shape == (2,)


@pytest.mark.parametrize("shape", [(8,), (3, 4)])
@pytest.mark.parametrize("inside", ["", "sub/x"])
@pytest.mark.parametrize("form", _ENTRIES)
def test_an_array_is_saved_over_one_that_is_a_whole_hierarchy(
    form: str, inside: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    store = tmp_path / "x.zarr"
    if inside:
        put(store, ".zgroup", {"zarr_format": 2})
    make(store / inside, form, at_root=True)
    if form == "2022":
        copy_all(store / inside)
    new = np.arange(np.prod(shape), dtype="<f8").reshape(shape)
    name = f"npy/{inside or 'x'}.npy"
    with mounted(store) as mount:
        np.save(mount.path / name, new)
        assert not mount.errors()
    with mounted(store) as mount:
        assert (np.load(mount.path / name) == new).all()
        assert json.loads((mount.path / "chunks" / inside / ".zattrs").read_bytes())["n"] == 1
    assert json.loads((store / inside / "zarr.json").read_bytes()) == _ENTRIES[form]
    if form == "2022":
        assert json.loads((store / inside / COPY).read_bytes())["metadata"]["meta/root.array.json"]["shape"] == list(shape)


def test_a_key_beside_a_root_array_with_the_name_of_a_document_stays_when_it_is_saved_over(tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    put(store, ".zarray", _ZARRAY)
    put(store, "attrs", b"notes")
    with mounted(store) as mount:
        np.save(mount.path / "npy/x.npy", np.ones(9))
        assert not mount.errors()
    assert (store / "attrs").read_bytes() == b"notes"


@pytest.mark.parametrize("layout", ["v2", "2022"])
def test_an_array_at_the_root_is_erased_with_its_copy(layout: str, tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    if layout == "v2":
        put(store, ".zarray", _ZARRAY)
        put(store, ".zmetadata", {"metadata": {".zarray": _ZARRAY}, "zarr_consolidated_format": 1})
    else:
        make(store, layout, at_root=True)
        copy_all(store)
    with mounted(store) as mount:
        (mount.path / "npy/x.npy").unlink()
        assert not list((mount.path / "npy").iterdir())
        assert not mount.errors()
    with mounted(store) as mount:
        assert not list((mount.path / "npy").iterdir())
    copied = json.loads((store / (".zmetadata" if layout == "v2" else COPY)).read_bytes())["metadata"]
    assert not [name for name in copied if "array" in name]
