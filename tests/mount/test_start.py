"""Imports of a mount before its first request: counts, since a duration depends on the machine (`benchmarks/start.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import ROOT, killed_at_last, mounted, mountpoint, zarrfs

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

# With what they import themselves: every mount needs them.
LIBRARIES = {"numpy", "trio", "pyfuse3", "attr", "attrs", "idna", "outcome", "sniffio", "sortedcontainers", "exceptiongroup"}
OF_WATCHED_FOLDERS = {"inotify_simple"}
# Packages of zarrfs that the command needs, which only starts the daemon.
OF_THE_COMMAND = {"__main__", "command", "errors", "lifecycle", "memory", "options", "printable", "registry", "stores"}
# Modules of the standard library that cost as much as ten of ours, and that nothing needs at the start.
HEAVY = {"sqlite3", "asyncio", "multiprocessing", "unittest", "tomllib", "argparse", "optparse"}


@pytest.fixture(autouse=True)
def _listed_by_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Python list its imports on stderr, which is the log of a daemon."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A group with two arrays, one of them compressed."""
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("packed", shape=(100,), dtype="f4", compressors=zarr.codecs.ZstdCodec())[:] = np.arange(100)
    group.create_array("plain", shape=(3,), dtype="u1", compressors=None)[:] = [1, 2, 3]
    return tmp_path / "x.zarr"


def imported(listing: str) -> set[str]:
    """Return the modules in the interpreter's listing, without those that every Python imports here."""
    python = subprocess.run([sys.executable, "-P", "-c", "pass"], capture_output=True, text=True, check=True).stderr
    listed, always = (
        {line.rpartition("|")[2].strip() for line in text.splitlines() if line.startswith("import time:")}
        for text in (listing, python)
    )
    return listed - always


def tops(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def of_others(modules: set[str]) -> set[str]:
    """Return the libraries of other distributions among them. (`copy` tries org.python.core of Jython, `platform` _wmi of Windows.)"""
    ours = ("zarrfs", "org", "_sysconfigdata", "_wmi", "")
    return {top for top in tops(modules) if top not in sys.stdlib_module_names and top.partition("__")[0] not in ours}


def test_a_mount_imports_what_every_mount_needs_and_the_rest_when_it_is_used(store: Path) -> None:
    with mounted(store) as mount:
        idle = imported(mount.log())
        assert of_others(idle) <= LIBRARIES | OF_WATCHED_FOLDERS, of_others(idle) - LIBRARIES
        assert not tops(idle) & HEAVY
        assert np.load(mount.path / "npy" / "packed.npy").tolist() == list(range(100))
        assert {"numcodecs", "zstandard"} <= of_others(imported(mount.log()))


def test_the_command_that_mounts_imports_click_alone(store: Path) -> None:
    with mountpoint() as path:
        done = zarrfs("mount", str(store), str(path), "--log-file", str(path.with_name("log")))
        assert done.returncode == 0, done.stderr
        try:
            modules = imported(done.stderr)
            assert of_others(modules) <= {"click"}
            ours = {module.split(".")[1] for module in modules if module.startswith("zarrfs.")}
            assert ours <= OF_THE_COMMAND, ours - OF_THE_COMMAND
        finally:
            done = zarrfs("umount", str(path))
        assert done.returncode == 0
        assert of_others(imported(done.stderr)) <= {"click"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["mount", "--help"]], ids=" ".join)
def test_help_imports_click_alone(arguments: list[str]) -> None:
    done = zarrfs(*arguments)
    assert done.returncode == 0
    assert of_others(imported(done.stderr)) <= {"click"}


@pytest.mark.parametrize(("module", "text"), [("zstandard", "raise ImportError('wrong ELF class')"), ("numcodecs", "1 / 0")])
def test_a_broken_library_costs_one_line_and_the_arrays_that_need_it(
    module: str, text: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPROFILEIMPORTTIME")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / f"{module}.py").write_text(text)
    with mountpoint() as path:
        log = path.with_name("log")
        env = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-P", "-m", "zarrfs"]
        subprocess.run([*command, "mount", store, path, "--log-file", log], env=env, cwd="/", check=True)
        with killed_at_last(pid_of(path), path):
            for view in ("npy", "chunks", "zarr3"):
                reason = (path / view / "packed.unsupported.txt").read_text()
                assert f"codec zstd: library {module}" in reason
            assert np.load(path / "npy" / "plain.npy").tolist() == [1, 2, 3]
            assert zarrfs("umount", str(path)).returncode == 0
        lines = [line for line in log.read_text().splitlines() if "unusable" in line]
        assert len(lines) == 1 and "Traceback" not in log.read_text()


def pid_of(path: Path) -> int:
    return int(json.loads((path / ".zarrfs" / "config.json").read_bytes())["pid"])


def test_python_in_its_development_mode_has_nothing_to_say(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPROFILEIMPORTTIME")
    with mountpoint() as path:
        ended = []
        for arguments in (["mount", store, path, "--log-file", path.with_name("log")], ["umount", path]):
            command = [sys.executable, "-X", "dev", "-P", "-m", "zarrfs", *map(str, arguments)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
            ended.append((done.returncode, done.stderr))
        assert ended == [(0, ""), (0, "")]
