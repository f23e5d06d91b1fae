"""The examples of docs/SEMANTICS.md, run without changes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "SEMANTICS.md").read_text()

pytestmark = pytest.mark.fuse


def examples() -> Iterator[tuple[str, str]]:
    """Yield commands and the output that the page shows for each."""
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    store, mountpoint = tmp_path / "example.zarr", tmp_path / "mnt"
    shutil.copytree(REPOSITORY / "demo" / "example.zarr", store)
    mountpoint.mkdir()
    zarrfs = [sys.executable, "-m", "zarrfs"]
    environment = os.environ | {"STORE": str(store), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LC_ALL": "C"}
    subprocess.run([*zarrfs, "mount", str(store), str(mountpoint), "--log-file", str(tmp_path / "log")], check=True)
    ran = 0
    try:
        for command, expected in examples():
            done = subprocess.run(
                # Of other users of the machine, who run this too, /tmp may have files of these names.
                ["bash", "-c", command.replace("/tmp/", f"{tmp_path}/")],
                cwd=mountpoint,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert done.stdout.split() == expected.split(), f"$ {command}\n{done.stdout}"
            ran += 1
    finally:
        # The short chunk was dropped by its last close, so that the exit code may be 7.
        subprocess.run([*zarrfs, "umount", str(mountpoint)], check=False)
    assert ran >= 15
