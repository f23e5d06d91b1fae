"""zarr-python's LocalStore and tensorstore's file driver in a folder of raw/: values reach the store, temporary names do not."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, Mounted, mounted

pytestmark = pytest.mark.fuse

SUITE = ROOT / "tests" / "support" / "zarr_store_suite.py"
HEX = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    store = tmp_path_factory.mktemp("store")
    with mounted(store) as mount:
        yield mount
        assert "Traceback" not in mount.log()
        assert not mount.errors()
    assert not temporary_names(store)


@pytest.fixture
def folder(mount: Mounted, request: pytest.FixtureRequest) -> Path:
    path = mount.path / "raw" / request.node.name
    path.mkdir()
    return path


@pytest.fixture
def behind(mount: Mounted, folder: Path) -> Path:
    """The same folder in the store."""
    return mount.store / folder.name


def temporary_names(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith((".partial", ".__lock"))]


def suite_outcome(folder: Path) -> str:
    """Run zarr-python's suites for stores in ``folder``; return pytest's summary."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:warnings"]
    done = subprocess.run(
        [*command, "-o", "asyncio_mode=auto", SUITE],
        env=os.environ | {"ZARRFS_TEST_FOLDER": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    return re.sub(r" in \S+s$", "", done.stdout.strip().splitlines()[-1])


@pytest.mark.full_length
def test_the_suites_of_zarr_python_pass_as_on_a_plain_folder(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    pytest.importorskip("pytest_asyncio")
    ours = suite_outcome(folder)
    assert ours == suite_outcome(tmp_path)
    assert re.fullmatch(r"\d\d passed(, \d skipped)?", ours)


def test_zarr_python_writes_and_nothing_but_keys_reaches_the_store(mount: Mounted, folder: Path, behind: Path) -> None:
    zarr = pytest.importorskip("zarr")
    with mount.counted() as cost:
        array = zarr.create_array(folder, shape=(8, 8), chunks=(4, 4), dtype="i4")
        array[...] = 7
    assert (zarr.open_array(behind, mode="r")[...] == 7).all()
    assert {path.relative_to(behind).as_posix() for path in behind.rglob("*") if path.is_file()} == {
        "zarr.json",
        *(f"c/{row}/{column}" for row in range(2) for column in range(2)),
    }
    assert cost["set"] == 5, "each value is stored once, under its key"
    assert "rename" not in cost


def test_only_one_of_many_creates_a_key(folder: Path, behind: Path) -> None:
    """`LocalStore.set_if_not_exists`, by hand: link(2) is atomic create."""
    winners = []

    def create(number: int) -> None:
        partial = folder / f"k.{number:032x}.partial"
        partial.write_bytes(b"%d" % number)
        try:
            os.link(partial, folder / "k")
            winners.append(number)
        except FileExistsError:
            pass
        finally:
            partial.unlink()

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(winners) == 1
    assert (behind / "k").read_bytes() == b"%d" % winners[0]
    assert os.listdir(folder) == ["k"]


def test_a_link_sees_a_key_that_somebody_else_has_stored(folder: Path, behind: Path) -> None:
    partial = folder / f"k.{HEX}.partial"
    partial.write_bytes(b"ours")
    assert not (folder / "k").exists(), "the kernel knows now that there is none"
    (behind / "k").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        os.link(partial, folder / "k")
    assert (behind / "k").read_bytes() == b"theirs"
    partial.unlink()


def test_what_a_killed_program_leaves_behind_stays_in_the_mount(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store") as mount:
        partial = mount.path / "raw" / f"zarr.{HEX}.partial"
        partial.write_bytes(b"half of it")
        assert os.listdir(mount.path / "raw") == [partial.name]
        os.sync()
        assert os.listdir(mount.store) == []
    assert os.listdir(tmp_path / "store") == []


_TENSORSTORE = """
import sys, numpy, tensorstore
array = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": sys.argv[1]}}, create=True, open=True,
    dtype="int32", shape=[8, 64], chunk_layout=tensorstore.ChunkLayout(chunk_shape=[8, 8])).result()
row = int(sys.argv[2])
for step in range(8):
    with tensorstore.Transaction() as transaction:
        array.with_transaction(transaction)[row, :] = numpy.full(64, 100 * row + step, "int32")
"""


def test_tensorstore_processes_take_turns_at_each_chunk(folder: Path, behind: Path) -> None:
    """Each writes a row of all chunks: if locks were not held, or temporary names were shared, rows would get lost."""
    tensorstore = pytest.importorskip("tensorstore")
    writers = [subprocess.Popen([sys.executable, "-c", _TENSORSTORE, str(folder), str(row)]) for row in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    array = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(behind)}}).result().read().result()
    assert [set(array[row].tolist()) for row in range(4)] == [{7}, {107}, {207}, {0}]
    assert not temporary_names(behind)
    assert not temporary_names(folder)


def test_tensorstore_finds_the_generation_that_it_wrote(folder: Path) -> None:
    """Its generations consist of the inode and the time, which it takes before it renames the file."""
    tensorstore = pytest.importorskip("tensorstore")
    store = tensorstore.KvStore.open({"driver": "file", "path": f"{folder}/"}).result()
    written = store.write("k", b"1").result()
    assert store.read("k").result().stamp.generation == written.generation
    store.write("k", b"2", if_equal=written.generation).result()
    assert store["k"] == b"2"


@pytest.mark.parametrize("name", ["k.__lock", "k"])
def test_locks_of_open_files_exclude_each_other(name: str, mount: Mounted) -> None:
    path = mount.path / "raw" / name
    whole = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    one, two = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.fcntl(one, fcntl.F_OFD_SETLK, whole)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        fcntl.fcntl(two, fcntl.F_OFD_SETLK, whole)
    assert caught.value.errno in (errno.EAGAIN, errno.EACCES)
    waiting = threading.Thread(target=fcntl.fcntl, args=(two, fcntl.F_OFD_SETLKW, whole))
    waiting.start()
    os.close(one)
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    os.close(two)
    path.unlink()
