"""Documents, and names that views keep, belong to the node they were opened on.

They follow renames through any view, and vanish when the node is erased or replaced. A working directory in the folder of a node stays
valid.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted
from tests.support.random_layouts import V3_2019, V3_2022, Layout

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

DOCUMENTS = ["chunks/{}/.zattrs", "zarr3/{}/zarr.json"]
EDITED = {"of": "edited"}
drafts = pytest.mark.parametrize("layout", [V3_2019, V3_2022], ids=["2019", "2022"])


def make_array(place: Path, dtype: str = "i4", **attributes: str) -> None:
    array = zarr.create_array(
        str(place), shape=(8,), chunks=(4,), dtype=dtype, zarr_format=3, compressors=None, overwrite=True, attributes=attributes
    )
    array[:] = 7


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    group = zarr.create_group(str(folder), zarr_format=3).create_group("g", attributes={"of": "g"})
    group.create_group("inner", attributes={"of": "inner"})
    make_array(folder / "a", of="a")
    make_array(folder / "g/x", of="x")
    return folder


def attributes(store: Path) -> dict[str, Any]:
    """Return an attribute of all nodes but the root, as other programs read it."""
    found = {str(each.parent.relative_to(store)): json.loads(each.read_text()) for each in store.rglob("*/zarr.json")}
    return {path: document.get("attributes", {}).get("of") for path, document in found.items()}


def errno_of(call: Callable[[], Any]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or 0
    return 0


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        errno_of(lambda: os.close(fd))


def edit(fd: int) -> None:
    """Change the attributes in an open document."""
    text = os.pread(fd, 1 << 20, 0)
    document = json.loads(text)
    document = document | {"attributes": EDITED} if "zarr_format" in document else EDITED
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(document).encode(), 0)


ARRAY_RENAMES: dict[str, Callable[[Mounted], None]] = {
    "chunks": lambda mount: os.rename(mount.path / "chunks/a", mount.path / "chunks/b"),
    "zarr3": lambda mount: os.rename(mount.path / "zarr3/a", mount.path / "zarr3/b"),
    "npy": lambda mount: os.rename(mount.path / "npy/a.npy", mount.path / "npy/b.npy"),
    "raw": lambda mount: os.rename(mount.path / "raw/a", mount.path / "raw/b"),
}
GROUP_RENAMES: dict[str, Callable[[Mounted], None]] = {
    view: lambda mount, view=view: os.rename(mount.path / view / "g", mount.path / view / "h")  # type: ignore[misc]
    for view in ("chunks", "zarr3", "npy", "raw")
}


def empty_npy(mount: Mounted) -> None:
    os.unlink(mount.path / "npy/g/x.npy")
    os.rmdir(mount.path / "npy/g/inner")
    os.rmdir(mount.path / "npy/g")


ARRAY_ENDS: dict[str, Callable[[Mounted], None]] = {
    "chunks": lambda mount: shutil.rmtree(mount.path / "chunks/a"),
    "zarr3": lambda mount: shutil.rmtree(mount.path / "zarr3/a"),
    "npy": lambda mount: os.unlink(mount.path / "npy/a.npy"),
    "raw": lambda mount: shutil.rmtree(mount.path / "raw/a"),
    "renamed over": lambda mount: os.rename(mount.path / "npy/g/x.npy", mount.path / "npy/a.npy"),
    "behind": lambda mount: shutil.rmtree(mount.store / "a"),
    "mv behind": lambda mount: os.rename(mount.store / "a", mount.store / "b"),
    "another": lambda mount: make_array(mount.store / "a", "f8", of="another"),
    "another in raw": lambda mount: make_array(mount.path / "raw/a", "f8", of="another"),
}
GROUP_ENDS: dict[str, Callable[[Mounted], None]] = {
    "chunks": lambda mount: shutil.rmtree(mount.path / "chunks/g"),
    "zarr3": lambda mount: shutil.rmtree(mount.path / "zarr3/g"),
    "npy": empty_npy,
    "raw": lambda mount: shutil.rmtree(mount.path / "raw/g"),
}


def make_anew(mount: Mounted, path: str, *, array: bool) -> None:
    """Create a new node at the path of an old one, unless another program has done so already."""
    while not (mount.store / path).exists() and (mount.path / "zarr3" / path).exists():
        # External changes become visible after a while.
        pass
    if not (mount.store / path).exists():
        if array:
            make_array(mount.path / "zarr3" / path, "f8", of="new")
        else:
            zarr.create_group(str(mount.path / "zarr3" / path), zarr_format=3, attributes={"of": "new"})


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("view", ARRAY_RENAMES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_document_of_an_array_goes_with_it(store: Path, document: str, view: str, when: str) -> None:
    with mounted(store) as mount:
        with opened(mount.path / document.format("a")) as file:
            if when == "before":
                edit(file)
            ARRAY_RENAMES[view](mount)
            make_anew(mount, "a", array=True)
            if when == "after":
                assert b'"a"' in os.pread(file, 1 << 20, 0)
                edit(file)
            os.close(os.dup(file))
            os.fsync(file)
            # A lookup finds the same file under the new name.
            assert b"edited" in (mount.path / document.format("b")).read_bytes()
            assert b"new" in (mount.path / document.format("a")).read_bytes()
    assert attributes(store) == {"a": "new", "b": "edited", "g": "g", "g/inner": "inner", "g/x": "x"}


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("view", GROUP_RENAMES)
@pytest.mark.parametrize("node", ["g", "g/inner", "g/x"])
def test_a_document_goes_with_the_group_that_it_lies_in(store: Path, document: str, view: str, node: str) -> None:
    with mounted(store) as mount:
        with opened(mount.path / document.format(node), os.O_RDWR) as file:
            if "zattrs" in document:
                os.ftruncate(file, 0)
                os.write(file, json.dumps(EDITED).encode())
            else:
                edit(file)
            GROUP_RENAMES[view](mount)
            make_anew(mount, "g", array=False)
            os.fsync(file)
        found = attributes(store)
    assert found == {"a": "a", "g": "new", "h": "g", "h/inner": "inner", "h/x": "x"} | {node.replace("g", "h", 1): "edited"}


def creat(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_piece_of_a_document_is_not_written_into_another_text(store: Path, document: str) -> None:
    other = next(each for each in DOCUMENTS if each != document)
    with mounted(store) as mount:
        with opened(mount.path / document.format("a")) as file, opened(mount.path / other.format("a")) as elsewhere:
            offset = os.pread(file, 1 << 20, 0).index(b'"a"') + 1
            text = os.pread(elsewhere, 1 << 20, 0)
            os.ftruncate(elsewhere, 0)
            os.pwrite(elsewhere, text.replace(b'"of"', b'"ofofofofofofofofofofofofofofofofofofofofofofofof"'), 0)
            os.fsync(elsewhere)
            stored = (store / "a/zarr.json").read_bytes()
            assert errno_of(lambda: os.pwrite(file, b"b", offset)) == errno.ESTALE
            os.fsync(file)
        assert (store / "a/zarr.json").read_bytes() == stored


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("how", ARRAY_ENDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_document_of_an_array_that_is_gone_is_stored_nowhere(store: Path, document: str, how: str, when: str) -> None:
    with mounted(store, ends_with=None) as mount:
        with opened(mount.path / document.format("a")) as file:
            text = os.pread(file, 1 << 20, 0)
            if when == "before":
                edit(file)
            ARRAY_ENDS[how](mount)
            make_anew(mount, "a", array=True)
            expected = attributes(store)

            def write_and_close() -> None:
                if when == "after":
                    os.pwrite(file, text + b"   ", 0)
                os.fsync(file)

            own = document.startswith(how + "/")
            # A handle on a file that was unlinked itself keeps its content, and publishes nothing.
            assert own or errno_of(write_and_close) == errno.ESTALE
        assert attributes(store) == expected
        assert b"edited" not in b"".join(each.read_bytes() for each in mount.path.glob(document.format("*")))
        mount.umount()
    assert attributes(store) == expected


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("how", GROUP_ENDS)
@pytest.mark.parametrize("anew", ["group", "array", "nothing"])
def test_a_document_of_a_group_that_is_gone_is_stored_nowhere(store: Path, document: str, how: str, anew: str) -> None:
    with mounted(store, ends_with=None) as mount:
        place = mount.path / document.format("g")
        with opened(place) as file:
            edit(file)
            GROUP_ENDS[how](mount)
            if anew != "nothing":
                make_anew(mount, "g", array=anew == "array")
            expected = attributes(store)
            assert document.startswith(how + "/") or errno_of(lambda: os.fsync(file)) == errno.ESTALE
        mount.umount()
    assert attributes(store) == expected


@pytest.mark.parametrize("view", ARRAY_RENAMES)
@pytest.mark.parametrize("name", ["chunks/a/.zattrs.swp", "zarr3/a/4913.tmp", "chunks/a/x~"])
def test_a_temporary_file_goes_with_the_folder_that_it_lies_in(store: Path, view: str, name: str) -> None:
    document = name.rpartition("/")[0].replace("/a", "/b") + ("/.zattrs" if "chunks" in name else "/zarr.json")
    with mounted(store) as mount:
        text = (mount.path / document.replace("/b/", "/a/")).read_bytes().replace(b'"of": "a"', b'"of": "edited"')
        with opened(mount.path / name, os.O_RDWR | os.O_CREAT) as file:
            os.write(file, text[:10])
            os.utime(mount.path / name.rpartition("/")[0], (1, 1))
            ARRAY_RENAMES[view](mount)
            make_anew(mount, "a", array=True)
            assert not (mount.path / name).exists()
            os.write(file, text[10:])
        os.rename(mount.path / name.replace("/a/", "/b/"), mount.path / document)
    assert attributes(store) == {"a": "new", "b": "edited", "g": "g", "g/inner": "inner", "g/x": "x"}


@pytest.mark.parametrize("how", ["npy", "raw", "renamed over"])
def test_a_temporary_file_goes_when_its_folder_is_erased(store: Path, how: str) -> None:
    with mounted(store, ends_with=None) as mount:
        place = mount.path / "chunks/a/.zattrs.swp"
        with opened(place, os.O_RDWR | os.O_CREAT) as file, opened(place) as idle:
            os.write(file, b"{}")
            ARRAY_ENDS[how](mount)
            make_anew(mount, "a", array=True)
            assert not place.exists()
            place.write_bytes(b"another")
            assert errno_of(lambda: os.fsync(file)) == errno.ESTALE
            assert os.pread(idle, 10, 0) == b"{}"
        assert place.read_bytes() == b"another"
        place.unlink()
        mount.umount()


@contextmanager
def standing(place: Path, *, looked_around: bool) -> Iterator[int]:
    with opened(place, os.O_RDONLY | os.O_DIRECTORY) as folder:
        if looked_around:
            os.listdir(folder)
        yield folder


FOLDERS = {"chunks": ".zattrs", "zarr3": "zarr.json", "raw": "zarr.json"}


@pytest.mark.parametrize("looked_around", [True, False])
@pytest.mark.parametrize("stands_in", FOLDERS)
@pytest.mark.parametrize("view", ARRAY_RENAMES)
def test_who_stands_in_the_folder_of_an_array_goes_with_it(store: Path, stands_in: str, view: str, looked_around: bool) -> None:
    name = FOLDERS[stands_in]
    with mounted(store) as mount:
        with standing(mount.path / stands_in / "a", looked_around=looked_around) as folder:
            ARRAY_RENAMES[view](mount)
            make_anew(mount, "a", array=True)
            assert b"new" in (mount.path / stands_in / "a" / name).read_bytes()
            with open(os.open(name, os.O_RDWR, dir_fd=folder), "r+b") as file:
                assert b'"a"' in file.read()
                edit(file.fileno())
            assert name in os.listdir(folder)
    assert attributes(store)["b"] == "edited" and attributes(store)["a"] == "new"


@pytest.mark.parametrize("looked_around", [True, False])
@pytest.mark.parametrize("stands_in", [*FOLDERS, "npy"])
@pytest.mark.parametrize("view", GROUP_RENAMES)
def test_who_stands_in_the_folder_of_a_group_goes_with_it(store: Path, stands_in: str, view: str, looked_around: bool) -> None:
    with mounted(store) as mount:
        with standing(mount.path / stands_in / "g", looked_around=looked_around) as folder:
            GROUP_RENAMES[view](mount)
            make_anew(mount, "g", array=False)
            assert sorted(os.listdir(mount.path / stands_in / "g")) in ([], [".zattrs", ".zgroup"], ["zarr.json"])
            assert "inner" in os.listdir(folder)
            if stands_in == "raw":
                os.stat("x/zarr.json", dir_fd=folder)
            else:
                os.mkdir("more", dir_fd=folder)
                os.fsync(folder)
        assert stands_in == "raw" or (store / "h/more/zarr.json").exists()
        assert not (store / "g/more").exists()


@pytest.mark.parametrize("looked_around", [True, False])
@pytest.mark.parametrize("stands_in", FOLDERS)
@pytest.mark.parametrize("how", [each for each in ARRAY_ENDS if "another" not in each])
def test_who_stands_in_the_folder_of_an_array_that_is_gone_is_in_no_other(
    store: Path, stands_in: str, how: str, looked_around: bool
) -> None:
    with mounted(store, ends_with=None) as mount:
        with standing(mount.path / stands_in / "a", looked_around=looked_around) as folder:
            ARRAY_ENDS[how](mount)
            make_anew(mount, "a", array=True)
            assert errno_of(lambda: os.open(FOLDERS[stands_in], os.O_RDWR, dir_fd=folder)) in (errno.ESTALE, errno.ENOENT)
            assert errno_of(lambda: os.open("other~", os.O_RDWR | os.O_CREAT, dir_fd=folder)) in (errno.ESTALE, errno.ENOENT)
        assert not (mount.path / stands_in / "a/other~").exists()
        mount.umount()


@pytest.mark.parametrize("stands_in", [*FOLDERS, "npy"])
@pytest.mark.parametrize("how", GROUP_ENDS)
def test_who_stands_in_the_folder_of_a_group_that_is_gone_is_in_no_other(store: Path, stands_in: str, how: str) -> None:
    with mounted(store, ends_with=None) as mount:
        with standing(mount.path / stands_in / "g", looked_around=True) as folder:
            GROUP_ENDS[how](mount)
            make_anew(mount, "g", array=False)
            assert errno_of(lambda: os.mkdir("more", dir_fd=folder)) in (errno.ESTALE, errno.ENOENT)
        assert not (store / "g/more").exists()
        mount.umount()


@pytest.mark.parametrize("view", ARRAY_RENAMES)
def test_readers_of_the_renamed_array_and_of_the_next_one_see_their_own(store: Path, view: str) -> None:
    """The two files are separate inodes, each with pages of its own in the kernel."""
    with mounted(store) as mount:
        with opened(mount.path / "npy/a.npy", os.O_RDONLY) as old, opened(mount.path / "chunks/a/0", os.O_RDONLY) as chunk:
            os.pread(old, 64, 0)
            ARRAY_RENAMES[view](mount)
            zarr.create_array(str(mount.path / "zarr3/a"), shape=(8,), chunks=(4,), dtype="i4", compressors=None)[:] = 5
            assert np.load(mount.path / "npy/a.npy").tolist() == [5] * 8
            assert (mount.path / "chunks/a/0").read_bytes() == np.full(4, 5, "<i4").tobytes()
            assert os.pread(old, 32, 128) == np.full(8, 7, "<i4").tobytes()
            assert os.pread(chunk, 16, 0) == np.full(4, 7, "<i4").tobytes()
            assert os.fstat(old).st_ino == os.stat(mount.path / "npy/b.npy").st_ino
            assert os.fstat(old).st_ino != os.stat(mount.path / "npy/a.npy").st_ino


# --- documents in raw/ that lie apart from the chunks -----------------------------------------------------------------------------


@contextmanager
def raw_document_open(layout: Layout, folder: Path) -> Iterator[tuple[Mounted, int]]:
    """Mount a store with the arrays ``a`` and ``b``, and write other attributes to the document of ``a`` in raw/, not yet published."""
    store = folder / "store"
    layout.make_store(store)
    for number, name in enumerate("ab", 1):
        layout.create(store, name, np.arange(1, 101) * number, number, is_sharded=False)
    with mounted(store) as mount:
        fd = os.open(mount.path / "raw" / layout.document_of("a"), os.O_RDWR)
        try:
            os.pwrite(fd, os.pread(fd, 1 << 20, 0).replace(b'"life": 1', b'"life": 9'), 0)
            yield mount, fd
        finally:
            with suppress(OSError):
                os.close(fd)


def life(mount: Mounted, name: str) -> int:
    return int(json.loads((mount.path / "chunks" / name / ".zattrs").read_bytes())["life"])


@pytest.mark.parametrize("new", ["c", "g/c", "b"])
@drafts
def test_a_raw_document_follows_an_array_renamed_through_another_view(layout: Layout, new: str, tmp_path: Path) -> None:
    with raw_document_open(layout, tmp_path) as (mount, fd):
        os.rename(mount.path / "npy/a.npy", mount.path / f"npy/{new}.npy")
        os.fsync(fd)
        assert life(mount, new) == 9
        assert not (mount.path / "npy/a.npy").exists()
        np.testing.assert_array_equal(np.load(mount.path / f"npy/{new}.npy"), np.arange(1, 101))


@pytest.mark.parametrize("ending", ["removed", "saved over", "renamed over"])
@drafts
def test_a_raw_document_of_an_array_that_is_gone_is_not_stored(layout: Layout, ending: str, tmp_path: Path) -> None:
    with raw_document_open(layout, tmp_path) as (mount, fd):
        path = mount.path / "npy/a.npy"
        match ending:
            case "removed":
                path.unlink()
            case "saved over":
                np.save(path, np.arange(7))
            case "renamed over":
                os.rename(mount.path / "npy/b.npy", path)
        assert errno_of(lambda: os.fsync(fd)) == errno.ESTALE
        assert errno_of(lambda: os.close(fd)) == errno.ESTALE
        if ending == "removed":
            assert not path.exists()
        else:
            np.testing.assert_array_equal(np.load(path), np.arange(7) if ending == "saved over" else np.arange(1, 101) * 2)


@drafts
def test_a_raw_document_is_written_more_than_once(layout: Layout, tmp_path: Path) -> None:
    with raw_document_open(layout, tmp_path) as (mount, fd):
        os.fsync(fd)
        os.pwrite(fd, os.pread(fd, 1 << 20, 0).replace(b"<i8", b"<f8"), 0)
        os.fsync(fd)
        assert np.load(mount.path / "npy/a.npy").dtype == np.float64
        os.pwrite(fd, os.pread(fd, 1 << 20, 0).replace(b"<f8", b">f8"), 0)
        os.fsync(fd)
        os.rename(mount.path / "npy/a.npy", mount.path / "npy/c.npy")
        os.pwrite(fd, os.pread(fd, 1 << 20, 0).replace(b">f8", b"<i8"), 0)
        os.fsync(fd)
        np.testing.assert_array_equal(np.load(mount.path / "npy/c.npy"), np.arange(1, 101))
