"""Extended attributes through a mount, with the programs that show and copy them, and their cost."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted, run, shell
from tests.support.programs import demand
from tests.support.small_stores import SMALL, array_document, write
from tests.support.tree_suite import refused

pytestmark = pytest.mark.fuse

ATTRIBUTES = {"title": "täglich", "limits": [0, 1.5]}
SAID = {
    "user.zarr.attributes": json.dumps(ATTRIBUTES, separators=(",", ":")),
    "user.zarr.chunk_shape": "[2,3]",
    "user.zarr.codecs": '[{"name":"bytes","configuration":{"endian":"little"}}]',
    "user.zarr.data_type": "int32",
    "user.zarr.dialect": "v2",
    "user.zarr.fill_value": "7",
    "user.zarr.shape": "[6,5]",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "store", SMALL | {"a/.zattrs": json.dumps(ATTRIBUTES).encode()})


@pytest.fixture
def mount(store: Path) -> Iterator[Mounted]:
    with mounted(store) as mount:
        yield mount
        assert "Traceback" not in mount.log()
        assert mount.errors() == []


@contextmanager
def requests(mount: Mounted) -> Iterator[list[int]]:
    """Yield a list that receives, at exit, the number of requests for extended attributes in the body."""
    before, found = mount.stats()["xattr_requests"], list[int]()
    yield found
    found.append(mount.stats()["xattr_requests"] - before)


def all_of(path: Path) -> dict[str, str]:
    return {name: os.getxattr(path, name).decode() for name in os.listxattr(path)}


def as_on_this_disk(folder: Path) -> None:
    """Skip the test where the tests' own files have no extended attributes."""
    try:
        os.setxattr(folder, "user.probe", b"x")
        os.removexattr(folder, "user.probe")
    except OSError as error:
        pytest.skip(f"{folder} keeps no extended attributes: {error.strerror}")


# --- showing --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["chunks/a", "chunks/a/0.0", "chunks/a/.zarray", "zarr3/a/c/0/0", "npy/a.npy"])
def test_getfattr_shows_what_the_array_is(path: str, mount: Mounted) -> None:
    demand("getfattr")
    shown = shell('cd "$1" && getfattr -d "$2"', mount.path, path).stdout.decode().splitlines()
    assert shown[0] == f"# file: {path}"
    assert {name: json.loads(value) for name, value in (line.split("=", 1) for line in shown[1:] if line)} == SAID
    assert run("getfattr", "--only-values", "-n", "user.zarr.shape", mount.path / path).stdout == b"[6,5]"


def test_a_buffer_that_is_too_small_is_erange(mount: Mounted) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    path, buffer = os.fsencode(mount.path / "chunks/a"), ctypes.create_string_buffer(4)
    for result in (libc.getxattr(path, b"user.zarr.shape", buffer, 4), libc.listxattr(path, buffer, 4)):
        assert (result, ctypes.get_errno()) == (-1, errno.ERANGE)
    assert libc.getxattr(path, b"user.zarr.shape", None, 0) == 5


def test_attributes_that_are_to_be_created_or_replaced(mount: Mounted) -> None:
    path = mount.path / "chunks/a/0.0"
    with refused(errno.EEXIST):
        os.setxattr(path, "user.zarr.shape", b"[6,5]", os.XATTR_CREATE)
    with refused(errno.ENODATA):
        os.setxattr(path, "user.mine", b"x", os.XATTR_REPLACE)
    os.setxattr(path, "user.zarr.shape", b"[6,5]", os.XATTR_REPLACE)


def test_where_a_view_is_the_root_it_has_those_of_the_root_node(store: Path) -> None:
    with mounted(store, "--view", "chunks") as mount:
        assert all_of(mount.path) == {"user.zarr.dialect": "v2", "user.zarr.attributes": "{}"}
        assert all_of(mount.path / "a") == SAID
    with mounted(store / "a", "--read-only") as mount:
        for path in ("chunks", "chunks/0.0", "zarr3", "npy/a.npy"):
            assert all_of(mount.path / path) == SAID
        with refused(errno.EROFS):
            os.setxattr(mount.path / "chunks/0.0", "user.zarr.shape", b"[6,5]")


def test_without_them_there_are_none_and_nobody_asks(store: Path) -> None:
    with mounted(store, "-o", "no_xattrs") as mount:
        for path in ("chunks/a", "chunks/a/0.0", "npy/a.npy", "raw/a/0.0"):
            for call in (lambda path: os.listxattr(path), lambda path: os.getxattr(path, "user.zarr.shape")):
                with refused(errno.ENOTSUP):
                    call(mount.path / path)
        with requests(mount) as found:
            write_in_pieces(mount.path / "raw/pieces")
            run("ls", "-l", mount.path / "raw/a", mount.path / "chunks/a")
        assert found == [0]


# --- copying --------------------------------------------------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


COPIES = {
    "cp": (["cp", "-a", "{from}/.", "{to}"],),
    "rsync": (["rsync", "-aX", "{from}/", "{to}"],),
    "rsync whether or not it changed": (["rsync", "-aXI", "{from}/", "{to}"],),
    "tar": (
        ["tar", "--xattrs", "-C", "{from}", "-cf", "{tar}", "."],
        ["tar", "--xattrs", "--xattrs-include=user.*", "-C", "{to}", "-xf", "{tar}"],
    ),
}


@pytest.mark.parametrize("view", ["chunks", "zarr3", "npy"])
@pytest.mark.parametrize("how", COPIES)
def test_what_is_copied_out_and_back_is_what_it_was(how: str, view: str, mount: Mounted, tmp_path: Path) -> None:
    demand("rsync", "tar")
    as_on_this_disk(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    before = tree(mount.path / view)
    for source, target in ((mount.path / view, out), (out, mount.path / view)):
        for command in COPIES[how]:
            places = {"from": str(source), "to": str(target), "tar": str(tmp_path / "tar")}
            done = subprocess.run([word.format(**places) for word in command], check=True, capture_output=True, timeout=60)
            # tar removes a file before it creates it again: without its document the node has other attributes for a moment.
            assert how == "tar" or done.stderr == b""
    assert tree(mount.path / view) == tree(out) == before
    copied = out / ("a.npy" if view == "npy" else "a")
    assert all_of(copied) == SAID


@pytest.mark.parametrize("how", COPIES)
def test_an_array_is_copied_to_another_place(how: str, mount: Mounted, tmp_path: Path) -> None:
    """Its codecs are those of new arrays there: attributes that cannot be kept are ignored."""
    demand("rsync", "tar")
    as_on_this_disk(tmp_path)
    out, new = tmp_path / "out", mount.path / "chunks/new"
    run("cp", "-a", mount.path / "chunks/a", out)
    new.mkdir()
    for command in COPIES[how]:
        places = {"from": str(out), "to": str(new), "tar": str(tmp_path / "tar")}
        subprocess.run([word.format(**places) for word in command], check=True, capture_output=True, timeout=60)
    assert tree(new) == tree(out)
    assert os.getxattr(new / "0.0", "user.zarr.codecs").decode() != SAID["user.zarr.codecs"]


def test_a_chunk_and_an_array_are_copied_with_cp_a(mount: Mounted) -> None:
    for source, target in (
        ("chunks/a/0.0", "chunks/a/2.1"),
        ("chunks/a/0.0", "chunks/z/0.0"),
        ("chunks/a/0.0", "raw/chunk"),
        ("npy/a.npy", "npy/b.npy"),
        ("chunks/a", "chunks/c"),
        ("zarr3/a", "zarr3/d"),
    ):
        assert run("cp", "-a", mount.path / source, mount.path / target).stderr == b""
    assert (mount.path / "chunks/z/0.0").read_bytes() == (mount.path / "chunks/a/0.0").read_bytes()
    for name in ("b", "c", "d"):
        assert np.array_equal(np.load(mount.path / f"npy/{name}.npy"), np.load(mount.path / "npy/a.npy"))


def test_large_attributes_do_not_stop_rsync(mount: Mounted, tmp_path: Path) -> None:
    """A file system such as ext4 keeps 4 KiB for all of them, and rsync fails where it cannot set one."""
    demand("rsync")
    as_on_this_disk(tmp_path)
    (mount.path / "chunks/a/.zattrs").write_text(json.dumps({"history": "x" * 30_000}))
    run("rsync", "-aX", f"{mount.path}/chunks/a/", tmp_path / "out")
    assert "user.zarr.shape" in os.listxattr(tmp_path / "out")
    assert json.loads(os.getxattr(mount.path / "chunks/a/0.0", "user.zarr.attributes")) == {"history": "x" * 30_000}


def test_what_mknod_made_and_nobody_opened_is_stored_when_the_mount_ends(store: Path) -> None:
    """tar --xattrs creates files in this way, and opens them next."""
    with mounted(store) as mount:
        os.mknod(mount.path / "raw/made")
    assert (store / "made").read_bytes() == b""
    with mounted(store, ends_with=7) as mount:
        os.mknod(mount.path / "chunks/a/2.1")
    assert not (store / "a/2.1").exists()


# --- cost -----------------------------------------------------------------------------------------------------------------------


def write_in_pieces(path: Path, count: int = 500) -> None:
    run("dd", "if=/dev/zero", f"of={path}", "bs=4k", f"count={count}")


def test_ls_asks_once_and_not_for_each_file(store: Path) -> None:
    write(store / "many", {str(number): b"value" for number in range(10_000)})
    write(store / "wide", {".zarray": array_document((1000,), (1,), "|u1"), **{str(number): b"x" for number in range(1000)}})
    with mounted(store) as mount:
        for folder, count in ((mount.path / "raw/many", 10_000), (mount.path / "chunks/wide", 1_000)):
            with requests(mount) as found:
                assert run("ls", "-l", folder).stdout.count(b"\n") == count + 1
            # One for the folder, and one for a file in it. Newer versions list the attributes of each file where there may be some.
            assert found[0] <= 3 or (folder.name == "wide" and found[0] <= count + 3)


def test_asking_for_those_of_each_chunk_and_each_key_costs_no_operation_of_the_store(store: Path) -> None:
    write(store / "many", {str(number): b"value" for number in range(1000)})
    write(store / "wide", {".zarray": array_document((1000,), (1,), "|u1"), **{str(number): b"x" for number in range(1000)}})
    with mounted(store) as mount:
        folder = mount.path / "chunks/wide"
        names = os.listdir(folder)
        with mount.counted() as cost:
            assert all(os.getxattr(folder / name, "user.zarr.shape") == b"[1000]" for name in names)
        assert len(names) > 1000
        assert sum(cost.values()) <= 3, cost
        # As ls of coreutils 9.6 and later does.
        names = os.listdir(mount.path / "raw/many")
        with mount.counted() as cost:
            for name in names:
                with refused(errno.ENOTSUP):
                    os.listxattr(mount.path / "raw/many" / name)
        assert sum(cost.values()) <= 3, cost


def test_a_write_brings_one_request_at_most(mount: Mounted) -> None:
    """The kernel asks for capabilities that the write would remove. The answer needs no lookup."""
    (mount.path / "raw/pieces").write_bytes(b"x")
    with requests(mount) as found, mount.counted() as cost:
        write_in_pieces(mount.path / "raw/pieces")
    assert found[0] <= 510
    assert sum(cost.values()) <= 5, cost
