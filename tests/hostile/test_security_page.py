"""docs/SECURITY.md: its commands have the described effects, its unit is valid, its links lead to existing targets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.mounting import ROOT
from tests.support.namespace import SCRIPTS
from tests.support.programs import demand
from tests.support.users import REPOSITORY, run_as_users

pytestmark = pytest.mark.fuse

PAGE = ROOT / "docs/SECURITY.md"
HERE = Path(__file__).parent

# Settings that give the service a mount namespace of its own, or prevent fusermount3 from mounting (systemd/README.md, "Sandboxing").
HINDERING = ("Private", "Protect", "ReadOnly", "ReadWrite", "Inaccessible", "NoNewPrivileges", "DynamicUser", "SystemCallFilter")


def test_the_safe_way_is_safe() -> None:
    (command,) = re.findall(r"\$ (zarrfs mount .*)", PAGE.read_text())
    command = command.replace("/srv/upload/theirs.zarr", '"$W/2/s.zarr"').replace("~/theirs", '"$W/65534/m"')
    said = run_as_users(f"""
    cp -r {REPOSITORY}/demo/example.zarr "$W/2/s.zarr" && chown -R 2:2 "$W/2"
    as 65534 {command}
    grep "$W/65534/m " /proc/mounts | cut -d " " -f 4
    ls "$W/65534/m" 2>&1 | grep -c "Permission denied"
    as 2 ls "$W/65534/m" 2>&1 | grep -c "Permission denied"
    as 65534 zarrfs umount "$W/65534/m"
    """).splitlines()
    assert {"ro", "nosuid", "nodev", "default_permissions", "user_id=65534"} <= set(said[0].split(","))
    assert "allow_other" not in said[0]
    assert said[1:] == ["1", "1"], "root and others are kept out"


def test_systemd_knows_every_word_of_the_drop_in(tmp_path: Path) -> None:
    demand("systemd-analyze")
    (text,) = re.findall(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    words = {line.partition("=")[0] for line in text.splitlines() if re.match(r"\w+=", line)}
    assert not [word for word in words if word.startswith(HINDERING)]
    taken_back = {
        line for line in (ROOT / "systemd/user.conf").read_text().splitlines() if re.match(r"(Lock|Restrict|System)\w+=", line)
    }
    assert taken_back <= set(text.splitlines())
    unit = tmp_path / "zarrfs@theirs.service"
    unit.write_text((ROOT / "systemd/zarrfs@.service").read_text().replace("/usr/local/bin", str(SCRIPTS)))
    drop_in = tmp_path / "zarrfs@theirs.service.d/untrusted.conf"
    drop_in.parent.mkdir()
    for more in ("", "MemoryMx=1\n"):
        drop_in.write_text(text + more)
        verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
        ours = [line for line in verified.stderr.splitlines() if "zarrfs" in line]
        assert bool(ours) == bool(more), verified.stderr


@pytest.mark.parametrize("page", [PAGE, HERE / "README.md"], ids=["SECURITY.md", "README.md"])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_table_of_tests_names_those_that_are_here() -> None:
    named = {
        name
        for line in (HERE / "README.md").read_text().splitlines()
        if line.startswith("|")
        for name in re.findall(r"`(test_\w+\.py)`", line)
    }
    there = {path.name for path in HERE.glob("test_*.py")} - {"test_judge.py", Path(__file__).name}
    assert there <= named
