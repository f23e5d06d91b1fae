"""Malicious users of the machine. They act with their own rights only, each in a home folder."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

_PR_SET_DUMPABLE = 4

EVE, MALLORY = 54321, 54322
"""User numbers without a name; their groups have the same numbers."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")


@contextmanager
def home(user: int = EVE) -> Iterator[Path]:
    """Yield a world-readable folder of ``user``, beside a folder that only root may enter: ``home(...).parent / "root"``."""
    with tempfile.TemporaryDirectory(prefix="zarrfs-test-") as folder:
        os.chmod(folder, 0o755)
        place = Path(folder, "home")
        place.mkdir()
        os.chown(place, user, user)
        Path(folder, "root").mkdir(mode=0o700)
        yield place


def act(user: int, script: str, *arguments: Path | str, group: int | None = None) -> str:
    """Return the output of a user's shell ``script`` with ``$1``, ``$2``, ...; it has to succeed."""
    done = attempt(user, script, *arguments, group=group)
    assert done.returncode == 0, done.stderr
    return done.stdout


def attempt(user: int, script: str, *arguments: Path | str, group: int | None = None) -> subprocess.CompletedProcess[str]:
    """Return the output of a user's shell ``script``, whether or not it succeeds."""
    return subprocess.run(
        ["bash", "-c", script, "bash", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        user=user,
        group=user if group is None else group,
        extra_groups=[],
        cwd="/",
        env=os.environ | {"LC_ALL": "C"},
    )


def become(user: int) -> None:
    """Give up root in this process, a forked one, for good. As after an execve(2), the user may look at it in /proc."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


@contextmanager
def repeating(user: int, step: Callable[[], object]) -> Iterator[list[str]]:
    """Call ``step`` repeatedly in another process of ``user`` while the body runs.

    Afterwards the list holds its results other than None; an `OSError` is a failed attempt.
    """
    said: list[str] = []
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become(user)
            os.write(writer, b"\n")
            while True:
                with suppress(OSError):
                    if (found := step()) is not None:
                        os.write(writer, f"{found}\n".encode())
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as pipe:
        try:
            assert pipe.readline() == b"\n"
            yield said
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        said += pipe.read().decode(errors="replace").splitlines()


def exchanging(user: int, folder: Path, link: Path) -> AbstractContextManager[list[str]]:
    """Exchange a folder and a link of ``user`` for each other, there and back, while the body runs."""
    taken = folder.with_name("folder")

    def swap() -> None:
        folder.rename(taken)
        link.rename(folder)
        folder.rename(link)
        taken.rename(folder)

    return repeating(user, swap)


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return everything that reading may not change in a tree: kind and mode, owner, size, times except access, links, bytes."""
    found: dict[str, tuple[object, ...]] = {}
    for place, folders, files in os.walk(folder):
        for path in (Path(place), *(Path(place, name) for name in (*folders, *files))):
            status = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[str(path)] = (
                *(status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_nlink),
                *(status.st_size, status.st_mtime_ns, status.st_ctime_ns, content),
            )
    return found
