"""Pages of whole-array files that the kernel keeps between opens: valid until an element changes, by any program or view."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

ELEMENTS = np.arange(64 * 1024, dtype="<i4").reshape(256, 256)
CHUNK = (64, 64)
NEW = -7
_PATIENCE = 30


@pytest.fixture(params=["chunks", "shards"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    store = tmp_path / "s.zarr"
    root = zarr.open_group(str(store), mode="w", zarr_format=3)
    shards = {"shards": (128, 128)} if request.param == "shards" else {}
    root.create_array("a", data=ELEMENTS, chunks=CHUNK, fill_value=-1, **shards)
    return store


@pytest.fixture
def mount(store: Path) -> Iterator[Mounted]:
    with mounted(store) as mount:
        yield mount


def whole(mount: Mounted) -> np.ndarray:
    return np.load(mount.path / "npy/a.npy")


def kept(mount: Mounted) -> bool:
    """Return True if the kernel reads the file from its pages, once in three times: other programs may make it drop them."""
    return any(is_kept(mount) for _ in range(3))


def is_kept(mount: Mounted) -> bool:
    """Return True if no read of the file reaches the mount."""

    def requests() -> int:
        return int(mount.stats()["read_requests"])

    # Each read of the counter is a request, too.
    before = requests()
    nothing = requests() - before
    whole(mount)
    return requests() - before == 2 * nothing


def changed(box: tuple[slice, slice], value: int = NEW) -> np.ndarray:
    expected = ELEMENTS.copy()
    expected[box] = value
    return expected


def by_chunk_file(mount: Mounted, other: Mounted) -> np.ndarray:
    (mount.path / "chunks/a/1.2").write_bytes(np.full(CHUNK, NEW, "<i4").tobytes())
    return changed(np.s_[64:128, 128:192])


def by_one_element(mount: Mounted, other: Mounted) -> np.ndarray:
    with (mount.path / "chunks/a/1.2").open("r+b") as file:
        file.write(np.array(NEW, "<i4").tobytes())
    return changed(np.s_[64:65, 128:129])


def by_erasing_a_chunk(mount: Mounted, other: Mounted) -> np.ndarray:
    (mount.path / "chunks/a/1.2").unlink()
    return changed(np.s_[64:128, 128:192], -1)


def by_pwrite(mount: Mounted, other: Mounted) -> np.ndarray:
    offset = (mount.path / "npy/a.npy").stat().st_size - ELEMENTS.nbytes
    with (mount.path / "npy/a.npy").open("r+b") as file:
        file.seek(offset)
        file.write(np.array(NEW, "<i4").tobytes())
    return changed(np.s_[0:1, 0:1])


def by_mapping(mount: Mounted, other: Mounted) -> np.ndarray:
    array = np.load(mount.path / "npy/a.npy", mmap_mode="r+")
    array[200, 100] = NEW
    array.flush()
    del array
    return changed(np.s_[200:201, 100:101])


def by_replacing(mount: Mounted, other: Mounted) -> np.ndarray:
    elements = changed(np.s_[0:256, 0:256])
    np.save(mount.path / "npy/a.npy", elements)
    return elements


def by_zarr3(mount: Mounted, other: Mounted) -> np.ndarray:
    zarr.open_array(str(mount.path / "zarr3/a"), mode="r+")[64:128, 128:192] = NEW
    return changed(np.s_[64:128, 128:192])


def by_raw(mount: Mounted, other: Mounted) -> np.ndarray:
    zarr.open_array(str(mount.path / "raw/a"), mode="r+")[64:128, 128:192] = NEW
    return changed(np.s_[64:128, 128:192])


def by_another_program(mount: Mounted, other: Mounted) -> np.ndarray:
    zarr.open_array(str(mount.store / "a"), mode="r+")[64:128, 128:192] = NEW
    return changed(np.s_[64:128, 128:192])


def by_another_mount(mount: Mounted, other: Mounted) -> np.ndarray:
    return by_pwrite(other, mount)


WAYS = [
    by_chunk_file,
    by_one_element,
    by_erasing_a_chunk,
    by_pwrite,
    by_mapping,
    by_replacing,
    by_zarr3,
    by_raw,
    by_another_program,
    by_another_mount,
]
NOTICED = {by_another_program, by_another_mount}
"""Changes that this mount learns from a notification."""


def eventually(read: Callable[[], np.ndarray], expected: np.ndarray) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not np.array_equal(read(), expected):
        assert time.monotonic() < deadline


def test_a_file_that_did_not_change_is_decoded_once(mount: Mounted) -> None:
    assert np.array_equal(whole(mount), ELEMENTS)
    assert kept(mount) and kept(mount)
    descriptor = os.open(mount.path / "npy/a.npy", os.O_RDONLY)
    assert kept(mount)
    os.close(descriptor)
    # Other arrays, names and attributes do not change it.
    np.save(mount.path / "npy/b.npy", np.arange(3))
    assert kept(mount)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("held", ["closed", "open", "mapped"])
def test_every_reader_sees_a_change(mount: Mounted, store: Path, way: Callable[[Mounted, Mounted], np.ndarray], held: str) -> None:
    path = mount.path / "npy/a.npy"
    whole(mount)
    assert kept(mount)
    descriptor = os.open(path, os.O_RDONLY) if held != "closed" else -1
    header = path.stat().st_size - ELEMENTS.nbytes
    mapping = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if held == "mapped" else None

    def of_descriptor() -> np.ndarray:
        return np.frombuffer(os.pread(descriptor, ELEMENTS.nbytes, header), "<i4").reshape(ELEMENTS.shape)

    def of_mapping() -> np.ndarray:
        assert mapping is not None
        return np.frombuffer(mapping[header:], "<i4").reshape(ELEMENTS.shape)

    try:
        if mapping is not None:
            assert np.array_equal(of_mapping(), ELEMENTS)
        with mounted(store) as other:
            expected = way(mount, other)
            if way in NOTICED:
                eventually(lambda: whole(mount), expected)
        assert np.array_equal(whole(mount), expected)
        assert np.array_equal(np.load(path, mmap_mode="r"), expected)
        if way is not by_replacing:
            if held != "closed":
                assert np.array_equal(of_descriptor(), expected)
            if mapping is not None:
                assert np.array_equal(of_mapping(), expected)
    finally:
        if mapping is not None:
            mapping.close()
        if descriptor >= 0:
            os.close(descriptor)
    # The new pages are kept in turn.
    whole(mount)
    assert kept(mount) or way in NOTICED


@pytest.mark.parametrize("way", [by_another_program, by_another_mount], ids=lambda way: way.__name__)
def test_without_a_watch_nothing_is_kept_beyond_the_ttl(store: Path, way: Callable[[Mounted, Mounted], np.ndarray]) -> None:
    with mounted(store, "--no-watch", "--metadata-ttl", "0") as mount, mounted(store) as other:
        assert np.array_equal(whole(mount), ELEMENTS)
        assert not kept(mount)
        expected = way(mount, other)
        assert np.array_equal(whole(mount), expected)


def test_a_resized_array_has_no_old_pages(mount: Mounted) -> None:
    whole(mount)
    assert kept(mount)
    zarr.open_array(str(mount.path / "zarr3/a"), mode="r+").resize((256, 128))
    assert np.array_equal(whole(mount), ELEMENTS[:, :128])
    zarr.open_array(str(mount.path / "zarr3/a"), mode="r+").resize((256, 256))
    expected = ELEMENTS.copy()
    expected[:, 128:] = -1
    assert np.array_equal(whole(mount), expected)


def test_a_write_that_could_not_be_stored_leaves_no_pages(mount: Mounted) -> None:
    whole(mount)
    assert kept(mount)
    descriptor = os.open(mount.path / "npy/a.npy", os.O_RDWR)
    os.pwrite(descriptor, b"\xff" * 4, (mount.path / "npy/a.npy").stat().st_size - 4)
    os.rename(mount.store / "a", mount.store / "elsewhere")
    with pytest.raises(OSError, match="Stale file handle"):
        os.close(descriptor)
    os.rename(mount.store / "elsewhere", mount.store / "a")
    eventually(lambda: whole(mount) if (mount.path / "npy/a.npy").exists() else np.zeros(0), ELEMENTS)


@pytest.mark.parametrize("event", ["erased", "replaced", "shrunk"])
@pytest.mark.parametrize("by", ["another program", "this mount"])
def test_an_open_file_does_not_read_pages_of_what_is_gone(mount: Mounted, event: str, by: str) -> None:
    path = mount.path / "npy/a.npy"
    whole(mount)
    assert kept(mount)
    array = (mount.store if by == "another program" else mount.path / "zarr3") / "a"
    size = path.stat().st_size
    with path.open("rb", buffering=0) as reader:
        match event:
            case "erased":
                shutil.rmtree(array)
            case "replaced":
                zarr.create_array(str(array), data=ELEMENTS[:10].astype("f8"), overwrite=True)
            case "shrunk":
                zarr.open_array(str(array), mode="r+").resize((100, 256))

        def is_stale() -> np.ndarray:
            try:
                os.pread(reader.fileno(), 100, size - 100)
            except OSError as error:
                return np.array(error.errno == errno.ESTALE)
            return np.array(False)

        eventually(is_stale, np.array(True))


@pytest.mark.parametrize("first", ["reader", "writer"])
def test_refused_bytes_of_a_mapping_are_not_kept(store: Path, first: str) -> None:
    """The kernel keeps the page of a mapping whose write-back was refused; a reader that is open meanwhile does not make it valid."""
    with mounted(store, ends_with=7) as mount:
        path = mount.path / "npy/a.npy"
        content = path.read_bytes()
        flags = (os.O_RDONLY, os.O_RDWR) if first == "reader" else (os.O_RDWR, os.O_RDONLY)
        descriptors = dict(zip(flags, [os.open(path, each) for each in flags], strict=True))
        assert os.pread(descriptors[os.O_RDONLY], len(content), 0) == content
        with mmap.mmap(descriptors[os.O_RDWR], 0) as mapping:
            # This byte is in the header, which cannot be changed.
            mapping[100] = ord("#")
            with pytest.raises(PermissionError):
                mapping.flush()
        for descriptor in descriptors.values():
            os.close(descriptor)
        path.stat()
        assert path.read_bytes() == content
        assert path.read_bytes() == content
