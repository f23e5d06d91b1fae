"""Output of ``zarrfs umount`` on refused content, and on bytes that were accepted and could not be stored.

Refused, with an error of close or fsync for the program: a note, exit code 0. Accepted and not stored (bytes of a mapping, whether or
not a program got an error; failures detected only by the last RELEASE): named in errors.jsonl, exit code 7.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted

zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.fuse

NOTE = "refused, with an error to the writing program: "


@pytest.fixture(params=[False, True], ids=["plain", "sharded"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "store"
    zarr.create_group(str(folder), zarr_format=3)
    shards = (200,) if request.param else None
    array = zarr.create_array(
        str(folder / "a"), shape=(1000,), chunks=(100,), shards=shards, dtype="i4", zarr_format=3, compressors=None
    )
    array[:] = 1
    return folder


def errno_of(call: Callable[[], Any]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or 0
    return 0


def resize(mount: Mounted) -> None:
    path = mount.path / "chunks/a/.zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shape": [1100]}))


def remove(mount: Mounted) -> None:
    shutil.rmtree(mount.path / "chunks/a")


def remove_behind(mount: Mounted) -> None:
    shutil.rmtree(mount.store / "a")


# --- refused --------------------------------------------------------------------------------------------------------------------


def too_short(mount: Mounted) -> int:
    file = os.open(mount.path / "chunks/a/0", os.O_WRONLY | os.O_TRUNC)
    os.write(file, b"short")
    return errno_of(lambda: os.close(file))


def too_short_twice(mount: Mounted) -> int:
    file = os.open(mount.path / "chunks/a/0", os.O_WRONLY | os.O_TRUNC)
    os.write(file, b"short")
    assert errno_of(lambda: os.fsync(file)) == errno.EINVAL
    return errno_of(lambda: os.close(file))


def no_document(mount: Mounted) -> int:
    file = os.open(mount.path / "chunks/a/.zattrs", os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
    os.write(file, b"{")
    return errno_of(lambda: os.close(file))


def no_chunk(mount: Mounted) -> int:
    place = "zarr3/a/c/0"
    file = os.open(mount.path / place, os.O_WRONLY | os.O_TRUNC)
    os.write(file, b"nonsense")
    return errno_of(lambda: os.close(file))


def array_gone(mount: Mounted) -> int:
    file = os.open(mount.path / "npy/a.npy", os.O_RDWR)
    os.pwrite(file, bytes(4), 128)
    remove(mount)
    return errno_of(lambda: os.close(file))


def half_an_array(mount: Mounted) -> int:
    file = os.open(mount.path / "npy/b.npy", os.O_WRONLY | os.O_CREAT)
    os.write(file, (mount.path / "npy/a.npy").read_bytes()[:1000])
    return errno_of(lambda: os.close(file))


def no_header(mount: Mounted) -> int:
    """Write bytes without a header; each of three calls fails. Return the errno of the last one."""
    file = os.open(mount.path / "npy/b.npy", os.O_WRONLY | os.O_CREAT)
    # Zeros may be a place for a header that is written last.
    assert errno_of(lambda: os.write(file, b"x" * 300)) == errno.EINVAL
    assert errno_of(lambda: os.fsync(file)) == errno.EINVAL
    return errno_of(lambda: os.close(file))


def larger_than_a_file_can_be(mount: Mounted) -> int:
    resource.prlimit(mount.pid, resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    file = os.open(mount.path / "raw/k", os.O_WRONLY | os.O_CREAT)
    os.write(file, bytes(range(1, 256)) * 300)
    return errno_of(lambda: os.close(file))


REFUSED = {
    too_short: (errno.EINVAL, "chunks/a/0"),
    too_short_twice: (errno.EINVAL, "chunks/a/0"),
    no_document: (errno.EINVAL, "chunks/a/.zattrs"),
    no_chunk: (errno.EINVAL, "zarr3/a/c/0"),
    array_gone: (errno.ESTALE, "npy/a.npy"),
    half_an_array: (errno.EINVAL, "npy/b.npy"),
    no_header: (errno.EINVAL, "npy/b.npy"),
    larger_than_a_file_can_be: (errno.EFBIG, "raw/k"),
}


@pytest.mark.parametrize("write", REFUSED, ids=lambda each: each.__name__)
def test_who_was_told_is_not_told_by_the_exit_code(store: Path, write: Callable[[Mounted], int]) -> None:
    number, path = REFUSED[write]
    with mounted(store, ends_with=None) as mount:
        assert write(mount) == number
        ended = mount.umount()
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.startswith(f"zarrfs: {NOTE}{path}: ") and ended.stderr.count("\n") == 1


def test_past_the_end_is_told_by_write_and_nothing_is_left(store: Path) -> None:
    with mounted(store) as mount:
        file = os.open(mount.path / "chunks/a/0", os.O_RDWR)
        assert errno_of(lambda: os.pwrite(file, b"x", 400)) == errno.EFBIG
        os.close(file)


def test_what_is_rewritten_after_it_was_refused_is_stored(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        file = os.open(mount.path / "chunks/a/0", os.O_WRONLY | os.O_TRUNC)
        os.write(file, b"short")
        assert errno_of(lambda: os.fsync(file)) == errno.EINVAL
        os.pwrite(file, np.full(100, 7, "i4").tobytes(), 0)
        os.close(file)
        ended = mount.umount()
        assert (ended.returncode, ended.stderr) == (0, "")
    assert (zarr.open_array(str(store / "a"), mode="r")[:100] == 7).all()


# --- accepted -------------------------------------------------------------------------------------------------------------------


def through_memmap(path: Path, act: Callable[[], None]) -> None:
    mapped = np.memmap(path, "u1", mode="r+")
    mapped[148] = 99
    act()
    del mapped


def after_close(path: Path, act: Callable[[], None]) -> None:
    file = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(file, 0)
    os.close(file)
    mapped[148] = 99
    act()
    mapped.close()


def synced(path: Path, act: Callable[[], None]) -> None:
    file = os.open(path, os.O_RDWR)
    with mmap.mmap(file, 0) as mapped:
        mapped[148] = 99
        act()
        assert errno_of(mapped.flush) in (errno.ESTALE, errno.EIO)
    errno_of(lambda: os.close(file))


def fsynced(path: Path, act: Callable[[], None]) -> None:
    file = os.open(path, os.O_RDWR)
    with mmap.mmap(file, 0) as mapped:
        mapped[148] = 99
        act()
        assert errno_of(lambda: os.fsync(file)) in (errno.ESTALE, errno.EIO)
    errno_of(lambda: os.close(file))


@pytest.mark.parametrize("act", [resize, remove, remove_behind])
@pytest.mark.parametrize("write", [through_memmap, after_close, synced, fsynced])
def test_bytes_of_a_mapping_that_cannot_be_taken_are_named(
    store: Path, write: Callable[[Path, Callable[[], None]], None], act: Callable[[Mounted], None]
) -> None:
    with mounted(store, ends_with=None) as mount:
        write(mount.path / "npy/a.npy", lambda: act(mount))
        ended = mount.umount()
        assert ended.returncode == 7, ended.stderr
        assert "not stored: npy/a.npy: " in ended.stderr


def test_they_are_in_the_list_of_errors(store: Path) -> None:
    with mounted(store, ends_with=7) as mount:
        through_memmap(mount.path / "npy/a.npy", lambda: resize(mount))
        assert any("resized" in each["message"] for each in mount.errors())


@pytest.mark.parametrize(("path", "act"), [("chunks/a/0", remove_behind), ("zarr3/a/c/0", remove)])
def test_bytes_of_a_mapped_chunk_too(store: Path, act: Callable[[Mounted], None], path: str) -> None:
    with mounted(store, ends_with=None) as mount:
        through_memmap(mount.path / path, lambda: act(mount))
        ended = mount.umount()
        assert ended.returncode == 7, ended.stderr


def test_emptiness_that_nobody_was_told_of_is_named(store: Path) -> None:
    """``> chunk`` closes before anything could be refused."""
    with mounted(store, ends_with=None) as mount:
        os.close(os.open(mount.path / "chunks/a/0", os.O_WRONLY | os.O_TRUNC))
        ended = mount.umount()
        assert ended.returncode == 7
    assert (zarr.open_array(str(store / "a"), mode="r")[:100] == 1).all()


def test_in_the_foreground_the_note_is_on_stderr(store: Path) -> None:
    from tests.support.mounting import started

    with started("slow_mount.py", store, "0", ends_with=None) as (mount, process):
        too_short(mount)
        os.kill(mount.pid, signal.SIGTERM)
        assert process.wait() == 0
        assert NOTE in mount.log()


def test_a_new_file_that_close_has_refused_is_not_found_any_more(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "store"), zarr_format=3)
    with mounted(tmp_path / "store") as mount:
        for number in range(100):
            path = mount.path / f"npy/short{number}.npy"
            file = os.open(path, os.O_CREAT | os.O_WRONLY)
            os.write(file, b"\x93NUMPY")
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                os.close(file)
            assert not path.exists()
        assert os.listdir(mount.path / "npy") == []


def test_the_reason_why_a_new_array_was_refused_is_the_one_that_is_logged(tmp_path: Path) -> None:
    """close(2) returns the error again, which is not logged again."""
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", "v3_2019", ends_with=None) as mount:
        with pytest.raises(OSError, match="Invalid argument"):
            np.save(mount.path / "npy/s.npy", np.zeros(3, [("a", "<i4")]))
        told = (mount.path / ".zarrfs/errors.jsonl").read_text() + mount.umount().stderr
    assert "cannot become an array" in told
    assert "header in its" not in told


# --- later writes ---------------------------------------------------------------------------------------------------------------


def rewritten(mount: Mounted, path: str, data: bytes) -> None:
    (mount.path / path).write_bytes(data)


def renamed_over(mount: Mounted, path: str, data: bytes) -> None:
    folder, _, name = path.rpartition("/")
    (mount.path / folder / f".{name}.part").write_bytes(data)
    os.rename(mount.path / folder / f".{name}.part", mount.path / path)


@pytest.mark.parametrize("again", [rewritten, renamed_over])
def test_what_is_refused_and_then_stored_is_no_note(store: Path, again: Callable[[Mounted, str, bytes], None]) -> None:
    with mounted(store, ends_with=None) as mount:
        whole = (mount.path / "npy/a.npy").read_bytes()
        attributes = b'{"k": 1}'
        for write in (too_short, no_document, half_an_array, no_chunk):
            assert write(mount) == errno.EINVAL
        again(mount, "chunks/a/0", bytes(400))
        again(mount, "chunks/a/.zattrs", attributes)
        again(mount, "npy/b.npy", whole)
        ended = mount.umount()
        assert (ended.returncode, ended.stderr.count("\n")) == (0, 1)
        assert ended.stderr.startswith(f"zarrfs: {NOTE}zarr3/a/c/0: ")


def test_what_is_refused_of_a_chunk_that_is_then_removed_is_no_note(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        assert too_short(mount) == errno.EINVAL
        (mount.path / "chunks/a/0").unlink()
        ended = mount.umount()
        assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_refused_after_something_was_stored_is_a_note(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        rewritten(mount, "chunks/a/0", bytes(400))
        assert too_short(mount) == errno.EINVAL
        ended = mount.umount()
        assert (ended.returncode, ended.stderr.count("\n")) == (0, 1) and "chunks/a/0" in ended.stderr
