"""``numpy.save`` over an array of another shape or type: the other metadata of the array stays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted, run

pytestmark = pytest.mark.fuse


def made(store: Path, zarr_format: int = 3, **more: Any) -> None:
    group = zarr.open_group(str(store), mode="w", zarr_format=zarr_format)
    options: dict[str, Any] = {"shape": (20, 30), "chunks": (5, 10), "dtype": "f4", "fill_value": -1} | more
    if zarr_format == 3:
        options |= {"dimension_names": ["y", "x"]}
    array = group.create_array("a", **options)
    array[...] = 3
    array.attrs["units"] = "m"
    array.attrs["large"] = "x" * 3_000_000


def told(mount: Mounted) -> dict[str, Any]:
    """Return the metadata of the array in the form of v3, with lengths in place of large attributes."""
    found: dict[str, Any] = json.loads((mount.path / "zarr3/a/zarr.json").read_text())
    if "large" in found["attributes"]:
        found["attributes"]["large"] = len(found["attributes"]["large"])
    for codec in found["codecs"]:
        # This follows from the data type.
        codec.get("configuration", {}).pop("typesize", None)
    return found


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("new", [np.full((7, 41), 8, "<f4"), np.full((20, 30), 8, "<i2"), np.full((9, 9), 8, ">f8", order="F")])
def test_np_save_over_an_array_keeps_what_describes_it(tmp_path: Path, zarr_format: int, new: np.ndarray[Any, Any]) -> None:
    made(tmp_path / "store", zarr_format)
    with mounted(tmp_path / "store", "--new-codecs", "none", "--new-chunks", "3") as mount:
        before = told(mount)
        new[0, 0] = 5
        np.save(mount.path / "npy/a.npy", new)
        np.testing.assert_array_equal(np.load(mount.path / "npy/a.npy"), new)
        after = told(mount)
    for name in ("attributes", "dimension_names", "chunk_grid", "codecs"):
        assert after.get(name) == before.get(name), name
    assert after["fill_value"] == before["fill_value"] == -1
    assert (after["shape"], after["data_type"]) == (list(new.shape), new.dtype.newbyteorder("<").name)
    found = zarr.open_array(str(tmp_path / "store/a"), mode="r")
    np.testing.assert_array_equal(found[...], new)
    assert found.attrs["units"] == "m" and len(found.attrs["large"]) == 3_000_000


def test_another_number_of_dimensions_drops_their_names(tmp_path: Path) -> None:
    made(tmp_path / "store", compressors=zarr.codecs.GzipCodec(level=2))
    with mounted(tmp_path / "store") as mount:
        (mount.path / "chunks/a/.zattrs").write_text('{"units": "m", "_ARRAY_DIMENSIONS": ["p", "q"]}')
        np.save(mount.path / "npy/a.npy", np.arange(5, dtype="<f4"))
        after = told(mount)
    assert after["attributes"] == {"units": "m"} and "dimension_names" not in after
    assert [codec["name"] for codec in after["codecs"]] == ["bytes", "gzip"]
    assert zarr.open_array(str(tmp_path / "store/a"), mode="r")[...].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("limit", ["192MiB", "1MiB"])
def test_shards_stay(tmp_path: Path, limit: str) -> None:
    made(tmp_path / "store", shards=(10, 20))
    with mounted(tmp_path / "store", "--memory-limit", limit, "--shard-delay", "600") as mount:
        new = np.arange(1100 * 1100, dtype="<f8").reshape(1100, 1100)
        np.save(mount.path / "npy/a.npy", new)
        np.testing.assert_array_equal(np.load(mount.path / "npy/a.npy"), new)
    found = zarr.open_array(str(tmp_path / "store/a"), mode="r")
    assert (found.shards, found.chunks, found.attrs["units"]) == ((10, 20), (5, 10), "m")
    np.testing.assert_array_equal(found[...], new)
    assert not (tmp_path / "store/.zarrfs").exists()


@pytest.mark.logs("write failed, data lost")
@pytest.mark.parametrize("limit", ["192MiB", "0"])
def test_a_file_that_never_becomes_whole_leaves_a_sharded_array_as_it_was(tmp_path: Path, limit: str) -> None:
    made(tmp_path / "store", shards=(10, 20))
    with mounted(tmp_path / "store", "--memory-limit", limit, "--shard-delay", "0.1") as mount:
        np.save(tmp_path / "new.npy", np.full((300, 300), 4.0))
        short = (tmp_path / "new.npy").read_bytes()[:-9]
        (tmp_path / "short").write_bytes(short)
        refused = run("cp", tmp_path / "short", mount.path / "npy/a.npy", check=False)
        assert refused.returncode == 1 and b"Invalid argument" in refused.stderr
        assert np.load(mount.path / "npy/a.npy").shape == (20, 30)
    assert (zarr.open_array(str(tmp_path / "store/a"), mode="r")[...] == 3).all()
    assert not (tmp_path / "store/.zarrfs").exists()


def test_a_header_alone_makes_zeros_whatever_the_fill_value(tmp_path: Path) -> None:
    made(tmp_path / "store")
    with mounted(tmp_path / "store") as mount:
        np.lib.format.open_memmap(mount.path / "npy/a.npy", mode="w+", dtype="<f4", shape=(4, 4))
        assert told(mount)["fill_value"] == -1
    assert (zarr.open_array(str(tmp_path / "store/a"), mode="r")[...] == 0).all()


def test_an_array_that_is_removed_first_is_made_afresh(tmp_path: Path) -> None:
    made(tmp_path / "store", compressors=None)
    with mounted(tmp_path / "store") as mount:
        (mount.path / "npy/a.npy").unlink()
        np.save(mount.path / "npy/a.npy", np.zeros((3, 4), "<f4"))
        after = told(mount)
    assert after["attributes"] == {} and "dimension_names" not in after
    assert after["fill_value"] == 0 and after["chunk_grid"]["configuration"]["chunk_shape"] == [3, 4]


def test_cp_and_a_temporary_name_that_is_renamed_keep_it_too(tmp_path: Path) -> None:
    made(tmp_path / "store")
    np.save(tmp_path / "new.npy", np.ones((6, 2), "<f4"))
    with mounted(tmp_path / "store") as mount:
        run("cp", tmp_path / "new.npy", mount.path / "npy/a.npy")
        assert told(mount)["attributes"]["units"] == "m"
        np.save(tmp_path / "new.npy", np.ones((2, 6), "<f4"))
        run("cp", tmp_path / "new.npy", mount.path / "npy/.a.npy.Ab12Cd")
        os.rename(mount.path / "npy/.a.npy.Ab12Cd", mount.path / "npy/a.npy")
        assert told(mount)["attributes"]["units"] == "m"
    found = zarr.open_array(str(tmp_path / "store/a"), mode="r")
    assert (found.shape, found.chunks) == ((2, 6), (5, 10))


@pytest.mark.parametrize("dialect", ["v3", "v2", "v1", "v0", "v3_2022", "v3_2019"])
def test_attributes_and_chunks_stay_in_every_layout(tmp_path: Path, dialect: str) -> None:
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", dialect, "--new-chunks", "2x3") as mount:
        np.save(mount.path / "npy/a.npy", np.ones((4, 6), "<f4"))
        (mount.path / "chunks/a/.zattrs").write_text('{"units": "m"}')
    with mounted(tmp_path / "store", "--new-chunks", "none", "--new-codecs", "none") as mount:
        before = told(mount)
        np.save(mount.path / "npy/a.npy", np.full((5, 7), 2, "<f8"))
        after = told(mount)
        assert np.load(mount.path / "npy/a.npy").tolist() == [[2.0] * 7] * 5
    assert after["attributes"] == {"units": "m"}
    assert after["chunk_grid"] == before["chunk_grid"]
    assert [codec["name"] for codec in after["codecs"]] == [codec["name"] for codec in before["codecs"]]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_name_that_is_taken_by_what_the_view_does_not_show_is_eexist(tmp_path: Path, zarr_format: int) -> None:
    """It was ENOENT, without a reason: ``np.save`` then tells that the folder is missing."""
    made(tmp_path / "store", zarr_format)
    group = zarr.open_group(str(tmp_path / "store"), mode="a", zarr_format=zarr_format)
    group.create_group("group")
    group.create_array("texts", shape=(3,), dtype=str)
    group.create_array("bad", shape=(3,), dtype="i4")
    document = tmp_path / "store/bad" / ("zarr.json" if zarr_format == 3 else ".zarray")
    document.write_text(document.read_text().replace("int32", "int33").replace("<i4", "<i5"))
    with mounted(tmp_path / "store") as mount:
        for name in ("group", "texts", "bad"):
            with pytest.raises(FileExistsError):
                np.save(mount.path / f"npy/{name}.npy", np.arange(3))
            with pytest.raises(FileExistsError):
                os.rename(mount.path / "npy/a.npy", mount.path / f"npy/{name}.npy")
            assert f"/{name} already exists and is not an array that npy/ can show" in str(mount.errors())
        assert sorted(os.listdir(mount.path / "npy")) == ["a.npy", "bad.unsupported.txt", "group", "texts.unsupported.txt"]


def test_an_array_that_came_behind_the_mount_unseen_is_saved_over(tmp_path: Path) -> None:
    """The file was created as that of a new array, and its close was EEXIST."""
    zarr.create_group(str(tmp_path / "store"), zarr_format=3)
    with mounted(tmp_path / "store", "--no-watch", "--metadata-ttl", "600") as mount:
        assert not (mount.path / "npy/a.npy").exists()
        made(tmp_path / "new")
        (tmp_path / "new/a").rename(tmp_path / "store/a")
        np.save(mount.path / "npy/a.npy", np.full((20, 30), 5, "f4"))
        assert told(mount)["attributes"]["units"] == "m"
    assert (zarr.open_array(str(tmp_path / "store/a"), mode="r")[...] == 5).all()
