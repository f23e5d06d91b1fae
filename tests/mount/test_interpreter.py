"""The Python that runs the daemon: another encoding of the locale, another working directory, options of the interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import ROOT, mounted, mountpoint, zarrfs

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]


@pytest.fixture
def _ascii_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locale that every machine has and that is not UTF-8, without Python's own remedies for this one."""
    for name, value in {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A group with arrays whose names are not ASCII, and a consolidated copy."""
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("käse", data=np.arange(4.0))
    group.create_group("ñ").create_array("日本", data=np.arange(3))
    zarr.consolidate_metadata(group.store)
    return tmp_path / "x.zarr"


@pytest.mark.usefixtures("_ascii_locale")
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_names_are_utf8_whatever_the_locale(store: Path, kind: str) -> None:
    path = store if kind == "folder" else Path(shutil.make_archive(str(store), "zip", store))
    with mounted(path) as mount:
        assert np.load(mount.path / "npy/ñ/日本.npy").tolist() == [0, 1, 2]
        assert sorted(os.listdir(mount.path / "zarr3")) == ["käse", "zarr.json", "ñ"]
        if kind == "folder":
            np.save(mount.path / "npy/grün.npy", np.ones(2))
    if kind == "folder":
        assert sorted(zarr.open_consolidated(store)) == ["grün", "käse", "ñ"]


@pytest.mark.usefixtures("_ascii_locale")
def test_a_consolidated_copy_is_compared_by_utf8_names(store: Path) -> None:
    done = zarrfs("check", str(store))
    assert done.returncode == 0
    assert "all is well" in done.stdout
    # Output is in the encoding of the locale.
    assert "k\\xe4se" in zarrfs("info", str(store)).stdout


def _version_in_a_mount(command: list[str], folder: Path, **environment: str) -> str:
    """Return the version of the daemon that ``command``, which is zarrfs, starts in ``folder``."""
    store = folder / "x.zarr"
    store.mkdir()
    with mountpoint() as path:
        options = [str(store), str(path), "--log-file", str(path.with_name("log"))]
        subprocess.run([*command, "mount", *options], cwd=folder, env=os.environ | environment, check=True, timeout=100)
        try:
            return (path / ".zarrfs/version").read_text().strip()
        finally:
            assert zarrfs("umount", str(path)).returncode == 0


@pytest.mark.parametrize("search", ["the working directory", "a relative PYTHONPATH"])
def test_the_daemon_is_of_the_installation_of_the_command(tmp_path: Path, search: str) -> None:
    shutil.copytree(ROOT / "zarrfs", tmp_path / "zarrfs")
    (tmp_path / "zarrfs/__init__.py").write_text('"""Another version."""\n\n__version__ = "0.0.99"\n')
    is_relative = search == "a relative PYTHONPATH"
    environment = {"PYTHONPATH": "." if is_relative else ""}
    command = [sys.executable, *(["-P"] if is_relative else []), "-m", "zarrfs"]
    assert "0.0.99" in _version_in_a_mount(command, tmp_path, **environment)


def test_the_daemon_ignores_what_the_command_was_told_to_ignore(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    (planted / "zarrfs").mkdir(parents=True)
    (planted / "zarrfs/__init__.py").write_text("raise SystemExit('another zarrfs')\n")
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from zarrfs.__main__ import main; main()"
    assert _version_in_a_mount([sys.executable, "-I", "-c", program], tmp_path, PYTHONPATH=str(planted))
