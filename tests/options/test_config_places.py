"""Stores and mountpoints from the TOML file (`store` and `mountpoint`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import killed_at_last, mounted, mountpoint, zarrfs
from zarrfs.command import main
from zarrfs.errors import UsageError
from zarrfs.options.config import MountConfig, mountpoint_of, options, resolve


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "air.toml"
    path.write_text('store = "s3://key:canary@bucket/x.zarr"\nmountpoint = "/mnt/air"\nread_only = true\n')
    return path


def test_the_file_names_what_is_not_given(file: Path) -> None:
    config = resolve(None, None, environment={}, config_file=str(file))
    assert config == MountConfig(store="s3://key:canary@bucket/x.zarr", mountpoint="/mnt/air", read_only=True)
    assert resolve("/x", None, environment={}, config_file=str(file)).mountpoint == "/mnt/air"
    assert resolve("/x", "/m", environment={}, config_file=str(file)) == MountConfig(store="/x", mountpoint="/m", read_only=True)
    # A command that only reads a store does not mount.
    assert resolve("/x", environment={}, config_file=str(file)).mountpoint == ""


def test_wherever_the_file_is_named(file: Path) -> None:
    for config in (
        resolve(None, None, environment={"ZARRFS_CONFIG": str(file)}),
        resolve(None, None, environment={}, mount_options=[f"config={file}"]),
    ):
        assert config.mountpoint == "/mnt/air"
    assert mountpoint_of(str(file), {}) == mountpoint_of(None, {"ZARRFS_CONFIG": str(file)}) == "/mnt/air"


@pytest.mark.parametrize("sources", [{"config_file": ""}, {"mount_options": ["config="]}])
def test_an_empty_name_of_a_file_protects_nothing_and_is_refused(sources: dict[str, Any], file: Path) -> None:
    with pytest.raises(UsageError, match="no configuration file given"):
        resolve("/x", "/m", environment={"ZARRFS_CONFIG": str(file)}, **sources)
    with pytest.raises(UsageError, match="no configuration file given"):
        mountpoint_of("", {"ZARRFS_CONFIG": str(file)})
    assert resolve("/x", "/m", environment={"ZARRFS_CONFIG": ""}) == MountConfig(store="/x", mountpoint="/m")


@pytest.mark.parametrize(
    "store", ["/data/air.zarr", "/with space/ü\\n", "memory:", "zip:/x", "file:///x", "s3://b/x.zip|zip:a", "/x|zip:a"]
)
def test_stores_that_mean_the_same_wherever_they_are_read(store: str, file: Path) -> None:
    file.write_text(f'store = "{store}"\n')
    assert resolve(None, "/m", environment={}, config_file=str(file)).store == store.replace("\\n", "\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('store = "canary.zarr"', "store: expected an absolute path or a URL"),
        ('store = "./canary"', "store: expected"),
        ('store = "~/canary"', "store: expected"),
        ('store = "zip:canary.zip"', "store: expected"),
        ('store = ""', "store: expected"),
        ("store = 5", "store: expected"),
        ('mountpoint = "canary"', "mountpoint: expected an absolute path:"),
        ('mountpoint = "~"', "mountpoint: expected"),
        ('mountpoint = "s3://canary/x"', "mountpoint: expected"),
        ('log_file = "canary.log"', "log_file: expected an absolute path:"),
        ('cache-dir = "canary"', "cache-dir: expected an absolute path:"),
        ('mountpont = "/x"', "unknown option 'mountpont'; did you mean mountpoint?"),
        ('strore = "/x"', "unknown option 'strore'; did you mean store?"),
    ],
)
def test_what_is_refused(line: str, words: str, file: Path) -> None:
    file.write_text(f"{line}\n")
    for ask in (lambda: resolve(None, None, environment={}, config_file=str(file)), lambda: mountpoint_of(str(file), {})):
        with pytest.raises(UsageError) as raised:
            ask()
        assert words in str(raised.value) and str(file) in str(raised.value) and "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mount"], ["STORE is missing", "no argument", "store = ", "--config", "--help"]),
        (["mount", "/x"], ["MOUNTPOINT is missing", "no argument", "mountpoint = ", "--config"]),
        (["mount", "--config", "{tmp}/empty.toml"], ["STORE is missing", "in {tmp}/empty.toml; see"]),
        (["mount", "/x", "-o", "config={tmp}/empty.toml"], ["MOUNTPOINT is missing", "in {tmp}/empty.toml; see"]),
        (["umount"], ["MOUNTPOINT is missing", "--config"]),
        (["umount", "--config", "{tmp}/empty.toml"], ["MOUNTPOINT is missing", "in {tmp}/empty.toml; see"]),
        (["umount", "--config", "{tmp}/none.toml"], ["{tmp}/none.toml: No such file"]),
        (["mount", "/x", "/y", "/z"], ["unexpected extra argument"]),
    ],
)
def test_one_that_is_missing_is_an_error_that_says_both_ways(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZARRFS_CONFIG", raising=False)
    (tmp_path / "empty.toml").touch()
    assert main.run([argument.format(tmp=tmp_path) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(word.format(tmp=tmp_path) in said for word in words), said


@pytest.mark.parametrize("foreground", [True, False])
def test_secrets_of_a_store_that_the_file_names_are_in_no_error(foreground: bool, file: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    place.mkdir()
    file.write_text(
        f'store = "nosuch://key:canary@bucket/x?token=canary"\nmountpoint = "{place}"\nforeground = {str(foreground).lower()}\n'
    )
    done = zarrfs("mount", "--config", str(file), "--log-level", "debug", "--log-file", str(tmp_path / "log"))
    assert done.returncode == 2, done.stderr
    assert "***@bucket" in done.stderr and "canary" not in done.stderr
    assert "canary" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else "")


@pytest.mark.fuse
@pytest.mark.parametrize("way", ["flag", "option", "environment"])
def test_one_file_mounts_and_unmounts(way: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with mountpoint() as path:
        file.write_text(f'store = "{store}"\nmountpoint = "{path}"\nlog-file = "{path.with_name("log")}"\n')
        if way == "environment":
            monkeypatch.setenv("ZARRFS_CONFIG", str(file))
        arguments = {"flag": ["--config", str(file)], "option": ["-o", f"config={file}"], "environment": []}[way]
        done = zarrfs("mount", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        with killed_at_last(int(json.loads((path / ".zarrfs/config.json").read_bytes())["pid"]), path):
            (path / "raw/k").write_bytes(b"new")
            # From another folder, as in all of these tests: `zarrfs` runs in /.
            assert os.path.ismount(path)
            done = zarrfs("umount", *([] if way == "environment" else ["--config", str(file)]))
        assert done.returncode == 0, done.stderr
        assert not os.path.ismount(path)
    assert (store / "k").read_bytes() == b"new"


@pytest.mark.fuse
def test_a_mount_shows_every_option(tmp_path: Path) -> None:
    """README: config.json has the configuration. It had five of the options."""
    with mounted(tmp_path, "-o", "umask=027,shard_delay=3,new_codecs=zstd,temporary_names=*.bak:x?") as mount:
        shown = json.loads((mount.path / ".zarrfs/config.json").read_bytes())
    assert options().keys() <= shown.keys()
    expected = {"umask": "027", "shard_delay": 3.0, "new_codecs": "zstd", "temporary_names": ["*.bak", "x?"], "read_only": False}
    assert shown | expected == shown
    assert sorted(shown["views"]) == ["chunks", "npy", "raw", "zarr3"]
