from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import trio
from rich.console import Console

from tests.support.cases import CASES, Case, cases
from tests.support.comparing import stored_chunks
from tests.support.hostile import LINKS, SOUND, folder_cases, write_huge
from tests.support.small_stores import SMALL, array_document, write
from tests.support.stores import InterruptedStore, fill
from zarrfs.command import main
from zarrfs.options.config import MountConfig
from zarrfs.reports import check_text, offline
from zarrfs.reports.check import check
from zarrfs.reports.findings import MAX_LISTED, Finding, Findings, Report
from zarrfs.reports.info import describe
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore

ROOT = Path(__file__).parents[2]

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


def checked(store: Path | str, path: str = "/", **options: Any) -> Report:
    return trio.run(check, MountConfig(store=str(store), **options), path)


def paths(findings: Findings) -> set[str]:
    return {finding.path for finding in findings.first}


def v3(folder: Path, *codecs: str, chunks: dict[str, bytes], shape: int = 8) -> Path:
    """Write the final v3 array ``a`` of bytes in chunks of 4."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [shape],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": name} for name in codecs],
    }
    return write(folder, {"a/zarr.json": json.dumps(document).encode()} | {f"a/c/{name}": data for name, data in chunks.items()})


# --- stores of other software --------------------------------------------------------------------------------------------------


LAYOUTS = sorted(folder.name for folder in CASES.iterdir() if folder.is_dir() and folder.name != "hostile")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for layout in LAYOUTS for case in cases(layout)])
def test_nothing_is_bad_in_stores_of_other_software(case: Case, expect_logs: Callable[[str], None]) -> None:
    expect_logs("fallback|order is F")
    report = checked(case.path)
    assert (report.bad.first, report.hidden.first, report.complete) == ([], [], True)
    refused = set(filter(None, case.manifest.get("expect", "").removeprefix("refuse:").split(",")))
    assert paths(report.unchecked) == refused
    assert report.nodes >= len(case.nodes())
    assert report.chunks == sum(len(stored_chunks(node)) for node in case.nodes("array") if node["path"] not in refused)


@pytest.mark.parametrize("case", folder_cases(), ids=lambda case: case.name)
def test_what_is_bad_in_a_hostile_store_is_named_and_nothing_else(case: Case, expect_logs: Callable[[str], None]) -> None:
    expect_logs("symbolic links")
    report = checked(case.path)
    found = paths(report.bad) | paths(report.unchecked)
    assert found == set(case.manifest["hostile"]["bad_nodes"]) - (SOUND - LINKS)
    assert all(len(finding.reason) > 20 for finding in report.bad.first + report.unchecked.first)
    assert not Path("PICKLE_CANARY").exists() and not (case.path / "PICKLE_CANARY").exists()


@pytest.mark.parametrize("node", ["g/b", "/g/b/", "g//b", "\\g\\b", "/g\\/b\\"])
def test_a_node_is_named_as_a_person_likes(tmp_path: Path, node: str) -> None:
    store = write(tmp_path, {"g/b/.zarray": array_document((2,), (2,)), "g/b/0": bytes(8)})
    assert checked(store, node).chunks == 1
    assert trio.run(describe, MountConfig(store=str(store)), node)["nodes"][0]["path"] == "/g/b"


def test_a_backslash_in_a_name_is_found(tmp_path: Path) -> None:
    store = write(tmp_path, {"a\\b/zarr.json": b'{"zarr_format": 3, "node_type": "group"}'})
    assert trio.run(describe, MountConfig(store=str(store)), "/a\\b/")["nodes"][0]["path"] == "/a\\b"
    # It is the named node, whatever else exists.
    write(store, {"a/b/zarr.json": b'{"zarr_format": 3, "node_type": "group"}'})
    assert trio.run(describe, MountConfig(store=str(store)), "a\\b")["nodes"][0]["path"] == "/a\\b"


def test_bad_is_told_from_unsupported(tmp_path: Path) -> None:
    store = write(tmp_path, SMALL)
    write(store, {"odd/.zarray": array_document((2,), (2,), compressor={"id": "no-such-codec"})})
    write(store, {"wrong/.zarray": array_document((2,), (-2,)), "torn/.zarray": b'{"zarr_format": 2,'})
    report = checked(store)
    assert paths(report.bad) == {"/wrong", "/torn"}
    assert paths(report.unchecked) == {"/odd"}
    assert "no-such-codec" in report.unchecked.first[0].reason
    assert report.chunks == 5


def test_a_store_that_means_to_exhaust_us(tmp_path: Path) -> None:
    report = checked(write_huge(tmp_path))
    assert paths(report.bad) == set()
    assert report.chunks == 1


def test_documents_of_another_layout_at_the_same_path_are_a_note_and_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = v3(write(tmp_path, SMALL), "bytes", chunks={"0": b"abcd"})
    report = checked(store)
    assert [(finding.path, finding.reason) for finding in report.hidden.first] == [
        ("/a", "documents of v3 are valid, those of v2 are ignored")
    ]
    assert report.chunks == 1
    assert main.run(["check", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hides documents of other layouts, which were not checked: 1"
    assert lines[1].startswith("  /a: ") and lines[2].endswith("all is well")
    assert main.run(["check", str(store), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["hidden_count"], said["hidden"][0]["path"]) == (1, "/a")


# --- chunks --------------------------------------------------------------------------------------------------------------------


def test_a_sound_store_is_summed_up_and_missing_chunks_are_fine(tmp_path: Path) -> None:
    report = checked(write(tmp_path, SMALL))
    # Two arrays of 3 x 2 chunks of 24 bytes, of which one has five and one none.
    assert (report.nodes, report.chunks, report.stored_nbytes, report.decoded_nbytes) == (3, 5, 120, 120)
    assert report.done == report.total == 12
    assert [report.bad.count, report.unchecked.count, report.outside.count] == [0, 0, 0]


def test_corrupted_and_truncated_chunks_are_named_with_key_and_coordinates(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(next(case for case in cases("v2") if case.name == "v2/compressors").path, store)
    zlib = next(path for path in store.rglob("0*") if b"zlib" in (path.parent / ".zarray").read_bytes())
    blosc = next(path for path in store.rglob("0*") if b"blosc" in (path.parent / ".zarray").read_bytes())
    zlib.write_bytes(zlib.read_bytes()[:-3])
    blosc.write_bytes(b"\xff" + blosc.read_bytes()[1:])
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    report = checked(store)
    assert {finding.key for finding in report.bad.first} == {path.relative_to(store).as_posix() for path in (zlib, blosc)}
    for finding in report.bad.first:
        assert finding.key is not None and finding.coords is not None
        assert finding.key == f"{finding.path[1:]}/{'.'.join(map(str, finding.coords))}"
    assert report.unchecked.count == 0
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_a_checksum_that_does_not_match(tmp_path: Path) -> None:
    def summed(data: bytes) -> bytes:
        return data + google_crc32c.value(data).to_bytes(4, "little")

    store = v3(tmp_path, "bytes", "crc32c", chunks={"0": summed(b"abcd"), "1": summed(b"abcd")[:-1] + b"\0"})
    report = checked(store)
    assert [(finding.key, finding.coords) for finding in report.bad.first] == [("a/c/1", (1,))]
    assert "crc32c" in report.bad.first[0].reason
    assert report.chunks == 1


def test_chunks_outside_the_grid_are_noted_and_not_bad(tmp_path: Path) -> None:
    store = v3(tmp_path, "bytes", chunks={"0": b"abcd", "2": b"not even of a chunk's size", "note": b""})
    report = checked(store)
    assert [(finding.key, finding.coords) for finding in report.outside.first] == [("a/c/2", (2,))]
    assert (report.bad.count, report.chunks) == (0, 1)


def test_a_link_in_the_place_of_a_chunk_is_bad(tmp_path: Path, expect_logs: Callable[[str], None]) -> None:
    """It is not listed: a check of listed chunks would pass the store, but readers get an error."""
    expect_logs("symbolic links")
    store = v3(tmp_path / "store", "bytes", chunks={"0": b"abcd"})
    (tmp_path / "elsewhere").write_bytes(b"efgh")
    (store / "a/c/1").symlink_to(tmp_path / "elsewhere")
    assert [finding.key for finding in checked(store).bad.first] == ["a/c/1"]


def test_a_link_that_hides_a_node_or_one_of_very_many_chunks_is_not_passed(
    tmp_path: Path, expect_logs: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs that follow links have data there, and `zarrfs check a && rm -r b` relies on all of it."""
    expect_logs("symbolic links")
    # Of so many chunks only the listed ones are read.
    store = v3(tmp_path / "store", "bytes", chunks={"0": b"abcd"}, shape=4_000_000)
    (store / "a/c/7").symlink_to(store / "a/c/0")
    (store / "b").symlink_to(store / "a")
    os.mkfifo(store / "a/pipe")
    report = checked(store)
    assert sorted(finding.key or "" for finding in report.unchecked.first) == ["a/c/7", "a/pipe", "b"]
    assert (report.bad.count, report.chunks) == (0, 1)
    assert main.run(["check", str(store)]) == 1
    assert "b: a symbolic link or special file" in capsys.readouterr().out


def test_a_link_with_the_name_of_attributes_alone_is_no_other_node(tmp_path: Path, expect_logs: Callable[[str], None]) -> None:
    """``attrs`` are attributes in v1, where ``meta`` decides that there is an array: without it, no other node is in doubt."""
    expect_logs("symbolic links")
    store = v3(tmp_path / "store", "bytes", chunks={"0": b"abcd"})
    (store / "a/attrs").symlink_to(tmp_path)
    report = checked(store)
    assert report.bad.count == 0
    assert [finding.key for finding in report.unchecked.first] == ["a/attrs"]


def test_a_node_alone_and_what_is_below_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write(tmp_path, {f"{group}/{key}": value for group in ("x", "y") for key, value in SMALL.items()})
    (store / "y/a/0.0").write_bytes(b"")
    assert checked(store, "x").bad.count == 0
    assert checked(store, "/x/a/").chunks == 5
    assert [finding.key for finding in checked(store, "/y").bad.first] == ["y/a/0.0"]
    assert main.run(["check", str(store), "none"]) == 1
    assert "/none: no such node" in capsys.readouterr().err


def test_a_grid_too_large_to_be_asked_for_whole_is_read_by_its_listing(tmp_path: Path) -> None:
    store = v3(tmp_path, "bytes", chunks={"0": b"abcd", "77": b"efg"}, shape=2**40)
    report = checked(store)
    assert [finding.coords for finding in report.bad.first] == [(77,)]
    assert (report.done, report.total) == (2, 2)


# --- mode of operation ---------------------------------------------------------------------------------------------------------


class WatchedStore(InterruptedStore):
    """Counts the chunks being read at once, and calls ``on_chunk`` at each."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.now = self.most = 0
        self.on_chunk: Callable[[], None] = lambda: None

    async def interrupt(self, operation: str, target: str) -> None:
        if operation == "get_partial_values" and target.rpartition("/")[2][0].isdigit():
            self.now += 1
            self.most = max(self.most, self.now)
            self.on_chunk()
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            self.now -= 1


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> WatchedStore:
    """A store in memory with 100 chunks of 1000 bytes, opened for any URL."""
    inner = MemoryStore()
    values = {"a/.zarray": array_document((100_000,), (1000,), "|u1")} | {f"a/{index}": bytes(1000) for index in range(100)}
    trio.run(fill, inner, values)
    store = WatchedStore(inner)

    async def open_it(url: str, read_only: bool = False) -> Store:
        return store

    monkeypatch.setattr(offline, "open_store", open_it)
    return store


@pytest.mark.parametrize(("memory", "at_once"), [(1 << 30, 16), (6000, 3), (1, 1)])
def test_several_chunks_at_once_as_far_as_memory_goes(watched: WatchedStore, memory: int, at_once: int) -> None:
    assert checked("memory:", memory_limit=memory).chunks == 100
    assert watched.most == at_once


def test_an_interrupt_ends_it_with_what_was_found(watched: WatchedStore) -> None:
    reads = 0

    def interrupted() -> None:
        nonlocal reads
        reads += 1
        if reads == 50:
            os.kill(os.getpid(), signal.SIGINT)

    watched.on_chunk = interrupted
    report = checked("memory:", memory_limit=1)
    assert not report.complete
    assert 0 < report.done < 100
    assert report.total == 100


def test_what_is_found_ends_somewhere() -> None:
    findings = Findings()
    for index in range(MAX_LISTED + 5):
        findings.add(Finding("/a", "x", f"a/{index}", (index,)))
    assert (len(findings.first), findings.count) == (MAX_LISTED, MAX_LISTED + 5)
    assert "and 5 more" in check_text.render(Report("x", bad=findings)).plain


# --- the command ---------------------------------------------------------------------------------------------------------------


def test_a_folder_without_arrays_is_not_said_to_be_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any folder is a store without arrays, also one that was not meant."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"x")
    assert main.run(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 2 nodes, 0 chunks, 0 B stored, 0 B decoded: no arrays, nothing was checked\n"
    assert main.run(["check", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["arrays"] == 0


def test_exit_codes_and_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write(tmp_path / "x.zarr", SMALL)
    assert main.run(["check", str(store)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{store}: 3 nodes, 5 chunks, 120 B stored, 120 B decoded: all is well\n"
    assert captured.err == ""
    (store / "a/0.0").write_bytes(b"short")
    (store / "a/9.9").write_bytes(b"")
    write(store, {"odd/.zarray": array_document((2,), (2,), compressor={"id": "\x1b[2J"})})
    assert main.run(["check", str(store)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "bad: 1",
        "could not be checked: 1",
        "outside the grid, where no program reads it: 1",
        f"{store}: 4 nodes, 4 chunks, 96 B stored, 96 B decoded: 1 bad, 1 could not be checked",
    ]
    assert lines[1].startswith("  a/0.0: ") and lines[3].startswith("  /odd: ") and lines[5].startswith("  a/9.9: ")
    assert "\x1b" not in "".join(lines)
    # Skipped arrays are not checked.
    assert main.run(["check", str(store), "odd"]) == 1
    assert main.run(["check", str(store), "z"]) == 0
    assert main.run(["check", str(tmp_path / "none")]) == 3


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write(tmp_path / "x.zarr", SMALL)
    (store / "a/0.1").write_bytes(b"short")
    assert main.run(["check", str(store), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["store"], said["complete"], said["chunks"], said["bad_count"]) == (str(store), True, 4, 1)
    assert said["bad"][0].items() >= {"path": "/a", "key": "a/0.1", "coords": [0, 1]}.items()
    assert said["unchecked"] == said["outside"] == []


def test_the_bar_is_for_terminals() -> None:
    report = Report("x", done=3, total=12)
    report.bad.add(Finding("/a", "x"))
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
        with check_text.Bar(console) as bar:
            bar.update(report)
        assert isinstance(console.file, io.StringIO)
        shown = console.file.getvalue()
        assert ("3/12" in shown and "1 bad" in shown) if terminal else shown == ""


def test_it_needs_no_fuse(tmp_path: Path) -> None:
    store = write(tmp_path, SMALL)
    script = (
        f"import sys; sys.modules['pyfuse3'] = None; from zarrfs.command.main import run; sys.exit(run(['check', {str(store)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        (
            {
                "zarr.json": GROUP,
                ".../zarr.json": GROUP,
                "__x/zarr.json": GROUP,
                "ok/zarr.json": GROUP,
                ".../.../zarr.json": GROUP,
                "__y/z": b"",
            },
            [".../zarr.json", "__x/zarr.json"],
        ),
        (
            {
                "zarr.json": b'{"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0", "extensions": [],'
                b' "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_key_suffix": ".json"}',
                "meta/root/\xfc.group.json": b'{"attributes": {}}',
                "meta/root/ok.group.json": b'{"attributes": {}}',
            },
            ["meta/root/\xfc.group.json"],
        ),
    ],
)
def test_nodes_at_invalid_names_are_named(
    values: dict[str, bytes], keys: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No view shows them, and all was well."""
    store = write(tmp_path, values)
    report = checked(store)
    assert sorted(finding.key or "" for finding in report.misnamed.first) == keys
    assert main.run(["check", str(store)]) == 0
    assert f"at a name that no node may have, where no view shows it, not checked: {len(keys)}" in capsys.readouterr().out


def test_packed_objects_are_read_without_the_c_code_of_their_library() -> None:
    """Where it cannot be compiled, the library is installed without it."""
    command = [sys.executable, "-P", "-m", "zarrfs", "check", str(CASES / "v2/more_objects")]
    env = os.environ | {"PYTHONPATH": str(ROOT), "MSGPACK_PUREPYTHON": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
