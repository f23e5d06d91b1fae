"""A mounted ``zarr3/`` with unmodified programs: Zarr libraries that read and write it, and programs that copy, edit and remove."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mount.test_fixtures import ALONE, BESIDE, together
from tests.support.cases import Case
from tests.support.comparing import assert_expected, why_left_out
from tests.support.mounting import Mounted, mounted, run, shell
from tests.support.node_mounts import (
    check_copying_into_an_empty_store,
    check_erasing,
    copy_with,
    example,
    nodes,
    only_stored_names,
    scene,
)
from tests.support.small_stores import write
from tests.support.zarr_python import described, everything, written

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse
__all__ = ["together"]

DIALECTS = pytest.mark.parametrize("dialect", [2, 3])
NUMBERS = np.arange(70, dtype="f4").reshape(10, 7)


def diverse(root: Any) -> None:
    """Write arrays compressed and not, without dimensions, empty, of many chunks, and nodes with names like parts of keys."""
    root.attrs.update({"title": "diverse", "history": ["made"]})
    root.create_array("deep/er/x", shape=(7, 5), chunks=(3, 4), dtype="f4", fill_value=-1, dimension_names=["y", "x"])[...] = (
        NUMBERS[:7, :5]
    )
    root.create_array("s", shape=(), chunks=(), dtype="i8", fill_value=3, compressors=None)[...] = 42
    root.create_array("big", shape=(300, 20), chunks=(10, 10), dtype="u1", fill_value=0)[:200] = 5
    root.create_array("c", shape=(4,), chunks=(2,), dtype="u2", fill_value=1)[...] = 5
    root.create_array("n/0/1", shape=(4, 4), chunks=(2, 2), dtype="u2", fill_value=1)[...] = 5
    root.create_array("empty", shape=(4,), chunks=(2,), dtype="i2", fill_value=0, attributes={"a": 1})
    root["deep"].attrs["note"] = "\u00e9"


# --- Zarr libraries -------------------------------------------------------------------------------------------------------------


@DIALECTS
def test_zarr_python_makes_writes_resizes_and_reads(dialect: int, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "-o", f"new_dialect=v{dialect},resize_erases") as mount:
        root = zarr.open_group(mount.path / "zarr3", mode="a")
        root.attrs["title"] = "made by zarr-python"
        array = root.create_array(
            "deep/er/a", shape=(10, 7), chunks=(4, 3), dtype="f4", dimension_names=["y", "x"], attributes={"units": "m"}
        )
        array[...] = NUMBERS
        assert (array[...] == NUMBERS).all()
        array.attrs["more"] = [1, None]
        array.resize((12, 7))
        array[10:] = -1
        array[3, 3:5] = [100, 101]
        expected = np.concatenate([NUMBERS, np.full((2, 7), -1, "f4")])
        expected[3, 3:5] = [100, 101]
        root.create_group("h", attributes={"k": 1}).create_array("c", data=np.arange(9), chunks=(2,))
        with pytest.raises(zarr.errors.ContainsArrayError):
            root.create_array("deep/er/a", shape=(1,), dtype="i1")
        found = nodes(mount)
        assert {path: node[0] for path, node in found.items()} == {
            "": "group",
            "deep": "group",
            "deep/er": "group",
            "deep/er/a": "array",
            "h": "group",
            "h/c": "array",
        }
        assert found[""][1] == {"title": "made by zarr-python"}
        _, attributes, shape, chunks, _, elements = found["deep/er/a"]
        names = {"_ARRAY_DIMENSIONS": ["y", "x"]} if dialect == 2 else {}
        assert (attributes, shape, chunks) == ({"units": "m", "more": [1, None]} | names, (12, 7), (4, 3))
        assert elements == expected.tobytes()
        assert np.load(mount.path / "npy/h/c.npy").tolist() == list(range(9))
        # Shrink an array, replace one, delete one.
        array.resize((4, 7))
        assert nodes(mount)["deep/er/a"][5] == expected[:4].tobytes()
        zarr.create_array(mount.path / "zarr3", name="h/c", data=np.arange(3), chunks=(2,), overwrite=True)
        assert np.load(mount.path / "npy/h/c.npy").tolist() == [0, 1, 2]
        del root["deep/er"]
        assert set(nodes(mount)) == {"", "deep", "h", "h/c"}
        only_stored_names(mount)
        assert not mount.errors()
        assert "Traceback" not in mount.log()


def test_each_value_is_stored_once(tmp_path: Path) -> None:
    with scene(3, tmp_path) as mount:
        with mount.counted() as cost:
            zarr.create_array(mount.path / "zarr3", name="n", shape=(8, 8), chunks=(4, 4), dtype="i4")[...] = 7
        assert cost["set"] == 5, "the document of an array, four chunks"


def test_zarr_python_reads_missing_dates_without_a_unit(tmp_path: Path) -> None:
    document = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<M8", "order": "C", "filters": None, "compressor": None}
    values = {".zgroup": b'{"zarr_format": 2}'}
    for name, fill in [("nat", "NaT"), ("null", None)]:
        values |= {
            f"{name}/.zarray": json.dumps(document | {"fill_value": fill}).encode(),
            f"{name}/0": np.arange(2, dtype="<i8").tobytes(),
        }
    expected = [0, 1, np.iinfo("i8").min, np.iinfo("i8").min]
    with mounted(write(tmp_path / "store", values)) as mount:
        for path in (tmp_path / "store", mount.path / "chunks", mount.path / "zarr3"):
            for name in ("nat", "null"):
                assert zarr.open_array(path / name, mode="r")[...].view("i8").tolist() == expected


@DIALECTS
def test_tensorstore_and_zarrs_read_it(dialect: int, tmp_path: Path) -> None:
    def plain(root: Any) -> None:
        from zarr.codecs import ZstdCodec

        compressor: Any = ZstdCodec(level=1)
        if dialect == 2:
            compressor = pytest.importorskip("numcodecs").Zstd(1)
        order = {"order": "F"} if dialect == 2 else {}
        root.create_array("a", shape=(10, 7), chunks=(4, 3), dtype=">f4", compressors=compressor, fill_value=0, **order)[...] = (
            NUMBERS
        )

    with scene(dialect, tmp_path, make=plain) as mount:
        path = mount.path / "zarr3/a"
        tensorstore = pytest.importorskip("tensorstore")
        opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}).result()
        assert (opened.read().result() == NUMBERS).all()
        pytest.importorskip("zarrs")
        script = (
            "import sys, zarr, numpy; zarr.config.set({'codec_pipeline.path': 'zarrs.ZarrsCodecPipeline'});"
            "numpy.save(sys.argv[2], zarr.open_array(sys.argv[1], mode='r')[...])"
        )
        run(sys.executable, "-c", script, path, tmp_path / "read.npy")
        assert (np.load(tmp_path / "read.npy") == NUMBERS).all()


def test_inner_chunks_of_shards_are_chunks_here(tmp_path: Path) -> None:
    def sharded(root: Any) -> None:
        root.create_array("a", shape=(10, 7), chunks=(2, 3), shards=(4, 6), dtype="f4", fill_value=0)[:8] = NUMBERS[:8]

    with scene(3, tmp_path, make=sharded) as mount:
        array = zarr.open_array(mount.path / "zarr3/a", mode="r+")
        assert array.shards is None
        assert array.chunks == (2, 3)
        assert (array[:8] == NUMBERS[:8]).all()
        assert sorted(os.listdir(mount.path / "zarr3/a/c")) == ["0", "1", "2", "3"]
        array[...] = NUMBERS + 1
        assert (array[...] == NUMBERS + 1).all()
        assert (np.load(mount.path / "npy/a.npy") == NUMBERS + 1).all()
        tensorstore = pytest.importorskip("tensorstore")
        opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(mount.path / "zarr3/a")}}).result()
        assert (opened.read().result() == NUMBERS + 1).all()
        (mount.path / "zarr3/a/c/4/0").unlink()
        expected = NUMBERS + 1
        expected[8:, :3] = 0
    store = zarr.open_array(tmp_path / "store.zarr", path="a", mode="r")
    assert store.shards == (4, 6)
    assert (store[...] == expected).all()


# --- other programs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["cp -r", "cp -a", "rsync -a", "rsync -a --delete", "tar", "tar, the other way round"])
@DIALECTS
def test_copying_in_is_converting(dialect: int, tool: str, tmp_path: Path) -> None:
    source = write(tmp_path / "source.zarr", written(3, diverse, consolidated=True))
    expected = everything(source)
    with scene(dialect, tmp_path) as mount:
        target = mount.path / "zarr3/copy"
        target.mkdir()
        # A consolidated copy that came before its nodes is rewritten by the view; and v2 shows a fill value as _FillValue, too.
        again = {line.split()[-1] for line in copy_with(tool, source, target)}
        assert again <= {"zarr.json", *(("deep/er/x/zarr.json", "s/zarr.json") if dialect == 2 else ())}
        found = {path[len("copy") :].lstrip("/"): node for path, node in nodes(mount).items() if path.startswith("copy")}
        shown = dict(expected)
        if dialect == 2:
            for path, names, mark in (("deep/er/x", ["y", "x"], "AAAAAAAA8L8="), ("s", [], 3)):
                kind, attributes, *rest = expected[path]
                expected[path] = (kind, attributes | {"_ARRAY_DIMENSIONS": names}, *rest)
                # In v2 the one fill value also marks missing data.
                shown[path] = (kind, attributes | {"_FillValue": mark}, *rest)
        assert everything(mount.path / "zarr3/copy") == shown
        assert found == expected
        only_stored_names(mount)
        # The chunk is stored unchanged.
        chunk = mount.store / "copy/big" / ("0.0" if dialect == 2 else "c/0/0")
        assert chunk.read_bytes() == (source / "big/c/0/0").read_bytes()
        assert not mount.errors()


@pytest.mark.parametrize("new_dialect", ["v2", "v3"])
def test_copying_into_an_empty_store(new_dialect: str, tmp_path: Path) -> None:
    source = write(tmp_path / "source.zarr", written(3, example))
    check_copying_into_an_empty_store("zarr3", source, tmp_path, new_dialect)


@DIALECTS
def test_copying_out_is_converting(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path) as mount:
        expected = nodes(mount)
        run("cp", "-r", mount.path / "zarr3", tmp_path / "out")
        assert everything(tmp_path / "out", zarr_format=3) == expected


@DIALECTS
def test_nodes_are_erased(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path) as mount:
        # Documents may be removed before the folders beside them.
        source = write(tmp_path / "source.zarr", written(3, diverse))
        run("cp", "-r", source, mount.path / "zarr3/copy")
        run("rm", "-r", mount.path / "zarr3/copy")
        run("cp", "-r", source, mount.path / "zarr3/copy")
        shell("""find "$1" -name zarr.json -delete && rm -r "$1" """, mount.path / "zarr3/copy")
        view = mount.path / "zarr3"
        check_erasing(view, mount)
        assert os.listdir(view) == ["zarr.json"]


@DIALECTS
def test_documents_are_edited_by_programs(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path) as mount:
        path = mount.path / "zarr3/g/a/zarr.json"
        run("sed", "-i", 's/"units": "m"/"units": "km"/', path)
        assert nodes(mount)["g/a"][1] == {"units": "km"}
        if shutil.which("vim") is not None:
            run("vim", "-u", "NONE", "-N", "-es", "-c", '%s/"km"/"cm"/', "-c", "wq", path)
            assert nodes(mount)["g/a"][1] == {"units": "cm"}
        (tmp_path / "new").write_text(path.read_text().replace("cm", "mm").replace("km", "mm"))
        run("mv", tmp_path / "new", path)
        assert nodes(mount)["g/a"][1] == {"units": "mm"}
        run("mv", mount.path / "zarr3/g", mount.path / "zarr3/moved")
        assert np.frombuffer(nodes(mount)["moved/a"][5], "i4").tolist() == list(range(24))
        only_stored_names(mount)


@DIALECTS
def test_what_is_refused_is_einval_with_the_reason_in_the_list_of_errors(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path) as mount:
        before = nodes(mount)
        array = mount.path / "zarr3/g/a"
        document = json.loads((array / "zarr.json").read_text())
        for name, text, why in (
            ("zarr.json", "{no json", "not JSON"),
            ("zarr.json", json.dumps(document | {"shape": [2, 6]}), "stored outside of the new shape"),
            ("zarr.json", json.dumps(document | {"data_type": "int8"}), "data_type of an array cannot be changed"),
            ("c/0/0", "no chunk", "decoding chunk (0, 0)"),
        ):
            refused = run("cp", "/dev/stdin", array / name, stdin=text.encode(), check=False)
            assert refused.returncode == 1
            assert b"Invalid argument" in refused.stderr
            assert any(line["operation"] == "flush" and why in line["message"] for line in mount.errors())
            assert nodes(mount) == before
        with pytest.raises(OSError) as caught:  # noqa: PT011
            (array / "c/7").mkdir()
        assert caught.value.errno == errno.EPERM
        with pytest.raises(FileExistsError):
            (array / "c").mkdir()
        if dialect == 2:
            with pytest.raises(OSError) as caught:  # noqa: PT011
                zarr.create_array(mount.path / "zarr3", name="n", shape=(4,), dtype="i4", chunk_key_encoding={"name": "v2"})
            assert caught.value.errno == errno.EINVAL
        sharded = {"shape": (8,), "chunks": (2,), "shards": (4,), "dtype": "i4"}
        with pytest.raises(OSError) as caught:  # noqa: PT011
            zarr.create_array(mount.path / "zarr3", name="n", **sharded)
        assert caught.value.errno == errno.EINVAL
        assert any("omit sharding_indexed" in line["message"] for line in mount.errors())


def test_a_change_in_another_view_is_seen_here(tmp_path: Path) -> None:
    with scene(3, tmp_path) as mount:
        view = mount.path / "zarr3/b"
        first = (view / "c/1").read_bytes()
        assert os.listdir(view / "c") == ["0", "1"] or sorted(os.listdir(view / "c")) == ["0", "1"]
        (mount.path / "chunks/b/1").write_bytes(np.array([2.5, 0]).tobytes())
        assert (view / "c/1").read_bytes() == (mount.store / "b/c/1").read_bytes() != first
        (mount.path / "raw/b/c/0").unlink()
        assert os.listdir(view / "c") == ["1"]
        assert not (view / "c/0").exists()
        run("cp", mount.store / "b/c/1", view / "c/0")
        assert np.load(mount.path / "npy/b.npy").tolist() == [2.5, 0, 2.5]


def test_two_writers_of_one_array(tmp_path: Path) -> None:
    """Each process writes every other row of chunks."""
    with scene(3, tmp_path) as mount:
        path = mount.path / "zarr3/n"
        zarr.create_array(path, shape=(16, 16), chunks=(2, 4), dtype="i4", fill_value=-1)
        script = (
            "import sys, zarr; a = zarr.open_array(sys.argv[1], mode='r+')\n"
            "for row in range(int(sys.argv[2]), 8, 2): a[2 * row : 2 * row + 2] = row"
        )
        writers = [subprocess.Popen([sys.executable, "-c", script, str(path), str(number)]) for number in range(2)]
        assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
        assert zarr.open_array(mount.store, path="n", mode="r")[:, 0].tolist() == [row // 2 for row in range(16)]


# --- stores of other software ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", BESIDE)
def test_one_of_many(case: Case, together: Mounted) -> None:
    compare(case, together.path / "zarr3" / case.name)


@pytest.mark.parametrize("case", ALONE)
def test_alone(case: Case) -> None:
    with mounted(case.path, "--read-only") as mount:
        compare(case, mount.path / "zarr3")


def compare(case: Case, view: Path) -> None:
    for node in case.nodes("array"):
        has_subarrays = isinstance(node["dtype"], list) and any(len(field) > 2 for field in node["dtype"])
        if why_left_out(node) is None and not has_subarrays:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                array = zarr.open_array(view / node["path"].strip("/"), mode="r", zarr_format=3)
                kind, attributes, *_ = described(array)
                elements = np.asarray(array[...])
            # Some MANIFEST files list only a part of the attributes.
            assert kind == "array" and attributes.items() >= node.get("attributes_subset", {}).items()
            assert attributes == node.get("attributes", attributes)
            assert_expected(case, node, elements.astype(elements.dtype.newbyteorder("<")))


@pytest.mark.parametrize("written", ["first", "last"])
def test_folders_of_chunks_keep_the_times_that_were_set_before_the_document(written: str, tmp_path: Path) -> None:
    zarr.create_array(
        str(tmp_path / "new"), shape=4, chunks=2, dtype="i4", chunk_key_encoding={"name": "default", "separator": "/"}
    )[:] = 7
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", "v3") as mount:
        folder = mount.path / "zarr3/new"
        folder.mkdir()
        if written == "first":
            shutil.copy(tmp_path / "new/zarr.json", folder)
        run("cp", "-r", tmp_path / "new/c", folder)
        os.utime(folder / "c", (1e9, 1e9))
        if written == "last":
            shutil.copy(tmp_path / "new/zarr.json", folder)
        assert (folder / "c").stat().st_mtime == 1e9
        assert np.load(mount.path / "npy/new.npy").tolist() == [7] * 4


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
def test_an_array_with_chunks_outside_its_shape_is_erased(view: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    zarr.create_group(str(store)).create_array("a", shape=(4, 6), chunks=(2, 3), dtype="i4")[:] = 7
    for outside in ("c/0/7", "c/3/0"):
        (store / "a" / outside).parent.mkdir(exist_ok=True)
        shutil.copy(store / "a/c/0/0", store / "a" / outside)
    with mounted(store) as mount:
        if view == "zarr3":
            assert sorted(os.listdir(mount.path / "zarr3/a/c")) == ["0", "1"]
        run("rm", "-r", mount.path / view / "a")
        assert os.listdir(store) == ["zarr.json"]


def test_the_time_of_a_folder_of_chunks_is_not_that_of_a_folder_of_shards(tmp_path: Path) -> None:
    store = tmp_path / "store"
    zarr.create_group(str(store)).create_array("a", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="i4", compressors=None)
    with mounted(store) as mount:
        folder = mount.path / "zarr3/a/c/0"
        (folder / "1").write_bytes(bytes(16))
        before = folder.stat().st_mtime_ns
        os.utime(mount.path / "zarr3/a/c/1", (1e9, 1e9))
        # The store gets a/c/0/0 and the folders on its way.
        run("sync", mount.path / "zarr3/a")
        assert (store / "a/c/0/0").exists()
        assert folder.stat().st_mtime_ns == before
        with os.scandir(mount.path / "zarr3/a/c") as listed:
            assert {each.name: each.stat().st_mtime_ns for each in listed}["0"] == before
        (folder / "3").write_bytes(bytes(16))
        assert folder.stat().st_mtime_ns > before
        np.save(mount.path / "npy/a.npy", np.arange(64, dtype="i4").reshape(8, 8))
        run("sync", mount.path / "zarr3/a")
        assert (mount.path / "zarr3/a/c/1").stat().st_mtime == 1e9
