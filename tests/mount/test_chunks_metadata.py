"""Nodes edited through a mounted ``chunks/`` by unmodified programs; zarr-python reads the store after each."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import run, shell
from tests.support.node_mounts import (
    as_written,
    check_copying_into_an_empty_store,
    check_erasing,
    copy_with,
    nodes,
    only_stored_names,
    scene,
)
from tests.support.small_stores import write
from tests.support.zarr_python import everything, written

pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

DIALECTS = pytest.mark.parametrize("dialect", [2, 3])


def plain(root: Any) -> None:
    """Write an ordinary Zarr v2 directory: uncompressed, with an array of no dimensions, and one of ten thousand bytes a chunk."""
    root.attrs.update({"title": "plain", "history": ["made"]})
    root.create_array("deep/er/x", shape=(7, 5), chunks=(3, 4), dtype="f4", fill_value=-1, compressors=None)[...] = np.arange(
        35
    ).reshape(7, 5)
    root["deep"].attrs["note"] = "\u00e9"
    root.create_array("s", shape=(), chunks=(), dtype="i8", fill_value=3, compressors=None)[...] = 42
    root.create_array("big", shape=(30_000,), chunks=(10_000,), dtype="u1", fill_value=0, compressors=None)[:20_000] = 5
    root.create_array("empty", shape=(4,), chunks=(2,), dtype="M8[s]", fill_value=0, compressors=None, attributes={"a": 1})
    root.create_group("nothing")


@pytest.mark.parametrize("consolidated", [False, True])
@DIALECTS
def test_attributes_are_edited_by_programs(dialect: int, consolidated: bool, tmp_path: Path) -> None:
    with scene(dialect, tmp_path, consolidated=consolidated) as mount:
        chunks = mount.path / "chunks"
        shell("""echo '{"units": "km"}' > "$1/g/a/.zattrs" """, chunks)
        assert nodes(mount)["g/a"][1] == {"units": "km"}
        assert (chunks / "g/a/.zattrs").read_text() == '{"units": "km"}\n'
        shell("""sed -i 's/km/cm/' "$1/g/a/.zattrs" """, chunks)
        assert nodes(mount)["g/a"][1] == {"units": "cm"}
        shell("""sed -i.bak 's/cm/mm/' "$1/g/a/.zattrs" && rm "$1/g/a/.zattrs.bak" """, chunks)
        assert nodes(mount)["g/a"][1] == {"units": "mm"}
        (tmp_path / "new").write_text('{"moved": true}')
        run("mv", tmp_path / "new", chunks / "g/h/.zattrs")
        assert nodes(mount)["g/h"][1] == {"moved": True}
        shell(
            """python3 -c '
import json, os, sys
path = sys.argv[1]
attributes = json.load(open(path))
with open(path + ".tmp", "w") as file:
    json.dump(attributes | {"n": 1}, file)
    file.flush()
    os.fsync(file.fileno())
os.replace(path + ".tmp", path)' "$1/.zattrs" """,
            chunks,
        )
        assert nodes(mount)[""][1] == {"title": "example", "n": 1}
        run("rm", chunks / "g/a/.zattrs")
        assert nodes(mount)["g/a"][1] == {}
        assert not (chunks / "g/a/.zattrs").exists()
        shell("""echo '{"again": 1}' > "$1/g/a/.zattrs" """, chunks)
        assert nodes(mount)["g/a"][1] == {"again": 1}
        only_stored_names(mount)


@pytest.mark.parametrize("options", ["", "set backupcopy=no backup", "set backupcopy=no nowritebackup", "set backupcopy=yes"])
@DIALECTS
def test_vim_saves_attributes(dialect: int, options: str, tmp_path: Path) -> None:
    if shutil.which("vim") is None:
        pytest.skip("vim is not installed")
    with scene(dialect, tmp_path) as mount:
        path = mount.path / "chunks/g/a/.zattrs"
        run("vim", "-u", "NONE", "-N", "-es", "-c", options or "set compatible&", "-c", '%s/"m"/"km"/', "-c", "wq", path)
        assert nodes(mount)["g/a"][1] == {"units": "km"}
        assert json.loads(path.read_text()) == {"units": "km"}
        backup = path.with_name(".zattrs~")
        if backup.exists():
            assert json.loads(backup.read_text()) == {"units": "m"}
            backup.unlink()
        assert sorted(os.listdir(path.parent)) == [".zarray", ".zattrs", "0.0", "0.1", "1.0", "1.1"]
        only_stored_names(mount)


@DIALECTS
def test_what_is_refused_is_einval_with_the_reason_in_the_list_of_errors(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path, ends_with=0) as mount:
        before = nodes(mount)
        array = mount.path / "chunks/g/a"
        document = json.loads((array / ".zarray").read_text())
        for name, text, why in (
            (".zattrs", "{no json", "not JSON"),
            (".zarray", json.dumps(document | {"compressor": {"id": "zlib", "level": 1}}), "compressor must be null"),
            (".zarray", json.dumps(document | {"shape": [2, 6]}), "stored outside of the new shape"),
            (".zarray", json.dumps(document | {"dtype": "<f8"}), "dtype of an array cannot be changed"),
        ):
            refused = run("cp", "/dev/stdin", array / name, stdin=text.encode(), check=False)
            assert refused.returncode == 1
            assert b"Invalid argument" in refused.stderr
            told = [line for line in mount.errors() if why in line["message"]]
            assert {line["operation"] for line in told} >= {"flush"}
            assert told[0]["key"] in (f"chunks/g/a/{name}", "/g/a")
            assert nodes(mount) == before
            (tmp_path / "bad").write_text(text)
            run("cp", tmp_path / "bad", array / "tmp1")
            with pytest.raises(OSError) as caught:  # noqa: PT011
                os.replace(array / "tmp1", array / name)
            assert caught.value.errno == errno.EINVAL
            assert any(line["operation"] == "rename" and why in line["message"] for line in mount.errors())
            os.unlink(array / "tmp1")
        for name in ("\u00e9", "a\\b") if dialect == 2 else ("__a", "...."):
            with pytest.raises(OSError) as caught:  # noqa: PT011
                (mount.path / "chunks/g" / name).mkdir()
            assert caught.value.errno == errno.EINVAL
        assert nodes(mount) == before


@DIALECTS
def test_a_shape_is_edited(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path, "-o", "resize_erases") as mount:
        document = mount.path / "chunks/g/a/.zarray"
        text = json.loads(document.read_text())
        document.write_text(json.dumps(text | {"shape": [6, 6]}))
        grown = nodes(mount)["g/a"]
        assert grown[2] == (6, 6)
        assert (np.frombuffer(grown[5], "i4").reshape(6, 6)[4:] == 7).all()
        assert np.load(mount.path / "npy/g/a.npy").shape == (6, 6)
        document.write_text(json.dumps(text | {"shape": [2, 6]}))
        assert nodes(mount)["g/a"][2] == (2, 6)
        assert sorted(path.name for path in document.parent.iterdir()) == [".zarray", ".zattrs", "0.0", "0.1"]
        assert len(list((mount.store / "g/a").rglob("[0-9]*.[0-9]*" if dialect == 2 else "c/*/*"))) == 2


@pytest.mark.parametrize("consolidated", [False, True])
@DIALECTS
def test_folders_are_groups(dialect: int, consolidated: bool, tmp_path: Path) -> None:
    with scene(dialect, tmp_path, consolidated=consolidated) as mount:
        chunks = mount.path / "chunks"
        run("mkdir", "-p", chunks / "new/deep/er")
        assert "new" not in nodes(mount)
        run("sync", chunks / "new")
        assert nodes(mount)["new/deep/er"] == ("group", {})
        assert (mount.path / "npy/new/deep/er").is_dir()
        run("rmdir", chunks / "new/deep/er")
        assert "new/deep/er" not in nodes(mount)
        run("mv", chunks / "g", chunks / "new/deep")
        assert {"new/deep/g", "new/deep/g/a", "new/deep/g/h"} <= nodes(mount).keys()
        run("mv", chunks / "new/deep/g/a", chunks / "a")
        assert np.frombuffer(nodes(mount)["a"][5], "i4").tolist() == list(range(24))
        assert run("rmdir", chunks / "a", check=False).returncode == 1
        only_stored_names(mount)


@pytest.mark.parametrize("source_is_consolidated", [False, True])
@pytest.mark.parametrize("tool", ["cp -r", "cp -a", "rsync -a", "tar"])
@DIALECTS
def test_copying_in_is_converting(dialect: int, tool: str, source_is_consolidated: bool, tmp_path: Path) -> None:
    source = write(tmp_path / "source.zarr", written(2, plain, consolidated=source_is_consolidated))
    expected = everything(source)
    with scene(dialect, tmp_path) as mount:
        target = mount.path / "chunks/copy"
        target.mkdir()
        again = copy_with(tool, source, target)
        assert [line for line in again if not line.endswith(".zmetadata")] == []
        found = {path[len("copy") :].lstrip("/"): node for path, node in nodes(mount).items() if path.startswith("copy")}
        assert as_written(found) == expected
        assert as_written(everything(mount.path / "chunks/copy", use_consolidated=False)) == expected
        only_stored_names(mount)
        if dialect == 3:
            # Compressed, as the mount stores new arrays.
            assert sum(path.stat().st_size for path in (mount.store / "copy/big/c").iterdir()) < 10_000
    assert {path: node for path, node in everything(tmp_path / "store.zarr").items() if path.startswith("copy")}


@pytest.mark.parametrize("new_dialect", ["v2", "v3"])
def test_copying_into_an_empty_store(new_dialect: str, tmp_path: Path) -> None:
    source = write(tmp_path / "source.zarr", written(2, plain))
    check_copying_into_an_empty_store("chunks", source, tmp_path, new_dialect)


@DIALECTS
def test_copying_out_is_converting(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path) as mount:
        expected = nodes(mount)
        run("cp", "-r", mount.path / "chunks", tmp_path / "out")
        assert everything(tmp_path / "out", zarr_format=2) == expected
        assert json.loads((tmp_path / "out/g/a/.zarray").read_text())["compressor"] is None
        # Copy it back, beside the original.
        run("cp", "-r", tmp_path / "out", mount.path / "chunks/back")
        again = nodes(mount)
        back = {path[len("back") :].lstrip("/"): node for path, node in again.items() if path.startswith("back")}
        assert as_written(back) == expected


@pytest.mark.parametrize("consolidated", [False, True])
@DIALECTS
def test_nodes_are_erased(dialect: int, consolidated: bool, tmp_path: Path) -> None:
    with scene(dialect, tmp_path, consolidated=consolidated) as mount:
        chunks = mount.path / "chunks"
        check_erasing(chunks, mount)
        assert sorted(os.listdir(chunks)) == [".zattrs", ".zgroup", *([".zmetadata"] if consolidated else ())]
        run("mkdir", chunks / "g")
        assert os.listdir(chunks / "g") == []


@DIALECTS
def test_removing_a_document_alone_loses_nothing(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path) as mount:
        before = nodes(mount)
        document = mount.path / "chunks/g/a/.zarray"
        text = document.read_bytes()
        document.unlink()
        assert not document.exists()
        assert nodes(mount) == before
        document.write_bytes(text)
        assert document.read_bytes() == text
        assert nodes(mount) == before


@DIALECTS
def test_what_is_left_of_temporary_names_is_told_at_the_end(dialect: int, tmp_path: Path) -> None:
    with scene(dialect, tmp_path, ends_with=None) as mount:
        (mount.path / "chunks/g/.notes.swp").write_text("to nobody")
        before = nodes(mount)
        assert (mount.path / "chunks/g/.notes.swp").read_text() == "to nobody"
        ended = mount.umount()
        assert ended.returncode == 7
        assert "chunks/g/.notes.swp" in ended.stderr
    assert before == everything(tmp_path / "store.zarr")
