from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zarrfs import mount_table, mounting
from zarrfs.config import MountConfig
from zarrfs.errors import FuseUnavailable, MountpointUnusable, UsageError, ZarrfsError
from zarrfs.last_words import SUDDEN_DEATH, Outcome

REPOSITORY = Path(__file__).parents[1]
SMALL_MOUNT = REPOSITORY / "tests/support/small_mount.py"


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    path = tmp_path / "a mountpoint"
    path.mkdir()
    return path


@pytest.fixture
def config(mountpoint: Path, tmp_path: Path) -> MountConfig:
    return MountConfig(store="/data/x.zarr", mountpoint=str(mountpoint), log_file=str(tmp_path / "logs/x.log"))


# --- before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.rmdir(), ["does not exist", "mkdir -p"]),
        (lambda path: (path / "x").touch(), ["is not empty", "empty folder"]),
        (lambda path: (path.rmdir(), path.touch()), ["is not a folder"]),
        (lambda path: (path.rmdir(), path.symlink_to("/usr")), ["is a symlink", "/usr"]),
        (lambda path: (path.rmdir(), path.symlink_to("/nowhere")), ["is a symlink", "/nowhere"]),
    ],
)
def test_an_unusable_mountpoint(make: object, words: list[str], mountpoint: Path) -> None:
    make(mountpoint)  # type: ignore[operator]
    with pytest.raises(MountpointUnusable) as caught:
        mounting.check_mountpoint(str(mountpoint))
    assert all(word in str(caught.value) for word in [str(mountpoint), *words])
    assert "\n" not in str(caught.value)


def test_a_usable_mountpoint(mountpoint: Path) -> None:
    mounting.check_mountpoint(str(mountpoint))


def test_overlap_is_seen_through_symlinks(tmp_path: Path) -> None:
    (tmp_path / "store/inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for store, mount in (("store", "store"), ("store", "store/inside"), ("link", "store/inside"), ("store", "link/inside")):
        with pytest.raises(MountpointUnusable, match="inside"):
            mounting.check_overlap(str(tmp_path / store), str(tmp_path / mount))
    with pytest.raises(MountpointUnusable, match="holds the store"):
        mounting.check_overlap(str(tmp_path / "store/inside"), str(tmp_path / "link"))
    (tmp_path / "store2").mkdir()
    mounting.check_overlap(str(tmp_path / "store"), str(tmp_path / "store2"))


def test_no_dev_fuse(config: MountConfig, tmp_path: Path) -> None:
    with pytest.raises(FuseUnavailable, match="modprobe fuse"):
        mounting.check_fuse(config, device=str(tmp_path / "fuse"))


@pytest.mark.parametrize(("text", "lets"), [("user_allow_other\n", True), ("#user_allow_other\n", False), ("", False)])
def test_fuse_conf(text: str, lets: bool, tmp_path: Path) -> None:
    conf = tmp_path / "fuse.conf"
    conf.write_text(text)
    assert mounting._lets_users_allow_other(str(conf)) is lets


def test_the_mount_table_with_odd_names() -> None:
    device = os.stat("/proc").st_dev
    assert mount_table.mount_at("/proc") == mount_table.Mount("/proc", "proc", f"{os.major(device)}:{os.minor(device)}")
    assert mount_table.mount_at("/proc/self") is None
    assert mount_table._unescape(rb"/a\040b\134\012") == b"/a b\\\n"


# --- around: a script stands in for the daemon


def child(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "daemon.py"
    head = f"import os, sys\nsys.path.insert(0, {str(REPOSITORY)!r})\nfrom zarrfs.mounting import Parent, Outcome\n"
    script.write_text(f"{head}config, parent = Parent.adopt()\n{body}")
    return [sys.executable, str(script)]


def test_success_is_told_while_the_daemon_lives_on(config: MountConfig, tmp_path: Path) -> None:
    body = (
        "parent.ready()\nassert not parent.failed(Outcome(1, 'late'))\nprint(os.getcwd(), os.getsid(0), config.store, flush=True)\n"
    )
    body += "import signal; signal.pause()\n"
    outcome, process = mounting.start(config, child(tmp_path, body))
    try:
        assert outcome == Outcome(0, "")
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait()


def test_the_daemon_has_a_session_of_its_own_and_nothing_of_ours(config: MountConfig, tmp_path: Path) -> None:
    body = """
told = [config.store, os.getcwd(), os.getsid(0) == os.getpid(), os.readlink("/proc/self/fd/0"), os.get_inheritable(parent._fd)]
told += [name for name in os.environ if "READY" in name]
parent.failed(Outcome(9, repr(told)))
"""
    outcome, process = mounting.start(config, child(tmp_path, body))
    assert outcome == Outcome(9, repr(["/data/x.zarr", "/", True, "/dev/null", False]))
    assert process.returncode == 0


def test_a_daemon_that_dies_without_a_word(config: MountConfig, tmp_path: Path) -> None:
    assert config.log_file is not None
    Path(config.log_file).parent.mkdir()
    Path(config.log_file).write_text("of yesterday\n")
    outcome, _ = mounting.start(config, child(tmp_path, "print('libfuse: so sad', file=sys.stderr)\nsys.exit(3)"))
    assert outcome.exit_code == 1
    assert "exited with code 3" in outcome.message and "libfuse: so sad" in outcome.message
    assert config.log_file in outcome.message and "yesterday" not in outcome.message


def test_a_daemon_that_is_killed(config: MountConfig, tmp_path: Path) -> None:
    outcome, process = mounting.start(config, child(tmp_path, "os.kill(os.getpid(), 9)"))
    assert outcome.exit_code == 1 and "SIGKILL" in outcome.message
    assert process.returncode == -signal.SIGKILL


def test_what_libfuse_printed_explains_a_failed_mount(config: MountConfig, tmp_path: Path) -> None:
    body = "print('fusermount3: no', file=sys.stderr, flush=True)\nparent.failed(Outcome(6, 'mounting failed'))"
    assert mounting.start(config, child(tmp_path, body))[0] == Outcome(6, "mounting failed\nfusermount3: no")


def test_a_log_that_cannot_be_written(config: MountConfig) -> None:
    bad = MountConfig(store=config.store, mountpoint=config.mountpoint, log_file="/dev/null/x.log")
    with pytest.raises(UsageError, match="--log-file"):
        mounting.start(bad, ["/bin/true"])


def test_arguments_of_the_daemon_hold_no_secret() -> None:
    command = mounting.daemon_command(MountConfig(store="s3://key:canary@bucket/x", mountpoint="/m"))
    assert "canary" not in " ".join(command)
    assert command[-3:] == ["--", "s3://***@bucket/x", "/m"]


# --- after


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "zarrfs"


@pytest.fixture
def small_mount(request: pytest.FixtureRequest, mountpoint: Path, runtime: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(SMALL_MOUNT), str(mountpoint), request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mounted\n"
        yield process
        if mount_table.mount_at(str(mountpoint)):
            subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=True)
        process.wait()


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("small_mount", "outcome"),
    [("well", Outcome(0)), ("badly", Outcome(7, "raw/a could not be stored: no space left")), ("dead", SUDDEN_DEATH)],
    indirect=["small_mount"],
)
def test_umount_waits_and_tells_how_the_daemon_ended(
    small_mount: subprocess.Popen[bytes], outcome: Outcome, mountpoint: Path, runtime: Path
) -> None:
    assert mounting.unmount(str(mountpoint)) == outcome
    assert small_mount.poll() is not None
    assert mount_table.mount_at(str(mountpoint)) is None
    assert list(runtime.iterdir()) == []


@pytest.mark.fuse
@pytest.mark.parametrize("small_mount", ["well"], indirect=True)
def test_a_mount_in_use_stays_unless_lazy(small_mount: subprocess.Popen[bytes], mountpoint: Path) -> None:
    with pytest.raises(MountpointUnusable, match="already mounted"):
        mounting.check_mountpoint(str(mountpoint))
    held = os.open(mountpoint, os.O_RDONLY)
    with pytest.raises(ZarrfsError, match=rf"in use by .* \({os.getpid()}: \.\)"):
        mounting.unmount(str(mountpoint))
    outcome = mounting.unmount(str(mountpoint), lazy=True)
    assert outcome.exit_code == 0
    assert f"daemon (pid {small_mount.pid}) goes on until" in outcome.message and f"({os.getpid()}: .)" in outcome.message
    assert mount_table.mount_at(str(mountpoint)) is None
    assert small_mount.poll() is None
    os.close(held)
    assert small_mount.wait() == 0


@pytest.mark.fuse
@pytest.mark.parametrize("small_mount", ["well"], indirect=True)
def test_a_mount_whose_daemon_died(small_mount: subprocess.Popen[bytes], mountpoint: Path) -> None:
    small_mount.kill()
    small_mount.wait()
    with pytest.raises(MountpointUnusable, match=r"daemon died.*zarrfs umount"):
        mounting.check_mountpoint(str(mountpoint))
    outcome = mounting.unmount(str(mountpoint))
    assert outcome.exit_code == 0 and "had died" in outcome.message
    mounting.check_mountpoint(str(mountpoint))


def test_umount_of_what_zarrfs_did_not_mount(tmp_path: Path) -> None:
    with pytest.raises(MountpointUnusable, match="nothing is mounted"):
        mounting.unmount(str(tmp_path))
    with pytest.raises(MountpointUnusable, match="type proc"):
        mounting.unmount("/proc")
