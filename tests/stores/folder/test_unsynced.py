"""Folders whose names are not on disk yet, while other threads sync them, and values that are not."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zarrfs.stores.folder import unsynced
from zarrfs.stores.folder.calls import Closing
from zarrfs.stores.folder.names import Parts
from zarrfs.stores.folder.unsynced import Unsynced


class Opened:
    """Opens folders, and records them; ``waits``: the opening of that folder takes until it is allowed."""

    def __init__(self, path: Path, waits: Parts | None = None) -> None:
        self.path, self.waits = path, waits
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.folders: set[Parts] = set()

    def __call__(self, parts: Parts) -> Closing:
        self.folders.add(parts)
        if parts == self.waits:
            self.begun.set()
            assert self.may_end.wait(60)
        return Closing(os.open(self.path.joinpath(*parts), os.O_RDONLY))


@contextmanager
def syncing(sync: Callable[[Opened], None], opened: Opened) -> Iterator[None]:
    """Run the body while another thread is in ``sync``."""
    thread = threading.Thread(target=sync, args=(opened,))
    thread.start()
    try:
        assert opened.begun.wait(60)
        yield
    finally:
        opened.may_end.set()
        thread.join()


def one(folders: Unsynced) -> Callable[[Opened], None]:
    return lambda opened: folders.sync({("g", "a")}, opened)


def all_of(folders: Unsynced) -> Callable[[Opened], None]:
    def sync(opened: Opened) -> None:
        with folders.all_synced():
            opened(("g",)).__exit__(None, None, None)

    return sync


@pytest.mark.parametrize("way", [one, all_of])
def test_a_folder_that_another_thread_syncs_is_not_synced_yet(
    way: Callable[[Unsynced], Callable[[Opened], None]], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / "g" / name).mkdir(parents=True)
    folders = Unsynced()
    folders.add(())
    folders.add(("g",))
    with syncing(way(folders), Opened(tmp_path, waits=("g",))):
        opened = Opened(tmp_path)
        folders.sync({("g", "b")}, opened)
        assert ("g",) in opened.folders
        assert ("g",) in (folders.below([()]) or ())
    opened = Opened(tmp_path)
    folders.sync({("g", "b")}, opened)
    assert opened.folders == {("g", "b")}


def test_unknown_folders_are_unsynced_until_the_sync_of_all_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsynced, "_MAX_KNOWN", 1)
    (tmp_path / "g").mkdir()
    folders = Unsynced()
    for parts in ((), ("g",)):
        folders.add(parts)
    with syncing(all_of(folders), Opened(tmp_path, waits=("g",))):
        assert folders.overflowed and folders.below([()]) is None
    assert not folders.overflowed and folders.below([()]) == {()}


def test_values_are_unsynced_until_a_sync_of_them_succeeds_wherever_they_are_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    values = Unsynced()
    values.value_set(("g", "a", "0"), is_synced=False)
    values.value_set(("g", "b", "0"), is_synced=True)
    assert values.values_below([()]) == {("g", "a", "0")} and values.values_below([("g", "b")]) == set()
    values.renamed(("g",), ("h",))
    assert values.values_below([("h",)]) == {("h", "a", "0")}
    with pytest.raises(OSError, match="disk"), values.value_synced(("h", "a", "0")):
        raise OSError("disk")
    assert values.values_below([("h",)]) == {("h", "a", "0")}
    with values.value_synced(("h", "a", "0")):
        # Another thread, which begins now, has to wait for it as well.
        assert values.values_below([("h",)]) == {("h", "a", "0")}
    assert values.values_below([("h",)]) == set()
    monkeypatch.setattr(unsynced, "_MAX_KNOWN", 1)
    for name in "01":
        values.value_set(("h", name), is_synced=False)
    assert values.values_below([("h",)]) is None
    with values.all_synced():
        pass
    assert values.values_below([("h",)]) == set()


def test_a_value_that_is_set_during_its_sync_is_unsynced() -> None:
    values = Unsynced()
    for syncing in (values.value_synced(("a", "0")), values.all_synced(), values.erasing(("a",))):
        values.value_set(("a", "0"), is_synced=False)
        with syncing:
            values.value_set(("a", "0"), is_synced=False)
        assert values.values_below([()]) == {("a", "0")}


def test_values_are_unsynced_at_their_paths() -> None:
    values = Unsynced()
    for parts in (("a", "0"), ("b", "1"), ("b", "2"), ("c", "3")):
        values.value_set(parts, is_synced=False)
    values.exchanged(("a",), ("b",))
    assert values.values_below([()]) == {("b", "0"), ("a", "1"), ("a", "2"), ("c", "3")}
    values.value_moved(("a", "1"), ("c", "3"))
    values.value_erased(("a", "2"))
    assert values.values_below([()]) == {("b", "0"), ("c", "3")}
    values.value_set(("a", "2"), is_synced=True)
    values.value_moved(("a", "2"), ("c", "3"))
    assert values.values_below([()]) == {("b", "0")}
    with values.erasing(("b",)):
        pass
    assert values.values_below([()]) == set()


def test_an_unknown_value_is_unsynced_until_the_sync_of_all_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsynced, "_MAX_KNOWN", 1)
    values = Unsynced()
    for name in "01":
        values.value_set((name,), is_synced=False)
    with values.all_synced():
        assert values.values_below([()]) is None
        values.value_set(("2",), is_synced=False)
    assert values.values_below([()]) is None


def test_a_value_may_be_unsynced_until_it_is_synced_and_while_too_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsynced, "_MAX_KNOWN", 2)
    known, a, b = Unsynced(), ("a",), ("b",)
    known.value_set(a, is_synced=False)
    known.value_set(b, is_synced=True)
    assert (known.may_have(a), known.may_have(b)) == (True, False)
    with known.value_synced(a):
        pass
    assert not known.may_have(a)
    for number in range(3):
        known.value_set((f"{number}",), is_synced=False)
    assert known.may_have(a)
    with known.all_synced():
        pass
    assert not known.may_have(a)


def test_the_name_of_a_value_may_be_unsynced_while_its_bytes_are_not() -> None:
    known, a, b = Unsynced(), ("a",), ("f", "b")
    known.value_set(b, is_synced=True)
    assert (known.may_be_renamed(a), known.may_be_renamed(b)) == (False, True)
    with known.all_synced():
        assert known.may_be_renamed(b)
    assert not known.may_be_renamed(b)
    known.renamed(("f",), ("g",))
    assert known.may_be_renamed(("g", "b"))


def test_the_others_cost_nothing_when_one_is_moved_erased_or_synced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    costs = []
    for others in (10, 1000):
        names = Unsynced()
        for number in range(others):
            names.value_set((str(number), "0"), is_synced=False)
        names.value_set(("a", "0"), is_synced=False)
        calls = 0

        def note(*_: object) -> None:
            nonlocal calls
            calls += 1

        # The finalizers of other tests' garbage are no calls of these methods.
        gc.disable()
        sys.setprofile(note)
        try:
            names.renamed(("a",), ("b",))
            names.exchanged(("b",), ("a",))
            names.values_below([("a",)])
            names.below([("a",)])
            with names.erasing(("a",)):
                pass
        finally:
            sys.setprofile(None)
            gc.enable()
        costs.append(calls)
        assert names.values_below([("a",)]) == set() and len(names.values_below([()]) or ()) == others
    assert costs[0] == costs[1]
