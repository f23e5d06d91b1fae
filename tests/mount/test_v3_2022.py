"""Hierarchies of the core draft of 2022, changed by programs through a real mount.

They are then read by an independent reader, by zarr-python 3 through ``zarr3/`` of a second mount, and by zarr-python 2.16 where
available.

zarr-python 2.16.1 has a Python of its own, whose path is in ZARRFS_ZARR_2_16 (``python -m venv X; X/bin/pip install zarr==2.16.1 pytest
"numcodecs<0.13" "numpy<2"``). Without it, the comparisons with zarr-python 2.16 are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cases import cases
from tests.support.comparing import tree_below
from tests.support.mounting import mounted, run
from tests.support.reader_v3_2022 import everything

pytestmark = pytest.mark.fuse
zarr = pytest.importorskip("zarr")

TEXT, SOFTWARE = "v3_draft2022_seed/hierarchy", "v3_draft2022_zarrpython/basic"
FORMS = pytest.mark.parametrize("form", [TEXT, SOFTWARE])
GROUP = {TEXT: "foo", SOFTWARE: "grp"}
PLANES = np.arange(24, dtype=">i4").reshape(2, 3, 4)
LEVELS = np.array(6.5, "<f4")
WORDS = np.array(["ab", "c", ""], "<U2")

_OLD = """
import json, sys, zarr
from zarr._storage.v3 import DirectoryStoreV3
store = DirectoryStoreV3(sys.argv[1])
found = {}
for path in sys.argv[3:]:
    if sys.argv[2] == "1":
        array = zarr.open_consolidated(store, path=path)
    else:
        array = zarr.open_array(store, path=path, mode="r", zarr_version=3)
    found[path] = [array.dtype.str, list(array.shape), array[...].tolist(), dict(array.attrs)]
print(json.dumps(found))
"""


def copied(form: str, folder: Path) -> Path:
    case = next(case for case in cases(form.partition("/")[0]) if case.name == form)
    return Path(shutil.copytree(case.path, folder / "store"))


def old_zarr(store: Path, *paths: str, consolidated: bool = False) -> dict[str, list[Any]]:
    """Return type, shape, elements and attributes of the arrays at ``paths`` as zarr-python 2.16 reads them.

    ``consolidated``: from the consolidated copy.
    """
    python = os.environ.get("ZARRFS_ZARR_2_16")
    if python is None:
        pytest.skip("ZARRFS_ZARR_2_16 names no Python that has zarr 2.16")
    environment = os.environ | {"ZARR_V3_EXPERIMENTAL_API": "1", "ZARR_V3_SHARDING": "1"}
    environment.pop("PYTHONPATH", None)
    command = [python, "-W", "ignore", "-c", _OLD, str(store), str(int(consolidated)), *paths]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


def change(store: Path, group: str, *options: str) -> None:
    """Change a mounted hierarchy as a user does."""
    with mounted(store, *options) as mount:
        chunks, npy = mount.path / "chunks", mount.path / "npy"
        run("mkdir", "-p", chunks / "made/inner")
        for name, elements in (("planes", PLANES), ("level", LEVELS), ("words", WORDS)):
            np.save(store.with_name(f"{name}.npy"), elements)
            run("cp", store.with_name(f"{name}.npy"), npy / "made/inner")
        (chunks / "made/.zattrs").write_text('{"title": "made"}')
        (chunks / "made/inner/planes/.zattrs").write_text('{"units": "m"}')
        run("mv", chunks / "made/inner/words", chunks / "made/moved")
        if (chunks / group).exists():
            run("rm", "-r", chunks / group)
        assert set(os.listdir(npy / "made")) == {"inner", "moved.npy"}
        assert set(os.listdir(npy / "made/inner")) == {"planes.npy", "level.npy"}


def check(found: dict[str, Any]) -> None:
    assert found["/made"] == (None, {"title": "made"})
    elements, attributes = found["/made/inner/planes"]
    assert np.array_equal(elements, PLANES)
    assert attributes == {"units": "m"}
    assert np.array_equal(found["/made/inner/level"][0], LEVELS)
    assert np.array_equal(found["/made/moved"][0], WORDS)
    assert "/made/inner/words" not in found


@FORMS
def test_a_hierarchy_is_changed_by_programs(form: str, tmp_path: Path) -> None:
    store = copied(form, tmp_path)
    before = everything(tree_below(store))
    change(store, GROUP[form])
    found = everything(tree_below(store))
    check(found)
    assert not [path for path in found if path.startswith(f"/{GROUP[form]}")]
    assert not list((store / "data").rglob(GROUP[form]))
    kept = {path for path in before if not path.startswith(f"/{GROUP[form]}")}
    assert found.keys() == kept | {"/made", "/made/inner", "/made/inner/planes", "/made/inner/level", "/made/moved"}


@FORMS
def test_today_s_zarr_python_reads_it_through_a_second_mount(form: str, tmp_path: Path) -> None:
    store = copied(form, tmp_path)
    change(store, GROUP[form])
    with mounted(store, "--read-only") as mount:
        root = zarr.open_group(str(mount.path / "zarr3"), mode="r", zarr_format=3)
        assert dict(root["made"].attrs) == {"title": "made"}
        assert np.array_equal(root["made/inner/planes"][...], PLANES)
        assert np.array_equal(root["made/inner/level"][...], LEVELS)


@FORMS
def test_today_s_zarr_python_writes_it(form: str, tmp_path: Path) -> None:
    store = copied(form, tmp_path)
    there = f"{GROUP[form]}/{'baz' if form == TEXT else 'a'}"
    with mounted(store) as mount:
        root = zarr.open_group(str(mount.path / "zarr3"), mode="r+", zarr_format=3)
        group = root.create_group("made", attributes={"title": "made"})
        array = group.create_array("x", shape=(5, 6), chunks=(2, 3), dtype=">i4", fill_value=7, attributes={"units": "m"})
        array[1:4] = np.arange(18).reshape(3, 6)
        root[there][0] = 5
        old = zarr.open_group(str(mount.path / "chunks"), mode="r+", zarr_format=2)
        old.create_array("y", shape=(4,), chunks=(2,), dtype="f4", compressors=None, filters=None)[...] = 3
        if form == SOFTWARE:
            texts = group.create_array("texts", shape=(3,), chunks=(2,), dtype=str)
            texts[...] = np.array(["a", "bé", ""], object)
    found = everything(tree_below(store))
    assert found["/made"] == (None, {"title": "made"})
    elements, attributes = found["/made/x"]
    assert elements.tolist() == [[7] * 6, *np.arange(18).reshape(3, 6).tolist(), [7] * 6]
    assert attributes == {"units": "m"}
    assert (found[f"/{there}"][0][0] == 5).all()
    assert found["/y"][0].tolist() == [3] * 4
    assert form == TEXT or found["/made/texts"][0].tolist() == ["a", "bé", ""]


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@pytest.mark.parametrize(("form", "group"), [(TEXT, "foo"), (SOFTWARE, "grp"), ("v3_draft2022_zarrpython/filters", "g")])
def test_a_group_is_copied_within_a_view(form: str, group: str, view: str, tmp_path: Path) -> None:
    """Elements and attributes equal those of the old arrays, whatever the encoding."""
    store = copied(form, tmp_path)
    with mounted(store) as mount:
        run("cp", "-r", mount.path / view / group, mount.path / view / "copy")
    found = everything(tree_below(store))
    arrays = [path for path, (elements, _) in found.items() if elements is not None and path.startswith(f"/{group}/")]
    assert len(arrays) >= 4
    for path in arrays:
        elements, attributes = found[path]
        again, attributes_again = found["/copy" + path.removeprefix(f"/{group}")]
        assert again.astype(elements.dtype).tobytes() == elements.tobytes(), path
        # zarr3/ shows filters where final v3 can represent them; else the copy has none.
        assert attributes_again.get("filters") in (None, attributes.get("filters"))
        if not elements.ndim:
            # An empty list of names for no dimensions, which zarr3/ adds to new arrays.
            attributes_again.pop("_ARRAY_DIMENSIONS", None)
        assert attributes_again | {"filters": 0} == attributes | {"filters": 0}


def test_an_array_with_filters_is_copied_with_its_attributes(tmp_path: Path) -> None:
    """`cp -r` creates each file with O_EXCL, also after the document that makes the array, whose filters are kept as an attribute."""
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", "v3_2022", "--new-codecs", "delta:dtype=<i4+gzip") as mount:
        chunks = mount.path / "chunks"
        np.save(mount.path / "npy/a.npy", np.arange(6, dtype="<i4"))
        attributes = {"units": "m", **json.loads((chunks / "a/.zattrs").read_text())}
        assert attributes["filters"][0]["id"] == "delta"
        (chunks / "a/.zattrs").write_text(json.dumps(attributes))
        run("cp", "-r", chunks / "a", tmp_path / "a")
        # The order of `cp -r` is that of the listing.
        (chunks / "b").mkdir()
        for name in (".zarray", ".zattrs", "0"):
            with (chunks / "b" / name).open("xb") as file:
                file.write((tmp_path / "a" / name).read_bytes())
        run("cp", "-r", chunks / "a", chunks / "c")
        for copy in ("b", "c"):
            assert json.loads((chunks / copy / ".zattrs").read_text()) == attributes
            assert np.load(mount.path / f"npy/{copy}.npy").tolist() == list(range(6))


def test_a_hierarchy_is_made_in_an_empty_folder(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    change(store, "nothing", "--new-dialect", "v3_2022")
    check(everything(tree_below(store)))
    assert sorted(os.listdir(store)) == ["data", "meta", "zarr.json"]
    if "ZARRFS_ZARR_2_16" in os.environ:
        assert old_zarr(store, "made/inner/planes") == {"made/inner/planes": ["<i4", [2, 3, 4], PLANES.tolist(), {"units": "m"}]}


def test_zarr_python_2_16_reads_what_was_written(tmp_path: Path) -> None:
    store = copied(SOFTWARE, tmp_path)
    with mounted(store) as mount:
        np.save(mount.path / "npy/grp/planes.npy", PLANES)
        np.save(mount.path / "npy/grp/level.npy", LEVELS)
        np.save(mount.path / "npy/words.npy", WORDS)
        np.save(mount.path / "npy/grp/c_blosc_F.npy", np.arange(30, dtype="<i2").reshape(5, 6))
        (mount.path / "chunks/grp/a/.zattrs").write_text('{"new": 1}')
    found = old_zarr(store, "grp/planes", "grp/level", "words", "grp/c_blosc_F", "grp/a")
    assert found["grp/planes"] == ["<i4", [2, 3, 4], PLANES.tolist(), {}]
    assert found["grp/level"] == ["<f4", [], 6.5, {}]
    assert found["words"] == ["<U2", [3], WORDS.tolist(), {}]
    assert found["grp/c_blosc_F"][2] == np.arange(30).reshape(5, 6).tolist()
    assert found["grp/a"][3] == {"new": 1}


def test_zarr_python_2_16_reads_shards_that_were_written(tmp_path: Path) -> None:
    store = copied("v3_draft2022_zarrpython/sharded", tmp_path)
    with mounted(store) as mount:
        for path in ("s", "s_3d", "s_dot_nocomp"):
            array = np.load(mount.path / f"npy/grp/{path}.npy")
            np.save(mount.path / f"npy/grp/{path}.npy", np.arange(array.size, dtype=array.dtype).reshape(array.shape))
    found = old_zarr(store, "grp/s", "grp/s_3d", "grp/s_dot_nocomp")
    for dtype, shape, elements, _ in found.values():
        assert elements == np.arange(np.prod(shape)).astype(dtype).reshape(shape).tolist()


def test_zarr_python_2_16_finds_what_was_made_in_its_consolidated_metadata(tmp_path: Path) -> None:
    store = copied("v3_draft2022_zarrpython/filters", tmp_path)
    with mounted(store) as mount:
        np.save(mount.path / "npy/g/planes.npy", PLANES)
        (mount.path / "chunks/g/delta/.zattrs").write_text('{"new": 1}')
        run("rm", "-r", mount.path / "chunks/g/void")
    delta = np.load(
        next(case for case in cases("v3_draft2022_zarrpython") if case.name.endswith("/filters")).folder / "expected/g__delta.npy"
    )
    found = old_zarr(store, "g/planes", "g/delta", consolidated=True)
    assert found["g/planes"][2] == PLANES.tolist()
    assert found["g/delta"][2] == delta.tolist()
    assert found["g/delta"][3]["new"] == 1
    copy = json.loads((store / "meta/root/consolidated/.zmetadata").read_bytes())["metadata"]
    assert "meta/root/g/planes.array.json" in copy
    assert "meta/root/g/void.array.json" not in copy


def test_a_consolidated_copy_written_in_a_new_store_is_shown_at_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", "v3_2022") as mount:
        # The root is looked up as a group before the store has a layout.
        assert os.listdir(mount.path / "chunks") == []
        np.save(mount.path / "npy/planes.npy", PLANES)
        members = {name: json.loads((mount.path / "chunks" / name).read_bytes()) for name in (".zgroup", "planes/.zarray")}
        (mount.path / "chunks/.zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": members}))
        assert json.loads((mount.path / "chunks/.zmetadata").read_bytes())["metadata"] == members
        assert "planes" in json.loads((mount.path / "zarr3/zarr.json").read_bytes())["consolidated_metadata"]["metadata"]
        assert os.getxattr(mount.path / "chunks", "user.zarr.dialect") == b"v3_2022"
    assert "meta/root/planes.array.json" in json.loads((store / "meta/root/consolidated/.zmetadata").read_bytes())["metadata"]


def test_info_tells_the_dialect_and_what_is_odd(tmp_path: Path) -> None:
    store = copied("v3_draft2022_seed/extensions", tmp_path)
    done = run(sys.executable, "-P", "-m", "zarrfs", "info", str(store), "--json")
    said = done.stdout.decode()
    assert "v3_2022" in said
    assert "quux16" in said
