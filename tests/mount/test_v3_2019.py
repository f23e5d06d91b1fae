"""Hierarchies of the draft of 2019 through the kernel, written by unmodified programs.

A reader that shares no code with zarrfs then reads the folder.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support import reader_v3_2019 as reader
from tests.support.cases import cases
from tests.support.comparing import tree_below
from tests.support.mounting import Mounted, mounted, run, shell

pytestmark = pytest.mark.fuse

CASES = {case.name.rpartition("/")[2]: case for case in cases("v3_2019")}
PLACES = pytest.mark.parametrize("inside", ["", "sub/h"])
ELEMENTS = np.arange(60, dtype="<i4").reshape(6, 10)


@contextmanager
def scene(folder: Path, inside: str = "", case: str = "hierarchy", *options: str) -> Iterator[tuple[Mounted, Path]]:
    """Mount a copy of a case, at the root of a store or below; yield the mount and the folder of the hierarchy."""
    store = folder / "store"
    shutil.copytree(CASES[case].path, store / inside)
    with mounted(store, *options) as mount:
        yield mount, store / inside


@PLACES
def test_attributes_are_edited_by_programs(inside: str, tmp_path: Path) -> None:
    with scene(tmp_path, inside) as (mount, folder):
        chunks = mount.path / "chunks" / inside
        shell("""sed -i 's/apples/pears/' "$1/foo/bar/.zattrs" """, chunks)
        shell("""echo '{"title": "new"}' > "$1/.zattrs" """, chunks)
        shell("""echo '{"n": 1}' > "$1/implicit/grp/baz/.zattrs" """, chunks)
        found = reader.nodes(folder)
        assert found["/foo/bar"].attributes == {"foo": 42, "bar": "pears", "baz": [1, 2, 3, 4]}
        assert found["/"].attributes == {"title": "new"}
        assert found["/implicit/grp/baz"].attributes == {"n": 1}
        assert found["/foo"].attributes == {"spam": "ham", "eggs": 42}
        assert not mount.errors()


@PLACES
def test_elements_are_written_through_every_view(inside: str, tmp_path: Path) -> None:
    with scene(tmp_path, inside) as (mount, folder):
        npy, chunks = mount.path / "npy" / inside, mount.path / "chunks" / inside
        array = np.load(npy / "foo/bar.npy", mmap_mode="r+")
        array[9, 6] = 99
        array.flush()
        del array
        np.arange(2, dtype="<i4").tofile(chunks / "foo/nocomp/1")
        run("rm", chunks / "foo/bar/0.0")
        found = reader.nodes(folder)
        assert found["/foo/bar"].elements is not None and found["/foo/nocomp"].elements is not None
        assert found["/foo/bar"].elements[9, 6] == 99
        assert found["/foo/bar"].elements[0, 0] == 1.5
        assert found["/foo/bar"].stored == ("0.1", "0.2", "2.2")
        assert list(found["/foo/nocomp"].elements[2:4]) == [0, 1]
        for path in ("foo/bar", "foo/nocomp"):
            assert (np.load(npy / f"{path}.npy") == found[f"/{path}"].elements).all()
        assert (np.load(npy / "foo/bar.npy")[4:8, 3:6] == 1.5).all()


@PLACES
def test_arrays_and_groups_are_made_moved_and_removed(inside: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ELEMENTS)
    np.save(tmp_path / "s.npy", np.array(2.5))
    with scene(tmp_path, inside) as (mount, folder):
        before = tree_below(folder)
        npy, chunks = mount.path / "npy" / inside, mount.path / "chunks" / inside
        run("mkdir", "-p", npy / "made/deep")
        run("cp", tmp_path / "x.npy", tmp_path / "s.npy", npy / "made/deep")
        found = reader.nodes(folder)
        assert (found["/made/deep/x"].elements == ELEMENTS).all()
        assert found["/made/deep/s"].elements == 2.5
        assert (folder / "data/made/deep/s").is_file()
        assert sorted(os.listdir(chunks / "made/deep/x")) == [".zarray", "0.0"]
        assert os.listdir(chunks / "made/deep/s") == [".zarray", "0"]
        assert (chunks / "made/deep/s/0").read_bytes() == np.array(2.5).tobytes()

        run("mv", npy / "made/deep/x.npy", npy / "made/y.npy")
        assert (reader.nodes(folder)["/made/y"].elements == ELEMENTS).all()
        assert "/made/deep/x" not in reader.nodes(folder)
        run("mv", chunks / "made", chunks / "moved")
        found = reader.nodes(folder)
        assert (found["/moved/y"].elements == ELEMENTS).all()
        assert found["/moved/deep/s"].elements == 2.5
        assert not [path for path in found if path.startswith("/made")]

        os.replace(npy / "moved/y.npy", npy / "moved/z.npy")
        assert (reader.nodes(folder)["/moved/z"].elements == ELEMENTS).all()

        run("rm", "-r", chunks / "moved")
        assert tree_below(folder) == before
        run("rm", "-r", npy / "foo")
        left = tree_below(folder)
        assert left == {key: value for key, value in before.items() if not key.startswith(("meta/root/foo", "data/foo"))}
        assert sorted(os.listdir(chunks)) == [".zattrs", ".zgroup", "implicit"]
        assert not mount.errors()


def test_a_hierarchy_is_copied_within_itself(tmp_path: Path) -> None:
    with scene(tmp_path) as (mount, folder):
        run("cp", "-r", mount.path / "chunks/foo", mount.path / "chunks/copy")
        found = reader.nodes(folder)
        for name in ("bar", "nocomp", "nullfill"):
            assert (found[f"/copy/{name}"].elements == found[f"/foo/{name}"].elements).all()
            assert found[f"/copy/{name}"].attributes == found[f"/foo/{name}"].attributes
            assert found[f"/copy/{name}"].stored == found[f"/foo/{name}"].stored
        assert found["/copy"].attributes == found["/foo"].attributes


def test_names_that_the_text_does_not_allow(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ELEMENTS)
    with scene(tmp_path) as (mount, folder):
        before = tree_below(folder)
        for view, name, number in (
            ("chunks", "FOO", errno.EEXIST),
            ("npy", "FOO", errno.EEXIST),
            ("chunks", "a b", errno.EINVAL),
            ("npy", "\u00e9", errno.EINVAL),
        ):
            with pytest.raises(OSError) as caught:  # noqa: PT011
                (mount.path / view / name).mkdir()
            assert caught.value.errno == number, (view, name)
        for name in ("foo/BAR.npy", "foo/a b.npy"):
            assert run("cp", tmp_path / "x.npy", mount.path / "npy" / name, check=False).returncode == 1
        assert tree_below(folder) == before


def test_times_of_folders_are_those_of_the_places_of_their_members(tmp_path: Path) -> None:
    with scene(tmp_path, "sub/h") as (mount, folder):
        for shown, place in (("foo", "meta/root/foo"), ("foo/bar", "data/foo/bar"), ("implicit/grp", "meta/root/implicit/grp")):
            os.utime(folder / place, (1_000_000_000, 1_000_000_000))
            assert (mount.path / "chunks/sub/h" / shown).stat().st_mtime == 1_000_000_000, shown
        fd = os.open(mount.path / "chunks/sub/h/foo", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        assert not mount.errors()


def test_new_stores_are_of_this_dialect_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "x.npy", ELEMENTS)
    with mounted(tmp_path / "empty", "--new-dialect", "v3_2019") as mount:
        run("cp", tmp_path / "x.npy", mount.path / "npy")
        run("mkdir", mount.path / "chunks/g")
        run("cp", "-r", mount.path / "chunks/x", mount.path / "chunks/g/x")
        found = reader.nodes(tmp_path / "empty")
        assert set(found) == {"/", "/x", "/g", "/g/x"}
        for path in ("/x", "/g/x"):
            assert (found[path].elements == ELEMENTS).all()
            document = found[path].document
            assert document is not None
            assert document["compressor"]["codec"] == "https://purl.org/zarr/spec/codec/gzip/1.0"
        assert not mount.errors()


def test_changes_behind_are_seen(tmp_path: Path) -> None:
    with scene(tmp_path, "", "hierarchy", "--metadata-ttl", "0") as (mount, folder):
        npy = mount.path / "npy"
        assert sorted(os.listdir(npy / "foo")) == ["bar.npy", "nocomp.npy", "nullfill.npy"]
        document = json.loads((folder / "meta/root/foo/nocomp.array").read_bytes())
        (folder / "meta/root/new").mkdir()
        (folder / "meta/root/new/n.array").write_text(json.dumps(document))
        (folder / "data/new/n").mkdir(parents=True)
        (folder / "data/new/n/0").write_bytes(np.array([3, 4], "<i4").tobytes())
        assert list(np.load(npy / "new/n.npy")) == [3, 4, 0, 0, 0]
        (folder / "meta/root/new/n.array").unlink()
        assert not (npy / "new/n.npy").exists()


def test_the_reason_of_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with scene(tmp_path, "sub/h") as (mount, folder):
        assert (mount.path / "npy/sub/h/foo/bar.npy").is_file()
    entry = json.loads((folder / "zarr.json").read_bytes())
    entry["extensions"] = [{"extension": "http://example.org/ext", "must_understand": True}]
    (folder / "zarr.json").write_text(json.dumps(entry))
    with mounted(tmp_path / "store") as mount:
        for view in ("npy", "chunks", "zarr3"):
            listed = [name for name in os.listdir(mount.path / view / "sub") if not name.startswith(".") and name != "zarr.json"]
            assert listed == ["h.unsupported.txt"]
            assert "http://example.org/ext" in (mount.path / view / "sub/h.unsupported.txt").read_text()
    with mounted(folder) as mount:
        assert [name for name in os.listdir(mount.path / "npy") if name.endswith(".unsupported.txt")]


def test_a_folder_of_chunks_is_renamed_whose_name_is_the_path_of_another_array(tmp_path: Path) -> None:
    with scene(tmp_path) as (mount, folder):
        npy, chunks, raw = mount.path / "npy", mount.path / "chunks", mount.path / "raw"
        (npy / "data/foo").mkdir(parents=True)
        np.save(npy / "data/foo/bar.npy", ELEMENTS)
        with (chunks / "data/foo/bar/0.0").open("r+b", buffering=0) as opened:
            opened.write(np.int32(99).tobytes())
            (chunks / "data/foo/.notes").write_bytes(b"notes")
            run("mv", raw / "data/foo", raw / "data/fee")
            assert os.fstat(opened.fileno()).st_nlink == 1
            assert (chunks / "data/foo/.notes").read_bytes() == b"notes"
            run("mv", raw / "data/fee", raw / "data/foo")
            (chunks / "data/foo/.notes").unlink()
        expected = ELEMENTS.copy()
        expected[0, 0] = 99
        found = reader.nodes(folder)
        assert (found["/data/foo/bar"].elements == expected).all()
        assert not mount.errors()


@pytest.mark.parametrize("how", ["chunks renamed", "array erased"])
def test_what_happens_to_a_folder_of_chunks_does_not_happen_to_the_node_of_that_path(how: str, tmp_path: Path) -> None:
    with scene(tmp_path) as (mount, folder):
        npy, chunks, raw = mount.path / "npy", mount.path / "chunks", mount.path / "raw"
        (npy / "data/foo").mkdir(parents=True)
        np.save(npy / "data/foo/bar.npy", ELEMENTS)
        (chunks / "data/foo/bar/.notes").write_bytes(b"notes")
        with (chunks / "data/foo/bar/.zattrs").open("w") as opened:
            opened.write('{"a": 1}')
            opened.flush()
            if how == "array erased":
                # Its chunks lie in data/foo/bar.
                shutil.rmtree(chunks / "foo/bar")
            else:
                (chunks / "data/foo/new").mkdir()
                run("mv", raw / "data/foo", raw / "data/fee")
                assert (chunks / "data/foo/new").is_dir()
            assert os.fstat(opened.fileno()).st_size == 8
        assert (chunks / "data/foo/bar/.notes").read_bytes() == b"notes"
        (chunks / "data/foo/bar/.notes").unlink()
        if how == "chunks renamed":
            run("mv", raw / "data/fee", raw / "data/foo")
        assert reader.nodes(folder)["/data/foo/bar"].attributes == {"a": 1}
        assert not mount.errors()
