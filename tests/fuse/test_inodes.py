from __future__ import annotations

import time
import tracemalloc
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.length import unhurried
from zarrfs.fuse import inodes as module
from zarrfs.fuse.inode import Inode
from zarrfs.fuse.inodes import ROOT_INO, UNKNOWN_FILE, InodeTable
from zarrfs.fuse.stamps import is_same, same_size, stamp_of
from zarrfs.vfs.node import Attributes, Directory, File, Handle, OpenFlags


class Nowhere(Directory):
    """A root without operations."""

    async def attributes(self) -> Attributes:
        raise NotImplementedError

    async def lookup(self, name: str) -> Directory:
        raise NotImplementedError

    def entries(self) -> object:  # type: ignore[override]
        raise NotImplementedError


def table() -> InodeTable:
    return InodeTable(Nowhere())


def test_a_number_is_the_same_after_it_was_forgotten_and_in_the_next_mount() -> None:
    first, second = table(), table()
    number = first.refer(first.root, "raw", is_folder=True).ino
    first.forget(number, 1)
    assert len(first) == 1
    assert first.refer(first.root, "raw", is_folder=True).ino == number == second.number("raw")
    assert second.refer(second.root, "raw", is_folder=True).ino == number


def test_a_number_that_is_no_digest_is_the_same_after_it_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NUMBERS_KEPT", 3)
    inodes = table()

    def renamed(name: str) -> int:
        inode = inodes.refer(inodes.root, f"old {name}", is_folder=True)
        inodes.move(inode, inodes.root, name)
        inodes.forget(inode.ino, 1)
        return inode.ino

    first = renamed("a")
    assert len(inodes) == 1
    # The digest of the old name is the first one that a new entry of that name would get.
    another = inodes.refer(inodes.root, "old a", is_folder=True).ino
    assert another == first
    again = inodes.refer(inodes.root, "a", is_folder=True)
    assert again.ino != another and again.name == "a"
    inodes.forget(again.ino, 1)
    inodes.forget(another, 1)
    assert inodes.refer(inodes.root, "a", is_folder=True).ino == again.ino == inodes.number("a")
    inodes.forget(again.ino, 1)
    kept = renamed("b")
    assert inodes.refer(inodes.root, "b", is_folder=True).ino == kept
    for name in "cdefg":
        renamed(name)
    assert inodes.number("b") == kept, "the kernel has it"
    assert len(inodes._displaced) <= 3 + 1
    inodes.vanished(inodes[kept])
    assert inodes.number("b") != kept


def test_a_file_renamed_back_is_found_although_the_kernel_has_forgotten_the_one_that_had_its_name() -> None:
    inodes = table()
    first = inodes.refer(inodes.root, "a", is_folder=False)
    inodes.move(first, inodes.root, "b")
    between = inodes.refer(inodes.root, "a", is_folder=False)
    assert between.ino != first.ino
    # Another program removes it, and no notice tells of that.
    inodes.forget(between.ino, 1)
    inodes.move(first, inodes.root, "a")
    # Else the kernel gets no notice of its changes, and the file, with the next lookup, a second page cache.
    assert inodes.find("a") is first
    assert inodes.refer(inodes.root, "a", is_folder=False) is first


def test_numbers_are_kept_of_a_limited_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NUMBERS_KEPT", 3)
    inodes = table()
    previous: Inode | None = None
    for number in range(20):
        # Under the same name each time: the numbers are those of earlier ones.
        written = inodes.refer(inodes.root, "temporary", is_folder=False)
        if previous is not None:
            inodes.forget(previous.ino, 1)
        inodes.move(written, inodes.root, str(number))
        previous = written
    assert len(inodes._displaced) <= 3 + 1


def test_an_entry_that_was_only_listed_is_not_the_one_of_another_folder_that_had_its_number() -> None:
    inodes = table()
    folder, other = (inodes.refer(inodes.root, name, is_folder=True) for name in "ab")
    moved = inodes.refer(folder, "x", is_folder=False, stamp=5)
    inodes.move(moved, other, "x")
    inodes.forget(moved.ino, 1)
    # A later file of the first name, found in a listing alone.
    number = inodes.listed(folder, "x", stamp=5)
    assert number == moved.ino
    assert inodes.find("b/x") is None
    again = inodes.refer(other, "x", is_folder=False, stamp=5)
    assert again.ino != number and again.path == "b/x"
    assert inodes[number].path == "a/x" and inodes.find("a/x") is inodes[number]


def test_lookups_are_counted() -> None:
    inodes = table()
    inode = inodes.refer(inodes.root, "raw", is_folder=True)
    assert inodes.refer(inodes.root, "raw", is_folder=True) is inode
    inodes.forget(inode.ino, 1)
    assert inodes[inode.ino] is inode
    inodes.add_open(inode)
    inodes.forget(inode.ino, 1)
    assert inodes[inode.ino] is inode
    inodes.closed(inode)
    assert len(inodes) == 1


def test_a_file_renamed_over_a_name_that_was_listed_before_keeps_its_number() -> None:
    inodes = table()
    inodes.refer(inodes.root, "k", is_folder=False, stamp=stamp_of(Attributes(False, 10, 1)))
    moved = inodes.refer(inodes.root, "new", is_folder=False, stamp=stamp_of(Attributes(False, 20, 2)))
    inodes.add_open(moved)
    listed_ns = time.monotonic_ns()
    if (replaced := inodes.find("k")) is not None:
        inodes.vanished(replaced)
    inodes.move(moved, inodes.root, "k")
    # With another number one file would have pages and sizes of two.
    assert inodes.listed(inodes.root, "k", stamp=stamp_of(Attributes(False, 10, 1)), since_ns=listed_ns) == moved.ino
    assert not inodes.is_settled(moved.ino)


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("was_folder", [False, True])
def test_a_folder_and_a_file_never_share_a_number(was_folder: bool, is_listed: bool) -> None:
    inodes = table()
    if is_listed:
        before = inodes[inodes.listed(inodes.root, "k", stamp=0 if was_folder else 7)]
    else:
        before = inodes.refer(inodes.root, "k", is_folder=was_folder, stamp=0 if was_folder else 7)
    # Its former stamp does not count any more.
    before.stamp = 0
    after = inodes.refer(inodes.root, "k", is_folder=not was_folder, stamp=7 if was_folder else 0)
    assert after is not before and after.ino != before.ino and before.nameless
    assert inodes.listed(inodes.root, "k", stamp=7 if was_folder else 0) == after.ino


def test_a_listed_entry_becomes_an_inode_when_it_is_used() -> None:
    inodes = table()
    folder = inodes.refer(inodes.root, "raw", is_folder=True)
    ino = inodes.listed(folder, "k", stamp=7)
    assert ino == inodes.number("raw/k")
    inode = inodes[ino]
    assert (inode.path, inode.stamp, inode.lookups) == ("raw/k", 7, 1)
    assert inodes.listed(folder, "k", stamp=7) == ino
    assert inode.lookups == 2
    other = inodes.listed(folder, "l", stamp=0)
    inodes.forget(other, 1)
    inodes.forget(ino, 2)
    assert len(inodes) == 2


def test_a_listed_entry_costs_at_most_200_bytes() -> None:
    inodes = table()
    folder = inodes.refer(inodes.root, "raw", is_folder=True)
    tracemalloc.start()
    try:
        count = 50_000
        for index in range(count):
            name = f"{index:010d}"
            inodes.listed(folder, name, stamp=0x1234_5679 + index)
        assert tracemalloc.get_traced_memory()[0] / count <= 200
    finally:
        tracemalloc.stop()


def test_what_is_not_known_can_be_forgotten() -> None:
    inodes = table()
    inodes.forget(12345, 1)
    inodes.forget(ROOT_INO, 100)
    assert inodes.find("") is inodes.root


def test_another_stamp_is_another_file() -> None:
    inodes = table()
    old = inodes.refer(inodes.root, "k", stamp=1, is_folder=False)
    assert inodes.refer(inodes.root, "k", stamp=1, is_folder=False) is old
    new = inodes.refer(inodes.root, "k", stamp=2, is_folder=False)
    assert new.ino != old.ino
    assert inodes.find("k") is new
    old.stamp = 0
    assert inodes.refer(inodes.root, "k", stamp=2, is_folder=False) is new
    inodes.forget(new.ino, 2)
    inodes.forget(old.ino, 2)
    assert len(inodes) == 1


def test_the_name_of_a_vanished_file_is_anothers() -> None:
    inodes = table()
    old = inodes.refer(inodes.root, "k", is_folder=True)
    inodes.vanished(old)
    assert inodes.find("k") is None
    assert inodes.refer(inodes.root, "k", is_folder=True).ino != old.ino


def test_what_lies_below_a_moved_folder_moves_with_it() -> None:
    inodes = table()
    folder = inodes.refer(inodes.root, "a", is_folder=True)
    below = inodes.refer(folder, "b", is_folder=True)
    deep = inodes.refer(below, "c", is_folder=True)
    beside = inodes.refer(inodes.root, "ab", is_folder=True)
    deep.node = beside.node = inodes.root.node
    inodes.move(folder, inodes.root, "z")
    assert [inodes.find(path) for path in ("z", "z/b", "z/b/c", "ab")] == [folder, below, deep, beside]
    assert inodes.find("a/b/c") is None
    assert deep.node is None
    assert beside.node is not None
    assert inodes.refer(below, "c", is_folder=True) is deep
    another = inodes.refer(inodes.root, "a", is_folder=True)
    assert inodes.refer(another, "b", is_folder=True).ino != below.ino


def test_a_folder_is_renamed_without_touching_what_is_in_it() -> None:
    inodes = table()
    folder = inodes.refer(inodes.root, "a", is_folder=True)
    listed = inodes.listed(folder, "k", stamp=7)
    used = inodes.refer(folder, "l", is_folder=True)
    inodes.move(folder, inodes.root, "z")
    assert not isinstance(inodes._inodes[listed], Inode), "nobody has asked for it"
    assert inodes.find("a/k") is None and inodes.find("z/k") is inodes[listed] and inodes.find("z/l") is used
    assert inodes.number("z/k") == listed and inodes.listed(folder, "k", stamp=7) == listed


def test_what_is_below_a_folder_is_found_without_looking_at_anything_else() -> None:
    inodes = table()
    folder, other = inodes.refer(inodes.root, "a", is_folder=True), inodes.refer(inodes.root, "b", is_folder=True)
    below = inodes.refer(folder, "b", is_folder=True)
    deep, beside = inodes.refer(below, "c", is_folder=True), inodes.refer(other, "c", is_folder=True)
    inodes.listed(folder, "l", stamp=0)
    assert list(inodes.below(folder)) == [below, deep]
    assert list(inodes.below(beside)) == []
    listed = inodes.listed(inodes.root, "l", stamp=0)
    assert {each for each in inodes.below(inodes.root) if each is not None} == {folder, other, below, deep, beside, inodes[listed]}
    inodes.move(below, other, "d")
    assert list(inodes.below(folder)) == [] and set(inodes.below(other)) == {below, deep, beside}
    inodes.forget(deep.ino, 1)
    assert set(inodes.below(other)) == {below, beside}


def test_what_the_kernel_held_while_it_forgot_the_folder_has_the_same_number_again() -> None:
    inodes = table()
    file = inodes.refer(folder := inodes.refer(inodes.root, "a", is_folder=True), "k", is_folder=True)
    inodes.forget(folder.ino, 1)
    again = inodes.refer(inodes.root, "a", is_folder=True)
    assert again is not folder
    assert inodes.refer(again, "k", is_folder=True) is file
    assert inodes.find("a/k") is file and list(inodes.below(again)) == [file]


def test_stamps_tell_files_apart_and_ignore_folders() -> None:
    assert stamp_of(Attributes(True, 5, 6)) == 0
    stamps = {stamp_of(Attributes(False, size, mtime)) for size in range(10) for mtime in (None, 0, 1, 2)}
    assert len(stamps) == 40
    assert 0 not in stamps


NAMES, FILES = st.sampled_from("abc"), st.sampled_from("xyz")


class InodeMachine(RuleBasedStateMachine):
    """References, forgetting, moving and vanishing, in a folder tree of a few names. The model is a dict of existing nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.inodes = table()
        self.known: dict[int, Inode] = {}
        self.named: dict[str, int] = {}

    def folder(self, data: st.DataObject) -> Inode:
        return data.draw(
            st.sampled_from([self.inodes.root, *(self.known[ino] for path, ino in self.named.items() if path[-1] in "abc")])
        )

    @rule(data=st.data(), name=NAMES)
    def refer(self, data: st.DataObject, name: str) -> None:
        folder = self.folder(data)
        path = f"{folder.path}/{name}".lstrip("/")
        inode = self.inodes.refer(folder, name, is_folder=True)
        assert inode.ino == self.named.get(path, inode.ino)
        assert self.known.setdefault(inode.ino, inode) is inode
        self.named[path] = inode.ino

    # A stamp of 0 is that of a folder, which is never the inode of a file.
    @rule(data=st.data(), name=FILES, stamp=st.sampled_from([UNKNOWN_FILE, 1, 2]))
    def list_once_more(self, data: st.DataObject, name: str, stamp: int) -> None:
        """A listing refers to the same inode as a lookup, as long as its stamp matches."""
        folder = self.folder(data)
        path = f"{folder.path}/{name}".lstrip("/")
        known = self.known.get(self.named.get(path, 0))
        same = known is not None and (stamp == UNKNOWN_FILE or known.stamp in (0, stamp))
        ino = self.inodes.listed(folder, name, stamp=stamp)
        assert known is None or (ino == known.ino) is same
        inode = self.inodes[ino]
        assert inode.path == path
        assert self.known.setdefault(ino, inode) is inode
        self.named[path] = ino

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        # As in the kernel: only after everything below is forgotten.
        leaves = [each for each in self.known.values() if all(other.parent is not each for other in self.known.values())]
        inode = data.draw(st.sampled_from(leaves))
        self.inodes.forget(inode.ino, inode.lookups)
        del self.known[inode.ino]
        self.named = {path: ino for path, ino in self.named.items() if ino != inode.ino}

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.named)))
        inode = self.known[self.named[path]]
        if all(other.parent is not inode for other in self.known.values()):
            self.inodes.vanished(inode)
            del self.named[path]

    @precondition(lambda self: self.named)
    @rule(data=st.data(), name=NAMES)
    def move(self, data: st.DataObject, name: str) -> None:
        old = data.draw(st.sampled_from(sorted(self.named)))
        inode, folder = self.known[self.named[old]], self.folder(data)
        if old[-1] in "xyz":
            name = chr(ord(name) + 23)
        new = f"{folder.path}/{name}".lstrip("/")
        if (
            folder is inode
            or folder.path.startswith(f"{inode.path}/")
            or any(path == new or path.startswith(f"{new}/") for path in self.named)
        ):
            return
        self.inodes.move(inode, folder, name)
        self.named = {
            new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path: ino for path, ino in self.named.items()
        }

    @invariant()
    def paths_and_numbers_agree(self) -> None:
        assert len(self.inodes) == len(self.known) + 1
        for path, ino in self.named.items():
            assert self.inodes.find(path) is self.known[ino]
            assert self.known[ino].path == path


InodeMachine.TestCase.settings = settings(unhurried, stateful_step_count=30)
TestInodes = InodeMachine.TestCase


def test_a_value_of_another_generation_is_another_file_whatever_its_size_and_time() -> None:
    one = stamp_of(Attributes(False, 10, 5, generation="one"))
    another = stamp_of(Attributes(False, 10, 5, generation="another"))
    listed = stamp_of(Attributes(False, 10, 5))
    later = stamp_of(Attributes(False, 10, 6, generation="one"))
    assert is_same(one, one) and is_same(one, listed) and is_same(listed, another) and is_same(one, 0)
    assert not is_same(one, another) and not is_same(one, later) and not is_same(listed, later) and not is_same(one, -1)
    assert same_size(one, later) and not same_size(one, -1)
    assert listed < 1 << 32, "so many bytes are kept of what was only listed"


class Quiet(File):
    """A file that holds ``nbytes`` of memory for its readers."""

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = nbytes
        self.ident = "quiet"

    @property
    def held_nbytes(self) -> int:
        return self.nbytes

    async def attributes(self) -> Attributes:
        raise NotImplementedError

    async def open(self, flags: OpenFlags) -> Handle:
        raise NotImplementedError


def test_of_very_many_files_the_nodes_that_nobody_has_open_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NODES_KEPT", 4)
    inodes = table()
    found = [inodes.refer(inodes.root, f"k{number}", is_folder=not number) for number in range(8)]
    inodes.add_open(found[1])
    inodes.attach(found[0], Nowhere())
    for inode in found[1:]:
        inodes.attach(inode, Quiet())
    # A folder, and open files, are kept; the others are found again by their names.
    assert [inode.node is not None for inode in found] == [True, True, False, False, True, True, True, True]


def test_a_node_that_was_forgotten_by_the_kernel_is_not_kept_for_its_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NODES_KEPT", 1)
    inodes = table()
    gone, other, last = (inodes.refer(inodes.root, name, is_folder=True) for name in "abc")
    inodes.attach(gone, Nowhere())
    inodes.forget(gone.ino, 1)
    inodes.attach(other, Nowhere())
    inodes.attach(last, Nowhere())
    assert gone not in inodes._with_nodes and {other, last} >= set(inodes._with_nodes)


def test_a_node_is_freed_when_the_kernel_forgets_its_entry_unless_something_below_it_is_in_use() -> None:
    inodes = table()
    folder, file = (inodes.refer(inodes.root, name, is_folder=name == "d") for name in "dk")
    child = inodes.refer(folder, "x", is_folder=False)
    nodes = [Nowhere(), Quiet(100_000), Quiet()]
    for inode, node in zip((folder, file, child), nodes, strict=True):
        inodes.attach(inode, node)
    in_use = [weakref.ref(node) for node in nodes]
    del nodes, node
    inodes.forget(folder.ino, 1)
    inodes.forget(file.ino, 1)
    # What is found at the child's name has to be in this folder.
    assert [ref() is not None for ref in in_use] == [True, False, True]
    assert not inodes._heavy_nbytes
    inodes.forget(child.ino, 1)
    assert in_use[2]() is None


def test_files_that_hold_much_memory_are_let_go_of_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HEAVY_NBYTES", 100_000)
    inodes = table()
    files = [inodes.refer(inodes.root, f"k{number}", is_folder=False) for number in range(4)]
    inodes.add_open(files[0])
    for inode in files:
        inodes.attach(inode, Quiet(40_000))
    # The first is open, the second was released for the last.
    assert [inode.node is not None for inode in files] == [True, False, True, True]
    # A file that is looked up again counts with its current size.
    inodes.attach(files[3], Quiet(20_000))
    inodes.attach(files[2], Quiet(70_000))
    assert [inode.node is not None for inode in files] == [True, False, True, True]
    inodes.attach(files[1], Quiet(1_000_000))
    assert [inode.node is not None for inode in files] == [True, True, False, False]


def test_what_comes_to_be_at_the_path_of_a_file_that_is_gone_is_another() -> None:
    inodes = table()
    old = inodes.refer(inodes.root, "k", is_folder=False)
    inodes.vanished(old)
    new = inodes.at("k")
    assert new is not old and new.path == "k" and inodes.number("k") == new.ino
    assert inodes.at("k") is new
