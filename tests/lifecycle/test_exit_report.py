from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.small_disks import small_disk
from zarrfs.lifecycle import exit_report, runtime_folder
from zarrfs.lifecycle.exit_report import SUDDEN_DEATH, Left, Outcome


@pytest.fixture(autouse=True)
def _runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_a_good_end_leaves_nothing() -> None:
    path = exit_report.begin()
    exit_report.end(path)
    assert list(path.parent.iterdir()) == []
    assert exit_report.collect(str(path)) is None


def test_a_sudden_death_leaves_a_word() -> None:
    path = exit_report.begin()
    assert path.stat().st_mode & 0o777 == 0o600
    assert exit_report.collect(str(path)) == SUDDEN_DEATH
    assert not path.exists()


def test_processes_of_one_number_have_a_report_each() -> None:
    """As in containers that share the folder; here both are this process."""
    dies, ends = exit_report.begin(), exit_report.begin()
    assert dies.parent == ends.parent
    exit_report.end(ends)
    assert exit_report.collect(str(dies)) == SUDDEN_DEATH
    assert list(dies.parent.iterdir()) == []


def test_words_are_replaced_and_read_once() -> None:
    path = exit_report.begin()
    exit_report.write(path, Outcome(7, "raw/a: no space"))
    assert exit_report.collect(str(path)) == Outcome(7, "raw/a: no space")
    assert exit_report.collect(str(path)) is None


@pytest.mark.parametrize("character", ["a", "\\", "漢", "\U0001f40d", "\udcff", "\x00"])
def test_a_report_of_any_length_is_read(character: str) -> None:
    path = exit_report.begin()
    exit_report.write(path, Outcome(7, character * 100_000))
    outcome = exit_report.collect(str(path))
    assert outcome is not None and outcome.exit_code == 7 and len(outcome.message) == 4000
    exit_report.update(path, Left(30, 2**62, (character * 4096,) * 20))
    assert exit_report.left(str(path)) == Left(30, 2**62)
    exit_report.write(path, Outcome(7, "a" * 4001))
    outcome = exit_report.collect(str(path))
    assert outcome == Outcome(7, "a" * 3996 + " ...")


def test_a_report_is_made_again_with_the_folder_that_went_with_a_session(tmp_path: Path) -> None:
    path = exit_report.begin()
    shutil.rmtree(path.parent)
    exit_report.update(path, Left(1, 2, ("raw/a",)))
    assert path.parent.stat().st_mode & 0o777 == 0o700 and exit_report.left(str(path)) == Left(1, 2)
    shutil.rmtree(path.parent)
    exit_report.write(path, Outcome(7, "raw/a: no space"))
    assert exit_report.collect(str(path)) == Outcome(7, "raw/a: no space")
    exit_report.end(path)
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path / "else")
    with pytest.raises(OSError, match="zarrfs"):
        exit_report.update(path, Left())
    assert not (tmp_path / "else").exists()


def test_in_a_folder_that_fails_there_is_no_report(tmp_path: Path) -> None:
    path = exit_report.begin()
    assert exit_report.is_there(path)
    exit_report.end(path)
    assert not exit_report.is_there(path)
    assert not exit_report.is_there(tmp_path / ("x" * 256))


def test_a_file_that_is_not_last_words_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    for text in ("root:x:0:0", json.dumps([1]), json.dumps({"exit_code": "x", "message": ""})):
        other.write_text(text)
        assert exit_report.collect(str(other)) is None
        assert other.read_text() == text
    link = tmp_path / "link"
    words = exit_report.begin()
    link.symlink_to(words)
    assert exit_report.collect(str(link)) is None
    os.mkfifo(tmp_path / "fifo")
    assert exit_report.collect(str(tmp_path / "fifo")) is None
    assert exit_report.collect(str(tmp_path)) is None


def test_what_is_left_is_told_while_there_is_some_and_lost_with_the_daemon() -> None:
    path = exit_report.begin()
    assert exit_report.left(str(path)) is None
    exit_report.update(path, Left(3, 12 << 20, ("raw/a", "raw/b")))
    left = exit_report.left(str(path))
    assert left == Left(3, 12 << 20)
    assert str(left) == "3 files, 12.0 MiB left"
    exit_report.update(path, Left())
    assert exit_report.collect(str(path)) == SUDDEN_DEATH
    exit_report.update(path, Left(3, 12 << 20, ("raw/a", "raw/b")))
    outcome = exit_report.collect(str(path))
    assert outcome is not None
    assert (outcome.exit_code, outcome.message) == (
        7,
        f"{SUDDEN_DEATH.message}: at last count 3 files, 12.0 MiB left (raw/a, raw/b, ...)",
    )
    assert exit_report.left(str(path)) is None


@pytest.mark.fuse
def test_a_full_runtime_folder_costs_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_folder.tempfile, "tempdir", str(tmp_path))
    with small_disk(tmp_path / "full", "4k") as full:
        monkeypatch.setattr(runtime_folder, "_shared", lambda: [full / "zarrfs"])
        (full / "zarrfs").mkdir(0o700)
        (full / "all").write_bytes(bytes(4096))
        path = exit_report.begin()
        assert path.parent.parent == tmp_path
        assert list((full / "zarrfs").iterdir()) == []
        assert exit_report.collect(str(path)) == SUDDEN_DEATH
        assert not path.parent.exists()


@pytest.mark.fuse
def test_where_no_report_can_be_created_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "full", "4k") as full:
        monkeypatch.setattr(runtime_folder, "_shared", list)
        monkeypatch.setattr(runtime_folder.tempfile, "tempdir", str(full))
        (full / "all").write_bytes(bytes(4096))
        with pytest.raises(OSError, match="No space"):
            exit_report.begin()
        assert [each.name for each in full.iterdir()] == ["all"]
