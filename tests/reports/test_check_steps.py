"""``zarrfs check`` reports the remains of killed operations in several steps, and completes or undoes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.small_stores import array_document, write
from tests.support.users import run_as_users
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.records import VERSION, Record
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.options.config import MountConfig
from zarrfs.reports.check import check
from zarrfs.reports.findings import Report
from zarrfs.stores.folder.store import FolderStore

A = Prefix("a/")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(
        tmp_path / "store", {"a/.zarray": array_document((4,), (4,), "|u1"), "a/0": b"abcd", ".zgroup": b'{"zarr_format":2}'}
    )


async def cut_short(path: Path, record: Record, *, aside: bool, new: bool = False) -> None:
    """Leave a record as a process does that is killed at that point."""
    store = FolderStore(str(path))
    intent = Intents(store).new()
    await intent.begin(record)
    if new:
        await store.set(intent.new.key(".zarray"), array_document((2,), (2,), "|u1"))
    if aside:
        await store.rename_prefix(A, intent.old)
    await intent.let_go()
    await store.aclose()


def checked(store: Path, *, repairs: bool = False) -> Report:
    async def run() -> Report:
        return await check(MountConfig(store=str(store)), "/", repairs=repairs)

    return trio.run(run)


def zarrfs(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zarrfs", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.logs("interrupted operation \\(\\w+\\) undone")
def test_a_replacement_that_was_cut_short_is_told_and_undone(store: Path) -> None:
    trio.run(lambda: cut_short(store, Record("replace", NodePath("/a"), A), aside=True, new=True))
    before = sorted(store.rglob("*"))
    report = checked(store)
    assert [finding.path for finding in report.steps.first] == ["/a"] and report.chunks == 0
    assert sorted(store.rglob("*")) == before, "looking changes nothing"
    report = checked(store, repairs=True)
    assert report.steps.count == 0 and report.chunks == 1
    assert [(finding.path, finding.reason) for finding in report.repaired.first] == [("/a", "replace: undone")]
    assert sorted(path.name for path in store.rglob("*")) == [".zarray", ".zgroup", "0", "a"]


@pytest.mark.logs("interrupted operation \\(\\w+\\) completed")
def test_one_whose_new_array_is_in_its_place_is_ended(store: Path) -> None:
    trio.run(lambda: cut_short(store, Record("erase", NodePath("/a"), A), aside=True))
    report = checked(store, repairs=True)
    assert [finding.reason for finding in report.repaired.first] == ["erase: completed"]
    assert sorted(path.name for path in store.rglob("*")) == [".zgroup"]


@pytest.mark.logs("interrupted operation \\(rename\\) given up")
def test_what_is_left_of_a_node_whose_rename_was_given_up_is_bad(store: Path) -> None:
    """The repair ended with "all is well", and so did each later check: the array was gone."""

    async def leave() -> None:
        folder = FolderStore(str(store))
        intent = Intents(folder).new()
        moves = ((Prefix("data/b/"), Prefix("data/c/")), (Key("meta/b"), Key("meta/c")))
        await intent.begin(Record("rename", NodePath("/c"), Prefix("c/"), source=Prefix("b/"), moves=moves, is_placing=True))
        # Its document. The chunks were in their place already, from where another program has removed them.
        await folder.set(intent.old.key("1"), b"{}")
        await intent.let_go()
        await folder.aclose()

    trio.run(leave)
    for report in (checked(store, repairs=True), checked(store)):
        (finding,) = report.bad.first
        assert finding.path == "/c" and "rename given up" in finding.reason
        assert report.steps.count == 0
        (kept,) = store.glob(".zarrfs/*.kept")
        assert kept.name in finding.reason and (kept / "old/1").read_bytes() == b"{}"
    assert zarrfs("check", store).returncode == 1


def test_what_is_only_being_made_is_no_fault(store: Path) -> None:
    (store / f".zarrfs/{'0' * 32}/new").mkdir(parents=True)
    report = checked(store)
    assert (report.steps.count, report.making.count, report.bad.count) == (0, 1, 0)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_tells_and_repairs(store: Path, as_json: bool) -> None:
    trio.run(lambda: cut_short(store, Record("replace", NodePath("/a"), A), aside=True, new=True))
    options = ["--json"] if as_json else []
    told = zarrfs("check", store, *options)
    assert told.returncode == 1, told
    repaired = zarrfs("check", store, "--repair", *options)
    assert repaired.returncode == 0, repaired
    if as_json:
        said: Any = json.loads(told.stdout)
        assert said["steps_count"] == 1 and said["steps"][0]["path"] == "/a"
        assert json.loads(repaired.stdout)["repaired_count"] == 1
    else:
        assert "incomplete" in told.stdout and "--repair" in told.stdout
        assert "all is well" in repaired.stdout
    assert (store / "a/0").read_bytes() == b"abcd"


@pytest.mark.full_length
def test_what_a_later_zarrfs_has_left_is_not_repaired(store: Path) -> None:
    folder = store / f".zarrfs/{'0' * 32}"
    folder.mkdir(parents=True)
    (folder / "intent.json").write_text(json.dumps({"version": VERSION + 1}))
    told = zarrfs("check", store)
    assert told.returncode == 1 and f"version {VERSION + 1}" in told.stdout
    refused = zarrfs("check", "--repair", store)
    assert refused.returncode == 1 and f"version {VERSION + 1}" in refused.stderr
    assert (folder / "intent.json").exists()


def test_what_cannot_be_written_to_cannot_be_repaired(tmp_path: Path) -> None:
    archive = tmp_path / "store.zip"
    subprocess.run([sys.executable, "-m", "zipfile", "-c", str(archive), __file__], check=True)
    refused = zarrfs("check", "--repair", archive)
    assert refused.returncode == 4 and "repair impossible" in refused.stderr


@pytest.mark.parametrize("option", ["-o", "--config"])
def test_what_the_options_keep_read_only_is_not_repaired(store: Path, tmp_path: Path, option: str) -> None:
    """The file of a mount that is read-only protects its store: `--repair` changed it all the same."""
    trio.run(lambda: cut_short(store, Record("replace", NodePath("/a"), A), aside=True, new=True))
    before = sorted(store.rglob("*"))
    file = tmp_path / "options.toml"
    file.write_text("read_only = true\n")
    refused = zarrfs("check", "--repair", store, option, "ro" if option == "-o" else file)
    assert refused.returncode == 4 and "repair impossible, read_only is set" in refused.stderr, refused
    assert sorted(store.rglob("*")) == before


@pytest.mark.fuse
def test_who_may_not_write_a_store_cannot_repair_it() -> None:
    said = run_as_users("""
    mkdir -m 0755 "$W/s" && echo '{"zarr_format": 2}' > "$W/s/.zgroup"
    code as 65534 zarrfs check --repair "$W/s"
    chown 65534 "$W/s" && chmod 0555 "$W/s"
    code as 65534 zarrfs check --repair "$W/s"
    as 65534 zarrfs check "$W/s"
    """).splitlines()
    assert [line for line in said if line.startswith("code ")] == ["code 4"] * 2
    assert sum("repair impossible" in line for line in said) == 2
