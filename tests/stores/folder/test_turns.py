"""Values that several processes replace and remove, each with a condition or without: nothing that was acknowledged is lost."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from zarrfs.errors import GenerationMismatch
from zarrfs.keys import WHOLE
from zarrfs.stores.folder.names import generation_of
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


def test_who_locks_a_value_for_ever_delays_a_change_but_does_not_prevent_it(tmp_path: Path) -> None:
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
