"""`x.zarr|unsharded:` in a real mount: sharded arrays without their shards, as programs and zarr-python see them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.mounting import mounted, run, zarrfs

pytestmark = pytest.mark.fuse

ELEMENTS = np.arange(16 * 12, dtype="<i4").reshape(16, 12)


def written(folder: Path, *, shards: tuple[int, int] | None) -> Path:
    """Write a group with one array of chunks of 2 x 3 elements, except for the last chunks; return its folder."""
    array = zarr.create_group(folder, attributes={"of": "the group"}).create_array(
        "a", shape=(16, 12), chunks=(2, 3), shards=shards, dtype="i4", fill_value=-1, attributes={"unit": "m"}
    )
    array[:14] = ELEMENTS[:14]
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return written(tmp_path / "sharded", shards=(4, 6))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return written(tmp_path / "plain", shards=None)


def test_raw_is_the_hierarchy_without_shards(store: Path, plain: Path, tmp_path: Path) -> None:
    with mounted(f"{store}|unsharded:") as mount:
        raw = mount.path / "raw"
        for folder in ("", "a", "a/c", "a/c/3"):
            assert sorted(os.listdir(raw / folder)) == sorted(os.listdir(plain / folder))
        assert {path.relative_to(raw).as_posix(): path.stat().st_size for path in raw.rglob("*") if path.is_file()} == {
            name: len(value) for name, value in files(plain).items()
        }
        assert files(raw) == files(plain)
        run("cp", "-r", raw, tmp_path / "copy")
        np.testing.assert_array_equal(np.load(mount.path / "npy" / "a.npy")[:14], ELEMENTS[:14])
    copied: Any = zarr.open_group(tmp_path / "copy", mode="r")
    assert copied["a"].shards is None and copied["a"].chunks == (2, 3)
    np.testing.assert_array_equal(copied["a"][:14], ELEMENTS[:14])
    assert (copied["a"][14:] == -1).all() and dict(copied["a"].attrs) == {"unit": "m"}


def test_chunks_are_written_and_erased_in_their_shards(store: Path, plain: Path) -> None:
    array: Any = zarr.open_array(store / "a")
    with mounted(f"{store}|unsharded:") as mount:
        chunks = mount.path / "raw" / "a" / "c"
        shutil.copyfile(plain / "a" / "c" / "3" / "2", chunks / "1" / "0")
        (chunks / "2" / "1").unlink()
        expected = array[...]
        np.testing.assert_array_equal(expected[2:4, :3], ELEMENTS[6:8, 6:9])
        assert (expected[4:6, 3:6] == -1).all()
        assert sorted(os.listdir(chunks / "2")) == ["0", "2", "3"]
        # A new chunk, in a folder for which the store has no file.
        (chunks / "7").mkdir()
        shutil.copyfile(plain / "a" / "c" / "0" / "0", chunks / "7" / "3")
        np.testing.assert_array_equal(array[14:, 9:], ELEMENTS[:2, :3])
        # As programs that write a temporary file and rename it.
        shutil.copyfile(plain / "a" / "c" / "1" / "1", chunks / "0" / "new")
        os.replace(chunks / "0" / "new", chunks / "0" / "0")
        assert sorted(os.listdir(chunks / "0")) == ["0", "1", "2", "3"]
        run("rm", "-r", chunks / "6")
        assert "6" not in os.listdir(chunks)
    assert array.shards == (4, 6)
    expected[14:, 9:] = ELEMENTS[:2, :3]
    expected[:2, :3] = ELEMENTS[2:4, 3:6]
    expected[12:14] = -1
    np.testing.assert_array_equal(zarr.open_array(store / "a")[...], expected)


def test_attributes_are_edited_and_chunks_are_not_cut_otherwise(store: Path) -> None:
    before = json.loads((store / "a" / "zarr.json").read_bytes())
    with mounted(f"{store}|unsharded:") as mount:
        document = mount.path / "raw" / "a" / "zarr.json"
        text = document.read_text()
        document.write_text(text.replace('"m"', '"km"'))
        assert json.loads((store / "a" / "zarr.json").read_bytes()) == before | {"attributes": {"unit": "km"}}
        for bad in (text.replace("zstd", "gzip"), json.dumps(before)):
            with pytest.raises(OSError, match="not permitted"):
                document.write_text(bad)
        assert document.read_text() == text.replace('"m"', '"km"')
        assert any("shards" in line["message"] for line in mount.errors())
    assert json.loads((store / "a" / "zarr.json").read_bytes()) == before | {"attributes": {"unit": "km"}}


def test_arrays_are_moved_copied_and_removed(store: Path, tmp_path: Path) -> None:
    with mounted(f"{store}|unsharded:") as mount:
        raw = mount.path / "raw"
        (raw / "a").rename(raw / "b")
        assert zarr.open_array(store / "b").shards == (4, 6)
        run("cp", "-r", raw / "b", raw / "copy")
        for name in ("b", "copy"):
            array: Any = zarr.open_array(store / name)
            np.testing.assert_array_equal(array[:14], ELEMENTS[:14])
        assert array.shards is None
        shutil.rmtree(raw / "b")
        run("rm", "-r", raw / "copy")
    assert os.listdir(store) == ["zarr.json"]


def test_arrays_that_another_program_makes_and_changes(store: Path, plain: Path) -> None:
    with mounted(f"{store}|unsharded:", "--metadata-ttl", "0") as mount:
        raw = mount.path / "raw"
        assert not (raw / "b").exists()
        shutil.copytree(store / "a", store / "b")
        assert files(raw / "b") == files(plain / "a")
        array: Any = zarr.open_array(store / "b")
        array[2:4, :3] = ELEMENTS[6:8, 6:9]
        assert (raw / "b" / "c" / "1" / "0").read_bytes() == (plain / "a" / "c" / "3" / "2").read_bytes()


def test_info_and_check(store: Path) -> None:
    for node in ((), ("/a",)):
        assert zarrfs("check", f"{store}|unsharded:", *node).returncode == 0
    told = zarrfs("info", f"{store}|unsharded:", "/a")
    assert told.returncode == 0 and "chunks (2, 3)" in told.stdout and "shards (" not in told.stdout
    refused = zarrfs("info", f"{store}|unsharded:a")
    assert refused.returncode != 0 and "the layer unsharded: has no path" in refused.stderr


def test_edits_in_other_views_keep_shards_in_every_copy_of_the_document(store: Path) -> None:
    with pytest.warns(match="Consolidated"):
        zarr.consolidate_metadata(str(store))
    with mounted(f"{store}|unsharded:") as mount:
        (mount.path / "chunks" / "a" / ".zattrs").write_text('{"unit": "km"}')
        array = np.load(mount.path / "npy" / "a.npy", mmap_mode="r+")
        array[5:9] = 3
        array.flush()
        del array
    for consolidated in (True, False):
        stored: Any = zarr.open_group(store, mode="r", use_consolidated=consolidated)["a"]
        assert stored.shards == (4, 6) and dict(stored.attrs) == {"unit": "km"}
        assert (stored[5:9] == 3).all()
        np.testing.assert_array_equal(stored[9:14], ELEMENTS[9:14])


def test_folders_of_chunks_without_a_folder_in_the_store_take_files(store: Path, plain: Path) -> None:
    array: Any = zarr.open_array(store / "a")
    chunk = (plain / "a" / "c" / "0" / "0").read_bytes()
    with mounted(f"{store}|unsharded:", "--resize-erases") as mount:
        chunks = mount.path / "raw" / "a" / "c"
        # The shard of these is c/3/1.
        (chunks / "6" / "other").mkdir()
        (chunks / "6" / ".3.Ab12Cd").write_bytes(chunk)
        (chunks / "6" / ".3.Ab12Cd").rename(chunks / "6" / "3")
        np.testing.assert_array_equal(array[12:14, 9:], ELEMENTS[:2, :3])
        shutil.rmtree(chunks)
        assert (array[...] == -1).all() and not (store / "a" / "c").exists()
        (chunks / "0").mkdir(parents=True)
        (chunks / "0" / "1").write_bytes(chunk)
        np.testing.assert_array_equal(array[:2, 3:6], ELEMENTS[:2, :3])


@pytest.mark.parametrize("is_nested", [False, True])
def test_chunks_outside_a_smaller_shape_are_erased_from_their_shards(is_nested: bool, tmp_path: Path) -> None:
    """They were no longer chunks when they were to be erased, and were visible again in the grown array."""
    store = tmp_path / "store"
    zarr.create_group(store)
    inner = zarr.codecs.ShardingCodec(chunk_shape=(2,)) if is_nested else None
    array: Any = zarr.create_array(
        store,
        name="a",
        shape=(22,),
        shards=(8,),
        chunks=(4,) if is_nested else (2,),
        dtype="i4",
        serializer=inner or "auto",
        compressors=None,
    )
    array[:] = np.arange(1, 23)
    with mounted(f"{store}|unsharded:", "--resize-erases") as mount:
        document = mount.path / "chunks" / "a" / ".zarray"
        for length in (5, 22):
            document.write_text(json.dumps(json.loads(document.read_text()) | {"shape": [length]}))
        assert np.load(mount.path / "npy" / "a.npy").tolist() == [1, 2, 3, 4, 5, 6] + [0] * 16
    assert sorted(path.name for path in (store / "a" / "c").iterdir()) == ["0"]
    assert zarr.open_array(store / "a")[...].tolist() == [1, 2, 3, 4, 5, 6] + [0] * 16  # type: ignore[index, union-attr]
