"""Writes of well-known programs, through a mount: in ``raw/``, and as decoded chunks in ``chunks/``."""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, mounted, run, shell
from tests.support.small_stores import array_document, write
from tests.support.traces import TRACES, Trace, python

pytestmark = pytest.mark.fuse

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    folder = tmp_path_factory.mktemp("traces")
    store = write(folder / "store", {".zgroup": b'{"zarr_format":2}'})
    with mounted(store, "--cache-dir", str(folder)) as mount:
        yield mount


@pytest.fixture(scope="module")
def losing_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount for writes that are refused, with an error to the program."""
    folder = tmp_path_factory.mktemp("losses")
    store = write(folder / "store", {".zgroup": b'{"zarr_format":2}'})
    with mounted(store, "--cache-dir", str(folder)) as mount:
        yield mount


class Playground:
    """A file in one view, and its value in the store."""

    def __init__(self, mount: Mounted, view: str, before: bytes | None, size: int) -> None:
        self.mount, self.view = mount, view
        name = f"a{next(_NUMBERS)}"
        self.key = mount.store / name / "0"
        write(mount.store / name, {".zarray": array_document((size,), (size,), "|u1", compressor={"id": "zlib", "level": 1})})
        if before is not None:
            self.key.write_bytes(before if view == "raw" else zlib.compress(before))
        self.path = mount.path / view / name / "0"

    @property
    def stored(self) -> bytes | None:
        if not self.key.exists():
            return None
        return self.key.read_bytes() if self.view == "raw" else zlib.decompress(self.key.read_bytes())

    def settled(self) -> bytes | None:
        """Return the stored value once the kernel has released the file: RELEASE comes after the last close(2) has returned."""
        wait_until(lambda: self.mount.stats()["open_handles"] == 0)
        return self.stored


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came to this"


def possible(trace: Trace, view: str) -> bool:
    """Return True if the view permits the trace: a chunk has the same size before and after."""
    return view == "raw" or (bool(trace.after) and trace.before is None) or len(trace.before or b"") == len(trace.after)


@pytest.mark.parametrize(
    ("trace", "view"),
    [
        pytest.param(trace, view, id=f"{trace.name}-{view}")
        for trace in TRACES
        for view in ("raw", "chunks")
        if possible(trace, view)
    ],
)
def test_a_trace(trace: Trace, view: str, mount: Mounted, tmp_path: Path) -> None:
    there = Playground(mount, view, trace.before, len(trace.after))
    if trace.before is not None:
        # Put the old value into the page cache.
        assert there.path.read_bytes() == trace.before
    with mount.counted() as cost:
        shell(trace.script, there.path, tmp_path)
        assert there.settled() == trace.after
    assert cost.get("set", 0) == trace.sets
    assert there.path.read_bytes() == trace.after
    assert there.path.stat().st_size == len(trace.after)
    assert mount.stats()["dirty_bytes"] == 0


def test_sed_in_place(mount: Mounted) -> None:
    there = Playground(mount, "raw", b"abcd\n", 5)
    with mount.counted() as cost:
        run("sed", "-i", "s/b/B/", there.path)
        assert there.settled() == b"aBcd\n"
    assert (cost["set"], cost["rename"]) == (1, 1)
    assert sorted(os.listdir(there.path.parent)) == [".zarray", "0"]
    assert sorted(os.listdir(there.key.parent)) == [".zarray", "0"]


def test_sed_in_place_of_a_chunk(mount: Mounted) -> None:
    there = Playground(mount, "chunks", b"abcd\n", 5)
    run("sed", "-i", "s/b/B/", there.path)
    assert there.settled() == b"aBcd\n"
    assert there.path.read_bytes() == b"aBcd\n"
    # A value that is no longer a chunk is refused by the rename.
    refused = run("sed", "-i", "s/B/longer/", there.path, check=False)
    assert refused.returncode != 0
    assert b"Invalid argument" in refused.stderr
    assert there.settled() == b"aBcd\n"
    assert sorted(os.listdir(there.path.parent)) == [".zarray", "0"]
    assert sorted(os.listdir(there.key.parent)) == [".zarray", "0"]


def test_a_writer_killed_before_it_wrote_has_emptied_the_file_as_on_any_file_system(mount: Mounted) -> None:
    there = Playground(mount, "raw", b"old", 3)
    shell('exec 3> "$1"; kill -9 $$', there.path, check=False)
    assert there.settled() == b""


@pytest.mark.parametrize(
    "script",
    ['printf ab > "$2/f"; cp "$2/f" "$1"', 'printf ab | dd of="$1"', 'printf ab | tee "$1" >/dev/null', 'cat <(printf ab) > "$1"'],
    ids=["cp", "dd", "tee", "cat"],
)
@pytest.mark.parametrize("before", [b"abcd", None], ids=["over", "new"])
def test_a_short_chunk_is_an_error_of_close(script: str, before: bytes | None, losing_mount: Mounted, tmp_path: Path) -> None:
    there = Playground(losing_mount, "chunks", before, 4)
    if before is not None:
        assert there.path.read_bytes() == before
    with losing_mount.counted() as cost:
        done = shell(script, there.path, tmp_path, check=False)
        assert there.settled() == before
    assert b"Invalid argument" in done.stderr or "cat" in script
    assert done.returncode != 0
    assert "set" not in cost
    # The kernel had pages of the refused value.
    assert there.path.exists() == (before is not None)
    assert before is None or there.path.read_bytes() == before
    assert any("exactly 4 bytes, not 2" in line["message"] for line in losing_mount.errors())


def test_a_chunk_too_long_is_an_error_of_write(losing_mount: Mounted, tmp_path: Path) -> None:
    there = Playground(losing_mount, "chunks", b"abcd", 4)
    for script in ('printf abcde > "$2/f"; cp "$2/f" "$1"', 'printf e >> "$1"', 'printf e | dd of="$1" seek=4 bs=1 conv=notrunc'):
        done = shell(script, there.path, tmp_path, check=False)
        assert b"File too large" in done.stderr
        assert done.returncode != 0
        # cp has truncated the file first; an empty file is not a chunk.
        assert there.settled() == b"abcd"
        assert there.path.read_bytes() == b"abcd"


def test_what_echo_does_not_hear_umount_tells(tmp_path: Path) -> None:
    with mounted(
        write(tmp_path / "store", {".zgroup": b'{"zarr_format":2}'}), "--cache-dir", str(tmp_path), ends_with=None
    ) as mount:
        there = Playground(mount, "chunks", b"abcd", 4)
        shell('echo x > "$1"', there.path)
        assert there.settled() == b"abcd"
        # NumPy ignores the error of the first of two closes, and raises that of the second.
        done = shell(python('import numpy, sys; numpy.zeros(3, "u1").tofile(sys.argv[1])'), there.path, check=False)
        assert b"Invalid argument" in done.stderr
        assert there.settled() == b"abcd"
        ended = mount.umount()
        # The kernel got the error at each close; it is unknown whether the program checked it.
        assert ended.returncode == 0
        # The file is named once, with its last reason.
        assert ended.stderr.count("chunks/") == 2
        assert "exactly 4 bytes, not 3" in ended.stderr


@pytest.mark.full_length
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
@pytest.mark.parametrize("view", ["raw", "chunks"])
def test_no_space_on_the_way_and_success_after_freeing_some(view: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = 1_200_000
    old, new = os.urandom(size), os.urandom(size)
    (tmp_path / "new").write_bytes(new)
    run("mount", "-t", "tmpfs", "-o", "size=2m", "none", disk)
    try:
        with mounted(write(disk / "store", {".zgroup": b'{"zarr_format":2}'}), "--cache-dir", str(tmp_path), ends_with=7) as mount:
            there = Playground(mount, view, old, size)
            assert there.path.read_bytes() == old
            # The old value stays until the new one is complete: there is no space for both.
            done = run("cp", tmp_path / "new", there.path, check=False)
            assert b"No space left on device" in done.stderr
            assert there.settled() == old
            assert there.path.read_bytes() == old
            with open(there.path, "r+b", buffering=0) as file:
                file.write(new)
                for _ in range(2):
                    with pytest.raises(OSError, match="No space left"):
                        os.fsync(file.fileno())
                run("mount", "-o", "remount,size=4m", disk)
                os.fsync(file.fileno())
                assert there.stored == new
            assert there.path.read_bytes() == new
            assert {path.name for path in there.key.parent.iterdir()} == {".zarray", "0"}
    finally:
        run("umount", "-l", disk)
