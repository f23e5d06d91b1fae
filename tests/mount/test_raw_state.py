"""A mounted raw/ beside a plain folder: the same calls have the same outcome.

Every call is made on both; its result or errno has to be the same, and after each step all names, sizes, link counts and contents have
to be the same, by name and by open file. When everything is closed the store equals the plain folder, without temporary names.

Two differences are intended: hard links are refused (EPERM) except for temporary names, and then the two names do not share later
writes. Only files are temporary: a folder of such a name is a folder of the store.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.length import tries
from tests.support.mounting import Mounted, mounted
from zarrfs.vfs.temporary import is_temporary

pytestmark = pytest.mark.fuse

PARTIAL = f"f.{'0123456789abcdef' * 2}.partial"
PATHS = st.sampled_from(["f", "g", "4913", PARTIAL, "g.__lock", "d", "e", "d/f", "d/g", f"d/{PARTIAL}", "d/e", "d/e/f", "f/x"])
TEMPORARY = st.sampled_from([PARTIAL, "g.__lock", f"d/{PARTIAL}"])
FLAGS = st.builds(
    lambda mode, *more: mode | sum(more),
    st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR]),
    st.sampled_from([0, os.O_CREAT, os.O_CREAT, os.O_CREAT | os.O_EXCL]),
    st.sampled_from([0, 0, os.O_TRUNC]),
    st.sampled_from([0, 0, os.O_APPEND]),
)
OFFSETS = st.integers(0, 5000) | st.sampled_from([4095, 4096, 8192, 70_000])
SIZES = st.integers(0, 5000)
INDEX = st.integers(0, 5)
Outcome = tuple[str, Any]


def outcome(call: Callable[..., Any], *arguments: Any) -> Outcome:
    try:
        return "gives", call(*arguments)
    except OSError as error:
        return "fails", os.strerror(error.errno or 0)


class RawMachine(RuleBasedStateMachine):
    mount: Mounted
    plain_folder: Path
    number = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).number += 1
        name = f"example{self.number}"
        self.ours, self.plain, self.store = self.mount.path / "raw" / name, self.plain_folder / name, self.mount.store / name
        self.ours.mkdir()
        self.plain.mkdir()
        self.open: list[tuple[int, int, str]] = []

    def both(self, call: Callable[..., Any], *arguments: Any) -> Outcome:
        """Make the call on both; a `Path` argument is relative to the folders."""

        def below(root: Path) -> list[Any]:
            return [root / each if isinstance(each, Path) else each for each in arguments]

        ours, plain = outcome(call, *below(self.ours)), outcome(call, *below(self.plain))
        assert ours == plain, f"{call.__name__}{arguments}"
        return ours

    def on(self, index: int, call: Callable[..., Any], *arguments: Any) -> Outcome:
        """Make the call on one of the open files."""
        ours_fd, plain_fd, path = self.open[index % len(self.open)]
        ours, plain = outcome(call, ours_fd, *arguments), outcome(call, plain_fd, *arguments)
        assert ours == plain, f"{call.__name__}{arguments} of what was opened as {path}"
        return ours

    def teardown(self) -> None:
        for ours, plain, _ in self.open:
            assert outcome(os.close, ours) == outcome(os.close, plain)
        # close(2) does not wait for the last RELEASE, which publishes empty files.
        while self.mount.stats()["open_handles"]:
            pass
        self.open.clear()
        self.same()
        real = {path: value for path, value in tree(self.plain).items() if value is None or not is_temporary(path)}
        assert tree(self.store) == real

    # --- files ------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.open) < 6)
    @rule(path=PATHS, flags=FLAGS)
    def open_it(self, path: str, flags: int) -> None:
        ours, plain = outcome(os.open, self.ours / path, flags), outcome(os.open, self.plain / path, flags)
        if "gives" in (ours[0], plain[0]):
            assert ours[0] == plain[0], f"open({path}, {flags:#o}): {ours} instead of {plain}"
            if stat.S_ISDIR(os.fstat(plain[1]).st_mode):
                os.close(ours[1])
                os.close(plain[1])
            else:
                self.open.append((ours[1], plain[1], path))
        else:
            assert ours == plain, f"open({path}, {flags:#o})"

    @precondition(lambda self: self.open)
    @rule(index=INDEX, offset=OFFSETS, data=st.binary(max_size=20), times=st.sampled_from([1, 300]))
    def write(self, index: int, offset: int, data: bytes, times: int) -> None:
        self.on(index, os.pwrite, data * times, offset)

    @precondition(lambda self: self.open)
    @rule(index=INDEX, data=st.binary(min_size=1, max_size=20))
    def write_where_it_is(self, index: int, data: bytes) -> None:
        self.on(index, os.write, data)

    @precondition(lambda self: self.open)
    @rule(index=INDEX, offset=OFFSETS, size=SIZES)
    def read(self, index: int, offset: int, size: int) -> None:
        self.on(index, os.pread, size, offset)

    @precondition(lambda self: self.open)
    @rule(index=INDEX, size=SIZES)
    def truncate_by_handle(self, index: int, size: int) -> None:
        self.on(index, os.ftruncate, size)

    @precondition(lambda self: self.open)
    @rule(index=INDEX)
    def fsync(self, index: int) -> None:
        self.on(index, os.fsync)

    @precondition(lambda self: self.open)
    @rule(index=INDEX)
    def close_one_of_two_descriptors(self, index: int) -> None:
        self.on(index, lambda fd: os.close(os.dup(fd)))

    @precondition(lambda self: self.open)
    @rule(index=INDEX)
    def close(self, index: int) -> None:
        self.on(index, os.close)
        del self.open[index % len(self.open)]

    # --- names ------------------------------------------------------------------------------------------------------------------

    @rule(path=PATHS, size=SIZES)
    def truncate_by_path(self, path: str, size: int) -> None:
        self.both(os.truncate, Path(path), size)

    @rule(path=PATHS, data=st.binary(max_size=20))
    def write_whole(self, path: str, data: bytes) -> None:
        self.both(Path.write_bytes, Path(path), data)

    @rule(old=PATHS, new=PATHS)
    def rename(self, old: str, new: str) -> None:
        self.both(os.rename, Path(old), Path(new))
        for place, (ours, plain, path) in enumerate(self.open):
            if path == old or path.startswith(old + "/"):
                self.open[place] = ours, plain, new + path[len(old) :]

    @rule(path=PATHS)
    def unlink(self, path: str) -> None:
        self.both(os.unlink, Path(path))

    @rule(path=PATHS)
    def mkdir(self, path: str) -> None:
        self.both(os.mkdir, Path(path))

    @rule(path=PATHS)
    def rmdir(self, path: str) -> None:
        self.both(os.rmdir, Path(path))

    @rule(path=PATHS, seconds=st.integers(0, 2_000_000_000))
    def utime(self, path: str, seconds: int) -> None:
        done, _ = self.both(os.utime, Path(path), (seconds, seconds))
        if done == "gives":
            self.both(lambda path: path.stat().st_mtime_ns, Path(path))

    @rule(temporary=TEMPORARY, path=PATHS, data=st.none() | st.binary(max_size=20))
    def link_and_unlink(self, temporary: str, path: str, data: bytes | None) -> None:
        """Create a key without replacement, as zarr-python does."""
        if is_temporary(path) or any(temporary == each for _, _, each in self.open):
            return
        if data is not None:
            self.both(Path.write_bytes, Path(temporary), data)
        self.both(os.link, Path(temporary), Path(path))
        self.both(os.unlink, Path(temporary))

    @rule(old=PATHS, new=PATHS)
    def link_of_a_key(self, old: str, new: str) -> None:
        if (self.plain / old).is_file() and not is_temporary(old) and (self.plain / new).parent.is_dir():
            expected = "File exists" if (self.plain / new).exists() else "Operation not permitted"
            assert outcome(os.link, self.ours / old, self.ours / new) == ("fails", expected)

    # --- comparison ---------------------------------------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        assert tree(self.ours) == tree(self.plain)
        for index in range(len(self.open)):
            self.on(index, lambda fd: (os.fstat(fd).st_size, os.fstat(fd).st_nlink))
            self.on(index, lambda fd: os.lseek(fd, 0, os.SEEK_CUR))
            ours_fd, plain_fd, path = self.open[index]
            ours, plain = (outcome(is_called, fd, root / path) for fd, root in ((ours_fd, self.ours), (plain_fd, self.plain)))
            assert ours == plain, f"what was opened as {path} is what {path} is now"


def is_called(fd: int, path: Path) -> bool:
    """Return True if the open file is the one at ``path``."""
    return os.path.samestat(os.fstat(fd), path.stat())


def tree(root: Path) -> dict[str, tuple[int, int, bytes] | None]:
    """Return all names below a folder: for files their size, link count and content."""
    found: dict[str, tuple[int, int, bytes] | None] = {}
    for path in sorted(root.rglob("*")):
        told = path.lstat()
        is_file = stat.S_ISREG(told.st_mode)
        found[path.relative_to(root).as_posix()] = (told.st_size, told.st_nlink, path.read_bytes()) if is_file else None
    return found


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(tmp_path_factory.mktemp("store")) as mount:
        yield mount
        assert "Traceback" not in mount.log()
        assert not mount.errors()


def test_raw_is_a_folder(mount: Mounted, tmp_path: Path) -> None:
    machine = type("Machine", (RawMachine,), {"mount": mount, "plain_folder": tmp_path})
    run_state_machine_as_test(machine, settings=tries(60, stateful_step_count=30))
