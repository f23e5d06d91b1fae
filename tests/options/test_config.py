from __future__ import annotations

import os
from pathlib import Path

import pytest

from zarrfs.errors import UsageError
from zarrfs.options.config import MountConfig, options, parse_size, resolve, split_mount_options

# One spelling of each option with a value other than its default, and the resulting value.
SPOKEN = {
    "foreground": ("yes", True),
    "read_only": ("yes", True),
    "view": ("raw", "raw"),
    "views": ("raw:npy", ("raw", "npy")),
    "allow_other": ("yes", True),
    "uid": ("1000", 1000),
    "gid": ("1001", 1001),
    "umask": ("0077", 0o077),
    "noexec": ("yes", True),
    "metadata_ttl": ("0.5", 0.5),
    "watch": ("no", False),
    "xattrs": ("no", False),
    "memory_limit": ("64MiB", 64 << 20),
    "cache_dir": ("/var/cache/z", "/var/cache/z"),
    "durable": ("yes", True),
    "fill": ("yes", True),
    "new_dialect": ("v2", "v2"),
    "new_chunks": ("512x512", "512x512"),
    "new_codecs": ("gzip:level=6", "gzip:level=6"),
    "new_separator": ("/", "/"),
    "new_shards": ("8x8", "8x8"),
    "dialect_choices": ("v1.order=text:v3_2022.fallback=refuse", ("v1.order=text", "v3_2022.fallback=refuse")),
    "shard_delay": ("0.5", 0.5),
    "resize_erases": ("yes", True),
    "temporary_names": ("*.bak:save??", ("*.bak", "save??")),
    "timeout": ("7", 7.0),
    "log_level": ("debug", "debug"),
    "log_file": ("/var/log/z.log", "/var/log/z.log"),
}


def config(**sources: object) -> MountConfig:
    return resolve("s", "/m", environment=sources.pop("environment", {}), **sources)  # type: ignore[arg-type]


def test_every_option_is_tried_here() -> None:
    assert sorted(SPOKEN) == sorted(options())


@pytest.mark.parametrize("name", SPOKEN)
def test_every_option_in_every_place(name: str, tmp_path: Path) -> None:
    text, value = SPOKEN[name]
    file = tmp_path / "zarrfs.toml"
    file.write_text(f'{name} = "{text}"\n')
    assert getattr(config(), name) != value
    assert getattr(config(flags={name: text}), name) == value
    assert getattr(config(mount_options=[f"{name}={text}"]), name) == value
    assert getattr(config(mount_options=[f"{name.replace('_', '-')}={text}"]), name) == value
    assert getattr(config(environment={f"ZARRFS_{name.upper()}": text}), name) == value
    assert getattr(config(config_file=str(file)), name) == value


def test_flag_before_o_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = tmp_path / "zarrfs.toml"
    file.write_text("metadata-ttl = 4\n")
    sources = {
        "flags": {"metadata_ttl": "1"},
        "mount_options": ["metadata_ttl=9,metadata_ttl=2"],
        "environment": {"ZARRFS_METADATA_TTL": "3", "ZARRFS_CONFIG": str(file)},
    }
    for expected in (1.0, 2.0, 3.0):
        assert config(**sources).metadata_ttl == expected
        sources.pop(next(iter(sources)))
    assert config(config_file=str(file)).metadata_ttl == 4.0
    assert config(mount_options=[f"config={file}"]).metadata_ttl == 4.0
    assert config().metadata_ttl == 10.0


def test_toml_has_types_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "zarrfs.toml"
    file.write_text('read_only = true\nviews = ["raw", "npy"]\nmemory_limit = 1024\ntimeout = 1.5\n')
    found = config(config_file=str(file))
    assert (found.read_only, found.views, found.memory_limit, found.timeout) == (True, ("raw", "npy"), 1024, 1.5)


def test_owners_in_toml_are_numbers_or_names(tmp_path: Path) -> None:
    file = tmp_path / "zarrfs.toml"
    file.write_text('uid = 1000\ngid = "root"\numask = "027"\n')
    found = config(config_file=str(file))
    assert (found.uid, found.gid, found.umask) == (1000, 0, 0o027)


@pytest.mark.parametrize("written", ["22", "0o22", "0", "true", '["022"]'])
def test_a_umask_in_toml_is_text_since_its_integers_do_not_tell_22_from_0o26(written: str, tmp_path: Path) -> None:
    file = tmp_path / "zarrfs.toml"
    file.write_text(f"umask = {written}\n")
    with pytest.raises(UsageError, match='umask: expected octal digits in quotes, as in umask = "022"'):
        config(config_file=str(file))


@pytest.mark.parametrize(("text", "noexec"), [("noexec", True), ("noexec,exec", False), ("exec", False), ("no_noexec", False)])
def test_noexec_and_exec_as_with_mount_8(text: str, noexec: bool) -> None:
    assert config(mount_options=[text], environment={"ZARRFS_NOEXEC": str(not noexec)}).noexec is noexec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("uid=nobody-at-all", "-o uid: expected the name or number of a user of this machine, not 'nobody-at-all'"),
        ("gid=-1", "-o gid: expected the name or number of a group"),
        ("umask=8", "-o umask: expected up to three octal digits, such as 022, not '8'"),
    ],
)
def test_owners_that_are_nonsense(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        config(mount_options=[text])


@pytest.mark.parametrize(
    ("text", "read_only"),
    [
        ("ro", True),
        ("rw", False),
        ("ro,rw", False),
        ("rw,ro", True),
        ("no_read_only", False),
        ("no-read-only", False),
        ("read_only=no", False),
    ],
)
def test_words_of_mount_8(text: str, read_only: bool) -> None:
    assert config(mount_options=[text], environment={"ZARRFS_READ_ONLY": str(not read_only)}).read_only is read_only


def test_options_of_mount_8_that_hold_anyway_are_tolerated() -> None:
    found = config(mount_options=["ro,rw,allow_other,default_permissions,noatime,nosuid,nodev"])
    assert (found.read_only, found.allow_other) == (False, True)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b", ["a", "b"]),
        (r"log_file=/a\,b,ro", ["log_file=/a,b", "ro"]),
        ('log_file="/a,b",ro', ["log_file=/a,b", "ro"]),
        (r"a\\,b", ["a\\", "b"]),
        (",a,,", ["a"]),
    ],
)
def test_commas_in_values(text: str, parts: list[str]) -> None:
    assert split_mount_options(text) == parts


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"mount_options": ["metadata_tll=1"]}, ["metadata_tll", "did you mean metadata_ttl?"]),
        ({"mount_options": ["xyzzy"]}, ["xyzzy", "--help"]),
        ({"mount_options": ["metadata_ttl"]}, ["needs a value", "metadata_ttl=SECONDS"]),
        ({"mount_options": ["config"]}, ["needs a value"]),
        ({"mount_options": ["no_durable=yes"]}, ["takes no value"]),
        ({"mount_options": ["no_timeout"]}, ["no_timeout", "unknown"]),
        ({"mount_options": ['log_file="x']}, ["ends inside"]),
        ({"mount_options": ["x\\"]}, ["ends inside"]),
        ({"flags": {"metadata_ttl": "-1"}}, ["--metadata-ttl", "'-1'"]),
        ({"flags": {"metadata_ttl": "nan"}}, ["--metadata-ttl", "'nan'"]),
        ({"flags": {"timeout": "0"}}, ["--timeout", "more than 0"]),
        ({"flags": {"timeout": "1e7"}}, ["--timeout", "at most 1000000 seconds"]),
        ({"flags": {"memory_limit": "lots"}}, ["--memory-limit", "'lots'"]),
        ({"flags": {"log_level": "loud"}}, ["--log-level", "'loud'"]),
        ({"flags": {"view": "a", "views": "b"}}, ["exclude each other"]),
        ({"flags": {"views": "a,,b"}}, ["--views"]),
        ({"environment": {"ZARRFS_DURABLE": "maybe"}}, ["ZARRFS_DURABLE", "yes or no"]),
        ({"config_file": "/nowhere/{x}.toml"}, ["/nowhere/{x}.toml", "--config"]),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(sources: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        config(**sources)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("mem = 1", "mem"),
        ("timeout = [1]", "timeout"),
        ("= 1", "TOML"),
        ("x = " + "[" * 50_000, "TOML"),
        ('store = "/a\\u0000"', "NUL"),
        ('views = ["a\\u0000"]', "NUL"),
        ('timeout = "x"', "timeout"),
        ("read-only = true\nread_only = false", "read_only: given twice"),
        ('cache_dir = "~nobody-of-this-name/x"', "cache_dir: .*~USER"),
    ],
)
def test_a_bad_file_is_named(text: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "{x}.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=word) as caught:
        config(config_file=str(file))
    assert str(file) in str(caught.value)


def test_variables_of_unknown_name_and_empty_ones_count_as_unset() -> None:
    assert config(environment={"ZARRFS_METADATA_TLL": "5", "ZARRFS_READ_ONLY": "", "ZARRFS_VIEWS": ""}) == config()


def test_view_on_the_command_line_silences_views_of_the_environment() -> None:
    found = config(flags={"view": "raw"}, environment={"ZARRFS_VIEWS": "raw,npy"})
    assert (found.view, found.views) == ("raw", ())


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("1K", 1024), ("64MiB", 64 << 20), ("512m", 512 << 20), ("1.5G", 3 << 29), ("2MB", 2_000_000), ("7B", 7)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "M", "-1", "1X", "1iB", "1 2", "9" * 400, "8388608T"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def test_paths_are_absolute_and_know_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    found = config(flags={"log_file": "x.log"}, environment={"ZARRFS_CACHE_DIR": "~/c"})
    assert (found.log_file, found.cache_dir) == (os.path.join(os.getcwd(), "x.log"), "/home/me/c")


def test_a_configuration_survives_the_way_to_the_daemon() -> None:
    found = config(flags={name: text for name, (text, _) in SPOKEN.items() if name != "view"})
    assert MountConfig.from_json(found.to_json()) == found
