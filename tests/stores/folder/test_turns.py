"""Values that several processes replace and remove, each with a condition or without: nothing that was acknowledged is lost."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from tests.stores.folder.test_inline import mounted
from tests.support.attackers import needs_root
from tests.support.stores import names
from zarrfs.errors import GenerationMismatch
from zarrfs.keys import WHOLE, Key
from zarrfs.stores.folder import calls, file_systems, turns
from zarrfs.stores.folder.names import generation_of
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.folder.turns import Turn

ROOT = Path(__file__).parents[3]

_OTHER = """
import sys
from zarrfs.errors import GenerationMismatch
from zarrfs.keys import WHOLE
from zarrfs.stores.folder.names import generation_of
from zarrfs.stores.folder.tree import FolderTree

tree = FolderTree(sys.argv[1])
print("ready", flush=True)
while (found := tree.read_with_stat(("k",), [WHOLE], None)) is None or bytes(found[0][0]) != b"the end":
    if found is None or int(bytes(found[0][0])) % 2:
        continue
    try:
        if sys.argv[2] == "replaces":
            tree.replace(("k",), bytes(found[0][0]) + b"0", generation_of(found[1]))
        else:
            tree.remove(("k",), generation_of(found[1]))
    except GenerationMismatch:
        pass
"""
"""Changes even numbers, on condition that the number is the one that was read."""


class Clock:
    """Time in which waits for locks pass at once; ``on_sleep`` is called in each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    monkeypatch.setattr(turns, "_patience", turns._Patience())
    return clock


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[FolderTree]:
    with closing(FolderTree(str(tmp_path))) as tree:
        yield tree


@pytest.mark.parametrize("other", ["replaces", "removes"])
def test_a_set_is_not_lost_to_a_change_of_the_value_before_it(tmp_path: Path, other: str) -> None:
    tree, outcomes = FolderTree(str(tmp_path)), Counter[str]()
    process = subprocess.Popen([sys.executable, "-c", _OTHER, tmp_path, other], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    try:
        for number in range(3000):
            tree.replace(("k",), b"%d" % number, None)
            found = tree.read_with_stat(("k",), [WHOLE], None)
            value = None if found is None else bytes(found[0][0])
            if number % 2:
                assert value == b"%d" % number
            elif value != b"%d" % number:
                assert value is None if other == "removes" else value is not None and int(value) % (10 * number or 1) == 0
                outcomes["changed"] += 1
    finally:
        tree.replace(("k",), b"the end", None)
        assert process.wait() == 0
        process.stdout.close()
        tree.close()
    assert outcomes["changed"]


_MOVES = """
import sys
from zarrfs.stores.folder.tree import FolderTree

tree = FolderTree(sys.argv[1])
print("ready", flush=True)
while tree.stat(("end",)) is None:
    tree.rename(("k",), ("moved",))
"""


def test_a_value_that_is_moved_away_is_not_also_changed_in_its_place(tmp_path: Path) -> None:
    tree, outcomes = FolderTree(str(tmp_path)), Counter[str]()
    process = subprocess.Popen([sys.executable, "-c", _MOVES, tmp_path], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    try:
        for number in range(1000):
            generation = tree.replace(("k",), b"%d" % number, None)
            try:
                tree.replace(("k",), b"changed", generation)
            except GenerationMismatch:
                outcomes["moved"] += 1
                continue
            outcomes["changed"] += 1
            moved = tree.read_with_stat(("moved",), [WHOLE], None)
            assert moved is None or bytes(moved[0][0]) != b"%d" % number
    finally:
        tree.replace(("end",), b"", None)
        assert process.wait() == 0
        process.stdout.close()
        tree.close()
    assert outcomes["moved"] and outcomes["changed"]


def test_a_condition_is_checked_when_the_value_has_been_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing takes long where it is also synced, and another mount may set the value meanwhile."""
    tree, another = FolderTree(str(tmp_path)), FolderTree(str(tmp_path))
    first = tree.replace(("k",), b"first", None)
    write = os.write

    def overtaken(fd: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        another.replace(("k",), b"another's", None)
        return write(fd, data)

    monkeypatch.setattr(os, "write", overtaken)
    with pytest.raises(GenerationMismatch):
        tree.replace(("k",), b"second", first)
    assert (tmp_path / "k").read_bytes() == b"another's" and os.listdir(tmp_path) == ["k"]
    tree.close()
    another.close()


def test_a_turn_lasts_as_long_as_the_disk_needs(
    tmp_path: Path, clock: Clock, tree: FolderTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rename(2) waits for the file system's journal, for seconds while another program writes much and syncs it."""
    first = tree.replace(("k",), b"first", None)
    rename, may_go_on = os.rename, threading.Event()
    setting = threading.Thread(target=lambda: (tree.replace(("k",), b"whole", None), may_go_on.set()))

    def wait() -> None:
        if clock.now > 4:
            may_go_on.set()
            clock.now = 4.0
            os.sched_yield()

    clock.on_sleep = wait

    def slow(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        setting.start()
        may_go_on.wait()
        rename(*arguments, **options)

    monkeypatch.setattr(os, "rename", slow)
    tree.replace(("k",), b"first, changed", first)
    setting.join()
    assert (tmp_path / "k").read_bytes() == b"whole"


def test_who_locks_all_values_for_ever_delays_few_changes(tmp_path: Path, clock: Clock, tree: FolderTree) -> None:
    def replaced_while_locked() -> float:
        begun = clock.now
        with (tmp_path / "k").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            tree.replace(("k",), b"value", None)
        return clock.now - begun

    tree.replace(("k",), b"value", None)
    first, *following = (replaced_while_locked() for _ in range(300))
    assert first >= turns._PATIENCE_SECONDS and max(following) < 2 * turns._SHORT_PATIENCE_SECONDS
    assert sum(following) < 2 * turns._MOST_IN_VAIN_SECONDS
    clock.now += turns._REMEMBERED_SECONDS
    assert replaced_while_locked() >= turns._PATIENCE_SECONDS


def test_who_locks_a_value_for_ever_delays_a_change_but_does_not_prevent_it(tmp_path: Path, clock: Clock) -> None:
    tree = FolderTree(str(tmp_path))
    for change in (
        lambda generation: tree.replace(("k",), b"second", generation),
        lambda generation: tree.remove(("k",), generation),
        lambda generation: tree.rename(("other",), ("k",)),
    ):
        generation = tree.replace(("k",), b"first", None)
        tree.replace(("other",), b"", None)
        with (tmp_path / "k").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            change(generation)
        found = tree.stat(("k",))
        assert found is None or generation_of(found) != generation
    tree.close()


def test_what_is_no_value_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    folder = os.open(tmp_path, os.O_PATH)
    with (
        Turn(folder, "folder", locks=True) as found,
        Turn(folder, "fifo", locks=True) as special,
        Turn(folder, "none", locks=True) as none,
    ):
        assert found is not None and special is not None and none is None
    os.close(folder)


def test_a_lock_is_released_if_the_turn_fails_to_begin(tmp_path: Path, tree: FolderTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the right to search the folder is taken away at that moment."""
    tree.replace(("k",), b"value", None)
    before, results = len(os.listdir("/proc/self/fd")), [os.stat(tmp_path / "k"), None]

    def lstat(folder: int, name: str) -> os.stat_result:
        if (found := results.pop(0)) is None:
            raise PermissionError(errno.EACCES, "no", name)
        return found

    monkeypatch.setattr(turns, "lstat", lstat)
    with pytest.raises(PermissionError):
        tree.remove(("k",))
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_descriptor_stays_of_files_that_were_replaced_or_locked(
    tmp_path: Path, clock: Clock, tree: FolderTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their locks would stay, too, until the end of the mount."""
    tree.replace(("k",), b"value", None)
    before, locked, others = len(os.listdir("/proc/self/fd")), turns._locked, [tmp_path / "other"]

    def replaced_meanwhile(folder: int, name: str) -> int:
        fd = locked(folder, name)
        if others:
            (other := others.pop()).write_bytes(b"other")
            other.replace(tmp_path / "k")
        return fd

    monkeypatch.setattr(turns, "_locked", replaced_meanwhile)
    tree.replace(("k",), b"second", None)
    assert (tmp_path / "k").read_bytes() == b"second" and not others
    with (tmp_path / "k").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        tree.replace(("k",), b"third", None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_new_value_that_waits_for_its_turn_is_not_taken_for_a_leftover(tmp_path: Path, clock: Clock, tree: FolderTree) -> None:
    names = set[str]()

    def list_all() -> None:
        assert [name for name, *_ in tree.list_folder(())] == ["k"]
        names.update(name for name in os.listdir(tmp_path) if name != "k")

    tree.replace(("k",), b"first", None)
    with (tmp_path / "k").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        clock.on_sleep = list_all
        tree.replace(("k",), b"second", None)
    assert len(names) == 1 and os.listdir(tmp_path) == ["k"]


def test_a_value_that_becomes_private_while_its_replacement_waits_stays_private(
    tmp_path: Path, clock: Clock, tree: FolderTree
) -> None:
    tree.replace(("k",), b"first", None)
    with (tmp_path / "k").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        clock.on_sleep = lambda: (tmp_path / "k").chmod(0o600)
        generation = tree.replace(("k",), b"second", None)
    found = os.stat(tmp_path / "k")
    assert found.st_mode & 0o777 == 0o600 and generation == generation_of(found)


@pytest.mark.parametrize("times", [1, 100])
def test_a_value_that_appears_at_the_last_moment_is_replaced_with_its_rights(
    tmp_path: Path, tree: FolderTree, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Also if others keep removing it."""
    rename_new, appeared = calls.rename_new, []

    def taken_before(*arguments: Any) -> None:
        appeared.append("k")
        (tmp_path / "k").touch(0o600)
        try:
            rename_new(*arguments)
        finally:
            if len(appeared) < times:
                (tmp_path / "k").unlink()

    monkeypatch.setattr(turns, "rename_new", taken_before)
    generation = tree.replace(("k",), b"value", None)
    found = os.stat(tmp_path / "k")
    assert appeared and generation == generation_of(found) and os.listdir(tmp_path) == ["k"]
    assert times > 1 or found.st_mode & 0o777 == 0o600


@trio_test
async def test_a_set_that_is_cancelled_waits_no_longer(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE_SECONDS", float("inf"))
    async with aclosing(FolderStore(str(tmp_path))) as store:
        await store.set(Key("k"), b"first")
        with (tmp_path / "k").open() as held, trio.CancelScope() as scope:
            fcntl.flock(held, fcntl.LOCK_EX)
            clock.on_sleep = lambda: trio.from_thread.run_sync(scope.cancel)
            await store.set(Key("k"), b"second")
        assert scope.cancelled_caught and await store.get(Key("k")) == b"first"
    assert os.listdir(tmp_path) == ["k"]


# --- renames ------------------------------------------------------------------------------------------------------------------------


def test_a_value_is_not_renamed_between_the_check_of_another_and_its_replacement(
    tmp_path: Path, clock: Clock, tree: FolderTree
) -> None:
    tree.replace(("k",), b"first", None)
    (tmp_path / "temporary").write_bytes(b"first, changed")
    held = (tmp_path / "k").open()
    fcntl.flock(held, fcntl.LOCK_EX)

    def replace() -> None:
        if not held.closed:
            (tmp_path / "temporary").rename(tmp_path / "k")
            held.close()

    clock.on_sleep = replace
    assert tree.rename(("k",), ("m",)) == generation_of(os.stat(tmp_path / "m"))
    assert (tmp_path / "m").read_bytes() == b"first, changed" and os.listdir(tmp_path) == ["m"]
    held.close()


def test_a_value_that_appears_under_the_new_name_of_another_is_replaced_in_a_turn(
    tmp_path: Path, clock: Clock, tree: FolderTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_new, locked = calls.rename_new, []

    def taken_before(*arguments: Any) -> None:
        if not locked:
            (tmp_path / "m").write_bytes(b"another's")
            locked.append((tmp_path / "m").open())
            fcntl.flock(locked[0], fcntl.LOCK_EX)
        rename_new(*arguments)

    tree.replace(("k",), b"value", None)
    monkeypatch.setattr(turns, "rename_new", taken_before)
    clock.on_sleep = lambda: locked[0].close()
    tree.rename(("k",), ("m",))
    assert locked and locked[0].closed and (tmp_path / "m").read_bytes() == b"value"


@pytest.mark.parametrize(("old", "new"), [("k", "m"), ("m", "k")])
def test_a_rename_holds_one_name_while_it_waits_for_the_other_in_one_order(
    tmp_path: Path, clock: Clock, tree: FolderTree, old: str, new: str
) -> None:
    """Two in opposite directions would otherwise wait for each other."""
    waits = []
    for name in ("k", "m"):
        tree.replace((name,), name.encode(), None)

    def wait() -> None:
        with (tmp_path / "m").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        waits.append(clock.now)
        held.close()

    with (tmp_path / "k").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        clock.on_sleep = wait
        tree.rename((old,), (new,))
    assert len(waits) == 1 and (tmp_path / new).read_bytes() == old.encode()


def test_a_rename_to_another_name_of_the_file_does_not_wait_for_itself(tmp_path: Path, clock: Clock, tree: FolderTree) -> None:
    tree.replace(("k",), b"value", None)
    for old, new in (("k", "m"), ("m", "k"), ("k", "k")):
        if old != new:
            (tmp_path / new).hardlink_to(tmp_path / old)
        tree.rename((old,), (new,))
        assert os.listdir(tmp_path) == [new]
    assert not clock.now


def test_a_rename_that_changes_the_case_only_keeps_the_value_where_that_is_one_name(
    tmp_path: Path, clock: Clock, tree: FolderTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On FAT, exFAT and casefolded folders of ext4, rename(2) has no effect between the two."""
    lstat = calls.lstat
    tree.replace(("k",), b"value", None)
    monkeypatch.setattr(turns, "lstat", lambda folder, name: lstat(folder, name.lower()))
    monkeypatch.setattr(os, "rename", lambda *_, **__: None)
    assert tree.rename(("k",), ("K",)) is not None
    assert (tmp_path / "k").read_bytes() == b"value"


# --- other systems ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_a_name_is_taken_where_the_kernel_or_a_filter_refuses_the_flag(
    tmp_path: Path, tree: FolderTree, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(calls, "_renameat2", refused)
    tree.replace(("k",), b"value", None)
    assert tree.rename(("k",), ("m",)) is not None and (tmp_path / "m").read_bytes() == b"value"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_value_that_cannot_be_locked_is_replaced(
    tmp_path: Path, tree: FolderTree, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    generation = tree.replace(("k",), b"first", None)
    monkeypatch.setattr(fcntl, "flock", refused)
    tree.remove(("k",), tree.replace(("k",), b"second", generation))
    assert not os.listdir(tmp_path)


@needs_root
@trio_test
async def test_what_a_server_keeps_within_a_local_folder_is_not_locked_nor_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks cost requests there, and those of other machines may be invisible: a file that is being written counted as left behind."""
    monkeypatch.setattr(file_systems, "_LOCAL", file_systems._LOCAL - {"tmpfs"})
    temporary, place = f".zarrfs-{0:032x}.partial", tmp_path / "store/m"
    place.mkdir(parents=True)
    local = tmp_path / "store/g"
    local.mkdir()
    locks = list[str]()
    locked = turns._locked

    def noted(folder: int, name: str) -> int:
        locks.append(os.readlink(f"/proc/self/fd/{folder}"))
        return locked(folder, name)

    monkeypatch.setattr(turns, "_locked", noted)
    with mounted("tmpfs", place):
        async with aclosing(FolderStore(str(tmp_path / "store"))) as store:
            for folder in (place, local):
                (folder / temporary).touch()
                key, other = Key(f"{folder.name}/k"), Key(f"{folder.name}/n")
                await store.set(key, b"first")
                await store.set(key, b"second")
                await store.rename(key, other)
                await store.erase(other)
                assert not await names(store, f"{folder.name}/")
        assert os.listdir(place) == [temporary] and os.listdir(local) == [] and set(locks) == {str(local)}
