"""No request waits forever: writers in one view while readers wait for a slow store in another, under a watchdog.

The order under test deadlocks a daemon that notifies the kernel of changes from its event loop: a READ of an inode is in flight (the
kernel holds a lock on its pages), the chunk of that inode is replaced through another view, and the kernel has to invalidate these
pages. It then waits for the READ, which waits for the daemon.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, abort, connection_of, mounted_hanging, mounted_slowly, watchdog
from tests.support.small_stores import array_document, write

pytestmark = pytest.mark.fuse

PAGES = 16
NBYTES = PAGES * 4096
CHUNKS = 8

# In processes of their own: a thread that waits for a dead mount would block pytest.
_READER = """
import errno, os, random, sys
view, rounds = sys.argv[1], int(sys.argv[2])
for _ in range(rounds):
    path = PATHS[random.choice([f"{view}/{index}" for index in range(CHUNKS)] + ["npy"])]
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        # The kernel looks a name up again only once when it leads to another file meanwhile.
        assert error.errno in (errno.ENOENT, errno.ESTALE), error
        continue
    try:
        data = os.read(fd, NBYTES // 2)
        # To the end: read(2) gives what it has when a later page fails, and the error at the next call.
        while len(data) < NBYTES and (more := os.read(fd, NBYTES)):
            data += more
        if STRICT and path != PATHS["npy"]:
            assert len(set(data)) == 1 and len(data) == NBYTES, f"a mix: {len(data)} bytes of {set(data)} in {path}"
    except OSError as error:
        # EIO to who waits for a page that another reader asked for, and whose READ ends with ESTALE.
        assert error.errno in (errno.ESTALE, errno.EIO), error
    finally:
        if random.random() < 0.5:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
"""

_WRITER = """
import errno, os, random, sys
view, rounds = sys.argv[1], int(sys.argv[2])
for number in range(rounds):
    path = PATHS[f"{view}/{random.randrange(CHUNKS)}"]
    try:
        with open(path, "wb" if random.random() < 0.5 else "r+b", buffering=0) as file:
            assert file.write(bytes([random.randrange(256)]) * NBYTES) == NBYTES
            if random.random() < 0.3:
                os.fsync(file.fileno())
    except OSError as error:
        # Another writer of this chunk has just emptied it: an empty chunk is none, and fsync publishes what is there.
        assert (error.errno, view) == (errno.EINVAL, "chunks"), error
    if random.random() < 0.2:
        os.stat(path)
        os.listdir(os.path.dirname(path))
"""


@pytest.fixture
def slow_mount(tmp_path: Path) -> Iterator[Mounted]:
    store = write(tmp_path / "store", {".zgroup": b'{"zarr_format":2}'})
    write(store / "a", {".zarray": array_document((CHUNKS * NBYTES,), (NBYTES,), "|u1")})
    write(store / "a", {str(index): bytes(NBYTES) for index in range(CHUNKS)})
    with mounted_slowly(store, 0.005, cache_dir=str(tmp_path)) as mount:
        yield mount


@contextlib.contextmanager
def programs(mount: Mounted, *scripts: tuple[str, str, int], strict: bool = False) -> Iterator[None]:
    """Run processes ``(script, view, rounds)`` on the mount; all have to end well before the watchdog's limit.

    With ``strict``, every read gives the old value or the new one; in place, a reader may see half of a write, as on any file system.
    """
    paths = {f"{view}/{index}": str(mount.path / view / "a" / str(index)) for view in ("raw", "chunks") for index in range(CHUNKS)}
    paths["npy"] = str(mount.path / "npy/a.npy")
    given = f"PATHS, CHUNKS, NBYTES, STRICT = {paths!r}, {CHUNKS}, {NBYTES}, {strict}\n"
    running = [
        subprocess.Popen([sys.executable, "-c", given + script, view, str(rounds)], stderr=subprocess.PIPE)
        for script, view, rounds in scripts
    ]
    connection = connection_of(mount.path)

    def free() -> None:
        os.kill(mount.pid, signal.SIGKILL)
        if connection is not None:
            abort(connection)

    with watchdog(60, free):
        yield
        for process in running:
            _, said = process.communicate()
            assert process.returncode == 0, said.decode()


@pytest.mark.full_length
def test_writers_in_one_view_and_slow_readers_in_the_others(slow_mount: Mounted) -> None:
    rounds = 40
    with programs(
        slow_mount,
        (_WRITER, "raw", rounds),
        (_WRITER, "chunks", rounds),
        (_READER, "raw", rounds),
        (_READER, "chunks", rounds),
    ):
        pass
    assert "has not taken a change notice" not in slow_mount.log()
    assert "Traceback" not in slow_mount.log()
    with programs(slow_mount, (_WRITER, "raw", 1)):
        assert slow_mount.stats()["store_operations"]["set"] > 0
    for index in range(CHUNKS):
        # In the end all views agree.
        stored = (slow_mount.store / "a" / str(index)).read_bytes()
        assert (slow_mount.path / "raw/a" / str(index)).read_bytes() == stored
        assert (slow_mount.path / "chunks/a" / str(index)).read_bytes() == stored
        assert (slow_mount.path / "npy/a.npy").read_bytes()[128 + index * NBYTES :][:NBYTES] == stored


@pytest.mark.parametrize(("written", "read"), [("raw", "chunks"), ("chunks", "raw")])
def test_readers_of_another_view_see_the_old_value_or_the_new_one(written: str, read: str, slow_mount: Mounted) -> None:
    with programs(slow_mount, (_WRITER, written, 40), (_WRITER, written, 40), *[(_READER, read, 60)] * 3, strict=True):
        pass
    assert "Traceback" not in slow_mount.log()


def test_names_come_and_go_while_slow_readers_look(slow_mount: Mounted) -> None:
    names = """
import os, random, sys
folder = os.path.dirname(PATHS["raw/0"])
for number in range(int(sys.argv[2])):
    new = os.path.join(folder, "new" + str(os.getpid()))
    with open(new, "wb") as file:
        file.write(bytes([number]) * NBYTES)
    os.rename(new, PATHS[f"raw/{random.randrange(CHUNKS)}"])
    victim = PATHS[f"{sys.argv[1]}/{random.randrange(CHUNKS)}"]
    try:
        os.unlink(victim)
    except FileNotFoundError:
        pass
    os.listdir(folder)
"""
    with programs(
        slow_mount,
        (names, "raw", 20),
        (names, "chunks", 20),
        (_READER, "raw", 40),
        (_READER, "raw", 40),
        (_READER, "chunks", 40),
        strict=True,
    ):
        pass
    assert "has not taken a change notice" not in slow_mount.log()
    assert "Traceback" not in slow_mount.log()


CHANGED = {
    "fsync": "fd = os.open(sys.argv[1], os.O_RDWR); os.write(fd, b'new'); os.fsync(fd)",
    "truncate": "os.truncate(sys.argv[1], 2)",
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_file_is_removed_while_it_is_stored_and_its_folder_changes(change: str, tmp_path: Path) -> None:
    """The kernel has locked the file; its removal waits for that with the folder locked, and notifications on the folder wait as well."""
    store = write(tmp_path / "store", {"k": b"old", "other": b"value"})
    with mounted_hanging(store, 60.0, cache_dir=str(tmp_path)) as mount, watchdog(60, lambda: os.kill(mount.pid, signal.SIGKILL)):
        path = mount.path / "raw/k"
        path.read_bytes()
        # Held: of a file that the kernel has forgotten, as when another test drops its caches, it would not be told.
        other = os.open(mount.path / "raw/other", os.O_RDONLY)
        mount.hang("k", "set")
        changes = subprocess.Popen([sys.executable, "-c", f"import os, sys; {change}", path])
        while not mount.operations().get("set"):
            pass
        removes = removing(path)
        (store / "other").unlink()
        wait_until_locked(f"/proc/{mount.pid}/task/*/stat")
        mount.answer()
        assert changes.wait() == removes.wait() == 0
        os.close(other)
        assert os.listdir(mount.path / "raw") == os.listdir(store) == []
        assert "has not taken a change notice" not in mount.log()


def test_who_changes_other_folders_meanwhile_is_seen(tmp_path: Path) -> None:
    """However long the removal takes, only notifications on its folder wait."""
    store = write(tmp_path / "store", {"d/k": b"old", "d/other": b"value", "e/first": b"first", "e/last": b"last"})
    with mounted_hanging(store, 60.0, cache_dir=str(tmp_path)) as mount, watchdog(60, lambda: os.kill(mount.pid, signal.SIGKILL)):
        path, others = mount.path / "raw/d/k", [mount.path / "raw/e/first", mount.path / "raw/e/last"]
        for each in (path, *others):
            each.read_bytes()
        # Held, as above.
        other = os.open(mount.path / "raw/d/other", os.O_RDONLY)
        mount.hang("d/k", "set")
        changes = subprocess.Popen([sys.executable, "-c", f"import os, sys; {CHANGED['fsync']}", path])
        while not mount.operations().get("set"):
            pass
        removes = removing(path)
        (store / "d/other").unlink()
        wait_until_locked(f"/proc/{mount.pid}/task/*/stat")
        for each in others:
            (store / "new").write_bytes(b"another")
            (store / "new").rename(store / "e" / each.name)
            while each.read_bytes() != b"another":
                pass
        assert removes.poll() is None
        mount.answer()
        assert changes.wait() == removes.wait() == 0
        os.close(other)
        assert os.listdir(mount.path / "raw/d") == os.listdir(store / "d") == []


def removing(path: Path) -> subprocess.Popen[bytes]:
    """Start a program that removes a file, and wait until the kernel blocks it there, not while it loads the program from a slow disk."""
    program = "import os, sys; os.write(1, b'.'); os.unlink(sys.argv[1])"
    removes = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
    assert removes.stdout is not None and removes.stdout.read(1)
    wait_until_locked(f"/proc/{removes.pid}/stat")
    return removes


def wait_until_locked(pattern: str) -> None:
    """Wait until the kernel blocks one of these tasks beyond signals (proc(5), /proc/pid/stat: state D)."""
    states = ""
    while "D" not in states:
        # A thread may end between the two steps of reading, too.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            states = "".join(Path(each).read_text().rpartition(")")[2].split()[0] for each in glob.glob(pattern))


def test_a_defect_of_a_store_is_eio_to_one_and_the_mount_goes_on(slow_mount: Mounted) -> None:
    write(slow_mount.store, {"raises": b"value"})
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            (slow_mount.path / "raw/raises").read_bytes()
    assert (slow_mount.path / "raw/a/0").read_bytes() == bytes(NBYTES)
    assert "ZeroDivisionError: a defect of this store" in slow_mount.log()
    assert "Traceback" in slow_mount.log()
    assert any(line["error"] == "ZeroDivisionError" for line in slow_mount.errors())
