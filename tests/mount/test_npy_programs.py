"""Whole arrays written by unmodified programs: cp, NumPy, dd, mv, rm, rsync, through a real mount."""

from __future__ import annotations

import io
import json
import mmap
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.length import share
from tests.support.mounting import Mounted, mounted
from tests.support.small_stores import write

pytestmark = pytest.mark.fuse

Elements = np.ndarray[Any, Any]


@pytest.fixture(params=["v2", "v3"])
def mount(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mounted]:
    """An empty store, mounted; its first node is of either dialect."""
    store = tmp_path / "store.zarr"
    store.mkdir()
    with mounted(store, "--new-dialect", request.param, "--new-chunks", "40x30") as mount:
        yield mount


@pytest.fixture
def elements() -> Elements:
    return np.random.default_rng(0).normal(size=(300, 200)).astype("<f4")


def stored(mount: Mounted, name: str) -> Elements:
    """Return the array as zarr-python reads it from the store's own folder."""
    return np.asarray(zarr.open_array(mount.store / name, mode="r")[...])


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def test_cp_in_and_out(mount: Mounted, elements: Elements, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", elements)
    (mount.path / "npy" / "group").mkdir()
    path = mount.path / "npy" / "group" / "name.npy"
    assert run("cp", tmp_path / "a.npy", path).stderr == ""
    np.testing.assert_array_equal(stored(mount, "group/name"), elements)
    assert run("cp", path, tmp_path / "out.npy").stderr == ""
    assert run("cmp", tmp_path / "a.npy", tmp_path / "out.npy").returncode == 0
    # Overwrite the file with another shape.
    np.save(tmp_path / "a.npy", elements[:7])
    assert run("cp", tmp_path / "a.npy", path).stderr == ""
    np.testing.assert_array_equal(stored(mount, "group/name"), elements[:7])


def test_tensorstore_reads_new_arrays(mount: Mounted, elements: Elements, tmp_path: Path) -> None:
    ts = pytest.importorskip("tensorstore")
    np.save(tmp_path / "a.npy", elements)
    assert run("cp", tmp_path / "a.npy", mount.path / "npy/a.npy").returncode == 0
    driver = "zarr" if (mount.store / "a/.zarray").exists() else "zarr3"
    opened = ts.open({"driver": driver, "kvstore": {"driver": "file", "path": str(mount.store / "a")}}).result()
    assert (opened.read().result() == elements).all()


def test_numpy_saves_maps_and_saves_again(mount: Mounted, elements: Elements) -> None:
    path = mount.path / "npy" / "a.npy"
    np.save(path, np.asfortranarray(elements))
    np.testing.assert_array_equal(stored(mount, "a"), elements)
    mapped = np.load(path, mmap_mode="r+")
    mapped[10:150, 3:170] = 5
    elements[10:150, 3:170] = 5
    mapped.flush()
    np.testing.assert_array_equal(np.load(path), elements)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    np.testing.assert_array_equal(stored(mount, "a"), elements)
    del mapped
    np.save(path, elements * 2)
    np.testing.assert_array_equal(stored(mount, "a"), elements * 2)


@pytest.mark.parametrize("is_new", [True, False])
def test_fsync_between_the_pieces_of_a_file_is_refused_and_keeps_them(mount: Mounted, elements: Elements, is_new: bool) -> None:
    path, text = mount.path / "npy" / "a.npy", io.BytesIO()
    if not is_new:
        np.save(path, elements[:9])
    np.save(text, elements)
    data = text.getvalue()
    with path.open("wb", buffering=0) as file:
        for offset in range(0, len(data), 70_000):
            file.write(data[offset : offset + 70_000])
            if offset + 70_000 < len(data):
                with pytest.raises(OSError, match="Invalid argument"):
                    os.fsync(file.fileno())
                assert is_new or stored(mount, "a").tobytes() == elements[:9].tobytes()
        os.fsync(file.fileno())
        np.testing.assert_array_equal(stored(mount, "a"), elements)
    assert path.read_bytes() == data


def test_dd_with_oflag_sync_ends_at_its_first_piece(mount: Mounted, elements: Elements, tmp_path: Path) -> None:
    path = mount.path / "npy" / "a.npy"
    np.save(path, elements[:9])
    np.save(tmp_path / "a.npy", elements)
    refused = run("dd", f"if={tmp_path}/a.npy", f"of={path}", "bs=70000", "oflag=sync")
    assert (refused.returncode, "Invalid argument" in refused.stderr) == (1, True)
    np.testing.assert_array_equal(np.load(path), elements[:9])
    for synced in (["bs=70000", "conv=fsync"], ["bs=1M", "oflag=sync"]):
        assert run("dd", f"if={tmp_path}/a.npy", f"of={path}", *synced).returncode == 0
        np.testing.assert_array_equal(stored(mount, "a"), elements)


def test_open_memmap_makes_an_array(mount: Mounted) -> None:
    path = mount.path / "npy" / "a.npy"
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype="<i4", shape=(90, 70))
    mapped[...] = np.arange(90 * 70).reshape(90, 70)
    mapped.flush()
    del mapped
    assert np.load(path).sum() == np.arange(90 * 70).sum()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    assert stored(mount, "a").sum() == np.arange(90 * 70).sum()


def test_a_child_that_ends_while_an_extended_file_is_written(mount: Mounted) -> None:
    """It closes the file that it has inherited, which stores it: in Fortran order, the next bytes of its parent belong elsewhere."""
    elements = np.arange(1, 6301, dtype="<i4").reshape(90, 70)
    path, text = mount.path / "npy" / "a.npy", io.BytesIO()
    np.save(text, np.asfortranarray(elements))
    data = text.getvalue()
    with path.open("wb", buffering=0) as file:
        file.truncate(len(data))
        file.write(data[:-8])
        subprocess.run(["true"], check=True, pass_fds=[file.fileno()])
        with pytest.raises(OSError, match="Stale file handle"):
            file.write(data[-8:])
    elements[-2:, -1] = 0
    np.testing.assert_array_equal(np.load(path), elements)


@pytest.mark.parametrize(("dtype", "fortran_order"), [(">i4", False), ("<i4", True)])
def test_open_memmap_of_elements_that_are_elsewhere_is_refused(mount: Mounted, dtype: str, fortran_order: bool) -> None:
    path = mount.path / "npy" / "a.npy"
    with pytest.raises(OSError, match="Invalid argument"):
        np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(90, 70), fortran_order=fortran_order)
    assert not path.exists()


@pytest.mark.parametrize("dtype", ["<i4", ">i4"])
def test_a_new_file_that_is_extended_and_mapped_before_its_header_is_there(mount: Mounted, dtype: str) -> None:
    elements = np.arange(90 * 70, dtype=dtype).reshape(90, 70)
    content = io.BytesIO()
    np.save(content, elements)
    with (mount.path / "npy" / "a.npy").open("w+b") as file:
        file.truncate(len(content.getvalue()))
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[:] = content.getvalue()
    np.testing.assert_array_equal(stored(mount, "a"), elements)


def test_dd_without_truncating_changes_what_it_writes_alone(mount: Mounted, elements: Elements) -> None:
    path = mount.path / "npy" / "a.npy"
    np.save(path, elements)
    assert run("dd", "if=/dev/zero", f"of={path}", "bs=999", "seek=5", "count=3", "conv=notrunc", "status=none").stderr == ""
    expected = bytearray(io_bytes(elements))
    expected[5 * 999 : 8 * 999] = bytes(3 * 999)
    assert path.read_bytes() == expected
    np.testing.assert_array_equal(stored(mount, "a"), np.load(io.BytesIO(expected)))


def test_a_mebibyte_inside_one_chunk_costs_one_get_and_one_set(tmp_path: Path) -> None:
    store = tmp_path / "store.zarr"
    elements = np.random.default_rng(0).normal(size=(1024, 1024)).astype("<f4")
    zarr.create_array(store, name="a", data=elements, chunks=(1024, 1024))
    with mounted(store) as mount:
        path = mount.path / "npy" / "a.npy"
        path.stat()
        with mount.counted() as cost, path.open("r+b", buffering=0) as file:
            file.seek(128 + (1 << 20))
            assert file.write(bytes(1 << 20)) == 1 << 20
        assert cost["set"] == 1
        # Documents are read with `get`, too, so that decoded chunks are counted instead.
        assert mount.stats()["chunks_decoded"] == 1
        assert mount.stats()["chunks_encoded"] == 1
        elements.reshape(-1)[1 << 18 : 1 << 19] = 0
        np.testing.assert_array_equal(stored(mount, "a"), elements)


def test_mv_rm_and_rmdir(mount: Mounted, elements: Elements, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", elements)
    folder = mount.path / "npy"
    assert run("mkdir", folder / "g", folder / "h").stderr == ""
    # Between file systems, mv copies.
    assert run("mv", tmp_path / "a.npy", folder / "g" / "a.npy").stderr == ""
    assert run("mv", folder / "g" / "a.npy", folder / "h" / "b.npy").stderr == ""
    np.testing.assert_array_equal(stored(mount, "h/b"), elements)
    assert run("rmdir", folder / "g").stderr == ""
    assert run("rm", folder / "h" / "b.npy").stderr == ""
    assert not (mount.store / "h" / "b").exists()
    assert os.listdir(folder) == ["h"]
    assert os.listdir(folder / "h") == []


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_rsync_transfers_nothing_the_second_time(mount: Mounted, elements: Elements, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", elements)
    target = mount.path / "npy" / "a.npy"
    assert run("rsync", "-a", tmp_path / "a.npy", target).stderr == ""
    np.testing.assert_array_equal(stored(mount, "a"), elements)
    assert run("rsync", "-ai", tmp_path / "a.npy", target).stdout == ""


@pytest.mark.parametrize("command", ["cp {bad} {target}", "head -c 3000 {good} > {target}"])
def test_what_is_no_whole_array_is_told_and_leaves_nothing(command: str, elements: Elements, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.npy", tmp_path / "bad.npy"
    np.save(good, elements)
    bad.write_bytes(b"no header" * 100)
    store = tmp_path / "store.zarr"
    store.mkdir()
    with mounted(store) as mount:
        target = mount.path / "npy" / "a.npy"
        done = run("sh", "-c", command.format(good=good, bad=bad, target=target))
        assert done.returncode != 0
        assert "Invalid argument" in done.stderr
        assert any(line["key"] == "npy/a.npy" for line in mount.errors())
        assert os.listdir(mount.path / "npy") == []
    assert os.listdir(store) == []


@pytest.mark.full_length
def test_gibibytes_go_in_and_out_below_300_mb(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 16 << 30:
        pytest.skip("less than 16 GiB of disk are free")
    store = tmp_path / "store.zarr"
    store.mkdir()
    shape = (share(32768), 32768)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    # Rows that differ from one another: 1 GiB from repeated pieces is as good as from a file.
    rows = np.repeat(np.arange(1, 65, dtype="<f4"), 32768).tobytes()
    with mounted(store, "--memory-limit", "192MiB") as mount:
        path = mount.path / "npy" / "a.npy"
        with path.open("wb", buffering=0) as file:
            file.write(header.getvalue())
            for _ in range(shape[0] // 64):
                file.write(rows)
        status = Path(f"/proc/{mount.pid}/status").read_text()
        assert path.stat().st_size == 128 + share(4 << 30)
        expected, found = zlib.crc32(rows), set()
        with path.open("rb", buffering=0) as file:
            assert file.read(128) == header.getvalue()
            while piece := file.read(len(rows)):
                while len(piece) < len(rows):
                    piece += file.read(len(rows) - len(piece))
                found.add(zlib.crc32(piece))
        assert found == {expected}
        status += Path(f"/proc/{mount.pid}/status").read_text()
    peaks = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")]
    assert max(peaks) < 300_000_000


def io_bytes(elements: Elements) -> bytes:
    file = io.BytesIO()
    np.save(file, elements)
    return file.getvalue()


def test_small_integers_are_numbers_to_ml_dtypes_whatever_the_stored_high_bits(tmp_path: Path) -> None:
    small = pytest.importorskip("ml_dtypes").int4
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int4",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": -2,
        "codecs": [{"name": "bytes"}],
    }
    values = {"a/zarr.json": json.dumps(document).encode(), "a/c/0": b"\x0e\xfe"}
    with mounted(write(tmp_path / "store", values)) as mount:
        assert np.load(mount.path / "npy/a.npy").view(small).astype("i1").tolist() == [-2] * 4
