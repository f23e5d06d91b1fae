"""External changes: by inotify where the store is a folder that may be watched, otherwise visible after ``--metadata-ttl``."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.length import share
from tests.support.mounting import Mounted, mounted
from tests.support.small_stores import SMALL, array_document, chunk, write
from tests.support.waiting import until

pytestmark = pytest.mark.fuse

# Far longer than any test: visible changes come from notifications.
LONG = ("--metadata-ttl", "3600")


def settled(mount: Mounted) -> None:
    """Wait until the mount has processed all external changes so far.

    They arrive in order, and the kernel's size of a file changes only with a notification.
    """
    path, shown = mount.store / "marker", mount.path / "raw/marker"
    path.write_bytes(b"1")
    until(lambda: shown.stat().st_size == 1)
    path.write_bytes(b"22")
    until(lambda: shown.stat().st_size == 2)


@contextlib.contextmanager
def watched(store: Path, tmp_path: Path, *options: str) -> Iterator[Mounted]:
    with mounted(store, *LONG, "--cache-dir", str(tmp_path), *options) as mount:
        until(lambda: mount.stats()["watched"])
        yield mount


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "store", SMALL | {"k": b"old value", "d/e/k": b"old"})


@pytest.fixture
def mount(store: Path, tmp_path: Path) -> Iterator[Mounted]:
    with watched(store, tmp_path) as mount:
        yield mount


def until_of_size(path: Path, size: int) -> None:
    """Wait until a name has this size: a notice about a folder whose names are being changed may come after those of all others."""
    until(lambda: path.stat().st_size == size)


def replace(path: Path, value: bytes) -> None:
    """Replace a file as most programs do."""
    path.with_name("new").write_bytes(value)
    path.with_name("new").rename(path)


# --- with inotify ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [replace, Path.write_bytes], ids=["renamed over", "in place"])
def test_a_value_replaced_behind_the_mount_is_seen_at_once_and_is_another_file(
    mount: Mounted, change: Callable[..., object]
) -> None:
    path = mount.path / "raw/k"
    before = path.stat()
    with open(path, "rb", buffering=0) as reader:
        assert reader.read(3) == b"old"
        change(mount.store / "k", b"another value")
        until(lambda: path.read_bytes() == b"another value")
        assert path.stat().st_size == 13
        assert path.stat().st_ino != before.st_ino
        with contextlib.suppress(OSError):
            assert os.pread(reader.fileno(), 100, 3) == b" value", "old to the end, or stale: never a mix"


def test_a_value_that_nobody_reads_is_another_file_too(mount: Mounted) -> None:
    path = mount.path / "raw/k"
    # The kernel cannot forget an inode that a program holds.
    held = os.open(path, os.O_PATH)
    try:
        replace(mount.store / "k", b"new value")
        until(lambda: path.read_bytes() == b"new value")
        assert path.stat().st_ino != os.fstat(held).st_ino
    finally:
        os.close(held)


def test_a_large_value_replaced_while_it_is_read_is_read_to_its_end_and_never_a_mix(store: Path, tmp_path: Path) -> None:
    size = 20 << 20
    (store / "large").write_bytes(bytes([1]) * size)
    with watched(store, tmp_path) as mount:
        path = mount.path / "raw/large"
        with open(path, "rb", buffering=0) as reader:
            assert os.pread(reader.fileno(), 4096, 0) == bytes([1]) * 4096
            replace(mount.store / "large", bytes([2]) * size)
            until(lambda: path.read_bytes()[:1] == bytes([2]))
            assert os.pread(reader.fileno(), 4096, size - 4096) == bytes([1]) * 4096
            assert os.pread(reader.fileno(), 4096, 0) == bytes([1]) * 4096, "its pages are still of the old value"
        assert path.read_bytes() == bytes([2]) * size


def test_attributes_are_not_kept_when_a_value_changes(mount: Mounted) -> None:
    path = mount.path / "raw/k"
    assert path.stat().st_size == 9
    with open(mount.store / "k", "ab") as file:
        file.write(b", longer")
    until(lambda: path.stat().st_size == 17)
    os.utime(mount.store / "k", (1_000_000_007, 1_000_000_007))
    until(lambda: path.stat().st_mtime == 1_000_000_007)


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("change", [replace, Path.write_bytes], ids=["renamed over", "in place"])
def test_a_value_changed_just_before_its_rename_is_seen_at_the_new_name(
    mount: Mounted, change: Callable[..., object], is_open: bool
) -> None:
    raw, store = mount.path / "raw/d/e", mount.store / "d/e"
    for size in range(20, 40):
        old, new = raw / f"k{size}", raw / f"m{size}"
        (store / old.name).write_bytes(b"old")
        until(old.exists)
        settled(mount)
        with contextlib.closing(open(old, "rb")) as reader:
            assert reader.read() == b"old"
            if not is_open:
                reader.close()
            change(store / old.name, bytes(size))
            old.rename(new)
            settled(mount)
            assert new.exists()
            until_of_size(new, size)
            assert new.read_bytes() == bytes(size)
            (store / new.name).write_bytes(b"longer" * size)
        change(store / new.name, b"next")
        raw.rename(raw.with_name("f"))
        until_of_size(raw.with_name("f") / new.name, 4)
        raw.with_name("f").rename(raw)


def test_names_that_go_are_not_kept(mount: Mounted) -> None:
    for name in ("k", "d/e/k", "a/0.0"):
        assert (mount.path / "raw" / name).exists()
    (mount.store / "k").unlink()
    until(lambda: not (mount.path / "raw/k").exists())
    shutil.rmtree(mount.store / "d")
    until(lambda: not (mount.path / "raw/d/e/k").exists() and not (mount.path / "raw/d").exists())
    (mount.store / "a/0.0").unlink()
    until(lambda: not (mount.path / "chunks/a/0.0").exists())


def test_a_folder_renamed_behind_the_mount(mount: Mounted) -> None:
    assert (mount.path / "raw/d/e/k").read_bytes() == b"old"
    (mount.store / "d").rename(mount.store / "f")
    until(lambda: not (mount.path / "raw/d/e/k").exists())
    # A new file of the same size and time replaces it.
    times = os.stat(mount.store / "f/e/k")
    write(mount.store, {"g/e/k": b"new"})
    os.utime(mount.store / "g/e/k", ns=(times.st_mtime_ns, times.st_mtime_ns))
    settled(mount)
    assert (mount.path / "raw/f/e/k").read_bytes() == b"old"
    with open(mount.path / "raw/f/e/k", "rb") as reader:
        (mount.store / "f").rename(mount.store / "h")
        (mount.store / "g").rename(mount.store / "f")
        until(lambda: (mount.path / "raw/f/e/k").read_bytes() == b"new")
        with contextlib.suppress(OSError):
            assert os.pread(reader.fileno(), 3, 0) == b"old"


def test_a_chunk_changed_behind_the_mount_is_seen_in_every_view(mount: Mounted) -> None:
    elements = np.load(mount.path / "npy/a.npy")
    assert (mount.path / "chunks/a/0.0").read_bytes() == chunk(0, 0)
    with open(mount.path / "npy/a.npy", "rb", buffering=0) as reader:
        reader.read()
        replace(mount.store / "a/0.0", bytes(24))
        until(lambda: (mount.path / "chunks/a/0.0").read_bytes() == bytes(24))
        until(lambda: not np.load(mount.path / "npy/a.npy")[:2, :3].any())
        assert not np.frombuffer(os.pread(reader.fileno(), 12, 128), "<i4").any(), (
            "who has a whole array open sees its chunks change"
        )
    assert (np.load(mount.path / "npy/a.npy")[2:] == elements[2:]).all()
    write(mount.store, {"a/2.1": bytes(24)})
    until(lambda: not np.load(mount.path / "npy/a.npy")[4:, 3:].any())
    assert (mount.path / "chunks/a/2.1").read_bytes() == bytes(24)


def shape_of(path: Path) -> tuple[int, ...] | None:
    """Return the shape, None if the array changes while it is read: numpy.load takes ESTALE for the end of the file."""
    try:
        return np.load(path).shape
    except ValueError:
        return None


def is_stale(fd: int) -> bool:
    try:
        os.pread(fd, 1 << 10, 0)
    except OSError as error:
        return error.errno == errno.ESTALE
    return False


def test_an_array_resized_behind_the_mount(mount: Mounted) -> None:
    assert np.load(mount.path / "npy/a.npy").shape == (6, 5)
    # Not from the kernel's pages, which keep what was read before the change was reported.
    with open(os.open(mount.path / "npy/a.npy", os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as reader:
        replace(mount.store / "a/.zarray", array_document((4, 5), (2, 3)))
        until(lambda: shape_of(mount.path / "npy/a.npy") == (4, 5))
        # A new open finds the new document before the change is reported, and with that the old file ends.
        until(lambda: is_stale(reader.fileno()))
    assert json.loads((mount.path / "chunks/a/.zarray").read_text())["shape"] == [4, 5]
    assert not (mount.path / "chunks/a/2.0").exists()


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
def test_a_renamed_group_keeps_its_number_when_its_document_changes_behind_the_mount(tmp_path: Path, view: str) -> None:
    document = b'{"zarr_format": 3, "node_type": "group"}'
    with watched(write(tmp_path / "store", {"zarr.json": document, "g/zarr.json": document}), tmp_path) as mount:
        renamed = mount.path / view / "h"
        (mount.path / view / "g").rename(renamed)
        settled(mount)
        number = renamed.stat().st_ino
        # The kernel drops the name: programs that compare the lstat with the fstat of what they open must not take it for another folder.
        replace(mount.store / "h/zarr.json", document[:-1] + b', "attributes": {"a": 1}}')
        settled(mount)
        assert renamed.stat().st_ino == number


def test_nodes_made_and_removed_behind_the_mount(mount: Mounted) -> None:
    assert not (mount.path / "chunks/n").exists()
    assert not (mount.path / "npy/n/b.npy").exists()
    write(mount.store, {"n/.zgroup": b'{"zarr_format":2}', "n/b/.zarray": array_document((2, 3), (2, 3)), "n/b/0.0": chunk(0, 0)})
    until(lambda: (mount.path / "chunks/n/b/0.0").read_bytes() == chunk(0, 0))
    until(lambda: np.load(mount.path / "npy/n/b.npy").shape == (2, 3))
    shutil.rmtree(mount.store / "n")
    until(lambda: not (mount.path / "npy/n/b.npy").exists())
    until(lambda: not (mount.path / "chunks/n/b").exists() and not (mount.path / "chunks/n").exists())
    (mount.store / "implied").mkdir()
    until(lambda: (mount.path / "chunks/implied").is_dir())
    (mount.store / "implied").rmdir()
    until(lambda: not (mount.path / "chunks/implied").exists())


def test_what_is_written_through_the_mount_is_nobody_elses_change(mount: Mounted) -> None:
    """Open files stay valid, inode numbers stay, and no decoded chunk is dropped."""
    path = mount.path / "raw/k"
    number = path.stat().st_ino
    with open(path, "r+b", buffering=0) as file:
        for attempt in range(share(200)):
            value = f"value {attempt}".encode()
            assert os.pwrite(file.fileno(), value, 0) == len(value)
            os.fsync(file.fileno())
            os.utime(path, (attempt, attempt))
            assert os.pread(file.fileno(), len(value), 0) == value
    assert path.stat().st_ino == number
    np.load(mount.path / "npy/a.npy")
    decoded = mount.stats()["chunks_decoded"]
    (mount.path / "raw/a/notes").write_bytes(b"x")
    (mount.path / "raw/a/notes").unlink()
    # Notifications arrive in order: after this one, all earlier ones have arrived.
    (mount.store / "seen").write_bytes(b"x")
    until((mount.path / "raw/seen").exists)
    replace(mount.store / "seen", b"yes")
    until(lambda: (mount.path / "raw/seen").read_bytes() == b"yes")
    np.load(mount.path / "npy/a.npy")
    assert mount.stats()["chunks_decoded"] == decoded


def test_the_kernel_does_not_ask_again_for_what_would_be_told(store: Path, tmp_path: Path) -> None:
    with mounted(store, "--metadata-ttl", "0.001", "--cache-dir", str(tmp_path)) as mount:
        until(lambda: mount.stats()["watched"])
        (mount.path / "raw/d/e/k").stat()
        with mount.counted() as cost:
            for _ in range(100):
                (mount.path / "raw/d/e/k").stat()
        assert cost.get("stat", 0) == 0


def burst(mount: Mounted, folder: Path) -> None:
    """Cause more changes than the kernel's queue holds, while the daemon does not read it."""
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        for number in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 3 + 100):
            (folder / str(number)).write_bytes(b"x")
    finally:
        os.kill(mount.pid, signal.SIGCONT)


def test_a_burst_that_overflows_the_queue(mount: Mounted) -> None:
    (mount.store / "burst").mkdir()
    before = {name: (mount.path / name).stat().st_ino for name in ("raw/k", "raw/a/0.0", "raw/d/e/k", "chunks/a/0.0")}
    np.load(mount.path / "npy/a.npy")
    (mount.path / "raw/d/e/k").read_bytes()
    with open(mount.path / "raw/k", "rb", buffering=0) as changed, open(mount.path / "raw/a/0.1", "rb", buffering=0) as unchanged:
        assert changed.read(3) == b"old"
        burst(mount, mount.store / "burst")
        # Notifications of these changes may arrive or may be lost.
        times = os.stat(mount.store / "d/e/k")
        (mount.store / "d/e/k").write_bytes(b"new")
        os.utime(mount.store / "d/e/k", ns=(times.st_mtime_ns, times.st_mtime_ns))
        replace(mount.store / "k", b"new value")
        replace(mount.store / "a/0.0", bytes(24))
        (mount.store / "z/.zarray").unlink()
        write(mount.store, {"made/after/k": b"x"})
        until(lambda: (mount.path / "raw/k").read_bytes() == b"new value")
        until(lambda: (mount.path / "raw/d/e/k").read_bytes() == b"new")
        until(lambda: (mount.path / "chunks/a/0.0").read_bytes() == bytes(24))
        until(lambda: not np.load(mount.path / "npy/a.npy")[:2, :3].any())
        until(lambda: not (mount.path / "npy/z.npy").exists())
        with contextlib.suppress(OSError):
            assert os.pread(changed.fileno(), 100, 3) == b" value", "old to the end, or stale: never a mix"
        assert os.pread(unchanged.fileno(), 100, 0) == chunk(0, 1), "who has it open need not care"
        assert (mount.path / "raw/k").stat().st_ino != before["raw/k"]
    until(lambda: "reporting everything as changed" in mount.log())
    write(mount.store, {"made/after/k": b"changed"})
    until(lambda: (mount.path / "raw/made/after/k").read_bytes() == b"changed")


def test_the_stores_own_folder_is_removed(store: Path, tmp_path: Path) -> None:
    with watched(store, tmp_path) as mount:
        assert (mount.path / "raw/d/e/k").read_bytes() == b"old"
        shutil.rmtree(store)
        until(lambda: os.listdir(mount.path / "raw") == [])
        until(lambda: not (mount.path / "raw/d").exists() and not (mount.path / "chunks/a").exists())


# --- without inotify ------------------------------------------------------------------------------------------------------------


def test_without_a_watch_changes_are_seen_after_the_time_to_live(store: Path, tmp_path: Path) -> None:
    size = 20 << 20
    (store / "large").write_bytes(bytes([1]) * size)
    with mounted(store, "--no-watch", "--metadata-ttl", "0.5", "--cache-dir", str(tmp_path)) as mount:
        assert mount.stats()["watched"] is False
        paths = [mount.path / name for name in ("raw/k", "raw/d/e/k", "npy/a.npy", "chunks/a/0.0")]
        before = [path.stat().st_ino for path in paths]
        np.load(mount.path / "npy/a.npy")
        with open(mount.path / "raw/large", "rb", buffering=0) as reader, open(paths[0], "rb") as _:
            assert os.pread(reader.fileno(), 4096, 0) == bytes([1]) * 4096
            replace(store / "large", bytes([2]) * size)
            replace(store / "k", b"another value")
            replace(store / "a/0.0", bytes(24))
            shutil.rmtree(store / "d")
            until(lambda: paths[0].read_bytes() == b"another value")
            until(lambda: not paths[1].exists())
            until(lambda: not np.load(paths[2])[:2, :3].any())
            until(lambda: paths[3].read_bytes() == bytes(24))
            until(lambda: (mount.path / "raw/large").read_bytes() == bytes([2]) * size)
            assert os.pread(reader.fileno(), 4096, size - 4096) == bytes([1]) * 4096
            assert paths[0].stat().st_ino != before[0]


# --- random changes ---------------------------------------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return names and contents below a folder; None for folders. Each name is also looked up."""
    found: dict[str, bytes | None] = {}
    for above, folders, files in os.walk(folder):
        here = Path(above)
        for name in folders:
            found[(here / name).relative_to(folder).as_posix()] = None
        for name in files:
            value = (here / name).read_bytes()
            assert (here / name).stat().st_size == len(value), name
            found[(here / name).relative_to(folder).as_posix()] = value
    return found


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_behind_the_mount_the_mount_shows_the_folder(tmp_path: Path, seed: int) -> None:
    """Random operations on the store's folder and, in between, through the mount, including names that were looked up and are gone."""
    chance = random.Random(seed)
    store = tmp_path / "store"
    store.mkdir()
    seen: set[str] = set()
    with watched(store, tmp_path, "--views", "raw") as mount:
        raw = mount.path / "raw"
        for _ in range(30):
            for _ in range(chance.randrange(1, 15)):
                do_something(store if chance.random() < 0.8 else raw, chance)
                if chance.random() < 0.3:
                    look_somewhere(raw, chance)
            until(lambda: tree(raw) == tree(store))
            expected = tree(store)
            seen |= expected.keys()
            for name in seen - expected.keys():
                # The notification of a name may arrive after that of its folder.
                until(lambda name=name: not os.path.lexists(raw / name))  # type: ignore[misc]
            for name, value in expected.items():
                assert (raw / name).stat().st_size == len(value) if value is not None else (raw / name).is_dir()


def place_in(folder: Path, chance: random.Random) -> Path:
    return folder.joinpath(*(chance.choice("abc") for _ in range(chance.randrange(1, 4))))


def look_somewhere(raw: Path, chance: random.Random) -> None:
    with contextlib.suppress(OSError):
        place_in(raw, chance).read_bytes()


def do_something(folder: Path, chance: random.Random) -> None:
    with contextlib.suppress(OSError, shutil.Error):
        here = place_in(folder, chance)
        match chance.randrange(8):
            case 0 | 1:
                here.parent.mkdir(parents=True, exist_ok=True)
                here.write_bytes(chance.randbytes(chance.randrange(1, 4)))
            case 2:
                with open(here, "r+b") as file:
                    file.write(chance.randbytes(1))
            case 3:
                here.rename(place_in(folder, chance))
            case 4:
                shutil.rmtree(here)
            case 5:
                here.unlink()
            case 6:
                here.mkdir(parents=True)
            case 7:
                os.utime(here, (chance.randrange(1000), chance.randrange(1000)))


@pytest.mark.parametrize("nbytes", [100, 1000])
@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY | os.O_APPEND], ids=["to change", "to append"])
def test_a_value_replaced_after_an_open_that_wrote_nothing_is_read_to_its_end(tmp_path: Path, flags: int, nbytes: int) -> None:
    """The kernel had the size of before, up to which it read the new value."""
    store = tmp_path / "store"
    store.mkdir()
    (store / "k").write_bytes(b"a" * 440)
    with mounted(store, "--no-watch", "--metadata-ttl", "60") as mount:
        path = mount.path / "raw/k"
        assert path.stat().st_size == 440
        descriptor = os.open(path, flags)
        os.fsync(descriptor)
        os.close(descriptor)
        assert path.stat().st_size == 440
        (store / "new").write_bytes(b"b" * nbytes)
        (store / "new").rename(store / "k")
        assert path.read_bytes() == b"b" * nbytes
        with path.open("r+b") as file:
            assert os.fstat(file.fileno()).st_size == nbytes
