"""An open file belongs to the node it was opened on, wherever that moves; once the node is erased, nothing is read or stored.

The cells of SEMANTICS.md, "What an open file is bound to": each kind of open file (a whole array, a chunk, a folder, a chunk queued for
its shard), while the array is renamed, erased, replaced or resized, in each view and by another program.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted
from tests.support.waiting import until

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

HEADER = 128
SEVEN = np.full(8, 7, "<i4")
CHANGED = np.r_[np.full(4, 99, "<i4"), SEVEN[4:]]
FOUR = np.full(4, 99, "<i4").tobytes()


def make(store: Path, *, sharded: bool = False, dtype: str = "i4", name: str = "a", **more: Any) -> Any:
    array = zarr.create_array(
        str(store / name),
        shape=(8,),
        chunks=(2,) if sharded else (4,),
        shards=(8,) if sharded else None,
        dtype=dtype,
        zarr_format=3,
        compressors=None,
        overwrite=True,
        **more,
    )
    array[:] = 7
    return array


@pytest.fixture(params=[False, True], ids=["plain", "sharded"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "store"
    zarr.create_group(str(folder), zarr_format=3)
    make(folder, sharded=request.param)
    return folder


def is_sharded(store: Path) -> bool:
    return "sharding_indexed" in (store / "a/zarr.json").read_text()


def arrays(store: Path) -> dict[str, list[int]]:
    """Return all arrays as other programs read them."""
    found = (place.parent for place in store.rglob("zarr.json") if json.loads(place.read_text())["node_type"] == "array")
    return {str(place.relative_to(store)): zarr.open_array(str(place), mode="r")[:].tolist() for place in found}


def keys(store: Path) -> set[str]:
    return {str(place.relative_to(store)) for place in store.rglob("*") if place.is_file()}


@contextmanager
def suppress_stale() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise


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


RENAMES = {
    "chunks": lambda mount: os.rename(mount.path / "chunks/a", mount.path / "chunks/b"),
    "zarr3": lambda mount: os.rename(mount.path / "zarr3/a", mount.path / "zarr3/b"),
    "npy": lambda mount: os.rename(mount.path / "npy/a.npy", mount.path / "npy/b.npy"),
    "raw": lambda mount: os.rename(mount.path / "raw/a", mount.path / "raw/b"),
}
ERASURES = {
    "chunks": lambda mount: shutil.rmtree(mount.path / "chunks/a"),
    "zarr3": lambda mount: shutil.rmtree(mount.path / "zarr3/a"),
    "npy": lambda mount: os.unlink(mount.path / "npy/a.npy"),
    "raw": lambda mount: shutil.rmtree(mount.path / "raw/a"),
    "behind": lambda mount: shutil.rmtree(mount.store / "a"),
}


@pytest.mark.parametrize("view", RENAMES)
def test_renamed_through_this_mount(store: Path, view: str) -> None:
    """Readers continue; staged data is stored in the renamed array, and nothing at the old path."""
    with mounted(store) as mount:
        with opened(mount.path / "npy/a.npy", os.O_RDONLY) as reader, opened(mount.path / "npy/a.npy") as writer:
            os.pread(reader, HEADER, 0)
            os.pwrite(writer, FOUR, HEADER)
            RENAMES[view](mount)
            assert np.frombuffer(os.pread(reader, 100, HEADER + 16), "<i4").tolist() == SEVEN[4:].tolist()
            os.fsync(writer)
        assert arrays(store) == {"b": CHANGED.tolist()}
        assert not any(key.startswith("a/") for key in keys(store))


@pytest.mark.parametrize("view", RENAMES)
def test_a_chunk_is_written_again_and_again_while_its_array_is_renamed(store: Path, view: str) -> None:
    with mounted(store) as mount:
        with opened(mount.path / "chunks/a/0") as writer:
            nbytes = os.fstat(writer).st_size
            os.pwrite(writer, np.full(nbytes // 4, 98, "<i4").tobytes(), 0)
            RENAMES[view](mount)
            os.pwrite(writer, np.full(nbytes // 4, 99, "<i4").tobytes(), 0)
            os.close(os.dup(writer))
            os.fsync(writer)
        assert arrays(store)["b"][: nbytes // 4] == [99] * (nbytes // 4)
        assert not any(key.startswith("a/") for key in keys(store))


@pytest.mark.parametrize("view", ERASURES)
def test_erased(store: Path, view: str) -> None:
    """Readers get no fill values; no write creates the array again."""
    with mounted(store, ends_with=None) as mount:
        with opened(mount.path / "npy/a.npy", os.O_RDONLY) as reader, opened(mount.path / "npy/a.npy") as writer:
            os.pread(reader, HEADER, 0)
            os.pwrite(writer, FOUR, HEADER)
            ERASURES[view](mount)
            read: set[bytes] = set()

            def is_stale() -> bool:
                return errno_of(lambda: read.add(os.pread(reader, 16, HEADER + 16))) == errno.ESTALE

            # Until it has the notice of a change by another program, the kernel answers from its pages.
            assert is_stale() or view == "behind"
            until(is_stale)
            assert read <= {SEVEN[4:].tobytes()}
            if view != "npy":
                # This file itself was unlinked: it keeps its content, and publishes nothing.
                assert errno_of(lambda: os.fsync(writer)) == errno.ESTALE
        assert keys(store) == {"zarr.json"}
        mount.umount()
    assert keys(store) == {"zarr.json"}


def test_another_program_renames_it(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        with opened(mount.path / "npy/a.npy") as writer:
            os.pwrite(writer, FOUR, HEADER)
            os.rename(store / "a", store / "b")
            assert errno_of(lambda: os.fsync(writer)) == errno.ESTALE
        mount.umount()
    assert arrays(store) == {"b": SEVEN.tolist()}
    assert not (store / "a").exists()


@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "60")], ids=["watch", "no-watch"])
@pytest.mark.parametrize("view", ["npy/a.npy", "chunks/a/0"])
def test_an_equal_array_put_in_its_place_before_the_first_write_is_another(
    store: Path, view: str, options: tuple[str, ...]
) -> None:
    make(store, sharded=is_sharded(store), name="equal")
    with mounted(store, *options, ends_with=None) as mount:
        with opened(mount.path / view) as writer:
            size = len(os.read(writer, 1 << 20))
            os.rename(store / "a", store / "b")
            os.rename(store / "equal", store / "a")
            assert errno_of(lambda: (os.pwrite(writer, FOUR[:4], size - 4), os.fsync(writer))) == errno.ESTALE
        mount.umount()
    assert arrays(store) == {"a": SEVEN.tolist(), "b": SEVEN.tolist()}


@pytest.mark.parametrize("how", ["behind", "raw"])
def test_replaced_by_an_array_of_another_type(store: Path, how: str) -> None:
    with mounted(store, ends_with=None) as mount:
        with opened(mount.path / "npy/a.npy") as writer, opened(mount.path / "chunks/a/0") as chunk:
            os.pwrite(writer, FOUR, HEADER)
            nbytes = os.fstat(chunk).st_size
            os.pwrite(chunk, b"x" * nbytes, 0)
            make(store if how == "behind" else mount.path / "raw", dtype="f4", fill_value=5.0)
            assert errno_of(lambda: os.fsync(writer)) == errno.ESTALE
            assert errno_of(lambda: os.fsync(chunk)) == errno.ESTALE
        mount.umount()
    assert arrays(store) == {"a": [7.0] * 8}


@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "0")], ids=["watch", "no-watch"])
def test_attributes_are_edited_in_place_by_another_program(store: Path, options: tuple[str, ...]) -> None:
    """Between truncating and writing there is no document: the array is undecided, not erased."""
    with mounted(store, *options) as mount:
        with opened(mount.path / "npy/a.npy") as writer:
            os.pwrite(writer, FOUR, HEADER)
            document = json.loads((store / "a/zarr.json").read_text()) | {"attributes": {"units": "K"}}
            with (store / "a/zarr.json").open("w") as file:
                file.flush()
                errno_of((mount.path / "npy/a.npy").stat)
                json.dump(document, file)
            os.fsync(writer)
        assert arrays(store) == {"a": CHANGED.tolist()}


def test_documents_that_stay_away_are_an_error_and_nothing_is_lost(store: Path) -> None:
    with mounted(store, "--no-watch", "--metadata-ttl", "0") as mount:
        with opened(mount.path / "npy/a.npy") as writer:
            os.pwrite(writer, FOUR, HEADER)
            document = (store / "a/zarr.json").read_bytes()
            (store / "a/zarr.json").unlink()
            assert errno_of(lambda: os.fsync(writer)) == errno.EIO
            assert any("missing or unreadable" in str(line["message"]) for line in mount.errors())
            (store / "a/zarr.json").write_bytes(document)
            os.fsync(writer)
        assert arrays(store) == {"a": CHANGED.tolist()}


@pytest.mark.parametrize("view", ["npy", "raw"])
def test_who_stands_in_the_folder_of_an_array_stays_in_it(store: Path, view: str) -> None:
    with mounted(store) as mount:
        with opened(mount.path / "chunks/a", os.O_RDONLY | os.O_DIRECTORY) as folder:
            os.listdir(folder)
            RENAMES[view](mount)
            make(mount.path / "zarr3", dtype="f4", name="a")
            nbytes = os.stat("0", dir_fd=folder).st_size
            with open(os.open("0", os.O_WRONLY | os.O_TRUNC, dir_fd=folder), "wb") as file:
                file.write(np.full(nbytes // 4, 99, "<i4").tobytes())
            os.fsync(folder)
        found = arrays(store)
        assert found["a"] == [7.0] * 8 and found["b"][: nbytes // 4] == [99] * (nbytes // 4)


@pytest.mark.parametrize("how", ["chunks", "behind"])
def test_resized(store: Path, how: str) -> None:
    """Writes at offsets of the old layout are refused; a chunk in both layouts stays usable."""

    def resize(mount: Mounted) -> None:
        if how == "behind":
            zarr.open_array(str(store / "a"), mode="r+").resize((12,))
        else:
            place = mount.path / "chunks/a/.zarray"
            place.write_text(json.dumps(json.loads(place.read_text()) | {"shape": [12]}))

    with mounted(store, "--no-watch", "--metadata-ttl", "0") as mount:
        with opened(mount.path / "npy/a.npy") as idle, opened(mount.path / "npy/a.npy") as writer:
            os.pread(idle, 200, 0)
            with opened(mount.path / "chunks/a/0") as chunk:
                nbytes = os.fstat(chunk).st_size
                os.pwrite(chunk, np.full(nbytes // 4, 99, "<i4").tobytes(), 0)
                resize(mount)
                os.fsync(chunk)
            assert errno_of(lambda: os.pwrite(writer, FOUR, HEADER)) == errno.ESTALE
        assert np.load(mount.path / "npy/a.npy").shape == (12,)
    assert arrays(store)["a"][:8] == [99] * (nbytes // 4) + [7] * (8 - nbytes // 4)


def test_what_waits_for_its_shard_is_not_stored_in_another_array(store: Path) -> None:
    if not is_sharded(store):
        pytest.skip("nothing waits")
    with mounted(store, "--shard-delay", "60", ends_with=7) as mount:
        with (mount.path / "chunks/a/0").open("r+b") as file:
            file.write(np.full(2, 99, "<i4").tobytes())
        make(store, sharded=True, dtype="f4", fill_value=5.0)
    assert arrays(store) == {"a": [7.0] * 8}


@pytest.mark.parametrize("synced", ["chunks/a", "zarr3/a/c", "npy/a.npy", "raw", "."])
def test_fsync_stores_the_shards_that_wait_below(store: Path, synced: str) -> None:
    if not is_sharded(store):
        pytest.skip("nothing waits")
    with mounted(store, "--shard-delay", "600", ends_with=None) as mount:
        with (mount.path / "chunks/a/0").open("r+b") as file:
            file.write(np.full(2, 99, "<i4").tobytes())
        with opened(mount.path / synced, os.O_RDONLY) as target:
            os.fsync(target)
        os.kill(mount.pid, signal.SIGKILL)
    assert arrays(store) == {"a": [99, 99, *[7] * 6]}


def npy(elements: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, elements)
    return file.getvalue()


def test_a_refused_new_file_erases_nothing_of_others(tmp_path: Path) -> None:
    store = tmp_path / "store"
    zarr.create_group(str(store), zarr_format=3)
    data = npy(np.arange(100_000, dtype="<i4"))
    with mounted(store) as mount:
        with opened(mount.path / "npy/b.npy", os.O_WRONLY | os.O_CREAT) as file:
            os.write(file, data[:50_000])
            zarr.create_group(str(store / "b"), zarr_format=3)
            make(store / "b", name="precious")
            os.write(file, data[50_000:])
            assert errno_of(lambda: os.fsync(file)) == errno.EEXIST
            os.unlink(mount.path / "npy/b.npy") if (mount.path / "npy/b.npy").exists() else None
    assert arrays(store) == {"b/precious": SEVEN.tolist()}


def test_a_new_file_that_lost_its_name_erases_nothing_of_the_next(tmp_path: Path) -> None:
    store = tmp_path / "store"
    zarr.create_group(str(store), zarr_format=3)
    options = ("--memory-limit", "16MiB", "--new-chunks", "256x1024", "--new-codecs", "none")
    with mounted(store, *options) as mount:
        large = npy(np.ones((8192, 1024), "<i4"))
        with opened(mount.path / "npy/b.npy", os.O_WRONLY | os.O_CREAT) as file:
            for start in range(0, len(large) // 2, 1 << 20):
                os.pwrite(file, large[start : start + (1 << 20)], start)
            os.unlink(mount.path / "npy/b.npy")
            new = np.arange(2_000_000, dtype="<i4").reshape(2000, 1000)
            (mount.path / "npy/b.npy").write_bytes(npy(new))
        assert np.array_equal(np.load(mount.path / "npy/b.npy"), new)
    assert np.array_equal(zarr.open_array(str(store / "b"), mode="r")[:], new)


def test_a_refused_truncate_leaves_nothing_staged(store: Path) -> None:
    with mounted(store) as mount:
        place = mount.path / "chunks/a/0"
        with opened(place, os.O_RDONLY) as reader:
            nbytes = os.fstat(reader).st_size
            assert errno_of(lambda: os.truncate(place, 3)) == errno.EINVAL
            assert place.stat().st_size == os.fstat(reader).st_size == len(place.read_bytes()) == nbytes


def test_who_replaces_an_array_goes_on_with_the_new_one(store: Path) -> None:
    new = np.arange(20, dtype="<f8").reshape(4, 5)
    with mounted(store) as mount:
        place = mount.path / "npy/a.npy"
        with opened(mount.path / "chunks/a/0", os.O_RDONLY) as chunk:
            with opened(place, os.O_RDWR | os.O_TRUNC) as writer:
                os.write(writer, npy(new))
                os.fsync(writer)
                assert arrays(store) == {"a": new.tolist()}
                assert os.pread(writer, 8, HEADER + 8) == new[0, 1].tobytes()
                os.pwrite(writer, new[3, 3].tobytes(), HEADER + 8)
                os.fsync(writer)
            assert np.load(place)[0].tolist() == [0, 18, 2, 3, 4]
            # A new open file is not delayed by the one on the old chunk.
            name = next(each for each in sorted(os.listdir(mount.path / "chunks/a")) if each[0].isdigit())
            assert (mount.path / "chunks/a" / name).read_bytes()
            assert os.fstat(chunk).st_nlink >= 0
    assert arrays(store)["a"][0] == [0, 18, 2, 3, 4]


def test_a_chunk_of_an_array_made_anew_is_opened_though_somebody_has_the_old_one_open(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        place = mount.path / "chunks/a/0"
        with opened(place) as old:
            nbytes = os.fstat(old).st_size
            os.pwrite(old, b"x" * nbytes, 0)
            make(mount.path / "raw", sharded=is_sharded(store))
            with place.open("r+b", buffering=0) as new:
                new.write(np.full(nbytes // 4, 5, "<i4").tobytes())
            assert errno_of(lambda: os.fsync(old)) == errno.ESTALE
        mount.umount()
    assert arrays(store)["a"] == [5] * (nbytes // 4) + [7] * (8 - nbytes // 4)


@pytest.mark.parametrize("view", ["npy", "chunks", "zarr3"])
def test_a_raw_value_follows_the_folder_that_it_lies_in(store: Path, view: str) -> None:
    with mounted(store) as mount:
        document = (mount.path / "raw/a/zarr.json").read_bytes()
        with opened(mount.path / "raw/a/zarr.json") as file, opened(mount.path / "raw/a/note", os.O_RDWR | os.O_CREAT) as note:
            os.pwrite(file, document, 0)
            os.write(note, b"kept")
            RENAMES[view](mount)
            os.fsync(file)
            os.fsync(note)
            assert os.pread(note, 10, 0) == b"kept"
        assert arrays(store) == {"b": SEVEN.tolist()}
        assert (store / "b/note").read_bytes() == b"kept" and not (store / "a").exists()


@pytest.mark.parametrize("key", ["a/c/0", "a/zarr.json", "a/note"])
@pytest.mark.parametrize("written", ["before", "after"])
@pytest.mark.parametrize("how", ["npy", "removed", "renamed", "replaced"])
def test_a_raw_value_does_not_bring_back_the_folder_that_it_lay_in(store: Path, how: str, written: str, key: str) -> None:
    with mounted(store, ends_with=None) as mount:
        with opened(mount.path / "raw" / key, os.O_RDWR | os.O_CREAT) as file:
            if written == "before":
                os.pwrite(file, b"x", 0)
            if how == "npy":
                os.unlink(mount.path / "npy/a.npy")
            elif how == "removed":
                shutil.rmtree(store / "a")
            else:
                os.rename(store / "a", store / "b")
            if how == "replaced":
                make(store, fill_value=5)
            before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
            if written == "before":
                assert errno_of(lambda: os.fsync(file)) == errno.ESTALE
            else:
                assert errno_of(lambda: (os.pwrite(file, b"x", 0), os.fsync(file))) == errno.ESTALE
            assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
        assert (store / "a").exists() == (how == "replaced")
        mount.umount()


def test_a_raw_value_that_another_program_removed_is_set_again(store: Path) -> None:
    with mounted(store) as mount:
        with opened(mount.path / "raw/a/c/0") as file:
            os.pwrite(file, b"x", 0)
            (store / "a/c/0").unlink()
            os.fsync(file)
        assert (store / "a/c/0").exists()


GROUP_RENAMES = {
    "chunks": lambda mount: os.rename(mount.path / "chunks/g", mount.path / "chunks/h"),
    "raw": lambda mount: os.rename(mount.path / "raw/g", mount.path / "raw/h"),
    "npy": lambda mount: os.rename(mount.path / "npy/g", mount.path / "npy/h"),
}
GROUP_ENDS = {
    "mv behind": lambda mount: os.rename(mount.store / "g", mount.store / "h"),
    "rm chunks": lambda mount: shutil.rmtree(mount.path / "chunks/g"),
    "rm raw": lambda mount: shutil.rmtree(mount.path / "raw/g"),
}
STREAMED = np.arange(1, (2 << 20) + 1, dtype="<i4").reshape(2048, 1024)


@contextmanager
def streaming(tmp_path: Path) -> Iterator[tuple[Mounted, Path, int, bytes]]:
    """Yield a mount while half of a new ``npy/g/b.npy`` is written; some of its chunks are in the store already."""
    store = tmp_path / "store"
    zarr.create_group(str(store), zarr_format=3).create_group("g")
    data = npy(STREAMED)
    with mounted(store, "--memory-limit", "4MiB", "--new-chunks", "64x1024", "--new-codecs", "none", ends_with=None) as mount:
        with opened(mount.path / "npy/g/b.npy", os.O_WRONLY | os.O_CREAT) as file:
            for start in range(0, len(data) // 2, 1 << 20):
                os.pwrite(file, data[start : start + (1 << 20)], start)
            while not list(store.glob(".zarrfs/*/new/c")):
                pass
            yield mount, store, file, data
        mount.umount()


@pytest.mark.parametrize("view", GROUP_RENAMES)
def test_a_new_array_goes_with_its_group(tmp_path: Path, view: str) -> None:
    with streaming(tmp_path) as (mount, store, file, data):
        GROUP_RENAMES[view](mount)
        for start in range(len(data) >> 20 << 19, len(data), 1 << 19):
            os.pwrite(file, data[start : start + (1 << 19)], start)
        os.pwrite(file, data, 0)
        os.fsync(file)
    assert np.array_equal(zarr.open_array(str(store / "h/b"), mode="r")[:], STREAMED)
    assert not (store / "g").exists()


@pytest.mark.parametrize("how", GROUP_ENDS)
def test_a_new_array_whose_group_is_gone_is_refused(tmp_path: Path, how: str) -> None:
    with streaming(tmp_path) as (mount, store, file, data):
        GROUP_ENDS[how](mount)
        errno_of(lambda: os.pwrite(file, data, 0))
        assert errno_of(lambda: os.fsync(file)) == errno.ESTALE
    assert not (store / "g").exists() and not (store / ".zarrfs").exists()
    assert not list(store.rglob("b/zarr.json"))


def test_an_editor_that_renames_the_document_and_writes_it_anew_ends_nothing(store: Path) -> None:
    options = ("--shard-delay", "600") if is_sharded(store) else ()
    with mounted(store, *options) as mount:
        place = mount.path / "raw/a/zarr.json"
        with (mount.path / "chunks/a/0").open("r+b") as chunk:
            nbytes = os.fstat(chunk.fileno()).st_size
            chunk.write(np.full(nbytes // 4, 99, "<i4").tobytes())
        with opened(mount.path / "npy/a.npy") as writer:
            os.pwrite(writer, np.full(1, 98, "<i4").tobytes(), HEADER + 28)
            document = place.read_bytes()
            place.rename(place.with_name("zarr.json~"))
            place.write_bytes(document)
            os.fsync(writer)
    assert arrays(store) == {"a": [*[99] * (nbytes // 4), *[7] * (7 - nbytes // 4), 98]}


def test_the_array_at_the_root_is_replaced(tmp_path: Path) -> None:
    store = tmp_path / "root.zarr"
    make(tmp_path, name="root.zarr")
    new = np.arange(20, dtype="<f8").reshape(4, 5)
    with mounted(store) as mount:
        (mount.path / "npy/root.npy").write_bytes(npy(new))
        assert np.array_equal(np.load(mount.path / "npy/root.npy"), new)
    assert np.array_equal(zarr.open_array(str(store), mode="r")[:], new)


@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "0")], ids=["watched", "no watch"])
def test_a_folder_that_has_the_name_of_an_open_file_is_another_inode(store: Path, options: tuple[str, ...]) -> None:
    with mounted(store, *options) as mount:
        path = mount.path / "npy/a.npy"
        file = os.open(path, os.O_RDWR)
        number = os.fstat(file).st_ino
        os.pwrite(file, FOUR, HEADER)
        (mount.path / "chunks/a.npy").mkdir()
        # MKDIR holds a lock of the kernel and cannot wait until names elsewhere are invalidated.
        deadline = time.monotonic() + 30
        while path.is_file() and time.monotonic() < deadline:
            pass
        assert path.is_dir() and path.stat().st_ino != number
        assert os.listdir(path) == []
        os.pwrite(file, FOUR[:4], HEADER + 16)
        assert os.fstat(file).st_ino == number
        os.close(file)
    assert arrays(store)["a"] == [99] * 5 + [7] * 3


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR], ids=["read", "write"])
@pytest.mark.parametrize("view", ["npy/a.npy", "chunks/a/0", "zarr3/a/c/0", "chunks/a/.zarray"])
def test_an_array_in_the_place_of_one_that_is_open_is_another_inode(store: Path, view: str, flags: int) -> None:
    """The kernel keeps pages by inode, and the name for a while: pages of one array must not be shown to holders of the other."""
    with mounted(store, "--no-watch", "--metadata-ttl", "1") as mount, opened(mount.path / view) as old:
        path = mount.path / view
        before, number, sharded = os.pread(old, 1000, 0), os.fstat(old).st_ino, is_sharded(store)
        os.pwrite(old, before, 0)
        os.fsync(old)
        shutil.rmtree(store / "a")
        make(store, sharded=sharded, dtype="u4", fill_value=1)
        deadline = time.monotonic() + 30
        while True:
            assert time.monotonic() < deadline, "it never came to this"
            # Cached knowledge of the old array leads to nothing any more.
            with suppress_stale(), opened(path, flags) as new:
                seen, is_another = os.pread(new, 1000, 0), os.fstat(new).st_ino != number
                assert is_another or seen == before
                if is_another:
                    break
        assert errno_of(lambda: os.pwrite(old, b"9", 0) and os.fsync(old)) == errno.ESTALE
        assert path.read_bytes()[:1000] == seen


def test_a_file_in_the_place_of_a_folder_and_a_folder_in_that_of_a_file_are_seen_as_what_they_are(store: Path) -> None:
    (store / "file").write_bytes(bytes(100_000))
    (store / "folder").mkdir()
    with mounted(store, "--no-watch", "--metadata-ttl", "0") as mount:
        raw = mount.path / "raw"
        file, folder = os.open(raw / "file", os.O_RDONLY), os.open(raw / "folder", os.O_RDONLY)
        os.rename(store / "file", store / "other")
        os.rename(store / "folder", store / "file")
        os.rename(store / "other", store / "folder")
        assert os.listdir(raw / "file") == [] and (raw / "folder").read_bytes() == bytes(100_000)
        assert errno_of(lambda: os.pread(file, 10, 90_000)) in (0, errno.ESTALE)
        assert errno_of(lambda: os.listdir(folder)) in (0, errno.ESTALE)
        os.close(file)
        os.close(folder)


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY | os.O_APPEND], ids=["in place", "append"])
@pytest.mark.parametrize("by", ["rename", "other mount"])
def test_a_part_of_a_value_that_others_have_replaced_is_refused(store: Path, by: str, flags: int) -> None:
    """A part of each would be a value that no program wrote."""
    (store / "k").write_bytes(b"A" * 16)
    with mounted(store) as mount, mounted(store) as other:
        file = os.open(mount.path / "raw/k", flags)
        if by == "rename":
            (store / "new").write_bytes(b"B" * 6)
            os.rename(store / "new", store / "k")
        else:
            (other.path / "raw/k").write_bytes(b"B" * 6)
        assert errno_of(lambda: os.write(file, b"CCCC")) == errno.ESTALE
        os.close(file)
        assert (store / "k").read_bytes() == b"B" * 6
        with (mount.path / "raw/k").open("ab") as appended:
            appended.write(b"CCCC")
    assert (store / "k").read_bytes() == b"B" * 6 + b"C" * 4


def test_a_part_of_an_encoded_chunk_that_others_have_replaced_is_refused(store: Path) -> None:
    with mounted(store) as mount:
        path = mount.path / "zarr3/a/c/0"
        file = os.open(path, os.O_RDWR)
        size = len(os.pread(file, 100, 0))
        with mounted(store) as other:
            (other.path / "chunks/a/0").write_bytes(np.full(size // 4, 5, "<i4").tobytes())
        # Nothing shows whether a chunk in a shard or its neighbours were replaced.
        if not is_sharded(store):
            assert errno_of(lambda: os.pwrite(file, FOUR[:4], 0)) == errno.ESTALE
        os.close(file)
        assert np.frombuffer(path.read_bytes(), "<i4").tolist() == [5] * (size // 4)
