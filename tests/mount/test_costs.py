"""Costs of operations through a mount, in operations of the store."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted, run
from tests.support.small_stores import SMALL, array_document, chunk, write
from tests.support.v3_array import ARRAY

pytestmark = pytest.mark.fuse

LARGE = 3 << 20
"""Size of a chunk in bytes: more than the kernel reads or writes in one request."""


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    folder = tmp_path_factory.mktemp("costs")
    store = write(folder / "store", SMALL)
    write(store / "large", {".zarray": array_document((4 * LARGE,), (LARGE,), "|u1", compressor={"id": "zlib", "level": 1})})
    write(store / "many", {str(number): b"value" for number in range(10_000)})
    with mounted(store, "--cache-dir", str(folder), "--metadata-ttl", "600") as mount:
        # Documents are cached before anything is counted.
        os.listdir(mount.path / "chunks/a")
        os.listdir(mount.path / "chunks/large")
        yield mount


def reads(cost: dict[str, int]) -> int:
    return cost.get("get", 0) + cost.get("get_partial_values", 0)


@pytest.mark.parametrize("view", ["raw", "chunks"])
def test_reading_a_stored_chunk_costs_one_get(view: str, mount: Mounted) -> None:
    with mount.counted() as cost:
        assert run("cat", mount.path / view / "a/0.0").stdout == chunk(0, 0)
    assert reads(cost) == 1
    with mount.counted() as cost:
        assert run("cat", mount.path / view / "a/0.0").stdout == chunk(0, 0)
    assert reads(cost) == 0, "the kernel has the pages"


def test_reading_a_large_value_costs_one_get(mount: Mounted) -> None:
    value = os.urandom(5_000_000)
    (mount.store / "value").write_bytes(value)
    with mount.counted() as cost:
        assert run("cat", mount.path / "raw/value").stdout == value
    assert reads(cost) == 1


def test_listing_with_attributes_costs_one_list_dir_and_no_stat(mount: Mounted) -> None:
    # The folder itself costs a stat, once.
    (mount.path / "raw/many").stat()
    with mount.counted() as cost:
        listed = run("ls", "-l", mount.path / "raw/many").stdout
    assert listed.count(b"\n") == 10_001
    assert cost == {"list_dir": 1}


def test_a_file_that_a_listing_has_shown_costs_one_get(mount: Mounted) -> None:
    os.listdir(mount.path / "raw/many")
    with mount.counted() as cost:
        assert (mount.path / "raw/many/17").read_bytes() == b"value"
    assert cost == {"get_partial_values": 1}


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 4097, 65536, 65537, 200_000])
def test_a_value_that_is_read_as_soon_as_it_is_opened_is_whole(nbytes: int, mount: Mounted) -> None:
    folder = mount.store / f"sizes{nbytes}"
    value = os.urandom(nbytes)
    write(folder, {"value": value})
    path = mount.path / "raw" / folder.name / "value"
    os.listdir(path.parent)
    with mount.counted() as cost, path.open("rb") as first, path.open("rb") as second:
        assert second.read() == value
        assert first.read() == value
    assert reads(cost) <= 2
    assert path.read_bytes() == value


# A large "dd notrunc" arrives in pieces; the first one does not show that the whole chunk will be replaced.
@pytest.mark.parametrize(("how", "size"), [("cp", "small"), ("cp", "large"), ("dd notrunc", "small")])
def test_writing_a_whole_chunk_costs_one_set_and_no_get(how: str, size: str, mount: Mounted, tmp_path: Path) -> None:
    name, value = ("a/1.0", chunk(0, 0)) if size == "small" else ("large/0", np.arange(LARGE).astype("u1").tobytes())
    # A value that the mount has not cached, decoded or not.
    write(mount.store, {name: bytes(len(value)) if size == "small" else zlib.compress(bytes(len(value)))})
    path = mount.path / "chunks" / name
    (tmp_path / "source").write_bytes(value)
    with mount.counted() as cost:
        if how == "cp":
            run("cp", tmp_path / "source", path)
        else:
            run("dd", f"if={tmp_path / 'source'}", f"of={path}", "bs=4M", "conv=notrunc")
    assert cost["set"] == 1
    assert reads(cost) == 0
    assert path.read_bytes() == value


def test_creating_a_chunk_costs_one_set_and_no_get(mount: Mounted) -> None:
    with mount.counted() as cost:
        (mount.path / "chunks/large/1").write_bytes(bytes(LARGE))
    assert cost["set"] == 1
    assert reads(cost) == 0


def test_changing_a_byte_of_a_chunk_costs_two_gets_and_one_set(mount: Mounted) -> None:
    """The value is read when the file is changed, and again when it is closed: other programs may have changed it meanwhile."""
    with mount.counted() as cost:
        with open(mount.path / "chunks/a/1.1", "r+b", buffering=0) as file:
            file.seek(3)
            file.write(b"x")
    assert cost["set"] == 1
    assert reads(cost) == 2


def test_a_pass_over_an_npy_decodes_each_chunk_once(mount: Mounted) -> None:
    before = mount.stats()["chunks_decoded"]
    np.load(mount.path / "npy/large.npy")
    assert mount.stats()["chunks_decoded"] - before <= 4


@pytest.mark.parametrize("view", ["zarr3", "raw"])
def test_a_chunk_in_one_of_many_folders_costs_no_listing_of_the_others(view: str, tmp_path: Path) -> None:
    """A search for a node in the folders of an array's keys listed all of them, again after each chunk that was written."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [1, 1]}}
    document = json.dumps(ARRAY | {"shape": [50, 1], "chunk_grid": grid}).encode()
    store = write(tmp_path / "store", {"a/zarr.json": document, **{f"a/c/{row}/0": b"1234" for row in range(50)}})
    with mounted(store, "--cache-dir", str(tmp_path), "--metadata-ttl", "600") as mount:
        (mount.path / view / "a").stat()
        for row in (7, 30):
            path = mount.path / view / f"a/c/{row}/0"
            with mount.counted() as cost:
                assert path.read_bytes() == b"1234"
                path.write_bytes(b"5678")
            assert cost["set"] == 1
            assert cost.get("list_dir", 0) <= 2
