"""Zarr v1 and the layout before it, mounted.

Data of old software is read in every view. Independent readers, which share no code with zarrfs, read data written through the mount,
from the folder of the store itself.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mount.test_behind import replace
from tests.support import reader_v0, reader_v1
from tests.support.cases import Case, cases
from tests.support.comparing import assert_expected, assert_expected_in_zarr, folder_cases, npy_path, stored_chunks
from tests.support.mounting import Mounted, mounted, run, shell, zarrfs
from tests.support.waiting import until

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

CASES = folder_cases([*cases("v0_persistence"), *cases("v1")])
READERS: dict[str, Any] = {"v0": reader_v0, "v1": reader_v1}
DIALECTS = pytest.mark.parametrize("dialect", ["v0", "v1"])
AS_TEXT = ("-o", "dialect_choices=v1.order=text")
RGB = np.dtype([("r", "u1"), ("g", "u1"), ("b", "u1")])


def options_of(case: Case) -> tuple[str, ...]:
    return AS_TEXT if case.name == "v1/spec_example_defaults" else ()


def reader_of(case: Case) -> Any:
    return READERS[case.name[:2]]


@contextmanager
def refused(number: int) -> Iterator[None]:
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        yield
    assert caught.value.errno == number


def read_stored(case: Case, folder: Path) -> np.ndarray[Any, Any]:
    """Return the array of a copy of a case, read by the independent reader."""
    how = {"order_as_text": True} if options_of(case) else {}
    return np.asarray(reader_of(case).read_array(folder, **how))


# --- reading --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_what_old_software_wrote_is_read_in_every_view(case: Case) -> None:
    (node,) = case.nodes("array")
    with mounted(case.path, "--read-only", *options_of(case)) as mount:
        assert_expected(case, node, np.load(mount.path / "npy" / npy_path(case, node), allow_pickle=False))
        chunks = mount.path / "chunks"
        shown = {name for name in os.listdir(chunks) if not name.startswith(".")}
        assert shown == {".".join(map(str, coords)) for coords in stored_chunks(node)}
        assert assert_expected_in_zarr(case, str(chunks)) == 1
        array = zarr.open_array(mount.path / "zarr3", mode="r", zarr_format=3)
        assert_expected(case, node, np.asarray(array[...]))
        assert dict(array.attrs) == node["attributes"]
        run("diff", "-r", case.path, mount.path / "raw")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Arrays of both layouts beside each other in folders, some of them bad."""
    folder = tmp_path / "archive"
    for param in CASES:
        case = param.values[0]
        shutil.copytree(case.path, folder / case.name)
    pickled = folder / "bad/pickled"
    pickled.mkdir(parents=True)
    # As zarr 0.3.0 wrote it, with a class in it that a careless reader would call.
    (pickled / "__zmeta__").write_bytes(
        b"(dp0\nVshape\np1\n(I4\ntp2\nsVcanary\np3\ncos\nmkdir\np4\n(VPICKLE_CANARY\np5\ntp6\nRp7\ns."
    )
    shutil.copytree(folder / "v1/i4_2d_zlib_fill42", folder / "bad/huge")
    change_meta(folder / "bad/huge/meta", chunks=[2**40, 2**20])
    shutil.copytree(folder / "v1/i4_2d_zlib_fill42", folder / "bad/cut")
    (folder / "bad/cut/meta").write_bytes((folder / "v1/i4_2d_zlib_fill42/meta").read_bytes()[:60])
    shutil.copytree(folder / "v1/i4_2d_zlib_fill42", folder / "bad/rotten")
    (folder / "bad/rotten/0.0").write_bytes(b"no zlib")
    (folder / "bad/folder/meta").mkdir(parents=True)
    shutil.copytree(folder / "v1/u1_1d_none", folder / "bad/folder/meta/real")
    return folder


def change_meta(path: Path, **members: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def test_bad_nodes_hide_no_neighbours(archive: Path) -> None:
    with mounted(archive, "--read-only") as mount:
        npy, chunks = mount.path / "npy", mount.path / "chunks"
        for param in CASES:
            case = param.values[0]
            (node,) = case.nodes("array")
            if not options_of(case):
                assert_expected(case, node, np.load(npy / f"{case.name}.npy"))
        assert sorted(os.listdir(npy / "bad")) == [
            "cut.unsupported.txt",
            "folder",
            "huge.unsupported.txt",
            "pickled.unsupported.txt",
            "rotten.npy",
        ]
        assert sorted(os.listdir(chunks / "bad")) == [
            ".zgroup",
            "cut.unsupported.txt",
            "folder",
            "huge.unsupported.txt",
            "pickled.unsupported.txt",
            "rotten",
        ]
        reasons = {name: (npy / f"bad/{name}.unsupported.txt").read_text() for name in ("cut", "huge", "pickled")}
        assert "never" not in reasons["cut"] and "not JSON" in reasons["cut"]
        assert "exceed the limit" in reasons["huge"]
        assert "zarr 0.3.0" in reasons["pickled"] and "refused" in reasons["pickled"]
        assert not any(Path(place, "PICKLE_CANARY").exists() for place in ("/", ".", archive))
        # A folder called "meta" is not a document.
        assert np.load(npy / "bad/folder/meta/real.npy").shape == (23,)
        with refused(errno.EIO):
            (chunks / "bad/rotten/0.0").read_bytes()
        assert (chunks / "bad/rotten/1.1").stat().st_size == 400
        assert "decoding chunk (0, 0) of /bad/rotten" in mount.log()


def test_order_is_read_as_software_wrote_it_unless_the_text_is_chosen() -> None:
    by_software, by_text = (next(param.values[0] for param in CASES if param.id == f"v1/{name}") for name in BOTH_ORDERS)
    for options, case in ((), by_software), (AS_TEXT, by_text):
        for each in (by_software, by_text):
            (node,) = each.nodes("array")
            with mounted(each.path, "--read-only", *options) as mount:
                same = (np.load(mount.path / "npy/store.npy") == each.expected(node)).all()
                assert same == (each is case)
                assert ("as specified" in mount.log()) and ("order is F" in mount.log())
            told = json.loads(run_info(each.path, *options))
            assert any("order is F" in line and ("text" in line) for line in quirks_in(told)), told


BOTH_ORDERS = ("i4_2d_zlib_F", "spec_example_defaults")


def run_info(store: Path, *options: str) -> str:
    done = zarrfs("info", str(store), "--json", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def quirks_in(told: Any) -> list[str]:
    if isinstance(told, dict):
        return [*told.get("quirks", ()), *(line for value in told.values() for line in quirks_in(value))]
    return [line for value in told for line in quirks_in(value)] if isinstance(told, list) else []


# --- writing to existing arrays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_elements_are_written_into_the_old_layout(case: Case, tmp_path: Path) -> None:
    """Through each of the views; the documents stay the same, byte for byte."""
    store = Path(shutil.copytree(case.path, tmp_path / "store"))
    documents = {path: path.read_bytes() for path in store.iterdir() if path.is_file() and not path.name[0].isdecimal()}
    expected = read_stored(case, store).copy()
    with mounted(store, *options_of(case)) as mount:
        npy = mount.path / "npy/store.npy"
        shown = np.load(npy, mmap_mode="r+")
        last = tuple(extent - 1 for extent in shown.shape)
        shown[last] = expected[last] = other(shown.dtype, 1)
        shown.flush()
        del shown
        assert same(read_stored(case, store), expected)

        (node,) = case.nodes("array")
        chunk = filled(node["chunk_shape"], expected.dtype.newbyteorder("<"), 2)
        (mount.path / "chunks" / ".".join("0" * expected.ndim)).write_bytes(chunk.tobytes())
        expected[tuple(slice(0, length) for length in node["chunk_shape"])] = other(expected.dtype, 2)
        assert same(read_stored(case, store), expected)

        # zarr-python cannot write these: fields, and Blosc with snappy.
        if expected.dtype.names is None and case.name != "v0_persistence/bool_2d":
            zarr.open_array(mount.path / "zarr3", mode="r+", zarr_format=3)[...] = np.full_like(expected, other(expected.dtype, 3))
            expected[...] = other(expected.dtype, 3)
            assert same(read_stored(case, store), expected)
        assert same(np.load(npy), expected)
        assert not mount.errors()
    assert {path: path.read_bytes() for path in documents} == documents


def other(dtype: np.dtype[Any], number: int) -> Any:
    """Return an element."""
    return (number, 2, 3) if dtype.names else dtype.type(number % 2 if dtype.kind == "b" else number)


def filled(shape: list[int], dtype: np.dtype[Any], number: int) -> np.ndarray[Any, Any]:
    chunk = np.zeros(shape, dtype)
    chunk[...] = other(dtype, number)
    return chunk


def same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("case", CASES)
def test_attributes_are_edited_where_the_layout_keeps_them(case: Case, tmp_path: Path) -> None:
    store = Path(shutil.copytree(case.path, tmp_path / "store"))
    document = store / ("__zattr__" if case.name.startswith("v0") else "attrs")
    before = reader_of(case).read_attributes(store)
    lines = document.read_text().splitlines()[:-1] if before else []
    with mounted(store, *options_of(case)) as mount:
        zattrs = mount.path / "chunks/.zattrs"
        zattrs.write_text(json.dumps(before | {"zzz": [1, 2.5, None]}))
        assert reader_of(case).read_attributes(store) == before | {"zzz": [1, 2.5, None]}
        # Existing lines keep their order and spelling; only the comma of the last line is new.
        now = document.read_text().splitlines()[: len(lines)]
        assert [line.rstrip(",") for line in now] == [line.rstrip(",") for line in lines]
        zattrs.write_text(json.dumps({"only": "this"}))
        assert reader_of(case).read_attributes(store) == {"only": "this"}
        zattrs.unlink()
        assert reader_of(case).read_attributes(store) == {}
        assert document.exists()
        array = zarr.open_array(mount.path / "zarr3", mode="r+", zarr_format=3)
        array.attrs["units"] = "K"
        assert reader_of(case).read_attributes(store) == {"units": "K"}
    reader_of(case).read_meta(store)


@DIALECTS
def test_an_array_grows_and_shrinks(dialect: str, tmp_path: Path) -> None:
    name = {"v0": "v0_persistence/i4_2d_lz4_fill42", "v1": "v1/i4_2d_zlib_fill42"}[dialect]
    (case,) = (param.values[0] for param in CASES if param.id == name)
    store = Path(shutil.copytree(case.path, tmp_path / "store"))
    before = read_stored(case, store)
    rows, columns = before.shape
    with mounted(store, "-o", "resize_erases") as mount:
        zarr.open_array(mount.path / "chunks", mode="r+", zarr_format=2).resize((rows + 3, columns))
        grown = read_stored(case, store)
        assert grown.shape == (rows + 3, columns) and (grown[:rows] == before).all() and (grown[rows:] == 42).all()
        zarr.open_array(mount.path / "chunks", mode="r+", zarr_format=2).resize((2, columns))
        assert same(read_stored(case, store), before[:2])
        np.testing.assert_array_equal(np.load(mount.path / "npy/store.npy"), before[:2])


# --- new nodes --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["v0", "v1"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Mounted, Any]]:
    """An empty store for a dialect, and the independent reader of that dialect."""
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", request.param) as mount:
        yield mount, READERS[request.param]


ARRAYS = {
    "plain": np.arange(70, dtype="<f8").reshape(10, 7),
    "fortran": np.asfortranarray(np.arange(24, dtype="<i4").reshape(4, 6)),
    "big": np.arange(6, dtype=">u2"),
    "fields": np.array([(1, 2, 3), (4, 5, 6)], RGB),
    "mixed": np.array([(1, b"ab"), (0, b"")], [("n", "<i4"), ("s", "S3")]),
    "text": np.array([b"one", b"", b"three"]),
    "unicode": np.array(["\u00e9", ""]),
    "raw": np.array([b"\0\1\2", b"\0\0\0"], "V3"),
    "complex": np.array([1 + 2j, 0], "<c8"),
    "times": np.array(["2016-05-01", "NaT"], "<M8[ns]"),
    "truth": np.array([[True, False], [False, True]]),
    "nothing": np.zeros((0, 3), "<f4"),
}


def test_mkdir_and_cp_make_arrays_of_the_old_layout(empty: tuple[Mounted, Any], tmp_path: Path) -> None:
    mount, reader = empty
    group = mount.path / "npy/deep/group"
    group.parent.mkdir()
    group.mkdir()
    assert os.listdir(group) == [] and os.listdir(mount.path / "zarr3/deep") != []
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
        run("cp", tmp_path / f"{name}.npy", group)
        stored = reader.read_array(mount.store / "deep/group" / name)
        assert stored.dtype.newbyteorder("<") == array.dtype.newbyteorder("<"), name
        assert stored.astype(array.dtype).tobytes() == array.tobytes(), name
        assert reader.read_attributes(mount.store / "deep/group" / name) == {}
        np.testing.assert_array_equal(np.load(group / f"{name}.npy"), array)
    assert not mount.errors()


@DIALECTS
def test_what_an_old_layout_cannot_say_is_refused_when_it_is_asked_for(dialect: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(5))
    (tmp_path / "store").mkdir()
    # Some written data is lost, with errors to the writing programs.
    with mounted(tmp_path / "store", "--new-dialect", dialect, ends_with=None) as mount:
        chunks, zarr3 = mount.path / "chunks", mount.path / "zarr3"
        group = {"zarr_format": 3, "node_type": "group", "attributes": {"title": "groups"}}
        (zarr3 / "g").mkdir()
        with refused(errno.EINVAL):
            (zarr3 / "g/zarr.json").write_text(json.dumps(group))
        run("cp", tmp_path / "x.npy", mount.path / "npy/g/x.npy")
        with refused(errno.EINVAL):
            (chunks / "g/.zattrs").write_text('{"title": "groups"}')
        assert "no groups" in mount.errors()[-1]["message"]
        (chunks / "h").mkdir()
        (chunks / "h/.zgroup").write_text('{"zarr_format": 2}')
        with refused(errno.EINVAL):
            (chunks / "h/.zattrs").write_text('{"title": "groups"}')
        # It is undecided whether this folder becomes an array or a group: nothing is stored, which is reported at the end.
        (chunks / "i").mkdir()
        (chunks / "i/.zattrs").write_text('{"title": "groups"}')
        assert json.loads((chunks / "i/.zattrs").read_text()) == {"title": "groups"}
        (chunks / "j").mkdir()
        (chunks / "j/.zattrs").write_text('{"title": "groups"}')
        with refused(errno.EINVAL):
            (chunks / "j/.zgroup").write_text('{"zarr_format": 2}')
        shell('rm -r "$1/j"', chunks)
        for codecs in ([zarr.codecs.GzipCodec()], [zarr.codecs.BloscCodec(), zarr.codecs.Crc32cCodec()]):
            with refused(errno.EINVAL):
                zarr.create_array(zarr3, name="a", shape=(4,), chunks=(2,), dtype="i4", compressors=codecs)
        assert np.load(mount.path / "npy/g/x.npy").tolist() == [0, 1, 2, 3, 4]
        ended = mount.umount()
        assert ended.returncode == 7
        assert "/i: attributes lost" in ended.stderr and "/j: attributes" not in ended.stderr
    assert {path.parts[len(tmp_path.parts) + 1] for path in (tmp_path / "store").rglob("*") if path.is_file()} == {"g"}


def test_zarr_libraries_make_arrays_of_the_old_layout(empty: tuple[Mounted, Any]) -> None:
    mount, reader = empty
    data = np.arange(35, dtype="<i2").reshape(5, 7)
    array = zarr.create_array(
        mount.path / "chunks",
        name="a/b",
        shape=data.shape,
        chunks=(2, 3),
        dtype="i2",
        zarr_format=2,
        compressors=None,
        fill_value=-1,
        attributes={"units": "m"},
    )
    array[:4] = data[:4]
    stored = reader.read_array(mount.store / "a/b")
    assert (stored[:4] == data[:4]).all() and (stored[4:] == -1).all()
    assert reader.read_attributes(mount.store / "a/b") == {"units": "m"}
    blosc = zarr.codecs.BloscCodec(cname="zlib", clevel=3, shuffle="bitshuffle", typesize=2)
    array = zarr.create_array(
        mount.path / "zarr3", name="a/c", shape=data.shape, chunks=(2, 3), dtype="i2", compressors=blosc, fill_value=7
    )
    array[...] = data
    assert same(reader.read_array(mount.store / "a/c"), data)
    meta = reader.read_meta(mount.store / "a/c")
    assert (meta.get("compression_opts") or meta)["cname"] == "zlib"
    assert sorted(os.listdir(mount.path / "npy/a")) == ["b.npy", "c.npy"]


def test_the_software_s_own_folder_of_chunks_is_there_from_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    np.save(tmp_path / "x.npy", np.ones((4,), "i4"))
    with mounted(tmp_path / "store", "--new-dialect", "v0") as mount:
        run("cp", tmp_path / "x.npy", mount.path / "npy/x.npy")
        assert os.listdir(mount.store / "x/__zdata__") == ["0.blosc"]
        zarr.create_array(mount.path / "chunks", name="y", shape=(4,), dtype="i4", zarr_format=2, compressors=None)
        assert os.listdir(mount.store / "y/__zdata__") == []
        assert sorted(os.listdir(mount.path / "npy")) == ["x.npy", "y.npy"]


@DIALECTS
def test_options_choose_codecs_that_the_layout_has(dialect: str, tmp_path: Path) -> None:
    data = np.asfortranarray(np.arange(600, dtype="<f4").reshape(20, 30))
    np.save(tmp_path / "x.npy", data)
    for codecs in (
        "numcodecs.zlib:level=3",
        "numcodecs.bz2:level=2",
        "numcodecs.lzma:preset=2:check=0",
        "none",
        "blosc:cname=zstd:clevel=1:shuffle=bitshuffle",
    ):
        store = tmp_path / codecs
        store.mkdir()
        is_said = dialect == "v1" or codecs.startswith("blosc")
        options = ("--new-dialect", dialect, "--new-codecs", codecs, "--new-chunks", "8x8")
        with mounted(store, *options) as mount:
            done = run("cp", tmp_path / "x.npy", mount.path / "npy/x.npy", check=False)
            assert (done.returncode == 0) == is_said, codecs
            assert is_said or "only blosc compression" in mount.log()
        if is_said:
            assert same(READERS[dialect].read_array(store / "x"), np.ascontiguousarray(data))
            order = READERS[dialect].read_meta(store / "x").get("order")
            assert order == (None if dialect == "v0" else "F" if codecs.startswith("blosc") else "C")
        else:
            assert list(store.iterdir()) == []


@DIALECTS
def test_arrays_are_renamed_copied_and_erased(dialect: str, tmp_path: Path) -> None:
    reader = READERS[dialect]
    name = {"v0": "v0_persistence/u1_3d_zlib_bitshuffle", "v1": "v1/f8_2d_blosc_F"}[dialect]
    (case,) = (param.values[0] for param in CASES if param.id == name)
    store = tmp_path / "store"
    shutil.copytree(case.path, store / "one/a")
    before = {path.relative_to(store / "one/a"): path.read_bytes() for path in (store / "one/a").rglob("*") if path.is_file()}
    expected = reader.read_array(store / "one/a")
    with mounted(store) as mount:
        npy, chunks = mount.path / "npy", mount.path / "chunks"
        run("mv", npy / "one/a.npy", npy / "one/b.npy")
        run("mv", chunks / "one", chunks / "two")
        assert os.listdir(npy) == ["two"] and os.listdir(npy / "two") == ["b.npy"]
        # Moved unchanged, with locks and all other files in it.
        now = {path.relative_to(store / "two/b"): path.read_bytes() for path in (store / "two/b").rglob("*") if path.is_file()}
        assert now == before
        run("cp", npy / "two/b.npy", npy / "two/c.npy")
        assert same(reader.read_array(store / "two/c"), expected)
        run("cp", "-r", chunks / "two/b", chunks / "d")
        assert same(reader.read_array(store / "d"), expected)
        assert reader.read_attributes(store / "d") == reader.read_attributes(store / "two/b") != {}
        shell('rm -r "$1/d" "$1/two/c"', chunks)
        (npy / "two/b.npy").unlink()
        # The folder stays until it is removed explicitly.
        assert os.listdir(npy) == ["two"] and os.listdir(npy / "two") == []
        assert [path for path in store.rglob("*") if path.is_file()] == []
        (npy / "two").rmdir()
        assert os.listdir(npy) == [] == os.listdir(store)
        assert not mount.errors()


def test_the_array_at_the_root_is_erased_with_its_documents_alone(tmp_path: Path) -> None:
    for name in ("v0_persistence/i4_2d_lz4_fill42", "v1/u1_1d_none"):
        (case,) = (param.values[0] for param in CASES if param.id == name)
        store = Path(shutil.copytree(case.path, tmp_path / name))
        (store / "notes.txt").write_text("mine")
        # A file with the name of a document that is not one.
        (store / ("meta" if "v0" in name else "__zattr__")).write_text("mine as well")
        with mounted(store) as mount:
            (mount.path / "npy/i4_2d_lz4_fill42.npy" if "v0" in name else mount.path / "npy/u1_1d_none.npy").unlink()
            assert os.listdir(mount.path / "npy") == []
        left = {path.name for path in store.rglob("*") if path.is_file()}
        assert left - {"__zattr__.lock"} == {"notes.txt", "meta" if "v0" in name else "__zattr__"}


def test_new_arrays_are_of_the_layout_beside_them(archive: Path, tmp_path: Path) -> None:
    """Even where arrays of other layouts come first in the store."""
    np.save(tmp_path / "x.npy", np.arange(5))
    with mounted(archive) as mount:
        for folder, reader in ("v0_persistence", reader_v0), ("v1", reader_v1), ("v0_persistence/sub", reader_v0):
            (mount.path / "npy" / folder).mkdir(exist_ok=True)
            run("cp", tmp_path / "x.npy", mount.path / "npy" / folder / "new.npy")
            assert reader.read_array(archive / folder / "new").tolist() == [0, 1, 2, 3, 4]


def test_a_lock_beside_the_attributes_is_nothing(tmp_path: Path) -> None:
    (case,) = (param.values[0] for param in CASES if param.id == "v0_persistence/i4_2d_lz4_fill42")
    store = tmp_path / "store"
    shutil.copytree(case.path, store / "a")
    (store / "a/__zdata__/0.0.blosc.lock").touch()
    with mounted(store) as mount:
        names = {name for name in os.listdir(mount.path / "chunks/a") if name[0].isdecimal()}
        assert names == {".".join(map(str, coords)) for coords in stored_chunks(case.nodes()[0])}
        assert sorted(os.listdir(mount.path / "npy")) == ["a.npy"]
        shell('rm -r "$1/a"', mount.path / "chunks")
        assert os.listdir(store) == []


@DIALECTS
def test_what_another_program_changes_is_seen(dialect: str, tmp_path: Path) -> None:
    """Chunks of v0 are in a folder of their own, those of v1 beside the documents."""
    name = {"v0": "v0_persistence/f8_1d_blosclz_noattrs", "v1": "v1/u1_1d_none"}[dialect]
    (case,) = (param.values[0] for param in CASES if param.id == name)
    store = tmp_path / "store"
    shutil.copytree(case.path, store / "a")
    document, chunk = {"v0": ("__zmeta__", "__zdata__/0.blosc"), "v1": ("meta", "0")}[dialect]
    expected = read_stored(case, store / "a").copy()
    length = case.nodes()[0]["chunk_shape"][0]
    with mounted(store, "--metadata-ttl", "3600") as mount:
        until(lambda: mount.stats()["watched"])
        npy = mount.path / "npy/a.npy"
        assert same(np.load(npy), expected)
        replace(store / "a" / chunk, (store / "a" / chunk.replace("0", "1")).read_bytes())
        expected[:length] = expected[length : 2 * length]
        until(lambda: same(np.load(npy), expected))
        change_meta(store / "a" / document, shape=[length])
        until(lambda: same(np.load(npy), expected[:length]))
        (store / "a" / document).unlink()
        until(lambda: not npy.exists())


def test_what_is_written_in_one_view_is_seen_in_the_others(empty: tuple[Mounted, Any], tmp_path: Path) -> None:
    mount, _ = empty
    np.save(tmp_path / "x.npy", np.arange(1, 5, dtype="<i2"))
    npy, chunks, zarr3 = (mount.path / view for view in ("npy", "chunks", "zarr3"))
    assert not (chunks / "g/x").exists() and not (zarr3 / "g/x").exists()
    (npy / "g").mkdir()
    run("cp", tmp_path / "x.npy", npy / "g/x.npy")
    assert (chunks / "g/x/0").read_bytes() == np.arange(1, 5, dtype="<i2").tobytes()
    (chunks / "g/x/0").write_bytes(np.arange(5, 9, dtype="<i2").tobytes())
    assert np.load(npy / "g/x.npy").tolist() == [5, 6, 7, 8]
    assert zarr.open_array(zarr3 / "g/x", mode="r")[...].tolist() == [5, 6, 7, 8]
    (chunks / "g/x/.zattrs").write_text('{"units": "m"}')
    assert dict(zarr.open_array(zarr3 / "g/x", mode="r").attrs) == {"units": "m"}
    (chunks / "g/x/0").unlink()
    assert np.load(npy / "g/x.npy").tolist() == [0, 0, 0, 0]


def test_documents_of_other_kinds_beside_an_array(tmp_path: Path) -> None:
    """Folders with the names of documents and of chunks, and documents too long to be read."""
    (case,) = (param.values[0] for param in CASES if param.id == "v0_persistence/i4_2d_lz4_fill42")
    store = tmp_path / "store"
    for name in ("meta_is_folder", "attributes_are_folder", "chunk_is_folder", "long", "fine"):
        shutil.copytree(case.path, store / name)
    (store / "meta_is_folder/__zmeta__").unlink()
    (store / "meta_is_folder/__zmeta__").mkdir()
    (store / "attributes_are_folder/__zattr__").unlink()
    (store / "attributes_are_folder/__zattr__").mkdir()
    (store / "chunk_is_folder/__zdata__/0.0.blosc").unlink()
    (store / "chunk_is_folder/__zdata__/0.0.blosc").mkdir()
    with (store / "long/__zmeta__").open("r+b") as file:
        file.truncate(1 << 40)
    expected = read_stored(case, store / "fine")
    with mounted(store, "--read-only") as mount:
        npy = mount.path / "npy"
        assert same(np.load(npy / "fine.npy"), expected)
        assert same(np.load(npy / "attributes_are_folder.npy"), expected)
        assert (npy / "meta_is_folder").is_dir()
        assert "exceeds the limit" in (npy / "long.unsupported.txt").read_text()
        assert (np.load(npy / "chunk_is_folder.npy")[4:] == expected[4:]).all()
        assert (np.load(npy / "chunk_is_folder.npy")[:4, :3] == 42).all()
