"""Archives written by other software, through the kernel and on the command line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support import archives
from tests.support.cases import Case, cases
from tests.support.comparing import assert_expected, npy_path, reason_path, shown_chunks, why_left_out
from tests.support.mounting import mounted, watchdog, zarrfs
from tests.support.small_stores import array_document

pytestmark = pytest.mark.fuse

ALL = [
    case
    for case in [*cases("v2"), *cases("v3_final"), *cases("v3_draft2022_zarrpython")]
    if case.manifest["store_format"] != "directory"
]


def below(folder: Path) -> dict[str, bytes]:
    """Return the content of every file, by its path."""
    return {
        os.path.relpath(os.path.join(root, name), folder): Path(root, name).read_bytes()
        for root, _, names in os.walk(folder)
        for name in names
    }


def digests(path: Path) -> dict[str, str]:
    """Return a digest of each file of an archive, and of the files beside it."""
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in path.parent.rglob("*") if each.is_file()}


def test_every_kind_is_here() -> None:
    assert {case.manifest["store_format"] for case in ALL} == {"zip", "sqlite", "lmdb", "dbm"}


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_an_archive_is_read_in_every_view_and_left_as_it_was(case: Case, tmp_path: Path) -> None:
    shutil.copytree(case.folder, tmp_path / "case")
    path = tmp_path / "case" / case.path.name
    before = digests(path)
    with mounted(path) as mount:
        assert below(mount.path / "raw") == case.values
        for node in case.nodes("array"):
            if (reason := why_left_out(node)) is not None:
                assert reason in (mount.path / "npy" / reason_path(node)).read_text()
                continue
            file = mount.path / "npy" / npy_path(case, node)
            assert_expected(case, node, np.load(file, allow_pickle=False))
            shown = {name for name in os.listdir(mount.path / "chunks" / node["path"].strip("/")) if not name.startswith(".")}
            assert shown == shown_chunks(case, node)
        with pytest.raises(OSError, match="Read-only"):
            (mount.path / "raw" / "new").write_bytes(b"")
        assert mount.errors() == []
    assert digests(path) == before


@pytest.mark.parametrize("kind", ["zip", "sqlite", "lmdb", "dbm"])
def test_info_and_check(kind: str, tmp_path: Path) -> None:
    (case,) = [case for case in cases("v2") if case.manifest["store_format"] == kind]
    values = dict(case.values)
    path = archives.MAKERS[kind](tmp_path, values)
    told = zarrfs("info", str(path))
    assert told.returncode == 0 and "int32" in told.stdout, told.stderr
    assert zarrfs("check", str(path), "a").returncode == 0
    inside = zarrfs("info", f"{path}|{kind}:g")
    assert inside.returncode == 0 and "float64" in inside.stdout and "int32" not in inside.stdout
    missing = zarrfs("info", f"{path}|{kind}:nowhere")
    assert missing.returncode == 3 and missing.stderr.count("\n") == 1 and "nowhere" in missing.stderr
    path.parent.joinpath("worse").mkdir()
    values["a/0.0"] = values["a/0.0"][:-1]
    worse = zarrfs("check", str(archives.MAKERS[kind](tmp_path / "worse", values)), "a")
    assert worse.returncode == 1 and "0.0" in worse.stdout


def test_hostile_names_lead_nowhere_and_hide_nothing(tmp_path: Path) -> None:
    (case,) = [case for case in cases("hostile") if case.name == "hostile/zip_paths"]
    path = tmp_path / "around" / "here" / "store.zip"
    path.parent.mkdir(parents=True)
    shutil.copy(case.path, path)
    with mounted(path) as mount, watchdog(60):
        (node,) = case.nodes()
        assert_expected(case, node, np.load(mount.path / "npy/ok.npy"))
        files = below(mount.path / "raw")
        with zipfile.ZipFile(path) as archive:
            held = sorted(archive.read(name) for name in archive.namelist())
        assert sorted(files.values()) == held
        assert files["%%%2E%2E/escape/0"] == files["ok/0"]
        assert (mount.path / "raw/ok/../ok/0").read_bytes() == files["ok/0"]
        assert {"x\\..\\y/.zarray", "ctl\1\n/.zarray", "%%/abs/.zarray", "%%/%%/s/.zarray", "%%%2E/dot/.zarray"} <= set(files)
        for view in ("npy", "chunks", "zarr3"):
            assert below(mount.path / view)
        assert "Traceback" not in mount.log()
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["around", "here", "store.zip"]


@pytest.mark.full_length
def test_a_large_deflated_value_is_read_through_in_one_pass(tmp_path: Path) -> None:
    content = np.random.default_rng(8).integers(0, 4, 24 << 20, dtype=np.uint8).tobytes()
    path = archives.zip_deflated(tmp_path, {"large": content, "small": b"x"})
    with mounted(path) as mount, watchdog(100):
        file = mount.path / "raw/large"
        with closing(os.fdopen(os.open(file, os.O_RDONLY), "rb", 0)) as opened:
            assert opened.seek(20 << 20) and opened.read(5) == content[20 << 20 :][:5]
        assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(content).digest()


def test_an_archive_that_is_replaced_under_a_mount_gives_errors(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    path = archives.zip_stored(first, {"a": b"old", "b": b"old"})
    with mounted(path) as mount:
        assert (mount.path / "raw/a").read_bytes() == b"old"
        os.replace(archives.zip_stored(second, {"a": b"new", "b": b"new"}), path)
        with pytest.raises(OSError, match="Input/output"):
            (mount.path / "raw/b").read_bytes()
        assert any("changed or replaced" in line["message"] for line in mount.errors())


@pytest.mark.parametrize("kind", ["zip", "zip-deflated", "dbm"])
def test_what_the_replaced_archive_did_not_hold_is_neither_absent_nor_fill_value(kind: str, tmp_path: Path) -> None:
    members = {"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "<i4", "fill_value": 0, "order": "C"}
    document = json.dumps(members | {"compressor": None, "filters": None}).encode()
    chunk = np.full(4, 7, "<i4").tobytes()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    path = archives.MAKERS[kind](first, {"a/.zarray": document})
    with mounted(path, "--fill") as mount:
        assert not np.load(mount.path / "npy/a.npy").any()
        archives.MAKERS[kind](second, {"a/.zarray": document, "a/0": chunk, "a/1": chunk, "b/0": chunk})
        for new in second.iterdir():
            os.replace(new, first / new.name)
        for name in ("raw/a/0", "raw/b/0", "chunks/a/1", "zarr3/a/c/1"):
            with pytest.raises(OSError, match="Input/output"):
                (mount.path / name).read_bytes()
        with pytest.raises(OSError, match="Input/output"):
            os.listdir(mount.path / "raw")


@pytest.mark.full_length
def test_a_database_in_wal_mode_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A read-only mount of the folder is a file system that not even root can write to."""
    import sqlite3

    folder = tmp_path / "folder"
    folder.mkdir()
    path = archives.sqlite(folder, {"k": b"v"})
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    with mounted(folder, "--read-only") as outer, mounted(outer.path / "raw" / path.name) as inner:
        assert below(inner.path / "raw") == {"k": b"v"}


def test_an_lmdb_where_nothing_can_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = archives.lmdb(folder, {"k": b"v"})
    assert (path / "lock.mdb").exists()
    with mounted(folder, "--read-only") as outer, mounted(outer.path / "raw" / path.name) as inner:
        assert below(inner.path / "raw") == {"k": b"v"}


def of_method(archive: bytes, name: bytes, method: int) -> bytes:
    """Return a zip file in which both headers of an entry state another compression method."""
    changed = bytearray(archive)
    for magic, header_nbytes, offset in ((b"PK\3\4", 30, 8), (b"PK\1\2", 46, 10)):
        starts = [start - header_nbytes for start in range(len(archive)) if archive.startswith(name, start)]
        (start,) = (start for start in starts if archive[start : start + 4] == magic)
        changed[start + offset : start + offset + 2] = method.to_bytes(2, "little")
    return bytes(changed)


def test_entries_of_an_unknown_method_are_errors_of_their_own_and_unsupported(tmp_path: Path) -> None:
    """They gave ENOTSUP, and `zarrfs check` listed them as bad."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for array in ("chunk", "document", "sound"):
            archive.writestr(f"{array}/.zarray", array_document((2,), (2,), "<i2"))
            archive.writestr(f"{array}/0", b"\1\0\2\0")
    path.write_bytes(of_method(of_method(path.read_bytes(), b"chunk/0", 9), b"document/.zarray", 93))
    with mounted(path) as mount:
        for name in ("chunks/chunk/0", "zarr3/chunk/c/0", "npy/chunk.npy", "raw/chunk/0", "raw/document/.zarray"):
            with pytest.raises(OSError, match="Input/output error"):
                (mount.path / name).read_bytes()
        assert "reading 'chunk/0': it is compressed by deflate64 (method 9) in the zip file" in mount.log()
        assert "zstd (method 93)" in (mount.path / "npy/document.unsupported.txt").read_text()
        assert np.load(mount.path / "npy/sound.npy").tolist() == [1, 2]
    done = zarrfs("check", str(path), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["bad_count"] == 0
    assert {each["path"] for each in found["unchecked"]} == {"/chunk", "/document"}
