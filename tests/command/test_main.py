from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zarrfs import __version__, errors
from zarrfs.command import answering, exit_codes, main, mount_helper
from zarrfs.lifecycle.parent import READY_CONFIG, READY_FD
from zarrfs.options.config import MountConfig, options

HEAVY = ("numpy", "trio", "pyfuse3", "numcodecs", "rich", "zarrfs.model", "zarrfs.stores.base")


def test_help_and_version_import_nothing_heavy() -> None:
    script = f"import sys; from zarrfs.command.main import run; run(sys.argv[1:]); print([m for m in {HEAVY} if m in sys.modules])"
    for arguments in (["--version"], ["--help"], ["mount", "--help"]):
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


def test_where_a_store_lies_is_known_without_what_opens_it() -> None:
    script = (
        f"import sys; from zarrfs.stores.urls import local_path; local_path('/'); print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_daemon_needs_no_parser_of_command_lines(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    config = MountConfig(store=str(tmp_path / "none"), mountpoint=str(tmp_path))
    with open(reader, "rb") as said:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-P", "-m", "zarrfs"],
            env=os.environ | {READY_FD: str(writer), READY_CONFIG: config.to_json()},
            pass_fds=[writer],
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(writer)
        assert done.returncode == 3 and b"there is no store" in said.read()
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "trio" in imported and "click" not in imported


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "zarrfs", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"zarrfs {__version__}\n")
    assert subprocess.run([sys.executable, "-m", "zarrfs", "mont"], capture_output=True, check=False).returncode == 2


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["mount", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in options())


def test_help_lists_options_in_groups_and_each_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main.run(["mount", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.removesuffix(":") for line in lines if line and not line.startswith((" ", "Usage"))]
    assert titles == ["Arguments", *dict.fromkeys(option.group for option in options().values())]
    for name, option in options().items():
        at = next(n for n, line in enumerate(lines) if f"--{name.replace('_', '-')} " in line)
        assert [line for line in lines[:at] if not line.startswith(" ")][-1] == f"{option.group}:"
        shown = next(line for line in lines[at : at + 2] if option.help in line)
        assert shown.endswith((option.help, "]"))
        text = shown[shown.index(option.help) :]
        assert len(text) <= 60, text
        assert option.help and option.help[0].isupper() and ". " not in option.help and not option.help.endswith(".")


@pytest.mark.parametrize("command", ["umount", "info", "check", "install", "uninstall"])
def test_help_of_every_command_has_one_line_for_each_parameter(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main.run([command, "--help"]) == 0
    _, _, parameters = capsys.readouterr().out.partition("Arguments:\n")
    lines = [line for line in parameters.splitlines() if line not in ("", "Options:")]
    assert lines and all(line.startswith("  ") and line[2] != " " for line in lines), lines


def test_every_error_has_an_exit_code_of_the_table() -> None:
    def classes(base: type[errors.ZarrfsError]) -> list[type[errors.ZarrfsError]]:
        return [base, *(found for below in base.__subclasses__() for found in classes(below))]

    codes = {cls.__name__: exit_codes.outcome_of(cls("x"), []).exit_code for cls in classes(errors.ZarrfsError)}
    special = {name: code for name, code in codes.items() if code != 1}
    assert special == {
        "UsageError": 2,
        "StoreNotFound": 3,
        "StoreAccessDenied": 4,
        "StoreReadOnly": 4,
        "StoreTurnedReadOnly": 4,
        "RootNeeded": 4,
        "MountpointUnusable": 5,
        "FuseUnavailable": 6,
        "NotPublished": 7,
    }


def test_the_error_inside_a_nursery_counts() -> None:
    wrapped = ExceptionGroup("nursery", [ExceptionGroup("inner", [errors.StoreNotFound("there is no store x")])])
    assert exit_codes.outcome_of(wrapped, []) == (3, "there is no store x")


def test_an_unexpected_error_is_one_line_too() -> None:
    outcome = exit_codes.outcome_of(KeyError("x"), [])
    assert outcome.exit_code == 1
    assert "KeyError" in outcome.message and "--log-level debug" in outcome.message and "\n" not in outcome.message


def ends(command: list[str | Path], **streams: Any) -> tuple[int, bytes]:
    """Run a module with Python's usual buffers, which it flushes late; return its exit code and its errors."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        check=False,
        env=environment,
        **{"stderr": subprocess.PIPE, "stdout": subprocess.PIPE} | streams,
    )
    return done.returncode, done.stderr or b""


@pytest.mark.parametrize(
    "arguments", [["info", "{tmp}"], ["info", "--json", "{tmp}"], ["check", "{tmp}"], ["check", "--json", "{tmp}"], ["--version"]]
)
def test_an_output_that_cannot_be_written_is_no_defect_and_no_success(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    with open("/dev/full", "w") as full:
        ended = ends(["zarrfs", *(argument.format(tmp=tmp_path) for argument in arguments)], stdout=full)
    assert ended == (1, b"zarrfs: No space left on device\n")


@pytest.mark.parametrize("command", ["info", "check"])
def test_a_pipe_is_no_terminal_whatever_the_environment_forces(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services that run tests set FORCE_COLOR: there, output was broken to a width, with progress bars in it."""
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    arguments: list[str | Path] = ["zarrfs", command, tmp_path]
    with open(tmp_path / "plain", "wb") as plain, open(tmp_path / "forced", "wb") as forced:
        assert ends(arguments, stdout=plain) == (0, b"")
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert ends(arguments, stdout=forced) == (0, b"")
    assert (tmp_path / "forced").read_bytes() == (tmp_path / "plain").read_bytes() != b""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as broken:
        assert ends(arguments, stdout=broken) == (1, b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["zarrfs", "info", "/none"], 3),
        (["zarrfs", "umount", "/none"], 5),
        (["zarrfs.command.mount_helper", "mount.zarrfs", "/none", "/none"], 32),
        (["zarrfs.command.mount_helper", "umount.zarrfs", "/none"], 32),
    ],
)
def test_an_error_that_cannot_be_printed_changes_no_exit_code(command: list[str | Path], code: int) -> None:
    with open("/dev/full", "w") as full:
        assert ends(command, stderr=full) == (code, b"")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as broken:
        assert ends(command, stderr=broken) == (code, b"")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["mont"], 2, ["mont", "zarrfs --help"]),
        (["mount", "x"], 2, ["MOUNTPOINT", "zarrfs mount --help"]),
        (["mount", "--foo", "x", "y"], 2, ["--foo", "zarrfs mount --help"]),
        (["mount", "--metadata-ttl"], 2, ["--metadata-ttl", "zarrfs mount --help"]),
        (["mount", "--read-only=yes", "x", "y"], 2, ["--read-only", "zarrfs mount --help"]),
        (["mount", "{tmp}", "/m", "-o", "metadata_tll=1"], 2, ["metadata_tll", "metadata_ttl"]),
        (["mount", "{tmp}", "{tmp}/none"], 5, ["{tmp}/none: does not exist", "mkdir"]),
        (["mount", "{tmp}/none", "{tmp}/file"], 5, ["{tmp}/file: not a folder"]),
        (["mount", "{tmp}", "{tmp}/empty"], 5, ["inside the store"]),
        (["mount", "file://{tmp}", "{tmp}/empty"], 5, ["inside the store"]),
        (["mount", "s3://key:canary@b/x?token=canary", "{tmp}/none"], 5, ["does not exist"]),
        (["mount", "s3://key:canary@b/x", "/m", "-o", "x=s3://key:canary@b/x"], 2, ["-o x"]),
        (["install"], 2, ["mount-helper", "zarrfs install --help"]),
        (["install", "something"], 2, ["something", "mount-helper", "zarrfs install --help"]),
        (["umount", "{tmp}"], 5, ["{tmp}: not mounted"]),
        (["umount"], 2, ["MOUNTPOINT", "zarrfs umount --help"]),
        (["umount", "--lazy", ""], 2, ["no mountpoint given"]),
        (["mount", "{tmp}", ""], 2, ["no mountpoint given"]),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(
    arguments: list[str], code: int, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert main.run([argument.format(tmp=tmp_path) for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("zarrfs: ") and captured.err.count("\n") == 1
    assert all(word.format(tmp=tmp_path) in captured.err for word in words), captured.err
    assert "canary" not in captured.err


@pytest.mark.parametrize(
    "arguments", [["mount", "x", "m"], ["mount", "memory:", "m"], ["umount", "m"], ["info", "x"], ["check", "."]]
)
def test_a_relative_path_in_a_removed_folder_is_told(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        assert main.run(arguments) == 1
    finally:
        # The fixture returns by the name of the present folder.
        os.chdir(tmp_path)
    assert capsys.readouterr().err.startswith("zarrfs: the working directory no longer exists: ")


def test_no_command_takes_another_store_or_mountpoint_than_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For the kernel, ``link/../x`` is beside the target of the link."""
    monkeypatch.chdir(tmp_path)
    for folder in ("x", "m", "a/b", "a/x", "a/m"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    store, mountpoint = "link/../x", "link/../m"
    commands = (
        *(["info", store], ["check", store], ["mount", store, "m"], ["mount", "x", mountpoint], ["umount", mountpoint]),
        *(["mount", option, "link/../y", "x", "m"] for option in ("--log-file", "--cache-dir")),
    )
    for command in commands:
        assert main.run(command) == 2
        assert "`..` after" in capsys.readouterr().err
    for program, *operands in (("mount.zarrfs", "x", mountpoint), ("umount.zarrfs", mountpoint)):
        assert mount_helper.run(program, operands) == mount_helper.INCORRECT_INVOCATION
        assert "`..` after" in capsys.readouterr().err


def test_no_arguments_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    assert "mount" in capsys.readouterr().out


def test_locations_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "real.zarr").mkdir()
    (tmp_path / "name.zarr").symlink_to("real.zarr")
    monkeypatch.chdir(tmp_path)
    assert answering.absolute("name.zarr/", "m/") == (f"{tmp_path}/name.zarr", f"{tmp_path}/m")
    assert answering.absolute(f"file://{tmp_path}/real.zarr") == (f"{tmp_path}/real.zarr", "")
    assert answering.absolute("memory:", "/m") == ("memory:", "/m")


@pytest.fixture
def zarrfs(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zarrfs", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    return call


@pytest.mark.fuse
def test_a_missing_store_is_told_from_the_background_and_the_foreground(
    zarrfs: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "m").mkdir()
    for where in (["--log-file", "x.log"], ["--foreground"]):
        done = zarrfs("mount", "none.zarr", "m", *where)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("zarrfs: ") and "none.zarr" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.fuse
def test_mount_look_change_umount(zarrfs: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    done = zarrfs("mount", "x.zarr", "m", "--log-file", "x.log")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    try:
        assert (tmp_path / "m/raw/zarr.json").read_bytes() == (tmp_path / "x.zarr/zarr.json").read_bytes()
        (tmp_path / "m/raw/note").write_text("hello")
        assert zarrfs("mount", "x.zarr", "m").returncode == 5
    finally:
        done = zarrfs("umount", "m")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "x.zarr/note").read_text() == "hello"
    assert zarrfs("umount", "m").returncode == 5
