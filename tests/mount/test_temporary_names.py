"""Files that no view can represent: refused on creation, unless their name is one that programs use for temporary files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted, run
from tests.support.programs import demand

pytestmark = [pytest.mark.fuse, pytest.mark.logs]

FOLDERS = ("chunks", "chunks/g", "chunks/a", "zarr3", "zarr3/g", "zarr3/a", "zarr3/a/c", "npy", "npy/g")
TEMPORARY = (
    ".a.swp",
    "a~",
    f"a.{'0123456789abcdef' * 2}.partial",
    "a.part",
    "a.tmp",
    "tmpx1y2z3",
    "sedAb12Cd",
    "XXAb12Cd",
    "zarr.json.gawk.Ab12Cd",
    "#a#",
    "0123456789abcdef" * 2,
    "0.101d05ba2-98c4-41c8-8336-1999f633d008",
    "a.__lock",
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "store.zarr"
    root = zarr.open_group(str(store), mode="w")
    root.create_group("g").attrs["is"] = "a group"
    root.create_array("a", shape=(4,), chunks=(2,), dtype="i4")[:] = 7
    return store


def created(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"x")


def created_by_mknod(folder: Path, name: str) -> None:
    os.mknod(folder / name, stat.S_IFREG | 0o600)


def renamed(folder: Path, name: str) -> None:
    (folder / ".x").write_bytes(b"x")
    try:
        os.rename(folder / ".x", folder / name)
    finally:
        (folder / ".x").unlink()


def linked(folder: Path, name: str) -> None:
    (folder / ".x").write_bytes(b"x")
    try:
        os.link(folder / ".x", folder / name)
    finally:
        (folder / ".x").unlink()


@pytest.mark.parametrize("how", [created, created_by_mknod, renamed, linked], ids=lambda how: how.__name__)
def test_what_no_view_can_express_is_refused_at_create(store: Path, how: Callable[[Path, str], None]) -> None:
    with mounted(store) as mount:
        for folder in FOLDERS:
            if how is linked and folder.startswith("npy"):
                continue
            with pytest.raises(OSError, match="Invalid argument") as caught:
                how(mount.path / folder, "notes.txt")
            assert caught.value.errno == errno.EINVAL, folder
            assert f"{folder}/notes.txt: in {folder.partition('/')[0]}/ a file " in mount.errors()[-1]["message"]
            assert "notes.txt" not in os.listdir(mount.path / folder)
        assert (mount.path / "npy/a.npy").exists()


def test_mv_to_where_the_file_cannot_be_keeps_the_source(store: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with mounted(store) as mount:
        for source, target in (
            (tmp_path / "notes.txt", "npy"),
            (tmp_path / "notes.txt", "chunks/g"),
            (mount.path / "npy/a.npy", "chunks"),
            (mount.path / "npy/a.npy", "zarr3/g"),
        ):
            before = source.read_bytes()
            refused = run("mv", source, mount.path / target, check=False)
            assert refused.returncode == 1 and b"Invalid argument" in refused.stderr
            assert source.read_bytes() == before
    assert zarr.open_array(str(store / "a"), mode="r")[:].tolist() == [7] * 4


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("chunks/a", "zarr3/new"),
        ("chunks/a", "npy/new"),
        ("chunks/g", "zarr3/new"),
        ("chunks/g", "npy"),
        ("zarr3/g", "npy"),
        ("raw/g", "npy"),
        ("chunks/a/0", "raw/a/c/0"),
    ],
)
def test_mv_to_a_view_with_other_files_keeps_the_node(store: Path, source: str, target: str) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with mounted(store) as mount:
        refused = run("mv", mount.path / source, mount.path / target, check=False)
        assert refused.returncode == 1 and (b"Invalid argument" in refused.stderr or b"File exists" in refused.stderr)
        run("rm", "-rf", mount.path / "chunks/new")
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", TEMPORARY)
def test_what_programs_write_first_is_renamed_to_its_own_name(store: Path, name: str) -> None:
    with mounted(store) as mount:
        for document, attributes in (("chunks/a/.zattrs", {"k": 1}), ("zarr3/a/zarr.json", {"k": 2})):
            written = (
                attributes if "chunks" in document else json.loads((mount.path / document).read_text()) | {"attributes": attributes}
            )
            temporary = (mount.path / document).with_name(name)
            temporary.write_text(json.dumps(written))
            assert name in os.listdir(temporary.parent)
            os.rename(temporary, mount.path / document)
            assert json.loads((store / "a/zarr.json").read_text())["attributes"] == attributes
        with (mount.path / "npy" / name).open("wb") as file:
            np.save(file, np.arange(3))
        os.rename(mount.path / "npy" / name, mount.path / "npy/b.npy")
        (mount.path / "chunks/a" / name).write_bytes(np.full(2, 9, "<i4").tobytes())
        os.rename(mount.path / "chunks/a" / name, mount.path / "chunks/a/1")
    assert zarr.open_array(str(store / "a"), mode="r")[:].tolist() == [7, 7, 9, 9]
    assert zarr.open_array(str(store / "b"), mode="r")[:].tolist() == [0, 1, 2]


def test_a_name_that_the_view_can_express_is_not_temporary(store: Path) -> None:
    with mounted(store) as mount:
        np.save(mount.path / "npy/tmp.npy", np.arange(2))
        (mount.path / "chunks/tmp2").mkdir()
        (mount.path / "npy/tmp3").mkdir()
        (mount.path / "chunks/a/1").write_bytes(np.full(2, 9, "<i4").tobytes())
        with pytest.raises(OSError, match="Invalid argument"):
            (mount.path / "chunks/a/4913").write_bytes(b"")
    assert zarr.open_array(str(store / "tmp"), mode="r")[:].tolist() == [0, 1]
    assert zarr.open_array(str(store / "a"), mode="r")[:].tolist() == [7, 7, 9, 9]
    assert {name for name, _ in zarr.open_group(str(store), mode="r").groups()} == {"g", "tmp2", "tmp3"}


@pytest.mark.parametrize("name", ["a.npy~", ".a.npy", "a.tmp"])
def test_an_array_gets_no_temporary_name_in_npy(store: Path, name: str) -> None:
    with mounted(store) as mount:
        with pytest.raises(OSError, match="Invalid argument"):
            (mount.path / "npy/a.npy").rename(mount.path / "npy" / name)
        assert "cannot get a temporary name" in (mount.path / ".zarrfs/errors.jsonl").read_text()
        assert (np.load(mount.path / "npy/a.npy") == 7).all()


def test_an_option_adds_names(store: Path) -> None:
    with mounted(store, "-o", "temporary_names=*.bak:save??") as mount:
        (mount.path / "chunks/a/save01").write_text('{"k": 3}')
        os.rename(mount.path / "chunks/a/save01", mount.path / "chunks/a/.zattrs")
        os.rename(mount.path / "zarr3/a/zarr.json", mount.path / "zarr3/a/zarr.json.bak")
        os.rename(mount.path / "zarr3/a/zarr.json.bak", mount.path / "zarr3/a/zarr.json")
        with pytest.raises(OSError, match="Invalid argument"):
            (mount.path / "npy/save0123").write_bytes(b"")
    assert json.loads((store / "a/zarr.json").read_text())["attributes"] == {"k": 3}


def ended(mount: Mounted) -> tuple[int, str]:
    done = mount.umount()
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", ["chunks/a/.zattrs.swp", "zarr3/g/.zarr.json.swp", "npy/.a.npy.Ab12Cd"])
def test_a_temporary_file_that_is_never_renamed_is_named_at_unmount(store: Path, tmp_path: Path, name: str) -> None:
    with mounted(store, "--cache-dir", str(tmp_path / "cache"), ends_with=None) as mount:
        (mount.path / name).write_text("unsaved")
        code, said = ended(mount)
    assert code == 7 and f"{name}: temporary name, never renamed" in said
    (saved,) = (tmp_path / "cache/rescued").glob(f"*/files/{name}")
    assert saved.read_text() == "unsaved"


@pytest.mark.parametrize(("folder", "chunk"), [("chunks/n", "0.0"), ("zarr3/n/c/0", "0"), ("zarr3/n", "c.0.0")])
def test_a_chunk_whose_array_never_comes_is_noted_at_unmount(store: Path, tmp_path: Path, folder: str, chunk: str) -> None:
    with mounted(store, "--cache-dir", str(tmp_path / "cache"), ends_with=None) as mount:
        (mount.path / folder).mkdir(parents=True)
        (mount.path / folder / chunk).write_bytes(b"12345678")
        code, said = ended(mount)
    assert code == 0 and f"chunks without an array: {folder}/{chunk}: no document of an array" in said
    (saved,) = (tmp_path / "cache/rescued").glob(f"*/files/{folder}/{chunk}")
    assert saved.read_bytes() == b"12345678"


def test_what_is_no_failure_is_noted_at_unmount_beside_failures(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        (mount.path / "chunks/n").mkdir()
        (mount.path / "chunks/n/0.0").write_bytes(b"12345678")
        with suppress(OSError):
            (mount.path / "chunks/a/0").write_bytes(b"too short")
        (mount.path / "chunks/a/.zattrs.swp").write_text("unsaved")
        code, said = ended(mount)
    assert code == 7 and "not stored: chunks/a/.zattrs.swp: " in said
    assert "; refused, with an error to the writing program: chunks/a/0: " in said
    assert "; chunks without an array: chunks/n/0.0: no document of an array" in said and "data saved in" in said


def test_a_chunk_in_a_group_that_can_never_be_an_array_is_refused(store: Path) -> None:
    with mounted(store) as mount:
        for view in ("chunks", "zarr3"):
            with pytest.raises(OSError, match="Invalid argument"):
                (mount.path / view / "0.0").write_bytes(b"x")


# Without backups in /tmp vim would write in place.
VIM = ("vim", "-u", "NONE", "-N", "-i", "NONE", "-es", "-c", "set backupskip= directory=. updatecount=1")


@pytest.mark.parametrize("document", ["chunks/a/.zattrs", "zarr3/a/zarr.json"])
@pytest.mark.parametrize(
    "options", ["set writebackup", "set backup backupdir=. backupcopy=no", "set backup backupdir=. backupcopy=yes"]
)
def test_vim_saves_a_document(store: Path, document: str, options: str) -> None:
    demand("vim")
    with mounted(store) as mount:
        (mount.path / "chunks/a/.zattrs").write_text('{\n  "unit": "old"\n}\n')
        run(*VIM, "-c", options, "-c", "%s/old/new/", "-c", "wq", mount.path / document)
        for left in (mount.path / document).parent.glob("*~"):
            left.unlink()
        for left in (mount.path / document).parent.glob(".*~"):
            left.unlink()
    assert json.loads((store / "a/zarr.json").read_text())["attributes"] == {"unit": "new"}


@pytest.mark.parametrize("program", [("perl", "-pi", "-e", "s/old/new/"), ("gawk", "-i", "inplace", '{sub("old", "new"); print}')])
def test_programs_that_edit_in_place_work_in_every_hierarchy(store: Path, program: tuple[str, ...]) -> None:
    """perl(1) exits with 0 where it cannot create its temporary file."""
    if shutil.which(program[0]) is None:
        pytest.skip(f"needs {program[0]}")
    with mounted(store) as mount:
        for path in (mount.path / "chunks/a/.zattrs", mount.path / "zarr3/a/zarr.json"):
            (mount.path / "chunks/a/.zattrs").write_text('{"unit": "old"}')
            run(*program, path)
            assert json.loads((store / "a/zarr.json").read_text())["attributes"] == {"unit": "new"}
            assert not [name for name in os.listdir(path.parent) if name.startswith("XX") or "gawk" in name]


def test_sed_and_cp_with_backups_and_tar_work_in_every_view(store: Path, tmp_path: Path) -> None:
    with mounted(store) as mount:
        (mount.path / "chunks/a/.zattrs").write_text('{"unit": "old"}')
        run("sed", "-i", "s/old/newer/", mount.path / "chunks/a/.zattrs")
        run("sed", "-i", "s/newer/newest/", mount.path / "zarr3/a/zarr.json")
        np.save(tmp_path / "b.npy", np.arange(3))
        run("cp", tmp_path / "b.npy", mount.path / "npy/b.npy")
        run("cp", "--backup", tmp_path / "b.npy", mount.path / "npy/c.npy")
        for view in ("chunks", "zarr3", "npy"):
            run("tar", "-C", mount.path / view, "-cf", tmp_path / f"{view}.tar", "a.npy" if view == "npy" else "a")
            (mount.path / view / "copies").mkdir(exist_ok=True)
            run("tar", "-C", mount.path / view / "copies", "--one-top-level=of", "-xf", tmp_path / f"{view}.tar")
    assert json.loads((store / "a/zarr.json").read_text())["attributes"] == {"unit": "newest"}
    assert zarr.open_array(str(store / "copies/of/a"), mode="r")[:].tolist() == [7] * 4
    assert zarr.open_array(str(store / "b"), mode="r")[:].tolist() == [0, 1, 2]


@pytest.mark.parametrize("document", ["chunks/.zattrs", "chunks/a/.zattrs", "zarr3/zarr.json", "zarr3/a/zarr.json"])
def test_patch_edits_a_document(document: str, store: Path, tmp_path: Path) -> None:
    """It writes NAME.o and six characters, which was EINVAL."""
    demand("patch")
    with mounted(store) as mount:
        path = mount.path / document
        attributes = {"title": "one"}
        edited = json.loads(path.read_text()) if path.exists() else {}
        (edited if path.name == ".zattrs" else edited["attributes"]).update(attributes)
        path.write_text(json.dumps(edited, indent=1))
        before = path.read_text()
        old, new = tmp_path / "old", tmp_path / "new"
        old.write_text(before)
        new.write_text(before.replace('"one"', '"two"'))
        diff = run("diff", "-u", old, new, check=False)
        (tmp_path / "change.patch").write_bytes(diff.stdout)
        run("patch", "-s", path, tmp_path / "change.patch")
        assert path.read_text() == new.read_text()
        assert not [name for name in os.listdir(path.parent) if ".o" in name]
    attributes = dict(zarr.open(str(store), mode="r", path="a" if "/a/" in document else "").attrs)
    assert attributes["title"] == "two"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_name_of_patch_belongs_to_a_file(folder: str, store: Path) -> None:
    with mounted(store) as mount:
        for name in ("x.oAb12Cd", "zarr.json.o12345", "zarr.json.oAb12Cde", "zarr.json.pAb12Cd"):
            with pytest.raises(OSError, match="Invalid argument"):
                (mount.path / folder / name).write_bytes(b"x")
