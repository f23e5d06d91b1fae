"""Logs and files left by a daemon: their readers, and their safety where another user created the folder first."""

from __future__ import annotations

import grp
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.users import REPOSITORY, run_as_users
from zarrfs.errors import UsageError
from zarrfs.lifecycle import exit_report, runtime_folder
from zarrfs.options import log_file

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_a_log_and_its_folders_are_for_those_who_read_logs_alone(tmp_path: Path) -> None:
    file = tmp_path / "made/for/it/x.log"
    log_file.open_to_append(str(file)).close()
    try:
        adm = grp.getgrnam("adm").gr_gid if os.geteuid() == 0 else None
    except KeyError:
        adm = None
    assert mode(file) == (0o600 if adm is None else 0o640)
    assert {mode(folder) for folder in (file.parent, file.parents[1], file.parents[2])} == {0o700 if adm is None else 0o750}
    assert adm is None or {each.stat().st_gid for each in (file, *file.parents[:3])} == {adm}
    assert mode(tmp_path) == 0o700  # unchanged


@pytest.mark.usefixtures("umask")
def test_a_log_that_is_rotated_is_made_again_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    log_file.configure("info", str(file))
    log_file.log.info("one")
    file.rename(tmp_path / "x.log.1")
    log_file.log.info("two")
    assert "one" in (tmp_path / "x.log.1").read_text() and "two" in file.read_text()
    assert mode(file) == mode(tmp_path / "x.log.1") & 0o640


def test_a_log_that_cannot_be_opened_again_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log_file.configure("info", str(folder / "x.log"))
    folder.rename(tmp_path / "away")
    log_file.log.info("lost")
    log_file.reopen()
    (tmp_path / "away").rename(folder)
    log_file.log.info("found")
    assert "found" in (folder / "x.log").read_text()


@as_root
@pytest.mark.parametrize("what", ["link", "other name", "theirs", "folder", "fifo"])
def test_what_somebody_put_in_the_place_of_a_log_is_not_written_to(what: str, tmp_path: Path) -> None:
    home, victim = tmp_path / "home", tmp_path / "victim"
    home.mkdir()
    os.chown(home, 65534, 65534)
    victim.write_text("old")
    place = home / "x.log"
    match what:
        case "link":
            place.symlink_to(victim)
            os.chown(place, 65534, 65534, follow_symlinks=False)
        case "other name":
            place.hardlink_to(victim)
        case "theirs":
            place.touch(0o666)
            os.chown(place, 65534, 65534)
        case "folder":
            place.mkdir()
        case "fifo":
            os.mkfifo(place)
    with pytest.raises(UsageError, match="--log-file"):
        log_file.open_to_append(str(place))
    with pytest.raises(UsageError, match="--log-file"):
        log_file.configure("info", str(place))
    assert victim.read_text() == "old"


def test_a_link_of_the_system_is_followed(tmp_path: Path) -> None:
    for name in ("/dev/null", "/dev/stderr"):
        log_file.open_to_append(name).close()
    (tmp_path / "x.log").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").touch()
    log_file.open_to_append(str(tmp_path / "x.log")).close()


@pytest.mark.fuse
@as_root
def test_the_logs_of_a_mount() -> None:
    said = run_as_users(f"""
    mkdir "$W/log" && mount --bind "$W/log" /var/log
    mkdir -m 755 /var/log/zarrfs  # as an earlier version made it
    cp -r {REPOSITORY}/demo/example.zarr "$W/s.zarr"
    zarrfs mount "$W/s.zarr" "$W/65534/m"; zarrfs umount "$W/65534/m"
    as 65534 ls /var/log/zarrfs 2> /dev/null || echo closed
    stat -c '%U %G %a' /var/log/zarrfs /var/log/zarrfs/*
    umount /var/log
    """)
    assert said.splitlines() == ["closed", "root adm 750", "root adm 640"]


# --- the runtime folder ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of a user without a runtime folder."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(runtime_folder, "_shared", list)
    monkeypatch.setattr(runtime_folder.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_nobody_can_be_first_in_the_temporary_folder(temporary: Path) -> None:
    (temporary / f"zarrfs-{os.geteuid()}").mkdir(0o777)
    first, second = next(runtime_folder.for_this_process()), next(runtime_folder.for_this_process())
    assert first != second and first.parent == second.parent == temporary
    assert mode(first) == 0o700
    words = exit_report.begin()
    assert words.parent.parent == temporary
    exit_report.end(words)
    assert not words.parent.exists()


DIES = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from zarrfs.lifecycle import exit_report, runtime_folder
runtime_folder._shared = list
print(exit_report.begin(), flush=True)
sys.stdin.read()
"""


def test_words_of_the_dead_are_cleared_and_no_others(temporary: Path) -> None:
    import sys

    begun = [sys.executable, "-c", DIES]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with (
        subprocess.Popen(begun, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as lives,
        subprocess.Popen(begun, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as dies,
        subprocess.Popen(begun, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as awaited,
    ):
        assert lives.stdout is not None and dies.stdout is not None and awaited.stdout is not None
        words = {process: Path(process.stdout.readline().rstrip("\n")) for process in (lives, dies, awaited)}  # type: ignore[union-attr]
        other = words[dies].parent / "other"
        for process in (dies, awaited):
            process.kill()
            process.wait()
        # As of a process in a container, whose number is not in use here.
        living = words[lives].rename(words[lives].with_name("4194303.last-words.json"))
        with exit_report.awaited(str(words[awaited])):
            exit_report.clear()
            assert living.exists() and words[awaited].exists()
        assert not words[dies].parent.exists()
        exit_report.clear()
        assert living.exists() and not words[awaited].parent.exists()
        assert not other.exists()
        lives.kill()
        lives.wait()
        exit_report.clear()
        assert list(temporary.iterdir()) == []


@pytest.mark.full_length
@pytest.mark.fuse
def test_a_killed_daemons_words_are_cleared_by_the_next_umount() -> None:
    said = run_as_users(f"""
    A="$W/65534"
    cp -r {REPOSITORY}/demo/example.zarr "$A/s.zarr" && chown -R 65534:65534 "$A/s.zarr"
    mkdir -m 0777 "$W/tmp/zarrfs-65534"  # another user was first
    words() {{ find "$W/tmp" -name '*.last-words.json' -printf '%U %m\\n'; }}
    as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    words
    as 65534 grep -c '"result": "/.*/zarrfs-65534-.*/[0-9]*.last-words.json"' "$A/m/.zarrfs/config.json"
    killed $(pid_of "$A/m" as 65534)
    words
    code as 65534 zarrfs umount "$A/m" 2> /dev/null | tail -n 1
    find "$W/tmp" -mindepth 1 | sed "s|$W||"
    """)
    assert said.splitlines() == ["65534 600", "1", "65534 600", "code 0", "/tmp/zarrfs-65534"]
