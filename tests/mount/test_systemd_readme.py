"""Every command of systemd/README.md is typed, in the order of the page, on a machine with a systemd of its own."""

from __future__ import annotations

import re

import pytest

from tests.support.mounting import ROOT
from tests.support.service_manager import run_under_systemd

pytestmark = pytest.mark.fuse

README = ROOT / "systemd" / "README.md"


def typed() -> list[str]:
    """Return its commands: a line with ``$`` in an indented block, with the lines below that belong to it (a here-document)."""
    commands: list[str] = []
    for line in README.read_text().splitlines():
        if line.startswith("    $ "):
            commands.append(line.removeprefix("    $ "))
        elif line.startswith("    ") and commands:
            commands[-1] += "\n" + line.removeprefix("    ")
    return commands


@pytest.mark.full_length
def test_all_that_is_typed() -> None:
    commands = typed()
    assert len(commands) >= 30 and len(commands) == len(re.findall(r"^ +\$ ", README.read_text(), re.MULTILINE))
    script = 'ln -s ~/zarrfs/bin/zarrfs /usr/local/bin/\ncp -r demo/example.zarr /srv/air.zarr\nrun() { echo "+ $1"; eval "$1"; }\n'
    script += "\n".join(f"run {_quoted(command)}" for command in commands)
    done = run_under_systemd(script)
    told = done.stdout.splitlines()
    assert done.returncode == 0, f"after {[line for line in told if line.startswith('+')][-1:]}: {done.stderr}"
    said = {command: told[told.index("+ " + command.split("\n")[0]) + 1 :] for command in commands}
    assert said["/usr/local/bin/zarrfs --version"][0].startswith("zarrfs ")
    assert said["systemd-escape --path --suffix=mount /mnt/air"][0] == "mnt-air.mount"
    # Each listing shows the mount.
    assert told.count("+ ls /mnt/air") == 3
    for number, line in enumerate(told):
        if line == "+ ls /mnt/air":
            assert told[number + 1 : number + 6] == ["README.txt", "chunks", "npy", "raw", "zarr3"]
    assert any("is mounted on /mnt/air" in line for line in said["systemctl status zarrfs@air"][:8])


def test_the_readme_names_every_file_beside_it_and_no_other() -> None:
    text = README.read_text()
    beside = {path.name for path in README.parent.iterdir()} - {README.name}
    assert all(name in text for name in beside)
    assert set(re.findall(r"systemd/([\w@.-]+)", text)) <= beside | {"system"}


def _quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"
