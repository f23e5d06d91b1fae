"""mount.zarrfs and umount.zarrfs without a mount: their arguments, their exit codes, and their checks."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from zarrfs.command import mount_helper
from zarrfs.command.mount_helper import Call, configuration, run
from zarrfs.errors import UsageError

MOUNT, UMOUNT = "mount.zarrfs", "umount.zarrfs"


def said(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ZARRFS_CONFIG", "ZARRFS_READ_ONLY", "ZARRFS_FOREGROUND"):
        monkeypatch.delenv(name, raising=False)


def test_arguments_in_any_order() -> None:
    pieces = [["/store"], ["-s"], ["-nv"], ["-o", "ro,a=b"], ["-N", "12"], ["-t", "fuse.zarrfs"]]
    for order in permutations(pieces):
        arguments = [word for piece in order for word in piece]
        place = arguments.index("/store") + 1
        call = Call.of(MOUNT, [*arguments[:place], "/mnt", *arguments[place:]])
        assert call == Call(MOUNT, ("/store", "/mnt"), frozenset("snv"), ("ro,a=b",), "12")


def test_posixly_correct_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSIXLY_CORRECT", "1")
    assert Call.of(MOUNT, ["s", "d", "-o", "ro"]).options == ("ro",)


def test_arguments_as_people_write_them() -> None:
    assert Call.of(MOUNT, ["-vofoo", "-o", "bar", "-rw", "--", "-s", "-d"]) == Call(
        MOUNT, ("-s", "-d"), frozenset("vrw"), ("foo", "bar", "ro", "rw")
    )
    assert Call.of(UMOUNT, ["-nlfvr", "/mnt", "-t", "zarrfs", "-N/proc/1/ns/mnt"]) == Call(
        UMOUNT, ("/mnt",), frozenset("nlfvr"), (), "/proc/1/ns/mnt"
    )


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (MOUNT, []),
        (MOUNT, ["s"]),
        (MOUNT, ["s", ""]),
        (MOUNT, ["s", "d", "e"]),
        (MOUNT, ["s", "d", "-x"]),
        (MOUNT, ["s", "d", "-o"]),
        (MOUNT, ["s", "d", "-t", "ext4"]),
        (MOUNT, ["s", "d", "-l"]),
        (MOUNT, ["s", "d", "--foreground"]),
        (UMOUNT, []),
        (UMOUNT, ["d", "e"]),
        (UMOUNT, ["d", "-s"]),
        (UMOUNT, ["d", "-o", "ro"]),
    ],
)
def test_wrong_arguments_are_told_with_the_right_ones(
    program: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(program, arguments) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{program}: ") and f"usage: {program} " in told and told.count("\n") == 1


@pytest.mark.parametrize("argument", ["-h", "--help", "-V", "--version"])
def test_help(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(UMOUNT, [argument]) == 0
    assert "umount.zarrfs DIR" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "read_only"),
    [
        (["rw"], True),  # mount(8) adds it without a user's request: the configuration file counts
        (["rw,no_read_only"], False),
        (["rw,ro"], True),
        ([], True),
    ],
)
def test_the_rw_of_mount_8_overrules_no_configuration_file(options: list[str], read_only: bool, tmp_path: Path) -> None:
    file = tmp_path / "a,b.toml"
    file.write_text("read_only = true\nmetadata_ttl = 7")
    arguments = [word for option in [*options, f'config="{file}"'] for word in ("-o", option)]
    config = configuration(Call.of(MOUNT, ["/s", "/m", *arguments]), said)
    assert (config.read_only, config.metadata_ttl) == (read_only, 7)


@pytest.mark.parametrize(
    ("options", "read_only"),
    [("rw", False), ("ro", True), ("ro,rw", False), ("rw,ro", True), ("defaults", False)],
)
def test_of_ro_and_rw_the_last_counts(options: str, read_only: bool) -> None:
    assert configuration(Call.of(MOUNT, ["/s", "/m", "-o", options]), said).read_only is read_only


@pytest.mark.parametrize(
    ("spec", "store", "source"),
    [
        ("/data/x.zarr", "/data/x.zarr", "/data/x.zarr"),
        ("/data/x.zarr/", "/data/x.zarr", "/data/x.zarr/"),
        ("file:///data/x.zarr", "/data/x.zarr", "file:///data/x.zarr"),
        ("/data/x.zip|zip:a", "/data/x.zip|zip:a", "/data/x.zip|zip:a"),
        ("x.zarr", "{tmp}/x.zarr", "{tmp}/x.zarr"),
        ("memory:", "memory:", "memory:"),
    ],
)
def test_the_source_is_what_fstab_names(
    spec: str, store: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = configuration(Call.of(MOUNT, [spec, "m"]), said)
    assert (config.store, config.source) == (store.format(tmp=tmp_path), source.format(tmp=tmp_path))
    assert config.mountpoint == f"{tmp_path}/m"


def test_the_configuration_file_names_the_store_that_fstab_should_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.toml"
    file.write_text('store = "s3://key:canary@b/x?token=canary"\nmountpoint = "/elsewhere"')
    config = configuration(Call.of(MOUNT, ["none", f"{tmp_path}/m", "-o", f"config={file}"]), said)
    assert (config.store, config.mountpoint) == ("s3://key:canary@b/x?token=canary", f"{tmp_path}/m")
    assert config.source == "none"
    with pytest.raises(UsageError, match="STORE is missing"):
        configuration(Call.of(MOUNT, ["none", "/m"]), said)
    (tmp_path / "m").mkdir()
    assert run(MOUNT, ["none", f"{tmp_path}/m", "-fv", "-o", f"config={file}"]) in (1, 32)  # no such kind of store, or no FUSE
    assert "canary" not in capsys.readouterr().err


def test_sloppily_unknown_options_are_told_without_their_values() -> None:
    told: list[str] = []
    with pytest.raises(UsageError, match="foo: unknown option"):
        configuration(Call.of(MOUNT, ["/s", "/m", "-o", "foo=canary"]), said)
    configuration(Call.of(MOUNT, ["/s", "/m", "-s", "-o", "foo=canary"]), told.append)
    assert told == ["-o foo: unknown option, ignored"]


def test_it_never_stays_in_the_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="zarrfs mount -f"):
        configuration(Call.of(MOUNT, ["/s", "/m", "-o", "fg"]), said)
    monkeypatch.setenv("ZARRFS_FOREGROUND", "yes")
    with pytest.raises(UsageError, match="zarrfs mount -f"):
        configuration(Call.of(MOUNT, ["/s", "/m"]), said)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{tmp}/store", "{tmp}/empty", "-o", "metadata_tll=5"], 1, ["did you mean metadata_ttl?"]),
        (["{tmp}/store", "{tmp}/empty", "-o", "metadata_ttl=soon"], 1, ["'soon'"]),
        (["{tmp}/store", "{tmp}/empty", "-o", "remount,ro"], 1, ["unmount it"]),
        (["{tmp}/store", "{tmp}/none"], 32, ["{tmp}/none: does not exist"]),
        (["{tmp}/store", "{tmp}/store"], 32, ["inside the store"]),
        (["s3://key:canary@b/x?token=canary", "{tmp}/none"], 32, ["does not exist"]),
        (["s3://key:canary@b/x?token=canary", "{tmp}/empty", "-o", "x=s3://key:canary@b/x"], 1, ["-o x"]),
    ],
)
def test_errors_are_one_line_and_an_exit_code_of_mount_8(
    arguments: list[str], code: int, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "empty").mkdir()
    for extra in ([], ["-f"]):
        assert run(MOUNT, [*(argument.format(tmp=tmp_path) for argument in arguments), *extra]) == code
        told = capsys.readouterr()
        assert told.out == "" and told.err.startswith("mount.zarrfs: ") and told.err.count("\n") == 1
        assert all(word.format(tmp=tmp_path) in told.err for word in words), told.err
        assert "canary" not in told.err


def test_what_is_no_mount_of_ours_is_not_unmounted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(UMOUNT, [str(tmp_path)]) == 32
    assert capsys.readouterr().err == (f"umount.zarrfs: {tmp_path}: not mounted (see: findmnt -t fuse.zarrfs)\n")


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 8), (MemoryError(), 2), (OSError(24, "Too many open files"), 2), (KeyError("x"), 4)]
)
def test_other_ends_have_their_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(mount_helper, "resolve", fails)
    assert run(MOUNT, ["/s", "/m"]) == code
    assert capsys.readouterr().err.count("\n") == (code != 8)
