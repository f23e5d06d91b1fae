"""System calls of the daemon: fsync(file), rename, fsync(folder) before the answer if a program requested durability, else no fsync."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted
from tests.support.programs import cannot, demand
from tests.support.small_shards import document, shard, sharding

pytestmark = pytest.mark.fuse

HEX = "0123456789abcdef" * 2
_CALL = re.compile(r"(?:\d+ +)?(fsync|fdatasync|syncfs|renameat2?|rename|linkat)\((.*)\) += 0")


@contextmanager
def traced(mount: Mounted, file: Path) -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns the daemon's file system calls in the body so far (see `seen`)."""
    calls = "fsync,fdatasync,syncfs,rename,renameat,renameat2,linkat"
    command = ["strace", "-f", "-y", "-qq", "-s", "200", "-o", str(file), "-e", f"trace={calls}", "-p", str(mount.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:
        try:
            # Attached once the kernel reports a tracer for every thread.
            tasks = Path(f"/proc/{mount.pid}/task")
            while any("TracerPid:\t0" in (task / "status").read_text() for task in tasks.iterdir()):
                if tracer.poll() is not None:
                    cannot((tracer.stderr.read() if tracer.stderr else b"").decode())
            yield lambda: seen(file, mount.store)
        finally:
            with contextlib.suppress(ProcessLookupError):
                tracer.send_signal(signal.SIGINT)


def seen(file: Path, store: Path) -> list[str]:
    """Return ``fsync new``, ``rename new k``, ``fsync folder``: the new value is called ``new`` here, whatever its temporary name."""
    calls = []
    # A call interrupted by one of another thread is written in two parts.
    text, parts = "", dict[str, str]()
    for line in file.read_text().splitlines():
        thread, rest = line.split(None, 1)
        if rest.endswith("<unfinished ...>"):
            parts[thread] = rest.removesuffix("<unfinished ...>")
        elif (resumed := re.match(r"<\.\.\. \w+ resumed>", rest)) is not None:
            text += parts.pop(thread) + rest[resumed.end() :] + "\n"
        else:
            text += rest + "\n"
    for line in text.splitlines():
        match = _CALL.match(line)
        if match is None:
            continue
        call, arguments = match.groups()
        arguments = re.sub(r"\.zarrfs-[0-9a-f]{32}\.partial", "new", arguments)
        call = {"renameat": "rename", "renameat2": "rename", "fdatasync": "fsync", "linkat": "link"}.get(call, call)
        if call in ("fsync", "syncfs"):
            path = re.search(r"<(.*)>", arguments)
            assert path is not None
            name = os.path.relpath(path[1], store)
            calls.append(f"{call} {'new' if name.endswith('new') else name}")
        else:
            calls.append(" ".join((call, *re.findall(r'"([^"]*)"', arguments))))
    return calls


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounted]:
    demand("strace")
    (tmp_path / "store" / "folder").mkdir(parents=True)
    (tmp_path / "store" / "folder" / "k").write_bytes(b"old")
    with mounted(tmp_path / "store") as mount:
        yield mount


def written(path: Path, *, fsync: bool) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, b"new value")
    if fsync:
        os.fsync(fd)
    return fd


DURABLE = ["fsync new", "rename new k"]


def test_fsync_writes_the_value_down_before_it_replaces_the_old_one(mount: Mounted, tmp_path: Path) -> None:
    with traced(mount, tmp_path / "trace") as calls:
        fd = written(mount.path / "raw" / "folder" / "k", fsync=True)
        # fsync(2) has returned: these calls came before the answer.
        before = calls()
        os.close(fd)
        assert before[:2] == DURABLE
        assert before[-1] == "fsync folder"
        assert calls() == before, "close has nothing more to do"
    assert (mount.store / "folder" / "k").read_bytes() == b"new value"


@pytest.mark.full_length
def test_without_fsync_nothing_is_synced(mount: Mounted, tmp_path: Path) -> None:
    with traced(mount, tmp_path / "trace") as calls:
        os.close(written(mount.path / "raw" / "folder" / "k", fsync=False))
        assert calls() == ["rename new k"]
        (mount.path / "raw" / "folder" / "k").rename(mount.path / "raw" / "folder" / "l")
        (mount.path / "raw" / "folder" / "l").unlink()
    assert not [call for call in seen(tmp_path / "trace", mount.store) if "sync" in call]


def test_with_durable_every_close_is_an_fsync(tmp_path: Path) -> None:
    demand("strace")
    (tmp_path / "store" / "folder").mkdir(parents=True)
    with mounted(tmp_path / "store", "--durable") as mount, traced(mount, tmp_path / "trace") as calls:
        os.close(written(mount.path / "raw" / "folder" / "k", fsync=False))
        assert calls()[:2] == DURABLE
        assert calls()[-1] == "fsync folder"


def test_fsync_of_a_temporary_name_is_kept_for_the_rename(mount: Mounted, tmp_path: Path) -> None:
    """As tensorstore does: fsync, rename over the key, fsync of the folder."""
    temporary = mount.path / "raw" / "folder" / "k.__lock"
    with traced(mount, tmp_path / "trace") as calls:
        fd = written(temporary, fsync=True)
        assert calls() == []
        os.rename(temporary, mount.path / "raw" / "folder" / "k")
        assert calls()[:2] == DURABLE
        assert calls()[-1] == "fsync folder"
        os.close(fd)


@pytest.mark.full_length
def test_fsync_of_a_temporary_name_is_kept_for_the_link(mount: Mounted, tmp_path: Path) -> None:
    temporary = mount.path / "raw" / "folder" / f"l.{HEX}.partial"
    with traced(mount, tmp_path / "trace") as calls:
        os.close(written(temporary, fsync=True))
        os.link(temporary, mount.path / "raw" / "folder" / "l")
        assert calls()[:2] == ["fsync new", "link new l"]
        assert calls()[-1] == "fsync folder"
        temporary.unlink()


@pytest.mark.full_length
def test_fsync_of_a_folder(mount: Mounted, tmp_path: Path) -> None:
    with traced(mount, tmp_path / "trace") as calls:
        (mount.path / "raw" / "folder" / "new").write_bytes(b"x")
        fd = os.open(mount.path / "raw" / "folder", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        assert calls()[-1] == "fsync folder"


@pytest.mark.full_length
def test_the_end_of_a_mount_that_wrote_makes_everything_durable(tmp_path: Path) -> None:
    demand("strace")
    (tmp_path / "store").mkdir()
    for wrote in (True, False):
        with mounted(tmp_path / "store", ends_with=None) as mount, traced(mount, tmp_path / f"trace{wrote}"):
            if wrote:
                os.close(written(mount.path / "raw" / "k", fsync=False))
            else:
                assert (mount.path / "raw" / "k").read_bytes() == b"new value"
            assert mount.umount().returncode == 0
        assert ("syncfs ." in seen(tmp_path / f"trace{wrote}", tmp_path / "store")) == wrote


# --- shards, which are stored after the publish of their chunks

SHARD_DURABLE = ["fsync new", "rename new 0", "fsync a/c/0", "fsync a/c"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    demand("strace")
    folder = tmp_path / "store" / "a"
    (folder / "c").mkdir(parents=True)
    (folder / "zarr.json").write_bytes(document(8, 4, sharding(2)))
    (folder / "c" / "0").write_bytes(shard(2, {0: b"ab", 1: b"cd"}))
    return tmp_path / "store"


def change_a_chunk(path: Path, *, fsync: bool) -> None:
    with path.open("r+b") as file:
        file.write(b"xy")
        if fsync:
            file.flush()
            os.fsync(file.fileno())


@pytest.mark.parametrize("chunk", ["chunks/a/0", "zarr3/a/c/0", "npy/a.npy"])
def test_fsync_of_a_chunk_writes_its_shard_down_before_it_replaces_the_old_one(shards: Path, tmp_path: Path, chunk: str) -> None:
    with mounted(shards, "--shard-delay", "600") as mount, traced(mount, tmp_path / "trace") as calls:
        if chunk.endswith(".npy"):
            size = (mount.path / chunk).stat().st_size
            with (mount.path / chunk).open("r+b") as file:
                os.pwrite(file.fileno(), b"xy", size - 8)
                os.fsync(file.fileno())
        else:
            change_a_chunk(mount.path / chunk, fsync=True)
        assert calls()[:4] == SHARD_DURABLE


def test_with_durable_every_close_of_a_chunk_is_an_fsync_of_its_shard(shards: Path, tmp_path: Path) -> None:
    with mounted(shards, "--durable", "--shard-delay", "600") as mount, traced(mount, tmp_path / "trace") as calls:
        change_a_chunk(mount.path / "chunks/a/0", fsync=False)
        assert calls()[:4] == SHARD_DURABLE


def test_fsync_of_a_temporary_name_is_kept_for_the_shard_of_the_renamed_chunk(shards: Path, tmp_path: Path) -> None:
    with mounted(shards, "--shard-delay", "600") as mount, traced(mount, tmp_path / "trace") as calls:
        temporary = mount.path / "chunks/a/.0.tmp"
        temporary.touch()
        change_a_chunk(temporary, fsync=True)
        temporary.rename(mount.path / "chunks/a/0")
        assert calls()[:4] == SHARD_DURABLE


@pytest.mark.parametrize("folder", ["chunks/a", "chunks", "zarr3/a/c", "npy", "raw"])
def test_fsync_of_a_folder_makes_the_shards_durable_that_it_stores(shards: Path, tmp_path: Path, folder: str) -> None:
    with mounted(shards, "--shard-delay", "600") as mount, traced(mount, tmp_path / "trace") as calls:
        change_a_chunk(mount.path / "chunks/a/0", fsync=False)
        assert calls() == []
        fd = os.open(mount.path / folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        assert calls()[:3] == SHARD_DURABLE[:3] and "fsync a/c" in calls()


def test_fsync_of_a_new_group_makes_it_durable(mount: Mounted, tmp_path: Path) -> None:
    with traced(mount, tmp_path / "trace") as calls:
        (mount.path / "chunks" / "group").mkdir()
        fd = os.open(mount.path / "chunks" / "group", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        assert calls()[:2] == ["fsync new", "rename new zarr.json"]
        assert {"fsync group", "fsync ."} <= set(calls())


def test_fsync_of_a_folder_writes_down_the_documents_that_were_stored_without_it(mount: Mounted, tmp_path: Path) -> None:
    """Their names were synced alone: a power cut left an empty document of the group, or of the root with its consolidated copy."""
    (mount.path / "npy" / "group").mkdir()
    np.save(mount.path / "npy" / "group" / "a.npy", np.arange(3))
    (mount.path / "chunks" / ".zmetadata").write_text(
        '{"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}}}'
    )
    assert "consolidated_metadata" in (mount.store / "zarr.json").read_text()
    with traced(mount, tmp_path / "trace") as calls:
        (mount.path / "npy" / "group" / "a.npy").unlink()
        fd = os.open(mount.path / "npy" / "group", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        assert {"fsync group/zarr.json", "fsync zarr.json", "fsync group", "fsync ."} <= set(calls())


CHANGES = {
    "a new chunk in chunks/": (lambda root: (root / "chunks/a/1").write_bytes(b"xy"), "chunks/a"),
    "a removed chunk in chunks/": (lambda root: (root / "chunks/a/0").unlink(), "chunks/a"),
    "a removed chunk in zarr3/": (lambda root: (root / "zarr3/a/c/0").unlink(), "zarr3/a/c"),
    "a removed chunk, by the folder above": (lambda root: (root / "chunks/a/0").unlink(), "chunks"),
    "a renamed array": (lambda root: (root / "npy/a.npy").rename(root / "npy/b.npy"), "npy"),
    "a removed array": (lambda root: (root / "npy/a.npy").unlink(), "npy"),
}


@pytest.mark.parametrize("dialect", ["v3", "v2", "v3_2019", "v3_2022"])
@pytest.mark.parametrize("what", CHANGES)
def test_fsync_of_a_folder_makes_its_names_durable_wherever_their_keys_are(tmp_path: Path, dialect: str, what: str) -> None:
    demand("strace")
    (tmp_path / "store").mkdir()
    change, folder = CHANGES[what]
    with mounted(tmp_path / "store", "--new-dialect", dialect, "--new-chunks", "2") as mount:
        np.save(mount.path / "npy/a.npy", np.array([1, 2, 0, 0], "u1"))
    with mounted(tmp_path / "store") as mount:
        names = set(tree(mount.store))
        with traced(mount, tmp_path / "trace") as calls:
            change(mount.path)
            fd = os.open(mount.path / folder, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            synced = {call.removeprefix("fsync ") for call in calls() if call.startswith("fsync ")}
        different = names ^ set(tree(mount.store))
        # Of folders that appeared or disappeared, the name is what counts.
        changed = {os.path.dirname(name) or "." for name in different if os.path.dirname(name) not in different}
        assert changed
        assert changed <= synced


@pytest.mark.parametrize("dialect", ["v3", "v2", "v3_2019", "v3_2022"])
@pytest.mark.parametrize("through", ["npy/a.npy", "chunks/a/1"])
def test_fsync_of_a_whole_array_makes_all_of_it_durable_that_was_written_before(tmp_path: Path, dialect: str, through: str) -> None:
    """As by sync(1), which opens a file that another program has written and closed."""
    demand("strace")
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", dialect, "--new-chunks", "2") as mount:
        array = mount.path / "npy/a.npy"
        if through.startswith("chunks"):
            np.save(array, np.array([1, 2, 3, 4], "u1"))
            subprocess.run(["sync", array], check=True)
        before = {name: (mount.store / name).stat().st_mtime_ns for name in tree(mount.store)}
        with traced(mount, tmp_path / "trace") as calls:
            if through == "npy/a.npy":
                np.save(array, np.array([1, 2, 3, 4], "u1"))
            else:
                (mount.path / through).write_bytes(b"56")
            assert not [call for call in calls() if "sync" in call]
            subprocess.run(["sync", array], check=True)
            synced = {call.removeprefix("fsync ") for call in calls() if call.startswith("fsync ")}
            changed = {name for name in tree(mount.store) if before.get(name) != (mount.store / name).stat().st_mtime_ns}
        # Documents of the group above are not the array's.
        files = {name for name in changed if (mount.store / name).is_file() and "/" in name}
        assert files
        assert files <= synced


@pytest.mark.parametrize("dialect", ["v3", "v2", "v3_2019", "v3_2022"])
@pytest.mark.parametrize("what", ["npy/g/a.npy", "chunks/g/a/1", "zarr3/g/a/zarr.json"])
def test_fsync_of_a_file_makes_the_new_documents_above_durable(tmp_path: Path, dialect: str, what: str) -> None:
    """An empty document of the group above hid what was synced."""
    demand("strace")
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", dialect, "--new-chunks", "2") as mount:
        with traced(mount, tmp_path / "trace") as calls:
            (mount.path / "npy/g").mkdir()
            np.save(mount.path / "npy/g/a.npy", np.array([1, 2, 3, 4], "u1"))
            assert not [call for call in calls() if "sync" in call]
            # As Debian's sync(1): the file is opened only for this.
            subprocess.run(["sync", mount.path / what], check=True)
            synced = {call.removeprefix("fsync ") for call in calls() if call.startswith("fsync ")}
            documents = {name for name in tree(mount.store) if name.endswith((".zgroup", ".zarray", ".json", ".array", ".group"))}
            assert documents
            assert documents <= synced
        with traced(mount, tmp_path / "again") as calls:
            subprocess.run(["sync", mount.path / what], check=True)
            again = [call for call in calls() if call.startswith("fsync ")]
        above = {name for name in documents if not name.startswith(("g/a/", "meta/root/g/a."))}
        assert above
        # A document is synced with all copies that may be in the documents above.
        assert "zarr.json" in what or not above.intersection(call.removeprefix("fsync ") for call in again)


def tree(folder: Path) -> list[str]:
    """Return the paths of all files and folders in ``folder`` that zarrfs shows."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if ".zarrfs" not in path.parts]


def sync(path: Path) -> None:
    """Run fsync(2) as `sync FILE` does."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


@pytest.mark.parametrize("dialect", ["v2", "v3_2022"])
def test_fsync_of_an_array_covers_its_place(tmp_path: Path, dialect: str) -> None:
    """All its bytes were on the disk before it was put there, and fsync did nothing: after a power cut, the old array was back."""
    demand("strace")
    (tmp_path / "store").mkdir()
    place = "." if dialect == "v2" else "meta/root"
    with mounted(tmp_path / "store", "--new-dialect", dialect) as mount:
        np.save(mount.path / "npy/a.npy", np.arange(3))
        sync(mount.path / "npy/a.npy")
        with traced(mount, tmp_path / "trace") as calls:
            np.save(mount.path / "npy/a.npy", np.arange(4.0))
            before = len(calls())
            sync(mount.path / "npy/a.npy")
            assert f"fsync {place}" in calls()[before:]
            (mount.path / "npy/a.npy").rename(mount.path / "npy/b.npy")
            before = len(calls())
            sync(mount.path / "npy/b.npy")
            assert f"fsync {place}" in calls()[before:]


def test_fsync_of_a_chunk_covers_the_name_of_a_document_elsewhere(tmp_path: Path) -> None:
    """The bytes of a document that replaces another are on the disk. After a power cut the old one, of the old shape, was back."""
    demand("strace")
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", "v3_2022") as mount, traced(mount, tmp_path / "trace") as calls:
        np.save(mount.path / "npy/a.npy", np.arange(3))
        sync(mount.path / "npy")
        (mount.path / "chunks/a/.zattrs").write_text('{"units": "K"}')
        before = len(calls())
        change_a_chunk(mount.path / "chunks/a/0", fsync=True)
        assert "fsync meta/root" in calls()[before:]
