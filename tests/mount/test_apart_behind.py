"""Layouts of 2019 and 2022: another program replaces an array by an equal one. What is open of the old one is not stored in that."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

LENGTH, CHUNKS = 8, 4
NEW = np.full(LENGTH, 99, "<i4").tobytes()


@pytest.fixture(params=["v3_2019", "v3_2022"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """``a`` and ``b``, with equal documents and other elements."""
    (folder := tmp_path / "store").mkdir()
    options = ("--new-dialect", request.param, "--new-chunks", str(LENGTH), "--new-codecs", "none")
    with mounted(folder, *options) as mount:
        for name, value in (("a", 7), ("b", 5)):
            np.save(mount.path / f"npy/{name}.npy", np.full(LENGTH * CHUNKS, value, "<i4"))
    return folder


def parts(store: Path, name: str) -> list[Path]:
    found = [*store.rglob(name), *store.rglob(f"{name}.array*")]
    assert len(found) == 2
    return found


def remove(store: Path) -> None:
    for part in parts(store, "a"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()


def rename(store: Path) -> None:
    for part in parts(store, "a"):
        part.rename(part.with_name("c" + part.name[1:]))


def put_other(store: Path) -> None:
    for part in parts(store, "b"):
        part.rename(part.with_name("a" + part.name[1:]))


def elements(store: Path, name: str) -> set[int]:
    with mounted(store, "--read-only") as mount:
        return set(np.load(mount.path / f"npy/{name}.npy").tolist())


@pytest.mark.parametrize("end", [remove, rename])
@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "60")], ids=["watch", "no-watch"])
@pytest.mark.parametrize("file", ["npy/a.npy", "chunks/a/1", "chunks/a/.zattrs"])
def test_an_equal_array_in_its_place_is_another(
    store: Path, file: str, options: tuple[str, ...], end: Callable[[Path], None]
) -> None:
    with mounted(store, *options) as mount:
        fd, is_document = os.open(mount.path / file, os.O_RDWR | os.O_CREAT), file.endswith("zattrs")
        os.pwrite(fd, json.dumps({"of": "a"}).encode() if is_document else NEW, 128 if file.endswith("npy") else 0)
        end(store)
        put_other(store)
        with pytest.raises(OSError, match="Stale") as refused:
            os.close(fd)
        assert refused.value.errno == errno.ESTALE
    assert not any(b'"of"' in part.read_bytes() for part in parts(store, "a") if part.is_file())
    assert elements(store, "a") == {5}


@pytest.mark.parametrize("is_another_there", [False, True], ids=["gone", "replaced"])
@pytest.mark.parametrize("end", [remove, rename])
@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "60")], ids=["watch", "no-watch"])
def test_its_document_in_raw_is_stored_in_no_other(
    store: Path, options: tuple[str, ...], end: Callable[[Path], None], is_another_there: bool
) -> None:
    document = next(part for part in parts(store, "a") if part.is_file())
    with mounted(store, *options) as mount:
        fd = os.open(mount.path / "raw" / document.relative_to(store), os.O_RDWR)
        os.pwrite(fd, document.read_bytes().replace(b"32", b"40"), 0)
        end(store)
        if is_another_there:
            put_other(store)
        with pytest.raises(OSError, match="Stale"):
            os.close(fd)
    assert document.exists() == is_another_there
    if end is rename:
        assert elements(store, "c") == {7}
    if is_another_there:
        assert b"40" not in document.read_bytes()
        assert elements(store, "a") == {5}


def test_its_document_in_raw_mends_one_that_another_program_has_spoilt(store: Path) -> None:
    document = next(part for part in parts(store, "a") if part.is_file())
    with mounted(store, "--no-watch", "--metadata-ttl", "0") as mount:
        for spoil in (document.unlink, lambda: document.write_bytes(b"{")):
            fd = os.open(mount.path / "raw" / document.relative_to(store), os.O_RDWR)
            content = os.pread(fd, 1 << 20, 0)
            os.ftruncate(fd, 0)
            os.pwrite(fd, content, 0)
            spoil()
            os.close(fd)
            assert document.read_bytes() == content
            assert set(np.load(mount.path / "npy/a.npy").tolist()) == {7}


def test_one_whose_chunks_this_mount_then_removed_is_another(store: Path) -> None:
    with mounted(store, "--no-watch", "--metadata-ttl", "60") as mount:
        fd = os.open(mount.path / "chunks/a/1", os.O_RDWR)
        os.pwrite(fd, NEW, 0)
        rename(store)
        put_other(store)
        folder = next(part for part in parts(store, "a") if part.is_dir())
        shutil.rmtree(mount.path / "raw" / folder.relative_to(store))
        with pytest.raises(OSError, match="Stale"):
            os.close(fd)
    assert elements(store, "a") == {0}


def test_an_edit_by_another_program_of_its_document_is_not_another_array(store: Path) -> None:
    """Its last chunk is removed, and stored anew, meanwhile."""

    def write(mount: Mounted, number: int) -> None:
        (mount.path / f"chunks/a/{number}").write_bytes(NEW)

    with mounted(store, "--no-watch", "--metadata-ttl", "0") as mount:
        fd = os.open(mount.path / "npy/a.npy", os.O_RDWR)
        for number in range(CHUNKS):
            (mount.path / f"chunks/a/{number}").unlink()
        write(mount, 1)
        document = next(part for part in parts(store, "a") if part.is_file())
        shutil.copy(document, document.with_name("edited"))
        os.replace(document.with_name("edited"), document)
        os.pwrite(fd, NEW, 128)
        os.close(fd)
    assert elements(store, "a") == {0, 99}
